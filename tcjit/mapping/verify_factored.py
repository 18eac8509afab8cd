"""Sums with factors behind them: the terms of the sums, with these factors, are the terms that were summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside, where
from tcjit.mapping.instances import Instances, results_of
from tcjit.mapping.reduction import casts_inside, conjuncts, guarded_term, identity, is_identity, quotient_factors

Test = tuple[Expr, bool]


@dataclass(frozen=True)
class _Addend:
    """A product, or its negative: what is multiplied and what divides, each with the conditions without which it is not evaluated;
    ``tests`` are those without which the product is 0."""

    negative: bool
    tests: frozenset[Test]
    factors: tuple[tuple[str, Expr, frozenset[Test]], ...]

    @property
    def unordered(self) -> tuple[object, ...]:
        return self.negative, self.tests, frozenset(Counter((op, factor) for op, factor, _ in self.factors).items())


def wrong_factored(instances: Instances, before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with sums, and a value that each result has by them, in the place of a sum."""
    *scans, result = new
    zero = identity("+=", old.value.dtype)
    if old.operator != "+=" or old.start not in (None, zero) or len(old.terms) != 1 or old.tensor in old.inputs:
        return "no sum of one dimension"
    conditions, term = guarded_term(casts_inside(old.value), "+=", instances.values)
    guards, bodies = [test for _, test in conditions], dict[Expr, Expr]()
    for scan in scans:
        own = [sub.name for sub in scan.subscripts if isinstance(sub, Index)]
        apart = scan.tensor not in before.storages and scan.element not in bodies and scan.start == zero
        whole = sorted(own) == sorted(name for name, _, _ in old.results) and len(own) == len(scan.subscripts)
        alike = replace(scan, tensor=old.tensor, subscripts=old.subscripts, value=old.value, start=old.start) == old
        body = scan.value.then if isinstance(scan.value, Select) else scan.value
        if not (apart and whole and alike) or scan.value != where(guards, body, zero):
            return "a sum is not over the same terms"
        if not reads_inside(replace(after, assignments=(scan,)), scan):
            return "a sum reads what is not there"
        bodies[scan.element] = body
    store = replace(results_of(old), operator="=" if old.start else "+=", value=old.value, start=None)
    if replace(result, value=old.value) != store or old.reduction[0] in names(result.value):
        return "more than the value of results changed"
    counted = instances.instances(replace(old, constraints=(*old.constraints, *(text for text, _ in conditions))), result.dims)
    has_terms = instances.instances(results_of(old), result.dims).is_subset(counted)
    found = []
    for addend in _addends(result.value):
        expanded = _expanded(addend, bodies, has_terms)
        if expanded is None:
            return "a result is more than a sum of multiples of sums"
        found += expanded
    wanted = _addends(term)
    if Counter(one.unordered for one in found) != Counter(one.unordered for one in wanted):
        return "a term has another value"
    evaluated = {(one.unordered, op, factor): tests for one in wanted for op, factor, tests in one.factors}
    more = any(not evaluated[one.unordered, op, factor] <= tests for one in found for op, factor, tests in one.factors)
    return "a factor is evaluated where it was not" if more else ""


def _addends(value: Expr, tests: frozenset[Test] = frozenset(), negative: bool = False) -> list[_Addend]:
    """The products that a value is the sum of."""
    if is_identity(value, "+="):
        return []
    if is_identity(value, "*="):
        return [_Addend(negative, tests, ())]
    match value:
        case Select(condition=condition, then=then, other=other):
            arms = (then, _tests(condition, True)), (other, _tests(condition, False))
            return [one for arm, more in arms for one in _addends(arm, tests | more, negative)]
        case Binary(op="+" | "-" as op, left=left, right=right):
            return [*_addends(left, tests, negative), *_addends(right, tests, negative != (op == "-"))]
        case Unary(op="-", operand=operand):
            return _addends(operand, tests, not negative)
    parts = quotient_factors(value)
    if len(parts) == 1:
        return [_Addend(negative, tests, (("*", value, tests),))]
    ways = [_addends(part, tests) if op == "*" else [_Addend(False, tests, ((op, part, tests),))] for op, part in parts]
    return [_product(chosen, negative) for chosen in product(*ways)]


def _product(addends: Sequence[_Addend], negative: bool = False) -> _Addend:
    for one in addends:
        negative = negative != one.negative
    factors = tuple(factor for one in addends for factor in one.factors)
    return _Addend(negative, frozenset().union(*(one.tests for one in addends)), factors)


def _tests(condition: Expr, holds: bool) -> frozenset[Test]:
    """The parts of a condition that all hold, or the condition that fails."""
    parts = conjuncts(condition) if holds else [condition]
    if len(parts) > 1:
        return frozenset().union(*(_tests(part, True) for part in parts))
    (part,) = parts
    if isinstance(part, Unary) and part.op == "!":
        return _tests(part.operand, not holds)
    return frozenset({(part, holds)})


def _expanded(addend: _Addend, bodies: Mapping[Expr, Expr], has_terms: bool) -> list[_Addend] | None:
    """The terms of a multiple of a sum; None of what is none. A factor is evaluated where there are terms: a test of their number says
    so, of those which have conditions."""
    sums = [factor for op, factor, _ in addend.factors if op == "*" and factor in bodies]
    if len(sums) != 1:
        return None

    def in_terms(tests: frozenset[Test]) -> tuple[frozenset[Test], bool] | None:
        """Tests with those of terms in the place of tests of their number, and whether there are any of these."""
        inside, some = set[Test](), False
        for condition, holds in tests:
            if not _reads(condition, bodies):
                inside.add((condition, holds))
                continue
            count = bodies.get(condition.left) if isinstance(condition, Binary) else None
            terms = _addends(count) if count is not None else []
            positive = isinstance(condition, Binary) and condition.op == ">" and is_identity(condition.right, "+=") and holds
            if not positive or len(terms) != 1 or terms[0].factors or terms[0].negative:
                return None
            inside |= terms[0].tests
            some = True
        return frozenset(inside), some

    outside = []
    for op, factor, tests in addend.factors:
        if factor in sums and op == "*":
            continue
        found = in_terms(tests)
        if found is None or _reads(factor, bodies) or not (found[1] or has_terms):
            return None
        outside.append((op, factor, found[0]))
    own = frozenset((condition, holds) for condition, holds in addend.tests if not _reads(condition, bodies))
    every = in_terms(addend.tests)
    if every is None:
        return None
    terms = []
    for one in _addends(bodies[sums[0]], own):
        if not every[0] <= one.tests:  # it counts where the number of others does
            return None
        terms.append(_product([one, _Addend(addend.negative, every[0], tuple(outside))]))
    return terms


def _reads(value: Expr, elements: Mapping[Expr, Expr]) -> bool:
    return any(isinstance(part, Access) and part in elements for part in walk(value))
