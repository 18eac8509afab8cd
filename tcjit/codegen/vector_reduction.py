"""Reductions and scans of a row in vector registers.

OpenMP combines the lanes of a reduction that it does not know one by one, which takes longer than a short row itself: minima and maxima
that keep NaN, and sums of what is computed a block at a time. The last vectors begin where they end with the row: an element that they
meet twice changes no minimum or maximum, and counts once in a sum. Scans compute the running sums, products and extrema of a vector by
shifts of its lanes, then combined with those before. After Hillis and Steele, Data Parallel Algorithms (1986): one dependent operation for
each vector, in the place of one for each result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tcjit.codegen.loops import For, Run
from tcjit.codegen.scope import LoopScope
from tcjit.codegen.tile_vectors import across, combined, halved, suffix, vector_type
from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Call, Expr
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
            if before and self.counts_once:  # no condition in the loop of the terms: under one the compiler computes on what lanes had
                term = f"tc_blend{ending}(tc_splat{ending}({identity}), {term}, tc_from{ending}({v * self.width} + tc_first - tc_block))"
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


# ---------------------------------------------------------------- scans


TYPES = ("float32", "float64", "int32")
LEAST_LANES = 4  # shifts and sums of fewer take longer than the sums themselves


@dataclass(frozen=True)
class VectorScan:
    """A scan with ``operator`` (that of a reduction, ``+=``) of a ``term``; ``backwards``: a result is before its neighbour in memory."""

    operator: str
    term: Expr
    dtype: str
    width: int
    backwards: bool
    step: int | None  # between the terms in memory, where they are neighbours there

    @property
    def masked(self) -> bool:
        """Whether the results behind those of whole vectors are one of which some lanes count."""
        return self.step == 1 and not self.backwards

    def lines(self, bounds: tuple[str, str], trips: int | None, identity: str, place: str, source: str, before: Sequence[str]) -> list[str]:
        """The results of vectors from ``bounds[0]`` to ``bounds[1]``, so many where that is known: stored at ``place``, of terms at
        ``source`` once lines ``before`` have run, to which ``tc_first`` is the first of them. Where the last ones are not ``masked``,
        ``tc_running`` has the last result, and ``tc_first`` the place behind it."""
        ending, vector, width = suffix(self.dtype, self.width), vector_type(self.dtype, self.width), self.width
        lanes = f"tc_lanes{ending}"

        def chosen(places: Sequence[int]) -> str:
            return f"(({lanes}){{{', '.join(map(str, places))}}})"

        steps, shift = [], 1
        while shift < width:
            shifted = f"TC_SHUFFLE2(tc_none, tc_v, {chosen([lane if lane < shift else width + lane - shift for lane in range(width)])})"
            steps.append(f"  tc_v = {combined(self.operator, ending, shifted, 'tc_v')};")
            shift *= 2
        mirrored = chosen(range(width - 1, -1, -1))
        stored = f"TC_SHUFFLE(tc_v, {mirrored})" if self.backwards else "tc_v"
        load = f"tc_load{ending}({source})"
        load = f"TC_SHUFFLE({load}, {mirrored})" if self.step == -1 else load
        each = [*steps, f"  tc_v = {combined(self.operator, ending, 'tc_carried', 'tc_v')};"]
        lines = [
            f"int64_t tc_first = {bounds[0]};",
            f"{vector} tc_carried = tc_splat{ending}(tc_running);",
            f"const {vector} tc_none = tc_splat{ending}({identity});",
            f"for (; tc_first + {width - 1} <= {bounds[1]}; tc_first += {width}) {{",
            *("  " + line for line in before),
            f"  {vector} tc_v = {load};",
            *each,
            f"  tc_store{ending}({place}, {stored});",
            f"  tc_carried = TC_SHUFFLE(tc_v, {chosen([width - 1] * width)});",
            "}",
        ]
        if not self.masked:
            return [*lines, "tc_running = tc_carried[0];"]
        if trips is not None and trips % width == 0:
            return lines
        until = f"tc_until{ending}({bounds[1]} - tc_first)"
        masked = [
            f"const tc_mask{ending} tc_rest = {until};",
            f"{vector} tc_v = tc_load_masked{ending}({source}, tc_rest);",
            *(line.strip() for line in each),
            f"tc_store_masked{ending}({place}, tc_v, tc_rest);",
        ]
        return [*lines, f"if (tc_first <= {bounds[1]}) {{", *("  " + line for line in masked), "}"]


def vector_scan(scope: LoopScope, loop: For, run: Run, s: ScopStatement, width: int) -> VectorScan | None:
    """The form in vectors of ``width`` lanes of a loop over a statement that reads its own result of the iteration before, where it has
    one."""
    dtype, value = s.value.dtype, s.value
    if dtype not in TYPES or loop.step != 1 or scope.mapped.scop.tensor(s.tensor).dtype != dtype:
        return None
    if width < LEAST_LANES:
        return None
    match value:
        case Binary(op="+" | "*", left=Access(tensor=s.tensor), right=term):
            operator = f"{value.op}="
        case Call(function="min" | "max", args=(Access(tensor=s.tensor), term)):
            operator = f"{value.function}="
        case _:
            return None
    target = scope.target(s, run)
    stride = None if target is None else target.stride(loop.variable)
    if stride not in (1, -1):
        return None
    source = scope.operand(term, run) if isinstance(term, Access) and scope.mapped.scop.tensor(term.tensor).dtype == dtype else None
    step = None if source is None else source.stride(loop.variable)
    found = VectorScan(operator, term, dtype, width, stride == -1, step if step in (1, -1) else None)
    return found if loop.trips is None or loop.trips >= (1 if found.masked else 2) * width else None
