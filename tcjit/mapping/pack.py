"""Pack: give a contraction a copy of an operand in an order that vectors can read.

Where no dimension moves every access of a sum of products by 0 or 1 elements, explicit vectors are out of reach. The output's last
dimension then becomes the vector dimension, and every operand that strides along it is first copied into a temporary with
that dimension last. The copy reads and writes each element once; the contraction uses it many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Scalar, Unary
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.machine import vector_cover
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import stride_in

# uses of each packed element that pay for its copy
WORTH_PACKING = 8
# terms along a reduction that pay for the sums across a register at its end
LONG_REDUCTION = 256
# lanes of a long register, and terms of a sum that pay for computing it in another order of indices
LANES, WORTH_TURNING = 16, 64


@dataclass(frozen=True)
class Packing:
    """``tensor`` is read with plain, distinct indices ``subscripts``; the copy holds them in the order ``order``."""

    access: Access
    order: tuple[str, ...]


def is_product(value: Expr) -> bool:
    """Whether a value can be computed on explicit vectors: float sums and products of plain reads."""
    return value.dtype in ("float32", "float64") and _arithmetic(value, value.dtype)


def _arithmetic(value: Expr, dtype: str) -> bool:
    if isinstance(value, Binary):
        return value.op in ("+", "-", "*") and value.dtype == dtype and _arithmetic(value.left, dtype) and _arithmetic(value.right, dtype)
    if isinstance(value, Unary):
        return value.op == "-" and _arithmetic(value.operand, dtype)
    if isinstance(value, Cast):
        return isinstance(value.operand, (Scalar, Const)) and value.dtype == dtype
    return isinstance(value, (Access, Const, Scalar)) and value.dtype == dtype


def packings(
    target: Storage,
    subscripts: tuple[Expr, ...],
    value: Expr,
    bounds: Bounds,
    reduction: Sequence[str],
    tensors: Mapping[str, Storage],
    values: Mapping[str, int],
) -> list[Packing]:
    """The operands of an update that are worth packing; none where vectors work as it is, or packing would not help."""
    if not reduction or not is_product(value):
        return []
    reads = list(dict.fromkeys(operands(value)))
    extents = {name: upper - lower for name, lower, upper in bounds}
    points = 1
    for extent in extents.values():
        points *= extent

    def move(access: Access, dim: str) -> int | None:
        return stride_in(tensors[access.tensor], access.subscripts, dim, values)

    for dim in extents:
        moves = [move(a, dim) for a in reads]
        write = stride_in(target, subscripts, dim, values)
        if all(m in (0, 1) for m in moves) and 1 in moves and write == (0 if dim in reduction else 1):
            if dim not in reduction or extents[dim] >= LONG_REDUCTION:
                return []
    lane = next((d for d in extents if d not in reduction and stride_in(target, subscripts, d, values) == 1), None)
    if lane is None or extents[lane] < 4:
        return []
    found = []
    for access in reads:
        if move(access, lane) in (0, 1):
            continue
        if not _packable(access, points, tensors):
            return []
        names = [sub.name for sub in access.subscripts if isinstance(sub, Index)]
        found.append(Packing(access, (*(name for name in names if name != lane), lane)))
    return found


def _packable(access: Access, points: int, tensors: Mapping[str, Storage]) -> bool:
    """Whether a copy in another order can be made of an operand, and pays."""
    plain = [sub.name for sub in access.subscripts if isinstance(sub, Index)]
    distinct = len(plain) == len(access.subscripts) and len(set(plain)) == len(plain)
    return distinct and points >= WORTH_PACKING * tensors[access.tensor].elements


def turned_lane(a: Assignment, tensors: Mapping[str, Storage], values: Mapping[str, int], asked: int) -> str | None:
    """The index of a result that should run in lanes though it is not its last: the sum is then computed with that index last.

    ``asked`` counts from the last index, which is 1; with 0 the last one is good enough unless it fills less than half of its registers.
    """
    names = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    started = isinstance(a.start, Const)
    if a.operator != "+=" or not started or not a.reduction or not names or len(set(names)) != len(a.subscripts):
        return None
    extents = {name: upper - lower for name, lower, upper in a.bounds}
    wanted = [names[-asked]] if 1 < asked <= len(names) else []
    if not asked and _fill(extents[names[-1]]) < 0.5 and prod(extents[name] for name in a.reduction) >= WORTH_TURNING:
        wanted = sorted((name for name in reversed(names[:-1]) if extents[name] >= LANES), key=lambda name: -extents[name])
    return next((name for name in wanted if can_run_in_lanes(a.value, name, a.bounds, tensors, values)), None)


def _fill(extent: int) -> float:
    """The part of the lanes in use when registers cover an extent."""
    return extent / (LANES * len(vector_cover(extent, LANES))) if extent else 1.0


def can_run_in_lanes(value: Expr, dim: str, bounds: Bounds, tensors: Mapping[str, Storage], values: Mapping[str, int]) -> bool:
    """Whether a dimension of a sum of products can run in lanes, as its operands are or with copies of them."""
    if not is_product(value):
        return False
    points = prod(upper - lower for _, lower, upper in bounds)
    reads = list(dict.fromkeys(operands(value)))
    moves = [stride_in(tensors[a.tensor], a.subscripts, dim, values) for a in reads]
    fits = all(move in (0, 1) or _packable(a, points, tensors) for a, move in zip(reads, moves, strict=True))
    return fits and any(move != 0 for move in moves)


def operands(value: Expr) -> list[Access]:
    """The reads of a product."""
    if isinstance(value, Access):
        return [value]
    if isinstance(value, Binary):
        return operands(value.left) + operands(value.right)
    return operands(value.operand) if isinstance(value, (Unary, Cast)) else []


def replaced(value: Expr, copies: Mapping[Access, Access]) -> Expr:
    """The value with reads replaced."""
    return copies.get(value, value) if isinstance(value, Access) else rebuild(value, lambda part: replaced(part, copies))
