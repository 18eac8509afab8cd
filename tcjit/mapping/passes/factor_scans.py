"""Factor scans: sums that share terms are scans once what their results have as factors is taken out of them.

The adjoint of a prefix product is ``D(j) +=! j <= i ? (X(j) == 0.0 ? A(i) : B(i) / X(j)) : 0.0``, which takes a step for each pair. With
the suffix sums ``S`` of ``A`` and ``T`` of ``B`` it is ``D(j) = X(j) == 0.0 ? S(j) : T(j) / X(j)``, and suffix sums take a step for each
element. Distributivity, after Gautam and Rajopadhye, Simplifying Reductions (POPL 2006).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Expr, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import reads_inside, where
from tcjit.mapping.operations import may_fail, operations
from tcjit.mapping.passes.hoist_invariants import TYPES
from tcjit.mapping.reduction import casts_inside, guarded_term, identity, is_identity, product_of, quotient_factors
from tcjit.mapping.scans import added_term, has_empty_results, scan_candidate

STEP = 32  # operations of a sum, in vectors, that a step of a scan takes as long as; a result of a triangle has half of the terms
ONE_FUNCTION = 8  # operations that a function takes as long as, in vectors

Context = Callable[[Expr], Expr]


def factor_scans(before: Assignments) -> Assignments:
    """The program with scans in the place of sums that are scans but for factors of their results."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "+=" or a.outer or len(a.terms) != 1 or a.value.dtype not in TYPES or a.tensor in a.inputs:
            return [a]
        zero = identity("+=", a.value.dtype)
        conditions, term = guarded_term(casts_inside(a.value), "+=", before.values)
        if a.start not in (None, zero) or not conditions or term.dtype != a.value.dtype or may_fail(term, before.values):
            return [a]
        for dim, lower, upper in a.results:
            bodies = list[Expr]()
            sums = _Factorisation(a.terms[0][0], dim, True, partial(_noted, bodies))
            if a.start is not None and dim not in names(term) or sums.total(term) is None:
                continue
            bodies = list(dict.fromkeys(bodies))
            if (1 + operations(term, ONE_FUNCTION)) * (upper - lower) < 2 * STEP * len(bodies):
                continue
            s = scan_candidate(replace(a, start=zero), before)
            if s is None or all(added_term(s, dim, step) is None for step in (1, -1)):
                continue
            bounds = tuple((name, *a.ranges[name]) for sub in a.subscripts for name in names(sub))
            made = {body: temporaries.stored(a, f"{a.tensor}_scan", zero, bounds).element for body in bodies}
            value = replace(sums, partial=has_empty_results(s), stored=made.__getitem__).total(term)
            assert value is not None
            used = {part.tensor for part in walk(value) if isinstance(part, Access)}
            guards = [test for _, test in conditions]
            scans = [
                replace(a, tensor=at.tensor, subscripts=at.subscripts, value=where(guards, body, zero), start=zero)
                for body, at in made.items()
                if at.tensor in used
            ]
            if all(reads_inside(before.with_parts([[scan]], temporaries), scan) for scan in scans):
                operator = "+=" if a.start is None else "="
                return [*scans, replace(a, operator=operator, value=value, bounds=a.results, reduction=(), start=None)]
        return [a]

    return rewrite(before, visit)


def _noted(bodies: list[Expr], body: Expr) -> Expr:
    """A value that a sum is asked for, added to others."""
    bodies.append(body)
    return body


@dataclass(frozen=True)
class _Factorisation:
    """Sums over ``term`` for results along ``dim``, by sums of what does not move along it, of which ``stored`` gives elements; ``partial``
    where some results may have no terms."""

    term: str
    dim: str
    partial: bool
    stored: Context

    def total(self, value: Expr, inside: Context = lambda value: value, guards: tuple[Expr, ...] = ()) -> Expr | None:
        """The sum of a value ``inside`` of what does not move along the dimension, which is 0 where one of ``guards`` fails; None where its
        factors do not come apart."""
        if is_identity(value, "+="):
            return value
        if self.dim not in names(value):
            return self.stored(inside(value))
        if isinstance(value, Select):
            return self._of_choice(value, inside, guards)
        if isinstance(value, Unary) and value.op == "-":
            operand = self.total(value.operand, inside, guards)
            return None if operand is None else replace(value, operand=operand)
        if isinstance(value, Binary) and value.op in "+-":
            left, right = (self.total(operand, inside, guards) for operand in (value.left, value.right))
            return None if left is None or right is None else replace(value, left=left, right=right)
        return self._of_product(value, inside, guards)

    def _of_choice(self, value: Select, inside: Context, guards: tuple[Expr, ...]) -> Expr | None:
        """One choice for the whole sum, or a sum over the terms for which a condition holds, and one over the others."""
        test, zero = value.condition, identity("+=", value.dtype)
        if self.term not in names(test):
            then, other = (self.total(arm, inside, guards) for arm in (value.then, value.other))
            return None if then is None or other is None else replace(value, then=then, other=other)
        if self.dim in names(test):
            return None

        def guarded(guard: Expr, inner: Expr) -> Expr:
            return inside(where([guard], inner, zero))

        ways = (test, value.then), (Unary("!", test, dtype="bool"), value.other)
        sums = [self.total(arm, partial(guarded, guard), (*guards, guard)) for guard, arm in ways]
        if None in sums:
            return None
        counted = [one for one in sums if one is not None and one != zero]
        return reduce(partial(Binary, "+", dtype=value.dtype), counted) if counted else zero

    def _of_product(self, value: Expr, inside: Context, guards: tuple[Expr, ...]) -> Expr | None:
        """What does not move with the terms is a factor of their sum: of one without terms, which is 0, only where it is finite."""
        one, zero = identity("*=", value.dtype), identity("+=", value.dtype)
        factors = quotient_factors(value)
        outside = [factor for factor in factors if self.term not in names(factor[1])]
        kept = [factor for factor in factors if factor not in outside and self.dim not in names(factor[1])]
        rest = [factor for factor in factors if factor not in outside and factor not in kept]
        if len(rest) == len(factors) or len(rest) > 1 or any(op == "/" for op, _ in rest):
            return None
        result = self.total(rest[0][1] if rest else one, lambda inner: inside(product_of(inner, kept)), guards)
        if result is None or not outside:
            return result
        result = product_of(result, outside)
        if not guards and not self.partial:
            return result
        some = Binary(">", self.stored(where(guards, one, zero)), zero, dtype="bool")
        return Select(some, result, zero, dtype=value.dtype)
