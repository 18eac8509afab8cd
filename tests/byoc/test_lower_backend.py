"""The backend "tcjit": what it takes and why not, how regions are cut for it, and what its runner does with other tensors.

Modules: byoc.tcjit_backend
"""
from __future__ import annotations

import math

import pytest
import torch
from support.byoc.lower import Graph

from tcjit.byoc.annotate import annotate
from tcjit.byoc.backends import find
from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.cost import prune, within
from tcjit.byoc.graph import Block, TensorType, Value
from tcjit.byoc.grouping import group
from tcjit.byoc.lower import RULES
from tcjit.byoc.regions import merge
from tcjit.byoc.spec import Unserved, parse, replay, spec
from tcjit.byoc.tcjit_backend import SHAPES, TcjitBackend
from tcjit.errors import PartitionError


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(0)


TCJIT = find("tcjit")


def _loaded(make, *tensors):
    """The runner of a region, what it says, and its tensors."""
    g = Graph()
    made = make(g, *map(g.input, tensors))
    region = g.region(made if isinstance(made, (list, tuple)) else [made])
    parsed = parse(spec(region, TCJIT.lower(region)))
    return TCJIT.load(parsed), parsed, g


def _reason(make, *tensors):
    g = Graph()
    make(g, *map(g.input, tensors))
    return annotate(Block(tuple(g.inputs), g.nodes, ()), TCJIT)[g.nodes[-1]]


def test_the_names_in_the_table_are_those_of_operators():
    unknown = [name for name in RULES if not hasattr(torch.ops.aten, name.removeprefix("aten."))]
    assert unknown == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g("logcumsumexp", x, 0), "has no rule for aten.logcumsumexp"),
        (lambda g, x: g("round.decimals", x, decimals=2), "rounds to decimals"),
        (lambda g, x: g("to.dtype", x, torch.uint8), "wraps or not"),
        (lambda g, x: g("linalg_vector_norm", x, 3), "order 3"),
        (lambda g, x: g("arange", 2.5), "counts in floats"),
        (lambda g, x: g("slice.Tensor", x, 0, 2, 2), "is empty"),
        (lambda g, x: g("bitwise_and.Scalar", g("to.dtype", x, torch.int64), 3), "bits of int64"),
        (lambda g, x: g("index.Tensor", x, [g("ne.Scalar", x, 0)]), "indexes by bool"),
        (lambda g, x: g("einsum", "...i->...", [x]), "einsum"),
        (lambda g, x: g("embedding_bag", x, g("arange", 3), g("full", [2], 0, dtype=torch.int64)), "bags are known at the run only"),
        (lambda g, x: g("stack", [x] * 33), "joins 33 tensors, more than 32"),
        (lambda g, x: g("dropout", x, 0.5, True), "draws random numbers"),
        (lambda g, x: g("abs", g("complex", x, x)), "complex64 type, which the language lacks"),
    ],
)
def test_reasons(make, words):
    assert words in _reason(make, torch.randn(3, 4))


def test_attention_that_drops_is_refused_where_nothing_says_that_it_is_random():
    g = Graph()
    x = g.input(torch.randn(2, 3, 4))
    g("scaled_dot_product_attention", x, x, x, None, 0.5)
    g.nodes[0].effect = ""
    assert "drops at random" in annotate(Block(tuple(g.inputs), g.nodes, ()), TCJIT)[g.nodes[0]]


def test_arguments_known_at_the_run_only():
    g = Graph()
    y = g("sum.dim_IntList", g.input(torch.randn(3, 4)), [0])
    node = g.nodes[0]
    node.arguments = {**node.arguments, "dim": Value("n")}
    assert annotate(Block(tuple(g.inputs), g.nodes, (y,)), TCJIT)[node] == "its dim is known at the run only"


def test_extents_known_at_the_run_only():
    g = Graph()
    x, w, b = g.input(torch.randn(3, 4)), g.input(torch.randn(5, 4)), g.input(torch.randn(5))
    y = g("softmax.int", g("relu", g("linear", x, w, b)), -1)
    for value in (x, *(node.output for node in g.nodes)):
        value.type = TensorType("float32", (None, *value.type.shape[1:]))
    assert not any(annotate(Block(tuple(g.inputs), g.nodes, (y,)), TCJIT).values())
    region = g.region([y])
    parsed = parse(spec(region, TCJIT.lower(region)))
    runner = TCJIT.load(parsed)
    for batch in (3, 1, 64):
        tensors = [torch.randn(batch, 4), *g.given[1:]]
        torch.testing.assert_close(runner(tensors)[0], replay(parsed, tensors)[0])


