"""Common subexpressions: what is computed twice from the same is computed once."""
from __future__ import annotations

from collections.abc import Hashable

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.passes.editing import MemoryUses, inside, rebuilt, substitute


def share_common(block: Block, adapter: Adapter) -> Block:
    """One node for all that do the same to the same values. Tensors that something writes to, or that the model returns both, stay two."""
    memory = MemoryUses(block)
    instead: dict[Value, Value] = {}
    return substitute(_shared(block, memory, instead), instead)


def _shared(block: Block, memory: MemoryUses, instead: dict[Value, Value]) -> Block:
    inside(block, lambda each: _shared(each, memory, instead))
    seen: dict[Hashable, Node] = {}
    kept: list[Node] = []
    for node in block.nodes:
        first = seen.setdefault(_key(node, instead), node) if _sharable(node, memory) else node
        if first is node or not all(memory.alike(*pair) for pair in zip(first.outputs, node.outputs)):
            kept.append(node)
            continue
        instead.update(zip(node.outputs, first.outputs))
        memory.exposed.update(one for one, other in zip(first.outputs, node.outputs) if other in memory.exposed)
    return rebuilt(block, kept)


def _sharable(node: Node, memory: MemoryUses) -> bool:
    return node.effect in ("", "view") and bool(node.outputs) and not node.blocks and not memory.written(*node.inputs, *node.outputs)


def _key(node: Node, instead: dict[Value, Value]) -> Hashable:
    def of(argument: Argument) -> Hashable:
        if isinstance(argument, Value):
            return ("value", id(instead.get(argument, argument)))
        if isinstance(argument, tuple):
            return tuple(map(of, argument))
        # 1, 1.0 and True are three things, and so are 0.0 and -0.0
        return (type(argument).__name__, repr(argument))

    return (node.op, node.overload, len(node.outputs), *((name, of(argument)) for name, argument in node.arguments.items()))
