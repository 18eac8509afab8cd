"""Statements with exact iteration domains and flat accesses: what nests are made of.

Conditions of the program become part of a domain (``restrict``, ``split_residues``), so that a tile is full, partial or absent before
anything is printed. An access is a linear form over memory, so that roles of dimensions, strides of lanes and footprints are coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Generic, TypeVar

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Expr
from tcjit.mapping.isl import has, images, points

DIM = isl.dim_type
AnyPlace = TypeVar("AnyPlace")


@dataclass(frozen=True)
class RuntimeAxis:
    """What an axis adds to a place whose stride only a call knows: the stride times ``constant + sum(form[d] * d)``; ``stride`` is an
    estimate."""

    axis: int
    form: Mapping[str, int]
    constant: int
    stride: int


@dataclass(frozen=True)
class FlatAccess:
    """The element ``constant + sum(form[d] * d)`` of a memory of ``elements``, and what ``runtime`` axes add; dimensions that do not move
    it are in no form. Where the number of elements depends on dynamic sizes, ``elements`` is 0. A dimension of ``axes`` is all that an axis
    is indexed by, and moves no other: its values from 0 up to the extent are inside, whatever those of other dimensions."""

    tensor: str
    form: Mapping[str, int]
    constant: int
    elements: int
    runtime: tuple[RuntimeAxis, ...] = ()
    axes: Mapping[str, int] = field(default_factory=dict)

    def stride(self, dim: str) -> int:
        """Elements by which the access moves when ``dim`` moves by one, runtime axes aside."""
        return self.form.get(dim, 0)

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions that it moves with."""
        return frozenset(self.form).union(*(axis.form for axis in self.runtime))

    def moved(self, by: Mapping[str, int]) -> FlatAccess:
        """The place that lies so many points further in some dimensions."""

        def constant(form: Mapping[str, int], before: int) -> int:
            return before + sum(form.get(dim, 0) * points for dim, points in by.items())

        runtime = tuple(replace(axis, constant=constant(axis.form, axis.constant)) for axis in self.runtime)
        axes = {dim: extent for dim, extent in self.axes.items() if not by.get(dim)}
        return replace(self, constant=constant(self.form, self.constant), runtime=runtime, axes=axes)

    def without(self, dim: str) -> FlatAccess:
        """The place at 0 of a dimension."""

        def left(form: Mapping[str, int]) -> dict[str, int]:
            return {name: step for name, step in form.items() if name != dim}

        runtime = tuple(replace(axis, form=left(axis.form)) for axis in self.runtime)
        return replace(self, form=left(self.form), runtime=runtime, axes=left(self.axes))

    def walks_as_one(self, outer: str, inner: str, extent: int) -> bool:
        """Whether a step of one dimension is ``extent`` steps of another."""
        return all(form.get(outer, 0) == extent * form.get(inner, 0) for form in (self.form, *(axis.form for axis in self.runtime)))

    def estimated(self) -> FlatAccess:
        """The access with the estimates of its strides in the place of runtime axes."""
        if not self.runtime:
            return self
        form, constant = dict(self.form), self.constant
        for axis in self.runtime:
            constant += axis.stride * axis.constant
            for dim, step in axis.form.items():
                form[dim] = form.get(dim, 0) + axis.stride * step
        return replace(self, form=form, constant=constant, runtime=())


@dataclass(frozen=True)
class PointwiseStore:
    """``write = value`` for every result of a reduction, from its accumulator and what it reads; ``value`` reads the reduction's results
    where ``reads`` has no place for an access."""

    write: FlatAccess
    dtype: str
    value: Expr
    reads: Mapping[Access, FlatAccess]


