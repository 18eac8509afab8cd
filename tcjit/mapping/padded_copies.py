"""Padded copies: the tensors over the values of subscripts that guarded reads, and reads with divisions in subscripts, are elements of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import Guard, affine, conjuncts, guarded_accesses, is_gather, isl_name, linear
from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.arithmetic import index, plus, total
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, walk, with_indices
from tcjit.mapping.assignment import DynamicRanges
from tcjit.mapping.isl import context, points, sizes_in
from tcjit.mapping.linear_pieces import are_inside, linear_pieces
from tcjit.mapping.reduction import conjunction, identity
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import affine_form, linear_parts

Copy = tuple[str, tuple[int, ...]]  # its name, and the axes of what is read, outermost first
Multiple = tuple[frozenset[tuple[str, int]], int, int]  # a linear form, its constant, and a number that it is a multiple of


@dataclass(frozen=True)
class PaddedAxis:
    """An axis of a padded copy: the ``subscript`` of the read along it, between two values, and the linear ``form`` that it is the floor
    quotient of by ``divisor``; the ``index`` that counts the copy's elements from 0 on; their number where it depends on dynamic sizes, for
    the greatest of which ``greatest`` is. Where the read's own subscript divides, ``subscript`` is what it divides, and ``function`` what
    it is there, over ``index``. Of strides that have a common divisor, ``step``, the copy has the values that there are."""

    subscript: Expr
    form: tuple[dict[str, int], int]
    least: int
    greatest: int
    index: Index
    extent: Expr | None
    divisor: int = 1
    function: Expr | None = None
    step: int = 1

    @property
    def size(self) -> int:
        return (self.greatest - self.least) // self.step + 1

    @property
    def place(self) -> Expr:
        """The value of the subscript at the copy's index."""
        return plus(self.index, self.least) if self.step == 1 else total([(self.step, self.index)], self.least)

    @property
    def source(self) -> Expr:
        """The subscript of the element that the copy has at its index."""
        return self.place if self.function is None else self.function

    @property
    def element(self) -> Expr:
        """The index at which the copy has what is read."""
        if self.step == 1:
            return plus(self.subscript, -self.least)
        factors, constant = self.form
        return total([(factor // self.step, index(dim)) for dim, factor in factors.items()], (constant - self.least) // self.step)


@dataclass(frozen=True)
class Padding:
    """A guarded read, the axes of its padded copy, outermost first, and the copy's value over their indices; of a select, the
    ``conditions`` that stay, and the paddings of what these compare with data, for the conditions that go guarded it."""

    select: Expr
    read: Access
    axes: tuple[PaddedAxis, ...]
    value: Expr
    conditions: tuple[Expr, ...] = ()
    compared: tuple[Padding, ...] = ()

    @property
    def inside(self) -> Expr:
        """The condition over the copy's indices under which it has elements of what is read."""
        return self.value.condition if isinstance(self.value, Select) else Const(True, dtype="bool")

    def read_of(self, copies: Mapping[Expr, Copy]) -> Expr:
        """The read that stands for the guarded one, of the copy that is known by the value that it has."""
        name, order = copies.get(self.value, ("", range(len(self.axes))))
        found: Expr = Access(name, tuple(self.axes[place].element for place in order), dtype=self.read.dtype)
        reads = {p.select: p.read_of(copies) for p in self.compared}
        for condition in reversed(self.conditions):
            assert isinstance(self.value, Select)
            found = Select(replaced(condition, reads), found, self.value.other, dtype=found.dtype)
        return found


def _chosen(node: Select) -> tuple[Expr, list[Expr]]:
    """What is chosen where all conditions of selects of the same constant hold, and these."""
    value, conditions = node.then, [node.condition]
    while isinstance(value, Select) and repr(value.other) == repr(node.other):  # 0.0 is no -0.0
        conditions.append(value.condition)
        value = value.then
    return value, conditions


def paddings(
    value: Expr, bounds: Bounds, tensors: Mapping[str, Storage], values: Mapping[str, int], moving: DynamicRanges | None = None,
    worth: int = 1, split: Collection[str] = (),
) -> list[Padding]:  # fmt: skip
    """The reads of a value, guarded or with divisions in subscripts, that can be materialised and are used often enough, ``worth`` times
    for each element.

    ``moving`` are the ranges that depend on dynamic sizes; copies begin at places that do not. Dimensions that are ``split`` need no copy.
    """
    boxes = {name: (lower, upper - 1) for name, lower, upper in bounds}
    count = prod(upper - lower + 1 for lower, upper in boxes.values())
    padder = _Padder(boxes, tensors, values, moving or {}, split)
    selects = dict.fromkeys(n for n in walk(value) if isinstance(n, Select))
    found = [made for node in selects if (made := padder.padding(node)) is not None]
    others: dict[Access, list[Guard]] = {}  # what holds wherever each of them is evaluated
    reads = list(guarded_accesses(value))
    known = {*(p.read for p in found), *(part for read, _ in reads for sub in read.subscripts for part in walk(sub))}
    for read, guards in reads:
        if read not in known:
            others[read] = [guard for guard in others.get(read, guards) if guard in guards]
    found += [made for read, guards in others.items() if (made := padder.undivided(read, guards)) is not None]
    return [p for p in found if count >= worth * prod(axis.size for axis in p.axes)]


@dataclass(frozen=True)
class _Padder:
    """The ranges of a statement's indices, its tensors, and the ranges that depend on dynamic sizes."""

    boxes: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, Storage]
    values: Mapping[str, int]
    moving: DynamicRanges
    split: Collection[str]

    def undivided(self, read: Access, guards: Sequence[Guard]) -> Padding | None:
        """Of a read that divides in a subscript, with any value where it is not evaluated: guards around it stay."""
        known = [part if holds else Unary("!", part, dtype="bool") for part, holds in guards]
        exact = frozenset(filter(None, map(self._multiple, known)))
        if (axes := self._axes(read, exact)) is None or all(axis.function is None for axis in axes):
            return None
        if guards and not all(self._holds_source(axis, self.tensors[read.tensor], number) for number, axis in enumerate(axes)):
            return None  # where it is not evaluated a subscript may be anything
        moved = {part: there for part in known if (there := _in_terms_of(part, axes, self.values)) is not None}
        return self._copied(read, read, identity("+=", read.dtype), axes, list(moved), list(moved.values()), ())

    def _holds_source(self, axis: PaddedAxis, storage: Storage, number: int) -> bool:
        """Whether the subscript of each element of a copy is inside, if it is one that is checked at run time."""
        if not is_gather(axis.source):
            return True
        pieces = linear_pieces(axis.source, 0, axis.size - 1, self.values)
        return storage.extent(number) is None and pieces is not None and are_inside(pieces, storage.shape[number])

    def padding(self, node: Select) -> Padding | None:
        """Of a choice between an element and a constant, by one condition or by several, one in the other."""
        read, conditions = _chosen(node)
        if not isinstance(read, Access) or not isinstance(node.other, Const):
            return None
        parts = [part if holds else Unary("!", part, dtype="bool") for one in conditions for part, holds in conjuncts(one, True)]
        exact = frozenset(filter(None, (self._multiple(part) for part in parts)))
        axes = self._axes(read, exact)
        moved = {part: there for part in parts if axes and (there := _in_terms_of(part, axes, self.values, exact)) is not None}
        kept = tuple(part for part in parts if part not in moved)
        if not moved or axes is None or kept and self.moving:
            return None
        made = self._copied(node, read, node.other, axes, list(moved), list(moved.values()), kept)
        reads = {access: None for part in kept for access, _ in guarded_accesses(part) if not self._is_inside(access)}
        compared = [self._compared(access, list(moved), kept, exact) for access in reads]
        if made is None or None in compared or not kept and self.moving and not self._holds_reads(made, node):
            return None
        return replace(made, conditions=kept, compared=tuple(filter(None, compared)))

    def _compared(self, access: Access, guards: Sequence[Expr], kept: Sequence[Expr], exact: frozenset[Multiple]) -> Padding | None:
        """Of what a condition compares, where others guard it, with any value beyond these."""
        if (axes := self._axes(access, exact)) is None:
            return None
        moved = {part: there for part in guards if (there := _in_terms_of(part, axes, self.values, exact)) is not None}
        zero = identity("+=", access.dtype)
        return self._copied(access, access, zero, axes, list(moved), list(moved.values()), kept) if moved else None

    def _copied(
        self, select: Expr, read: Access, other: Const, axes: tuple[PaddedAxis, ...], conditions: Sequence[Expr], there: Sequence[Expr],
        kept: Sequence[Expr],
    ) -> Padding | None:  # fmt: skip
        """The padding of a read under conditions, given as they are and over the axes; None where it would read what is not there."""
        moved = replace(read, subscripts=tuple(axis.source for axis in axes))
        made = Padding(select, read, axes, Select(conjunction(there), moved, other, dtype=read.dtype) if there else moved)
        inside = _reads_inside(made, self.tensors[read.tensor], self.values)
        exact = all(axis.divisor == 1 for axis in axes) or self._agree(made, conditions, kept)
        return made if inside and exact else None

    def _axes(self, read: Access, exact: frozenset[Multiple] = frozenset()) -> tuple[PaddedAxis, ...] | None:
        storage, taken = self.tensors[read.tensor], set(self.tensors) | set(self.boxes)
        axes = [
            self._over_form(sub, own, exact) or _axis(sub, extent, self.boxes, self.values, self.moving, own)
            for number, (sub, extent) in enumerate(zip(read.subscripts, storage.shape, strict=True))
            if (own := _index(number, taken))
        ]
        return tuple(filter(None, axes)) if None not in axes else None

    def _over_form(self, sub: Expr, own: Index, exact: frozenset[Multiple]) -> PaddedAxis | None:
        """Of a subscript that divides one linear form, over the values of that; not of its quotient by what conditions say it is a
        multiple of, of which there are fewer."""
        terms = None if self.moving else form_of(sub, self.boxes, self.values)
        if terms is None or any(_are_congruent(form, terms, by) for form, _, by in exact):
            return None
        form = total([(factor, index(dim)) for dim, factor in terms])
        axis = None if {dim for dim, _ in terms} & {*self.split} else _axis(form, 0, self.boxes, self.values, {}, own)
        return axis and replace(axis, function=_over_place(sub, axis, self.values))

    def _is_inside(self, read: Access) -> bool:
        """Whether a read is of an element that there is, whatever the conditions."""
        shape = self.tensors[read.tensor].shape
        return all(stays_inside(sub, extent, self.boxes, self.values) for sub, extent in zip(read.subscripts, shape, strict=True))

    def _multiple(self, condition: Expr) -> Multiple | None:
        """The linear form that a condition says is a multiple of a number."""
        match condition:
            case Binary(op="==", left=Binary(op="%", left=form, right=by), right=Const(value=0)):
                found, divisor = affine_form(form, self.values), affine_form(by, self.values)
                if found is not None and divisor is not None and not divisor[0]:
                    return frozenset(found[0].items()), found[1], divisor[1]
        return None

    def _agree(self, padding: Padding, conditions: Sequence[Expr], kept: Sequence[Expr]) -> bool:
        """Whether conditions say of all points, where those that stay hold, what the copy's say of its elements."""
        there = with_indices(padding.inside, {axis.index.name: axis.element for axis in padding.axes})
        texts = [affine_condition(condition, self.values) for condition in (conjunction(conditions), there)]
        facts = [f"{lower} <= {isl_name(name)} <= {upper}" for name, (lower, upper) in self.boxes.items()]
        known = [part for part in kept if names(part).keys() <= self.boxes.keys()]
        facts += [f"({text})" for part in known if (text := affine_condition(part, self.values)) is not None]
        if None in texts or not {name for one in (*conditions, there) for name in names(one)} <= self.boxes.keys():
            return False
        ctx, dims, sizes = context(), [isl_name(name) for name in self.boxes], sizes_in([*conditions, there, *known], self.values)
        before, after = (points(ctx, dims, [*facts, f"({text})"], sizes) for text in texts)
        return bool(before.is_equal(after))

    def _holds_reads(self, padding: Padding, select: Select) -> bool:
        """Whether the copy has an element for each read, under the read's condition, for all values of dynamic sizes."""
        boxes, moving, values = self.boxes, self.moving, self.values
        places = [axis.element for axis in padding.axes]
        there = with_indices(padding.inside, {axis.index.name: axis.element for axis in padding.axes})
        texts = [affine_condition(condition, values) for condition in (select.condition, there)]
        found = [affine(place, values) for place in places]
        dims = {name: None for expr in (select.condition, *padding.read.subscripts) for name in names(expr)}
        limits = {name: [affine(end, values) for end in moving[name]] for name in dims if name in moving}
        if None in (*texts, *found, *(text for ends in limits.values() for text in ends)):
            return False
        facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, (lower, upper) in limits.items()]
        facts += [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in dims if name not in moving]
        own = [end for name in dims for end in moving.get(name, ())]
        sizes = sizes_in([select.condition, there, *own, *(axis.extent for axis in padding.axes if axis.extent)], values)
        ctx = context()

        def where(text: str | None) -> isl.Set:
            return points(ctx, map(isl_name, dims), [*facts, str(text)], sizes)

        inside = " and ".join(_facts(padding, [str(place) for place in found], values)) or "0 = 0"
        return bool(where(texts[0]).is_equal(where(texts[1])) and where("0 = 0").is_equal(where(inside)))


def form_of(sub: Expr, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> frozenset[tuple[str, int]] | None:
    """The linear form that a subscript is another function of, of indices between two values each: of a gather one that takes all values
    between its least and its greatest, where it is checked."""
    if affine_form(sub, values) is not None or any(isinstance(part, Access) for part in walk(sub)):
        return None
    forms = {frozenset(form) for form, _ in linear_parts(sub, values).values()}
    (form,) = forms if len(forms) == 1 else (None,)
    return None if form is None or is_gather(sub) and not _takes_all(dict(form), boxes) else form


def _are_congruent(form: frozenset[tuple[str, int]], other: frozenset[tuple[str, int]], modulus: int) -> bool:
    """Whether the factors of two linear forms leave the same remainders."""
    first, second = dict(form), dict(other)
    return all((first.get(dim, 0) - second.get(dim, 0)) % modulus == 0 for dim in first.keys() | second.keys())


def _takes_all(terms: Mapping[str, int], boxes: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a linear form takes all values between its least and its greatest."""
    reached = 0
    for factor, dim in sorted((abs(factor), dim) for dim, factor in terms.items()):
        if factor > reached + 1:
            return False
        reached += factor * (boxes[dim][1] - boxes[dim][0])
    return True


def _index(axis: int, taken: Collection[str]) -> Index:
    name = f"y{axis}"
    while name in taken:
        name += "_"
    return index(name)


def _axis(
    sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int], moving: DynamicRanges, own: Index
) -> PaddedAxis | None:
    form, divisor = affine_form(sub, values), 1
    if form is None and not moving and isinstance(sub, Binary) and sub.op == "/":
        by = affine_form(sub.right, values)
        form, divisor = affine_form(sub.left, values), by[1] if by is not None and not by[0] else 0
    if form is None or divisor < 1:  # an axis that no condition may be about
        fixed = moving.keys().isdisjoint(names(sub)) and stays_inside(sub, extent, boxes, values)
        return PaddedAxis(sub, ({"": 1}, 0), 0, extent - 1, own, None) if fixed else None
    ends = [sorted((factor * boxes[dim][0], factor * boxes[dim][1])) for dim, factor in form[0].items()]
    least, greatest = ((form[1] + sum(end[side] for end in ends)) // divisor for side in (0, 1))
    dynamic = {dim: factor for dim, factor in form[0].items() if dim in moving}
    if any(factor < 0 or moving[dim][0] != Const(boxes[dim][0], dtype="int64") for dim, factor in dynamic.items()):
        return None
    missing = sum(factor * (boxes[dim][1] + 1) for dim, factor in dynamic.items())  # of the greatest extent, where the dynamic ends are 0
    size = total([(factor, moving[dim][1]) for dim, factor in dynamic.items()], greatest - least + 1 - missing)
    step = 1 if dynamic or divisor > 1 else gcd(*form[0].values())
    return PaddedAxis(sub, form, least, greatest, own, size if dynamic else None, divisor, step=step or 1)


def _over_place(expr: Expr, axis: PaddedAxis, values: Mapping[str, int]) -> Expr:
    """An index expression whose linear parts are the form of an axis, over the index of that."""
    parts = linear_parts(expr, values)
    return replaced(expr, {part: plus(axis.place, constant - axis.form[1]) for part, (_, constant) in parts.items()})


def has_windows(value: Expr) -> bool:
    """Whether several indices make a subscript: `pad_operands` copies what stands under conditions beside it."""
    return any(len(names(sub)) > 1 for part in walk(value) if isinstance(part, Access) for sub in part.subscripts)


def stays_inside(sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> bool:
    """Whether a subscript is inside its axis for all values of the indices; of one that moves with a dynamic size that is not known."""
    place = affine(sub, values)
    if place is None or sizes_in([sub], values):
        return False
    dims = names(sub)
    facts = [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in dims]
    return bool(points(context(), map(isl_name, dims), [*facts, f"({place} < 0 or {place} >= {extent})"]).is_empty())


def _reads_inside(padding: Padding, storage: Storage, values: Mapping[str, int]) -> bool:
    """Whether the copy reads elements, and only those that exist, whatever dynamic sizes are: its box may hold values that the subscripts
    never take together."""
    held = affine_condition(padding.inside, values)
    places = [affine(axis.place if is_gather(axis.source) else axis.source, values) for axis in padding.axes]
    if held is None or None in places:
        return False
    extents = [axis.extent for axis in padding.axes]
    sizes = sizes_in([padding.inside, *filter(None, (*extents, *storage.dynamic_extents))], values)
    checked = [place for place, axis in zip(zip(places, storage.extent_texts, strict=True), padding.axes) if not is_gather(axis.source)]
    outside = " or ".join(f"{place} < 0 or {place} >= {extent}" for place, extent in checked) or "1 = 0"  # gathers are, when they run
    indices = [axis.index.name for axis in padding.axes]
    read = points(context(), indices, [*_facts(padding, indices, values), held], sizes)
    return not read.is_empty() and bool(read.intersect(points(read.get_ctx(), indices, [f"({outside})"], sizes)).is_empty())


def _facts(padding: Padding, places: Sequence[str], values: Mapping[str, int]) -> list[str]:
    """That places along the axes of a copy are some of its own, in isl's words."""
    ends = [axis.size if axis.extent is None else affine(axis.extent, values) for axis in padding.axes]
    return [f"0 <= {place} < {end}" for place, end in zip(places, ends, strict=True)]


def _in_terms_of(
    condition: Expr, axes: Sequence[PaddedAxis], values: Mapping[str, int], exact: frozenset[Multiple] = frozenset()
) -> Expr | None:
    """A condition over the subscripts' values instead of the indices; None where it depends on more than they do. Of a quotient, either
    ``exact`` holds its form as a multiple, or the condition's limit is between two of its values."""
    if isinstance(condition, Binary) and condition.op in ("&&", "||"):
        left, right = (_in_terms_of(side, axes, values, exact) for side in (condition.left, condition.right))
        return None if left is None or right is None else replace(condition, left=left, right=right)
    if isinstance(condition, Unary) and condition.op == "!":
        inner = _in_terms_of(condition.operand, axes, values, exact)
        return None if inner is None else replace(condition, operand=inner)
    if not isinstance(condition, Binary) or condition.op not in ("<", ">", "<=", ">=", "==", "!="):
        return None
    difference = linear(Binary("-", condition.left, condition.right, dtype="int64"), values)
    if difference is None and condition.left.dtype == "int64":
        forms = [dict(form) for form, _ in linear_parts(condition, values).values()]
        over = (axis for axis in axes if axis.function is not None and all(form == axis.form[0] for form in forms))
        return next((_over_place(condition, axis, values) for axis in over if affine_condition(condition, values)), None)
    if difference is None or not all(isinstance(factor, int) for factor in difference[0].values()):
        return None
    factors, constant = {dim: factor for dim, factor in difference[0].items() if factor}, difference[1]
    rest: Expr | None = None  # what depends on dynamic sizes alone
    if not isinstance(constant, int):
        zeros = {dim: Const(0, dtype="int64") for dim in names(condition)}
        rest, constant = with_indices(Binary("-", condition.left, condition.right, dtype="int64"), zeros), 0
    for axis in axes:
        for sign in (1, -1):
            if factors != {dim: sign * factor for dim, factor in axis.form[0].items() if factor}:
                continue
            constant -= sign * axis.form[1]  # left - right = sign * form + constant + rest
            if axis.divisor > 1:
                return None if rest is not None else _of_quotient(condition.op, sign, constant, axis, exact)
            scaled: Expr = axis.place if sign == 1 else Unary("-", axis.place, dtype="int64")
            scaled = scaled if rest is None else plus(scaled, rest)
            return Binary(condition.op, plus(scaled, constant), Const(0, dtype="int64"), dtype="bool")
    return None


def _of_quotient(op: str, sign: int, constant: int, axis: PaddedAxis, exact: frozenset[Multiple]) -> Expr | None:
    """The condition ``sign * form + constant op 0`` over the quotient of an axis' form."""
    if op in ("==", "!="):
        return None
    at_least, limit, by = (op in (">", ">=")) == (sign == 1), -sign * constant, axis.divisor
    if op in ("<", ">"):
        limit += 1 if at_least else -1
    own, offset = frozenset(axis.form[0].items()), axis.form[1]
    known = any(whole % by == (rest - offset) % by == 0 and _are_congruent(form, own, by) for form, rest, whole in exact)
    if not known and (limit if at_least else limit + 1) % by:
        return None
    bound = -(-limit // by) if at_least else limit // by
    return Binary(">=" if at_least else "<=", plus(axis.place, -bound), Const(0, dtype="int64"), dtype="bool")
