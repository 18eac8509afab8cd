"""Split index sets: part a box where a condition on indices changes, so that each part computes without it (see ``cases``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Expr
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.cases import cases, joined
from tcjit.mapping.reduction import guarded_term, is_product
from tcjit.mapping.storage import Bounds


def split_sums(before: Assignments) -> Assignments:
    """The program with sums that conditions on their results keep from being sums of products in parts that are."""
    sums = Counter(a.source for a in before.assignments if a.operator != "=")

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        _, value = guarded_term(a.value, a.operator, before.values)  # conditions around all of it bound a nest's domain
        if a.operator != "+=" or not a.reduction or a.empty or is_product(value) or sums[a.source] > 1:
            return [a]
        return [_part(a, box, value) for box, value in cases(a.value, a.results, before.values, a.dynamic)]

    return rewrite(before, visit)


def split_index_sets(before: Assignments) -> Assignments:
    """The program with the def's assignments that join tensors in parts."""
    return rewrite(before, lambda a, _: joined_parts(a, before))


def joined_parts(a: Assignment, before: Assignments) -> list[Assignment]:
    """The parts of one of the def's assignments that joins tensors; but for one whose tensor it or later ones that would share its loops
    read, the assignment itself."""
    statements = before.program.definition.statements
    if statements[a.source].operator != "=":
        return [a]
    later = [s.value for s in statements[a.source :] if not s.reduction]
    if any(read.tensor == a.tensor for value in later for read, _ in guarded_accesses(value)):
        return [a]
    return [replace(a, bounds=box, value=value) for box, value in joined(a.value, a.bounds, before.values, a.dynamic)]


def _part(a: Assignment, box: Bounds, value: Expr) -> Assignment:
    limits = {name: (name, lower, upper) for name, lower, upper in box}
    return replace(a, bounds=tuple(limits.get(bound[0], bound) for bound in a.bounds), value=value)
