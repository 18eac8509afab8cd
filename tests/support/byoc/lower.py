"""Small graphs for the backend tcjit: made by hand from operations of ATen, run as regions, compared with PyTorch."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import tcjit.byoc.tcjit_backend  # noqa: F401  (it registers itself)
from tcjit.byoc.backends import find
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.infer import type_of
from tcjit.byoc.ops import bind, effect_of, operator, run
from tcjit.byoc.regions import NodeGroup, Region
from tcjit.byoc.spec import parse, replay, spec


class Graph:
    """Records operations on real tensors: ``g("relu", x)``, with an overload ``g("add.Scalar", x, 2)``."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.given: list[Tensor] = []
        self.nodes: list[Node] = []
        self.tensors: dict[Value, Any] = {}

    def input(self, tensor: Tensor, constant: bool = False) -> Value:
        value = Value(f"x{len(self.inputs)}", type_of(tensor), constant=constant)
        self.inputs.append(value)
        self.given.append(tensor)
        self.tensors[value] = tensor
        return value

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        op, _, overload = name.partition(".")
        overload = overload or "default"
        found = operator(f"aten.{op}", overload)
        arguments = bind(found, args, kwargs)
        results = run(f"aten.{op}", overload, {key: self._real(each) for key, each in arguments.items()})
        if len(results) == 1 and isinstance(results[0], tuple):
            results = list(results[0])
        values = tuple(Value(f"v{len(self.nodes)}_{place}", type_of(each), position=place) for place, each in enumerate(results))
        node = Node(f"aten.{op}", overload, arguments, values, effect_of(found, arguments))
        for value, each in zip(values, results):
            value.producer = node
            self.tensors[value] = each
        self.nodes.append(node)
        return values[0] if len(values) == 1 else values

    def _real(self, argument: Any) -> Any:
        if isinstance(argument, Value):
            return self.tensors[argument]
        return [self._real(each) for each in argument] if isinstance(argument, (tuple, list)) else argument

    def region(self, outputs: Sequence[Value]) -> Region:
        block = Block(tuple(self.inputs), self.nodes, tuple(outputs))
        inputs, constants = (tuple(v for v in block.inputs if v.constant == held) for held in (False, True))
        return Region("tcjit", "tcjit_0", (NodeGroup("tcjit", tuple(block.nodes)),), tuple(block.nodes), inputs, constants, tuple(outputs))


def assert_lowered(make: Callable[..., Any], *tensors: Tensor, rtol: float | None = None, atol: float | None = None) -> str:
    """Runs what ``make(g, *values)`` records as a region on the CPU, compares it with PyTorch and the region's replay, and gives the
    program's text."""
    g = Graph()
    made = make(g, *map(g.input, tensors))
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    backend = find("tcjit")
    region = g.region(outputs)
    code = backend.lower(region)
    parsed = parse(spec(region, code))
    found = backend.load(parsed)(g.given)
    again = replay(parsed, g.given)
    for value, mine, plain in zip(outputs, found, again, strict=True):
        wanted, text = g.tensors[value], f"{value.producer}\n{code['text']}"
        assert mine.dtype == wanted.dtype and mine.shape == wanted.shape, text
        assert torch.equal(plain.nan_to_num(), wanted.nan_to_num()) and torch.equal(plain.isnan(), wanted.isnan()), text
        try:
            torch.testing.assert_close(mine, wanted, equal_nan=True, rtol=rtol, atol=atol)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{text}") from None
    return str(code["text"])
