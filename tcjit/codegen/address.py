"""Addresses of tensor elements in a kernel: a base pointer and subscripts that are sums over loop variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tcjit.dataclass import dataclass
from tcjit.grammar.linear import Linear


@dataclass(frozen=True)
class Address:
    """``base[fixed + sum(part * stride)]``: one constant-stride sum, and the parts whose stride is a variable of the kernel."""

    base: str
    fixed: Linear
    runtime: tuple[tuple[str, Linear], ...] = ()

    def written(self, index: Callable[[Linear], str]) -> str:
        """The element's text, given that of an expression."""
        parts = [] if self.fixed.is_constant and not self.fixed.constant and self.runtime else [index(self.fixed)]
        parts += [f"{index(part) if part.is_operand else f'({index(part)})'} * {stride}" for stride, part in self.runtime]
        return f"{self.base}[{' + '.join(parts)}]"

    def stride(self, variable: str) -> int | None:
        """Elements that the address moves with a loop variable; None where that is unknown."""
        if any(part.coefficient(variable) != 0 for _, part in self.runtime):
            return None
        return self.fixed.coefficient(variable)

    def follows(self, variable: str) -> bool:
        """Whether the address moves by one with a loop variable, whatever the value of that is."""
        return self.stride(variable) == 1 and variable not in (self.fixed - Linear.of(variable)).variables

    def step(self, variable: str) -> str:
        """The same as C has it, where strides are variables of the kernel; empty where the address does not move evenly."""
        fixed, *parts = (part.coefficient(variable) for part in (self.fixed, *(part for _, part in self.runtime)))
        if fixed is None or None in parts:
            return ""
        moves = [f"{moved} * {stride}" for (stride, _), moved in zip(self.runtime, parts, strict=True) if moved]
        return " + ".join([*moves, *([str(fixed)] if fixed or not moves else [])])

    def substitute(self, values: Mapping[str, Linear]) -> Address:
        return Address(self.base, self.fixed.substitute(values), tuple((s, p.substitute(values)) for s, p in self.runtime))

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self.fixed.variables.union(*(part.variables for _, part in self.runtime)))
