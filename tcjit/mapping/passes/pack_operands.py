"""Pack operands: on a GPU, copy the operands of a contraction so that the dimensions of a class lie together, and merge.

``O(a,b,c,d) +=! X(a,f,b,e) * U(e,d,c,f)`` is a matrix product over ``(a,b)``, ``(c,d)`` and ``(f,e)`` once ``X`` lies in the order
``f e a b`` and ``U`` in ``f e c d``: transpose-transpose-gemm-transpose. Tiles then have one dimension along each side, copies to shared
memory go along rows of many elements, and products of halves have the one reduction dimension that tensor cores need. Results may lie in
a temporary in the order of the operands, which is copied to its place. All subsets of the three tensors are planned, and the one that the
model of the time finds fastest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite, to_scop
from tcjit.mapping.collapse import collapse, order_axes
from tcjit.mapping.dependences import dependences
from tcjit.mapping.footprint import WIDE
from tcjit.mapping.gpu.kernel_time import Phase, cycles
from tcjit.mapping.gpu.plan_group import plan_group
from tcjit.mapping.gpu.statement_group import StatementGroup
from tcjit.mapping.index_classes import IndexClasses, Order, index_classes, picked
from tcjit.mapping.machine import Device
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import chunk_reductions
from tcjit.mapping.passes.fuse import fused_groups
from tcjit.mapping.passes.split_initialisation import split_initialisation

WORTH = 0.9  # of the time without copies that a product with copies may take
ROUGH = 1.25  # times as long as the model says a product may take that is no matrix product


@dataclass(frozen=True)
class Packing:
    """The orders of the copies of the left and the right operand, and of a temporary for the results; None: as they are."""

    left: Order | None
    right: Order | None
    result: Order | None


def pack_operands(before: Assignments, options: Options, device: Device) -> Assignments:
    """The program with the copies that the model finds worth their time."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        found = index_classes(a, temporaries.tensors)
        if found is None or found.is_matrix_product:
            return [a]
        best, least = None, WORTH * ROUGH * cycles_alone([a], temporaries, before, options, device)
        for packing in dict.fromkeys(_packings(found, temporaries)):
            with temporaries.trial():
                made = _packed(found, packing, temporaries)
                if _copying(made, temporaries, device) < least:
                    form = next(index_classes(one, temporaries.tensors) for one in made if one.reduction)
                    rough = 1.0 if form is not None and form.is_matrix_product else ROUGH
                    time = rough * cycles_alone(made, temporaries, before, options, device)
                    best, least = (packing, time) if time < least else (best, least)
        return _packed(found, best, temporaries) if best else [a]

    return rewrite(before, visit)


def _packings(c: IndexClasses, temporaries: Temporaries) -> Iterator[Packing]:
    """Every subset of the tensors in an order in which classes lie together: that of a tensor which stays as it is, as far as it goes."""
    sizes = [temporaries.tensors[access.tensor].elements for access in c.operands]
    larger = c.left if sizes[0] >= sizes[1] else c.right
    may_hold = isinstance(c.a.start, Const)
    for left, right, held in product((False, True), (False, True), (False, True) if may_hold else (False,)):
        kept = [order for order, moves in ((c.result, held), (larger, left if larger == c.left else right)) if not moves]
        batch = picked([*kept, c.result][0], c.batch)
        rows, columns = (picked(own if held else c.result, members) for own, members in ((c.left, c.rows), (c.right, c.columns)))
        terms = picked(larger if left == right else c.right if left else c.left, c.terms)
        moved = [
            _unless((*batch, *_matrix(c, own, side, terms)), own) if moves else None
            for moves, own, side in ((left, c.left, rows), (right, c.right, columns))
        ]
        result = _unless((*batch, *rows, *columns), c.result) if held else None
        if any((*moved, result)):
            yield Packing(moved[0], moved[1], result)


def _matrix(c: IndexClasses, own: Order, side: Order, terms: Order) -> Order:
    """Terms outside, as tiles read rows of them, unless only they fill whole accesses, or lie in rows already."""
    whole = WIDE // DTYPES[c.operands[0].dtype].bytes
    ragged = [prod(c.a.extents[dim] for dim in dims) % whole > 0 for dims in (side, terms)]
    inside = ragged == [True, False] or (ragged[0] == ragged[1] and own[-1] == terms[-1])
    return (*side, *terms) if inside else (*terms, *side)


def _unless(order: Order, own: Order) -> Order | None:
    return None if order == own else order


def _packed(c: IndexClasses, packing: Packing, temporaries: Temporaries) -> list[Assignment]:
    """The copies of operands, the product, and the copy of its results."""
    a, made, reads = c.a, list[Assignment](), dict[Expr, Expr]()
    for access, order in zip(c.operands, (packing.left, packing.right), strict=True):
        if order is not None:
            made.append(temporaries.stored(a, f"{access.tensor}_packed", access, _box(a, access, order)))
            reads[access] = made[-1].element
    product_ = replace(a, value=replaced(a.value, reads))
    if packing.result is None:
        return [*made, product_]
    target = temporaries.tensors[a.tensor]
    element = Access(a.tensor, a.subscripts, dtype=target.dtype)
    held = temporaries.stored(a, f"{a.tensor}_packed", element, _box(a, element, packing.result))
    product_ = replace(product_, tensor=held.tensor, subscripts=held.subscripts)
    moved = Access(held.tensor, held.subscripts, dtype=target.dtype)
    return [*made, product_, Assignment(a.tensor, a.subscripts, "=", moved, a.results, a.source)]


def _box(a: Assignment, access: Access, order: Order) -> tuple[tuple[str, int, int], ...]:
    """The dimensions of an access in an order, those of one value first."""
    own = [name for sub in access.subscripts for name in names(sub)]
    return tuple((dim, *a.ranges[dim]) for dim in (*(dim for dim in own if dim not in order), *order))


# ---------------------------------------------------------------- how long it takes


def _copying(made: Sequence[Assignment], temporaries: Temporaries, device: Device) -> float:
    """Cycles that copies take at least."""
    copies = [a for a in made if not a.reduction]
    moved = sum(2 * temporaries.tensors[a.tensor].elements * DTYPES[a.value.dtype].bytes for a in copies)
    return len(copies) * device.costs.launch + moved / device.costs.l2_load


def cycles_alone(made: Sequence[Assignment], temporaries: Temporaries, before: Assignments, options: Options, device: Device) -> float:
    """Cycles of the kernels of some assignments, as if they were the program."""
    try:
        return sum(cycles([Phase(g, plan_group(g))]) for g in _groups(made, temporaries, before, options, device))
    except MappingError:  # options for which a tile is too large
        return inf


def _groups(
    made: Sequence[Assignment], temporaries: Temporaries, before: Assignments, options: Options, device: Device
) -> list[StatementGroup]:
    known: Mapping[str, str] = {name: storage.role for name, storage in before.storages.items()}
    used = {tensor: temporaries.tensors[tensor] for a in made for tensor in (a.tensor, *a.tensors_read)}
    result = made[-1].tensor
    outside = {name for name in used if known.get(name) == "temporary"}  # what others write or read
    tensors = [replace(t, role="output" if name == result else "input") if name in outside else t for name, t in used.items()]
    part = replace(before, assignments=tuple(made), declared=tuple(tensors), temporaries=(), replaced=())
    part = split_initialisation(chunk_reductions(part, options, device))
    scop, _ = collapse(order_axes(to_scop(part), on_gpu=True), on_gpu=True)
    groups = fused_groups(scop, dependences(scop), options, device.processors // 2, True)
    return [StatementGroup(scop, group, options, device) for group in groups]
