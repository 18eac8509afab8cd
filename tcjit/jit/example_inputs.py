"""Random arguments of a def from its sizes, with indices that its gathers accept; checksums of results."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TypeAlias

import torch

from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Def, Expr, Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.runtime.tensors import TORCH, allocating

Scalar: TypeAlias = int | float | bool
Argument: TypeAlias = torch.Tensor | Scalar

SMALL = 9  # integers that index nothing are drawn below this, and from 1: they may divide


def arguments(
    definition: Def, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Scalar], seed: int = 0, device: str = "cpu"
) -> list[Argument]:
    """One argument per parameter: floats from a standard normal, indices inside the tensors that they index, other integers small.

    ``shapes`` holds every tensor parameter, ``scalars`` every parameter without dimensions. A seed means the same values on any
    ``device``.
    """
    generator = torch.Generator().manual_seed(seed)
    indexed = _indexed(definition, shapes)

    def drawn(param: Param) -> Argument:
        if not param.dims:
            return scalars[param.name]
        with allocating(param.name, shapes[param.name], param.dtype, device):
            return _tensor(param, shapes[param.name], indexed.get(param.name), generator).to(device)

    return [drawn(param) for param in definition.params]


def shape_only(definition: Def, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Scalar]) -> list[Argument]:
    """The same arguments as meta tensors, without memory: enough to compile."""

    def shaped(param: Param) -> Argument:
        if not param.dims:
            return scalars[param.name]
        with allocating(param.name, shapes[param.name], param.dtype, "meta"):  # which counts bytes, too
            return torch.empty(shapes[param.name], dtype=TORCH[param.dtype], device="meta")

    return [shaped(param) for param in definition.params]


def checksum(tensor: torch.Tensor) -> str:
    """CRC-32 of the elements' bytes in row-major order, as eight hexadecimal digits: equal for bit-identical results.

    >>> checksum(torch.arange(3)) == checksum(torch.tensor([0, 1, 2]))
    True
    """
    data = tensor.detach().cpu().contiguous().reshape(-1)
    return f"{zlib.crc32(data.view(torch.uint8).numpy().tobytes()):08x}"


def total(tensor: torch.Tensor) -> float:
    """The sum of the elements, in float64."""
    return float(tensor.detach().double().sum())


def _tensor(param: Param, shape: tuple[int, ...], below: int | None, generator: torch.Generator) -> torch.Tensor:
    dtype, kind = TORCH[param.dtype], DTYPES[param.dtype].kind
    if kind == "float":
        return torch.randn(shape, generator=generator).to(dtype)
    if kind == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    low, high = (1, SMALL) if below is None else (0, max(1, below))
    return torch.randint(low, min(high, DTYPES[param.dtype].greatest + 1), shape, generator=generator).to(dtype)


def _indexed(definition: Def, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """For each integer input read inside a subscript, the least extent that it indexes, as far as inputs tell."""
    extents: dict[str, int] = {}
    sizes = {dim: extent for p in definition.params if p.dims for dim, extent in zip(p.dims, shapes[p.name]) if isinstance(dim, str)}

    def indexing(subscript: Expr, extent: int) -> None:
        for inner in walk(subscript):
            if isinstance(inner, Access):
                extents[inner.tensor] = min(extent, extents.get(inner.tensor, extent))

    for s in definition.statements:
        for access in (node for e in (*s.subscripts, s.value, *s.exists) for node in walk(e)):
            if isinstance(access, Access) and access.tensor in shapes:
                for extent, subscript in zip(shapes[access.tensor], access.subscripts):
                    indexing(subscript, extent)
        for position in s.targets:
            size = polynomial.integer(definition.tensor(s.tensor).shape[position], sizes)
            if isinstance(size, int):
                indexing(s.subscripts[position], size)
    return extents
