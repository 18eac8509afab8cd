"""What tcjit asks of the CUDA driver, whichever package calls it, and what the driver's errors mean.

Two packages offer the same few calls, ``cuda_bindings`` and ``cuda_pycuda``; ``cuda`` chooses one for the process. All work in the
primary context of a device, which is torch's, from any thread, and leave a thread's current context as it was.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tcjit.errors import LaunchError

LIBRARY = "libcuda.so.1"
_LOST = (
    "a kernel of this process failed before, and CUDA is lost to the process: start it anew; compute-sanitizer python ... names the kernel"
)
_OTHER_DEVICE = "tcjit.cache.clear(), if the device or the driver changed; a driver loads no code of a later major release of CUDA"
_CAPTURE = "call it once before the capture; under TCJIT_CUDA_DRIVER=cuda-bindings later calls are captured"
HINTS = {
    "CUDA_ERROR_NO_DEVICE": "nvidia-smi, to see why; CUDA_VISIBLE_DEVICES hides devices",
    "CUDA_ERROR_INVALID_DEVICE": "a device that torch.cuda.device_count() counts",
    "CUDA_ERROR_NOT_INITIALIZED": 'multiprocessing.get_context("spawn"): CUDA does not survive a fork',
    "CUDA_ERROR_OUT_OF_MEMORY": "smaller tensors, or torch.cuda.empty_cache()",
    "CUDA_ERROR_INVALID_IMAGE": _OTHER_DEVICE,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": _OTHER_DEVICE,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": _OTHER_DEVICE,
    "CUDA_ERROR_NOT_FOUND": "tcjit.cache.clear(): the compiled code lacks the kernel",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "options with fewer threads per block, or with smaller tiles",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "a restart of the machine, after its driver was updated",
    "CUDA_ERROR_SYSTEM_NOT_READY": "nvidia-smi; on machines with NVSwitch, the fabric manager",
    **dict.fromkeys(
        (
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_INVALID_PC",
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUDA_ERROR_ASSERT",
        ),
        _LOST,
    ),
}


Grid = tuple[int, int, int]  # blocks along x, y and z


class KernelSpec(NamedTuple):
    """One kernel of a cubin and how it is launched; ``dynamic``: bytes of shared memory beside those that it declares."""

    symbol: str
    grid: Grid
    threads: int
    dynamic: int


class KernelAttributes(NamedTuple):
    """A loaded kernel's registers and bytes of local memory per thread, its static shared bytes, and the most threads of a block."""

    registers: int
    local: int
    shared: int
    threads: int


class LoadedCubin(Protocol):
    """The kernels of a cubin in one device."""

    def attributes(self) -> tuple[KernelAttributes, ...]: ...

    def launch(self, stream: int, words: tuple[int, ...], grids: Sequence[Grid] = ()) -> None:
        """Launch every kernel in order, each with ``words`` (64 bits each, pointers and signed numbers) as its parameters.

        ``grids``: the blocks of each kernel, where they are not those that it was loaded with.
        """

    def unload(self) -> None:
        """Take the kernels out of the device. No graph may hold them."""


class Driver(Protocol):
    """The driver's calls. ``stream`` is the address of a stream as torch gives it, 0 for the default one."""

    name: str

    def count(self) -> int:
        """How many devices there are."""

    def properties(self, ordinal: int, numbers: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The name of a device, and its attributes by CUDA's numbers."""

    def load(self, ordinal: int, cubin: bytes, kernels: Sequence[KernelSpec], format: str) -> LoadedCubin:
        """Load a cubin; ``format`` is struct's for the words of a launch."""

    def words(self, ordinal: int, count: int) -> tuple[int, int]:
        """Zeroed 32-bit words of the host that kernels can write, kept for ever: their address here and in the device."""

    def capturing(self, ordinal: int, stream: int) -> bool:
        """Whether what the stream gets is being recorded into a graph."""

    def synchronize(self, ordinal: int) -> None:
        """Wait for all that the device was given."""

    def seconds(self, ordinal: int, stream: int, work: Callable[[], object]) -> float:
        """Seconds, by the device's own clock, of the kernels that ``work`` puts into the stream; waits for them."""


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The driver itself; a LaunchError where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise LaunchError(
            f"there is no CUDA driver: {error}",
            hint="an NVIDIA GPU and its driver (apt install nvidia-driver, dnf install nvidia-driver); in a container --gpus all",
        ) from None


def driver_version() -> tuple[int, int] | None:
    """The release of CUDA that the driver is of; None without a driver."""
    version = ctypes.c_int()
    try:
        if library().cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (LaunchError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def failure(doing: str, code: int) -> LaunchError:
    """The error for a status of the driver: what was attempted, CUDA's name for what happened, and what to try."""
    name, words = described(code)
    hint = _CAPTURE if name.startswith("CUDA_ERROR_STREAM_CAPTURE") else HINTS.get(name, "nvidia-smi and dmesg may tell more")
    return LaunchError(f"{doing}: {name}, {words}", hint=hint)


@functools.cache
def described(code: int) -> tuple[str, str]:
    """CUDA's name for a status, and its words."""
    texts = []
    for function in (library().cuGetErrorName, library().cuGetErrorString):
        text = ctypes.c_char_p()
        unknown = function(code, ctypes.byref(text))
        texts.append("" if unknown or text.value is None else text.value.decode())
    return texts[0] or f"CUDA_ERROR {code}", texts[1] or "a status that this driver does not describe"
