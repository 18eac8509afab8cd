"""What the TVM peers share: tensor expressions of the key ops, buffers, the call."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from ops import Op
from tvm import te, tirx

TARGET = {"kind": "llvm", "mcpu": os.environ.get("TVM_MCPU", "native"), "num-cores": int(os.environ["BENCH_THREADS"])}


def prepare(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: tvm.runtime.tensor(array) for name, array in inputs.items()}


def to_numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.numpy()
    return array


def module(op: Op) -> Any:
    """The op as an unscheduled module."""
    inputs = [te.placeholder(given.shape, dtype="int32" if given.is_index else "float32", name=given.name) for given in op.inputs]
    function = te.create_prim_func([*inputs, define(op, inputs)])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def compiled(scheduled: Any, target: Any, op: Op) -> Callable[..., Any]:
    """Calls write into one output allocated beforehand."""
    library = tvm.compile(scheduled, target=target)
    output = tvm.runtime.empty(next(iter(op.outputs.values())), "float32")
    function = library["main"]

    def call(*tensors: Any) -> Any:
        function(*tensors, output)
        return output

    return call


def along(extent: Any, name: str) -> Any:
    return te.reduce_axis((0, extent), name=name)


def define(op: Op, inputs: list[Any]) -> Any:
    dims, name = op.dims, op.name
    shape = next(iter(op.outputs.values()))
    if name.startswith("tmm") or name == "c3":
        a, b = inputs
        k = along(a.shape[1], "k")
        return te.compute(shape, lambda m, n: te.sum(a[m, k] * b[n, k], k), "C")
    if name.startswith("mm_"):
        a, b = inputs
        k = along(a.shape[1], "k")
        return te.compute(shape, lambda m, n: te.sum(a[m, k] * b[k, n], k), "C")
    if name == "tbmm":
        x, y = inputs
        m = along(dims["M"], "m")
        return te.compute(shape, lambda b, n, k: te.sum(x[b, n, m] * y[b, k, m], m), "Z")
    if name.startswith("gconv"):
        image, weight, bias = inputs
        c, kh, kw = along(dims["C"], "c"), along(3, "kh"), along(3, "kw")
        partial = te.compute(
            shape, lambda n, g, f, h, w: te.sum(image[n, g, c, h + kh, w + kw] * weight[g, f, c, kh, kw], [c, kh, kw]), "T"
        )
        return te.compute(shape, lambda n, g, f, h, w: partial[n, g, f, h, w] + bias[g, f], "O")
    if name == "mlp1":
        rows, weight, bias = inputs
        k = along(dims["M"], "k")
        partial = te.compute(shape, lambda b, n: te.sum(rows[b, k] * weight[n, k], k), "T")
        return te.compute(shape, lambda b, n: te.max(partial[b, n] + bias[n], tirx.const(0, "float32")), "O")
    if name == "softmax":
        (rows,) = inputs
        k, again = along(dims["N"], "k"), along(dims["N"], "again")
        top = te.compute(shape[:1], lambda m: te.max(rows[m, k], k), "top")
        exponential = te.compute(shape, lambda m, n: tirx.exp(rows[m, n] - top[m]), "E")
        total = te.compute(shape[:1], lambda m: te.sum(exponential[m, again], again), "S")
        return te.compute(shape, lambda m, n: exponential[m, n] / total[m], "O")
    if name == "conv2d":
        image, weight = inputs
        c, kh, kw = along(dims["C"], "c"), along(3, "kh"), along(3, "kw")
        return te.compute(shape, lambda n, f, h, w: te.sum(image[n, c, h + kh, w + kw] * weight[f, c, kh, kw], [c, kh, kw]), "O")
    if name == "mttkrp":  # factored by hand: TVM does not
        tensor, a, b = inputs
        j, k = along(dims["J"], "j"), along(dims["K"], "k")
        partial = te.compute((dims["I"], dims["J"], dims["R"]), lambda i, jj, r: te.sum(tensor[i, jj, k] * b[k, r], k), "T")
        return te.compute(shape, lambda i, r: te.sum(partial[i, j, r] * a[j, r], j), "M")
    if name == "tccg4":
        x, y = inputs
        e, f = along(dims["e"], "e"), along(dims["f"], "f")
        return te.compute(shape, lambda a, b, c, d: te.sum(x[a, e, b, f] * y[d, f, c, e], [e, f]), "C")
    if name == "tiny":
        a, b = inputs
        return te.compute(shape, lambda n: a[n] + b[n], "C")
    raise NotImplementedError(name)
