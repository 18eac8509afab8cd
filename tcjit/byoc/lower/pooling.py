"""Pooling over windows, and resizing by nearest or linear interpolation."""
from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

from tcjit.byoc.graph import Argument
from tcjit.byoc.lower.builder import Element, NodeCall, cast, converted, literal, wide
from tcjit.byoc.lower.convolutions import guarded
from tcjit.byoc.lower.elementwise import floating
from tcjit.byoc.lower.indices import inside, interval
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import view
from tcjit.errors import PartitionError
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear


def least(dtype: str) -> str:
    """The identity of a maximum."""
    return literal(-math.inf if floating(dtype) else DTYPES[dtype].least, dtype)


def windows(call: NodeCall, rank: int) -> list[tuple[int, ...]]:
    """Kernel, stride, padding and dilation, one number per dimension."""
    kernel = call.integers("kernel_size", rank)
    found = [kernel, call.integers("stride", rank, kernel), call.integers("padding", rank, [0] * rank)]
    return [*found, call.integers("dilation", rank, [1] * rank)]


def _rank(call: NodeCall) -> int:
    """How many dimensions have windows."""
    return int(next(letter for letter in call.node.op if letter.isdigit()))


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def max_pool(call: NodeCall) -> Element | Sequence[Element | str]:
    x, dtype = call.materialised("self"), wide(call.dtype)
    rank = _rank(call)
    kernel, stride, padding, dilation = windows(call, rank)
    lead = len(x.shape) - rank

    def plane(left: list[Linear], right: list[Linear]) -> list[Linear]:
        places = zip(left[lead:], right, stride, dilation, padding)
        return [p.times(s) + t.times(d) - pad for p, t, s, d, pad in places]

    def body(left: list[Linear], right: list[Linear]) -> str:
        return guarded(x, [*left[:lead], *plane(left, right)], dtype, least(dtype))

    top = call.builder.reduce("max", dtype, call.shape, kernel, body)
    found = converted(top, call.dtype)
    if len(call.node.outputs) == 1:
        return found
    if not call.builder.needs(call.node.outputs[1]):
        return [found, "nobody asked for the places"]

    def position(left: list[Linear], right: list[Linear]) -> str:
        """The first place in the input's plane that holds the maximum; the last NaN is behind all of them."""
        subscripts, flat = plane(left, right), Linear.of(0)
        for subscript, extent in zip(subscripts, x.shape[lead:]):
            flat = flat.times(extent) + subscript
        tests = [inside(subscript, 0, extent) for subscript, extent in zip(subscripts, x.shape[lead:])]
        if any(each is None for each in tests):
            return f"int64({math.prod(x.shape)})"
        own = cast(x.at([*left[:lead], *subscripts]), x.dtype, dtype)
        holds = f"({own} == {top.at(left)}" + (f" || {own} != {own})" if floating(x.dtype) else ")")
        conditions = " && ".join([*(test for each in tests for test in each or ()), holds])
        return f"({conditions}) ? int64({flat}) : int64({math.prod(x.shape)})"

    return [found, call.builder.reduce("min", "int64", call.shape, kernel, position)]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: NodeCall) -> Element:
    x, dtype = call.materialised("self"), wide(call.dtype)
    if not floating(dtype):
        raise PartitionError(f"averages of {dtype}")
    rank = _rank(call)
    kernel, stride, padding, _ = windows(call, rank)
    lead = len(x.shape) - rank
    override = call.argument("divisor_override") is not None
    padded = call.argument("count_include_pad") is None or call.flag("count_include_pad")

    def corner(left: Sequence[Linear]) -> list[Linear]:
        return [p.times(s) - pad for p, s, pad in zip(left[lead:], stride, padding)]

    def body(left: list[Linear], right: list[Linear]) -> str:
        return guarded(x, [*left[:lead], *(start + r for start, r in zip(corner(left), right))], dtype, literal(0, dtype))

    total = call.builder.reduce("+", dtype, call.shape, kernel, body)

    def at(subscripts: Sequence[Linear]) -> str:
        if override:
            return f"({total.at(subscripts)} / {literal(call.integer('divisor_override'), dtype)})"
        lengths = []
        for start, k, extent, pad in zip(corner(subscripts), kernel, x.shape[lead:], padding):
            lengths.append(overlap(start, k, -pad if padded else 0, extent + pad if padded else extent))
        return f"({total.at(subscripts)} / {dtype}({' * '.join(lengths)}))"

    return converted(Element(dtype, call.shape, at, 6), call.dtype)


def overlap(start: Linear, length: int, low: int, high: int) -> str:
    """How many of ``start:start+length`` are in ``low:high``."""
    least, greatest = interval(start)
    end = start + length
    first = str(start) if least >= low else str(low) if greatest <= low else f"max({start}, {low})"
    last = str(end) if greatest + length <= high else str(high) if least + length >= high else f"min({end}, {high})"
    return str(length) if least >= low and greatest + length <= high else f"({last} - ({first}))"


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(call: NodeCall) -> Element:
    x, dtype = call.materialised("self"), wide(call.dtype)
    if not floating(dtype):
        raise PartitionError(f"averages of {dtype}")
    total, lengths = _bins(call, x, "+", dtype, literal(0, dtype))

    def at(subscripts: Sequence[Linear]) -> str:
        return f"({total.at(subscripts)} / {dtype}({' * '.join(lengths(subscripts))}))"

    return converted(Element(dtype, call.shape, at, 6), call.dtype)


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: NodeCall) -> Sequence[Element | str]:
    x, dtype = call.materialised("self"), wide(call.dtype)
    found, _ = _bins(call, x, "max", dtype, least(dtype))
    return [converted(found, call.dtype), "the places of the maxima are for its gradient"]


