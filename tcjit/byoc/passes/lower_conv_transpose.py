"""Transposed convolutions whose windows do not overlap, as products: every pixel gives a patch of the result of its own.

With a kernel as large as its stride, no padding and no groups, ``conv_transpose2d`` multiplies each pixel's channels by one matrix and
puts the patch that comes out where it belongs. In channels last that is a linear layer and one copy.
"""
from __future__ import annotations

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Node, Value
from tcjit.byoc.passes.editing import Emit

TRANSPOSED = ("aten.conv_transpose2d", "aten.convolution", "aten._convolution")


def spreads(node: Node) -> bool:
    """Whether a node is such a convolution, with constants that do not train for weights."""
    if node.op not in TRANSPOSED or not (node.op == TRANSPOSED[0] or node.arguments.get("transposed") is True):
        return False
    weight, bias = _weights(node)
    if weight is None or not weight.constant or weight.type is None or not (bias is None or bias.constant):
        return False
    shape = weight.type.shape
    if shape is None or len(shape) != 4 or not all(isinstance(extent, int) for extent in shape):
        return False
    if node.arguments.get("groups") != 1 or _numbers(node, "stride", 2) != shape[2:]:
        return False
    return all(set(_numbers(node, name, 2)) == {least} for name, least in (("padding", 0), ("output_padding", 0), ("dilation", 1)))


def spread(node: Node, x: Value, adapter: Adapter, emit: Emit) -> Value:
    """The result, in channels last as ``x``, an (N, C, H, W) tensor, is."""
    weight, bias = _weights(node)
    assert weight is not None
    matrix = adapter.read(weight)  # (C, K, S, T)
    _, filters, *steps = matrix.shape
    flat = adapter.constant(matrix.permute(2, 3, 1, 0).reshape(-1, matrix.shape[0]).contiguous(), f"{weight.name}_flat")
    added = None if bias is None else adapter.constant(adapter.read(bias).repeat(steps[0] * steps[1]), f"{bias.name}_flat")
    pixels = emit("aten.permute", self=x, dims=(0, 2, 3, 1))
    patches = emit("aten.linear", input=pixels, weight=flat, bias=added)
    apart = emit("aten.unflatten", "int", self=patches, dim=3, sizes=(*steps, filters))
    placed = emit("aten.permute", self=apart, dims=(0, 1, 3, 2, 4, 5))
    tall = emit("aten.flatten", "using_ints", self=placed, start_dim=1, end_dim=2)
    wide = emit("aten.flatten", "using_ints", self=tall, start_dim=2, end_dim=3)
    return emit("aten.permute", self=wide, dims=(0, 3, 1, 2))


def _weights(node: Node) -> tuple[Value | None, Value | None]:
    found = (node.arguments.get("weight"), node.arguments.get("bias"))
    weight, bias = (each if isinstance(each, Value) else None for each in found)
    return weight, bias


def _numbers(node: Node, name: str, rank: int) -> tuple[object, ...]:
    """A list of numbers, one of which stands for as many as there are dimensions."""
    found = node.arguments.get(name)
    return () if not isinstance(found, tuple) else found * rank if len(found) == 1 else found
