"""The analytic model: tile sizes, loop order and vector dimension of each group, from strides, reuse and extents.

The model only chooses; the passes carry out. Two kinds of group exist on a CPU. A *contraction* keeps a patch of results in vector
registers while it runs over the reduction; the patch is the one with the least estimated time over the whole box, its
remainders included. Everything else streams through memory: rows are spread over threads and the unit-stride loop goes innermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pack import is_product
from tcjit.mapping.passes.fuse import Group
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, involves, stride

FMA_LATENCY = 4  # independent accumulators needed per unit of throughput, times the two units of common cores
UNROLL_LIMIT = 64  # statements in one unrolled patch: beyond it, code grows faster than speed
STREAM_TILE = 2048  # elements of one row piece when a single row must be shared by threads


@dataclass(frozen=True)
class Patch:
    """A register patch: ``lane`` is a shared column's number or the name of a reduction dimension."""

    statement: str
    lane: int | str
    width: int  # lanes of one register
    vectors: int  # registers along the lane


@dataclass(frozen=True)
class Plan:
    """``tile[c]`` is the tile size of column ``c`` (0: the whole extent); ``order`` lists the columns, outermost first."""

    order: tuple[int, ...]
    tile: tuple[int, ...]
    lanes: tuple[tuple[str, str], ...]  # statement -> innermost, vectorised dimension
    patch: Patch | None = None

    def lane(self, statement: str) -> str | None:
        return dict(self.lanes).get(statement)


def plan(scop: Scop, group: Group, options: Options, machine: Machine) -> Plan:
    """The plan of one group."""
    best: tuple[float, Plan] | None = None
    if options.lanes != 1 and group.columns:
        for name in group.statements:
            s = scop.statement(name)
            if s.operator == "+=" and s.reduction and is_product(s.value):
                for found in _patches(scop, group, s, options, machine):
                    if best is None or found[0] < best[0]:
                        best = found
    return best[1] if best else _streaming(scop, group, options)


# ---------------------------------------------------------------- contractions


def _patches(scop: Scop, group: Group, s: ScopStatement, options: Options, machine: Machine) -> list[tuple[float, Plan]]:
    """Every sensible patch of a contraction with its estimated time."""
    columns = [column[s.name] for column in group.columns]
    reads = accesses(s)[2:]
    write = accesses(s)[0]
    moves = {d: [stride(scop, a, d) for a in reads] for d in s.dims}
    width = options.lanes or machine.lanes(DTYPES[s.value.dtype].bytes)
    found: list[tuple[float, Plan]] = []
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
) -> list[tuple[float, Plan]]:
    vector = [a for a in reads if stride(scop, a, columns[lane]) == 1]
    scalar = [a for a in reads if stride(scop, a, columns[lane]) == 0]
    steps = _volume(s, s.reduction)
    found = []
    for vectors, sizes in product((1, 2, 3, 4), _shapes(s, columns, lane, vector, options)):
        tile = [1] * len(columns)
        for column, size in sizes.items():
            tile[column] = size
        tile[lane] = _forced(options, lane) or vectors * width
        if _accumulators(tile, lane, width) + vectors + 1 > machine.vector_registers:
            continue
        time = 0.0
        for count, part in _parts([s.extent(d) for d in columns], tile):
            pieces = _pieces(part[lane], width)
            patch = _points(part, lane)
            fma = pieces * patch
            loads = (
                sum(pieces * _touched(a, columns, part, lane) for a in vector) + sum(_touched(a, columns, part, lane) for a in scalar) / 2
            )
            time += count * (steps * max(fma, loads, FMA_LATENCY) + 2 * fma + 8)
        found.append((time, _contraction_plan(scop, group, s, columns, tile, lane, columns[lane], Patch(s.name, lane, width, vectors))))
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
) -> list[tuple[float, Plan]]:
    others = _volume(s, tuple(d for d in s.reduction if d != dim))
    found = []
    for vectors, sizes in product((1, 2, 4), _shapes(s, columns, None, reads, options)):
        tile = [1] * len(columns)
        for column, size in sizes.items():
            tile[column] = size
        if (_points(tile, None) * 1.2 + 1) * vectors > machine.vector_registers or vectors * width > s.extent(dim):
            continue
        whole, rest = divmod(s.extent(dim), vectors * width)
        time = 0.0
        for count, part in _parts([s.extent(d) for d in columns], tile):
            results = _points(part, None)
            loads = sum(_touched(a, columns, part, None) for a in reads)
            step = max(vectors * results, vectors * loads, FMA_LATENCY)
            # what is left over runs lane by lane, and every accumulator ends in a horizontal sum
            time += count * (others * (whole * step + rest * results * 0.5) + 8 * vectors * results + 8)
        found.append((time, _contraction_plan(scop, group, s, columns, tile, None, dim, Patch(s.name, dim, width, vectors))))
    return found


