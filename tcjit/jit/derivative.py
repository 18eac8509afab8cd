"""Derivatives of the defs of a text, as texts."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.grammar.differentiate import AdjointDef, SizeHints, TangentDef, contractions, differentiate, returning, statistics, tangent
from tcjit.jit.compile import definition


def backward_source(text: str, name: str, values: Mapping[str, int] | None, ties: str) -> str:
    """The text of the adjoint of one def, with the numbers of sizes and integer scalars where ``values`` has them."""
    return differentiate(definition(text, name), values=values, ties=ties).text


def derived_adjoint(
    text: str, name: str, wrt: Sequence[str] | None, integers: Mapping[str, int], ties: str, size_hints: SizeHints | None = None
) -> AdjointDef:
    """The adjoint for every size, and for these numbers of integer scalars, which text for all of them takes to be positive."""
    return differentiate(definition(text, name), wrt, values=integers, ties=ties, size_hints=size_hints)


def saving_adjoint(
    text: str,
    name: str,
    wrt: Sequence[str] | None,
    integers: Mapping[str, int],
    ties: str,
    names: Sequence[str] | None,
    size_hints: SizeHints,
) -> tuple[str, list[str], AdjointDef] | None:
    """The text of a def that returns what is to be saved behind its results, the names of that, and the adjoint that takes it; None where
    nothing is. Saved are temporaries of these ``names``, for None those that are worth it."""
    forward = definition(text, name)
    chosen = {*statistics(forward), *contractions(forward, size_hints)} if names is None else {*names}
    saved = [t.name for t in forward.tensors if t.role == "temporary" and t.name in chosen]
    made = differentiate(forward, wrt, values=integers, saved=saved, ties=ties, size_hints=size_hints) if saved else None
    used = [one for one in saved if made is not None and one in made.reads]
    if made is None or not used:
        return None
    if used != saved:
        made = differentiate(forward, wrt, values=integers, saved=used, ties=ties, size_hints=size_hints)
    text = returning(forward, used)
    return (text, used, made) if text else None


def derived_tangent(text: str, name: str, integers: Mapping[str, int], ties: str) -> TangentDef:
    """The tangent along all parameters of floats, in the same way."""
    return tangent(definition(text, name), values=integers, ties=ties)
