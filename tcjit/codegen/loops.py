"""The loops that a mapped tree becomes, as small immutable nodes that printers walk.

isl's AST gives ``For``, ``If``, ``Run`` and ``MarkNode``; for a CPU, ``lower_cpu`` replaces the marks by what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from tcjit.codegen.address import Address
from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Expr
from tcjit.grammar.linear import Linear
from tcjit.grammar.polynomial import names
from tcjit.mapping import marks
from tcjit.mapping.nest.tiled_statement import Kind
from tcjit.mapping.storage import Buffer


@dataclass(frozen=True)
class For:
    """``for (variable = lower; variable <= upper; variable += step)``."""

    variable: str
    lower: Linear
    upper: Linear
    step: int
    body: tuple[Node, ...]

    @property
    def trips(self) -> int | None:
        """The number of iterations where it is the same each time the loop is reached."""
        distance = self.upper - self.lower
        return max(0, distance.constant // self.step + 1) if distance.is_constant else None


@dataclass(frozen=True)
class Compare:
    """``left op right``."""

    left: Linear
    op: str
    right: Linear

    def written(self, index: Callable[[Linear], str]) -> str:
        """C text, given that of an expression."""
        return f"{index(self.left)} {self.op} {index(self.right)}"

    def substitute(self, values: Mapping[str, Linear]) -> Compare:
        return Compare(self.left.substitute(values), self.op, self.right.substitute(values))

    @property
    def variables(self) -> frozenset[str]:
        return self.left.variables | self.right.variables


@dataclass(frozen=True)
class BooleanOp:
    """Two conditions joined by ``&&`` or ``||``."""

    left: Condition
    op: str
    right: Condition

    def written(self, index: Callable[[Linear], str]) -> str:
        return f"({self.left.written(index)}) {self.op} ({self.right.written(index)})"

    def substitute(self, values: Mapping[str, Linear]) -> BooleanOp:
        return BooleanOp(self.left.substitute(values), self.op, self.right.substitute(values))

    @property
    def variables(self) -> frozenset[str]:
        return self.left.variables | self.right.variables


Condition = Compare | BooleanOp


@dataclass(frozen=True)
class If:
    """A branch; ``condition`` is over loop variables."""

    condition: Condition
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Run:
    """One instance of a statement: the value of each of its dimensions."""

    statement: str
    indices: tuple[tuple[str, Linear], ...]

    def index(self, name: str) -> Linear:
        return dict(self.indices)[name]


@dataclass(frozen=True)
class MarkNode:
    """A mark of the schedule tree and what stands below it."""

    mark: marks.Mark
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Threshold:
    """Holds where the product of ``extents``, which depend on dynamic sizes, is at least ``least``."""

    extents: tuple[Linear, ...]
    least: int

    def written(self, index: Callable[[Linear], str]) -> str:
        texts = [index(extent) for extent in self.extents]
        return f"{' * '.join(f'({text})' if len(texts) > 1 else text for text in texts)} >= {self.least}"


@dataclass(frozen=True)
class ParallelLoop:
    """Iterations that threads share: those of a loop, ``collapse`` - 1 loops perfectly nested in it included.

    ``worth`` is when it pays to wake threads for it; None: always. ``chunk``: iterations cost more and more, or less and less, and threads
    take so many of them in turns; 0: each thread takes one part of them.
    """

    loop: For
    collapse: int
    worth: Threshold | None = None
    chunk: int = 0


@dataclass(frozen=True)
class ParallelRegion:
    """Parallel loops that one team of threads runs one after the other, waiting behind those for which ``waits`` says so; other loops one
    thread of it runs.

    Where ``worth`` does not hold, the calling thread runs them alone.
    """

    loops: tuple[ParallelLoop | For, ...]
    waits: tuple[bool, ...]
    worth: Threshold | None = None


@dataclass(frozen=True)
class Reduction:
    """The only statement of a loop, which updates one element: it stays in ``accumulators`` variables while the loop runs."""

    run: Run
    target: Address
    accumulators: int


@dataclass(frozen=True)
class SimdLoop:
    """An innermost loop whose iterations are the lanes of vectors."""

    loop: For
    reduction: Reduction | None = None


@dataclass(frozen=True)
class StatementLoop:
    """A loop over one statement. ``Scan``: it reads its own result of the iteration before, which stays in a variable; ``Scatter``: it has
    a term in one iteration, for the value of the variable that data are equal to, or in none."""

    loop: For
    mark: marks.Scan | marks.Scatter


@dataclass(frozen=True)
class RowLoops:
    """Loops over the points of a row, the innermost over neighbours in memory, around statements that run in vectors of these; ``tile``:
    the number of what has all passes over the row."""

    loop: For
    tile: int


@dataclass(frozen=True)
class Declare:
    """Private buffers and the nodes that use them, which stood below ``mark``."""

    mark: marks.Mark
    buffers: tuple[Buffer, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class DeclareSlices:
    """The slices of the thread at hand, which stood below ``mark``, and the nodes that use them; ``loops``: the values of the loops
    around."""

    mark: marks.Mark
    loops: tuple[Linear, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Gathered:
    """A read with data-dependent subscripts: its address in terms of the variables that hold those, and what these are."""

    address: Address
    subscripts: tuple[tuple[str, Expr], ...]

    def depends(self, run: Run, variable: str) -> bool:
        """Whether a subscript moves with a loop."""
        return any(variable in run.index(dim).variables for _, sub in self.subscripts for dim in names(sub))


@dataclass(frozen=True)
class TileRun:
    """An instance of a tile statement of a tiled one: the digits of its dimensions, in the order of the nest's loops."""

    statement: str
    kind: Kind
    digits: tuple[Linear, ...]


