"""Contract slices: what statements under shared outer loops compute for one another has one iteration's elements for each thread.

Nothing passes from one iteration to another, so a thread can use the same memory for all of its own: arrays are contracted along the
loops, and what is read was written a moment ago, in the thread's own cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import isl_name
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.isl import maps
from tcjit.mapping.marks import Mark
from tcjit.mapping.nest.statement import FlatAccess
from tcjit.mapping.nest.tiled_statement import TiledStatement
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Storage, ThreadSlice
from tcjit.mapping.strides import accesses, affine_form
from tcjit.mapping.tree import partial_schedule

Form = tuple[tuple[int, ...], int, int]  # elements moved by each of the loops; the least and the greatest element without them


def contract_slices(scop: Scop, group: Sequence[ScopStatement], mark: Mark) -> tuple[ThreadSlice, ...]:
    """The slices of the temporaries that only a group of statements under shared loops uses, where that takes less memory."""
    names = {s.name for s in group}
    outside = {access.tensor for s in scop.statements if s.name not in names for access in accesses(s)}
    slices = []
    for storage in scop.tensors:
        if storage.role != "temporary" or storage.name in outside or any(storage.dynamic_extents):
            continue
        forms = [form for s in group for form in _forms(scop, s, storage)]
        steps = {None if form is None else form[0] for form in forms}
        known = [form for form in forms if form is not None]
        if len(steps) != 1 or not known:
            continue
        least, greatest = min(form[1] for form in known), max(form[2] for form in known)
        if 2 * (greatest - least + 1) <= storage.elements:
            slices.append(ThreadSlice(storage.name, mark, known[0][0], least, greatest - least + 1))
    return tuple(slices)


def _forms(scop: Scop, s: ScopStatement, storage: Storage) -> Iterator[Form | None]:
    """The accesses of a statement to a tensor; None for one that is not affine."""
    assert s.outer is not None
    if s.tiled:
        for tiled in s.tiled:
            flats = [*tiled.statement.accesses, *(flat for operand in tiled.operands for flat in operand.flats)]
            yield from (_of_flat(tiled, flat, s.outer.dims) for flat in flats if flat.tensor == storage.name)
    elif not s.fused:
        ranges = {name: (lower, upper - 1) for name, lower, upper in s.bounds}
        for access in accesses(s):
            if access.tensor != storage.name:
                continue
            form, constant, ranges[""] = dict.fromkeys(ranges, 0), 0, (0, 1)
            for sub, step, extent in zip(access.subscripts, storage.strides, storage.shape, strict=True):
                linear = affine_form(sub, scop.values)
                if step is None or linear is not None and not set(linear[0]) <= set(form):
                    yield None
                    return
                if linear is None:  # data, which may be any element along the axis
                    form[""] = form.get("", 0) + step * (extent - 1)
                    continue
                constant += step * linear[1]
                form = {name: total + step * linear[0].get(name, 0) for name, total in form.items()}
            yield _extremes(form, constant, ranges, s.outer.dims)


def _of_flat(tiled: TiledStatement, flat: FlatAccess, dims: Sequence[str]) -> Form:
    """The access of a nest, which reads whole tiles."""
    s, leaf = tiled.statement, tiled.nest.leaf
    sizes = {dim: 1 if dim in leaf.window else leaf.tile(dim, tiled.width) for dim in s.dims}
    ranges = {dim: (0, -(-s.extent(dim) // size) * size - 1) for dim, size in sizes.items()}
    lane = abs(flat.stride(leaf.lane)) - 1  # strided lanes are taken out of whole vectors
    steps, least, greatest = _extremes({dim: flat.stride(dim) for dim in s.dims}, flat.constant, ranges, tuple(map(isl_name, dims)))
    return steps, least, greatest + max(0, lane)


def _extremes(form: dict[str, int], constant: int, ranges: dict[str, tuple[int, int]], dims: Sequence[str]) -> Form:
    least = greatest = constant
    for name, step in form.items():
        if name not in dims:
            ends = [step * end for end in ranges[name]]
            least, greatest = least + min(ends), greatest + max(ends)
    return tuple(form.get(dim, 0) for dim in dims), least, greatest


def verify_outer_loops(scop: Scop, deps: Dependences) -> None:
    """Prove that nothing passes between the iterations of the loops that all statements of a scop share, and that nests have them
    outermost."""
    dims = {s.name: s.outer.dims for s in scop.statements if s.outer is not None}
    depths = {(len(s.outer.dims), len(s.outer.shared)) for s in scop.statements if s.outer is not None}
    if len(dims) != len(scop.statements) or len(depths) != 1:
        raise VerifyError("fuse_outer_loops: statements share different loops")
    depth, shared = depths.pop()
    loops = partial_schedule(scop, [{name: isl_name(found[level]) for name, found in dims.items()} for level in range(depth)])
    passed = deps.all.subtract(deps.all.eq_at_multi_union_pw_aff(loops))
    if shared < depth:  # updates of the same results follow one another
        outer, last = loops.drop_dims(isl.dim_type.set, shared, 1), isl.MultiUnionPwAff.from_union_pw_aff(loops.get_at(shared))
        own = [one for one in maps(passed) if one.get_tuple_name(isl.dim_type.in_) == one.get_tuple_name(isl.dim_type.out)]
        updates = reduce(isl.UnionMap.union, [one.to_union_map() for one in own], isl.UnionMap.read_from_str(scop.ctx, "{ }"))
        passed = passed.subtract(updates.eq_at_multi_union_pw_aff(outer).lex_lt_at_multi_union_pw_aff(last))
    if not passed.is_empty():
        raise VerifyError("fuse_outer_loops: a value passes from one iteration to another")
    for s in scop.statements:
        for tiled in s.tiled:
            for level, dim in enumerate(map(isl_name, dims[s.name])):
                names = [*tiled.tiles.digits, *(f"r_{name}" for name in tiled.tiles.inside)]
                digit = isl.PwAff.read_from_str(scop.ctx, f"{{ [{', '.join(names)}] -> [({names[level]})] }}")
                if not tiled.tiles.points.get_at(tiled.statement.dims.index(dim)).is_equal(digit):
                    raise VerifyError(f"fuse_outer_loops: {tiled.name} does not have the shared loops outermost")
                if not _writes_alike(scop, s, tiled, dims[s.name][level], dim):
                    raise VerifyError(f"fuse_outer_loops: a loop of {tiled.name} is over other points than the shared one")


def _writes_alike(scop: Scop, s: ScopStatement, tiled: TiledStatement, name: str, dim: str) -> bool:
    """Whether a nest's result moves along a shared loop as that of its statement does: one over a residue class would move further."""
    storage, write = scop.tensor(s.tensor), tiled.statement.write
    forms = [affine_form(sub, scop.values) for sub in s.subscripts]
    if write.tensor != s.tensor or write.runtime or None in storage.strides or None in forms:
        return True  # it is another tensor's, or not affine
    return write.stride(dim) == sum(step * form[0].get(name, 0) for step, form in zip(storage.strides, forms) if step and form)
