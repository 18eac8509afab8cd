"""What passes edit blocks with: values replaced, nodes added, and the question whether two tensors may become one."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tcjit.byoc.graph import Argument, Block, Node, Value, captured
from tcjit.byoc.infer import make


def rebuilt(block: Block, nodes: Iterable[Node], outputs: tuple[Value, ...] | None = None) -> Block:
    """The block with other nodes, and other outputs where some are given. Blocks inside must be done already."""
    listed = list(nodes)
    for node in listed:
        for position, value in enumerate(node.outputs):
            value.producer, value.position = node, position
    return Block(block.inputs, listed, block.outputs if outputs is None else outputs, block.mutated, block.origin)


def inside(block: Block, change: Callable[[Block], Block]) -> None:
    """Applies a change to the blocks inside a block's nodes."""
    for node in block.nodes:
        if node.blocks:
            node.blocks = tuple(map(change, node.blocks))


def substitute(block: Block, instead: Mapping[Value, Value]) -> Block:
    """Other values in place of some, in all uses, those in blocks inside included."""
    if not instead:
        return block

    def end(value: Value) -> Value:
        while value in instead:
            value = instead[value]
        return value

    def whole(each: Block) -> Block:
        inside(each, whole)
        for node in each.nodes:
            if any(value in instead for value in node.inputs):
                node.arguments = renamed(node.arguments, end)
        return rebuilt(each, each.nodes, tuple(map(end, each.outputs)))

    return whole(block)


def pruned(block: Block, idle: Collection[Node]) -> Block:
    """The block without those of some nodes whose results nobody uses."""
    live: set[Value] = set(block.outputs)
    kept: list[Node] = []
    for node in reversed(block.nodes):
        if node not in idle or any(value in live for value in node.outputs):
            kept.append(node)
            live.update(node.inputs, *map(captured, node.blocks))
    return rebuilt(block, reversed(kept))


@dataclass
class Emit:
    """New nodes one after another: ``emit("aten.relu", self=x)`` is the result of a new node. ``nodes`` holds them."""

    nodes: list[Node] = field(default_factory=list)
    count: int = 0

    def __call__(self, op: str, overload: str = "default", /, **arguments: Argument) -> Value:
        """The first result; it is named after the operation, with a number."""
        self.count += 1
        node = make(op, overload, arguments, name=f"{op.rpartition('.')[2].strip('_')}_{self.count}")
        self.nodes.append(node)
        return node.outputs[0]


class MemoryUses:
    """Which values of a model are written to, and which may be seen from outside: those that leave a block, and all that share their memory
    as far as views tell. Asked before two tensors become one."""

    def __init__(self, block: Block) -> None:
        self.mutated: frozenset[Value] = frozenset().union(*(each.mutated for each in block.every()))
        self.exposed: set[Value] = set()
        for each in block.every():
            self._expose(each)

    def _expose(self, block: Block) -> None:
        leaving = [*block.outputs, *(value for node in block.nodes for inner in node.blocks for value in captured(inner))]
        while leaving:
            value = leaving.pop()
            if value in self.exposed:
                continue
            self.exposed.add(value)
            made = value.producer
            # what else hands on memory that it was given: views, lists and tuples
            if made is not None and (made.effect == "view" or made.op.startswith("prim.")):
                leaving.extend(made.inputs)

    def written(self, *values: Value) -> bool:
        """Whether something writes to one of them."""
        return any(value in self.mutated for value in values)

    def alike(self, kept: Value, gone: Value) -> bool:
        """Whether a fresh tensor may be another one: nobody writes to either, and not both are seen from outside."""
        shared = gone in self.exposed and (kept in self.exposed or kept.producer is None)
        return not self.written(kept, gone) and not shared


def only_user(value: Value, block: Block, memory: MemoryUses) -> Node | None:
    """The one node of the block that uses a value, once; None where anything else does."""
    users = value.users
    leaves = value in block.outputs or value in memory.exposed
    return users[0] if len(users) == 1 and not leaves and users[0] in block.nodes[users[0].number : users[0].number + 1] else None


def renamed(arguments: Mapping[str, Argument], end: Callable[[Value], Value]) -> dict[str, Argument]:
    """Arguments with another value in place of each."""

    def of(argument: Argument) -> Argument:
        if isinstance(argument, Value):
            return end(argument)
        return tuple(map(of, argument)) if isinstance(argument, tuple) else argument

    return {name: of(argument) for name, argument in arguments.items()}
