"""The normal form of a def: every write covers its whole tensor and makes a version of it, ``T_1``, ``T_2``, the last one ``T``.

| written | becomes |
|---|---|
| ``T op= e``, no reduction index | ``T_k(l) = T_{k-1}(l) op e`` |
| ``T op=! e``, no reduction index | ``T_k(l) = e`` |
| a part of the left side | a choice over the whole: ``inside ? e : T_{k-1}(l)``; a reduction's with the identity, in its own tensor |
| ``T op= e`` with reduction, no sum | ``P op=! e``, then ``T_k(l) = T_{k-1}(l) op P(l)``, where ``P`` has terms |
| ``T += e`` with reduction | ``T_k = T_{k-1}``, then ``+=`` |
| ``T max=! e``, ``e`` computed | ``e_T(l, r) = e``, then ``T max=! e_T(l, r)``: an element that won is found by comparing what is stored |

What is left are ``=``, ``+=!``, ``*=!``, ``min=!``, ``max=!`` and ``+=`` onto the version that the statement before defined. A result that
comes in through ``out=`` is the version ``T_0``, an input. The copy before a ``+=`` goes where nothing else reads the version copied, its
own adjoint included: those of ``max``, ``*`` and of functions that reuse their result look at the value.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace

from tcjit.dataclass import dataclass
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Def, Expr, Index, Range, Select, Statement, Unary
from tcjit.grammar.differentiate.names import FreeNames, names_of
from tcjit.grammar.differentiate.partials import may_reuse
from tcjit.grammar.differentiate.simplify import (
    TRUE,
    compare,
    conjunction,
    convert,
    index,
    integer_of,
    is_float,
    literal,
    read,
    reads,
    with_tensors,
)
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import walk, with_accesses, with_indices

Bounds = Mapping[str, tuple[Expr, Expr]]  # per index: lower, upper


@dataclass(frozen=True)
class Update:
    """A statement of the normal form: the left side is the whole tensor."""

    target: str
    left: tuple[str, ...]
    operator: str  # = += *= min= max=
    initialise: bool
    value: Expr  # of the tensor's dtype
    ranges: Bounds  # of the left indices, then of the reduction's
    exists: tuple[Expr, ...] = ()
    targets: Mapping[str, Expr] = field(default_factory=dict)  # what reads tensors, by the name of its dimension in ``left``

    @property
    def places(self) -> tuple[Expr, ...]:
        """The subscripts of the left side."""
        return tuple(self.targets.get(name, index(name)) for name in self.left)

    @property
    def reduction(self) -> tuple[str, ...]:
        return tuple(name for name in self.ranges if name not in self.left)


@dataclass(frozen=True)
class NormalForm:
    """``dtypes`` and ``shapes`` are those of every tensor, versions included; ``initial`` maps a result to its version 0."""

    definition: Def
    updates: tuple[Update, ...]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[Expr, ...]]
    initial: Mapping[str, str]
    names: FreeNames = field(compare=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that no update writes."""
        return (*(t.name for t in self.definition.tensors if t.role == "input"), *self.initial.values())


def normalise(definition: Def) -> NormalForm:
    """The normal form of an inferred def."""
    return _Normaliser(definition).run()


def identity(operator: str, dtype: str) -> Const:
    """What a reduction starts from."""
    kind = DTYPES[dtype]
    if kind.kind == "bool":
        return Const(operator in ("*=", "min="), dtype=dtype)
    if kind.kind == "float":
        return Const({"+=": 0.0, "*=": 1.0, "max=": -math.inf, "min=": math.inf}[operator], dtype=dtype)
    return Const({"+=": 0, "*=": 1, "max=": kind.least, "min=": kind.greatest}[operator], dtype=dtype)


def same(left: Expr, right: Expr) -> bool:
    """Whether two extents or bounds are one value."""
    one = polynomial.integer(left)
    return one is not None and one == polynomial.integer(right)


def is_plain(expr: Expr) -> bool:
    """Whether an expression is a stored element or a number, perhaps chosen by place: the same wherever it is computed."""
    match expr:
        case Select(condition=condition, then=then, other=other):
            return is_plain(then) and is_plain(other) and not reads(condition)
        case Cast(operand=Access() as operand):
            return holds(expr.dtype, operand.dtype)
        case Unary(operand=Const()):
            return True
    return isinstance(expr, (Access, Const))


