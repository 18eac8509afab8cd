"""loopy on PoCL with a simple schedule by hand: 8 x 16 work groups or so, sequential reductions. BENCH_LOOPY_CACHE=1 keeps kernels."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", os.environ["BENCH_THREADS"])
import loopy as lp
import pyopencl as cl
import pyopencl.array
from ops import Op

lp.set_caching_enabled(bool(os.environ.get("BENCH_LOOPY_CACHE")))
CONTEXT = cl.Context([cl.get_platforms()[0].get_devices()[0]])
QUEUE = cl.CommandQueue(CONTEXT)

# per op: domain (formatted with the dims), instruction, work-group axes and their sizes
PROGRAMS: dict[str, tuple[str, str, list[tuple[str, int]]]] = {
    "tmm": ("{{[m,n,k]: 0<=m<{M} and 0<=n<{N} and 0<=k<{K}}}", "C[m,n] = sum(k, A[m,k]*B[n,k])", [("m", 8), ("n", 16)]),
    "mm": ("{{[m,n,k]: 0<=m<{M} and 0<=n<{N} and 0<=k<{K}}}", "C[m,n] = sum(k, A[m,k]*B[k,n])", [("m", 8), ("n", 16)]),
    "tbmm": (
        "{{[b,n,k,m]: 0<=b<{B} and 0<=n<{N} and 0<=k<{K} and 0<=m<{M}}}",
        "Z[b,n,k] = sum(m, X[b,n,m]*Y[b,k,m])",
        [("b", 1), ("k", 26)],
    ),
    "gconv": (
        "{{[n,g,f,h,w,c,kh,kw]: 0<=n<{N} and 0<=g<{G} and 0<=f<{F} and 0<=h,w<{H}-2 and 0<=c<{C} and 0<=kh,kw<3}}",
        "O[n,g,f,h,w] = B[g,f] + sum((c,kh,kw), I[n,g,c,h+kh,w+kw]*W1[g,f,c,kh,kw])",
        [("n", 1), ("g", 1), ("w", 16)],
    ),
    "mlp1": (
        "{{[b,n,m]: 0<=b<{B} and 0<=n<{N} and 0<=m<{M}}}",
        "O1[b,n] = fmax(B1[n] + sum(m, I[b,m]*W1[n,m]), 0.0f)",
        [("b", 8), ("n", 16)],
    ),
    "tiny": ("{{[n]: 0<=n<{N}}}", "C[n] = A[n]+B[n]", [("n", 16)]),
    "mttkrp": (
        "{{[i,r,j,k]: 0<=i<{I} and 0<=j<{J} and 0<=k<{K} and 0<=r<{R}}}",
        "M[i,r] = sum(j, A[j,r]*sum(k, X[i,j,k]*B[k,r]))",
        [("i", 1), ("r", 32)],
    ),
    "tccg4": (
        "{{[a,b,c,d,e,f]: 0<=a<{a} and 0<=b<{b} and 0<=c<{c} and 0<=d<{d} and 0<=e<{e} and 0<=f<{f}}}",
        "C[a,b,c,d] = sum((e,f), A[a,e,b,f]*B[d,f,c,e])",
        [("a", 1), ("c", 1), ("d", 16)],
    ),
}


def versions() -> dict[str, str]:
    device = CONTEXT.devices[0]
    return {"loopy": lp.version.VERSION_TEXT, "device": str(device), "opencl": device.version}


def prepare(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: cl.array.to_device(QUEUE, array) for name, array in inputs.items()}


def to_numpy(array: Any) -> np.ndarray:
    result: np.ndarray = array.get()
    return result


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    family = op.name.split("_")[0]
    if family not in PROGRAMS:
        raise NotImplementedError(op.name)
    domain, instruction, axes = PROGRAMS[family]
    parameters = [lp.GlobalArg(given.name, np.float32, shape=given.shape) for given in op.inputs]
    results = [lp.GlobalArg(name, np.float32, shape=shape, is_output=True) for name, shape in op.outputs.items()]
    kernel = lp.make_kernel(domain.format(**op.dims), instruction, parameters + results, lang_version=(2018, 2))
    for position, (axis, size) in enumerate(axes):
        kernel = lp.split_iname(kernel, axis, size, outer_tag=f"g.{position}", inner_tag=f"l.{len(axes) - 1 - position}")
    outputs = {name: cl.array.empty(QUEUE, shape, np.float32) for name, shape in op.outputs.items()}
    names = [given.name for given in op.inputs]
    executor = kernel.executor(CONTEXT)

    def call(*arrays: Any) -> tuple[Any, ...]:
        executor(QUEUE, **dict(zip(names, arrays, strict=True)), **outputs)
        QUEUE.finish()
        return tuple(outputs.values())

    return call
