"""What runs and times calls: a GPU by CUDA events, or, for a dry run of the benchmark itself, the host by its clock."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from tcjit.runtime import timing

Call = Callable[[], object]
FLUSH_BYTES = 256 << 20
_WARM_MS = 20.0


class Device(Protocol):
    """Where the measuring is done."""

    place: str

    def facts(self) -> dict[str, Any]:
        """The machine, and the versions of what runs on it."""

    def synchronize(self) -> None: ...

    def warm_up(self) -> None:
        """Keep the device busy until its clocks are up."""

    def interleaved(self, calls: Mapping[str, Call], samples: int, pad: int = 1) -> dict[str, list[float]]:
        """Microseconds of every sample of every call: the calls in turn, their order rotated, caches flushed ``pad`` times before each."""

    def captured(self, call: Call) -> Call:
        """A call that replays as a graph what ``call`` puts on the device; NotImplementedError where there are no graphs."""

    def poison(self, outputs: Sequence[torch.Tensor]) -> None:
        """Let memory for results like these hold NaN when it is next allocated."""


def host_us(call: Call, device: Device) -> float:
    """Microseconds that the host spends on a call, without waiting for the device; fewer calls of one that takes long."""
    device.synchronize()
    calls = max(2, min(20, int(0.2 / (timing.reading(call, wait=device.synchronize) + 1e-9))))
    seconds = timing.reading(call, calls)
    device.synchronize()
    return seconds * 1e6


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Products of float32 through tensor cores with ten bits of mantissa, or not."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def slug(name: str) -> str:
    """A name for files.

    >>> slug("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def versions() -> dict[str, str]:
    """Of Python, torch, what torch brings, and tcjit."""
    import tcjit

    found = {"tcjit": tcjit.__version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    if importlib.util.find_spec("triton") is not None:
        found["triton"] = importlib.metadata.version("triton")
    return found


class Cuda:
    """The current GPU. Samples lie between two events each; before each, a write larger than the L2 cache empties it and lets the host
    run ahead, so that no gap between launches is timed."""

    place = "cuda"

    def __init__(self) -> None:
        self._properties = torch.cuda.get_device_properties(0)
        cache = getattr(self._properties, "L2_cache_size", 0)
        self._waste = torch.empty(max(FLUSH_BYTES, 4 * cache), dtype=torch.int8, device="cuda")

    def facts(self) -> dict[str, Any]:
        p = self._properties
        return {
            "name": slug(p.name), "device": p.name, "arch": f"sm_{p.major}{p.minor}", "memory_gb": round(p.total_memory / 1e9),
            "processors": p.multi_processor_count, "l2_mb": round(getattr(p, "L2_cache_size", 0) / 1e6), "versions": versions(),
        }  # fmt: skip

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def warm_up(self) -> None:
        until = time.perf_counter() + _WARM_MS / 1e3
        while time.perf_counter() < until:
            self._waste.zero_()
            torch.cuda.synchronize()

    def interleaved(self, calls: Mapping[str, Call], samples: int, pad: int = 1) -> dict[str, list[float]]:
        names = list(calls)
        marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
        for sample in range(samples):
            for name in timing.rotated(names, sample):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                for _ in range(pad):
                    self._waste.zero_()
                start.record()
                calls[name]()
                end.record()
                marks[name].append((start, end))
        torch.cuda.synchronize()
        return {name: [start.elapsed_time(end) * 1e3 for start, end in pairs] for name, pairs in marks.items()}

    def captured(self, call: Call) -> Call:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazily made state must not be made inside the graph
            call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()  # the graph's memory must not be given to others
        replay: Call = _Replay(graph, kept)
        return replay

    def poison(self, outputs: Sequence[torch.Tensor]) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        blocks = [torch.full(output.shape, float("nan"), dtype=output.dtype, device="cuda") for output in outputs]
        del blocks


class _Replay:
    def __init__(self, graph: torch.cuda.CUDAGraph, kept: object) -> None:
        self._graph, self._kept = graph, kept

    def __call__(self) -> None:
        self._graph.replay()


class Host:
    """This machine's CPU, which has nothing to flush and no graphs."""

    place = "cpu"

    def facts(self) -> dict[str, Any]:
        return {"name": "dry-run", "device": f"dry run on {platform.machine()}", "versions": versions()}

    def synchronize(self) -> None:
        return

    def warm_up(self) -> None:
        return

    def interleaved(self, calls: Mapping[str, Call], samples: int, pad: int = 1) -> dict[str, list[float]]:
        readers = {name: partial(timing.reading, call) for name, call in calls.items()}
        return {name: [1e6 * one for one in times] for name, times in timing.interleaved(readers, samples, timing.rotated).items()}

    def captured(self, call: Call) -> Call:
        raise NotImplementedError("no graphs on a CPU")

    def poison(self, outputs: Sequence[torch.Tensor]) -> None:
        return


def missing() -> str:
    """Why no GPU can be measured; empty where one can."""
    if torch.cuda.is_available():
        return ""
    return f"no CUDA device: torch {torch.__version__} sees none"
