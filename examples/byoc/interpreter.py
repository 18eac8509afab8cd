"""An executor outside of PyTorch: reads graphs as JSON, a line each, from its standard input and answers on its standard output.

A line is ``{"nodes": [...], "inputs": {name: array}, "outputs": [name]}``; the answer ``{"outputs": [array]}``. An array is
``{"dtype", "shape", "data"}``, the data in base64. It needs NumPy and nothing else.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import numpy as np


def read(array: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])


def write(array: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def softmax(x: Any, dim: int) -> Any:
    powers = np.exp(x - x.max(dim, keepdims=True))
    return powers / powers.sum(dim, keepdims=True)


OPERATIONS = {
    "aten.linear": lambda n: n["input"] @ n["weight"].T + (0 if n["bias"] is None else n["bias"]),
    "aten.matmul": lambda n: n["self"] @ n["other"],
    "aten.transpose": lambda n: np.swapaxes(n["self"], n["dim0"], n["dim1"]),
    "aten.softmax": lambda n: softmax(n["self"], n["dim"]),
    "aten.relu": lambda n: np.maximum(n["self"], 0),
    "aten.add": lambda n: n["self"] + n["alpha"] * n["other"],
    "aten.mul": lambda n: n["self"] * n["other"],
}


def execute(graph: dict[str, Any]) -> list[Any]:
    held = {name: read(array) for name, array in graph["inputs"].items()}
    for node in graph["nodes"]:
        named = {key: held[each["value"]] if isinstance(each, dict) else each for key, each in node["arguments"].items()}
        held[node["outputs"][0]] = OPERATIONS[node["op"]](named)
    return [held[name].astype("float32") for name in graph["outputs"]]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps({"outputs": [write(each) for each in execute(json.loads(line))]}), flush=True)
