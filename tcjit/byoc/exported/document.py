"""A model's graph as JSON; ``tcjit.byoc.export`` says what is in it."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcjit.byoc.exported.kernels import Argument, Exported
from tcjit.byoc.exported.library import Stored
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.spec import written

FORMAT = 1


class VariableNames:
    """A name for every value, no two of them the same; constants keep those that their files have."""

    def __init__(self, held: Mapping[Value, str]) -> None:
        self._known = dict(held)
        self._taken = set(held.values())

    def of(self, value: Value) -> str:
        if value not in self._known:
            name, number = value.name, 0
            while name in self._taken:
                number += 1
                name = f"{value.name}_{number}"
            self._taken.add(name)
            self._known[value] = name
        return self._known[value]


def block_json(block: Block, names: VariableNames) -> dict[str, Any]:
    """A block: what comes in, the operations in an order in which they can run, what goes out."""
    return {
        "inputs": [_value(value, names) for value in block.inputs if not value.constant],
        "nodes": [_node(node, names) for node in block.nodes],
        "outputs": [names.of(value) for value in block.outputs],
    }


def region_json(region: Exported, space: str) -> dict[str, Any]:
    """A region with a kernel of its own."""
    served = region.target == "cpu"
    return {
        "name": region.name,
        "operator": f"{space}::{region.name}" if served else None,
        "target": region.target,
        "source": f"src/{region.file}",
        "symbol": region.symbol,
        "inputs": list(map(_argument, region.inputs)),
        "constants": [{"name": bound.argument.name, "constant": bound.constant} for bound in region.constants],
        "outputs": list(map(_argument, region.outputs)),
        "order": list(region.order),
        "numbers": list(region.numbers),
        "workspace": region.workspace,
        "failures": list(region.failures),
        "launches": [dict(zip(("symbol", "grid", "threads", "shared_bytes"), launch)) for launch in region.launches],
        "nodes": list(region.nodes),
    }


def constant_json(stored: Stored) -> dict[str, Any]:
    return {"dtype": stored.argument.dtype, "shape": list(stored.argument.shape), "file": stored.file, "bytes": stored.bytes}


def _argument(argument: Argument) -> dict[str, Any]:
    return {"name": argument.name, "dtype": argument.dtype, "shape": list(argument.shape), "strides": list(argument.strides)}


def _value(value: Value, names: VariableNames) -> dict[str, Any]:
    kind = value.type
    if kind is None:
        return {"name": names.of(value)}
    shape = None if kind.shape is None else list(kind.shape)
    return {"name": names.of(value), "dtype": kind.dtype or None, "shape": shape, "device": kind.device}


def _node(node: Node, names: VariableNames) -> dict[str, Any]:
    found: dict[str, Any] = {
        "op": node.op,
        "overload": node.overload,
        "arguments": {name: written(given, names.of) for name, given in node.arguments.items()},
        "outputs": [_value(value, names) for value in node.outputs],
    }
    if node.effect:
        found["effect"] = node.effect
    if node.blocks:
        found["blocks"] = [block_json(block, names) for block in node.blocks]
    return found
