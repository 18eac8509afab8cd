"""A toy backend for tests of the adapters: it takes every operation that it may, and replays it with ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch

from tcjit.byoc.backends import Backend, register
from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.cost import Limits
from tcjit.byoc.graph import Block, Node
from tcjit.byoc.grouping import group
from tcjit.byoc.regions import Region, merge
from tcjit.byoc.rewrite import outline
from tcjit.byoc.spec import replay, spec


class Toy(Backend):
    """``names`` limits the operations that it takes; ``calls`` are the names of the regions that ran, in order."""

    name = "toy"
    dynamic = True
    limits = Limits(gain=-inf)

    def __init__(self, name: str = "toy", names: Sequence[str] = ()) -> None:
        self.name, self.names = name, tuple(names)
        self.calls: list[str] = []
        self.contiguous = False

    def supports(self, node: Node) -> bool | str:
        return not self.names or node.op in self.names or f"{self.name} has no {node.op}"

    def lower(self, region: Region) -> Mapping[str, Any]:
        return {"toy": [node.op for node in region.nodes]}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            self.calls.append(spec["name"])
            return [each.contiguous() if self.contiguous else each for each in replay(spec, list(tensors))]

        return run


def outlined(block: Block, backend: Backend) -> tuple[Block, list[Region]]:
    """A block, and those inside it, with all that a registered backend takes in regions; no passes, no cost."""
    register(backend)
    found: list[Region] = []

    def one(each: Block) -> Block:
        scope = BlockDependences(each)
        regions = merge(scope, group(scope, [backend]), start=len(found))
        found.extend(regions)
        for node in each.nodes:
            node.blocks = tuple(map(one, node.blocks))
        return outline(scope, regions, {region.name: spec(region, backend.lower(region)) for region in regions})

    return one(block), found
