"""The loops that a mapped tree becomes: what isl's AST says, as small immutable nodes that printers walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tcjit.codegen.linear import Linear
from tcjit.mapping import marks


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
class Both:
    """Two conditions joined by ``&&`` or ``||``."""

    left: Condition
    op: str
    right: Condition

    def written(self, index: Callable[[Linear], str]) -> str:
        return f"({self.left.written(index)}) {self.op} ({self.right.written(index)})"

    def substitute(self, values: Mapping[str, Linear]) -> Both:
        return Both(self.left.substitute(values), self.op, self.right.substitute(values))

    @property
    def variables(self) -> frozenset[str]:
        return self.left.variables | self.right.variables


Condition = Compare | Both


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
class Mark:
    """A mark of the schedule tree and what stands below it."""

    mark: marks.Mark
    body: tuple[Node, ...]


Node = For | If | Run | Mark


def substitute(node: Node, values: Mapping[str, Linear]) -> Node:
    """The node with loop variables replaced."""
    if isinstance(node, Run):
        return replace(node, indices=tuple((d, e.substitute(values)) for d, e in node.indices))
    if isinstance(node, If):
        then = tuple(substitute(n, values) for n in node.then)
        return If(node.condition.substitute(values), then, tuple(substitute(n, values) for n in node.other))
    body = tuple(substitute(n, values) for n in node.body)
    if isinstance(node, For):
        return replace(node, lower=node.lower.substitute(values), upper=node.upper.substitute(values), body=body)
    return replace(node, body=body)


def runs(nodes: tuple[Node, ...]) -> list[Run]:
    """Every statement instance below, in order."""
    result: list[Run] = []
    for node in nodes:
        if isinstance(node, Run):
            result.append(node)
        elif isinstance(node, If):
            result += runs(node.then) + runs(node.other)
        else:
            result += runs(node.body)
    return result


def marks_below(nodes: tuple[Node, ...]) -> set[marks.Mark]:
    """All marks below."""
    found: set[marks.Mark] = set()
    for node in nodes:
        if isinstance(node, If):
            found |= marks_below(node.then + node.other)
        elif not isinstance(node, Run):
            found |= marks_below(node.body) | ({node.mark} if isinstance(node, Mark) else set())
    return found


def nest(node: Node) -> tuple[list[For], tuple[Node, ...]]:
    """The perfectly nested loops from a node down, and the body of the innermost."""
    loops: list[For] = []
    body: tuple[Node, ...] = (node,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0])
        body = body[0].body
    return loops, body
