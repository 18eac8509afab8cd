"""Merging on the contracted graph: the cases that any partitioner is judged by, and random graphs against brute force.

Modules: byoc.block_dependences byoc.graph byoc.grouping
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from support.byoc.graphs import Build, contracted_edges, has_circle, names, random_block

from tcjit.byoc.backends import Backend
from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Block, Node, TensorType, Value
from tcjit.byoc.grouping import group
from tcjit.byoc.regions import NodeGroup, Region, identifier, merge, order
from tcjit.errors import PartitionError

pytestmark = pytest.mark.text


def groups_of(block: Block, backend: str = "mine", without: Sequence[str] = ("aten.other",)) -> list[NodeGroup]:
    return [NodeGroup(backend, (node,)) for node in block.nodes if node.op not in without]


class All(Backend):
    name = "all"
    dynamic = True

    def supports(self, node: Node) -> bool | str:
        return node.op != "aten.other"


def test_a_chain_is_one_region() -> None:
    b = Build()
    x = b.input(4)
    y = x
    for op in ("aten.relu", "aten.exp", "aten.neg"):
        y = b(op, y)
    (region,) = merge(b.block(y), groups_of(b.block(y)))
    assert names(region) == (["aten.relu", "aten.exp", "aten.neg"], [x.name], [y.name]) and region.name == "mine_0_relu_exp_neg"


def test_cyclic_diamond() -> None:
    """a -> other -> b and a -> b: a and b cannot run as one."""
    b = Build()
    a = b("aten.a", b.input(4))
    end = b("aten.b", a, b("aten.other", a))
    block = b.block(end)
    regions = merge(block, groups_of(block))
    assert [[node.op for node in region.nodes] for region in regions] == [["aten.a"], ["aten.b"]]
    assert [each if isinstance(each, Node) else each.name for each in order(block, regions)] == ["mine_0_a", block.nodes[1], "mine_1_b"]


def test_two_convex_regions_that_depend_on_each_other() -> None:
    """a1 a2 and b1 b2 are each convex, but a2 needs b1 and b2 needs a1: the earlier group stays, the other is dropped with a reason."""
    b = Build()
    x = b.input(4)
    a1, b1 = b("aten.a1", x), b("aten.b1", x)
    a2, b2 = b("aten.a2", b1), b("aten.b2", a1)
    block = b.block(a1, a2, b2)
    first, second = NodeGroup("mine", (block.nodes[0], block.nodes[2])), NodeGroup("yours", (block.nodes[1], block.nodes[3]))
    (region,) = merge(block, [first, second])
    assert region.groups == (first,) and block.nodes[1].reason == "a way between its parts leads outside"
    (region,) = merge(block, [second, first])
    assert region.groups == (second,)
    with pytest.raises(PartitionError, match="need one another's results: x, y"):
        order(block, [Region(each.backend, name, (each,), each.nodes, (), (), ()) for each, name in ((first, "x"), (second, "y"))])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_ring_of_groups_misses_one(count: int) -> None:
    """Each group needs a result of the next: no two exclude each other where there are three, but all of them together do."""
    b = Build()
    x = b.input(4)
    firsts = [b("aten.first", x) for _ in range(count)]
    ends = [b("aten.second", firsts[(place + 1) % count]) for place in range(count)]
    block = b.block(*firsts, *ends)
    groups = [NodeGroup("mine", (block.nodes[place], block.nodes[count + place]), alone=True) for place in range(count)]
    regions = merge(block, groups)
    assert sorted(groups.index(region.groups[0]) for region in regions) == list(range(count - 1))
    check_order(BlockDependences(block), regions, count)


def test_interleaved_groups() -> None:
    """Two backends in turn along two strands: a strand's halves merge across where nothing of the other lies between."""
    b = Build()
    x, y = b.input(4), b.input(4)
    for place in range(6):
        op = "aten.a" if place % 2 else "aten.b"
        x, y = b(op, x), b(op, y)
    end = b("aten.a", x, y)
    block = b.block(end)
    regions = merge(block, [NodeGroup("one" if node.op == "aten.a" else "two", (node,)) for node in block.nodes])
    assert sorted(len(region.nodes) for region in regions) == [1] * 10 + [3]
    assert {region.backend for region in regions if len(region.nodes) == 3} == {"one"}


