"""Operations taken apart into simpler ones, for backends that serve only those."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.passes.editing import Emit, inside, rebuilt
from tcjit.byoc.passes.pipeline import Rewriting
from tcjit.errors import PartitionError

# from a node's arguments to the value that it computes, or None where the rule does not serve them
Rule = Callable[[Emit, Mapping[str, Argument]], Value | None]


def decompose(block: Block, adapter: Adapter) -> Block:
    """Everything that there is a rule for, see ``RULES``."""
    return decomposition(*RULES)(block, adapter)


def decomposition(*ops: str) -> Rewriting:
    """A decomposition of some operations; raises PartitionError for one that there is no rule for."""
    for op in ops:
        if op not in RULES:
            raise PartitionError(f"there is no decomposition of {op}", hint=f"known: {', '.join(RULES)}")

    def run(block: Block, adapter: Adapter) -> Block:
        inside(block, lambda each: run(each, adapter))
        nodes: list[Node] = []
        for node in block.nodes:
            nodes += (node.op in ops and _decomposed(node)) or [node]
        return rebuilt(block, nodes)

    return run


def _decomposed(node: Node) -> list[Node] | None:
    """The nodes that compute a node's only result, None where the rule does not apply."""
    if node.effect or len(node.outputs) != 1 or node.output.type is None:
        return None
    emit = Emit()
    found = RULES[node.op](emit, node.arguments)
    if found is None or found.producer is None or found.type is None or found.type.dtype != node.output.type.dtype:
        return None
    found.producer.outputs = node.outputs
    return emit.nodes


def _linear(emit: Emit, told: Mapping[str, Argument]) -> Value:
    turned = emit("aten.t", self=told["weight"])
    product = emit("aten.matmul", self=told["input"], other=turned)
    return product if told.get("bias") is None else emit("aten.add", "Tensor", self=product, other=told["bias"])


def _addmm(emit: Emit, told: Mapping[str, Argument]) -> Value:
    product = emit("aten.mm", self=told["mat1"], mat2=told["mat2"])
    if told.get("alpha", 1) != 1:
        product = emit("aten.mul", "Scalar", self=product, other=told["alpha"])
    if told.get("beta", 1) == 0:
        return product  # what is multiplied by 0 is not even read
    added = told["self"] if told.get("beta", 1) == 1 else emit("aten.mul", "Scalar", self=told["self"], other=told["beta"])
    return emit("aten.add", "Tensor", self=product, other=added)


def _silu(emit: Emit, told: Mapping[str, Argument]) -> Value:
    return emit("aten.mul", "Tensor", self=told["self"], other=emit("aten.sigmoid", self=told["self"]))


def _hardswish(emit: Emit, told: Mapping[str, Argument]) -> Value:
    gate = emit("aten.clamp", self=emit("aten.add", "Scalar", self=told["self"], other=3), min=0, max=6)
    return emit("aten.div", "Scalar", self=emit("aten.mul", "Tensor", self=told["self"], other=gate), other=6)


def _softmax(emit: Emit, told: Mapping[str, Argument]) -> Value | None:
    if told.get("dtype") is not None or told.get("half_to_float") or not isinstance(told["dim"], int):
        return None
    dims = (told["dim"],)
    top = emit("aten.amax", self=told["self"], dim=dims, keepdim=True)
    powers = emit("aten.exp", self=emit("aten.sub", "Tensor", self=told["self"], other=top))
    return emit("aten.div", "Tensor", self=powers, other=emit("aten.sum", "dim_IntList", self=powers, dim=dims, keepdim=True))


def _layer_norm(emit: Emit, told: Mapping[str, Argument]) -> Value | None:
    shape = told["normalized_shape"]
    if not isinstance(shape, tuple):
        return None
    dims = tuple(range(-len(shape), 0))
    centred = emit("aten.sub", "Tensor", self=told["input"], other=emit("aten.mean", "dim", self=told["input"], dim=dims, keepdim=True))
    square = emit("aten.mul", "Tensor", self=centred, other=centred)
    spread = emit("aten.add", "Scalar", self=emit("aten.mean", "dim", self=square, dim=dims, keepdim=True), other=told["eps"])
    found = emit("aten.mul", "Tensor", self=centred, other=emit("aten.rsqrt", self=spread))
    if told.get("weight") is not None:
        found = emit("aten.mul", "Tensor", self=found, other=told["weight"])
    return found if told.get("bias") is None else emit("aten.add", "Tensor", self=found, other=told["bias"])


def _attention(emit: Emit, told: Mapping[str, Argument]) -> Value | None:
    query, mask = told["query"], told.get("attn_mask")
    assert isinstance(query, Value)
    shape = query.type.shape if query.type is not None else None
    boolean = isinstance(mask, Value) and (mask.type is None or mask.type.dtype == "bool")
    if told.get("is_causal") or told.get("dropout_p") or told.get("enable_gqa") or boolean or not shape or shape[-1] is None:
        return None
    scale = told.get("scale")
    factor = 1 / math.sqrt(shape[-1]) if scale is None else scale
    keys = emit("aten.transpose", "int", self=told["key"], dim0=-2, dim1=-1)
    scores = emit("aten.mul", "Scalar", self=emit("aten.matmul", self=query, other=keys), other=factor)
    if mask is not None:
        scores = emit("aten.add", "Tensor", self=scores, other=mask)
    return emit("aten.matmul", self=emit("aten.softmax", "int", self=scores, dim=-1), other=told["value"])


RULES: dict[str, Rule] = {
    "aten.linear": _linear,
    "aten.addmm": _addmm,
    "aten.silu": _silu,
    "aten.hardswish": _hardswish,
    "aten.softmax": _softmax,
    "aten._softmax": _softmax,
    "aten.layer_norm": _layer_norm,
    "aten.scaled_dot_product_attention": _attention,
}
