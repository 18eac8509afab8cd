"""Counts bank conflicts of a mapped program without running it: what the threads of a warp touch at once, by the addresses of the tree."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tcjit.codegen.build import build
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.loops import For, If, MarkNode, Node, Run, children
from tcjit.codegen.memory import KernelMemory
from tcjit.codegen.scope import LoopScope
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, Opaque
from tcjit.mapping.machine import Device
from tcjit.mapping.marks import Threads, Vector
from tcjit.mapping.pipeline import Mapped

BANKS, WORD = 32, 4


@dataclass(frozen=True)
class Touch:
    """One access of a warp to shared memory: how many rounds the banks take for it, and the fewest that could do."""

    statement: str
    tensor: str
    writes: bool
    rounds: int
    least: int


def touches(mapped: Mapped, device: Device) -> list[Touch]:
    """Every access to shared memory of every region, by the first warp of a block with all loops at their start."""
    scope = LoopScope(mapped, KernelMemory(mapped, CUDA))
    found: list[Touch] = []
    for sizes, loops, run, neighbours in _regions(build(mapped), (), (), None):
        scope.marks = tuple(b.mark for b in mapped.privates)
        s = mapped.scop.statement(run.statement)
        reads = [(a, False) for a, _ in s.reads if a.tensor != s.tensor]
        accesses = [(Access(s.tensor, s.subscripts, dtype=s.value.dtype), True), *reads]
        for access, writes in accesses:
            private = scope.memory.private(access.tensor, scope.marks)
            if private is None or private.space != "shared":
                continue
            address = scope.operand(access, run)
            assert address is not None
            places = [
                evaluate(address.fixed, _values(sizes, loops, thread)) for thread in range(device.warp) if _active(sizes, loops, thread)
            ]
            size = DTYPES[mapped.scop.tensor(access.tensor).dtype].bytes
            together = 1
            if neighbours is not None and _moves_by_one(address.fixed, neighbours):
                together = min(neighbours.trips or 1, 16 // size)
            found.append(Touch(s.name, access.tensor, writes, *_rounds(places, size, together)))
    return found


def _regions(
    nodes: tuple[Node, ...], sizes: tuple[int, ...], loops: tuple[For, ...], neighbours: For | None
) -> Iterator[tuple[tuple[int, ...], tuple[For, ...], Run, For | None]]:
    for node in nodes:
        if isinstance(node, Run):
            yield sizes, loops, node, neighbours
        elif isinstance(node, If):
            yield from _regions(node.then + node.other, sizes, loops, neighbours)
        elif isinstance(node, MarkNode) and isinstance(node.mark, Threads):
            yield from _regions(node.body, node.mark.radices, (), None)
        elif isinstance(node, MarkNode):
            vector = node.body[0] if node.mark == Vector() and isinstance(node.body[0], For) else neighbours
            yield from _regions(node.body, sizes, loops, vector)
        else:
            below = (*loops, node) if isinstance(node, For) and len(loops) < len(sizes) else loops
            yield from _regions(children(node), sizes, below, neighbours)


def _moves_by_one(place: Linear, loop: For) -> bool:
    return evaluate(place, {loop.variable: 1}) - evaluate(place, {}) == 1


def _values(sizes: tuple[int, ...], loops: tuple[For, ...], thread: int) -> dict[str, int]:
    values = {}
    for size, loop in reversed(list(zip(sizes, loops))):
        values[loop.variable] = thread % size
        thread //= size
    return values


def _active(sizes: tuple[int, ...], loops: tuple[For, ...], thread: int) -> bool:
    values = _values(sizes, loops, thread)
    limits = [(evaluate(one.lower, values), evaluate(one.upper, values)) for one in loops]
    return all(low <= values[one.variable] <= high for one, (low, high) in zip(loops, limits))


def evaluate(value: Linear, values: Mapping[str, int]) -> int:
    """The value for some variables, all others 0."""
    total = value.constant
    for atom, factor in value.terms:
        total += factor * (values.get(atom, 0) if isinstance(atom, str) else _opaque(atom, values))
    return total


def _opaque(atom: Opaque, values: Mapping[str, int]) -> int:
    args = [evaluate(a, values) for a in atom.args]
    if atom.op == "floor":
        return args[0] // args[1]
    if atom.op == "mod":
        return args[0] % args[1]
    return min(args) if atom.op == "min" else max(args)


def _rounds(places: list[int], size: int, together: int) -> tuple[int, int]:
    """Rounds that the banks take: a round gives each bank one word, and 128 bytes at most to the threads it serves."""
    width = size * together
    share = max(1, 128 // max(width, WORD))  # threads that one round can serve
    taken = least = 0
    for start in range(0, len(places), share):
        words: dict[int, set[int]] = {}
        for place in places[start : start + share]:
            for byte in range(place * size, place * size + width, min(size, WORD)):
                words.setdefault(byte // WORD % BANKS, set()).add(byte // WORD)
        taken += max(len(found) for found in words.values())
        least += 1
    return taken, least
