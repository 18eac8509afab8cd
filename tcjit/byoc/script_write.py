"""Blocks as a TorchScript graph: a copy of the graph that they were read from is brought to what they say, and left alone otherwise."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tcjit.byoc.graph import Argument, Block, Node, Value, values_of
from tcjit.byoc.ops import operator
from tcjit.byoc.script_read import ConstantUse, Origin, Reading, Snapshot, leaves, schema_of, walk
from tcjit.errors import PartitionError

_HIDDEN = ("prim::Constant", "prim::GetAttr", "prim::ListConstruct", "prim::TupleConstruct", "prim::ListUnpack")


def write(reading: Reading, block: Block, module: Any, graph: Any, names: Mapping[Value, str]) -> bool:
    """Brings a graph, equal to the one that was read, to what a block says; whether that changed it.

    ``names`` are the attributes of the module that hold constants which the model did not have. Raises PartitionError where the block is
    not in an order that can run, or uses operators or arguments that TorchScript does not have.
    """
    writer = _ScriptWriter(reading, module, graph, names)
    for value, each in zip(block.inputs, list(graph.inputs())[1:]):
        writer.values[value] = each
    writer.block(block, graph.block(), reading.snapshots[None][0])
    if writer.changed:
        writer.settle(graph.block())
        writer.clear(graph.block())
    try:
        graph.lint()
    except RuntimeError as error:
        raise PartitionError(f"the rewritten graph is not sound: {str(error).splitlines()[0]}") from error
    return writer.changed


class _ScriptWriter:
    def __init__(self, reading: Reading, module: Any, graph: Any, names: Mapping[Value, str]) -> None:
        self.reading = reading
        self.module = module
        self.graph = graph
        self.nodes = walk(graph)
        self.places = {node: place for place, node in enumerate(self.nodes)}
        self.names = names
        self.self_value = next(iter(graph.inputs()))
        self.values: dict[Value, Any] = {}
        self.kept: set[int] = set()
        self.changed = False

    def block(self, block: Block, target: Any, before: Snapshot) -> None:
        """One block; ``before`` is it as it was read."""
        moved = [node.origin for node in block.nodes] != before.nodes
        self.changed |= moved
        cursor = target.paramNode()
        for node in block.nodes:
            if isinstance(node.origin, Origin):
                cursor = self.old(node, target, cursor, moved)
            else:
                cursor = self.new(node, cursor)
        handed = leaves(target)
        if len(handed) != len(block.outputs):
            raise PartitionError(f"a block returns {len(block.outputs)} values and must return {len(handed)}")
        for (node, place), value, was in zip(handed, block.outputs, before.outputs):
            if value is not was:
                self.changed = True
                node.replaceInput(place, self.value(value))

    def old(self, node: Node, target: Any, cursor: Any, moved: bool) -> Any:
        """A node that the graph had: put in its place, with the arguments that it has now. The last node of it."""
        origin = node.origin
        found = self.nodes[origin.place]
        if found.owningBlock().returnNode() != target.returnNode():
            raise PartitionError(f"{node.op} was moved to another block")
        last = found if origin.unpack is None else self.nodes[origin.unpack]
        self.kept.update((origin.place, self.places[last]))
        if moved:
            found.moveAfter(cursor)
            if last != found:
                last.moveAfter(found)
        for name, argument in node.arguments.items():
            if name in origin.places and not _same(argument, origin.arguments[name]):
                self.changed = True
                self.replace(node, found, name, argument)
        if len(list(last.outputs())) != len(node.outputs):
            raise PartitionError(f"{node.op} has {len(node.outputs)} results where it had {len(list(last.outputs()))}")
        for value, each in zip(node.outputs, last.outputs()):
            self.values[value] = each
        if len(node.blocks) != len(list(found.blocks())):
            raise PartitionError(f"{node.op} has {len(node.blocks)} blocks where it had {len(list(found.blocks()))}")
        for inner, each, before in zip(node.blocks, found.blocks(), self.reading.snapshots[origin]):
            for value, given in zip(inner.inputs, each.inputs()):
                self.values[value] = given
            self.block(inner, each, before)
        return last

    def replace(self, node: Node, found: Any, name: str, argument: Argument) -> None:
        origin = node.origin
        place = origin.places[name]
        if name in origin.several:
            was = origin.arguments[name]
            if not isinstance(argument, tuple) or len(argument) != len(was):
                raise PartitionError(f"{node.op}: {name} has another number of parts than before")
            for at, (one, other) in enumerate(zip(argument, was)):
                if not _same(one, other):
                    found.replaceInput(place + at, self.operand(one, found, None))
            return
        schema = schema_of(found.schema())
        kind = schema.arguments[place].type if schema is not None else None
        found.replaceInput(place, self.operand(argument, found, kind))

    def new(self, node: Node, cursor: Any) -> Any:
        """A node that a pass made, after another; the last node of it."""
        self.changed = True
        schema = operator(node.op, node.overload)._schema
        made = self.graph.create(node.op.replace(".", "::"), [], 0 if not schema.returns else len(schema.returns))
        made.insertAfter(cursor)
        for argument in schema.arguments:
            if argument.name not in node.arguments and not argument.has_default_value():
                raise PartitionError(f"{node.op} lacks its argument {argument.name}", hint=f"its schema is {schema}")
            given = node.arguments[argument.name] if argument.name in node.arguments else argument.default_value
            made.addInput(self.operand(given, made, argument.type))
        for value, each in zip(made.outputs(), schema.returns):
            value.setType(each.type)
        found = schema_of(made.schema())
        if found is None or found.name != schema.name or found.overload_name != schema.overload_name:
            raise PartitionError(f"TorchScript takes {node!r} for {found or 'nothing that it knows'}", hint=f"its schema is {schema}")
        last = made
        if len(schema.returns) == 1 and str(schema.returns[0].type) == "List[Tensor]":
            last = self.graph.create("prim::ListUnpack", [made.output()], len(node.outputs))
            last.insertAfter(made)
            for value in last.outputs():
                value.setType(torch._C.TensorType.get())
        if len(list(last.outputs())) != len(node.outputs):
            raise PartitionError(f"{node.op} has {len(list(last.outputs()))} results, not {len(node.outputs)}")
        for value, each in zip(node.outputs, last.outputs()):
            self.produced(value, each)
        return last

    def produced(self, value: Value, found: Any) -> None:
        """A value that a new node computes; where an old one did, its users turn to the new."""
        if value in self.reading.positions:
            place, position = self.reading.positions[value]
            self.nodes[place].outputsAt(position).replaceAllUsesWith(found)
        self.values[value] = found

    def operand(self, argument: Argument, node: Any, kind: Any) -> Any:
        """The graph's value for an argument of a node, made right before it where there is none."""
        if isinstance(argument, Value):
            return self.value(argument)
        while kind is not None and kind.kind() == "OptionalType" and argument is not None:
            kind = kind.getElementType()
        if isinstance(argument, tuple):
            element = kind.getElementType() if kind is not None and kind.kind() == "ListType" else None
            parts = [self.operand(each, node, element) for each in argument]
            made = self.graph.create("prim::ListConstruct", parts, 1)
            made.insertBefore(node)
            if element is None and parts:
                element = parts[0].type()
            if element is None:
                raise PartitionError("an empty list whose type nothing tells cannot be written")
            made.output().setType(torch._C.ListType(element))
            return made.output()
        name = kind.kind() if kind is not None else ""
        if name == "FloatType" and isinstance(argument, int):
            argument = float(argument)
        plain: Any = torch.device(argument) if name == "DeviceObjType" and isinstance(argument, str) else argument
        made = self.graph.insertConstant(plain).node()
        made.moveBefore(node)
        return made.output()

    def value(self, value: Value) -> Any:
        """The graph's value for one that is computed, given or held."""
        if value in self.values:
            return self.values[value]
        if value in self.names:
            self.values[value] = self.attribute(self.names[value], torch._C.TensorType.get())
        elif isinstance(value.origin, ConstantUse) and value.origin.path:
            self.values[value] = self.attribute(value.origin.path, self.nodes[value.origin.place].output().type())
        elif isinstance(value.origin, ConstantUse):
            held = self.nodes[value.origin.place]
            held.moveAfter(self.graph.param_node())
            self.values[value] = held.output()
        else:
            raise PartitionError(f"%{value.name} is used before it is computed, or nothing computes it")
        return self.values[value]

    def attribute(self, path: str, kind: Any) -> Any:
        """A tensor that the model or a part of it holds, got at the beginning, so that every block can use it; ``kind`` may be optional."""
        found, part, cursor = self.self_value, self.module, self.graph.param_node()
        for name in path.split("."):
            part = getattr(part, name)
            made = self.graph.create("prim::GetAttr", [found], 1)
            made.s_("name", name)
            found = made.output()
            found.setType(kind if isinstance(part, torch.Tensor) else part._c._type())
            made.insertAfter(cursor)
            cursor = made
        if kind.kind() == "OptionalType":
            made = self.graph.create("prim::unchecked_cast", [found], 1)
            made.insertAfter(cursor)
            found = made.output()
            found.setType(torch._C.TensorType.get())
        return found

    def settle(self, block: Any) -> None:
        """Moves what only carries to where its operands are there and its users not yet."""
        for node in [*block.nodes(), block.returnNode()]:
            self.before(node)
            for inner in node.blocks():
                self.settle(inner)

    def before(self, node: Any) -> None:
        for value in node.inputs():
            maker = value.node()
            if maker.kind() not in _HIDDEN or self.places.get(maker, -1) in self.kept:
                continue
            anchor = _anchor(node, maker)
            late = any(each.node().kind() != "prim::Param" and not _earlier(each.node(), maker) for each in maker.inputs())
            if late or not maker.isBefore(anchor):
                maker.moveBefore(anchor)
            self.before(maker)

    def clear(self, block: Any) -> None:
        """Takes out what the block no longer has, and what only carried it."""
        for node in reversed(list(block.nodes())):
            place = self.places.get(node, -1)
            gone = place in self.reading.visible and place not in self.kept
            hidden = node.kind() in _HIDDEN and place not in self.kept
            if (gone or hidden) and not node.hasUses():
                node.destroy()
            elif gone:
                name = next(value.debugName() for value in node.outputs() if value.uses())
                raise PartitionError(f"%{name} is used, but {node.kind()} that computes it is not in the block")
            else:
                for inner in node.blocks():
                    self.clear(inner)


def _anchor(node: Any, maker: Any) -> Any:
    """The node in the block of ``maker`` that is or holds a node."""
    home = maker.owningBlock().returnNode()
    while node.owningBlock().returnNode() != home:
        node = node.owningBlock().owningNode()
        if node is None:
            raise PartitionError(f"%{maker.output().debugName()} is used outside of its block")
    return node


def _earlier(one: Any, other: Any) -> bool:
    """Whether a node, here or around, stands before another."""
    home = one.owningBlock().returnNode()
    while other.owningBlock().returnNode() != home:
        other = other.owningBlock().owningNode()
        if other is None:
            return True
    return bool(one.isBefore(other))


def _same(one: Argument, other: Argument) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Value) or isinstance(other, Value):
        return one is other
    return type(one) is type(other) and (one == other or one != one)


def used(block: Block) -> Sequence[Value]:
    """Every value that a block and those inside use, once."""
    found: dict[Value, None] = {}
    for each in block.every():
        for node in each.nodes:
            found.update(dict.fromkeys(v for argument in node.arguments.values() for v in values_of(argument)))
        found.update(dict.fromkeys(each.outputs))
    return list(found)
