"""A block of a model as dataflow: what every step of the partitioner looks at, whatever the model came as.

Adapters make it from a TorchScript block or an FX graph and carry out on those what was decided here. Nothing here imports torch.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# what may keep a node out of every region: it writes to an argument, its result shares memory with one, it draws random numbers,
# it acts on the world, or it has blocks of its own
Effect = Literal["", "mutates", "view", "random", "acts", "control"]


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor: ``dtype`` as in ``float32``; ``shape`` is None where even the rank is unknown, an extent None where it
    is; ``device`` as in ``cpu``."""

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    device: str = "cpu"

    @property
    def known(self) -> bool:
        """Whether dtype and every extent are known."""
        return bool(self.dtype) and self.shape is not None and None not in self.shape

    @property
    def elements(self) -> int | None:
        if self.shape is None:
            return None
        total = 1
        for extent in self.shape:
            if extent is None:
                return None
            total *= extent
        return total

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "x".join("?" if extent is None else str(extent) for extent in self.shape)
        return f"{self.dtype or '?'}[{shape}]"


@dataclass(eq=False)
class Value:
    """Something computed or given; compared by identity.

    ``type`` is None for what is no tensor. ``constant`` is a parameter or buffer that the model holds, to be read through the adapter.
    """

    name: str
    type: TensorType | None = None
    producer: Node | None = None
    position: int = 0  # among the producer's outputs
    constant: bool = False
    origin: Any = field(default=None, repr=False)  # the adapter's own
    users: list[Node] = field(default_factory=list, repr=False)  # once per use

    def __repr__(self) -> str:
        return f"%{self.name}" + (f": {self.type}" if self.type else "")


# an argument: a value, something written in the model (number, text, bool, None), or a list of either
Argument: TypeAlias = "Value | int | float | bool | str | None | complex | tuple[Argument, ...]"


@dataclass(eq=False)
class Node:
    """One operation. ``op`` is ``aten.add``, ``overload`` ``Tensor``; ``arguments`` are in the order of the schema, by its names."""

    op: str
    overload: str
    arguments: Mapping[str, Argument]
    outputs: tuple[Value, ...]
    effect: Effect = ""
    number: int = 0  # place in its block
    origin: Any = field(default=None, repr=False)
    blocks: tuple[Block, ...] = ()
    reason: str = ""  # why no backend takes it, where none does

    @property
    def inputs(self) -> list[Value]:
        """The values among the arguments, in their order, those in lists included, once per use."""
        return [value for argument in self.arguments.values() for value in values_of(argument)]

    @property
    def output(self) -> Value:
        """The only output."""
        (found,) = self.outputs
        return found

    def __repr__(self) -> str:
        outs = ", ".join(map(repr, self.outputs))
        return f"{outs} = {self.op}({', '.join(f'{name}={argument!r}' for name, argument in self.arguments.items())})"


@dataclass(eq=False)
class Block:
    """Nodes in an order in which they can run, and what goes in and out."""

    inputs: tuple[Value, ...]
    nodes: list[Node]
    outputs: tuple[Value, ...]
    mutated: frozenset[Value] = frozenset()  # values whose memory something in the block, or in blocks inside, writes to
    origin: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for value in (*self.inputs, *(out for node in self.nodes for out in node.outputs)):
            value.users = []
        for number, node in enumerate(self.nodes):
            node.number = number
            for value in node.inputs:
                value.users.append(node)

    @property
    def values(self) -> Iterator[Value]:
        """Everything that the block computes or is given."""
        yield from self.inputs
        for node in self.nodes:
            yield from node.outputs

    def every(self) -> Iterator[Block]:
        """This block and those inside its nodes, outermost first."""
        yield self
        for node in self.nodes:
            for block in node.blocks:
                yield from block.every()

    def escapes(self, value: Value, members: Iterable[Node]) -> bool:
        """Whether anything outside of ``members`` uses a value."""
        inside = set(map(id, members))
        inner = any(value in captured(block) for node in self.nodes if id(node) not in inside for block in node.blocks)
        return value in self.outputs or inner or any(id(user) not in inside for user in value.users)

    def __str__(self) -> str:
        lines = [f"({', '.join(map(repr, self.inputs))})", *(f"  {node!r}" for node in self.nodes)]
        return "\n".join([*lines, f"  return {', '.join(f'%{value.name}' for value in self.outputs)}"])


def values_of(argument: Argument) -> Iterator[Value]:
    """The values in an argument."""
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, tuple):
        for each in argument:
            yield from values_of(each)


def captured(block: Block) -> set[Value]:
    """The values that a block uses, its own included."""
    found = set(block.outputs)
    for inner in block.every():
        found.update(inner.outputs)
        for node in inner.nodes:
            found.update(node.inputs)
    return found