def _bins(call: NodeCall, x: Element, operator: str, dtype: str, nothing: str) -> tuple[Element, Callable[[Sequence[Linear]], list[str]]]:
    """A reduction over bins that cover a dimension, neighbours overlapping by one where the result's extent does not divide it: from
    i n / m rounded down to (i + 1) n / m rounded up. And how the bins' lengths are written."""
    rank = _rank(call)
    lead = len(x.shape) - rank
    extents = list(zip(x.shape[lead:], call.shape[lead:]))
    longest = [max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in extents]

    def body(left: list[Linear], right: list[Linear]) -> str:
        plane, tests = [], []
        for p, r, (n, m) in zip(left[lead:], right, extents):
            plane.append(p.times(n) // m + r)
            if n % m:
                tests.append(f"{plane[-1].times(m)} < {p.times(n) + n}")
        return guarded(x, [*left[:lead], *plane], dtype, nothing, tests)

    def lengths(subscripts: Sequence[Linear]) -> list[str]:
        found = []
        for p, (n, m) in zip(subscripts[lead:], extents):
            length = (p.times(n) + n + m - 1) // m - p.times(n) // m
            found.append(str(n // m) if not n % m else f"({length})")
        return found

    return call.builder.reduce(operator, dtype, call.shape, longest, body), lengths


# ---------------------------------------------------------------- resizing


def _scales(call: NodeCall, rank: int) -> list[float | None]:
    """The factors that it was asked for, where that was by factors."""
    if "scale_factors" in call.node.arguments:
        given = call.argument("scale_factors")
        found: list[Argument] = list(given) if isinstance(given, tuple) else [None] * rank
    else:
        names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[-rank:]
        found = [None if call.argument(name) is None else call.number(name) for name in names]
    if not all(each is None or isinstance(each, (int, float)) for each in found):
        raise PartitionError("its factors are known at the run only")
    return [float(each) if isinstance(each, (int, float)) else None for each in found]


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(call: NodeCall) -> Element:
    rank = int(call.node.op[-2])
    x = call.tensor(_input(call))
    x = call.builder.keep(x) if x.cost > 2 else x
    sizes = list(zip(x.shape[-rank:], call.shape[-rank:]))
    for (n, m), factor in zip(sizes, _scales(call, rank)):
        step = _single(1.0 / factor if factor else n / m)
        if any(min(int(_single(i * step)), n - 1) != i * n // m for i in range(m)):
            raise PartitionError(f"its places from {n} to {m} round otherwise than the ratio says")

    def where(subscripts: list[Linear]) -> list[Linear]:
        return [*subscripts[:-rank], *(p.times(n) // m for p, (n, m) in zip(subscripts[-rank:], sizes))]

    return view(x, call.shape, where)


@rule("upsample_linear1d", "upsample_bilinear2d")
def linear(call: NodeCall) -> Element:
    """Each place is a fraction of the way between two neighbours; the fractions are exact, so that places are arithmetic on indices."""
    rank = int(call.node.op[-2])
    x, dtype = call.materialised(_input(call)), wide(call.dtype)
    corners = call.flag("align_corners")
    ways = []
    for n, m, factor in zip(x.shape[-rank:], call.shape[-rank:], _scales(call, rank)):
        step = Fraction(1 / factor).limit_denominator(1 << 10) if factor else Fraction(n, m)
        if factor and abs(float(step) * factor - 1) > 1e-6:
            raise PartitionError(f"resizes by {factor}")
        if corners:
            step = Fraction(n - 1, m - 1) if m > 1 else Fraction(0)
        ways.append((step, Fraction(0) if corners else (step - 1) / 2, n))

    def at(subscripts: Sequence[Linear]) -> str:
        return _mixed(x, dtype, list(subscripts[:-rank]), list(subscripts[-rank:]), ways)

    return converted(Element(dtype, call.shape, at, 8 * rank), call.dtype)


def _mixed(
    x: Element, dtype: str, done: list[Linear], left: list[Linear], ways: Sequence[tuple[Fraction, Fraction, int]]
) -> str:
    if not left:
        return cast(x.at(done), x.dtype, dtype)
    (step, offset, n), rest = ways[0], ways[1:]

    def part(place: Linear) -> str:
        return _mixed(x, dtype, [*done, place], left[1:], rest)

    common = math.lcm(step.denominator, offset.denominator)
    flat = left[0].times(int(step * common)) + int(offset * common)
    low, share = flat // common, flat % common
    least, greatest = interval(flat)[0], interval(low)[1]
    if share == Linear.of(0) and least >= 0 and greatest < n:
        return part(low)
    text = f"{part(low)} * ({literal(1, dtype)} - {dtype}({share}) / {literal(common, dtype)})"
    text = f"({text} + {part(low + 1)} * ({dtype}({share}) / {literal(common, dtype)}))"
    if greatest + 1 >= n:
        text = f"(({low} < {n - 1}) ? {text} : {part(Linear.of(n - 1))})"
    return f"(({flat} >= 0) ? {text} : {part(Linear.of(0))})" if least < 0 else text


def _input(call: NodeCall) -> str:
    return "input" if "input" in call.node.arguments else "self"


def _single(value: float) -> float:
    """Rounded to float32, in which PyTorch computes places."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
