"""Estimates by hand against the tables, limits of backends, and which regions are given back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.byoc.graphs import Build

from tcjit.byoc.cost import (
    ELEMENT_S,
    Cost,
    HostCosts,
    Limits,
    compare,
    estimate,
    exceeds,
    flops,
    prune,
    size,
    traffic,
    unfused,
    within,
    working_set,
)
from tcjit.byoc.graph import Block, Value
from tcjit.byoc.regions import NodeGroup, Region, merge

pytestmark = pytest.mark.text

PLAIN = HostCosts(bandwidth=1e9, flops=1e9, operation=1e-6, call=2e-6)


def region_of(block: Block, backend: str = "mine") -> Region:
    (region,) = merge(block, [NodeGroup(backend, (node,)) for node in block.nodes])
    return region


def chain(length: int, elements: int) -> Block:
    b = Build()
    y = b.input(elements)
    for _ in range(length):
        y = b("aten.neg", y)
    return b.block(y)


def test_intermediates_are_saved() -> None:
    """Four negations of 1,000 floats: 4 reads and 4 writes of 4,000 bytes one by one, one of each as a region."""
    region = region_of(chain(4, 1000))
    together, alone = estimate(region, machine=PLAIN), unfused(region.nodes, PLAIN)
    assert together == Cost(8000, 4000, 1, 2e-6 + 8e-6) and (alone.bytes, alone.flops, alone.launches) == (32000, 4000, 4)
    assert math.isclose(alone.seconds, 4 * (1e-6 + 8e-6))
    found = compare(region, machine=PLAIN)
    assert found.bytes == 24000 and math.isclose(found.seconds, 26e-6)
    assert str(together) == "10.0 us (1 call, 8000 bytes, 4000 flops)" and "4 calls" in str(alone)


def test_what_is_used_twice_moves_once() -> None:
    b = Build()
    x, w = b.input(1000), b.weight(1000)
    y = b("aten.add", b("aten.mul", x, x), w)
    block = b.block(b("aten.add", y, x), y)
    assert estimate(region_of(block)).bytes == 4 * 4000  # x, w in; both results out
    assert traffic(block.nodes[0]) == 2 * 4000


def test_sizes_of_dtypes() -> None:
    b = Build()
    values = [b.input(3, 5, dtype=dtype) for dtype in ("int8", "float16", "float32", "float64", "complex128", "bool")]
    assert [size(value) for value in values] == [15, 30, 60, 120, 240, 15]
    assert size(Value("no tensor")) == 0 and size(b.input()) == 4


def test_views_cost_a_call_and_nothing_else() -> None:
    b = Build()
    x = b.input(10, 10)
    view = b("aten.t", x, effect="view")
    assert traffic(b.nodes[0]) == flops(b.nodes[0]) == 0
    assert unfused(b.nodes, PLAIN) == Cost(0, 0, 1, 1e-6) and view.producer is b.nodes[0]


def arithmetic() -> list[tuple[str, int, int]]:
    b = Build()
    image, kernels, depthwise = b.input(2, 8, 16, 16), b.weight(4, 8, 3, 3), b.weight(8, 1, 3, 3)
    left, right, row = b.input(5, 7), b.input(7, 3), b.input(3)
    q, k, v = b.input(2, 4, 6, 16), b.input(2, 4, 10, 16), b.input(2, 4, 10, 32)
    found: list[tuple[str, Value, int]] = [
        ("conv", b("aten.conv2d", image, kernels, shape=(2, 4, 14, 14)), 2 * 2 * 4 * 14 * 14 * 8 * 9),
        ("conv with a bias", b("aten.conv2d", image, kernels, row, shape=(2, 4, 14, 14)), (2 * 8 * 9 + 1) * 2 * 4 * 14 * 14),
        ("depthwise", b("aten.conv2d", image, depthwise, None, shape=(2, 8, 14, 14)), 2 * 2 * 8 * 14 * 14 * 9),
        (
            "transposed",
            b("aten.convolution", weight=b.weight(8, 4, 3, 3), input=image, transposed=True, shape=(2, 4, 18, 18)),
            2 * 2 * 8 * 16 * 16 * 4 * 9,
        ),
        ("mm", b("aten.mm", left, right, shape=(5, 3)), 2 * 5 * 7 * 3),
        ("addmm", b("aten.addmm", row, left, right, shape=(5, 3)), 5 * 3 * (2 * 7 + 1)),
        ("linear", b("aten.linear", left, b.weight(3, 7), row, shape=(5, 3)), 5 * 3 * (2 * 7 + 1)),
        ("linear without", b("aten.linear", left, b.weight(3, 7), None, shape=(5, 3)), 5 * 3 * 2 * 7),
        ("attention", b("aten.scaled_dot_product_attention", q, k, v, shape=(2, 4, 6, 32)), 2 * 4 * 6 * 10 * (32 + 64 + 5)),
        ("pooling", b("aten.max_pool2d", image, 3, shape=(2, 8, 5, 5)), 9 * 2 * 8 * 25),
        ("pooling by two", b("aten.max_pool2d", image, (3, 2), shape=(2, 8, 5, 5)), 6 * 2 * 8 * 25),
        ("sum", b("aten.sum", left, 1, shape=(5,)), 35),
        ("softmax", b("aten.softmax", left, 1), 5 * 35),
        ("exp", b("aten.exp", left), 4 * 35),
        ("cat", b("aten.cat", (left, left), 0, shape=(10, 7)), 0),
        ("unknown", b("my.op", left), 35),
    ]
    return [(name, flops(value.producer), wanted) for name, value, wanted in found if value.producer is not None]


@pytest.mark.parametrize("name, found, wanted", arithmetic(), ids=[name for name, _, _ in arithmetic()])
def test_flops(name: str, found: int, wanted: int) -> None:
    assert found == wanted, name


def test_the_slower_of_memory_and_arithmetic_counts() -> None:
    b = Build()
    block = b.block(b("aten.mm", b.input(100, 100), b.input(100, 100)))
    found = estimate(region_of(block), machine=PLAIN)
    assert found.bytes == 120_000 and found.flops == 2_000_000 and math.isclose(found.seconds, 2e-6 + 2e-3)


def test_unknown_extents_count_as_one() -> None:
    b = Build()
    block = b.block(b("aten.neg", b("aten.exp", b.input(None, 8))))
    found = compare(region_of(block), machine=PLAIN)
    assert found.together.bytes == 64 and found.unfused.bytes == 128


def test_regions_with_no_gain_are_given_back() -> None:
    """A call costs more than the two that it saves; with large tensors, or more of them, it does not."""
    few, many, large = region_of(chain(2, 4)), region_of(chain(8, 4)), region_of(chain(2, 100_000))
    found = prune([few, many, large])
    assert found.kept == (many, large) and [region for region, _ in found.given_back] == [few]
    (why,) = (reason for _, reason in found.given_back)
    assert why == "no gain: 2.6 us (1 call, 32 bytes, 8 flops) as a region of mine, 1.8 us (2 calls, 64 bytes, 8 flops) without"
    assert all(node.reason == why for node in few.nodes) and not many.nodes[0].reason


def test_a_backends_own_figures() -> None:
    """A device with its own memory and peak gains on a single product; one that wants everything gets it; one that asks more gets less."""
    b = Build()
    region = region_of(b.block(b("aten.mm", b.input(256, 256), b.input(256, 256))))
    cases: list[tuple[Limits, bool]] = [
        (Limits(), False),
        (Limits(flops=1e13, bandwidth=1e12), True),
        (Limits(flops=1e13, bandwidth=1e12, call=1.0), False),
        (Limits(flops=1e13, bandwidth=1e12, gain=1.0), False),
        (Limits(gain=-math.inf), True),
    ]
    for limits, stays in cases:
        assert bool(prune([region], {"mine": limits}).kept) == stays, limits
    assert "less than the 1000000.0 us asked for" in prune([region], {"mine": cases[3][0]}).given_back[0][1]
    assert not prune([region], {"yours": cases[1][0]}).kept


def test_limits_of_units() -> None:
    region = region_of(chain(5, 100_000))
    assert prune([region], {"mine": Limits(units=5)}).kept
    ((_, why),) = prune([region], {"mine": Limits(units=4)}).given_back
    assert why == "takes 5 units where there are 4"
    assert exceeds(region.nodes, Limits(units=14, takes={"aten.neg": 3})) == "takes 15 units where there are 14"
    assert not exceeds(region.nodes, Limits(units=0, takes={"aten.neg": 0}))


def test_limits_of_memory() -> None:
    """Three tensors of 400 bytes at most: the input, and two of the chain."""
    region = region_of(chain(5, 100))
    assert working_set(region.nodes) == 1200
    assert exceeds(region.nodes, Limits(memory=1199)) == "holds 1200 bytes at once where 1199 fit on the chip"
    assert not exceeds(region.nodes, Limits(memory=1200))


def test_the_working_set_keeps_what_is_still_needed() -> None:
    b = Build()
    x, w = b.input(100), b.weight(50)
    one = b("aten.neg", x)
    two = b("aten.exp", one)
    view = b("aten.view", two, effect="view")
    block = b.block(b("aten.op", view, w, one), two)
    # x, w, one, two and the result; the view is no memory
    assert working_set(block.nodes) == 400 + 200 + 3 * 400


def test_merging_within_limits() -> None:
    block = chain(7, 100)
    groups = [NodeGroup("mine", (node,)) for node in block.nodes]
    limits = {"mine": Limits(units=3)}
    assert [len(region.nodes) for region in merge(block, groups, fits=within(limits))] == [3, 3, 1]
    assert [len(region.nodes) for region in merge(block, groups, fits=within({"mine": Limits(memory=1200)}))] == [7]
    small: dict[str, Any] = {"mine": Limits(memory=1000)}
    assert [len(region.nodes) for region in merge(block, groups, fits=within(small))] == [1] * 7
    assert len(merge(block, groups, fits=within({}))) == 1


def test_a_backend_may_be_slow_at_some_operations() -> None:
    region = region_of(chain(4, 1000))
    slow = estimate(region, Limits(speeds={"aten.neg": 0.25}), PLAIN)
    assert math.isclose(slow.seconds, 2e-6 + 16e-6) and slow.flops == 4000  # bound by 4,000 operations at a quarter of 1e9 a second
    assert estimate(region, Limits(speeds={"aten.exp": 0.25}), PLAIN) == estimate(region, machine=PLAIN)


def test_operations_that_take_long_cost_what_they_take() -> None:
    """One tanh by itself is worth a region where it has many elements, and a negation is not."""
    limits = Limits(element_s={op: own for op, (_, own) in ELEMENT_S.items()})

    def alone(op: str) -> Region:
        b = Build()
        return region_of(b.block(b(op, b.input(120_000))))

    assert compare(alone("aten.tanh"), limits, HostCosts()).seconds > 0 > compare(alone("aten.neg"), limits, HostCosts()).seconds
    nodes = alone("aten.tanh").nodes
    assert unfused(nodes, HostCosts(cores=4)).seconds < unfused(nodes, HostCosts(cores=1)).seconds