def test_large_products_of_halves_and_of_attention_are_the_vendors():
    assert _reason(lambda g, x: g("mm", x, x), torch.randn(300, 300).bfloat16()).startswith("a vendor's library is faster")
    assert _reason(lambda g, x: g("bmm", x, x), torch.randn(8, 300, 300)).startswith("a vendor's library is faster")
    assert _reason(lambda g, x: g("mm", x, x), torch.randn(300, 300)) == ""
    assert (
        _reason(lambda g, x, w: g("conv2d", x, w, None, [1, 1], [1, 1], [1, 1], 64), torch.randn(1, 64, 32, 32), torch.randn(64, 1, 3, 3))
        == ""
    )


def test_what_a_kernel_cannot_give_is_left():
    g = Graph()
    x = g.input(torch.randn(1, 2, 4, 4))
    _, places = g("adaptive_max_pool2d", x, [2, 2])
    with pytest.raises(PartitionError, match="places of the maxima"):
        TCJIT.lower(g.region([places]))


def _merged(g, outputs):
    scope = BlockDependences(Block(tuple(g.inputs), g.nodes, tuple(outputs)))
    return merge(scope, group(scope, [TCJIT]), fits=within({"tcjit": TCJIT.limits}))


def test_a_region_per_convolution_with_what_follows():
    g = Graph()
    x, w = g.input(torch.randn(1, 3, 6, 6)), g.input(torch.randn(3, 3, 3, 3), constant=True)
    y = g("relu", g("conv2d", x, w, None, [1, 1], [1, 1]))
    z = g("relu", g("add.Tensor", g("conv2d", y, w, None, [1, 1], [1, 1]), x))
    regions = _merged(g, [z])
    assert [[node.op for node in region.nodes] for region in regions] == [
        ["aten.conv2d", "aten.relu"],
        ["aten.conv2d", "aten.add", "aten.relu"],
    ]
    assert [region.rows for region in regions] == [("convolution_epilogue",)] * 2


def test_by_estimate_convolutions_are_regions_with_what_follows():
    g = Graph()
    x, w = g.input(torch.randn(1, 32, 32, 32)), g.input(torch.randn(32, 32, 3, 3), constant=True)
    much = g("relu", g("conv2d", x, w, None, [1, 1], [1, 1]))
    last = g("sigmoid", g("conv2d", g("relu", x), g.input(torch.randn(1, 32, 1, 1), constant=True)))
    found = prune(_merged(g, [much, last]), {"tcjit": TCJIT.limits})
    kept = [[node.op.removeprefix("aten.") for node in region.nodes] for region in found.kept]
    assert kept == [["conv2d", "relu"], ["relu", "conv2d", "sigmoid"]]
    assert not found.given_back


def test_layers_are_regions_of_their_own_and_chains_stay_whole():
    g = Graph()
    x, w = g.input(torch.randn(4, 8)), g.input(torch.randn(8, 8), constant=True)
    y = g("tanh", g("linear", g("relu", g("linear", x, w)), w))
    assert [len(region.nodes) for region in _merged(g, [y])] == [2, 2]
    g = Graph()
    y = g.input(torch.randn(4, 8))
    for _ in range(10):
        y = g("softmax.int", g("mul.Scalar", y, 0.5), -1)
    assert [len(region.nodes) for region in _merged(g, [y])] == [20]


def test_attention_is_one_region():
    g = Graph()
    q, k, v = (g.input(torch.randn(2, 4, 5)) for _ in range(3))
    scores = g("softmax.int", g("div.Scalar", g("bmm", q, g("transpose.int", k, 1, 2)), 2.0), -1)
    (region,) = _merged(g, [g("relu", g("bmm", scores, v))])
    assert region.rows == ("attention",) and len(region.nodes) == 6


