"""PyTorch's operators: found by name, their arguments put in the order of the schema, run, and what they do besides computing.

Numbers that stand for dtypes, layouts and memory formats are those of TorchScript; devices are texts.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import torch

from tcjit.byoc.graph import Argument, Effect
from tcjit.errors import PartitionError

LAYOUTS: dict[torch.layout, int] = {
    torch.strided: 0,
    torch.sparse_coo: 1,
    torch.sparse_csr: 2,
    torch._mkldnn: 3,  # type: ignore[attr-defined]
    torch.sparse_csc: 4,
    torch.sparse_bsr: 5,
    torch.sparse_bsc: 6,
}
FORMATS: dict[torch.memory_format, int] = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
# asked of TorchScript itself, which has the numbers; a tensor of the first would warn
DTYPES: dict[torch.dtype, int] = {torch.complex32: 8} | {
    dtype: torch.ops.prim.dtype.default(torch.empty(0, dtype=dtype, device="meta"))
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    )
}
_BACK: dict[str, dict[int, Any]] = {
    "ScalarTypeType": {number: dtype for dtype, number in DTYPES.items()},
    "LayoutType": {number: layout for layout, number in LAYOUTS.items()},
    "MemoryFormatType": {number: each for each, number in FORMATS.items()},
}

# results that may share memory with an argument though the schema does not say so
_MAY_ALIAS = frozenset(
    "type_as broadcast_tensors meshgrid einsum sum_to_size to_dense _to_cpu data dequantize unsafe_split unsafe_split_with_sizes "
    "unflatten_dense_tensors flatten_dense_tensors _reshape_from_tensor chain_matmul linalg_multi_dot _saturate_weight_to_fp16 "
    "_cast_Byte _cast_Char _cast_Double _cast_Float _cast_Int _cast_Long _cast_Short _cast_Half real resolve_conj resolve_neg".split()
)
# random only if this argument, named, is neither False nor zero
_SWITCHES = {
    **dict.fromkeys(("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"), "train"),
    **dict.fromkeys(("rrelu", "rrelu_with_noise"), "training"),
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"), "dropout_p"),
}
# statistics written while this argument, named, is not False, which no schema says
_STATISTICS = {
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "miopen_batch_norm"), "training"),
    "instance_norm": "use_input_stats",
}
_RUNNING = ("running_mean", "running_var")
_NOT_KNOWN = object()


@lru_cache(None)
def operator(op: str, overload: str) -> torch._ops.OpOverload:
    """The operator of a name such as ``aten.add`` and an overload such as ``Tensor``, or ``default``; raises PartitionError if unknown."""
    space, _, name = op.partition(".")
    try:
        packet = getattr(getattr(torch.ops, space), name)
    except (AttributeError, RuntimeError) as error:
        raise PartitionError(f"PyTorch {torch.__version__} has no operator {op}", hint="load the library that defines it") from error
    try:
        return cast(torch._ops.OpOverload, getattr(packet, overload or "default"))
    except (AttributeError, RuntimeError) as error:
        known = ", ".join(packet.overloads())
        raise PartitionError(f"{op} of PyTorch {torch.__version__} has no overload {overload!r}", hint=f"it has {known}") from error


def plain(value: Any) -> Argument:
    """Something Python has for an argument as a graph has it: lists as tuples, dtypes and the like as numbers, devices as texts.

    What a graph has already, values too, stays as it is.
    """
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise PartitionError(f"{value} is a dtype that graphs do not have")
        return DTYPES[value]
    if isinstance(value, torch.layout):
        return LAYOUTS[value]
    if isinstance(value, torch.memory_format):
        return FORMATS[value]
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (list, tuple, torch.Size)):
        return tuple(map(plain, value))
    return cast(Argument, value)


def bind(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Argument]:
    """The arguments of a call by the names of the schema, in its order, all defaults filled; PartitionError where they do not fit."""
    given, found = dict(kwargs), {}
    places = list(args)
    for argument in overload._schema.arguments:
        if places and not argument.kwarg_only:
            if argument.name in given:
                raise PartitionError(f"{overload} is given {argument.name} twice", hint=f"its schema is {overload._schema}")
            value = places.pop(0)
        elif argument.name in given:
            value = given.pop(argument.name)
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise PartitionError(f"{overload} lacks its argument {argument.name}", hint=f"its schema is {overload._schema}")
        found[argument.name] = plain(value)
    if places or given:
        raise PartitionError(
            f"{overload} takes no {', '.join([*given, *(f'argument number {len(args) - left}' for left in range(len(places)))])}",
            hint=f"its schema is {overload._schema}",
        )
    return found


def call(op: str, overload: str, arguments: Mapping[str, Any]) -> tuple[torch._ops.OpOverload, list[Any], dict[str, Any]]:
    """An operator and its arguments, by position and by name, as Python passes them."""
    found = operator(op, overload)
    args, kwargs = [], {}
    for argument in found._schema.arguments:
        if argument.name not in arguments:
            if not argument.has_default_value():
                raise PartitionError(f"{op}.{overload} lacks its argument {argument.name}", hint=f"its schema is {found._schema}")
            value = argument.default_value
        else:
            value = _as_python(argument.real_type, arguments[argument.name])
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return found, args, kwargs


def run(op: str, overload: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Runs an operation on tensors; its results, a list of them one by one."""
    found, args, kwargs = call(op, overload, arguments)
    return results(found, found(*args, **kwargs))