class _Normaliser:
    def __init__(self, definition: Def) -> None:
        self.definition = definition
        self.names = names_of(definition)
        self.dtypes = {t.name: t.dtype for t in definition.tensors}
        self.shapes = {t.name: t.shape for t in definition.tensors}
        self.current = {t.name: t.name for t in definition.tensors if t.role == "input"}
        self.initial: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.updates: list[Update] = []

    def run(self) -> NormalForm:
        for position in range(len(self.definition.statements)):
            self._statement(position)
        self._drop_copies()
        last = {version: name for name, version in self.current.items() if version != name}
        self._rename(last)
        for version, name in last.items():
            self.dtypes[name], self.shapes[name] = self.dtypes[version], self.shapes[version]
        return NormalForm(self.definition, tuple(self.updates), self.dtypes, self.shapes, self.initial, self.names)

    def _new(self, name: str, dtype: str, shape: tuple[Expr, ...]) -> str:
        name = self.names.tensor(name)
        self.dtypes[name], self.shapes[name] = dtype, shape
        return name

    def _version(self, tensor: str, dtype: str) -> str:
        count = self.counts[tensor] = self.counts.get(tensor, 0) + 1
        return self._new(f"{tensor}_{count}", dtype, self.shapes[tensor])

    def _statement(self, position: int) -> None:
        statement = self.definition.statements[position]
        tensor, operator = statement.tensor, statement.operator
        dtype, shape = self.dtypes[tensor], self.shapes[tensor]
        ranges = {r.index: (r.lower, r.upper) for r in statement.domain}
        left, targets = tuple[str, ...](), dict[str, Expr]()
        for subscript in statement.subscripts:
            if isinstance(subscript, Index):
                left += (subscript.name,)
            else:
                left += (self.names.index("target", {*ranges, *left}),)
                targets[left[-1]] = with_tensors(subscript, self.current)
        value = with_tensors(statement.value, self.current)
        is_wide = bool(statement.reduction) and value.dtype == statement.accumulate != dtype
        value = value if is_wide else convert(value, dtype)
        before = self.current.get(tensor)
        if before is None and operator != "=" and not statement.initialise:
            before = self.initial[tensor] = self._new(f"{tensor}_0", dtype, shape)
        plain = {name: (number(0), extent) for name, extent in zip(left, shape)}
        inside = conjunction(*(_inside(Range(name, *ranges[name]), plain[name][1]) for name in left if name not in targets))
        ranges.update({name: ends for name, ends in plain.items() if name not in targets})
        if inside != TRUE:
            targets = {name: _guarded(target, inside) for name, target in targets.items()}
        exists = self._exists(statement, inside)
        old: Expr | None = None if before is None else read(before, left, dtype)

        def emit(operator: str, value: Expr, ranges: Bounds, exists: tuple[Expr, ...] = ()) -> str:
            """A new version."""
            target = self._version(tensor, value.dtype)
            if operator in ("max=", "min="):
                value = self._stored(f"e_{target}", dtype, value, ranges)
            picked = targets if operator != "=" else {}
            self.updates.append(Update(target, left, operator, operator != "=", value, ranges, exists, picked))
            return target

        def chosen(value: Expr, other: Expr | None) -> Expr:
            """``value`` in the part that the statement writes."""
            if inside == TRUE:
                return value
            assert other is not None  # the first statement of a tensor covers it
            return Select(inside, value, other, dtype=value.dtype)

        if not statement.reduction and not targets:
            if operator != "=" and not statement.initialise:
                assert old is not None
                value = _combined(operator, old, value)
            self.current[tensor] = emit("=", chosen(value, old), plain)
            return
        whole = statement.initialise and inside == TRUE and not is_wide
        adds = operator == "+=" and not statement.initialise and not is_wide
        if not whole and not adds:
            value = convert(value, statement.accumulate)  # a part that is combined later on is not rounded before
        value = chosen(value, identity(operator, value.dtype))
        if whole:
            self.current[tensor] = emit(operator, value, ranges, exists)
        elif adds:
            assert old is not None
            target = self.current[tensor] = emit("=", old, plain)
            self.updates.append(Update(target, left, "+=", False, value, ranges, exists, targets))
        else:
            part: Expr = read(emit(operator, value, ranges, exists), left, value.dtype)
            if not statement.initialise:
                assert old is not None
                part = (_where_picked if targets else _combined)(operator, convert(old, part.dtype), part)
            self.current[tensor] = emit("=", chosen(convert(part, dtype), old), plain)

    def _exists(self, statement: Statement, inside: Expr) -> tuple[Expr, ...]:
        """The clauses without which a reduction index would stand nowhere."""
        used = {**polynomial.names(statement.value), **{n: None for sub in statement.subscripts for n in polynomial.names(sub)}}
        if all(name in used for name in statement.reduction):
            return ()
        exprs = (with_tensors(e, self.current) for e in statement.exists)
        return tuple(e if inside == TRUE else Select(inside, e, literal(0, e.dtype), dtype=e.dtype) for e in exprs)

    def _stored(self, name: str, dtype: str, value: Expr, ranges: Bounds) -> Expr:
        """A read of a new tensor that holds ``value``, unless that is a stored element itself."""
        if is_plain(value) or not is_float(dtype):
            return value
        shifted, back, shape = {}, [], []
        for i, ends in ranges.items():
            low, high = map(integer_of, ends)
            place = polynomial.atom(index(i))
            if low != 0:
                shifted[i] = polynomial.expression(place + low)
            back.append(polynomial.expression(place - low))
            shape.append(polynomial.expression(high - low))
        target = self._new(name, dtype, tuple(shape))
        whole = {i: (number(0), extent) for i, extent in zip(ranges, shape)}
        self.updates.append(Update(target, tuple(ranges), "=", False, with_indices(value, shifted), whole))
        return Access(target, tuple(back), dtype=dtype)

    def _drop_copies(self) -> None:
        """Drop ``T_k = T_{k-1}`` before ``T_k += e`` where it copies for nothing."""
        position = 0
        while position < len(self.updates):
            source = self._needless(position)
            if source:
                target = self.updates.pop(position).target
                self._rename({target: source})
                self.current = {name: source if version == target else version for name, version in self.current.items()}
            else:
                position += 1

    def _needless(self, position: int) -> str:
        """What the update at ``position`` copies although the next may add to it in place; empty for others."""
        update, following = self.updates[position], self.updates[position + 1 : position + 2]
        value = update.value
        if update.operator != "=" or not isinstance(value, Access) or value != read(value.tensor, update.left, value.dtype):
            return ""
        if not following or following[0].target != update.target or following[0].operator != "+=" or following[0].initialise:
            return ""
        writers = [other for other in self.updates if other.target == value.tensor]
        beside = {id(other): _read_by((*other.exists, *other.targets.values())) for other in self.updates}
        readers = [other for other in self.updates if value.tensor in {**reads(other.value), **beside[id(other)]}]
        looked = any(w.operator in ("max=", "min=", "*=") or (w.operator == "=" and may_reuse(w.value)) for w in writers)
        return "" if not writers or looked or len(readers) > 1 else value.tensor

    def _rename(self, names: Mapping[str, str]) -> None:
        self.updates = [
            replace(
                update,
                target=names.get(update.target, update.target),
                value=with_tensors(update.value, names),
                exists=tuple(with_tensors(e, names) for e in update.exists),
                targets={name: with_tensors(target, names) for name, target in update.targets.items()},
            )
            for update in self.updates
        ]


