"""Types in the Blocks of a TorchScript model: every operation is run once on tensors without data, branches are joined, loops run until
nothing changes. What is not certain is left open."""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import product
from typing import Any

import torch

from tcjit.byoc.archive import first_line
from tcjit.byoc.graph import Argument, Block, Node, TensorType, Value
from tcjit.byoc.infer import Shapes, is_refusal, type_of
from tcjit.byoc.ops import operator as operator_of
from tcjit.byoc.ops import written
from tcjit.errors import PartitionError

# numbers that may be symbols
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "aten.add": operator.add,
    "aten.sub": operator.sub,
    "aten.mul": operator.mul,
    "aten.floordiv": operator.floordiv,
    "aten.remainder": operator.mod,
    "aten.neg": operator.neg,
}
# writers that change more than the numbers in a tensor
_RESHAPING = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ resize_ resize_as_ as_strided_ set_ set_data detach_ swap_ rename_".split()
)
_ROUNDS = 4  # of a loop, after which what still changes is given up


class _Open:
    """Stands for what is not known."""


_OPEN = _Open()


def infer(block: Block, given: Mapping[Value, Any], scalars: Mapping[Value, str], shapes: Shapes, device: str) -> str:
    """Sets the types of all tensors in a block and those inside. What an operation that always runs says against its arguments, which may
    be that its inputs do not fit the model, or that too little is known of them; empty where none does.

    ``given``: what is known of inputs and constants, tensors without data, numbers, tuples of such. ``scalars`` names the types of numbers.
    ``device`` is that of tensors of which nothing is known.
    """
    flow = _Flow(dict(given), scalars, shapes)
    for each in block.every():
        for node in each.nodes:
            if node.op.startswith("aten.") and node.op[5:] in _RESHAPING:
                flow.reshaped.update(node.inputs)
    flow.reshaped = {value for value in flow.reshaped if value.type is not None}
    flow.block(block)
    unsure = flow.reshaped and block.mutated
    for each in block.every():
        for value in (*each.values, *(v for node in each.nodes for v in node.inputs if v.constant)):
            if value.type is None:
                continue
            kind = None if unsure and value in unsure else type_of(flow.known.get(value))
            value.type = kind or TensorType(device=device)
    return flow.refusal


def example_of(example: Any, shapes: Shapes, unknown: tuple[int, ...] = ()) -> Any:
    """What is known of a value from an example: of a tensor all but its numbers and its ``unknown`` dimensions. The next call may give
    another number. Raises PartitionError where the tensor does not have these dimensions."""
    if isinstance(example, torch.Tensor):
        dims = sorted({dim % example.dim() for dim in unknown if -example.dim() <= dim < example.dim()})
        if len(dims) != len(unknown):
            raise PartitionError(f"dynamic names dimensions {unknown} of a tensor with {example.dim()}")
        return shapes.like(example, dims)
    if isinstance(example, tuple):
        return tuple(example_of(each, shapes) for each in example)
    return None if example is None else _OPEN


