"""The harness around oclgrind finds what is wrong in hand-written kernels, and nothing in right ones."""
from __future__ import annotations

from typing import Any

import pytest
from support.rings.oclgrind import Finding, Inspector, parse
from support.rings.opencl import require

pytestmark = pytest.mark.opencl

CODE = """
import numpy as np
from tcjit.codegen.source import KernelLaunch
from tcjit.runtime import opencl
from tcjit.runtime.opencl import HostMemory, LoadedProgram
x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
program = LoadedProgram(opencl.build({text!r}, "turn"), [KernelLaunch("turn", (2, 1, 1), 64, 256)])
program.run([HostMemory(y.ctypes.data, y.nbytes, True), HostMemory(x.ctypes.data, x.nbytes)], [], 512)
answer = bool((y == x.reshape(2, 64)[:, ::-1].ravel()).all())
"""
KERNEL = """__kernel void turn(__global float *Y, __global const float *X, __global float *work, __global int *flag) {
  __local float t[64];
  int i = get_local_id(0), b = get_group_id(0) * 64;
  t[i] = X[b + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  Y[b + i] = t[63 - i];
}
"""


@pytest.fixture(scope="module")
def inspector() -> Any:
    require("oclgrind")
    made = Inspector()
    yield made
    made.close()


def run(inspector: Inspector, text: str) -> tuple[Any, list[Finding]]:
    return inspector.ask(kind="code", code=CODE.format(text=text))


def test_a_right_kernel_is_clean(inspector: Inspector) -> None:
    assert run(inspector, KERNEL) == (True, [])


@pytest.mark.parametrize(
    "old, new, what, lines",
    [
        ("  barrier(CLK_LOCAL_MEM_FENCE);\n", "\n", "Read-write data race at local memory address", (4, 6)),
        ("Y[b + i] =", "Y[b] =", "Write-write data race at global memory address", (6, 6)),
        ("X[b + i]", "X[b + i + 1]", "Invalid read of size 4 at global memory address", (4,)),
        ("Y[b + i] =", "Y[b + i + 64] =", "Invalid write of size 4 at global memory address", (6,)),
        ("t[63 - i]", "t[64 - i]", "Invalid read of size 4 at local memory address", (6,)),
        ("t[63 - i]", "work[b + i]", "Uninitialized value written to global memory address", (6,)),
        ("  barrier(CLK_LOCAL_MEM_FENCE);", "  if (i < 32) barrier(CLK_LOCAL_MEM_FENCE);", "Work-group divergence detected (barrier)", ()),
    ],
    ids=["barrier", "same place", "read", "write", "local", "uninitialised", "divergence"],
)
def test_what_is_wrong_is_found(inspector: Inspector, old: str, new: str, what: str, lines: tuple[int, ...]) -> None:
    assert KERNEL.count(old) == 1
    _, found = run(inspector, KERNEL.replace(old, new))
    assert any((f.what, f.kernel) == (what, "turn") and (not lines or f.lines == lines) and f.times > 0 for f in found), found
    assert run(inspector, KERNEL) == (True, []), "the next program starts afresh"


def test_findings_of_programs_after_one_another(inspector: Inspector) -> None:
    """Each with findings ends its process; the log of the next one is read from its start, however short."""
    wide = KERNEL.replace("Y[b + i] =", "Y[b + i + 64] =")
    narrow = KERNEL.replace("X[b + i]", "X[b + i + (i == 63)]")
    for text in (wide, narrow, narrow):
        assert run(inspector, text)[1]


def test_values_that_all_threads_write_alike_race(inspector: Inspector) -> None:
    _, found = run(inspector, KERNEL.replace("Y[b + i] =", "Y[b] = 1.0f; //"))
    assert any(f.what == "Write-write data race at global memory address" for f in found)


def test_reading_a_log() -> None:
    log = """
Read-write data race at local memory address 0x1000000000000
\tKernel: f
\t
\tFirst entity:  Global(0,0,0) Local(0,0,0) Group(0,0,0)
\t  %7 = load float
\tAt line 8 (column 29) of input.cl:
\t  (source not available)
\t
\tSecond entity: Global(1,0,0) Local(1,0,0) Group(0,0,0)
\tAt line 5 (column 8) of input.cl:
\t  t[i] = x;

Read-write data race at local memory address 0x1000000000004
\tKernel: f
\t
\tAt line 5 (column 8) of input.cl:
\tAt line 8 (column 29) of input.cl:

Invalid read of size 4 at global memory address 0x10
\tKernel: g
"""
    assert parse(log) == [
        Finding("Read-write data race at local memory address", "f", (5, 8), 2),
        Finding("Invalid read of size 4 at global memory address", "g", (), 1),
    ]
    assert parse("") == []
