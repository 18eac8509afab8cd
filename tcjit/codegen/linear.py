"""Integer expressions of generated loops in a normal form: a sum of multiples of loop variables and opaque atoms.

The normal form makes the questions that a printer asks one-liners: by how much does an address move along a loop, is a trip count
constant, what remains after unrolling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tcjit.grammar.ast import Binary, Call, Const, Expr, Size

# the functions of the generated code
HELPERS = {"floor": "tc_fdiv", "mod": "tc_mod", "min": "tc_min_index", "max": "tc_max_index"}


@dataclass(frozen=True)
class Opaque:
    """``floor`` (args: expression, positive divisor), ``mod`` (the same), ``min`` or ``max`` of expressions."""

    op: str
    args: tuple[Linear, ...]

    @property
    def text(self) -> str:
        inner = [a.text for a in self.args]
        result = inner[0]
        for other in inner[1:]:
            result = f"{HELPERS[self.op]}({result}, {other})"
        return result

    def expression(self) -> Expr:
        """The same as an expression over sizes."""
        args = tuple(argument.expression() for argument in self.args)
        if self.op in ("floor", "mod"):
            return Binary("/" if self.op == "floor" else "%", *args, dtype="int64")
        return Call(self.op, args, dtype="int64")


@dataclass(frozen=True)
class Linear:
    """``sum(coefficient * atom) + constant``; an atom is the name of a loop variable or an Opaque."""

    terms: tuple[tuple[str | Opaque, int], ...]
    constant: int = 0

    @staticmethod
    def of(value: int | str | Opaque) -> Linear:
        return Linear((), value) if isinstance(value, int) else Linear(((value, 1),))

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        total = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
        return Linear(tuple((a, c) for a, c in total.items() if c), self.constant + other.constant)

    def __sub__(self, other: Linear | int) -> Linear:
        return self + (-other if isinstance(other, int) else other.times(-1))

    def times(self, factor: int) -> Linear:
        if factor == 0:
            return Linear(())
        return Linear(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, variable: str) -> int | None:
        """How far the value moves when the variable moves by one; None when that is not fixed."""
        result = 0
        for atom, coefficient in self.terms:
            if atom == variable:
                result += coefficient
            elif isinstance(atom, Opaque) and variable in Linear(((atom, 1),)).variables:
                return None
        return result

    @cached_property
    def variables(self) -> frozenset[str]:
        found: set[str] = set()
        for atom, _ in self.terms:
            if isinstance(atom, str):
                found.add(atom)
            else:
                for argument in atom.args:
                    found |= argument.variables
        return frozenset(found)

    @cached_property
    def operators(self) -> frozenset[str]:
        """The operators of the opaque atoms, nested ones included."""
        opaque = [atom for atom, _ in self.terms if isinstance(atom, Opaque)]
        return frozenset(atom.op for atom in opaque).union(*(argument.operators for atom in opaque for argument in atom.args))

    def substitute(self, values: Mapping[str, Linear]) -> Linear:
        result = Linear((), self.constant)
        for atom, coefficient in self.terms:
            if isinstance(atom, str):
                replacement = values.get(atom, Linear(((atom, 1),)))
            else:
                replacement = combine(atom.op, tuple(a.substitute(values) for a in atom.args))
            result = result + replacement.times(coefficient)
        return result

    @cached_property
    def text(self) -> str:
        """C text, unparenthesised."""
        return self.written(lambda atom: atom if isinstance(atom, str) else atom.text)

    def written(self, operand: Callable[[str | Opaque], str]) -> str:
        """C text, unparenthesised, given that of its atoms."""
        parts: list[str] = []
        for atom, coefficient in self.terms:
            name = operand(atom)
            size = abs(coefficient)
            factor = name if size == 1 else f"{size} * {name}"
            sign = ("-" if not parts else " - ") if coefficient < 0 else ("" if not parts else " + ")
            parts.append(sign + factor)
        if self.constant or not parts:
            sign = ("-" if not parts else " - ") if self.constant < 0 else ("" if not parts else " + ")
            parts.append(f"{sign}{abs(self.constant)}")
        return "".join(parts)

    def expression(self) -> Expr:
        """The same as an expression over sizes."""
        total: Expr = Const(self.constant, dtype="int64")
        for atom, coefficient in self.terms:
            value: Expr = Size(atom, dtype="int64") if isinstance(atom, str) else atom.expression()
            term = Binary("*", Const(coefficient, dtype="int64"), value, dtype="int64")
            total = Binary("+", total, term, dtype="int64")
        return total

    @property
    def is_operand(self) -> bool:
        """Whether the text can stand as an operand without parentheses."""
        return (len(self.terms) == 1 and not self.constant and self.terms[0][1] == 1) or (not self.terms and self.constant >= 0)


def combine(op: str, args: tuple[Linear, ...]) -> Linear:
    """floor, mod, min or max of expressions, folded where they are constant."""
    if op in ("min", "max"):
        distinct = tuple(dict.fromkeys(args))
        constants = [a.constant for a in distinct if a.is_constant]
        others = [a for a in distinct if not a.is_constant]
        if constants:
            others.append(Linear.of(min(constants) if op == "min" else max(constants)))
        return others[0] if len(others) == 1 else Linear.of(Opaque(op, tuple(others)))
    value, divisor = args
    if divisor.is_constant and divisor.constant > 0:
        d = divisor.constant
        if value.is_constant:
            return Linear.of(value.constant // d if op == "floor" else value.constant % d)
        if op == "floor" and d == 1:
            return value
        if op == "mod" and d == 1:
            return Linear.of(0)
        # take multiples of the divisor out of the operand
        whole = Linear(tuple((a, c // d) for a, c in value.terms if c % d == 0), value.constant // d)
        rest = Linear(tuple((a, c) for a, c in value.terms if c % d), value.constant % d)
        if rest.is_constant:
            return whole if op == "floor" else Linear.of(rest.constant)
        if op == "mod":
            return Linear.of(Opaque("mod", (rest, divisor)))
        return whole + Linear.of(Opaque("floor", (rest, divisor)))
    return Linear.of(Opaque(op, args))
