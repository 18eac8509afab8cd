"""TorchScript modules cut by toy backends, for the tests of the partitioner."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tcjit.byoc import runtime
from tcjit.byoc.backends import Backend, register
from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Block, Node
from tcjit.byoc.grouping import group
from tcjit.byoc.regions import Region, merge
from tcjit.byoc.rewrite import outline
from tcjit.byoc.spec import Runner, Unserved, fits, plan, spec
from tcjit.byoc.torchscript import TorchScriptAdapter


def defined(source: str, **held: Any) -> torch.jit.ScriptModule:
    """A module with a text as its methods and with parameters, buffers (plain tensors) and other attributes."""

    class Defined(torch.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            for name, value in held.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)
            self.define(source)

    return Defined()


class Toy(Backend):
    """Takes the operations that it is told to, and runs them in plain ATen; ``calls`` are the regions that ran, ``strict`` ones only for
    inputs as the model's examples had them."""

    untyped = True
    dynamic = True

    def __init__(self, name: str = "toy", takes: Callable[[Node], bool] = lambda node: True, strict: bool = False) -> None:
        self.name, self.takes, self.strict = name, takes, strict
        self.calls: list[str] = []
        register(self)
        runtime.forget(name)  # what an earlier one of the name runs

    def supports(self, node: Node) -> bool | str:
        return self.takes(node) or f"{self.name} leaves {node.op} alone"

    def lower(self, region: Region) -> Mapping[str, Any]:
        return {"toy": len(region.nodes)}

    def load(self, spec: Mapping[str, Any]) -> Runner:
        run = plan(dict(spec))

        def runner(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            if self.strict and not fits(dict(spec), tensors):
                raise Unserved("other types than the model's")
            self.calls.append(spec["name"])
            return run(tensors)

        return runner


def cut(block: Block, backends: Sequence[Backend], regions: list[Region] | None = None) -> tuple[Block, list[Region]]:
    """A block and all inside with everything that the backends take in regions, at any cost."""
    regions = [] if regions is None else regions
    for node in block.nodes:
        node.blocks = tuple(cut(inner, backends, regions)[0] for inner in node.blocks)
    scope = BlockDependences(block)
    found = merge(scope, group(scope, backends), start=len(regions))
    regions += found
    lowered = {backend.name: backend.lower for backend in backends}
    return outline(scope, found, {each.name: spec(each, lowered[each.backend](each)) for each in found}), regions


def partitioned(
    module: torch.jit.ScriptModule,
    examples: Sequence[Any],
    *backends: Backend,
    dynamic: Mapping[str | int, Sequence[int]] | None = None,
) -> tuple[torch.jit.ScriptModule, list[Region]]:
    """A module with everything that the backends take in regions, and those."""
    adapter = TorchScriptAdapter(module, examples, dynamic)
    block, regions = cut(adapter.block, backends)
    return adapter.realise(block), regions


def text(module: torch.jit.ScriptModule) -> str:
    """The graph of a module without what means nothing: names of values, places in source files, and where constants stand and in which
    order, which a file does not keep."""
    for _ in range(3):  # each time a little more dead code is gone
        module = torch.jit.load(io.BytesIO(module.save_to_buffer()))
    names: dict[str, str] = {}
    graph = str(torch._C._jit_pass_canonicalize(module.inlined_graph).str(False))
    for line, name, value in re.findall(r"^( *(%\w+) : (.* = prim::Constant.*)\n)", graph, re.MULTILINE):
        if "<Tensor>" not in value:
            graph = re.sub(rf"{name}\b", f"({value})", graph.replace(line, ""))
    return re.sub(r"%[\w.]+", lambda found: names.setdefault(found[0], f"%{len(names)}"), graph)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for part in value for each in tensors_of(part)] if isinstance(value, (tuple, list)) else []


def sharing(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the first one that shares its memory."""
    where = [each.untyped_storage().data_ptr() for each in tensors]
    return [where.index(each) for each in where]
