"""Fuse outer loops: assignments that follow one another share the loops over the dimensions along which nothing passes between them.

Scores of attention are as large as memory is wide: a product writes them, a softmax reads and writes them, and a product reads them again.
Where all three run for one matrix of the batch before the next begins, they stay in a cache, and one matrix for each thread is all the
memory that they need. This is loop fusion at the outermost level; ``contract_slices`` is the contraction of arrays that follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.fused_run import REUSE, FusedRun, Uses, all_accesses, bytes_of, divided_dims
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.strip_mine import divisions, strip_mine, strip_mined
from tcjit.mapping.scop import OuterLoops

ITERATIONS = 4  # for each thread at least: they share them evenly
MOVES = 3  # of an element of a temporary between memory and caches: its place is read before it is written, then it is read
SHARE = 4  # parts of the last cache, one of which it holds beside all else
FEWER = 4  # times less memory for temporaries than without, at least


def fuse_outer_loops(before: Assignments, machine: Machine) -> Assignments:
    """The program with the loops that its assignments share, where that keeps temporaries in a core's cache."""
    fusion, number, first = _Fusion(before, machine), 0, 0
    assignments: list[Assignment] = []
    while first < len(before.assignments):
        fused = fusion.longest(first)
        assignments += [under_loops(before.assignments[at], number, loops) for at, loops in enumerate(fused, first)]
        if not fused:
            assignments.append(before.assignments[first])
        number += bool(fused)
        first = len(assignments)
    return before.with_parts((new,) for new in assignments)


