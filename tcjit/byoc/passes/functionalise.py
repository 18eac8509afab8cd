"""In-place operations on tensors that the block itself made become operations that give new ones."""
from __future__ import annotations

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, Value, captured
from tcjit.byoc.infer import make
from tcjit.byoc.ops import operator, written
from tcjit.byoc.passes.editing import rebuilt, renamed
from tcjit.errors import PartitionError


def functionalise(block: Block, adapter: Adapter) -> Block:
    """``aten.relu_(x)`` becomes ``aten.relu(x)``, and every later use of ``x`` one of the result, where ``x`` was computed in this block,
    nothing before shares its memory, and the result has the dtype of ``x``. Other writes stay."""
    return _Rewriter(block, outermost=True).done()


class _Rewriter:
    def __init__(self, block: Block, outermost: bool) -> None:
        self._block, self._outermost = block, outermost
        self._now: dict[Value, Value] = {}  # what holds, at this point, what the model has in a tensor
        self._shared: set[Value] = set()  # tensors that something else may share memory with, or has seen being written
        self._freed: list[Value] = []
        self._gone: set[Value] = set()

    def done(self) -> Block:
        nodes: list[Node] = []
        for node in self._block.nodes:
            self._update(node)
            made = self._fresh(node)
            if made is None:
                self._see(node)
                nodes.append(node)
                continue
            nodes.append(made)
            target = node.inputs[0]
            for value in (target, *node.outputs, *(old for old, new in self._now.items() if new is target)):
                self._now[value] = made.output
            self._freed += [target, made.output]
            self._gone.update(node.outputs)
        for node in self._block.nodes:
            node.blocks = tuple(_Rewriter(each, outermost=False).done() for each in node.blocks)
        block = rebuilt(self._block, nodes, tuple(self._current(value) for value in self._block.outputs))
        written_to = set(self._block.mutated).union(self._freed) - self._gone
        for value in self._freed:
            reached = _reached(value, block, self._outermost)
            if reached is not None:
                written_to -= reached
        return Block(block.inputs, block.nodes, block.outputs, frozenset(written_to), block.origin)

    def _current(self, value: Value) -> Value:
        return self._now.get(value, value)

    def _update(self, node: Node) -> None:
        """A node's arguments, and those of the blocks in it, as they are now."""
        if any(value in self._now for value in node.inputs):
            node.arguments = renamed(node.arguments, self._current)
        for each in (inner for block in node.blocks for inner in block.every()):
            each.outputs = tuple(self._current(value) for value in each.outputs)
            for inner in each.nodes:
                if any(value in self._now for value in inner.inputs):
                    inner.arguments = renamed(inner.arguments, self._current)

    def _fresh(self, node: Node) -> Node | None:
        """The node that computes what one writes, or None where the write must stay."""
        op = node.op[:-1]
        target = next(iter(node.arguments.values()), None)
        if node.effect != "mutates" or not node.op.endswith("_") or len(node.outputs) != 1 or not isinstance(target, Value):
            return None
        made = target.producer
        here = made is not None and made.number < len(self._block.nodes) and (made in self._block.nodes or target in self._freed)
        if made is None or not here or made.effect or made.blocks or made.op.startswith("prim.") or target in self._shared:
            return None
        try:
            if written(operator(node.op, node.overload), node.arguments) != (next(iter(node.arguments)),):
                return None
            found = make(op, node.overload, dict(node.arguments), name=node.output.name)
        except PartitionError:
            return None
        same = target.type is not None and target.type.dtype and len(found.outputs) == 1 and found.output.type is not None
        if not same or found.effect or found.output.type.dtype != target.type.dtype:  # type: ignore[union-attr]
            return None
        found.output.type = target.type
        return found

    def _see(self, node: Node) -> None:
        """Marks the tensors that a node may have made another name for, or kept."""
        if node.effect or node.blocks or node.op.startswith("prim."):
            self._shared.update(node.inputs, *map(captured, node.blocks))


def _reached(value: Value, block: Block, outermost: bool) -> set[Value] | None:
    """A tensor and all that share its memory, or None where something still writes to one of them, or may do so outside."""
    found, waiting = set[Value](), [value]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        if each in block.outputs and not outermost:
            return None
        for node in block.nodes:
            if node.blocks and any(each in captured(inner) for inner in node.blocks):
                return None
        for user in each.users:
            if user.effect == "mutates":
                targets = [user.arguments[name] for name in written(operator(user.op, user.overload), user.arguments)]
                if each in targets:
                    return None
            elif user.effect == "acts" or user.blocks:
                return None
            elif user.effect == "view" or user.op.startswith("prim."):
                waiting.extend(user.outputs)
    return found
