"""A CUDA driver for machines without one, as far as loading and launching go: ``cuda_stub.c``, built and run in child processes.

``run`` executes a test's code in a child whose ``libcuda.so.1`` is the stub, after START; ``stub`` is an object of ``Stub`` in there.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import PYTHONPATH
from tcjit.errors import CompileError
from tcjit.runtime import nvrtc

HERE = Path(__file__).parent
PACKAGES = ("cuda-bindings", "pycuda")
ARCHITECTURES = ("sm_90", "sm_80")  # of the stub's devices
TEXT = """
extern "C" __global__ void first(float *y, const float *x, char *w, long long n, double s, int *flag) { y[n] = x[n] * s; *flag = *w; }
extern "C" __global__ void second(float *y, const float *x, char *w, long long n, double s, int *flag) { y[n] = x[0]; }
"""
# what the children start with; `h100` and `a100` are the kernels of TEXT for the stub's two devices
START = """
import sys, threading
from support.rings.cuda_stub import Stub
from tcjit.codegen.source import KernelLaunch
from tcjit.errors import DivisionError, LaunchError
from tcjit.runtime import cuda
stub = Stub()
h100, a100 = (open(path, "rb").read() for path in sys.argv[1:])
first, second = KernelLaunch("first", (7, 2, 1), 96, 1000), KernelLaunch("second", (1, 1, 1), 32, 0)
def module(*launches, cubin=h100, fail=lambda site: DivisionError(f"site {site}")):
    return cuda.Module(cubin, launches or (first,), 2, 2, fail)
def raises(kind, work):
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
ARGUMENTS = [0x1000, 0x2000], [-5, 1 << 62], 0x3000
"""
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)),
)


# ---------------------------------------------------------------- in the test


@functools.lru_cache(maxsize=1)
def folder() -> str:
    """A folder with the stub in it, built once a process."""
    place = Path(tempfile.mkdtemp(prefix="tcjit-stub-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    extra = place / "extra.c"  # pycuda is linked to functions that nobody calls here
    extra.write_text("".join(f"__attribute__((weak)) int {name}(void) {{ return 801; }}\n" for name in _linked_by_pycuda()))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", str(HERE / "cuda_stub.c"), str(extra)]
    subprocess.run([*command, "-o", str(place / "libcuda.so.1"), "-ldl", "-lpthread"], check=True)
    return str(place)


@functools.lru_cache(maxsize=1)
def cubins() -> tuple[str, ...]:
    """The files of TEXT compiled for each device; skips the test where there is no NVRTC."""
    try:
        binaries = [nvrtc.compile(TEXT, ["first", "second"], architecture) for architecture in ARCHITECTURES]
    except CompileError as error:
        pytest.skip(error.what)
    paths = [Path(folder(), architecture) for architecture in ARCHITECTURES]
    for path, binary in zip(paths, binaries):
        path.write_bytes(binary.cubin)
    return tuple(map(str, paths))


def _linked_by_pycuda() -> list[str]:
    spec = importlib.util.find_spec("pycuda")
    files = [file for place in spec.submodule_search_locations or () for file in Path(place).glob("_driver*.so")] if spec else []
    if not files:
        return []
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(files[0])], capture_output=True, text=True, check=True).stdout
    return sorted({words[-1] for words in map(str.split, listed.splitlines()) if words and words[-1].startswith("cu")})


def require(package: str) -> None:
    """Skip where the package that calls the driver, or what builds the stub, is missing."""
    name = {"cuda-bindings": "cuda.bindings", "pycuda": "pycuda"}[package]
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        pytest.skip(f"{package} is not installed")
    if shutil.which("gcc") is None or shutil.which("nm") is None:
        pytest.skip("no gcc and nm to build the stub with")


def run(package: str, code: str, **environment: str) -> str:
    """What the code prints in a child process with the stub, calling the driver through ``package``."""
    require(package)
    setting = {"LD_LIBRARY_PATH": folder(), "TCJIT_CUDA_DRIVER": package, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-X", "faulthandler", "-c", START + code, *cubins()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **setting, **environment})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not done.stderr, done.stderr  # pycuda complains there about contexts
    return done.stdout


# ---------------------------------------------------------------- in the child


class Stub:
    """The stub, as the child steers it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.stub_log.restype = ctypes.c_char_p
        self._kept: Any = None

    def log(self) -> list[str]:
        """What was called since the last look."""
        lines = self.cuda.stub_log().decode().splitlines()
        self.cuda.stub_clear()
        return lines

    def quiet(self) -> None:
        self.cuda.stub_quiet(1)

    def fail(self, function: str, status: int) -> None:
        """The next call of a function, by its exported name, answers with a status."""
        self.cuda.stub_fail(function.encode(), status)

    def on_launch(self, react: Callable[[str, Callable[[int], int]], int | None]) -> None:
        """Call ``react(symbol, word)`` at every launch; ``word(n)`` is the n-th parameter as a signed number."""

        def launched(symbol: bytes, grid: Any, block: Any, shared: int, stream: int, params: Any) -> int:
            return react(symbol.decode(), lambda number: int(params[number][0])) or 0

        self._kept = _LAUNCH(launched)
        self.cuda.stub_on_launch(self._kept)

    def done(self, function: str, *arguments: Any) -> None:
        status = getattr(self.cuda, function)(*arguments)
        assert status == 0, f"{function}: {status}"

    def use(self, device: int) -> None:
        """Make a device current in this thread, as torch does."""
        context = ctypes.c_void_p()
        self.done("cuInit", 0)
        self.done("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.done("cuCtxSetCurrent", context)

    def current(self) -> int:
        """The device whose context is current, -1 for none."""
        device = ctypes.c_int()
        return -1 if self.cuda.cuCtxGetDevice(ctypes.byref(device)) else device.value

    def stream(self, device: int) -> int:
        """A side stream of a device."""
        self.use(device)
        made = ctypes.c_void_p()
        self.done("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def begin(self, stream: int) -> None:
        self.done("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)

    def end(self, stream: int) -> int:
        """Ends a capture; 0 where nothing invalidated it."""
        return int(self.cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(ctypes.c_void_p())))
