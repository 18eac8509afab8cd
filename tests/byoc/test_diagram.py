"""The picture of a partitioned graph: well-formed, nothing on top of anything else, everything told.

Modules: byoc.graph_layout byoc.rewrite
"""
from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest

from tcjit.byoc.diagram import picture
from tcjit.byoc.graph import Block, Node, TensorType, Value
from tcjit.byoc.graph_layout import arrange
from tcjit.byoc.regions import NodeGroup, Region, merge
from tcjit.byoc.rewrite import outline

pytestmark = pytest.mark.text

SPACE = "{http://www.w3.org/2000/svg}"
KIND = TensorType("float32", (2, 3))


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SPACE}svg"
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SPACE}text")]


def tips(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SPACE}title")]


def operation(op: str, inputs: Sequence[Value], name: str, **more: object) -> Node:
    value = Value(name, KIND)
    node = Node(op, "default", {f"a{at}": each for at, each in enumerate(inputs)}, (value,), **more)  # type: ignore[arg-type]
    value.producer = node
    return node


def chain(ops: str) -> Block:
    x = last = Value("x", KIND)
    nodes = []
    for number, op in enumerate(ops.split()):
        nodes.append(operation(f"aten.{op}", [last], f"v{number}"))
        last = nodes[-1].output
    return Block((x,), nodes, (last,))


def cut(block: Block, parts: Sequence[tuple[str, Sequence[int]]]) -> list[Region]:
    return merge(block, [NodeGroup(backend, tuple(block.nodes[at] for at in members), alone=True) for backend, members in parts])


def drawn(seed: int, count: int) -> Block:
    """A random graph: every operation takes one to three values made before, mostly late ones."""
    draw = random.Random(seed)
    values = [Value("x", KIND), Value("y", KIND)]
    inputs, nodes = tuple(values), []
    for number in range(count):
        taken = [values[-1 - min(int(draw.expovariate(0.5)), len(values) - 1)] for _ in range(draw.randint(1, 3))]
        nodes.append(operation(f"aten.{draw.choice(['relu', 'add', 'convolution_backward', 'mul'])}", taken, f"v{number}"))
        values.append(nodes[-1].output)
    return Block(inputs, nodes, (values[-1], values[-2]))


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    return [
        tuple(float(rect.get(side, "")) for side in ("x", "y", "width", "height"))  # type: ignore[misc]
        for group in root.iter(f"{SPACE}g")
        for rect in group.findall(f"{SPACE}rect")
    ]


def test_regions_are_boxes_in_their_backends_colours() -> None:
    block = chain("relu exp fft tanh")
    block.nodes[2].reason = "mine has no rule for aten.fft"
    first, second = cut(block, [("mine", (0, 1)), ("yours", (3,))])
    root = parsed(picture(block, [first, second]))
    colours = [rect.get("fill") for group in root.iter(f"{SPACE}g") for rect in group.findall(f"{SPACE}rect")]
    assert len(colours) == 5 and len({*colours[1:4]}) == 3  # what comes in, a region, an operation, a region, what goes out
    assert first.name in words(root) and second.name in words(root) and "aten.exp" in words(root)
    assert any("mine has no rule for aten.fft" in tip for tip in tips(root))
    assert any(f"{first.name}, run by mine" in tip and "%v1 float32[2x3]" in tip for tip in tips(root))
    assert "mine" in words(root) and "yours" in words(root)


def test_a_block_with_calls_in_place_looks_the_same() -> None:
    block = chain("relu exp fft tanh")
    regions = cut(block, [("mine", (0, 1)), ("yours", (3,))])
    before = picture(block, regions)
    done = outline(block, regions, {region.name: "{}" for region in regions})
    assert [node.op for node in done.nodes] == ["tcjit.call", "aten.fft", "tcjit.call"]
    assert picture(done, regions) == before


def test_an_order_in_which_regions_run() -> None:
    """A member of a region stands before what the region needs from outside."""
    x = Value("x", KIND)
    a = operation("aten.exp", [x], "a")
    b = operation("aten.fft", [x], "b")
    c = operation("aten.add", [a.output, b.output], "c")
    block = Block((x,), [a, b, c], (c.output,))
    root = parsed(picture(block, cut(block, [("mine", (0, 2))])))
    (_, top, _, height), (_, below, _, _) = boxes(root)[1:3]
    assert words(root).index("aten.fft") < words(root).index("aten.add") and top + height < below


