"""OpenCL through pyopencl: the device, programs for it, and their launches on host memory, complete when they return.

PoCL and oclgrind build without optimisation: PoCL's optimiser miscompiles divergent branches around loops between barriers, and
oclgrind stops at what its own makes of them. Nothing here imports torch: memory comes as addresses.
"""
from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tcjit import config, scratch
from tcjit.codegen.source import KernelLaunch
from tcjit.dataclass import dataclass
from tcjit.errors import CompileError, LaunchError, TCError
from tcjit.mapping.machine import OPENCL, Device
from tcjit.runtime import host, pocl

INSTALL = "pip install 'tcjit[opencl]', which brings pyopencl and PoCL, an OpenCL for the CPU"
UNOPTIMISED = (pocl.PLATFORM, "Oclgrind")
SIMULATOR = "Oclgrind"  # never chosen but by name
ALIGNMENT = 64  # bytes: no type of a kernel asks for more
_BINARY, _TEXT = b"binary\n", b"text\n"  # how a built program begins


@dataclass(frozen=True)
class HostMemory:
    """A region of host memory that a kernel gets as one pointer; ``written``: it may change."""

    address: int
    bytes: int
    written: bool = False


@dataclass(frozen=True)
class OpenCLDevice:
    """A device and its platform, as pyopencl has them."""

    platform: Any
    device: Any

    def __str__(self) -> str:
        return f"{self.device.name.strip()} ({self.platform.name.strip()})"

    @property
    def words(self) -> str:
        """All that the device can be asked for by."""
        return f"{self.platform.name} {self.platform.version} {self.device.name} {self.device.vendor}".lower()

    @property
    def simulator(self) -> bool:
        return str(self.platform.name).strip() == SIMULATOR


def devices() -> list[OpenCLDevice]:
    """Every device of every platform, in the order of their numbers; a CompileError without pyopencl."""
    cl = _pyopencl()
    try:
        return [OpenCLDevice(platform, device) for platform in cl.get_platforms() for device in _devices(cl, platform)]
    except cl.Error:  # the loader says so when there is no platform at all
        return []


def choose(asked: str | None = None) -> OpenCLDevice:
    """The device called ``asked`` (by default the value of ``TCJIT_OPENCL_DEVICE``): a number, or a part of a name.

    Without a name the first GPU, else an accelerator, else a CPU. A CompileError where there is none.
    """
    asked = config.opencl_device() if asked is None else asked
    available = devices()
    if asked:
        numbered = asked.isascii() and asked.isdecimal() and len(asked) < 7
        fitting = available[int(asked) :][:1] if numbered else [f for f in available if asked.lower() in f.words]
        if not fitting:
            known = "; ".join(f"{number}: {f}" for number, f in enumerate(available)) or "none is installed"
            hint = f"one of {known}" if available else INSTALL
            raise config.refused("TCJIT_OPENCL_DEVICE", asked, "fits no OpenCL device", hint, CompileError)
        return fitting[0]
    kinds = _pyopencl().device_type
    for kind in (kinds.GPU, kinds.ACCELERATOR, kinds.CPU):
        for candidate in available:
            if candidate.device.type & kind and not candidate.simulator:
                return candidate
    raise CompileError("there is no OpenCL device", hint=INSTALL)


def describe() -> Device:
    """The mapping's description of the device in use."""
    device = _opened().chosen.device
    extensions = device.extensions.split()
    found = {"half"} if "cl_khr_fp16" in extensions else set()
    found |= {"atomic64"} if {"cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics"} <= set(extensions) else set()
    local = int(device.local_mem_size)
    return replace(
        OPENCL,
        max_threads=min(int(device.max_work_group_size), int(device.max_work_item_sizes[0])),
        shared_bytes=local,
        max_shared_bytes=local,
        processors=int(device.max_compute_units),
        capabilities=OPENCL.capabilities | found,
    )


