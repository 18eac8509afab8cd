"""Backward operators of pooling and of slices: each place of the input gathers from the results that read it."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, cast, literal, wide
from tcjit.byoc.lower.indices import inside
from tcjit.byoc.lower.pooling import overlap, windows
from tcjit.byoc.lower.reductions import finish
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear

_Term = Callable[[list[Linear], list[Linear]], str]


def _gathered(call: NodeCall, gradient: Element, settings: Sequence[Sequence[int]], term: _Term) -> Element:
    """The sum over the windows that have a place, of a term in the subscripts of the result and those of the place."""
    kernel, stride, padding, dilation = settings
    lead, dtype = len(call.shape) - len(kernel), wide(call.dtype)
    zero = literal(0, dtype)

    def body(left: list[Linear], right: list[Linear]) -> str:
        tests, plane = [], []
        for p, t, s, d, pad, extent in zip(left[lead:], right, stride, dilation, padding, gradient.shape[lead:]):
            far = p - t.times(d) + pad
            found = inside(far, 0, s * extent)
            if found is None:
                return zero
            rest = far % s
            tests += [*found, *([f"{rest} == 0"] if rest != Linear.of(0) else [])]
            plane.append(far // s)
        text = term([*left[:lead], *plane], left)
        return f"({' && '.join(tests)}) ? {text} : {zero}" if tests else text

    return call.builder.reduce("+", dtype, call.shape, kernel, body)


@rule("max_pool2d_with_indices_backward")
def max_pool_gradient(call: NodeCall) -> Element:
    gradient, indices = call.materialised("grad_output"), call.materialised("indices")
    dtype, extent = wide(call.dtype), call.shape[-1]

    def term(result: list[Linear], place: list[Linear]) -> str:
        flat = place[-2].times(extent) + place[-1]
        own = cast(gradient.at(result), gradient.dtype, dtype)
        return f"(({indices.at(result)} == {flat}) ? {own} : {literal(0, dtype)})"

    return finish(call, _gathered(call, gradient, windows(call, 2), term))


@rule("avg_pool2d_backward")
def avg_pool_gradient(call: NodeCall) -> Element:
    gradient, settings, dtype = call.materialised("grad_output"), windows(call, 2), wide(call.dtype)
    kernel, stride, padding, _ = settings
    override = call.argument("divisor_override") is not None
    padded = call.flag("count_include_pad")

    def term(result: list[Linear], place: list[Linear]) -> str:
        own = cast(gradient.at(result), gradient.dtype, dtype)
        if override:
            return f"({own} / {literal(call.integer('divisor_override'), dtype)})"
        lengths = []
        for p, k, s, pad, extent in zip(result[-2:], kernel, stride, padding, call.shape[-2:]):
            lengths.append(overlap(p.times(s) - pad, k, -pad if padded else 0, extent + pad if padded else extent))
        return f"({own} / {dtype}({' * '.join(lengths)}))"

    return finish(call, _gathered(call, gradient, settings, term))


@rule("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_gradient(call: NodeCall) -> Element:
    gradient, dtype = call.tensor("grad_output"), wide(call.dtype)
    sizes = list(zip(call.shape[-2:], gradient.shape[-2:]))
    if any(n % m for n, m in sizes):
        raise PartitionError("its windows overlap")
    steps = [n // m for n, m in sizes]
    number = literal(steps[0] * steps[1], dtype)

    def at(subscripts: Sequence[Linear]) -> str:
        plane = [p // step for p, step in zip(subscripts[-2:], steps)]
        return f"({cast(gradient.at([*subscripts[:-2], *plane]), gradient.dtype, dtype)} / {number})"

    return finish(call, Element(dtype, call.shape, at, gradient.cost + 4))


@rule("slice_backward", "select_backward")
def slice_gradient(call: NodeCall) -> Element:
    """Zeros, and the gradient where the input was read."""
    gradient = call.tensor("grad_output")
    dim = call.axis("dim", len(call.shape))
    extent, step, length = call.shape[dim], 1, 1
    selects = call.node.op == "aten.select_backward"
    start = call.integer("index" if selects else "start")
    if not selects:
        step, length = call.integer("step"), gradient.shape[dim]
    start = min(max(start + extent if start < 0 else start, 0), extent)
    zero = literal(0, gradient.dtype)

    def at(subscripts: Sequence[Linear]) -> str:
        place = subscripts[dim] - start
        tests = inside(place, 0, step * (length - 1) + 1)
        if tests is None:
            return zero
        if step > 1:
            tests.append(f"{place % step} == 0")
        own = gradient.at([*subscripts[:dim], *([] if selects else [place // step]), *subscripts[dim + 1 :]])
        return f"(({' && '.join(tests)}) ? {own} : {zero})" if tests else own

    return finish(call, Element(gradient.dtype, call.shape, at, gradient.cost + 1))
