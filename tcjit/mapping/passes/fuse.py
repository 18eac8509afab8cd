"""Fuse: let statements share their outer parallel loops where the value of one meets its use in the other at distance zero.

Sharing loops buys locality (a row of a softmax is read once, a bias is added while the product is in cache) and may cost reuse: a matrix
product wants *both* its loops at one level, or its tiles fall apart. So two groups are merged only over dimensions that keep what
every reduction in them needs, and only while enough parallel work remains. On a GPU the threads of a block share what stays inside: while
one block can keep it all, reading it once is worth more than work for all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Index
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.gpu.scatter_time import summed_dims
from tcjit.mapping.isl import maps
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Group, Scop, ScopStatement
from tcjit.mapping.strides import KEPT, accesses, fits_block, involves, stride
from tcjit.mapping.tree import filters, insert_band, insert_sequence

# parallel iterations that fusing must leave on a CPU; below it, separate loops use the threads better
ENOUGH_PARALLEL = 16
# times as many instances as those before them have statements that give up no outer loops for values that are computed once
FEW = 16


def fused_groups(
    scop: Scop, deps: Dependences, options: Options, enough: int = ENOUGH_PARALLEL, on_blocks: bool = False
) -> tuple[Group, ...]:
    """The statements that share loops, in the order of the program.

    ``enough``: parallel iterations that fusing must leave; ``on_blocks``: unless a block of threads can keep what each of them takes.
    """
    units = [Group((s.name,), tuple({s.name: d} for d in _outer_dims(s, enough))) for s in scop.statements]
    groups: list[Group] = []
    for unit in _with_initialisations(scop, deps, units):
        groups.append(unit)
        while len(groups) > 1 and options.fusion != "minimal":
            first, second = groups[-2:]
            handed = second is unit or _between(deps, first, second)  # a later use of what stands before the group that a statement joined
            merged = _merge(scop, deps, first, second, enough, on_blocks, maximal=options.fusion == "maximal") if handed else None
            if merged is None:
                break
            groups[-2:] = [merged]
    alone = len(groups) == 1 and not groups[0].columns  # nothing is shared, and nothing else would wait
    return tuple(units if alone else groups)


def _outer_dims(s: ScopStatement, enough: int) -> list[str]:
    """The dimensions of a statement by itself that iterations share. A scatter goes over its terms, but for those that are summed before an
    update, and over what each of them has in the results that data pick: other chunks of terms, which have results of their own, come
    next to each other."""
    if s.scatter:
        inside = (*s.scatter, *summed_dims(s, enough))
        return sorted((d for d in s.dims if d not in inside), key=lambda d: d not in s.reduction)
    return [d for d in s.dims if d not in s.reduction]


def fuse(scop: Scop, groups: Sequence[Group]) -> isl.Schedule:
    """A sequence of groups, each a band of shared coincident members over a sequence of its statements."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    parts = filters(scop, [group.statements for group in groups])
    return insert_sequence(node, parts, lambda leaf, number: _group_tree(scop, leaf, groups[number])).get_schedule()


def _group_tree(scop: Scop, node: isl.ScheduleNode, group: Group) -> isl.ScheduleNode:
    def own_loops(leaf: isl.ScheduleNode, number: int) -> isl.ScheduleNode:
        s = scop.statement(group.statements[number])
        rest = sorted(group.rest(scop, s.name), key=lambda d: d in s.reduction)
        coincident = range(sum(d not in s.reduction for d in rest))
        return insert_band(scop, leaf, [{s.name: isl_name(d)} for d in rest], coincident) if rest else leaf

    if group.columns:
        texts = [{name: isl_name(dim) for name, dim in column.items()} for column in group.columns]
        node = insert_band(scop, node, texts, range(len(texts))).child(0)
    return insert_sequence(node, filters(scop, [(name,) for name in group.statements]), own_loops)


def _with_initialisations(scop: Scop, deps: Dependences, units: Sequence[Group]) -> list[Group]:
    """Join an initialisation with the update that directly follows it, so that a reduction moves as one."""
    result: list[Group] = []
    for unit in units:
        if result and len(unit.statements) == 1 and len(result[-1].statements) == 1:
            first, second = scop.statement(result[-1].statements[0]), scop.statement(unit.statements[0])
            if first.source == second.source and first.tensor == second.tensor and first.operator == "=" and second.operator != "=":
                columns = shared_columns(scop, deps, result[-1], unit)
                if len(columns) == len(first.dims):
                    result[-1] = Group((first.name, second.name), tuple(columns))
                    continue
        result.append(unit)
    return result


def _merge(scop: Scop, deps: Dependences, first: Group, second: Group, enough: int, on_blocks: bool, *, maximal: bool) -> Group | None:
    """Both groups over the columns that match; None where none does or, unless fusion is maximal, where it would cost more than it
    brings."""
    if any(scop.statement(name).scatter for name in (*first.statements, *second.statements)):
        return None
    shared = shared_columns(scop, deps, first, second)
    if not shared and (first.columns or second.columns):
        return None
    if not shared:
        return Group(first.statements + second.statements, ())
    if not same_box(scop, shared):
        return None
    outer_only = any(scop.statement(name).fuse_outer_only for name in second.statements)
    if maximal and not (outer_only and on_blocks):
        return Group(first.statements + second.statements, tuple(shared))
    if outer_only:
        return None
    both = Group(first.statements + second.statements, tuple(shared))
    if any(not reuse_dims(scop.statement(name)) <= {column[name] for column in shared} for name in both.statements):
        return None
    alone = not any(scop.statement(name).reduction for name in both.statements)  # reductions may have their terms between
    outermost = _are_outermost(scop, shared, second) and (not alone or _are_outermost(scop, shared, first))
    if not outermost and (alone or _points(scop, first) * FEW <= _points(scop, second)):
        return None
    if on_blocks and any(_results_inside(scop, both, name) > KEPT for name in both.statements):
        return None
    left = _parallel(scop, shared)
    few = left < min(enough, max(_parallel(scop, first.columns), _parallel(scop, second.columns)))
    if few and not (on_blocks and all(_fits_block(scop, both, name) for name in both.statements)):
        return None
    return both


