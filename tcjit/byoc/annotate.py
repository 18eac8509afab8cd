"""Which operations a backend may take, and why not the others.

    @supports("aten.conv2d", "aten.linear", backend="mine")
    def floats(node: Node) -> bool | str:
        return node.output.type.dtype == "float32" or "mine computes in float32 only"

The engine asks first: what writes to memory, draws numbers, acts on the world or has blocks of its own goes to no backend, nor does a
tensor of which too little is known.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from tcjit.byoc.backends import Backend, Verdict
from tcjit.byoc.block_dependences import BlockDependences, note, operands
from tcjit.byoc.graph import Block, Node, Value
from tcjit.errors import PartitionError

Predicate: TypeAlias = Callable[[Node], Verdict]
P = TypeVar("P", bound=Predicate)

# what a region of an earlier run looks like
REGION_OPS = frozenset({"tcjit.call"})

# what tells tensors apart that hold the same, by how they lie in memory
STRIDES = frozenset(f"aten.{name}" for name in "as_strided stride is_contiguous storage_offset sym_stride sym_storage_offset".split())

_PREDICATES: dict[str, dict[str, Predicate]] = {}


def supports(*ops: str, backend: str) -> Callable[[P], P]:
    """Makes a predicate say whether a backend takes these operations, named ``aten.add`` or, with an overload, ``aten.add.Tensor``.

    It says True, or why not. A later predicate for the same operation replaces an earlier one.
    """
    if not ops or not all(isinstance(op, str) and "." in op for op in ops):
        raise PartitionError(f"supports{ops} names no operation", hint='write @supports("aten.conv2d", backend="mine")')

    def record(predicate: P) -> P:
        _PREDICATES.setdefault(backend, {}).update(dict.fromkeys(ops, predicate))
        return predicate

    return record


def supported(backend: str) -> tuple[str, ...]:
    """The operations that predicates of a backend speak about."""
    return tuple(_PREDICATES.get(backend, ()))


def annotate(block: Block | BlockDependences, backend: Backend) -> dict[Node, str]:
    """Why a backend does not take each node by itself, empty where it does; every reason is noted at the node as well."""
    scope = block if isinstance(block, BlockDependences) else BlockDependences(block)
    found: dict[Node, str] = {}
    for node, why in obstacles(scope, backend).items():
        found[node] = why or verdict(node, backend)
        if found[node]:
            note(node, found[node])
    return found


def verdict(node: Node, backend: Backend) -> str:
    """What a backend says of a node: why not, or nothing."""
    table = _PREDICATES.get(backend.name, {})
    predicate = table.get(f"{node.op}.{node.overload}") or table.get(node.op) or backend.supports
    return reason(predicate(node), f"{backend.name} declines {node.op}", f"the predicate of {backend.name} for {node.op}")


def reason(said: object, unsaid: str, who: str) -> str:
    """The reason in a verdict, ``unsaid`` where it is False; raises PartitionError where it is no verdict."""
    if said is True:
        return ""
    if said is False:
        return unsaid
    if isinstance(said, str) and said:
        return said.replace("; ", ", ")
    raise PartitionError(f"{who} said {said!r}", hint="return True, or a text that says why not")


def obstacles(scope: BlockDependences, backend: Backend) -> dict[Node, str]:
    """Why the engine keeps each node of a block from a backend; empty where it does not."""
    exposed = _exposed(scope)
    strided = _strided(scope)

    def looked_at(node: Node) -> str:
        return "something looks at the strides of its result" if any(value in strided for value in node.outputs) else ""

    return {node: _effect(node, scope, exposed) or looked_at(node) or _types(node, backend) for node in scope.nodes}


def _strided(scope: BlockDependences) -> set[Value]:
    """Values whose strides, which a region does not keep, something asks for."""
    found = {value for node in scope.nodes if node.op in STRIDES for value in operands(node)}
    for node in reversed(scope.nodes):
        if node.effect == "view" and any(value in found for value in node.outputs):
            found.update(operands(node))
    return found


def _effect(node: Node, scope: BlockDependences, exposed: dict[Value, str]) -> str:
    if node.op in REGION_OPS:
        return "is a region already"
    if node.effect == "mutates":
        return "writes to its argument"
    if node.effect == "random":
        return "draws random numbers"
    if node.effect == "acts":
        return "acts on more than its results"
    if node.effect == "control" or node.blocks:
        return "has blocks of its own"
    if node.effect == "view":
        for value in (*node.outputs, *operands(node)):
            if value in scope.block.mutated:
                return f"shares memory with %{value.name}, which something writes to"
        for value in node.outputs:
            if value in exposed:
                return exposed[value]
    return ""


def _exposed(scope: BlockDependences) -> dict[Value, str]:
    """Results of views that leave the block and share memory with something else that is seen outside, and views that these look
    through: a copy would be told apart."""
    owner: dict[Value, Value] = {}

    def storage(value: Value) -> Value:
        while value in owner:
            value = owner[value]
        return value

    views = [node for node in scope.nodes if node.effect == "view"]
    for node in views:
        for value in (*operands(node), *node.outputs):
            if value.type is not None and storage(value) is not storage(node.outputs[0]):
                owner[storage(value)] = storage(node.outputs[0])
    values = dict.fromkeys(value for node in views for value in (*operands(node), *node.outputs) if value.type is not None)
    visible: dict[Value, list[Value]] = {}
    for value in values:
        if value in scope.leaving or not scope.holds(value.producer):
            visible.setdefault(storage(value), []).append(value)
    found: dict[Value, str] = {}
    for node in reversed(views):
        for value in node.outputs:
            later = [each for user in value.users if user.effect == "view" for each in user.outputs if each in found]
            if later:
                found[value] = found[later[0]]
            others = [other for other in visible.get(storage(value), ()) if other is not value]
            if value in scope.leaving and others:
                found[value] = f"leaves the block and shares memory with %{others[0].name}"
    return found


def _types(node: Node, backend: Backend) -> str:
    """What is not known of a node's tensors, or does not suit the backend."""
    devices: dict[str, None] = {}
    for value in (*operands(node), *node.outputs):
        kind = value.type
        if kind is None:
            continue
        devices[kind.device] = None
        if not kind.dtype and not backend.untyped:
            return f"%{value.name} has an unknown dtype"
        if kind.shape is None and not backend.untyped:
            return f"%{value.name} has an unknown rank"
        if kind.shape is not None and None in kind.shape and not backend.dynamic:
            return f"%{value.name}: {kind} has an extent that is known at the run only"
    if not any(value.type is not None for value in node.outputs):
        return "computes no tensor"
    if len(devices) > 1:
        return f"its tensors are on several devices: {', '.join(devices)}"
    unserved = [device for device in devices if backend.devices and device.partition(":")[0] not in backend.devices]
    return f"{backend.name} does not serve {unserved[0]}" if unserved else ""
