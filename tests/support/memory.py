"""Tensors at the ends of the memory that a kernel may touch."""

from __future__ import annotations

import ctypes
import mmap

import torch

from support.tile_vectors import Pages


def beside_a_guard(given: torch.Tensor, end: bool) -> torch.Tensor:
    """The same elements beside a page that nobody may touch."""
    size = given.numel() * given.element_size()
    page = Pages(-(-size // mmap.PAGESIZE))
    memory = (ctypes.c_char * size).from_address(page.end - size if end else page.start)
    return torch.frombuffer(memory, dtype=given.dtype).view(given.shape).copy_(given)