@dataclass(frozen=True)
class NestStatement(Generic[AnyPlace]):
    """``write operator body`` for each point of ``domain``, after ``start`` was written for each point of ``results``.

    ``domain`` is exact and need not be a box; its dimensions are ``dims``, those of the reduction (``terms``) last. ``results`` is over
    the other dimensions: a result without a term is started too. ``reads`` and ``start_reads`` give the places of the accesses in ``body``
    and ``start``.

    Dynamic sizes are parameters of the sets, which are for the values that they may have. The extent of a ``dynamic`` dimension for one
    of them is a text in isl's words.
    """

    name: str
    dims: tuple[str, ...]
    terms: tuple[str, ...]
    domain: isl.Set
    results: isl.Set
    operator: str
    start: Expr | None
    write: AnyPlace
    body: Expr
    reads: Mapping[Access, AnyPlace]
    start_reads: Mapping[Access, AnyPlace]
    shared: tuple[str, ...]  # dimensions of results whose loops stand outermost, as other statements have them too
    dynamic: Mapping[str, str]

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The dimensions of the results."""
        return tuple(dim for dim in self.dims if dim not in self.terms)


@dataclass(frozen=True)
class FlatStatement(NestStatement[FlatAccess]):
    """A statement over memory. The ``epilogue`` follows once a result is complete, which itself is ``stored`` or only lives in its
    accumulator; ``sums``: the tensor that the results are of, where another is written. Ranges and extents are those of all values of
    dynamic sizes together."""

    epilogue: tuple[PointwiseStore, ...] = ()
    stored: bool = True
    sums: str = ""
    fewest: Mapping[str, int] = field(default_factory=dict)  # of what stands for many sizes: the least extents of dynamic results
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # dimensions that one stands for, outermost first

    @property
    def in_memory(self) -> bool:
        """Whether results have a place in memory, where sums that are not complete can stay."""
        return self.stored or any(e.write.tensor == self.write.tensor for e in self.epilogue)

    @property
    def accesses(self) -> tuple[FlatAccess, ...]:
        after = (flat for e in self.epilogue for flat in (e.write, *e.reads.values()))
        return (self.write, *self.reads.values(), *self.start_reads.values(), *after)

    def range(self, dim: str) -> tuple[int, int]:
        """The least and greatest value of a dimension: of an output's in the results, of a term's in the domain."""
        return self._ranges[dim]

    @cached_property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        found = {}
        for dim in self.dims:
            where = self.domain if dim in self.terms else self.results
            at = (self.dims if dim in self.terms else self.outputs).index(dim)
            found[dim] = where.dim_min_val(at).to_python(), where.dim_max_val(at).to_python()
        return found

    @cached_property
    def extents(self) -> dict[str, int]:
        """Those of all dimensions, which start at 0."""
        return {dim: greatest + 1 for dim, (_, greatest) in self._ranges.items()}

    def extent(self, dim: str) -> int:
        """The extent of a dimension that starts at 0."""
        return self.extents[dim]

    def extent_text(self, dim: str) -> str:
        """The same for the sizes of a call."""
        return self.dynamic.get(dim) or str(self.extent(dim))

    def is_sum(self, dim: str) -> bool:
        """Whether the extent is a sum of sizes, which has one text in isl's words and in C's."""
        return not any(function in self.dynamic.get(dim, "") for function in ("floor", "min", "max"))

    def least_extent(self, dim: str) -> int:
        """The least extent of a dimension of the results over all sizes."""
        if dim not in self.dynamic:
            return self.extent(dim)
        text = f"{parameters(self.results)}{{ [{self.dynamic[dim]}] }}"
        found = isl.Set.read_from_str(self.results.get_ctx(), text).intersect_params(self.results.params())
        return int(found.dim_min_val(0).to_python())

    def box(self, dims: tuple[str, ...]) -> isl.Set:
        """All points between the bounds of some dimensions."""
        ranges = [f"{self.range(dim)[0]} <= {dim} <= {self.range(dim)[1]}" for dim in dims]
        ranges += [f"{dim} < {extent}" for dim, extent in self.dynamic.items() if dim in dims]
        return points(self.domain.get_ctx(), dims, ranges, parameters(self.domain)).intersect_params(self.results.params())

    @cached_property
    def is_box(self) -> bool:
        """Whether every point between the bounds of its dimensions is in the domain."""
        return bool(self.box(self.dims).is_equal(self.domain))

    @cached_property
    def joint_conditions(self) -> tuple[frozenset[str], ...]:
        """The dimensions of each condition on several of them."""
        conditions = []
        for basic in self.domain.get_basic_sets():
            for constraint in basic.get_constraints():
                dims = frozenset(dim for at, dim in enumerate(self.dims) if constraint.involves_dims(DIM.set, at, 1))
                if len(dims) > 1:
                    conditions.append(dims)
        return tuple(conditions)

    @cached_property
    def free_dims(self) -> frozenset[str]:
        """The dimensions of results that take all values of their range whatever the values of others are."""
        outputs = frozenset(self.outputs) - frozenset[str]().union(*self.joint_conditions)
        if len(self.domain.get_basic_sets()) != 1:
            return frozenset()
        ends = {dim: (self.domain.dim_min_val(at), self.domain.dim_max_val(at)) for at, dim in enumerate(self.dims) if dim in outputs}
        return frozenset(dim for dim, (least, most) in ends.items() if (least.to_python(), most.to_python()) == self.range(dim))

    @property
    def writes_once(self) -> bool:
        """Whether no two results are written to one element, so that their order means nothing; updates of one by what is computed in
        iterations of the last shared loop follow one another (``verify_outer_loops`` proves it)."""
        updated = [e.write for e in self.epilogue if e.write in e.reads.values()]
        for flat in (self.write, *(e.write for e in self.epilogue)):
            places = [(flat.form, flat.constant), *((axis.form, axis.constant) for axis in flat.runtime)]
            sums = [" + ".join([*(f"{step} * {dim}" for dim, step in form.items()), str(constant)]) for form, constant in places]
            sums += self.shared[-1:] if flat in updated else ()
            if not images(self.domain.get_ctx(), self.outputs, sums).intersect_domain(self.results).is_injective():
                return False
        return True

    def with_forms(self, change: Callable[[FlatAccess], FlatAccess]) -> FlatStatement:
        """The statement with every access changed."""

        def changed(reads: Mapping[Access, FlatAccess]) -> dict[Access, FlatAccess]:
            return {access: change(flat) for access, flat in reads.items()}

        epilogue = tuple(replace(e, write=change(e.write), reads=changed(e.reads)) for e in self.epilogue)
        reads, start_reads = changed(self.reads), changed(self.start_reads)
        return replace(self, write=change(self.write), reads=reads, start_reads=start_reads, epilogue=epilogue)

    def estimated(self) -> FlatStatement:
        """The statement for sizes in the middle of those that it is for, as plans are made for it, or for the greatest of them."""
        if not (self.dynamic or any(flat.runtime for flat in self.accesses)):
            return self
        middle = self.results.params()
        for at in range(middle.dim(DIM.param)):
            values = isl.Set.from_params(middle).move_dims(DIM.set, 0, DIM.param, at, 1)
            least, greatest = values.dim_min_val(0).to_python(), values.dim_max_val(0).to_python()
            middle = middle.fix_val(DIM.param, at, isl.Val(math.isqrt(least * greatest), middle.get_ctx()))
        if middle.is_empty() or self.domain.intersect_params(middle).is_empty():
            middle = self.results.params()

        def at_sizes(where: isl.Set) -> isl.Set:
            return where.intersect_params(middle).project_out(DIM.param, 0, where.dim(DIM.param)).coalesce()

        domain, results = at_sizes(self.domain), at_sizes(self.results)
        fewest = {dim: self.least_extent(dim) for dim in self.dynamic if dim in self.outputs}
        return replace(self.with_forms(FlatAccess.estimated), domain=domain, results=results, dynamic={}, fewest=fewest)


def parameter_names(where: isl.Set) -> list[str]:
    """The parameters of a set: dynamic sizes."""
    return [str(where.get_dim_name(DIM.param, at)) for at in range(where.dim(DIM.param))]


def parameters(where: isl.Set) -> str:
    """What stands before the braces of isl's texts over the parameters of a set."""
    names = parameter_names(where)
    return f"[{', '.join(names)}] -> " if names else ""


