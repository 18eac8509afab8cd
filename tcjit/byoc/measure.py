"""Which regions stay, by the clock: each as its backend has it against plain ATen, on what really goes into it.

A model's regions are first all called in plain ATen, by a backend that notes what they are given. Then they take turns with what their
backends make of them. What is known of a region, its shapes and the machine is kept in the cache, and not measured again.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tcjit import __version__
from tcjit.byoc import runtime
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.backends import Backend, register, unregister
from tcjit.byoc.calling import Inputs
from tcjit.byoc.graph import Node, Value
from tcjit.byoc.partition_blocks import cut
from tcjit.byoc.regions import Region
from tcjit.byoc.rewrite import call
from tcjit.byoc.settings import PartitionConfig
from tcjit.byoc.spec import parse, plan, spec
from tcjit.cache import store
from tcjit.errors import CacheError, TCError
from tcjit.runtime import host, timing
from tcjit.runtime.timing import quantile_ratio

Run = Callable[[], Any]
Key = tuple[str, ...]

LEAST = 5e-4  # seconds that one reading covers at least
ROUNDS, SPENT = 11, 1.0  # readings of each, fewer of what takes long: after so many seconds five are enough
GAIN = 0.99  # of ATen's time at most, in half of the rounds, for a region to stay; the whole model is timed afterwards
QUANTILE = 0.75  # the part of the rounds in which a model must be faster


@dataclass(frozen=True)
class Measured:
    """By what is in a region: ``seconds`` are medians, of its backend and of ``aten``; ``kept`` stay, ``said`` is why others do not."""

    seconds: Mapping[Key, Mapping[str, float]]
    kept: frozenset[Key]
    reasons: Mapping[Key, str]

    def times(self, region: Region) -> Mapping[str, float]:
        """Seconds of a region, by who runs it; empty where it was not measured."""
        return self.seconds.get(_key(region), {})

    def judge(self, region: Region) -> str:
        """Empty where a region stays, or why not."""
        key = _key(region)
        return "" if key in self.kept else self.reasons.get(key, "not measured")


@dataclass(frozen=True)
class _Probe:
    """A region, its plain spec, and what its backend made of it: a spec, or nodes with the tensors that only they know."""

    region: Region
    plain: str
    spec: str
    constants: tuple[Value, ...] = ()


def measured(opened: Callable[[], Adapter], config: PartitionConfig, inputs: Inputs) -> Measured:
    """Runs a model on its example inputs and times its regions, of each backend as if it were alone; of those that overlap the one that
    saves most stays. Regions that the inputs do not reach are left to ATen."""
    found: list[tuple[Region, dict[str, float]]] = []
    said: dict[Key, str] = {}
    for name in config.serving(measure=True):
        for probe, given, adapter in _probes(opened(), replace(config, backends=(name,)), inputs):
            if given is None:
                said[_key(probe.region)] = "not reached by the example inputs"
                continue
            times = _times(probe, given, adapter)
            if times is None:
                said[_key(probe.region)] = f"{name} could not run it"
            else:
                found.append((probe.region, times))
    kept: set[Key] = set()
    taken: set[str] = set()
    for region, times in sorted(found, key=lambda each: each[1]["ours"] - each[1]["aten"]):
        names = {value.name for node in region.nodes for value in node.outputs}
        if times["ratio"] > GAIN:
            said[_key(region)] = f"measured: {_us(times['ours'])} by {region.backend}, {_us(times['aten'])} by ATen"
        elif names & taken:
            said[_key(region)] = "another backend is faster"
        else:
            kept.add(_key(region))
            taken |= names
    seconds = {_key(region): {region.backend: times["ours"], "aten": times["aten"]} for region, times in found}
    return Measured(seconds, frozenset(kept), said)


def interleaved_timing(runs: Mapping[str, Run], least: float = LEAST) -> dict[str, list[float]]:
    """Seconds of each in every round, in an order of their own each time; a reading covers at least so many."""
    counts = {name: timing.calls_for(least, min(_reading(run, 1) for _ in range(3))) for name, run in runs.items()}
    readers = {name: partial(_reading, run, counts[name]) for name, run in runs.items()}
    return timing.interleaved(readers, ROUNDS, timing.shuffled(0), least=5, seconds=SPENT)


class _Recorder(Backend):
    """Runs regions in plain ATen and keeps what the first call of each was given."""

    name = "tcjit_recorder"

    def __init__(self) -> None:
        self.given: dict[str, list[Tensor]] = {}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        run = plan(dict(spec))

        def recorded(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            if spec["name"] not in self.given:
                self.given[spec["name"]] = [each.detach().clone() for each in tensors]
            return run(tensors)

        return recorded


def _probes(
    adapter: Adapter, config: PartitionConfig, inputs: Inputs
) -> list[tuple[_Probe, list[Tensor] | None, Adapter]]:
    """The regions of one backend, with what they are given."""
    probes: list[_Probe] = []

    def put(region: Region, backend: Backend, adapter: Adapter) -> tuple[Sequence[Node], str]:
        plain = spec(replace(region, backend=_Recorder.name), {})
        nodes = backend.rewrite(region, adapter)
        if nodes is None:
            probes.append(_Probe(region, plain, spec(region, backend.lower(region))))
        else:
            inside = {value for node in nodes for value in node.outputs}
            known = {*region.inputs, *region.constants}
            held = dict.fromkeys(v for node in nodes for v in node.inputs if v not in inside and v not in known)
            other = replace(region, nodes=tuple(nodes), constants=(*region.constants, *held))
            probes.append(_Probe(region, plain, spec(other, {}), tuple(held)))
        return [call(region, plain)], plain

    done = cut(adapter, config, put=put)
    if not probes:
        return []
    recorder = _Recorder()
    register(recorder)
    try:
        made: Any = adapter.realise(done.block)
        model = made.module() if isinstance(made, torch.export.ExportedProgram) else made
        with torch.no_grad():
            inputs.copies().given_to(model)
    finally:
        unregister(recorder.name)
        runtime.forget(recorder.name)
    return [(probe, recorder.given.get(probe.region.name), adapter) for probe in probes]


def _times(probe: _Probe, given: list[Tensor], adapter: Adapter) -> dict[str, float] | None:
    """Seconds of a region's backend and of ATen, and the median of their ratios in a round; None where the backend cannot run it."""
    name = _note_name(probe, given)
    known = store().note(name)
    if known is not None and set(known) == {"ours", "aten", "ratio"}:
        return {key: float(value) for key, value in known.items()}
    plain = plan(parse(probe.plain))
    tensors = [*given, *(adapter.read(value) for value in probe.constants)]
    parsed = parse(probe.spec)
    try:
        with torch.no_grad():
            if parsed["code"]:
                ours: Run = _served(probe.spec, tensors)
            else:
                rewritten = plan(parsed)
                ours = lambda: rewritten(tensors)  # noqa: E731
                ours()
            times = interleaved_timing({"ours": ours, "aten": lambda: plain(given)})
    except (TCError, RuntimeError):
        return None
    found = {"ours": median(times["ours"]), "aten": median(times["aten"]), "ratio": quantile_ratio(times["ours"], times["aten"], 0.5)}
    with suppress(CacheError, OSError):
        store().put_note(name, found)
    return found


def _served(text: str, tensors: list[Tensor]) -> Run:
    """A region as the model will call it, once its backend is known to take these tensors."""
    runtime.runner(text, tensors)
    return lambda: runtime.CALL(text, tensors)


def _note_name(probe: _Probe, given: Sequence[Tensor]) -> str:
    facts = (
        probe.spec, [(tuple(each.shape), tuple(each.stride()), str(each.dtype), str(each.device)) for each in given],
        __version__, torch.__version__, torch.get_num_threads(), host.identity(store()),
    )  # fmt: skip
    return "region-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _key(region: Region) -> Key:
    return (region.backend, *(value.name for node in region.nodes for value in node.outputs))


def _reading(run: Run, count: int) -> float:
    return timing.reading(run, count, _finished)


def _finished() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us"
