"""The checks of a call, in the order of the language's "Call-time checks", before anything is compiled or run."""
from __future__ import annotations

import inspect
import keyword
import math
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from tcjit.checked import brief
from tcjit.dataclass import dataclass
from tcjit.errors import ArgumentError, ShapeError, TCError
from tcjit.grammar.ast import Param
from tcjit.grammar.bind import bind
from tcjit.grammar.dtypes import DTYPES, FORMATS
from tcjit.jit.signature import Output, Signature, describe
from tcjit.layout import self_overlap
from tcjit.runtime import tensors
from tcjit.runtime.numerics import rounded

if TYPE_CHECKING:
    from tcjit.jit.targets import Target

Value: TypeAlias = "int | float | bool"  # a deferred scalar is a tensor without dimensions


@dataclass(frozen=True)
class BoundArguments:
    """Arguments that fit: tensors by parameter in order, scalars by name, the value of every size and specialised scalar."""

    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Value]
    values: dict[str, int]

    @property
    def specialised(self) -> dict[str, int]:
        """The scalars that are part of a kernel's key."""
        return {name: int(value) for name, value in self.scalars.items() if name in self.values}

    @property
    def devices(self) -> list[str]:
        """Where the tensors are."""
        return [tensors.device_of(tensor) for tensor in self.tensors.values()]