def results(overload: torch._ops.OpOverload, returned: Any) -> list[Any]:
    """What an operator returned as the outputs of a node: the elements, where it is one list of tensors."""
    kinds = overload._schema.returns
    if len(kinds) == 1 and str(kinds[0].type) != "List[Tensor]":
        return [returned]
    return list(returned) if kinds else []


def effect_of(overload: torch._ops.OpOverload, arguments: Mapping[str, Argument] | None = None) -> Effect:
    """What an operator does besides computing, as far as schema and tags say; ``arguments`` may say that it does not."""
    schema, name = overload._schema, overload._schema.name.partition("::")[2]
    given = arguments or {}
    if any(each.alias_info is not None and each.alias_info.is_write for each in schema.arguments):
        return "mutates"
    if name in _STATISTICS and given.get(_STATISTICS[name], _NOT_KNOWN) is not False:
        if any(given.get(each, _NOT_KNOWN) is not None for each in _RUNNING):
            return "mutates"
    if not schema.returns:
        return "acts"
    switched_off = name in _SWITCHES and _off(given.get(_SWITCHES[name], _NOT_KNOWN))
    if torch.Tag.nondeterministic_seeded in overload.tags and not switched_off:
        return "random"
    if any(each.alias_info is not None for each in schema.returns) or name in _MAY_ALIAS:
        return "view"
    if torch.Tag.maybe_aliasing_or_mutating in overload.tags and name not in _STATISTICS:
        return "view"
    return ""


def written(overload: torch._ops.OpOverload, arguments: Mapping[str, Argument]) -> tuple[str, ...]:
    """The names of the arguments whose memory an operator writes to."""
    schema, name = overload._schema, overload._schema.name.partition("::")[2]
    found = [each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    if name in _STATISTICS and arguments.get(_STATISTICS[name], _NOT_KNOWN) is not False:
        found += [each for each in _RUNNING if each in arguments]
    return tuple(found)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as graphs name it.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def _off(value: object) -> bool:
    return value is False or (isinstance(value, (int, float)) and value == 0)


def _as_python(kind: Any, value: Any) -> Any:
    """An argument of a graph as Python passes it to an operator."""
    while kind.kind() == "OptionalType":
        if value is None:
            return None
        kind = kind.getElementType()
    name = kind.kind()
    if name in _BACK and isinstance(value, int):
        if value not in _BACK[name]:
            raise PartitionError(f"there is no {name.removesuffix('Type')} of number {value} in PyTorch {torch.__version__}")
        return _BACK[name][value]
    if name == "DeviceObjType" and isinstance(value, str):
        return torch.device(value)
    if name == "ListType" and isinstance(value, Iterable) and not isinstance(value, (str, torch.Tensor)):
        return [_as_python(kind.getElementType(), each) for each in value]
    return value
