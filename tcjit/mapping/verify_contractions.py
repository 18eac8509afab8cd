"""The distributive law: what is summed in several steps, through temporaries, is the sum of the products that it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tcjit.grammar.affine import condition, isl_name
from tcjit.grammar.arithmetic import plus
from tcjit.grammar.ast import Access, Binary, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.instances import results_of, same_element
from tcjit.mapping.isl import context, images, points, sizes_in
from tcjit.mapping.reduction import guarded_factors, identity, is_identity


def wrong_contraction(before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """A sum of products by the distributive law: with its temporaries replaced by what they hold, the last assignment has the factors
    of the old one, each once, and every term is summed once, around all factors that move with it. What divides all terms divides
    the sum."""
    *made, last = new
    shared = _shared(before, after, new)
    definitions = {a.tensor: a for a in (*made, *shared)}
    value, product = last.value, old.value
    if last.operator == "=" != old.operator:
        if old.start is None or not isinstance(value, Binary) or value.op != "+" or value.left != old.start:
            return "the results are not started"
        value = value.right
    if isinstance(product, Binary) and product.op == "/" and isinstance(value, Binary) and value.op == "/":
        floats = DTYPES[product.dtype].kind == "float"
        if not floats or value.right != product.right or set(names(product.right)) & set(old.reduction):
            return "the sum is divided by something else"
        value, product = value.left, product.left
    if old.operator != "+=" or last.start not in (old.start, None) or last.results != old.results or not same_element(last, old):
        return "the results changed"
    for a in (*made, *shared):
        storage, lowers = after.storages[a.tensor], [lower for _, lower, _ in a.results]
        exact = storage.role == "temporary" and a.tensor not in before.storages and storage.dtype == a.value.dtype == last.value.dtype
        places = tuple(plus(Index(name, dtype="int64"), -lower) for (name, _, _), lower in zip(a.results, lowers, strict=True))
        shape = tuple(upper - lower for _, lower, upper in a.results)
        started = a.start == identity("+=", storage.dtype) if a.operator == "+=" else not a.reduction
        if not exact or a.subscripts != places or storage.shape != shape or not started or a.constraints or a.dynamic:
            return "a temporary does not hold what it stands for"
    if any(old.ranges.get(name) != (lower, upper) for a in (*new, *shared) for name, lower, upper in a.bounds):
        return "a range changed"
    one = identity("*=", product.dtype)  # what a sum over a condition alone counts
    multiplied: list[Expr] = []
    tested: list[Expr] = []
    summed: list[str] = []

    def expand(a: Assignment, value: Expr) -> tuple[set[str], list[Expr]]:
        """The indices that the product of an assignment moves with, and the conditions under which it is not 0."""
        moves: set[str] = set()
        conditions, factors = guarded_factors(value)
        counts = [found for test in conditions if (found := _counted(test, definitions)) is not None]
        tests = [test for test in conditions if _counted(test, definitions) is None]
        moves.update(name for test in tests for name in names(test))
        inside: list[Expr] = []
        for factor in factors:
            if factor == one:
                continue
            definition = definitions.get(factor.tensor) if isinstance(factor, Access) else None
            if definition is None:
                multiplied.append(factor)
                moves |= set(names(factor))
            else:
                assert isinstance(factor, Access)
                own, under = expand(definition, definition.value)
                moves |= own if factor.subscripts == definition.subscripts else {""}
                inside += under
        lost = list(dict.fromkeys(test for test in inside if test not in tests))
        floats = DTYPES[product.dtype].kind == "float"
        if floats and len(factors) > 1 and Counter(lost) not in counts and not _leave_terms(lost, moves, old, after.values):
            moves.add("")  # the other factors need not be finite where there are no terms
        if any(count - Counter(lost) for count in counts):
            moves.add("")  # something else is counted
        tested.extend(tests)
        summed.extend(a.reduction)
        return moves - set(a.reduction), [*tests, *lost]

    left, _ = expand(last, value)
    if not left <= set(results_of(old).dims) or sorted(summed) != sorted(old.reduction):
        return "a term is not summed once, around all that moves with it"
    conditions, factors = guarded_factors(product)
    if conditions and not all(reads_inside(after, a) for a in new):
        return "a condition no longer protects a read"
    if set(tested) != set(conditions):
        return "the conditions are others"
    return "" if Counter(multiplied) == Counter(part for part in factors if part != one) else "the factors are others"


def _counted(test: Expr, definitions: Mapping[str, Assignment]) -> Counter[Expr] | None:
    """The conditions of which a test asks whether they hold for any term; None where it is no such test."""
    count = test.left if isinstance(test, Binary) and test.op == ">" and is_identity(test.right, "+=") else None
    definition = definitions.get(count.tensor) if isinstance(count, Access) else None
    if definition is None or not isinstance(count, Access) or count.subscripts != definition.subscripts or definition.operator != "+=":
        return None
    conditions, factors = guarded_factors(definition.value)
    return Counter(conditions) if factors == [identity("*=", definition.value.dtype)] else None


def _leave_terms(tests: Sequence[Expr], moves: Collection[str], old: Assignment, values: Mapping[str, int]) -> bool:
    """Whether conditions, some of whose indices are summed over, hold for a term at each value of those that move still."""
    texts = {test: text for test in tests if (text := condition(test, values)) is not None}
    if len(texts) < len(tests) or sizes_in(tests, values):
        return False  # of one on data, or on dynamic sizes, nobody knows
    dims = sorted({name for test in texts for name in names(test)})
    if not dims:
        return True
    box = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in old.bounds if name in dims]
    left = images(context(), map(isl_name, dims), [isl_name(name) for name in dims if name in moves])
    every, some = (points(context(), map(isl_name, dims), facts) for facts in (box, [*box, *(f"({text})" for text in texts.values())]))
    return bool(every.apply(left).is_subset(some.apply(left)))


def _shared(before: Assignments, after: Assignments, new: Sequence[Assignment]) -> list[Assignment]:
    """Temporaries of contractions before some assignments that these read, those too that they are computed from, unless what they read
    changes between."""
    end = next((at for at, a in enumerate(after.assignments) if a is new[0]), 0)
    found: dict[str, Assignment] = {}
    waiting = [name for a in new for name in a.inputs]
    while waiting:
        name = waiting.pop()
        writers = [at for at, a in enumerate(after.assignments) if a.tensor == name]
        if name in found or name in before.storages or len(writers) != 1 or writers[0] >= end:
            continue
        a = after.assignments[writers[0]]
        if not any(other.tensor in a.tensors_read for other in after.assignments[writers[0] + 1 : end]):
            found[name] = a
            waiting += a.inputs
    return list(found.values())
