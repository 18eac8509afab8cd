"""Tuned options as the store keeps them: what was chosen for a program and shapes, and how far shapes are apart."""
from __future__ import annotations

import hashlib
import json
import math
from dataclasses import field
from typing import Any

from tcjit.dataclass import dataclass

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Choice:
    """Options chosen for a program and ``shapes`` (of its tensor arguments in their order), the numbers measured with them, and a label
    for people. The number ``seconds`` is the time with them, ``default`` that of the untuned kernel."""

    options: dict[str, Any]
    numbers: dict[str, float] = field(default_factory=dict)
    label: str = ""
    shapes: Shapes = ()


def packed(family: str, choice: Choice) -> bytes:
    """The content of a choice's file, as JSON."""
    facts = {
        "family": family,
        "shapes": choice.shapes,
        "options": choice.options,
        "numbers": choice.numbers,
        "label": choice.label,
    }
    return json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()


def unpacked(body: bytes) -> tuple[str, Choice]:
    """The inverse of ``packed``; a KeyError, TypeError or ValueError for any other content."""
    facts = json.loads(body)
    shapes = tuple(tuple(map(int, shape)) for shape in facts["shapes"])
    return str(facts["family"]), Choice(dict(facts["options"]), dict(facts["numbers"]), str(facts["label"]), shapes)


def file_name(family: str, shapes: Shapes) -> str:
    """The name under which a family's choice for shapes is stored."""
    return prefix(family) + hashlib.sha256(json.dumps(shapes, separators=(",", ":")).encode()).hexdigest()[:32]


def prefix(family: str) -> str:
    """The common prefix of the file names of a family's choices."""
    return f"{family[:32]}-"


def distance(known: Shapes, asked: Shapes, within: float = math.inf) -> float | None:
    """How far shapes are apart: the sum of ``|log2(a / b)|`` over their extents.

    None where ranks differ, or extents by more than the factor ``within``, or one of them is 0 and the other is not.

    >>> distance(((64, 64), (64,)), ((128, 32), (64,)))
    2.0
    """
    if list(map(len, known)) != list(map(len, asked)):
        return None
    pairs = [pair for one, other in zip(known, asked) for pair in zip(one, other)]
    if any(a != b and (min(a, b) <= 0 or max(a, b) > within * min(a, b)) for a, b in pairs):
        return None
    return sum(abs(math.log2(a / b)) for a, b in pairs if a != b)