def under_loops(
    a: Assignment, number: int, loops: Sequence[tuple[str, int]], leaf: Leaf | None = None, *, private: bool = False
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
        columns = any(a.outer and a.outer.columns for a in own)
        if tiled and (not behind or columns and _may_precede(own, rest)):
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

    def __init__(self, before: Assignments, machine: Machine) -> None:
        self.machine, self.program, self.values = machine, before.assignments, before.values
        self.tensors = before.storages
        self.uses = [Uses(a) for a in self.program]
        self.users: dict[str, list[int]] = {}  # of each tensor, in order
        for position, uses in enumerate(self.uses):
            for name in {access.tensor for access in uses.accesses}:
                self.users.setdefault(name, []).append(position)

    def longest(self, first: int) -> list[list[tuple[str, int]]]:
        """The loops that assignments from the first on share, for each of them: dimensions, and how many of their points are a block;
        nothing where they should share none."""
        a = self.program[first]
        run = FusedRun.of(a, self.uses[first].accesses)
        if run is None:
            return []
        best = [[(dim, 1)] for dim in self.of_classes(self.uses[first])[:1]] if divided_dims(a) else []
        for end in range(first + 1, len(self.program)):
            if not run.take(self.program[end], self.uses[end].accesses) or not run.possible:
                break
            loops = self.worth(first, end + 1, run)
            if loops:
                best = self.in_digits(first, [list(zip(dims, loops.values(), strict=True)) for dims in run.shared(loops)]) or best
        return best

    def in_digits(self, first: int, members: list[list[tuple[str, int]]]) -> list[list[tuple[str, int]]]:
        """The loops of assignments from the first on, those over a dimension that a read divides by a number as loops over its digits;
        nothing where reads divide it otherwise."""
        result = [list[tuple[str, int]]() for _ in members]
        for loops in zip(*members, strict=True):
            found = {by for a, (dim, _) in zip(self.program[first:], loops) for name, by in divisions(a, self.values) if name == dim}
            by, size = max(found, default=1), loops[0][1]
            if any(by % other for other in found) or size > 1 and size % by:
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

    def worth(self, first: int, end: int, run: FusedRun) -> dict[int, int]:
        """The outermost loops that keep what lives in a run alone in a core's cache, each with the size of a block; none where they do not
        pay."""
        members, machine, tensors = self.uses[first:end], self.machine, self.tensors
        alone = [name for name in run.written if first <= self.users[name][0] and self.users[name][-1] < end]
        total = sum(bytes_of(tensors[name]) for name in alone if tensors[name].role == "temporary")
        if total <= machine.cache_bytes or not any(uses.is_contraction or uses.slides for uses in members):
            return {}
        loops: dict[int, int] = {}
        most = machine.cache_bytes // 2
        for loop in run.possible:
            wider = run.shared([*loops, loop])
            if any(self.crosses(uses, dims[-1], run.written) for uses, dims in zip(members, wider, strict=True)):
                continue
            if all(uses.keeps_reuse(dims, 1) for uses, dims in zip(members, wider, strict=True)):
                loops[loop] = 1
            if loops and self.kept(members, run, loops) <= most:
                break
        rest = [loop for loop in run.possible if loop not in loops]
        if rest and total // _iterations(run, loops) > most:
            if size := self.rows(run.extents[rest[0]], total // _iterations(run, loops)):
                loops[rest[0]] = size
        dims = run.shared(loops)
        count, costs = _iterations(run, loops), machine.costs
        again = {name for uses, own in zip(members, dims, strict=True) for name in uses.read_again(own) if name not in run.written}
        streamed = count * sum(bytes_of(tensors[name]) for name in again) / (costs.l3_load * costs.frequency)
        reuse = all(uses.keeps_reuse(own, *loops.values()) for uses, own in zip(members, dims, strict=True))
        near = total <= machine.shared_bytes // SHARE  # the last cache passes it on
        passed = MOVES * total / (costs.l3_load * costs.frequency if near else costs.memory_read / machine.threads)
        pays = streamed <= passed
        return loops if count >= FEWER and self.is_even(count) and reuse and pays else {}

    def rows(self, extent: int, total: int) -> int:
        """The largest block of rows, which threads share evenly, whose part of so many bytes stays in a core's cache, or else the smallest
        whose part stays in the last one; 0 where there is none that register tiles use operands often enough in."""
        even = [size for size in range(REUSE, extent // FEWER + 1) if extent % size == 0 and self.is_even(extent // size)]
        near = [size for size in even if size * total // extent <= self.machine.cache_bytes // 2]
        far = [size for size in even if size * total // extent <= self.machine.shared_bytes // (SHARE * self.machine.threads)]
        return near[-1] if near else far[0] if far else 0

    def kept(self, members: Sequence[Uses], run: FusedRun, loops: Iterable[int]) -> float:
        """Bytes of what several members use in one iteration of some loops, of the tensors that move with these."""
        users = Counter(name for uses in members for name in {access.tensor for access in uses.accesses})
        moving = {name: [run.extents[loop] for loop in loops if run.axes[name][loop] is not None] for name in users if users[name] > 1}
        return sum(bytes_of(self.tensors[name]) / prod(extents) for name, extents in moving.items() if extents)

    def crosses(self, uses: Uses, dim: str, written: Collection[str] = ()) -> bool:
        """Whether one iteration of a loop over a dimension takes an element of each line of an operand that is not ``written`` here, as of
        channels that lie last, or of a result that no cache keeps; those of a contraction may stay in a cache meanwhile."""
        own = self.tensors[uses.a.tensor]
        if own.role != "temporary" and bytes_of(own) > self.machine.cache_bytes:
            if any(stride == 1 and dim in names(sub) for sub, stride in zip(uses.a.subscripts, own.strides)):
                return True
        least = self.machine.cache_bytes if uses.is_contraction else 0
        outside = [access for access in uses.reads if access.tensor not in written]
        places = ((self.tensors[a.tensor], a.subscripts) for a in outside if bytes_of(self.tensors[a.tensor]) > least)
        moving = (stride for storage, subs in places for sub, stride in zip(subs, storage.strides) if dim in names(sub))
        return any(stride == 1 for stride in moving)

    def is_even(self, iterations: int) -> bool:
        """Whether threads have about as many iterations each."""
        return iterations >= ITERATIONS * self.machine.threads or iterations % self.machine.threads == 0


def _iterations(run: FusedRun, loops: Mapping[int, int]) -> int:
    return prod(run.extents[loop] // size for loop, size in loops.items())
