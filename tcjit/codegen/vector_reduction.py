"""Reductions of a row in vector registers: minima and maxima that keep NaN, and sums of what is computed a block at a time.

OpenMP combines the lanes of a reduction that it does not know one by one, which takes longer than a short row itself. The last vectors
begin where they end with the row: an element that they meet twice changes no minimum or maximum, and counts once in a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tcjit.codegen.loops import For, Run
from tcjit.codegen.scope import LoopScope
from tcjit.codegen.tile_vectors import across, combined, halved, suffix, vector_type
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.scop import ScopStatement

SHORT = 1024  # neighbours whose sum takes less time than finding them
MOST_VECTORS = 4  # that wait for one another no more than loads do
EXTREMA = ("min=", "max=")
SUMS = ("+=", "*=")
COMPUTED = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}  # what values are in registers


def find_vector_reduction(loop: For, s: ScopStatement, width: int, index: Callable[[Linear], str]) -> VectorReduction | None:
    """The loop over a statement, where that reduces at least a vector of floats; ``width``: lanes of its type."""
    computed = COMPUTED.get(s.value.dtype)
    if s.operator not in (*EXTREMA, *SUMS) or computed is None or loop.step != 1:
        return None
    width = width * DTYPES[s.value.dtype].bytes // DTYPES[computed].bytes
    if width < 2:
        return None
    found = VectorReduction(index(loop.lower), f"({index(loop.upper)})", loop.trips or 0, s.operator, computed, width)
    return found if found.vectors else None


def neighbours(loop: For, run: Run, s: ScopStatement, scope: LoopScope) -> Access | None:
    """The read that a statement's value is, where a loop runs along neighbours in memory; None where values are to be computed first."""
    access = s.value
    if not isinstance(access, Access) or access.tensor == s.tensor:
        return None
    dtype = scope.mapped.scop.tensor(access.tensor).dtype
    if dtype != access.dtype or COMPUTED.get(dtype) != dtype:
        return None
    with scope.ranged(loop):
        address = scope.operand(access, run)
    return access if address is not None and address.stride(loop.variable) == 1 else None


@dataclass(frozen=True)
class VectorReduction:
    """A loop of ``trips`` iterations from ``first`` to ``last``, as C; ``operator`` is that of a reduction."""

    first: str
    last: str
    trips: int
    operator: str
    dtype: str
    width: int

    @property
    def vectors(self) -> int:
        """Registers of partial results; none where a row is shorter than a vector."""
        return min(MOST_VECTORS, self.trips // self.width)

    @property
    def step(self) -> int:
        """Values of all registers."""
        return self.vectors * self.width

    @property
    def counts_once(self) -> bool:
        """Whether the last values are no whole block, and may not count twice."""
        return self.operator in SUMS and self.trips % self.step != 0

    def lines(
        self, identity: str, scalar: Callable[[str, str], str], place: Callable[[str], str], before: Sequence[str] = ()
    ) -> list[str]:
        """``tc_sum`` with the row's values; ``scalar`` combines two, ``place`` is where those of all registers stand from one on, given
        its number, once lines ``before`` have run, to which that is ``tc_first``."""
        ending, vector = suffix(self.dtype, self.width), vector_type(self.dtype, self.width)
        both = partial(combined, self.operator, ending)
        rest = self.trips % self.step if self.counts_once and not before else 0
        lines = [f"{vector} {', '.join(f'tc_row{v} = tc_splat{ending}({identity})' for v in range(self.vectors))};"]
        end = f"{self.last} - {self.step - 1}"
        lines.append(f"for (int64_t tc_block = {self.first}; tc_block <= {end if rest else self.last}; tc_block += {self.step}) {{")
        last = f"tc_block < {end} ? tc_block : {end}" if self.trips % self.step and not rest else "tc_block"
        lines += [f"  const int64_t tc_first = {last};", *("  " + line for line in before)]
        for v in range(self.vectors):
            row, term = f"tc_row{v}", f"tc_load{ending}({place('tc_first')} + {v * self.width})"
            lines.append(f"  {row} = {both(row, term)};")
        lines.append("}")
        for v in range(-(-rest // self.width)):
            left, source = rest - v * self.width, f"{place(f'{self.last} - {rest - 1}')} + {v * self.width}"
            row, mask = f"tc_row{v}", f"tc_until{ending}({left - 1})"
            masked = f"tc_load_masked{ending}({source}, {mask})"
            if self.operator == "*=":
                masked = f"tc_blend{ending}(tc_splat{ending}({identity}), {masked}, {mask})"
            lines.append(f"{row} = {both(row, f'tc_load{ending}({source})' if left >= self.width else masked)};")
        lines += halved([f"tc_row{v}" for v in range(self.vectors)], both)
        return [*lines, f"tc_sum = {scalar('tc_sum', across(self.operator, ending, 'tc_row0'))};"]
