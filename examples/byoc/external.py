"""A backend whose regions run in another program: it gets the region as a JSON graph and the tensors, and sends back the results.

The other program is ``interpreter.py`` beside this file; it knows nothing of PyTorch. It is started once, at the first region.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tcjit
from tcjit.byoc.backends import Backend, register
from tcjit.byoc.graph import Node
from tcjit.byoc.regions import Region
from tcjit.byoc.spec import Unserved
from tcjit.errors import PartitionError

INTERPRETER = Path(__file__).with_name("interpreter.py")
TAKES = ("aten.linear", "aten.matmul", "aten.transpose", "aten.softmax", "aten.relu", "aten.add", "aten.mul")


class External(Backend):
    name = "external"
    devices = ("cpu",)

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def supports(self, node: Node) -> bool | str:
        if node.op not in TAKES:
            return f"the interpreter does not know {node.op}"
        return node.output.type.dtype == "float32" or "the interpreter computes in float32"

    def lower(self, region: Region) -> Mapping[str, Any]:
        """The region's nodes stand in its spec anyway; all that is left to choose is who runs them."""
        return {"executor": INTERPRETER.name}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        names, outputs = [each["name"] for each in spec["inputs"]], [each["name"] for each in spec["outputs"]]

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            if any(tensor.dtype != torch.float32 for tensor in tensors):
                raise Unserved("the interpreter computes in float32")  # PyTorch runs the region then
            inputs = dict(zip(names, map(written, tensors)))
            return [read(each) for each in self.ask({"nodes": spec["nodes"], "inputs": inputs, "outputs": outputs})["outputs"]]

        return run

    def ask(self, graph: dict[str, Any]) -> dict[str, Any]:
        """Sends a graph, and waits for what comes back."""
        if self.process is None:
            command = [sys.executable, str(INTERPRETER)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(graph) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise PartitionError("the interpreter ended", hint="its standard error says why")
        return dict(json.loads(answer))

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()
            self.process = None


def written(tensor: Tensor) -> dict[str, Any]:
    data = tensor.detach().contiguous().numpy().tobytes()
    return {"dtype": "float32", "shape": list(tensor.shape), "data": base64.b64encode(data).decode()}


def read(array: dict[str, Any]) -> Tensor:
    data = np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
    return torch.from_numpy(data.copy())


class Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.query(x) @ self.key(x).transpose(-2, -1) * 0.25, -1)
        return torch.sin(scores @ self.value(x) + x)


backend = External()
register(backend)
torch.manual_seed(0)
model, x = Attention(16).eval().requires_grad_(False), torch.randn(2, 5, 16)
found = tcjit.partition(model, (x,), tcjit.PartitionConfig(backends=("external",), cost=False))
with torch.no_grad():
    print("close to PyTorch:", torch.allclose(found(x), model(x), atol=1e-5))
print(found.report())
backend.close()
