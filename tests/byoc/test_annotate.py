"""Which nodes a backend may take, and the reasons that the others bear: the engine's, the predicates', and those of its table.

Modules: byoc.partition_blocks
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.byoc.graphs import Build

from tcjit.byoc import annotate as module
from tcjit.byoc.annotate import annotate, obstacles, supported, supports
from tcjit.byoc.backends import Backend, Row, find, known, register, unregister
from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Effect, Node, TensorType, Value
from tcjit.byoc.grouping import group
from tcjit.byoc.patterns import Match, is_const, is_op, optional, wildcard
from tcjit.byoc.regions import merge
from tcjit.errors import PartitionError

pytestmark = pytest.mark.text


class Mine(Backend):
    name = "mine"


class Anything(Backend):
    name = "anything"

    def supports(self, node: Node) -> bool | str:
        return True


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_PREDICATES", {})
    before = known()
    yield
    for name in set(known()) - set(before):
        unregister(name)


def floats(node: Node) -> bool | str:
    assert node.output.type is not None
    return node.output.type.dtype == "float32" or f"{node.output.type.dtype} is not for mine"


def test_predicates_say_yes_or_why_not() -> None:
    supports("aten.relu", "aten.add", backend="mine")(floats)
    b = Build()
    x, k = b.input(2), b.input(2, dtype="int64")
    r, bad, other = b("aten.relu", x), b("aten.add", k, 1), b("aten.tanh", x)
    found = annotate(b.block(r, bad, other), Mine())
    assert list(found.values()) == ["", "int64 is not for mine", "mine has no rule for aten.tanh"]
    assert [node.reason for node in found] == list(found.values()) and supported("mine") == ("aten.relu", "aten.add")


def test_an_overload_goes_before_its_operation_and_a_predicate_before_the_backend() -> None:
    supports("aten.add", backend="anything")(lambda node: False)
    supports("aten.add.Scalar", backend="anything")(lambda node: True)
    b = Build()
    x = b.input(2)
    b("aten.add", x, x, overload="Tensor"), b("aten.add", x, 1, overload="Scalar"), b("aten.mul", x, x)
    assert list(annotate(b.block(), Anything()).values()) == ["anything declines aten.add", "", ""]


@pytest.mark.parametrize("said", [None, 1, "", 0])
def test_a_predicate_must_say_something(said: Any) -> None:
    supports("aten.relu", backend="mine")(lambda node: said)
    b = Build()
    b("aten.relu", b.input(2))
    with pytest.raises(PartitionError, match="the predicate of mine for aten.relu said") as error:
        annotate(b.block(), Mine())
    assert "says why not" in error.value.hint


def test_supports_wants_names_of_operations() -> None:
    for names in ((), ("relu",)):
        with pytest.raises(PartitionError, match="names no operation"):
            supports(*names, backend="mine")


@pytest.mark.parametrize(
    "effect, reason",
    [
        ("mutates", "writes to its argument"),
        ("random", "draws random numbers"),
        ("acts", "acts on more than its results"),
        ("control", "has blocks of its own"),
    ],
)
def test_effects_are_refused_before_any_backend_is_asked(effect: Effect, reason: str) -> None:
    b = Build()
    y = b("aten.op", b.input(2), effect=effect)
    block = b.block(y)

    class Never(Mine):
        patterns = (Row("op", is_op("aten.op")),)

        def supports(self, node: Node) -> bool | str:
            raise AssertionError("asked")

    assert list(annotate(block, Never()).values()) == [reason]
    assert group(block, [Never()]) == [] and reason in block.nodes[0].reason


def test_in_place_operations_and_views_refused_with_a_reason() -> None:
    b = Build()
    x = b.input(4)
    y = b("aten.exp", x)
    v = b("aten.view", y, (2, 2), effect="view", shape=(2, 2))
    free = b("aten.view", b("aten.neg", x), (2, 2), effect="view", shape=(2, 2))
    b("aten.add_", y, 1, effect="mutates")
    end = b("aten.add", v, free)
    found = annotate(b.block(end, mutated=[y, v]), Anything())
    shares = f"shares memory with %{v.name}, which something writes to"
    assert list(found.values()) == ["", shares, "", "", "writes to its argument", ""]


def test_a_view_that_is_returned_keeps_its_memory() -> None:
    """Of an argument, of a parameter, or of something else that is returned: the caller could tell a copy apart."""
    b = Build()
    x, w = b.input(4), b.weight(4)
    fresh, twice = b("aten.exp", x), b("aten.exp", x)
    views = [b("aten.view", base, (2, 2), effect="view", shape=(2, 2)) for base in (x, w, fresh, twice)]
    chain = b("aten.t", views[0], effect="view")
    inside = b("aten.neg", b("aten.t", x, effect="view"))
    scope = BlockDependences(b.block(*views, chain, twice, inside))
    found = {node.output: why for node, why in obstacles(scope, Anything()).items()}
    assert found[views[0]] == found[chain] == f"leaves the block and shares memory with %{x.name}"
    assert found[views[1]] == f"leaves the block and shares memory with %{w.name}"
    assert found[views[3]] == f"leaves the block and shares memory with %{twice.name}"
    assert found[views[2]] == found[inside] == ""


def test_dynamic_dimensions_and_unknown_types() -> None:
    b = Build()
    x, open_ = b.input(2), b.input(None, 4)
    ranks, dtypes = b.input(2), b.input(2)
    ranks.type, dtypes.type = TensorType("float32"), TensorType("", (2,))
    known_, dynamic = b("aten.relu", x), b("aten.relu", open_)
    ranked, typed = b("aten.relu", ranks), b("aten.relu", dtypes)
    ranked.type, typed.type = ranks.type, dtypes.type
    scope = BlockDependences(b.block(known_, dynamic, ranked, typed))
    assert list(obstacles(scope, Anything()).values()) == [
        "",
        f"%{open_.name}: float32[?x4] has an extent that is known at the run only",
        f"%{ranks.name} has an unknown rank",
        f"%{dtypes.name} has an unknown dtype",
    ]

    class Open(Anything):
        dynamic = True

    class Wide(Open):
        untyped = True

    assert [bool(why) for why in obstacles(scope, Open()).values()] == [False, False, True, True]
    assert not any(obstacles(scope, Wide()).values())


def test_devices_and_what_computes_no_tensor() -> None:
    b = Build()
    x, far = b.input(2), b.input(2, device="cuda:0")
    near, away, mixed = b("aten.relu", x), b("aten.relu", far), b("aten.add", x, far)
    b.several("aten.size", x, 0, types=[None])

    class Host(Anything):
        devices = ("cpu",)

    found = list(annotate(b.block(near, away, mixed), Host()).values())
    assert found == ["", "anything does not serve cuda:0", "its tensors are on several devices: cpu, cuda:0", "computes no tensor"]


def test_a_second_run_leaves_the_graph_unchanged() -> None:
    """What an earlier run, of this partitioner or of another, made of a model is an operation that nobody takes."""
    b = Build()
    x = b.input(2)
    region = b("tcjit.call", "{}", (x,))
    other = b("foreign.region", region)
    block = b.block(other)
    text = str(block)

    class Other(Anything):
        def supports(self, node: Node) -> bool | str:
            return node.op.startswith("aten.") or "not of aten"

    groups = group(block, [Other()])
    assert groups == [] and merge(block, groups) == [] and str(block) == text
    assert [node.reason for node in block.nodes] == ["is a region already", "not of aten"]


def test_no_match_leaves_the_graph_unchanged() -> None:
    b = Build()
    y = b("aten.relu", b.input(2))
    block = b.block(y)
    text = str(block)

    class Table(Mine):
        patterns = (Row("conv", is_op("aten.conv2d")),)

    assert group(block, [Table()]) == [] and str(block) == text
    assert block.nodes[0].reason == "mine has no rule for aten.relu"


def conv_relu() -> tuple[Build, list[Value]]:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(3, 3, 1, 1)
    conv = b("aten.conv2d", x, w)
    return b, [conv, b("aten.relu", conv)]


def test_table_order_earlier_rows_win() -> None:
    conv, relu = is_op("aten.conv2d"), is_op("aten.relu")
    for rows, wanted in (
        ((Row("pair", relu(conv)), Row("conv", conv)), ["pair"]),
        ((Row("conv", conv), Row("pair", relu(conv)), Row("relu", relu)), ["conv", "relu"]),
        ((Row("tail", optional(relu)(conv)),), ["tail"]),
    ):
        b, values = conv_relu()

        class Table(Mine):
            patterns = rows

        groups = group(b.block(values[-1]), [Table()])
        assert [each.row for each in groups] == wanted and sum(len(each.nodes) for each in groups) == 2


def test_maximal_match_takes_the_longest_tail_that_it_may() -> None:
    """Where the longest form may not be taken, because of what escapes or of a check, a shorter one is."""

    def small(found: Match) -> bool | str:
        return len(found.nodes) < 3 or "too long"

    row = Row("chain", optional(is_op("aten.neg"))(optional(is_op("aten.relu"))(is_op("aten.conv2d"))))
    for check, escaping, wanted in ((None, False, [3]), (small, False, [2, 1]), (None, True, [2, 1])):
        b, values = conv_relu()
        end = b("aten.neg", values[-1])

        class Table(Anything):
            patterns = (Row(row.name, row.pattern, check),)

        groups = group(b.block(end, *values[1:] if escaping else ()), [Table()])
        assert [len(each.nodes) for each in groups] == wanted
        assert [each.row for each in groups] == ["chain", ""][: len(wanted)]


def test_an_intermediate_that_escapes() -> None:
    """It refuses the match, or becomes an output of the region: as the row says."""
    pattern = is_op("aten.relu")(is_op("aten.conv2d"))
    b, (conv, relu) = conv_relu()
    block = b.block(relu, b("aten.neg", conv))

    class Refuses(Mine):
        patterns = (Row("pair", pattern),)

    class Keeps(Mine):
        patterns = (Row("pair", pattern, escapes="output"),)

    assert group(block, [Refuses()]) == []
    assert f"mine, pair: %{conv.name} is used outside of it as well" in block.nodes[1].reason
    (region,) = merge(block, group(block, [Keeps()]))
    assert region.rows == ("pair",) and region.outputs == (conv, relu) and block.nodes[1].reason == ""


def test_a_match_around_something_else_is_refused() -> None:
    """An escaping value that comes back as another input would need the region's result before the region."""
    b = Build()
    x = b.input(4)
    inner = b("aten.relu", x)
    end = b("aten.add", inner, b("aten.other", inner))
    block = b.block(end)

    class Keeps(Mine):
        patterns = (Row("pair", is_op("aten.add")(is_op("aten.relu"), wildcard()), escapes="output"),)

    assert group(block, [Keeps()]) == []
    assert "a way between its parts leads outside" in block.nodes[-1].reason


