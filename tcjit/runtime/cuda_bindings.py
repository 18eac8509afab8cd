"""The CUDA driver through NVIDIA's package ``cuda-bindings``: launches go to any stream, and into graphs being captured."""
from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tcjit.runtime.cuda_driver import Grid, KernelAttributes, KernelSpec, LoadedCubin, failure

_LEGACY = 1  # torch's stream 0 by its explicit name, which no setting turns into a stream per thread
_PORTABLE, _MAPPED = 1, 2


class Bindings:
    """The calls of ``Driver``; an ImportError without the package."""

    name = "cuda-bindings"

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.cuda: Any = driver
        self._contexts: dict[int, tuple[Any, int]] = {}
        self._streams: dict[int, Any] = {0: driver.CUstream(_LEGACY)}
        self.done("cannot start CUDA", driver.cuInit(0))

    def done(self, doing: str, answer: tuple[Any, ...]) -> Any:
        """The results of a call without its status; a LaunchError where the status is no success."""
        if int(answer[0]):
            raise failure(doing, int(answer[0]))
        return answer[1] if len(answer) == 2 else answer[1:]

    def context(self, ordinal: int) -> tuple[Any, int]:
        """The primary context of a device, and its address."""
        context = self._contexts.get(ordinal)
        if context is None:
            doing = f"cannot use cuda:{ordinal}"
            handle = self.done(doing, self.cuda.cuDevicePrimaryCtxRetain(self.done(doing, self.cuda.cuDeviceGet(ordinal))))
            context = self._contexts[ordinal] = handle, int(handle)
        return context

    def stream(self, address: int) -> Any:
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = self.cuda.CUstream(address)
        return stream

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        """The device's context is the thread's."""
        doing = f"cannot use cuda:{ordinal}"
        self.done(doing, self.cuda.cuCtxPushCurrent(self.context(ordinal)[0]))
        try:
            yield
        finally:
            self.done(doing, self.cuda.cuCtxPopCurrent())

    # ------------------------------------------------------------ the protocol

    def count(self) -> int:
        return int(self.done("cannot count CUDA devices", self.cuda.cuDeviceGetCount()))

    def properties(self, ordinal: int, numbers: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        doing, cuda = f"cannot ask cuda:{ordinal} what it is", self.cuda
        device = self.done(doing, cuda.cuDeviceGet(ordinal))
        name = self.done(doing, cuda.cuDeviceGetName(256, device)).split(b"\0", 1)[0].decode()
        values = (self.done(doing, cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute(number), device)) for number in numbers)
        return name, tuple(map(int, values))

    def load(self, ordinal: int, cubin: bytes, kernels: Sequence[KernelSpec], format: str) -> LoadedCubin:
        with self.current(ordinal):
            return _BindingsCubin(self, ordinal, cubin, kernels, format)

    def words(self, ordinal: int, count: int) -> tuple[int, int]:
        doing = f"cannot allocate pinned memory for cuda:{ordinal}"
        with self.current(ordinal):
            host = int(self.done(doing, self.cuda.cuMemHostAlloc(4 * count, _PORTABLE | _MAPPED)))
            ctypes.memset(host, 0, 4 * count)
            return host, int(self.done(doing, self.cuda.cuMemHostGetDevicePointer(host, 0)))

    def capturing(self, ordinal: int, stream: int) -> bool:
        with self.current(ordinal):
            status, capture = self.cuda.cuStreamIsCapturing(self.stream(stream))
        return int(status) != 0 or int(capture) != 0  # the default stream answers with an error while another is captured

    def synchronize(self, ordinal: int) -> None:
        with self.current(ordinal):
            self.done(f"waiting for cuda:{ordinal}", self.cuda.cuCtxSynchronize())

    def seconds(self, ordinal: int, stream: int, work: Callable[[], object]) -> float:
        doing, cuda, handle = f"timing on cuda:{ordinal}", self.cuda, self.stream(stream)
        with self.current(ordinal):
            start, end = (self.done(doing, cuda.cuEventCreate(0)) for _ in range(2))
            try:
                self.done(doing, cuda.cuEventRecord(start, handle))
                work()
                self.done(doing, cuda.cuEventRecord(end, handle))
                self.done(doing, cuda.cuEventSynchronize(end))
                return float(self.done(doing, cuda.cuEventElapsedTime(start, end))) / 1000
            finally:
                for event in (start, end):
                    cuda.cuEventDestroy(event)


