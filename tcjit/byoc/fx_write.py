"""A Block as an FX graph again, with the metadata that export asks for.

Nodes that were read are written with their own arguments where these did not change, so that a graph that nobody changed comes out as it
was. Their fake results are kept as well; those of new nodes are computed, and of what depends on other ones.
"""
from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from tcjit.byoc.fx_read import Record, attribute, name_of
from tcjit.byoc.graph import Argument, Block, Node, Value
from tcjit.byoc.ops import call
from tcjit.byoc.runtime import CALL
from tcjit.errors import PartitionError


@dataclass
class Written:
    """A graph, what it takes from its module by name, and the node of each value."""

    graph: fx.Graph
    root: dict[str, Any] = field(default_factory=dict)
    nodes: dict[Value, fx.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class FxWriter:
    """Writes the blocks of one model. ``tensors`` are the constants made since it was read, with their names in the model; ``mode`` runs
    operations on fake tensors, where the model has such; ``lift``: graphs inside take these constants as operands, none holds them."""

    record: Record
    tensors: Mapping[Value, tuple[str, torch.Tensor]]
    mode: FakeTensorMode | None = None
    lift: bool = False
    changed: set[Value] = field(default_factory=set)  # values whose fake results are not those of the model

    def write(self, block: Block, placeholders: Sequence[Value]) -> Written:
        """The graph of a block with these inputs; other constants it takes from its module."""
        return _Graph(self, block).written(placeholders)

    def module(self, block: Block, placeholders: Sequence[Value]) -> fx.GraphModule:
        """The same as a module, called as the one that was read."""
        done, origin = self.write(block, placeholders), block.origin
        done.graph.set_codegen(copy.deepcopy(origin.graph._codegen))
        made = fx.GraphModule(done.root, done.graph, origin.__class__.__name__)
        made.meta.update(origin.meta)
        return made.train(origin.training)

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a constant."""
        return tensor if self.mode is None else self.mode.from_tensor(tensor, static_shapes=True)

    def added(self, block: Block) -> list[Value]:
        """The new constants that a block uses, those of blocks inside too, in the order of their first use."""
        found = [value for node in block.nodes for value in (*node.inputs, *(v for each in node.blocks for v in self.added(each)))]
        return list(dict.fromkeys(value for value in (*found, *block.outputs) if value in self.tensors))


def placeholders(block: Block) -> list[Value]:
    """The inputs of a block that are placeholders in its graph."""
    return [value for value in block.inputs if value.origin is not None and value.origin.op == "placeholder"]


class _Graph:
    def __init__(self, writer: FxWriter, block: Block) -> None:
        self._writer, self._record, self._block = writer, writer.record, block
        self._origin: fx.GraphModule = block.origin
        self._out = Written(fx.Graph())
        self._used = {*block.outputs, *(value for node in block.nodes for value in node.inputs)}
        self._held: dict[fx.Node, Value] = {v.origin: v for v in block.inputs if v.origin is not None and v.origin.op == "get_attr"}
        self._graphs: dict[fx.Node, tuple[Block, list[Value]]] = {}
        self._taken: dict[fx.Node, fx.Node] = {}  # what was taken from the module already
        self._before: dict[fx.Node, list[fx.Node]] = {}  # what is taken from the module right before a node
        waiting: list[fx.Node] = []
        for each in self._origin.graph.nodes:
            if each.op == "get_attr":
                waiting.append(each)
            else:
                self._before[each], waiting = waiting, []
        for node in block.nodes:
            if node.blocks:
                lifted = self._lifted(node)
                self._graphs.update((each, (inner, lifted)) for each, inner in zip(self._inner(node.origin), node.blocks))

    def _inner(self, node: fx.Node) -> list[fx.Node]:
        """The graphs among the arguments of a node."""
        taken = [each for each in node.all_input_nodes if each.op == "get_attr"]
        return [each for each in taken if isinstance(attribute(self._origin, str(each.target)), fx.GraphModule)]

    def _lifted(self, node: Node) -> list[Value]:
        """The new constants that become operands of a node, for the graphs inside it."""
        return list(dict.fromkeys(v for each in node.blocks for v in self._writer.added(each))) if self._writer.lift else []

    def written(self, placeholders: Sequence[Value]) -> Written:
        for value in placeholders:
            if isinstance(value.origin, fx.Node):
                self._precede(value.origin)
                made = self._out.graph.node_copy(value.origin)
            else:
                made = self._out.graph.create_node("placeholder", value.name, name=value.name)
                made.meta["val"] = self._writer.fake(self._writer.tensors[value][1])
            self._out.nodes[value] = made
        for node in self._block.nodes:
            if isinstance(node.origin, fx.Node):
                self._precede(node.origin)
            if node.op == "tcjit.call":
                self._region(node)
            else:
                self._operation(node)
        self._output()
        self._out.graph.lint()
        return self._out

    # what a graph takes from its module

    def _precede(self, node: fx.Node) -> None:
        """Takes what the model took right before a node, where something still wants it."""
        for each in self._before.pop(node, ()):
            if each in self._graphs or self._held.get(each) in self._used or not each.users:
                self._take(each)

    def _take(self, origin: fx.Node) -> fx.Node:
        if origin not in self._taken:
            name = str(origin.target)
            if origin in self._graphs:
                inner, lifted = self._graphs[origin]
                name = self._free(name)
                self._out.root[name] = self._writer.module(inner, [*placeholders(inner), *lifted])
            else:
                self._out.root[name] = attribute(self._origin, name)
            made = self._out.graph.create_node("get_attr", name, name=origin.name)
            made.meta = copy.copy(origin.meta)
            self._taken[origin] = made
            if origin in self._held:
                self._out.nodes[self._held[origin]] = made
        return self._taken[origin]

    def _free(self, name: str) -> str:
        while name in self._out.root:
            name += "_"
        return name

    def _node(self, value: Value) -> fx.Node:
        """What stands for a value."""
        if value in self._out.nodes:
            return self._out.nodes[value]
        if value.origin in self._held:
            return self._take(value.origin)
        if value not in self._writer.tensors:
            raise PartitionError(f"%{value.name} is used and never computed", hint="a pass dropped the operation that does")
        name, tensor = self._writer.tensors[value]
        self._out.root[name] = tensor
        made = self._out.nodes[value] = self._out.graph.create_node("get_attr", name, name=value.name)
        made.meta["val"] = self._writer.fake(tensor)
        return made

    # operations

    def _operation(self, node: Node) -> None:
        origin = node.origin if isinstance(node.origin, fx.Node) and _same_operation(node, node.origin) else None
        if origin is not None:
            args, kwargs, same = self._own_arguments(node, origin)
            made = self._out.graph.create_node(origin.op, origin.target, args, kwargs, origin.name, origin.type)
            made.meta = copy.copy(origin.meta)
            if origin.op == "call_module":
                self._out.root[str(origin.target)] = attribute(self._origin, str(origin.target))
        else:
            target, args, kwargs = self._short(node)
            name = node.outputs[0].name if len(node.outputs) == 1 else node.op.rpartition(".")[2]
            made, same = self._out.graph.create_node("call_function", target, args, kwargs, name), False
            if node.outputs and isinstance(node.outputs[0].origin, fx.Node):
                made.meta = copy.copy(node.outputs[0].origin.meta)
        told = all(value.type == self._record.types.get(value) for value in node.outputs)
        if not (same and told) or any(value in self._writer.changed for value in node.inputs):
            self._compute(made, node)
        several = origin in self._record.parts if origin is not None else len(node.outputs) > 1 or isinstance(made.meta.get("val"), list)
        if several:
            self._results(node, made)
        elif node.outputs:
            self._out.nodes[node.outputs[0]] = made

    def _short(self, node: Node) -> tuple[OpOverload, tuple[Any, ...], dict[str, Any]]:
        """An operation's arguments as export writes them: without those at the end that are the schema's defaults."""
        target, args, kwargs = call(node.op, node.overload, {name: self._plain(each) for name, each in node.arguments.items()})
        places = [each for each in target._schema.arguments if not each.kwarg_only]
        while args and _default(places[len(args) - 1], args[-1]):
            args.pop()
        named = [each for each in target._schema.arguments if each.kwarg_only]
        return target, tuple(args), {each.name: kwargs[each.name] for each in named if not _default(each, kwargs[each.name])}

    def _own_arguments(self, node: Node, origin: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """The arguments as the model writes them, with what changed, and whether nothing did."""
        read = self._record.arguments[origin]
        schema = origin.target._schema.arguments if isinstance(origin.target, OpOverload) else ()
        names = [each.name for each in schema] or [f"a{place}" for place in range(len(origin.args))]
        written = {**dict(zip(names, origin.args)), **origin.kwargs}
        args = [self._own(each, read[name], node.arguments[name]) for name, each in zip(names, origin.args)]
        kwargs = {name: self._own(each, read[name], node.arguments[name]) for name, each in origin.kwargs.items()}
        news = {name for name, each in node.arguments.items() if not _equal(each, read[name])}
        if isinstance(origin.target, OpOverload) and news.difference(written):
            return *self._short(node)[1:], False
        lifted = [self._node(value) for value in self._lifted(node)]
        if lifted and isinstance(args[-1], (list, tuple)):
            args[-1] = [*args[-1], *lifted]
        else:
            args += lifted
        return tuple(args), kwargs, not news

    def _own(self, written: Any, read: Argument, new: Argument) -> Any:
        if isinstance(new, Value):
            return self._node(new)
        if isinstance(written, fx.Node) and written in self._graphs:
            return self._take(written)
        if isinstance(written, dict) and isinstance(read, tuple) and isinstance(new, tuple):
            return {key: self._own(*each) for key, *each in zip(written, written.values(), read, new)}
        if isinstance(written, slice) and isinstance(read, tuple) and isinstance(new, tuple):
            return slice(*map(self._own, (written.start, written.stop, written.step), read, new))
        if isinstance(written, (list, tuple)) and isinstance(read, tuple) and isinstance(new, tuple) and len(read) == len(new):
            made = list(map(self._own, written, read, new))
            return made if isinstance(written, list) else tuple(made)
        return written if _equal(read, new) and not isinstance(written, fx.Node) else self._plain(new)

    def _plain(self, argument: Argument) -> Any:
        if isinstance(argument, Value):
            return self._node(argument)
        return list(map(self._plain, argument)) if isinstance(argument, tuple) else argument

    def _region(self, node: Node) -> None:
        """A call of a region. Its results have the layout that they have in the model, whatever its kernel gives."""
        args = (self._plain(node.arguments["spec"]), self._plain(node.arguments["inputs"]))
        made = self._out.graph.create_node("call_function", CALL, args, {}, "tcjit_call")
        vals = [self._val(value) for value in node.outputs]
        made.meta["val"] = vals
        if any(val is None for val in vals):
            self._compute(made, node)
        self._results(node, made)
        for value, val in zip(node.outputs, vals):
            if value in self._out.nodes and val is not None:
                self._out.nodes[value] = self._laid_out(self._out.nodes[value], val)

    def _val(self, value: Value) -> Any:
        """The fake result that the model has for a value; None where it has none that still fits."""
        fits = isinstance(value.origin, fx.Node) and self._record.types.get(value) == value.type and value not in self._writer.changed
        return value.origin.meta.get("val") if fits else None

    def _results(self, node: Node, whole: fx.Node) -> None:
        """Takes the results of a node that has several apart: those that are used, and those that the model takes and drops."""
        for index, value in enumerate(node.outputs):
            origin = value.origin if isinstance(value.origin, fx.Node) else None
            if value not in self._used and (origin is None or origin.users):
                continue
            made = self._out.graph.create_node("call_function", operator.getitem, (whole, index), {}, value.name)
            made.meta = copy.copy(origin.meta) if origin is not None else {}
            if isinstance(whole.meta.get("val"), (list, tuple)) and ("val" not in made.meta or value in self._writer.changed):
                made.meta["val"] = whole.meta["val"][index]
            self._out.nodes[value] = made

    def _laid_out(self, made: fx.Node, val: torch.Tensor) -> fx.Node:
        """A tensor in the layout of a fake one; the very tensor where it has that already."""
        order = layout(val)
        if order is None:
            return made
        back = [order.index(place) for place in range(len(order))]
        name, meta, permute = made.name, made.meta, torch.ops.aten.permute.default
        steps: list[tuple[OpOverload, tuple[Any, ...]]] = [(permute, (order,)), (torch.ops.aten.contiguous.default, ()), (permute, (back,))]
        for target, rest in steps:
            made = self._out.graph.create_node("call_function", target, (made, *rest), {}, f"{name}_laid_out")
            self._compute(made, None)
            made.meta = {**meta, **made.meta}
        return made

    def _compute(self, made: fx.Node, node: Node | None) -> None:
        """Fills in what a node gives, on fake tensors, and notes where that is not what the model has."""
        fakes = {each: self._fake(each) for each in made.all_input_nodes}
        if self._writer.mode is None or any(each is None for each in fakes.values()) or not isinstance(made.target, OpOverload):
            return
        args, kwargs = fx.node.map_arg((made.args, made.kwargs), fakes.__getitem__)
        with self._writer.mode, _without_guards(self._writer.mode):
            val = made.target(*args, **kwargs)
        made.meta["val"] = val
        made.meta.pop("tensor_meta", None)
        outputs = node.outputs if node is not None else ()
        for value, each in zip(outputs, val if isinstance(val, (list, tuple)) else [val]):
            before = value.origin.meta.get("val") if isinstance(value.origin, fx.Node) else None
            if before is not None and _facts(before) != _facts(each):
                self._writer.changed.add(value)

    def _fake(self, node: fx.Node) -> Any:
        """What a node gives, as a stand-in; of a tensor that the module holds torch does not always make one."""
        val = node.meta.get("val")
        held = self._out.root.get(str(node.target)) if node.op == "get_attr" and val is None else None
        return self._writer.fake(held) if isinstance(held, torch.Tensor) else val

    def _output(self) -> None:
        """What the block returns, in the places where the model has its results."""
        (origin,) = (each for each in self._origin.graph.nodes if each.op == "output")
        self._precede(origin)
        left: Iterator[Value] = iter(self._block.outputs)
        count = sum(self._record.parts.get(each, 1) for each in _leaves(origin.args))
        if count != len(self._block.outputs):
            raise PartitionError(f"a block returns {len(self._block.outputs)} values, the model {count}")

        def place(each: fx.Node) -> Any:
            parts = self._record.parts.get(each)
            return self._leaving(next(left)) if parts is None else tuple(self._leaving(next(left)) for _ in range(parts))

        made = self._out.graph.create_node("output", "output", fx.node.map_arg(origin.args, place), name=origin.name, type_expr=origin.type)
        made.meta = copy.copy(origin.meta)

    def _leaving(self, value: Value) -> fx.Node:
        made = self._node(value)
        before = value.origin.meta.get("val") if isinstance(value.origin, fx.Node) else None
        if value in self._writer.changed and isinstance(before, torch.Tensor):
            return self._laid_out(made, before)
        return made


def layout(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions of a tensor from the outermost in memory to the innermost; None where that is their own order, or where they overlap.
    """
    hints = [_hint(each) for each in tensor.stride()] if tensor.layout == torch.strided else []
    real = [place for place, extent in enumerate(tensor.shape) if _hint(extent) != 1] if hints else []
    if any(not hints[place] for place in real):
        return None
    order = sorted(real, key=lambda place: -(hints[place] or 0))
    if order == real:
        return None
    flat = [place for place in range(len(hints)) if place not in real]
    return [*flat, *order]


def _hint(extent: Any) -> int | None:
    """An extent or stride as a number, of dynamic ones the one of the example; None where there is none."""
    return extent if isinstance(extent, int) else extent.node.hint


def _facts(val: Any) -> tuple[object, ...]:
    """What tells two fake results apart."""
    if not isinstance(val, torch.Tensor):
        return (str(val),)
    return (val.dtype, str(val.device), *map(str, val.shape), *(map(str, val.stride()) if val.layout == torch.strided else ()))


def _leaves(arguments: Any) -> list[fx.Node]:
    """The nodes among arguments, once per use."""
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return found


def _same_operation(node: Node, origin: fx.Node) -> bool:
    return not isinstance(origin.target, OpOverload) or name_of(origin.target) == (node.op, node.overload)


def _default(argument: Any, value: object) -> bool:
    """Whether a value for an argument of a schema is its default."""
    return argument.has_default_value() and type(value) is type(argument.default_value) and value == argument.default_value


def _equal(one: Argument, other: Argument) -> bool:
    """The same values and the same words."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Value) or isinstance(other, Value):
        return one is other
    return one is other or (type(one) is type(other) and (one == other or (one != one and other != other)))


def _without_guards(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """Lets no computation on fake tensors narrow the model's sizes."""
    env = mode.shape_env
    return nullcontext() if env is None else env.suppress_guards()
