"""Runs generated CUDA text on the host: one fiber per thread, every access to memory watched (see cuda_host.cpp).

``Host(text).run(launches, arrays, numbers, workspace_bytes)`` compiles the text as C++ and runs its launches under several orders of
threads and blocks, from the same arguments; the results must be the same to the last bit, but where threads add floats atomically. Memory
that holds no value has a NaN in it in the one run and a number in the other. A ``HostError`` says what went wrong, in which kernel, block,
thread and line: divergence at a barrier or a shuffle, an access that is out of bounds, misaligned, or of memory that nothing has written, a
write to an input, a race within a block or between blocks, data used while a cp.async still brings it, more shared memory or threads than
the launch says.

What it cannot see: indices that leave one part of the workspace, or of dynamic shared memory, for another part; the rounding of a
device's own mathematics and tensor cores; speed, bank conflicts and coalescing; and whatever a device's compiler does to the text.

``support.rings.cuda_target`` makes a target of it, for whole programs.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.rings.cuda_text import UnknownPTX, dynamic, kernels, rewritten
from tcjit.codegen import prelude
from tcjit.codegen.dialect import C
from tcjit.codegen.source import KernelLaunch

Array = np.ndarray[Any, Any]
HOME = Path(__file__).parent
COMPILER = shutil.which("g++") if sys.platform == "linux" else None
FORWARD, BACKWARD = 0, 1  # any other order is the seed of a random one
ORDERS = (FORWARD, BACKWARD)
# what memory holds before anything is written: NaN in most types, then a finite number, so that one of them shows in any result
POISON = (0x7FF5A5A57FF5A5A5, 0x4B3C2D1E4B3C2D1E)
_FLAGS = "-std=c++17 -O1 -g1 -w -pipe -fPIC -shared -fwrapv -fno-strict-aliasing -ffp-contract=off -fno-gnu-unique -nodefaultlibs".split()
_FLAGS += ["-fsanitize=thread,bounds,alignment", "--param", "tsan-instrument-func-entry-exit=0", "--param", "tsan-distinguish-volatile=1"]
# functions of CUDA that C lacks -> number of arguments
_EXTRA = {
    **dict.fromkeys("rsqrt rcbrt sinpi cospi erfcx erfinv erfcinv normcdf normcdfinv cyl_bessel_i0 cyl_bessel_i1".split(), 1),
    **{"rhypot": 2, "norm3d": 3, "rnorm3d": 3, "norm4d": 4, "rnorm4d": 4},
}
_lock = threading.Lock()  # the runtime runs one kernel at a time


class HostError(AssertionError):
    """What a kernel did that no kernel may do."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("element", ctypes.c_size_t),
        ("constant", ctypes.c_uint32),
        ("align", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
    ]


