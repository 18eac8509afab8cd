"""The adjoint of one statement: a contribution for each read of it, and the tensors that these need."""
from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from dataclasses import replace

from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Const, Expr, Select, Unary
from tcjit.grammar.differentiate.body import Body
from tcjit.grammar.differentiate.normalise import Update
from tcjit.grammar.differentiate.partials import Leaf, derivatives, may_reuse
from tcjit.grammar.differentiate.simplify import (
    assume,
    compare,
    conjunction,
    conjuncts,
    convert,
    divide,
    either,
    index,
    integer_of,
    is_float,
    is_number,
    literal,
    multiply,
    negate,
    reads,
    select,
    where,
    wide_type,
)
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import walk, with_indices

# a read, the derivative by it times the cotangent, when that counts, and the indices with their ranges that it is summed over
Term = tuple[Leaf, Expr, list[Expr], Update]
GREATEST = 2**31 - 1


def terms(update: Update, gradient: Access, active: Container[str], body: Body, ties: str, differentiable: bool) -> Iterator[Term]:
    """The contributions of an update whose target has the cotangent ``gradient``.

    ``ties`` says how ``max`` and ``min`` share among equal elements, ``even`` or ``first``. Products use one rule that has derivatives of
    its own, quadratic in the number of factors, or with ``differentiable=False`` one that counts zeros.
    """
    if update.operator in ("=", "+="):
        stored = body.own(update) if update.operator == "=" and may_reuse(update.value) else None
        guard, inner = _guarded(update.value)
        dividend, divisor = _quotient(inner, update.reduction)
        if divisor is not None and _is_complete(update, body) and (guard is None or _is_there(divisor, update, body)):
            yield from _of_quotient(update, guard, dividend, divisor, gradient, active, body)
            return
        for leaf, derivative in derivatives(update.value, active, stored).items():
            yield leaf, multiply(gradient, derivative), [], update
    elif update.operator == "*=":
        rest = others(update, gradient.dtype, body, differentiable)
        for leaf, derivative in derivatives(update.value, active).items():
            conditions = conjuncts(derivative.condition) if isinstance(derivative, Select) and is_number(derivative.other, 0) else []
            yield leaf, multiply(multiply(gradient, assume(rest, conditions)), derivative), [], update
    else:
        hit, count = winners(update, gradient.dtype, body, ties)
        share = gradient
        if count is not None:  # none counts where there are no terms, or a NaN is among them
            among, held = (replace(read, subscripts=tuple(map(index, update.left))) for read in (count, gradient))
            share = _stored(update, "share", where(compare("!=", among, literal(0, count.dtype)), divide(held, among)), body)
        for leaf, derivative in derivatives(update.value, active).items():
            term = multiply(share, derivative)
            conditions = []
            if isinstance(term, Select) and is_number(term.other, 0):
                conditions, term = conjuncts(term.condition), term.then
            yield leaf, term, [*conditions, assume(hit, conditions)], update


def _guarded(value: Expr) -> tuple[Expr | None, Expr]:
    """The condition without which a value is 0, if it has one, and what it is then."""
    if isinstance(value, Select) and is_number(value.other, 0):
        return value.condition, value.then
    return None, value


def _quotient(value: Expr, reduction: Collection[str]) -> tuple[Expr, Expr | None]:
    """A value as a dividend and what it is divided by whatever the indices of the reduction are; None where there is no such."""
    match value:
        case Binary(op="/", left=left, right=right) if reads(right) and not set(polynomial.names(right)) & set(reduction):
            dividend, divisor = _quotient(left, reduction)
            return dividend, right if divisor is None else multiply(divisor, right)
        case Binary(op="*", left=left, right=right):
            (one, below), (other, beside) = _quotient(left, reduction), _quotient(right, reduction)
            divisor = beside if below is None else below if beside is None else multiply(below, beside)
            return (value, None) if divisor is None else (multiply(one, other), divisor)
        case Unary(op="-", operand=operand):
            dividend, divisor = _quotient(operand, reduction)
            return negate(dividend), divisor
    return value, None


def _is_complete(update: Update, body: Body) -> bool:
    """Whether an update is a sum of floats, and all that its target holds."""
    only = sum(other.target == update.target for other in body.form.updates) == 1
    return only and not update.targets and update.initialise and bool(update.reduction) and is_float(update.value.dtype)


def _is_there(expr: Expr, update: Update, body: Body) -> bool:
    """Whether all that an expression reads is inside its tensor at every left index, whatever the condition of the update."""
    box = body.box({name: update.ranges[name] for name in update.left})
    return all(
        box.implies(compare(">=", subscript, number(0))) and box.implies(compare("<", subscript, extent))
        for node in walk(expr)
        if isinstance(node, Access)
        for subscript, extent in zip(node.subscripts, body.shapes[node.tensor], strict=True)
    )