def _contraction_plan(
    scop: Scop, group: Group, s: ScopStatement, columns: list[str], tile: list[int], lane: int | None, dim: str, patch: Patch
) -> Plan:
    """Order the tile loops so that the innermost one streams the least: what it does not touch stays in cache."""

    def streamed(column: int) -> int:
        total = 0
        for a in accesses(s)[2:]:
            if any(involves(sub, columns[column]) for sub in a.subscripts):
                total += _volume(s, tuple(r for r in s.reduction if any(involves(sub, r) for sub in a.subscripts))) * _touched(
                    a, columns, tile, None
                )
        return total

    def rank(column: int) -> tuple[bool, int]:
        return (tile[column] > 1, -streamed(column))

    order = tuple(sorted(range(len(columns)), key=rank))
    lanes = dict(_lane_choices(scop, group, prefer=lane))
    lanes[s.name] = dim
    return Plan(order, tuple(tile), tuple(lanes.items()), patch)


def _shapes(s: ScopStatement, columns: list[str], lane: int | None, reused: list[Access], options: Options) -> list[dict[int, int]]:
    """Candidate patch sizes along the columns that some vector operand does not depend on (at most two of them)."""
    usable = [c for c in range(len(columns)) if c != lane and s.extent(columns[c]) > 1 and any(not _uses(a, columns[c]) for a in reused)]
    forced = {c: size for c in range(len(columns)) if c != lane and (size := _forced(options, c))}
    usable = [c for c in usable if c not in forced][-2:]
    choices = [[size for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14) if size <= s.extent(columns[c])] for c in usable]
    return [{**forced, **dict(zip(usable, sizes, strict=True))} for sizes in product(*choices)]


def _forced(options: Options, column: int) -> int:
    return options.tile[column] if column < len(options.tile) else 0


def _uses(access: Access, dim: str) -> bool:
    return any(involves(sub, dim) for sub in access.subscripts)


def _touched(access: Access, columns: list[str], tile: Sequence[int], lane: int | None) -> int:
    """Distinct elements (vectors along the lane) of an access in one patch."""
    total = 1
    for column, dim in enumerate(columns):
        if column != lane and _uses(access, dim):
            total *= tile[column]
    return total


def _points(tile: Sequence[int], lane: int | None) -> int:
    total = 1
    for column, size in enumerate(tile):
        if column != lane:
            total *= size
    return total


def _accumulators(tile: Sequence[int], lane: int, width: int) -> int:
    return _points(tile, lane) * _pieces(tile[lane], width)


def _pieces(extent: int, width: int) -> int:
    """Registers that cover a stretch of lanes: full ones, then halves for the rest."""
    count, rest = divmod(extent, width)
    return count + bin(rest).count("1")


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


def _streaming(scop: Scop, group: Group, options: Options) -> Plan:
    """Rows over threads, unit stride innermost; a column that is a lane is cut only where threads need pieces of it."""
    columns = range(len(group.columns))
    main = scop.statement(max(group.statements, key=lambda n: scop.statement(n).points))
    lanes = _lane_choices(scop, group, prefer=None)
    lane_of_main = dict(lanes).get(main.name)
    lane = next((c for c in columns if group.columns[c][main.name] == lane_of_main), None)
    lanes = _lane_choices(scop, group, prefer=lane)
    tile = [1] * len(group.columns)
    if lane is not None:
        others = 1
        for c in columns:
            others *= main.extent(group.columns[c][main.name]) if c != lane else 1
        extent = main.extent(group.columns[lane][main.name])
        inside = len(group.statements) > 1 or bool(main.reduction)
        tile[lane] = min(extent, 512 if main.reduction else STREAM_TILE) if others < 16 or inside else 0
        _block_transposed(scop, group, main, lane, tile)
    for c in columns:
        if size := _forced(options, c):
            tile[c] = size
    order = tuple(sorted(columns, key=lambda c: (c == lane, c)))
    return Plan(order, tuple(tile), lanes)


def _block_transposed(scop: Scop, group: Group, main: ScopStatement, lane: int, tile: list[int]) -> None:
    """Cut both loops of a transposition so that the lines read across stay in cache until they are used up."""
    for a in accesses(main):
        for c, column in enumerate(group.columns):
            if c != lane and stride(scop, a, column[main.name]) == 1 and stride(scop, a, group.columns[lane][main.name]) not in (0, 1):
                tile[c], tile[lane] = 16, 64


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
        if candidates:
            chosen.append((name, max(candidates, key=score)))
    return tuple(chosen)
