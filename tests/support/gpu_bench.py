"""The GPU benchmark's package, which lies beside the tests' path, and an operator for it."""
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from gpu import ceilings, contenders, device, figures, main, measure, report, run, suites  # noqa: E402 - the path above comes first
from gpu.case import Case, Entry, Input, error, reference, results  # noqa: E402

sys.path.remove(str(BENCHMARKS))
__all__ = [
    "BENCHMARKS", "CEILINGS", "Case", "Entry", "Input", "ROOT", "ceilings", "contenders", "device", "entry", "error", "figures", "main",
    "measure", "reference", "report", "results", "run", "suites",
]  # fmt: skip

CEILINGS = {"copy_gbs": 4000.0, "ffma_tflops": 60.0, "fp32_tflops": 50.0, "bf16_tflops": 700.0, "launch_us": 3.5}


def entry(name: str = "twice", suite: str = "tc", extent: int = 1000) -> Entry:
    def make(N: int) -> Case:
        source = "def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }"
        return Case((Input("X", (N,)),), ("Y",), source, "twice", lambda X: 2 * X, float(N))

    return Entry(name, suite, make, {"N": extent}, {"N": 5})