class _Given:
    """One array as the runtime gets it: the bytes from its first element to its last, and which of them hold values."""

    def __init__(self, name: str, array: Array, *, unset: bool, constant: bool, align: int) -> None:
        self.name, self.array, self.constant, self.align = name, array, constant, align
        item = array.itemsize
        cell = min(8, item)
        span = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides)) + item if array.size else 0
        self.span = span
        self.memory = np.zeros(max(span, 1), np.uint8)
        self.mask = np.zeros(max(span // cell, 1), np.uint8)
        if array.size:
            once = array[tuple(slice(0, None if stride else 1) for stride in array.strides)]  # an expanded dimension may be a long one
            np.ndarray(once.shape, once.dtype, self.memory.data, strides=once.strides)[...] = once
            if not unset:
                marks = [stride // cell for stride in once.strides]
                np.ndarray(once.shape, np.uint8, self.mask.data, strides=marks)[...] = 1
        self.result = self.memory

    def tensor(self) -> _Tensor:
        self.result = self.memory.copy()
        return _Tensor(
            self.name.encode(),
            self.result.ctypes.data,
            self.mask.ctypes.data,
            self.span,
            self.array.itemsize,
            int(self.constant),
            self.align,
        )

    def take(self, memory: Array) -> None:
        """Write what a run left into the caller's array."""
        if self.array.size and not self.constant:
            self.array[...] = np.ndarray(self.array.shape, self.array.dtype, memory.data, strides=self.array.strides)


class Host:
    """The kernels of one text, compiled for the host."""

    def __init__(self, text: str, arch: int = 900) -> None:
        self.text = text
        self.lines = text.splitlines()
        self.kernels = kernels(text)
        self.path = _compiled(text, arch)
        self.library = ctypes.CDLL(str(self.path))
        bounds = (ctypes.c_uint64 * 2)()
        self.library.tch_image(bounds)
        self.image = tuple(bounds)

    def run(
        self,
        launches: Sequence[KernelLaunch],
        arrays: Sequence[Array],
        numbers: Sequence[int | float] = (),
        workspace_bytes: int = 0,
        *,
        unset: Iterable[int] = (),
        orders: Sequence[int] = ORDERS,
        align: int = 16,
    ) -> int:
        """Run the launches and return the flag; ``arrays`` are changed in place.

        ``arrays`` are the returned tensors, then the tensor parameters, of any strides that are not negative; those in ``unset`` hold no
        values before. ``align`` is what the addresses of contiguous tensors are multiples of, and of no more; other tensors are aligned
        to their elements.
        """
        names = self.kernels[launches[0].symbol][1]
        constant = [kind == 2 for kind, _ in self._kinds(launches[0].symbol)]
        holes = set(unset)
        workspace, flag = np.zeros(workspace_bytes, np.uint8), np.zeros(1, np.int32)
        whole = [*arrays, workspace, flag]
        places = [*range(len(arrays) + 1), len(names) - 1]
        given = [
            _Given(
                names[place],
                array,
                unset=number in holes or array is workspace,
                constant=constant[place],
                align=256 if array is workspace else align if array.flags.c_contiguous else array.itemsize,
            )
            for number, (place, array) in enumerate(zip(places, whole))
        ]
        with _lock:
            kept: list[Array] = []
            for turn, order in enumerate(orders):
                results = self._once(launches, given, numbers, order, POISON[turn % len(POISON)])
                for one, now, before in zip(given, results, kept):
                    if one.array is flag:  # of several sites that fail, any may stand there
                        now, before = now.any(keepdims=True), before.any(keepdims=True)
                    if not one.constant and one.array is not workspace:
                        self._same(one, before, now, orders[0], order)
                kept = kept or results
        for one, memory in zip(given, kept):
            one.take(memory)
        return int(flag[0])

    def _once(
        self, launches: Sequence[KernelLaunch], given: list[_Given], numbers: Sequence[int | float], order: int, poison: int
    ) -> list[Array]:
        tensors = (_Tensor * len(given))(*(one.tensor() for one in given))
        runtime = _runtime()
        runtime.tch_open(tensors, len(given), poison)
        try:
            for launch in launches:
                self._launch(launch, [tensor.address for tensor in tensors], numbers, order)
        finally:
            runtime.tch_close(tensors, len(given))
        return [one.result for one in given]

    def _launch(self, launch: KernelLaunch, addresses: list[int], numbers: Sequence[int | float], order: int) -> None:
        bound = self.kernels[launch.symbol][0]
        if not 0 < launch.threads <= (bound or 1024):
            raise HostError(f"{launch.symbol} is launched with {launch.threads} threads, its bound is {bound or 1024}")
        values = [*addresses[:-1], *numbers, addresses[-1]]
        kinds = self._kinds(launch.symbol)
        if len(values) != len(kinds):
            raise HostError(f"{launch.symbol} has {len(kinds)} parameters, the launch passes {len(values)}")
        boxes = [_boxed(value, kind, launch.symbol) for value, kind in zip(values, kinds)]
        arguments = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        entry = getattr(self.library, f"tch_entry_{launch.symbol}")
        grid = (ctypes.c_uint32 * 3)(*launch.grid)
        limits = [ctypes.c_uint64(number) for number in (launch.shared_bytes, order, *self.image)]
        if _runtime().tch_launch(entry, arguments, grid, launch.threads, *limits):
            raise HostError(f"{launch.symbol}, {self._report()}")

    def _report(self) -> str:
        """What the runtime found, with the lines of the text."""
        at, other, line = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint32()
        message = _runtime().tch_message(ctypes.byref(at), ctypes.byref(other), ctypes.byref(line)).decode()
        found = [line.value] if line.value else [self._line(place.value) for place in (at, other) if place.value]
        shown = [f"\n  line {n}: {self.lines[n - 1].strip()}" for n in found if 0 < n <= len(self.lines)]
        return message + "".join(shown)

    def _line(self, place: int) -> int:
        """The line of the text of a return address in the library; in inlined helpers, the line of the kernel."""
        tool = shutil.which("addr2line")
        if not tool:
            return 0
        words = subprocess.run([tool, "-i", "-e", str(self.path), hex(place - 1)], capture_output=True, text=True).stdout
        lines = [int(number) for number in re.findall(rf"{self.path.stem}\.cu:(\d+)", words)]
        return next((line for line in reversed(lines) if line <= len(self.lines)), 0)

    def _kinds(self, symbol: str) -> list[tuple[int, int]]:
        """Per parameter its kind (1 pointer, 2 pointer to constants, 3 integer, 4 float) and bytes."""
        table = getattr(self.library, f"tch_kinds_{symbol}")
        table.restype = ctypes.POINTER(ctypes.c_uint32)
        return [(packed >> 8, packed & 255) for packed in iter(iter(table()).__next__, 0)]

    def _same(self, one: _Given, before: Array, now: Array, first: int, order: int) -> None:
        different = np.flatnonzero(before != now)
        if different.size and "tc_atomic_add_f" not in self.text:
            names = {FORWARD: "forward", BACKWARD: "backward"}
            raise HostError(
                f"{one.name} depends on the order of threads or on memory that holds no value: it differs first at byte {different[0]} of"
                f" {one.span} between the {names.get(first, first)} and the {names.get(order, order)} order"
            )


def _boxed(value: int | float, kind: tuple[int, int], symbol: str) -> Any:
    """A number as the launch passes it: pointers, 64-bit integers and doubles."""
    if kind[0] in (1, 2):
        return ctypes.c_void_p(value)
    expected = (4, 8) if isinstance(value, float) else (3, 8)
    if kind != expected:
        raise HostError(f"{symbol} takes a number of kind and bytes {kind}, the launch passes {expected}")
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_uint64(value & (1 << 64) - 1)


# ---------------------------------------------------------------- compiling


@functools.lru_cache(maxsize=1)
def _folder() -> Path:
    path = tempfile.mkdtemp(prefix="tcjit-cuda-host-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@functools.lru_cache(maxsize=1)
def _runtime() -> Any:
    """The fibers and hooks, and CUDA's own mathematics, built once per process."""
    folder = _folder()
    maths = folder / "maths.c"
    maths.write_text(_mathematics())
    _execute([str(COMPILER), "-x", "c", "-O2", "-fPIC", "-w", "-ffp-contract=off", "-c", str(maths), "-o", str(folder / "maths.o")])
    source = HOME / "cuda_host.cpp"
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off"]
    _execute([str(COMPILER), *flags, str(source), str(folder / "maths.o"), "-o", str(folder / "libtch.so"), "-lm"])
    library = ctypes.CDLL(str(folder / "libtch.so"), mode=ctypes.RTLD_GLOBAL)
    library.tch_message.restype = ctypes.c_char_p
    library.tch_open.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    return library


def _mathematics() -> str:
    wide = {name: f"tc_{name}_f64" for name in _EXTRA}
    lines = [prelude.text(wide.values(), C)]
    for name, count in _EXTRA.items():
        arguments = "abcd"[:count]
        for kind, suffix in (("double", ""), ("float", "f")):
            parameters = ", ".join(f"{kind} {a}" for a in arguments)
            lines.append(f"{kind} tch_{name}{suffix}({parameters}) {{ return ({kind}){wide[name]}({', '.join(arguments)}); }}")
    return "\n".join(lines)


def _declarations() -> str:
    """The same for kernels, under CUDA's names."""
    lines = []
    for name, count in _EXTRA.items():
        for kind, suffix in (("double", ""), ("float", "f")):
            lines.append(f'extern "C" {kind} tch_{name}{suffix}({", ".join([kind] * count)});')
            lines.append(f"#define {name}{suffix} tch_{name}{suffix}")
        arguments = "abcd"[:count]
        parameters = ", ".join(f"float {a}" for a in arguments)
        lines.append(f"inline float tch_{name}({parameters}) {{ return tch_{name}f({', '.join(arguments)}); }}")
    return "\n".join(lines)


_compiling = threading.Lock()  # threads whose first calls meet compile a text once: what is loaded is not written again


def _compiled(text: str, arch: int) -> Path:
    with _compiling:
        return _compiled_once(text, arch)


@functools.lru_cache(maxsize=512)
def _compiled_once(text: str, arch: int) -> Path:
    _runtime()
    folder = _folder()
    header = folder / "cuda.h"
    if not header.exists():
        header.write_text((HOME / "cuda_host.h").read_text() + _declarations())
    name = hashlib.sha256(f"{arch} {text}".encode()).hexdigest()[:20]
    entries = "".join(f"TCH_KERNEL({symbol})\n" for symbol in kernels(text))
    source = folder / f"{name}.cu"
    source.write_text(f"{rewritten(text)}\n{entries}")
    path = folder / f"{name}.so"
    macros = [f"-DTCH_ARCH={arch}", *(f"-D{array}={value}" for array, value in dynamic(text).items())]
    _execute([str(COMPILER), *_FLAGS, *macros, "-include", str(header), "-x", "c++", str(source), "-o", str(path)])
    return path


def _execute(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        unknown = re.search(r"‘?(\w+)’? is not a member of ‘?tch_ptx", done.stderr)
        if unknown:
            raise UnknownPTX(f"the host has no version of the PTX instruction {unknown[1]}")
        raise HostError("\n".join(["the host's compiler refuses the text:", *done.stderr.splitlines()[:20]]))
