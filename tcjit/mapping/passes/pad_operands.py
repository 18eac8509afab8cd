"""Pad operands: materialise a guarded read of a sum of products once, so that the sum itself reads without a condition or division.

``(h + kh >= 1 && h + kh <= H) ? I(c, h + kh - 1) : 0.0`` depends on ``h`` and ``kh`` only through the subscript. Over the values ``y``
that the subscripts take it is one tensor, ``y >= 0 && y < H ? I(c, y) : 0.0``, a padded copy; each element is computed once instead of
at every point that uses it, and a contraction over plain reads can run on vectors. The values are the same bit for bit.
So are those of ``C((i - j) % N)`` and ``X((y + i - 1) / 2)``, copied over the values of ``i - j`` and ``y + i``, and those of borders that
repeat or reflect, ``X(min(max(y + i - 1, 0), N - 1))``.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Cast, Const, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, walk
from tcjit.layout import memory_order
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.narrow_factors import is_narrow_product, with_conditions_inside, without_conditions
from tcjit.mapping.nest.strip_mine import divisions
from tcjit.mapping.nest.vector_forms import NARROW
from tcjit.mapping.padded_copies import Copy, Padding, paddings
from tcjit.mapping.passes.expand_operands import LONG
from tcjit.mapping.plan_chunks import product_sides
from tcjit.mapping.reduction import is_plain_product, is_product, is_reused
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Storage

# uses of each padded element that pay for computing it ahead: where conditions only cost time, and where they keep a sum from nests
WORTH_PADDING = 8
WORTH_NEST = 2
FULL_LANES = 0.8  # of vectors over results that a copy does not move with, for it to stay in the order of what is read,
HIDDEN_USES = 100  # unless its elements are in more vector operations than that each: these hide a transposition



def pad_operands(before: Assignments, machine: Machine | None) -> Assignments:
    """The program with the copies before the sums that read their elements often enough; register tiles of a CPU take products of narrow
    integers too. On a GPU, without a ``machine``, products of halves have copies as well, for tensor cores, and sums whose operands are not
    read again for other results have none."""
    on_gpu = machine is None

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if not a.reduction or a.empty:
            return [a]
        value = a.value if on_gpu or a.dynamic else with_conditions_inside(a.value)
        worth, split = WORTH_PADDING if on_gpu else WORTH_NEST, frozenset(dim for dim, _ in divisions(a, before.values))
        padded = paddings(value, a.bounds, temporaries.tensors, before.values, a.dynamic, worth, split)
        if on_gpu:
            padded = [p for p in padded if not (p.conditions or any(map(is_gather, p.read.subscripts)))]
        if a.operator != "+=":
            padded = [p for p in padded if p.select is p.read]  # a sum alone leaves out what is 0 under a condition
        unguarded = replaced(value, {p.select: p.read_of({}) for p in padded})
        term = without_conditions(unguarded)[0]
        halves = any(access.dtype in NARROW["float32"] for access in walk(unguarded) if isinstance(access, Access))
        gathers = any(is_gather(sub) for p in padded for sub in p.read.subscripts)  # which take long, whatever is computed of them
        accesses = {access for access in walk(term) if isinstance(access, Access)}
        reused = not halves and is_reused(a.results, accesses)
        products = is_product(term) or (is_plain_product if on_gpu or halves else is_narrow_product)(term)
        # loops are cut where subscripts wrap, but not where conditions keep a nest from that
        alone = len(accesses) == 1 and any(isinstance(part, Select) for part in walk(unguarded))
        if not padded or not (products or not on_gpu and (gathers or reused or alone)):
            return [a]
        element = without_conditions(term.operand)[0] if isinstance(term, Cast) else term
        plain = all(not p.conditions and axis.function is None and axis.divisor == 1 for p in padded for axis in p.axes)
        if plain and isinstance(element, Access) and not (on_gpu or a.dynamic):
            return [a]  # windows of elements by themselves: tiles at borders leave terms out, and a copy takes as long as their sums
        if on_gpu and product_sides(replace(a, value=term)) is None:
            return [a]  # results share no element but those of neighbouring windows, which caches hold: a copy would be traffic alone
        copies, made = [], dict[Expr, Copy]()
        every = [p for guarded in padded for p in (guarded, *guarded.compared)]
        for p in every:
            if p.value in made:
                continue
            moving = {name for axis in p.axes for name in names(axis.subscript)}
            once = not on_gpu and sum(isinstance(node, Access) for node in walk(unguarded)) == 1  # results may be in its order, too
            storage = temporaries.tensors[p.read.tensor]
            order = memory_order(storage.layout, len(storage.shape))
            if (long := _long_axis(a, p, temporaries.tensors[a.tensor], machine)) is not None:
                order = *(other for other in range(len(p.axes)) if other != long), long
            elif not (once or moving.isdisjoint(names(_along_lanes(a, temporaries.tensors[a.tensor]))) or _has_lanes(a, p, machine)):
                order = None
            order = order or tuple(range(len(p.axes)))  # elements that all lanes read lie as they did
            sizes = [max(other.axes[place].size for other in every if other.value == p.value) for place in range(len(p.axes))]
            axes = [(p.axes[place].index, sizes[place], p.axes[place].extent) for place in order]
            copy = temporaries.copy(a, f"{p.read.tensor}_padded", p.value, axes)
            copies.append(replace(copy, outer=_outer_loops(a, p)))
            made[p.value] = copy.tensor, tuple(order)
        return [*copies, replace(a, value=replaced(value, {p.select: p.read_of(made) for p in padded}))]

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
    moving = [extents.keys() & names(axis.subscript) for axis in p.axes]
    if not isinstance(near, Index) or extents.get(near.name, 1) > width // 2 or not extents or extents.keys() - set().union(*moving):
        return None
    longest = max((extents[dim], place) for place, dims in enumerate(moving) for dim in dims)
    return longest[1] if longest[0] >= LONG * width else None


def _has_lanes(a: Assignment, p: Padding, machine: Machine | None) -> bool:
    """Whether results that a copy does not move with fill vectors, and its elements, no fewer than the results, which are transposed then,
    have too few uses each to be transposed themselves."""
    if machine is None:
        return False
    moving = {name for axis in p.axes for name in names(axis.subscript)}
    beside = prod(upper - lower for name, lower, upper in a.results if name not in moving)
    width = machine.lanes(DTYPES[a.value.dtype].bytes)
    vectors, elements = -(-beside // width), prod(axis.size for axis in p.axes)
    few = prod(upper - lower for _, lower, upper in a.results) <= elements
    uses = prod(upper - lower for _, lower, upper in a.bounds) // beside * vectors // elements
    return few and beside >= FULL_LANES * vectors * width and uses <= HIDDEN_USES


def _outer_loops(a: Assignment, padding: Padding) -> OuterLoops | None:
    """Those that a copy shares as the assignment does, along axes that are not padded."""
    if a.outer is None:
        return None
    ranges = {name: (lower, upper - 1) for name, lower, upper in a.bounds}
    found = {
        sub.name: axis.index.name
        for axis in padding.axes
        if isinstance(sub := axis.subscript, Index) and (axis.least, axis.greatest) == ranges[sub.name]
    }
    return OuterLoops(a.outer.number, tuple(found[dim] for dim in a.outer.dims)) if set(a.outer.dims) <= found.keys() else None
