"""From an assignment to a statement with quasi-affine accesses over its box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.affine import affine, guarded_accesses, isl_name
from tcjit.grammar.ast import Access
from tcjit.mapping.assignment import Assignment, to_statement
from tcjit.mapping.nest.epilogue import Epilogue
from tcjit.mapping.nest.statement import AffineStatement, FlatAccess, FlatStatement, PointwiseStore, linear_form
from tcjit.mapping.storage import Storage


def affine_statement(
    name: str, a: Assignment, tensors: Mapping[str, Storage], values: Mapping[str, int], ctx: isl.Context
) -> AffineStatement:
    """An assignment as a statement over its box; a MappingError where an access is not affine."""
    boxed = to_statement(name, a, values)
    dims = boxed.isl_dims
    domain = isl.Set.read_from_str(ctx, f"{{ [{', '.join(dims)}] : {' and '.join(boxed.facts) or '0 = 0'} }}")
    results = domain.project_out(isl.dim_type.set, len(a.results), len(a.terms))
    terms = tuple(isl_name(dim) for dim, _, _ in a.terms)

    def place(access: Access) -> isl.PwAff:
        return address(access, dims, ctx, tensors, values)

    elements = {name: storage.elements for name, storage in tensors.items()}
    reads = {access: place(access) for access, _ in guarded_accesses(a.value)}
    starts = {access: place(access) for access, _ in guarded_accesses(a.start)} if a.start is not None else {}
    write = place(Access(a.tensor, a.subscripts, dtype=a.value.dtype))
    shared = tuple(map(isl_name, a.outer.dims)) if a.outer else ()
    return AffineStatement(
        name, dims, terms, domain, results, a.operator, a.start, a.tensor, write, a.value, reads, starts, elements, shared
    )


def with_epilogue(
    s: FlatStatement, epilogue: Epilogue, tensors: Mapping[str, Storage], values: Mapping[str, int]
) -> FlatStatement:
    """A statement over the dimensions of its assignment with what follows it."""
    ctx, outputs = s.domain.get_ctx(), s.outputs

    def flat(access: Access) -> FlatAccess:
        place = address(access, outputs, ctx, tensors, values)
        return linear_form(access.tensor, tensors[access.tensor].elements, place, outputs, s.results)

    def store(e: Assignment) -> PointwiseStore:
        reads = {access: flat(access) for access, _ in guarded_accesses(e.value) if access.tensor != s.write.tensor}
        return PointwiseStore(flat(Access(e.tensor, e.subscripts, dtype=e.value.dtype)), tensors[e.tensor].dtype, e.value, reads)

    return replace(s, epilogue=tuple(map(store, epilogue.assignments)), stored=epilogue.stored)


def address(
    access: Access, dims: tuple[str, ...], ctx: isl.Context, tensors: Mapping[str, Storage], values: Mapping[str, int]
) -> isl.PwAff:
    """The place of an accessed element in memory, as a quasi-affine expression over the dimensions."""
    strides = tensors[access.tensor].strides
    parts = []
    for stride, subscript in zip(strides, access.subscripts, strict=True):
        text = affine(subscript, values)
        if stride is None or text is None:
            raise MappingError(f"an access to {access.tensor} is not affine")
        parts.append(f"{stride} * ({text})")
    return isl.PwAff.read_from_str(ctx, f"{{ [{', '.join(dims)}] -> [({' + '.join(parts) or '0'})] }}")