def test_one_value_used_in_the_same_and_in_another_region() -> None:
    b = Build()
    x = b.input(4)
    shared = b("aten.exp", x)
    same = b("aten.neg", shared)
    other = b("aten.other", shared)
    end = b("aten.add", other, same)
    block = b.block(end)
    first, last = merge(block, groups_of(block))
    assert names(first) == (["aten.exp", "aten.neg"], [x.name], [shared.name, same.name])
    assert names(last) == (["aten.add"], [other.name, same.name], [end.name])


def test_duplicate_outputs_and_inputs() -> None:
    b = Build()
    x = b.input(4)
    y = b("aten.mul", x, x)
    block = b.block(y, y)
    (region,) = merge(block, groups_of(block))
    assert region.inputs == (x,) and region.outputs == (y,)


def test_tuple_outputs() -> None:
    """An operation with several results: those used outside leave, in their order."""
    b = Build()
    x = b.input(4, 4)
    kind = TensorType("float32", (4,))
    mean, unused, middle = b.several("aten.stats", x, types=[kind, kind, kind])
    end = b("aten.add", mean, middle)
    block = b.block(middle, end, mean)
    (region,) = merge(block, groups_of(block))
    assert region.outputs == (mean, middle, end) and unused not in region.outputs


@pytest.mark.parametrize("escapes", [False, True])
def test_an_escaping_tuple(escapes: bool) -> None:
    """A tuple as such cannot cross the border of a region: with all that takes it apart it stays inside, else all of it stays outside."""
    b = Build()
    (pair,) = b.several("aten.split", b.input(4), types=[None])
    one, two = b("operator.getitem", pair, 0), b("operator.getitem", pair, 1)
    end = b("aten.add", one, two)
    block = b.block(end, *([pair] if escapes else []))
    (region,) = merge(block, groups_of(block))
    if escapes:
        assert [node.op for node in region.nodes] == ["aten.add"] and region.inputs == (one, two)
        assert [node.reason for node in block.nodes[:3]] == [f"%{pair.name}, no tensor, would cross the border of a region"] * 3
    else:
        assert len(region.nodes) == 4 and region.outputs == (end,)


def test_a_number_computed_outside_keeps_a_node_out() -> None:
    b = Build()
    x = b.input(4)
    (size,) = b.several("aten.other", x, types=[None])
    y = b("aten.neg", b("aten.view", x, (size,), effect="view"))
    block = b.block(y)
    (region,) = merge(block, groups_of(block))
    assert [node.op for node in region.nodes] == ["aten.neg"] and "no tensor" in block.nodes[1].reason


def test_constants_bound_or_passed() -> None:
    """Parameters are apart from inputs; what computes on parameters outside of the region is passed."""
    b = Build()
    x, w, k = b.input(4, 4), b.weight(4, 4), b.weight(4, 4)
    turned = b("aten.other", k)
    y = b("aten.mm", b("aten.mm", x, w), turned)
    block = b.block(b("aten.add", y, w))
    (region,) = merge(block, groups_of(block))
    assert region.inputs == (x, turned) and region.constants == (w,)


@pytest.mark.parametrize("op", ["prim.If", "prim.Loop"])
def test_if_else_and_loop(op: str) -> None:
    """What a block inside uses leaves the region, the node that holds it stands between, and its own block is cut by itself."""
    b = Build()
    x, c = b.input(4), b.input(1, dtype="bool")
    captured = b("aten.exp", x)
    hidden = b("aten.neg", captured)
    inner = Build()
    then = inner("aten.sin", inner("aten.mul", captured, captured))
    body = inner.block(then)
    (out,) = b.several(op, c, types=[x.type], effect="control", blocks=(body,))
    end = b("aten.add", out, hidden)
    block = b.block(end)
    groups = group(block, [All()])
    first, last = merge(block, groups)
    assert names(first) == (["aten.exp", "aten.neg"], [x.name], [captured.name, hidden.name])
    assert names(last) == (["aten.add"], [out.name, hidden.name], [end.name])
    (inside,) = merge(body, group(body, [All()]), start=2)
    assert names(inside) == (["aten.mul", "aten.sin"], [captured.name], [then.name]) and inside.name == "all_2_mul_sin"
    assert [each if isinstance(each, Node) else each.name for each in order(block, [first, last])] == [
        "all_0_exp_neg",
        block.nodes[2],
        "all_1_add",
    ]


