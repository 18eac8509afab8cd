"""Bounds checks: exactly the accesses that leave their tensor for some point that reaches them are refused."""
from __future__ import annotations

import itertools
import random
import re

import pytest
from support.fuzz.ranges import inferred, program

from tcjit.errors import CheckError, ShapeError, TCError
from tcjit.grammar import bounds_check
from tcjit.grammar.ast import Access
from tcjit.grammar.infer import specialise
from tcjit.grammar.walk import walk


def refused(text: str, *shapes: tuple[int, ...], **scalars: int) -> ShapeError:
    with pytest.raises(ShapeError) as caught:
        program(text, *shapes, **scalars)
    return caught.value


def test_the_message_says_what_where_and_with_which_sizes() -> None:
    error = refused("def f(float(N) A, float(M) B) -> (O) {\n  O(i, j) = A(2*i + j) + B(j) where i in 0:N/2, j in 0:M\n}", (8,), (4,))
    assert str(error) == "\n".join(
        [
            "line 2, column 15: `A` is read outside dimension 0, whose extent is 8: `2 * i + j` goes from 0 to 9 for i in 0:4, j in 0:4",
            "      O(i, j) = A(2*i + j) + B(j) where i in 0:N/2, j in 0:M",
            "                  ^^^^^^^",
            "sizes: N = 8, M = 4",
            "try: a shorter range of `i`, or read it under a condition: `2 * i + j < N ? A(2 * i + j) : 0`",
        ]
    )


def test_the_dimension_is_named() -> None:
    error = refused("def f(float(N, N) A, float(M) B) -> (O) { O(i) = A(i, i + 2) + B(i) where i in 0:M }", (5, 5), (4,))
    assert "`A` is read outside dimension 1, whose extent is 5: `i + 2` goes from 2 to 5 for i in 0:4" in error.what


def test_below_zero() -> None:
    error = refused("def f(float(N) A, float(M) B) -> (O) { O(i) = A(N - 1 - i) + B(i) where i in 0:M }", (3,), (5,))
    assert "goes from -2 to 2" in error.what
    assert "`N - i - 1 >= 0 ? A(N - 1 - i) : 0`" in error.hint


# ---------------------------------------------------------------- guards

GUARDED = [
    # condition, read, whether it is inside for N = 6 and i in 0:N
    ("i + 1 < N", "A(i + 1)", True),
    ("i + 2 < N", "A(i + 3)", False),
    ("i >= 1", "A(i - 1)", True),
    ("i >= 1 && i + 1 < N", "A(i - 1) + A(i + 1)", True),
    ("i >= 1 || i + 1 < N", "A(i + 1)", False),
    ("!(i < 2)", "A(i - 2)", True),
    ("!(i < 2 || i > 3)", "A(i - 2) + A(i + 2)", True),
    ("i != 0", "A(i - 1)", True),
    ("i == 3", "A(i + 2) + A(i - 3)", True),
    ("i % 2 == 0", "A(i + 1)", True),
    ("i % 2 == 1", "A(i + 1)", False),
    ("i / 2 < 2", "A(i + 2)", True),
    ("true", "A(i + 1)", False),
    ("false", "A(i + 1)", True),
    # a condition on data proves nothing, its affine half does
    ("A(i) > 0", "A(i + 1)", False),
    ("A(i) > 0 && i + 1 < N", "A(i + 1)", True),
    ("i + 1 < N && A(i + 1) > 0", "A(i + 1)", True),
    ("A(i + 1) > 0 && i + 1 < N", "A(i)", False),
    ("A(i) > 0 || i + 1 < N", "A(i + 1)", False),
    ("!(A(i) > 0 || i + 1 >= N)", "A(i + 1)", True),
    ("!(A(i) > 0 && i + 1 >= N)", "A(i + 1)", False),
    ("(i + 1 < N) == (A(i) > 0)", "A(i + 1)", False),
    ("i + 1 < N ? true : false", "A(i + 1)", False),
    # arithmetic that wraps is no index arithmetic
    ("int8(i) + 1 < 6", "A(i + 1)", False),
    ("int32(i) + 1 < 6", "A(i + 1)", False),
]


