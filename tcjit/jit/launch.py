"""Which kernel a call needs, and the numbers that it is launched with beside its tensors."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Param
from tcjit.grammar.bind import bind
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import arguments, targets
from tcjit.jit.arguments import BoundArguments, Value
from tcjit.jit.signature import Signature, evaluate

if TYPE_CHECKING:
    from tcjit.mapping.options import Options


@dataclass(frozen=True)
class Key:
    """What distinguishes the kernels of one def: shapes and layouts of the tensor arguments, specialised scalars, and how to compile.

    ``dynamic`` are sizes with the least and greatest value that one kernel serves; ``shapes`` are then the largest. In a pickle the target
    is its name and the device of its tensors.
    """

    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[str, ...]
    scalars: tuple[tuple[str, int], ...]
    checked: bool
    target: targets.Target
    options: Options | None
    dynamic: tuple[tuple[str, int, int], ...] = ()

    @staticmethod
    def of(bound: BoundArguments, checked: bool, target: targets.Target, options: Options | None) -> Key:
        """The key of a call."""
        inputs = bound.tensors.values()
        shapes = tuple(tuple(map(int, tensor.shape)) for tensor in inputs)
        layouts = tuple(target.layout(shape, tensor.stride()) for shape, tensor in zip(shapes, inputs))
        return Key(shapes, layouts, tuple(bound.specialised.items()), checked, target.pinned(), options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "target": self.target.name, "device": self.target.device}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        fields = dict(state)
        self.__dict__.update(fields, target=targets.find(fields["target"], fields.pop("device")))

    def widened(self, signature: Signature, dynamic: Mapping[str, tuple[int, int]]) -> Key:
        """The key of the kernel that serves all values of some sizes between two limits, this key's among them."""
        dims = [param.dims for param in signature.params if param.dims]
        known = {dim: extent for named, shape in zip(dims, self.shapes) for dim, extent in zip(named, shape) if isinstance(dim, str)}
        known |= {size: limits[1] for size, limits in dynamic.items()}
        with suppress(ZeroDivisionError):  # which the checks of the call's own shapes tell of
            known |= {text: evaluate(extent, {**known, **dict(self.scalars)}) for text, extent in signature.extents}
        shapes = tuple(tuple(dim if isinstance(dim, int) else known[dim] for dim in named) for named in dims)
        return replace(self, shapes=shapes, dynamic=tuple((size, *dynamic[size]) for size in signature.sizes if size in dynamic))


class CallRecorder(Protocol):
    """How autograd records a call: ``tcjit.jit.recording`` documents it."""

    def record(self, ctx: Any, args: Sequence[Any], every: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class RecordedCall:
    """Calls that are recorded alike: those of one key, with the same arguments that require grad, bit i of ``requires`` for argument i, and
    the same integers, which an adjoint has in its text.

    ``kept`` ``scalars`` ``constants`` are the places, among arguments and then outputs, of what the backward reads and of results without
    derivatives; the first ``returned`` outputs are results. ``prepared(launcher)`` records what the launcher runs, ``record`` any call.
    """

    requires: int
    kept: tuple[int, ...]
    scalars: tuple[int, ...]
    constants: tuple[int, ...]
    returned: int
    recording: CallRecorder
    prepared: Callable[[ModuleType], Callable[..., Any]]
    record: Callable[..., Any]


def integer_values(params: Sequence[Param], scalars: Mapping[str, Any]) -> dict[str, int]:
    """The integers among the scalars of a call."""
    return {p.name: int(scalars[p.name]) for p in params if not p.dims and DTYPES[p.dtype].is_integer}


def runtime_numbers(
    signature: Signature, record: Mapping[str, Any], inputs: Sequence[torch.Tensor], scalars: Mapping[str, Value]
) -> list[int]:
    """The values that a kernel gets beside its tensors, as 64-bit patterns."""
    named = dict(zip((p.name for p in signature.params if p.dims), inputs))
    sizes = sizes_by_position(signature, inputs) if any(kind == "value" for kind, _, _ in record["numbers"]) else {}
    result: list[int] = []
    for kind, name, last in record["numbers"]:
        if kind == "scalar":
            result.append(arguments.pattern(scalars[name], last))
        else:
            result.append(evaluate(last, sizes) if kind == "value" else named[name].stride(last))
    return result


def sizes_by_position(signature: Signature, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The value of every size, by its number among the sizes: the names that the expressions of a record have for them."""
    tensors = iter(inputs)
    values = bind(signature.params, [tuple(next(tensors).shape) if p.dims else None for p in signature.params])
    return {str(number): values[size] for number, size in enumerate(signature.sizes)}
