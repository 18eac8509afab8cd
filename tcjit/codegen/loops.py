"""The loops that a mapped tree becomes: what isl's AST says, as small immutable nodes that printers walk."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.codegen.linear import Linear


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
class If:
    """``condition`` is C text over loop variables."""

    condition: str
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Run:
    """One instance of a statement: the value of each of its dimensions, and per contracted tensor access its private subscripts."""

    statement: str
    indices: tuple[tuple[str, Linear], ...]
    shift: tuple[tuple[str, tuple[Linear, ...]], ...] = ()  # private tensor -> offset of its buffer along each dimension

    def index(self, name: str) -> Linear:
        return dict(self.indices)[name]


@dataclass(frozen=True)
class Mark:
    """A mark of the schedule tree and what stands below it."""

    name: str
    body: tuple[Node, ...]


Node = For | If | Run | Mark


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


def nest(node: Node) -> tuple[list[For], tuple[Node, ...]]:
    """The perfectly nested loops from a node down, and the body of the innermost."""
    loops: list[For] = []
    body: tuple[Node, ...] = (node,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0])
        body = body[0].body
    return loops, body
