"""Epilogues: pointwise statements behind a reduction that are computed from its accumulators, before anything is stored.

``C(m,n) +=! A(m,k) * B(k,n)  C(m,n) = C(m,n) + b(n)  Y(m,n) = relu(C(m,n))`` stores ``Y`` alone: what a later statement overwrites, or no
other reads, is part of the values that need it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import is_gather, isl_name
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import children, same_node, walk, with_accesses, with_indices
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.strip_mine import Strip
from tcjit.mapping.operations import operations
from tcjit.mapping.reduction import combined
from tcjit.mapping.storage import Storage

UNROUNDED = ("float32", "float64", "int32", "int64")  # types of values that a store does not change: narrower ones are computed wider
AGAIN = 4  # additions' worth of a value that is stored and computed once more for each use
LONGEST = 256  # nodes of a value in whose place it stands once for each use; the functions in it are evaluated once


@dataclass(frozen=True)
class Epilogue:
    """Assignments over the results of a reduction, in its own dimensions, in the place of those that follow it; ``stored``: whether the
    reduction's results are kept too, as they are; ``namings``: of each that follows, what it calls the dimensions of the reduction."""

    assignments: tuple[Assignment, ...] = ()
    stored: bool = True
    namings: tuple[Mapping[str, str], ...] = ()

    @property
    def count(self) -> int:
        """How many assignments it takes the place of."""
        return len(self.namings)

    def stripped(self, strips: Sequence[Strip]) -> Epilogue:
        """The assignments over the dimensions into which those of the reduction were split."""
        assignments = self.assignments
        for strip in strips:
            rewritten = strip.rewritten
            assignments = tuple(
                replace(e, subscripts=tuple(map(rewritten, e.subscripts)), value=rewritten(e.value)) for e in assignments
            )
        return replace(self, assignments=assignments)


def epilogue_of(
    a: Assignment, following: Sequence[Assignment], others: Sequence[Assignment], tensors: Mapping[str, Storage]
) -> Epilogue:
    """The assignments that directly follow a reduction and can be part of its nest; ``others`` are all of the program but these two
    kinds."""
    chain: list[Assignment] = []
    namings: list[Mapping[str, str]] = []
    places = {a.tensor: a.subscripts}  # of the elements at hand
    read = a.inputs
    for e in map(_in_one_iteration, following) if a.start is not None else ():
        renaming = _renaming_of(a, e, places)
        renamed = None if renaming is None else _over_results(a, e, places, renaming)
        if renaming is None or renamed is None or e.tensor in read or places.get(e.tensor, renamed.subscripts) != renamed.subscripts:
            break
        chain.append(renamed)
        namings.append({name: own for own, name in renaming.items()})
        read |= e.inputs - places.keys()
        places[e.tensor] = renamed.subscripts
    for count in range(len(chain), 0, -1):
        outside = {t for other in (*others, *following[count:]) for t in (other.tensor, *other.inputs)}
        stores = _forwarded(a, chain[:count], outside, tensors)
        if stores:
            overwritten = any(e.tensor == a.tensor for e in chain[:count])
            needed = tensors[a.tensor].role != "temporary" or a.tensor in outside
            return Epilogue(tuple(stores), needed and not overwritten, tuple(namings[:count]))
    return Epilogue()


def _in_one_iteration(e: Assignment) -> Assignment:
    """What an assignment does in one iteration of shared loops: one that accumulates over the last of them updates each result once."""
    if e.outer is None or not e.outer.sequential or e.reduction != e.outer.dims[-1:] or e.start is not None:
        return e
    return replace(e, operator="=", value=combined(e.operator, e.element, e.value), reduction=())


def _renaming_of(a: Assignment, e: Assignment, places: Mapping[str, tuple[Expr, ...]]) -> dict[str, str] | None:
    """The dimensions of a reduction by those of a pointwise assignment that reads elements at hand; None where it is not of that kind."""
    if e.operator != "=" or e.reduction or e.tiled or not _is_pointwise(e.value):
        return None
    if (a.outer and a.outer.number) != (e.outer and e.outer.number):
        return None
    reads = [access for access in e.reads if access.tensor in places]
    renaming = _renaming(reads[0].subscripts, places[reads[0].tensor]) if reads else None
    return renaming if renaming is not None and set(renaming.values()) == {name for name, _, _ in a.results} else None


