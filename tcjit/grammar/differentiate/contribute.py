"""Contributions to the cotangent of one tensor: each is a term over the tensor's own dimensions, guards, and indices to sum over."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from tcjit.dataclass import dataclass
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Call, Cast, Expr, Index, Scalar, Select, Size, Unary
from tcjit.grammar.differentiate.body import Body
from tcjit.grammar.differentiate.box import IndexBox
from tcjit.grammar.differentiate.invert import Read, dimension_name, invert
from tcjit.grammar.differentiate.normalise import Update
from tcjit.grammar.differentiate.partials import Leaf, read_where
from tcjit.grammar.differentiate.simplify import (
    FALSE,
    add,
    assume,
    compare,
    conjunction,
    conjuncts,
    convert,
    index,
    integer_of,
    is_number,
    multiply,
    opposite,
    read,
    reads,
    unless,
    where,
    wide_type,
    widened,
)
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import replaced, walk, with_indices

Bounds = Mapping[str, tuple[Expr, Expr]]
_Sum = tuple[dict[str, tuple[Expr, Expr]], Expr]  # the indices that are summed over, and the terms


@dataclass(frozen=True)
class Contribution:
    """``term`` where all ``guards`` hold, summed over ``kept``; ``hints`` are the forward's names for dimensions."""

    term: Expr
    guards: tuple[Expr, ...] = ()
    kept: Bounds = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)


def by_cases(leaf: Leaf, box: IndexBox) -> Iterator[tuple[Leaf, tuple[Expr, ...]]]:
    """A read whose subscripts choose, as those that repeat or reflect a border do, as reads of each choice where it is made, by indices of
    a ``box``: those inside the border have an inverse, and those of a repeated border are about one element."""
    subscripts = () if isinstance(leaf, Scalar) else leaf.subscripts
    nodes = (node for sub in subscripts if not reads(sub) for node in walk(sub))
    chosen = next((node for node in nodes if _cases(node) and not any(map(_cases, list(walk(node))[1:]))), None)
    if chosen is None or isinstance(leaf, Scalar):
        yield leaf, ()
        return
    for condition, value in _cases(chosen):
        if not box.implies(opposite(condition)):
            places = tuple(replaced(sub, {chosen: value}) for sub in leaf.subscripts)
            for one, decided in by_cases(replace(leaf, subscripts=places), box):
                yield one, (*conjuncts(condition), *decided)


