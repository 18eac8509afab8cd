"""Derivatives of the defs of a text, as texts."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.grammar.differentiate import AdjointDef, TangentDef, differentiate, tangent
from tcjit.jit.compile import definition


def backward_source(text: str, name: str, values: Mapping[str, int] | None) -> str:
    """The text of the adjoint of one def, with the numbers of sizes and integer scalars where ``values`` has them."""
    return differentiate(definition(text, name), values=values).text


def derived_adjoint(text: str, name: str, wrt: Sequence[str] | None, integers: Mapping[str, int]) -> AdjointDef:
    """The adjoint for every size, and for these numbers of integer scalars, which text for all of them takes to be positive."""
    return differentiate(definition(text, name), wrt, values=integers)


def derived_tangent(text: str, name: str, integers: Mapping[str, int]) -> TangentDef:
    """The tangent along all parameters of floats, in the same way."""
    return tangent(definition(text, name), values=integers)
