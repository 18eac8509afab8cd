"""Split addends: a sum of terms that are sums themselves, each addend under conditions of its own, is a sum for each addend.

``Y(i) +=! ((i - k) % 2 == 0 && i >= k ? X((i - k) / 2) : 0.0) + (... ? X((k - i) / 2) : 0.0)``, as the gradient of a reflected border of a
strided window has it, is a sum over the residue classes of one addend, and another one that goes on with it over few terms.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Expr, Select
from tcjit.grammar.walk import addends, walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.operations import divides_integers
from tcjit.mapping.reduction import conjunction, guarded_term, identity

MOST = 8  # sums, each of which loads and stores the results


def split_addends(before: Assignments) -> Assignments:
    """The program with a sum for each addend, where conditions that divide keep all of them from nests."""

    def is_guarded(part: Expr) -> bool:
        conditions, _ = guarded_term(part, "+=", before.values)
        return any(divides_integers(one) for _, condition in conditions for one in walk(condition))

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        simple = a.operator == "+=" and a.reduction and not (a.outer or a.constraints or a.empty or a.tensor in a.inputs)
        if not simple or a.start not in (None, identity("+=", a.value.dtype)):
            return [a]
        conditions, term = guarded_term(a.value, "+=", before.values)
        parts = addends(term)
        if not 1 < len(parts) <= MOST or not all(map(is_guarded, parts)):
            return [a]
        guards, zero = [test for _, test in conditions], identity("+=", term.dtype)
        values = [Select(conjunction(guards), part, zero, dtype=term.dtype) if guards else part for part in parts]
        return [replace(a, value=value, start=None if number else a.start) for number, value in enumerate(values)]

    return rewrite(before, visit)