def test_two_matches_that_exclude_each_other() -> None:
    """Each could run as one; together each would wait for the other. The earlier row wins."""
    b = Build()
    x = b.input(4)
    a1, b1 = b("aten.a1", x), b("aten.b1", x)
    a2, b2 = b("aten.a2", a1, b1), b("aten.b2", b1, a1)
    block = b.block(a1, b1, a2, b2)

    class Keeps(Mine):
        patterns = (
            Row("a", is_op("aten.a2")(is_op("aten.a1"), wildcard()), escapes="output"),
            Row("b", is_op("aten.b2")(is_op("aten.b1"), wildcard()), escapes="output"),
        )

    assert [each.row for each in group(block, [Keeps()])] == ["a"]


def test_a_check_sees_types_and_constants() -> None:
    def narrow(found: Match) -> bool | str:
        weight = found["weight"]
        assert isinstance(weight, Value) and weight.constant and weight.type is not None and weight.type.shape is not None
        return weight.type.shape[0] <= 4 or f"{weight.type.shape[0]} rows are too many"

    class Table(Mine):
        patterns = (Row("linear", is_op("aten.linear")(wildcard(), is_const().named("weight")), narrow),)

    b = Build()
    x = b.input(2, 3)
    block = b.block(b("aten.linear", x, b.weight(4, 3)), b("aten.linear", x, b.weight(8, 3)))
    (found,) = group(block, [Table()])
    assert found.nodes == (block.nodes[0],) and found.match is not None
    assert block.nodes[1].reason == "mine, linear: 8 rows are too many; mine has no rule for aten.linear"