def _guarded(target: Expr, inside: Expr) -> Expr:
    """A target, 0 where the statement does not evaluate it: what it reads may not be there. Each read has the condition, too, as whether
    arithmetic wraps is looked at on either side of a choice."""

    def read_inside(access: Access) -> Expr:
        return Select(inside, access, Const(0, dtype=access.dtype), dtype=access.dtype)

    return Select(inside, with_accesses(target, read_inside), number(0), dtype=target.dtype)


def _read_by(exprs: tuple[Expr, ...]) -> dict[str, None]:
    return {node.tensor: None for expr in exprs for node in walk(expr) if isinstance(node, Access)}


def _inside(range_: Range, extent: Expr) -> Expr:
    """Whether an index of the left side is in the statement's range; TRUE where that is the whole extent."""
    place = index(range_.index)
    lower = TRUE if same(range_.lower, number(0)) else compare(">=", place, range_.lower)
    return conjunction(lower, TRUE if same(range_.upper, extent) else compare("<", place, range_.upper))


def _combined(operator: str, old: Expr, value: Expr) -> Expr:
    if operator in ("+=", "*="):
        return Binary(operator[0], old, value, dtype=old.dtype)
    return Call(operator[:-1], (old, value), dtype=old.dtype)


def _where_picked(operator: str, old: Expr, value: Expr) -> Expr:
    """The same where data pick what ``value`` is made of: an extreme of no terms is infinite and would tie with an infinity before it."""
    combined = _combined(operator, old, value)
    if operator not in ("max=", "min=") or not is_float(old.dtype):
        return combined
    return Select(compare("==", value, identity(operator, old.dtype)), old, combined, dtype=old.dtype)
