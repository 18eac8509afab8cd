"""The OpenCL runtime on hand-written kernels, in a worker process."""
from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import pytest
from support.rings.opencl import Worker, require, worker

pytestmark = pytest.mark.opencl

KERNELS = """
#define PARAMETERS __global float *Y, __global const float *X, __global float *work, double s, long n, __global int *flag
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void turn(PARAMETERS) {
  __local float t[64];
  int i = get_local_id(0), b = get_group_id(0) * 64;
  t[i] = X[b + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  work[b + i] = t[63 - i];
  if (t[i] < 0) atomic_max(flag, 2);
}
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void scale(PARAMETERS) {
  int i = get_global_id(0);
  Y[i] = work[i] * (float)s + (float)n;
}
"""
PRELUDE = f"""
import struct
import numpy as np
from tcjit.codegen.source import KernelLaunch
from tcjit.runtime import opencl
from tcjit.runtime.opencl import HostMemory, LoadedProgram

KERNELS = {KERNELS!r}

def double(value):
    return struct.unpack("<q", struct.pack("<d", value))[0]

def loaded(content=None):
    launches = [KernelLaunch(name, (2, 1, 1), 64, 256) for name in ("turn", "scale")]
    return LoadedProgram(content or opencl.build(KERNELS, "turn"), launches)

def ran(program, offset=0, least=0.0):
    x, y = (np.zeros(256, np.float32)[offset : offset + 128] for _ in range(2))
    x[:] = np.arange(128) + least
    flag = program.run([HostMemory(y.ctypes.data, y.nbytes, True), HostMemory(x.ctypes.data, x.nbytes)], [double(2.5), -3], 512)
    expected = x.reshape(2, 64)[:, ::-1].ravel() * 2.5 - 3
    return flag, bool((y == expected).all())
"""


@functools.cache
def usual(vendor: str) -> Worker:
    """A worker that builds as users do."""
    return Worker(vendor, POCL_EXTRA_BUILD_FLAGS="", POCL_WORK_GROUP_SPECIALIZATION="1")


@pytest.fixture(params=["pocl", "oclgrind"])
def asked(request: pytest.FixtureRequest) -> Any:
    require(request.param)

    def ask(code: str) -> Any:
        return usual(request.param).ask(kind="code", code=PRELUDE + code)

    return ask


def test_kernels_run_in_order_on_host_memory(asked: Any) -> None:
    """Whatever the alignment: memory that the device cannot use in place is copied."""
    assert asked("p = loaded(); answer = [ran(p, offset) for offset in (0, 1, 16, 3)]") == [[0, True]] * 4


def test_flags_are_seen_and_gone_with_the_call(asked: Any) -> None:
    assert asked("p = loaded(); answer = [ran(p), ran(p, least=-5.0), ran(p)]") == [[0, True], [2, True], [0, True]]


def test_a_binary_travels(asked: Any) -> None:
    answer = asked("content = opencl.build(KERNELS, 'turn'); answer = [content[:7].decode(), ran(loaded(content))]")
    assert answer == ["binary\n", [0, True]]
    assert asked("answer = ran(loaded(b'text\\n' + KERNELS.encode()))") == [0, True]


def test_several_threads(asked: Any) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
program = loaded()
with ThreadPoolExecutor(6) as pool:
    answer = set(pool.map(lambda n: ran(program, offset=n % 5), range(60))) == {(0, True)}
"""
    assert asked(code) is True


def test_nothing_to_run(asked: Any) -> None:
    assert asked("answer = LoadedProgram(b'', []).run([HostMemory(0, 0, True)], [], 0)") == 0


def test_a_refusal_has_the_log_and_keeps_the_source(asked: Any) -> None:
    code = """
from tcjit.errors import CompileError
import pathlib, re, shutil
try:
    opencl.build(KERNELS.replace("t[63 - i]", "nobody"), "turn")
except CompileError as error:
    kept = pathlib.Path(re.search(r"kept in (\\S+)", error.hint)[1])
    answer = ["refused the code generated for turn" in error.what, "nobody" in error.what.partition("\\n")[2], "nobody" in kept.read_text()]
    shutil.rmtree(kept.parent)
