"""What is known of a def without parsing it: enough to check a call and to tell the outputs' shapes. JSON both ways."""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Def, Expr, Param, Scalar, Size, Unary
from tcjit.grammar.walk import walk
from tcjit.mapping.applicability import loops, traits

# a number, the name of a size or scalar, or an operator before its operands
Extent: TypeAlias = "int | str | tuple[Any, ...]"

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Output:
    """A returned tensor; ``accumulates``: its incoming values are used, so the caller must pass it."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    accumulates: bool


@dataclass(frozen=True)
class Signature:
    """A def seen from outside.

    ``traits`` and ``loops`` say which mapping options matter to it. ``canonical`` is the hash of what it computes whatever its names
    are, ``spelling`` that of its names, and ``places`` are where its kernels may fail: see ``grammar.canonical``. ``warning`` is what
    ``define`` warns of, empty where that is nothing. ``unread`` are the tensor parameters that only extents depend on. ``extents`` are the
    values of those extents in the types of parameters that are expressions, by their text there.
    """

    name: str
    params: tuple[Param, ...]
    returns: tuple[Output, ...]
    sizes: tuple[str, ...]
    specialised: tuple[str, ...]
    traits: tuple[str, ...] = ()
    loops: int = 0
    canonical: str = ""
    spelling: str = ""
    places: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    warning: str = ""
    unread: tuple[str, ...] = ()
    extents: tuple[tuple[str, Extent], ...] = ()

    @property
    def accumulates(self) -> tuple[str, ...]:
        """The outputs whose incoming values are used."""
        return tuple(output.name for output in self.returns if output.accumulates)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(describe, self.params))}) -> ({', '.join(output.name for output in self.returns)})"

    def shapes(self, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The outputs' shapes for the values of sizes and specialised scalars; symbolic values give symbolic shapes."""
        return [tuple(evaluate(extent, values) for extent in output.shape) for output in self.returns]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "params": [{"name": p.name, "dtype": p.dtype, "dims": list(p.dims)} for p in self.params],
            "returns": [{"name": r.name, "dtype": r.dtype, "rank": len(r.shape), "shape": _lists(r.shape)} for r in self.returns],
            "sizes": list(self.sizes),
            "specialised": list(self.specialised),
            "accumulates": list(self.accumulates),
            "traits": list(self.traits),
            "loops": self.loops,
            "canonical": self.canonical,
            "spelling": self.spelling,
            "places": [dict(place) for place in self.places],
            "warning": self.warning,
            "unread": list(self.unread),
            "extents": [[text, _lists(extent)] for text, extent in self.extents],
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Signature:
        """The inverse of ``to_json``; anything else raises a KeyError, TypeError or ValueError."""
        return Signature(
            str(values["name"]),
            tuple(Param(str(p["name"]), str(p["dtype"]), tuple(_dim(d) for d in p["dims"])) for p in values["params"]),
            tuple(
                Output(str(r["name"]), str(r["dtype"]), tuple(map(_extent, r["shape"])), r["name"] in values["accumulates"])
                for r in values["returns"]
            ),
            tuple(map(str, values["sizes"])),
            tuple(map(str, values["specialised"])),
            tuple(map(str, values["traits"])),
            int(values["loops"]),
            str(values["canonical"]),
            str(values["spelling"]),
            tuple(map(dict, values["places"])),
            str(values["warning"]),
            tuple(map(str, values["unread"])),
            tuple((str(text), _extent(extent)) for text, extent in values["extents"]),
        )


def describe(param: Param) -> str:
    """The parameter as it is written: ``float32(M, 4) A``."""
    return f"{param.dtype}({', '.join(map(str, param.dims))}) {param.name}" if param.dims else f"{param.dtype} {param.name}"


def of(definition: Def) -> Signature:
    """The signature of a def whose ranges are inferred."""
    from tcjit.grammar.canonical import canonical  # a warm start does without these
    from tcjit.grammar.recomputed import recomputed

    first = {s.tensor: s for s in reversed(definition.statements)}  # the first statement that writes each tensor
    returns = []
    for name in definition.returns:
        tensor, statement = definition.tensor(name), first[name]
        accumulates = statement.operator != "=" and not statement.initialise
        returns.append(Output(name, tensor.dtype, tuple(map(encode, tensor.shape)), accumulates))
    params = tuple(Param(p.name, p.dtype, p.dims) for p in definition.params)
    form = canonical(definition)
    return Signature(
        definition.name,
        params,
        tuple(returns),
        definition.sizes,
        definition.specialised,
        traits(definition),
        loops(definition),
        form.digest,
        form.spelling,
        form.places,
        recomputed(definition),
        _unread(definition),
        tuple(_expressions(definition).items()),
    )


def _unread(definition: Def) -> tuple[str, ...]:
    """The tensor parameters whose elements no statement reads."""
    roots = [root for s in definition.statements for root in (s.value, *s.subscripts)]
    read = {node.tensor for root in roots for node in walk(root) if isinstance(node, Access)}
    return tuple(param.name for param in definition.params if param.dims and param.name not in read)


def _expressions(definition: Def) -> dict[str, Extent]:
    """The extents of parameters that are expressions."""
    pairs = ((dim, extent) for p in definition.params if p.dims for dim, extent in zip(p.dims, definition.tensor(p.name).shape))
    return {str(dim): encode(extent) for dim, extent in pairs if not isinstance(extent, Size | Const)}


def encode(extent: Expr) -> Extent:
    """An extent's expression as plain values; a TypeError for what no extent contains."""
    match extent:
        case Const(value=value):
            return int(value)
        case Size(name=name) | Scalar(name=name):
            return name
        case Cast(operand=operand):
            return encode(operand)
        case Unary(op="-", operand=operand):
            return ("-", 0, encode(operand))
        case Binary(op=op, left=left, right=right) if op in _FUNCTIONS:
            return (op, encode(left), encode(right))
        case Call(function=function, args=args) if function in ("min", "max"):
            return (function, *map(encode, args))
    raise TypeError(f"{extent!r} is no extent")


def evaluate(extent: Extent, values: Mapping[str, Any]) -> Any:
    """The extent's value: an integer, or symbolic where the values are.

    >>> evaluate(("+", ("-", "H", "K"), 1), {"H": 8, "K": 3})
    6
    """
    if isinstance(extent, (tuple, list)):
        return _FUNCTIONS[extent[0]](*(evaluate(operand, values) for operand in extent[1:]))
    return values[extent] if isinstance(extent, str) else extent


def _lists(extents: Any) -> Any:
    return [_lists(e) for e in extents] if isinstance(extents, tuple) else extents


def _extent(value: Any) -> Extent:
    if isinstance(value, list):
        if not value or value[0] not in _FUNCTIONS:
            raise ValueError(f"{value!r} is no extent")
        return (value[0], *map(_extent, value[1:]))
    if type(value) not in (int, str):
        raise TypeError(f"{value!r} is no extent")
    return value  # type: ignore[no-any-return]


def _dim(value: Any) -> str | int:
    if type(value) not in (int, str):
        raise TypeError(f"{value!r} is no dimension")
    return value  # type: ignore[no-any-return]
