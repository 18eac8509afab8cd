"""What the calling convention needs to know of a torch tensor: its memory, and whether a kernel may read it as it stands."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from tcjit.errors import LaunchError, TCError
from tcjit.grammar.dtypes import DTYPES
from tcjit.runtime import launcher, storage_pool

TORCH: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH.items()}
_CODES = {"signed": 0, "unsigned": 1, "float": 2, "bool": 6}  # DLPack's; bfloat16 has a code of its own
_BFLOAT = 4

_modes_before_dispatch: Callable[[], int] = torch._ops._len_torch_dispatch_stack_pre_dispatch


def codes(dtype: str) -> tuple[int, int]:
    """DLPack's code and bits of a scalar type."""
    kind = DTYPES[dtype]
    return (_BFLOAT if dtype == "bfloat16" else _CODES[kind.kind]), kind.bytes * 8


# ---------------------------------------------------------------- state


TYPES = (torch.Tensor, torch.nn.Parameter)  # torch's own types of tensors, all of whose behaviour is known
DEVICE_TYPES = ("cpu", "cuda")  # the types of device on which a kernel can run
QUEUED = ("cuda",)  # those that run what they are given while the host goes on


def device_of(tensor: torch.Tensor) -> str:
    """The device of a tensor: ``cpu``, ``meta``, or a device with its number, as in ``cuda:0``."""
    return "cpu" if tensor.device.type == "cpu" else str(tensor.device)


@lru_cache(maxsize=len(DEVICE_TYPES))
def _plain_keys(device: str) -> frozenset[int]:
    """The dispatch keys of a tensor on such a device with nothing special about it, made in and out of inference mode."""
    # the first call may be inside a transform or a mode; where there is none, torch's modules for modes stay unread
    modes = torch._C._len_torch_dispatch_stack() or _modes_before_dispatch()
    with _disable_current_modes() if modes else nullcontext(), torch._C._DisableFuncTorch():
        with torch.inference_mode(False):
            usual = torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()
        with torch.inference_mode():
            inference = torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()
    return frozenset((usual, inference))


def plain_state() -> bool:
    """No dispatch, function or functorch mode, no tracing and no level of forward differentiation in this thread."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._is_torch_function_mode_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and forward_ad._current_level < 0
    )


def plain(tensor: torch.Tensor) -> bool:
    """A strided tensor of torch's own types in memory that kernels reach, without lazy bits, wrappers or missing memory.

    >>> x = torch.ones(2)
    >>> plain(x), plain(torch._neg_view(x)), plain(x.to("meta"))
    (True, False, False)
    """
    return _ordinary(tensor) and (tensor.numel() == 0 or tensor.data_ptr() != 0)


def readable(value: object) -> bool:
    """False for a tensor without dimensions that may have a value only in a transform, or for a tracer."""
    return not isinstance(value, torch.Tensor) or value.dim() != 0 or value.device.type == "meta" or plain(value)


def number(value: object) -> object:
    """The number in a tensor without dimensions; anything else as it is."""
    return value.item() if isinstance(value, torch.Tensor) and not value.dim() and plain(value) else value


def queued(value: object) -> bool:
    """Whether a value is a tensor without dimensions, and reading it waits for a device."""
    return isinstance(value, torch.Tensor) and not value.dim() and value.device.type in QUEUED and plain(value)


def freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor that should have memory has none: its storage was resized to nothing."""
    return _ordinary(tensor) and tensor.numel() != 0 and tensor.data_ptr() == 0


def _ordinary(tensor: torch.Tensor) -> bool:
    if type(tensor) not in TYPES or tensor.layout != torch.strided or tensor.device.type not in DEVICE_TYPES:
        return False
    return torch._C._dispatch_keys(tensor).raw_repr() in _plain_keys(tensor.device.type)


