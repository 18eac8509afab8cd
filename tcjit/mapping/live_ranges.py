"""Live ranges: what a tensor holds before a statement overwrites all of it becomes a temporary of its own.

A program may compute into a result step by step. What the steps before the last hand on can then stay in a block, while the result, or
what others read later, goes to memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tcjit.grammar.affine import affine
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.scop_builder import identity_alias
from tcjit.mapping.storage import fresh
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


def range_aliases(before: Scop, after: Scop) -> dict[str, str]:
    """The temporaries that ``after`` has for live ranges of ``before``, with maps to the tensors that they stand for."""
    known = {t.name for t in before.tensors}
    pairs = [(old, new) for old, new in zip(before.statements, after.statements, strict=True) if old != new]
    tensor_of = {b.tensor: a.tensor for old, new in pairs for a, b in zip(accesses(old), accesses(new), strict=True)}
    return {t.name: identity_alias(t.name, tensor_of[t.name], len(t.shape)) for t in after.tensors if t.name not in known}


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