def test_a_value_used_after_a_loop_keeps_regions_apart() -> None:
    """The first operation feeds a block inside, the last takes its result: as one they would have to run before and after it."""
    b = Build()
    first = b("aten.exp", b.input(4))
    inner = Build()
    body = inner.block(inner("aten.neg", first))
    (out,) = b.several("prim.Loop", types=[first.type], effect="control", blocks=(body,))
    block = b.block(b("aten.add", out, first))
    assert [len(region.nodes) for region in merge(block, groups_of(block, without=("prim.Loop",)))] == [1, 1]


def test_dynamic_dimensions_merge_like_others() -> None:
    b = Build()
    x = b.input(None, 4)
    block = b.block(b("aten.neg", b("aten.exp", x)))
    (region,) = merge(block, group(block, [All()]))
    assert region.inputs == (x,) and region.outputs[0].type == TensorType("float32", (None, 4))


def test_dead_tail() -> None:
    """Nodes that nothing uses ride along without an output; a region of nothing else is none."""
    b = Build()
    x = b.input(4)
    y = b("aten.exp", x)
    b("aten.neg", y)
    b("aten.sin", b("aten.other", x))
    block = b.block(y)
    (region,) = merge(block, groups_of(block))
    assert names(region) == (["aten.exp", "aten.neg"], [x.name], [y.name])
    assert block.nodes[-1].reason == "nothing uses what it computes"


def test_memory_that_is_written_to_keeps_its_readers_in_order() -> None:
    b = Build()
    x, y = b.input(4), b.input(4)
    before = b("aten.exp", x)
    b("aten.add_", x, 1, effect="mutates")
    after = b("aten.add", before, x)
    apart = b("aten.mul", before, y)
    block = b.block(after, apart, mutated=[x])
    first, second = merge(block, group(block, [All()]))
    assert [node.op for node in first.nodes] == ["aten.exp", "aten.mul"] and [node.op for node in second.nodes] == ["aten.add"]
    assert order(block, [first, second]) == [first, block.nodes[1], second]


def test_random_numbers_keep_their_order() -> None:
    b = Build()
    x = b.input(4)
    one, two = b("aten.rand_like", x, effect="random"), b("aten.bernoulli", x, effect="random")
    block = b.block(b("aten.add", two, one))
    assert BlockDependences(block).needs == [[], [0], [0, 1]] and order(block, []) == block.nodes


def test_views_at_the_end_stay_outside_where_the_memory_is() -> None:
    """A view of an input, or of something that leaves anyway, would be a copy each; a view of what stays inside saves one."""
    b = Build()
    x = b.input(4)
    y = b("aten.exp", x)
    leaving, second = b("aten.view", y, effect="view"), b("aten.t", y, effect="view")
    hidden = b("aten.view", b("aten.neg", y), effect="view")
    used = b("aten.sin", b("aten.t", x, effect="view"))
    plain = b("aten.t", x, effect="view")
    block = b.block(b("aten.other", leaving, second), b("aten.other", plain), hidden, b("aten.add", used, y))
    (region,) = merge(block, groups_of(block))
    assert [node.output for node in block.nodes if node not in region.nodes and node.op != "aten.other"] == [leaving, second, plain]
    assert y in region.outputs and hidden in region.outputs
    assert leaving.producer is not None and leaving.producer.reason == "a view of memory outside of the region"
    only = Build()
    view = only("aten.t", only.input(4, 4), effect="view")
    assert merge(only.block(only("aten.other", view)), [NodeGroup("mine", (only.nodes[0],))]) == []


def test_composes_with_an_earlier_partitioners_regions() -> None:
    """Their operations stand where they are, and nothing is merged around them."""
    b = Build()
    x = b.input(4)
    y = b("aten.exp", x)
    z = b("tcjit.call", "{}", (y,))
    block = b.block(b("aten.add", y, z))
    regions = merge(block, group(block, [All()]))
    assert [[node.op for node in region.nodes] for region in regions] == [["aten.exp"], ["aten.add"]]


def test_backends_that_keep_matches_apart() -> None:
    b = Build()
    block = b.block(b("aten.neg", b("aten.exp", b.input(4))))
    assert len(merge(block, [NodeGroup("mine", (node,), alone=True) for node in block.nodes])) == 2


def test_devices_do_not_mix() -> None:
    b = Build()
    near, far = b("aten.exp", b.input(4)), b("aten.exp", b.input(4, device="cuda:0"))
    block = b.block(b("aten.neg", near), b("aten.neg", far), b("aten.add", near, far))
    assert sorted(len(region.nodes) for region in merge(block, groups_of(block))) == [2, 3]


