"""Reductions. Sums of the half types are taken in float32, those of integers and bools in int64, as PyTorch takes them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tcjit.byoc.lower.builder import DefBuilder, Element, NodeCall, axis, cast, converted, literal, wide
from tcjit.byoc.lower.elementwise import floating, pair
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import reshape
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear

# extents up to which a running sum, whose work is their square, is computed
RUNNING = 32


def reduced(
    builder: DefBuilder,
    x: Element,
    dims: Sequence[int],
    operator: str,
    dtype: str,
    body: Callable[[str, list[Linear]], str] | None = None,
) -> Element:
    """A reduction over some dimensions, which are gone after it. ``body`` turns the number read, of the element's own type, and the
    subscripts at which it stands into a term of type ``dtype``; by default it is converted."""
    kept = [place for place in range(len(x.shape)) if place not in dims]

    def term(left: list[Linear], right: list[Linear]) -> str:
        positions = dict(zip([*kept, *dims], [*left, *right]))
        subscripts = [positions[place] for place in range(len(x.shape))]
        text = x.at(subscripts)
        return cast(text, x.dtype, dtype) if body is None else body(text, subscripts)

    return builder.reduce(operator, dtype, [x.shape[place] for place in kept], [x.shape[place] for place in dims], term)


def axes(call: NodeCall, name: str, rank: int) -> list[int]:
    """The dimensions of a reduction, ascending; all of them where none is named."""
    given = call.argument(name)
    dims = (given,) if isinstance(given, int) else call.integers(name, default=())
    return sorted(axis(int(dim), rank) for dim in dims) if dims and rank else list(range(rank))


def count(x: Element, dims: Sequence[int]) -> int:
    return math.prod(x.shape[dim] for dim in dims)


def finish(call: NodeCall, found: Element) -> Element:
    """In the type and shape of the call's result."""
    return reshape(converted(found, call.dtype), call.shape)


@rule("sum", "mean", "prod")
def sums(call: NodeCall) -> Element:
    x, dtype = call.tensor("self"), wide(call.dtype)
    dims = axes(call, "dim", len(x.shape))
    if call.dtype == "bool" or (call.node.op == "aten.mean" and not floating(call.dtype)):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    x = converted(converted(x, call.dtype), dtype)  # rounded first, as PyTorch does where it is asked for a type
    found = reduced(call.builder, x, dims, "*" if call.node.op == "aten.prod" else "+", dtype)
    if call.node.op == "aten.mean":
        total, number = found, literal(count(x, dims), dtype)
        found = Element(dtype, total.shape, lambda subscripts: f"({total.at(subscripts)} / {number})", 4)
    return finish(call, found)


@rule("amax", "amin")
def extremes(call: NodeCall) -> Element:
    x = call.tensor("self")
    return finish(call, _extreme(call, x, axes(call, "dim", len(x.shape)), call.node.op[-3:]))


def _extreme(call: NodeCall, x: Element, dims: Sequence[int], word: str) -> Element:
    return reduced(call.builder, x, dims, word, "int32" if x.dtype == "bool" else wide(x.dtype))


@rule("max", "min")
def extremes_with_places(call: NodeCall) -> Element | Sequence[Element | str]:
    if "other" in call.node.arguments:
        return pair(call, call.node.op.replace("max", "maximum").replace("min", "minimum"))
    word = call.node.op[-3:]
    if call.argument("dim") is None:
        x = call.tensor("self")
        return finish(call, _extreme(call, x, range(len(x.shape)), word))
    x = call.materialised("self")
    dim = call.axis("dim", len(x.shape))
    top = _extreme(call, x, axes(call, "dim", len(x.shape)), word)
    value = finish(call, top)
    if not call.node.outputs[1:]:
        return [value]
    if not call.builder.needs(call.node.outputs[1]):
        return [value, "nobody asked for the places"]
    return [value, reshape(_first_extreme(call, x, [dim] if x.shape else [], top), call.shape)]


@rule("argmax", "argmin")
def extreme_positions(call: NodeCall) -> Element:
    x = call.materialised("self")
    if call.argument("dim") is None:
        x = reshape(x, (x.size,))
    dims = axes(call, "dim", len(x.shape))
    top = _extreme(call, x, dims, call.node.op[-3:])
    return reshape(_first_extreme(call, x, dims, top), call.shape)


def _first_extreme(call: NodeCall, x: Element, dims: Sequence[int], top: Element) -> Element:
    """The first place along a dimension that holds the extreme; NaN is one where there is any."""
    if not dims:
        return Element("int64", (), lambda subscripts: "int64(0)")
    (dim,) = dims

    def body(text: str, subscripts: list[Linear]) -> str:
        own = cast(text, x.dtype, top.dtype)
        best = top.at([each for place, each in enumerate(subscripts) if place != dim])
        strange = f" || {own} != {own}" if floating(x.dtype) else ""
        return f"({own} == {best}{strange}) ? int64({subscripts[dim]}) : int64({x.shape[dim]})"

    return reduced(call.builder, x, dims, "min", "int64", body)