@pytest.mark.parametrize(("condition", "read", "fine"), GUARDED)
def test_a_read_under_a_condition(condition: str, read: str, fine: bool) -> None:
    text = f"def f(float(N) A, float(M) B) -> (O) {{ O(i) = (({condition}) ? {read} : 0.0) + B(i) where i in 0:6 }}"
    if fine:
        assert program(text, (6,), (6,)).shape("O") == (6,)
    else:
        refused(text, (6,), (6,))


def test_the_other_arm_knows_the_opposite() -> None:
    text = "def f(float(N) A) -> (O) { O(i) = i + 1 >= N ? 0.0 : A(i + 1) where i in 0:N }"
    assert program(text, (6,)).shape("O") == (6,)


def test_conditions_on_the_reduction() -> None:
    text = "def f(float(N) A) -> (O) { O(i) +=! (j <= i) ? A(i - j) : 0.0 where i in 0:N, j in 0:N }"
    assert program(text, (6,)).shape("O") == (6,)
    error = refused(text.replace("j <= i", "j <= i + 1"), (6,))
    assert "`i - j` goes from -1 to 5" in error.what


def test_a_condition_inside_a_subscript_is_a_gather() -> None:
    text = "def f(float(N) A) -> (O) { O(i) = A(i + 1 < N ? i + 1 : 0) where i in 0:N }"
    assert program(text, (6,)).shape("O") == (6,)


# ---------------------------------------------------------------- quasi-affine and gathers


def test_quasi_affine_subscripts_are_exact() -> None:
    text = "def f(float(N) A, float(M) B) -> (O) { O(i) = A(i % 4) + A(i / 3) + B(i) where i in 0:12 }"
    assert program(text, (4,), (12,)).shape("O") == (12,)
    error = refused(text, (3,), (12,))
    assert "`i - 4 * (i / 4)` goes from 0 to 3" in error.what


def test_a_modulus_of_a_negative_value_is_not_negative() -> None:
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = A((i - 7) % s) where i in 0:9 }"
    assert program(text, (3,), s=3).shape("O") == (9,)
    refused(text, (3,), s=-3)


def test_gathers_are_left_to_run_time() -> None:
    text = "def f(float(V, D) A, int64(L) X) -> (O) { O(l, d) = A(X(l) + 1, d) + A(l * d, 0) + A(X(X(l)), d) }"
    assert program(text, (4, 2), (9,)).shape("O") == (9, 2)


def test_the_index_tensor_of_a_gather_is_checked() -> None:
    text = "def f(float(V) A, int32(L) X) -> (O) { O(l) = A(X(l + 1)) where l in 0:V }"
    assert program(text, (3,), (4,)).shape("O") == (3,)
    assert "`X` is read outside" in refused(text, (4,), (4,)).what


def test_exists_is_checked() -> None:
    text = "def f(float(N) A, float(M) B) -> (O) { O(i) = A(i) where i in 0:N, exists B(i + 1) }"
    assert program(text, (3,), (4,)).shape("O") == (3,)
    assert refused(text, (4,), (4,)).hint == "a shorter range of `i`"


# ---------------------------------------------------------------- against brute force


def _condition(rng: random.Random, depth: int = 2) -> str:
    if depth == 0 or rng.random() < 0.4:
        return f"{_affine(rng)} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {_affine(rng)}"
    if rng.random() < 0.2:
        return f"!({_condition(rng, depth - 1)})"
    return f"({_condition(rng, depth - 1)} {rng.choice(['&&', '||'])} {_condition(rng, depth - 1)})"


