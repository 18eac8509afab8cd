"""Integers known by symbols: affine forms of subscripts and guards.

Modules: grammar.polynomial grammar.specialised
"""

from __future__ import annotations

import random

import islpy as isl
import pytest

from tcjit.grammar.affine import affine, condition, guarded_accesses, is_gather, isl_name, linear
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Size, Unary
from tcjit.grammar.check import check
from tcjit.grammar.parse import parse
from tcjit.grammar.polynomial import ZeroDivisor, expression, integer
from tcjit.grammar.printer import show

HEAD = "def f(float(N) A, float(M) B, int32(N) X, int32 s, int32 t, bool b, float x) -> (O) "


def value(text: str) -> Expr:
    """The typed value of ``O +=! text``."""
    return check(parse(f"{HEAD} {{ O(q) +=! {text} where q in 0:1 }}"))[0].statements[0].value


def subscript(text: str) -> Expr:
    """``text`` in index arithmetic."""
    access = value(f"A({text})")
    assert isinstance(access, Access)
    return access.subscripts[0]


def holds(text: str) -> Expr:
    """``text`` as a typed condition."""
    typed = value(f"({text}) ? 1.0 : 0.0")
    assert isinstance(typed, Select)
    return typed.condition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i", "i"),
        ("i + 1", "i + 1"),
        ("2 * (i - 3) + i", "3*i - 6"),
        ("-i", "-i"),
        ("N - 1 - i", "N - 1 - i"),
        ("s * i + t * k", "3*i - 2*k"),
        ("i / 2", "floor((i)/2)"),
        ("(2 * i + 4 * k) / 2", "i + 2*k"),
        ("(2 * i + 3) / 4", "floor((i + 1)/2)"),
        ("i / -2", "floor((-i)/2)"),
        ("i % 3", "i - 3*floor((i)/3)"),
        ("i % -3", "i + 3*floor((-i)/3)"),
        ("i / s", "floor((i)/3)"),
        ("i + N / 2", "i + floor((N)/2)"),
        ("i + max(N, 3)", "i + max(N, 3)"),
        ("i + max(s, 4)", "i + 4"),
        ("int64(i) + s", "i + 3"),
        ("i * k", None),
        ("i * i", None),
        ("i / k", None),
        ("X(i)", None),
        ("i + X(k)", None),
        ("min(i, N)", None),
        ("i < 3 ? i : 0", None),
        ("int8(i)", None),
        ("N * i", None),
    ],
)
def test_affine(text: str, expected: str | None) -> None:
    assert affine(subscript(text), {"s": 3, "t": -2}) == expected


def test_floats_are_not_affine() -> None:
    assert affine(value("floor(x)"), {}) is None


def test_affine_reads_its_numbers() -> None:
    assert affine(subscript("N * i + (M - M) * k"), {"N": 7}) == "7*i"
    assert affine(subscript("i / (N - N)"), {}) is None, "a division by zero is no affine expression"
    assert affine(subscript("i % N + i / N"), {"N": 4}) == "i - 3*floor((i)/4)"


@pytest.mark.parametrize("text", ["i + 3*k", "i - 3*floor((i)/3)", "floor((-i)/2)", "N - 1 - i", "i + max(N, 3)"])
def test_isl_reads_the_text(text: str) -> None:
    assert not isl.Set.read_from_str(isl.Context(), f"[N] -> {{ [i, k] : 0 <= {text} < 3 }}").is_empty()


def test_floor_division_and_modulus_are_python_s() -> None:
    rng = random.Random(7)
    for _ in range(200):
        source = f"({rng.randint(-3, 3)} * i + {rng.randint(-9, 9)}) {rng.choice('/%')} {rng.choice((-4, -3, -2, -1, 1, 2, 3, 5))}"
        text = affine(subscript(source), {})
        for i in (-7, -1, 0, 4, 11):
            wanted = eval(source.replace("/", "//"), {"i": i})
            assert isl.Set.read_from_str(isl.Context(), f"{{ [i] : i = {i} and {text} = {wanted} }}").is_empty() is False, source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i < N", "i < N"),
        ("i + k >= 1 && i + k <= N", "(i + k >= 1 and i + k <= N)"),
        ("i == 3 || !(i != k)", "(i = 3 or not (i != k))"),
        ("i % 2 == 0", "i - 2*floor((i)/2) = 0"),
        ("true", "0 = 0"),
        ("!false", "not (0 = 1)"),
        ("A(i) > 0", None),
        ("b", None),
        ("x < 1", None),
        ("i < N && A(i) > 0", None),
        ("i < X(i)", None),
        ("i * k < 3", None),
        ("int8(i) < 3", None),
        ("int32(i) * 5 < N", None),
        ("i / (N - N) < 3", None),
        ("(i < 3) == (k < 3)", None),
    ],
)
def test_condition(text: str, expected: str | None) -> None:
    typed = holds(text) if text != "true" else Const(True, dtype="bool")
    assert condition(typed, {}) == expected
    if expected:
        isl.Set.read_from_str(isl.Context(), f"[N] -> {{ [i, k] : {expected} }}")


def test_a_condition_that_may_wrap_proves_nothing() -> None:
    i = Index("i", dtype="int32")
    narrow = Binary("<", Binary("*", i, Const(100000, dtype="int32"), dtype="int32"), Const(5, dtype="int32"), dtype="bool")
    assert condition(narrow, {}) is None


def guards(text: str) -> dict[str, list[tuple[str, bool]]]:
    return {show(access): [(show(guard), polarity) for guard, polarity in found] for access, found in guarded_accesses(value(text))}


