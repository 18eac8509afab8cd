"""Large tensors in memory that is warm: the storages of tensors that have died are handed out again.

What malloc gives for a large tensor is often new to the process: it maps more than 32 MB anew each time, and gives what is free at the end
of its heap back to the system. Each page is a fault at its first write then, which takes longer than computing most results. A pool keeps a
reference to the storages of the tensors that it makes. One that nothing else refers to is what a dead tensor left: the next one of as
many bytes takes it. The tensors are ordinary ones, each on a storage of its own, of its size and out of torch's allocator: they can be
viewed, pickled, resized and shared. A storage that was resized or shared is not handed out again.
"""
from __future__ import annotations

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Sequence
from math import prod

import torch

from tcjit import config
from tcjit.dataclass import dataclass

HUGE_PAGE = 2 << 20  # bytes
LEAST = 2 * HUGE_PAGE  # of a tensor that is large: there is a whole huge page in it, wherever it begins
IDLE_S = 10.0  # a storage that is left for so long is given back, as by jemalloc
_MADV_HUGEPAGE = 14
_OWN_REFERENCES = 3  # to a storage that nothing else refers to, where ``_Lease.unused`` counts: the block's, the variable's, the argument's
_use_count = getattr(torch._C, "_storage_Use_Count", None)  # of a storage, by tensors and others; without it nothing is pooled


@dataclass(slots=True)
class _Lease:
    """A storage that was made for a tensor: its address and bytes then, and when it was last handed out."""

    storage: torch.UntypedStorage
    address: int
    bytes: int
    used: float

    def unused(self) -> torch.UntypedStorage | None:
        """The storage if nothing else refers to it; whoever has got it is the only one until they let go of it."""
        storage = self.storage
        if sys.getrefcount(storage) != _OWN_REFERENCES or _use_count(storage._cdata) != 1 or weakref.getweakrefcount(storage):  # type: ignore[misc]
            return None
        return storage

    def usual(self) -> bool:
        """Whether the storage is still what torch's allocator gave, neither resized nor moved to memory that is shared."""
        return self.storage.data_ptr() == self.address and self.storage.nbytes() == self.bytes


class StoragePool:
    """Storages for large tensors on the CPU, those in use among them, of no more bytes than the setting allows.

    Nothing is locked: the blocks are replaced as a whole, and a thread that does so may lose the block that another has just added, which
    dies with its tensor then. The bound and what is idle are looked at when a storage is made, and by calls every ``IDLE_S`` seconds.
    """

    def __init__(self) -> None:
        self._blocks: tuple[_Lease, ...] = ()
        self._trimmed = 0.0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of undefined content; torch's RuntimeError where there is no memory."""
        size, now = prod(shape) * dtype.itemsize, time.monotonic()
        if now - self._trimmed > IDLE_S:
            self._trim(now)
        for block in self._blocks:
            if block.bytes == size and (storage := block.unused()) is not None and block.usual():
                block.used = now
                tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape)  # type: ignore[call-overload]
                if not tensor.is_inference():  # a new tensor has version 0
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (0,))
                return tensor  # type: ignore[no-any-return]
        return self._new(tuple(shape), dtype, size, now)

    def like(self, template: torch.Tensor) -> torch.Tensor:
        """A tensor with the shape and the dtype of another."""
        return self.empty(template.shape, template.dtype)

    def scratch(self, size: int) -> torch.Tensor:
        """So many bytes."""
        return self.empty((size,), torch.uint8)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor is the pool's, for the next one when it dies."""
        address = tensor.untyped_storage().data_ptr()
        return any(block.address == address and block.usual() for block in self._blocks)

    def clear(self) -> None:
        """Keep nothing: what is unused is free at once, what is in use when its tensor dies."""
        self._blocks = ()

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype, size: int, now: float) -> torch.Tensor:
        kept = size <= config.pool_size() and _use_count is not None
        self._trim(now, size if kept else 0)
        try:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
        except RuntimeError:
            if not self._blocks:
                raise
            self.clear()
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
        storage = tensor.untyped_storage()
        use_huge_pages(storage.data_ptr(), size)
        if kept:
            self._blocks = (*self._blocks, _Lease(storage, storage.data_ptr(), size, now))
        return tensor

    def _trim(self, now: float, room: int = 0) -> None:
        """Forget what is idle or no usual storage any more, and then what was handed out first, until there is room below the bound."""
        self._trimmed = now
        kept = [block for block in self._blocks if block.usual() and (now - block.used <= IDLE_S or block.unused() is None)]
        kept.sort(key=lambda block: block.used)
        surplus = sum(block.bytes for block in kept) + room - config.pool_size()
        while kept and surplus > 0:
            surplus -= kept.pop(0).bytes
        self._blocks = tuple(kept)


def use_huge_pages(address: int, size: int) -> None:
    """Let the system back new memory with huge pages, where whole ones lie in it: there are 512 times fewer faults."""
    first, end = -(-address // HUGE_PAGE) * HUGE_PAGE, (address + size) // HUGE_PAGE * HUGE_PAGE
    if sys.platform == "linux" and first < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)  # a hint: refusals are no errors


POOL = StoragePool()
os.register_at_fork(after_in_child=POOL.clear)
