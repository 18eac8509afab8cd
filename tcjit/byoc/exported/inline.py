"""Regions that an export cannot serve, as the plain ATen operations that they are."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.infer import result_types
from tcjit.byoc.ops import effect_of, operator
from tcjit.byoc.spec import parse, read

CALL = "tcjit.call"


def inlined(call: Node) -> list[Node]:
    """The operations of a region in place of its ``tcjit.call``."""
    spec = parse(str(call.arguments["spec"]))
    names = [each["name"] for each in (*spec["inputs"], *spec["outputs"])]
    values: dict[str, Value] = dict(zip(names, (*call.inputs, *call.outputs)))
    made = []
    for each in spec["nodes"]:
        arguments: Mapping[str, Argument] = {name: _tuples(read(given, values, spec["name"])) for name, given in each["arguments"].items()}
        kinds = result_types(each["op"], each["overload"], arguments)
        for name, kind in zip(each["outputs"], kinds):
            values.setdefault(name, Value(f"{spec['name']}_{name}", kind))
        outputs = tuple(values[name] for name in each["outputs"])
        made.append(Node(each["op"], each["overload"], arguments, outputs, effect_of(operator(each["op"], each["overload"]), arguments)))
    return made


def rewritten(block: Block, change: Callable[[Node], list[Node]]) -> Block:
    """A block, and those inside of it, with other nodes in place of its calls; the values are the same, and belong to the new block."""
    nodes: list[Node] = []
    for node in block.nodes:
        if node.blocks:
            inner = tuple(rewritten(each, change) for each in node.blocks)
            node = replace(node, blocks=inner)
        nodes += change(node) if node.op == CALL else [node]
    made = Block(block.inputs, nodes, block.outputs, block.mutated, block.origin)
    claim(made)
    return made


def claim(block: Block) -> None:
    """Makes a block's values its own again, and those of the blocks inside."""
    for each in block.every():
        each.__post_init__()
        for node in each.nodes:
            for position, value in enumerate(node.outputs):
                value.producer, value.position = node, position


def _tuples(argument: Any) -> Argument:
    return tuple(map(_tuples, argument)) if isinstance(argument, list) else argument
