"""What a def means, whatever its names are: the form that defs share which differ in names, spaces and comments only.

Names are replaced by numbers in the order of their first appearance, indices afresh in every statement. What is left is hashed, together
with which of the places that may fail at run time are one and the same in the text.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from tcjit.dataclass import dataclass
from tcjit.errors import Where
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Binary,
    Cast,
    Const,
    Def,
    Expr,
    Index,
    Param,
    Range,
    RangeClause,
    Scalar,
    Size,
    Statement,
    Unary,
)
from tcjit.grammar.ast import Tensor as TensorNode
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk

# the fields that hold names, by class: of tensors, sizes and scalars; of indices; and those that say nothing but a name
_NAMES = {
    Access: ("tensor",), Def: ("returns", "sizes", "specialised"), Param: ("name", "dims"), Scalar: ("name",), Size: ("name",),
    Statement: ("tensor",), TensorNode: ("name",),
}  # fmt: skip
_INDICES = {Index: ("name",), Range: ("index",), RangeClause: ("index",), Statement: ("reduction",)}
_IDLE = {Agreement: ("what",), Def: ("name",)}


@dataclass(frozen=True)
class Canonical:
    """``digest`` is that of the form; ``spelling`` that of the names it was written in; ``places`` are where a kernel of it may fail,
    as the sites of a launch record are written: kind, tensor, line, column, line_text.
    """

    digest: str
    spelling: str
    places: tuple[dict[str, Any], ...]


def canonical(definition: Def) -> Canonical:
    """The canonical form of a def whose ranges are inferred.

    >>> from tcjit.grammar.front import read
    >>> one, = read("def f(float(N) A) -> (B) { B(i) = A(i) + 1 }")
    >>> two, = read("def g(float(M) X) -> (Y) { Y(k) = (X(k) + 1) }")
    >>> canonical(one).digest == canonical(two).digest, canonical(one).spelling == canonical(two).spelling
    (True, False)
    """
    form = _CanonicalWriter()
    form.write(definition)
    spelled = [definition.name, *form.names, *form.spelled]
    return Canonical(_hash(form.tokens), _hash(spelled), tuple(map(dict, form.places)))


class _CanonicalWriter:
    """Writes nodes as tokens, one that opens and one that closes for each, and collects names and places."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.names: dict[str, int] = {}
        self.indices: dict[str, int] = {}  # of the statement at hand
        self.spelled: list[str] = []  # the indices of every statement
        self.places: dict[tuple[tuple[str, Any], ...], int] = {}

    def write(self, value: Any) -> None:
        if value is None or isinstance(value, (str, bool, int, float)):
            self.tokens.append(value.hex() if isinstance(value, float) else repr(value))
        elif isinstance(value, tuple):
            self.tokens.append("(")
            for part in value:
                self.write(part)
            self.tokens.append(")")
        else:
            self.node(value)

    def node(self, node: Any) -> None:
        if isinstance(node, Statement):
            self.indices = {}
        plain, named, indexed = _fields(node.__class__)
        self.tokens += ["{", type(node).__name__]
        for name, default in plain:
            value = getattr(node, name)
            if value != default or type(value) is not type(default):  # so that a field that a later version adds need not count
                self.tokens.append(name)
                self.write(value)
        for name in named:
            self.named(getattr(node, name))
        for name in indexed:
            self.indexed(getattr(node, name))
        for place in _failure_sites(node):
            self.tokens.append(f"at {self.places.setdefault(tuple(place.items()), len(self.places))}")
        self.tokens.append("}")

    def named(self, value: str | int | tuple[str | int, ...]) -> None:
        """Names as numbers; numbers, among the dimensions, as they are. ``T.0`` is an extent of ``T``."""
        self.tokens.append("names")
        for part in value if isinstance(value, tuple) else (value,):
            name, dot, position = part.partition(".") if isinstance(part, str) else ("", "", "")
            self.tokens.append(f"{self.names.setdefault(name, len(self.names))}{dot}{position}" if name else f"= {part}")

    def indexed(self, value: str | tuple[str, ...]) -> None:
        self.tokens.append("indices")
        for name in value if isinstance(value, tuple) else (value,):
            if name not in self.indices:
                self.spelled.append(name)
            self.tokens.append(str(self.indices.setdefault(name, len(self.indices))))


@cache
def _fields(kind: type[Any]) -> tuple[tuple[tuple[str, Any], ...], tuple[str, ...], tuple[str, ...]]:
    """The fields of a class that count: plain ones with their defaults, those that name, those that name indices."""
    named, indexed = _NAMES.get(kind, ()), _INDICES.get(kind, ())
    besides = (*named, *indexed, *_IDLE.get(kind, ()))
    return tuple((f.name, f.default) for f in fields(kind) if f.compare and f.name not in besides), named, indexed


def _failure_sites(node: Any) -> Iterator[dict[str, Any]]:
    """Where a kernel tells of an index outside its tensor, or of a divisor that is zero; none for a node that can do neither.

    More places than kernels tell of do no harm.
    """
    if isinstance(node, Access):
        if not all(map(_is_linear, node.subscripts)):
            yield {"kind": "gather", "tensor": node.tensor, **_position(node.where)}
    elif isinstance(node, Statement):
        for position in node.targets:
            yield {"kind": "gather", "tensor": node.tensor, **_position(node.subscripts[position].where)}
    elif isinstance(node, Binary) and node.op in "/%" and DTYPES[node.dtype].kind != "float":
        yield {"kind": "division", **_position(node.where)}


def _position(where: Where | None) -> dict[str, Any]:
    return {} if where is None else {"line": where.line, "column": where.column, "line_text": where.line_text}


def _is_linear(subscript: Expr) -> bool:
    """Whether a subscript is a sum of indices with coefficients, which is proved to be inside its tensor."""
    return all(
        isinstance(node, (Index, Size, Scalar, Const, Cast, Unary))
        or (isinstance(node, Binary) and (node.op in "+-" or (node.op == "*" and any(_is_fixed(side) for side in (node.left, node.right)))))
        for node in walk(subscript)
    )


def _is_fixed(expr: Expr) -> bool:
    return not any(isinstance(node, Index) for node in walk(expr))


def _hash(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()
