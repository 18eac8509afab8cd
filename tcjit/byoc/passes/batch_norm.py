"""Batch normalisation in inference, folded into the convolution or linear layer before it.

With s = gamma / sqrt(variance + eps) per channel: weight * s, and (bias - mean) * s + beta, in float64 and then rounded once.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.infer import make
from tcjit.byoc.passes.editing import MemoryUses, inside, only_user, rebuilt

_NAMES = "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit_no_training _batch_norm_impl_index"
_NORMS = frozenset(f"aten.{name}" for name in _NAMES.split())
# the weight, the bias, and which dimension of the weight its output channels are in
_LAYERS: dict[str, tuple[str, str, int]] = {
    **{f"aten.{name}": ("weight", "bias", 0) for name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "linear")},
    "aten.addmm": ("mat2", "self", 1),
}


def fold_batch_norm(block: Block, adapter: Adapter) -> Block:
    """Batch normalisations that follow nothing but a convolution or linear layer with constant weights go into those weights.

    The new weights are constants, which do not train: where a parameter of the two requires gradients, they stay as they are.
    """
    return _folded(block, adapter, MemoryUses(block))


def _folded(block: Block, adapter: Adapter, memory: MemoryUses) -> Block:
    inside(block, lambda each: _folded(each, adapter, memory))
    nodes: dict[Node, Node | None] = dict.fromkeys(block.nodes)  # what stands for each; itself where None
    gone: set[Node] = set()
    for node in block.nodes:
        found = _pair(node, block, memory)
        if found is not None and found.layer not in gone and not _trains(found, adapter):
            nodes[node] = _layer(found, adapter)
            gone.add(found.layer)
    return rebuilt(block, (made or node for node, made in nodes.items() if node not in gone)) if gone else block


@dataclass(frozen=True)
class _Pair:
    """A layer, the norm behind it, and their constants: gamma and beta may be None, and so may the bias."""

    layer: Node
    norm: Node
    weight: Value
    bias: Value | None
    channel: int
    gamma: Value | None
    beta: Value | None
    mean: Value
    variance: Value


def _pair(norm: Node, block: Block, memory: MemoryUses) -> _Pair | None:
    told = norm.arguments
    source = told.get("input")
    inference = norm.op.endswith("_no_training") or told.get("training") is False
    if norm.op not in _NORMS or not inference or not isinstance(source, Value) or source.producer is None:
        return None
    layer = source.producer
    if layer.op not in _LAYERS or layer.effect or only_user(source, block, memory) is not norm or memory.written(source, norm.outputs[0]):
        return None
    if any(value.users or value in block.outputs for value in norm.outputs[1:]) or _unusual(layer, source):
        return None
    weight_name, bias_name, channel = _LAYERS[layer.op]
    weight, bias = layer.arguments[weight_name], layer.arguments.get(bias_name)
    gamma, beta, mean, variance = (told.get(name) for name in ("weight", "bias", "running_mean", "running_var"))
    if not (_constant(weight) and _constant(mean) and _constant(variance)):
        return None
    if not all(each is None or _constant(each) for each in (bias, gamma, beta)):
        return None
    assert isinstance(weight, Value) and isinstance(mean, Value) and isinstance(variance, Value)
    optional = [each if isinstance(each, Value) else None for each in (bias, gamma, beta)]
    if layer.op == "aten.addmm" and not _row(optional[0], weight):
        return None
    return _Pair(layer, norm, weight, optional[0], channel, optional[1], optional[2], mean, variance)


def _trains(pair: _Pair, adapter: Adapter) -> bool:
    return any(value is not None and adapter.read(value).requires_grad for value in (pair.weight, pair.bias, pair.gamma, pair.beta))


def _unusual(layer: Node, source: Value) -> bool:
    """Layers whose channels are not where the norm looks for them, and sums that are scaled."""
    told = layer.arguments
    scaled = layer.op == "aten.addmm" and (told.get("alpha", 1) != 1 or told.get("beta", 1) != 1)
    rows = layer.op in ("aten.linear", "aten.addmm") and (source.type is None or source.type.shape is None or len(source.type.shape) != 2)
    return told.get("transposed", False) is not False or scaled or rows


def _row(bias: Value | None, weight: Value) -> bool:
    """Whether what a product is added to has one element per channel."""
    if bias is None or bias.type is None or weight.type is None or not weight.type.shape:
        return False
    return bias.type.shape in ((weight.type.shape[1],), (1, weight.type.shape[1]))


def _constant(argument: Argument) -> bool:
    return isinstance(argument, Value) and argument.constant


def _layer(pair: _Pair, adapter: Adapter) -> Node:
    """The layer with the norm in its weights; it gives the norm's result."""

    def read(value: Value | None, otherwise: float) -> torch.Tensor:
        given = torch.full_like(mean, otherwise) if value is None else adapter.read(value).detach().double()
        return given.reshape(-1)

    with torch.no_grad():
        mean = adapter.read(pair.mean).detach().double()
        eps = pair.norm.arguments["eps" if "eps" in pair.norm.arguments else "epsilon"]
        assert isinstance(eps, (int, float))
        scale = read(pair.gamma, 1.0) / torch.sqrt(read(pair.variance, 1.0) + eps)
        weight = adapter.read(pair.weight).detach()
        shape = [1] * weight.dim()
        shape[pair.channel] = -1
        folded = (weight.double() * scale.reshape(shape)).to(weight.dtype)
        shift = (read(pair.bias, 0.0) - mean) * scale + read(pair.beta, 0.0)
        bias = shift.to(weight.dtype if pair.bias is None else adapter.read(pair.bias).dtype)
    weight_name, bias_name, _ = _LAYERS[pair.layer.op]
    arguments = dict(pair.layer.arguments)
    arguments[weight_name] = adapter.constant(folded, f"{pair.weight.name}_folded")
    arguments[bias_name] = adapter.constant(bias, f"{pair.weight.name}_shift")
    made = make(pair.layer.op, pair.layer.overload, arguments, name=pair.norm.outputs[0].name)
    made.outputs = (pair.norm.outputs[0],)
    return made
