"""The four steps over every block of a model: passes, grouping, merging and cost, lowering."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.backends import Backend, find
from tcjit.byoc.block_dependences import BlockDependences, note
from tcjit.byoc.cost import Comparison, compare, flops, prune, traffic, within
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.grouping import group
from tcjit.byoc.infer import make
from tcjit.byoc.passes import standard
from tcjit.byoc.regions import NodeGroup, Region, merge
from tcjit.byoc.rewrite import call, replace
from tcjit.byoc.settings import PartitionConfig
from tcjit.byoc.spec import spec
from tcjit.errors import PartitionError

# what only brings values to where they are used, and is in no report
UNSEEN = frozenset(f"prim.{name}" for name in "Constant GetAttr ListConstruct ListUnpack TupleConstruct TupleUnpack".split())

# whether a region may stay: empty, or why not
Judge = Callable[[Region], str]
# the nodes that stand for a region, and its spec if it has one; raises PartitionError to give it back
Replace = Callable[[Region, Backend, Adapter], tuple[Sequence[Node], str]]


@dataclass(frozen=True)
class Placed:
    """An operation of the model after the passes: where it went, and why no further."""

    op: str
    output: str
    flops: int
    bytes: int
    depth: int
    region: str = ""
    backend: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Partitioning:
    """A model cut: its block with regions in place, and what became of everything. ``estimates`` are by region's name."""

    block: Block
    regions: tuple[Region, ...]
    placed: tuple[Placed, ...]
    estimates: dict[str, Comparison] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    passes: tuple[str, ...] = ()


def replacement(region: Region, backend: Backend, adapter: Adapter) -> tuple[Sequence[Node], str]:
    """What a backend makes of a region: nodes of its own, or a call."""
    nodes = backend.rewrite(region, adapter)
    if nodes is not None:
        return nodes, ""
    text = spec(region, backend.lower(region))
    return [call(region, text)], text


def cut(adapter: Adapter, config: PartitionConfig, judge: Judge | None = None, put: Replace = replacement) -> Partitioning:
    """Cuts a model; the adapter's block is used up. ``judge`` has the last word on regions that the cost step would keep."""
    pipeline = (config.pipeline or standard()).without(*config.without)
    asked = dict.fromkeys(name for backend in config.serving() for name in find(backend).passes if name not in config.without)
    block, ran = pipeline.run(adapter.block, adapter, config.opt_level, tuple(asked))
    return _Cutter(adapter, config, judge, put, ran).whole(block)


class _Cutter:
    def __init__(self, adapter: Adapter, config: PartitionConfig, judge: Judge | None, put: Replace, ran: Sequence[str]) -> None:
        self._adapter, self._config, self._judge, self._put, self._ran = adapter, config, judge, put, tuple(ran)
        self._backends = [find(name) for name in config.serving()]
        self._regions: list[Region] = []
        self._count = 0
        self._placed: list[Placed] = []
        self._specs: dict[str, str] = {}

    def whole(self, block: Block) -> Partitioning:
        done = self._one(block, 0)
        if self._strided:
            done = _contiguous(done)
        estimates = {region.name: compare(region, find(region.backend).limits) for region in self._regions}
        return Partitioning(done, tuple(self._regions), tuple(self._placed), estimates, self._specs, self._ran)

    def _one(self, block: Block, depth: int) -> Block:
        """Each backend is offered what the ones before it did not take, or gave back."""
        scope = BlockDependences(block)
        made: dict[Region, Sequence[Node]] = {}
        said = dict.fromkeys(block.nodes, "")
        for backend in self._backends:
            known = {frozenset(region.nodes): region for region in made}
            taken = frozenset().union(*known)
            free = [node for node in block.nodes if node not in taken]
            groups = [NodeGroup(region.backend, region.nodes, alone=True) for region in made] + group(scope, [backend], free)
            found = merge(scope, groups, start=self._count, fits=within({backend.name: backend.limits}))
            self._count += len(found)
            made |= {region: nodes for region in found if frozenset(region.nodes) not in known and (nodes := self._taken(region, backend))}
            for node in free:
                said[node] = "; ".join(dict.fromkeys(filter(None, (*said[node].split("; "), *node.reason.split("; ")))))
        owner = {node: region for region in made for node in region.nodes}
        self._regions += made
        for node in block.nodes:
            if node.op not in UNSEEN:
                self._placed.append(_placed(node, owner.get(node), said[node], depth))
            node.blocks = tuple(self._one(each, depth + 1) for each in node.blocks)
        done = replace(scope, made) if made else block
        return _reshaped(done) if made or self._strided else done

    @property
    def _strided(self) -> bool:
        """Whether there may be strides that the model does not have, in this block or through one around or inside it."""
        return any(not find(region.backend).contiguous for region in self._regions)

    def _taken(self, region: Region, backend: Backend) -> Sequence[Node]:
        """The nodes that stand for a region from now on; none if it is given back, its nodes bear the reason."""
        if self._config.cost and not prune([region], {backend.name: backend.limits}).kept:
            return ()
        why = self._judge(region) if self._judge else ""
        if not why:
            try:
                nodes, text = self._put(region, backend, self._adapter)
                if text:
                    self._specs[region.name] = text
                return nodes
            except PartitionError as error:
                why = f"{backend.name}: {error.what}" + (f" (try {error.hint})" if error.hint else "")
        for node in region.nodes:
            note(node, why)
        return ()


def _reshaped(block: Block) -> Block:
    """Views of another shape as reshapes: what comes out of a region has strides of its own, whatever they were in the model."""
    nodes = list(block.nodes)
    for position, node in enumerate(nodes):
        if node.op == "aten.view" and "size" in node.arguments and not block.mutated.intersection((*node.inputs, *node.outputs)):
            arguments = {"self": node.arguments["self"], "shape": node.arguments["size"]}
            nodes[position] = Node("aten.reshape", "default", arguments, node.outputs, node.effect, reason=node.reason)
            for value in node.outputs:
                value.producer = nodes[position]
    return Block(block.inputs, nodes, block.outputs, block.mutated, block.origin)


def _contiguous(block: Block) -> Block:
    """What a block computes and returns made contiguous, which costs nothing where it is: a caller may want to view it. What shares memory
    with something else that the caller sees stays as it is."""
    nodes, made = list(block.nodes), dict[Value, Value]()
    returned = dict.fromkeys(block.outputs)
    held = [_viewed(value) for value in returned]
    for value, memory in zip(returned, held):
        alone = memory.producer is not None and held.count(memory) == 1 and value not in block.mutated
        if value.type is not None and alone and (value.type.shape is None or len(value.type.shape) > 1):
            nodes.append(make("aten.contiguous", "default", {"self": value}, name=f"{value.name}_out", outputs=[value.type]))
            made[value] = nodes[-1].output
            made[value].origin = value.origin
    return Block(block.inputs, nodes, tuple(made.get(value, value) for value in block.outputs), block.mutated, block.origin)


def _viewed(value: Value) -> Value:
    """What a value is a view of, at most."""
    while value.producer is not None and value.producer.effect == "view" and value.producer.inputs:
        value = value.producer.inputs[0]
    return value


def _placed(node: Node, region: Region | None, reason: str, depth: int) -> Placed:
    output = next((f"%{value.name}: {value.type}" for value in node.outputs if value.type), "")
    work, moved = (flops(node), traffic(node)) if output and not node.blocks else (0, 0)
    name, backend = (region.name, region.backend) if region else ("", "")
    return Placed(node.op, output, work, moved, depth, name, backend, "" if region else reason)
