"""CUDA devices: what they are, compiled kernels loaded and launched on them, and the flags that kernels raise.

One package calls the driver for the whole process: cuda-bindings where it is installed, else pycuda, or the one that
``TCJIT_CUDA_DRIVER`` names. Nothing here imports torch: devices come as ordinals, streams and memory as addresses.

**Flags.** A kernel that finds a wrong index or divisor raises its flag, a word of pinned host memory that the device maps: so a launch
needs no copy, no memset and no waiting, and a captured graph raises it as well. The word is looked at by the module's next launch, by
``Module.check`` and by ``synchronize``, and the error belongs to an earlier launch then. Every loaded module has a word of its own.
"""
from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tcjit import config
from tcjit.codegen.source import KernelLaunch
from tcjit.errors import LaunchError
from tcjit.mapping.machine import SM_80, Device
from tcjit.runtime.cuda_bindings import Bindings
from tcjit.runtime.cuda_driver import Driver, Grid, KernelAttributes, KernelSpec, LoadedCubin, driver_version, library
from tcjit.runtime.cuda_pycuda import PyCuda

INSTALL = "pip install 'tcjit[cuda]', which brings cuda-bindings"
PAGE = 1024  # flags allocated at once
# CUDA's numbers of the attributes that ``device`` asks for
_ATTRIBUTES = {
    "major": 75, "minor": 76, "warp": 10, "threads": 1, "shared": 8, "most_shared": 97, "registers": 82, "processors": 16,
    "x": 5, "y": 6, "z": 7, "resident_threads": 39, "resident_blocks": 106,
}  # fmt: skip
_OLDEST = (8, 0)  # what generated code needs: min and max that keep NaN, conversions of bfloat16
_packages: dict[str, Callable[[], Driver]] = {Bindings.name: Bindings, PyCuda.name: PyCuda}


# ---------------------------------------------------------------- the driver and its devices


class _Process:
    """The process's CUDA state: the driver, the flags of each device, whether it was forked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.driver: Driver | None = None
        self.devices: dict[int, _Flags] = {}
        self.forked = False


_process = _Process()


def driver() -> Driver:
    """The driver of this process; a LaunchError where there is no CUDA, or no package to call it."""
    with _process.lock:
        if _process.forked:
            raise LaunchError("CUDA was in use before this process was forked", hint='multiprocessing.get_context("spawn")')
        if _process.driver is None:
            _process.driver = _choose()
        return _process.driver


def _choose() -> Driver:
    library()
    asked = config.cuda_driver()
    problems = []
    for name in [asked] if asked else _packages:
        try:
            return _packages[name]()
        except ImportError as error:
            problems.append(str(error))
    hint = "pip install 'tcjit[pycuda]', which needs the CUDA toolkit" if asked == PyCuda.name else INSTALL
    raise LaunchError(f"no package to call the CUDA driver: {'; '.join(problems)}", hint=hint)


def _after_fork() -> None:
    """CUDA does not work in a forked child, and the memory of its flags may not even be there."""
    global _process
    if _process.driver is not None:
        _process = _Process()
        _process.forked = True
    _process.lock = threading.Lock()  # whoever held it is not in this process


os.register_at_fork(after_in_child=_after_fork)


def count() -> int:
    """How many devices there are."""
    return driver().count()


@functools.cache
def device(ordinal: int) -> Device:
    """The mapping's description of a device, with the limits that the driver reports; a LaunchError for one that is too old."""
    _, values = driver().properties(ordinal, tuple(_ATTRIBUTES.values()))
    got = dict(zip(_ATTRIBUTES, values))
    capability = got["major"], got["minor"]
    if capability < _OLDEST:
        raise LaunchError(f"cuda:{ordinal} is too old: sm_{capability[0]}{capability[1]}", hint="a device of sm_80 or later")
    return Device(
        f"sm_{capability[0]}{capability[1]}",
        warp=got["warp"],
        max_threads=got["threads"],
        shared_bytes=got["shared"],
        max_shared_bytes=max(got["shared"], got["most_shared"]),
        registers=got["registers"],
        processors=got["processors"],
        max_grid=(got["x"], got["y"], got["z"]),
        resident_threads=got["resident_threads"],
        resident_blocks=got["resident_blocks"],
        capabilities=SM_80.capabilities,
    )


