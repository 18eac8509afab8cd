"""`torch.compile(model, backend="tcjit")`: what Dynamo and AOTAutograd make of a model, cut into regions.

AOTAutograd gives graphs without writes to memory, one for inference, or one forwards and one backwards: gradients are regions like the
rest. Sizes that change from call to call are unknown extents: a region is then served by a backend that takes such, or stays with ATen.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import list_backends, register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.partition_blocks import cut
from tcjit.byoc.report import report
from tcjit.byoc.runtime import served
from tcjit.byoc.settings import PartitionConfig
from tcjit.errors import PartitionError

_log = logging.getLogger("tcjit")
# those of torch.compile; they differ in CUDA graphs and in how long its own compiler searches, neither of which there is here
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compiled(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A backend of `torch.compile`. ``options`` are fields of ``PartitionConfig``; raises PartitionError for others."""
    config = _config(mode, options or {})
    compiler = aot_autograd(
        fw_compiler=lambda graph, inputs: _cut(graph, config, "forward"),
        bw_compiler=lambda graph, inputs: _cut(graph, config, "backward"),
        inference_compiler=lambda graph, inputs: _cut(graph, config, "inference"),
        partition_fn=min_cut_rematerialization_partition,
    )
    return compiler(module, example_inputs)


def _config(mode: str | None, options: Mapping[str, Any]) -> PartitionConfig:
    if mode not in (None, *MODES):
        raise PartitionError(f"torch.compile(mode={mode!r})", hint=f"one of {', '.join(MODES)}")
    known = PartitionConfig.__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise PartitionError(f"torch.compile(options=...) has no {unknown[0]!r}", hint=f"known: {', '.join(known)}")
    return PartitionConfig(**options)


def _cut(graph: fx.GraphModule, config: PartitionConfig, kind: str) -> Callable[..., Any]:
    """What runs a graph of AOTAutograd: its regions without a way through the dispatcher, or the graph itself where it has none. What is in
    regions is logged, for INFO as a sum and for DEBUG operation by operation."""
    with unset_fake_temporarily():  # it is called while operations give fakes, and passes compute constants
        adapter = FxAdapter(graph)
        done = cut(adapter, config)
        made = adapter.realise(done.block) if done.regions else graph
    if _log.isEnabledFor(logging.INFO):
        said = report(done, {}, [])
        _log.info("%s graph: %s", kind, said if _log.isEnabledFor(logging.DEBUG) else said.partition("\n\n")[0])
    assert isinstance(made, fx.GraphModule), "a graph became no graph"
    if done.regions:
        for node in made.graph.nodes:
            if node.target is torch.ops.tcjit.call.default:
                node.target, node.args = _direct(node.args[0]), node.args[1:]
        made.recompile()
    run: Callable[..., Any] = make_boxed_func(made.forward)
    return run


def _direct(spec: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """What a region's operator comes to where nothing records gradients, as under AOTAutograd nothing does."""

    def region(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return served(spec, inputs)

    return region


if "tcjit" not in list_backends(exclude_tags=()):  # where the package is not installed, nothing else tells torch of it
    register_backend(compiled, name="tcjit")
