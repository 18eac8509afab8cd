"""Live ranges: what a tensor holds before a statement overwrites all of it becomes a temporary of its own.

A program may compute into a result step by step. What the steps before the last hand on can then stay in a block, while the result, or
what others read later, goes to memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import affine
from tcjit.mapping.isl import union_map
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Storage, fresh
from tcjit.mapping.strides import accesses


def split_live_range(scop: Scop, tensor: str, inside: Collection[str]) -> Scop | None:
    """The scop with a temporary for what a tensor holds before the last of the statements ``inside`` that overwrites all of it; None where
    others use it before, or no statement does so."""
    users = [s for s in scop.statements if any(a.tensor == tensor for a in accesses(s))]
    if any(affine(sub, scop.values) is None for s in users for a in accesses(s) if a.tensor == tensor for sub in a.subscripts):
        return None
    writers = [n for n, s in enumerate(users) if s.tensor == tensor and s.name in inside and _overwrites(scop, s)]
    over = max(writers, default=0)
    if over == 0 or any(s.name not in inside for s in users[:over]):
        return None
    old = scop.tensor(tensor)
    taken = {t.name for t in scop.tensors} | {p.name for p in scop.program.definition.params}
    new = replace(old, name=fresh(f"{tensor}_before", taken), role="temporary")
    changed = {s.name: _renamed(s, tensor, new.name, write=True) for s in users[:over]}
    changed[users[over].name] = _renamed(users[over], tensor, new.name, write=False)
    return replace(scop, statements=tuple(changed.get(s.name, s) for s in scop.statements), tensors=(*scop.tensors, new))


def split_ranges(before: Scop, after: Scop) -> list[tuple[Storage, str]]:
    """The temporaries that ``after`` has for live ranges of ``before``, and the tensors that these are of."""
    known = {t.name for t in before.tensors}
    pairs = [(old, new) for old, new in zip(before.statements, after.statements, strict=True) if old != new]
    tensor_of = {b.tensor: a.tensor for old, new in pairs for a, b in zip(accesses(old), accesses(new), strict=True)}
    return [(t, tensor_of[t.name]) for t in after.tensors if t.name not in known]


def _overwrites(scop: Scop, s: ScopStatement) -> bool:
    """Whether a statement gives every element of its tensor a value that depends on no other element."""
    elsewhere = any(a.tensor == s.tensor and a.subscripts != s.subscripts for a, _ in s.reads())
    if s.operator != "=" or elsewhere:
        return False
    writes = scop.relations([scop.access_text(s, s.tensor, s.subscripts, ())])
    return bool(writes.is_injective() and scop.elements.intersect(scop.universe(s.tensor)).is_subset(writes.range()))


def _renamed(s: ScopStatement, tensor: str, new: str, *, write: bool) -> ScopStatement:
    renamed = s.with_accesses(lambda access: replace(access, tensor=new) if access.tensor == tensor else access)
    return renamed if write else replace(renamed, tensor=s.tensor)


# ---------------------------------------------------------------- the proof


def verify_live_ranges(before: Scop, after: Scop, ranges: Mapping[str, str]) -> None:
    """Prove that with temporaries for live ranges (``ranges``: temporary -> tensor) every read has its value from the same write as
    before, and results hold what the same writes left, or raise a VerifyError."""
    if before is after:
        return
    for old, new in zip(before.statements, after.statements, strict=True):
        undone = new
        for temporary, tensor in ranges.items():
            undone = _renamed(undone, temporary, tensor, write=True)
        if undone != old:
            raise VerifyError(f"live ranges: {new.name} computes something else")
    tensors = set(ranges.values())
    same = _identity(after, tensors).union(_identity(after, ranges))
    if not _flow(before, tensors, tensors).is_equal(_flow(after, {*tensors, *ranges}, tensors).apply_range(same)):
        raise VerifyError(f"live ranges: of {', '.join(sorted(tensors))} a statement would read what another one wrote")


def _identity(scop: Scop, ranges: Mapping[str, str] | Collection[str]) -> isl.UnionMap:
    """From the elements of tensors to those that they stand for."""
    texts = []
    for name in ranges:
        storage = scop.tensor(name)
        stands_for = replace(storage, name=ranges[name]) if isinstance(ranges, Mapping) else storage
        texts.append(f"{storage.element} -> {stands_for.element}")
    return union_map(scop.ctx, texts, scop.parameters)


def _flow(scop: Scop, tensors: Collection[str], read_last: Collection[str]) -> isl.UnionMap:
    """``{ [write -> read] -> element }``: which write each read of some tensors has its value from; of some all elements are read last."""
    depth = max(len(s.dims) for s in scop.statements)
    reads, writes, order = list[str](), list[str](), list[str]()
    for number, s in enumerate(scop.statements):
        place = ", ".join([str(number), *s.isl_dims, *["0"] * (depth - len(s.dims))])
        order.append(f"{s.tuple_text} -> [{place}]")
        reads += [scop.access_text(s, a.tensor, a.subscripts, guards) for a, guards in s.reads() if a.tensor in tensors]
        writes += [scop.access_text(s, s.tensor, s.subscripts, ())] if s.tensor in tensors else []
    ends = []
    for end, name in enumerate(sorted(read_last)):
        storage, facts = scop.tensor(name), " and ".join(scop.tensor(name).inside)
        last = f"end{end}[{', '.join(storage.axes)}]"
        ends.append(f"{last} -> {storage.element}{' : ' if facts else ''}{facts}")
        order.append(f"{last} -> [{', '.join([str(len(scop.statements)), *['0'] * depth])}]")
    used = scop.relations(reads).union(union_map(scop.ctx, ends, scop.parameters))
    access = isl.UnionAccessInfo.from_sink(used).set_must_source(scop.relations(writes))
    access = access.set_schedule_map(union_map(scop.ctx, order, scop.parameters))
    return access.compute_flow().get_full_must_dependence().uncurry()