def _over_results(
    a: Assignment, e: Assignment, places: Mapping[str, tuple[Expr, ...]], renaming: Mapping[str, str]
) -> Assignment | None:
    """An assignment in the dimensions of a reduction, of whose elements at hand it reads some and no others; None where it is not of that
    kind."""
    ends = [constraint for constraint in a.constraints if a.outer and a.outer.rest]  # of shared loops over blocks
    if [_renamed(constraint, renaming) for constraint in e.constraints] != ends:
        return None
    if {renaming.get(name): limits for name, limits in e.dynamic.items()} != {d: a.dynamic[d] for d, _, _ in a.results if d in a.dynamic}:
        return None
    bounds = {name: limits for name, *limits in a.results}
    if len(e.bounds) != len(renaming) or any(name not in renaming or bounds[renaming[name]] != limits for name, *limits in e.bounds):
        return None
    values: Mapping[str, Expr] = {name: Index(new, dtype="int64") for name, new in renaming.items()}
    renamed = replace(
        e, subscripts=tuple(with_indices(sub, values) for sub in e.subscripts), value=with_indices(e.value, values), bounds=a.results,
        constraints=(),
    )  # fmt: skip
    at_hand = all(access.subscripts == places.get(access.tensor, access.subscripts) for access in renamed.reads)
    return renamed if at_hand else None


def _renamed(constraint: str, renaming: Mapping[str, str]) -> str:
    """A constraint, in isl's words, over other dimensions."""
    names = {isl_name(own): isl_name(name) for own, name in renaming.items()}
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), constraint)


def _renaming(theirs: Sequence[Expr], own: Sequence[Expr]) -> dict[str, str] | None:
    """The indices of some subscripts by those of others that are equal but for the names, one to one."""
    renaming: dict[str, str] = {}

    def match(one: Expr, other: Expr) -> bool:
        if isinstance(one, Index) and isinstance(other, Index):
            return renaming.setdefault(one.name, other.name) == other.name
        return same_node(one, other) and all(map(match, children(one), children(other)))

    same = len(theirs) == len(own) and all(map(match, theirs, own))
    return renaming if same and len(set(renaming.values())) == len(renaming) else None


def _forwarded(
    a: Assignment, chain: Sequence[Assignment], outside: set[str], tensors: Mapping[str, Storage]
) -> list[Assignment] | None:
    """The stores of a chain that are needed, with the values of the others in the place of reads; None where that computes too much."""
    values: dict[str, Expr] = {}  # of elements that no store has, or that differ from what accumulators hold
    stores: list[Assignment] = []
    for number, e in enumerate(chain):
        uses = Counter(part.tensor for part in walk(e.value) if isinstance(part, Access))
        stored = {store.tensor for store in stores}
        for tensor, value in values.items():
            long = operations(value) > AGAIN if tensor in stored else uses[tensor] * _nodes(value) > LONGEST
            if uses[tensor] > 1 and long:
                return None
        e = replace(e, value=with_accesses(e.value, lambda access: values.get(access.tensor, access)))
        again = any(later.tensor == e.tensor for later in chain[number + 1 :])
        exact = tensors[e.tensor].dtype == e.value.dtype in UNROUNDED  # a store rounds to the type of its tensor
        readers = sum(part.tensor == e.tensor for later in chain[number + 1 :] for part in walk(later.value) if isinstance(part, Access))
        alone = tensors[e.tensor].role == "temporary" and e.tensor not in outside and (readers <= 1 or readers * _nodes(e.value) <= LONGEST)
        if (again or e.tensor == a.tensor) and not exact:
            return None
        if not (again or alone and exact and number + 1 < len(chain)):
            stores.append(e)
        if again or e.tensor == a.tensor or stores[-1:] != [e]:
            values[e.tensor] = e.value
        else:
            values.pop(e.tensor, None)
    return stores


def _nodes(value: Expr) -> int:
    return sum(1 for _ in walk(value))


def _is_pointwise(value: Expr) -> bool:
    """Whether a value depends on indices only through the elements that it reads, at places known before."""
    if isinstance(value, Access):
        return not any(map(is_gather, value.subscripts))
    return not isinstance(value, Index) and all(map(_is_pointwise, children(value)))


