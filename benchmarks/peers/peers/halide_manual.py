"""Halide with schedules written by hand, as a user would after an hour: register blocking, vectors, parallel outer loops."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import halide as hl
from ops import Op

from peers._halide import Params, box, functions, library_version, parameters, prepare, runner, to_numpy, variables

__all__ = ["build", "prepare", "to_numpy", "versions"]


def versions() -> dict[str, str]:
    return {"halide": library_version(), "autoscheduler": "manual"}


def contiguous(op: Op, params: Params) -> None:
    """Fix the inputs' bounds and strides to those of whole arrays."""
    for given in op.inputs:
        stride = 1
        for axis, extent in enumerate(reversed(given.shape)):
            params[given.name].dim(axis).set_bounds(0, extent)
            params[given.name].dim(axis).set_stride(stride)
            stride *= extent


def product(a: Any, b: Any, bias: Any | None, relu: bool, shape: tuple[int, int, int]) -> Any:
    """A times B transposed in tiles of 8 x 32, B repacked by columns of tiles."""
    m, k_extent, n = shape
    x, y, xi, yi, xo, yo = variables("x y xi yi xo yo")
    k = box(k_extent)
    packed, partial, out = functions("packed partial out")
    packed[x, y] = b[y, x]
    partial[x, y] = bias[x] if bias is not None else hl.f32(0)
    partial[x, y] += a[k, y] * packed[x, k]
    out[x, y] = hl.max(partial[x, y], 0.0) if relu else partial[x, y]
    out.bound(x, 0, n).bound(y, 0, m).tile(x, y, xo, yo, xi, yi, 32, 8)
    out.reorder(xi, yi, yo, xo).vectorize(xi, 16).unroll(yi).parallel(xo)
    partial.compute_at(out, yo).vectorize(x, 16).unroll(x).unroll(y)
    partial.update().reorder(x, y, k.x).vectorize(x, 16).unroll(x).unroll(y)
    packed.compute_at(out, xo).vectorize(x, 16).unroll(x)
    return out


def group_conv(op: Op, image: Any, weight: Any, bias: Any) -> Any:
    channels, filters, side = op.dims["C"], op.dims["F"], op.dims["H"] - 2
    x, y, f, g, v, xo, xi, yo, yi, fo, fi, fused = variables("x y f g v xo xi yo yi fo fi fused")
    partial, out = functions("partial out")
    r = box(3, 3, channels)
    partial[x, y, f, g, v] = bias[f, g]
    partial[x, y, f, g, v] += image[x + r.x, y + r.y, r.z, g, v] * weight[r.x, r.y, r.z, f, g]
    out[x, y, f, g, v] = partial[x, y, f, g, v]
    for axis, extent in zip((x, y, f, g, v), (side, side, filters, 32, 32), strict=True):
        out.bound(axis, 0, extent)
    width = min(16, side)
    tail = hl.TailStrategy.ShiftInwards if side > width else hl.TailStrategy.RoundUp
    out.split(x, xo, xi, width, tail).split(y, yo, yi, 3 if side % 3 == 0 else 1).split(f, fo, fi, 4)
    out.reorder(xi, yi, fi, xo, yo, fo, g, v).vectorize(xi).unroll(yi).unroll(fi).fuse(g, v, fused).parallel(fused)
    partial.compute_at(out, xo).vectorize(x, width).unroll(y).unroll(f)
    partial.update().reorder(x, y, f, r.x, r.y, r.z).vectorize(x, width).unroll(y).unroll(f).unroll(r.x)
    return out


def softmax(op: Op, rows: Any) -> Any:
    m, n = op.dims["M"], op.dims["N"]
    x, y, lane = variables("x y lane")
    top, exponential, total, out = functions("top exponential total out")
    k, outer, inner = box(n), hl.RVar("outer"), hl.RVar("inner")
    top[y] = hl.f32(-3e38)
    top[y] = hl.max(top[y], rows[k, y])
    exponential[x, y] = hl.exp(rows[x, y] - top[y])
    total[y] = 0.0
    total[y] += exponential[k, y]
    out[x, y] = exponential[x, y] * (1.0 / total[y])
    out.bound(x, 0, n).bound(y, 0, m).vectorize(x, 16).parallel(y, 8)
    exponential.compute_at(out, y).vectorize(x, 16)
    for reduced in (top, total):
        lanes = reduced.update().split(k.x, outer, inner, 64).rfactor(inner, lane)
        lanes.compute_at(out, y).vectorize(lane, 64).update().vectorize(lane, 64)
        reduced.compute_at(out, y)
    return out


def mttkrp(op: Op, tensor: Any, a: Any, b: Any) -> Any:
    x, y, z = variables("x y z")
    j, k, outer, inner = box(op.dims["J"]), box(op.dims["K"]), hl.RVar("outer"), hl.RVar("inner")
    stage, out = functions("stage out")
    stage[x, z, y] = 0.0
    stage[x, z, y] += tensor[k, z, y] * b[x, k]
    out[x, y] = 0.0
    out[x, y] += stage[x, j, y] * a[x, j]
    out.bound(x, 0, op.dims["R"]).bound(y, 0, op.dims["I"]).parallel(y).vectorize(x, 16).unroll(x)
    out.update().split(j.x, outer, inner, 8).reorder(x, inner, outer, y).vectorize(x, 16).unroll(x).unroll(inner).parallel(y)
    stage.compute_at(out, outer).vectorize(x, 16).unroll(x).unroll(z)
    stage.update().reorder(x, z, k.x).vectorize(x, 16).unroll(x).unroll(z)
    return out


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    params = parameters(op)
    contiguous(op, params)
    images = list(params.values())
    if op.name.startswith("tmm"):
        out = product(*images, None, False, (op.dims["M"], op.dims["K"], op.dims["N"]))
    elif op.name == "mlp1":
        out = product(*images, True, (op.dims["B"], op.dims["M"], op.dims["N"]))
    elif op.name.startswith("gconv"):
        out = group_conv(op, *images)
    elif op.name == "softmax":
        out = softmax(op, *images)
    elif op.name == "mttkrp":
        out = mttkrp(op, *images)
    else:
        raise NotImplementedError(op.name)
    return runner(op, params, out, arguments, lambda pipeline: pipeline.compile_jit(hl.get_jit_target_from_environment()))