def _points(scop: Scop, group: Group) -> int:
    return sum(scop.statement(name).points for name in group.statements)


def _are_outermost(scop: Scop, shared: Sequence[dict[str, str]], group: Group) -> bool:
    """Whether shared columns are the outermost ones of each statement: else loops that threads could share would go inside."""
    return all(
        {column[s.name] for column in shared} == {*[dim for dim in s.dims if dim not in s.reduction][: len(shared)]}
        for s in map(scop.statement, group.statements)
    )


def _results_inside(scop: Scop, group: Group, name: str) -> int:
    """The results of a reduction at one iteration of the shared loops, which a thread would have one after another."""
    s = scop.statement(name)
    return prod(s.extent(dim) for dim in group.rest(scop, name) if dim not in s.reduction) if s.reduction else 1


def _fits_block(scop: Scop, group: Group, name: str) -> bool:
    """Whether one block can keep what a statement does in one iteration of the shared loops."""
    s = scop.statement(name)
    return fits_block({d: s.extent(d) for d in group.rest(scop, name)}, accesses(s), lambda access, dim: stride(scop, access, dim))


def same_box(scop: Scop, columns: Sequence[dict[str, str]]) -> bool:
    """Whether the statements run over the same values of every shared column (else tiles would need guards)."""
    return all(len({scop.statement(s).range(dim) for s, dim in column.items()}) == 1 for column in columns)


def _parallel(scop: Scop, columns: Sequence[dict[str, str]]) -> int:
    return prod(scop.statement(name).extent(dim) for name, dim in (next(iter(column.items())) for column in columns))


def reuse_dims(s: ScopStatement) -> set[str]:
    """The parallel dimensions along which a reduction reuses what it reads: tiling them is where its speed comes from."""
    if not s.reduction:
        return set()
    left = [d for d in s.dims if d not in s.reduction]
    reads = [access for access, _ in s.reads if access.tensor != s.tensor]
    # a tensor of lower rank than the reduction (a row statistic beside a matrix) is no reuse worth a tile
    heavy = [a for a in reads if any(involves(sub, r) for sub in a.subscripts for r in s.reduction)]
    return {d for d in left for a in heavy if not any(involves(sub, d) for sub in a.subscripts)}


def shared_columns(scop: Scop, deps: Dependences, first: Group, second: Group) -> list[dict[str, str]]:
    """The columns of both groups that run together: zero distance on every dependence between the groups, or, without one, the
    same index of the same input."""
    between = _between(deps, first, second)
    shared: list[dict[str, str]] = []
    free = list(second.columns)
    for column in first.columns:
        for other in free:
            both = {**column, **other}
            if not between:
                fits = any(_same_use(scop.statement(a), da, scop.statement(b), db) for a, da in column.items() for b, db in other.items())
            else:
                fits = _zero_distance(scop, between, both)
            if fits:
                shared.append(both)
                free.remove(other)
                break
    return shared


def _between(deps: Dependences, first: Group, second: Group) -> list[isl.Map]:
    """The dependences of one group on another."""
    ends = [(piece, piece.get_tuple_name(isl.dim_type.in_), piece.get_tuple_name(isl.dim_type.out)) for piece in maps(deps.strict)]
    return [piece for piece, start, end in ends if start in first.statements and end in second.statements]


def _zero_distance(scop: Scop, between: Sequence[isl.Map], column: dict[str, str]) -> bool:
    """Whether the two ends of every dependence are at the same place of a column."""
    into, out = isl.dim_type.in_, isl.dim_type.out
    for piece in between:
        start, end = (scop.statement(name).dims.index(column[name]) for name in (piece.get_tuple_name(into), piece.get_tuple_name(out)))
        if not piece.is_subset(piece.equate(into, start, out, end)):
            return False
    return True


def _same_use(a: ScopStatement, dim_a: str, b: ScopStatement, dim_b: str) -> bool:
    """Whether both statements read one tensor with these dimensions at the same subscript, or are parts of one that run alike up to
    these."""
    if a.source == b.source and a.operator == b.operator == "=" and a.tensor == b.tensor and dim_a == dim_b:
        place = a.dims.index(dim_a) + 1
        return a.bounds[:place] == b.bounds[:place]
    uses_a = {(x.tensor, p) for x, _ in a.reads for p, sub in enumerate(x.subscripts) if isinstance(sub, Index) and sub.name == dim_a}
    uses_b = {(x.tensor, p) for x, _ in b.reads for p, sub in enumerate(x.subscripts) if isinstance(sub, Index) and sub.name == dim_b}
    return bool(uses_a & uses_b)
