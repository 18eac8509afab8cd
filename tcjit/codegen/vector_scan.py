"""Scans in vector registers: the running sums, products and extrema of a vector by shifts of its lanes, then combined with those before.

After Hillis and Steele, Data Parallel Algorithms (1986): one dependent operation for each vector, in the place of one for each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcjit.codegen.loops import For, Run
from tcjit.codegen.scope import LoopScope
from tcjit.codegen.tile_vectors import combined, suffix, vector_type
from tcjit.grammar.ast import Access, Binary, Call, Expr
from tcjit.mapping.scop import ScopStatement

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

    def lines(self, bounds: tuple[str, str], identity: str, place: str, source: str, before: Sequence[str]) -> list[str]:
        """The results of whole vectors from ``bounds[0]`` on, which begin no later than at ``bounds[1]``: stored at ``place``, of terms at
        ``source`` once lines ``before`` have run, to which ``tc_first`` is the first of them. ``tc_running`` has the last result, and
        ``tc_first`` the place behind it."""
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
        return [
            f"int64_t tc_first = {bounds[0]};",
            f"{vector} tc_carried = tc_splat{ending}(tc_running);",
            f"const {vector} tc_none = tc_splat{ending}({identity});",
            f"for (; tc_first <= {bounds[1]}; tc_first += {width}) {{",
            *("  " + line for line in before),
            f"  {vector} tc_v = {load};",
            *steps,
            f"  tc_v = {combined(self.operator, ending, 'tc_carried', 'tc_v')};",
            f"  tc_store{ending}({place}, {stored});",
            f"  tc_carried = TC_SHUFFLE(tc_v, {chosen([width - 1] * width)});",
            "}",
            "tc_running = tc_carried[0];",
        ]


def vector_scan(scope: LoopScope, loop: For, run: Run, s: ScopStatement, width: int) -> VectorScan | None:
    """The form in vectors of ``width`` lanes of a loop over a statement that reads its own result of the iteration before, where it has
    one."""
    dtype, value = s.value.dtype, s.value
    if dtype not in TYPES or loop.step != 1 or scope.mapped.scop.tensor(s.tensor).dtype != dtype:
        return None
    if width < LEAST_LANES or (loop.trips is not None and loop.trips < 2 * width):
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
    return VectorScan(operator, term, dtype, width, stride == -1, step if step in (1, -1) else None)
