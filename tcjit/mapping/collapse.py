"""Collapse: two dimensions that every statement walks together, over neighbouring axes of contiguous tensors, become one.

An elementwise statement over images then has one long dimension instead of two short ones, and a reduction over height and width a row that
many threads share. Nothing moves in memory: an axis of ``H`` times one of ``W`` is an axis of ``H * W``, and a CPU, to which addresses are
all the same, has axes in the order in which they lie there. (On a GPU what is contiguous begins on a boundary, too.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, plus, times, total
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, walk
from tcjit.layout import DENSE, memory_order
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


def order_axes(scop: Scop, on_gpu: bool = False) -> Scop:
    """The scop with the axes of each tensor that loops and nests walk, and that fills its memory, in the order in which they lie there."""
    orders = {t.name: order for t in scop.tensors if t.layout != "contiguous" and (order := memory_order(t.layout, len(t.shape)))}
    for s in scop.statements:
        for access in accesses(s):
            gathers = any(isinstance(node, Access) for sub in access.subscripts for node in walk(sub))
            by_axis = (s.tiled or s.fused) and scop.tensor(access.tensor).dynamic_extents  # a nest has the strides of its axes, by number
            open_ended = on_gpu and any(scop.tensor(access.tensor).dynamic_extents)
            if gathers or by_axis or open_ended or s.scan or s.scatter or s.outer:
                orders.pop(access.tensor, None)
    if not orders:
        return scop

    def ordered(access: Access) -> Access:
        order = orders.get(access.tensor, range(len(access.subscripts)))
        return replace(access, subscripts=tuple(access.subscripts[axis] for axis in order))

    tensors = tuple(_ordered(t, orders[t.name], on_gpu) if t.name in orders else t for t in scop.tensors)
    return replace(scop, tensors=tensors, statements=tuple(s.with_accesses(ordered) for s in scop.statements))


def collapse(scop: Scop, on_gpu: bool = False, among: Collection[str] | None = None) -> tuple[Scop, tuple[Merge, ...]]:
    """The scop with as few dimensions as its tensors allow, and what was merged, in this order; on a GPU also those of temporaries that
    statements with few instances read as they did. ``among``: statements of which one at least must have what is merged."""
    merged: list[Merge] = []
    while candidate := next(_candidates(scop, on_gpu, among), None):
        axes, merges = candidate
        scop = _applied(scop, axes, merges)
        merged += merges
    return scop, tuple(merged)


def _ordered(storage: Storage, order: tuple[int, ...], on_gpu: bool) -> Storage:
    """A tensor with its axes in an order; on a GPU without the boundary on which contiguous ones begin."""
    shape = tuple(storage.shape[axis] for axis in order)
    extents = tuple(storage.dynamic_extents[axis] for axis in order) if storage.dynamic_extents else ()
    return replace(storage, shape=shape, layout=_in_order(len(shape)) if on_gpu else "contiguous", dynamic_extents=extents)


def _in_order(axes: int) -> str:
    return DENSE + ",".join(map(str, range(axes)))


Axes = dict[str, int]  # tensor -> the first of its two axes that become one


def _candidates(scop: Scop, on_gpu: bool, among: Collection[str] | None) -> Iterator[tuple[Axes, list[Merge]]]:
    """Pairs of axes that can be merged, with all that must be merged with them; inner axes first. Behind them, ``on_gpu``, those of
    temporaries, for which statements with few instances keep their dimensions."""
    for keeping in (False, True) if on_gpu else (False,):
        for storage in scop.tensors:
            if keeping and storage.role != "temporary":
                continue
            for axis in reversed(range(len(storage.shape) - 1)):
                candidate = _closure(scop, storage.name, axis, keeping, on_gpu)
                if candidate is not None and (among is None or any(m.statement in among for m in candidate[1])):
                    yield candidate


def _closure(scop: Scop, tensor: str, axis: int, keeping: bool, on_gpu: bool) -> tuple[Axes, list[Merge]] | None:
    axes: Axes = {}
    pairs: dict[str, tuple[str, str]] = {}  # statement -> its dimensions, outer and inner
    waiting = [(tensor, axis)]
    enough = max(s.points for s in scop.statements) if keeping else 0
    kept: list[ScopStatement] = []
    while waiting:
        name, first = waiting.pop()
        if name in axes:
            if axes[name] != first:
                return None
            continue
        axes[name] = first
        storage = scop.tensor(name)
        lies_so = storage.layout in ("contiguous", _in_order(len(storage.shape)))
        if not lies_so or storage.elements == 0 or storage.strides[first] is None or storage.extent(first + 1):
            return None
        for s in scop.statements:
            for access in accesses(s):
                if access.tensor != name or s.tiled or s.fused:  # a nest walks memory, whatever axes there are
                    continue
                if s.points * FEW <= enough and s.reads:
                    kept.append(s)
                    continue
                place, inner = access.subscripts[first], access.subscripts[first + 1]
                outer = _moving(place) if on_gpu or isinstance(place, Index) else ""
                if not outer or not isinstance(inner, Index) or inner.name in names(place):
                    return None
                if pairs.setdefault(s.name, (outer, inner.name)) != (outer, inner.name):
                    return None
                waiting += [(a.tensor, at) for a in accesses(s) if (at := _position(a, outer, inner.name)) is not None]
    merges = [Merge(name, outer, inner, scop.statement(name).extent(inner)) for name, (outer, inner) in pairs.items()]
    fitting = [m for m in merges if _fits(scop, scop.statement(m.statement), m, axes)]
    most = max((scop.statement(m.statement).points for m in fitting), default=0)
    kept += [scop.statement(m.statement) for m in merges if m not in fitting]
    reading = not keeping and any(axes.keys() & {a.tensor for a, _ in s.reads} for s in kept)
    large = bool(fitting) and most * FEW > enough
    return (axes, fitting) if large and not reading and all(_keeps(scop, s, axes, most) for s in kept) else None


def _moving(subscript: Expr) -> str:
    """The one dimension that moves a subscript by one, as inside a chunk; nothing where there is none."""
    if isinstance(subscript, Index):
        return subscript.name
    form = affine_form(subscript, {})
    near = [dim for dim, factor in form[0].items() if factor == 1] if form else []
    return near[0] if len(near) == 1 else ""


def _position(access: Access, outer: str, inner: str) -> int | None:
    """The axis of an access at which the two dimensions stand side by side."""
    own = [_moving(sub) for sub in access.subscripts]
    plain = [isinstance(sub, Index) for sub in access.subscripts]
    return next((at for at in range(len(own) - 1) if own[at] == outer and own[at + 1] == inner and plain[at + 1]), None)


def _fits(scop: Scop, s: ScopStatement, merge: Merge, axes: Axes) -> bool:
    """Whether a statement walks its two dimensions over whole rows, and nowhere else names either."""
    if {merge.outer, merge.inner} & {s.scan, *s.scatter, *(s.outer.dims if s.outer else ())}:
        return False
    bound = {word for text in s.constraints for word in re.findall(r"\w+", text)}
    # of results under a condition whole rows make tiles that lie inside or outside; terms have one at the end of a last chunk
    if isl_name(merge.inner) in bound or (isl_name(merge.outer) in bound and merge.outer not in s.reduction):
        return False
    if s.ranges[merge.outer][0] != 0 or s.ranges[merge.inner][0] != 0:
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
    return not bare_indices(s.value) & {merge.outer, merge.inner}


def _keeps(scop: Scop, s: ScopStatement, axes: Axes, most: int) -> bool:
    """Whether a statement can keep its two dimensions: of what is merged it uses temporaries alone, few elements beside others. What also
    changes one of them shares loops with those others."""
    used = {a.tensor for a in accesses(s)} & axes.keys()
    if s.tensor in axes and any(a.tensor in axes for a, _ in s.reads):
        return False
    return s.points * FEW <= most and not s.dynamic_bounds and all(scop.tensor(name).role == "temporary" for name in used)


def bare_indices(expr: Expr) -> set[str]:
    """The indices in an expression that are not in a subscript."""
    if isinstance(expr, Index):
        return {expr.name}
    return set() if isinstance(expr, Access) else set().union(*map(bare_indices, children(expr)))


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
    merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    layout = storage.layout if storage.layout == "contiguous" else _in_order(len(merged))
    return replace(storage, shape=merged, layout=layout, dynamic_extents=extents)


def _merged_statement(s: ScopStatement, merge: Merge, axes: Axes) -> ScopStatement:
    def place(subscript: Expr) -> Expr:
        if isinstance(subscript, Index) or (form := affine_form(subscript, {})) is None:
            return subscript
        factors = {dim: factor if dim == merge.outer else factor * merge.extent for dim, factor in form[0].items()}
        return total([(factor, index(dim)) for dim, factor in factors.items()], form[1] * merge.extent)

    def merged(access: Access) -> Access:
        at, subscripts = axes.get(access.tensor), access.subscripts
        return access if at is None else replace(access, subscripts=(*subscripts[:at], place(subscripts[at]), *subscripts[at + 2 :]))

    bounds = tuple(
        (name, lower, upper * merge.extent if name == merge.outer else upper) for name, lower, upper in s.bounds if name != merge.inner
    )
    outer = isl_name(merge.outer)
    constraints = tuple(re.sub(rf"\b{outer}\b", f"floor({outer}/{merge.extent})", text) for text in s.constraints)
    return replace(
        s.with_accesses(merged),
        constraints=constraints,
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