def _of_quotient(
    update: Update, guard: Expr | None, dividend: Expr, divisor: Expr, gradient: Access, active: Container[str], body: Body
) -> Iterator[Term]:
    """The contributions of a sum of quotients as of the quotient of a sum: the cotangent is divided once for all terms, and the sum is not
    computed again for the divisor. Without a term the sum is 0, which it cannot be with terms that are divided by 0."""
    left = replace(update, ranges={name: update.ranges[name] for name in update.left}, value=divisor)
    share = _stored(update, "d_sum", divide(gradient, divisor), body)
    spans = ([integer_of(end) for end in update.ranges[name]] for name in update.reduction)
    filled = [compare("<", number(0), polynomial.expression(upper - lower)) for lower, upper in spans]
    some = conjunction(*(test for test in filled if not isinstance(test.right, Const)))
    if guard is not None:
        dividend, some = where(guard, dividend), compare("!=", body.own(left), literal(0, update.value.dtype))
    for leaf, derivative in derivatives(dividend, active).items():
        yield leaf, multiply(share, derivative), [], update
    for leaf, derivative in derivatives(divisor, active).items():
        yield leaf, where(some, negate(multiply(multiply(share, body.own(update)), derivative))), [], left


def _stored(update: Update, stem: str, value: Expr, body: Body) -> Access:
    """What all terms of a reduction have in common, in a tensor of its own."""
    shape = body.shapes[update.target]
    name = body.new(f"{stem}_{update.target}", value.dtype, shape)
    body.add(name, update.left, "=", value, {one: (number(0), extent) for one, extent in zip(update.left, shape)})
    return Access(name, update.places, dtype=value.dtype)


def winners(update: Update, dtype: str, body: Body, ties: str) -> tuple[Expr, Access | None]:
    """Whether an element of a ``max`` or ``min`` counts, and among how many; None for one."""
    hit = compare("==", update.value, body.own(update))
    shape = body.shapes[update.target]
    if ties == "even":
        count = body.new(f"n_{update.target}", dtype, shape)
        body.add(count, update.left, "+=!", where(hit, literal(1, dtype)), update.ranges, update.targets)
        return hit, Access(count, update.places, dtype=dtype)
    first = body.new(f"first_{update.target}", "int32", shape)
    place: polynomial.Value = 0
    for name in update.reduction:
        lower, upper = map(integer_of, update.ranges[name])
        place = place * (upper - lower) + (polynomial.atom(index(name)) - lower)
    position = polynomial.expression(place)
    otherwise = Const(GREATEST, dtype="int32")
    body.add(first, update.left, "min=!", Select(hit, position, otherwise, dtype="int32"), update.ranges, update.targets)
    return compare("==", Access(first, update.places, dtype="int32"), position), None


def others(update: Update, dtype: str, body: Body, differentiable: bool) -> Expr:
    """At each factor of a product the product of the others; ``dtype`` is that of a number of zeros."""
    return _others(update, body) if differentiable else _by_zeros(update, dtype, body)


def _others(update: Update, body: Body) -> Expr:
    """The product of all factors but one, at each of them."""
    dtype = body.dtypes[update.target]
    kept = {name: extent for name, extent in zip(update.left, body.shapes[update.target]) if name not in update.targets}
    left, shape, alike = list(kept), list(kept.values()), dict[str, Expr]()
    differs: Expr | None = None
    ranges, place = dict(update.ranges), list[Expr](map(index, kept))
    for name in update.reduction:
        low, high = map(integer_of, update.ranges[name])
        other = body.names.index(f"{name}_", {*left, *update.ranges})
        extent = polynomial.expression(high - low)
        here = polynomial.expression(polynomial.atom(index(other)) + low)
        apart = compare("!=", index(name), here)
        differs = apart if differs is None else either(differs, apart)
        alike[name] = here
        ranges[other] = number(0), extent
        place.append(polynomial.expression(polynomial.atom(index(name)) - low))
        left.append(other)
        shape.append(extent)
    if differs is None:  # every element has one factor
        return literal(1, dtype)
    same = [compare("==", target, with_indices(target, alike)) for target in update.targets.values()]  # of one element
    differs = conjunction(differs, *same)
    tensor = body.new(f"others_{update.target}", dtype, tuple(shape))
    ordered = {name: ranges[name] for name in (*left, *update.reduction)}
    body.add(tensor, left, "*=!", Select(differs, update.value, literal(1, dtype), dtype=dtype), ordered)
    return Access(tensor, tuple(place), dtype=dtype)


def _by_zeros(update: Update, dtype: str, body: Body) -> Expr:
    """The same from the product without zeros, and their number, which are wide for halves: right only to first order where a factor is
    0."""
    shape, value, guards, wide = body.shapes[update.target], update.value, list[Expr](), wide_type(dtype)
    while isinstance(value, Select) and is_number(value.other, 1):  # what is no factor is no zero
        guards.append(value.condition)
        value = value.then
    value, one, nothing = convert(value, wide), literal(1, wide), literal(0, wide)
    zeros, rest = (body.new(f"{stem}_{update.target}", wide, shape) for stem in ("zeros", "rest"))
    is_zero = compare("==", value, nothing)
    counted, multiplied = where(is_zero, one), Select(is_zero, one, value, dtype=wide)
    if guards:
        guard = conjunction(*guards)
        counted, multiplied = where(guard, counted), Select(guard, multiplied, one, dtype=wide)
    body.add(zeros, update.left, "+=!", counted, update.ranges, update.targets)
    body.add(rest, update.left, "*=!", multiplied, update.ranges, update.targets)
    count, product = (Access(name, update.places, dtype=wide) for name in (zeros, rest))
    among, without = where(compare("==", count, one), product), where(compare("==", count, nothing), divide(product, value))
    return convert(select(is_zero, among, without), dtype)
