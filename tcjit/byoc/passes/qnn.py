"""Quantised operations as plain ATen operations on integers, after the QNN operators: what is computed, to the last bit, is what PyTorch's
own quantised operators compute on x86 (engine fbgemm).

With q the integers, z zero points, s scales in float32, i = 1/s in float32, rne rounding half to even, clamp to the range of the result:

- quantize: rne(fma(x, i, z)), the fma in float64, whose product is exact, and rounded to float32
- dequantize: (q - z) * s; requantize: quantize of that
- dense, conv2d: a = sum of q_x * q_w in int32, minus z_x * sum of q_w (the correction, a constant), padded with z_x; rne((float(a) + bias /
  (s_x s_w)) * (s_x s_w / s_y)) + z_y, all in float32. A weight's own zero point is taken from its integers beforehand
- add: rne((fma(s_a, q_a, -(s_a z_a)) + fma(s_b, q_b, -(s_b z_b))) * i_y) + z_y
- mul: rne(float((q_a - z_a) * (q_b - z_b)) * (s_a s_b i_y)) + z_y
- concatenate: requantize where scale or zero point differ, then the integers
- mean over pixels: rne(fma(float(sum of q - n z), 1/n, z)), scale and zero point kept
- relu: the lower bound is z_y; clamp: bounds are quantised

Operations used: constant_pad_nd, _to_copy, conv2d, linear, mm, sum, add, sub, mul, round, clamp, cat. The sums are int32; where ATen has
no such convolution (dilated ones, CUDA) they are float64, exact as well.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Argument, TensorType, Value
from tcjit.byoc.ops import DTYPES
from tcjit.byoc.passes.affine import Affine, f32, integers
from tcjit.byoc.passes.editing import Emit
from tcjit.errors import PartitionError


@dataclass(frozen=True)
class Quantised:
    """A tensor of integers and what they stand for."""

    value: Value
    of: Affine

    @property
    def type(self) -> TensorType:
        assert self.value.type is not None
        return self.value.type


@dataclass(frozen=True)
class Constants:
    """The constants of a layer: which dimension of the weight has the output channels, and how many of the result's come behind them."""

    weight: Value
    bias: Value | None
    channel: int
    trailing: int


@dataclass(frozen=True)
class Weights:
    """A layer's constants, quantised: the integers, those of nonzero zero points less them; per channel what a sum is corrected by, if need
    be, what is added to it, if there is a bias, and what it is multiplied by."""

    integers: Value
    correction: Value | None
    bias: Value | None
    factor: Value | float


def weights(adapter: Adapter, held: Constants, of: Affine, x: Affine, to: Affine) -> Weights:
    """Quantises a layer's constants, for an input and a result; raises PartitionError where a sum may leave int32."""
    weight, channel, device = held.weight, held.channel, adapter.read(held.weight).device
    whole = integers(adapter.read(weight).detach(), of, channel).to(torch.int32) - of.zero_point
    others = [dim for dim in range(whole.dim()) if dim != channel]
    most = int(whole.abs().sum(others).max()) * max(x.bounds[1] - x.bounds[0], *map(abs, x.bounds))
    if most >= 1 << 31:
        raise PartitionError(f"sums up to {most} do not fit into int32", hint=f"leave %{weight.name} in float")
    shape = [-1, *[1] * held.trailing]
    stored = whole.to(torch.int8 if int(whole.min()) >= -128 and int(whole.max()) <= 127 else torch.int16)
    both = _f32(x.one, device) * torch.tensor(of.scale, dtype=torch.float32, device=device)
    factor = both / _f32(to.one, device)
    correction = added = None
    if x.zero_point:
        correction = adapter.constant((whole.sum(others) * x.zero_point).to(torch.int32).reshape(shape), f"{weight.name}_correction")
    if held.bias is not None:
        given = adapter.read(held.bias).detach().float().reshape(-1)
        scaled = given / both if both.dim() else given * (1.0 / both)
        added = adapter.constant(scaled.reshape(shape), f"{weight.name}_bias")
    multiplier = adapter.constant(factor.reshape(shape), f"{weight.name}_factor") if factor.dim() else float(factor)
    return Weights(adapter.constant(stored, f"{weight.name}_{of.dtype}"), correction, added, multiplier)


