"""Plain graphs for the tests of the partitioner: blocks written by hand, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Argument, Block, Effect, Node, TensorType, Value
from tcjit.byoc.regions import NodeGroup, Region

# the names of the arguments of the operations that tests use, in order; others are called self, other, a2, a3 ...
NAMES = {
    "aten.conv2d": "input weight bias stride padding dilation groups",
    "aten.linear": "input weight bias",
    "aten.addmm": "self mat1 mat2",
    "aten.mm": "self mat2",
    "aten.add": "self other alpha",
    "aten.cat": "tensors dim",
    "aten.max_pool2d": "self kernel_size",
    "aten.scaled_dot_product_attention": "query key value",
}


class Build:
    """Makes a block line by line: ``b = Build(); x = b.input(2, 3); y = b("aten.relu", x); block = b.block(y)``.

    Results have the type of the first tensor among the arguments unless ``shape`` or ``dtype`` say otherwise.
    """

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.count = 0

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def input(self, *shape: int | None, dtype: str = "float32", constant: bool = False, device: str = "cpu") -> Value:
        value = Value(self._name(), TensorType(dtype, shape, device), constant=constant)
        self.inputs.append(value)
        return value

    def weight(self, *shape: int, dtype: str = "float32") -> Value:
        return self.input(*shape, dtype=dtype, constant=True)

    def several(
        self,
        op: str,
        *arguments: Argument,
        types: Sequence[TensorType | None],
        effect: Effect = "",
        blocks: tuple[Block, ...] = (),
        overload: str = "",
        **named: Argument,
    ) -> tuple[Value, ...]:
        """An operation with results of these types."""
        names = NAMES.get(op, "self other").split()
        names += [f"a{number}" for number in range(len(names), len(arguments))]
        outputs = tuple(Value(self._name(), kind, position=place) for place, kind in enumerate(types))
        node = Node(op, overload, {**dict(zip(names, arguments)), **named}, outputs, effect, blocks=blocks)
        for value in outputs:
            value.producer = node
        self.nodes.append(node)
        return outputs

    def __call__(
        self,
        op: str,
        *arguments: Argument,
        shape: tuple[int | None, ...] | None = None,
        dtype: str = "",
        effect: Effect = "",
        overload: str = "",
        **named: Argument,
    ) -> Value:
        flat = [v for each in arguments for v in (each if isinstance(each, tuple) else (each,))]
        like = next((v.type for v in flat if isinstance(v, Value) and v.type is not None), TensorType("float32", (4, 4)))
        kind = TensorType(dtype or like.dtype, like.shape if shape is None else shape, like.device)
        (found,) = self.several(op, *arguments, types=[kind], effect=effect, overload=overload, **named)
        return found

    def block(self, *outputs: Value, mutated: Sequence[Value] = ()) -> Block:
        return Block(tuple(self.inputs), self.nodes, outputs, frozenset(mutated))


def random_block(seed: int, size: int, colours: int = 2, most: int = 3) -> tuple[Block, list[NodeGroup]]:
    """A random graph whose nodes each belong to one of some backends ``c1``, ``c2``, ... or to none, a few of them to pairs and triples
    that share a group, and a few of its values returned."""
    draw = random.Random(seed)
    build = Build()
    values = [build.input(4) for _ in range(2)]
    reach = draw.choice([3, 8, size + 2])  # how far back arguments lie
    for _ in range(size):
        values.append(build("aten.op", *(draw.choice(values[-reach:]) for _ in range(draw.randint(1, most)))))
    block = build.block(*(value for value in values if draw.random() < 0.1), values[-1])
    free = [node for node in block.nodes if draw.random() < 0.8]
    groups = []
    while free:
        node = free.pop(draw.randrange(len(free)))
        backend = f"c{draw.randint(1, colours)}"
        together = [node]
        if draw.random() < 0.2:
            near = [other for other in free if abs(other.number - node.number) < 6]
            together += draw.sample(near, min(len(near), draw.randint(1, 2)))
            free = [other for other in free if other not in together]
        groups.append(NodeGroup(backend, tuple(sorted(together, key=lambda each: each.number))))
    return block, groups


def contracted_edges(scope: BlockDependences, sets: Sequence[Sequence[Node]]) -> dict[int, set[int]]:
    """By brute force: which cells of the contracted graph each cell needs; sets first, then a cell per other node."""
    owner = {node: cell for cell, nodes in enumerate(sets) for node in nodes}
    for node in scope.nodes:
        owner.setdefault(node, len(sets) + node.number)
    edges: dict[int, set[int]] = {cell: set() for cell in owner.values()}
    for node in scope.nodes:
        for need in scope.needs[node.number]:
            if owner[scope.nodes[need]] != owner[node]:
                edges[owner[node]].add(owner[scope.nodes[need]])
    return edges


def has_circle(edges: dict[int, set[int]]) -> bool:
    left = {cell: set(needs) for cell, needs in edges.items()}
    while True:
        ready = [cell for cell, needs in left.items() if not needs & left.keys()]
        if not ready:
            return bool(left)
        for cell in ready:
            del left[cell]


def names(region: Region) -> tuple[list[str], list[str], list[str]]:
    """The operations of a region, and the names of what goes in and out."""
    return [node.op for node in region.nodes], [value.name for value in region.inputs], [value.name for value in region.outputs]