def test_limits_keep_regions_small() -> None:
    b = Build()
    y = b.input(4)
    for _ in range(7):
        y = b("aten.neg", y)
    block = b.block(y)
    regions = merge(block, groups_of(block), fits=lambda backend, nodes: backend == "mine" and len(nodes) <= 3)
    assert [len(region.nodes) for region in regions] == [3, 3, 1]


def test_names_sanitised() -> None:
    b = Build()
    x = b.input(4)
    block = b.block(b("custom::my-op.v2", b("aten.other", b("aten.conv2d", x))))
    regions = merge(block, [NodeGroup("mine", (block.nodes[0],), row="conv relu/1"), NodeGroup("mine", (block.nodes[2],))], start=5)
    assert [region.name for region in regions] == ["mine_5_conv_relu_1", "mine_6_v2"]
    assert all(region.name.isidentifier() for region in regions) and len({region.name for region in regions}) == 2
    assert identifier("é" * 3) == "_" and identifier("7up").isidentifier()


def test_long_names_stay_apart() -> None:
    b = Build()
    x = b.input(4)
    block = b.block(*(b("aten." + "long" * 30, x) for _ in range(3)))
    found = [region.name for region in merge(block, groups_of(block))]
    assert len(set(found)) == 3 and max(map(len, found)) <= 60


def test_groups_that_cannot_be() -> None:
    b, other = Build(), Build()
    block = b.block(b("aten.exp", b.input(4)))
    away = other.block(other("aten.exp", other.input(4)))
    with pytest.raises(PartitionError, match="aten.exp is in two groups of nodes, of mine and yours"):
        merge(block, [*groups_of(block), *groups_of(block, "yours")])
    with pytest.raises(PartitionError, match="stands in another block"):
        merge(block, groups_of(away))


def check_order(scope: BlockDependences, regions: Sequence[Region], seed: int) -> None:
    """Everything runs once, and after what it needs."""
    placed: set[int] = set()
    for step in order(scope, regions):
        numbers = {node.number for node in (step.nodes if isinstance(step, Region) else (step,))}
        assert all(set(scope.needs[number]) <= placed | numbers for number in numbers), f"seed {seed}: too early"
        assert not numbers & placed, f"seed {seed}: twice"
        placed |= numbers
    assert len(placed) == len(scope.nodes)


def judged(seed: int, block: Block, groups: Sequence[NodeGroup]) -> tuple[int, int]:
    """Checks regions by brute force; how many there are, and how many groups were dropped."""
    scope = BlockDependences(block)
    regions = merge(block, groups)
    sets = [region.nodes for region in regions]
    edges = contracted_edges(scope, sets)
    assert not has_circle(edges), f"seed {seed}: a circle"
    members: dict[Node, int] = {node: number for number, nodes in enumerate(sets) for node in nodes}
    assert len(members) == sum(map(len, sets)), f"seed {seed}: a node twice"
    dropped = 0
    for each in groups:
        homes = {members.get(node, -1) for node in each.nodes}
        assert len(homes) == 1, f"seed {seed}: a group torn apart"
        if homes == {-1}:
            dropped += 1
            assert each.nodes[0].reason, f"seed {seed}: dropped without a reason"
    for number, region in enumerate(regions):
        inside = set(region.nodes)
        assert all(each.backend == region.backend for each in region.groups)
        taken = [v for node in region.nodes for v in node.inputs if v.producer not in inside]
        left = [v for node in region.nodes for v in node.outputs if block.escapes(v, region.nodes)]
        assert list(region.inputs) == list(dict.fromkeys(taken)) and list(region.outputs) == left and left
        # no neighbour of the same backend was left out without need
        for need in edges[number]:
            if need < len(regions) and regions[need].backend == region.backend:
                joined = [nodes for other, nodes in enumerate(sets) if other not in (need, number)] + [(*sets[need], *sets[number])]
                assert has_circle(contracted_edges(scope, joined)), f"seed {seed}: {regions[need]} and {region} could be one"
    check_order(scope, regions, seed)
    return len(regions), dropped


@pytest.mark.parametrize("part", range(10))
def test_random_graphs_have_no_circle_and_nothing_is_left_out(part: int) -> None:
    """2,000 graphs of up to 14 nodes and 20 of 60, of one to three backends, with groups of several nodes some of which cannot be."""
    found = lost = 0
    for seed in range(part * 200, part * 200 + 200):
        regions, dropped = judged(seed, *random_block(seed, 3 + seed % 12, colours=1 + seed % 3))
        found, lost = found + regions, lost + dropped
    for seed in range(2):
        judged(seed, *random_block(10_000 + 2 * part + seed, 60, colours=1 + seed % 3))
    assert found > 300 and lost > 3


