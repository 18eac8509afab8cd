"""Operations that give back what they are given: dropout in inference, products with 1, views of the same shape."""
from __future__ import annotations

from collections.abc import Callable

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.passes.editing import MemoryUses, inside, rebuilt, substitute

# from a node and its first argument to what the node gives back, or None
Rule = Callable[[Node, Value], "Value | None"]

_DROPOUT = "dropout dropout_ alpha_dropout alpha_dropout_ feature_dropout feature_dropout_ feature_alpha_dropout feature_alpha_dropout_"
_SHAPED = "view reshape _unsafe_view expand flatten unflatten alias lift_fresh"


def remove_identities(block: Block, adapter: Adapter) -> Block:
    """Without dropout that does not train, ``x * 1``, ``x / 1``, ``x - 0``, ``x ** 1``, conversions to the dtype, and views of the shape,
    that is there already, and permutations that permute nothing, alone or two in a row."""
    memory = MemoryUses(block)
    instead: dict[Value, Value] = {}
    return substitute(_without(block, memory, instead), instead)


def _without(block: Block, memory: MemoryUses, instead: dict[Value, Value]) -> Block:
    inside(block, lambda each: _without(each, memory, instead))
    kept: list[Node] = []
    for node in block.nodes:
        source = _source(node, memory)
        if source is None or node.outputs[0] is source:
            kept.append(node)
        else:
            instead[node.outputs[0]] = source
    return rebuilt(block, kept)


def _source(node: Node, memory: MemoryUses) -> Value | None:
    """What a node gives back, or None."""
    rule = _RULES.get(node.op)
    given = next(iter(node.arguments.values()), None)
    if rule is None or len(node.outputs) != 1 or not isinstance(given, Value):
        return None
    found = rule(node, given)
    if found is None or found is node.output:
        return None
    if node.op in _SAME:
        return found  # that very tensor: whoever writes to one writes to the other in the model as well
    if node.effect == "view":
        return None if memory.written(found, node.output) else found
    return found if memory.alike(found, node.output) and node.output not in memory.exposed else None


def _dropout(node: Node, given: Value) -> Value | None:
    return given if node.arguments.get("train") is False else None


def _number(name: str, number: int, **others: object) -> Rule:
    """A number as the second argument that changes nothing."""

    def rule(node: Node, given: Value) -> Value | None:
        other = node.arguments.get(name)
        plain = isinstance(other, (int, float)) and not isinstance(other, bool) and other == number
        usual = all(node.arguments.get(key, value) == value for key, value in others.items())
        return given if plain and usual and _same(given, node.output) else None

    return rule


def _same(one: Value, other: Value) -> bool:
    return one.type is not None and other.type is not None and one.type.known and one.type == other.type


def _shape(node: Node, given: Value) -> Value | None:
    return given if _same(given, node.output) else None


def _conversion(node: Node, given: Value) -> Value | None:
    told = node.arguments
    fixed = told.get("copy") in (False, None) and told.get("memory_format") is None and told.get("layout") is None
    return given if fixed and _same(given, node.output) else None


def _permutation(node: Node, given: Value) -> Value | None:
    order = permutation_of(node)
    if order is None:
        return None
    if order == tuple(range(len(order))):
        return given
    before = given.producer
    first = permutation_of(before) if before is not None else None
    if before is None or first is None:
        return None
    source = next(iter(before.arguments.values()))
    return source if isinstance(source, Value) and tuple(first[dim] for dim in order) == tuple(range(len(order))) else None


def permutation_of(node: Node) -> tuple[int, ...] | None:
    """Which dimension each dimension of a permuted tensor is, or None where the node is no permutation."""
    given = next(iter(node.arguments.values()), None)
    shape = given.type.shape if isinstance(given, Value) and given.type is not None else None
    if shape is None:
        return None
    order = list(range(len(shape)))
    if node.op == "aten.permute" and isinstance(dims := node.arguments.get("dims"), tuple):
        found = [each % len(shape) for each in dims if isinstance(each, int)]
        return tuple(found) if sorted(found) == order else None
    if node.op == "aten.t" and len(shape) == 2:
        return (1, 0)
    first, second = node.arguments.get("dim0"), node.arguments.get("dim1")
    if node.op == "aten.transpose" and isinstance(first, int) and isinstance(second, int) and order:
        order[first % len(shape)], order[second % len(shape)] = second % len(shape), first % len(shape)
        return tuple(order)
    return None


# these return their argument itself
_SAME = frozenset(f"aten.{name}" for name in _DROPOUT.split())
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, _dropout),
    **{f"aten.{name}": _shape for name in _SHAPED.split()},
    **dict.fromkeys(("aten.permute", "aten.transpose", "aten.t"), _permutation),
    **dict.fromkeys(("aten.to", "aten._to_copy", "aten.type_as"), _conversion),
    "aten.mul": _number("other", 1),
    "aten.div": _number("other", 1, rounding_mode=None),
    "aten.sub": _number("other", 0),
    "aten.pow": _number("exponent", 1),
}