class _BindingsCubin:
    """A loaded cubin. Parameters are written into a buffer that the driver reads while it launches, one for each thread in here."""

    def __init__(self, driver: Bindings, ordinal: int, cubin: bytes, kernels: Sequence[KernelSpec], format: str) -> None:
        self._driver, self._ordinal = driver, ordinal
        self._context, self._address = driver.context(ordinal)
        self._layout = struct.Struct(format)
        self._free: list[tuple[Any, Any, int]] = []
        cuda = driver.cuda
        self._module = driver.done(f"cuda:{ordinal} does not load {kernels[0].symbol}", cuda.cuModuleLoadData(cubin))
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._kernels = []
        for kernel in kernels:
            doing = f"cuda:{ordinal} does not load {kernel.symbol}"
            function = driver.done(doing, cuda.cuModuleGetFunction(self._module, kernel.symbol.encode()))
            if kernel.dynamic:
                driver.done(doing, cuda.cuFuncSetAttribute(function, attribute, kernel.dynamic))
            self._kernels.append((function, *kernel.grid, kernel.threads, kernel.dynamic, kernel.symbol))

    def attributes(self) -> tuple[KernelAttributes, ...]:
        cuda, done = self._driver.cuda, self._driver.done
        kind = cuda.CUfunction_attribute
        wanted = (
            kind.CU_FUNC_ATTRIBUTE_NUM_REGS,
            kind.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            kind.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        )
        with self._driver.current(self._ordinal):
            return tuple(
                KernelAttributes(*(int(done(f"cannot ask for {kernel[-1]}", cuda.cuFuncGetAttribute(w, kernel[0]))) for w in wanted))
                for kernel in self._kernels
            )

    def launch(self, stream: int, words: tuple[int, ...], grids: Sequence[Grid] = ()) -> None:
        cuda, free = self._driver.cuda, self._free
        try:
            frame = free.pop()  # the GIL is released while the driver reads it
        except IndexError:
            frame = self._frame(len(words))
        buffer, _, parameters = frame
        self._layout.pack_into(buffer, 0, *words)
        handle = self._driver.stream(stream)
        status, current = cuda.cuCtxGetCurrent()
        foreign = int(current) != self._address
        if foreign:
            self._driver.done("cannot launch", cuda.cuCtxPushCurrent(self._context))
        try:
            for number, (function, x, y, z, threads, dynamic, symbol) in enumerate(self._kernels):
                if grids:
                    x, y, z = grids[number]
                (status,) = cuda.cuLaunchKernel(function, x, y, z, threads, 1, 1, dynamic, handle, parameters, 0)
                if status:
                    raise failure(f"cannot launch {symbol} on cuda:{self._ordinal}", int(status))
        finally:
            if foreign:
                cuda.cuCtxPopCurrent()
            free.append(frame)

    def _frame(self, count: int) -> tuple[Any, Any, int]:
        """A buffer for the words, and the array of their addresses that the driver takes, with its own."""
        buffer = (ctypes.c_int64 * count)()
        base = ctypes.addressof(buffer)
        addresses = (ctypes.c_void_p * count)(*(base + 8 * slot for slot in range(count)))
        return buffer, addresses, ctypes.addressof(addresses)

    def unload(self) -> None:
        with self._driver.current(self._ordinal):
            self._driver.done(f"cannot unload from cuda:{self._ordinal}", self._driver.cuda.cuModuleUnload(self._module))
