"""One operator: compiled, compared with its PyTorch form in float64, timed in turns with eager PyTorch and ``torch.compile``."""
from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from signal import ITIMER_REAL, SIGALRM, setitimer, signal
from typing import Any

import machine
import torch
from worker import set_priority

import tcjit
from generality.ceilings import Ceilings
from generality.operators import Operator
from tcjit.jit.kernel import Kernel
from tcjit.mapping.options import Options
from tcjit.runtime import timing
from tcjit.runtime.storage_pool import POOL

READING_S = 5e-3  # a reading is as many calls as take so long
LEAST_ROUNDS = 3
SLOW_S = 1.0  # what takes so long is read once
ALLOWED = 4  # times PyTorch's own error, where that is larger than the tolerance


@dataclass(frozen=True)
class Settings:
    """How an operator is measured."""

    peers: tuple[str, ...] = ("eager", "compile")
    rounds: int = 15
    seconds: float = 1.5  # of all rounds together
    compile_s: float = 60.0  # the longest that torch.compile may take
    quiet_s: float = 1.0  # longest wait for an idle machine


Record = dict[str, Any]
Call = Callable[[], Any]


def measure(op: Operator, seed: int, settings: Settings, ceilings: Ceilings) -> Record:
    """What the benchmark writes of an operator: ``kind`` is timed, checked (where there are no rounds), refused (by
    tcjit, with the reason), wrong or failed."""
    record: Record = {
        "family": op.family,
        "name": op.name,
        "text": op.text,
        "arguments": [str(argument) for argument in op.arguments],
    }
    tensors = op.tensors(seed)
    with torch.no_grad():
        try:
            function, kernel, result, seconds = compiled(op, tensors)
        except tcjit.TCError as error:
            return record | {"kind": "refused", "error": f"{type(error).__name__}: {error}"}
        record |= {"first_s": seconds} | description(kernel)
        if wrong := difference(op, tensors, result):
            return record | {"kind": "wrong", "error": wrong}
        record["pooled"] = any(POOL.holds(tensor) for tensor in _several(result))
        del result
        if not settings.rounds:
            return record | {"kind": "checked"}
        record["floor_us"], record["bound"] = _floor(kernel, ceilings, op)
        calls: dict[str, Call] = {"tcjit": partial(function, *tensors)}
        for peer in settings.peers:
            try:
                calls[peer], record[f"{peer}_first_s"] = PEERS[peer](op, tensors, settings)
            except Exception as error:  # another's failure is noted, and does not count
                record[f"{peer}_error"] = f"{type(error).__name__}: {error}"[:300]
        return record | {"kind": "timed"} | in_turns(calls, settings)


def compiled(op: Operator, tensors: Sequence[torch.Tensor]) -> tuple[Any, Kernel, torch.Tensor, float]:
    """The function, its kernel, the result of the first call, and the seconds until it was there."""
    start = time.perf_counter()
    function = tcjit.define(op.text)[op.entry]
    result = function(*tensors)
    seconds = time.perf_counter() - start
    return function, function.compile(*tensors), result, seconds


def on_quiet_machine(calls: Mapping[str, Call], rounds: int, seconds: float, *, reading_s: float, least: int) -> dict[str, list[float]]:
    """Seconds of each of several calls that take turns, ahead of other processes: ``least`` to ``rounds`` readings of ``reading_s``, no
    more after ``seconds``."""
    with machine.alone():
        set_priority(-20)
        try:
            many = {name: timing.calls_for(reading_s, timing.reading(call)) for name, call in calls.items()}
            readers = {name: partial(timing.reading, call, many[name]) for name, call in calls.items()}
            return timing.interleaved(readers, rounds, timing.rotated, least=least, seconds=seconds)
        finally:
            set_priority(0)


def in_turns(calls: dict[str, Call], settings: Settings) -> Record:
    """Microseconds of each, how much longer the fastest of the others takes than tcjit, by medians over rounds, and ``foreign``: the part
    of a core that other processes used meanwhile."""
    with machine.alone():
        machine.wait_until_quiet(settings.quiet_s)
        set_priority(-20)
        busy, own, start = machine.busy_seconds(), machine.process_seconds(os.getpid()), time.perf_counter()
        try:
            readers, once = {}, 0.0
            for name, call in calls.items():
                seconds = timing.reading(call)
                seconds = timing.reading(call) if seconds < SLOW_S else seconds  # the first call may wake threads
                readers[name] = partial(timing.reading, call, timing.calls_for(READING_S, seconds))
                once += max(seconds, READING_S)
            least = LEAST_ROUNDS if once < SLOW_S else 1
            times = timing.interleaved(readers, settings.rounds, timing.rotated, least=least, seconds=settings.seconds)
        finally:
            set_priority(0)
        others = machine.busy_seconds() - busy - (machine.process_seconds(os.getpid()) - own)
        foreign = max(0.0, others) / (time.perf_counter() - start)
    ratios = {name: statistics.median(timing.ratios(times[name], times["tcjit"])) for name in calls if name != "tcjit"}
    best = min(ratios, key=ratios.__getitem__) if ratios else None
    micros = {f"{name}_us": 1e6 * statistics.median(readings) for name, readings in times.items()}
    return {**micros, "best": best, "ratio": ratios[best] if best else None, "foreign": round(foreign, 3)}


