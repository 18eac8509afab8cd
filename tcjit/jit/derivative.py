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


def first_order_adjoint(
    text: str,
    name: str,
    wrt: Sequence[str] | None,
    integers: Mapping[str, int],
    ties: str,
    names: Sequence[str] | None,
    size_hints: SizeHints,
) -> tuple[str, list[str], AdjointDef] | None:
    """The text of a def that returns what is to be saved behind its results, the names of that, and an adjoint that takes it and need not
    be right to be differentiated again; None where it would be the other one. Saved are temporaries of these ``names``, for None those that
    are worth it."""
    forward = definition(text, name)
    chosen = {*statistics(forward), *contractions(forward, size_hints)} if names is None else {*names}
    saved = [t.name for t in forward.tensors if t.role == "temporary" and t.name in chosen]
    multiplies = any(s.operator == "*=" and s.reduction for s in forward.statements)
    if not saved and not multiplies:
        return None

    def adjoint(saved: Sequence[str]) -> AdjointDef:
        differentiable = not multiplies
        return differentiate(forward, wrt, values=integers, saved=saved, ties=ties, differentiable=differentiable, size_hints=size_hints)

    made = adjoint(saved)
    used = [one for one in saved if one in made.reads]
    if not used and not multiplies:
        return None
    if used != saved:
        made = adjoint(used)
    saving = returning(forward, used) if used else text
    if not saving and multiplies:  # no text returns what would be saved
        used, saving, made = [], text, adjoint([])
    return (saving, used, made) if saving else None


def derived_tangent(text: str, name: str, integers: Mapping[str, int], ties: str) -> TangentDef:
    """The tangent along all parameters of floats, in the same way."""
    return tangent(definition(text, name), values=integers, ties=ties)
