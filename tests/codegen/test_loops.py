"""Loops between isl's AST and text: what is made of bounds and conditions never changes which instances run, nor in which order.

Modules: codegen.build codegen.inequalities codegen.integers codegen.isolate codegen.unroll
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tcjit.codegen import integers
from tcjit.codegen.build import indicator
from tcjit.codegen.inequalities import comparison, facts, split
from tcjit.codegen.isolate import separate
from tcjit.codegen.loops import BooleanOp, Compare, Condition, For, If, MarkNode, Node, Run, substitute
from tcjit.codegen.unroll import constant_trips
from tcjit.grammar.linear import Linear, Opaque, combine, simplified
from tcjit.mapping.marks import GridBlock, Sync, Threads, Unroll

C0, C1, C2 = (Linear.of(f"c{number}") for number in range(3))
RANGES = {"c0": (0, 7), "c1": (-3, 12), "c2": (5, 5)}
Instance = tuple[str, tuple[int, ...]]


def value(expression: Linear, point: Mapping[str, int]) -> int:
    result = expression.substitute({name: Linear.of(number) for name, number in point.items()})
    assert result.is_constant
    return result.constant


def holds(condition: Condition, point: Mapping[str, int]) -> bool:
    if isinstance(condition, BooleanOp):
        left, right = holds(condition.left, point), holds(condition.right, point)
        return (left and right) if condition.op == "&&" else (left or right)
    left_value, right_value = value(condition.left, point), value(condition.right, point)
    compared: dict[str, bool] = {
        "<=": left_value <= right_value, "<": left_value < right_value, ">=": left_value >= right_value,
        ">": left_value > right_value, "==": left_value == right_value, "!=": left_value != right_value,
    }  # fmt: skip
    return compared[condition.op]


def instances(nodes: tuple[Node, ...], point: dict[str, int]) -> Iterator[Instance]:
    """What the nodes run, in order; threads one after the other, each from the least."""
    for node in nodes:
        if isinstance(node, Run):
            yield node.statement, tuple(value(index, point) for _, index in node.indices)
        elif isinstance(node, If):
            yield from instances(node.then if holds(node.condition, point) else node.other, point)
        elif isinstance(node, MarkNode):
            yield from instances(node.body, point)
        else:
            for number in range(value(node.lower, point), value(node.upper, point) + 1, node.step):
                yield from instances(node.body, {**point, node.variable: number})


def expression(draw: random.Random, variables: list[Linear], depth: int = 2) -> Linear:
    if depth == 0:
        return draw.choice([*variables, Linear.of(draw.randint(-9, 20))])
    a, b = expression(draw, variables, depth - 1), expression(draw, variables, depth - 1)
    divisor = Linear.of(draw.randint(1, 7))
    return draw.choice(
        [
            a + b,
            a - b,
            a.times(draw.randint(-4, 5)),
            combine("floor", (a, divisor)),
            combine("mod", (a, divisor)),
            combine("min", (a, b)),
            combine("max", (a, b)),
        ]
    )


def points() -> Iterator[dict[str, int]]:
    for c0 in (0, 1, 2, 5, 7):
        for c1 in (-3, -1, 0, 4, 12):
            yield {"c0": c0, "c1": c1, "c2": 5}


# ---------------------------------------------------------------- integers


def test_text_means_what_the_expression_means() -> None:
    draw = random.Random(2)
    names: dict[str, Any] = {}
    for ending in ("", "_int"):
        names |= {f"tc_fdiv{ending}": lambda a, b: a // b, f"tc_mod{ending}": lambda a, b: a % b}
        names |= {f"tc_min_index{ending}": min, f"tc_max_index{ending}": max}
    for _ in range(150):
        given = simplified(expression(draw, [C0, C1, C2], 3), RANGES)
        text = integers.text(given, RANGES, str).replace("(int64_t)", "")
        # plain operators stand only where C and Python agree
        assert all(eval(text.replace("/", "//"), names, point) == value(given, point) for point in points()), text


def test_plain_operators_only_where_nothing_is_negative() -> None:
    assert integers.text(combine("floor", (C0 + 3, Linear.of(4))), RANGES, str) == "((c0 + 3) / 4)"
    assert integers.text(combine("floor", (C1, Linear.of(4))), RANGES, str) == "tc_fdiv_int(c1, 4)"
    assert integers.text(combine("mod", (C0, Linear.of(3))).times(5) + 1, RANGES, str) == "5 * (c0 % 3) + 1"


def test_what_does_not_fit_is_computed_in_64_bits() -> None:
    big = 1 << 29
    assert integers.text(C0.times(big // 4), RANGES, str) == f"{big // 4} * c0"
    assert integers.text(C0.times(big), RANGES, str) == f"{big} * (int64_t)c0"
    assert integers.text(C0.times(big) - C0.times(big - 1).times(1) + Linear.of("other"), RANGES, str) == "(int64_t)c0 + (int64_t)other"
    # each step counts, not only the result
    assert "(int64_t)" in integers.text(C0.times(big) - C1.times(big), RANGES, str)
    assert integers.text(combine("min", (C0.times(big), C1)), RANGES, str) == f"tc_min_index({big} * (int64_t)c0, (int64_t)c1)"


# ---------------------------------------------------------------- conditions


def test_an_indicator_is_one_where_the_condition_holds() -> None:
    draw = random.Random(4)
    for _ in range(200):
        parts = [Compare(expression(draw, [C0, C1, C2]), draw.choice(["<=", "<", ">=", ">", "==", "!="]), expression(draw, [C0, C1, C2]))
                 for _ in range(2)]  # fmt: skip
        given = draw.choice([parts[0], BooleanOp(parts[0], "&&", parts[1]), BooleanOp(parts[0], "||", parts[1])])
        made = indicator(given)
        for point in points():
            assert value(made, point) == int(holds(given, point)), given


def test_facts_hold_where_the_condition_does() -> None:
    draw = random.Random(3)
    plain = 0
    for _ in range(200):
        given = Compare(expression(draw, [C0, C1, C2]), draw.choice(["<=", "<", ">=", ">"]), expression(draw, [C0, C1, C2]))
        found = facts(given)
        assert found is not None
        plain += not any(isinstance(atom, Opaque) for fact in found for atom, _ in fact.terms)
        for point in points():
            assert holds(given, point) == all(value(fact, point) >= 0 for fact in found), given
            assert all(holds(comparison(fact), point) == (value(fact, point) >= 0) for fact in found)
    assert plain > 40


def test_only_conjunctions_of_inequalities_are_facts() -> None:
    at_most = Compare(C0, "<=", Linear.of(4))
    assert facts(Compare(C0, "==", C1)) is None and facts(BooleanOp(at_most, "||", at_most)) is None
    assert facts(BooleanOp(at_most, "&&", at_most)) == [Linear.of(4) - C0] * 2


def test_facts_are_written_with_positive_numbers() -> None:
    written = [comparison(fact).written(lambda e: e.text) for fact in split(C0.times(-4) - C1.times(8) + 31)]
    assert written == ["c0 + 2 * c1 <= 7"]
    assert comparison(C0 - C1 + 3).written(lambda e: e.text) == "c1 <= c0 + 3"
    assert comparison(C0 - 3).written(lambda e: e.text) == "c0 >= 3"


# ---------------------------------------------------------------- constant trips


def always(_: Run) -> bool:
    return True


def run_of(*indices: Linear) -> Run:
    return Run("S", tuple((f"d{number}", index) for number, index in enumerate(indices)))


def test_constant_trips_run_the_same_instances() -> None:
    draw = random.Random(4)
    made = 0
    for _ in range(200):
        lower = draw.choice([Linear.of(draw.randint(-3, 3)), C0.times(4), expression(draw, [C0, C1])])
        upper = draw.choice(
            [lower + draw.randint(-1, 6), combine("min", (lower + 3, expression(draw, [C0, C1]))), expression(draw, [C0, C1])]
        )
        loop = For("c3", lower, upper, draw.choice([1, 1, 1, 2, 3]), (run_of(C0, Linear.of("c3")),))
        found = constant_trips(loop, RANGES)
        if found is None or (found[0].trips or 0) > 200:
            continue
        made += 1
        constant, guards = found
        assert constant.lower.is_constant and constant.upper.is_constant
        body: tuple[Node, ...] = constant.body
        for guard in guards:
            body = (If(guard, body),)
        guarded = For(constant.variable, constant.lower, constant.upper, constant.step, body)
        for point in points():
            assert list(instances((loop,), point)) == list(instances((guarded,), point)), loop
    assert made > 100


def test_bounds_that_cannot_be_reached_are_no_conditions() -> None:
    loop = For("c3", Linear.of(0), combine("min", (Linear.of(3), C0.times(-4) + 40)), 1, (run_of(Linear.of("c3")),))
    found = constant_trips(loop, RANGES)
    assert found == (For("c3", Linear.of(0), Linear.of(3), 1, loop.body), ())
    assert constant_trips(For("c3", Linear.of(0), Linear.of("unknown"), 1, ()), RANGES) is None


# ---------------------------------------------------------------- full and partial tiles


def test_separation_runs_the_same_instances() -> None:
    draw = random.Random(5)
    separated = 0
    for _ in range(25):
        size = draw.choice([4, 8])
        extent, other = draw.randint(9, 60), draw.randint(5, 60)
        inner = Linear.of("c4")
        guard = Compare(inner + C0.times(draw.randint(0, 2)), draw.choice(["<=", "<"]), Linear.of(draw.randint(2, 12)))
        leaf: tuple[Node, ...] = (run_of(C0, Linear.of("c3"), inner),)
        if draw.random() < 0.5:
            leaf = (If(guard, leaf),)
        loop = For("c4", Linear.of(0), combine("min", (Linear.of(3), C1.times(-4) + other)), 1, leaf)
        first = combine("max", (Linear.of(0), C0.times(-size) + draw.randint(-9, 3)))
        last = combine("min", (Linear.of(size - 1), C0.times(-size) + extent))
        digit = For("c3", first, last, 1, (MarkNode(Unroll(), (loop,)),))
        region = MarkNode(Threads((size,)), (digit,))
        steps = For("c2", Linear.of(0), Linear.of(2), 1, (MarkNode(Sync("block"), (region,)), substitute(region, {"c1": Linear.of("c2")})))
        nodes: tuple[Node, ...] = (region, steps)
        made = separate(nodes, frozenset(("c0", "c1")), {"c0": (0, 7), "c1": (-3, 12)}, always)
        separated += made != nodes
        for point in points():
            assert list(instances(made, point)) == list(instances(nodes, point)), nodes
    assert separated > 12


def test_what_no_block_decides_stays_as_it_is() -> None:
    loop = For("c1", Linear.of(0), combine("min", (Linear.of(3), Linear.of("c3").times(-1) + 5)), 1, (run_of(Linear.of("c1")),))
    nodes = (MarkNode(Threads((8,)), (For("c3", Linear.of(0), Linear.of(7), 1, (MarkNode(Unroll(), (loop,)),)),)),)
    assert separate(nodes, frozenset(("c0",)), RANGES, always) == nodes


def test_a_copy_is_made_at_the_level_that_decides() -> None:
    region = MarkNode(Threads((8,)), (For("c3", Linear.of(0), C2.times(-8) + 40, 1, (run_of(Linear.of("c3")),)),))
    (block,) = separate((MarkNode(GridBlock(0), (For("c2", Linear.of(0), Linear.of(5), 1, (region,)),)),), frozenset(), {}, always)
    assert isinstance(block, MarkNode) and isinstance(block.body[0], For)
    (inside,) = block.body[0].body
    full = MarkNode(Threads((8,)), (For("c3", Linear.of(0), Linear.of(7), 1, (run_of(Linear.of("c3")),)),))
    assert inside == If(Compare(C2, "<=", Linear.of(4)), (full,), (region,))


@pytest.mark.parametrize("upper", [Linear.of(50), C2.times(-8) - 9])
def test_no_copy_where_it_would_always_or_never_run(upper: Linear) -> None:
    region = MarkNode(Threads((8,)), (For("c3", Linear.of(0), upper, 1, (run_of(Linear.of("c3")),)),))
    assert separate((region,), frozenset(("c2",)), {"c2": (0, 5)}, always) == (region,)


def test_no_copy_of_what_is_not_worth_it() -> None:
    region = MarkNode(Threads((8,)), (For("c3", Linear.of(0), C2.times(-8) + 40, 1, (run_of(Linear.of("c3")),)),))
    nodes = (MarkNode(GridBlock(0), (For("c2", Linear.of(0), Linear.of(5), 1, (region,)),)),)
    assert separate(nodes, frozenset(), {}, lambda _: False) == nodes != separate(nodes, frozenset(), {}, always)
