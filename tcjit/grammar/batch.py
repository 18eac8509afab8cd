"""A def over a batch: one more dimension, in front, of some parameters and of all that depends on them.

``torch.vmap`` of a def is this def: one program over the whole batch, which is proved, mapped and tuned like any other.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tcjit.errors import CheckError
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Call, Cast, Const, Def, Expr, Index, Param, Range, Scalar, Select, Size, Statement, Tensor
from tcjit.grammar.dtypes import DTYPES, rounded
from tcjit.grammar.extents import dims
from tcjit.grammar.front import read
from tcjit.grammar.printer import show
from tcjit.grammar.walk import children, rebuild, walk

_INDEX = "int64"  # the type of subscripts and extents
_LITERAL = ("bool", "int32", "float32")  # the types of literals alone


def batch(definition: Def, batched: frozenset[str]) -> str:
    """The text of an inferred def over a batch of the parameters ``batched``, scalars among them; the others are one for all.

    Every return has the batch's dimension, so that a cotangent of it is one for each element of the batch. Raises a CheckError where there
    is no such def: for a scalar that subscripts, ranges or extents need, and where extents must agree in a way that no name of a size says.

    >>> from tcjit.grammar.front import read
    >>> d, = read("def f(float(N) X, float a) -> (Y) { Z(i) = X(i) + 1 Y(i) = a * Z(i) }")
    >>> print(batch(d, frozenset({"a"})))
    def f(float32(N) X, float32(B) a) -> (float32(B, N) Y) {
        Z(i) = X(i) + 1.0 where i in 0:N
        Y(b, i) = a(b) * Z(i) where b in 0:B, i in 0:N
    }
    """
    definition = _with_sizes_that_agree(definition)
    taken = _names(definition)
    rewrite = _Rewrite(definition, batched, _fresh("b", taken), _fresh("B", taken))
    intended = rewrite.definition()
    text = show(intended)
    (made,) = read(text)
    if meaning(made) != meaning(intended):
        raise CheckError(f"{definition.name}() has no text over a batch that means the same", hint="one call for each element of the batch")
    return text


class _Rewrite:
    def __init__(self, definition: Def, batched: frozenset[str], index: str, size: str) -> None:
        self.before = definition
        self.batched = batched
        self.index = Index(index, dtype=_INDEX)
        self.size = Size(size, dtype=_INDEX)
        for name in batched:
            self._refuse_fixed(name)
        self.carrying = self._carrying()

    def _refuse_fixed(self, name: str) -> None:
        """A CheckError for a scalar that is more than a value."""
        places = [e for s in self.before.statements for e in _index_arithmetic(s)]
        places += [extent for tensor in self.before.tensors for extent in tensor.shape]
        if name in self.before.specialised or any(isinstance(e, Scalar) and e.name == name for place in places for e in walk(place)):
            raise CheckError(
                f"{name} of {self.before.name}() is part of subscripts or ranges, which are the same for a whole batch",
                hint=f"one call for each value of {name}",
            )

    def _carrying(self) -> frozenset[str]:
        """The returns, and the tensors and scalars that depend on what is batched: all statements that write one do so over the batch."""
        carrying = {*self.batched, *self.before.returns}
        while True:
            found = {s.tensor for s in self.before.statements if carrying & set(_reads(s))} - carrying
            if not found:
                return frozenset(carrying)
            carrying |= found

    def definition(self) -> Def:
        params = tuple(replace(p, dims=(self.size.name, *p.dims)) if p.name in self.carrying else p for p in self.before.params)
        return replace(
            self.before,
            params=params,
            tensors=(
                *(self._input(param) for param in params if param.dims),
                *(self._tensor(tensor) for tensor in self.before.tensors if tensor.role != "input"),
            ),
            statements=tuple(map(self._statement, self.before.statements)),
            agreements=(),
        )

    def _input(self, param: Param) -> Tensor:
        before = next((tensor for tensor in self.before.tensors if tensor.name == param.name), None)
        return Tensor(param.name, param.dtype, 1, "input", (self.size,)) if before is None else self._tensor(before)  # it was a scalar

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.name not in self.carrying:
            return tensor
        return replace(tensor, rank=tensor.rank + 1, shape=(self.size, *tensor.shape))

    def _statement(self, s: Statement) -> Statement:
        value, exists = self._expr(s.value), tuple(map(self._expr, s.exists))
        if value.dtype not in _LITERAL and not _says_type(value):
            value = Cast(value, dtype=value.dtype)  # literals alone do not say their type
        if s.tensor not in self.carrying:
            return replace(s, value=value, exists=exists)
        subscripts = (self.index, *map(self._expr, s.subscripts))
        domain = (Range(self.index.name, Const(0, dtype=_INDEX), self.size), *s.domain)
        extents = (None, *s.extents) if s.extents else ()
        return replace(s, value=value, exists=exists, subscripts=subscripts, domain=domain, extents=extents)

    def _expr(self, expr: Expr) -> Expr:
        if isinstance(expr, Scalar) and expr.name in self.carrying:
            return Access(expr.name, (self.index,), dtype=expr.dtype, where=expr.where)
        inner = rebuild(expr, self._expr)
        if isinstance(inner, Access) and inner.tensor in self.carrying:
            return replace(inner, subscripts=(self.index, *inner.subscripts))
        return inner


def _says_type(expr: Expr) -> bool:
    """Whether an expression has its type from more than literals; the condition of a choice says nothing of it."""
    if isinstance(expr, (Access, Scalar, Cast)):
        return True
    return any(map(_says_type, (expr.then, expr.other) if isinstance(expr, Select) else children(expr)))


def _reads(s: Statement) -> Iterator[str]:
    """The names of the tensors and scalars that a statement reads."""
    for root in (s.value, *s.subscripts, *s.exists):
        for node in walk(root):
            if isinstance(node, Access):
                yield node.tensor
            elif isinstance(node, Scalar):
                yield node.name


def _index_arithmetic(s: Statement) -> Iterator[Expr]:
    """The bounds of a statement's ranges, and its subscripts."""
    for found in s.domain:
        yield from (found.lower, found.upper)
    yield from s.subscripts
    yield from filter(None, s.extents)
    for root in (s.value, *s.subscripts, *s.exists):
        for node in walk(root):
            if isinstance(node, Access):
                yield from node.subscripts


