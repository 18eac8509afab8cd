"""The backend ``vendor``: what ATen has fused operators for, oneDNN's on CPUs and cuDNN's on NVIDIA GPUs.

Its regions become plain nodes of those operators, so that a saved model runs without tcjit. They have no derivatives in PyTorch: a region
whose weights train stays as it is, and `vendor_gradients` has those by what else goes into one. Weights stay as they are in memory, since
oneDNN's own layouts have no file format.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.backends import Backend, Row, Verdict, register
from tcjit.byoc.cost import HostCosts, Limits
from tcjit.byoc.graph import Argument, Node, TensorType, Value
from tcjit.byoc.infer import make
from tcjit.byoc.passes.identities import permutation_of
from tcjit.byoc.patterns import Match, Pattern, either, is_const, is_op, wildcard
from tcjit.byoc.regions import Region
from tcjit.errors import PartitionError

CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten._convolution")


@dataclass(frozen=True)
class Activation:
    """How oneDNN calls an activation: from its node to name, numbers and algorithm, None where it has no such form."""

    op: str
    onednn_form: Callable[[Node], tuple[str, tuple[Argument, ...], str] | None]


def _plain(op: str, name: str) -> Activation:
    # an empty list of numbers has no form in exported programs
    return Activation(op, lambda node: (name, (None,), ""))


def _hardtanh(node: Node) -> tuple[str, tuple[Argument, ...], str] | None:
    return "hardtanh", (node.arguments.get("min_val", 0.0), node.arguments.get("max_val", 6.0)), ""


def _gelu(node: Node) -> tuple[str, tuple[Argument, ...], str] | None:
    return "gelu", (None,), str(node.arguments.get("approximate", "none"))


def _leaky(node: Node) -> tuple[str, tuple[Argument, ...], str] | None:
    return "leaky_relu", (node.arguments["negative_slope"],), ""


_NAMES = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "hardswish": "hardswish", "hardsigmoid": "hardsigmoid", "silu": "swish"}
ACTIVATIONS = {
    each.op: each
    for each in (
        *(_plain(f"aten.{op}", name) for op, name in _NAMES.items()),
        Activation("aten.gelu", _gelu),
        Activation("aten.leaky_relu", _leaky),
        Activation("aten.hardtanh", _hardtanh),
        Activation("aten.relu6", _hardtanh),
    )
}


def activated(base: Pattern) -> Pattern:
    return is_op(*ACTIVATIONS)(base).named("act")


def rectified(base: Pattern) -> Pattern:
    return is_op("aten.relu")(base)


def summed(base: Pattern) -> Pattern:
    return is_op("aten.add.Tensor")(base, wildcard().named("other")).named("sum")


CONVOLUTION, LINEAR, _ADDMM = is_op(*CONVOLUTIONS).named("layer"), is_op("aten.linear").named("layer"), is_op("aten.addmm").named("layer")
_KEYS = either(is_op("aten.transpose", "aten.permute")(wildcard().named("plain")).named("keys"), wildcard().named("keys"))
_SCORES = is_op("aten.matmul", "aten.bmm")(wildcard().named("query"), _KEYS)
_QUERY = is_op("aten.mul", "aten.div")(wildcard().named("query"), is_const().named("factor")).named("scaled")
_SCALED = either(
    is_op("aten.mul", "aten.div")(_SCORES, is_const().named("factor")).named("scaled"),
    is_op("aten.matmul", "aten.bmm")(_QUERY, _KEYS),
    _SCORES,
)
_MASKED = _SCALED.optional(lambda base: is_op("aten.add.Tensor")(base, wildcard().named("mask")).named("masked"))
_WEIGHTS = is_op("aten.softmax", "aten._softmax")(_MASKED).named("softmax")
_ATTENTION = is_op("aten.matmul", "aten.bmm")(_WEIGHTS, wildcard().named("values")).named("result")


class Vendor(Backend):
    """Fused operators of ATen; see ``patterns``. A region is one match, and costs one call of ATen."""

    name = "vendor"
    merges = False
    limits = Limits(call=HostCosts().operation)
    devices = ("cpu", "cuda")

    def __init__(self) -> None:
        self.patterns = (
            Row("attention", _ATTENTION, _attention_fits),
            Row("convolution_add_relu", rectified(summed(CONVOLUTION)), both(layer_fits, sum_fits)),
            Row("convolution_activation", activated(CONVOLUTION), both(layer_fits, activation_fits)),
            Row("convolution_add", summed(CONVOLUTION), both(layer_fits, sum_fits, on_cpu)),
            Row("addmm_activation", activated(_ADDMM), _addmm_fits),
            Row("linear_activation", activated(LINEAR), both(layer_fits, activation_fits, on_cpu)),
            Row("linear_add", summed(LINEAR), both(layer_fits, sum_fits, on_cpu)),
        )

    def rewrite(self, region: Region, adapter: Adapter) -> Sequence[Node]:
        """The fused node; raises PartitionError where that would lose derivatives, or cannot be written in the model's form."""
        found = region.groups[0].match
        assert found is not None, "every region of this backend is a match"
        row = region.groups[0].row
        if row != "attention":
            untrained(region, adapter)
        made = _WRITERS[row](found, adapter)
        made[-1].outputs = region.outputs
        return made