class _Flow:
    def __init__(self, known: dict[Value, Any], scalars: Mapping[Value, str], shapes: Shapes) -> None:
        self.known = known
        self.scalars = scalars
        self.shapes = shapes
        self.mutated: frozenset[Value] = frozenset()
        self.reshaped: set[Value] = set()
        self.refusal = ""
        self.depth = 0

    def block(self, block: Block) -> None:
        self.mutated = self.mutated or block.mutated
        self.depth += 1
        for node in block.nodes:
            self.node(node)
        self.depth -= 1

    def get(self, argument: Argument) -> Any:
        if isinstance(argument, tuple):
            parts = tuple(map(self.get, argument))
            return _OPEN if any(part is _OPEN for part in parts) else parts
        return self.known.get(argument, _OPEN) if isinstance(argument, Value) else argument

    def node(self, node: Node) -> None:
        if node.op == "prim.If":
            for inner in node.blocks:
                self.block(inner)
            for place, value in enumerate(node.outputs):
                ends = [self.get(inner.outputs[place]) for inner in node.blocks]
                self.put(value, self.join(ends[0], ends[1]))
        elif node.op == "prim.Loop":
            self.loop(node)
        else:
            try:
                found = self.compute(node)
            except Exception as error:  # PyTorch has no rule, or the rule does not apply: nothing is known
                found = []
                if self.depth == 1 and not self.refusal and is_refusal(error):
                    self.refusal = f"{node.op}: {first_line(error)}"
            for place, value in enumerate(node.outputs):
                self.put(value, found[place] if len(found) == len(node.outputs) else _OPEN)

    def put(self, value: Value, found: Any) -> None:
        """Notes what is known of a value; lists that something writes to are not known."""
        if value.type is None and value in self.mutated:
            found = _OPEN
        if found is _OPEN and self.scalars.get(value) == "IntType":
            found = self.shapes.integer()
        if found is _OPEN and self.scalars.get(value) == "FloatType":
            found = self.shapes.number()
        self.known[value] = found

    def loop(self, node: Node) -> None:
        (body,) = node.blocks
        carried = node.arguments["carried"]
        assert isinstance(carried, tuple)
        state = [self.get(each) for each in carried]
        if body.inputs:
            self.put(body.inputs[0], _OPEN)
        for attempt in range(_ROUNDS):
            for value, each in zip(body.inputs[1:], state):
                self.put(value, each)
            self.block(body)
            after = [self.join(each, self.get(end)) for each, end in zip(state, body.outputs[1:])]
            changed = [one is not other for one, other in zip(state, after)]
            if not any(changed):
                break
            state = [_OPEN if change and attempt >= _ROUNDS - 2 else each for change, each in zip(changed, after)]
        for value, each in zip(node.outputs, state):
            self.put(value, each)

    def join(self, one: Any, other: Any) -> Any:
        """What is known of something that may be either; the first itself where the other adds nothing."""
        if one is other:
            return one
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.dtype != other.dtype or one.dim() != other.dim() or one.device != other.device:
                return _OPEN
            same = [_same(a, b) for a, b in zip(one.shape, other.shape)]
            if all(same):
                return one
            if all(fine or not isinstance(a, int) for fine, a in zip(same, one.shape)):
                return one  # what differs was open before
            with self.shapes.mode:
                shape = [a if fine else self.shapes.extent(max(a, 2)) for fine, a in zip(same, one.shape)]
                return torch.empty(shape, dtype=one.dtype, device=one.device)
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            parts = tuple(self.join(a, b) for a, b in zip(one, other))
            return one if all(a is b for a, b in zip(one, parts)) else parts
        return one if _same(one, other) else _OPEN

    def compute(self, node: Node) -> list[Any]:
        """What is known of an operation's results; raises where it cannot be run."""
        arguments = {name: self.get(each) for name, each in node.arguments.items()}
        values = list(arguments.values())
        if node.op in ("prim.TupleConstruct", "prim.ListConstruct"):
            return [arguments["values"]]
        if node.op in ("prim.TupleUnpack", "prim.ListUnpack"):
            return list(values[0]) if isinstance(values[0], tuple) else []
        if node.op == "prim.TupleIndex" or (node.op == "aten.__getitem__" and isinstance(values[0], tuple)):
            return [values[0][values[1]]]
        if node.op == "prim.Constant":
            return [arguments["value"]] if "value" in arguments else []
        if node.op == "prim.unchecked_cast":
            return values[:1]
        if node.op == "aten.size":
            shape = tuple(values[0].shape)
            return [shape if node.overload == "default" else shape[values[1]]]
        if node.op == "aten.len" and isinstance(values[0], tuple):
            return [len(values[0])]
        switches = [name for name, each in node.arguments.items() if arguments[name] is _OPEN and _is_bool(each, self.scalars)]
        if 0 < len(switches) <= 2:
            choices = [arguments | dict(zip(switches, each)) for each in product((True, False), repeat=len(switches))]
            return [reduce(self.join, each) for each in zip(*(self.run(node, choice) for choice in choices))]
        return self.run(node, arguments)

    def run(self, node: Node, arguments: dict[str, Any]) -> list[Any]:
        """An operation on tensors without data."""
        values = list(arguments.values())
        if any(each is _OPEN for each in values):
            return []
        if node.op in _ARITHMETIC and all(isinstance(each, (int, float, torch.SymInt, torch.SymFloat)) for each in values):
            return [_ARITHMETIC[node.op](*values)]
        if node.op.startswith("prim.") and not node.op.startswith("prim.NumToTensor"):
            return []
        found = self.shapes.run(node.op, node.overload, arguments)
        if node.effect == "mutates" and len(found) == 1 and isinstance(found[0], torch.Tensor):
            (first, *_) = written(operator_of(node.op, node.overload), node.arguments) or ("",)
            return [arguments.get(first, found[0])] if node.op.endswith("_") else found
        return found


def _is_bool(argument: Argument, scalars: Mapping[Value, str]) -> bool:
    return isinstance(argument, Value) and scalars.get(argument) == "BoolType"


def _same(one: Any, other: Any) -> bool:
    """Whether two numbers, extents or texts are the same, without asking anything of a symbol."""
    if one is other:
        return True
    if isinstance(one, (torch.SymInt, torch.SymFloat)) or isinstance(other, (torch.SymInt, torch.SymFloat)):
        return type(one) is type(other) and str(one) == str(other)
    return type(one) is type(other) and isinstance(one, (int, float, complex, str)) and one == other
