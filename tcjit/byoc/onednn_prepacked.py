"""The backend ``packed``: oneDNN's convolutions and linear layers with their weights in oneDNN's own layout.

A plain weight is put into that layout at every call. Here a region keeps the copy of its first call, which is as large as the weight, for
as long as the weight lives and is not written to. Files hold the plain weight, oneDNN's layouts have no format: a model that uses this
backend needs tcjit to run.

A write is seen by the version that PyTorch counts for each tensor. What goes around that is not seen: writes through ``.data``, through
NumPy, or by another process. ``forget`` in ``tcjit.byoc.runtime`` drops the copies then.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tcjit.byoc import vendor
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.backends import Backend, Row, Verdict, register
from tcjit.byoc.cost import HostCosts, Limits
from tcjit.byoc.graph import Node, Value
from tcjit.byoc.patterns import Match
from tcjit.byoc.regions import Region
from tcjit.byoc.spec import Unserved
from tcjit.errors import PartitionError

# what is estimated to be saved where the layout is there already, which lets layers by themselves be regions if they are large
_SPEEDS = dict.fromkeys((*vendor.CONVOLUTIONS, "aten.linear"), 1.05)
# so many sets of input shapes are known for one weight, those that came last; of these many need the same layout and share a copy
SHAPES = 16

_Key = tuple[Any, ...]


def _spatial(found: Match) -> Verdict:
    """oneDNN's layouts are for two and three dimensions."""
    numbers = vendor.numbers_of(vendor.node_of(found, "layer")) or {}
    return len(numbers.get("stride", ())) > 1 or "weights of one dimension have no such layout"


class Packed(Backend):
    """Layers by themselves, with an activation, or with a tensor added. A region is one match and costs the call of a region."""

    name = "packed"
    merges = False
    limits = Limits(call=HostCosts().call, speeds=_SPEEDS)
    devices = ("cpu",)
    contiguous = False  # with a weight of its own layout oneDNN computes in channels last, whatever comes in

    def __init__(self) -> None:
        layer = vendor.both(vendor.layer_fits, vendor.on_cpu)
        acting, adding = vendor.both(layer, vendor.activation_fits), vendor.both(layer, vendor.sum_fits)
        convolution, linear = vendor.CONVOLUTION, vendor.LINEAR
        total = vendor.summed(convolution)
        self.patterns = (
            Row("convolution_add_relu", vendor.rectified(total), vendor.both(adding, _spatial)),
            Row("convolution_activation", vendor.activated(convolution), vendor.both(acting, _spatial)),
            Row("convolution_add", total, vendor.both(adding, _spatial)),
            Row("convolution", convolution, vendor.both(layer, _spatial)),
            Row("linear_activation", vendor.activated(linear), acting),
            Row("linear_add", vendor.summed(linear), adding),
            Row("linear", linear, layer),
        )

    def rewrite(self, region: Region, adapter: Adapter) -> Sequence[Node] | None:
        """None: it is called. Raises PartitionError where a weight trains, which changes at every step."""
        vendor.untrained(region, adapter)
        return None

    def lower(self, region: Region) -> Mapping[str, Any]:
        """Where its tensors are among inputs and constants, its numbers, and what comes behind the layer."""
        found, row = region.groups[0].match, region.groups[0].row
        assert found is not None, "every region of this backend is a match"
        layer = vendor.node_of(found, "layer")
        named = {**layer.arguments, "other": found["other"]}
        given = [*region.inputs, *region.constants]
        places = {name: given.index(value) for name in ("input", "weight", "bias", "other") if isinstance(value := named.get(name), Value)}
        if found["act"] is not None:
            behind = vendor.words_of(vendor.node_of(found, "act"))
        else:
            behind = "relu" if row.endswith("relu") else "none", (None,), ""
        numbers = {} if layer.op == "aten.linear" else {**(vendor.numbers_of(layer) or {}), "groups": layer.arguments["groups"]}
        return {"places": places, "numbers": numbers, "behind": [behind[0], list(behind[1]), behind[2]]}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        code = spec.get("code")
        if not isinstance(code, Mapping) or not {"places", "numbers", "behind"} <= set(code):
            raise PartitionError(f"the spec of {spec.get('name')} does not say how it is called", hint="partition the model again")
        # a file may come to a machine whose PyTorch has no oneDNN
        return _runner(code) if torch.backends.mkldnn.is_available() else _absent  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _PrepackedWeight:
    """What is kept of a weight, as it was at one version: copies by the shapes of inputs, and of them one per layout.

    The storage is held so that no other one can come to lie at its address while this is in use.
    """

    weight: weakref.ref[Tensor]
    version: int
    address: int
    storage: Any
    ready: dict[_Key, Tensor] = field(default_factory=dict)