def untrained(region: Region, adapter: Adapter) -> None:
    """Raises PartitionError where a weight of a region trains."""
    trained = [value for value in region.constants if adapter.read(value).requires_grad]
    if trained:
        raise PartitionError(f"%{trained[0].name} trains, and the fused operator has no derivative", hint="model.requires_grad_(False)")


def node_of(found: Match, name: str) -> Node:
    value = found[name]
    assert isinstance(value, Value) and value.producer is not None
    return value.producer


def _kind(argument: Argument) -> TensorType:
    return argument.type or TensorType() if isinstance(argument, Value) else TensorType()


def both(*checks: Callable[[Match], Verdict]) -> Callable[[Match], Verdict]:
    """All of some checks: the first reason why not."""

    def check(found: Match) -> Verdict:
        return next((said for said in (each(found) for each in checks) if said is not True), True)

    return check


def layer_fits(found: Match) -> Verdict:
    layer = node_of(found, "layer")
    told, device = layer.arguments, _kind(layer.outputs[0]).device.partition(":")[0]
    kinds = [_kind(told[name]) for name in ("input", "weight", "bias") if told.get(name) is not None]
    if device == "cpu" and not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return "this build of PyTorch has no oneDNN"
    allowed = ("float32", "bfloat16") if device == "cpu" else ("float32", "float16")
    if any(kind.dtype not in allowed or kind.dtype != kinds[0].dtype for kind in kinds):
        return f"the fused operator takes {' or '.join(allowed)}, the same for all"
    if not isinstance(told["weight"], Value) or not told["weight"].constant:
        return "its weight is no constant"
    if layer.op != "aten.linear" and (told.get("transposed", False) is not False or numbers_of(layer) is None):
        return "transposed, or padded by a word"
    rank = len(_kind(told["input"]).shape or ())
    if layer.op != "aten.linear" and rank != len(_kind(told["weight"]).shape or ()):
        return "its input has no batch"
    return True if rank > 1 else "its input has too few dimensions"


def activation_fits(found: Match) -> Verdict:
    act = node_of(found, "act")
    if not _on_cpu_device(act):
        return act.op == "aten.relu" or "cuDNN fuses relu only"
    return ACTIVATIONS[act.op].onednn_form(act) is not None or f"oneDNN has no such {act.op}"


def sum_fits(found: Match) -> Verdict:
    """The sum must be of equal shapes: the fused operators do not broadcast, and write into a copy of the other tensor."""
    layer, total = node_of(found, "layer"), node_of(found, "sum")
    one, other = _kind(layer.outputs[0]), _kind(found["other"])
    if found["other"] is layer.outputs[0]:
        return "adds a layer to itself"
    if total.arguments.get("alpha", 1) != 1 or not one.known or one != other:
        return "the sum is of different shapes or dtypes, or scaled"
    return True


def on_cpu(found: Match) -> Verdict:
    return _on_cpu_device(found.output.producer) or "the fused operator is for CPUs"


