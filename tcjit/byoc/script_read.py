"""A TorchScript graph as Blocks.

Every operation becomes a node, but for what only carries: literals and lists of them stand in the arguments, parameters and buffers are
constants, tuples that are only returned are the block's outputs, and a list of tensors that is unpacked at once is the results themselves.
What is not understood acts on more than its results.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from tcjit.byoc.graph import Argument, Block, Effect, Node, TensorType, Value
from tcjit.byoc.infer import type_of
from tcjit.byoc.ops import effect_of, operator
from tcjit.errors import PartitionError

# kinds of types of what neither is nor holds a tensor, nor can be written to
_SCALARS = frozenset(
    "IntType FloatType BoolType StringType NoneType ComplexType NumberType DeviceObjType DeviceType SymIntType ScalarTypeType "
    "LayoutType MemoryFormatType EnumType FunctionType".split()
)
# operations without a schema that only compute
_PURE = frozenset(
    "TupleConstruct ListConstruct DictConstruct TupleUnpack ListUnpack TupleIndex TupleSlice Uninitialized Constant isinstance "
    "ConstantChunk EnumName EnumValue tolist".split()
)
_VIEWS = frozenset(("unchecked_cast", "ConstantChunk", "TupleIndex", "TupleUnpack", "ListUnpack", "TupleSlice", "data"))
_PACKS = ("prim::TupleConstruct", "prim::ListConstruct")
# after it, what an operation does depends on a state that no argument shows
_STATES = ("aten::set_grad_enabled",)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a node stands in the graph: its place in the walk, that of what unpacks its list, and its arguments as they were read.

    ``places`` are the input of each argument, or the first of several.
    """

    place: int
    unpack: int | None
    arguments: dict[str, Argument]
    places: dict[str, int]
    several: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class ConstantUse:
    """A constant of the model: the place in the walk of what gets it, the tensor, and its path, empty where it stands in the graph."""

    place: int
    tensor: torch.Tensor
    path: str


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A block as it was read: the origins of its nodes, and what it returns."""

    nodes: list[Origin]
    outputs: tuple[Value, ...]


@dataclass(eq=False)
class Reading:
    """A graph as read, with what tells it from later Blocks, since those are made of the same values and nodes.

    ``snapshots``: the blocks of each node by its origin, the outermost of None. ``made``: where values come from, a place in the walk and
    the number of an output. ``visible``: the places of what became a node. ``holders`` and ``scalars``: types of what is no tensor, of what
    may hold some and of the others.
    """

    block: Block = field(default_factory=lambda: Block((), [], ()))
    constants: list[Value] = field(default_factory=list)
    holders: dict[Value, str] = field(default_factory=dict)
    scalars: dict[Value, str] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)
    snapshots: dict[Origin | None, list[Snapshot]] = field(default_factory=dict)
    positions: dict[Value, tuple[int, int]] = field(default_factory=dict)


def walk(graph: Any) -> list[Any]:
    """All nodes of a graph, those of blocks inside right after what has them."""
    return list(_walk(graph))


def _walk(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _walk(inner)


def leaves(block: Any) -> list[tuple[Any, int]]:
    """Where a graph's or block's results are handed over: a node and the number of its input, tuples that are only returned opened."""
    found: list[tuple[Any, int]] = []

    def visit(node: Any, outermost: bool) -> None:
        for place, value in enumerate(node.inputs()):
            maker = value.node()
            if outermost and maker.kind() in _PACKS and len(value.uses()) == 1 and maker.owningBlock().returnNode() == block.returnNode():
                visit(maker, True)
            else:
                found.append((node, place))

    visit(block.returnNode(), block.owningNode() is None)
    return found


def read(module: Any, graph: Any) -> Reading:
    """A graph of a module, calls already inlined, as Blocks; values have the types that need no inference."""
    return _ScriptReader(module, graph).read()


@lru_cache(None)
def schema_of(text: str) -> Any:
    """A schema from its text, None where there is none."""
    if text.startswith("(no schema)"):
        return None
    try:
        return torch._C.parse_schema(text)
    except RuntimeError:
        return None


class _ScriptReader:
    def __init__(self, module: Any, graph: Any) -> None:
        self.module = module
        self.graph = graph
        self.nodes = walk(graph)
        self.places = {node: place for place, node in enumerate(self.nodes)}
        self.values: dict[int, Value] = {}
        self.literals: dict[int, Argument] = {}
        self.lists: dict[int, Any] = {}
        self.parts: dict[int, tuple[str, Any]] = {}  # the model and its parts, by value: path and module
        self.byname: dict[str, Value] = {}
        self.found = Reading()
        self.set_names = {node.s("name") for node in self.nodes if node.kind() == "prim::SetAttr"}
        self.stateful = any(node.kind() in _STATES for node in self.nodes)
        handed = [each for block in (graph.block(), *(b for node in self.nodes for b in node.blocks())) for each in leaves(block)]
        self.ends = {node.inputsAt(at).unique() for node, at in handed}
        self.packs = {self.places[node] for node, _ in handed if node in self.places}

    def read(self) -> Reading:
        inputs = list(self.graph.inputs())
        self.parts[inputs[0].unique()] = ("", self.module)
        self.found.block = self.block(self.graph.block(), inputs[1:], 0)
        self.found.snapshots[None] = [_snapshot(self.found.block)]
        return self.found

    def block(self, block: Any, inputs: list[Any], depth: int) -> Block:
        """One block; ``depth`` is how many ``with`` statements are around it."""
        given = tuple(map(self.value, inputs))
        nodes: list[Node] = []
        for node in block.nodes():
            depth += node.kind() == "prim::Enter"
            made = self.node(node, depth)
            depth -= node.kind() == "prim::Exit"
            if made is not None:
                self.found.visible.add(self.places[node])
                nodes.append(made)
        return Block(given, nodes, tuple(self.known(end.inputsAt(at)) for end, at in leaves(block)))

    def value(self, value: Any, position: int = 0) -> Value:
        """A new value for one of the graph."""
        kind = value.type()
        made = Value(value.debugName(), TensorType() if kind.kind() == "TensorType" else None, position=position)
        self.values[value.unique()] = made
        if kind.kind() in _SCALARS:
            self.found.scalars[made] = kind.kind()
        elif made.type is None:
            self.found.holders[made] = str(kind)
        return made

    def known(self, value: Any) -> Value:
        found = self.values.get(value.unique())
        if found is None:
            raise PartitionError(f"%{value.debugName()} of type {value.type()} is used in a way that is not understood")
        return found

    def argument(self, value: Any) -> Argument:
        unique = value.unique()
        if unique in self.literals:
            return self.literals[unique]
        if unique in self.lists:
            return tuple(map(self.argument, self.lists[unique].inputs()))
        return self.known(value)

    def node(self, node: Any, depth: int) -> Node | None:
        """The node for one of the graph, None for what only carries."""
        kind = node.kind()
        if kind == "prim::Constant" and self.constant(node):
            return None
        if kind == "prim::GetAttr" and self.attribute(node):
            return None
        if kind in _PACKS and self.places[node] in self.packs:
            return None
        if kind == "prim::ListConstruct" and _plain_list(node):
            self.lists[node.output().unique()] = node
            return None
        if kind == "prim::ListUnpack" and _unpacked(node.input().node()) == node:
            return None
        return self.operation(node, depth)

    def constant(self, node: Any) -> bool:
        """Whether a constant of the graph stands in arguments only."""
        value = node.output()
        kind = value.type().kind()
        held = value.toIValue() if kind not in ("FunctionType", "ClassType") else None
        if isinstance(held, torch.Tensor):
            self.add_constant(value, held, "", self.places[node])
            return True
        if isinstance(held, torch.device):
            held = str(held)
        plain = _literal(held) if held is not None or kind == "NoneType" else (False, None)
        if plain[0]:
            self.literals[value.unique()] = plain[1]
        return plain[0] and value.unique() not in self.ends

    def add_constant(self, value: Any, tensor: torch.Tensor, path: str, place: int) -> None:
        """A constant; what is got in several places is one value."""
        made = self.byname.get(path)
        if made is None:
            made = self.value(value)
            made.constant, made.type, made.origin = True, type_of(tensor), ConstantUse(place, tensor, path)
            made.name = path.replace(".", "_") if path else f"constant_{place}"
            self.found.holders.pop(made, None)  # what might be None is a tensor
            self.found.constants.append(made)
            if path:
                self.byname[path] = made
        self.values[value.unique()] = made

    def attribute(self, node: Any) -> bool:
        """Whether an attribute of the model is a part of it or a constant."""
        part = self.parts.get(node.input().unique())
        if part is None:
            return False
        name, value = node.s("name"), node.output()
        path = f"{part[0]}.{name}" if part[0] else name
        kind = value.type().kind()
        if kind == "ClassType":
            found = getattr(part[1], name)
            if isinstance(found, torch.jit.ScriptModule):
                self.parts[value.unique()] = (path, found)
                return True
        if kind not in ("TensorType", "OptionalType") or name in self.set_names:
            return False
        held = getattr(part[1], name)
        if isinstance(held, torch.Tensor):
            self.add_constant(value, held, path, self.places[node])
        elif held is None and value.unique() not in self.ends:
            self.literals[value.unique()] = None
        else:
            return False
        return True

    def operation(self, node: Any, depth: int) -> Node:
        kind, schema = node.kind(), schema_of(node.schema())
        names, several = self.names(node, schema)
        arguments: dict[str, Argument] = {}
        places: dict[str, int] = {}
        inputs = list(node.inputs())
        for place, name in names:
            if name in several:
                arguments[name] = tuple(map(self.argument, inputs[place:]))
            else:
                value = inputs[place]
                part = self.parts.get(value.unique())
                arguments[name] = self.argument(value) if part is None else part[0]
            places[name] = place
        arguments |= self.attributes(node)
        unpack = _unpacked(node)
        outputs = tuple(self.value(value, at) for at, value in enumerate((unpack or node).outputs()))
        overload = (schema.overload_name or "default") if schema is not None else "default"
        blocks = tuple(self.block(inner, list(inner.inputs()), depth) for inner in node.blocks())
        op = kind.replace("::", ".")
        effect = self.effect(node, op, overload, arguments, depth)
        origin = Origin(self.places[node], None if unpack is None else self.places[unpack], dict(arguments), places, frozenset(several))
        self.found.snapshots[origin] = list(map(_snapshot, blocks))
        made = Node(op, overload, arguments, outputs, effect, origin=origin, blocks=blocks)
        for position, value in enumerate(outputs):
            value.producer = made
            self.found.positions[value] = (self.places[unpack or node], position)
        return made

    def names(self, node: Any, schema: Any) -> tuple[list[tuple[int, str]], set[str]]:
        """The inputs that arguments start at with their names, and which names stand for all inputs from there."""
        count = node.inputsSize()
        if schema is not None:
            known = [each.name for each in schema.arguments]
            return [(place, known[place] if place < len(known) else f"a{place}") for place in range(count)], set()
        if node.kind() == "prim::If":
            return [(0, "condition")], set()
        if node.kind() == "prim::Loop":
            return [(0, "max_trip_count"), (1, "condition"), (2, "carried")], {"carried"}
        if node.kind() in (*_PACKS, "prim::DictConstruct"):
            return [(0, "values")], {"values"}
        return [(place, "self" if place == 0 else f"a{place}") for place in range(count)], set()

    def attributes(self, node: Any) -> dict[str, Argument]:
        """What stands in a node itself rather than in its inputs."""
        found: dict[str, Argument] = {}
        for name in node.attributeNames():
            if node.kindOf(name) in ("s", "i", "f"):
                found[name] = getattr(node, node.kindOf(name))(name)
        return found

    def effect(self, node: Any, op: str, overload: str, arguments: dict[str, Argument], depth: int) -> Effect:
        kind, short = node.kind(), node.kind().partition("::")[2]
        if node.kind() in ("prim::If", "prim::Loop"):
            return "control"
        if depth or self.stateful or short in ("seed", "initial_seed", "wait"):
            return "acts"
        if kind == "prim::GetAttr":
            return "acts" if node.s("name") in self.set_names else ""
        if schema_of(node.schema()) is None:
            if not kind.startswith("prim::") or short not in _PURE | _VIEWS:
                return "acts"
            return "view" if short in _VIEWS and any(each.type().kind() == "TensorType" for each in node.outputs()) else ""
        if _generic(node):
            return "acts"
        try:
            return effect_of(operator(op, overload), arguments)
        except PartitionError:
            return "acts"


def _snapshot(block: Block) -> Snapshot:
    return Snapshot([node.origin for node in block.nodes], block.outputs)


def _plain_list(node: Any) -> bool:
    """Whether a list is only read, and by operations that let nothing of it out."""
    uses = node.output().uses()
    for use in uses:
        schema = schema_of(use.user.schema())
        if schema is None or use.offset >= len(schema.arguments) or schema.arguments[use.offset].alias_info is not None:
            return False
    return bool(uses)


def _generic(node: Any) -> bool:
    """Whether an operation makes a tensor from a list of any type, which only TorchScript itself can run."""
    if not any(each.type().kind() == "TensorType" for each in node.outputs()):
        return False
    kinds = [each.type for each in schema_of(node.schema()).arguments if each.alias_info is None]
    return any(kind.kind() == "ListType" and kind.getElementType().kind() == "VarType" for kind in kinds)


def _unpacked(node: Any) -> Any:
    """What unpacks, right after it, the list of tensors that an operation gives; None where that is not so."""
    if node.outputsSize() != 1 or schema_of(node.schema()) is None or str(node.output().type()) != "List[Tensor]":
        return None
    uses = node.output().uses()
    user = uses[0].user if len(uses) == 1 else None
    if user is None or user.kind() != "prim::ListUnpack" or user.prev() != node:
        return None
    return user


def _literal(value: Any) -> tuple[bool, Argument]:
    """Whether something can stand in an argument, and as what."""
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return True, value
    if isinstance(value, list):
        parts = [_literal(each) for each in value]
        return all(fine for fine, _ in parts), tuple(each for _, each in parts)
    return False, None
