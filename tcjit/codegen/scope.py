"""Where a walk over loops is, and the addresses that accesses have there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tcjit.codegen.address import Address
from tcjit.codegen.loops import For, Gathered, Run
from tcjit.codegen.memory import KernelMemory, linear_subscript
from tcjit.grammar.ast import Access, Expr
from tcjit.grammar.linear import Linear, Ranges, limits
from tcjit.mapping import marks
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement

Gathers = list[tuple[int, Expr]]  # the data-dependent subscripts of an access: axis, subscript


def inside(loop: For, ranges: Ranges) -> Ranges:
    """The ranges inside of a loop; without its variable where its limits are not known."""
    lower, upper = limits(loop.lower, ranges), limits(loop.upper, ranges)
    return ranges if lower is None or upper is None else {**ranges, loop.variable: (lower[0], upper[1])}


class LoopScope:
    """Knows the marks and loops above a node, outermost first, and the ranges of their variables."""

    def __init__(self, mapped: Mapped, memory: KernelMemory) -> None:
        self.mapped = mapped
        self.memory = memory
        self.marks: tuple[marks.Mark, ...] = ()
        self.ranges: Ranges = {d.name: (d.least, d.greatest) for d in mapped.scop.program.dynamic}
        self.around: tuple[For, ...] = ()

    @contextmanager
    def ranged(self, *nodes: For) -> Iterator[None]:
        """Knows loops, outermost first, and their ranges while the body is walked."""
        ranges, around = self.ranges, self.around
        for node in nodes:
            self.ranges, self.around = inside(node, self.ranges), (*self.around, node)
        yield
        self.ranges, self.around = ranges, around

    @contextmanager
    def below(self, mark: marks.Mark) -> Iterator[None]:
        """Knows a mark while what stands below it is walked."""
        above = self.marks
        self.marks = (*above, mark)
        yield
        self.marks = above

    def target(self, s: ScopStatement, run: Run) -> Address | None:
        """The address that a statement writes, where it is affine."""
        return self.operand(s.element, run)

    def parts(self, access: Access, run: Run) -> list[Linear | None]:
        """The subscripts of an access; None for those that depend on data."""
        return [linear_subscript(sub, run, self.mapped.scop.values) for sub in access.subscripts]

    def operand(self, access: Access, run: Run) -> Address | None:
        """The address of an access, None for a gather."""
        parts = self.parts(access, run)
        affine = tuple(part for part in parts if part is not None)
        if len(affine) < len(parts):
            return None
        return self.memory.address(self.mapped.scop.tensor(access.tensor), affine, self.marks, self.ranges)

    def gathers(self, access: Access, run: Run) -> Gathers:
        return [(axis, access.subscripts[axis]) for axis, part in enumerate(self.parts(access, run)) if part is None]

    def gathered(self, access: Access, run: Run) -> Gathered | None:
        """The address of a gather, None where some element might not exist whatever the subscripts are."""
        storage = self.mapped.scop.tensor(access.tensor)
        gathers = dict(self.gathers(access, run))
        if any(storage.shape[axis] < 1 or storage.extent(axis) is not None for axis in gathers):
            return None
        parts = tuple(Linear.of(f"tc_at{axis}") if part is None else part for axis, part in enumerate(self.parts(access, run)))
        address = self.memory.address(storage, parts, self.marks, self.ranges)
        return Gathered(address, tuple((f"tc_at{axis}", sub) for axis, sub in gathers.items()))