def tangent(tensor: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows the tensor."""
    if not forward_level() or not torch._C._is_fwd_grad_enabled():
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def forward_level() -> bool:
    """Whether there is a level of forward-mode differentiation in this thread."""
    return forward_ad._current_level >= 0


# ---------------------------------------------------------------- memory


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a plain tensor's first byte and of the one after its last; equal for an empty tensor."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory ranges of two plain tensors meet.

    >>> x = torch.ones(4)
    >>> overlap(x[:2], x[1:]), overlap(x[:2], x[2:])
    (True, False)
    """
    (first, end), (other, other_end) = span(a), span(b)
    return first < end and other < other_end and first < other_end and other < end


class OutOfMemory(LaunchError):
    """The allocator has no room for a tensor."""


@contextmanager
def allocating(name: str, shape: Sequence[int], dtype: str, where: str = "cpu") -> Iterator[None]:
    """Around what allocates a tensor: an OutOfMemory that names it where that fails."""
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # torch has all of them for shapes that are too large
        if isinstance(error, TCError):
            raise
        size = prod(shape) * DTYPES[dtype].bytes
        what = f"no memory on {where} for {name} of shape {tuple(shape)} in {dtype}, {size} bytes"
        raise OutOfMemory(what, hint="smaller arguments, or fewer tensors that are kept") from error


def empty(shape: Sequence[int], dtype: str, where: str = "cpu", name: str = "a result") -> torch.Tensor:
    """A tensor of undefined content, out of torch's allocator, or of what dead ones left where it is large; an OutOfMemory without room."""
    with allocating(name, shape, dtype, where):
        if where == "cpu" and prod(shape) * DTYPES[dtype].bytes >= storage_pool.LEAST:
            return storage_pool.POOL.empty(shape, TORCH[dtype])
        return torch.empty(tuple(shape), dtype=TORCH[dtype], device=where)


def template(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """A tensor with shape and dtype but no memory: ``torch.empty_like`` of it is the cheapest way to allocate."""
    with allocating("a result", shape, dtype):
        tensor = torch.empty(tuple(shape), dtype=TORCH[dtype], device="cpu")
    tensor.untyped_storage().resize_(0)
    return tensor


@contextmanager
def one_thread_after_fork() -> Iterator[None]:
    """For torch's own work on large tensors: in a forked child its threads are gone, and waiting for them would hang."""
    before = torch.get_num_threads()
    if not launcher.forked() or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bump(tensor: torch.Tensor) -> None:
    """Count an in-place write, so that autograd notices a saved tensor that changed."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


# ---------------------------------------------------------------- to NumPy and back, for the reference


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The elements as an array of their own: floats as float64, bools as 0 and 1 whatever their bytes are, the rest as they are."""
    plain_tensor = tensor.detach().resolve_neg()
    if tensor.dtype == torch.bool:
        return np.array(plain_tensor.cpu().view(torch.uint8).numpy() != 0)
    if tensor.dtype.is_floating_point:
        plain_tensor = plain_tensor.to(torch.float64)
    return np.array(plain_tensor.cpu().numpy())


def from_numpy(array: npt.NDArray[Any], dtype: str) -> torch.Tensor:
    """A tensor of ``dtype`` from an array whose values the dtype holds."""
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(TORCH[dtype])


# ---------------------------------------------------------------- what the launcher asks torch


def for_launcher() -> tuple[Any, ...] | None:
    """The arguments of the extension's ``configure``; None where this torch lacks one of them."""
    try:
        return (
            torch.Tensor,
            torch.nn.Parameter,
            torch._C._len_torch_dispatch_stack,
            torch._C._is_torch_function_mode_enabled,
            torch._C._functorch.maybe_current_level,
            torch._C._is_tracing,
            torch.is_grad_enabled,
            torch.get_num_threads,
            torch._C.TensorBase.is_neg,
            torch._C.TensorBase.is_inference,
            torch.empty_like,
            storage_pool.LEAST,
            storage_pool.POOL.like,
            storage_pool.POOL.scratch,
            torch._C._increment_version,
            vars(forward_ad),
            torch.Tensor.__dlpack_c_exchange_api__,
        )
    except AttributeError:
        return None
