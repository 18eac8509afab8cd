"""Numbers that a trace holds as tensors without dimensions become numbers again, which patterns and kernels can read."""
from __future__ import annotations

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.infer import make
from tcjit.byoc.passes.editing import MemoryUses, inside, rebuilt

# the overloads that take a number instead of a second tensor
_NAMES = "add sub mul div eq ne lt le gt ge fmod remainder"
SCALARS = {
    **{(f"aten.{name}", "Tensor"): "Scalar" for name in _NAMES.split()},
    ("aten.div", "Tensor_mode"): "Scalar_mode",
    ("aten.pow", "Tensor_Tensor"): "Tensor_Scalar",
}


def write_numbers(block: Block, adapter: Adapter) -> Block:
    """``aten.mul.Tensor(x, c)`` with a constant of no dimensions becomes ``aten.mul.Scalar`` with its number, where the result keeps its
    dtype. Constants that train, or are written to, stay."""
    return _written(block, adapter, MemoryUses(block))


def _written(block: Block, adapter: Adapter, memory: MemoryUses) -> Block:
    inside(block, lambda each: _written(each, adapter, memory))
    return rebuilt(block, [_plain(node, adapter, memory) or node for node in block.nodes])


def _plain(node: Node, adapter: Adapter, memory: MemoryUses) -> Node | None:
    overload = SCALARS.get((node.op, node.overload))
    if overload is None or len(node.arguments) < 2 or node.effect:
        return None
    name = list(node.arguments)[1]
    other = node.arguments[name]
    if not isinstance(other, Value) or not other.constant or other.type is None or other.type.shape != () or memory.written(other):
        return None
    tensor = adapter.read(other)
    if tensor.requires_grad or tensor.dtype.is_complex or node.output.type is None:
        return None
    made = make(node.op, overload, {**node.arguments, name: _number(tensor)}, name=node.output.name)
    if made.output.type is None or made.output.type.dtype != node.output.type.dtype:
        return None
    made.outputs = node.outputs
    return made


def _number(tensor: torch.Tensor) -> bool | int | float:
    found: bool | int | float = tensor.item()
    return found