@rule("any", "all")
def quantifiers(call: NodeCall) -> Element:
    x = call.tensor("self")
    dims = axes(call, "dim", len(x.shape))
    truth = converted(converted(x, "bool"), "int32")
    return finish(call, reduced(call.builder, truth, dims, "max" if call.node.op == "aten.any" else "min", "int32"))


def moments(builder: DefBuilder, x: Element, dims: Sequence[int], dtype: str) -> tuple[Element, Element]:
    """Mean, and the sum of the squared distances from it; x is a mere access. Two passes: one loses the variance to cancellation."""
    total = reduced(builder, x, dims, "+", dtype)
    number = literal(count(x, dims), dtype)
    mean = builder.keep(Element(dtype, total.shape, lambda subscripts: f"{total.at(subscripts)} / {number}", 4))

    def body(text: str, subscripts: list[Linear]) -> str:
        off = f"({cast(text, x.dtype, dtype)} - {mean.at([each for place, each in enumerate(subscripts) if place not in dims])})"
        return f"{off} * {off}"

    return mean, reduced(builder, x, dims, "+", dtype, body)


@rule("var", "std", "var_mean", "std_mean")
def variances(call: NodeCall) -> Element | Sequence[Element | str]:
    x, dtype = call.materialised("self"), wide(call.dtype)
    dims = axes(call, "dim", len(x.shape))
    correction = call.number("correction", 1) if call.argument("unbiased") is None else call.integer("unbiased")
    mean, squares = moments(call.builder, x, dims, dtype)
    number = literal(max(count(x, dims) - correction, 0), dtype)
    found = call.builder.keep(Element(dtype, squares.shape, lambda subscripts: f"({squares.at(subscripts)} / {number})", 4))
    spread = finish(call, root(found) if "std" in call.node.op else found)
    return [spread, finish(call, mean)] if call.node.op.endswith("mean") else spread


def root(x: Element) -> Element:
    """A square root whose gradient is 0 at 0, as that of PyTorch's distances is."""
    zero = literal(0, x.dtype)
    return Element(x.dtype, x.shape, lambda at: f"(({x.at(at)} == {zero}) ? {zero} : sqrt({x.at(at)}))", 5)


@rule("norm", "linalg_vector_norm", "frobenius_norm")
def norms(call: NodeCall) -> Element:
    x, dtype = call.tensor("self"), wide(call.dtype)
    if not floating(call.dtype) or not floating(x.dtype):
        raise PartitionError(f"a norm of {x.dtype}")
    dims = axes(call, "dim", len(x.shape))
    order = call.number("ord" if call.node.op == "aten.linalg_vector_norm" else "p", 2)
    if order == 2:
        x = call.materialised("self")
        squares = reduced(call.builder, x, dims, "+", dtype, lambda text, _: "{0} * {0}".format(cast(text, x.dtype, dtype)))
        return finish(call, root(squares))
    operator = {1: "+", math.inf: "max", -math.inf: "min"}.get(order)
    if operator is None:
        raise PartitionError(f"a norm of order {order}")
    return finish(call, reduced(call.builder, x, dims, operator, dtype, lambda text, _: f"abs({cast(text, x.dtype, dtype)})"))


@rule("logsumexp")
def log_of_sums(call: NodeCall) -> Element:
    x, dtype = call.materialised("self"), wide(call.dtype)
    if not floating(x.dtype):
        raise PartitionError(f"logsumexp of {x.dtype}")
    dims = axes(call, "dim", len(x.shape))
    top = reduced(call.builder, x, dims, "max", dtype)
    # an infinite top would make NaN of everything
    shift = call.builder.keep(
        Element(dtype, top.shape, lambda at: f"(abs({top.at(at)}) == infinity()) ? {literal(0, dtype)} : {top.at(at)}", 3)
    )

    def body(text: str, subscripts: list[Linear]) -> str:
        return f"exp({cast(text, x.dtype, dtype)} - {shift.at([each for place, each in enumerate(subscripts) if place not in dims])})"

    total = reduced(call.builder, x, dims, "+", dtype, body)
    return finish(call, Element(dtype, total.shape, lambda at: f"(log({total.at(at)}) + {shift.at(at)})", 9))


@rule("cumsum", "cumprod")
def running(call: NodeCall) -> Element:
    """Each number from the beginning: the language has no scans, so that the work is the square of the extent."""
    x = converted(call.tensor("self"), call.dtype)
    if not x.shape:
        return x
    dim, dtype = call.axis("dim", len(x.shape)), wide(call.dtype)
    extent, operator = x.shape[dim], "+" if call.node.op == "aten.cumsum" else "*"
    if extent > RUNNING:
        raise PartitionError(f"{call.node.op} over {extent} elements is {extent * extent} steps in the language, which has no scans")
    x = call.builder.keep(converted(x, dtype))
    unit = literal(0 if operator == "+" else 1, dtype)

    def term(left: list[Linear], right: list[Linear]) -> str:
        read = x.at([*left[:dim], right[0], *left[dim + 1 :]])
        return f"({right[0]} <= {left[dim]}) ? {read} : {unit}"

    return finish(call, call.builder.reduce(operator, dtype, x.shape, [extent], term))
