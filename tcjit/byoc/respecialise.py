"""Regions for other shapes or dtypes than those of the model: their nodes with new types, and the program for these."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tcjit.byoc.graph import Argument, Block, Node, TensorType, Value
from tcjit.byoc.infer import result_types
from tcjit.byoc.lower.builder import LoweredDef
from tcjit.byoc.lower.rules import program
from tcjit.byoc.spec import Spec, read
from tcjit.errors import PartitionError

# what an extent that is known at the run only stands for while a model is partitioned
GUESS = 64


def guessed(kind: TensorType | None) -> TensorType | None:
    """A type with a number for every extent."""
    if kind is None or kind.shape is None or None not in kind.shape:
        return kind
    return TensorType(kind.dtype, tuple(GUESS if extent is None else extent for extent in kind.shape), kind.device)


def tried(node: Node) -> Node:
    """A node as it would be for extents that are guessed; itself where all are known. PartitionError where they do not go together."""
    kinds = [value.type for value in (*node.inputs, *node.outputs) if value.type is not None]
    if all(kind.shape is not None and None not in kind.shape for kind in kinds):
        return node
    values = {value: Value(value.name, guessed(value.type), value.producer, constant=value.constant) for value in node.inputs}

    def replaced(argument: Argument) -> Argument:
        if isinstance(argument, Value):
            return values[argument]
        return tuple(map(replaced, argument)) if isinstance(argument, tuple) else argument

    arguments = {name: replaced(argument) for name, argument in node.arguments.items()}
    types = result_types(node.op, node.overload, arguments)
    outputs = tuple(Value(value.name, kind, position=value.position) for value, kind in zip(node.outputs, types, strict=True))
    for value, old in zip(outputs, node.outputs):
        value.users = old.users
    return Node(node.op, node.overload, arguments, outputs)


def lowered_again(spec: Spec, types: Sequence[TensorType | None]) -> LoweredDef:
    """The program of a region for inputs of these types; raises PartitionError where there is none."""
    values: dict[str, Value] = {}
    inputs = []
    for each, kind in zip(spec["inputs"], types, strict=True):
        values[each["name"]] = value = Value(each["name"], kind, constant=bool(each["constant"]))
        inputs.append(value)
    nodes = [_node(each, values, spec["name"]) for each in spec["nodes"]]
    outputs = tuple(values[each["name"]] for each in spec["outputs"])
    block = Block(tuple(inputs), nodes, outputs)
    return program(block.nodes, inputs, outputs)


def _node(each: Mapping[str, Any], values: dict[str, Value], region: str) -> Node:
    arguments = {name: _frozen(read(argument, values, region)) for name, argument in each["arguments"].items()}
    types = result_types(each["op"], each["overload"], arguments)
    if len(types) != len(each["outputs"]):
        raise PartitionError(f"{each['op']} in region {region} has {len(types)} results now, and had {len(each['outputs'])}")
    outputs = tuple(Value(name, kind, position=place) for place, (name, kind) in enumerate(zip(each["outputs"], types)))
    node = Node(each["op"], each["overload"], arguments, outputs)
    for value in outputs:
        value.producer = node
        values[value.name] = value
    return node


def _frozen(argument: Any) -> Any:
    """Lists as tuples, as nodes have them."""
    return tuple(map(_frozen, argument)) if isinstance(argument, list) else argument
