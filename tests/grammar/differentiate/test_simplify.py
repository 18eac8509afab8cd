"""Constructors: what they fold, what they leave, and that a value under a condition stays under it.

Modules: grammar.differentiate.simplify
"""
from __future__ import annotations

import pytest

from tcjit.grammar.ast import Binary, Expr
from tcjit.grammar.differentiate.simplify import add, assume, conjuncts, divide, multiply, negate, select, subtract
from tcjit.grammar.front import read
from tcjit.grammar.printer import show


def typed(text: str) -> Expr:
    """An expression of float32 over scalars ``a b c`` and an integer ``i``."""
    definition, = read(f"def f(float a, float b, float c, float(N) X) -> (Y) {{ Y(i) = {text} where i in 0:N }}")
    return definition.statements[0].value


def built(text: str) -> str:
    """The expression with its operations made anew by the constructors."""
    makers = {"+": add, "-": subtract, "*": multiply, "/": divide}

    def make(expr: Expr) -> Expr:
        if isinstance(expr, Binary) and expr.op in makers:
            return makers[expr.op](make(expr.left), make(expr.right))
        return expr

    return show(make(typed(text)))


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("a * 0.0 + b", "b"),
        ("a * 1.0 - 0.0", "a"),
        ("a + a", "2.0 * a"),
        ("2.0 * a + a * 1.0", "3.0 * a"),
        ("a - 2.0 * a", "-a"),
        ("a * 2.0 * b * 3.0", "6.0 * a * b"),
        ("a * c * (1.0 / b)", "a * c / b"),
        ("a * -1.0 * (b * -1.0)", "a * b"),
        ("a + b * -2.0", "a - 2.0 * b"),
        ("a / 1.0", "a"),
        ("a * (i < 3 ? b : 0.0) * c", "i < 3 ? a * b * c : 0.0"),
        ("a * (i < 3 ? 0.0 : b)", "i >= 3 ? a * b : 0.0"),
        ("a * (i < 3 || i > 7 ? 0.0 : b)", "i >= 3 && i <= 7 ? a * b : 0.0"),
        ("a * (b < c ? 0.0 : b)", "b < c ? 0.0 : a * b"),
        ("(i < 3 ? a : 0.0) + (i < 3 ? b : 0.0)", "i < 3 ? a + b : 0.0"),
        ("(i < 3 ? a : 0.0) / b", "i < 3 ? a / b : 0.0"),
    ],
)
def test_operations(text: str, simple: str) -> None:
    assert built(text) == simple


def test_a_comparison_of_floats_is_not_turned() -> None:
    """With a NaN both ``a < b`` and ``a >= b`` are false."""
    value = select(typed("a < b ? 1.0 : 2.0").condition, typed("0.0"), typed("c"))  # type: ignore[attr-defined]
    assert show(value) == "a < b ? 0.0 : c"


def test_negation_goes_into_the_arms() -> None:
    assert show(negate(typed("i < 3 ? a - b : 0.0"))) == "i < 3 ? b - a : 0.0"


def test_nested_choices_with_one_other_arm_are_one() -> None:
    inner = typed("a < b ? c : 0.0")
    outer = typed("i < 3 ? a : 0.0")
    joined = select(outer.condition, inner, outer.other)  # type: ignore[attr-defined]
    assert show(joined) == "i < 3 && a < b ? c : 0.0"
    assert list(map(show, conjuncts(joined.condition))) == ["i < 3", "a < b"]  # type: ignore[attr-defined]


def test_known_conditions_make_choices() -> None:
    choice = typed("(i < 3 ? a : b) * (a < b ? c : 0.0)")
    assert show(assume(choice, [typed("i < 3 ? a : b").condition])) == "a * (a < b ? c : 0.0)"  # type: ignore[attr-defined]
