"""Small graphs for the backend tcjit: made by hand from operations of ATen, run as regions, compared with PyTorch."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import tcjit.byoc.tcjit_backend  # noqa: F401  (it registers itself)
from support.derivatives import interpret
from tcjit.byoc.backends import find
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.infer import type_of
from tcjit.byoc.lower.gradients import ties
from tcjit.byoc.ops import bind, effect_of, operator, run
from tcjit.byoc.regions import NodeGroup, Region
from tcjit.byoc.respecialise import lowered_again
from tcjit.byoc.spec import Spec, parse, replay, spec
from tcjit.grammar.differentiate import differentiate
from tcjit.jit.compile import definition


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
    assert_gradients(parsed, g.given)
    return str(code["text"])


def assert_gradients(parsed: Spec, tensors: Sequence[Tensor]) -> None:
    """Compares the derived adjoints of programs for each output of a region, in float64, with PyTorch's gradients of its operations."""
    wrt = [place for place, each in enumerate(tensors) if each.dtype in (torch.float32, torch.float64)]
    if not wrt or not all(each.isfinite().all() for each in tensors):
        return
    given = [each.detach().clone().requires_grad_(place in wrt) for place, each in enumerate(tensors)]
    try:
        results = replay(parsed, given)
    except RuntimeError:
        return  # statistics that cannot require gradients
    for output, result in zip(parsed["outputs"], results):
        cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(7)).to(result.dtype)
        try:
            wanted = torch.autograd.grad(result, [given[place] for place in wrt], cotangent, allow_unused=True, retain_graph=True)
        except (NotImplementedError, RuntimeError):
            continue  # it does not require one, or PyTorch has none
        nodes = _needed(parsed["nodes"], output["name"])
        shares, text = ties(nodes), lowered_again({**parsed, "nodes": nodes, "outputs": [output]}, [type_of(each) for each in tensors]).text
        found, adjoint = _adjoint(text, tensors, wrt, cotangent.double(), shares)
        for mine, other, place in zip(found, wanted, wrt):
            mine = mine.reshape(tensors[place].shape)
            expected = torch.zeros_like(mine) if other is None else other.double()
            # an arm that is not taken makes PyTorch's 0 * infinity, and infinities of float32 are numbers here
            expected = torch.where(expected.isnan() | (expected.isinf() & (mine.abs() > 1e38)), mine, expected)
            exact = all(each.dtype in (torch.float32, torch.float64) for each in (result, tensors[place]))
            said = f"gradient by x{place}: {nodes}\n{mine}\n{expected}\n{text}\n{adjoint}"
            torch.testing.assert_close(mine, expected, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2, equal_nan=True, msg=said)


def _needed(nodes: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The nodes that an output depends on."""
    wanted, found = {name}, []
    for node in reversed(nodes):
        if wanted.intersection(node["outputs"]):
            found.append(node)
            wanted.update(re.findall(r"'value': '(\w+)'", str(node["arguments"])))
    return found[::-1]


def _adjoint(text: str, tensors: Sequence[Tensor], wrt: Sequence[int], cotangent: Tensor, shares: str) -> tuple[list[Tensor], str]:
    """The gradients by the places ``wrt``, and the text that gives them."""
    forward = definition(text, "fused")
    names = [param.name for param in forward.params]
    values: dict[str, Any] = {name: each.double() if each.is_floating_point() else each for name, each in zip(names, tensors)}
    values = {name: each.reshape(each.shape or (1,)) for name, each in values.items()}
    adjoint = differentiate(forward, [names[place] for place in wrt], ties=shares)
    taken = {**values, **interpret(forward, values), **dict.fromkeys(adjoint.cotangents.values(), cotangent)}
    found = interpret(adjoint.definition, {param.name: taken[param.name] for param in adjoint.definition.params})
    return [found[adjoint.gradients[names[place]]] for place in wrt], adjoint.text