def test_guards_of_a_choice() -> None:
    assert guards("i < N ? A(i) : A(i - 1)") == {"A(i)": [("i < N", True)], "A(i - 1)": [("i < N", False)]}


def test_guards_of_conjunctions_come_apart() -> None:
    assert guards("(i < N && X(i) > 0) ? A(i + 1) : A(i + 2)") == {
        "X(i)": [("i < N", True)],
        "A(i + 1)": [("i < N", True), ("X(i) > 0", True)],
        "A(i + 2)": [("i < N && X(i) > 0", False)],
    }


def test_guards_of_disjunctions_come_apart_where_false() -> None:
    assert guards("(i < 1 || A(i - 1) > 0 || b) ? A(i + 1) : A(i + 2)") == {
        "A(i - 1)": [("i < 1", False)],
        "A(i + 1)": [("i < 1 || A(i - 1) > 0.0 || b", True)],
        "A(i + 2)": [("i < 1", False), ("A(i - 1) > 0.0", False), ("b", False)],
    }


def test_guards_turn_with_negation_and_nest() -> None:
    assert guards("!(i < 1 || k < 2) ? (b ? A(i) : A(k)) : 0") == {
        "A(i)": [("i < 1", False), ("k < 2", False), ("b", True)],
        "A(k)": [("i < 1", False), ("k < 2", False), ("b", False)],
    }


def test_accesses_in_subscripts_and_arguments() -> None:
    assert guards("i < 3 ? exp(A(X(i))) : 0") == {"A(X(i))": [("i < 3", True)], "X(i)": [("i < 3", True)]}


@pytest.mark.parametrize("name", "and or not exists mod floor ceil floord min max rat true False infty NaN Implies infinity k".split())
def test_isl_takes_every_name(name: str) -> None:
    text = isl_name(name)
    assert not isl.Set.read_from_str(isl.Context(), f"[{text}] -> {{ [i] : 0 <= i < {text} }}").is_empty()


def test_isl_names_stay_different() -> None:
    names = ["mod", "mod_", "mod__", "Mod", "k", "k_", "and", "and_"]
    assert len({isl_name(name) for name in names}) == len(names)


def test_linear() -> None:
    found = linear(subscript("2 * i + s * k - i + N - 1"))
    assert found is not None
    coefficients, rest = found
    assert list(coefficients) == ["i", "k"]
    assert coefficients["i"] == 1
    assert show(expression(coefficients["k"])) == "s"
    assert show(expression(rest)) == "N - 1"
    assert linear(subscript("i / 2")) is None
    assert linear(subscript("i * k")) is None
    assert linear(subscript("X(i)")) is None


def test_gathers() -> None:
    assert [is_gather(subscript(text)) for text in ("i", "i / 2 + N * k", "i % s", "i * k", "X(i)", "i / k", "min(i, 3)")] == [
        False, False, False, True, True, True, True,
    ]  # fmt: skip


def test_a_zero_divisor_says_where() -> None:
    with pytest.raises(ZeroDivisor) as caught:
        integer(subscript("i / s"), {"s": 0})
    assert caught.value.where is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N - (M - 1)", "N - M + 1"),
        ("N + N - N", "N"),
        ("1 - M", "1 - M"),
        ("2 * N * M - M * N", "M * N"),
        ("(2 * N + 3) / 2", "N + 1"),
        ("(N + 1) / 1", "N + 1"),
        ("(N - M + s) / s", "(N - M) / s + 1"),
        ("N * M / M", "N"),
        ("N / (2 * N)", "N / (2 * N)"),
        ("(4 * N * M + 2 * M) / (2 * M)", "2 * N + 1"),
        ("min(N, N + 1)", "N"),
        ("max(min(N, M), min(M, N))", "min(M, N)"),
        ("min(min(N, M), N - 1)", "min(N - 1, M)"),
        ("max(3, 4) + min(s, s)", "s + 4"),
        ("N % 4", "N - 4 * (N / 4)"),
        ("0 / s + 0 * N", "0"),
    ],
)
def test_forms_are_simplified(text: str, expected: str) -> None:
    found = integer(subscript(text))
    assert found is not None
    assert show(expression(found)) == expected


def test_forms_keep_their_value() -> None:
    """Simplification against plain evaluation, for random expressions over sizes and scalars."""
    rng = random.Random(11)

    def draw(depth: int) -> Expr:
        if depth == 0:
            number = Const(rng.randint(-4, 6), dtype="int64")
            return rng.choice([Size("N", dtype="int64"), Size("M", dtype="int64"), Scalar("s", dtype="int64"), number])
        kind = rng.choice(["+", "-", "*", "/", "%", "min", "max", "neg", "cast"])
        left, right = draw(depth - 1), draw(rng.randrange(depth))
        if kind in ("min", "max"):
            return Call(kind, (left, right), dtype="int64")
        if kind == "neg":
            return Unary("-", left, dtype="int64")
        if kind == "cast":
            return Cast(Size("N", dtype="int32"), dtype="int64")
        return Binary(kind, left, right, dtype="int64")

    compared = 0
    for _ in range(600):
        expr = draw(3)
        values = {"N": rng.randint(1, 9), "M": rng.randint(1, 9), "s": rng.choice([-3, -2, -1, 1, 2, 5])}
        try:
            symbolic, wanted = integer(expr), integer(expr, values)
        except ZeroDivisor:
            continue
        assert symbolic is not None
        try:
            found = integer(expression(symbolic), values)
        except ZeroDivisor:
            continue
        assert isinstance(wanted, int)
        assert found == wanted, (show(expr), show(expression(symbolic)), values)
        compared += 1
    assert compared > 300
