"""The operator ``tcjit::call(str spec, Tensor[] inputs) -> Tensor[]`` that stands for a region in a model, known once this is imported.

The backend's runner serves it where it can. While gradients are recorded, the runner's method ``recorded`` does, if it has one. In plain
ATen it runs where these say `Unserved`, under autocast, and where tensors have no data. It costs about 3 us, so nothing here is done twice.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from tcjit.byoc.backends import find
from tcjit.byoc.ops import dtype_name
from tcjit.byoc.spec import TAIL, Runner, Spec, Unserved, fits, parse, plan
from tcjit.errors import PartitionError, TCError

SCHEMA = "call(str spec, Tensor[] inputs) -> Tensor[]"

_LIBRARY = torch.library.Library("tcjit", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(SCHEMA, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
CALL = torch.ops.tcjit.call.default

# all by the end of the spec's text: what a backend gave, that of it which served a call, what runs in plain ATen
_LOADED: dict[str, tuple[Spec, Runner]] = {}
_RUNNERS: dict[str, Runner] = {}
_PLANS: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {}
_LOCK = RLock()
_TOLD: dict[str, None] = {}  # why regions were not run by their backends
_modes = torch._C._len_torch_dispatch_stack
_autocast = torch._C._is_any_autocast_enabled


def call(spec: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Runs a region: its inputs and then its constants go in. Raises PartitionError where the spec or its backend is not known."""
    return cast("list[Tensor]", CALL(spec, list(inputs)))


def forget(backend: str | None = None) -> None:
    """Forgets what serves the regions of a backend, or of all: the next call asks it again, or the one that was registered in its place."""
    with _LOCK:
        for key in [key for key, (parsed, _) in _LOADED.items() if backend in (None, parsed["backend"])]:
            del _LOADED[key]
            _RUNNERS.pop(key, None)


def runner(spec: str, inputs: list[Tensor]) -> Runner:
    """What a region's backend runs it with, after a first run; raises Unserved where it cannot take these inputs."""
    _first(spec, inputs)
    if spec[-TAIL:] not in _RUNNERS:
        raise Unserved("the backend's runner takes no such tensors")
    return _RUNNERS[spec[-TAIL:]]


