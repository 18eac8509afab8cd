"""Epilogues: pointwise statements behind a reduction that are computed from its accumulators, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tcjit.grammar.affine import guarded_accesses, is_gather
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import children
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.strip_mine import Strip, with_indices


@dataclass(frozen=True)
class Epilogue:
    """Assignments over the results of a reduction, in its own dimensions; ``stored``: whether the reduction's results are kept too."""

    assignments: tuple[Assignment, ...] = ()
    stored: bool = True

    def stripped(self, strips: Sequence[Strip]) -> Epilogue:
        """The assignments over the dimensions into which those of the reduction were split."""
        assignments = self.assignments
        for strip in strips:
            rewritten = strip.rewritten
            assignments = tuple(
                replace(e, subscripts=tuple(map(rewritten, e.subscripts)), value=rewritten(e.value)) for e in assignments
            )
        return replace(self, assignments=assignments)


def epilogue_of(a: Assignment, following: Sequence[Assignment], others: Sequence[Assignment], temporary: bool) -> Epilogue:
    """The assignments that directly follow a reduction and can be part of its nest; ``others`` are all of the program but these two kinds,
    ``temporary``: nobody but the program sees its results."""
    found: list[Assignment] = []
    read = {access.tensor for access in _reads(a)}
    for e in following if a.start is not None else ():
        renamed = _over_results(a, e)
        if renamed is None or e.tensor in read | {a.tensor} or not _keeps_order(found, renamed):
            break
        found.append(renamed)
        read |= {access.tensor for access in _reads(e)} - {one.tensor for one in found}
    kept = [*others, *following[len(found) :]]
    stored = not found or not temporary or any(a.tensor in _tensors(other) for other in kept)
    return Epilogue(tuple(found), stored)


def _over_results(a: Assignment, e: Assignment) -> Assignment | None:
    """An assignment in the dimensions of a reduction whose results it reads one to one; None where it is not of that kind."""
    if e.operator != "=" or e.reduction or e.constraints or e.dynamic or e.tiled or not _is_pointwise(e.value):
        return None
    own = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    reads = {access.subscripts for access in _reads(e) if access.tensor == a.tensor}
    if len(reads) != 1 or len(own) != len(a.subscripts) or {name for name, _, _ in a.results} != set(own):
        return None
    (subscripts,) = reads
    theirs = [sub.name for sub in subscripts if isinstance(sub, Index)]
    if len(theirs) != len(own) or len(set(theirs)) != len(theirs) or len(set(own)) != len(own):
        return None
    renaming = dict(zip(theirs, own, strict=True))
    bounds = {name: limits for name, *limits in a.results}
    if len(e.bounds) != len(own) or any(name not in renaming or bounds[renaming[name]] != limits for name, *limits in e.bounds):
        return None
    values: Mapping[str, Expr] = {name: Index(new, dtype="int64") for name, new in renaming.items()}
    subs = tuple(with_indices(sub, values) for sub in e.subscripts)
    return replace(e, subscripts=subs, value=with_indices(e.value, values), bounds=a.results)


def _keeps_order(before: Sequence[Assignment], e: Assignment) -> bool:
    """Whether an assignment reads of earlier ones' results only the element at hand, and writes none of their tensors."""
    written = {one.tensor: one.subscripts for one in before}
    return e.tensor not in written and all(
        access.tensor not in written or written[access.tensor] == access.subscripts for access in _reads(e)
    )


def _is_pointwise(value: Expr) -> bool:
    """Whether a value depends on indices only through the elements that it reads, at places known before."""
    if isinstance(value, Access):
        return not any(map(is_gather, value.subscripts))
    return not isinstance(value, Index) and all(map(_is_pointwise, children(value)))


def _reads(a: Assignment) -> list[Access]:
    return [access for access, _ in guarded_accesses(a.value)]


def _tensors(a: Assignment) -> set[str]:
    return {access.tensor for access in _reads(a)} | {a.tensor}
