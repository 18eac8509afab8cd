"""A block with its regions replaced by what their backends made of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Argument, Block, Node
from tcjit.byoc.regions import Region, order


def outline(block: Block | BlockDependences, regions: Sequence[Region], specs: Mapping[str, str]) -> Block:
    """Each region as one call of ``tcjit.call`` with its spec, by the region's name."""
    return replace(block, {region: [call(region, specs[region.name])] for region in regions})


def replace(block: Block | BlockDependences, made: Mapping[Region, Sequence[Node]]) -> Block:
    """Other nodes in place of regions, which must compute the regions' outputs: those very values.

    The block given is used up: its values now belong to the new one. Raises PartitionError where regions need one another's results.
    """
    scope = block if isinstance(block, BlockDependences) else BlockDependences(block)
    nodes: list[Node] = []
    for item in order(scope, list(made)):
        nodes.extend([item] if isinstance(item, Node) else made[item])
    for node in nodes:
        for position, value in enumerate(node.outputs):
            value.producer, value.position = node, position
    old = scope.block
    return Block(old.inputs, nodes, old.outputs, old.mutated, old.origin)


def call(region: Region, spec: str) -> Node:
    """The node that runs a region: inputs, then constants, to outputs."""
    arguments: dict[str, Argument] = {"spec": spec, "inputs": (*region.inputs, *region.constants)}
    return Node("tcjit.call", "default", arguments, region.outputs)
