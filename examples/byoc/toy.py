"""A backend of one's own, complete: a table of patterns, what it supports by itself, and what runs its regions. Here that is NumPy.

A region's spec holds its nodes as plain text, so that a runner need not know more than the operations that the backend takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tcjit
from tcjit.byoc.backends import Backend, Row, register
from tcjit.byoc.graph import Node
from tcjit.byoc.patterns import Match, is_const, is_op, optional, wildcard
from tcjit.byoc.regions import Region

NUMPY: dict[str, Callable[..., Any]] = {
    "aten.linear": lambda input, weight, bias: input @ weight.T + (0 if bias is None else bias),
    "aten.relu": lambda self: np.maximum(self, 0),
    "aten.add": lambda self, other, alpha: self + alpha * other,
    "aten.mul": lambda self, other: self * other,
    "aten.tanh": lambda self: np.tanh(self),
}


def small(match: Match) -> bool | str:
    """A row's check sees types and constants; a text says why not."""
    weight = match["weight"]
    return weight.type.elements < 1 << 20 or f"the weight has {weight.type.elements} elements"


class Toy(Backend):
    name = "toy"
    devices = ("cpu",)
    # a linear layer with or without a relu behind it; the larger match wins
    patterns = (
        Row("linear", optional(is_op("aten.relu"))(is_op("aten.linear")(wildcard(), is_const().named("weight"), wildcard())), small),
    )

    def supports(self, node: Node) -> bool | str:
        """Single operations, which merge with what is around them."""
        if node.op not in NUMPY or node.op == "aten.linear":
            return f"toy has no rule for {node.op}"
        return node.output.type.dtype == "float32" or "toy computes in float32 only"

    def lower(self, region: Region) -> Mapping[str, Any]:
        """What else goes into the region's text, as JSON can hold it: source code, settings, or nothing that matters, as here."""
        return {"comment": f"{len(region.nodes)} operations for NumPy"}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Called once per region and process."""
        names = [each["name"] for each in spec["inputs"]]

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            held = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors)}
            for node in spec["nodes"]:
                given = {key: held[each["value"]] if isinstance(each, dict) else each for key, each in node["arguments"].items()}
                held[node["outputs"][0]] = NUMPY[node["op"]](**given)
            return [torch.from_numpy(np.ascontiguousarray(held[each["name"]])) for each in spec["outputs"]]

        return run


register(Toy())

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8), torch.nn.Softmax(1), torch.nn.Tanh())
model.eval().requires_grad_(False)
x = torch.randn(4, 16)
found = tcjit.partition(model, (x,), tcjit.PartitionConfig(backends=("toy",), cost=False))
with torch.no_grad():
    print("close to PyTorch:", torch.allclose(found(x), model(x), atol=1e-5))
print(found.report())
