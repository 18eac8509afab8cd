"""The analytic model: tile sizes, loop order and vector dimension of each group, from strides, reuse and extents.

The model only chooses; the passes carry out. Two kinds of group exist on a CPU. A *contraction* keeps a patch of results in vector
registers while it runs over the reduction; the patch is the one with the least estimated time over the whole box, its
remainders included. Everything else streams through memory: rows are spread over threads and the unit-stride loop goes innermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Call
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.group import Group
from tcjit.mapping.machine import Machine, vector_cover
from tcjit.mapping.options import Options
from tcjit.mapping.pack import is_product
from tcjit.mapping.plan_order import LINE, Nest, streamed, uses
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, moves_as_one, stride

FMA_LATENCY = 4  # independent accumulators needed per unit of throughput, times the two units of common cores
UNROLL_LIMIT = 64  # statements in one unrolled patch: beyond it, code grows faster than speed
ROW = 16  # vector operations that the way to a row which data pick takes: a page to be found, a first line to come
FAR = 1.04  # times as long where the registers of a patch come from the second-level cache at each sweep
ALIKE = 0.005  # of the estimated time: closer ones are told apart by other things
# Trips of an innermost loop that is written out whole, and updates that may come of it. What a branch that was guessed wrong holds up is
# the reading ahead: a group convolution of 3x3 on tensors beyond the caches takes 0.77 of the time that it takes with unroll=1 (Zen 5); one
# within the caches takes the same.
SHORT = 3, 8
WRITTEN_OUT = 128
PAGE, WAYS = 4096, 4  # bytes, and of lines at the same place of pages so many stay in the cache next to a core
STREAM_TILE = 2048  # elements of one row piece when a single row must be shared by threads
TOGETHER = 4  # rows that take turns, if each is swept several times
SHARE = 16  # of a group's statement with the most instances, a contraction has one in so many at least, or the others' plan is better
MERGED = 256  # points of a tile, at least, whose rows are merged with few lanes
TURNS = 8  # of a thread at least, before rows are taken together


@dataclass(frozen=True)
class Patch:
    """A register patch: ``lane`` is a shared column's number or the name of a reduction dimension."""

    statement: str
    lane: int | str
    width: int  # lanes of one register
    vectors: int  # registers along the lane


@dataclass(frozen=True)
class Candidate:
    """A patch, the tile sizes that it takes and its estimated time: cycles over the whole box, with operands at hand."""

    time: float
    tile: tuple[int, ...]
    patch: Patch


@dataclass(frozen=True)
class Plan:
    """``tile[c]`` is the tile size of column ``c`` (0: the whole extent); ``order`` lists the columns, outermost first."""

    order: tuple[int, ...]
    tile: tuple[int, ...]
    lanes: tuple[tuple[str, str], ...]  # statement -> innermost, vectorised dimension
    patch: Patch | None = None
    merged: int | None = None  # the column whose points in a tile are one loop with the lanes

    def lane(self, statement: str) -> str | None:
        return dict(self.lanes).get(statement)


def plan(scop: Scop, group: Group, options: Options, machine: Machine) -> Plan:
    """The plan of one group."""
    ranked = patches(scop, group, options, machine)
    return _contraction_plan(scop, group, ranked[0], options, machine) if ranked else _streaming(scop, group, options, machine)


def patches(scop: Scop, group: Group, options: Options, machine: Machine) -> list[Candidate]:
    """Every sensible patch of a group that contracts, the one with the least estimated time first; none for other groups."""
    found: list[Candidate] = []
    paged: dict[str, list[tuple[int, ...]]] = {}  # of each operand the columns along which it moves by whole pages
    if options.vector_width != 1 and group.columns:
        most = max(scop.statement(name).points for name in group.statements)
        for name in group.statements:
            s = scop.statement(name)
            if s.operator == "+=" and s.reduction and is_product(s.value) and s.points * SHARE >= most:
                found += _patches(scop, group, s, options, machine)
                paged[name] = [_paged(scop, a, [column[name] for column in group.columns]) for a in accesses(s)[2:]]
    least = min((candidate.time for candidate in found), default=1.0)

    def rank(candidate: Candidate) -> tuple[int, int, float, list[int]]:
        crowd = _crowd(candidate, paged[candidate.patch.statement])
        # of equal ones that with the most rows: a step meets more lines of memory at once, and waits for them together
        return int((candidate.time / least - 1) / ALIKE), crowd, candidate.time, [-size for size in candidate.tile]

    return sorted(found, key=rank)


