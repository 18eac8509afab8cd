"""Types of what operations compute: each operation is run once on tensors without data, PyTorch's own rules for shapes and dtypes."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from tcjit.byoc.graph import Argument, Node, TensorType, Value
from tcjit.byoc.ops import bind, call, dtype_name, effect_of, operator, results
from tcjit.errors import PartitionError

# extents not known stand for this one first, then for those of the other arguments
_GUESS = 59
_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class unreported:
    """PyTorch logs every operation that cannot be run on tensors without data, with a traceback, even where that is an answer."""

    def __enter__(self) -> None:
        self._heard, _LOG.disabled = _LOG.disabled, True

    def __exit__(self, *error: object) -> None:
        _LOG.disabled = self._heard


class Shapes:
    """Where tensors without data live: extents that are not known are symbols of their own."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self._count = 0

    def extent(self, guess: int) -> Any:
        """An extent not known; operations whose rules must compare it take it for ``guess``."""
        self._count += 1
        source = ConstantSource(f"extent{self._count}")
        symbol = self.env.create_symbol(guess, source, dynamic_dim=DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=guess, source=source)

    def integer(self) -> Any:
        """An integer of which nothing is known."""
        return self.env.create_unbacked_symint()

    def number(self) -> Any:
        """A floating number of which nothing is known."""
        return self.env.create_unbacked_symfloat()

    def tensor(self, kind: TensorType, guess: int = _GUESS) -> torch.Tensor | None:
        """A tensor of a type, contiguous, None where dtype or rank is not known."""
        dtype = getattr(torch, kind.dtype or "none", None)
        if kind.shape is None or not isinstance(dtype, torch.dtype):
            return None
        with self.mode:
            shape = [self.extent(guess) if extent is None else extent for extent in kind.shape]
            return torch.empty(shape, dtype=dtype, device=kind.device or "cpu")

    def like(self, tensor: torch.Tensor, unknown: Sequence[int] = ()) -> torch.Tensor:
        """A tensor of the dtype, shape, strides and device of one with data; ``unknown`` dimensions are symbols."""
        with self.mode:
            if not unknown:
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            shape = [self.extent(max(extent, 2)) if dim in unknown else extent for dim, extent in enumerate(tensor.shape)]
            order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride()[dim], dim))
            return torch.empty([shape[dim] for dim in order], dtype=tensor.dtype, device=tensor.device).permute(
                [order.index(dim) for dim in range(tensor.dim())]
            )

    def run(self, op: str, overload: str, arguments: Mapping[str, Any]) -> list[Any]:
        """An operation on tensors without data; raises what PyTorch raises where its rule does not apply."""
        found, args, kwargs = call(op, overload, arguments)
        with unreported(), self.mode, torch.no_grad():
            return results(found, found(*args, **kwargs))


def type_of(value: Any) -> TensorType | None:
    """The type of a tensor, with or without data: extents that are no numbers are not known. None for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    shape = tuple(extent if isinstance(extent, int) else None for extent in value.shape)
    device = value.fake_device if isinstance(value, FakeTensor) else value.device
    return TensorType(dtype_name(value.dtype), shape, device.type if device.index in (None, 0) else str(device))


def result_types(op: str, overload: str, arguments: Mapping[str, Argument]) -> tuple[TensorType | None, ...]:
    """The types of an operation's results, from those of the values among its arguments; None for what is no tensor.

    An extent is None where that depends on one that is. Where PyTorch has no rule, or it does not apply, dtype and rank are not known.
    Raises PartitionError for operators or arguments that do not exist, and where the types are all known and do not fit.
    """
    found = operator(op, overload)
    kinds = [value.type for argument in arguments.values() for value in _values(argument)]
    extents = [extent for kind in kinds if kind is not None for extent in kind.shape or () if extent is not None and extent > 1]
    known = all(kind is not None and kind.known for kind in kinds)
    for guess in (_GUESS,) if known else dict.fromkeys((_GUESS, *extents)):
        shapes = Shapes()
        made: dict[Value, Any] = {}
        try:
            given = {name: _fake(each, shapes, made, guess) for name, each in arguments.items()}
            return tuple(map(type_of, shapes.run(op, overload, given)))
        except PartitionError:
            raise
        except _Unknown:
            break
        except Exception as error:
            if known and is_refusal(error):
                words = ", ".join(f"%{value.name}: {value.type}" for argument in arguments.values() for value in _values(argument))
                raise PartitionError(f"{op}.{overload} cannot take {words or arguments}: {str(error).splitlines()[0]}") from error
    return tuple(TensorType() if "Tensor" in str(each.type) else None for each in found._schema.returns)


def make(
    op: str, overload: str, arguments: Mapping[str, Argument], *, name: str, outputs: Sequence[TensorType | None] | None = None
) -> Node:
    """A new node: defaults filled, types inferred unless given, effect from the schema. Its results are ``name``, or ``name_0``, ...

    Raises PartitionError where operator or arguments do not exist or do not fit.
    """
    found = operator(op, overload)
    filled = bind(found, (), arguments)
    kinds = result_types(op, overload, filled) if outputs is None else tuple(outputs)
    names = [name] if len(kinds) == 1 else [f"{name}_{place}" for place in range(len(kinds))]
    values = tuple(Value(each, kind, position=place) for place, (each, kind) in enumerate(zip(names, kinds)))
    node = Node(op, overload, filled, values, effect_of(found, filled))
    for value in values:
        value.producer = node
    return node


class _Unknown(Exception):
    """A tensor among the arguments of which too little is known."""


def _values(argument: Any) -> list[Value]:
    if isinstance(argument, tuple):
        return [value for each in argument for value in _values(each)]
    return [argument] if isinstance(argument, Value) else []


def _fake(argument: Argument, shapes: Shapes, made: dict[Value, Any], guess: int) -> Any:
    if isinstance(argument, tuple):
        return [_fake(each, shapes, made, guess) for each in argument]
    if not isinstance(argument, Value):
        return argument
    if argument not in made:
        found = shapes.integer() if argument.type is None else shapes.tensor(argument.type, guess)
        if found is None:
            raise _Unknown
        made[argument] = found
    return made[argument]


def is_refusal(error: Exception) -> bool:
    """Whether an operation failed for its arguments rather than for want of a rule."""
    no_rule = isinstance(error, NotImplementedError) or type(error).__module__.startswith(("torch._subclasses", "torch.fx"))
    return isinstance(error, (RuntimeError, TypeError, IndexError, ValueError)) and not no_rule