def test_other_shapes_and_types_get_kernels_of_their_own():
    def make(g, x, w, b):
        y = g("relu", g("linear", g("flatten.using_ints", x, 1), w, b))
        return [y, g("mean.dim", y, [1], True)]

    runner, parsed, g = _loaded(make, torch.randn(4, 2, 3), torch.randn(5, 6), torch.randn(5))
    for batch, dtype in ((4, torch.float32), (1, torch.float32), (7, torch.float32), (3, torch.float64), (4, torch.float32)):
        tensors = [torch.randn(batch, 2, 3, dtype=dtype), g.given[1].to(dtype), g.given[2].to(dtype)]
        for mine, plain in zip(runner(tensors), replay(parsed, tensors), strict=True):
            torch.testing.assert_close(mine, plain)


def test_broadcasting_follows_the_shapes_of_the_call():
    runner, parsed, _ = _loaded(lambda g, x, y: g("mul.Tensor", x, y), torch.randn(1, 3), torch.randn(4, 3))
    for shapes in (((1, 3), (4, 3)), ((4, 3), (4, 3)), ((4, 3), (1, 1)), ((3,), (2, 1, 1))):
        tensors = [torch.randn(shape) for shape in shapes]
        assert torch.equal(runner(tensors)[0], replay(parsed, tensors)[0])


def test_layouts_are_read_as_they_are():
    runner, parsed, _ = _loaded(lambda g, x: g("add.Scalar", x, 1), torch.randn(3, 4))
    for x in (torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 4), torch.randn(3, 8)[:, ::2]):
        assert torch.equal(runner([x])[0], replay(parsed, [x])[0])


def test_what_pytorch_refuses_is_left_to_it():
    runner, _, _ = _loaded(lambda g, t, i: g("embedding", t, i), torch.randn(3, 4), torch.tensor([0, 2]))
    with pytest.raises(Unserved, match="outside"):
        runner([torch.randn(3, 4), torch.tensor([0, 3])])
    with pytest.raises(Unserved, match="outside"):
        runner([torch.randn(3, 4), torch.tensor([0, -1])])
    assert runner([torch.randn(3, 4), torch.tensor([2, 2])])[0].shape == (2, 4)
    runner, _, _ = _loaded(lambda g, x, y: g("remainder.Tensor", x, y), torch.tensor([5]), torch.tensor([3]))
    with pytest.raises(Unserved, match="zero"):
        runner([torch.tensor([5]), torch.tensor([0])])


def test_places_are_checked_in_broadcast_tables_too():
    runner, _, _ = _loaded(lambda g, t, i: g("index_select", g("expand", t, [3, 4]), 0, i), torch.randn(1, 4), torch.tensor([0, 2]))
    with pytest.raises(Unserved, match="outside"):
        runner([torch.randn(1, 4), torch.tensor([0, 3])])


def test_empty_tensors_and_too_many_shapes_run_plainly():
    runner, _, _ = _loaded(lambda g, x: g("relu", x), torch.randn(3))
    with pytest.raises(Unserved, match="empty"):
        runner([torch.randn(0)])
    for extent in range(1, SHAPES):
        runner._kernels[extent,] = "stands for a kernel"
    with pytest.raises(Unserved, match="sets of shapes"):
        runner([torch.randn(SHAPES + 1)])


def test_a_spec_without_a_program_is_refused():
    with pytest.raises(PartitionError, match="holds no program"):
        TcjitBackend().load({"name": "r", "code": {}})


def test_equal_layers_share_a_kernel():
    texts = {_loaded(lambda g, x: g("relu", g("mul.Scalar", x, 2.5)), torch.randn(2, 3))[1]["code"]["text"] for _ in range(2)}
    assert len(texts) == 1


def test_special_numbers_survive_the_spec():
    runner, parsed, _ = _loaded(lambda g, x: g("masked_fill.Scalar", x, g("lt.Scalar", x, 0), -math.inf), torch.randn(5))
    assert '"float":"-inf"' in spec(*_region(lambda g, x: g("full_like", x, -math.inf)))
    x = torch.tensor([-1.0, 2.0, -3.0])
    assert torch.equal(runner([x])[0], replay(parsed, [x])[0])


def _region(make):
    g = Graph()
    region = g.region([make(g, g.input(torch.randn(2)))])
    return region, TCJIT.lower(region)
