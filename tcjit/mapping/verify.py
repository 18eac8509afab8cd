"""Verify: prove with isl that a mapped tree computes what the program says.

The tree is walked from the root with the dependences whose two ends are still unordered. A band orders the pairs that differ in it, a
sequence those that fall into different children; what reaches a leaf unordered, or is ordered backwards, is a violation, and so is a
pair that differs in a loop run by several threads, blocks or lanes at once. Whatever isl cannot decide counts as a violation.

On a GPU that is not all: barriers between the threads of a block are proved by ``races``, and what a pass added to the statements of a
program by ``value_flow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.polynomial import names
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.isl import decided, descendants, union_map
from tcjit.mapping.marks import Grid, GridBlock, Mark, Parallel, Reduce, RowPass, Scatter, Simd, Threads, TileLoops, Vector
from tcjit.mapping.races import ThreadRegion, atomic_updates, regions, slots
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer
from tcjit.mapping.tree import KIND, kind, mark_of, rewrite, show, statements_below


def verify(scop: Scop, deps: Dependences, tree: isl.Schedule) -> None:
    """Prove coverage, order, races and bounds of a tree, or raise a VerifyError that says which promise is broken."""
    with decided("a mapped tree"):
        _Proof(scop, tree).run(deps)


def verify_privates(scop: Scop, deps: Dependences, tree: isl.Schedule, privates: Sequence[Buffer]) -> None:
    """Prove that each private buffer holds, at every read, the element that the program names."""
    proof = _Buffers(scop, deps, tree)
    with decided("a private buffer"):
        for private in privates:
            proof.buffer(private)
        for name in dict.fromkeys(p.tensor for p in privates):
            proof.nothing_else(name, [p.mark for p in privates if p.tensor == name])


@dataclass(frozen=True)
class _Proof:
    scop: Scop
    tree: isl.Schedule

    def run(self, deps: Dependences) -> None:
        if not self.tree.get_domain().is_equal(self.scop.domain):
            missing = self.scop.domain.subtract(self.tree.get_domain())
            self.fail("coverage", f"instances lost or added: {missing}")
        self.bounds()
        # the terms of an atomic update may run anywhere, at once or not
        atomic = [self.scop.instances(self.scop.statement(name)) for name in atomic_updates(self.scop, self.tree.get_root())]
        reduction = reduce(isl.UnionMap.subtract_domain, (each.to_union_set() for each in atomic), deps.reduction)
        self.walk(self.tree.get_root(), deps.strict, reduction)

    def fail(self, promise: str, why: str) -> None:
        raise VerifyError(f"{promise}: {why}\nin the tree\n{show(self.tree)}", hint="report this: the program is fine, the mapping is not")

    def bounds(self) -> None:
        """Every access of every instance lies in its tensor."""
        inside = self.scop.elements
        for accesses in (self.scop.reads, self.scop.writes):
            if not accesses.range().is_subset(inside):
                self.fail("bounds", f"accesses outside: {accesses.subtract_range(inside)}")

    def walk(self, node: isl.ScheduleNode, strict: isl.UnionMap, reduction: isl.UnionMap) -> None:
        here = kind(node)
        if here == KIND.leaf:
            if not strict.is_empty():
                self.fail("order", f"instances at one point depend on each other: {strict}")
            return
        if here in (KIND.sequence, KIND.set):
            self.sequence(node, strict, reduction)
            return
        if here == KIND.mark and isinstance(mark_of(node), Grid | Threads) and kind(node.child(0)) != KIND.band:
            self.fail("threads", f"no band below '{mark_of(node)}'")
        if here == KIND.band:
            strict, reduction = self.band(node, strict, reduction)
        elif here not in (KIND.domain, KIND.filter, KIND.mark):
            self.fail("coverage", f"an unexpected {here} node")
        for position in range(node.n_children()):
            self.walk(node.child(position), strict, reduction)

    def band(self, node: isl.ScheduleNode, strict: isl.UnionMap, reduction: isl.UnionMap) -> tuple[isl.UnionMap, isl.UnionMap]:
        above = mark_of(node.parent())
        outer = mark_of(node.parent().parent()) if above else None
        on_grid = isinstance(above, Grid | Threads)
        parallel = on_grid or (above == TileLoops() and outer == Parallel())
        lanes = above in (Simd(), Vector(), RowPass())
        if above == Scatter():
            self.picked(node)
        partial = node.band_get_partial_schedule()
        if not node.get_domain().is_subset(partial.domain()):
            self.fail("coverage", "a band leaves instances without a time")
        if on_grid:
            self.digits(node, above.radices if isinstance(above, Threads) else None)
        # threads of a ``reduce`` work on parts of their own, which are then combined
        combined = node.band_n_member() - 1 if isinstance(above, Threads) and outer == Reduce() else -1
        for position in range(node.band_n_member()):
            time = isl.MultiUnionPwAff.from_union_pw_aff(partial.get_at(position))
            backwards = strict.lex_gt_at_multi_union_pw_aff(time)
            if not backwards.is_empty():
                self.fail("order", f"a dependence runs backwards: {backwards}")
            same = strict.eq_at_multi_union_pw_aff(time)
            if (parallel or lanes) and not strict.is_subset(same):
                self.fail("order", f"dependent instances run at once: {strict.subtract(same)}")
            together = reduction.eq_at_multi_union_pw_aff(time)
            if parallel and position != combined and not reduction.is_subset(together):
                self.fail("reductions", f"terms of one reduction run on several threads: {reduction.subtract(together)}")
            strict, reduction = same, together
        return strict, reduction

    def picked(self, node: isl.ScheduleNode) -> None:
        """What the statement of a loop below ``scatter`` compares with the dimension picks an iteration: it must not change inside."""
        s, *others = [self.scop.statement(name) for name in statements_below(node)]
        loop = isl.UnionMap.from_multi_union_pw_aff(node.band_get_partial_schedule()).intersect_domain(node.get_domain())

        def is_over(dim: str) -> bool:
            over = union_map(self.scop.ctx, [f"{s.tuple_text} -> [{isl_name(dim)}]"], self.scop.parameters)
            return bool(loop.is_equal(over.intersect_domain(node.get_domain())))

        number = self.scatters(node)
        if others or number >= len(s.scatter) or not is_over(s.scatter[number]):
            self.fail("scatter", "no loop over the dimension that one statement compares with data")
        primed = [f"{name}_" for name in s.isl_dims]
        equal = " and ".join(f"{name} = {name}_" for name in map(isl_name, names(s.picks[s.scatter[number]]))) or "0 = 0"
        alike = union_map(self.scop.ctx, [f"{s.tuple_text} -> {s.name}[{', '.join(primed)}] : {equal}"], self.scop.parameters)
        before = node.get_prefix_schedule_union_map().intersect_domain(node.get_domain())
        if not before.apply_range(before.reverse()).is_subset(alike):
            self.fail("scatter", "a loop inside changes what picks an iteration")

    @staticmethod
    def scatters(node: isl.ScheduleNode) -> int:
        """How many loops below ``scatter`` a node is inside of."""
        count = -1  # that of the node itself
        while node.has_parent():
            node = node.parent()
            count += mark_of(node) == Scatter()
        return count

    def digits(self, node: isl.ScheduleNode, radices: tuple[int, ...] | None) -> None:
        """Numbers of blocks count from 0, digits of threads stay below their ``radices``."""
        domain, count, above = node.get_domain(), node.band_n_member(), mark_of(node.parent())
        if radices is not None and len(radices) != count:
            self.fail("threads", f"{count} members below '{above}'")
        if domain.is_empty():
            return
        # of their images: isl refuses the ends of expressions whose domains have quotients
        places = node.band_get_partial_schedule_union_map().intersect_domain(domain).range().as_set()
        for position in range(count):
            low, high = places.dim_min_val(position), places.dim_max_val(position)
            if not (low.is_int() and high.is_int()) or low.to_python() < 0:
                self.fail("threads", f"member {position} below '{above}' runs from {low} to {high}")
            if radices is not None and high.to_python() >= radices[position]:
                self.fail("threads", f"digit {position} of '{above}' reaches {high}")

    def sequence(self, node: isl.ScheduleNode, strict: isl.UnionMap, reduction: isl.UnionMap) -> None:
        """The children of a sequence, or of a set: a set runs in any order, but the code generator takes it in the listed one."""
        here = node.get_domain()
        placed = here.subtract(here)
        parts = [node.child(i).filter_get_filter().intersect(here) for i in range(node.n_children())]
        for part in parts:
            if not part.intersect(placed).is_empty():
                self.fail("coverage", f"instances placed twice: {part.intersect(placed)}")
            late = strict.intersect_range(part).subtract_domain(placed.union(part))
            if not late.is_empty():
                self.fail("order", f"a dependence runs backwards: {late}")
            placed = placed.union(part)
        if not here.is_subset(placed):
            self.fail("coverage", f"instances lost: {here.subtract(placed)}")
        for position, part in enumerate(parts):
            inside = strict.intersect_domain(part).intersect_range(part)
            terms = reduction.intersect_domain(part).intersect_range(part)
            self.walk(node.child(position), inside, terms)


# ---------------------------------------------------------------- buffers


@dataclass(frozen=True)
class _Buffers:
    scop: Scop
    deps: Dependences
    tree: isl.Schedule

    @cached_property
    def marks(self) -> dict[Mark, isl.ScheduleNode]:
        return {mark: node for node in descendants(self.tree.get_root()) if (mark := mark_of(node))}

    @cached_property
    def threads(self) -> dict[Mark, list[ThreadRegion]]:
        """The regions below each block's mark; none below that of a tile on a CPU."""
        return {mark: regions(self.scop, node) for mark, node in self.marks.items() if isinstance(mark, GridBlock)}

    @cached_property
    def time(self) -> isl.UnionMap:
        """The loops and sequences that all threads of a block run together."""
        return rewrite(self.tree, lambda node: node.child(0).cut().parent() if isinstance(mark_of(node), Threads) else node).get_map()

    def fail(self, why: str) -> None:
        raise VerifyError(f"value flow: {why}\n{show(self.tree)}", hint="report this: the program is fine, the mapping is not")

    def uses(self, tensor: str) -> tuple[isl.UnionMap, isl.UnionMap]:
        """The writes and the reads of one tensor."""
        elements = self.scop.universe(tensor)
        return self.scop.writes.intersect_range(elements), self.scop.reads.intersect_range(elements)

    def buffer(self, buffer: Buffer) -> None:
        """Every value is read in the copy of the buffer that it was written to, and nothing else has taken its slot meanwhile."""
        if buffer.mark not in self.marks or self.scop.tensor(buffer.tensor).role != "temporary":
            self.fail(f"{buffer.tensor} has no place for a private buffer")
        here = self.marks[buffer.mark].get_domain()
        writes, reads = self.uses(buffer.tensor)
        accesses = writes.union(reads).intersect_domain(here)
        place = self.place(buffer, accesses.domain())
        if not accesses.domain().is_subset(place.domain()):
            self.fail(f"{buffer.tensor} is used on no thread")
        flow = writes.apply_range(reads.reverse()).intersect(self.deps.flow)
        flow = flow.intersect_domain(here).union(flow.intersect_range(here))
        inside = flow.intersect_domain(here).intersect_range(here)
        moved = inside.apply_domain(place).apply_range(place)
        if not flow.is_subset(inside) or not (moved.is_empty() or _equal(isl.Map.from_union_map(moved))):
            self.fail(f"{buffer.tensor} is read in another tile or by another thread than it was written in")
        if not accesses.is_empty():
            self.slots(buffer, accesses, place)

    def place(self, buffer: Buffer, users: isl.UnionSet) -> isl.UnionMap:
        """The copy of a buffer that each instance uses: the iteration of the loops above its mark, and the thread."""
        place = self.marks[buffer.mark].get_prefix_schedule_union_map().intersect_domain(users)
        threads = self.threads.get(buffer.mark, [])
        if buffer.space != "thread":
            if not threads:
                self.fail(f"{buffer.tensor} is shared by no threads")
            return place
        using = [region for region in threads if not region.domain.is_disjoint(users)]
        if not using:
            return place
        # digits are cheaper to reason about than the numbers that they make
        alike = all(region.radices == using[0].radices for region in using)
        owners = [region.owner(buffer.tensor) if alike else region.number(buffer.tensor) for region in using]
        return place.flat_range_product(reduce(isl.UnionMap.union, owners))

    def slots(self, buffer: Buffer, accesses: isl.UnionMap, place: isl.UnionMap) -> None:
        """In one copy of a buffer, elements that are in use at a time never share a slot."""
        last = sum((modulus - 1) * stride for axis in buffer.axes for _, modulus, stride in axis.parts)
        if last >= buffer.elements:
            self.fail(f"{buffer.tensor} has slots up to {last} in its buffer of {buffer.elements}")
        fold = isl.Map.from_union_map(slots(self.scop, buffer))
        touched = isl.Map.from_union_map(place.reverse().apply_range(accesses)).coalesce()
        # all elements of a copy have slots of their own
        if touched.domain_map().range_product(touched.range_map().apply_range(fold)).is_injective():
            return
        if buffer.mark not in self.threads or self.overlap(accesses, place, fold):
            self.fail(f"two elements of {buffer.tensor} share a slot of its buffer of {buffer.elements}")

    def overlap(self, accesses: isl.UnionMap, place: isl.UnionMap, fold: isl.Map) -> bool:
        """Whether two elements with one slot may be in use at a time: from the first access of each to its last, ends included.

        Threads reach that order of time too: ``races`` separates what they do to one slot.
        """
        lives = isl.Map.from_union_map(place.range_product(accesses).reverse().apply_range(self.time))
        first, last = lives.lexmin(), lives.lexmax()
        element, order = lives.get_space().domain(), lives.get_space().range()
        slot = isl.Map.identity(element.unwrap().domain().map_from_set()).product(fold)
        together = slot.apply_range(slot.reverse()).intersect(_distinct(element))
        before = first.apply_range(isl.Map.lex_le(order)).apply_range(last.reverse())
        return not together.intersect(before).intersect(before.reverse()).is_empty()

    def nothing_else(self, tensor: str, marks: Sequence[Mark]) -> None:
        """All uses of a tensor with buffers go to them."""
        writes, reads = self.uses(tensor)
        outside = writes.union(reads).domain()
        for mark in marks:
            outside = outside.subtract(self.marks[mark].get_domain())
        if not outside.is_empty():
            self.fail(f"{tensor} is used outside its private buffers: {outside}")


def _equal(pairs: isl.Map) -> bool:
    """Whether the two ends of all pairs are the same."""
    return bool(pairs.intersect(_distinct(pairs.get_space().domain())).is_empty())


def _distinct(space: isl.Space) -> isl.Map:
    """All pairs of different points."""
    return isl.Map.lex_lt(space).union(isl.Map.lex_gt(space))
