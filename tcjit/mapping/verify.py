"""Verify: prove with isl that a mapped tree computes what the program says.

The tree is walked from the root with the dependences whose two ends are still unordered. A band orders the pairs that differ in it, a
sequence those that fall into different children; what reaches a leaf unordered, or is ordered backwards, is a violation, and so is a
pair that differs in a loop run by several threads or lanes at once. Whatever isl cannot decide counts as a violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import isl_name
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.isl import descendants, union_set
from tcjit.mapping.passes.contract import footprint, uses
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer
from tcjit.mapping.tree import KIND, kind, mark_name, show


def verify(scop: Scop, deps: Dependences, tree: isl.Schedule) -> None:
    """Prove coverage, order, races and bounds of a tree, or raise a VerifyError that says which promise is broken."""
    try:
        _Proof(scop, tree).run(deps)
    except isl.Error as error:
        raise VerifyError(f"a mapped tree could not be decided within the budget: {error}") from None


def verify_privates(scop: Scop, deps: Dependences, tree: isl.Schedule, privates: Sequence[Buffer]) -> None:
    """Prove that each private buffer holds, at every read, the element that the program names."""
    marks = {mark_name(node): node for node in descendants(tree.get_root()) if mark_name(node)}
    try:
        for private in privates:
            _private(scop, deps, tree, marks, private)
        for name in {p.tensor for p in privates}:
            _all_uses_private(scop, tree, marks, [p for p in privates if p.tensor == name])
    except isl.Error as error:
        raise VerifyError(f"a private buffer could not be decided within the budget: {error}") from None


@dataclass(frozen=True)
class _Proof:
    scop: Scop
    tree: isl.Schedule

    def run(self, deps: Dependences) -> None:
        if not self.tree.get_domain().is_equal(self.scop.domain):
            missing = self.scop.domain.subtract(self.tree.get_domain())
            self.fail("coverage", f"instances lost or added: {missing}")
        self.bounds()
        self.walk(self.tree.get_root(), deps.strict, deps.reduction)

    def fail(self, promise: str, why: str) -> None:
        raise VerifyError(f"{promise}: {why}\nin the tree\n{show(self.tree)}", hint="report this: the program is fine, the mapping is not")

    def bounds(self) -> None:
        """Every access of every instance lies in its tensor."""
        boxes = []
        for t in self.scop.tensors:
            axes = [f"a{i}" for i in range(len(t.shape))]
            facts = " and ".join(f"0 <= {a} < {extent}" for a, extent in zip(axes, t.shape, strict=True))
            boxes.append(f"{isl_name(t.name)}[{', '.join(axes)}]" + (f" : {facts}" if facts else ""))
        inside = union_set(self.scop.ctx, boxes)
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
        if here == KIND.band:
            strict, reduction = self.band(node, strict, reduction)
        elif here not in (KIND.domain, KIND.filter, KIND.mark):
            self.fail("coverage", f"an unexpected {here} node")
        for position in range(node.n_children()):
            self.walk(node.child(position), strict, reduction)

    def band(self, node: isl.ScheduleNode, strict: isl.UnionMap, reduction: isl.UnionMap) -> tuple[isl.UnionMap, isl.UnionMap]:
        above = mark_name(node.parent())
        parallel = above == "tiles" and mark_name(node.parent().parent()) == "parallel"
        lanes = above == "lanes"
        partial = node.band_get_partial_schedule()
        if not node.get_domain().is_subset(partial.domain()):
            self.fail("coverage", "a band leaves instances without a time")
        for position in range(node.band_n_member()):
            time = isl.MultiUnionPwAff.from_union_pw_aff(partial.get_at(position))
            backwards = strict.lex_gt_at_multi_union_pw_aff(time)
            if not backwards.is_empty():
                self.fail("order", f"a dependence runs backwards: {backwards}")
            same = strict.eq_at_multi_union_pw_aff(time)
            if (parallel or lanes) and not strict.is_subset(same):
                self.fail("order", f"dependent instances run at once: {strict.subtract(same)}")
            together = reduction.eq_at_multi_union_pw_aff(time)
            if parallel and not reduction.is_subset(together):
                self.fail("reductions", f"terms of one reduction run on several threads: {reduction.subtract(together)}")
            strict, reduction = same, together
        return strict, reduction

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


def _private(scop: Scop, deps: Dependences, tree: isl.Schedule, marks: dict[str, isl.ScheduleNode], private: Buffer) -> None:
    node = marks.get(private.mark)
    storage = scop.tensor(private.tensor)
    if node is None or storage.role != "temporary":
        raise VerifyError(f"value flow: {private.tensor} has no place for a private buffer")
    accesses = uses(scop, storage)
    flow = accesses.apply_range(accesses.reverse()).intersect(deps.flow)
    here = node.get_domain()
    flow = flow.intersect_domain(here).union(flow.intersect_range(here))
    kept = flow.intersect_domain(here).intersect_range(here)
    kept = kept.eq_at_multi_union_pw_aff(node.get_prefix_schedule_multi_union_pw_aff())
    if not flow.is_subset(kept):
        lost = flow.subtract(kept)
        raise VerifyError(f"value flow: {private.tensor} is read in another tile than it was written in: {lost}\n{show(tree)}")
    touched = footprint(accesses, node)
    if touched is None or not private.axes:
        return
    axes = [f"a{i}" for i in range(len(private.axes))]
    parts = [f"{k} * (floor(({a} - {axis.base})/{d}) mod {m})" for a, axis in zip(axes, private.axes, strict=True) for d, m, k in axis.parts]
    folding = isl.Map.read_from_str(scop.ctx, f"{{ {isl_name(private.tensor)}[{', '.join(axes)}] -> [{' + '.join(parts)}] }}")
    # two different elements that one tile touches must never share a slot
    place = touched.domain_map().range_product(touched.range_map().apply_range(folding))
    if not place.is_injective():
        raise VerifyError(f"value flow: two elements of {private.tensor} share a slot of its private buffer of {private.elements}")


def _all_uses_private(scop: Scop, tree: isl.Schedule, marks: dict[str, isl.ScheduleNode], privates: Sequence[Buffer]) -> None:
    covered = tree.get_domain().subtract(tree.get_domain())
    for private in privates:
        covered = covered.union(marks[private.mark].get_domain())
    outside = uses(scop, scop.tensor(privates[0].tensor)).domain().subtract(covered)
    if not outside.is_empty():
        raise VerifyError(f"value flow: {privates[0].tensor} is used outside its private buffers: {outside}")