# ---------------------------------------------------------------- contractions


def _patches(scop: Scop, group: Group, s: ScopStatement, options: Options, machine: Machine) -> list[Candidate]:
    """Every sensible patch of one contraction."""
    columns = [column[s.name] for column in group.columns]
    reads = accesses(s)[2:]
    write = accesses(s)[0]
    moves = {d: [stride(scop, a, d) for a in reads] for d in s.dims}
    width = options.vector_width or machine.lanes(DTYPES[s.value.dtype].bytes)
    found: list[Candidate] = []
    for dim in s.dims:
        if any(m not in (0, 1) for m in moves[dim]) or 1 not in moves[dim]:
            continue
        if dim in columns and stride(scop, write, dim) == 1:
            found += _output_lanes(scop, group, s, reads, columns, columns.index(dim), width, options, machine)
        elif dim in s.reduction and s.extent(dim) >= width and not s.constraints:
            found += _reduction_lanes(scop, group, s, reads, columns, dim, width, options, machine)
    return found


def _output_lanes(
    scop: Scop,
    group: Group,
    s: ScopStatement,
    reads: list[Access],
    columns: list[str],
    lane: int,
    width: int,
    options: Options,
    machine: Machine,
) -> list[Candidate]:
    vector = [a for a in reads if stride(scop, a, columns[lane]) == 1]
    scalar = [_along(a, columns, lane) for a in reads if stride(scop, a, columns[lane]) == 0]
    steps = _volume(s, s.reduction)
    windows = [_window(scop, s, a, columns, lane) for a in reads if stride(scop, a, columns[lane]) == 0]
    # of each operand in vectors the columns that it moves along, and the bytes of a lane that a sweep reads
    swept = [(_along(a, columns, lane), _volume(s, [d for d in s.reduction if uses(a, d)]) * DTYPES[a.dtype].bytes) for a in vector]
    extent = s.extent(columns[lane])
    most = -(-extent // width)
    picked = isinstance(s.value, Access) and any(map(is_gather, s.value.subscripts))  # a sum of rows
    along = (min(options.register_tile[1], most),) if options.register_tile else (1, 2, 3, 4, *((6, 8) if picked else ()))
    if options.register_tile:
        _within(machine, options, options.register_tile[0] * options.register_tile[1] + options.register_tile[1] + 1)
    found = []
    for vectors, sizes in product(along, _shapes(scop, s, columns, lane, vector, options)):
        tile = [1] * len(columns)
        for column, size in sizes.items():
            tile[column] = size
        tile[lane] = min(_forced(options, lane) or vectors * width, extent)
        loaded = 1 if picked else vectors  # what is added as it is loaded needs no register
        if not options.register_tile and _accumulators(tile, lane, width) + loaded + 1 > machine.vector_registers:
            continue
        time = 0.0
        for count, part in _parts([s.extent(d) for d in columns], tile):
            pieces = _pieces(part[lane], width)
            patch = _points(part, lane)
            fma = pieces * patch
            registers = sum(pieces * _touched(moved, part) for moved, _ in swept)
            free = machine.vector_registers - fma - pieces - 1
            loads = registers + sum(_read(moved, window, part, free) for moved, window in zip(scalar, windows, strict=True)) / 2
            panel = sum(part[lane] * _touched(moved, part) * lane_bytes for moved, lane_bytes in swept)
            step = max(fma, loads, FMA_LATENCY) * (FAR if panel > machine.near_bytes else 1.0)
            time += count * (steps * (step + loads / 8 + (ROW if picked else 0)) + 2 * fma + 8)
        found.append(Candidate(time, tuple(tile), Patch(s.name, lane, width, vectors)))
    return found


def _reduction_lanes(
    scop: Scop,
    group: Group,
    s: ScopStatement,
    reads: list[Access],
    columns: list[str],
    dim: str,
    width: int,
    options: Options,
    machine: Machine,
) -> list[Candidate]:
    others = _volume(s, tuple(d for d in s.reduction if d != dim))
    moved = [_along(a, columns) for a in reads]
    shapes = _shapes(scop, s, columns, None, reads, options)
    if shapes == [{}] and not options.register_tile:  # nothing is used twice
        shapes = [{len(columns) - 1: min(_together(scop, group, machine), s.extent(columns[-1]))}]
    along = (options.register_tile[1],) if options.register_tile else (1, 2, 4)
    if options.register_tile:
        _within(machine, options, options.register_tile[0] * options.register_tile[1] + options.register_tile[1])
    found = []
    for vectors, sizes in product(along, shapes):
        tile = [1] * len(columns)
        for column, size in sizes.items():
            tile[column] = size
        fits = options.register_tile or (_points(tile, None) * 1.2 + 1) * vectors <= machine.vector_registers
        if not fits or vectors * width > s.extent(dim):
            continue
        whole, rest = divmod(s.extent(dim), vectors * width)
        time = 0.0
        for count, part in _parts([s.extent(d) for d in columns], tile):
            results = _points(part, None)
            loads = sum(_touched(those, part) for those in moved)
            step = max(vectors * results, vectors * loads, FMA_LATENCY) + vectors * loads / 4
            # what is left over runs lane by lane, and every accumulator ends in a horizontal sum
            time += count * (others * (whole * step + rest * results * 0.5) + 8 * vectors * results + 8)
        found.append(Candidate(time, tuple(tile), Patch(s.name, dim, width, vectors)))
    return found


def _contraction_plan(scop: Scop, group: Group, found: Candidate, options: Options, machine: Machine) -> Plan:
    """The plan that a patch asks for."""
    s, tile = scop.statement(found.patch.statement), found.tile
    columns = tuple(column[s.name] for column in group.columns)
    along = found.patch.lane
    lanes = dict(_lane_choices(scop, group, prefer=along if isinstance(along, int) else None))
    lanes[s.name] = columns[along] if isinstance(along, int) else along
    order = Nest(scop, s, columns, tile, found.time, machine).order()
    return Plan(_outermost(order, options), tile, tuple(lanes.items()), found.patch)


def _shapes(
    scop: Scop, s: ScopStatement, columns: list[str], lane: int | None, reused: list[Access], options: Options
) -> list[dict[int, int]]:
    """Candidate patch sizes along the columns that some vector operand does not depend on (at most two of them)."""
    usable = [c for c in range(len(columns)) if c != lane and s.extent(columns[c]) > 1 and any(not uses(a, columns[c]) for a in reused)]
    forced = {c: size for c in range(len(columns)) if c != lane and (size := _forced(options, c))}
    if (large := streamed(scop, s)) and not options.register_tile:
        usable = [c for c in usable if not uses(large, columns[c])]
    usable = [c for c in usable if c not in forced][-2:]
    sizes = range(1, options.register_tile[0] + 1) if options.register_tile else (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
    shapes = list(product(*([size for size in sizes if size <= s.extent(columns[c])] for c in usable)))
    if options.register_tile:
        rows = max((prod(shape) for shape in shapes if prod(shape) <= options.register_tile[0]), default=1)
        shapes = [shape for shape in shapes if prod(shape) == rows]
    return [{**forced, **dict(zip(usable, shape, strict=True))} for shape in shapes]


def _within(machine: Machine, options: Options, needed: int) -> None:
    """Refuse a patch that does not fit the processor's registers."""
    if needed > machine.vector_registers:
        raise MappingError(
            f"option register_tile = {options.register_tile!r} needs {needed} vector registers, "
            f"and this processor has {machine.vector_registers}",
            hint="fewer rows, or fewer registers a row",
        )


def _forced(options: Options, column: int) -> int:
    return options.tile[column] if column < len(options.tile) else 0


def _outermost(order: tuple[int, ...], options: Options) -> tuple[int, ...]:
    first = options.outer_loop - 1
    return (first, *(c for c in order if c != first)) if first in order else order


def _along(access: Access, columns: Sequence[str], lane: int | None = None) -> tuple[int, ...]:
    """The columns that an access depends on, but for the lane."""
    return tuple(column for column, dim in enumerate(columns) if column != lane and uses(access, dim))


def _touched(along: Sequence[int], tile: Sequence[int]) -> int:
    """Distinct elements (vectors along the lane) in one patch of an access that depends on these columns."""
    total = 1
    for column in along:
        total *= tile[column]
    return total


def _window(scop: Scop, s: ScopStatement, access: Access, columns: Sequence[str], lane: int) -> tuple[int, int] | None:
    """A column along which an operand moves as it does along the innermost reduction, where that is short enough to be written out, and
    the length of that: one step reads again what the one before read for the neighbour."""
    inner = s.reduction[-1]
    length, step = s.extent(inner), stride(scop, access, inner)
    if not step or not SHORT[0] <= length <= SHORT[1]:
        return None
    return next(((c, length) for c, dim in enumerate(columns) if c != lane and stride(scop, access, dim) == step), None)


def _read(along: Sequence[int], window: tuple[int, int] | None, tile: Sequence[int], free: int) -> float:
    """Elements of an operand that a step of one patch reads; those of a window are kept from one step to the next if registers are free."""
    touched = _touched(along, tile)
    if window is None:
        return touched
    column, length = window
    others = touched // tile[column]
    kept = others * (tile[column] + length - 2)
    return others * (tile[column] + length - 1) / length if kept <= free and touched * length <= WRITTEN_OUT else touched


def _paged(scop: Scop, access: Access, columns: Sequence[str]) -> tuple[int, ...]:
    """The columns along which an access moves by whole pages."""
    steps = [(stride(scop, access, dim) or 0) * DTYPES[access.dtype].bytes for dim in columns]
    return tuple(column for column, step in enumerate(steps) if step and step % PAGE == 0)


def _crowd(candidate: Candidate, paged: Sequence[Sequence[int]]) -> int:
    """The most lines of an operand that a patch reads at the same place of different pages, if more than a cache has room for."""
    lines = [_touched(columns, candidate.tile) for columns in paged] if isinstance(candidate.patch.lane, int) else []
    return max([WAYS, *lines])


def _points(tile: Sequence[int], lane: int | None) -> int:
    total = 1
    for column, size in enumerate(tile):
        if column != lane:
            total *= size
    return total


def _accumulators(tile: Sequence[int], lane: int, width: int) -> int:
    return _points(tile, lane) * _pieces(tile[lane], width)


def _pieces(extent: int, width: int) -> int:
    return len(vector_cover(extent, width))


def _parts(extents: list[int], tile: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """The box cut into full and remainder tiles: how many of each shape."""
    per_column = []
    for extent, size in zip(extents, tile, strict=True):
        full, rest = divmod(extent, size)
        per_column.append([(full, size)] * (full > 0) + [(1, rest)] * (rest > 0))
    result = []
    for combination in product(*per_column):
        count = 1
        for times, _ in combination:
            count *= times
        result.append((count, tuple(size for _, size in combination)))
    return result


def _volume(s: ScopStatement, dims: Sequence[str]) -> int:
    total = 1
    for dim in dims:
        total *= s.extent(dim)
    return total


# ---------------------------------------------------------------- everything else


def _streaming(scop: Scop, group: Group, options: Options, machine: Machine) -> Plan:
    """Rows over threads, unit stride innermost; a column that is a lane is cut only where threads need pieces of it."""
    columns = range(len(group.columns))
    main = scop.statement(max(group.statements, key=lambda n: scop.statement(n).points))
    lanes = _lane_choices(scop, group, prefer=None)
    lane_of_main = dict(lanes).get(main.name)
    lane = next((c for c in columns if group.columns[c][main.name] == lane_of_main), None)
    lanes = _lane_choices(scop, group, prefer=lane)
    tile = [1] * len(group.columns)
    near: list[int] = []
    merged = None
    if lane is not None:
        others = 1
        for c in columns:
            others *= main.extent(group.columns[c][main.name]) if c != lane else 1
        extent = main.extent(group.columns[lane][main.name])
        inside = len(group.statements) > 1 or bool(main.reduction)
        tile[lane] = min(extent, 512 if main.reduction else STREAM_TILE) if others < 16 or inside else 0
        near = _block_transposed(scop, group, lane, tile)
        merged = None if near else _merge_rows(scop, group, lane, tile, machine)
    if lane is None and group.columns:
        tile[-1] = _together(scop, group, machine)
    for c in columns:
        if size := _forced(options, c):
            tile[c] = size
    order = tuple(sorted(columns, key=lambda c: (c == lane, c in near, c)))
    return Plan(_outermost(order, options), tuple(tile), lanes, merged=merged)


def _together(scop: Scop, group: Group, machine: Machine) -> int:
    """Rows that go through one sweep before any goes through the next: while one waits for its sum or maximum, the others run.

    1 where no sweep waits for two others, where the rows would not stay near enough, and where there are few. Half the cache next to a
    core is near enough; where functions are evaluated all along a row, which takes longer than reading it, four times as much.
    """
    statements = [scop.statement(name) for name in group.statements]
    if sum(bool(s.reduction) for s in statements) < 2:
        return 1
    if any(dim == group.columns[-1][s.name] for s in statements for dim, _, _ in s.dynamic_bounds):
        return 1  # isl takes apart tiles of dynamic sizes
    row: dict[str, int] = {}  # bytes of each tensor
    for s in statements:
        for a in accesses(s):
            if uses(a, group.columns[-1][s.name]):
                swept = _volume(s, [d for d in group.rest(scop, s.name) if uses(a, d)]) * DTYPES[a.dtype].bytes
                row[a.tensor] = max(row.get(a.tensor, 0), swept)
    calls = any(isinstance(e, Call) and set(names(e)) & set(group.rest(scop, s.name)) for s in statements for e in walk(s.value))
    near = machine.near_bytes * 2 if calls else machine.near_bytes // 2
    rows = _volume(statements[0], [column[statements[0].name] for column in group.columns])
    return max(1, min(TOGETHER, near // max(1, sum(row.values())), rows // (TURNS * machine.threads)))


def _block_transposed(scop: Scop, group: Group, lane: int, tile: list[int]) -> list[int]:
    """Cut both loops of a transposition so that the lines read across, two at a time, as processors fetch them, stay in cache until they
    are used up; the columns along which they lie."""
    near = []
    for name in group.statements:
        for a in accesses(scop.statement(name)):
            for c, column in enumerate(group.columns):
                if c != lane and stride(scop, a, column[name]) == 1 and stride(scop, a, group.columns[lane][name]) not in (0, 1):
                    tile[c], tile[lane] = 2 * LINE // DTYPES[scop.tensor(a.tensor).dtype].bytes, 64
                    near.append(c)
    return near


def _merge_rows(scop: Scop, group: Group, lane: int, tile: list[int], machine: Machine) -> int | None:
    """The column that some statement moves along as along the lanes, which are too few for a vector, cut into tiles of whole vectors."""
    for name in group.statements if len(group.statements) > 1 else ():
        s = scop.statement(name)
        inner = group.columns[lane][name]
        extent, width = s.extent(inner), machine.lanes(DTYPES[s.value.dtype].bytes)
        for c, column in enumerate(group.columns):
            fits = c != lane and 2 * extent <= width and not s.dynamic_bounds and tile[lane] in (0, extent)
            if fits and all(moves_as_one(scop, a, column[name], inner, extent) for a in accesses(s)):
                tile[c] = width * max(1, -(-MERGED // (width * extent)))
                return c
    return None


def _lane_choices(scop: Scop, group: Group, prefer: int | None) -> tuple[tuple[str, str], ...]:
    """For every statement the dimension along which the most accesses have unit or zero stride."""
    chosen = []
    for name in group.statements:
        s = scop.statement(name)

        def score(dim: str, s: ScopStatement = s) -> tuple[int, int, int]:
            found = accesses(s)
            moves = [stride(scop, a, dim) for a in found]
            preferred = prefer is not None and group.columns[prefer][s.name] == dim
            return (
                preferred - sum(m not in (0, 1) for m in moves),
                2 * (moves[0] == 1) + sum(m == 1 for m in moves),
                min(s.extent(dim), 64),
            )

        candidates = [d for d in s.dims if s.extent(d) > 1 and score(d)[1] > 0]
        costly = any(isinstance(part, Call) for part in walk(s.value))
        if prefer is not None and not s.reduction and not costly:  # lanes that only gather or scatter are slower than none
            candidates = [d for d in candidates if all(stride(scop, a, d) in (0, 1) for a in accesses(s))]
        if candidates:
            chosen.append((name, max(candidates, key=score)))
    return tuple(chosen)