@pytest.mark.parametrize("seed", range(4))
def test_nothing_overlaps_and_edges_lead_down(seed: int) -> None:
    block = drawn(seed, 100)
    text = picture(block, cut(block, [("mine", (at,)) for at in range(0, 100, 7)]))
    root = parsed(text)
    placed = boxes(root)
    assert len(placed) == 102
    width, height = (float(root.get(side, "")) for side in ("width", "height"))
    for number, (x, y, w, h) in enumerate(placed):
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height
        for u, v, s, t in placed[:number]:
            assert x + w <= u + 0.11 or u + s <= x + 0.11 or y + h <= v + 0.11 or v + t <= y + 0.11
    for path in root.iter(f"{SPACE}path"):
        if path.get("class") == "edge":
            heights = [float(each) for each in re.findall(r"-?[\d.]+ (-?[\d.]+)", path.get("d", ""))]
            assert heights == sorted(heights) and heights[0] < heights[-1]
    assert picture(block, cut(block, [("mine", (at,)) for at in range(0, 100, 7)])) == text


def test_texts_are_escaped() -> None:
    name = "a<b>&\"'\x00\x0c]]>\ud800é\U0001f600"
    x = Value(name, KIND)
    node = operation("aten.relu", [x], f"<script>{name}", reason=f"</title><script>{name}")
    block = Block((x,), [node], (node.output,))
    root = parsed(picture(block, cut(block, [("b&<", (0,))])))
    assert any("a<b>&\"'" in word for word in words(root)) and not list(root.iter(f"{SPACE}script"))
    root = parsed(picture(block))
    assert any("</title><script>" in tip for tip in tips(root)) and not list(root.iter(f"{SPACE}script"))


def test_blocks_of_branches_are_panels() -> None:
    x, flag = Value("x", KIND), Value("flag")
    inner = operation("aten.relu", [x], "r")
    branches = (Block((), [inner], (inner.output,)), Block((), [], (x,)))
    branch = operation("prim.If", [flag], "out", effect="control", blocks=branches)
    block = Block((x, flag), [branch], (branch.output,))
    regions = merge(branches[0], [NodeGroup("mine", (inner,))])
    root = parsed(picture(block, regions))
    heads = [each.text for each in root.iter(f"{SPACE}text") if each.get("class") == "head"]
    assert heads == ["the model", "the model / prim.If %out block 0", "the model / prim.If %out block 1"]
    assert regions[0].name in words(root)
    edges = [path for path in root.iter(f"{SPACE}path") if path.get("class") == "edge"]
    assert len(edges) == 3  # the branch needs the inputs, that of its blocks too; its result leaves; so does that of the first block


def test_long_lists_are_cut_and_told_in_tooltips() -> None:
    block = chain(" ".join(["relu"] * 40))
    (region,) = cut(block, [("mine", range(40))])
    root = parsed(picture(block, [region]))
    assert any(re.fullmatch(r"\.\.\. \d+ more", word) for word in words(root))
    assert any(tip.count("aten.relu") == 40 for tip in tips(root))
    assert words(root).count("aten.relu") < 10


def test_nothing_and_constants() -> None:
    assert words(parsed(picture(Block((), [], ())))) == ["PyTorch", "branch or loop", "the model"]
    weight, x = Value("weight", KIND, constant=True), Value("x", KIND)
    node = operation("aten.mul", [x, weight], "y")
    root = parsed(picture(Block((weight, x), [node], (node.output,))))
    assert not any("weight" in word for word in words(root)) and any("weight" in tip for tip in tips(root))


def test_layers_of_a_diamond() -> None:
    made = arrange([(40.0, 10.0)] * 4, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
    (a, b, c, d) = made.places
    assert a[1] < b[1] == c[1] < d[1] and a[0] == pytest.approx(d[0], abs=30)
    assert [len(way) for way in made.ways] == [2, 2, 2, 2, 4]  # the last one passes a layer
    assert arrange([], []).places == ()


def test_a_deep_graph() -> None:
    root = parsed(picture(chain(" ".join(["relu", "exp"] * 1500))))
    assert len(boxes(root)) == 3002
