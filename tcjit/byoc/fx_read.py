"""An FX graph of ATen operations as a Block.

Each operation is a node with all its results as outputs, those in lists one by one, so that ``getitem`` of them is no node. Operations that
take graphs (``cond``, ``while_loop``, ``map``) have effect ``control`` and these graphs as blocks. What is neither, such as the call of
a module, is kept as it is and counts as acting on everything that it is given.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from tcjit.byoc.graph import Argument, Block, Effect, Node, TensorType, Value, values_of
from tcjit.byoc.infer import type_of
from tcjit.byoc.ops import bind, effect_of, plain, written
from tcjit.errors import PartitionError

Target: TypeAlias = Any  # of a call: an OpOverload, a HigherOrderOperator, a function
# functions of numbers that FX graphs compute sizes with
_SCALAR = frozenset(
    [getattr(operator, name) for name in "add sub mul floordiv truediv mod pow neg pos abs eq ne lt le gt ge and_ or_ not_".split()]
    + [getattr(torch, f"sym_{name}") for name in "max min int float not ite sum".split() if hasattr(torch, f"sym_{name}")]
    + [math.ceil, math.floor, math.trunc, round, min, max]
)


@dataclass
class Record:
    """What a graph was when it was read: the arguments of every node by name, how many results those with several have, and the types
    that were told."""

    arguments: dict[fx.Node, Mapping[str, Argument]] = field(default_factory=dict)
    parts: dict[fx.Node, int] = field(default_factory=dict)
    types: dict[Value, TensorType | None] = field(default_factory=dict)


def read_graph(module: fx.GraphModule, record: Record, constant: Callable[[fx.Node], bool] = lambda node: False) -> Block:
    """The graph of a module; ``constant`` says which placeholders are constants of the model. Tensors that it holds itself come after the
    placeholders among the inputs."""
    return _FxReader(module, record, constant).block()


class _FxReader:
    def __init__(self, module: fx.GraphModule, record: Record, constant: Callable[[fx.Node], bool]) -> None:
        self._module, self._record, self._constant = module, record, constant
        self._values: dict[fx.Node, Value] = {}
        self._parts: dict[fx.Node, dict[int, Value]] = {}  # of nodes with several results
        self._inner: dict[fx.Node, fx.GraphModule] = {}
        self._inputs: list[Value] = []
        self._free: list[Value] = []
        self._nodes: list[Node] = []
        self._memory = _StorageUses()

    def block(self) -> Block:
        outputs: tuple[Value, ...] = ()
        for node in self._module.graph.nodes:
            match node.op:
                case "placeholder":
                    self._inputs.append(self._value(node, constant=self._constant(node)))
                case "get_attr":
                    self._attribute(node)
                case "output":
                    outputs = tuple(values_of(self._argument(node.args)))
                case "call_function" if node.target is operator.getitem and self._projection(node):
                    pass
                case _:
                    self._call(node)
        inputs = (*self._inputs, *self._free)
        mutated = self._memory.written()
        for value in inputs:
            value.constant = value.constant and value not in mutated
        return Block(inputs, self._nodes, outputs, mutated, self._module)

    def _value(self, node: fx.Node, *, constant: bool = False, kind: TensorType | None = None) -> Value:
        value = Value(node.name, kind or type_of(node.meta.get("val")), constant=constant, origin=node)
        self._values[node] = value
        self._record.types[value] = value.type
        return value

    def _attribute(self, node: fx.Node) -> None:
        thing = attribute(self._module, str(node.target))
        if isinstance(thing, fx.GraphModule):
            self._inner[node] = thing
            return
        constant = isinstance(thing, torch.Tensor) and not isinstance(thing, FakeTensor)
        self._free.append(self._value(node, constant=constant, kind=type_of(thing)))

    def _projection(self, node: fx.Node) -> bool:
        """Takes ``getitem`` of one of several results for that result."""
        whole, index = node.args
        parts = self._parts.get(whole) if isinstance(whole, fx.Node) else None
        if parts is None or not isinstance(index, int) or not -len(parts) <= index < len(parts):
            return False
        value = parts[index % len(parts)]
        if value.origin is None:
            value.name, value.origin = node.name, node
        self._values[node] = value
        return True

    def _argument(self, argument: Any) -> Argument:
        """An argument as written in the graph."""
        if isinstance(argument, fx.Node):
            return str(argument.target) if argument in self._inner else self._whole(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._argument, argument))
        if isinstance(argument, dict):
            return tuple(map(self._argument, argument.values()))
        if isinstance(argument, slice):
            return tuple(map(self._argument, (argument.start, argument.stop, argument.step)))
        argument = plain(argument)
        written = argument is None or isinstance(argument, (bool, int, float, complex, str))
        return argument if written else str(argument)

    def _whole(self, node: fx.Node) -> Argument:
        """A value; all of them where an operation has several and none is picked."""
        if node in self._values:
            return self._values[node]
        parts = self._parts[node]
        return tuple(parts[index] for index in sorted(parts))

    def _call(self, node: fx.Node) -> None:
        blocks: tuple[Block, ...] = ()
        target: Target = node.target
        effect: Effect
        if isinstance(target, OpOverload):
            op, overload, effect = *name_of(target), ""
            # what names a dtype, a device or a layout is left to the schema to read
            given: Any = fx.node.map_aggregate((node.args, node.kwargs), self._bound)
            arguments = bind(target, *given)
            effect = effect_of(target, arguments)
        else:
            arguments = {f"a{place}": self._argument(each) for place, each in enumerate(node.args)}
            arguments |= {name: self._argument(each) for name, each in node.kwargs.items()}
            op, overload, effect = _title(node), "", "" if _scalar(target) else "acts"
            inner = [self._inner[each] for each in node.all_input_nodes if each in self._inner]
            if isinstance(target, HigherOrderOperator) and inner:
                effect = "control"
                blocks = tuple(read_graph(each, self._record) for each in inner)
        self._record.arguments[node] = arguments
        made = Node(op, overload, arguments, (), effect, origin=node, blocks=blocks)
        made.outputs = self._outputs(made, node)
        self._nodes.append(made)
        self._memory.see(made, target)

    def _bound(self, argument: Any) -> Any:
        return self._argument(argument) if isinstance(argument, fx.Node) else argument

    def _outputs(self, made: Node, node: fx.Node) -> tuple[Value, ...]:
        """The results of a node; each that FX picks gets the name of what picks it."""
        val = node.meta.get("val")
        returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
        if isinstance(val, (list, tuple)) or len(returns) > 1:
            kinds = [type_of(each) for each in val] if isinstance(val, (list, tuple)) else [_promised(each.type) for each in returns]
            found = tuple(Value(f"{node.name}_{place}", kind, made, place) for place, kind in enumerate(kinds))
            self._parts[node] = dict(enumerate(found))
            self._record.parts[node] = len(found)
            self._record.types.update((value, value.type) for value in found)
            return found
        if isinstance(node.target, OpOverload) and not returns:
            return ()
        value = self._value(node, kind=None if val is not None or not returns else _promised(returns[0].type))
        value.producer = made
        return (value,)


class _StorageUses:
    """Which values may share memory, and which of them something writes to."""

    def __init__(self) -> None:
        self._owner: dict[Value, Value] = {}
        self._members: dict[Value, list[Value]] = {}
        self._written: list[Value] = []

    def see(self, node: Node, target: Target) -> None:
        lenders, writes = list(node.arguments), list(node.arguments)
        if isinstance(target, OpOverload):
            schema = target._schema
            shares = {name for each in schema.returns for name in _sets(each)}
            told = [each.name for each in schema.arguments if shares.intersection(_sets(each))]
            lenders = told or (lenders if node.effect == "view" else [])
            writes = list(written(target, node.arguments))
        elif node.effect == "":
            return
        elif node.effect == "control" and not any(set(each.inputs) & each.mutated for each in node.blocks):
            writes = []
        for name in lenders:
            for value in values_of(node.arguments[name]):
                for output in node.outputs:
                    self._join(value, output)
        self._written += [value for name in writes for value in values_of(node.arguments[name])]

    def written(self) -> frozenset[Value]:
        roots = {self._root(value) for value in self._written}
        return frozenset(each for root in roots for each in self._members.get(root, [root]))

    def _root(self, value: Value) -> Value:
        while value in self._owner:
            value = self._owner[value]
        return value

    def _join(self, one: Value, other: Value) -> None:
        into, gone = self._root(one), self._root(other)
        if into is not gone:
            self._owner[gone] = into
            self._members.setdefault(into, [into]).extend(self._members.pop(gone, [gone]))


def _sets(argument: Any) -> set[str]:
    """The names of the alias sets of an argument or a result of a schema."""
    return set(argument.alias_info.before_set) if argument.alias_info is not None else set()


def name_of(target: OpOverload) -> tuple[str, str]:
    """``aten.add`` and ``Tensor``; the overload without a name is ``default``."""
    return target._schema.name.replace("::", "."), target._overloadname


def _title(node: fx.Node) -> str:
    """The name of what is no ATen operation."""
    target: Target = node.target
    if isinstance(target, str):
        return f"{node.op}.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target._name}"
    home = str(getattr(target, "__module__", "")).lstrip("_")
    return f"{home or 'function'}.{getattr(target, '__name__', type(target).__name__)}"


def _scalar(target: Target) -> bool:
    """Whether a function computes numbers from numbers."""
    sizes = isinstance(target, BuiltinFunctionType) or getattr(target, "__module__", "") == "torch"
    return sizes and target in _SCALAR


def _promised(kind: Any) -> TensorType | None:
    """What a schema's result type tells of a tensor."""
    return TensorType() if str(kind) == "Tensor" else None


def attribute(module: torch.nn.Module, path: str) -> Any:
    """What a module holds under a dotted name; raises PartitionError where there is nothing."""
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise PartitionError(f"the graph asks for {path}, which its module does not hold")
        found = getattr(found, name)
    return found


def graphs_of(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A module and those that its operations take as arguments."""
    yield module
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(attribute(module, str(node.target)), fx.GraphModule):
            yield from graphs_of(attribute(module, str(node.target)))
