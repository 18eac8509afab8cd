"""What depends on the parameters that a def is differentiated by, and the checks on their names."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tcjit.checked import brief
from tcjit.errors import ArgumentError, CheckError, TCError
from tcjit.grammar.ast import Def
from tcjit.grammar.differentiate.normalise import NormalForm
from tcjit.grammar.differentiate.partials import derivatives
from tcjit.grammar.differentiate.simplify import is_float
from tcjit.grammar.front import read

TIES = ("even", "first")


def active_tensors(form: NormalForm, wrt: Iterable[str], cancelled: Collection[str] = ()) -> set[str]:
    """The tensors and scalars of floats that depend on ``wrt``; what is ``cancelled`` depends on nothing."""
    active = set(wrt)
    for update in form.updates:
        if update.target not in cancelled and is_float(form.dtypes[update.target]) and derivatives(update.value, active):
            active.add(update.target)
    return active


def checked_names(definition: Def, wrt: Sequence[str] | None, saved: Collection[str], ties: str) -> list[str]:
    """The names of ``wrt`` in the forward's order."""
    floats = [p.name for p in definition.params if is_float(p.dtype)]
    first = {s.tensor: s for s in reversed(definition.statements)}
    added = [r for r in definition.returns if first[r].operator != "=" and not first[r].initialise]
    incoming = [r for r in added if is_float(definition.tensor(r).dtype)]
    known = [*floats, *incoming]
    asked = floats if wrt is None else list(wrt)
    if not asked:
        what = f"there is nothing to differentiate `{definition.name}` by"
        raise ArgumentError(what, hint=f"wrt= with names of {', '.join(known)}" if known else "a def with a parameter of floats")
    for name in asked:
        if name not in known:
            raise ArgumentError(
                f"wrt= names {brief(name)}, which is no parameter of `{definition.name}` with floats",
                hint=f"of {', '.join(known)}" if known else "a def with a parameter of floats",
            )
    temporaries = [t.name for t in definition.tensors if t.role == "temporary"]
    for name in saved:
        if name not in temporaries:
            hint = f"of {', '.join(temporaries)}" if temporaries else "no saved=: results are there anyway"
            raise ArgumentError(f"saved= names {brief(name)}, which is no temporary of `{definition.name}`", hint=hint)
    if ties not in TIES:
        raise ArgumentError(f"ties= is {brief(ties)}", hint=" or ".join(map(repr, TIES)))
    return [name for name in known if name in asked]


def read_again(text: str, definition: Def) -> Def:
    """The text of a derivative, read by the front end."""
    try:
        return read(text)[-1]
    except TCError as error:
        what = f"the derivative of `{definition.name}` is no def that the language takes: {error.what}"
        raise CheckError(what, sizes=error.sizes, hint=error.hint) from error


@contextmanager
def nesting_refused(definition: Def) -> Iterator[None]:
    """A CheckError for expressions whose derivatives nest beyond Python's recursion."""
    try:
        yield
    except RecursionError:
        what = f"an expression in the derivative of `{definition.name}` nests too deeply"
        raise CheckError(what, hint="split it over several statements") from None
