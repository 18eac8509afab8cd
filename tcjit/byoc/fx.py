"""Models of `torch.export` and FX graphs of ATen operations, opened for rewriting."""
from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from tcjit.byoc.fx_read import Record, attribute, graphs_of, read_graph
from tcjit.byoc.fx_write import FxWriter, placeholders
from tcjit.byoc.graph import Block, Value
from tcjit.byoc.infer import type_of
from tcjit.byoc.regions import identifier
from tcjit.errors import PartitionError

_Spec = TypeVar("_Spec", InputSpec, OutputSpec)
CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
WRITTEN = (OutputKind.PARAMETER_MUTATION, OutputKind.BUFFER_MUTATION)


class FxAdapter:
    """An ExportedProgram, or a GraphModule of ATen operations, as a Block; see ``tcjit.byoc.adapter.Adapter``.

    ``example_inputs`` are for a GraphModule whose nodes do not say what they compute (``node.meta["val"]``): it is run on fakes of them.
    What is made shares parameters and buffers with what was given. Parameters, buffers and constants of a program are inputs of the
    block, like its user's, and constant unless the program writes to them.
    """

    form = "fx"

    def __init__(self, model: ExportedProgram | torch.nn.Module, example_inputs: Sequence[Any] | None = None) -> None:
        self._program = model if isinstance(model, ExportedProgram) else None
        self._record = Record()
        self._made: dict[Value, tuple[str, torch.Tensor]] = {}
        self._module: fx.GraphModule
        self._specs: dict[str, InputSpec] = {}
        if isinstance(model, ExportedProgram):
            self._module = model.graph_module
            self._specs = {spec.arg.name: spec for spec in model.graph_signature.input_specs}
            written = {spec.target for spec in model.graph_signature.output_specs if spec.kind in WRITTEN}
            held = {name for name, spec in self._specs.items() if spec.kind in CONSTANT_KINDS and spec.target not in written}
            self.block = read_graph(self._module, self._record, lambda node: node.name in held)
        elif isinstance(model, fx.GraphModule):
            self._module = _with_metadata(model, example_inputs)
            self.block = read_graph(self._module, self._record)
        else:
            hint = "use torch.export.export(model, args)"
            raise PartitionError(f"{type(model).__name__} is no ExportedProgram and no GraphModule", hint=hint)
        self._inputs = placeholders(self.block)
        self._mode = _mode(self._module)

    def read(self, value: Value) -> torch.Tensor:
        """What a constant of the model holds; raises PartitionError where the value is none."""
        if value in self._made:
            return self._made[value][1]
        origin = value.origin
        if value.constant and isinstance(origin, fx.Node):
            holder = origin.graph.owning_module
            found = attribute(holder, str(origin.target)) if origin.op == "get_attr" and holder else self._lifted(origin.name)
            if isinstance(found, torch.Tensor):
                return found
        raise PartitionError(f"%{value.name} is no constant of the model")

    def constant(self, tensor: torch.Tensor, name: str) -> Value:
        """A new constant of the model, a buffer, under a name made unique."""
        word = identifier(name)
        taken = {*self._names(), *(each for each, _ in self._made.values())}
        unique = next(each for each in (word, *(f"{word}_{count}" for count in range(1, len(taken) + 2))) if each not in taken)
        value = Value(unique, type_of(tensor), constant=True)
        self._made[value] = (unique, tensor.detach())
        return value

    def realise(self, block: Block) -> ExportedProgram | fx.GraphModule:
        """A new program or GraphModule that computes exactly this block."""
        writer = FxWriter(self._record, self._made, self._mode, lift=self._program is not None)
        if self._program is None:
            return writer.module(block, self._inputs)
        return self._exported(self._program, writer, block)

    def _names(self) -> set[str]:
        """The names that are taken, of nodes and of what the model holds."""
        nodes = {node.name for each in graphs_of(self._module) for node in each.graph.nodes}
        held = {str(node.target) for each in graphs_of(self._module) for node in each.graph.nodes if node.op in ("get_attr", "call_module")}
        program = {*self._program.state_dict, *self._program.constants} if self._program is not None else set()
        return nodes | held | program

    def _lifted(self, name: str) -> Any:
        """What the program holds for a placeholder."""
        assert self._program is not None
        target = self._specs[name].target
        return self._program.state_dict.get(target, self._program.constants.get(target))

    def _exported(self, program: ExportedProgram, writer: FxWriter, block: Block) -> ExportedProgram:
        used = {*block.outputs, *(value for node in block.nodes for value in node.inputs)}
        kinds = {value: self._specs[value.name].kind for value in self._inputs}
        kept = [value for value in self._inputs if value in used or kinds[value] not in CONSTANT_KINDS or not value.origin.users]
        place = max((number for number, value in enumerate(kept, 1) if kinds[value] in (*CONSTANT_KINDS, InputKind.TOKEN)), default=0)
        added = writer.added(block)
        written = writer.write(block, [*kept[:place], *added, *kept[place:]])
        root = fx.GraphModule(written.root, written.graph, "GraphModule")
        root.meta.update(self._module.meta)

        # names may differ: that of a builtin is not given again
        inputs = [_renamed(self._specs[value.name], written.nodes[value]) for value in kept]
        inputs[place:place] = [
            InputSpec(InputKind.BUFFER, TensorArgument(written.nodes[value].name), self._made[value][0], True) for value in added
        ]
        leaving: Any = written.graph.output_node().args[0]
        outputs = [_renamed(spec, node) for spec, node in zip(program.graph_signature.output_specs, leaving)]
        targets = {spec.target for spec in inputs}
        gone = {spec.target for value, spec in zip(self._inputs, self._specs.values()) if value not in kept} - targets
        state = {name: tensor for name, tensor in program.state_dict.items() if name not in gone}
        state |= {self._made[value][0]: self._made[value][1] for value in added}
        return ExportedProgram(
            root,
            written.graph,
            ExportGraphSignature(inputs, outputs),
            state,
            copy.copy(program.range_constraints),
            _calls(program, written.graph),
            program.example_inputs,
            {name: thing for name, thing in program.constants.items() if name not in gone},
            verifiers=program.verifiers,
        )


