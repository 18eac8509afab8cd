"""Texts of derivatives of the defs of a text."""
from __future__ import annotations

from collections.abc import Mapping

from tcjit.grammar.differentiate import differentiate
from tcjit.jit.compile import definition


def backward_source(text: str, name: str, values: Mapping[str, int] | None) -> str:
    """The text of the adjoint of one def, with the numbers of sizes and integer scalars where ``values`` has them."""
    return differentiate(definition(text, name), values=values).text
