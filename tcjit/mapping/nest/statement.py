"""Statements with exact iteration domains and flat accesses: what nests are made of.

Conditions of the program become part of a domain (``restrict``, ``split_residues``), so that a tile is full, partial or absent before
anything is printed. An access is a linear form over memory, so that roles of dimensions, strides of lanes and footprints are coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Expr

DIM = isl.dim_type


@dataclass(frozen=True)
class FlatAccess:
    """The element ``constant + sum(form[d] * d)`` of a memory of ``elements``; dimensions that do not move it are not in ``form``."""

    tensor: str
    form: Mapping[str, int]
    constant: int
    elements: int

    def stride(self, dim: str) -> int:
        """Elements by which the access moves when ``dim`` moves by one."""
        return self.form.get(dim, 0)


@dataclass(frozen=True)
class PointwiseStore:
    """``write = value`` for every result of a reduction, from its accumulator and what it reads; ``value`` reads the reduction's results
    where ``reads`` has no place for an access."""

    write: FlatAccess
    dtype: str
    value: Expr
    reads: Mapping[Access, FlatAccess]


@dataclass(frozen=True)
class FlatStatement:
    """``write operator body`` for each point of ``domain``, after ``start`` was written for each point of ``results``.

    ``domain`` is exact and need not be a box; its dimensions are ``dims``, those of the reduction (``terms``) last. ``results`` is over
    the other dimensions: a result without a term is started too. ``reads`` and ``start_reads`` give the places of the accesses in ``body``
    and ``start``. The ``epilogue`` follows once a result is complete, which itself is ``stored`` or only lives in its accumulator.
    """

    name: str
    dims: tuple[str, ...]
    terms: tuple[str, ...]
    domain: isl.Set
    results: isl.Set
    operator: str
    start: Expr | None
    write: FlatAccess
    body: Expr
    reads: Mapping[Access, FlatAccess]
    start_reads: Mapping[Access, FlatAccess] = field(default_factory=dict)
    epilogue: tuple[PointwiseStore, ...] = ()
    stored: bool = True
    shared: tuple[str, ...] = ()  # dimensions of results whose loops stand outermost, as other statements have them too

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The dimensions of the results."""
        return tuple(dim for dim in self.dims if dim not in self.terms)

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

    @cached_property
    def is_box(self) -> bool:
        """Whether every point between the bounds of its dimensions is in the domain."""
        ranges = [f"{least} <= {dim} <= {greatest}" for dim in self.dims for least, greatest in (self.range(dim),)]
        box = isl.Set.read_from_str(self.domain.get_ctx(), f"{{ [{', '.join(self.dims)}] : {' and '.join(ranges) or '0 = 0'} }}")
        return bool(box.is_equal(self.domain))

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
        """Whether no two results are written to one element, so that their order means nothing."""
        for flat in (self.write, *(e.write for e in self.epilogue)):
            place = " + ".join([*(f"{step} * {dim}" for dim, step in flat.form.items()), str(flat.constant)])
            written = isl.Map.read_from_str(self.domain.get_ctx(), f"{{ [{', '.join(self.outputs)}] -> [{place}] }}")
            if not written.intersect_domain(self.results).is_injective():
                return False
        return True

    def with_forms(self, change: Callable[[FlatAccess], FlatAccess]) -> FlatStatement:
        """The statement with every access changed."""

        def changed(reads: Mapping[Access, FlatAccess]) -> dict[Access, FlatAccess]:
            return {access: change(flat) for access, flat in reads.items()}

        epilogue = tuple(replace(e, write=change(e.write), reads=changed(e.reads)) for e in self.epilogue)
        reads, start_reads = changed(self.reads), changed(self.start_reads)
        return replace(self, write=change(self.write), reads=reads, start_reads=start_reads, epilogue=epilogue)


@dataclass(frozen=True)
class AffineStatement:
    """A statement whose accesses are quasi-affine expressions over memory: divisions are still there, and conditions in the body."""

    name: str
    dims: tuple[str, ...]
    terms: tuple[str, ...]
    domain: isl.Set
    results: isl.Set
    operator: str
    start: Expr | None
    tensor: str
    write: isl.PwAff
    body: Expr
    reads: Mapping[Access, isl.PwAff]
    start_reads: Mapping[Access, isl.PwAff]
    elements: Mapping[str, int]  # of each tensor
    shared: tuple[str, ...] = ()  # as in FlatStatement

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dim for dim in self.dims if dim not in self.terms)

    def flat(self) -> FlatStatement:
        """The same with linear forms; a MappingError where an access is none on the domain."""

        def linear(tensor: str, place: isl.PwAff, where: isl.Set) -> FlatAccess:
            return linear_form(tensor, self.elements[tensor], place, self.dims, where)

        reads = {access: linear(access.tensor, place, self.domain) for access, place in self.reads.items()}
        results = self.results.insert_dims(DIM.set, len(self.outputs), len(self.terms))
        write = linear(self.tensor, self.write, results)
        starts = {access: linear(access.tensor, place, results) for access, place in self.start_reads.items()}
        names = self.name, self.dims, self.terms
        flat = FlatStatement(*names, self.domain.coalesce(), self.results, self.operator, self.start, write, self.body, reads, starts)
        return replace(flat, shared=self.shared)


def linear_form(tensor: str, elements: int, place: isl.PwAff, dims: tuple[str, ...], domain: isl.Set) -> FlatAccess:
    """A place as a linear form where it is one on the domain, divisions that the domain decides included."""
    on_domain = place.intersect_domain(domain).gist(domain).coalesce()
    pieces = on_domain.get_pieces()
    if len(pieces) != 1:
        raise MappingError(f"an access to {tensor} is in pieces")
    aff = pieces[0][1]
    if not aff.get_denominator_val().is_one() or any(not aff.get_coefficient_val(DIM.div, at).is_zero() for at in range(aff.dim(DIM.div))):
        raise MappingError(f"an access to {tensor} divides an index")
    form = {dim: step for at, dim in enumerate(dims) if (step := aff.get_coefficient_val(DIM.in_, at).to_python())}
    return FlatAccess(tensor, form, aff.get_constant_val().to_python(), elements)
