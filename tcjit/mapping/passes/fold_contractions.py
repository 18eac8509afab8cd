"""Fold contractions: a sum of products whose rows, columns or terms are several dimensions becomes a product of matrices.

``Z(a,b,c,d) +=! X(a,e,b,f) * Y(d,f,c,e)`` is one of the matrices ``X`` over ``(72*a+b, 72*e+f)`` and ``Y`` over ``(72*e+f, 72*c+d)``.
Panels and blocks for the caches are those of single dimensions, which short ones do not fill. So operands are copied to matrices, and
results from one: transpose-transpose-GEMM-transpose, as in Springer and Bientinesi, Design of a High-Performance GEMM-like Tensor-Tensor
Multiplication (2018). All subsets of the index classes are planned, and the one that takes the least time by the model is folded; a tensor
without an index of these stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import inf, prod
from operator import itemgetter

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.index_classes import IndexClasses, Order, index_classes, picked
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.epilogue import Epilogue, epilogue_of
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import number_of_chunks
from tcjit.mapping.passes.tile_reductions import ReductionTiling, Setting
from tcjit.mapping.storage import Bounds, fresh
from tcjit.mapping.strides import stride_in

WORK = 1 << 26  # products of one contraction that are worth the time of other plans
WORTH = 0.9  # of the time of the contraction as it is that a folded one may take: the model is rough

Folded = Mapping[str, Order]  # dimensions of the product of matrices, and those that they count, outermost first


def fold_contractions(before: Assignments, options: Options, machine: Machine) -> Assignments:
    """The program with the contractions folded that are faster so by the model."""
    program, temporaries, setting = before.assignments, Temporaries(before), Setting(before, options, machine, prove=False)
    parts: list[Sequence[Assignment]] = []
    for at, a in enumerate(program):
        found = index_classes(a, temporaries.tensors) if a.reduction and not a.final and a.points >= WORK else None
        best: Folded | None = None
        if found and number_of_chunks(a, temporaries, before, options, machine) == 1:
            epilogue = epilogue_of(a, program[at + 1 :], program[:at], temporaries.tensors)
            best = _Folding(found, epilogue, setting).best(temporaries)
        parts.append(folded(found, best, temporaries) if found and best else (a,))
    return before.with_parts(parts, temporaries)


def folded(c: IndexClasses, dims: Folded, temporaries: Temporaries) -> list[Assignment]:
    """The copies of operands that have some of the dimensions, the product over matrices, and the copy of its results to their places."""
    a, made, reads = c.a, list[Assignment](), dict[Expr, Expr]()
    of_part = {part: dim for dim, parts in dims.items() for part in parts}
    for access, own in zip(c.operands, (c.left, c.right), strict=True):
        if of_part.keys().isdisjoint(own):
            continue
        axes = _axes(c, own, of_part)
        storage = temporaries.add(a.source, f"{access.tensor}_folded", access.dtype, [_extent(a, dims, dim) for dim in axes])
        where, box = tuple(_place(a, dims, dim) for dim in axes), _box(a, access, own)
        made.append(Assignment(storage.name, where, "=", access, box, a.source, fuse_outer_only=True))
        reads[access] = Access(storage.name, tuple(map(index, axes)), dtype=access.dtype)
    bounds = tuple((dim, 0, _extent(a, dims, dim)) for dim in dict.fromkeys(of_part.get(dim, dim) for dim in a.dims))
    terms = tuple(dict.fromkeys(of_part.get(dim, dim) for dim in a.reduction))
    matrices = replace(a, value=replaced(a.value, reads), bounds=bounds, reduction=terms)
    if of_part.keys().isdisjoint(c.result):
        return [*made, matrices]
    axes = _axes(c, c.result, of_part)
    held = temporaries.add(a.source, f"{a.tensor}_folded", temporaries.tensors[a.tensor].dtype, [_extent(a, dims, dim) for dim in axes])
    matrices = replace(matrices, tensor=held.name, subscripts=tuple(map(index, axes)))
    element = Access(held.name, tuple(_place(a, dims, dim) for dim in axes), dtype=held.dtype)
    return [*made, matrices, Assignment(a.tensor, a.subscripts, "=", element, a.results, a.source)]


@dataclass(frozen=True)
class _Folding:
    """A contraction, and what follows on its results."""

    classes: IndexClasses
    epilogue: Epilogue
    setting: Setting

    def best(self, temporaries: Temporaries) -> Folded | None:
        """The dimensions that are worth their copies; None where none are."""
        choices = list(self.choices(temporaries))
        if not choices:
            return None
        best, least = None, WORTH * self.cycles(self.classes.a, self.epilogue, temporaries)
        if least == inf:
            return None  # it has no nest, whose reasons concern the folded one as well
        for copying, dims in choices:
            if copying < least:
                with temporaries.trial():
                    matrices = next(one for one in folded(self.classes, dims, temporaries) if one.reduction)
                    cycles = copying + self.cycles(matrices, Epilogue(), temporaries)
                best, least = (dims, cycles) if cycles < least else (best, least)
        return best

    def choices(self, temporaries: Temporaries) -> Iterator[tuple[float, Folded]]:
        """The subsets of the classes with several dimensions, each of these in the order of one of its tensors, those whose copies are the
        fastest; with the cycles of these. What goes on with what results held before keeps its results in their places."""
        c, a = self.classes, self.classes.a
        orders = {
            members: dict.fromkeys(picked(tensor, members) for tensor in tensors)
            for members, tensors in ((c.rows, (c.left, c.result)), (c.columns, (c.right, c.result)), (c.terms, (c.left, c.right)))
            if len(members) > 1 and (members == c.terms or isinstance(a.start, Const))
        }
        for count in range(1, len(orders) + 1):
            for chosen in combinations(orders.values(), count):
                found = [_named(a, order) for order in product(*chosen)]
                yield min(((self.copying(dims, temporaries), dims) for dims in found), key=itemgetter(0))

    def copying(self, dims: Folded, temporaries: Temporaries) -> float:
        """Cycles of the copies, and of what follows on results that are not in their places."""
        with temporaries.trial():
            made = folded(self.classes, dims, temporaries)
            cycles = self.copy_cycles((one for one in made if not one.reduction), temporaries)
            again = self.epilogue.count if not made[-1].reduction else 0
            return cycles + again * self.copy_cycles(made[-1:], temporaries)

    def copy_cycles(self, copies: Iterable[Assignment], temporaries: Temporaries) -> float:
        """Those of copies whose neighbours stay together, or part."""
        core, values = self.tiling(self.classes.a, self.epilogue).core, self.setting.program.values

        def near(access: Access) -> set[str]:
            storage = temporaries.tensors[access.tensor]
            return {dim for dim in names(access) if stride_in(storage, access.subscripts, dim, values) == 1}

        return sum(core.copy_cycles(a.points, together=all(near(a.element) & near(read) for read in a.reads)) for a in copies)

    def cycles(self, a: Assignment, epilogue: Epilogue, temporaries: Temporaries) -> float:
        """Those of a nest with its panels, as the model says."""
        tiling = self.tiling(a, epilogue)
        try:
            with temporaries.trial():
                planned = tiling.with_panels(tiling.planned(temporaries), temporaries)
                copying = self.copy_cycles((*planned.before, *planned.after), temporaries)
                return copying + sum(plan.estimate.cycles for plan in planned.plans)
        except MappingError:
            return inf

    def tiling(self, a: Assignment, epilogue: Epilogue) -> ReductionTiling:
        return ReductionTiling("F", a, epilogue, alone=True, by_rows=False, setting=self.setting)


def _named(a: Assignment, orders: Sequence[Order]) -> Folded:
    """Names for the dimensions that count others."""
    taken, found = {*a.dims, a.tensor, *a.tensors_read}, dict[str, Order]()
    for order in orders:
        name = fresh("_".join(order), taken)
        taken.add(name)
        found[name] = order
    return found


def _axes(c: IndexClasses, own: Order, of_part: Mapping[str, str]) -> Order:
    """The axes of a tensor's copy: those of the batch, and the class of what lies innermost last."""
    inside = next((members for members in (c.rows, c.columns, c.terms) if own[-1] in members), frozenset[str]())
    groups = (c.batch, *(members for members in (c.rows, c.columns, c.terms) if members != inside), inside)
    return tuple(dict.fromkeys(of_part.get(dim, dim) for members in groups for dim in picked(own, members)))


def _extent(a: Assignment, dims: Folded, dim: str) -> int:
    return prod(a.extents[part] for part in dims.get(dim, (dim,)))


def _place(a: Assignment, dims: Folded, dim: str) -> Expr:
    """The value of a dimension, in a mixed radix."""
    parts = dims.get(dim, (dim,))
    return total([(prod(a.extents[part] for part in parts[at + 1 :]), index(name)) for at, name in enumerate(parts)])


def _box(a: Assignment, access: Access, own: Order) -> Bounds:
    """The dimensions of an access as they lie in memory, those of one value first."""
    moving = {name for name, _, _ in a.bounds if index(name) in access.subscripts}
    return tuple((dim, *a.ranges[dim]) for dim in (*(dim for dim in a.dims if dim in moving and dim not in own), *own))
