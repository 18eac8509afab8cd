"""Plan loops: tile sizes, loop order and vector dimension of each group of statements without nests, from strides and extents.

The model only chooses; the passes carry out. Rows are spread over threads and the unit-stride loop goes innermost; a reduction whose
results lie along it keeps as many of them in vector registers as it has room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd, prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Call, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.data_bounds import LONG_ROW, bounds_of_terms, without
from tcjit.mapping.machine import LINE, Machine
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Group, Scop, ScopStatement
from tcjit.mapping.strides import INTERLEAVED, SHUFFLED, accesses, moves_as_one, stride, stride_in_lanes

WIDE = {"float32", "float64", "int32", "int64"}  # types that vectors compute in, and of subscripts
STREAM_TILE = 2048  # elements of one row piece when a single row must be shared by threads
SHARED_TERMS = 1 << 17  # of the results of one row, whose reduction is worth pieces for threads
ACCUMULATORS = 8  # vector registers of results that a reduction keeps
SHARE = 16  # of the statement with the most instances, a reduction has one in so many at least, or the others' tiles are better
MERGED = 256  # points of a tile, at least, whose rows are merged with few lanes
TOGETHER = 4  # rows that take turns, if each is swept several times
TURNS = 8  # of a thread at least, before rows are taken together
PLACE = 16  # bytes that are read at once from each of the places whose elements are transposed
PREFETCHED_LINES = 4  # lines that processors fetch ahead
PART = 16  # of the second cache that a tile of a transposition takes
LEAST_LANES, TILES = 64, 16  # of such a tile, and tiles for each thread
SHORT_ROW = 512  # bytes of a row of a transposition that need no others beside them
TRANSPOSED_LINES = 2  # that a tile of such rows reads of each place
FULL = 16  # iterations of lanes at least that fill vectors
FEW = 16  # iterations of the other loops that leave threads idle


@dataclass(frozen=True)
class LoopPlan:
    """``tile[c]`` is the tile size of column ``c`` (0: the whole extent); ``order`` lists the columns, outermost first."""

    order: tuple[int, ...]
    tile: tuple[int, ...]
    lanes: tuple[tuple[str, str], ...]  # statement -> innermost, vectorised dimension
    accumulated: int | None = None  # the column along which results stay in registers
    merged: int | None = None  # the column whose points in a tile are one loop with the lanes

    def lane(self, statement: str) -> str | None:
        return dict(self.lanes).get(statement)


def plan_loops(scop: Scop, group: Group, options: Options, machine: Machine) -> LoopPlan:
    """The plan of one group: a column that is a lane is cut where threads need pieces of it, and where results stay in registers."""
    columns = range(len(group.columns))
    main = max(map(scop.statement, group.statements), key=lambda s: (s.points, isinstance(s.value, Access)))  # copies have no other choice
    lane_of_main = dict(_lane_choices(scop, group, machine, prefer=None, apart=())).get(main.name)
    lane = next((c for c in columns if group.columns[c][main.name] == lane_of_main), None)
    lanes = _lane_choices(scop, group, machine, prefer=lane, apart=[c for c in columns if c != lane])
    tile = [1] * len(group.columns)
    near: list[int] = []
    accumulated = merged = None
    if lane is not None:
        others = prod(main.extent(group.columns[c][main.name]) for c in columns if c != lane)
        extent = main.extent(group.columns[lane][main.name])
        inside = len(group.statements) > 1 or bool(main.reduction)
        tile[lane] = min(extent, STREAM_TILE) if others < FEW or inside else 0
        if others == 1 and main.reduction and main.points >= SHARED_TERMS:
            tile[lane] = min(tile[lane], -(-extent // machine.threads // LEAST_LANES) * LEAST_LANES)
        if width := _accumulating_lanes(scop, group, lane, dict(lanes), options, machine):
            accumulated = lane
            tile[lane] = min(extent, width * _registers(-(-extent // width), others, machine.threads))
        near = _block_transposed(scop, group, lane, tile, machine)
        if accumulated is None:
            merged = _merge_transposed(scop, group, lane, near, tile, machine) if near else _merge_rows(scop, group, lane, tile, machine)
    elif group.columns:
        tile[-1] = _together(scop, group, machine)
    between: list[int] = []
    if lane is not None and accumulated is None and merged is None and not near:
        between = _block_interleaved(scop, group, lane, main, tile, machine)
    for c, size in zip(columns, options.tile, strict=False):
        tile[c] = size or tile[c]
    order = tuple(sorted(columns, key=lambda c: (c in between, c == lane, c == merged, c in near, c)))
    return LoopPlan(order, tuple(tile), lanes, accumulated, merged)


def is_accumulated(scop: Scop, s: ScopStatement, lane: str) -> bool:
    """Whether vector registers can hold the results of a reduction along a lane while its terms come: these are of the results' type, and
    computed from neighbours alike for all lanes."""
    if s.operator == "=" or lane in s.reduction:
        return False
    bounds = bounds_of_terms(s, scop.values, lane)
    value = without(s.value, s.operator, bounds) if bounds else s.value
    if any(isinstance(part, Select) for part in walk(value)):
        return False
    read = [access for access, _ in guarded_accesses(value)]
    dtypes = {s.value.dtype, scop.tensor(s.tensor).dtype, *(scop.tensor(access.tensor).dtype for access in read)}
    own = any(access.tensor == s.tensor for access in read)
    in_type = dtypes <= WIDE and s.value.dtype == scop.tensor(s.tensor).dtype
    return in_type and not own and all(stride(scop, access, lane) in (0, 1) for access in read)


def _block_interleaved(scop: Scop, group: Group, lane: int, main: ScopStatement, tile: list[int], machine: Machine) -> list[int]:
    """The columns along which results lie between those of neighbouring lanes, in the same lines: threads have tiles of lanes, which the
    nearest cache holds until their lines are full, so that no two of them write one line."""
    written, inner = accesses(main)[0], group.columns[lane][main.name]
    size, apart = DTYPES[scop.tensor(main.tensor).dtype].bytes, abs(stride(scop, written, inner) or 0)
    steps = {c: abs(stride(scop, written, column[main.name]) or 0) for c, column in enumerate(group.columns) if c != lane}
    between = [c for c, step in steps.items() if 0 < step * size < LINE and step < apart]
    if between and not main.reduction:
        vectors = machine.near_bytes // 2 // (apart * size) // LEAST_LANES  # of that many lanes
        tile[lane] = min(tile[lane] or main.extent(inner), max(1, vectors) * LEAST_LANES)
        return between
    return []


def _together(scop: Scop, group: Group, machine: Machine) -> int:
    """Rows that go through one sweep before any goes through the next: while one waits for its sum or maximum, the others run; 1 where no
    sweep waits for two others, where half the nearest cache does not hold them, and where there are few."""
    statements = [scop.statement(name) for name in group.statements]
    column = group.columns[-1]
    if sum(bool(s.reduction) for s in statements) < 2 or any(dim == column[s.name] for s in statements for dim, _, _ in s.dynamic_bounds):
        return 1  # isl takes apart tiles of dynamic sizes
    row: dict[str, int] = {}  # bytes of each tensor
    for s in statements:
        for access in accesses(s):
            used = set(names(access))
            if column[s.name] in used:
                swept = prod(s.extent(dim) for dim in group.rest(scop, s.name) if dim in used) * DTYPES[access.dtype].bytes
                row[access.tensor] = max(row.get(access.tensor, 0), swept)
    rows = prod(statements[0].extent(column[statements[0].name]) for column in group.columns)
    return max(1, min(TOGETHER, machine.near_bytes // 2 // max(1, sum(row.values())), rows // (TURNS * machine.threads)))


def _accumulating_lanes(
    scop: Scop, group: Group, lane: int, lanes: Mapping[str, str], options: Options, machine: Machine
) -> int:
    """The lanes of a register of results, where a reduction of the group has its results along the lane; 0 where none has."""
    statements = [scop.statement(name) for name in group.statements]
    for s in statements:
        if s.points * SHARE < max(other.points for other in statements):
            continue
        if lanes.get(s.name) == group.columns[lane][s.name] and is_accumulated(scop, s, lanes[s.name]):
            most = machine.lanes(DTYPES[s.value.dtype].bytes)
            return min(options.vector_width or most, most)
    return 0


def _registers(vectors: int, others: int, threads: int) -> int:
    """How many registers of results a tile has, of so many ``vectors`` beside ``others`` iterations of the other loops: the thread with the
    most tiles, and that with the most shorter ones after them, are done first so; a row of a tile costs about a register more."""

    def busiest(count: int) -> tuple[int, int]:
        shares = [(others * (vectors // count), count), (others * (vectors % count > 0), vectors % count)]
        return sum(-(-tiles // threads) * (registers + 1) for tiles, registers in shares if tiles), -count

    return min(range(1, min(vectors, ACCUMULATORS) + 1), key=busiest)


def _block_transposed(scop: Scop, group: Group, lane: int, tile: list[int], machine: Machine) -> list[int]:
    """Cut both loops of a transposition so that the lines read across, as many as processors fetch ahead, stay in the second cache until
    they are used up; the columns along which they lie."""
    across = []
    for name in group.statements:
        s = scop.statement(name)
        for a in accesses(s):
            for c, column in enumerate(group.columns):
                if c != lane and stride(scop, a, column[name]) == 1 and stride(scop, a, group.columns[lane][name]) not in (0, 1):
                    across.append((c, s.extent(column[name]), DTYPES[scop.tensor(a.tensor).dtype].bytes))
                    lanes = s.extent(group.columns[lane][name])
    for c, extent, size in across:
        tile[c] = _even(extent, PREFETCHED_LINES * LINE // size, PLACE // size)
        tile[lane] = max(LEAST_LANES, min(lanes, machine.cache_bytes // PART // (len(across) * PREFETCHED_LINES * LINE)))
        while tile[lane] > LEAST_LANES and -(-extent // tile[c]) * -(-lanes // tile[lane]) < TILES * machine.threads:
            tile[lane] //= 2
    return [c for c, _, _ in across]


def _merge_transposed(scop: Scop, group: Group, lane: int, near: list[int], tile: list[int], machine: Machine) -> int | None:
    """The column along which the rows of lanes of a transposition continue in what is written, where they are short: cut so that both what
    is read and what is written are several lines of each row, and that rows of a buffer are whole vectors."""
    for s in map(scop.statement, group.statements if len(group.statements) > 1 else ()):
        inner, written = group.columns[lane][s.name], accesses(s)[0]
        extents = {c: s.extent(column[s.name]) for c, column in enumerate(group.columns)}
        size, row = DTYPES[scop.tensor(s.tensor).dtype].bytes, extents[lane]
        if scop.tensor(s.tensor).role == "temporary" or s.reduction or s.dynamic_bounds or stride(scop, written, inner) != 1:
            continue
        behind = [c for c, column in enumerate(group.columns) if c not in (*near, lane) and stride(scop, written, column[s.name]) == row]
        if behind and 1 < row < SHORT_ROW // size and not 0 < tile[lane] < row:
            vectors = machine.lanes(size) // gcd(row, machine.lanes(size))  # rows that fill whole vectors
            tile[behind[0]] = _even(extents[behind[0]], -(-SHORT_ROW // (row * size * vectors)) * vectors, vectors)
            tile[lane] = 0
            for c in near:
                tile[c] = _even(extents[c], TRANSPOSED_LINES * LINE // size, PLACE // size)
            return behind[0]
    return None


def _even(extent: int, size: int, together: int) -> int:
    """About ``size``, a multiple of so many, so that the last tile is not a short one."""
    tiles = max(1, round(extent / size))
    return -(-extent // tiles // together) * together if extent > size else size


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


def _are_vectors(scop: Scop, s: ScopStatement, dim: str) -> bool:
    """Whether C compilers load and store all elements of lanes along a dimension as vectors, with shuffles at most."""
    moves = Counter((a.tensor, stride_in_lanes(scop, s, a, dim)) for a in dict.fromkeys(accesses(s)))
    near = (-1, 0, *range(1, INTERLEAVED + 1))
    return all(step in near or step is not None and step <= min(count, SHUFFLED) for (_, step), count in moves.items())


def _lane_choices(
    scop: Scop, group: Group, machine: Machine, prefer: int | None, apart: Sequence[int]
) -> tuple[tuple[str, str], ...]:
    """For every statement the dimension along which the most accesses have unit or zero stride, one of the columns that lie ``apart`` only
    where there is no other: tiles have one point of them."""
    chosen = []
    for name in group.statements:
        s = scop.statement(name)
        near = range(1, INTERLEAVED + 1)

        def score(dim: str, s: ScopStatement = s, near: range = near) -> tuple[int, int, int, int]:
            moves = [stride_in_lanes(scop, s, a, dim) for a in accesses(s)]
            preferred = prefer is not None and group.columns[prefer][s.name] == dim
            return (
                preferred - sum(m not in (0, 1) for m in moves),
                2 * (moves[0] == 1) + sum(m == 1 for m in moves),
                moves[0] in near and s.extent(dim) >= FULL,  # results in lines that fill up
                min(s.extent(dim), 64),
            )

        between = [] if s.reduction else [d for d in s.dims if any(stride(scop, a, d) in near for a in accesses(s))]
        candidates = [d for d in s.dims if s.extent(d) > 1 and (score(d)[1] > 0 or d in between)]
        costly = any(isinstance(part, Call) for part in walk(s.value))
        if prefer is not None and not s.reduction and not costly:  # lanes that only gather or scatter are slower than none
            candidates = [d for d in candidates if _are_vectors(scop, s, d)]
        bounding = {name for bound in bounds_of_terms(s, scop.values) for name in names(bound.value)} if candidates else set()
        long = LONG_ROW * machine.lanes(DTYPES[s.value.dtype].bytes)
        free = [d for d in candidates if bounding and d not in bounding and (d not in s.reduction or s.extent(d) >= long)]
        candidates = free or candidates  # lanes whose terms have the same bounds
        outside = {group.columns[c][name] for c in apart}
        if candidates := [d for d in candidates if d not in outside] or candidates:
            chosen.append((name, max(candidates, key=score)))
    return tuple(chosen)
