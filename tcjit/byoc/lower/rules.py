"""The table of rules, by operation, and how a list of nodes becomes a def."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from tcjit.byoc.graph import Node, Value
from tcjit.byoc.lower.builder import DefBuilder, Element, LoweredDef, NodeCall, known
from tcjit.errors import PartitionError

# what a rule gives: its only result, or all of them, a text in place of one saying why it is not computed
Results: TypeAlias = "Element | Sequence[Element | str]"
Rule: TypeAlias = Callable[[NodeCall], Results]
R = TypeVar("R", bound=Rule)

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Makes a function the rule for operations of ATen, named without ``aten.``."""

    def record(function: R) -> R:
        RULES.update(dict.fromkeys((f"aten.{name}" for name in names), function))
        return function

    return record


def refusal(node: Node) -> str:
    """Why there is no statement for a node, or nothing: it is tried out."""
    try:
        program([node], [], [])
    except PartitionError as error:
        return error.what
    return ""


def program(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> LoweredDef:
    """A def that computes ``outputs`` from ``inputs``, its parameters in this order; a PartitionError says what stands in the way."""
    uses: dict[Value, int] = {}
    for node in nodes:
        for value in node.inputs:
            uses[value] = uses.get(value, 0) + 1
    builder = DefBuilder(uses, outputs)
    for value in inputs:
        builder.parameter(value)
    for node in nodes:
        found = RULES.get(node.op)
        if found is None:
            raise PartitionError(f"tcjit has no rule for {node.op}")
        for value in node.inputs:
            if value.type is not None:
                known(value)
        results = found(NodeCall(builder, node))
        builder.define(node, [results] if isinstance(results, Element) else results)
    return builder.text(outputs)
