"""One case on one device: every contender compiled, checked against float64, then all of them timed in turn."""
from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gpu.case import SEED, Case, Entry, error, reference
from gpu.contenders import CONTENDERS, Prepared, Run, Unsupported
from gpu.device import Device, host_us
from gpu.figures import floor_us, summary

GRAPH_BELOW_US = 20.0  # where launches would be timed rather than kernels
ROTATED, ROTATED_BYTES = 32, 128 << 20  # sets of inputs in a graph, and the bytes of an input that they share: of a table, never read whole
FLUSH_US = 60.0  # what one flush hides of the host's work
FEWEST, MOST = 7, 200  # samples


class Lost(Exception):
    """A contender broke the device's context: nothing runs in this process any more. Its arguments: the contender, what it raised."""


@dataclass(frozen=True)
class Settings:
    """What a run measures, and how long."""

    peers: tuple[str, ...]
    quick: bool = False
    small: bool = False  # tiny sizes, to try the benchmark itself
    budget_ms: float = 300.0  # of samples, for each contender


def measure(
    entry: Entry,
    device: Device,
    settings: Settings,
    ceilings: Mapping[str, Any],
    excluded: Mapping[str, str],
    stage: Callable[[str], None],
) -> dict[str, Any]:
    """The row of an entry. ``excluded`` are contenders not to be tried again, with the reason; ``stage`` is told who is at work."""
    stage("inputs")
    case = entry.case(settings.small)
    arguments = case.arguments(device.place)
    expected = reference(case, arguments)
    outputs = [torch.empty(one.shape, dtype=getattr(torch, case.dtype), device="meta") for one in expected]
    moved = case.read + sum(one.nbytes for one in outputs)
    row: dict[str, Any] = {
        "name": entry.name, "suite": entry.suite, "dims": entry.sizes(settings.small), "dtype": case.dtype,
        "flops": case.flops, "bytes": moved, "floor_us": floor_us(case.flops, moved, case.dtype, ceilings), "contenders": {},
    }  # fmt: skip
    running: dict[str, Run] = {}
    for name in settings.peers:
        if name in excluded:
            row["contenders"][name] = {"error": excluded[name]}
            continue
        stage(name)
        found, prepared = _tried(name, case, arguments, expected, outputs, device, settings.quick)
        row["contenders"][name] = found
        if prepared is not None:
            running[name] = prepared.call
    del expected
    stage("timing")
    try:
        for name, times in _timed(case, running, arguments, device, settings.budget_ms).items():
            row["contenders"][name] |= times
    except Exception as failure:
        row["error"] = f"timing: {type(failure).__name__}: {failure}"
    return row


def _tried(
    name: str,
    case: Case,
    arguments: Sequence[Any],
    expected: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    device: Device,
    quick: bool,
) -> tuple[dict[str, Any], Prepared | None]:
    """What a contender's first run gives, and the contender where it runs."""
    contender = CONTENDERS[name]
    if lacking := contender.missing(device):
        return {"skipped": lacking}, None
    start = time.perf_counter()
    try:
        prepared = contender.prepare(case, arguments, device, quick)
        device.poison(outputs)
        found = (prepared.check or prepared.call)(*arguments)
        device.synchronize()
        first = time.perf_counter() - start
        off = error(found, expected)
    except Unsupported as reason:
        return {"skipped": str(reason)}, None
    except Exception as failure:
        words = f"{type(failure).__name__}: {failure}"
        try:
            device.synchronize()
        except Exception as broken:
            raise Lost(name, words) from broken
        return {"error": words}, None
    correct = off <= case.tolerance  # NaN never is
    return {"first_s": first, "error_norm": off if math.isfinite(off) else str(off), "correct": correct, **prepared.facts}, prepared


def _timed(case: Case, running: Mapping[str, Run], arguments: Sequence[Any], device: Device, budget_ms: float) -> dict[str, dict[str, Any]]:
    """Times by contender: from events around calls, or from graphs of many calls where a call is short."""
    if not running:
        return {}
    calls = {name: _on(run, arguments) for name, run in running.items()}
    for call in calls.values():
        call()
    host = {name: host_us(call, device) for name, call in calls.items()}
    pad = 1 + int(max(host.values()) / FLUSH_US)
    device.warm_up()
    guess = {name: min(times) for name, times in device.interleaved(calls, 3, pad).items()}
    notes: dict[str, dict[str, Any]] = {name: {"host_us": us, "how": "events"} for name, us in host.items()}
    repeats = dict.fromkeys(calls, 1)
    if min(guess.values()) < GRAPH_BELOW_US:
        sets = _sets(case, arguments, device)
        for name, run in running.items():
            try:
                calls[name] = device.captured(_all(run, sets))
            except Exception as failure:
                notes[name]["how"] = f"events, no graph: {type(failure).__name__}: {failure}"
                device.synchronize()
                continue
            repeats[name] = len(sets)
            notes[name]["how"] = f"a graph of {len(sets)} calls"
    spent = sum(guess[name] * repeats[name] + FLUSH_US * pad for name in calls)
    samples = max(FEWEST, min(MOST, int(budget_ms * 1e3 * len(calls) / spent)))
    for call in calls.values():
        call()
    device.warm_up()
    taken = device.interleaved(calls, samples, pad)
    return {name: asdict(summary([us / repeats[name] for us in times])) | notes[name] for name, times in taken.items()}


def _sets(case: Case, arguments: Sequence[Any], device: Device) -> list[Sequence[Any]]:
    """Sets of inputs, so that each call of a graph reads its own from memory."""
    shared = {place: arguments[place] for place, given in enumerate(case.inputs) if given.bytes > ROTATED_BYTES}
    return [arguments, *(case.arguments(device.place, SEED + more, shared) for more in range(1, ROTATED))]


def _on(run: Run, arguments: Sequence[Any]) -> Callable[[], object]:
    return lambda: run(*arguments)


def _all(run: Run, sets: Sequence[Sequence[Any]]) -> Callable[[], object]:
    return lambda: [run(*arguments) for arguments in sets]
