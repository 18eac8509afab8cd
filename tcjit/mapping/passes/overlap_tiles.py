"""Overlapped tiling: elementwise statements that read neighbours of one another's results run block of rows by block of rows.

The steps of a stencil hand whole tensors to one another at constant distances. Here each block of rows computes what it needs of every
step, rows at its edges a second time, into an array of the block's own, of which ``contract_slices`` leaves one for each thread, in its
cache.
After Krishnamoorthy et al., Effective Automatic Parallelization of Stencil Computations (2007), with rectangular tiles along one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, plus, total
from tcjit.grammar.ast import Access, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.fused_run import bytes_of
from tcjit.mapping.machine import LINE, MOVES, Machine
from tcjit.mapping.operations import operations
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Storage, fresh
from tcjit.mapping.strides import affine_form

ITERATIONS = 4  # blocks for each thread at least
# Of a core's second cache the part that a block takes at most, and times what is computed again must take what is saved, at least: other
# lines come by, so that a small part stays there best, as long as next to nothing is computed again.
BUDGETS = ((0.25, 8), (0.5, 2), (1.0, 2))


def overlap_tiles(before: Assignments, machine: Machine) -> Assignments:
    """The program with runs of elementwise assignments in overlapped blocks of rows, where what they hand on leaves the caches."""
    temporaries = Temporaries(before)
    replaced: list[tuple[Assignment, ...]] = []
    program, number = before.assignments, 1 + max((a.outer.number for a in before.assignments if a.outer), default=-1)
    while len(replaced) < len(program):
        first = len(replaced)
        run = _longest(before, first, machine)
        replaced += _Tiling(before, run, number, temporaries).parts() if run else [(program[first],)]
        number += 1
    return before.with_parts(replaced, temporaries)


@dataclass(frozen=True)
class _TiledRun:
    """Assignments in a row, over blocks of so many ``rows``; of each tensor that one of them writes those that a block needs, counted from
    its first one."""

    program: tuple[Assignment, ...]
    rows: int
    needed: dict[str, tuple[int, int]]


def _longest(before: Assignments, first: int, machine: Machine) -> _TiledRun | None:
    """The longest run from an assignment on that is worth overlapped blocks."""
    best = None
    for end in range(first + 1, len(before.assignments) + 1):
        program = before.assignments[first:end]
        if not _may_join(before, program):
            break
        best = _sized(before, program, machine) or best
    return best


def _row(a: Assignment) -> str:
    """The dimension along the first axis of what an assignment writes."""
    assert isinstance(a.subscripts[0], Index)
    return a.subscripts[0].name


def _may_join(before: Assignments, program: Sequence[Assignment]) -> bool:
    """Whether the last of some assignments is elementwise over whole axes, writes what nothing else writes and nothing before it reads, and
    reads what others write at constant distances along the rows."""
    *others, a = program
    names = [sub.name if isinstance(sub, Index) else "" for sub in a.subscripts]
    lowers = {name: lower for name, lower, _ in a.bounds}
    if not a.is_elementwise or not names or "" in names or sorted(names) != sorted(lowers) or lowers[names[0]]:
        return False
    if sum(other.tensor == a.tensor for other in before.assignments) > 1:
        return False
    written = {other.tensor for other in others}
    distances = [_distance(before, a, access) for access in a.reads if access.tensor in written]
    joined = not others or not written.isdisjoint(a.inputs)
    return joined and not any(a.tensor in other.inputs for other in program) and None not in distances


def _distance(before: Assignments, a: Assignment, access: Access) -> int | None:
    """How many rows from its own an assignment reads; None where that is no constant."""
    form = affine_form(access.subscripts[0], before.values) if access.subscripts else None
    plain = all(affine_form(sub, before.values) is not None for sub in access.subscripts)
    return form[1] if form is not None and plain and form[0] == {_row(a): 1} else None


def _sized(before: Assignments, program: tuple[Assignment, ...], machine: Machine) -> _TiledRun | None:
    """Assignments over blocks, where these pay: of tensors that leave the caches, in the least part of a core's cache in which
    little is computed for neighbours as well."""
    tensors = before.storages
    written = {a.tensor for a in program}  # nothing else writes these
    outside = {tensor for a in before.assignments if a.tensor not in written for tensor in a.inputs}
    stored = {a.tensor for a in program if tensors[a.tensor].role != "temporary" or a.tensor in outside}
    handed = {tensor for a in program for tensor in a.inputs} & written
    bytes_handed, touched = (
        sum(bytes_of(tensors[name]) for name in names)
        for names in (handed - stored, {name for a in program for name in (a.tensor, *a.inputs)})
    )
    if program[-1].tensor not in stored or not bytes_handed or touched <= machine.threads * machine.near_bytes:
        return None
    if not {_distance(before, a, access) for a in program for access in a.reads if access.tensor in handed} - {0}:
        return None
    around: dict[str, tuple[int, int]] = {}  # the rows that later ones need of each, around those of a block
    for a in reversed(program):
        own = [(0, 0)] if a.tensor in stored else []
        least, beyond = around[a.tensor] = _hull([*own, *([around[a.tensor]] if a.tensor in around else [])])
        for access in a.reads:
            if access.tensor in handed:
                distance = _distance(before, a, access)
                assert distance is not None
                reach = (least + distance, beyond + distance)
                around[access.tensor] = _hull([reach, *([around[access.tensor]] if access.tensor in around else [])])
    more = {name: beyond - least for name, (least, beyond) in around.items()}
    row_bytes = {name: prod(tensors[name].shape[1:]) * DTYPES[tensors[name].dtype].bytes for name in handed}
    extent, costs = max(a.ranges[_row(a)][1] for a in program), machine.costs
    in_caches = costs.l2_load if touched <= machine.threads * machine.cache_bytes else costs.l3_load
    rate = in_caches if bytes_handed <= machine.shared_bytes else costs.memory_read / machine.threads / costs.frequency
    saved = MOVES * bytes_handed / rate  # cycles of a core
    again = 0.0
    for a in (a for a in program if a.tensor in handed):
        outer = a.inputs - handed
        read = sum(prod(tensors[name].shape[1:]) * DTYPES[tensors[name].dtype].bytes for name in outer) / rate
        again += more[a.tensor] * max(read, _row_cycles(a, tensors[a.tensor], machine))
    for part, gain in BUDGETS:
        room = int(part * machine.cache_bytes) - sum(more[name] * size for name, size in row_bytes.items())
        most = min(room // max(1, sum(row_bytes.values())), extent // (ITERATIONS * machine.threads))
        if most < 1:
            continue
        rounds = -(-extent // (most * machine.threads))  # of threads, which have as many blocks each
        rows = -(-extent // (rounds * machine.threads))
        if gain * again * -(-extent // rows) <= saved:
            return _TiledRun(program, rows, {name: (least, beyond + rows) for name, (least, beyond) in around.items()})
    return None


def _row_cycles(a: Assignment, storage: Storage, machine: Machine) -> float:
    """What a core takes for a row of what an assignment computes, in its nearest caches; loops are cut where its guard changes."""
    vectors = prod(storage.shape[1:]) / machine.lanes(DTYPES[storage.dtype].bytes)
    reads, value = set(a.reads), a.value
    while isinstance(value, Select):
        value = max(value.then, value.other, key=operations)
    return vectors * (len(reads) * machine.costs.vector_load + operations(value))


def _hull(ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(least for least, _ in ranges), max(beyond for _, beyond in ranges)


@dataclass
class _Tiling:
    """The assignments of a run over blocks."""

    before: Assignments
    run: _TiledRun
    number: int  # of the loop over blocks
    temporaries: Temporaries
    tiles: dict[str, Storage] = field(default_factory=dict)

    def parts(self) -> list[tuple[Assignment, ...]]:
        handed = {tensor for a in self.run.program for tensor in a.inputs}
        blocks = -(-max(a.ranges[_row(a)][1] for a in self.run.program) // self.run.rows)
        parts: list[tuple[Assignment, ...]] = []
        for a in self.run.program:
            own = (0, self.run.rows)
            if a.tensor not in handed:
                parts.append((self.over_blocks(a, blocks, own, None),))
                continue
            least, beyond = self.run.needed[a.tensor]
            storage = self.temporaries.tensors[a.tensor]
            line = LINE // DTYPES[storage.dtype].bytes
            inner = storage.shape[1:] and (*storage.shape[1:-1], -(-storage.shape[-1] // line) * line)  # rows begin where lines do
            shape = (blocks, beyond - least, *inner)
            tile = self.temporaries.add(a.source, f"{a.tensor}_tile", storage.dtype, shape)
            made = [self.over_blocks(a, blocks, (least, beyond), tile)]
            self.tiles[a.tensor] = tile
            if storage.role != "temporary" or self.is_read_elsewhere(a.tensor):
                whole = replace(a, value=Access(a.tensor, a.subscripts, dtype=storage.dtype))
                made.append(self.over_blocks(whole, blocks, own, None))
            parts.append(tuple(made))
        return parts

    def is_read_elsewhere(self, tensor: str) -> bool:
        return any(tensor in a.inputs for a in self.before.assignments if a not in self.run.program)

    def over_blocks(self, a: Assignment, blocks: int, rows: tuple[int, int], tile: Storage | None) -> Assignment:
        """An assignment to some rows of each block, counted from its first one, in a tile or in their places."""
        row, (least, beyond) = _row(a), rows
        extent = a.ranges[row][1]
        block = fresh(f"{row}_block", [name for name, _, _ in a.bounds])
        place = total([(self.run.rows, index(block)), (1, index(row))], least)
        value = self.in_tiles(a, place, block, least)
        text = f"{self.run.rows} * {isl_name(block)} + {isl_name(row)} + {least}"
        facts = [f"{text} >= 0"] * (least < 0) + [f"{text} < {extent}"] * (self.run.rows * (blocks - 1) + beyond > extent)
        bounds = [(name, 0, beyond - least) if name == row else (name, lower, upper) for name, lower, upper in a.bounds]
        first = place if tile is None else Index(row, dtype="int64")
        subscripts = (*([] if tile is None else [Index(block, dtype="int64")]), first, *a.subscripts[1:])
        return replace(
            a, tensor=a.tensor if tile is None else tile.name, subscripts=subscripts, value=value, bounds=((block, 0, blocks), *bounds),
            constraints=tuple(facts), outer=OuterLoops(self.number, (block,), place),
        )  # fmt: skip

    def in_tiles(self, a: Assignment, place: Expr, block: str, least: int) -> Expr:
        """What an assignment computes in the row at a place, ``least`` rows after the first one of its block, where it reads tiles."""
        row = _row(a)

        def visit(expr: Expr) -> Expr:
            if isinstance(expr, Index) and expr.name == row:
                return place
            inner = rebuild(expr, visit)
            if not isinstance(expr, Access) or not isinstance(inner, Access) or expr.tensor not in self.tiles:
                return inner
            distance = _distance(self.before, a, expr)
            assert distance is not None, "runs hold no others"
            at = plus(index(row), least + distance - self.run.needed[expr.tensor][0])
            return replace(inner, tensor=self.tiles[expr.tensor].name, subscripts=(index(block), at, *inner.subscripts[1:]))

        return visit(a.value)
