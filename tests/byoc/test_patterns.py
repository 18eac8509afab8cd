"""The pattern language: what each word matches, that the matcher tries everything, and how patterns print.

Modules: byoc.pattern_nodes
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from support.byoc.graphs import Build

from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Node, TensorType, Value
from tcjit.byoc.pattern_nodes import Given, roots
from tcjit.byoc.patterns import (
    LIMIT,
    Pattern,
    both,
    either,
    is_const,
    is_op,
    match,
    matches,
    not_,
    optional,
    tuple_of,
    wildcard,
)
from tcjit.errors import PartitionError

pytestmark = pytest.mark.text


def ops(found: Any) -> list[str]:
    assert found is not None
    return [node.op.removeprefix("aten.") for node in found.nodes]


def test_wildcard_matches_anything() -> None:
    b = Build()
    x = b.input(2)
    y = b("aten.pow", x, 2)
    b.block(y)
    found = match(wildcard(), x)
    assert found is not None and found.nodes == () and found.output is x
    found = match(is_op("aten.pow")(wildcard(), wildcard().named("exponent")), y)
    assert found is not None and found["exponent"] == 2


def test_a_wildcard_used_twice_is_the_same_value() -> None:
    b = Build()
    x, y = b.input(2), b.input(2)
    square, mixed = b("aten.mul", x, x), b("aten.mul", x, y)
    b.block(square, mixed)
    same, other = wildcard(), wildcard()
    assert match(is_op("aten.mul")(same, same), square)
    assert not match(is_op("aten.mul")(same, same), mixed)
    found = match(is_op("aten.mul")(same, other), square)
    assert found is not None and found[same] is found[other] is x


def test_operations_by_name_and_overload() -> None:
    b = Build()
    x = b.input(2)
    y = b("aten.add", x, 1, overload="Scalar")
    b.block(y)
    assert match(is_op("aten.add"), y) and match(is_op("aten.add.Scalar"), y) and match(is_op("aten.sub", "aten.add"), y)
    assert not match(is_op("aten.add.Tensor"), y) and not match(is_op("aten.add"), x) and not match(is_op("add"), y)


def test_arguments_by_position_and_by_name() -> None:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(4, 3, 3, 3)
    full = b("aten.conv2d", x, w, None, (1, 1), (0, 0), (1, 1), 1)
    short = b("aten.conv2d", x, w)
    b.block(full, short)
    conv = is_op("aten.conv2d")
    assert match(conv(x_ := wildcard(), is_const(), None, (1, 1)), full)
    assert match(conv(x_, groups=1), full) and not match(conv(x_, groups=2), full)
    assert match(conv(x_, stride=(1, wildcard())), full) and not match(conv(x_, stride=(2, 1)), full)
    assert match(conv(weight=wildcard().has_shape(4, ...)), short)
    # what is not given is None: anything, an optional one and None itself match it, an operation or a constant do not
    for missing in (wildcard(), optional(is_const()), None):
        assert match(conv(wildcard(), wildcard(), missing), short)
    for missing in (is_const(), is_op("aten.neg"), 1):
        assert not match(conv(wildcard(), wildcard(), missing), short)
    assert match(conv(wildcard(), wildcard(), groups=None), short)


@pytest.mark.parametrize("op", ["aten.add", "aten.mul", "aten.maximum", "aten.bitwise_and"])
def test_commuted_forms(op: str) -> None:
    b = Build()
    x, y = b.input(2), b.weight(2)
    r = b("aten.relu", x)
    one, other = b(op, r, y), b(op, y, r)
    b.block(one, other)
    for pattern in (is_op(op)(is_op("aten.relu"), is_const()), is_op(op)(is_const(), is_op("aten.relu")), is_op(op)(is_op("aten.relu"))):
        assert ops(match(pattern, one)) == ["relu", op[5:]] and ops(match(pattern, other)) == ["relu", op[5:]]


def test_what_does_not_commute() -> None:
    b = Build()
    x, y = b.input(2), b.weight(2)
    r = b("aten.relu", x)
    minus, scaled, plain = b("aten.sub", y, r), b("aten.add", y, r, 2), b("aten.add", y, r, 1)
    b.block(minus, scaled, plain)
    assert not match(is_op("aten.sub")(is_op("aten.relu"), is_const()), minus)
    assert not match(is_op("aten.add")(is_op("aten.relu"), is_const()), scaled)  # y + 2 relu(x) is not relu(x) + 2 y
    assert match(is_op("aten.add")(is_op("aten.relu"), is_const(), 1), plain)
    # arguments given by name stay where they are
    assert not match(is_op("aten.add")(self=is_op("aten.relu")), plain) and match(is_op("aten.add")(other=is_op("aten.relu")), plain)


def test_a_commuted_form_is_tried_below_as_well() -> None:
    """The outer sum must be turned for the inner to fit, and the shared wildcard decides which way that is."""
    b = Build()
    p, q = b.input(2), b.input(2)
    value = b("aten.add", b("aten.mul", q, p), b("aten.mul", p, b("aten.exp", q)))
    b.block(value)
    x, y = wildcard(), wildcard()
    found = match(is_op("aten.add")(is_op("aten.mul")(is_op("aten.exp")(x), y), is_op("aten.mul")(x, y)), value)
    assert found is not None and found[x] is q and found[y] is p


def test_constants_and_literals() -> None:
    b = Build()
    x, w = b.input(2), b.weight(2)
    scaled, shifted = b("aten.mul", x, w), b("aten.add", x, 1.0)
    flagged = b("aten.sum", x, (0, 1), True)
    b.block(scaled, shifted, flagged)
    assert match(is_op("aten.mul")(wildcard(), is_const()), scaled) and match(is_op("aten.add")(wildcard(), is_const()), shifted)
    assert match(is_op("aten.add")(wildcard(), is_const(1)), shifted) and not match(is_op("aten.add")(wildcard(), 2), shifted)
    assert match(is_op("aten.sum")(wildcard(), (0, 1), True), flagged) and match(is_op("aten.sum")(wildcard(), is_const()), flagged)
    assert not match(is_op("aten.sum")(wildcard(), (0, 1), 1), flagged)  # 1 is no flag
    assert not match(is_const(), x)
    with pytest.raises(PartitionError, match="one value, not 2"):
        is_const(1, 2)


def test_either_both_not() -> None:
    b = Build()
    x = b.input(2)
    r, s = b("aten.relu", x), b("aten.sigmoid", x)
    b.block(r, s)
    act = either(is_op("aten.relu"), is_op("aten.tanh"))
    assert match(act, r) and not match(act, s)
    assert match(is_op("aten.relu") | is_op("aten.sigmoid"), s)
    assert match(both(is_op("aten.relu"), wildcard().has_shape(2)), r) and not match(is_op("aten.relu") & wildcard().has_shape(3), r)
    assert match(not_(act), s) and not match(~act, r)
    assert match(is_op("aten.relu")(not_(is_op("aten.relu"))), r)


def test_alternatives_backtrack_over_what_follows() -> None:
    """The first alternative fits the first argument, but then nothing fits the second."""
    b = Build()
    x, y = b.input(2), b.input(2)
    value = b("aten.sub", b("aten.neg", b("aten.neg", x)), b("aten.exp", b("aten.neg", x)))
    b.block(value)
    inner = wildcard()
    deep = either(is_op("aten.neg")(inner), is_op("aten.neg")(is_op("aten.neg")(y_ := wildcard())))
    assert not match(is_op("aten.sub")(is_op("aten.neg")(inner), is_op("aten.exp")(is_op("aten.neg")(inner))), value)
    found = match(is_op("aten.sub")(deep, is_op("aten.exp")(is_op("aten.neg")(y_))), value)
    assert found is not None and found[y_] is x and found[inner] is None
    assert y is not x


def test_optional_tail_longest_first() -> None:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(4, 3, 3, 3)
    conv = b("aten.conv2d", x, w)
    relu = b("aten.relu", conv)
    b.block(relu)
    base = is_op("aten.conv2d")(wildcard(), is_const())
    for pattern in (optional(is_op("aten.relu"))(base), base.optional(is_op("aten.relu")), base.optional(lambda c: is_op("aten.relu")(c))):
        assert ops(match(pattern, relu)) == ["conv2d", "relu"]
        assert ops(match(pattern, conv)) == ["conv2d"]


def test_the_match_is_maximal_even_where_the_first_way_is_not() -> None:
    b = Build()
    x, y = b.input(2), b.input(2)
    value = b("aten.add", x, b("aten.relu", y))
    b.block(value)
    pattern = is_op("aten.add")(optional(is_op("aten.relu"))(wildcard()), wildcard())
    assert [ops(each) for each in matches(pattern, value)] == [["relu", "add"], ["add"], ["add"]]
    assert ops(match(either(is_op("aten.add"), is_op("aten.add")(wildcard(), is_op("aten.relu"))), value)) == ["relu", "add"]


def test_optional_argument() -> None:
    b = Build()
    x, w, c = b.input(2, 3), b.weight(4, 3), b.weight(4)
    with_bias, none, without = b("aten.linear", x, w, c), b("aten.linear", x, w, None), b("aten.linear", x, w)
    computed = b("aten.linear", x, w, x)
    b.block(with_bias, none, without, computed)
    pattern = is_op("aten.linear")(wildcard(), is_const(), optional(is_const().named("bias")))
    found = [match(pattern, value) for value in (with_bias, none, without)]
    assert [each and each["bias"] for each in found] == [c, None, None]
    assert not match(pattern, computed)
    with pytest.raises(PartitionError, match="takes no arguments"):
        optional(is_const())(wildcard())


def test_attributes() -> None:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(4, 3, 3, 3)
    conv = b("aten.conv2d", x, w, None, (1, 1), (0, 0), (1, 1), 1)
    b.block(conv)
    assert match(is_op("aten.conv2d").has_attr(groups=1, stride=(1, 1)), conv) and match(wildcard().has_attr(groups=either(1, 2)), conv)
    assert not match(is_op("aten.conv2d").has_attr(groups=3), conv) and not match(wildcard().has_attr(groups=1), x)


def test_types() -> None:
    b = Build()
    x, half, open_ = b.input(2, 3), b.input(2, 3, dtype="float16"), b.input(None, 3)
    bare = Value("bare")
    b.block(x)
    assert match(wildcard().has_dtype("float32"), x) and not match(wildcard().has_dtype("float32"), half)
    assert match(wildcard().has_dtype("float32", "float16"), half) and not match(wildcard().has_dtype("float32"), bare)
    assert match(wildcard().has_shape(2, None), x) and match(wildcard().has_shape(..., 3), x) and match(wildcard().has_shape(...), x)
    assert not match(wildcard().has_shape(2), x) and not match(wildcard().has_shape(2, 3, 4, ...), x)
    assert not match(wildcard().has_shape(2, 3), open_) and match(wildcard().has_shape(None, 3), open_)
    with pytest.raises(PartitionError, match="one ..."):
        wildcard().has_shape(..., 2, ...)


def test_same_shape_as_a_pattern_that_comes_later() -> None:
    b = Build()
    x, y, row, open_ = b.input(2, 3), b.input(2, 3), b.input(3), b.input(None, 3)
    good, bad = b("aten.sub", x, y), b("aten.sub", row, x)
    unknown = b("aten.sub", open_, open_)
    b.block(good, bad, unknown)
    right = wildcard()
    for pattern in (is_op("aten.sub")(wildcard().same_shape_as(right), right), is_op("aten.sub")(right, wildcard().same_shape_as(right))):
        assert match(pattern, good) and not match(pattern, bad) and not match(pattern, unknown)
    assert not match(wildcard().same_shape_as(wildcard()), x)  # a pattern that stands for nothing has no shape
    assert match(is_op("aten.sub")(right, not_(wildcard().same_shape_as(right))), bad)


def test_named_captures() -> None:
    b = Build()
    x, w = b.input(2, 3), b.weight(4, 3)
    value = b("aten.linear", x, w)
    b.block(value)
    found = match(is_op("aten.linear")(wildcard().named("x"), is_const().named("weight")).named("whole"), value)
    assert found is not None and dict(found.bindings) == {"x": x, "weight": w, "whole": value} and found["nothing"] is None
    assert found.inputs == (x, w) and found.output is value
    assert not match(is_op("aten.linear")(wildcard().named("x"), wildcard().named("x")), value)  # one name, one thing


def test_diamond_against_non_diamond() -> None:
    b = Build()
    x, w = b.input(2), b.weight(2)
    one, other = b("aten.conv2d", x, w), b("aten.conv2d", x, w)
    diamond = b("aten.add", b("aten.relu", one), b("aten.tanh", one))
    two = b("aten.add", b("aten.relu", one), b("aten.tanh", other))
    b.block(diamond, two)
    conv = is_op("aten.conv2d")(wildcard(), is_const())
    shared = is_op("aten.add")(is_op("aten.relu")(conv), is_op("aten.tanh")(conv))
    assert ops(match(shared, diamond)) == ["conv2d", "relu", "tanh", "add"] and not match(shared, two)
    apart = is_op("aten.add")(is_op("aten.relu")(is_op("aten.conv2d")), is_op("aten.tanh")(is_op("aten.conv2d")))
    assert ops(match(apart, two)) == ["conv2d", "conv2d", "relu", "tanh", "add"]
    assert ops(match(apart, diamond)) == ["conv2d", "relu", "tanh", "add"]  # two patterns may mean one value


def test_tuples_as_arguments() -> None:
    b = Build()
    x, y = b.input(2), b.input(2)
    joined = b("aten.cat", (b("aten.relu", x), y), 1)
    (packed,) = b.several("prim.ListConstruct", x, y, types=[None])
    late = b("aten.cat", packed, 0)
    b.block(joined, late)
    assert ops(match(is_op("aten.cat")(tuple_of(is_op("aten.relu"), wildcard()), 1), joined)) == ["relu", "cat"]
    assert match(is_op("aten.cat")([wildcard(), wildcard()]), joined) and not match(is_op("aten.cat")(tuple_of(wildcard())), joined)
    found = match(is_op("aten.cat")(tuple_of(w := wildcard(), wildcard())), late)
    assert found is not None and [node.op for node in found.nodes] == ["prim.ListConstruct", "aten.cat"] and found[w] is x


def test_tuple_outputs_by_index() -> None:
    b = Build()
    x = b.input(2, 3)
    kind = TensorType("float32", (2,))
    best, where = b.several("aten.max", x, 1, types=[kind, TensorType("int64", (2,))])
    (whole,) = b.several("aten.split", x, 1, types=[None])
    taken, spread = b("operator.getitem", whole, 1), b.several("prim.TupleUnpack", whole, types=[kind, kind])
    b.block(best, where, taken, *spread)
    assert match(is_op("aten.max"), best) and not match(is_op("aten.max"), where)
    assert match(is_op("aten.max").output(1), where) and not match(is_op("aten.max").output(1), best)
    assert ops(match(is_op("aten.split").output(1), taken)) == ["split", "operator.getitem"]
    assert not match(is_op("aten.split").output(0), taken)
    assert match(is_op("aten.split").output(1), spread[1]) and not match(is_op("aten.split").output(1), spread[0])


def test_both_results_of_one_operation() -> None:
    b = Build()
    x, y = b.input(2, 3), b.input(2, 3)
    kind = TensorType("float32", (2,))
    one, other = b.several("aten.var_mean", x, types=[kind, kind]), b.several("aten.var_mean", y, types=[kind, kind])
    good, bad = b("aten.sub", *one), b("aten.sub", one[0], other[1])
    b.block(good, bad)
    stats = is_op("aten.var_mean")(wildcard())
    pattern = is_op("aten.sub")(stats.output(0), stats.output(1))
    assert ops(match(pattern, good)) == ["var_mean", "sub"] and not match(pattern, bad)


def test_used_by() -> None:
    b = Build()
    x = b.input(2)
    both_, only, none = b("aten.exp", x), b("aten.exp", x), b("aten.exp", x)
    r, n = b("aten.relu", both_), b("aten.neg", both_)
    once = b("aten.relu", only)
    scope = BlockDependences(b.block(r, n, once, none))
    relu = is_op("aten.relu")
    assert match(is_op("aten.exp").used_by(relu), both_, scope) and match(is_op("aten.exp").used_by(is_op("aten.neg")), both_, scope)
    assert not match(is_op("aten.exp").only_used_by(relu), both_, scope) and match(is_op("aten.exp").only_used_by(relu), only, scope)
    assert match(is_op("aten.exp").only_used_by(relu | is_op("aten.neg")), both_, scope)
    assert not match(is_op("aten.exp").only_used_by(relu), none, scope) and not match(is_op("aten.exp").used_by(relu), none, scope)
    found = match(is_op("aten.exp").used_by(relu.named("user")), both_, scope)
    assert found is not None and ops(found) == ["exp"] and found["user"] is r
    assert x.users and match(wildcard().used_by(is_op("aten.exp")), x, scope)


def test_a_returned_value_is_not_only_used_here() -> None:
    b = Build()
    y = b("aten.exp", b.input(2))
    scope = BlockDependences(b.block(b("aten.relu", y), y))
    assert not match(is_op("aten.exp").only_used_by(is_op("aten.relu")), y, scope)


def test_dominates() -> None:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(3, 3, 1, 1)
    conv = b("aten.conv2d", x, w)
    left, right = b("aten.relu", conv), b("aten.neg", b("aten.exp", conv))
    end = b("aten.add", left, right)
    b.block(end)
    wise = is_op("aten.relu", "aten.neg", "aten.exp", "aten.mul")
    pattern = is_op("aten.add").dominates(is_op("aten.conv2d"), wise)
    assert ops(match(pattern, end)) == ["conv2d", "relu", "exp", "neg", "add"]
    assert not match(is_op("aten.add").dominates(is_op("aten.conv2d"), is_op("aten.relu", "aten.neg")), end)  # exp is in the way
    assert match(is_op("aten.add").dominates(is_op("aten.conv2d")), end)
    assert not match(is_op("aten.add").dominates(is_op("aten.mm")), end)


@pytest.mark.parametrize("how", ["returned", "used elsewhere", "used later"])
def test_dominates_not_where_a_way_leads_elsewhere(how: str) -> None:
    b = Build()
    x, w = b.input(1, 3, 8, 8), b.weight(3, 3, 1, 1)
    conv = b("aten.conv2d", x, w)
    middle = b("aten.relu", conv)
    if how == "used elsewhere":
        b("aten.relu", middle)
    end = b("aten.add", middle, b("aten.neg", conv))
    if how == "used later":
        b("aten.relu", conv)
    block = b.block(end, *([middle] if how == "returned" else []))
    assert not match(is_op("aten.add").dominates(is_op("aten.conv2d"), wildcard()), end, BlockDependences(block))


def test_side_inputs_do_not_disturb_dominance() -> None:
    b = Build()
    x, w, bias = b.input(1, 3, 8, 8), b.weight(3, 3, 1, 1), b.input(3, 1, 1)
    end = b("aten.add", b("aten.mul", b("aten.conv2d", x, w), bias), bias)
    b.block(end)
    found = match(is_op("aten.add").dominates(is_op("aten.conv2d").named("conv"), is_op("aten.mul")), end)
    assert ops(found) == ["conv2d", "mul", "add"] and found is not None and found.inputs == (x, w, bias)


def test_a_match_stays_in_its_block() -> None:
    b = Build()
    outer = b("aten.exp", b.input(2))
    inner = Build()
    result = inner("aten.relu", outer)
    scope = BlockDependences(inner.block(result))
    b.several("prim.If", types=[outer.type], effect="control", blocks=(scope.block,))
    b.block(outer)
    assert match(is_op("aten.relu"), result, scope)
    assert not match(is_op("aten.relu")(is_op("aten.exp")), result, scope)


def test_many_ways_are_cut_short() -> None:
    """A pattern with 2^12 ways to fit: the matcher looks at some of them and comes back. A long chain of sums has few."""
    b = Build()
    value = b.input(2)
    for _ in range(13):
        value = b("aten.add", value, b.input(2))
    b.block(value)
    pattern: Pattern = wildcard()
    for _ in range(13):
        pattern = is_op("aten.add")(pattern, wildcard())
    # only the innermost two terms can change places: the others stand beside a sum
    assert [len(each.nodes) for each in matches(pattern, value)] == [13, 13]
    wide: Given = tuple_of(*[either(wildcard(), wildcard()) for _ in range(12)])
    call = b("aten.stack", (value,) * 12)
    b.block(call)
    assert len(matches(is_op("aten.stack")(wide), call)) == LIMIT


# one of each, as text
TEXTS: list[tuple[Pattern, str]] = [
    (wildcard(), "*"),
    (is_const(), "const"),
    (is_const(1.5), "1.5"),
    (is_op("aten.relu", "aten.neg"), "aten.relu|aten.neg"),
    (is_op("aten.conv2d")(wildcard(), is_const(), stride=(1, 1)), "aten.conv2d(*, const, stride=(1, 1))"),
    (either(is_op("a.b"), is_const()), "(a.b | const)"),
    (both(is_op("a.b"), is_const()), "(a.b & const)"),
    (not_(is_op("a.b")), "~a.b"),
    (optional(is_op("aten.relu"))(is_op("aten.mm")), "optional(aten.relu(aten.mm))"),
    (wildcard().named("x"), "* as x"),
    (is_op("a.b").output(1), "a.b[1]"),
    (is_op("a.b").has_attr(dim=1), "a.b.has_attr(dim=1)"),
    (wildcard().has_dtype("int8", "uint8"), "*.has_dtype(int8, uint8)"),
    (wildcard().has_shape(None, 3, ...), "*.has_shape(?, 3, ...)"),
    (wildcard().same_shape_as(wildcard()), "*.same_shape_as(*)"),
    (wildcard().used_by(is_op("a.b")), "*.used_by(a.b)"),
    (wildcard().only_used_by(is_op("a.b")), "*.only_used_by(a.b)"),
    (is_op("a.b").dominates(is_op("c.d")), "a.b.dominates(c.d, path=*)"),
    (tuple_of(wildcard()), "(*,)"),
]


@pytest.mark.parametrize("pattern, text", TEXTS, ids=[text for _, text in TEXTS])
def test_every_pattern_prints(pattern: Pattern, text: str) -> None:
    assert str(pattern) == repr(pattern) == text


def test_what_is_shared_prints_once() -> None:
    conv = is_op("aten.conv2d")(wildcard(), is_const())
    text = str(is_op("aten.add")(is_op("aten.relu")(conv), is_op("aten.tanh")(conv)))
    assert text == "aten.add(aten.relu(aten.conv2d(*, const)#1), aten.tanh(#1))"


def test_the_operations_that_a_match_ends_with() -> None:
    conv = is_op("aten.conv2d")
    assert roots(optional(is_op("aten.relu"))(conv)) == {"aten.relu", "aten.conv2d"}
    assert roots(either(conv, is_op("aten.mm")(wildcard())).named("x").has_dtype("int8")) == {"aten.conv2d", "aten.mm"}
    assert roots(conv & wildcard()) == roots(conv.dominates(wildcard())) == roots(optional(conv)) == {"aten.conv2d"}
    assert roots(wildcard()) is roots(conv | wildcard()) is roots(not_(conv)) is roots(conv.output(1)) is None


# Random patterns against random expressions, with an enumeration of all rigid forms as the judge. A description of a pattern is
# ("any", k), ("op", name, parts), ("either", parts) or ("tail", name, part).
Form = tuple[Any, ...]


def described(draw: random.Random, depth: int) -> Form:
    kind = draw.choice(["any", "op", "op", "op", "either", "tail"]) if depth else "any"
    if kind == "any":
        return ("any", draw.randrange(3))
    if kind == "op":
        op = draw.choice(["aten.add", "aten.sub", "aten.relu"])
        return ("op", op, tuple(described(draw, depth - 1) for _ in range(1 if op == "aten.relu" else 2)))
    if kind == "either":
        return ("either", (described(draw, depth - 1), described(draw, depth - 1)))
    return ("tail", "aten.relu", described(draw, depth - 1))


def as_pattern(form: Form, shared: list[Pattern]) -> Pattern:
    match form:
        case ("any", k):
            return shared[k]
        case ("op", op, parts):
            return is_op(op)(*(as_pattern(part, shared) for part in parts))
        case ("either", parts):
            return either(*(as_pattern(part, shared) for part in parts))
    return optional(is_op(form[1]))(as_pattern(form[2], shared))


def rigid(form: Form) -> list[Form]:
    """Every form without alternatives and orders."""
    match form:
        case ("any", _):
            return [form]
        case ("op", op, parts):
            found = [("op", op, each) for each in product(*map(rigid, parts))]
            return found + [("op", op, each[::-1]) for _, _, each in found] if op == "aten.add" else found
        case ("either", parts):
            return [each for part in parts for each in rigid(part)]
    return [("op", form[1], (each,)) for each in rigid(form[2])] + rigid(form[2])


def fits(form: Form, value: Any, bound: dict[int, Value]) -> set[Node] | None:
    if form[0] == "any":
        return set() if bound.setdefault(form[1], value) is value else None
    node = value.producer
    if node is None or node.op != form[1]:
        return None
    nodes = {node}
    for part, argument in zip(form[2], node.inputs):
        below = fits(part, argument, bound)
        if below is None:
            return None
        nodes |= below
    return nodes


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_missed(seed: int) -> None:
    """All matches of random patterns, and only those, as an enumeration of their forms finds them."""
    draw = random.Random(seed)
    hits = 0
    for _ in range(40):
        b = Build()
        values = [b.input(2), b.input(2)]
        for _ in range(8):
            op = draw.choice(["aten.add", "aten.add", "aten.sub", "aten.relu"])
            values.append(b(op, *(draw.choice(values[-5:]) for _ in range(1 if op == "aten.relu" else 2))))
        b.block(values[-1])
        form = described(draw, 3)
        forms = rigid(form)
        if len(forms) > 200:
            continue
        pattern = as_pattern(form, [wildcard() for _ in range(3)])
        for value in values:
            wanted = {frozenset(nodes) for each in forms if (nodes := fits(each, value, {})) is not None}
            found = matches(pattern, value)
            assert {frozenset(each.nodes) for each in found} == wanted, f"{pattern} at {value}"
            assert [len(each.nodes) for each in found] == sorted((len(each.nodes) for each in found), reverse=True)
            hits += bool(wanted) and form[0] != "any"
    assert hits > 20
