"""Views, side-by-side placement and indexing against PyTorch, and the arithmetic on subscripts behind them.

Modules: byoc.lower.indexing byoc.lower.indices byoc.lower.views
"""
from __future__ import annotations

import itertools

import pytest
import torch
from support.byoc.lower import assert_lowered

from tcjit.byoc.lower.indices import from_text, inside, reshaped, variable
from tcjit.grammar.linear import Linear


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(0)


def test_views():
    def make(g, x):
        found = [g("view", x, [6, 24]), g("reshape", x, [3, 2, -1]), g("flatten.using_ints", x, 1), g("flatten.using_ints", x, 1, 2)]
        found += [g("transpose.int", x, 1, -1), g("permute", x, [3, 0, -2, 1]), g("expand", g("unsqueeze", x, -1), [-1, -1, -1, -1, 5])]
        found += [g("slice.Tensor", x, 2, 1, -1, 2), g("slice.Tensor", x, -1, -3), g("select.int", x, -1, -2), g("narrow", x, 3, 2, 3)]
        found += [
            g("squeeze.dim", g("slice.Tensor", x, 0, 1, 2), 0),
            *g("unbind.int", x, 1),
            *g("split.Tensor", x, 4, -1),
            *g("chunk", x, 2, 1),
        ]
        return [*found, *g("split_with_sizes", x, [1, 2], 1), g("movedim.int", x, 0, 2), g("swapaxes", x, 0, -1), g("mT", x)]

    assert_lowered(make, torch.randn(2, 3, 4, 6))


def test_rearrangements():
    def make(g, x):
        found = [g("flip", x, [1, -1]), g("roll", x, [1, -2], [0, 3]), g("roll", x, [5]), g("repeat", x, [2, 1, 1, 2, 1])]
        found += [g("repeat_interleave.self_int", x, 2, 1), g("diagonal", x, 1, -1, -2), g("diagonal", x, -1), g("unfold", x, 3, 3, 2)]
        found += [g("pixel_shuffle", g("reshape", x, [1, 12, 4, 3]), 2), g("pixel_unshuffle", x, 2)]
        found += [
            g("channel_shuffle", g("reshape", x, [2, 6, 2, 6]), 3),
            g("tril", x, 1),
            g("triu", x, -1),
            g("contiguous", x),
            g("clone", x),
        ]
        turned = g("transpose.int", g("reshape", x, [2, 3, 4, 2, 3]), 1, 2)
        return [*found, g("relu", g("reshape", turned, [2, 12, 6]))]

    assert_lowered(make, torch.randn(2, 3, 4, 6))


def test_side_by_side():
    def make(g, x, y):
        found = [
            g("cat", [x, y], 1),
            g("cat", [x, y, x], -3),
            g("stack", [x, x, g("neg", x)], 2),
            g("stack", [x, x], -1),
            g("stack", [x], 0),
        ]
        found += [g("constant_pad_nd", x, [1, 2, 0, 1], 1.5), g("constant_pad_nd", x, [-1, 2, 0, -1])]
        found += [g("pad", x, [1, 1, 2, 0], mode) for mode in ("reflect", "replicate", "circular", "constant")]
        found += [g("slice_scatter", x, g("slice.Tensor", x, 3, 0, 3), 3, 1, 6, 2), g("select_scatter", x, g("select.int", x, 1, 0), 1, 2)]
        return [*found, g("relu", g("cat", [g("relu", x), g("exp", y)], 1)), g("select.int", g("stack", [x, g("exp", x)]), 0, 1)]

    assert_lowered(make, torch.randn(2, 3, 4, 6), torch.randn(2, 5, 4, 6))
    assert_lowered(lambda g, a, b: g("cat", [a, b]), torch.tensor([1, 2]), torch.tensor([0.5]))


def test_indexing():
    def make(g, x, i, t):
        one, other = g("select.int", i, 0, 0), g("select.int", i, 0, 1)
        found = [g("embedding", t, i), g("index_select", x, 1, one), g("gather", t, 0, i), g("index.Tensor", x, [None, i])]
        found += [g("index.Tensor", x, [other, None, one]), g("index.Tensor", x, [None, g("neg", i), one]), g("index.Tensor", x, [i, one])]
        return [*found, g("embedding", g("relu", t), i), g("embedding", g("transpose.int", g("t", t), 0, 1), g("add.Scalar", i, 0))]

    assert_lowered(make, torch.randn(2, 3, 4, 6), torch.tensor([[0, 2, 1], [1, 1, 0]]) % 2, torch.randn(3, 4))


def test_bags_of_one_size():
    def make(g, t, i):
        bags = [g("embedding_bag", t, g("reshape", i, [-1]), g("arange.start_step", 0, 6, 2), mode=mode)[0] for mode in (0, 1)]
        return [*bags, g("embedding_bag", t, g("reshape", i, [-1]), g("arange", 6))[0]]

    assert_lowered(make, torch.randn(5, 4), torch.tensor([[0, 4], [2, 2], [3, 1]]))


def test_layouts_of_inputs():
    x = torch.randn(4, 3, 2)
    assert_lowered(
        lambda g, a, b, c: g("add.Tensor", g("add.Tensor", a, b), c),
        x.permute(2, 1, 0),
        x[:2, :, :1].expand(2, 3, 4),
        torch.randn(2, 3, 8)[:, :, ::2],
    )


def test_views_are_subscripts():
    def make(g, x):
        return g("relu", g("reshape", g("transpose.int", g("view", x, [2, 5, 3, 4]), 1, 2), [6, 5, 4]))

    assert "x0((i0/3), i1, 4*(i0%3)+i2)" in assert_lowered(make, torch.randn(2, 5, 12))


@pytest.mark.parametrize(
    ("shape", "source"),
    [((2, 12), (2, 3, 4)), ((4, 6), (2, 3, 4)), ((24,), (2, 3, 4)), ((3, 8), (4, 6)), ((2, 1, 12), (24, 1)), ((1,), (1, 1))],
)
def test_reshaped_subscripts(shape, source):
    names = [f"i{place}" for place in range(len(shape))]
    found = reshaped([variable(name, extent) for name, extent in zip(names, shape)], shape, source)
    expected = torch.arange(torch.Size(source).numel()).reshape(source)
    for place, point in enumerate(itertools.product(*map(range, shape))):
        there = tuple(eval(str(each).replace("/", "//"), dict(zip(names, point))) for each in found)
        assert expected[there] == place


def test_subscripts_are_simplified():
    h, d = variable("h", 3), variable("d", 4)
    flat = h.times(4) + d
    assert flat // 4 == h and flat % 4 == d
    i = variable("i", 12)
    assert (i // 4).times(4) + i % 4 == i
    assert str(i // 2 // 3) == "(i/6)" and str(i % 6 % 3) == "(i%3)" and str((h + d) // 4) == "((h+d)/4)"
    assert variable("k", 1) == Linear.of(0) and str(i.times(-1) + 11) == "-i+11"


def test_conditions_are_those_that_an_interval_leaves_open():
    i = variable("i", 12)
    assert inside(i, 0, 12) == [] and inside(i - 12, 0, 4) is None
    assert inside(i - 1, 0, 12) == ["i-1 >= 0"] and inside(i + 1, 0, 12) == ["i+1 < 12"]
    assert inside(from_text("x(i)", -9, 9), 0, 9) == ["(x(i)) >= 0", "(x(i)) < 9"]
