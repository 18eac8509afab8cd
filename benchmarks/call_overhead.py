"""What a call costs on tiny tensors, beside an eager torch operator: ``python benchmarks/call_overhead.py``.

Three tensors of 32 floats, so that nearly all of the time is the way to the kernel and back, all checks on. The ways are measured in
turn, many rounds of short runs, and the medians of the rounds are printed: whatever else the machine does meets all of them alike.
``--limit NS`` makes the exit status say whether a call costs less than that above ``torch.add``, ``--recorded-limit NS`` whether one that
autograd records does above one of ``torch.add`` that is recorded.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import tcjit
from tcjit.runtime import timing

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import machine  # noqa: E402

TEXT = """
def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }
def add_backward(float(N) d_C) -> (d_A, d_B) { d_A(i) = d_C(i) d_B(i) = d_C(i) }
"""


def measure(ways: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Median nanoseconds of one call, by way."""
    times = timing.interleaved({name: partial(timing.reading, way, calls) for name, way in ways.items()}, rounds)
    return {name: 1e9 * statistics.median(readings) for name, readings in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=500, help="calls in one run")
    parser.add_argument("--limit", type=float, default=0.0, help="nanoseconds above torch.add that a call may cost")
    parser.add_argument("--recorded-limit", type=float, default=0.0, help="nanoseconds above torch.add that a recorded call may cost")
    options = parser.parse_args()

    tc = tcjit.define(TEXT, backward={"add": "add_backward"})
    x, y, out = torch.randn(32), torch.randn(32), torch.empty(32)
    w, cotangent = torch.randn(32, requires_grad=True), torch.randn(32)
    add, kernel = tc.add, tc.add.compile(x, y)
    for _ in range(3):  # compile, then build the launcher
        assert torch.equal(kernel(x, y), x + y) and torch.equal(add(x, y), x + y) and torch.equal(add(x, y, out=out), x + y)
        (found,) = torch.autograd.grad(add(w, y), w, cotangent)  # prepared for in the same way
        assert torch.equal(found, cotangent)
    ways: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "torch.add(x, y)": lambda: torch.add(x, y),
        "tc.add(x, y)": lambda: add(x, y),
        "torch.add(x, y, out=z)": lambda: torch.add(x, y, out=out),
        "tc.add(x, y, out=z)": lambda: add(x, y, out=out),
        "kernel(x, y)": lambda: kernel(x, y),
        "torch.add(w, y), w requires grad": lambda: torch.add(w, y),
        "tc.add(w, y), w requires grad": lambda: add(w, y),
        "torch.add(w, y) and its backward": lambda: torch.autograd.grad(torch.add(w, y), w, cotangent),
        "tc.add(w, y) and its backward": lambda: torch.autograd.grad(add(w, y), w, cotangent),
    }
    times = measure(ways, options.rounds, options.calls)
    times |= measure({"torch.ops.tcjit.add_...(x, y)": lambda: add._overload(x, y)}, max(1, options.rounds // 10), options.calls)
    empty = times.pop("nothing")
    print(f"{machine.name()}, torch {torch.__version__}, Python {sys.version.split()[0]}: ns per call, median of {options.rounds} rounds")
    for name, value in times.items():
        print(f"{value - empty:8.0f}  {name}")
    more = times["tc.add(x, y)"] - times["torch.add(x, y)"]
    into = times["tc.add(x, y, out=z)"] - times["torch.add(x, y, out=z)"]
    recorded = times["tc.add(w, y), w requires grad"] - times["torch.add(w, y), w requires grad"]
    backward = times["tc.add(w, y) and its backward"] - times["torch.add(w, y) and its backward"]
    print(f"a call costs {more:.0f} ns more than torch.add, into a given tensor {into:.0f}, recorded for gradients {recorded:.0f},")
    print(f"recorded and with its backward {backward:.0f}")
    return int((bool(options.limit) and more > options.limit) or (bool(options.recorded_limit) and recorded > options.recorded_limit))


if __name__ == "__main__":
    sys.exit(main())
