"""Contractions: every operand is read for many results, so a block computes a tile, a thread a patch of it in registers, and the terms
pass through shared memory in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assemble import UNROLLED
from tcjit.mapping.footprint import piece
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan
from tcjit.mapping.plan_facts import Facts, bounds, over_columns
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import accesses, affine_form, stride
from tcjit.mapping.tile_time import STAGES, TILES, BlockTile, step_of

STEP = 8  # terms of a reduction that pass through shared memory at once where the block waits for its copies
AHEAD = (4, 8)  # bytes of the elements that one instruction copies; neighbours of narrower ones together, or without it
IDLE = 8  # results beside which there may be one that a thread computes in vain
BOUNDARY = 16  # bytes, on which shared arrays start

Shares = Mapping[int, Distribution]  # by the number of a column


@dataclass(frozen=True)
class Class:
    """Columns that the same operands use, the one nearest in memory first."""

    columns: tuple[int, ...]
    points: int


@dataclass(frozen=True)
class Tiled:
    """A plan for a tile; ``beyond`` is a read whose piece found no room in shared memory, and the bytes that it takes."""

    plan: GroupPlan
    beyond: tuple[Access, int] | None


def contraction(facts: Facts) -> GroupPlan | None:
    """A tile of results per block, if two classes of columns each reuse an operand. A MappingError if steps or stages are asked for with
    which no tile fits."""
    found = classes(facts)
    if found is None:
        return None
    across, down = found
    candidates: list[dict[int, Distribution]] = []
    for ty, tx, ry, rx in _tiles(facts):
        wy, wx = _warps(facts, ty, tx)
        for neighbours in (((False, False),) if facts.options.threads else ((False, False), (False, True), (True, False), (True, True))):
            candidates.append(_both_shared_out(facts, across, down, (ty, tx, ry, rx), (wy, wx), neighbours))
    order = [*reversed(down.columns), *reversed(across.columns)]
    refused: list[tuple[Access, int]] = []

    def ways(shares: Shares) -> list[tuple[int, int]]:
        return _ways(facts, sum(prod(shares[c].tile for c in each.columns) for each in (down, across)))

    sides = (across.columns, down.columns)
    for shares in by_time(facts, candidates, sides, lambda shares: ways(shares)[0], facts.device.costs.fma_rate):
        for terms, stages in ways(shares):
            made = tiled(facts, shares, order, terms, stages=stages)
            if made.beyond is None or (stages == 1 and not asked(facts)):  # what nobody asked for may be read where it lies
                return made.plan
            refused.append(made.beyond)
    raise _too_large(facts, *min(refused, key=lambda beyond: beyond[1]))


def _ways(facts: Facts, lines: int) -> list[tuple[int, int]]:
    """Terms of a step, and stages of the copies, the best first; ``lines`` are the rows and columns of a tile."""
    options, s = facts.options, facts.main
    alone = options.reduction_tile or STEP, options.pipeline_stages or 1
    copied = is_plain_product(s.value) and any(DTYPES[a.dtype].bytes in AHEAD for a in accesses(s)[2:])
    ahead = copied and "async_copy" in facts.device.capabilities
    if options.pipeline_stages or not ahead:
        return [alone]
    terms = options.reduction_tile or step_of(lines)
    return [*((terms, stages) for stages in range(STAGES, 1, -1)), alone]


def asked(facts: Facts) -> bool:
    """Whether the user wants so much in shared memory as only a launch can give."""
    return bool(facts.options.reduction_tile) or facts.options.pipeline_stages > 1


def classes(facts: Facts) -> tuple[Class, Class] | None:
    """The class with the column nearest in memory, then the largest other one; None for what is no contraction."""
    s = facts.main
    reads = list(dict.fromkeys(accesses(s)[2:]))
    plain = all(affine_form(sub, facts.scop.values) is not None for a in reads for sub in a.subscripts)
    if not plain or prod(s.extent(d) for d in s.reduction) < 4:
        return None
    by_use: dict[frozenset[int], list[int]] = {}
    for c, dim in enumerate(facts.dims(s)):
        used = frozenset(n for n, a in enumerate(reads) if facts.moves_with(a, dim))
        if facts.extent(c) > 1 and used and len(used) < len(reads):
            by_use.setdefault(used, []).append(c)
    write = accesses(s)[0]

    def distance(column: int) -> int:
        step = stride(facts.scop, write, facts.dims(s)[column])
        return 1 << 62 if step is None else abs(step)

    ranked = []
    for columns in by_use.values():
        columns.sort(key=lambda c: (distance(c), -c))
        ranked.append(Class(tuple(columns), prod(facts.extent(c) for c in columns)))
    if len(ranked) < 2:
        return None
    across = min(ranked, key=lambda k: distance(k.columns[0]))
    return across, max((k for k in ranked if k is not across), key=lambda k: k.points)


def by_time(
    facts: Facts, candidates: Sequence[Shares], sides: Sequence[Sequence[int]], way: Callable[[Shares], tuple[int, int]], rate: float
) -> list[Shares]:
    """Tiles, the fastest first; ``sides`` are the columns along those of a tile, the nearest in memory first; ``way`` gives the terms of a
    step and the stages of each, ``rate`` is that of ``BlockTile.cycles``."""
    return sorted(candidates, key=lambda shares: tile_cycles(facts, shares, sides, way(shares), rate))


def tile_cycles(facts: Facts, shares: Shares, sides: Sequence[Sequence[int]], way: tuple[int, int], rate: float) -> float:
    """How long all tiles of the main statement take."""
    terms = prod(facts.main.extent(dim) for dim in facts.main.reduction)
    every = [shares.get(c) or facts.whole(c) for c in facts.columns]
    blocks, terms = prod(share.blocks for share in every), terms * prod(share.sequence for share in every)
    threads = prod(share.threads * share.warps for share in shares.values())
    along = [[shares[c] for c in columns] for columns in sides]
    per_thread = [prod(share.per_thread for share in side) for side in along]
    # threads that go on in the next row of an operand meet others in the banks of shared memory, of which there is a power of two
    level = [len(side) == 1 or (side[0].threads * side[0].vector).bit_count() == 1 for side in along]
    vectors = [side[0].vector if fits else 1 for side, fits in zip(along, level, strict=True)]
    # of rows that are kept a thread loads neighbouring terms
    vectors = [4 if facts.along_rows(side[0]) else vector for side, vector in zip(sides, vectors, strict=True)]
    most = facts.block.resident if facts.block else facts.device.resident_blocks
    tile = BlockTile([prod(s.tile for s in side) for side in along], per_thread, threads, *way, facts.operand_bytes, vectors, most)
    return tile.cycles(blocks, terms, facts.device, rate)


def _tiles(facts: Facts) -> Sequence[tuple[int, int, int, int]]:
    threads, results = facts.options.threads, facts.options.registers
    found = [t for t in TILES if t[0] * t[1] <= facts.most_threads] or [(1, facts.most_threads, 1, 1)]
    if threads:
        found = [(threads[0], threads[1], ry, rx) for _, _, ry, rx in found]
    if results:
        found = [(ty, tx, results[0], results[1]) for ty, tx, _, _ in found]
    return list(dict.fromkeys(found))


def _warps(facts: Facts, ty: int, tx: int) -> tuple[int, int]:
    """How the warps of a block lie in its tile, where a warp is 8 threads down and 4 across: the shape that loads the least."""
    if facts.device.warp != 32 or ty % 8 or tx % 4:
        return 1, 1
    return ty // 8, tx // 4


def _both_shared_out(
    facts: Facts, across: Class, down: Class, tile: tuple[int, int, int, int], warps: tuple[int, int], results_first: tuple[bool, bool]
) -> dict[int, Distribution]:
    """Threads and results of a tile dealt to both classes; what one has no use for, the other gets."""
    ty, tx, ry, rx = tile
    first, also = results_first

    def used(shares: Shares) -> int:
        return prod(share.threads * share.warps for share in shares.values())

    columns = _shared_out(facts, across.columns, tx, rx, warps[1], results_first=also)
    left = tx // used(columns) if also else 1
    rows = _shared_out(facts, down.columns, ty * left, ry, warps[0], results_first=first)
    if first and left == 1:
        columns = _shared_out(facts, across.columns, tx * (ty // used(rows)), rx, warps[1], results_first=also)
    return columns | rows


def _shared_out(
    facts: Facts, columns: Sequence[int], threads: int, results: int, warps: int, *, results_first: bool
) -> dict[int, Distribution]:
    """Threads and results dealt to columns, the nearest in memory first; that one also over warps, if it is long enough. A short column
    has a thread for each result, or, ``results_first``, threads with neighbours."""
    shares: dict[int, Distribution] = {}
    for place, c in enumerate(columns):
        extent = facts.most(c)
        if results_first:
            each = next((n for n in range(results, 1, -1) if results % n == 0 and n <= extent and -extent % n <= extent // IDLE), 1)
            most = -(-extent // each)
            count = -(-most // -(-most // min(threads, most)))
        else:
            count = min(threads, extent)
            each = min(results, -(-extent // count))
        several = place == 0 and not facts.along_rows(c)
        vector = next(v for v in (4, 2, 1) if each % v == 0 and v <= (facts.options.vector or 4)) if several else 1
        tile = count * each
        apart = warps if place == 0 and count == threads and tile <= extent else 1
        shares[c] = facts.share(c, min(tile, extent), count // apart, vector, apart)
        threads, results = threads // count, results // each
    return shares


# ---------------------------------------------------------------- terms, and what is copied


def tiled(
    facts: Facts, shares: Shares, order: Sequence[int], terms: int, atoms: tuple[tuple[str, Distribution], ...] = (), stages: int = 1
) -> Tiled:
    """The plan for a tile, with so many terms at once; ``atoms`` are the steps of the main statement if it runs on tensor cores, ``stages``
    what no option asks for."""
    columns = tuple(shares.get(c) or facts.whole(c) for c in facts.columns)
    items = []
    for s, item in zip(facts.statements, facts.items(), strict=True):
        if s is facts.main and atoms:
            item = replace(item, steps=atoms, mma=True)
        elif s.reduction and len(accesses(s)) > 3:
            item = replace(item, steps=_steps(facts, s, terms, columns))
        items.append(item)
    padded = [replace(item, padded=_pads(facts, s, item, columns)) for s, item in zip(facts.statements, items, strict=True)]
    if padded != items:
        made = _with_copies(facts, columns, order, padded, stages)
        if all((item.statement, a) in made.plan.shared for item in padded if item.padded for a in _reads(facts, item)):
            return made
    return _with_copies(facts, columns, order, items, stages)


def _reads(facts: Facts, item: StatementPlan) -> list[Access]:
    return list(dict.fromkeys(accesses(facts.scop.statement(item.statement))[2:]))


def _pads(facts: Facts, s: ScopStatement, item: StatementPlan, columns: tuple[Distribution, ...]) -> bool:
    """Whether a statement is to compute whole tiles: a sum of products whose every factor has an axis of its own for the terms of
    steps that are not all whole."""
    if not item.steps or s.operator != "+=" or s.dynamic_bounds or not is_plain_product(s.value):
        return False
    shared_out = [(dim, share) for dim in s.dims if (share := item.share(dim, columns)) is not None]
    if any(bounds(s, dim) != (share.lower, share.lower + share.extent) for dim, share in shared_out):
        return False
    if any(share.tiles > 1 and share.tile != share.whole_tile for _, share in shared_out):
        return False
    partial = {dim for dim, share in shared_out if share.extent % share.whole_tile}
    single = {dim for dim, share in shared_out if share.whole_tile == 1}
    for access in _reads(facts, item):
        forms = [affine_form(sub, facts.scop.values) for sub in access.subscripts]
        moving = [{dim: f for dim, f in form[0].items() if dim not in single} for form in forms if form is not None]
        if any([factors for factors in moving if dim in factors] != [{dim: 1}] for dim in partial & set(s.reduction)):
            return False
    return bool(partial) or over_columns(s, item.columns)


def _with_copies(
    facts: Facts, columns: tuple[Distribution, ...], order: Sequence[int], items: Sequence[StatementPlan], stages: int
) -> Tiled:
    """The plan for items, with copies in shared memory as far as there is room."""
    # copies cannot run further ahead than the loop of steps is long, or of a block's tiles
    trips = [[share.tiles for _, share in item.steps if share.tiles > 1] for item in items]
    tiles = GroupPlan(columns, (), tuple(items)).ahead_over_tiles
    stages = min([facts.options.pipeline_stages or stages, *(loops[-1] for loops in trips if loops), *([tiles] if tiles > 1 else [])])
    if any(s.constraints and not over_columns(s, facts.dims(s)) for s in facts.statements):
        # a block may have a single step: its copies come right before it; nor do copies run ahead over steps that are left out
        stages = min(stages, 1 if any(" or " in text for s in facts.statements for text in s.constraints) else 2)
    plan = GroupPlan(columns, tuple(c for c in order if columns[c].shared_out), tuple(items), stages=stages)
    shared: list[tuple[str, Access]] = []
    beyond = None
    room = facts.device.shared_bytes
    if facts.block:
        room = facts.block.room
    elif asked(facts):
        room = facts.device.max_shared_bytes
    elif stages > 1:
        room = facts.device.max_shared_bytes // 2  # a second block hides what the first one waits for
    for s, item in zip(facts.statements, items, strict=True):
        for a in _reads(facts, item) if item.steps and facts.options.shared else ():
            if facts.block and a.tensor in facts.block.kept:
                continue
            found = piece(facts.scop.tensor(a.tensor), s, plan, item, a, facts.scop.values)
            if found is None or not _reused(facts, s, columns, a):
                continue
            size = -(-found.elements * stages * DTYPES[a.dtype].bytes // BOUNDARY) * BOUNDARY
            if size <= room:
                shared.append((s.name, a))
                room -= size
            else:
                beyond = beyond or (a, size)
    return Tiled(replace(plan, shared=tuple(shared)), beyond)


def _too_large(facts: Facts, access: Access, size: int) -> MappingError:
    name = "reduction_tile" if facts.options.reduction_tile else "pipeline_stages"
    return MappingError(
        f"option {name} = {getattr(facts.options, name)}: the pieces of {access.tensor} need {size} bytes of "
        f"shared memory beside the other operands, and a block on {facts.device.name} has {facts.device.max_shared_bytes}",
        hint=f"a smaller {name}, or fewer registers",
    )


def _steps(facts: Facts, s: ScopStatement, wanted: int, columns: Sequence[Distribution]) -> tuple[tuple[str, Distribution], ...]:
    """The terms of a reduction in steps: the last dimensions whole while they are short."""
    taken = 1
    # as many as are written out for all results of a thread
    room = 1 << 30 if facts.options.reduction_tile else max(1, UNROLLED // prod(share.per_thread for share in columns))
    shares: dict[str, Distribution] = {}
    # windows first: a piece that holds one is hardly larger than without it
    reduced = [d for d in reversed(s.dims) if d in s.reduction]
    for dim in sorted(reduced, key=lambda d: not facts.shifts(s, d)):
        lower, upper = bounds(s, dim)
        extent = upper - lower
        # beside whole windows, a few more terms make a step worth its barriers
        most = min(wanted if taken == 1 else 4 * wanted // taken, room // taken)
        short = taken * extent <= min(2 * wanted, room)
        size = extent if short else max(n for n in range(1, max(1, most) + 1) if extent % n == 0 or taken == 1)
        shares[dim] = Distribution(lower, extent, min(size, extent))
        taken *= min(size, extent)
    return tuple((dim, shares[dim]) for dim in s.dims if dim in shares)


def _reused(facts: Facts, s: ScopStatement, columns: tuple[Distribution, ...], access: Access) -> bool:
    """Whether several threads of a block read one element."""
    shared_out = [dim for share, dim in zip(columns, facts.dims(s), strict=True) if share.shared_out]
    forms = [affine_form(sub, facts.scop.values) for sub in access.subscripts]
    return any(not facts.moves_with(access, dim) for dim in shared_out) or any(form is not None and len(form[0]) > 1 for form in forms)