def _affine(rng: random.Random) -> str:
    kind = rng.random()
    base = rng.choice(["i", "j", "i + j", "i - j", "2 * i + j", "N - 1 - i", "3 * j", "s * i", "j + s", "M - N"])
    if kind < 0.15:
        return f"({base}) / {rng.choice(['2', '3', '-2', 's'])}"
    if kind < 0.3:
        return f"({base}) % {rng.choice(['2', '3', '-3', 'N', 's'])}"
    return f"({base} + {rng.randint(-2, 3)})" if kind < 0.8 else str(rng.randint(0, 5))


def _python(text: str) -> str:
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    return re.sub(r"/", "//", text)


def test_random_guards_and_subscripts() -> None:
    rng = random.Random(5)
    fine = bad = 0
    for _ in range(250):
        condition, yes, no = _condition(rng), _affine(rng), _affine(rng)
        text = (
            "def f(float(N) A, float(M) B, int32 s) -> (O) {"
            f" O(i, j) = ({condition}) ? A({yes}) : B({no}) where i in 0:4, j in 0:N }}"
        )
        values = {"N": rng.randint(1, 6), "M": rng.randint(1, 9), "s": rng.choice((-2, -1, 1, 2, 3))}
        inside_ = True
        for i, j in itertools.product(range(4), range(values["N"])):
            point = {**values, "i": i, "j": j}
            taken, extent = (yes, values["N"]) if eval(_python(condition), point) else (no, values["M"])
            inside_ = inside_ and 0 <= eval(_python(taken), point) < extent
        try:
            specialise(inferred(text), {"A": (values["N"],), "B": (values["M"],)}, {"s": values["s"]})
            assert inside_, (text, values)
            fine += 1
        except (ShapeError, CheckError):
            assert not inside_, (text, values)
            bad += 1
    assert fine > 10 and bad > 60


# ---------------------------------------------------------------- the budget


def test_giving_up_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(float(N) A) -> (O) { O(i) = (i % 7 < 3 && i / 5 < N) ? A((3 * i + 1) % 11) : 0.0 where i in 0:N }"
    definition = inferred(text)
    monkeypatch.setattr(bounds_check, "BUDGET", 1)
    with pytest.raises(TCError, match="could not be decided") as caught:
        specialise(definition, {"A": (50,)}, {})
    assert caught.value.sizes == {"N": 50} and caught.value.where is not None
    assert type(caught.value) is TCError


def test_giving_up_at_define_waits_for_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(float(N) A) -> (O) { O = A(N - 777) + A(777 - N) }"
    monkeypatch.setattr(bounds_check, "BUDGET", 1)
    assert any(isinstance(node, Access) for node in walk(inferred(text).statements[0].value))


def test_names_that_isl_would_misread() -> None:
    value = "(floor + 1 < mod && floor % 2 == 0) ? A(floor + 1) + or(floor) : 0.0"
    text = f"def f(float(mod) A, float(not) or) -> (O) {{ O(floor) = {value} where floor in 0:mod }}"
    with pytest.raises(ShapeError, match="`or` is read outside"):
        program(text, (6,), (4,))
    assert program(text, (6,), (5,)).shape("O") == (6,)


# ---------------------------------------------------------------- divisors that some sizes make zero


@pytest.mark.parametrize(
    "read",
    ["Z(d % (D/2))", "Z(d % (D-1))", "Z(d / (D/2))", "Z(d / (s/2))", "Z(d / (s-1))", "Z(d % (D/4))", "Z(d % (D/2) + D/2 - D/2)"],
)
def test_a_divisor_that_is_zero_for_small_sizes_is_refused_only_there(read: str) -> None:
    text = f"def f(float(D) X, float(H) Z, int32 s) -> (Y) {{ Y(d) = {read} where d in 0:D }}"
    assert program(text, (8,), (8,), s=6).shape("Y") == (8,)
    error = refused(text, (1,), (8,), s=1)
    assert "which is zero" in error.what


def test_groups_of_half_the_channels() -> None:
    text = "def f(float(A, B) X) -> (Y) { Y(a, b) = X(a/(A/2), b % (B/2)) where a in 0:A, b in 0:B }"
    assert program(text, (4, 6)).shape("Y") == (4, 6)