def _on_cpu_device(node: Node | None) -> bool:
    return node is not None and _kind(node.outputs[0]).device == "cpu"


def _addmm_fits(found: Match) -> Verdict:
    layer, act = node_of(found, "layer"), node_of(found, "act")
    told = layer.arguments
    if len(_kind(told["self"]).shape or ()) != 1:
        return "what is added is no row"
    exact = act.op == "aten.relu" or (act.op == "aten.gelu" and act.arguments.get("approximate") == "none" and _on_cpu_device(act))
    return exact or "the fused operator has relu, and gelu on CPUs"


def _attention_fits(found: Match) -> Verdict:
    query, keys, values = (_kind(found[name]) for name in ("query", "keys", "values"))
    shapes = [each.shape for each in (query, keys, values)]
    if any(shape is None or len(shape) != len(query.shape or ()) or len(shape) < 3 or None in shape for shape in shapes):
        return "its tensors are not of the same rank, 3 at least"
    q, k, v = (tuple(shape or ()) for shape in shapes)
    if not (q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-2] and k[-1] == v[-2]):
        return "its batches differ"
    softmax = node_of(found, "softmax").arguments
    if softmax.get("dtype") is not None or softmax.get("half_to_float") or softmax["dim"] not in (-1, len(q) - 1):
        return "its softmax is not over the keys"
    rank = len(q)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    if found["plain"] is not None and permutation_of(node_of(found, "keys")) != turned:
        return "its keys are transposed otherwise"
    if query.dtype not in ("float32", "float16", "bfloat16") or not query.dtype == keys.dtype == values.dtype:
        return "its tensors are not all of one floating dtype"
    if found["factor"] is not None and not _number(found["factor"]):
        return "its scale is no number"
    if found["mask"] is not None:
        if _kind(found["mask"]).dtype != query.dtype or node_of(found, "masked").arguments.get("alpha", 1) != 1:
            return "its mask has another dtype, or is scaled"
        shape = _kind(found["mask"]).shape or ()
        if not 2 <= len(shape) <= rank or any(one not in (1, other) for one, other in zip(shape[::-1], (*q[:-1], k[-1])[::-1])):
            return "its mask does not broadcast to the scores"
    if found["factor"] is not None and node_of(found, "scaled").arguments.get("rounding_mode") is not None:
        return "its quotient is rounded"
    return True


def _number(argument: Argument) -> bool:
    return isinstance(argument, (int, float)) and not isinstance(argument, bool) and argument == argument and argument != 0


def numbers_of(layer: Node) -> dict[str, tuple[int, ...]] | None:
    """Padding, stride and dilation of a convolution, one number per dimension; None where they are no numbers."""
    spatial = len(_kind(layer.arguments["weight"]).shape or ()) - 2
    found: dict[str, tuple[int, ...]] = {}
    for name in ("padding", "stride", "dilation"):
        given = layer.arguments[name]
        listed = [each for each in (given if isinstance(given, tuple) else (given,)) if isinstance(each, int)]
        if len(listed) not in (1, spatial):
            return None
        found[name] = tuple(listed * spatial if len(listed) == 1 else listed)
    return found


def _convolution(found: Match, adapter: Adapter) -> list[Node]:
    """A convolution with an activation: oneDNN's operator, on GPUs cuDNN's, which knows relu."""
    layer, act = node_of(found, "layer"), node_of(found, "act")
    told, numbers = layer.arguments, numbers_of(layer)
    assert numbers is not None
    if not _on_cpu_device(layer):
        arguments = {"self": told["input"], "weight": told["weight"], "bias": told.get("bias"), "groups": told["groups"], **numbers}
        return _nodes("aten.cudnn_convolution_relu", "default", arguments, found)
    if len(numbers["stride"]) == 1:
        _typed(adapter)
    attr, scalars, algorithm = words_of(act)
    arguments = {"X": told["input"], "W": told["weight"], "B": told.get("bias"), "groups": told["groups"], **numbers}
    arguments |= {"attr": attr, "scalars": scalars, "algorithm": algorithm}
    return _nodes("mkldnn._convolution_pointwise", "default", arguments, found)