"""
    assert asked(code) == [True, True, True]


def test_damaged_programs_and_wrong_launches_are_launch_errors(asked: Any) -> None:
    code = """
from tcjit.errors import LaunchError
answer = []
for content, symbol in ((b"binary\\nnothing of the kind", "turn"), (opencl.build(KERNELS, "turn"), "turned")):
    try:
        LoadedProgram(content, [KernelLaunch(symbol, (1, 1, 1), 64, 0)])
    except LaunchError as error:
        answer.append("tcjit.cache" in error.hint)
try:
    LoadedProgram(opencl.build(KERNELS, "turn"), [KernelLaunch("turn", (1, 1, 1), 32, 0)]).run([HostMemory(0, 0)] * 2, [0, 0], 0)
except LaunchError as error:
    answer.append("failed on turn" in error.what)
"""
    assert asked(code) == [True, True, True]


def test_a_device_says_what_the_mapping_must_know(asked: Any) -> None:
    code = """
found, device = opencl.choose().device, opencl.describe()
answer = [device.name, device.warp, device.max_threads == found.max_work_group_size, device.shared_bytes == found.local_mem_size,
          device.processors == found.max_compute_units, sorted(device.capabilities), opencl.identity() == opencl.identity()]
"""
    atomic = ["atomic32", "atomic64", "atomic_float_sums"]
    assert asked(code) == ["opencl", 1, True, True, True, atomic, True]


def test_only_simulators_build_without_optimisation(asked: Any) -> None:
    code = """
import dataclasses, types
found = opencl.choose()
other = dataclasses.replace(found, platform=types.SimpleNamespace(name="NVIDIA CUDA"))
answer = ["-cl-opt-disable" in opencl._options(f) for f in (found, other)]
"""
    assert asked(code) == [True, False]


def test_choosing() -> None:
    require("pocl")
    require("oclgrind")
    code = """
from tcjit.errors import CompileError
names = [str(found) for found in opencl.devices()]
answer = [str(opencl.choose(name)) for name in ("oclgrind", "POCL", "portable computing")]
answer.append("Oclgrind" in str(opencl.choose("")))
answer += [str(opencl.choose(str(number))) == name for number, name in enumerate(names)]
for asked in ("7", "abacus"):
    try:
        opencl.choose(asked)
    except CompileError as error:
        answer.append(all(name in error.hint for name in names))
"""
    simulator, *others, default, _, _, missing, unknown = worker().ask(kind="code", code=PRELUDE + code)
    assert "Oclgrind" in simulator and all("Portable Computing Language" in other for other in others)
    assert default is False and missing and unknown


def test_a_forked_child_is_refused() -> None:
    require("pocl")
    code = """
import os, warnings
warnings.simplefilter("ignore")
from tcjit.errors import LaunchError
program = loaded()
assert ran(program) == (0, True)
read, write = os.pipe()
if os.fork() == 0:
    try:
        ran(program)
    except LaunchError as error:
        os.write(write, str("spawn" in error.hint).encode())
    os._exit(0)
answer = [os.read(read, 10).decode(), ran(program)]
"""
    assert worker().ask(kind="code", code=PRELUDE + code) == ["True", [0, True]]


def test_a_crash_costs_one_answer() -> None:
    broken = Worker()
    assert broken.ask(kind="code", code="import os; os.abort()").startswith("crash: the worker ended with SIGABRT")
    assert broken.ask(kind="code", code="answer = 1") == 1 and broken.started == 2
    broken.close()


@pytest.mark.host
@pytest.mark.parametrize("module, says", [("", "pip install 'tcjit[opencl]'"), ("raise ImportError('libOpenCL.so.1')", "libOpenCL.so.1")])
def test_without_pyopencl(module: str, says: str, tmp_path: Any) -> None:
    (tmp_path / "pyopencl.py").write_text(module or "raise ModuleNotFoundError('No module named pyopencl')")
    code = """
import torch, tcjit
try:
    tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(i) }", target="opencl").f(torch.ones(2))
except tcjit.CompileError as error:
    print(error)
"""
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert says in done.stdout and "no OpenCL without pyopencl" in done.stdout, done.stderr