def test_a_check_must_say_something() -> None:
    class Table(Mine):
        patterns = (Row("relu", is_op("aten.relu"), lambda found: None),)  # type: ignore[arg-type, return-value]

    b = Build()
    with pytest.raises(PartitionError, match="the check of row relu said None"):
        group(b.block(b("aten.relu", b.input(2))), [Table()])


def test_what_effects_do_to_a_match() -> None:
    class Table(Mine):
        patterns = (Row("pair", is_op("aten.relu")(is_op("aten.rand"))),)

    b = Build()
    block = b.block(b("aten.relu", b("aten.rand", b.input(2), effect="random")))
    assert group(block, [Table()]) == [] and "mine, pair: aten.rand draws random numbers" in block.nodes[1].reason


def test_earlier_backends_win_and_nodes_can_be_given_again() -> None:
    class Relus(Mine):
        patterns = (Row("relu", is_op("aten.relu")),)
        merges = False

    b = Build()
    x = b.input(2)
    block = b.block(b("aten.neg", b("aten.relu", x)))
    groups = group(block, [Relus(), Anything()])
    assert [(each.backend, each.row, each.alone) for each in groups] == [("mine", "relu", True), ("anything", "", False)]
    again = group(block, [Anything()], among=[block.nodes[0]])
    assert [each.nodes for each in again] == [(block.nodes[0],)]