def positional(signature: Signature, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, of those given by position and by name; an ArgumentError as Python's for wrong ones."""
    names = [param.name for param in signature.params]
    rest = names[len(args) :]
    for name in named:
        if name not in names:
            what = f"{signature.name}() got an unexpected keyword argument {name!r}"
            raise ArgumentError(what, hint=f"{', '.join(names)}, out=, unchecked=")
        if name not in rest:
            raise ArgumentError(f"{signature.name}() got multiple values for argument {name!r}", hint=str(signature))
    missing = [name for name in rest if name not in named]
    if missing:
        raise ArgumentError(f"{signature.name}() misses {', '.join(missing)}", hint=str(signature))
    return (*args, *(named[name] for name in rest))


def shown(signature: Signature) -> inspect.Signature:
    """What ``inspect.signature`` gives for a def: its own names, then ``out`` and ``unchecked``."""
    taken = {"out", "unchecked", *keyword.kwlist}
    kind = inspect.Parameter
    params = [
        kind(p.name + "_" if p.name in taken else p.name, kind.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor if p.dims else kind.empty)
        for p in signature.params
    ]
    own = [kind("out", kind.KEYWORD_ONLY, default=None), kind("unchecked", kind.KEYWORD_ONLY, default=False)]
    result = torch.Tensor if len(signature.returns) == 1 else tuple[(torch.Tensor,) * len(signature.returns)]  # type: ignore[misc]
    return inspect.Signature([*params, *own], return_annotation=result)


def check(
    signature: Signature,
    args: Sequence[Any],
    target: Target | None = None,
    *,
    shapes_only: bool = False,
    deferred: Container[str] = frozenset(),
) -> BoundArguments:
    """The arguments by name, or the first thing wrong with them: an ArgumentError or a ShapeError.

    ``target`` says where tensors must be, if it was asked for; ``shapes_only`` lets meta tensors mix with others, for compiling. Scalars
    in ``deferred`` may be tensors whose values are not read.
    """
    params = signature.params
    if len(args) != len(params):
        wanted, were = f"{len(params)} argument{'s' * (len(params) != 1)}", "was" if len(args) == 1 else "were"
        raise ArgumentError(f"{signature.name}() takes {wanted} but {len(args)} {were} given", hint=str(signature))
    inputs: dict[str, torch.Tensor] = {}
    scalars: dict[str, Value] = {}
    unread: set[str] = set()
    for number, (param, value) in enumerate(zip(params, args), 1):
        what = f"argument {number} of {signature.name}(), {describe(param)},"
        if param.dims:
            inputs[param.name] = _tensor(what, param, value, target)
        elif param.name in deferred and isinstance(value, torch.Tensor):
            scalars[param.name] = _without_dimensions(what, value)
            unread.add(param.name)
        else:
            scalars[param.name] = scalar(what, param.dtype, value)
    if len({device for tensor in inputs.values() if (device := tensors.device_of(tensor)) != "meta" or not shapes_only}) > 1:
        devices = ", ".join(f"{name} on {tensor.device}" for name, tensor in inputs.items())
        raise ArgumentError(f"the arguments of {signature.name}() are on different devices: {devices}", hint="move them with .to(device)")
    values = dict(bind(params, [tuple(inputs[p.name].shape) if p.dims else None for p in params]))
    values.update({name: int(value) for name, value in scalars.items() if name in signature.specialised and name not in unread})
    return BoundArguments(inputs, scalars, values)


def imported(signature: Signature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with tensors on the memory of arrays that speak DLPack, as NumPy's and JAX's do; the same tuple without any."""
    known = (hasattr(type(value), "__dlpack__") and not isinstance(value, torch.Tensor) for value in args)
    arrays = [bool(param.dims) and is_array for param, is_array in zip(signature.params, known)]
    if not any(arrays):
        return args
    names = (f"argument {number} of {signature.name}(), {describe(param)}," for number, param in enumerate(signature.params, 1))
    return (*(_imported(what, v) if is_array else v for what, v, is_array in zip(names, args, arrays)), *args[len(arrays) :])


def _imported(what: str, array: Any) -> torch.Tensor:
    if isinstance(array, np.ndarray) and min(array.strides, default=0) < 0:  # torch aborts
        raise ArgumentError(f"{what} has negative strides", hint="numpy.ascontiguousarray(x)")
    try:
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    except Exception as error:  # arrays each refuse in their own way
        raise ArgumentError(f"{what} cannot be read through DLPack: {_first_line(error)}", hint="a torch.Tensor") from error
    if tensor.device.type == "cpu" and tensor.data_ptr() % tensor.element_size():
        raise ArgumentError(f"{what} is not aligned", hint="a copy of it")
    return tensor


def _tensor(what: str, param: Param, value: Any, target: Target | None) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{what} must be a torch.Tensor, not {_kind(value)}", hint=f"a tensor of {len(param.dims)} dimensions")
    try:
        _strided(what, param, value, target)
    except TCError:
        raise
    except Exception as error:  # uninitialised parameters, and subclasses that refuse to tell
        raise ArgumentError(f"{what} cannot be read: {_first_line(error)}", hint="a plain tensor") from error
    return value


def _strided(what: str, param: Param, value: torch.Tensor, target: Target | None) -> None:
    wanted = tensors.TORCH[param.dtype]
    if value.is_nested:
        raise ArgumentError(f"{what} cannot be a nested tensor", hint="torch.nested.to_padded_tensor(x, 0.0)")
    if value.dtype != wanted:
        raise ArgumentError(f"{what} must have dtype {wanted}, not {value.dtype}", hint=_conversion(value.dtype, wanted))
    if value.layout != torch.strided:
        raise ArgumentError(f"{what} must be a strided tensor, not {value.layout}", hint="x.to_dense()")
    if value.dim() != len(param.dims):
        raise ArgumentError(f"{what} must have {len(param.dims)} dimensions, not {value.dim()}: its shape is {tuple(value.shape)}")
    types = (target.device_type,) if target is not None and target.device_type else tensors.DEVICE_TYPES
    if value.device.type not in (*types, "meta"):
        who = f"target {target.name}" if target is not None else "tcjit"
        raise ArgumentError(f"{what} is on {value.device}, and {who} works on {' and '.join(types)} tensors", hint=f'x.to("{types[0]}")')
    _refuse_freed(what, value)


def _conversion(dtype: torch.dtype, wanted: torch.dtype) -> str:
    if dtype.is_complex:
        return "x.real and x.imag as two arguments"
    if "q" in str(dtype).removeprefix("torch.")[:2]:
        return "x.dequantize()"
    return f"x.to({wanted})"


def _kind(value: Any) -> str:
    kind = type(value)
    return "None" if value is None else kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# ---------------------------------------------------------------- scalars


def scalar(what: str, dtype: str, value: Any) -> Value:
    """The value of a scalar argument as the parameter's type holds it; an ArgumentError when the type cannot.

    Floats round to the type, as Python's floats do everywhere in PyTorch; integers and bools are never changed.
    """
    if isinstance(value, torch.Tensor):
        value = _item(what, value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value  # type: ignore[return-value]
    kind = DTYPES[dtype].kind
    if isinstance(value, bool):
        if kind == "bool":
            return value
    elif isinstance(value, int) and kind != "bool":
        held = _exact_float(value, dtype) if kind == "float" else _exact_integer(value, dtype)
        if held is not None:
            return held
    elif isinstance(value, float) and kind != "bool":
        if kind != "float":
            if value.is_integer() and (exact := _exact_integer(int(value), dtype)) is not None:
                return exact
        elif not math.isinf(result := _rounded(value, dtype)) or math.isinf(value):
            return result
    elif not isinstance(value, (int, float)):
        raise ArgumentError(f"{what} must be a number, not {_kind(value)}", hint="a Python number or a 0-dimensional tensor")
    raise ArgumentError(f"{what} cannot be {brief(value)}: {dtype} does not hold it exactly", hint=_range(dtype))


def _item(what: str, value: torch.Tensor) -> Any:
    value = _without_dimensions(what, value)
    _refuse_gradient(what, value)
    try:
        return value.item()
    except Exception as error:  # meta, fake and batched tensors each refuse in their own way
        raise ArgumentError(f"{what} has no value that can be read: {_first_line(error)}", hint="a Python number") from error


def _without_dimensions(what: str, value: torch.Tensor) -> Any:
    if value.dim() != 0:
        raise ArgumentError(f"{what} must be a number, not a tensor of {value.dim()} dimensions", hint="a number or a 0-dimensional tensor")
    return value


def _exact_integer(value: int, dtype: str) -> int | None:
    kind = DTYPES[dtype]
    return value if kind.least <= value <= kind.greatest else None


def _exact_float(value: int, dtype: str) -> float | None:
    try:
        result = _rounded(float(value), dtype)
    except OverflowError:
        return None
    return result if math.isfinite(result) and int(result) == value else None


def _rounded(value: float, dtype: str) -> float:
    with np.errstate(over="ignore"):
        return float(rounded(np.asarray(value), dtype))


def _range(dtype: str) -> str:
    kind = DTYPES[dtype]
    if kind.kind == "bool":
        return "True or False"
    if kind.kind == "float":
        return f"a float up to {FORMATS[dtype].greatest:g}, or an integer that {dtype} represents"
    return f"a whole number from {kind.least} to {kind.greatest}"


def pattern(value: Value, dtype: str) -> int:
    """The 64 bits that a kernel gets for a scalar, as a signed integer: floats as a double, unsigned integers zero-extended.

    >>> pattern(1.0, "float32") == 0x3FF0000000000000, pattern(2**64 - 1, "uint64")
    (True, -1)
    """
    if DTYPES[dtype].kind == "float":
        return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])
    bits = int(value) & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits


# ---------------------------------------------------------------- gradients and outputs


def refuse_gradients(signature: Signature, inputs: Mapping[str, Any]) -> None:
    """An ArgumentError where the result would be cut from a graph that the caller is building."""
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            _refuse_gradient(f"argument {name} of {signature.name}()", value)


def _refuse_gradient(what: str, value: torch.Tensor) -> None:
    if how := _followed(value):
        raise ArgumentError(f"{what} {how}, and no gradient passes here", hint="the def itself, torch.no_grad(), or x.detach()")


def _followed(value: torch.Tensor) -> str:
    """How differentiation follows a tensor; empty where it does not."""
    return "requires grad" if torch.is_grad_enabled() and value.requires_grad else "has a tangent" if tensors.tangent(value) else ""


def refuse_gradients_with_out(signature: Signature, values: Iterable[Any]) -> None:
    """An ArgumentError where differentiation follows an argument, or an output that is given: in PyTorch's words."""
    for value in values:
        if isinstance(value, torch.Tensor) and (how := _followed(value)):
            raise ArgumentError(
                f"{signature.name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
                f"{how}",
                hint="no out=, or a call under torch.no_grad()",
            )


def refuse_tangents(signature: Signature, values: Iterable[Any]) -> None:
    """An ArgumentError where forward mode follows an argument of the operator: torch would take the tangents of its results to be zero."""
    if any(isinstance(value, torch.Tensor) and tensors.tangent(value) for value in values):
        raise ArgumentError(
            f"an argument of the operator of {signature.name}() has a tangent, and forward mode does not pass through operators",
            hint=f"{signature.name}(...) itself, a call under torch.func.jvp, or reverse mode",
        )


def outputs(
    signature: Signature, out: Any, bound: BoundArguments, shapes: Sequence[tuple[int, ...]], target: Target
) -> list[torch.Tensor] | None:
    """The tensors passed as ``out=`` in the order of the returns; None when none were.

    ArgumentError for a wrong number, kind, dtype or device, memory shared with an argument or among themselves; ShapeError for a
    wrong shape.
    """
    returns = signature.returns
    if out is None:
        if signature.accumulates:
            raise ArgumentError(
                f"{signature.name}() adds to the values of {', '.join(signature.accumulates)}, which must be passed",
                hint=f"out=({', '.join(r.name for r in returns)}), or +=! in the text to start from nothing",
            )
        return None
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(outs) != len(returns):
        raise ArgumentError(f"out= of {signature.name}() must be {_count(len(returns))}, not {_count(len(outs))}")
    device = next(iter(bound.devices), target.device)
    for output, shape, tensor in zip(returns, shapes, outs):
        _output(f"out= of {signature.name}() for {output.name}", output, shape, device, tensor)
    refuse_gradients_with_out(signature, [*bound.tensors.values(), *bound.scalars.values(), *outs])
    _separate(signature, outs, bound)
    return outs


def _count(number: int) -> str:
    return "one tensor" if number == 1 else f"a tuple of {number} tensors"


def _output(what: str, output: Output, shape: tuple[int, ...], device: str, tensor: Any) -> None:
    wanted = tensors.TORCH[output.dtype]
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{what} must be a torch.Tensor, not {_kind(tensor)}", hint=f"torch.empty({shape}, dtype={wanted})")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ArgumentError(f"{what} must be a strided tensor", hint=f"torch.empty({shape}, dtype={wanted})")
    if tensor.dtype != wanted:
        raise ArgumentError(f"{what} must have dtype {wanted}, not {tensor.dtype}", hint=f"torch.empty({shape}, dtype={wanted})")
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(f"{what} must have shape {tuple(shape)}, not {tuple(tensor.shape)}", hint=f"torch.empty({shape}, dtype={wanted})")
    if tensors.device_of(tensor) != device:
        raise ArgumentError(f"{what} is on {tensor.device}, and the arguments are on {device}", hint=f'x.to("{device}")')
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise ArgumentError(f"{what} is an inference tensor, which cannot be written outside inference mode", hint="x.clone()")
    _refuse_freed(what, tensor)


def _refuse_freed(what: str, tensor: torch.Tensor) -> None:
    if tensors.freed(tensor):
        raise ArgumentError(f"{what} has no memory: its storage was freed", hint="a tensor whose storage was not resized")


def _separate(signature: Signature, outs: Sequence[torch.Tensor], bound: BoundArguments) -> None:
    """ArgumentErrors for outputs that overlap themselves, one another or an input; compared by address ranges."""
    returns = [output.name for output in signature.returns]
    for position, (name, tensor) in enumerate(zip(returns, outs)):
        if self_overlap(tensor.shape, tensor.stride()):
            raise ArgumentError(f"out= of {signature.name}() for {name} has elements that share memory", hint="x.clone()")
        if not tensors.plain(tensor):
            continue
        others = {**bound.tensors, **dict(zip(returns[:position], outs))}
        for other, there in others.items():
            if tensors.plain(there) and tensors.overlap(tensor, there):
                raise ArgumentError(
                    f"out= of {signature.name}() for {name} overlaps the memory of {other}", hint=f"out= of its own, or {other}.clone()"
                )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def wrapped(signature: Signature, error: Exception) -> TCError:
    """An exception of torch's dispatcher as an ArgumentError."""
    return ArgumentError(
        f"torch could not call {signature.name}() on these arguments: {_first_line(error)}", hint="plain tensors, outside transforms"
    )
