"""Collapse axes: those that every assignment walks together become one before the operands of products are copied and tiles are made.

``h`` and ``w`` of a convolution of one by one are 784 positions then, not 28 rows of 28, and a panel of an operand, a tile and a chunk for
a thread are cut from all of them. Nothing moves in memory; what is merged, and the proof, are those of ``collapse``. What concerns no
reduction that reads elements again for other results is merged later: passes until then choose which dimensions are in lanes.
"""

from __future__ import annotations

from dataclasses import fields, replace

from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access, Binary, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments, to_scop
from tcjit.mapping.collapse import collapse, verify_collapse
from tcjit.mapping.scop import ScopStatement, StatementForm
from tcjit.mapping.strides import affine_form

FORM = tuple(one.name for one in fields(StatementForm))


def collapse_axes(before: Assignments, prove: bool) -> Assignments:
    """The program of known sizes with as few axes of contiguous tensors as its accesses allow, which is proved where ``prove`` says so."""
    if not any(map(_reads_again, before.assignments)):
        return before
    scop = to_scop(replace(before, assignments=tuple(map(_with_start, before.assignments))))
    products = {s.name for s, a in zip(scop.statements, before.assignments, strict=True) if _reads_again(a)}
    plain = replace(scop, statements=tuple(map(_without_units, scop.statements)))
    made, merges = collapse(plain, among=products)
    if not merges:
        return before
    if prove:
        verify_collapse(scop, made, merges)
    storages = {storage.name: storage for storage in made.tensors}
    declared = tuple(storages.get(storage.name, storage) for storage in before.declared)
    temporaries = tuple((source, storages.get(storage.name, storage)) for source, storage in before.temporaries)
    assignments = tuple(map(_collapsed, before.assignments, made.statements))
    return replace(before, assignments=assignments, declared=declared, temporaries=temporaries, replaced=tuple((a,) for a in assignments))


def _reads_again(a: Assignment) -> bool:
    """Whether it is a reduction that uses an element for several results."""
    long = {name for name, lower, upper in a.results if upper - lower > 1}
    return bool(a.reduction) and any(long - names(read).keys() for read in a.reads)


def _with_start(a: Assignment) -> Assignment:
    """The assignment with what its results start from as a part of its value: accesses there walk axes as others do."""
    return a if a.start is None else replace(a, value=Binary("+", a.start, a.value, dtype=a.value.dtype))


def _without_units(s: ScopStatement) -> ScopStatement:
    """The statement with an index for each subscript that is one but for dimensions of a single value, as a filter of one by one has."""
    units = {name: lower for name, lower, upper in s.bounds if upper - lower == 1}

    def plain(subscript: Expr) -> Expr:
        form = None if isinstance(subscript, Index) else affine_form(subscript, {})
        if form is None:
            return subscript
        moving = {name: factor for name, factor in form[0].items() if name not in units and factor}
        at = form[1] + sum(factor * units.get(name, 0) for name, factor in form[0].items())
        return index(*moving) if list(moving.values()) == [1] and at == 0 else subscript

    def access(given: Access) -> Access:
        return replace(given, subscripts=tuple(map(plain, given.subscripts)))

    return replace(s, value=with_accesses(s.value, access)) if units else s


def _collapsed(a: Assignment, s: ScopStatement) -> Assignment:
    start: Expr | None = None
    form = {name: getattr(s, name) for name in FORM}
    if a.start is not None:
        assert isinstance(s.value, Binary)
        start, form["value"] = s.value.left, s.value.right
    return replace(a, **form, start=start)
