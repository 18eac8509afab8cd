"""Who is measured: eager PyTorch, ``torch.compile``, Triton by hand, tcjit."""
from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu.case import Case, results
from gpu.device import Device

Run = Callable[..., list[torch.Tensor]]
OURS = "tcjit"
# deeper pipelines, longer steps, larger blocks, more parts of a sum: what a person would try before a search
OPTION_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "stages=2": {"pipeline_stages": 2},
    "step=16 stages=3": {"reduction_tile": 16, "pipeline_stages": 3},
    "step=32 stages=3": {"reduction_tile": 32, "pipeline_stages": 3},
    "step=32 stages=4": {"reduction_tile": 32, "pipeline_stages": 4},
    "block=512": {"block": 512},
    "chunks=8": {"reduction_chunks": 8},
    "chunks=32 step=32": {"reduction_chunks": 32, "reduction_tile": 32},
}


@dataclass(frozen=True)
class Prepared:
    """``call`` gives a case's outputs for its arguments; ``check``, where there is one, does so in another way that shows more mistakes.

    ``facts`` are kept beside the times: seconds of compiling and of tuning, trials, resources.
    """

    call: Run
    check: Run | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Unsupported(Exception):
    """The contender has nothing for this case."""


@dataclass(frozen=True)
class Contender:
    """``missing`` says what the machine lacks for it; ``prepare`` compiles and tunes."""

    name: str
    prepare: Callable[[Case, Sequence[Any], Device, bool], Prepared]
    missing: Callable[[Device], str] = lambda device: ""


def eager(case: Case, arguments: Sequence[Any], device: Device, quick: bool) -> Prepared:
    return Prepared(lambda *given: results(case.eager(*given)))


def _inductor(mode: str) -> Callable[[Case, Sequence[Any], Device, bool], Prepared]:
    def prepare(case: Case, arguments: Sequence[Any], device: Device, quick: bool) -> Prepared:
        torch._dynamo.reset()
        start = time.perf_counter()
        compiled = torch.compile(case.eager, dynamic=False, mode=mode)
        compiled(*arguments)
        device.synchronize()
        facts = {"tuning_s" if "autotune" in mode else "compile_s": time.perf_counter() - start}
        return Prepared(lambda *given: results(compiled(*given)), facts=facts)

    return prepare


def ours(case: Case, arguments: Sequence[Any], device: Device, quick: bool) -> Prepared:
    """tcjit with its default options."""
    import tcjit

    start = time.perf_counter()
    function = getattr(tcjit.define(case.source), case.entry)
    kernel = function.compile(*arguments)
    facts = {"compile_s": time.perf_counter() - start, "tuning_s": 0.0, "trials": 0, "resources": _jsonable(dict(kernel.resources))}
    return _checked(case, function, facts)


def fixed_options(case: Case, arguments: Sequence[Any], device: Device, quick: bool) -> Prepared:
    """tcjit with each of a few sets of options that stand here, the fastest of them: what Triton's kernels by hand are given as well."""
    import tcjit

    start = time.perf_counter()
    functions, refused = {}, []
    for name, chosen in OPTION_SETS.items():
        function = getattr(tcjit.define(case.source, options=tcjit.Options(**chosen)), case.entry)
        try:
            function.compile(*arguments)
        except tcjit.TCError as error:  # what such a device or such a def cannot do
            refused.append(f"{name}: {error.what}")
            continue
        functions[name] = function
    if not functions:
        raise Unsupported("; ".join(refused))
    times = device.interleaved({name: _bound(function, arguments) for name, function in functions.items()}, 5)
    best = min(functions, key=lambda name: sorted(times[name])[len(times[name]) // 2])
    resources = _jsonable(dict(functions[best].compile(*arguments).resources))
    facts = {"tuning_s": time.perf_counter() - start, "trials": len(OPTION_SETS), "configuration": best, "resources": resources}
    return _checked(case, functions[best], facts)


def _checked(case: Case, function: Any, facts: dict[str, Any]) -> Prepared:
    """A function of tcjit's as it is called; what it computes is checked in tensors that held NaN before."""
    import tcjit

    names = [output.name for output in function.signature.returns]
    places = [names.index(output) for output in case.outputs]

    def call(*given: Any) -> list[torch.Tensor]:
        found = results(function(*given))
        return [found[place] for place in places]

    def check(*given: Any) -> list[torch.Tensor]:
        outs = [torch.full_like(result, float("nan")) for result in results(function(*given))]
        function(*given, out=outs[0] if len(outs) == 1 else tuple(outs))
        tcjit.synchronize()
        return [outs[place] for place in places]

    return Prepared(call, check, facts)


def _jsonable(facts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return found


def triton(case: Case, arguments: Sequence[Any], device: Device, quick: bool) -> Prepared:
    """A kernel written by hand, the fastest of a few configurations."""
    if not case.triton:
        raise Unsupported("no kernel was written for it")
    from gpu import triton_kernels

    start = time.perf_counter()
    ways = triton_kernels.KERNELS[case.triton](arguments, quick)
    calls, refused = {}, []
    for name, way in ways.items():
        try:
            way(*arguments)
            calls[name] = way
        except Exception as error:  # a configuration may want more shared memory than there is
            refused.append(f"{name}: {type(error).__name__}")
    device.synchronize()
    if not calls:
        raise Unsupported("; ".join(refused) or "no configuration for this size")
    times = device.interleaved({name: _bound(way, arguments) for name, way in calls.items()}, 5)
    best = min(calls, key=lambda name: sorted(times[name])[len(times[name]) // 2])
    facts = {"tuning_s": time.perf_counter() - start, "trials": len(ways), "configuration": best}
    return Prepared(lambda *given: results(calls[best](*given)), facts=facts)


def _bound(way: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], object]:
    return lambda: way(*arguments)


def _needs_triton(device: Device) -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if device.place == "cuda" else "triton needs a GPU"


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("eager", eager),
        Contender("compile", _inductor("default")),
        Contender("max-autotune", _inductor("max-autotune-no-cudagraphs")),
        Contender("triton", triton, _needs_triton),
        Contender(OURS, ours),
        Contender("tcjit-options", fixed_options),
    )
}
DEFAULT = tuple(name for name in CONTENDERS if name != "max-autotune")
