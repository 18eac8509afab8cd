"""Which operations can be quantised, what they need, and which follow their input onto integers."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tcjit.byoc.graph import Argument, Node, Value, values_of
from tcjit.byoc.infer import make
from tcjit.byoc.passes import qnn
from tcjit.byoc.passes.affine import Affine
from tcjit.byoc.passes.editing import Emit
from tcjit.byoc.passes.qnn import Constants, Quantised, Weights

# the layer that an operation is
_KINDS = {
    **dict.fromkeys(("aten.conv2d", "aten.convolution", "aten._convolution"), "conv2d"),
    **dict.fromkeys(("aten.linear", "aten.addmm"), "dense"),
    "aten.add": "add",
    "aten.mul": "mul",
    "aten.cat": "concatenate",
}


def layer_of(node: Node) -> str:
    """The name of a layer in ``LAYERS``, empty where a node is none."""
    return _KINDS.get(node.op, "")


@dataclass(frozen=True)
class Layer:
    """``refuses`` says why a node cannot be quantised, or nothing; ``activations`` are its tensors that are no constants; ``constants`` its
    weight and bias, None for a layer without; ``emit`` makes its nodes from these, quantised, and says what they give; the last argument
    is whether a relu follows."""

    refuses: Callable[[Node], str]
    activations: Callable[[Node], tuple[Value, ...]]
    emit: Callable[[Emit, Node, list[Quantised], Weights | None, Affine, bool], Quantised]
    constants: Callable[[Node], Constants | None] = lambda node: None


def _floats(node: Node) -> str:
    for value in (*node.inputs, *node.outputs):
        if value.type is None or value.type.dtype != "float32" or value.type.shape is None:
            return f"%{value.name} is not known to be float32"
    return "" if len(node.outputs) == 1 else "it has several results"


def _not_constant(*arguments: Argument) -> str:
    free = [value for value in values_of(arguments) if not value.constant]
    return f"%{free[0].name} is no constant" if free else ""


def _pair(argument: Argument) -> tuple[int, int] | None:
    """A number for both dimensions, or one for each."""
    found = [each for each in (argument if isinstance(argument, tuple) else (argument,)) if isinstance(each, int)]
    return (found[0], found[-1]) if len(found) in (1, 2) else None


def _convolution_refuses(node: Node) -> str:
    told = node.arguments
    if told.get("transposed", False) is not False:
        return "transposed convolutions are not quantised"
    if _pair(told["padding"]) is None or _pair(told["dilation"]) is None:
        return "its padding is no number"
    why = _floats(node) or _not_constant(told["weight"], told.get("bias"))
    return why or ("" if _rank(told["input"]) == 4 else "it is not of (N, C, H, W)")


def _convolution(emit: Emit, node: Node, inputs: list[Quantised], w: Weights | None, to: Affine, relu: bool) -> Quantised:
    told, padding, dilation = node.arguments, _pair(node.arguments["padding"]), _pair(node.arguments["dilation"])
    assert w is not None and padding is not None and dilation is not None
    shape = {"stride": told["stride"], "groups": told["groups"]}
    return qnn.conv2d(emit, inputs[0], w, to, padding=padding, dilation=dilation, relu=relu, **shape)


def _dense_refuses(node: Node) -> str:
    told = node.arguments
    if node.op == "aten.addmm":
        row = isinstance(told["self"], Value) and _rank(told["self"]) == 1
        plain = row and told.get("alpha", 1) == 1 and told.get("beta", 1) == 1
        why = _floats(node) or _not_constant(told["mat2"], told["self"])
        return why or ("" if plain else "it is no product plus one number per column")
    why = _floats(node) or _not_constant(told["weight"], told.get("bias"))
    return why or ("" if _rank(told["weight"]) == 2 else "its weight is no matrix")


def _dense(emit: Emit, node: Node, inputs: list[Quantised], w: Weights | None, to: Affine, relu: bool) -> Quantised:
    assert w is not None
    return qnn.dense(emit, inputs[0], w, to, turned=node.op == "aten.addmm", relu=relu)


def _constants(node: Node) -> Constants:
    turned = node.op == "aten.addmm"
    weight, bias = (node.arguments["mat2"], node.arguments["self"]) if turned else (node.arguments["weight"], node.arguments.get("bias"))
    assert isinstance(weight, Value) and (bias is None or isinstance(bias, Value))
    return Constants(weight, bias, int(turned), 2 if layer_of(node) == "conv2d" else 0)


def _pair_refuses(node: Node) -> str:
    one, other = node.arguments["self"], node.arguments["other"]
    if not isinstance(one, Value) or not isinstance(other, Value) or one.constant or other.constant:
        return "it is not of two computed tensors"
    return _floats(node) or ("" if node.arguments.get("alpha", 1) == 1 else "its second tensor is scaled")


def _both(node: Node) -> tuple[Value, ...]:
    return tuple(values_of((node.arguments["self"], node.arguments["other"])))


def _cat_refuses(node: Node) -> str:
    parts = list(values_of(node.arguments["tensors"]))
    same = all(_rank(each) == _rank(node.outputs[0]) for each in parts)
    return _floats(node) or ("" if same and not any(each.constant for each in parts) else "it is not of computed tensors of one rank")


def _rank(argument: Argument) -> int | None:
    known = isinstance(argument, Value) and argument.type is not None and argument.type.shape is not None
    return len(argument.type.shape) if known else None  # type: ignore[union-attr, arg-type]


LAYERS: dict[str, Layer] = {
    "conv2d": Layer(_convolution_refuses, lambda node: tuple(values_of(node.arguments["input"])), _convolution, _constants),
    "dense": Layer(
        _dense_refuses, lambda node: tuple(values_of(node.arguments["mat1" if node.op == "aten.addmm" else "input"])), _dense, _constants
    ),
    "add": Layer(_pair_refuses, _both, lambda emit, node, xs, w, to, relu: qnn.add(emit, xs[0], xs[1], to, relu=relu)),
    "mul": Layer(_pair_refuses, _both, lambda emit, node, xs, w, to, relu: qnn.mul(emit, xs[0], xs[1], to, relu=relu)),
    "concatenate": Layer(
        _cat_refuses,
        lambda node: tuple(values_of(node.arguments["tensors"])),
        lambda emit, node, xs, w, to, relu: qnn.concatenate(emit, xs, node.arguments["dim"], to, relu=relu),
    ),
}

# from a node whose first argument is on integers to its result on integers, None where it does not follow
Following = Callable[[Emit, Node, Quantised], "Quantised | None"]


def _same_again(emit: Emit, node: Node, x: Quantised) -> Quantised | None:
    """The operation itself, on integers: it moves, or compares, elements."""
    if x.type.device != "cpu" and "pool" in node.op:
        return None
    first = next(iter(node.arguments))
    made = make(node.op, node.overload, {**node.arguments, first: x.value}, name=node.outputs[0].name)
    emit.nodes.append(made)
    return Quantised(made.outputs[0], x.of)


def _relu(emit: Emit, node: Node, x: Quantised) -> Quantised | None:
    return Quantised(emit("aten.clamp", self=x.value, min=x.of.zero_point), x.of)


def _clamp(emit: Emit, node: Node, x: Quantised) -> Quantised | None:
    names = {"aten.hardtanh": ("min_val", "max_val"), "aten.clamp": ("min", "max")}.get(node.op)
    low, high = (node.arguments.get(name) for name in names) if names else (0.0, 6.0)
    plain = all(each is None or (isinstance(each, (int, float)) and not isinstance(each, bool) and each == each) for each in (low, high))
    if not plain or (low is None and high is None):
        return None
    low, high = (float(each) if isinstance(each, (int, float)) else None for each in (low, high))
    return qnn.clamp(emit, x, low, high) if low is None or high is None or low <= high else None


def _mean(emit: Emit, node: Node, x: Quantised) -> Quantised | None:
    """The mean over all pixels of (N, C, H, W)."""
    pooling = node.op == "aten.adaptive_avg_pool2d"
    dims, keepdim = ((-2, -1), True) if pooling else (node.arguments.get("dim"), node.arguments.get("keepdim") is True)
    if len(x.type.shape or ()) != 4 or not isinstance(dims, tuple) or (pooling and _pair(node.arguments["output_size"]) != (1, 1)):
        return None
    extents = (x.type.shape or ())[2:]
    if sorted(dim % 4 for dim in dims if isinstance(dim, int)) != [2, 3] or None in extents or node.arguments.get("dtype") is not None:
        return None
    return qnn.mean(emit, x, (-2, -1), prod(each for each in extents if each is not None), keepdim)


_MOVING = "max_pool2d flatten view reshape _unsafe_view permute transpose t squeeze unsqueeze expand contiguous slice select narrow"
FOLLOWING: dict[str, Following] = {
    **{f"aten.{name}": _same_again for name in _MOVING.split()},
    "aten.relu": _relu,
    **dict.fromkeys(("aten.relu6", "aten.hardtanh", "aten.clamp"), _clamp),
    **dict.fromkeys(("aten.adaptive_avg_pool2d", "aten.mean"), _mean),
}
