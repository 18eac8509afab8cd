"""Races: prove that the threads of a block never race.

Two accesses to one location of a block, at least one of them a write, by different threads, must have a barrier between them. The
uniform part of a tree, what stands between ``Block`` and ``Threads``, is walked once. Every node says of one execution of it which
instances are sure to have a barrier before or after them inside, and at which iterations of the loops above it is sure to execute one.
A pair of accesses is looked at where its ends part: at the sequence or the loop in which they fall into different children or
iterations. Where no barrier stands between them for certain, they must belong to the same thread.

A barrier is counted only where something stands below it: for other iterations the code generator may leave it out. Those inside a
``Reduce`` are not counted at all. What is written below ``AsyncCopy`` may arrive late, at the latest at a ``WaitGroup``, above a
barrier and the body of a loop: there the copies of all iterations but so many before it have arrived. Instances of one update below
``Atomic`` may meet in an element, as long as nothing else does. That the order of the tree is
legal, and that digits of threads stay below their radices, is proved by ``verify``; that buffers hold the right elements, by
``verify_privates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from math import prod

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError
from tcjit.grammar.affine import guarded_accesses, isl_name
from tcjit.mapping.gpu_nest import LaunchBounds
from tcjit.mapping.isl import decided, descendants, maps, names, union_map
from tcjit.mapping.marks import AsyncCopy, Atomic, Collective, Grid, GridBlock, Inner, Mma, Reduce, Sync, Threads, WaitGroup
from tcjit.mapping.reduction import ATOMIC
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer
from tcjit.mapping.tree import KIND, kind, mark_of, show

BLOCK_SYNC, WARP_SYNC = Sync("block"), Sync("warp")
MAX_RUN = 1024  # threads that combine their parts in one ``Reduce``
UNKNOWN_LANE = 1 << 20  # added to a thread's number: it then means some lane of this warp, not known which


@dataclass(frozen=True)
class ThreadRegion:
    """What stands below one ``Threads`` mark; ``digits`` maps instances to the digits of their thread's number.

    ``collective`` is the mark above it, if any. ``target`` is the tensor that a ``Reduce`` lets only the first thread of a run update,
    empty for other regions. Below ``Mma``, the threads of a warp read for each other.
    """

    node: isl.ScheduleNode
    domain: isl.UnionSet
    radices: tuple[int, ...]
    digits: isl.UnionMap
    collective: Collective | None
    target: str

    def owner(self, tensor: str) -> isl.UnionMap:
        """The digits of the thread that accesses a tensor, by instance."""
        if not self.target or tensor != self.target:
            return self.digits
        names = [f"d{i}" for i in range(len(self.radices))]
        return self.digits.apply_range(union_map(self.domain.get_ctx(), [f"[{', '.join(names)}] -> [{', '.join([*names[:-1], '0'])}]"]))

    def number(self, tensor: str) -> isl.UnionMap:
        """The number of that thread, the last digit counting fastest."""
        names = [f"d{i}" for i in range(len(self.radices))]
        terms = [f"{prod(self.radices[i + 1 :])} * {name}" for i, name in enumerate(names)]
        return self.owner(tensor).apply_range(union_map(self.domain.get_ctx(), [f"[{', '.join(names)}] -> [{' + '.join(terms)}]"]))


@dataclass(frozen=True)
class _ThreadAccess:
    """Accesses to one tensor: ``{ statement -> [tensor[location] -> [thread]] }``; ``late`` writes may arrive later."""

    tensor: str
    writes: bool
    late: bool
    relation: isl.Map

    @property
    def statement(self) -> str:
        return str(self.relation.get_tuple_name(isl.dim_type.in_))

    @cached_property
    def in_other_threads(self) -> isl.Map:
        """Pairs of a location on one thread and the same location on another: ``{ [T[a] -> [t]] -> [T[a] -> [u]] : t != u }``."""
        place = self.relation.get_space().range().unwrap()
        same = isl.Map.identity(place.domain().map_from_set())
        number = place.range()
        return same.product(isl.Map.lex_lt(number).union(isl.Map.lex_gt(number)))


@dataclass(frozen=True)
class _BarrierCover:
    """Of one execution of a node: instances surely after a barrier inside it, surely before one, and the iterations of the loops above
    at which the node surely executes one."""

    before: isl.UnionSet
    after: isl.UnionSet
    through: isl.UnionSet


def verify_races(scop: Scop, tree: isl.Schedule, privates: Sequence[Buffer], launches: Sequence[LaunchBounds], *, warp: int = 32) -> None:
    """Prove that barriers separate what threads of a block must not do at once, or raise a VerifyError that names two statements.

    ``warp`` threads, of consecutive numbers, are what a barrier of a warp holds together.
    """
    with decided("races"):
        bodies = _bodies(tree, launches)
        for launch, body in zip(launches, bodies, strict=True):
            own = regions(scop, body)
            for region in own:
                if prod(region.radices) > launch.threads:
                    raise VerifyError(f"threads: '{mark_of(region.node)}' needs more than the {launch.threads} threads of {launch.mark}")
                if region.target:
                    _reduces(scop, region)
                if isinstance(region.collective, Mma | AsyncCopy):
                    _target_space(scop, region, privates)
            atomic = atomic_updates(scop, body)
            if held := [name for name in atomic if scop.statement(name).tensor in {b.tensor for b in privates}]:
                raise VerifyError(f"structure: atomic updates by {', '.join(held)} outside global memory")
            located = _located(scop, tree, own, privates)
            for node in descendants(body):
                if isinstance(wait := mark_of(node), WaitGroup):
                    _arrive(scop, node, wait.number, located)
            if any(mark_of(node) == WARP_SYNC for node in descendants(body)):
                # threads of different warps need a barrier of the block; those of one warp any barrier
                _BarrierWalk(scop, _located(scop, tree, own, privates, warp), (BLOCK_SYNC,), atomic).walk(body)
            _BarrierWalk(scop, located, (BLOCK_SYNC, WARP_SYNC), atomic).walk(body)


# ---------------------------------------------------------------- the form of the tree


def _bodies(tree: isl.Schedule, launches: Sequence[LaunchBounds]) -> list[isl.ScheduleNode]:
    """What one block of each launch does; every leaf below is on threads, and no barrier depends on one."""
    top = tree.get_root().child(0)
    tops = [top.child(i).child(0) for i in range(top.n_children())] if kind(top) == KIND.sequence else [top]
    if [mark_of(node) for node in tops] != [launch.mark for launch in launches]:
        raise VerifyError(f"structure: the launches {', '.join(str(launch.mark) for launch in launches)} are not the tree's\n{show(tree)}")
    bodies = []
    blocks: list[GridBlock] = []
    for node in tops:
        inner = node.child(0)
        if mark_of(inner) == Grid():
            inner = inner.child(0).child(0)
        block = mark_of(inner)
        if not isinstance(block, GridBlock) or block in blocks:
            raise VerifyError(f"structure: no mark of its own for a block below {mark_of(node)}\n{show(tree)}")
        blocks.append(block)
        _uniform(inner.child(0), tree)
        bodies.append(inner.child(0))
    return bodies


def _uniform(node: isl.ScheduleNode, tree: isl.Schedule) -> None:
    here, mark = kind(node), mark_of(node)
    if isinstance(mark, Threads):
        inside = [below for node_below in descendants(node.child(0)) if (below := mark_of(node_below))]
        if not all(isinstance(below, Inner) for below in inside):
            raise VerifyError(f"structure: {', '.join(map(str, inside))} below '{mark}'\n{show(tree)}")
        return
    if here == KIND.leaf and not node.get_domain().is_empty():
        raise VerifyError(f"structure: {', '.join(names(node.get_domain()))} on no thread\n{show(tree)}")
    below = mark_of(node.child(0)) if mark else None
    fits = isinstance(mark, Sync) or (isinstance(mark, Collective) and isinstance(below, Threads))
    fits = fits or (isinstance(mark, WaitGroup) and below == BLOCK_SYNC and kind(node.parent()) == KIND.band)
    if mark and not fits:
        raise VerifyError(f"structure: the mark '{mark}' means nothing between a block and its threads\n{show(tree)}")
    for position in range(node.n_children()):
        _uniform(node.child(position), tree)


def regions(scop: Scop, node: isl.ScheduleNode) -> list[ThreadRegion]:
    """The regions below a node, in order."""
    return [_region(scop, below) for below in descendants(node) if isinstance(mark_of(below), Threads)]


def _region(scop: Scop, node: isl.ScheduleNode) -> ThreadRegion:
    mark, band, domain = mark_of(node), node.child(0), node.get_domain()
    assert isinstance(mark, Threads)
    if kind(band) != KIND.band or band.band_n_member() != len(mark.radices):
        raise VerifyError(f"structure: the band below '{mark}' has not one member for each radix")
    above, target = mark_of(node.parent()), ""
    if isinstance(above, Reduce):
        targets = {scop.statement(name).tensor for name in names(domain)}
        if len(targets) != 1:
            raise VerifyError(f"structure: a reduce of {', '.join(names(domain))} together")
        target = targets.pop()
    digits = isl.UnionMap.from_multi_union_pw_aff(band.band_get_partial_schedule()).intersect_domain(domain)
    return ThreadRegion(node, domain, mark.radices, digits, above if isinstance(above, Collective) else None, target)


def _reduces(scop: Scop, region: ThreadRegion) -> None:
    """A ``Reduce`` combines one part of each thread of a run into one element, by its first thread."""
    name = names(region.domain)[0]
    s, run = scop.statement(name), region.radices[-1]

    def fail(why: str) -> None:
        raise VerifyError(f"reductions: the reduce of {name} into {s.tensor}: {why}")

    if len(names(region.domain)) != 1 or s.operator == "=" or not s.reduction:
        fail("it is not one update")
    if run & (run - 1) or run > MAX_RUN:
        fail(f"a run of {run} threads")
    if any(a.tensor == s.tensor for part in (s.value, *s.subscripts) for a, _ in guarded_accesses(part)):
        fail("the parts read what they are combined into")
    above = region.node.get_prefix_schedule_union_map().intersect_domain(region.domain)
    place, first = above.flat_range_product(region.digits), above.flat_range_product(region.owner(s.tensor))
    if not place.is_injective():
        fail("a thread has several parts")
    if not first.reverse().apply_range(scop.writes).is_single_valued():
        fail("the threads of a run have different elements")
    leading = place.intersect(first).domain()
    if not first.range().is_subset(first.intersect_domain(leading).range()):
        fail("the first thread of a run has no part")


def atomic_updates(scop: Scop, node: isl.ScheduleNode) -> frozenset[str]:
    """The statements all of whose instances stand below ``Atomic`` marks; each is one update, whose terms are no results of it."""
    nothing = isl.UnionSet.read_from_str(scop.ctx, "{ }")
    below = reduce(isl.UnionSet.union, (each.get_domain() for each in descendants(node) if mark_of(each) == Atomic()), nothing)
    found = set[str]()
    for s in map(scop.statement, names(below)):
        if s.operator not in ATOMIC or not s.reduction:
            raise VerifyError(f"structure: {s.name} below '{Atomic()}' is no update in any order")
        if any(a.tensor == s.tensor for part in (s.value, *s.subscripts) for a, _ in guarded_accesses(part)):
            raise VerifyError(f"structure: {s.name} below '{Atomic()}' reads what it updates")
        if scop.instances(s).to_union_set().is_subset(below):
            found.add(s.name)
    return frozenset(found)


def _target_space(scop: Scop, region: ThreadRegion, privates: Sequence[Buffer]) -> None:
    """Threads of a warp that compute together keep what they write to themselves; what is written ahead is waited for, in shared memory."""
    space = "thread" if region.collective == Mma() else "shared"
    written = {scop.statement(name).tensor for name in names(region.domain)}
    if not written <= {b.tensor for b in privates if b.space == space}:
        raise VerifyError(f"structure: {', '.join(names(region.domain))} below '{region.collective}' writes outside {space} buffers")
    node = region.node
    while region.collective == AsyncCopy() and not isinstance(mark_of(node), WaitGroup):
        if isinstance(mark_of(node), GridBlock):
            raise VerifyError(f"structure: nothing waits for {', '.join(names(region.domain))}")
        node = node.parent()


# ---------------------------------------------------------------- locations


def _located(scop: Scop, tree: isl.Schedule, own: Sequence[ThreadRegion], privates: Sequence[Buffer], warp: int = 0) -> list[_ThreadAccess]:
    """The accesses of a launch to locations that threads share: slots of shared buffers, elements of what has no buffer.

    With ``warp``, by the number of the warp instead of the thread's.
    """
    marks = {mark: node for node in descendants(tree.get_root()) if (mark := mark_of(node))}
    tensors = {isl_name(t.name): t.name for t in scop.tensors}
    located: list[_ThreadAccess] = []
    for writes, relation in ((False, scop.reads), (True, scop.writes)):
        for piece in maps(relation):
            tensor = tensors[piece.get_tuple_name(isl.dim_type.out)]
            buffers = [b for b in privates if b.tensor == tensor]
            shared = [b for b in buffers if b.space != "thread"]
            accesses = piece.to_union_map()
            places = [accesses.intersect_domain(marks[b.mark].get_domain()).apply_range(slots(scop, b)) for b in shared]
            for region in own:
                for one in places if buffers else [accesses]:
                    if one.domain().is_disjoint(region.domain):
                        continue
                    number = region.number(tensor)
                    if warp or region.collective == Mma():
                        other = f"floor(t/{warp})" if warp else f"t + {UNKNOWN_LANE}"
                        number = number.apply_range(union_map(scop.ctx, [f"[t] -> [{other}]"]))
                    late = writes and region.collective == AsyncCopy()
                    located += [_ThreadAccess(tensor, writes, late, relation) for relation in maps(one.range_product(number))]
    return located


def slots(scop: Scop, buffer: Buffer) -> isl.UnionMap:
    """Where each element of a tensor lies in a buffer: ``{ T[a] -> T[slot] }``, the slot by its digits where they do not overlap."""
    digits = [(f"(floor((a{i} - {axis.base})/{d}) mod {m})", m, k) for i, axis in enumerate(buffer.axes) for d, m, k in axis.parts]
    reached, apart = 0, True
    for _, modulus, stride in sorted(digits, key=lambda digit: digit[2]):
        apart = apart and stride > reached
        reached += (modulus - 1) * stride
    # isl finds it far easier to compare digits than sums of them
    place = [text for text, _, _ in digits] if apart else [" + ".join(f"{k} * {text}" for text, _, k in digits)]
    axes, tensor = ", ".join(f"a{i}" for i in range(len(buffer.axes))), isl_name(buffer.tensor)
    return union_map(scop.ctx, [f"{tensor}[{axes}] -> {tensor}[{', '.join(place)}]"])


# ---------------------------------------------------------------- barriers


def _iterations(ctx: isl.Context, depth: int, where: str) -> isl.Map:
    """Pairs of iterations, ``t`` and ``u`` of the last loop above a node, that differ, if at all, in that one only."""
    outer = [f"p{i}" for i in range(depth - 1)]
    first, second = ([*outer, "t"], [*outer, "u"]) if depth else ([], [])
    return isl.Map.read_from_str(ctx, f"{{ [{', '.join(first)}] -> [{', '.join(second)}]{f' : {where}' if depth else ''} }}")


def _arrive(scop: Scop, node: isl.ScheduleNode, late: int, accesses: Sequence[_ThreadAccess]) -> None:
    """What arrives ``late`` iterations later at shared memory is used only after it has been waited for, in the loop that writes it."""
    depth, domain = node.get_schedule_depth(), node.get_domain()
    if any(isinstance(mark_of(below), WaitGroup) for below in descendants(node.child(0))):
        raise VerifyError("structure: one wait inside another")
    steps = partial(_iterations, scop.ctx, depth)
    prefix = node.get_prefix_schedule_union_map().intersect_domain(domain)
    executed = prefix.range()
    if not executed.apply(steps("t < u")).intersect(executed.apply(steps("t > u"))).is_subset(executed):
        raise VerifyError(f"races: the loop that waits for {', '.join(names(domain))} leaves out iterations")
    place = {m.get_tuple_name(isl.dim_type.in_): m for m in maps(prefix)}
    inside = [access for access in accesses if access.statement in place]
    for copy in inside:
        if not copy.late:
            continue
        # in one iteration a slot is written once, and the loop runs on until that has arrived
        start, slot = place[copy.statement], copy.relation.range_factor_domain()
        issued = start.intersect_domain(copy.relation.domain()).range().to_union_set()
        if not start.range_product(slot).is_injective() or not issued.apply(steps(f"u = t + {late + 1}")).is_subset(executed):
            raise VerifyError(f"races: the loop ends before it has waited for all that {copy.statement} writes to {copy.tensor}")
        for other in inside:
            if other.tensor != copy.tensor:
                continue
            meanwhile = f"t {'<' if other.statement == copy.statement else '<='} u <= t + {late}"
            left = start.reverse().apply_range(slot)
            right = place[other.statement].reverse().apply_range(other.relation.range_factor_domain())
            if not left.apply_range(right.reverse()).intersect(steps(meanwhile)).is_empty():
                raise VerifyError(f"races: {other.statement} uses {copy.tensor} before what {copy.statement} writes to it has arrived")


@dataclass(frozen=True)
class _BarrierWalk:
    """One walk over what a block does; only the marks in ``barriers`` count as such."""

    scop: Scop
    accesses: Sequence[_ThreadAccess]
    barriers: Sequence[Sync]
    atomic: frozenset[str]  # statements

    def walk(self, node: isl.ScheduleNode) -> _BarrierCover:
        here, mark, domain = kind(node), mark_of(node), node.get_domain()
        if here == KIND.leaf or isinstance(mark, Threads):
            prefix, nothing = node.get_prefix_schedule_union_map(), domain.subtract(domain)
            self.separate(domain, domain, prefix, _iterations(self.scop.ctx, node.get_schedule_depth(), "t = u"))
            return _BarrierCover(nothing, nothing, prefix.intersect_domain(nothing).range())
        if here in (KIND.sequence, KIND.set):
            return self.sequence(node)
        if here == KIND.band and node.band_n_member() > 0:
            return self.loop(node if node.band_n_member() == 1 else node.band_split(1))
        inner = self.walk(node.child(0))
        if mark not in self.barriers:
            return inner
        return _BarrierCover(domain, inner.after, node.get_prefix_schedule_union_map().intersect_domain(domain).range())

    def sequence(self, node: isl.ScheduleNode) -> _BarrierCover:
        """The children of a sequence; a set runs in any order, but the code generator takes it in the listed one."""
        everything = node.get_domain()
        prefix = node.get_prefix_schedule_union_map().intersect_domain(everything)
        together = _iterations(self.scop.ctx, node.get_schedule_depth(), "t = u")
        pending = before = everything.subtract(everything)  # no barrier since; a barrier earlier
        passed = prefix.intersect_domain(pending).range()
        for position in range(node.n_children()):
            child = node.child(position)
            domain, inner = child.child(0).get_domain(), self.walk(child)
            self.separate(pending, domain.subtract(inner.before), prefix, together)
            before = before.union(inner.before).union(prefix.intersect_range(passed).domain().intersect(domain))
            pending = pending.subtract(prefix.intersect_range(inner.through).domain()).union(domain.subtract(inner.after))
            passed = passed.union(inner.through)
        return _BarrierCover(before, everything.subtract(pending), passed)

    def loop(self, node: isl.ScheduleNode) -> _BarrierCover:
        """A band of one member."""
        domain, inner = node.get_domain(), self.walk(node.child(0))
        prefix, depth = node.child(0).get_prefix_schedule_union_map().intersect_domain(domain), node.get_schedule_depth()
        later, steps = _iterations(self.scop.ctx, depth + 1, "t < u"), [f"p{i}" for i in range(depth + 1)]
        self.separate(domain.subtract(inner.after), domain.subtract(inner.before), prefix, later, inner.through)
        return _BarrierCover(
            inner.before.union(prefix.intersect_range(inner.through.apply(later)).domain()),
            inner.after.union(prefix.intersect_range(inner.through.apply(later.reverse())).domain()),
            inner.through.apply(union_map(self.scop.ctx, [f"[{', '.join(steps)}] -> [{', '.join(steps[:-1])}]"])),
        )

    def separate(
        self,
        earlier: isl.UnionSet,
        later: isl.UnionSet,
        prefix: isl.UnionMap,
        order: isl.Map,
        through: isl.UnionSet | None = None,
    ) -> None:
        """No two instances touch one location on different threads, in this order and with none of the iterations ``through`` between."""
        if earlier.is_empty() or later.is_empty():
            return
        at_first = {m.get_tuple_name(isl.dim_type.in_): m for m in maps(prefix.intersect_domain(earlier))}
        at_second = {m.get_tuple_name(isl.dim_type.in_): m for m in maps(prefix.intersect_domain(later))}
        for first in self.accesses:
            for second in self.accesses:
                if first.tensor != second.tensor or not (first.writes or second.writes):
                    continue
                if first.statement not in at_first or second.statement not in at_second:
                    continue
                if first.statement == second.statement in self.atomic and first.tensor == self.scop.statement(first.statement).tensor:
                    continue
                left = at_first[first.statement].reverse().apply_range(first.relation)
                right = at_second[second.statement].reverse().apply_range(second.relation)
                clash = left.apply_range(first.in_other_threads).apply_range(right.reverse()).intersect(order)
                if clash.is_empty():
                    continue
                if through is not None:
                    pairs = order.to_union_map()
                    if clash.to_union_map().is_subset(pairs.intersect_range(through).apply_range(pairs)):
                        continue
                raise VerifyError(
                    f"races: {first.statement} and {second.statement} use {first.tensor} on different threads with no barrier between them"
                )