def _cases(node: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """The values of index arithmetic that chooses, each with its condition; none of any other."""
    match node:
        case Call(function="min" | "max" as function, args=(first, second)):
            order, other = ("<=", ">") if function == "min" else (">=", "<")
            return (compare(order, first, second), first), (compare(other, first, second), second)
        case Call(function="abs", args=(inside,)):
            zero = number(0)
            return (compare(">=", inside, zero), inside), (compare("<", inside, zero), Unary("-", inside, dtype=inside.dtype))
        case Select(condition=condition, then=then, other=other):
            return (condition, then), (opposite(condition), other)
    return ()


def contribution(leaf: Leaf, term: Expr, update: Update, conditions: Iterable[Expr], body: Body) -> Contribution:
    """What one read of ``update`` contributes to the tensor or scalar that it reads, ``term`` being in the update's indices."""
    known = list(conditions)
    while isinstance(term, Select) and (is_number(term.other, 0) or is_number(term.then, 0)):
        if is_number(term.other, 0):
            known += conjuncts(term.condition)
            term = term.then
        else:
            known.append(unless(term.condition))
            term = term.other
    subscripts = () if isinstance(leaf, Scalar) else leaf.subscripts
    if any(map(reads, subscripts)):  # a guard asks what they read, outside of the conditions that terms of a sum have
        known += conjuncts(read_where(leaf, update.value))
    term = assume(term, known)
    shape = body.shapes[leaf.name if isinstance(leaf, Scalar) else leaf.tensor]
    inverse = invert(Read(subscripts, update.ranges, update.left, tuple(known)), shape, body.positive, body.isl, body.size_hints)
    names = {value.name: name for name, value in inverse.substitution.items() if isinstance(value, Index)}
    return Contribution(inverse.rewrite(term), inverse.guards, inverse.kept, names)


def materialise(name: str, contributions: Sequence[Contribution], body: Body) -> None:
    """The statements that sum contributions into the tensor ``name``.

    Those without indices to sum over are one statement. Sums over the same indices are one too, unless they are of products: each of
    those is a contraction of its own.
    """
    dtype, shape = body.dtypes[name], body.shapes[name]
    left = _left_names(contributions, shape, body)
    ranges = {i: (number(0), extent) for i, extent in zip(left, shape)}
    groups: list[_Sum] = []
    for each in contributions:
        if FALSE not in each.guards:
            _join(groups, _renamed(each, left, body))
    sums: list[_Sum] = []
    for group in groups:
        if not is_number(group[1], 0):
            _join(sums, _without_unused(*group))
    if not sums:
        body.zero(name)
        return
    sums.sort(key=lambda each: bool(each[0]))
    wide = wide_type(dtype)
    several = wide != dtype and len(sums) > 1
    target = body.new(f"{name}_wide", wide, shape) if several else name
    for position, (kept, value) in enumerate(sums):
        operator = "=" if not kept else "+=" if position else "+=!"
        is_sum = bool(kept) and value.dtype == wide  # which runs in the wide type by itself
        value = widened(value, wide) if several else value if is_sum else widened(value, dtype)
        body.add(target, left, operator, value, {**ranges, **kept})
    if several:
        body.add(name, left, "=", convert(read(target, left, wide), dtype), ranges)


def _join(sums: list[_Sum], other: _Sum) -> None:
    """Add a sum to one of those over the same indices, or beside them."""
    place = next((position for position, one in enumerate(sums) if _may_join(one, other)), None)
    if place is None:
        sums.append(other)
    else:
        sums[place] = other[0], add(sums[place][1], other[1])


def plain_read(contributions: Sequence[Contribution], rank: int) -> Access | None:
    """The only contribution, where it is a read of another tensor at the same element."""
    if len(contributions) != 1 or contributions[0].guards or contributions[0].kept:
        return None
    term = contributions[0].term
    places = tuple(index(dimension_name(j)) for j in range(rank))
    return term if isinstance(term, Access) and term.subscripts == places else None


def _left_names(contributions: Sequence[Contribution], shape: Sequence[Expr], body: Body) -> tuple[str, ...]:
    """Names for the dimensions: the forward's, that of the size, or ``i0``."""
    kept = {name for each in contributions for name in each.kept}
    chosen: list[str] = []
    for position, extent in enumerate(shape):
        wanted = [each.hints[dimension_name(position)] for each in contributions if dimension_name(position) in each.hints]
        if isinstance(extent, Size) and "." not in extent.name:
            wanted.append(extent.name.lower())
        free = (n for n in wanted if n not in chosen and n not in kept and n not in body.names.tensors and not n.endswith("'"))
        name = next(free, None)
        chosen.append(name or body.names.index(f"i{position}", {*chosen, *kept}))
        body.names.indices.add(chosen[-1])
    return tuple(chosen)


def _renamed(each: Contribution, left: Sequence[str], body: Body) -> _Sum:
    """The indices to sum over and the value, in names of the text."""
    new = {dimension_name(j): index(name) for j, name in enumerate(left)}
    kept: dict[str, tuple[Expr, Expr]] = {}
    used = {node.name for expr in (each.term, *each.guards) for node in walk(expr) if isinstance(node, Index)}
    for name, ends in each.kept.items():
        plain = body.names.index(name.rstrip("'") if name in used else "unused", {*left, *kept})
        new[name] = index(plain)
        kept[plain] = ends
    guards = (with_indices(guard, new) for guard in each.guards)
    return kept, where(conjunction(*guards), with_indices(each.term, new))


def _without_unused(kept: Bounds, value: Expr) -> _Sum:
    """Sums of equal terms as products with their number: the language has no index that no expression uses."""
    used = polynomial.names(value)
    terms: polynomial.Value = 1
    for lower, upper in (ends for name, ends in kept.items() if name not in used):
        terms = terms * (integer_of(upper) - integer_of(lower))
    if terms != 1:
        value = multiply(Cast(polynomial.expression(terms), dtype=value.dtype), value)
    return {name: ends for name, ends in kept.items() if name in used}, value


def _may_join(one: _Sum, other: _Sum) -> bool:
    same = {name: tuple(map(integer_of, ends)) for name, ends in one[0].items()} == {
        name: tuple(map(integer_of, ends)) for name, ends in other[0].items()
    }
    if one[0] and any(map(_is_about_one_element, (one[1], other[1]))):
        return False  # each has terms at the border only
    gathers = [value.condition for _, value in (one, other) if isinstance(value, Select) and reads(value.condition)]
    if not same or not one[0] or not gathers:
        return same and not (one[0] and (_is_product(one[1]) or _is_product(other[1])))
    return len(gathers) == 2 and gathers[0] == gathers[1]  # sums over the terms that data pick take a step for each term together


def _is_about_one_element(value: Expr) -> bool:
    """Whether a term counts where a sum of indices equals something, no residue, of which a dimension has many."""
    parts = conjuncts(value.condition) if isinstance(value, Select) else []
    pins = [part for part in parts if isinstance(part, Binary) and part.op == "==" and part.left.dtype == "int64" and not reads(part)]
    return any(not any(isinstance(node, Binary) and node.op in "/%" for node in walk(pin)) for pin in pins)


def _is_product(expr: Expr) -> bool:
    if isinstance(expr, Select):
        return _is_product(expr.then)
    if not isinstance(expr, Binary) or expr.op != "*":
        return False
    return bool(reads(expr.left)) and bool(reads(expr.right)) or _is_product(expr.left) or _is_product(expr.right)