def run_plain(block: Block, memory: dict[Value, list[Any]]) -> None:
    for node in block.nodes:
        run_node(node, memory)


def run_node(node: Node, memory: dict[Value, list[Any]]) -> None:
    """A made-up meaning: memory is a list of one thing, and an operation's result says what it was made of."""
    inputs = [memory[value] for value in node.inputs]
    made = hash((node.op, *(each[0] for each in inputs)))
    if node.effect == "mutates":
        inputs[0][0] = made
    memory[node.output] = inputs[0] if node.effect in ("mutates", "view") else [made]


def run_cut(steps: Sequence[Node | Region], memory: dict[Value, list[Any]]) -> None:
    """A region reads its inputs when it starts, and gives memory of its own for each output."""
    for step in steps:
        if isinstance(step, Node):
            run_node(step, memory)
            continue
        local = {value: list(memory[value]) for value in (*step.inputs, *step.constants)}
        for node in step.nodes:
            run_node(node, local)
        for value in step.outputs:
            memory[value] = list(local[value])


def seen(block: Block, memory: dict[Value, list[Any]]) -> tuple[list[Any], list[int]]:
    """What a caller sees: the contents of what went in and came out, and which of these are the same memory."""
    values = [*block.inputs, *block.outputs]
    places = [id(memory[value]) for value in values]
    return [memory[value][0] for value in values], [places.index(place) for place in places]


def with_memory(draw: random.Random) -> tuple[Block, Build]:
    """A random block with views and in-place operations, and the values whose memory is written to found by running it."""
    build = Build()
    values = [build.input(4), build.input(4), build.weight(4)]
    for number in range(draw.randint(4, 14)):
        kind = draw.choices(["", "view", "mutates"], [6, 2, 1])[0]
        arguments = [draw.choice(values) for _ in range(1 if kind == "view" else draw.randint(1, 3))]
        op = "aten.other" if not kind and draw.random() < 0.2 else f"aten.op{number}"
        values.append(build(op, *arguments, effect=kind))  # type: ignore[arg-type]
    outputs = [*draw.sample(values[3:], draw.randint(1, 2)), values[-1]]
    memory: dict[Value, list[Any]] = {value: [number] for number, value in enumerate(build.inputs)}
    block = build.block(*outputs)
    run_plain(block, memory)
    written = {id(memory[node.output]) for node in block.nodes if node.effect == "mutates"}
    return build.block(*outputs, mutated=[value for value, place in memory.items() if id(place) in written]), build


@pytest.mark.parametrize("part", range(5))
def test_random_programs_with_memory_mean_the_same(part: int) -> None:
    """2,000 programs with views and in-place operations: contents and sharing of all that a caller sees are those of the original."""
    cut = 0
    for seed in range(part * 400, part * 400 + 400):
        block, build = with_memory(random.Random(seed))
        regions = merge(block, group(block, [All()]))
        plain, parted = ({value: [number] for number, value in enumerate(build.inputs)} for _ in range(2))
        run_plain(block, plain)
        run_cut(order(block, regions), parted)
        assert seen(block, plain) == seen(block, parted), f"seed {seed}: {block}"
        cut += sum(len(region.nodes) > 1 for region in regions)
    assert cut > 200


@pytest.mark.parametrize("shape", ["chain", "random", "interleaved", "far"])
def test_3000_nodes_take_well_under_3_seconds(shape: str) -> None:
    """Grouping, merging and ordering together, in seconds of this process."""
    draw = random.Random(1)
    b = Build()
    values = [b.input(4)]
    reach = {"chain": 1, "random": 40, "interleaved": 6, "far": 3000}[shape]
    for number in range(3000):
        op = "aten.other" if shape == "interleaved" and number % 3 == 0 else "aten.op"
        values.append(b(op, *(draw.choice(values[-reach:]) for _ in range(1 if shape == "chain" else 3))))
    block = b.block(*values[-3:])
    start = time.process_time()
    regions = merge(block, group(block, [All()]))
    order(block, regions)
    assert time.process_time() - start < 3
    assert (len(regions) == 1) == (shape != "interleaved")


def test_3000_nodes_of_interleaved_backends() -> None:
    block, groups = random_block(3, 3000, colours=3)
    start = time.process_time()
    regions = merge(block, groups)
    assert time.process_time() - start < 3
    check_order(BlockDependences(block), regions, 3)
