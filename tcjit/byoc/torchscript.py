"""TorchScript models, read into Blocks and written back from them, to files and from files.

A model is copied through its own file format before anything is changed: edits of a graph that ran before are ignored, and copies of other
kinds share it.
"""
from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tcjit.byoc.alias_analysis import mutated
from tcjit.byoc.graph import Block, TensorType, Value
from tcjit.byoc.infer import Shapes, type_of
from tcjit.byoc.regions import identifier
from tcjit.byoc.script_file import load, restored, save, stored, written
from tcjit.byoc.script_read import ConstantUse, read
from tcjit.byoc.script_types import example_of, infer
from tcjit.byoc.script_write import used, write
from tcjit.errors import PartitionError

__all__ = ["TorchScriptAdapter", "load", "restored", "save", "stored", "written"]


class TorchScriptAdapter:
    """A scripted, traced or frozen module opened for rewriting; it is not changed itself. See ``Adapter``.

    ``example_inputs`` are arguments of ``forward``: they give dtypes and shapes, and are not run. ``dynamic``: by the name of an argument
    or its place, the dimensions whose extent is not fixed. ``refusal`` is what an operation says against them, which a run may or may not
    confirm. Raises PartitionError where the module cannot be copied.
    """

    form = "torchscript"

    def __init__(
        self, module: torch.jit.ScriptModule, example_inputs: Sequence[Any], dynamic: Mapping[str | int, Sequence[int]] | None = None
    ) -> None:
        if not isinstance(module, torch.jit.ScriptModule):
            raise PartitionError(f"a {type(module).__name__} is no ScriptModule", hint="torch.jit.script or torch.jit.trace makes one")
        self._given = _saved(module)
        # a frozen module has no mode
        self._bytes = _saved(_in_inference_mode(self._given)) if getattr(module, "training", None) is False else self._given
        self._module = _loaded(self._bytes)
        self._reading = read(self._module, _graph(self._module))
        self._new: dict[Value, tuple[str, torch.Tensor]] = {}
        self.block: Block = self._reading.block
        shared = [(value, self.read(value).untyped_storage()._cdata) for value in self._reading.constants if self.read(value).is_cpu]
        written_to = mutated(self.block, self._reading.holders, shared)
        for each in self.block.every():
            each.mutated = written_to
        self._infer(tuple(example_inputs), dict(dynamic or {}))

    def read(self, value: Value) -> torch.Tensor:
        """What a constant of the model holds; raises PartitionError where the value is none."""
        if value in self._new:
            return self._new[value][1]
        if not isinstance(value.origin, ConstantUse):
            raise PartitionError(f"%{value.name} is no constant of the model")
        return value.origin.tensor

    def constant(self, tensor: torch.Tensor, name: str) -> Value:
        """A new constant of the model, an attribute of its own, under a name made unique."""
        base = identifier(name)
        taken = {each for each, _ in self._new.values()}
        unique, number = base, 0
        while unique in taken or hasattr(self._module, unique):
            number += 1
            unique = f"{base}_{number}"
        value = Value(unique, type_of(tensor), constant=True)
        self._new[value] = (unique, tensor.detach())
        return value

    def realise(self, block: Block) -> torch.jit.ScriptModule:
        """A new module that computes exactly this block, a mere copy where that is the one that was read.

        Raises PartitionError where it cannot be written.
        """
        module = _loaded(self._bytes)
        graph = _graph(module)
        names = {}
        for value in used(block):
            if value in self._new:
                name, tensor = self._new[value]
                module._c._register_attribute(name, torch._C.TensorType.get(), tensor)
                names[value] = name
        changed = write(self._reading, block, module, graph, names)
        return module if changed else _loaded(self._given)

    def _infer(self, examples: tuple[Any, ...], dynamic: dict[str | int, Sequence[int]]) -> None:
        inputs = self.block.inputs
        if len(examples) > len(inputs):
            raise PartitionError(f"forward takes {len(inputs)} arguments, {len(examples)} examples are given")
        names = [each.debugName().partition(".")[0] for each in list(_graph(self._module).inputs())[1:]]
        for key in dynamic:
            if key not in names and (not isinstance(key, int) or not 0 <= key < len(inputs)):
                raise PartitionError(f"dynamic names {key!r}, which is no argument of forward", hint=f"arguments: {', '.join(names)}")
        shapes = Shapes()
        known: dict[Value, Any] = {}
        for place, (value, example) in enumerate(zip(inputs, examples)):
            open_dims = tuple(dynamic.get(place, dynamic.get(names[place], ())))
            if value.type is not None and not isinstance(example, torch.Tensor):
                raise PartitionError(f"example number {place} is a {type(example).__name__}, forward takes a tensor for {names[place]}")
            known[value] = example_of(example, shapes, open_dims)
        for value in self._reading.constants:
            known[value] = shapes.like(self.read(value))
        tensors = [each for each in (*examples, *map(self.read, self._reading.constants)) if isinstance(each, torch.Tensor)]
        first = type_of(tensors[0]) if tensors else None
        refusal = infer(self.block, known, self._reading.scalars, shapes, (first or TensorType()).device)
        self.refusal = "" if dynamic or len(examples) < len(inputs) else refusal


def _graph(module: torch.jit.ScriptModule) -> Any:
    """The graph of ``forward``, with all calls put in their place."""
    graph = module._c._get_method("forward").graph
    torch._C._jit_pass_inline(graph)
    return graph


def _in_inference_mode(content: bytes) -> torch.jit.ScriptModule:
    """A module whose parts know that they are not training; parameters stay parameters."""
    copied = _loaded(content)
    try:
        frozen = torch._C._freeze_module(copied._c, [], True, True)
    except RuntimeError:  # what the model sets at itself cannot be frozen
        return _loaded(content)
    made: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(frozen)  # type: ignore[no-untyped-call]
    return made


def _saved(module: torch.jit.ScriptModule) -> bytes:
    try:
        return bytes(module.save_to_buffer())
    except RuntimeError as error:
        raise PartitionError(f"the module cannot be copied: {str(error).splitlines()[0]}", hint="it must be one to be saved") from error


def _loaded(content: bytes) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return found
