"""Constant folding: what is computed from the model's own tensors alone is computed once."""
from __future__ import annotations

from typing import Any

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.cost import BYTES, size
from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.ops import run
from tcjit.byoc.passes.editing import MemoryUses, inside, rebuilt, substitute
from tcjit.byoc.passes.pipeline import Rewriting

LIMIT = 1 << 24


def folding(limit: int = LIMIT) -> Rewriting:
    """Constant folding that makes no tensor of more than ``limit`` bytes."""

    def fold(block: Block, adapter: Adapter) -> Block:
        return _ConstantFolder(block, adapter, limit).done(block)

    return fold


def fold_constants(block: Block, adapter: Adapter) -> Block:
    """Nodes of constants only become constants, of up to 16 MiB each.

    Not folded: what trains (parameters that require gradients), what the model returns or writes to, and conversions to a wider dtype,
    which only cost memory.
    """
    return folding()(block, adapter)


class _ConstantFolder:
    def __init__(self, block: Block, adapter: Adapter, limit: int) -> None:
        self._adapter, self._limit = adapter, limit
        self._memory = MemoryUses(block)
        self._instead: dict[Value, Value] = {}
        self._tensors: dict[Value, torch.Tensor] = {}

    def done(self, block: Block) -> Block:
        return substitute(self._folded(block), self._instead)

    def _folded(self, block: Block) -> Block:
        kept: list[Node] = []
        for node in block.nodes:
            made = self._computed(node)
            if made is None:
                kept.append(node)
                continue
            for value, tensor in zip(node.outputs, made):
                self._instead[value] = constant = self._adapter.constant(tensor, value.name)
                self._tensors[constant] = tensor
        inside(block, self._folded)
        return rebuilt(block, kept)

    def _computed(self, node: Node) -> list[torch.Tensor] | None:
        inputs = [self._instead.get(value, value) for value in node.inputs]
        plain = node.effect in ("", "view") and not node.blocks and node.op.startswith("aten.")
        if not plain or not inputs or not node.outputs or not all(value.constant for value in inputs):
            return None
        if self._memory.written(*inputs, *node.outputs) or any(value in self._memory.exposed for value in node.outputs):
            return None
        if not all(value.type is not None and value.type.known for value in node.outputs) or _widens(node):
            return None
        if sum(map(size, node.outputs)) > self._limit:
            return None
        given = {value: self._read(value) for value in inputs}
        if any(tensor.requires_grad for tensor in given.values()):
            return None
        arguments = {name: self._argument(argument, given) for name, argument in node.arguments.items()}
        with torch.no_grad():
            # a view must not keep, nor be changed with, the tensor that it looks at
            return [each.detach().clone() for each in run(node.op, node.overload, arguments)]

    def _read(self, value: Value) -> torch.Tensor:
        return self._tensors[value] if value in self._tensors else self._adapter.read(value)

    def _argument(self, argument: Argument, given: dict[Value, torch.Tensor]) -> Any:
        if isinstance(argument, Value):
            return given[self._instead.get(argument, argument)]
        return tuple(self._argument(each, given) for each in argument) if isinstance(argument, tuple) else argument


def _widens(node: Node) -> bool:
    """Whether a node only converts to a dtype with more bytes."""
    if node.op not in ("aten.to", "aten._to_copy", "aten.type_as") or not node.inputs or node.inputs[0].type is None:
        return False
    before, after = node.inputs[0].type, node.outputs[0].type
    return after is not None and BYTES.get(after.dtype, 4) > BYTES.get(before.dtype, 4)