def test_the_registry() -> None:
    mine = register(Mine())
    assert find("mine") is mine and "mine" in known() and repr(mine) == "<backend mine: 0 patterns>"
    second = register(Mine())
    assert find("mine") is second and known().count("mine") == 1
    unregister("mine"), unregister("mine")
    with pytest.raises(PartitionError, match="no backend 'mine'"):
        find("mine")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"name": ""}, "is named ''"),
        ({"name": "a b"}, "is named 'a b'"),
        ({"name": "class"}, "is named 'class'"),
        ({"patterns": (is_op("aten.relu"),)}, "aten.relu is no row"),
        ({"patterns": (Row("a", is_op("a.b")), Row("a", is_op("a.c")))}, "two rows named a"),
        ({"patterns": (Row("a", is_op("a.b"), escapes="maybe"),)}, "escapes is 'maybe'"),  # type: ignore[arg-type]
    ],
)
def test_a_backend_that_is_none(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        register(type("Odd", (Mine,), fields)())


def test_a_backend_without_lowering_says_so() -> None:
    b = Build()
    block = b.block(b("aten.relu", b.input(2)))
    (region,) = merge(block, group(block, [Anything()]))
    with pytest.raises(PartitionError, match="cannot lower anything_0_relu"):
        Anything().lower(region)
    with pytest.raises(PartitionError, match="cannot run r"):
        Anything().load({"name": "r"})


def test_rows_print() -> None:
    assert str(Row("conv", is_op("aten.conv2d")(wildcard(), is_const()))) == "conv: aten.conv2d(*, const)"
