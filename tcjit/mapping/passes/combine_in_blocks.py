"""Combine in blocks: those that use few results of a reduction in chunks combine its partial results themselves, each for itself.

Launches of a block or two, which the whole device waits for, are gone: a softmax over one long row has three instead of six. What uses the
results runs by the same chunks, so that a block has all of its statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import with_accesses, with_index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.storage import fresh

MOST = 1 << 20  # loads of partial results by all blocks, which come from the cache that they share


def combine_in_blocks(before: Assignments) -> Assignments:
    """The program with a copy of such results for each chunk, and the assignments that use them cut into the same chunks."""
    combined = [a for a in before.assignments if _combines(a)]
    counts = {a.terms[0][2] for a in combined}
    unchanged = before.with_parts((a,) for a in before.assignments)
    if len(counts) != 1 or any(a.dynamic or a.outer for a in before.assignments):
        return unchanged
    (count,) = counts
    small = _small(before, {a.tensor for a in combined}, count)
    if count < 2 or not small:
        return unchanged
    temporaries = Temporaries(before)
    copies = {}
    for name in small:
        storage = temporaries.tensors[name]
        source = next(a.source for a in before.assignments if a.tensor == name)
        copies[name] = temporaries.add(source, f"{name}_each", storage.dtype, (count, *storage.shape)).name
    cut = {a.tensor for a in before.assignments if a.tensor not in copies and not a.reduction and a.inputs & copies.keys()}
    return before.with_parts([(_by_chunks(a, copies, cut, count, temporaries),) for a in before.assignments], temporaries)


def _combines(a: Assignment) -> bool:
    """Whether an assignment combines partial results."""
    if not a.fuse_outer_only or len(a.terms) != 1 or not isinstance(a.value, Access) or a.constraints or a.start is not None:
        return False
    return a.value.subscripts == (Index(a.reduction[0], dtype="int64"), *a.subscripts)


def _small(before: Assignments, wanted: set[str], count: int) -> set[str]:
    """Those of some results, and what is computed from them element by element, of which every user has chunks."""
    storages = before.storages
    found = {t for t in wanted if storages[t].role == "temporary" and prod(storages[t].shape) * count * count <= MOST}

    def pointwise(a: Assignment) -> bool:
        plain = a.subscripts == tuple(Index(name, dtype="int64") for name, _, _ in a.bounds)
        shape = tuple(upper for _, _, upper in a.bounds)
        read = a.inputs
        first = storages[a.tensor]
        return a.is_elementwise and plain and first.role == "temporary" and first.shape == shape and bool(read & found) and all(
            storages[t].shape == shape or not storages[t].shape or storages[t].role == "input" for t in read
        )  # fmt: skip

    for a in before.assignments:
        writers = [b for b in before.assignments if b.tensor == a.tensor]
        if pointwise(a) and len(writers) == 1:
            found.add(a.tensor)
    while True:
        wrong: set[str] = set()
        for a in before.assignments:
            read = a.inputs & found
            if a.tensor in found:
                fits = pointwise(a) or _combines(a) or not a.inputs
            else:
                fits = not read or _chunked(a, count) or _cut(a, count, read) is not None
            wrong |= set() if fits else read | ({a.tensor} & found)
        if not wrong:
            return found
        found -= wrong


def _chunked(a: Assignment, count: int) -> bool:
    """Whether an assignment has partial results of so many chunks."""
    return bool(a.terms) and a.fuse_outer_only and not _combines(a) and a.bounds[0][1:] == (0, count)


def _cut(a: Assignment, count: int, read: Iterable[str]) -> str | None:
    """The first dimension of an elementwise assignment that makes so many chunks, along which its small operands do not move."""
    if not a.is_elementwise:
        return None
    small = [access for access in a.reads if access.tensor in read]
    moving = {name for access in small for sub in access.subscripts for name in names(sub)}
    return next((name for name, lower, upper in a.bounds if not lower and upper % count == 0 and name not in moving), None)


def _by_chunks(a: Assignment, copies: dict[str, str], cut: set[str], count: int, temporaries: Temporaries) -> Assignment:
    """An assignment with the copies of its chunk; with chunks, where it had none. ``cut``: tensors that are written in chunks."""
    read = a.inputs & copies.keys()
    chunked = a.tensor not in copies and _chunked(a, count)
    if a.tensor not in copies and not read:
        return replace(a, fuse_outer_only=False) if chunked and a.inputs & cut else a
    name = a.bounds[0][0] if chunked else fresh("chunk", {bound[0] for bound in a.bounds} | set(temporaries.tensors))
    chunk = Index(name, dtype="int64")

    def of_chunk(access: Access) -> Access:
        tensor = copies.get(access.tensor)
        return replace(access, tensor=tensor, subscripts=(chunk, *access.subscripts)) if tensor else access

    if chunked:
        return replace(a, value=with_accesses(a.value, of_chunk), fuse_outer_only=False)
    if a.tensor in copies:
        bounds = ((name, 0, count), *a.bounds)
        return replace(a, tensor=copies[a.tensor], subscripts=(chunk, *a.subscripts), value=with_accesses(a.value, of_chunk), bounds=bounds)
    dim = _cut(a, count, read)
    assert dim is not None  # or its operands had no copies
    size = a.ranges[dim][1] // count
    moved = total([(size, chunk), (1, index(dim))])
    small = {one for access in a.reads if access.tensor in copies for sub in access.subscripts for one in names(sub)}
    ordered = sorted(a.bounds, key=lambda bound: bound[0] not in small)  # what a block has of the copies comes from outer loops
    bounds = ((name, 0, count), *((one, lower, size if one == dim else upper) for one, lower, upper in ordered))
    subscripts = tuple(with_index(sub, dim, moved) for sub in a.subscripts)
    return replace(a, subscripts=subscripts, value=with_accesses(with_index(a.value, dim, moved), of_chunk), bounds=bounds)
