"""Fuse outer loops: assignments that follow one another share the loops over the dimensions along which nothing passes between them.

Scores of attention are as large as memory is wide: a product writes them, a softmax reads and writes them, and a product reads them again.
Where all three run for one matrix of the batch before the next begins, they stay in a cache, and one matrix for each thread is all the
memory that they need. This is loop fusion at the outermost level; ``contract_slices`` is the contraction of arrays that follows it.

The gradient of the keys sums over the queries what these compute. Under loops over blocks of queries it has a sum for each block, and adds
them to its results one after another: updates of low rank, as of a factorisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile
from math import inf, isqrt, prod

from tcjit.errors import MappingError
from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.fused_run import REUSE, SUMS, FusedRun, Uses, all_accesses, bytes_of, divided_dims, may_have_nest
from tcjit.mapping.machine import LINE, MOVES, Machine
from tcjit.mapping.nest.epilogue import Epilogue
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.strip_mine import divisions, strip_mine, strip_mined
from tcjit.mapping.options import Options
from tcjit.mapping.partial_results import Chunks, partial_results
from tcjit.mapping.passes.schedule_rows import OPERATORS
from tcjit.mapping.passes.tile_reductions import ReductionTiling, Setting
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Storage

ITERATIONS = 4  # for each thread at least: they share them evenly
SHARE = 4  # parts of the last cache, one of which it holds beside all else
GAIN = 2  # times what nests take more under loops must take what is saved, at least, where caches hold temporaries
LOST = 3  # times longer that a nest takes under loops, at most
MARGIN = 0.05  # of the time of nests that is to be saved at least, there
UNEVEN = 0.1  # of the mean of the threads' work that the greatest may be more
STORES = 2048  # bytes that a core has stored, and not yet written to its cache: half of its buffer of stores
PART_OF_LINE = 0.5  # that an iteration takes at least where its neighbours, which take the rest, may come much later
FEWER = 4  # times less memory for temporaries than without, at least

Loops = Sequence[tuple[str, int]]  # dimensions, and the points of a block


def fuse_outer_loops(before: Assignments, options: Options, machine: Machine) -> Assignments:
    """The program with the loops that its assignments share, where that keeps temporaries in a nearer cache."""
    fusion, temporaries = _Fusion(before, options, machine), Temporaries(before)
    number = 1 + max((a.outer.number for a in before.assignments if a.outer), default=-1)
    parts: list[Sequence[Assignment]] = []
    while len(parts) < len(before.assignments):
        fused = fusion.longest(len(parts))
        members = before.assignments[len(parts) :][: max(1, len(fused))]
        sequential = any(_accumulates_over(a, loops) for a, loops in zip(members, fused))
        parts += [_under(a, number, loops, sequential, temporaries, before) for a, loops in zip(members, fused)] or [members]
        number += bool(fused)
    return before.with_parts(parts, temporaries)


def _accumulates_over(a: Assignment, loops: Loops) -> bool:
    return loops[-1][0] in a.reduction


def _under(
    a: Assignment, number: int, loops: Loops, sequential: bool, temporaries: Temporaries, before: Assignments
) -> list[Assignment]:
    """An assignment under shared loops; one that accumulates over the last one as its start, the sums of a block, and their update. Where
    the loop before is over chunks of the same terms, each has a partial result of its own."""
    if not _accumulates_over(a, loops):
        new = under_loops(a, number, loops)
        return [replace(new, outer=replace(new.outer, sequential=sequential))] if new.outer else [new]
    *outer, (dim, size) = loops
    extent = a.ranges[dim][1]
    if outer and outer[-1][0] == dim:
        *outer, (dim, chunk) = outer
        part, start, combine = partial_results(a, Chunks(dim, 0, extent, chunk, extent // chunk), temporaries, before, apart=False)
        inside = _under(part, number, [*outer, (part.dims[0], 1), (dim, size)], sequential, temporaries, before)
        return [*inside, start, combine]
    part, start, combine = partial_results(a, Chunks(dim, 0, extent, size, -(-extent // size)), temporaries, before, apart=False)
    update = list[Assignment]()
    for one in (part, combine):
        one = under_loops(one, number, [*outer, (part.dims[0], 1)])
        assert one.outer is not None
        update.append(replace(one, outer=replace(one.outer, sequential=True)))
    return [start, *update]


def under_loops(
    a: Assignment, number: int, loops: Loops, leaf: Leaf | None = None, *, private: bool = False
) -> Assignment:
    """An assignment whose outer loops are shared: those over dimensions, or over blocks of so many of their points; only the last one may
    have a block that is not whole. ``leaf`` and ``private`` as in OuterLoops."""
    dims: list[str] = []
    rest: tuple[str, int] | None = None
    for dim, block in loops:
        if block > 1:
            strip = strip_mine(a, dim, block)
            a = strip_mined(a, strip)
            rest = (dim, strip.extent % block) if strip.extent % block else None
        dims.append(strip.outer if block > 1 else dim)
    return replace(a, outer=OuterLoops(number, tuple(dims), rest=rest, leaf=leaf, private=private))


def settle_outer_loops(before: Assignments) -> Assignments:
    """The program with what stands between assignments that share loops, and does not share them, before all of those, or, as
    what combines their partial results, behind them; where it has to stay, as a copy of what they compute does, or none of them has a nest
    or such results, they share nothing."""
    program = list(before.assignments)
    for number in dict.fromkeys(a.outer.number for a in program if a.outer):
        shares = [a.outer is not None and a.outer.number == number for a in program]
        first, last = shares.index(True), len(shares) - shares[::-1].index(True)
        own = [a for a, fits in zip(program[first:last], shares[first:last], strict=True) if fits]
        others = [a for a, fits in zip(program[first:last], shares[first:last], strict=True) if not fits]
        tiled = any(a.tiled or a.outer and (a.outer.row or a.outer.columns) for a in own)
        ahead, behind = list[Assignment](), list[Assignment]()
        for a in others:
            (ahead if _may_precede([*ahead, a], program[first:last]) else behind).append(a)
        rest = [a for a in program[first:last] if not any(a is other for other in ahead)]
        columns, sequential = (any(a.outer and getattr(a.outer, name) for a in own) for name in ("columns", "sequential"))
        if tiled and (not behind or (columns or sequential) and _may_precede(own, rest)):
            program[first:last] = [*ahead, *own, *behind]
        else:
            program[first:last] = [replace(a, outer=None) if fits else a for a, fits in zip(program[first:last], shares[first:last])]
    return replace(before, assignments=tuple(program), replaced=())


def _may_precede(others: Sequence[Assignment], program: Sequence[Assignment]) -> bool:
    """Whether some of the assignments can stand before all the rest: nothing before them writes what they read, or uses what they write."""
    read: set[str] = set()
    written: set[str] = set()
    for a in program:
        if any(a is other for other in others):
            if a.tensor in read | written or written & {access.tensor for access in all_accesses(a)}:
                return False
        else:
            read |= {access.tensor for access in all_accesses(a)}
            written.add(a.tensor)
    return True


class _Fusion:
    """A program, and what is asked of its assignments again and again."""

    def __init__(self, before: Assignments, options: Options, machine: Machine) -> None:
        self.before, self.machine, self.program, self.values = before, machine, before.assignments, before.values
        self.temporaries, self.setting = Temporaries(before), Setting(before, options, machine, prove=False)
        self.tensors = before.storages
        self.uses = [Uses(a) for a in self.program]
        self.users: dict[str, list[int]] = {}  # of each tensor, in order
        self.cycles: dict[tuple[int, tuple[tuple[str, int], ...]], float] = {}  # of nests, under loops
        for position, uses in enumerate(self.uses):
            for name in {access.tensor for access in uses.accesses}:
                self.users.setdefault(name, []).append(position)

    def longest(self, first: int) -> list[list[tuple[str, int]]]:
        """The loops that assignments from the first on share, for each of them: dimensions, and how many of their points are a block;
        nothing where they should share none."""
        a = self.program[first]
        run = FusedRun.of(a, self.uses[first].accesses) if a.outer is None else None
        if run is None:
            return []
        runs = list[FusedRun]()
        for uses in self.uses[first + 1 :]:
            one, accesses = uses.a, uses.accesses
            if one.outer is not None:
                break
            taken = run.take(one, accesses, accumulates=self.may_accumulate(one), broadcasts=True) or run.take_independent(one, accesses)
            if not taken or not run.possible:
                break
            runs.append(run.copy())
        for run in reversed(runs):  # of each that pays the plans of all its nests are made
            loops = [] if run.independent else self.worth(first, first + len(run.dims), run)
            if loops and (members := self.in_digits(first, _of_members(run, loops))):
                return members
        return [[(dim, 1)] for dim in self.of_classes(self.uses[first])[:1]] if divided_dims(a) else []

    def may_accumulate(self, a: Assignment) -> bool:
        """Whether an assignment may have sums of blocks of its terms, which it adds up exactly as its own are."""
        starts = a.start is not None and not a.constraints and a.tensor not in a.inputs
        return starts and self.tensors[a.tensor].dtype == a.value.dtype in SUMS and a.operator in OPERATORS

    def in_digits(self, first: int, members: list[list[tuple[str, int]]]) -> list[list[tuple[str, int]]]:
        """The loops of assignments from the first on, those over a dimension that a read divides by a number as loops over its digits;
        nothing where reads divide it otherwise."""
        result = [list[tuple[str, int]]() for _ in members]
        for loops in zip(*members, strict=True):
            found = {by for a, (dim, _) in zip(self.program[first:], loops) for name, by in divisions(a, self.values) if name == dim}
            by, size = max(found, default=1), loops[0][1]
            parted = max(found, default=1) > 1 and any(_accumulates_over(a, own) for a, own in zip(self.program[first:], members))
            if parted or any(by % other for other in found) or size > 1 and size % by:
                return []
            for own, loop in zip(result, loops, strict=True):
                own += [(loop[0], by), loop] if size == 1 < by else [loop]
        return result

    def of_classes(self, uses: Uses) -> list[str]:
        """The dimensions, one of whose values takes a part of all large operands that stays in a core's cache while the residue classes of
        a reduction read it one after another."""
        large = [a for a in uses.reads if bytes_of(self.tensors[a.tensor]) > self.machine.cache_bytes]
        return [
            name
            for name, lower, upper in uses.a.results
            if large and lower == 0 and self.is_even(upper) and uses.keeps_reuse([name], 1) and name not in divided_dims(uses.a)
            and not self.crosses(uses, name)
            and all(name in uses.reads[a] for a in large)
            and sum(bytes_of(self.tensors[a.tensor]) for a in large) // upper <= self.machine.cache_bytes
        ]  # fmt: skip

    def worth(self, first: int, end: int, run: FusedRun) -> list[tuple[int, int]]:
        """The outermost loops that keep what lives in a run alone in a core's cache, each with the size of a block; none where they do not
        pay. A loop may be there twice: over chunks, which threads share, and over blocks of these."""
        members, machine, tensors = self.uses[first:end], self.machine, self.tensors
        alone = [name for name in run.written if first <= self.users[name][0] and self.users[name][-1] < end]
        total = sum(bytes_of(tensors[name]) for name in alone if tensors[name].role == "temporary")
        if total <= machine.near_bytes or not any(uses.is_contraction or uses.slides for uses in members):
            return []
        loops: list[tuple[int, int]] = []
        most = machine.cache_bytes // 2
        for loop in run.possible:
            wider = run.shared([*dict(loops), loop])
            passing = zip(members, wider, strict=True)
            if loop in run.accumulating or any(self.crosses(uses, dims[-1], run.written) for uses, dims in passing):
                continue
            if all(uses.keeps_reuse(dims, 1) for uses, dims in zip(members, wider, strict=True)):
                loops.append((loop, 1))
            if loops and self.kept(members, run, dict(loops)) <= most:
                break
        rest = sorted((loop for loop in run.possible if loop not in dict(loops)), key=run.accumulating.__contains__)
        if rest and total // _iterations(run, loops) > most:
            loops += self.blocks(run, rest[0], _iterations(run, loops), total)
        accumulates = bool(loops) and loops[-1][0] in run.accumulating
        count, blocks = _iterations(run, loops), _of_members(run, loops)
        shared = _iterations(run, loops[:-1]) if accumulates else count  # by threads
        reuse = all(uses.keeps_reuse(list(dict(own)), *dict(own).values()) for uses, own in zip(members, blocks, strict=True))
        return loops if count >= FEWER and self.is_even(shared) and reuse and self.pays(first, blocks, count, total) else []

    def blocks(self, run: FusedRun, loop: int, iterations: int, total: int) -> list[tuple[int, int]]:
        """The loop over blocks of one more loop, inside so many iterations of others; where updates follow one another along it, and
        threads do not share the others evenly, inside one over chunks, too. None where there are no such blocks."""
        extent = run.extents[loop]
        chunk = self.chunk(iterations, extent) if loop in run.accumulating else extent
        size = self.rows(run, loop, chunk, total // iterations * chunk // extent) if chunk else 0
        return [(loop, points) for points in (chunk, size) if points < extent] if size else []

    def chunk(self, iterations: int, extent: int) -> int:
        """The points of a chunk, of the fewest equal ones that threads share evenly, together with so many iterations around them; 0 where
        there are none."""
        most = ITERATIONS * self.machine.threads
        return next((extent // n for n in range(1, most + 1) if extent % n == 0 and self.is_even(iterations * n)), 0)

    def pays(self, first: int, blocks: Sequence[Loops], count: int, total: int) -> bool:
        """Whether so many iterations of loops, with blocks of each assignment from the first on, save more than they cost: where ``total``
        bytes of temporaries leave the caches of a core, and those of one iteration do not; or where these are in a nearer cache than all
        of them, or leave room in it for what else is used."""
        machine, costs, members = self.machine, self.machine.costs, self.uses[first : first + len(blocks)]
        again = {name for uses, own in zip(members, blocks, strict=True) for name in uses.read_again([dim for dim, _ in own])}
        again -= {uses.a.tensor for uses in members}
        streamed = count * sum(bytes_of(self.tensors[name]) for name in again) / costs.l3_load
        near = total <= machine.shared_bytes // SHARE  # the last cache passes it on
        passed = MOVES * total / (costs.l3_load if near else costs.memory_read / machine.threads / costs.frequency)
        if streamed > passed:
            return False
        if total > machine.cache_bytes:
            return streamed + self.more_cycles(first, blocks, count)[0] <= passed
        if total // count < STORES or not all(map(may_have_nest, members)) or any(map(_visits_again, members, blocks)):
            return False
        used = sum(bytes_of(self.tensors[name]) for name in {access.tensor for uses in members for access in uses.accesses})
        saved = MOVES * total / costs.l2_load if total // count <= machine.near_bytes else 0.0
        if used > machine.threads * machine.cache_bytes // 2:
            saved += MOVES * total * (1 / costs.l3_load - 1 / costs.l2_load)
        more, time = self.more_cycles(first, blocks, count)
        return saved >= max(GAIN * more, MARGIN * time)

    def more_cycles(self, first: int, blocks: Sequence[Loops], count: int) -> tuple[float, float]:
        """Cycles that assignments take more under loops of so many iterations, and those that their nests take without; infinitely many
        where one's operands are no longer used again."""
        more, time = self.machine.costs.branch_miss * count * len(blocks), 0.0
        for at, loops in enumerate(blocks, first):
            uses = self.uses[at]  # windows read what is near wherever they are
            alone = self.nest_cycles(at, ()) if uses.a.reduction and (uses.is_contraction or not uses.slides) else inf
            if alone < inf:
                inside = self.nest_cycles(at, tuple(loops))
                if _accumulates_over(uses.a, loops):  # it reads and writes its results once for each block
                    dim, _ = loops[-1]
                    points = uses.a.ranges[dim][1]
                    updates = sum(-(-points // each) for name, each in loops if name == dim)
                    inside += MOVES * updates * bytes_of(self.tensors[uses.a.tensor]) / self.machine.costs.l2_load
                more, time = more + (inside - alone if inside <= LOST * alone else inf), time + alone
        return more, time

    def nest_cycles(self, at: int, loops: tuple[tuple[str, int], ...]) -> float:
        """Cycles of an assignment's nest under shared loops; infinite where it has none."""
        if (at, loops) not in self.cycles:
            with self.temporaries.trial():
                a = self.program[at]
                if loops:  # of one that accumulates, the sums of a block
                    new = _under(a, 0, loops, False, self.temporaries, self.before)
                    a = new[1] if len(new) > 1 else new[0]
                tiling = ReductionTiling(f"F{at}", a, Epilogue(), alone=True, by_rows=False, setting=self.setting)
                try:
                    self.cycles[at, loops] = sum(plan.estimate.cycles for plan in tiling.planned(self.temporaries).plans)
                except MappingError:
                    self.cycles[at, loops] = inf
        return self.cycles[at, loops]

    def rows(self, run: FusedRun, loop: int, extent: int, total: int) -> int:
        """The largest block of so many rows, which threads share evenly, whose part of so many bytes stays in a core's cache, or else the
        smallest whose part stays in the last one, or, where results are updated along the loop, the smallest, which takes the least memory;
        0 where there is none that register tiles use operands often enough in. Blocks are whole in chunks of a loop, and where there are
        such that have whole lines of large tensors along the rows; others are of what lies further apart."""
        threads, sequential = self.machine.threads, loop in run.accumulating
        axes = [(self.tensors[name], loops[loop]) for name, loops in run.axes.items()]
        inner = [storage for storage, axis in axes if axis is not None and storage.strides[axis] == 1]
        elements = {DTYPES[storage.dtype].bytes for storage in inner if REUSE * bytes_of(storage) > total}
        factors = {size for small in range(1, isqrt(extent) + 1) if extent % small == 0 for size in (small, extent // small)}
        whole = [size for size in sorted(factors) if REUSE <= size <= extent // FEWER and (sequential or self.is_even(extent // size))]
        whole = [size for size in whole if not any(size * element % LINE for element in elements)]
        near = [size for size in whole if size * total // extent <= self.machine.cache_bytes // 2]
        far = [size for size in whole if size * total // extent <= self.machine.shared_bytes // (SHARE * threads)]
        if near or far or elements or extent < run.extents[loop]:
            return near[-1] if near else far[0] if far else whole[0] if sequential and whole else 0
        most = min(extent // FEWER, max(self.machine.cache_bytes * extent // total, REUSE if sequential else 0))
        rest = [size for size in range(REUSE, most + 1, REUSE) if sequential or self.is_even(-(-extent // size))]
        rest = [size for size in rest if sequential or unevenness(extent, size, threads) <= UNEVEN]
        near = [size for size in rest if size * total // extent <= self.machine.cache_bytes // 2]
        return near[-1] if near else rest[0] if rest else 0

    def kept(self, members: Sequence[Uses], run: FusedRun, loops: Iterable[int]) -> float:
        """Bytes of what several members use in one iteration of some loops, of the tensors that move with these."""
        users = Counter(name for uses in members for name in {access.tensor for access in uses.accesses})
        moving = {name: [run.extents[loop] for loop in loops if run.axes[name][loop] is not None] for name in users if users[name] > 1}
        return sum(bytes_of(self.tensors[name]) / prod(extents) for name, extents in moving.items() if extents)

    def crosses(self, uses: Uses, dim: str, written: Collection[str] = ()) -> bool:
        """Whether one iteration of a loop over a dimension takes a part of each line of an operand that is not ``written`` here, as of
        channels that lie last, or of a result that no cache keeps; those of a contraction may stay in a cache meanwhile, and lines that the
        first one holds may be taken in parts, but not in elements that would be in lanes."""
        most = self.machine.cache_bytes

        def parts(storage: Storage, subscripts: Sequence[Expr], least: int) -> bool:
            axes = zip(subscripts, storage.strides, storage.shape, strict=True)
            moving = [(stride, extent) for sub, stride, extent in axes if stride and dim in names(sub)]
            size, element = bytes_of(storage), DTYPES[storage.dtype].bytes
            lanes = any(stride == 1 and extent * element >= LINE for stride, extent in moving)
            near = size <= self.machine.near_bytes
            return size > least and (lanes if near else any(stride * element < PART_OF_LINE * LINE for stride, _ in moving))

        own = self.tensors[uses.a.tensor]
        if own.role != "temporary" and parts(own, uses.a.subscripts, most):
            return True
        outside = [access for access in uses.reads if access.tensor not in written]
        return any(parts(self.tensors[a.tensor], a.subscripts, most if uses.is_contraction else 0) for a in outside)

    def is_even(self, iterations: int) -> bool:
        """Whether threads have about as many iterations each."""
        return iterations >= ITERATIONS * self.machine.threads or iterations % self.machine.threads == 0


def unevenness(points: int, size: int, threads: int) -> float:
    """How much more than the mean the largest share of a thread is, as a part of the mean, of points, or tiles, in blocks of so many."""
    blocks = -(-points // size)
    return -(-blocks // threads) * size * threads / points - 1


def _iterations(run: FusedRun, loops: Sequence[tuple[int, int]]) -> int:
    points, count = dict(enumerate(run.extents)), 1
    for loop, size in loops:
        count *= -(-points[loop] // size)
        points[loop] = size
    return count


def _of_members(run: FusedRun, loops: Sequence[tuple[int, int]]) -> list[list[tuple[str, int]]]:
    """The loops as those over dimensions of each assignment."""
    sizes = [size for _, size in loops]
    return [list(zip(dims, sizes, strict=True)) for dims in run.shared(loop for loop, _ in loops)]


def _visits_again(uses: Uses, loops: Loops) -> bool:
    """Whether each iteration of loops goes to all the places that data pick, for a part of what lies there."""
    shared = {dim for dim, _ in loops}
    for access in uses.reads:
        inside = dropwhile(lambda sub: not is_gather(sub), access.subscripts)
        if any(shared & set(names(sub)) for sub in inside if not is_gather(sub)):
            return True
    return False