def identity() -> str:
    """One text that changes whenever what this device makes of a program might."""
    chosen = _opened().chosen
    platform, device = chosen.platform, chosen.device
    facts = (platform.name, platform.version, device.name, device.vendor, device.version, device.driver_version, device.extensions)
    return repr((facts, _options(chosen), host.cpu()))


def hardware() -> str:
    """The device itself, without the driver; of a CPU, which it is."""
    device = _opened().chosen.device
    return repr((device.name, device.vendor, int(device.max_compute_units), int(device.local_mem_size), host.hardware()))


def build(text: str, symbol: str) -> bytes:
    """Compile a program: what ``LoadedProgram`` takes, the device's binary where it gives one.

    A refusal is a CompileError with the device's build log; the source then stays in the file that the error names.
    """
    cl, opened = _pyopencl(), _opened()
    program = cl.Program(opened.context, text)
    try:
        _build(program, opened)
        binary = program.get_info(cl.program_info.BINARIES)[0]
    except cl.Error as error:
        log = _log(program, opened.chosen.device) or str(error)
        what = f"{opened.chosen} refused the code generated for {symbol}:\n{log}"
        if pocl.REFUSED in log:
            raise CompileError(what, hint="a PoCL that knows this processor, or another device in TCJIT_OPENCL_DEVICE") from None
        raise CompileError(what, hint=f"please report it with the source, kept in {_kept(text)}") from None
    return _BINARY + binary if binary else _TEXT + text.encode()


class LoadedProgram:
    """A program that ``build`` made, loaded. Its launches may come from several threads."""

    def __init__(self, content: bytes, launches: Sequence[KernelLaunch]) -> None:
        cl, self._opened = _pyopencl(), _opened()
        chosen, context = self._opened.chosen, self._opened.context
        self._kernels: list[tuple[KernelLaunch, Any]] = []
        if not launches:
            return
        kind, _, body = content.partition(b"\n")
        try:
            program = cl.Program(context, body.decode()) if kind + b"\n" == _TEXT else cl.Program(context, [chosen.device], [body])
            _build(program, self._opened)
            self._kernels += [(launch, cl.Kernel(program, launch.symbol)) for launch in launches]
        except cl.Error as error:
            raise LaunchError(f"{chosen} does not load the program: {error}", hint="tcjit.cache.clear()") from None

    def run(
        self, memory: Sequence[HostMemory], numbers: Sequence[int], workspace: int, grids: Sequence[tuple[int, int, int]] = ()
    ) -> int:
        """Launch every kernel in order and wait; returns the flag.

        ``numbers`` are 64-bit patterns, ``workspace`` counts bytes, ``grids`` are the blocks of each kernel where they are fewer than those
        of its launch. What is ``written`` holds the results then.
        """
        cl, opened = _pyopencl(), self._opened
        opened.require()
        flags = cl.mem_flags
        with opened.lock:  # a kernel object holds its arguments, and the queue runs in order
            try:
                regions = [opened.region(region) for region in memory]
                scratch = cl.Buffer(opened.context, flags.READ_WRITE, workspace) if workspace else None
                raised = np.zeros(1, np.int32)
                flag = cl.Buffer(opened.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=raised)
                arguments = (*(region.buffer for region in regions), scratch, *map(np.int64, numbers), flag)
                for number, (launch, kernel) in enumerate(self._kernels):
                    x, y, z = grids[number] if grids else launch.grid
                    kernel.set_args(*arguments)
                    cl.enqueue_nd_range_kernel(opened.queue, kernel, (x * launch.threads, y, z), (launch.threads, 1, 1))
                for region in regions:
                    region.fetch(opened.queue)
                cl.enqueue_copy(opened.queue, raised, flag)
                opened.queue.finish()
            except cl.Error as error:
                symbols = ", ".join(launch.symbol for launch, _ in self._kernels)
                raise LaunchError(f"{opened.chosen} failed on {symbols}: {error}", hint="another device in TCJIT_OPENCL_DEVICE") from None
        return int(raised[0])


# ---------------------------------------------------------------- the device in use


