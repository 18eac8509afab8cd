"""``--shapes "A=1024x512,N=256,alpha=0.5"``: shapes of tensors, values of sizes and of scalar parameters, in any order."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tcjit.errors import ArgumentError
from tcjit.grammar import front, polynomial
from tcjit.grammar.ast import Def, Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.printer import show

Number = int | float | bool

_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+)*")


@dataclass(frozen=True)
class ArgumentSizes:
    """The sizes of a call: a shape for every tensor parameter, a value for every scalar one."""

    shapes: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, Number]


def definition(text: str, name: str | None) -> Def:
    """The def called ``name``, or the only one of the text. A TCError where the text is wrong or the choice is open."""
    defs = {d.name: d for d in front.read(text)}
    if name is None and len(defs) == 1:
        return next(iter(defs.values()))
    if name is None:
        raise ArgumentError(f"the file has {len(defs)} defs: {', '.join(defs)}", hint=f"--name {list(defs)[-1]}")
    if name not in defs:
        raise ArgumentError(f"the file has no def {name!r}, only {', '.join(defs)}", hint=_closest(name, list(defs), "--name {}"))
    return defs[name]


def sizes(definition: Def, text: str) -> ArgumentSizes:
    """Read ``--shapes``; shapes that follow from the others need not be given. ArgumentError for whatever is missing or misspelt.

    >>> d = definition("def f(float(M,K) A, float(K,N) B, float a) -> (C) { C(m, n) +=! a * A(m, k) * B(k, n) }", None)
    >>> sizes(d, "A=4x8, N=3, a=0.5")
    ArgumentSizes(shapes={'A': (4, 8), 'B': (8, 3)}, scalars={'a': 0.5})
    """
    values = _split(text)
    params = {p.name: p for p in definition.params}
    known: dict[str, int] = {}
    scalars: dict[str, Number] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in values.items():
        if name in params and params[name].dims:
            shapes[name] = _shape(params[name], value)
        elif name in params:
            scalars[name] = _number(params[name], value)
        elif name in definition.sizes:
            known[name] = _extent(name, value)
        else:
            names = [*params, *definition.sizes]
            raise ArgumentError(f"{name!r} is no tensor, size or scalar of {_usage(definition)}", hint=_closest(name, names, "{}=..."))
    for name, shape in shapes.items():
        for dim, extent in zip(params[name].dims, shape):
            if dim in definition.sizes:
                known.setdefault(str(dim), extent)
    whole = {name: int(value) for name, value in scalars.items() if name in definition.specialised}
    for param in definition.params:
        if param.dims:
            shapes.setdefault(param.name, _completed(definition, param, {**known, **whole}))
        elif param.name not in scalars:
            raise ArgumentError(f"{show(param)} of {_usage(definition)} has no value", hint=f"--shapes '...,{param.name}=1'")
    return ArgumentSizes({p.name: shapes[p.name] for p in definition.params if p.dims}, scalars)


def _split(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (s.strip() for s in part.partition("="))
        if not (name and equals and value):
            raise ArgumentError(f"--shapes: {part!r} is not of the form name=value", hint='--shapes "A=1024x512,N=256"')
        if name in values:
            raise ArgumentError(f"--shapes gives {name} twice: {values[name]} and {value}")
        values[name] = value
    return values


def _shape(param: Param, text: str) -> tuple[int, ...]:
    example = "x".join("8" for _ in param.dims)
    if not _SHAPE.fullmatch(text):
        raise ArgumentError(f"{param.name}={text} is not a shape", hint=f"{param.name}={example}")
    shape = tuple(_whole(param.name, n) for n in text.split("x"))
    if len(shape) != len(param.dims):
        count = f"{len(shape)} dimension{'s' * (len(shape) != 1)}"
        raise ArgumentError(
            f"{param.name}={text} has {count}, {show(param)} has {len(param.dims)}",
            hint=f"{param.name}={example}",
        )
    return shape


def _extent(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentError(f"{name}={text}: a size is a whole number", hint=f"{name}=128")
    return _whole(name, text)


def _whole(name: str, digits: str) -> int:
    if len(digits.lstrip("0")) > 18:
        raise ArgumentError(f"{name}={digits[:40]}: an extent has at most 18 digits", hint=f"{name}=128")
    return int(digits)


def _number(param: Param, text: str) -> Number:
    kind = DTYPES[param.dtype].kind
    try:
        if kind == "float":
            return float(text)
        return {"true": True, "false": False}[text.lower()] if kind == "bool" else int(text)
    except (ValueError, KeyError):
        example = {"float": "0.5", "bool": "true"}.get(kind, "1")
        raise ArgumentError(f"{param.name}={text} is no value for {param.dtype} {param.name}", hint=f"{param.name}={example}") from None


def _completed(definition: Def, param: Param, known: Mapping[str, int]) -> tuple[int, ...]:
    extents = [polynomial.integer(extent, known) for extent in definition.tensor(param.name).shape]
    missing = [str(dim) for dim, extent in zip(param.dims, extents) if not isinstance(extent, int)]
    if missing:
        hint = f"--shapes '...,{param.name}={'x'.join(str(known.get(str(dim), dim)) for dim in param.dims)}'"
        raise ArgumentError(f"nothing says how large {', '.join(missing)} of {_usage(definition)} is", hint=f"{hint} with numbers")
    return tuple(extent for extent in extents if isinstance(extent, int))


def _usage(definition: Def) -> str:
    """``f(float32(M, K) A, float32 a)``."""
    return f"{definition.name}({', '.join(map(show, definition.params))})"


def _closest(name: str, names: list[str], form: str) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.4)
    return form.format(close[0] if close else names[-1]) if names else ""
