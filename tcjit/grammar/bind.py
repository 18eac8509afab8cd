"""The sizes of a call, from the shapes of its arguments."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tcjit.errors import ArgumentError, ShapeError
from tcjit.grammar.ast import Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.extents import sizes as size_names


def bind(params: Sequence[Param], shapes: Sequence[tuple[int, ...] | None]) -> dict[str, int]:
    """The value of every size; ``shapes`` are those of the arguments in order, None for a scalar.

    The first argument that has a size as an extent gives its value. Raises ArgumentError for a wrong number of shapes,
    ShapeError for a wrong rank, an extent other than the number in the type, or two arguments that disagree on a size.

    >>> bind([Param("A", "float32", ("M", "K")), Param("B", "float32", ("K", 3))], [(5, 4), (4, 3)])
    {'M': 5, 'K': 4}
    """
    if len(params) != len(shapes):
        raise ArgumentError(f"{len(params)} arguments wanted, {len(shapes)} given", hint=", ".join(param.name for param in params))
    shapes = [None if shape is None else tuple(shape) for shape in shapes]  # torch.Size prints otherwise
    for param, shape in zip(params, shapes):
        if len(param.dims) != len(shape or ()) or (param.dims and shape is None):
            given = "a scalar" if shape is None else f"{len(shape)}: {shape}"
            wanted = ", ".join(map(str, param.dims))
            raise ShapeError(
                f"`{param.name}` has {len(param.dims)} dimensions, and the argument has {given}",
                where=param.where,
                hint=f"a shape of ({wanted})",
            )
    for param, shape in zip(params, shapes):
        for position, (dim, extent) in enumerate(zip(param.dims, shape or ())):
            if isinstance(dim, int) and dim != extent:
                what = f"dimension {position} of `{param.name}` is {dim}, and the argument {shape} has {extent}"
                raise ShapeError(what, where=param.where, hint=f"an argument with {dim} there")
    names = size_names(params)
    sizes: dict[str, int] = {}
    givers: dict[str, tuple[str, int, tuple[int, ...]]] = {}
    for param, shape in zip(params, shapes):
        for position, (dim, extent) in enumerate(zip(param.dims, shape or ())):
            if isinstance(dim, int) or dim not in names:  # other expressions are compared once all sizes are known
                continue
            if sizes.setdefault(dim, extent) != extent:
                name, before, other = givers[dim]
                raise ShapeError(
                    f"the size {dim} is {sizes[dim]} in dimension {before} of `{name}` {other},"
                    f" and {extent} in dimension {position} of `{param.name}` {shape}",
                    where=param.where,
                    sizes=sizes,
                    hint=f"arguments with one extent for {dim}",
                )
            givers.setdefault(dim, (param.name, position, shape or ()))
    return sizes


def refuse_beyond(name: str, shape: Sequence[int], dtype: str, sizes: Mapping[str, int]) -> None:
    """A ShapeError for a tensor, or a range, of more bytes than 64-bit addresses count."""
    if prod(max(1, extent) for extent in shape) * DTYPES[dtype].bytes >= 1 << 63:
        what = f"{name} would have shape {tuple(shape)} in {dtype}, which is beyond 64-bit addresses"
        raise ShapeError(what, sizes=sizes, hint="smaller sizes or scalars")
