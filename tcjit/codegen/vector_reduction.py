"""Reductions of a row in vector registers: minima and maxima that keep NaN, and sums of what is computed a block at a time.

OpenMP combines the lanes of a reduction that it does not know one by one, which takes longer than a short row itself. The last vectors
begin where they end with the row: an element that they meet twice changes no minimum or maximum, and counts once in a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcjit.codegen.loops import For, Run
from tcjit.codegen.tile_vectors import declarations, suffix, vector_type
from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.polynomial import names
from tcjit.mapping.scop import Scop, ScopStatement

MOST_VECTORS = 4  # that wait for one another no more than loads do
EXTREMA = ("min=", "max=")
SUMS = {"+=": "add", "*=": "mul"}  # as the functions that combine lanes are called
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


def neighbours(loop: For, run: Run, s: ScopStatement, scop: Scop) -> Access | None:
    """The read that a statement's value is, where a loop runs along neighbours in memory; None where values are to be computed first."""
    access = s.value
    if not isinstance(access, Access):
        return None
    storage = scop.tensor(access.tensor)
    if storage.role == "temporary" or storage.dtype != access.dtype or not access.subscripts or storage.strides[-1] != 1:
        return None
    if COMPUTED.get(storage.dtype) != storage.dtype:
        return None
    *others, last = access.subscripts
    others_move = any(loop.variable in run.index(dim).variables for sub in others for dim in names(sub))
    if others_move or any(map(is_gather, access.subscripts)) or not isinstance(last, Index):
        return None
    return None if loop.variable in (run.index(last.name) - Linear.of(loop.variable)).variables else access


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

    def declarations(self) -> list[str]:
        return declarations(self.dtype, self.width)

    @property
    def step(self) -> int:
        """Values of all registers."""
        return self.vectors * self.width

    @property
    def counted(self) -> str:
        """The first iteration whose value counts in a block, where blocks overlap and a value may not count twice; else nothing."""
        return "tc_block" if self.operator in SUMS and self.trips % self.step else ""

    def lines(
        self, identity: str, scalar: Callable[[str, str], str], place: Callable[[str], str], before: Sequence[str] = ()
    ) -> list[str]:
        """``tc_sum`` with the row's values; ``scalar`` combines two, ``place`` is where those of all registers stand from one on, given
        its number, once lines ``before`` have run, to which that is ``tc_first``."""
        ending, vector = suffix(self.dtype, self.width), vector_type(self.dtype, self.width)
        name = SUMS.get(self.operator, self.operator[:3])

        def combined(left: str, right: str) -> str:
            return f"{left} {self.operator[0]} {right}" if self.operator in SUMS else f"tc_{name}{ending}({left}, {right})"

        lines = [f"{vector} {', '.join(f'tc_row{v} = tc_splat{ending}({identity})' for v in range(self.vectors))};"]
        end = f"{self.last} - {self.step - 1}"
        lines.append(f"for (int64_t tc_block = {self.first}; tc_block <= {self.last}; tc_block += {self.step}) {{")
        last = f"tc_block < {end} ? tc_block : {end}" if self.trips % self.step else "tc_block"
        lines += [f"  const int64_t tc_first = {last};", *("  " + line for line in before)]
        for v in range(self.vectors):
            row, term = f"tc_row{v}", f"tc_load{ending}({place('tc_first')} + {v * self.width})"
            lines.append(f"  {row} = {combined(row, term)};")
        lines.append("}")
        apart = self.vectors
        while apart > 1:
            half = apart // 2
            lines += [f"tc_row{v} = {combined(f'tc_row{v}', f'tc_row{apart - half + v}')};" for v in range(half)]
            apart -= half
        return [*lines, f"tc_sum = {scalar('tc_sum', f'tc_across_{name}{ending}(tc_row0)')};"]
