"""What the steps keep asking about a block: what leaves it, and which node must run before which."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from tcjit.byoc.graph import Block, Node, Value, captured

# nodes of these effects keep their order among each other, and with what reads or makes memory that is written to
ORDERED = ("mutates", "random", "acts", "control")


class BlockDependences:
    """A block seen as a graph of dependencies.

    ``leaving``: values that the block returns or that blocks inside of it use. ``needs``: per node, by number, the numbers of the nodes
    that must run before it, ascending: for a value, or because of memory that something writes to. ``bound``: nodes that have
    dependencies of the second kind.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.nodes = block.nodes
        inner: dict[Node, list[Value]] = {}
        for node in block.nodes:
            if node.blocks:
                inner[node] = sorted({v for each in node.blocks for v in captured(each) if self._here(v)}, key=_position)
        self.leaving = frozenset(block.outputs).union(*inner.values())
        self.bound: set[Node] = set()
        self.needs = [self._producers([*node.inputs, *inner.get(node, ())]) for node in block.nodes]
        self._order_memory(inner)

    def holds(self, node: Node | None) -> bool:
        """Whether a node stands in this block itself."""
        return node is not None and node.number < len(self.nodes) and self.nodes[node.number] is node

    def escapes(self, value: Value, members: set[Node] | frozenset[Node]) -> bool:
        """Whether anything but ``members`` uses a value of this block."""
        return value in self.leaving or any(user not in members for user in value.users)

    def _here(self, value: Value) -> bool:
        return self.holds(value.producer) or value in self.block.inputs

    def _producers(self, values: Iterable[Value]) -> list[int]:
        return sorted({v.producer.number for v in values if v.producer is not None and self.holds(v.producer)})

    def _order_memory(self, inner: dict[Node, list[Value]]) -> None:
        """Dependencies through memory: what touches memory that something writes to stays between the writers that it stood between."""
        last: int | None = None
        since: list[int] = []  # nodes since the last one of an ordered effect that touch such memory
        for node in self.nodes:
            ordered = node.effect in ORDERED
            touches = any(v in self.block.mutated for v in (*node.inputs, *node.outputs, *inner.get(node, ())))
            if not ordered and not touches:
                continue
            before = set(self.needs[node.number])
            if last is not None:
                before.add(last)
            if ordered:
                before.update(since)
                last, since = node.number, []
            else:
                since.append(node.number)
            self.needs[node.number] = sorted(before)
            self.bound.add(node)


def operands(node: Node) -> Iterator[Value]:
    """The inputs of a node, each once."""
    return iter(dict.fromkeys(node.inputs))


def note(node: Node, reason: str) -> None:
    """Adds a reason to those at a node, once."""
    reasons = node.reason.split("; ") if node.reason else []
    if reason not in reasons:
        node.reason = "; ".join([*reasons, reason])


def _position(value: Value) -> tuple[int, int, str]:
    return (value.producer.number if value.producer else -1, value.position, value.name)
