"""What the Halide peers share: definitions of the key ops (axes innermost first), buffers, autoschedulers, the call."""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import halide as hl
import numpy as np
from ops import Op

Params = dict[str, Any]


def library_version() -> str:
    return version("halide")


def prepare(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: hl.Buffer(array) for name, array in inputs.items()}


def to_numpy(result: Any) -> np.ndarray:
    return np.asarray(result)


def variables(names: str) -> list[Any]:
    return [hl.Var(name) for name in names.split()]


def functions(names: str) -> list[Any]:
    return [hl.Func(name) for name in names.split()]


def box(*extents: int) -> Any:
    return hl.RDom([(0, extent) for extent in extents])


def output_shape(op: Op) -> tuple[int, ...]:
    return next(iter(op.outputs.values()))


def parameters(op: Op) -> Params:
    """One image parameter per input."""
    return {given.name: hl.ImageParam(hl.Int(32) if given.is_index else hl.Float(32), len(given.shape), given.name) for given in op.inputs}


def runner(op: Op, params: Params, output: Any, first: Sequence[Any], compile_: Callable[[Any], None]) -> Callable[..., Any]:
    """The pipeline compiled; its calls write into one output allocated beforehand."""
    array = np.empty(output_shape(op), np.float32)
    target, images = hl.Buffer(array), list(params.values())
    pipeline = hl.Pipeline(output)
    for image, buffer in zip(images, first, strict=True):
        image.set(buffer)
    compile_(pipeline)

    def call(*buffers: Any) -> np.ndarray:
        for image, buffer in zip(images, buffers, strict=True):
            image.set(buffer)
        pipeline.realize(target)
        return array

    return call


@cache
def load_plugin(plugin: str) -> None:
    """Load an autoscheduler, from the loader's path or from the wheel."""
    try:
        hl.load_plugin(plugin)
    except Exception:
        hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / f"lib{plugin}.so"))


def autoscheduled(op: Op, plugin: str, name: str, settings: dict[str, str], first: Sequence[Any]) -> Callable[..., Any]:
    params, output = definition(op)
    machine = hl.get_jit_target_from_environment()
    info: dict[str, float] = {}

    def compile_(pipeline: Any) -> None:
        load_plugin(plugin)
        start = time.perf_counter()
        pipeline.apply_autoscheduler(machine, hl.AutoschedulerParams(name, settings))
        info["autoscheduling_s"] = time.perf_counter() - start
        pipeline.compile_jit(machine)

    call = runner(op, params, output, first, compile_)
    call.info = info  # type: ignore[attr-defined]
    return call


def definition(op: Op) -> tuple[Params, Any]:
    """The op unscheduled, with estimates of its extents."""
    params = parameters(op)
    for given in op.inputs:
        params[given.name].set_estimates([(0, extent) for extent in reversed(given.shape)])
    output = define(op, list(params.values()))
    shape = output_shape(op)
    if output.has_update_definition():  # Adams2019 hardly searches when the output itself has an update: give it a copy stage
        axes = tuple(hl.Var(f"v{axis}") for axis in range(len(shape)))
        inner, output = output, hl.Func("Out")
        output[axes] = inner[axes]
    output.set_estimates([(0, extent) for extent in reversed(shape)])
    return params, output


def define(op: Op, images: Sequence[Any]) -> Any:
    dims, name = op.dims, op.name
    x, y, z, w, v = variables("x y z w v")
    out, stage = functions("Output Stage")
    if name.startswith("tmm") or name == "c3":
        a, b = images
        k = box(op.inputs[0].shape[1])
        out[x, y] = 0.0
        out[x, y] += a[k, y] * b[k, x]
    elif name.startswith("mm_"):
        a, b = images
        k = box(dims["K"])
        out[x, y] = 0.0
        out[x, y] += a[k, y] * b[x, k]
    elif name == "tbmm":
        a, b = images
        m = box(dims["M"])
        out[x, y, z] = 0.0
        out[x, y, z] += a[m, y, z] * b[m, x, z]
    elif name.startswith("gconv"):
        image, weight, bias = images
        r = box(3, 3, dims["C"])
        stage[x, y, z, w, v] = bias[z, w]
        stage[x, y, z, w, v] += image[x + r.x, y + r.y, r.z, w, v] * weight[r.x, r.y, r.z, z, w]
        out[x, y, z, w, v] = stage[x, y, z, w, v]
    elif name == "mlp1":
        rows, weight, bias = images
        k = box(dims["M"])
        stage[x, y] = bias[x]
        stage[x, y] += rows[k, y] * weight[k, x]
        out[x, y] = hl.max(stage[x, y], 0.0)
    elif name == "softmax":
        (rows,) = images
        k = box(dims["N"])
        top, total = functions("top total")
        top[y] = hl.f32(-3e38)
        top[y] = hl.max(top[y], rows[k, y])
        stage[x, y] = hl.exp(rows[x, y] - top[y])
        total[y] = 0.0
        total[y] += stage[k, y]
        out[x, y] = stage[x, y] / total[y]
    elif name == "conv2d":
        image, weight = images
        r = box(3, 3, dims["C"])
        out[x, y, z, w] = 0.0
        out[x, y, z, w] += image[x + r.x, y + r.y, r.z, w] * weight[r.x, r.y, r.z, z]
    elif name == "mttkrp":
        tensor, a, b = images
        j, k = box(dims["J"]), box(dims["K"])
        stage[x, z, y] = 0.0
        stage[x, z, y] += tensor[k, z, y] * b[x, k]
        out[x, y] = 0.0
        out[x, y] += stage[x, j, y] * a[x, j]
    elif name == "tccg4":
        a, b = images
        r = box(dims["e"], dims["f"])
        out[x, y, z, w] = 0.0
        out[x, y, z, w] += a[r.y, z, r.x, w] * b[r.x, y, r.y, x]
    elif name == "tiny":
        a, b = images
        out[x] = a[x] + b[x]
    else:
        raise NotImplementedError(name)
    return out
