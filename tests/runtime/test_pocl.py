"""PoCL on processors that its LLVM does not know: the name it asks clang for, in structures made here and in a real device."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from support_opencl import require

from tcjit.runtime import pocl

V3 = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave", "sse2"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def structure(*texts: bytes | None) -> tuple[ctypes.Array[ctypes.c_void_p], Sequence[object]]:
    """Words as a device has them: numbers, addresses of nothing, and pointers to these texts; and what must stay alive."""
    kept = [ctypes.create_string_buffer(text) if text is not None else None for text in texts]
    words = [7, 1, (1 << 47) + 5, (1 << 64) - 1] + [ctypes.addressof(text) if text is not None else 0 for text in kept]
    made = (ctypes.c_void_p * (pocl.SEARCHED // ctypes.sizeof(ctypes.c_void_p)))(*words)
    return made, kept


def texts(made: ctypes.Array[ctypes.c_void_p]) -> list[bytes | None]:
    return [ctypes.c_char_p(word).value if word else None for word in made[4:]]


@LINUX
def test_one_pointer_to_the_name_gets_another_text() -> None:
    made, kept = structure(b"pthread", None, b"generic", b"generic cpu")
    assert pocl.renamed(ctypes.addressof(made), "generic", "x86-64-v3")
    assert texts(made)[:4] == [b"pthread", None, b"x86-64-v3", b"generic cpu"], "the pointer alone"
    assert made[:4] == [7, 1, (1 << 47) + 5, (1 << 64) - 1]
    assert kept[2].value == b"generic", "others may point at the old text"  # type: ignore[attr-defined]


@LINUX
@pytest.mark.parametrize("names", [(b"pthread",), (b"generic", b"generic"), (b"generic2", b"gen", b"")])
def test_no_pointer_or_two_change_nothing(names: tuple[bytes, ...]) -> None:
    made, _ = structure(*names)
    before = list(made)
    assert not pocl.renamed(ctypes.addressof(made), "generic", "x86-64-v3")
    assert list(made) == before


@LINUX
def test_a_structure_where_nothing_is_mapped_is_left_alone() -> None:
    assert not pocl.renamed(64, "generic", "x86-64")
    assert not pocl.renamed((1 << 64) - 8, "generic", "x86-64")


@pytest.mark.parametrize(
    "version",
    ["OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3", "OpenCL 3.0 PoCL HSTR: pthread-aarch64-unknown-linux-gnu-generic"],
)
def test_devices_with_a_processor_that_clang_knows_are_not_touched(version: str) -> None:
    made, _ = structure(b"generic")
    assert not pocl.name_processor(version, ctypes.addressof(made))
    assert texts(made)[0] == b"generic"


def test_the_level_needs_all_of_its_features() -> None:
    assert pocl.level(V3) == "x86-64-v3"
    for missing in sorted(pocl._LEVEL_3):
        assert pocl.level(V3 - {missing}) == "x86-64", missing


REAL = """
import numpy as np, pyopencl as cl
from tcjit.runtime import pocl
device = next(d for p in cl.get_platforms() if p.name.strip() == pocl.PLATFORM for d in p.get_devices())
name = device.version.rpartition("-")[2]
context = cl.Context([device])
queue = cl.CommandQueue(context)

def ran(number):
    program = cl.Program(context, "kernel void put(global float *a) { a[get_global_id(0)] = %d; }" % number).build()
    seen = np.zeros(16, np.float32)
    held = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, 64)
    program.put(queue, (16,), (16,), held)
    cl.enqueue_copy(queue, seen, held)
    return set(seen.tolist()) == {number}

assert pocl.renamed(device.int_ptr, name, "nobody"), "its name stands in its structure, once"
try:
    ran(1)
except cl.RuntimeError as error:
    assert pocl.REFUSED + " 'nobody'" in str(error), error
else:
    raise SystemExit("it is not the name that clang gets")
assert pocl.renamed(device.int_ptr, "nobody", "x86-64") and ran(2)
"""


@pytest.mark.opencl
def test_a_real_device_compiles_for_the_processor_that_it_is_given(tmp_path: os.PathLike[str]) -> None:
    require("pocl")
    own = {"POCL_CACHE_DIR": os.fspath(tmp_path), "XDG_CACHE_HOME": os.fspath(tmp_path)}
    done = subprocess.run([sys.executable, "-c", REAL], env={**os.environ, **own}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