def _with_gradients(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    """Where autograd would record: most calls need none of that, and go on at once."""
    recording = torch.is_grad_enabled()
    for each in inputs:
        kind = type(each)
        if (kind is not Tensor and kind is not Parameter) or (recording and each.requires_grad):
            return _aside(spec, inputs)
    if _modes() or _autocast() or forward_ad._current_level >= 0:
        return _aside(spec, inputs)
    return served(spec, inputs)


def _aside(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    """Tangents and other dtypes come from plain ATen; tensors of other classes, and what watches operators, get to see the operator."""
    if _autocast() or forward_ad._current_level >= 0:
        return _plain(spec, inputs)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        return _recorded(spec, inputs)
    return _below(spec, inputs)


def _recorded(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    """Where autograd records: by the runner's method for it, or in plain ATen, so that gradients are those of the model as it was."""
    parsed, runner = _loaded(spec)
    recorded = getattr(runner, "recorded", None)
    if not all(type(extent) is int for each in inputs for extent in each.shape):  # a tracer's symbols
        return _plain(spec, inputs)
    try:
        if recorded is None:
            raise Unserved(find(parsed["backend"]).without_gradients(parsed))
        return list(recorded(inputs))
    except Unserved as error:
        _tell(error.what)
        return _plain(spec, inputs)


def _tell(why: str) -> None:
    """Says once in a process and for each reason that regions are not run by their backends."""
    if why not in _TOLD:
        _TOLD[why] = None
        said = f"while gradients are recorded, a region of a partitioned model runs in plain ATen: {why}"
        warnings.warn(f"{said}; torch.no_grad() and requires_grad_(False) record none", stacklevel=2)


def _below(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        return cast("list[Tensor]", CALL(spec, inputs))


def served(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    """The operator where nothing records gradients or watches: its runner, or plain ATen."""
    try:
        runner = _RUNNERS[spec[-TAIL:]]
    except KeyError:
        return _first(spec, inputs)
    try:
        found = runner(inputs)
    except Unserved:
        return _plain(spec, inputs)
    return found if type(found) is list else list(found)


class FixedRegion:
    """A region whose inputs always have the same shapes and dtypes, called where nothing records gradients or watches operators.

    A runner may have a method ``fixed(tensors)`` that gives what runs tensors like these, and raises TCError where it refuses some.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._runner: Runner | None = None
        self._run: Callable[..., Sequence[Tensor]] = self._through_operator

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if self._runner is not _RUNNERS.get(self._spec[-TAIL:]):
            return self._first(inputs)
        try:
            return self._run(*inputs)
        except TCError:
            return self._through_operator(*inputs)

    def _first(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The first call, and the first with another runner."""
        found = self._through_operator(*inputs)
        runner = _RUNNERS.get(self._spec[-TAIL:])
        made = getattr(runner, "fixed", lambda tensors: None)(inputs)
        self._runner, self._run = runner, made or self._through_operator
        return found

    def _through_operator(self, *inputs: Tensor) -> list[Tensor]:
        return call(self._spec, inputs)


def _plain(spec: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    key = spec[-TAIL:]
    run = _PLANS.get(key)
    if run is None:
        run = _PLANS[key] = plan(parse(spec))
    return run(inputs)


def _first(spec: str, inputs: list[Tensor]) -> list[Tensor]:
    """The first calls of a spec: its runner is asked for, and what it gives is looked at once."""
    parsed, runner = _loaded(spec)
    try:
        found = list(runner(inputs))
    except Unserved:
        return _plain(spec, inputs)
    _check(parsed, inputs, found)
    _RUNNERS[spec[-TAIL:]] = runner
    return found


def _loaded(spec: str) -> tuple[Spec, Runner]:
    """What a spec says, and what its backend runs it with."""
    key = spec[-TAIL:]
    with _LOCK:
        if key not in _LOADED:
            parsed = parse(spec)
            _LOADED[key] = (parsed, find(parsed["backend"]).load(parsed))
        return _LOADED[key]


def _check(parsed: Spec, inputs: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """What a runner gave has the number, and for inputs as the spec has them the dtypes and shapes, that the spec says."""
    who, wanted = f"backend {parsed['backend']}, region {parsed['name']}: its runner gave", parsed["outputs"]
    if len(found) != len(wanted):
        raise PartitionError(f"{who} {len(found)} results, not {len(wanted)}")
    for each, known in zip(found, wanted):
        if not isinstance(each, Tensor):
            raise PartitionError(f"{who} for {known['name']} something of type {type(each).__name__}, not a tensor")
    if fits(parsed, inputs) and not fits({"inputs": wanted}, found):
        said = ", ".join(f"{each['dtype']}{each['shape']}" for each in wanted)
        got = ", ".join(f"{dtype_name(each.dtype)}{list(each.shape)}" for each in found)
        raise PartitionError(f"{who} {got}, not {said}", hint="what `load` gives must compute what the region's nodes do")


def _batched(info: Any, dims: Any, spec: str, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Under `torch.vmap`: one call after the other."""
    calls = []
    for place in range(info.batch_size):
        calls.append(call(spec, [each if dim is None else each.select(dim, place) for each, dim in zip(inputs, dims[1])]))
    found = [torch.stack(each) for each in zip(*calls)]
    return found, [0] * len(found)


def _define() -> None:
    kernels: dict[str, Any] = {
        "Autograd": _with_gradients,
        "AutogradMeta": _below,
        "CompositeExplicitAutograd": served,
    }
    for key, kernel in kernels.items():
        _LIBRARY.impl("call", kernel, key)  # type: ignore[no-untyped-call]
    torch.library.register_fake("tcjit::call", _plain, lib=_LIBRARY)
    torch.library.register_vmap("tcjit::call", _batched, lib=_LIBRARY)


_define()
