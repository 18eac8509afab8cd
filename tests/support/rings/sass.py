"""Machine code of a cubin as instructions, for the tests; they are skipped where there is no nvdisasm."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from gpu_code import sass as machine_code  # noqa: E402 - the path above comes first
from gpu_code.sass import Instruction, bodies, count, histogram, innermost, loops  # noqa: E402

sys.path.remove(str(BENCHMARKS))
__all__ = ["Instruction", "bodies", "count", "histogram", "innermost", "loops", "machine_code", "sass"]


def sass(cubin: bytes) -> dict[str, list[Instruction]]:
    """The instructions of every kernel, in order."""
    if machine_code.disassembler() is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return machine_code.sass(cubin)