class _DeviceBuffer:
    """Host memory as a buffer: in place where the device shares the host's memory, else a copy."""

    def __init__(self, context: Any, region: HostMemory, shared: bool) -> None:
        cl = _pyopencl()
        flags = cl.mem_flags
        self._written, self.buffer = region.written and region.bytes > 0, None
        if region.bytes:
            self._array = np.ctypeslib.as_array((ctypes.c_ubyte * region.bytes).from_address(region.address))
            self._in_place = shared and region.address % ALIGNMENT == 0
            access = flags.READ_WRITE if region.written else flags.READ_ONLY
            where = flags.USE_HOST_PTR if self._in_place else flags.COPY_HOST_PTR
            self.buffer = cl.Buffer(context, access | where, hostbuf=self._array)

    def fetch(self, queue: Any) -> None:
        """Bring the results to the host."""
        cl = _pyopencl()
        if not self._written:
            return
        if self._in_place:
            mapped, _ = cl.enqueue_map_buffer(queue, self.buffer, cl.map_flags.READ, 0, self._array.shape, np.uint8)
            mapped.base.release(queue)
        else:
            cl.enqueue_copy(queue, self._array, self.buffer)


class _OpenDevice:
    """A device with a context and a queue of its own."""

    def __init__(self, chosen: OpenCLDevice) -> None:
        cl = _pyopencl()
        self.chosen, self.process, self.lock = chosen, os.getpid(), threading.Lock()
        if chosen.platform.name.strip() == pocl.PLATFORM:
            pocl.name_processor(chosen.device.version, chosen.device.int_ptr)
        try:
            self.context = cl.Context([chosen.device])
            self.queue = cl.CommandQueue(self.context)
        except cl.Error as error:
            raise LaunchError(f"{chosen} cannot be opened: {error}", hint="another device in TCJIT_OPENCL_DEVICE") from None
        # oclgrind takes what it did not copy itself for uninitialised
        self._shared = bool(chosen.device.host_unified_memory) and not chosen.simulator

    def region(self, memory: HostMemory) -> _DeviceBuffer:
        return _DeviceBuffer(self.context, memory, self._shared)

    def require(self) -> None:
        """A LaunchError in a forked child: the driver's threads are not in it."""
        if os.getpid() != self.process:
            raise LaunchError("OpenCL was in use before this process was forked", hint='multiprocessing.get_context("spawn")')


_devices_in_use: dict[str, _OpenDevice] = {}
_opening = threading.Lock()


def _opened() -> _OpenDevice:
    """The chosen device, opened once a process."""
    asked = config.opencl_device()
    with _opening:
        if asked not in _devices_in_use:
            _devices_in_use[asked] = _OpenDevice(choose(asked))
        opened = _devices_in_use[asked]
    opened.require()
    return opened


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()  # whoever held it is not in this process


os.register_at_fork(after_in_child=_after_fork)


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise CompileError(f"no OpenCL without pyopencl: {error}", hint=INSTALL) from None
    return pyopencl


def _devices(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform may have none, and says so in this way
        return []


# ---------------------------------------------------------------- building


def _options(chosen: OpenCLDevice) -> list[str]:
    options = ["-cl-std=CL1.2"]
    if chosen.platform.name.strip() in UNOPTIMISED:
        options.append("-cl-opt-disable")
    if chosen.device.single_fp_config & _pyopencl().device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return options


def _build(program: Any, opened: _OpenDevice) -> None:
    """Build in this process's device, past pyopencl's own cache on disk and its warnings: ours holds what is built."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.get_info(_pyopencl().program_info.NUM_DEVICES)  # a program that was looked at is built directly
        program.build(_options(opened.chosen), [opened.chosen.device])


def _log(program: Any, device: Any) -> str:
    cl = _pyopencl()
    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG)).strip()
    except cl.Error:
        return ""


def _kept(text: str) -> Path:
    try:
        file = Path(scratch.refused(), "kernel.cl")
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TCError(f"no temporary directory to keep a source in: {error}", hint="room in /tmp, or TMPDIR set to a directory") from None
    return file
