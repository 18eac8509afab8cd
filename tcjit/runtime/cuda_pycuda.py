"""The CUDA driver through pycuda, which launches on the default stream only: other streams wait for it, and it for them, by events.

The default stream cannot be captured, so graphs need ``cuda-bindings``. What pycuda lacks (errors by name, events on a stream that it
did not make) is asked of the driver itself.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tcjit.errors import LaunchError
from tcjit.runtime.cuda_driver import Grid, KernelAttributes, KernelSpec, LoadedCubin, described, failure, library

_LEGACY = (0, 1)  # how the default stream can be named
_NO_TIMING = 2
_STATUSES = 1000  # CUDA's are below


class PyCuda:
    """The calls of ``Driver``; an ImportError without the package."""

    name = "pycuda"

    def __init__(self) -> None:
        import pycuda.driver

        self.cuda: Any = pycuda.driver
        self._contexts: dict[int, Any] = {}
        self._bridges: dict[int, ctypes.c_void_p] = {}
        self._recording = threading.Lock()
        self._pinned: list[tuple[int, Any]] = []
        self._loaded: set[_PyCudaCubin] = set()
        self._pid = os.getpid()
        with self.doing("cannot start CUDA"):
            self.cuda.init()
        atexit.register(self._release)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """pycuda's errors as LaunchErrors."""
        try:
            yield
        except self.cuda.Error as error:
            raise failure(what, _status(str(error))) from None

    def context(self, ordinal: int) -> Any:
        """The primary context of a device."""
        context = self._contexts.get(ordinal)
        if context is None:
            context = self._contexts.setdefault(ordinal, self.cuda.Device(ordinal).retain_primary_context())
        return context

    @contextmanager
    def current(self, ordinal: int, what: str) -> Iterator[None]:
        """The device's context is the thread's, and errors name what was attempted."""
        with self.doing(what):
            context = self.context(ordinal)
            context.push()
            try:
                yield
            finally:
                context.pop()

    def done(self, what: str, status: int) -> None:
        if status:
            raise failure(what, status)

    @contextmanager
    def bridged(self, ordinal: int, stream: int) -> Iterator[None]:
        """Orders the default stream's new work after the work queued on ``stream`` so far, and before any queued on it later."""
        if stream in _LEGACY:
            yield
            return
        what = f"cannot order streams on cuda:{ordinal}"
        if self._captures(stream):
            raise LaunchError("pycuda cannot launch into a graph that is being captured", hint="TCJIT_CUDA_DRIVER=cuda-bindings")
        self._after(what, ordinal, 0, stream)
        try:
            yield
        finally:
            self._after(what, ordinal, stream, 0)

    def _after(self, what: str, ordinal: int, later: int, earlier: int) -> None:
        """Makes new work on stream ``later`` wait for the work on ``earlier``. One event serves all: a wait is for its last recording."""
        cuda = library()
        event = self._bridges.get(ordinal)
        if event is None:
            event = ctypes.c_void_p()
            self.done(what, cuda.cuEventCreate(ctypes.byref(event), _NO_TIMING))
            event = self._bridges.setdefault(ordinal, event)
        with self._recording:
            self.done(what, cuda.cuEventRecord(event, ctypes.c_void_p(earlier)))
            self.done(what, cuda.cuStreamWaitEvent(ctypes.c_void_p(later), event, 0))

    def _captures(self, stream: int) -> bool:
        capture = ctypes.c_int()
        return bool(library().cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(capture)) or capture.value)

    def _release(self) -> None:
        """At exit: what pycuda would clean up after that, it does in the wrong context, or with the call for contexts of another kind.

        In a forked child every such attempt aborts, so there all of it stays.
        """
        if os.getpid() != self._pid:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        with suppress(LaunchError):  # CUDA may be lost
            for cubin in list(self._loaded):
                cubin.unload()
            for ordinal, memory in self._pinned:
                with self.current(ordinal, "cannot free pinned memory"):
                    memory.base.free()
        self._pinned.clear()
        for context in self._contexts.values():
            with suppress(self.cuda.Error):
                context.detach()

    # ------------------------------------------------------------ the protocol

    def count(self) -> int:
        with self.doing("cannot count CUDA devices"):
            return int(self.cuda.Device.count())

    def properties(self, ordinal: int, numbers: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        with self.doing(f"cannot ask cuda:{ordinal} what it is"):
            device, kinds = self.cuda.Device(ordinal), self.cuda.device_attribute.values
            return device.name(), tuple(int(device.get_attribute(kinds[number])) for number in numbers)

    def load(self, ordinal: int, cubin: bytes, kernels: Sequence[KernelSpec], format: str) -> LoadedCubin:
        with self.current(ordinal, f"cuda:{ordinal} does not load {kernels[0].symbol}"):
            loaded = _PyCudaCubin(self, ordinal, cubin, kernels, format)
        self._loaded.add(loaded)
        return loaded

    def words(self, ordinal: int, count: int) -> tuple[int, int]:
        flags = self.cuda.host_alloc_flags
        with self.current(ordinal, f"cannot allocate pinned memory for cuda:{ordinal}"):
            memory = self.cuda.pagelocked_zeros(count, "int32", mem_flags=flags.PORTABLE | flags.DEVICEMAP)
            self._pinned.append((ordinal, memory))
            return int(memory.ctypes.data), int(memory.base.get_device_pointer())

    def capturing(self, ordinal: int, stream: int) -> bool:
        with self.current(ordinal, f"cannot use cuda:{ordinal}"):
            return self._captures(stream)

    def synchronize(self, ordinal: int) -> None:
        with self.current(ordinal, f"waiting for cuda:{ordinal}"):
            self.cuda.Context.synchronize()

    def seconds(self, ordinal: int, stream: int, work: Callable[[], object]) -> float:
        with self.current(ordinal, f"timing on cuda:{ordinal}"):
            start, end = self.cuda.Event(), self.cuda.Event()
            try:
                with self.bridged(ordinal, stream):
                    start.record()
                work()
                with self.bridged(ordinal, stream):
                    end.record()
                end.synchronize()
                return float(start.time_till(end)) / 1000
            finally:
                del start, end  # in the context that they are of


class _PyCudaCubin:
    """A loaded cubin."""

    def __init__(self, driver: PyCuda, ordinal: int, cubin: bytes, kernels: Sequence[KernelSpec], format: str) -> None:
        self._driver, self._ordinal = driver, ordinal
        self._context = driver.context(ordinal)
        self._layout = struct.Struct(format)
        self._module = driver.cuda.module_from_buffer(cubin)
        self._kernels = []
        for kernel in kernels:
            function = self._module.get_function(kernel.symbol)
            if kernel.dynamic:
                function.set_attribute(driver.cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.dynamic)
            self._kernels.append((function, kernel.grid, (kernel.threads, 1, 1), kernel.dynamic))
        self._what = f"cannot launch {', '.join(kernel.symbol for kernel in kernels)} on cuda:{ordinal}"

    def attributes(self) -> tuple[KernelAttributes, ...]:
        kind = self._driver.cuda.function_attribute
        wanted = (kind.NUM_REGS, kind.LOCAL_SIZE_BYTES, kind.SHARED_SIZE_BYTES, kind.MAX_THREADS_PER_BLOCK)
        with self._driver.current(self._ordinal, f"cannot ask for kernels on cuda:{self._ordinal}"):
            return tuple(KernelAttributes(*(int(kernel[0].get_attribute(w)) for w in wanted)) for kernel in self._kernels)

    def launch(self, stream: int, words: tuple[int, ...], grids: Sequence[Grid] = ()) -> None:
        driver, context = self._driver, self._context
        parameters = self._layout.pack(*words)
        try:
            context.push()
            try:
                if stream in _LEGACY:  # without the context managers below a launch takes a third of the time
                    self._launch(parameters, grids)
                else:
                    with driver.bridged(self._ordinal, stream):
                        self._launch(parameters, grids)
            finally:
                context.pop()
        except driver.cuda.Error as error:
            raise failure(self._what, _status(str(error))) from None

    def _launch(self, parameters: bytes, grids: Sequence[Grid]) -> None:
        for number, (function, grid, block, dynamic) in enumerate(self._kernels):
            function._launch_kernel(grids[number] if grids else grid, block, parameters, dynamic, None)

    def unload(self) -> None:
        with self._driver.current(self._ordinal, f"cannot unload from cuda:{self._ordinal}"):
            self._kernels.clear()
            self._module = None
        self._driver._loaded.discard(self)


@functools.lru_cache(maxsize=1)
def _by_words() -> dict[str, int]:
    """CUDA's statuses by their words, which is all that pycuda tells."""
    return {described(code)[1]: code for code in range(_STATUSES - 1, 0, -1)}


def _status(message: str) -> int:
    words = message.partition(" failed: ")[2]
    fitting = [text for text in _by_words() if words.startswith(text)]
    return _by_words()[max(fitting, key=len)] if fitting else _STATUSES - 1
