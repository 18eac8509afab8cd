"""Operators with lists of optional numbers, as oneDNN's have them: PyTorch's tracer cannot record their calls, so they are written into its
graph by hand."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

_C: Any = torch._C  # its types leave the tracer out


class Recorded(TorchFunctionMode):
    """Under it, ``torch.jit.trace`` records such operators as well."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        state = _C._get_tracing_state()
        if state is None or not isinstance(func, OpOverload) or not any(_optional_numbers(each.type) for each in func._schema.arguments):
            return func(*args, **named)
        _C._set_tracing_state(None)
        try:
            found = func(*args, **named)
        finally:
            _C._set_tracing_state(state)
        given = dict(zip((each.name for each in func._schema.arguments), args)) | named
        _C._set_value_trace(found, _written(state.graph(), func, given))
        return found


def _optional_numbers(kind: Any) -> bool:
    return str(kind) == "List[Optional[number]]"


def _written(graph: Any, operator: OpOverload, given: Mapping[str, Any]) -> Any:
    """The one result of a call at the end of a graph that is being traced."""
    inputs = []
    for argument in operator._schema.arguments:
        value = given.get(argument.name, argument.default_value)
        if isinstance(value, torch.Tensor):
            inputs.append(_C._get_value_trace(value))
        elif _optional_numbers(argument.type):
            made = graph.create("prim::ListConstruct", [graph.insertConstant(each) for each in value or ()], 1)
            graph.insertNode(made)
            made.output().setType(argument.type)
            inputs.append(made.output())
        else:
            inputs.append(graph.insertConstant(value))
    call = graph.create(operator._schema.name.replace(".", "::"), inputs, 1)
    graph.insertNode(call)
    call.output().setType(torch._C.TensorType.get())
    return call.output()
