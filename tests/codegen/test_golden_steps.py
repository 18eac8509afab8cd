"""What every step makes of four programs, for a CPU and for a GPU, kept beside the tests: a change of one pass shows where it begins.

The sizes are whole tiles, so that a tree is short; trees with partial tiles stand in ``test_gpu_passes`` and ``test_golden``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from support.mapping import AVX512, CONVOLUTION, LAYER, MATMUL, SMALL, SOFTMAX, program

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import CUDA, OPENCL, C
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.mapping.machine import OPENCL as OPENCL_DEVICE
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu, map_program
from tcjit.step import Steps

Golden = Callable[[str], None]
PROGRAMS: Mapping[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "matmul": (MATMUL, {"A": (64, 64), "B": (64, 64)}),
    "layer": (LAYER, {"X": (64, 32), "W": (64, 32), "b": (64,)}),
    "softmax": (SOFTMAX, {"I": (64, 128)}),
    "convolution": (CONVOLUTION, {"I": (1, 16, 16, 16), "W1": (32, 16, 3, 3)}),
}


def sections(steps: Steps, source: str) -> str:
    """The text of each step below its name, then that of the kernel."""
    texts = {**steps.artifacts, "kernel": source}
    return "".join(f"==== {name}\n{text.rstrip()}\n\n" for name, text in texts.items())


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_for_a_cpu(name: str, golden: Golden) -> None:
    steps = Steps(name)
    mapped = map_program(program(*PROGRAMS[name]), Options(), AVX512, steps=steps)
    golden(sections(steps, emit_c(mapped, C, AVX512, checked=True).text))


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_for_cuda(name: str, golden: Golden) -> None:
    steps = Steps(name)
    mapped = map_gpu(program(*PROGRAMS[name]), Options(), SMALL, steps=steps)
    golden(sections(steps, emit_gpu(mapped, CUDA, SMALL, checked=True).text))


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_for_opencl(name: str, golden: Golden) -> None:
    mapped = map_gpu(program(*PROGRAMS[name]), Options(), OPENCL_DEVICE)
    golden(emit_gpu(mapped, OPENCL, OPENCL_DEVICE, checked=True).text)
