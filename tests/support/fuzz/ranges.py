"""Short ways to infer and specialise a program in a test."""
from __future__ import annotations

from tcjit.grammar.ast import Def, Program
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.grammar.printer import extent


def inferred(text: str) -> Def:
    """The last def of a program."""
    return read(text)[-1]


def ranges(definition: Def, statement: int = -1) -> dict[str, str]:
    """The ranges of one statement as text: ``{"i": "0:N"}``."""
    return {r.index: f"{extent(r.lower)}:{extent(r.upper)}" for r in definition.statements[statement].domain}


def shape(definition: Def, tensor: str) -> tuple[str, ...]:
    return tuple(map(extent, definition.tensor(tensor).shape))


def program(text: str, *shapes: tuple[int, ...], **scalars: int) -> Program:
    """The last def for tensor arguments of these shapes, in order."""
    definition = inferred(text)
    tensors = [param.name for param in definition.params if param.dims]
    return specialise(definition, dict(zip(tensors, shapes, strict=True)), scalars)


def domain(found: Program, statement: int = -1) -> dict[str, tuple[int, int]]:
    """The ranges of one statement in numbers."""
    return dict(zip((r.index for r in found.definition.statements[statement].domain), found.domains[statement], strict=True))