def _eager(op: Operator, tensors: Sequence[torch.Tensor], settings: Settings) -> tuple[Call, float]:
    call = partial(op.reference, *tensors)
    return call, timing.reading(call)


def _compile(op: Operator, tensors: Sequence[torch.Tensor], settings: Settings) -> tuple[Call, float]:
    torch._dynamo.reset()
    reference = op.reference
    function = torch.compile(lambda *given: reference(*given), dynamic=False, fullgraph=True)
    call = partial(function, *tensors)
    with limited(settings.compile_s):
        seconds = timing.reading(call)
    return call, seconds


PEERS: dict[str, Callable[[Operator, Sequence[torch.Tensor], Settings], tuple[Call, float]]] = {"eager": _eager, "compile": _compile}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A TimeoutError for what takes longer; in the main thread only."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal(SIGALRM, stop)
    setitimer(ITIMER_REAL, seconds)
    try:
        yield
    finally:
        setitimer(ITIMER_REAL, 0)
        signal(SIGALRM, before)


# ---------------------------------------------------------------- right or wrong


def difference(op: Operator, tensors: Sequence[torch.Tensor], result: Any) -> str:
    """How the result, or the first of several, differs from the PyTorch form in float64, integers exactly; empty where none does."""
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    for number, (own, expected) in enumerate(zip(_several(result), _several(op.reference(*wide)), strict=True)):
        if own.shape != expected.shape:
            return f"the shape is {list(own.shape)}, not {list(expected.shape)}"
        if not own.is_floating_point():
            if count := int((own.long() != expected.long()).sum()):
                return f"{count} of {own.numel()} elements differ"
            continue
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        error = largest_error(own, expected)
        if error <= op.tolerance * max(scale, 1e-30):
            continue
        plain = largest_error(_several(op.reference(*tensors))[number], expected)
        if error > ALLOWED * plain:
            return f"the largest error is {error:.3g}, where the largest magnitude is {scale:.3g} and PyTorch's own error {plain:.3g}"
    return ""


def _several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def largest_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Infinite where one is no number and the other is one."""
    if not expected.numel():
        return 0.0
    apart = (result.double() - expected.double()).abs()
    apart = torch.where((result == expected) | (result.isnan() & expected.isnan()), 0.0, apart)
    return float(apart.nan_to_num(nan=float("inf")).max())


# ---------------------------------------------------------------- how it was made


def description(kernel: Kernel) -> Record:
    """The options that are not the default, what the compiler tells of the kernel, and the marks of its tree."""
    plain = Options().to_dict()
    resources = {name: value for name, value in kernel.resources.items() if name != "seconds"}
    return {
        "options": {name: value for name, value in kernel.options.to_dict().items() if value != plain[name]},
        "resources": resources,
        "plan": outline(kernel.tree),
    }


def outline(tree: str) -> list[str]:
    """From the root to each statement the marks of a schedule tree, and between them its loops.

    >>> outline('domain: "{}"\\nchild:\\n  mark: "parallel"\\n  child:\\n    schedule: "[{ S[i] -> [(i)] }]"')
    ['parallel, i']
    """
    above: list[tuple[int, str]] = []
    ends: list[str] = []
    for line in tree.splitlines():
        text = line.lstrip(" -")
        kind, _, value = text.partition(": ")
        if kind in ("mark", "schedule", "filter"):
            depth = len(line) - len(text)
            if above and above[-1][0] >= depth:
                ends.append(_way(above))
                above = [step for step in above if step[0] < depth]
            loops = [re.findall(r"-> \[\((.*?)\)\]", loop)[-1] for loop in value.split("}, {")] if kind == "schedule" else []
            named = {"mark": value.strip('"'), "schedule": " x ".join(loops), "filter": ""}
            above.append((depth, named[kind]))
    return list(dict.fromkeys([*ends, _way(above)]))


def _way(above: Sequence[tuple[int, str]]) -> str:
    return ", ".join(name for _, name in above if name)


def _floor(kernel: Kernel, ceilings: Ceilings, op: Operator) -> tuple[float, str]:
    seconds, bound = ceilings.floor(kernel.roofline, op.dtype)
    return 1e6 * seconds, bound
