"""Pad operands: give a sum of products padded copies of what it reads under conditions, where that leaves it without any (see ``pad``)."""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Const, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, walk
from tcjit.layout import memory_order
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.narrow_factors import is_narrow_product, with_conditions_inside
from tcjit.mapping.outer_loops import OuterLoops
from tcjit.mapping.pad import WORTH_NEST, WORTH_PADDING, Padding, in_order, padded_read, paddings
from tcjit.mapping.passes.expand_operands import LONG
from tcjit.mapping.plan_chunks import product_sides
from tcjit.mapping.reduction import is_plain_product, is_product
from tcjit.mapping.storage import Storage


def pad_operands(before: Assignments, machine: Machine | None) -> Assignments:
    """The program with the copies before the sums that read their elements often enough; register tiles of a CPU take products of narrow
    integers too. On a GPU, without a ``machine``, products of halves have copies as well, for tensor cores, and sums whose operands are not
    read again for other results have none."""
    on_gpu = machine is None

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "+=" or not a.reduction or a.empty:
            return [a]
        value = a.value if on_gpu or a.dynamic else with_conditions_inside(a.value)
        padded = paddings(value, a.bounds, temporaries.tensors, before.values, a.dynamic, WORTH_PADDING if on_gpu else WORTH_NEST)
        reads: dict[Expr, Expr] = {p.select: padded_read(p, "") for p in padded}
        plain = replaced(value, reads)
        narrow = is_plain_product(plain) if on_gpu else is_narrow_product(plain)
        if not padded or not (is_product(plain) or narrow):
            return [a]
        if on_gpu and product_sides(replace(a, value=plain)) is None:
            return [a]  # results share no element but those of neighbouring windows, which caches hold: a copy would be traffic alone
        copies = []
        for p in padded:
            moving = {name for sub in p.subscripts for name in names(sub)}
            alone = not on_gpu and sum(isinstance(node, Access) for node in walk(plain)) == 1  # results may be in its order, too
            storage = temporaries.tensors[p.read.tensor]
            order = memory_order(storage.layout, len(storage.shape))
            if (axis := _long_axis(a, p, temporaries.tensors[a.tensor], machine)) is not None:
                p = in_order(p, [*(other for other in range(len(p.subscripts)) if other != axis), axis])
            elif order and (alone or moving.isdisjoint(names(_along_lanes(a, temporaries.tensors[a.tensor])))):
                p = in_order(p, order)  # elements that all lanes read lie as they did
            bounds = tuple((name, 0, greatest - least + 1) for name, (least, greatest) in zip(p.indices, p.box, strict=True))
            shape = tuple(upper for _, _, upper in bounds)
            copy = temporaries.add(a.source, f"{p.read.tensor}_padded", p.read.dtype, shape, p.extents if any(p.extents) else ())
            zero = Const(0, dtype="int64")
            dynamic = {name: (zero, extent) for name, extent in zip(p.indices, p.extents, strict=True) if extent is not None}
            subscripts = tuple(Index(name, dtype="int64") for name in p.indices)
            copies.append(Assignment(copy.name, subscripts, "=", p.value, bounds, a.source, dynamic=dynamic, outer=_outer_loops(a, p)))
            reads[p.select] = padded_read(p, copy.name)
        return [*copies, replace(a, value=replaced(value, reads))]

    padded = rewrite(before, visit)
    return replace(padded, assignments=_copies_first(before, padded)) if on_gpu else padded


def _copies_first(before: Assignments, padded: Assignments) -> tuple[Assignment, ...]:
    """The assignments, with copies before what results start from, so that these and the sum that goes on with them share a kernel."""
    copies = {storage.name for _, storage in padded.temporaries[len(before.temporaries) :]}
    found: list[Assignment] = []
    for a in padded.assignments:
        place = len(found)
        if a.tensor in copies:
            read = {access.tensor for access in walk(a.value) if isinstance(access, Access)}
            while place and found[place - 1].operator == "=" and not {found[place - 1].tensor} & {*read, a.tensor}:
                place -= 1
        found.insert(place, a)
    return tuple(found)


def _along_lanes(a: Assignment, result: Storage) -> Expr:
    """The subscript along which results are neighbours in memory."""
    order = memory_order(result.layout, len(result.shape))
    return a.subscripts[order[-1]] if order else Const(0, dtype="int64")


def _long_axis(a: Assignment, p: Padding, result: Storage, machine: Machine | None) -> int | None:
    """The axis of a copy that moves with a long dimension of the results, where these have few neighbours in memory, and all of their
    dimensions move the copy: others have lanes in what does not."""
    if machine is None or a.dynamic:
        return None
    extents = {name: upper - lower for name, lower, upper in a.results if upper - lower > 1}
    near, width = _along_lanes(a, result), machine.lanes(DTYPES[a.value.dtype].bytes)
    moving = [extents.keys() & names(sub) for sub in p.subscripts]
    if not isinstance(near, Index) or extents.get(near.name, 1) > width // 2 or extents.keys() - set().union(*moving):
        return None
    longest = max((extents[dim], axis) for axis, dims in enumerate(moving) for dim in dims)
    return longest[1] if longest[0] >= LONG * width else None


def _outer_loops(a: Assignment, padding: Padding) -> OuterLoops | None:
    """Those that a copy shares as the assignment does, along axes that are not padded."""
    if a.outer is None:
        return None
    ranges = {name: (lower, upper - 1) for name, lower, upper in a.bounds}
    found = {
        sub.name: name
        for sub, name, box in zip(padding.subscripts, padding.indices, padding.box, strict=True)
        if isinstance(sub, Index) and box == ranges[sub.name]
    }
    return OuterLoops(a.outer.number, tuple(found[dim] for dim in a.outer.dims)) if set(a.outer.dims) <= found.keys() else None