class _PrepackedRegion:
    """The copies that a region keeps, by its weights: several where several models have the same region."""

    def __init__(self, code: Mapping[str, Any]) -> None:
        self._numbers = code["numbers"]
        self.held: dict[int, _PrepackedWeight] = {}
        self._lock = Lock()

    def copy(self, weight: Tensor, key: _Key, x: Tensor, other: Tensor | None = None) -> Tensor:
        """A weight in oneDNN's layout, new or of another shape's; the weight itself where no version is counted.

        Raises Unserved for tensors that the fused operators do not check, so that plain ATen says what it has to say.
        """
        self._check(weight, x, other)
        if weight.is_inference():
            return weight
        version, address = weight._version, weight.data_ptr()  # before it is read: a write in between is seen at the next call
        try:
            made = self._packed(weight, list(x.shape))
            layout = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(made).tolist())
        except RuntimeError as error:
            raise Unserved(f"oneDNN has no layout for it: {str(error).splitlines()[0]}") from error
        with self._lock:
            kept = self.held.get(id(weight))
            if kept is None or kept.weight() is not weight or (kept.version, kept.address) != (version, address):
                gone = weakref.ref(weight, _forgetting(self.held, id(weight)))
                kept = self.held[id(weight)] = _PrepackedWeight(gone, version, address, weight.untyped_storage())
            while len(kept.ready) >= SHAPES:
                del kept.ready[next(iter(kept.ready))]
            for each in kept.ready.values():
                if bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(each).tolist()) == layout:
                    made = each
                    break
            kept.ready[key] = made
        return made

    def _packed(self, weight: Tensor, shape: list[int]) -> Tensor:
        told, ops = self._numbers, torch.ops.mkldnn
        if not told:
            return ops._reorder_linear_weight(weight, torch.Size(shape[:-1]).numel())  # type: ignore[no-any-return]
        found = ops._reorder_convolution_weight(weight, told["padding"], told["stride"], told["dilation"], told["groups"], shape)
        return found  # type: ignore[no-any-return]

    def _check(self, weight: Tensor, x: Tensor, other: Tensor | None) -> None:
        tensors = [x, weight] if other is None else [x, weight, other]
        if any(each.dtype is not weight.dtype or each.device.type != "cpu" or each.layout != torch.strided for each in tensors):
            raise Unserved("its tensors are not of one dtype, dense and on the CPU")
        told, shape = self._numbers, weight.shape
        if told:
            fits = x.dim() == weight.dim() and x.shape[1] == shape[1] * told["groups"]
        else:
            fits = x.dim() > 1 and x.shape[-1] == shape[-1]
        if not fits or not x.numel() or not weight.numel():
            raise Unserved("its input does not fit the weight, or is empty")
        if other is not None and list(other.shape) != self._result(x, weight):
            raise Unserved("what is added has another shape")

    def _result(self, x: Tensor, weight: Tensor) -> list[int]:
        told = self._numbers
        if not told:
            return [*x.shape[:-1], weight.shape[0]]
        extents = zip(x.shape[2:], weight.shape[2:], told["padding"], told["stride"], told["dilation"])
        return [x.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in extents)]


def _forgetting(held: dict[int, _PrepackedWeight], place: int) -> Callable[[Any], None]:
    """What drops the copies of a weight when it dies; not those of another one, which has come to its place."""

    def gone(reference: Any) -> None:
        found = held.get(place)
        if found is not None and found.weight is reference:
            held.pop(place, None)

    return gone


def _runner(code: Mapping[str, Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What runs a region. It is called some dozens of times in a few milliseconds, so nothing in it is looked up twice."""
    packing = _PrepackedRegion(code)
    held, places = packing.held, code["places"]
    first, second, third, fourth = (places.get(name, -1) for name in ("input", "weight", "bias", "other"))
    operator, rest = _operator(code, fourth >= 0)
    enabled = torch._C._get_mkldnn_enabled

    def run(tensors: Sequence[Any]) -> Sequence[Any]:
        if not enabled():
            raise Unserved("oneDNN is switched off")
        x: Tensor = tensors[first]
        weight: Tensor = tensors[second]
        bias = tensors[third] if third >= 0 else None
        other = tensors[fourth] if fourth >= 0 else None
        key: _Key = (x.shape, x.dtype) if other is None else (x.shape, x.dtype, other.shape, other.dtype)
        kept = held.get(id(weight))
        if kept is None or kept.weight() is not weight or kept.version != weight._version or kept.address != weight.data_ptr():
            ready = packing.copy(weight, key, x, other)
        else:
            found = kept.ready.get(key)
            ready = packing.copy(weight, key, x, other) if found is None else found
        if other is None:
            return [operator(x, ready, bias, *rest)]
        return [operator(x, other, ready, bias, *rest)]

    return run


def _absent(tensors: Sequence[Any]) -> Sequence[Any]:
    raise Unserved("this build of PyTorch has no oneDNN")


def _operator(code: Mapping[str, Any], added: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The fused operator, and its arguments behind the tensors."""
    told, behind = code["numbers"], code["behind"]
    if not told:
        fused = torch.ops.mkldnn._linear_pointwise
        return (fused.binary, ("add",)) if added else (fused.default, tuple(behind))
    numbers = [told[name] for name in ("padding", "stride", "dilation", "groups")]
    fused = torch.ops.mkldnn._convolution_pointwise
    if not added:
        return fused.default, (*numbers, *behind)
    return fused.binary, (*numbers, "add", 1.0, None if behind[0] == "none" else behind[0], *behind[1:])


PACKED = register(Packed())