def _renamed(spec: _Spec, node: object) -> _Spec:
    """An entry in the signature, for the node that stands for it now."""
    return replace(spec, arg=replace(spec.arg, name=node.name)) if isinstance(node, fx.Node) else spec


def _calls(program: ExportedProgram, graph: fx.Graph) -> list[Any]:
    """The modules that the program was made of, with the signatures of those whose inputs and outputs are still there."""
    names = {"", *(node.name for node in graph.nodes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, about how it copies its own
        found: list[Any] = copy.deepcopy(program.module_call_graph)
    for entry in found:
        signature = entry.signature
        if signature is not None and not names.issuperset(each.name for each in (*signature.inputs, *signature.outputs)):
            entry.signature = None
    return found


def _with_metadata(module: fx.GraphModule, example_inputs: Sequence[Any] | None) -> fx.GraphModule:
    """A graph that says what its nodes compute: itself, or a copy that is run on fakes of the example inputs."""
    if example_inputs is None or all("val" in node.meta for node in module.graph.nodes if node.op == "call_function"):
        return module
    made = fx.GraphModule(module, copy.deepcopy(module.graph), module.__class__.__name__)
    made.meta.update(module.meta)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(made.train(module.training), mode).propagate(*example_inputs)
    return made


def _mode(module: fx.GraphModule) -> FakeTensorMode | None:
    """The mode of the fake tensors that a graph knows."""
    for node in module.graph.nodes:
        vals = node.meta.get("val")
        for val in vals if isinstance(vals, (list, tuple)) else [vals]:
            if isinstance(val, FakeTensor):
                return val.fake_mode
    return None
