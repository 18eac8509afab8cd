"""Save: temporaries that a def hands on to its adjoint, which then need not compute them again.

Statistics of rows are saved, sums and extremes along a part of a tensor that the def reads: they have fewer elements than it, and it would
be read again for them. What has more elements, scores of attention for one, is computed again.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.errors import CheckError
from tcjit.grammar.ast import Access, Def, Index, Statement
from tcjit.grammar.batch import meaning
from tcjit.grammar.front import read
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk


def statistics(definition: Def) -> list[str]:
    """The temporaries that are worth saving."""
    first: dict[str, Statement] = {}
    for s in definition.statements:
        first.setdefault(s.tensor, s)
    temporaries = [t for t in definition.tensors if t.role == "temporary" and t.rank]
    return [t.name for t in temporaries if _is_along_a_part(first[t.name])]


def _is_along_a_part(s: Statement) -> bool:
    """Whether a reduction has its results along some dimensions of a tensor, and its terms along others."""
    results = _indices(s.subscripts)
    read = (_indices(node.subscripts) for node in walk(s.value) if isinstance(node, Access))
    return bool(s.reduction) and results is not None and any(found is not None and results < found for found in read)


def _indices(subscripts: Sequence[object]) -> set[str] | None:
    """The names of subscripts that are indices, each another one."""
    names = {sub.name for sub in subscripts if isinstance(sub, Index)}
    return names if len(names) == len(subscripts) else None


def returning(definition: Def, names: Sequence[str]) -> str:
    """The text of an inferred def that returns temporaries, too, behind its own results, under its own name, which errors name. Empty
    where no text says the same, as where literals alone make a value that is wider than they are."""
    results = [definition.tensor(name) for name in definition.returns] + [replace(definition.tensor(name), role="output") for name in names]
    rest = [t for t in definition.tensors if t.name not in names and t.role != "output"]
    tensors = (*(t for t in rest if t.role == "input"), *results, *(t for t in rest if t.role == "temporary"))
    intended = replace(definition, returns=(*definition.returns, *names), tensors=tensors)
    text = show(intended)
    try:
        (made,) = read(text)
    except CheckError:
        return ""
    return text if meaning(made) == meaning(intended) else ""
