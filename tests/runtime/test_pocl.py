"""PoCL on processors that its LLVM does not know: the name it asks clang for, in structures made here and in a real device."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from support.rings.opencl import require

from tcjit.runtime import pocl

TRIPLE = b"x86_64-unknown-linux-gnu"
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
def test_the_name_after_the_triple_gets_another_text() -> None:
    made, kept = structure(b"pthread", TRIPLE, b"generic", b"generic cpu")
    assert pocl.renamed(ctypes.addressof(made), TRIPLE.decode(), "generic", "x86-64-v3")
    assert texts(made)[:4] == [b"pthread", TRIPLE, b"x86-64-v3", b"generic cpu"], "the pointer alone"
    assert made[:4] == [7, 1, (1 << 47) + 5, (1 << 64) - 1]
    assert kept[2].value == b"generic", "others may point at the old text"  # type: ignore[attr-defined]


@LINUX
def test_what_else_points_at_the_same_texts_is_not_the_device_s() -> None:
    """The memory searched is more than the structure: what lies behind it, or before the pair, must neither count nor change."""
    made, _ = structure(b"generic", TRIPLE, b"generic", b"generic", TRIPLE, b"generic")
    assert pocl.renamed(ctypes.addressof(made), TRIPLE.decode(), "generic", "x86-64")
    renamed = [b"generic", TRIPLE, b"x86-64", b"generic", TRIPLE, b"generic"]
    assert texts(made)[:6] == renamed
    assert not pocl.renamed(ctypes.addressof(made), TRIPLE.decode(), "generic", "x86-64"), "once is enough"
    assert texts(made)[:6] == renamed


@LINUX
@pytest.mark.parametrize("names", [(b"pthread",), (b"generic", b"generic"), (TRIPLE, b"generic2", b"generic"), (TRIPLE, None, b"generic")])
def test_without_the_pair_nothing_changes(names: tuple[bytes, ...]) -> None:
    made, _ = structure(*names)
    before = list(made)
    assert not pocl.renamed(ctypes.addressof(made), TRIPLE.decode(), "generic", "x86-64-v3")
    assert list(made) == before


@LINUX
def test_a_triple_in_the_last_word_searched_has_nothing_after_it() -> None:
    made, _ = structure()
    kept = ctypes.create_string_buffer(TRIPLE)
    made[len(made) - 1] = ctypes.addressof(kept)
    assert not pocl.renamed(ctypes.addressof(made), TRIPLE.decode(), "generic", "x86-64-v3")


@LINUX
def test_a_structure_where_nothing_is_mapped_is_left_alone() -> None:
    assert not pocl.renamed(64, TRIPLE.decode(), "generic", "x86-64")
    assert not pocl.renamed((1 << 64) - 8, TRIPLE.decode(), "generic", "x86-64")


@pytest.mark.parametrize(
    "version",
    ["OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3", "OpenCL 3.0 PoCL HSTR: pthread-aarch64-unknown-linux-gnu-generic"],
)
def test_devices_with_a_processor_that_clang_knows_are_not_touched(version: str) -> None:
    made, _ = structure(TRIPLE, b"generic")
    assert not pocl.name_processor(version, ctypes.addressof(made))
    assert texts(made)[1] == b"generic"


@LINUX
def test_the_version_says_what_to_look_for() -> None:
    made, _ = structure(b"pthread", TRIPLE, b"generic")
    assert pocl.name_processor("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic", ctypes.addressof(made))
    assert texts(made)[2] in (b"x86-64", b"x86-64-v3")


def test_the_level_needs_all_of_its_features() -> None:
    assert pocl.level(V3) == "x86-64-v3"
    for missing in sorted(pocl._LEVEL_3):
        assert pocl.level(V3 - {missing}) == "x86-64", missing


REAL = """
import numpy as np, pyopencl as cl
from tcjit.runtime import pocl
device = next(d for p in cl.get_platforms() if p.name.strip() == pocl.PLATFORM for d in p.get_devices())
parts = device.version.partition("-")[2].split("-")
where, name = "-".join(parts[:4]), "-".join(parts[4:])  # names as icelake-client have a dash, too
context = cl.Context([device])
queue = cl.CommandQueue(context)

def ran(number):
    program = cl.Program(context, "kernel void put(global float *a) { a[get_global_id(0)] = %d; }" % number).build()
    seen = np.zeros(16, np.float32)
    held = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, 64)
    program.put(queue, (16,), (16,), held)
    cl.enqueue_copy(queue, seen, held)
    return set(seen.tolist()) == {number}

assert pocl.renamed(device.int_ptr, where, name, "nobody"), "its name stands behind the triple in its structure"
try:
    ran(1)
except cl.RuntimeError as error:
    assert pocl.REFUSED + " 'nobody'" in str(error), error
else:
    raise SystemExit("it is not the name that clang gets")
assert pocl.renamed(device.int_ptr, where, "nobody", "x86-64") and ran(2)
"""


@pytest.mark.opencl
@pytest.mark.parametrize("devices", ["pthread", "pthread basic"], ids=["alone", "one-of-two"])
def test_a_real_device_compiles_for_the_processor_that_it_is_given(devices: str, tmp_path: os.PathLike[str]) -> None:
    require("pocl")
    own = {"POCL_DEVICES": devices, "POCL_CACHE_DIR": os.fspath(tmp_path), "XDG_CACHE_HOME": os.fspath(tmp_path)}
    done = subprocess.run([sys.executable, "-c", REAL], env={**os.environ, **own}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