def describe(ordinal: int) -> str:
    """A device in words: its name, its architecture, the driver's release and the package that calls it."""
    name, _ = driver().properties(ordinal, ())
    release = driver_version() or (0, 0)
    return f"{name} ({device(ordinal).name}), CUDA {release[0]}.{release[1]} through {driver().name}"


def seconds(ordinal: int, stream: int, work: Callable[[], object]) -> float:
    """Seconds, by the device's own clock, of the kernels that ``work`` puts into the stream; waits for them."""
    return driver().seconds(ordinal, stream, work)


def synchronize(ordinal: int | None = None) -> None:
    """Wait for a device, or for all in use; raises the error of the first flag found, and leaves further ones to later calls."""
    for number in [ordinal] if ordinal is not None else sorted(_process.devices):
        driver().synchronize(number)
        flags = _process.devices.get(number)
        if flags is not None:
            flags.check()


# ---------------------------------------------------------------- flags


class _Flags:
    """The flags of one device, in pages that stay for the life of the process: a graph may write to them at any time."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._free: list[Flag] = []
        self._used: list[Flag] = []

    def take(self, fail: Callable[[int], Exception]) -> Flag:
        """A flag for the kernels of one module."""
        with _process.lock:
            pages = not self._free
        fresh = self._page() if pages else []
        with _process.lock:
            self._free = fresh + self._free
            flag = self._free.pop()
            flag.fail = fail
            self._used.append(flag)
        return flag

    def _page(self) -> list[Flag]:
        host, mapped = driver().words(self._ordinal, PAGE)
        words = (ctypes.c_int32 * PAGE).from_address(host)
        return [Flag(words, slot, mapped + 4 * slot) for slot in reversed(range(PAGE))]

    def give_back(self, flag: Flag) -> None:
        with _process.lock:
            self._used.remove(flag)
            flag.words[flag.slot] = 0
            self._free.append(flag)

    def check(self) -> None:
        for flag in tuple(self._used):
            flag.check()


class Flag:
    """A word that kernels raise: ``words[slot]`` on the host, ``address`` in the device."""

    __slots__ = ("words", "slot", "address", "fail")

    def __init__(self, words: Any, slot: int, address: int) -> None:
        self.words, self.slot, self.address = words, slot, address
        self.fail: Callable[[int], Exception] = _unnamed

    def check(self) -> None:
        """Lower the flag, and raise the error that it stands for."""
        site = self.words[self.slot]
        if site:
            self.words[self.slot] = 0
            raise self.fail(site)


def _unnamed(site: int) -> Exception:
    return LaunchError(f"a kernel raised flag {site}, which nobody explains", hint="tcjit.cache.clear()")


# ---------------------------------------------------------------- kernels


class Module:
    """The machine code of one source, loaded into each device at its first launch there. Launches may come from several threads.

    ``pointers`` and ``numbers`` count the parameters of every kernel: outputs and inputs, and 64-bit values; the workspace stands
    between them and the flag last. ``fail`` makes an error of the number of a site that a kernel raised its flag to.
    """

    def __init__(
        self, cubin: bytes, launches: Sequence[KernelLaunch], pointers: int, numbers: int, fail: Callable[[int], Exception] = _unnamed
    ) -> None:
        self.launches = tuple(launches)
        self._cubin, self._fail = cubin, fail
        self._format = f"={pointers + 1}Q{numbers}qQ"
        self._on: dict[int, tuple[LoadedCubin, Flag]] = {}
        self._lock = threading.Lock()
        self._process = _process

    def load(self, ordinal: int, stream: int = 0) -> tuple[LoadedCubin, Flag]:
        """Load into a device; a LaunchError while ``stream`` is being captured, when nothing can be loaded."""
        calls = driver()
        with self._lock:
            resident = self._on.get(ordinal)
            if resident is not None:
                return resident
            limits = device(ordinal)
            kernels = [_checked(launch, limits, ordinal) for launch in self.launches]
            if calls.capturing(ordinal, stream):
                raise LaunchError(
                    f"{kernels[0].symbol} is not loaded on cuda:{ordinal}, and cannot be while a graph is captured",
                    hint="call it once with the same shapes before the capture",
                )
            loaded = calls.load(ordinal, self._cubin, kernels, self._format)
            try:
                _fits(loaded.attributes(), kernels, ordinal)
                flags = _process.devices.get(ordinal) or _process.devices.setdefault(ordinal, _Flags(ordinal))
                resident = self._on[ordinal] = loaded, flags.take(self._fail)
            except LaunchError:
                loaded.unload()
                raise
            return resident

    def launch(
        self, ordinal: int, stream: int, pointers: Sequence[int], numbers: Sequence[int], workspace: int, grids: Sequence[Grid] = ()
    ) -> None:
        """Put every kernel into the stream, in order, and return at once.

        First raises what an earlier launch on this device was found guilty of. ``stream`` is as torch gives it, ``numbers`` are
        signed 64-bit patterns, ``grids`` the blocks of each kernel where they are fewer than those of its launch. The memory must stay
        until the stream has come past the kernels.
        """
        resident = self._on.get(ordinal)
        if resident is None or self._process is not _process:
            resident = self.load(ordinal, stream)
        loaded, flag = resident
        if flag.words[flag.slot]:
            flag.check()
        loaded.launch(stream, (*pointers, workspace, *numbers, flag.address), grids)

    def check(self, ordinal: int) -> None:
        """Raise what the kernels that are done by now were found guilty of; waits for nothing."""
        resident = self._on.get(ordinal)
        if resident is not None and self._process is _process:
            resident[1].check()

    def attributes(self, ordinal: int) -> dict[str, KernelAttributes]:
        """The registers and memory of each kernel on a device, as the driver reports them."""
        loaded, _ = self.load(ordinal)
        return dict(zip((launch.symbol for launch in self.launches), loaded.attributes()))

    def unload(self) -> None:
        """Take the code out of every device, after all launches and when no graph holds any; a later launch loads it anew."""
        with self._lock:
            for ordinal, (loaded, flag) in self._on.items():
                loaded.unload()
                _process.devices[ordinal].give_back(flag)
            self._on.clear()


def _checked(launch: KernelLaunch, limits: Device, ordinal: int) -> KernelSpec:
    """A launch as the driver takes it; a LaunchError for what the device cannot run."""
    problem = ""
    if launch.shared_bytes > limits.max_shared_bytes:
        problem = f"{launch.shared_bytes} bytes of shared memory, and a block gets {limits.max_shared_bytes}"
    elif launch.threads > limits.max_threads:
        problem = f"{launch.threads} threads, and a block gets {limits.max_threads}"
    elif any(blocks > most for blocks, most in zip(launch.grid, limits.max_grid)):
        problem = f"{launch.grid} blocks, and a grid gets {limits.max_grid}"
    if problem:
        raise LaunchError(f"{launch.symbol} does not fit cuda:{ordinal}: it wants {problem}", hint="other options, or smaller tiles")
    dynamic = launch.shared_bytes if launch.shared_bytes > limits.shared_bytes else 0  # up to there it is declared in the code
    return KernelSpec(launch.symbol, launch.grid, launch.threads, dynamic)


def _fits(attributes: Sequence[KernelAttributes], kernels: Sequence[KernelSpec], ordinal: int) -> None:
    for kernel, attribute in zip(kernels, attributes):
        if kernel.threads > attribute.threads:
            what = f"{kernel.symbol} takes {attribute.registers} registers per thread: cuda:{ordinal} runs {attribute.threads} threads"
            raise LaunchError(f"{what} of it in a block, not {kernel.threads}", hint="options with fewer threads, or with smaller tiles")