def _convolution_sum(found: Match, adapter: Adapter) -> list[Node]:
    """A convolution plus a tensor, with or without relu."""
    layer = node_of(found, "layer")
    told, numbers, relu = layer.arguments, numbers_of(layer), found.output is not found["sum"]
    assert numbers is not None
    if not _on_cpu_device(layer):
        arguments = {"self": told["input"], "weight": told["weight"], "z": found["other"], "alpha": 1.0, "bias": told.get("bias")}
        return _nodes("aten.cudnn_convolution_add_relu", "default", {**arguments, "groups": told["groups"], **numbers}, found)
    _typed(adapter)
    arguments = {"X": told["input"], "other": found["other"], "W": told["weight"], "B": told.get("bias"), "groups": told["groups"]}
    words = {"alpha": 1.0, "unary_attr": "relu" if relu else None, "unary_scalars": (None,), "unary_algorithm": ""}
    return _nodes("mkldnn._convolution_pointwise", "binary", {**arguments, **numbers, "binary_attr": "add", **words}, found)


def _linear(found: Match, adapter: Adapter) -> list[Node]:
    told, (attr, scalars, algorithm) = node_of(found, "layer").arguments, words_of(node_of(found, "act"))
    arguments = {"X": told["input"], "W": told["weight"], "B": told.get("bias"), "attr": attr, "scalars": scalars, "algorithm": algorithm}
    return _nodes("mkldnn._linear_pointwise", "default", arguments, found)


def _linear_sum(found: Match, adapter: Adapter) -> list[Node]:
    _typed(adapter)
    told = node_of(found, "layer").arguments
    arguments = {"X": told["input"], "other": found["other"], "W": told["weight"], "B": told.get("bias"), "attr": "add"}
    return _nodes("mkldnn._linear_pointwise", "binary", arguments, found)


def _addmm(found: Match, adapter: Adapter) -> list[Node]:
    told, gelu = node_of(found, "layer").arguments, node_of(found, "act").op == "aten.gelu"
    names = ("self", "mat1", "mat2", "beta", "alpha")
    return _nodes("aten._addmm_activation", "default", {**{name: told[name] for name in names}, "use_gelu": gelu}, found)


def _attention(found: Match, adapter: Adapter) -> list[Node]:
    """Scaled dot-product attention, which takes the keys as they were before they were transposed. A row whose every score is masked by
    minus infinity gives zeros there, where a softmax by itself gives NaN."""
    factor, nodes, keys = found["factor"], list[Node](), found["plain"]
    scale = float(factor) if isinstance(factor, (int, float)) else 1.0
    if factor is not None and node_of(found, "scaled").op == "aten.div":
        scale = 1.0 / scale
    if keys is None:
        nodes.append(make("aten.transpose", "int", {"self": found["keys"], "dim0": -2, "dim1": -1}, name=f"{found.output.name}_keys"))
        keys = nodes[0].output
    arguments = {"query": found["query"], "key": keys, "value": found["values"], "attn_mask": found["mask"], "scale": scale}
    return [*nodes, _nodes("aten.scaled_dot_product_attention", "default", arguments, found)[0]]


def words_of(act: Node) -> tuple[str, tuple[Argument, ...], str]:
    found = ACTIVATIONS[act.op].onednn_form(act)
    assert found is not None, "the row's check has asked"
    return found


def _typed(adapter: Adapter) -> None:
    """Some fused operators have no rule for shapes, which exported programs need."""
    if adapter.form == "fx":
        raise PartitionError("the fused operator has no rule for shapes, so that no exported program can hold it")


def _nodes(op: str, overload: str, arguments: Mapping[str, Any], found: Match) -> list[Node]:
    return [make(op, overload, arguments, name=found.output.name, outputs=[found.output.type])]


_WRITERS: dict[str, Callable[[Match, Adapter], list[Node]]] = {
    "attention": _attention,
    "convolution_add_relu": _convolution_sum,
    "convolution_activation": _convolution,
    "convolution_add": _convolution_sum,
    "addmm_activation": _addmm,
    "linear_activation": _linear,
    "linear_add": _linear_sum,
}

VENDOR = register(Vendor())