@dataclass(frozen=True)
class DeclareAccumulators:
    """The accumulators of a tiled statement, and the nodes that use them."""

    statement: str
    body: tuple[Node, ...]


Loop = ParallelLoop | SimdLoop | StatementLoop | RowLoops
CpuNode = Loop | ParallelRegion | Declare | DeclareSlices | TileRun | DeclareAccumulators
Node = For | If | Run | MarkNode | CpuNode
AnyNode = TypeVar("AnyNode", bound=Node)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    match node:
        case For() | MarkNode() | Declare() | DeclareSlices() | DeclareAccumulators():
            return node.body
        case If():
            return node.then + node.other
        case ParallelLoop() | SimdLoop() | StatementLoop() | RowLoops():
            return (node.loop,)
        case ParallelRegion():
            return node.loops
    return ()


def substitute(node: AnyNode, values: Mapping[str, Linear]) -> AnyNode:
    """A node of isl's AST with loop variables replaced."""

    def inside(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(substitute(each, values) for each in nodes)

    made: Node
    match node:
        case Run():
            made = replace(node, indices=tuple((d, e.substitute(values)) for d, e in node.indices))
        case TileRun():
            made = replace(node, digits=tuple(digit.substitute(values) for digit in node.digits))
        case If():
            made = If(node.condition.substitute(values), inside(node.then), inside(node.other))
        case MarkNode():
            made = replace(node, body=inside(node.body))
        case For():
            made = replace(node, lower=node.lower.substitute(values), upper=node.upper.substitute(values), body=inside(node.body))
        case _:
            raise TypeError(f"{type(node).__name__} is no node of isl's AST")
    return cast(AnyNode, made)


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and all below, in order."""
    for node in nodes:
        yield node
        yield from walk(children(node))


def runs(nodes: Iterable[Node]) -> list[Run]:
    """Every statement instance below, in order."""
    return [node for node in walk(nodes) if isinstance(node, Run)]


def tile_runs(nodes: Iterable[Node]) -> list[TileRun]:
    """Every instance of a tile statement below, in order."""
    return [node for node in walk(nodes) if isinstance(node, TileRun)]


def marks_below(nodes: Iterable[Node]) -> set[marks.Mark]:
    """All marks below."""
    return {node.mark for node in walk(nodes) if isinstance(node, MarkNode)}


def nest(node: Node) -> tuple[list[For], tuple[Node, ...]]:
    """The perfectly nested loops from a node down, and the body of the innermost."""
    loops: list[For] = []
    body: tuple[Node, ...] = (node,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0])
        body = body[0].body
    return loops, body