def _f32(number: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float32, device=device)


def quantize(emit: Emit, x: Value, to: Affine) -> Quantised:
    """The integers for a float32 tensor."""
    wide = emit("aten.mul", "Scalar", self=_cast(emit, x, "float64"), other=to.inverse)
    wide = emit("aten.add", "Scalar", self=wide, other=to.zero_point) if to.zero_point else wide
    return _integers(emit, emit("aten.round", self=_cast(emit, wide, "float32")), 0, to)


def dequantize(emit: Emit, q: Quantised) -> Value:
    """The float32 tensor that integers stand for."""
    floats = _cast(emit, q.value, "float32")
    if q.of.zero_point:
        floats = emit("aten.sub", "Scalar", self=floats, other=q.of.zero_point)
    return emit("aten.mul", "Scalar", self=floats, other=q.of.one)


def requantize(emit: Emit, q: Quantised, to: Affine) -> Quantised:
    """The integers of another scale and zero point."""
    return q if q.of == to else quantize(emit, dequantize(emit, q), to)


def conv2d(
    emit: Emit,
    x: Quantised,
    w: Weights,
    to: Affine,
    *,
    stride: Argument,
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: Argument,
    relu: bool = False,
) -> Quantised:
    """A convolution of (N, C, H, W); the bias is in the weights."""
    value = x.value
    if x.of.zero_point and any(padding):
        (high, wide), zero = padding, x.of.zero_point
        value, padding = emit("aten.constant_pad_nd", self=value, pad=(wide, wide, high, high), value=zero), (0, 0)
    dtype = "float64" if dilation != (1, 1) or x.type.device != "cpu" else "int32"
    image, filters = _cast(emit, value, dtype), _cast(emit, w.integers, dtype)
    sums = emit("aten.conv2d", input=image, weight=filters, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return _scaled(emit, sums, w, to, relu)


def dense(emit: Emit, x: Quantised, w: Weights, to: Affine, *, turned: bool = False, relu: bool = False) -> Quantised:
    """A linear layer; its weight is (out, in), or (in, out) where it is ``turned``."""
    dtype = "float64" if x.type.device != "cpu" else "int32"
    left, right = _cast(emit, x.value, dtype), _cast(emit, w.integers, dtype)
    sums = emit("aten.mm", self=left, mat2=right) if turned else emit("aten.linear", input=left, weight=right)
    return _scaled(emit, sums, w, to, relu)


def add(emit: Emit, a: Quantised, b: Quantised, to: Affine, *, relu: bool) -> Quantised:
    """A sum of two tensors."""
    total = emit("aten.add", "Tensor", self=_widened(emit, a), other=_widened(emit, b))
    rounded = emit("aten.round", self=emit("aten.mul", "Scalar", self=total, other=to.inverse))
    return _integers(emit, rounded, to.zero_point, to, relu)


def mul(emit: Emit, a: Quantised, b: Quantised, to: Affine, *, relu: bool) -> Quantised:
    """A product of two tensors, element by element."""
    left, right = (_centred(emit, each) for each in (a, b))
    factor = f32(f32(a.of.one * b.of.one) * to.inverse)
    product = _cast(emit, emit("aten.mul", "Tensor", self=left, other=right), "float32")
    rounded = emit("aten.round", self=emit("aten.mul", "Scalar", self=product, other=factor))
    return _integers(emit, rounded, to.zero_point, to, relu)


def concatenate(emit: Emit, parts: Sequence[Quantised], dim: Argument, to: Affine, *, relu: bool) -> Quantised:
    """Tensors one after another along a dimension."""
    tensors = tuple(requantize(emit, each, to).value for each in parts)
    whole = emit("aten.cat", tensors=tensors, dim=dim)
    return Quantised(emit("aten.clamp", self=whole, min=to.zero_point) if relu else whole, to)


def mean(emit: Emit, x: Quantised, dims: tuple[int, ...], count: int, keepdim: bool) -> Quantised:
    """The mean over dimensions of ``count`` elements together."""
    total = emit("aten.sum", "dim_IntList", self=_cast(emit, x.value, "int32"), dim=dims, keepdim=keepdim, dtype=DTYPES[torch.int32])
    if x.of.zero_point:
        total = emit("aten.sub", "Scalar", self=total, other=count * x.of.zero_point)
    # float32 first: a sum of more than 24 bits is rounded before it is multiplied
    wide = _cast(emit, _cast(emit, total, "float32"), "float64")
    wide = emit("aten.mul", "Scalar", self=wide, other=f32(1 / count))
    wide = emit("aten.add", "Scalar", self=wide, other=x.of.zero_point) if x.of.zero_point else wide
    return _integers(emit, emit("aten.round", self=_cast(emit, wide, "float32")), 0, x.of)


def clamp(emit: Emit, x: Quantised, low: float | None, high: float | None) -> Quantised:
    """Numbers below ``low`` and above ``high`` cut off, scale and zero point kept."""

    def place(number: float) -> int:
        found = round(f32(number * x.of.inverse)) + x.of.zero_point
        return min(x.of.bounds[1], max(x.of.bounds[0], found))

    least, most = (None if each is None else place(each) for each in (low, high))
    return Quantised(emit("aten.clamp", self=x.value, min=least, max=most), x.of)


def _scaled(emit: Emit, sums: Value, w: Weights, to: Affine, relu: bool) -> Quantised:
    """A layer's sums as integers of its result."""
    if w.correction is not None:
        sums = emit("aten.sub", "Tensor", self=sums, other=w.correction)
    floats = _cast(emit, sums, "float32")
    if w.bias is not None:
        floats = emit("aten.add", "Tensor", self=floats, other=w.bias)
    overload = "Tensor" if isinstance(w.factor, Value) else "Scalar"
    rounded = emit("aten.round", self=emit("aten.mul", overload, self=floats, other=w.factor))
    return _integers(emit, rounded, to.zero_point, to, relu)


def _integers(emit: Emit, rounded: Value, zero: int, to: Affine, relu: bool = False) -> Quantised:
    """Rounded numbers plus a zero point, as integers in their range; ``relu`` cuts off what stands for less than 0."""
    low, high = to.bounds
    shifted = emit("aten.add", "Scalar", self=rounded, other=zero) if zero else rounded
    bounded = emit("aten.clamp", self=shifted, min=max(low, to.zero_point) if relu else low, max=high)
    # by way of int32: from a float straight to 8 bits is not defined for all numbers, and backends may refuse it
    return Quantised(_cast(emit, _cast(emit, bounded, "int32"), to.dtype), to)


def _widened(emit: Emit, q: Quantised) -> Value:
    """Dequantised with one rounding of scale * q - scale * zero, of which the latter is rounded before."""
    wide = emit("aten.mul", "Scalar", self=_cast(emit, q.value, "float64"), other=q.of.one)
    offset = f32(q.of.one * q.of.zero_point)
    return _cast(emit, emit("aten.sub", "Scalar", self=wide, other=offset) if offset else wide, "float32")


def _centred(emit: Emit, q: Quantised) -> Value:
    whole = _cast(emit, q.value, "int32")
    return emit("aten.sub", "Scalar", self=whole, other=q.of.zero_point) if q.of.zero_point else whole


def _cast(emit: Emit, value: Value, dtype: str) -> Value:
    return emit("aten._to_copy", self=value, dtype=DTYPES[getattr(torch, dtype)])
