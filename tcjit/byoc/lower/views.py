"""Views, and copies that only rearrange: arithmetic on subscripts, which costs nothing where it can be folded into an access."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tcjit.byoc.lower.builder import Element, NodeCall, axis, broadcast
from tcjit.byoc.lower.indices import reshaped
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear

Map: TypeAlias = Callable[[list[Linear]], Sequence[Linear]]


def view(base: Element, shape: Sequence[int], where: Map) -> Element:
    """An element of another shape: ``where`` gives the base's subscripts for its own."""
    at = base.at
    return Element(base.dtype, tuple(shape), lambda subscripts: at(where(list(subscripts))), base.cost)


def reshape(base: Element, shape: Sequence[int]) -> Element:
    own, wanted = base.shape, tuple(shape)
    return base if own == wanted else view(base, wanted, lambda subscripts: reshaped(subscripts, wanted, own))


def permute(base: Element, dims: Sequence[int]) -> Element:
    order = [axis(dim, len(base.shape)) for dim in dims]

    def where(subscripts: list[Linear]) -> list[Linear]:
        found = list(subscripts)
        for place, dim in enumerate(order):
            found[dim] = subscripts[place]
        return found

    return view(base, [base.shape[dim] for dim in order], where)


def narrow(base: Element, dim: int, start: int, length: int, step: int = 1) -> Element:
    """``length`` places along a dimension, each ``step`` after the one before."""
    shape = [length if place == dim else extent for place, extent in enumerate(base.shape)]

    def where(subscripts: list[Linear]) -> list[Linear]:
        subscripts[dim] = subscripts[dim].times(step) + start
        return subscripts

    return view(base, shape, where)


def select(base: Element, dim: int, index: int) -> Element:
    shape = base.shape[:dim] + base.shape[dim + 1 :]
    return view(base, shape, lambda subscripts: [*subscripts[:dim], Linear.of(index), *subscripts[dim:]])


def unsqueeze(base: Element, dim: int) -> Element:
    return view(base, (*base.shape[:dim], 1, *base.shape[dim:]), lambda subscripts: subscripts[:dim] + subscripts[dim + 1 :])


