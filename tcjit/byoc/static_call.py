"""An exported program of fixed shapes as one Python function over tensors.

The module that ``torch.export`` makes flattens its inputs and checks each as a tree at every call, which takes 30 us. Where all inputs are
tensors of known shapes, dtypes and devices, one comparison each says as much, and what follows are the operations one after the other.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tcjit.byoc.fx_read import attribute
from tcjit.byoc.runtime import CALL, FixedRegion
from tcjit.runtime.tensors import plain_state

StaticCall = Callable[[tuple[Any, ...]], Any]  # a call by place; NotImplemented where it is none that the function takes


def static_call(program: Any, module: Any) -> StaticCall | None:
    """The function of a program and its module; None where it has inputs that are no tensors, extents that vary, or control flow."""
    if not isinstance(program, ExportedProgram) or not isinstance(module, fx.GraphModule) or program.call_spec.in_spec is None:
        return None
    by_place, by_name = program.call_spec.in_spec.children()
    inputs = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    leaves = all(child.is_leaf() for child in by_place.children()) and not by_name.num_children
    fixed = all(isinstance(val, Tensor) and all(isinstance(extent, int) for extent in val.shape) for val in inputs)
    if not (leaves and fixed and len(inputs) == by_place.num_children):
        return None
    return _Writer(module, inputs, program.call_spec.out_spec).function()


class _Writer:
    """Writes the function's text, one line for each operation; what is no tensor of the call is a name of its own."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Tensor], out_spec: Any) -> None:
        self._module, self._inputs, self._out_spec = module, inputs, out_spec
        self._known: dict[str, Any] = {"Tensor": Tensor, "aside": _aside}
        self._names: dict[fx.Node, str] = {}
        self._held: list[Tensor] = []
        self._replaced: list[str] = []  # whether a tensor that the module held has another in its place
        self._lines: list[str] = []
        self._last: dict[fx.Node, list[fx.Node]] = {}

    def function(self) -> StaticCall | None:
        nodes = list(self._module.graph.nodes)
        for node in nodes:
            self._last.setdefault(max(node.users, key=nodes.index), []).append(node) if node.users else None
        for node in nodes:
            if node.op == "placeholder":
                self._names[node] = f"x{len(self._names)}"
        taken = ", ".join(self._names.values())
        checks = [self._check(name, val) for name, val in zip(self._names.values(), self._inputs)]
        for node in nodes:
            if not self._statement(node):
                return None
        self._known["held"] = tuple(self._held)
        body = [
            f"if len(args) != {len(self._inputs)}: return NotImplemented",
            *([f"{taken}, = args"] if taken else []),
            f"if {' or '.join([*checks, *self._replaced, 'aside(args, held)'])}: return NotImplemented",
            *self._lines,
        ]
        space: dict[str, Any] = self._known
        exec(compile("def call(args):\n" + "".join(f"    {line}\n" for line in body), "<a partitioned model>", "exec"), space)
        found: StaticCall = space["call"]
        return found

    def _check(self, name: str, val: Tensor) -> str:
        """Whether an input is another than the one that the program was exported for."""
        shape, dtype, device = self._name(torch.Size(val.shape)), self._name(val.dtype), self._name(val.device)
        return f"type({name}) is not Tensor or {name}.shape != {shape} or {name}.dtype is not {dtype} or {name}.device != {device}"

    def _name(self, thing: Any) -> str:
        name = f"k{len(self._known)}"
        self._known[name] = thing
        return name

    def _statement(self, node: fx.Node) -> bool:
        """Writes a node; False where there is no such line."""
        if node.op == "placeholder" or (node.op == "call_module" and node.target == "_guards_fn"):
            return True  # a guard says of shapes what the comparisons say
        if node.op == "get_attr":
            found = _place(self._module, str(node.target))
            if found is None:
                return False
            holder, name = found
            self._held.append(holder[name])
            self._names[node] = self._name(holder[name])
            self._replaced.append(f"{self._name(holder)}[{name!r}] is not {self._names[node]}")
            return True
        if node.op == "output":
            leaving: Any = node.args[0]
            leaves = [self._written(each) for each in leaving]
            self._lines.append(f"return {self._result(leaves)}")
            return True
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            value = f"{self._written(node.args[0])}[{node.args[1]!r}]"
        elif node.target is CALL:
            spec: Any = node.args[0]
            inputs: Any = node.args[1]
            value = f"{self._name(FixedRegion(str(spec)))}({', '.join(map(self._written, inputs))})"
        elif isinstance(node.target, OpOverload):
            by_name = [f"{name}={self._written(each)}" for name, each in node.kwargs.items()]
            value = f"{self._name(node.target._op)}({', '.join([*map(self._written, node.args), *by_name])})"
        else:
            return False
        self._names[node] = f"v{len(self._names)}"
        last = [each for each in self._last.get(node, ()) if each.op != "get_attr" and each in self._names]
        dead = "".join(f"; {self._names[each]} = None" for each in last)
        self._lines.append(f"{self._names[node]} = {value}{dead}")
        return True

    def _written(self, argument: Any) -> str:
        if isinstance(argument, fx.Node):
            return self._names[argument]
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(map(self._written, argument))}]"
        if argument is None or isinstance(argument, (bool, int)):
            return repr(argument)
        return self._name(argument)

    def _result(self, leaves: Sequence[str]) -> str:
        spec = self._out_spec
        if spec.is_leaf():
            return leaves[0]
        if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
            return f"({', '.join(leaves)},)"
        return f"{self._name(pytree.tree_unflatten)}([{', '.join(leaves)}], {self._name(spec)})"


def _place(module: torch.nn.Module, path: str) -> tuple[dict[str, Any], str] | None:
    """Where a module holds a tensor; None where it holds none of that name."""
    *way, name = path.split(".")
    owner = attribute(module, ".".join(way)) if way else module
    for holder in (owner._parameters, owner._buffers, owner.__dict__):
        if isinstance(holder.get(name), Tensor):
            return holder, name
    return None


def _aside(args: Sequence[Tensor], held: Sequence[Tensor]) -> bool:
    """Whether gradients are recorded, or something watches or changes operators: the dispatcher must see those."""
    if torch.is_grad_enabled() and (any(each.requires_grad for each in args) or any(each.requires_grad for each in held)):
        return True
    return torch._C._is_any_autocast_enabled() or not plain_state()
