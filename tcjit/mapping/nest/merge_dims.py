"""Dimensions of a statement as few as can be, each from 0 on: those with a single value are dropped, and two that every access walks as
one are merged.

``X(b, c, h, w)`` read and written alike in ``h`` and ``w`` is one loop over their product: fewer loops, longer vectors, no remainder for
each row. A tile's number times its size is where it begins.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from tcjit.mapping.isl import images, points
from tcjit.mapping.nest.statement import DIM, FlatAccess, FlatStatement, parameters


def drop_unit_dims(s: FlatStatement) -> FlatStatement:
    """The statement without dimensions of one value."""
    for dim in s.dims:
        least, greatest = s.range(dim)
        if least == greatest:
            s = fix_dim(s, dim, least)
    return s


def fix_dim(s: FlatStatement, dim: str, value: int) -> FlatStatement:
    """What a statement is at one value of a dimension, without it."""

    def moved(flat: FlatAccess) -> FlatAccess:
        return flat.moved({dim: value}).without(dim)

    def fixed(where: isl.Set, at: int) -> isl.Set:
        return where.fix_val(DIM.set, at, isl.Val(value, where.get_ctx())).project_out(DIM.set, at, 1)

    results = s.results if dim in s.terms else fixed(s.results, s.outputs.index(dim))
    domain = fixed(s.domain, s.dims.index(dim))
    dims, terms, shared = (tuple(name for name in names if name != dim) for names in (s.dims, s.terms, s.shared))
    dynamic = {name: text for name, text in s.dynamic.items() if name != dim}
    return replace(s.with_forms(moved), dims=dims, terms=terms, domain=domain, results=results, shared=shared, dynamic=dynamic)


def mergeable(s: FlatStatement, outer: str, inner: str) -> bool:
    """Whether two dimensions from 0 on, both of the results or both terms, are one to every access and bound by nothing but their box."""
    if outer == inner or (outer in s.terms) != (inner in s.terms) or s.range(outer)[0] or s.range(inner)[0]:
        return False
    if outer in s.shared or inner in s.shared or inner in s.dynamic:
        return False
    extent = s.extent(inner)
    if not all(flat.walks_as_one(outer, inner, extent) for flat in s.accesses):
        return False
    if not _boxed(s, s.domain, s.dims, (outer, inner)):
        return False
    at = s.dims.index(inner)
    if (s.domain.dim_min_val(at).to_python(), s.domain.dim_max_val(at).to_python()) != (0, extent - 1):
        return False  # the whole of each row, or what is merged has gaps
    return outer in s.terms or _boxed(s, s.results, s.outputs, (outer, inner))


def merge(s: FlatStatement, outer: str, inner: str) -> FlatStatement:
    """The statement with ``extent(inner) * outer + inner`` for both; the new dimension has the name of the inner one."""
    extent = s.extent(inner)

    def merged(where: isl.Set, dims: tuple[str, ...]) -> isl.Set:
        left = [dim for dim in dims if dim != outer]
        to = [f"{extent} * {outer} + {inner}" if dim == inner else dim for dim in left]
        return where.apply(images(where.get_ctx(), dims, to)).coalesce()

    results = s.results if outer in s.terms else merged(s.results, s.outputs)
    domain = merged(s.domain, s.dims)
    dims, terms = (tuple(name for name in names if name != outer) for names in (s.dims, s.terms))

    dynamic = {inner if dim == outer else dim: f"{extent} * ({text})" if dim == outer else text for dim, text in s.dynamic.items()}
    both = (*s.merged.get(outer, (outer,)), *s.merged.get(inner, (inner,)))
    made = replace(s.with_forms(lambda flat: replace(flat.without(outer), axes={})), dims=dims, terms=terms, domain=domain, results=results)
    return replace(made, dynamic=dynamic, merged={**s.merged, inner: both})


def _boxed(s: FlatStatement, where: isl.Set, dims: tuple[str, ...], some: tuple[str, ...]) -> bool:
    """Whether some dimensions are bounded by constants and sizes alone, whatever the others are."""
    free, ends = where, []
    for dim in some:
        at = dims.index(dim)
        least, greatest = where.dim_min_val(at), where.dim_max_val(at)
        free = free.drop_constraints_involving_dims(DIM.set, at, 1)
        free = free.lower_bound_val(DIM.set, at, least).upper_bound_val(DIM.set, at, greatest)
        ends += [f"{dim} < {s.dynamic[dim]}"] if dim in s.dynamic else []
    return bool(free.intersect(points(where.get_ctx(), dims, ends, parameters(where))).is_equal(where))


def shift_dims(s: FlatStatement) -> FlatStatement:
    """The statement over ``d - least(d)`` for each dimension ``d``."""
    least = {dim: lower for dim in s.dims if (lower := s.range(dim)[0])}
    if not least:
        return s

    def back(dims: tuple[str, ...]) -> isl.MultiAff:
        images = ", ".join(f"{dim} + {least.get(dim, 0)}" for dim in dims)
        return isl.MultiAff.read_from_str(s.domain.get_ctx(), f"{{ [{', '.join(dims)}] -> [{images}] }}")

    domain, results = s.domain.preimage_multi_aff(back(s.dims)), s.results.preimage_multi_aff(back(s.outputs))
    dynamic = {dim: f"({text}) - {least[dim]}" if dim in least else text for dim, text in s.dynamic.items()}
    return replace(s.with_forms(lambda flat: flat.moved(least)), domain=domain, results=results, dynamic=dynamic)
