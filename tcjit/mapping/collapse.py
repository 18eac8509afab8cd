"""Collapse: two dimensions that every statement walks together, over neighbouring axes of contiguous tensors, become one.

An elementwise statement over images then has one long dimension instead of two short ones, and a reduction over height and width a row that
many threads share. Nothing moves in memory: an axis of ``H`` times one of ``W`` is an axis of ``H * W``, and a CPU, to which addresses are
all the same, has axes in the order in which they lie there. (On a GPU what is contiguous begins on a boundary, too.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, plus, times, total
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, walk
from tcjit.layout import memory_order
from tcjit.mapping.isl import union_map, union_set
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Storage
from tcjit.mapping.strides import accesses, affine_form

FEW = 8  # times as many instances as those of a statement that keeps its dimensions have those that merge theirs


@dataclass(frozen=True)
class Merge:
    """In ``statement``, ``outer * extent + inner`` takes the place and the name of ``outer``."""

    statement: str
    outer: str
    inner: str
    extent: int


def order_axes(scop: Scop) -> Scop:
    """The scop with the axes of each tensor that loops and nests walk, and that fills its memory, in the order in which they lie there."""
    orders = {t.name: order for t in scop.tensors if t.layout != "contiguous" and (order := memory_order(t.layout, len(t.shape)))}
    for s in scop.statements:
        for access in accesses(s):
            gathers = any(isinstance(node, Access) for sub in access.subscripts for node in walk(sub))
            by_axis = (s.tiled or s.fused) and scop.tensor(access.tensor).dynamic_extents  # a nest has the strides of its axes, by number
            if gathers or by_axis or s.scan or s.scatter or s.outer:
                orders.pop(access.tensor, None)
    if not orders:
        return scop

    def ordered(access: Access) -> Access:
        order = orders.get(access.tensor, range(len(access.subscripts)))
        return replace(access, subscripts=tuple(access.subscripts[axis] for axis in order))

    tensors = tuple(_contiguous(t, orders[t.name]) if t.name in orders else t for t in scop.tensors)
    return replace(scop, tensors=tensors, statements=tuple(s.with_accesses(ordered) for s in scop.statements))


def collapse(scop: Scop) -> tuple[Scop, tuple[Merge, ...]]:
    """The scop with as few dimensions as its tensors allow, and what was merged, in this order."""
    merged: list[Merge] = []
    while candidate := next(_candidates(scop), None):
        axes, merges = candidate
        scop = _applied(scop, axes, merges)
        merged += merges
    return scop, tuple(merged)


def _contiguous(storage: Storage, order: tuple[int, ...]) -> Storage:
    shape = tuple(storage.shape[axis] for axis in order)
    extents = tuple(storage.dynamic_extents[axis] for axis in order) if storage.dynamic_extents else ()
    return replace(storage, shape=shape, layout="contiguous", dynamic_extents=extents)


Axes = dict[str, int]  # tensor -> the first of its two axes that become one


def _candidates(scop: Scop) -> Iterator[tuple[Axes, list[Merge]]]:
    """Pairs of axes that can be merged, with all that must be merged with them; inner axes first."""
    for storage in scop.tensors:
        for axis in reversed(range(len(storage.shape) - 1)):
            candidate = _closure(scop, storage.name, axis)
            if candidate is not None:
                yield candidate


def _closure(scop: Scop, tensor: str, axis: int) -> tuple[Axes, list[Merge]] | None:
    axes: Axes = {}
    pairs: dict[str, tuple[str, str]] = {}  # statement -> its dimensions, outer and inner
    waiting = [(tensor, axis)]
    while waiting:
        name, first = waiting.pop()
        if name in axes:
            if axes[name] != first:
                return None
            continue
        axes[name] = first
        storage = scop.tensor(name)
        if storage.layout != "contiguous" or storage.elements == 0 or storage.strides[first] is None or storage.extent(first + 1):
            return None
        for s in scop.statements:
            for access in accesses(s):
                if access.tensor != name or s.tiled or s.fused:  # a nest walks memory, whatever axes there are
                    continue
                outer, inner = _walks(access.subscripts[first]), access.subscripts[first + 1]
                if not outer or not isinstance(inner, Index) or outer == inner.name:
                    return None
                if pairs.setdefault(s.name, (outer, inner.name)) != (outer, inner.name):
                    return None
                waiting += [(a.tensor, at) for a in accesses(s) if (at := _position(a, outer, inner.name)) is not None]
    merges = [Merge(name, outer, inner, scop.statement(name).extent(inner)) for name, (outer, inner) in pairs.items()]
    fitting = [m for m in merges if _fits(scop, scop.statement(m.statement), m, axes)]
    most = max((scop.statement(m.statement).points for m in fitting), default=0)
    fits = all(m in fitting or _fills(scop, scop.statement(m.statement), m, axes, most) for m in merges)
    return (axes, fitting) if fitting and fits else None


def _walks(subscript: Expr) -> str:
    """The dimension that walks an axis point by point, others perhaps in chunks of several; none if that is not one."""
    if isinstance(subscript, Index):
        return subscript.name
    form = affine_form(subscript, {})
    steps = form[0] if form is not None else {}
    single = [name for name, step in steps.items() if step == 1]
    return single[0] if len(single) == 1 < len(steps) and min(steps.values()) > 0 else ""


def _position(access: Access, outer: str, inner: str) -> int | None:
    """The axis of an access at which the two dimensions stand side by side."""
    own = access.subscripts
    return next((at for at in range(len(own) - 1) if own[at + 1] == Index(inner, dtype="int64") and _walks(own[at]) == outer), None)


def _fits(scop: Scop, s: ScopStatement, merge: Merge, axes: Axes) -> bool:
    """Whether a statement walks its two dimensions over whole rows, and nowhere else names either."""
    if {merge.outer, merge.inner} & {s.scan, *s.scatter, *(s.outer.dims if s.outer else ())}:
        return False
    if s.constraints or s.ranges[merge.outer][0] != 0 or s.ranges[merge.inner][0] != 0:
        return False
    if s.range(merge.outer)[0] != "0" or any(dim == merge.inner for dim, _, _ in s.dynamic_bounds):
        return False
    if (merge.outer in s.reduction) != (merge.inner in s.reduction):
        return False
    for access in accesses(s):
        first = axes.get(access.tensor)
        at = _position(access, merge.outer, merge.inner)
        rest = [sub for position, sub in enumerate(access.subscripts) if at is None or position not in (at, at + 1)]
        if at != first or any(names(sub).keys() & {merge.outer, merge.inner} for sub in rest):
            return False
        if first is not None and scop.tensor(access.tensor).shape[first + 1] != merge.extent:
            return False
    return not _bare(s.value, axes) & {merge.outer, merge.inner}


def _fills(scop: Scop, s: ScopStatement, merge: Merge, axes: Axes, most: int) -> bool:
    """Whether a statement fills a small temporary: it keeps its two dimensions, others read what it writes along one."""
    storage, at = scop.tensor(s.tensor), axes.get(s.tensor)
    if at is None or storage.role != "temporary" or storage.shape[at + 1] != merge.extent or s.dynamic_bounds:
        return False
    return s.points * FEW <= most and not axes.keys() & {a.tensor for a, _ in s.reads()}


def _bare(expr: Expr, axes: Axes) -> set[str]:
    """The indices in an expression that are not themselves a subscript, nor part of one along axes that become one."""
    if isinstance(expr, Index):
        return {expr.name}
    inner = children(expr)
    if isinstance(expr, Access):
        at = axes.get(expr.tensor, -1)
        inner = tuple(child for n, child in enumerate(inner) if not isinstance(child, Index) and (n != at or not _walks(child)))
    return set().union(*(_bare(child, axes) for child in inner))


def _applied(scop: Scop, axes: Axes, merges: list[Merge]) -> Scop:
    tensors = tuple(_merged_storage(t, axes[t.name]) if t.name in axes else t for t in scop.tensors)
    by_statement = {m.statement: m for m in merges}
    statements = tuple(
        _merged_statement(s, by_statement[s.name], axes) if s.name in by_statement else _filling(scop, s, axes) for s in scop.statements
    )
    return replace(scop, statements=statements, tensors=tensors)


def _filling(scop: Scop, s: ScopStatement, axes: Axes) -> ScopStatement:
    """A statement that keeps its dimensions, with the places in the merged axes that it writes and reads."""

    def placed(access: Access) -> Access:
        if access.tensor not in axes:
            return access
        at, subscripts = axes[access.tensor], access.subscripts
        place = plus(times(scop.tensor(access.tensor).shape[at + 1], subscripts[at]), subscripts[at + 1])
        return replace(access, subscripts=(*subscripts[:at], place, *subscripts[at + 2 :]))

    return s.with_accesses(placed)


def _merged_storage(storage: Storage, axis: int) -> Storage:
    shape, extents, outer = storage.shape, storage.dynamic_extents, storage.extent(axis)
    if extents:
        extents = (*extents[:axis], outer and times(shape[axis + 1], outer), *extents[axis + 2 :])
    return replace(storage, shape=(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]), dynamic_extents=extents)


def _merged_statement(s: ScopStatement, merge: Merge, axes: Axes) -> ScopStatement:
    def merged(access: Access) -> Access:
        at = axes.get(access.tensor)
        if at is None:
            return access
        outer = access.subscripts[at]
        if not isinstance(outer, Index):  # chunks of rows are as many times as long
            form = affine_form(outer, {})
            assert form is not None
            steps = [(step * (1 if name == merge.outer else merge.extent), index(name)) for name, step in form[0].items()]
            outer = total(steps, form[1] * merge.extent)
        return replace(access, subscripts=(*access.subscripts[:at], outer, *access.subscripts[at + 2 :]))

    bounds = tuple(
        (name, lower, upper * merge.extent if name == merge.outer else upper) for name, lower, upper in s.bounds if name != merge.inner
    )
    return replace(
        s.with_accesses(merged),
        bounds=bounds,
        reduction=tuple(name for name in s.reduction if name != merge.inner),
        dynamic_bounds=tuple((dim, low, f"({high})*{merge.extent}" if dim == merge.outer else high) for dim, low, high in s.dynamic_bounds),
    )


# ---------------------------------------------------------------- its proof


def verify_collapse(before: Scop, after: Scop, merges: tuple[Merge, ...]) -> None:
    """Prove with isl that every statement has the same instances and touches the same memory, or raise a VerifyError."""
    if after is before:
        return
    for old, new in zip(before.statements, after.statements, strict=True):
        texts = {name: isl_name(name) for name in old.dims}
        for merge in merges:
            if merge.statement == old.name:
                texts[merge.outer] = f"({texts[merge.outer]}) * {merge.extent} + {texts[merge.inner]}"
        images = ", ".join(texts[name] for name in new.dims)
        renamed = isl.Map.read_from_str(before.ctx, f"{{ {old.tuple_text} -> {new.name}[{images}] }}")
        domain = before.instances(old)
        renamed = renamed.intersect_domain(domain)
        image = after.instances(new)
        if not renamed.is_injective() or not renamed.range().is_equal(image):
            raise VerifyError(f"coverage: merging dimensions of {old.name} loses or repeats instances")
        for kind in ("reads", "writes"):
            touched = _addresses(before, old, kind)
            again = isl.UnionMap.from_map(renamed).apply_range(_addresses(after, new, kind))
            if not touched.intersect_domain(isl.UnionSet.from_set(domain)).is_equal(again):
                raise VerifyError(f"value flow: with merged dimensions {old.name} {kind} other elements")


def _addresses(scop: Scop, s: ScopStatement, kind: str) -> isl.UnionMap:
    """Which elements of which tensor a statement touches, counted through the tensor's memory."""
    relation = scop.reads if kind == "reads" else scop.writes
    own = relation.intersect_domain(union_set(scop.ctx, [s.tuple_text]))
    lines = []
    for storage in map(scop.tensor, dict.fromkeys(access.tensor for access in accesses(s))):
        axes = storage.axes
        # by unknown strides, and in tensors with gaps, axes are as they were
        order = memory_order(storage.layout, len(axes))
        steps = (None,) * len(axes) if order is None else storage.strides
        apart = [axes[axis] for axis in order or range(len(axes)) if steps[axis] is None]
        place = [*apart, " + ".join(["0", *(f"{step} * {axis}" for axis, step in zip(axes, steps, strict=True) if step is not None)])]
        lines.append(f"{storage.element} -> {isl_name(storage.name)}[{', '.join(place)}]")
    return own.apply_range(union_map(scop.ctx, lines))