def meaning(definition: Def) -> tuple[object, ...]:
    """What must be the same once the text is read, in whatever form bounds and constants then are."""
    statements = []
    for s in definition.statements:
        domain = [(found.index, _extent(found.lower), _extent(found.upper)) for found in s.domain]
        values = tuple(map(_folded, (s.value, *s.subscripts, *s.exists)))
        extents = [extent and _extent(extent) for extent in s.extents]
        statements.append((s.tensor, s.operator, s.initialise, values, s.accumulate, s.reduction, domain, extents))
    tensors = [(t.name, t.dtype, t.role, tuple(map(_extent, t.shape))) for t in definition.tensors]
    return definition.params, definition.returns, tensors, statements


def _extent(expr: Expr) -> object:
    value = polynomial.integer(expr)
    return expr if value is None else value


def _folded(expr: Expr) -> Expr:
    """An expression with the conversions of constants carried out, and without those that change nothing."""
    inner = rebuild(expr, _folded)
    if isinstance(inner, Cast) and inner.dtype == inner.operand.dtype:
        return inner.operand
    if not isinstance(inner, Cast) or not isinstance(inner.operand, Const):
        return inner
    value, kind = inner.operand.value, DTYPES[inner.dtype].kind
    if kind == "float":
        return Const(rounded(float(value), inner.dtype), dtype=inner.dtype)
    return Const(value, dtype=inner.dtype) if isinstance(value, int) and kind != "bool" and _fits(value, inner.dtype) else inner


def _fits(value: int, dtype: str) -> bool:
    return DTYPES[dtype].least <= value <= DTYPES[dtype].greatest


def _names(definition: Def) -> set[str]:
    indices = {found.index for s in definition.statements for found in s.domain}
    tensors = {tensor.name for tensor in definition.tensors}
    return {*indices, *tensors, *definition.sizes, *(param.name for param in definition.params)}


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _with_sizes_that_agree(definition: Def) -> Def:
    """The def with one name for sizes that must agree, as after a call of another def; a CheckError for other extents that must."""
    values: dict[str, str | int] = {}
    for agreement in definition.agreements:
        if _own(agreement.left, definition) == _own(agreement.right, definition) is not None:  # of an extent in a parameter's type
            continue
        left, right = (_dimension(side, definition, values) for side in (agreement.left, agreement.right))
        if left is None or right is None:
            raise CheckError(
                f"{definition.name}() has extents that must agree: {agreement.what}", hint="one call for each element of the batch"
            )
        if left == right:
            continue
        old, new = (left, right) if isinstance(left, str) else (right, left)
        if not isinstance(old, str):
            raise CheckError(f"{definition.name}() has extents that cannot agree: {agreement.what}")
        values = {name: new if value == old else value for name, value in values.items()} | {old: new}
    return _renamed(definition, values) if values else definition


def _own(expr: Expr, definition: Def) -> object:
    """An extent as a value over sizes and scalars, None where it is none."""
    if isinstance(expr, Size) and "." in expr.name:
        tensor, _, position = expr.name.rpartition(".")
        expr = definition.tensor(tensor).shape[int(position)]
    return polynomial.integer(expr)


def _dimension(expr: Expr, definition: Def, values: Mapping[str, str | int]) -> str | int | None:
    match expr:
        case Cast(operand=operand):
            return _dimension(operand, definition, values)
        case Size(name=name) if "." in name:  # of a tensor that statements write
            tensor, _, position = name.rpartition(".")
            return _dimension(definition.tensor(tensor).shape[int(position)], definition, values)
        case Size(name=name):
            return values.get(name, name)
        case Const(value=value):
            return int(value)
    return None


def _renamed(definition: Def, values: Mapping[str, str | int]) -> Def:
    def expr(node: Expr) -> Expr:
        if isinstance(node, Size) and node.name in values:
            value = values[node.name]
            return replace(node, name=value) if isinstance(value, str) else Const(value, dtype=node.dtype, where=node.where)
        inner = rebuild(node, expr)
        return inner.args[0] if isinstance(inner, Call) and inner.function in ("min", "max") and len({*inner.args}) == 1 else inner

    def statement(s: Statement) -> Statement:
        domain = tuple(Range(r.index, expr(r.lower), expr(r.upper)) for r in s.domain)
        subscripts, exists = tuple(map(expr, s.subscripts)), tuple(map(expr, s.exists))
        extents = tuple(extent and expr(extent) for extent in s.extents)
        return replace(s, subscripts=subscripts, value=expr(s.value), exists=exists, domain=domain, extents=extents)

    def param(p: Param) -> Param:
        return replace(p, dims=dims([expr(extent) for extent in definition.tensor(p.name).shape])) if p.dims else p

    return replace(
        definition,
        params=tuple(map(param, definition.params)),
        sizes=tuple(size for size in definition.sizes if size not in values),
        specialised=tuple(name for name in definition.specialised if name not in values),
        tensors=tuple(replace(t, shape=tuple(map(expr, t.shape))) for t in definition.tensors),
        statements=tuple(map(statement, definition.statements)),
        agreements=(),
    )
