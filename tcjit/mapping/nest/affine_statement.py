"""From an assignment to a statement with quasi-affine accesses over its box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.affine import affine, guarded_accesses, isl_name
from tcjit.grammar.ast import Access, Index, Program
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, to_statement
from tcjit.mapping.isl import points
from tcjit.mapping.nest.epilogue import Epilogue
from tcjit.mapping.nest.statement import AffineStatement, FlatAccess, FlatStatement, Place, PointwiseStore, linear_form
from tcjit.mapping.storage import Storage


def affine_statement(name: str, a: Assignment, tensors: Mapping[str, Storage], program: Program, ctx: isl.Context) -> AffineStatement:
    """An assignment of a program as a statement over its box; a MappingError where an access is not affine."""
    boxed = to_statement(name, a, program.values)
    dims = boxed.isl_dims
    domain = points(ctx, dims, [*boxed.facts, *program.context], program.parameters)
    over = {dim for dim, _, _ in a.terms}  # for some sizes there may be none, but there are results
    open_ended = replace(boxed, dynamic_bounds=tuple(bound for bound in boxed.dynamic_bounds if bound[0] not in over))
    every = points(ctx, dims, [*open_ended.facts, *program.context], program.parameters)
    results = every.project_out(isl.dim_type.set, len(a.results), len(a.terms))
    terms = tuple(isl_name(dim) for dim, _, _ in a.terms)
    if any(not lower.isdigit() for _, lower, _ in boxed.dynamic_bounds):
        raise MappingError("a range begins at a dynamic size")

    def place(access: Access) -> Place:
        return address(access, dims, tensors, program, ctx)

    elements = {name: storage.known_elements for name, storage in tensors.items()}
    reads = {access: place(access) for access in a.reads}
    starts = {access: place(access) for access, _ in guarded_accesses(a.start)} if a.start is not None else {}
    write = place(a.element)
    shared = tuple(map(isl_name, a.outer.dims)) if a.outer else ()
    dynamic = {isl_name(dim): upper for dim, _, upper in boxed.dynamic_bounds}
    return AffineStatement(
        name, dims, terms, domain, results, a.operator, a.start, write, a.value, reads, starts, shared, dynamic, a.tensor, elements
    )


def with_epilogue(s: FlatStatement, epilogue: Epilogue, tensors: Mapping[str, Storage], program: Program) -> FlatStatement:
    """A statement over the dimensions of its assignment with what follows it. Sums that have no place of their own, and are not complete,
    stay in that of the last result which follows and has their type and order."""
    ctx, outputs = s.domain.get_ctx(), s.outputs

    def flat(access: Access) -> FlatAccess:
        place = address(access, outputs, tensors, program, ctx)
        return linear_form(access.tensor, tensors[access.tensor].known_elements, place, outputs, s.results)

    def store(e: Assignment) -> PointwiseStore:
        reads = {access: flat(access) for access in e.reads if access.tensor != s.write.tensor}
        return PointwiseStore(flat(e.element), tensors[e.tensor].dtype, e.value, reads)

    found = replace(s, epilogue=tuple(map(store, epilogue.assignments)), stored=epilogue.stored)
    read = {access.tensor for access in (*s.reads, *s.start_reads, *(access for e in found.epilogue for access in e.reads))}
    own = s.write.form, s.write.runtime
    alike = [e.write for e in found.epilogue if e.dtype == tensors[s.write.tensor].dtype and (e.write.form, e.write.runtime) == own]
    places = [write for write in alike if write.tensor not in read]
    return replace(found, write=places[-1], sums=s.write.tensor) if places and not found.in_memory else found


def address(access: Access, dims: tuple[str, ...], tensors: Mapping[str, Storage], program: Program, ctx: isl.Context) -> Place:
    """The place of an accessed element in memory, as quasi-affine expressions over the dimensions."""
    storage = tensors[access.tensor]
    parts, runtime, values = [], [], program.values

    def read(text: str) -> isl.PwAff:
        return isl.PwAff.read_from_str(ctx, f"{program.parameters}{{ [{', '.join(dims)}] -> [({text})] }}")

    for axis, (stride, subscript) in enumerate(zip(storage.strides, access.subscripts, strict=True)):
        text = affine(subscript, values)
        if text is None:
            raise MappingError(f"an access to {access.tensor} is not affine")
        if stride is None:
            runtime.append((axis, storage.estimated_strides[axis], read(text)))
        else:
            parts.append(f"{stride} * ({text})")
    return Place(read(" + ".join(parts) or "0"), tuple(runtime), _axes(access, storage))


def _axes(access: Access, storage: Storage) -> dict[str, int]:
    """The extents of axes of fixed size that a dimension by itself indexes, which moves no other."""
    used = Counter(name for sub in access.subscripts for name in names(sub))
    axes = [(axis, sub.name) for axis, sub in enumerate(access.subscripts) if isinstance(sub, Index) and used[sub.name] == 1]
    return {isl_name(name): storage.shape[axis] for axis, name in axes if storage.extent(axis) is None}
