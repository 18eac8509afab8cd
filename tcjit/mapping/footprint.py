"""Pieces: what a block reads of a tensor while it is at one step, and how a copy of it lies in shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.storage import Storage
from tcjit.mapping.strides import SubscriptForm, subscript_form

WIDE = 16  # bytes of one access at most


@dataclass(frozen=True)
class Piece:
    """A box of elements. ``forms``: the read's subscripts; ``spans``: how many values of each dimension the block takes meanwhile, one of
    those that a subscript divides."""

    forms: tuple[SubscriptForm, ...]
    spans: Mapping[str, int]
    sizes: tuple[int, ...]  # along each axis
    contiguous: int  # the axis along which the tensor lies in memory
    fast: int  # the axis along which the copy lies
    padding: int  # elements after each row of the copy

    @property
    def strides(self) -> tuple[int, ...]:
        """By how much the copy moves along each axis, in elements."""
        strides = [1] * len(self.sizes)
        step = self.sizes[self.fast] + self.padding
        for axis in reversed([a for a in range(len(self.sizes)) if a != self.fast]):
            strides[axis] = step
            step *= self.sizes[axis]
        return tuple(strides)

    @property
    def elements(self) -> int:
        rows = [size for axis, size in enumerate(self.sizes) if axis != self.fast]
        return (self.sizes[self.fast] + self.padding) * prod(rows)


def piece(
    storage: Storage, s: ScopStatement, plan: GroupPlan, item: StatementPlan, access: Access, values: Mapping[str, int]
) -> Piece | None:
    """The piece of a read of a statement; None for subscripts that are no plain sums of what moves in it, and for what a tensor core could
    not load."""
    known = [subscript_form(sub, values) for sub in access.subscripts]
    forms = tuple(form for form in known if form is not None)
    if not known or len(forms) < len(known):
        return None
    spans = {dim: _span(dim, s, plan, item) for dim in s.dims}
    if any(spans[dim] > 1 for form in forms for dim in form.divided):
        return None
    sizes = box([form.factors for form in forms], spans)
    near = sorted(range(len(sizes)), key=lambda axis: (sizes[axis] == 1, _distance(storage.strides[axis]), -axis))
    size = DTYPES[storage.dtype].bytes
    if item.mma:  # rows of 16 bytes more: the eight that an instruction loads at once lie in different banks
        able = _matrix_axes(forms, spans)
        fast = next((axis for axis in near if axis in able), None)
        return None if fast is None else Piece(forms, spans, sizes, near[0], fast, WIDE // size)
    if _along_terms(forms, sizes, plan, item, near[0], WIDE // size):
        return Piece(forms, spans, sizes, near[0], near[0], WIDE // size)
    fast = _fast(forms, sizes, plan, item, near[0])
    wide = max(1, WIDE // size // 4)  # keeps rows of 4-byte elements aligned to 16 bytes
    padding = 0 if fast == near[0] else 4 * wide if any(share.vector > 1 for share in plan.columns) else 1
    return Piece(forms, spans, sizes, near[0], fast, padding)


def box(forms: Iterable[Mapping[str, int]], spans: Mapping[str, int]) -> tuple[int, ...]:
    """How far subscripts reach, given the factors of dimensions in each, and how many values these take."""
    return tuple(1 + sum(abs(f) * (spans[dim] - 1) for dim, f in form.items() if f) for form in forms)


def _span(dim: str, s: ScopStatement, plan: GroupPlan, item: StatementPlan) -> int:
    share = item.share(dim, plan.columns)
    if share is None:
        return s.extent(dim)
    return share.whole_tile if item.padded else min(share.tile, share.extent)


def _distance(stride: int | None) -> int:
    """How far apart neighbours lie in memory; unknown, or an axis of which all elements are one: far."""
    return stride or 1 << 62


def _fast(forms: Sequence[SubscriptForm], sizes: Sequence[int], plan: GroupPlan, item: StatementPlan, otherwise: int) -> int:
    """The axis along which neighbouring threads, or one thread's neighbours, read the copy."""
    wanted = [item.columns[c] for c in sorted(plan.order, key=lambda c: (plan.columns[c].vector > 1, c))]
    if item.lane and not plan.lane_first:
        wanted.append(item.lane[0])
    for dim in reversed(wanted):
        for axis, form in enumerate(forms):
            if form.factors.get(dim) == 1 and sizes[axis] > 1:
                return axis
    return otherwise


def _along_terms(
    forms: Sequence[SubscriptForm], sizes: Sequence[int], plan: GroupPlan, item: StatementPlan, near: int, wide: int
) -> bool:
    """Whether threads read rows that follow each other, several neighbouring terms of each at once: then the copy is as the tensor lies.
    Rows are ``wide`` elements longer, so that eight of them lie in different banks."""
    moving = [list(form.factors.items()) for form, size in zip(forms, sizes, strict=True) if size > 1]
    terms, shares = dict(item.steps), {dim: plan.columns[c] for c, dim in enumerate(item.columns)}
    if any(len(one) != 1 or one[0][1] != 1 for one in moving) or sizes[near] % wide or len(moving) < 2:
        return False
    rows = [one[0][0] for one in moving if one != list(forms[near].factors.items())]
    return next(iter(forms[near].factors)) in terms and all(dim in shares and shares[dim].vector == 1 for dim in rows)


def _matrix_axes(forms: Sequence[SubscriptForm], spans: Mapping[str, int]) -> list[int]:
    """The axes along which a tensor core could load 8 neighbours at once: they move one by one with a dimension of the block's tile or
    step. None in a piece that is no matrix: its rows are apart only where each axis moves with one dimension, and each of these moves
    one axis."""
    moving = [[(dim, f) for dim, f in form.factors.items() if f and spans[dim] > 1] for form in forms]
    dims = [dim for terms in moving for dim, _ in terms]
    if len(set(dims)) < len(dims) or any(len(terms) > 1 for terms in moving):
        return []
    return [axis for axis, terms in enumerate(moving) if terms and terms[0][1] == 1]
