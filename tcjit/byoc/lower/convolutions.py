"""Convolutions of one to three dimensions, transposed ones too, in PyTorch's layouts; padding is a guard at the read."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, cast, literal, wide
from tcjit.byoc.lower.elementwise import formula
from tcjit.byoc.lower.indices import inside
from tcjit.byoc.lower.reductions import finish
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import reshape, unsqueeze
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear


def guarded(x: Element, subscripts: Sequence[Linear], dtype: str, otherwise: str, conditions: Sequence[str] = ()) -> str:
    """A read of ``x`` where it is inside and the conditions hold, else something else; of type ``dtype``."""
    tests = list(conditions)
    for subscript, extent in zip(subscripts, x.shape):
        found = inside(subscript, 0, extent)
        if found is None:
            return otherwise
        tests += found
    text = cast(x.at(subscripts), x.dtype, dtype)
    return f"(({' && '.join(tests)}) ? {text} : {otherwise})" if tests else text


@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(call: NodeCall) -> Element:
    x, weight = call.materialised("input"), call.materialised("weight")
    rank = len(weight.shape) - 2
    if rank < 1:
        raise PartitionError("a convolution without a plane")
    single = len(x.shape) == rank + 1
    if single:
        x = unsqueeze(x, 0)
    transposed = "transpose" in call.node.op or call.flag("transposed")
    stride, dilation = (call.integers(name, rank, [1] * rank) for name in ("stride", "dilation"))
    groups = call.integer("groups", 1)
    shape = (1, *call.shape) if single else call.shape
    kind = _transposed if transposed else _plain
    found = kind(call, x, weight, shape, stride, _padding(call, weight.shape[2:], dilation), dilation, groups)
    bias = call.optional("bias")
    if bias is None:
        return finish(call, found)
    spread = reshape(bias, (bias.size, *[1] * rank))
    return formula(call, "{0} + {1}", [reshape(found, call.shape), spread], 1, wide(call.dtype))


def _padding(call: NodeCall, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Zeros before each dimension; how many are behind follows from the result's extents."""
    word = call.word("padding")
    if word == "same":
        return tuple(step * (extent - 1) // 2 for step, extent in zip(dilation, kernel))
    return (0,) * len(kernel) if word else call.integers("padding", len(kernel), [0] * len(kernel))


def _plain(
    call: NodeCall,
    x: Element,
    weight: Element,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Element:
    filters, depth, *kernel = weight.shape

    def body(left: list[Linear], right: list[Linear]) -> str:
        n, f, *place = left
        c, *taps = right
        channel = (f // (filters // groups)).times(depth) + c if groups > 1 else c
        plane = [p.times(s) + t.times(d) - pad for p, t, s, d, pad in zip(place, taps, stride, dilation, padding)]
        read = guarded(x, [n, channel, *plane], call.dtype, literal(0, call.dtype))
        return _term(call, read, cast(weight.at([f, c, *taps]), weight.dtype, call.dtype))

    return call.builder.reduce("+", wide(call.dtype), shape, [depth, *kernel], body)


def _transposed(
    call: NodeCall,
    x: Element,
    weight: Element,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Element:
    """A place of the result gathers the taps whose distance the stride divides."""
    channels, filters, *kernel = weight.shape
    depth = channels // groups

    def body(left: list[Linear], right: list[Linear]) -> str:
        n, f, *place = left
        c, *taps = right
        channel = (f // filters).times(depth) + c if groups > 1 else c
        tests, plane = [], []
        for p, t, s, d, pad, extent in zip(place, taps, stride, dilation, padding, x.shape[2:]):
            far = p - t.times(d) + pad
            found = inside(far, 0, s * extent)
            if found is None:
                return literal(0, wide(call.dtype))
            left_over = far % s
            tests += [*found, *([f"{left_over} == 0"] if left_over != Linear.of(0) else [])]
            plane.append(far // s)
        texts = [each.at(at) for each, at in ((x, [n, channel, *plane]), (weight, [channel, f % filters, *taps]))]
        term = _term(call, *(cast(text, each.dtype, call.dtype) for text, each in zip(texts, (x, weight))))
        return f"({' && '.join(tests)}) ? {term} : {literal(0, wide(call.dtype))}" if tests else term

    return call.builder.reduce("+", wide(call.dtype), shape, [depth, *kernel], body)


def _term(call: NodeCall, left: str, right: str) -> str:
    """A product in the type that sums are taken in: one of two numbers of a half type is not rounded before it is converted."""
    return f"{left} * {right}" if wide(call.dtype) == call.dtype else f"{wide(call.dtype)}({left} * {right})"