@dataclass(frozen=True)
class Place:
    """A quasi-affine place in memory: ``fixed``, and for each axis whose stride only a call knows its subscript."""

    fixed: isl.PwAff
    runtime: tuple[tuple[int, int, isl.PwAff], ...] = ()  # axis, an estimate of its stride, subscript
    axes: Mapping[str, int] = field(default_factory=dict)  # as in FlatAccess

    def pullback(self, points: isl.MultiAff) -> Place:
        """The place over the points of a class."""
        runtime = tuple((axis, stride, subscript.pullback_multi_aff(points)) for axis, stride, subscript in self.runtime)
        return Place(self.fixed.pullback_multi_aff(points), runtime)


@dataclass(frozen=True)
class AffineStatement(NestStatement[Place]):
    """A statement whose accesses are quasi-affine expressions over memory: divisions are still there, conditions in the body, and
    dimensions need not start at 0."""

    tensor: str  # that it writes
    elements: Mapping[str, int]  # of each tensor, as in FlatAccess

    def flat(self) -> FlatStatement:
        """The same with linear forms; a MappingError where an access is none on the domain."""

        def linear(tensor: str, place: Place, where: isl.Set) -> FlatAccess:
            return linear_form(tensor, self.elements[tensor], place, self.dims, where)

        reads = {access: linear(access.tensor, place, self.domain) for access, place in self.reads.items()}
        results = self.results.insert_dims(DIM.set, len(self.outputs), len(self.terms))
        write = linear(self.tensor, self.write, results)
        starts = {access: linear(access.tensor, place, results) for access, place in self.start_reads.items()}
        form = self.name, self.dims, self.terms, self.domain.coalesce(), self.results, self.operator, self.start
        return FlatStatement(*form, write, self.body, reads, starts, self.shared, self.dynamic)


def linear_form(tensor: str, elements: int, place: Place, dims: tuple[str, ...], domain: isl.Set) -> FlatAccess:
    """A place as linear forms where it is made of some on the domain, divisions that the domain decides included."""
    form, constant = _linear(tensor, place.fixed, dims, domain)
    runtime = [(axis, *_linear(tensor, subscript, dims, domain), stride) for axis, stride, subscript in place.runtime]
    return FlatAccess(tensor, form, constant, elements, tuple(RuntimeAxis(*axis) for axis in runtime), place.axes)


def _linear(tensor: str, value: isl.PwAff, dims: tuple[str, ...], domain: isl.Set) -> tuple[dict[str, int], int]:
    on_domain = value.intersect_domain(domain).gist(domain).coalesce()
    pieces = on_domain.get_pieces()
    if len(pieces) != 1:
        raise MappingError(f"an access to {tensor} is in pieces")
    aff = pieces[0][1]
    if not aff.get_denominator_val().is_one() or has(aff, DIM.div):
        raise MappingError(f"an access to {tensor} divides an index")
    if has(aff, DIM.param):
        raise MappingError(f"an access to {tensor} begins at a dynamic size")
    form = {dim: step for at, dim in enumerate(dims) if (step := aff.get_coefficient_val(DIM.in_, at).to_python())}
    return form, aff.get_constant_val().to_python()
