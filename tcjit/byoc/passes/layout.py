"""Channels last around convolutions: regions of operations that keep a layout, with conversions only where values come in and go out.

Shapes stay those of the model, (N, C, H, W); what changes is the order in memory. A conversion is ``aten.contiguous`` with a memory format.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.infer import make
from tcjit.byoc.ops import FORMATS
from tcjit.byoc.passes.editing import Emit, MemoryUses, inside, pruned, rebuilt, renamed
from tcjit.byoc.passes.lower_conv_transpose import spread, spreads
from tcjit.byoc.passes.pipeline import Rewriting

LAST, FIRST = FORMATS[torch.channels_last], FORMATS[torch.contiguous_format]
# operations for which the layout is changed, and those that follow it: (N, C, H, W) in and out, element by element or pixel by pixel
ASKING = ("aten.conv2d", "aten.convolution", "aten._convolution")
_FOLLOWING = (
    "relu sigmoid tanh hardtanh clamp clamp_min clamp_max gelu silu elu leaky_relu hardswish hardsigmoid softplus exp neg abs sqrt rsqrt "
    "add sub mul div maximum minimum batch_norm max_pool2d avg_pool2d adaptive_avg_pool2d cat upsample_nearest2d upsample_bilinear2d"
)
FOLLOWING = frozenset(f"aten.{name}" for name in _FOLLOWING.split())


def channels_last(block: Block, adapter: Adapter) -> Block:
    """The model with its convolutions, and what lies between them, in channels last."""
    return layout()(block, adapter)


def layout(asking: tuple[str, ...] = ASKING, following: frozenset[str] = FOLLOWING) -> Rewriting:
    """Channels last for the operations that a backend asks it for, and for those that follow."""

    def run(block: Block, adapter: Adapter) -> Block:
        return _ChannelsLast(adapter, MemoryUses(block), asking, following).done(block)

    return run


class _ChannelsLast:
    """A chosen node gives a value of its own in channels last, and a conversion gives the value that the model has. What takes the latter
    in channels last takes the former, and a conversion that nobody needs goes: so pairs of them cancel."""

    def __init__(self, adapter: Adapter, memory: MemoryUses, asking: tuple[str, ...], following: frozenset[str]) -> None:
        self._adapter, self._memory = adapter, memory
        self._asking, self._following = frozenset(asking), following
        self._held: dict[Value, Value] = {}  # constants in channels last
        self._emitted = 0

    def done(self, block: Block) -> Block:
        inside(block, self.done)
        last: dict[Value, Value] = {}  # a tensor as the model has it: where it is in channels last
        chosen: set[Value] = set()  # those that are computed there
        nodes: list[Node] = []
        conversions: set[Node] = set()

        def convert(value: Value, name: str, form: int) -> Node:
            made = make("aten.contiguous", "default", {"self": value, "memory_format": form}, name=name)
            conversions.add(made)
            nodes.append(made)
            return made

        def version(value: Value) -> Value:
            if value not in last:
                last[value] = self._constant(value) if value.constant else convert(value, f"{value.name}_last", LAST).output
            return last[value]

        for node in block.nodes:
            form = None if self._memory.written(*node.inputs, *node.outputs) else _format(node)
            if form is not None and node.inputs[0] in last:
                source = node.inputs[0]
                node.arguments = {**node.arguments, "self": last[source]}
                conversions.add(node)
                if source in chosen:
                    chosen.add(node.output)
                last[node.output] = last[source]
            elif form == LAST:
                last[node.inputs[0]] = last[node.output] = node.output
                conversions.add(node)
            if form is None and node.inputs and node.inputs[0] in chosen and self._spreads(node):
                result = node.outputs[0]
                emit = Emit(nodes, self._emitted)
                last[result] = spread(node, last[node.inputs[0]], self._adapter, emit)
                self._emitted = emit.count
                convert(last[result], result.name, FIRST).outputs = (result,)
                chosen.add(result)
                continue
            if form is not None or not self._takes(node, chosen):
                nodes.append(node)
                continue
            given = {value: version(value) for value in dict.fromkeys(node.inputs) if _rank(value) == 4}
            result = node.outputs[0]
            last[result] = Value(f"{result.name}_last", result.type)
            # a node of its own: one that was read stands for the value that it was read with
            nodes.append(Node(node.op, node.overload, renamed(node.arguments, partial(_other, given)), (last[result],)))
            convert(last[result], result.name, FIRST).outputs = (result,)
            chosen.add(result)
        return pruned(rebuilt(block, nodes), conversions)

    def _spreads(self, node: Node) -> bool:
        """Whether a transposed convolution becomes a product of pixels."""
        if self._memory.written(*node.inputs, *node.outputs) or not spreads(node):
            return False
        return not any(self._adapter.read(value).requires_grad for value in node.inputs[1:])

    def _takes(self, node: Node, chosen: set[Value]) -> bool:
        """Whether a node computes in channels last: by itself, or because something it takes is."""
        if node.op not in self._asking | self._following or node.effect or len(node.outputs) != 1 or _rank(node.outputs[0]) != 4:
            return False
        tensors = [value for value in node.inputs if value.type is not None and not value.constant]
        if self._memory.written(*node.inputs, *node.outputs) or any(_rank(value) != 4 for value in tensors):
            return False
        return node.op in self._asking or any(value in chosen for value in tensors)

    def _constant(self, value: Value) -> Value:
        """A constant in channels last; itself where it trains."""
        if value not in self._held:
            tensor = self._adapter.read(value)
            fixed = not tensor.requires_grad and not tensor.is_contiguous(memory_format=torch.channels_last)
            made = tensor.contiguous(memory_format=torch.channels_last) if fixed else tensor
            self._held[value] = self._adapter.constant(made, f"{value.name}_last") if fixed else value
        return self._held[value]


def _format(node: Node) -> int | None:
    """The layout that a node converts to."""
    form = node.arguments.get("memory_format")
    return form if node.op == "aten.contiguous" and isinstance(form, int) and form in (LAST, FIRST) else None


def _rank(value: Value) -> int | None:
    return len(value.type.shape) if value.type is not None and value.type.shape is not None else None


def _other(given: Mapping[Value, Value], value: Value) -> Value:
    return given.get(value, value)