# the target's shape is the result's, whatever the arguments
@rule("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
@rule("view_copy", "_reshape_alias", "squeeze_copy", "unsqueeze_copy", "ravel", "atleast_1d", "atleast_2d")
def reshapes(call: NodeCall) -> Element:
    base = call.tensor("self")
    if call.node.op in ("aten.view", "aten.view_copy") and call.node.overload == "dtype":
        raise PartitionError("looks at bytes")
    return reshape(base, call.shape)


@rule("expand", "expand_as", "broadcast_to", "expand_copy")
def expands(call: NodeCall) -> Element:
    return broadcast(call.builder, call.tensor("self"), call.shape)


@rule("broadcast_tensors")
def broadcasts(call: NodeCall) -> list[Element]:
    return [broadcast(call.builder, each, call.shape) for each in call.tensors("tensors")]


@rule("transpose", "swapaxes", "swapdims", "transpose_copy", "t", "numpy_T", "mT", "t_copy")
def transposes(call: NodeCall) -> Element:
    base = call.tensor("self")
    rank = len(base.shape)
    first, second = ("dim0", "dim1") if "dim0" in call.node.arguments else ("axis0", "axis1")
    order = list(range(rank))
    if first in call.node.arguments:
        one, two = call.axis(first, rank), call.axis(second, rank)
        if rank:
            order[one], order[two] = order[two], order[one]
    elif call.node.op == "aten.mT":
        order[-2:] = order[:-3:-1]
    else:
        order.reverse()
    return permute(base, order)


@rule("permute", "permute_copy")
def permutes(call: NodeCall) -> Element:
    return permute(call.tensor("self"), call.integers("dims", default=()))


@rule("movedim", "moveaxis")
def moves(call: NodeCall) -> Element:
    base = call.tensor("self")
    rank = len(base.shape)
    source, target = ([axis(dim, rank) for dim in call.integers(name)] for name in ("source", "destination"))
    rest = iter(dim for dim in range(rank) if dim not in source)
    places = dict(zip(target, source))
    return permute(base, [places[place] if place in places else next(rest) for place in range(rank)])


@rule("slice", "slice_copy")
def slices(call: NodeCall) -> Element:
    base = call.tensor("self")
    dim, step = call.axis("dim", len(base.shape), 0), call.integer("step", 1)
    start = call.integer("start", 0)
    extent = base.shape[dim]
    return narrow(base, dim, min(max(start + extent if start < 0 else start, 0), extent), call.shape[dim], step)


@rule("narrow", "narrow_copy")
def narrows(call: NodeCall) -> Element:
    base = call.tensor("self")
    dim = call.axis("dim", len(base.shape))
    start = call.integer("start")
    return narrow(base, dim, start + base.shape[dim] if start < 0 else start, call.integer("length"))


@rule("select", "select_copy")
def selects(call: NodeCall) -> Element:
    base = call.tensor("self")
    dim = call.axis("dim", len(base.shape))
    return select(base, dim, _normalised_index(call.integer("index"), base.shape[dim]))


def _normalised_index(index: int, extent: int) -> int:
    return index + extent if index < 0 else index


@rule("unbind", "unbind_copy")
def unbinds(call: NodeCall) -> list[Element | str]:
    base = call.tensor("self")
    dim = call.axis("dim", len(base.shape), 0)
    return [select(base, dim, index) for index in range(len(call.node.outputs))]


@rule("split", "split_with_sizes", "chunk", "split_copy", "split_with_sizes_copy", "unsafe_split", "unsafe_chunk", "tensor_split")
def splits(call: NodeCall) -> list[Element | str]:
    """The lengths are those of the results."""
    base = call.tensor("self")
    dim, start = call.axis("dim", len(base.shape), 0), 0
    found: list[Element | str] = []
    for value in call.node.outputs:
        length = value.type.shape[dim] if value.type is not None and value.type.shape is not None else None
        if length is None:
            raise PartitionError("its parts are known at the run only")
        found.append(narrow(base, dim, start, length))
        start += length
    return found


@rule("flip")
def flips(call: NodeCall) -> Element:
    base = call.tensor("self")
    dims = [axis(dim, len(base.shape)) for dim in call.integers("dims")]

    def where(subscripts: list[Linear]) -> list[Linear]:
        for dim in dims:
            subscripts[dim] = subscripts[dim].times(-1) + (base.shape[dim] - 1)
        return subscripts

    return view(base, base.shape, where)


@rule("roll")
def rolls(call: NodeCall) -> Element:
    base, given = call.tensor("self"), call.integers("dims", default=())
    shifts = call.integers("shifts")
    if not given:
        return reshape(_rolled(reshape(base, (base.size,)), [0], shifts), base.shape)
    return _rolled(base, [axis(dim, len(base.shape)) for dim in given], shifts)


def _rolled(base: Element, dims: Sequence[int], shifts: Sequence[int]) -> Element:
    def where(subscripts: list[Linear]) -> list[Linear]:
        for dim, shift in zip(dims, shifts):
            subscripts[dim] = (subscripts[dim] - shift) % base.shape[dim]
        return subscripts

    return view(base, base.shape, where)


@rule("repeat", "tile")
def repeats(call: NodeCall) -> Element:
    base = call.tensor("self")
    skip = len(call.shape) - len(base.shape)

    def where(subscripts: list[Linear]) -> list[Linear]:
        return [each % extent for each, extent in zip(subscripts[skip:], base.shape)]

    return view(call.builder.keep(base) if base.cost > 2 else base, call.shape, where)


@rule("repeat_interleave")
def interleaves(call: NodeCall) -> Element:
    base = call.tensor("self")
    if call.node.overload != "self_int":
        raise PartitionError("repeats as a tensor says")
    times = call.integer("repeats")
    if call.argument("dim") is None:
        base, dim = reshape(base, (base.size,)), 0
    else:
        dim = call.axis("dim", len(base.shape))

    def where(subscripts: list[Linear]) -> list[Linear]:
        subscripts[dim] = subscripts[dim] // times
        return subscripts

    return view(call.builder.keep(base) if base.cost > 2 else base, call.shape, where)


@rule("diagonal", "diagonal_copy")
def diagonals(call: NodeCall) -> Element:
    base, offset = call.tensor("self"), call.integer("offset", 0)
    rank = len(base.shape)
    first, second = call.axis("dim1", rank, 0), call.axis("dim2", rank, 1)
    rest = [dim for dim in range(rank) if dim not in (first, second)]

    def where(subscripts: list[Linear]) -> list[Linear]:
        places = dict(zip(rest, subscripts))
        places[first] = subscripts[-1] + max(-offset, 0)
        places[second] = subscripts[-1] + max(offset, 0)
        return [places[dim] for dim in range(rank)]

    return view(base, call.shape, where)


@rule("unfold", "unfold_copy")
def unfolds(call: NodeCall) -> Element:
    """Windows along a dimension, as a last dimension of their own."""
    base = call.tensor("self")
    dim, step = call.axis("dimension", len(base.shape)), call.integer("step")

    def where(subscripts: list[Linear]) -> list[Linear]:
        *found, inner = subscripts
        found[dim] = found[dim].times(step) + inner
        return found

    return view(base, call.shape, where)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle")
def shuffles(call: NodeCall) -> Element:
    """Channels and places in a plane change roles, by way of a view with all of them apart."""
    base = call.tensor("self")
    name = call.node.op.removeprefix("aten.")
    if name.endswith("channel_shuffle"):
        groups = call.integer("groups")
        batch, channels, *plane = base.shape
        apart = reshape(base, (batch, groups, channels // groups, *plane))
        return reshape(permute(apart, [0, 2, 1, *range(3, len(apart.shape))]), call.shape)
    *batches, channels, height, width = base.shape
    lead = list(range(len(batches)))
    a = len(batches)
    if name == "pixel_shuffle":
        factor = call.integer("upscale_factor")
        apart = reshape(base, (*batches, channels // factor**2, factor, factor, height, width))
        return reshape(permute(apart, [*lead, a, a + 3, a + 1, a + 4, a + 2]), call.shape)
    factor = call.integer("downscale_factor")
    apart = reshape(base, (*batches, channels, height // factor, factor, width // factor, factor))
    return reshape(permute(apart, [*lead, a, a + 2, a + 4, a + 1, a + 3]), call.shape)
