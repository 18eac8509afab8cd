from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from support.grammar import body, only, typed

from tcjit.errors import ParseError
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Apply,
    Assign,
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Name,
    Number,
    Param,
    Range,
    Select,
    Size,
    Tensor,
    Unary,
)
from tcjit.grammar.dtypes import rounded
from tcjit.grammar.parse import parse
from tcjit.grammar.printer import extent, number, show

PROGRAMS = [
    "def mm(float(M, K) A, float(K, N) B) -> (C) { C(i, j) +=! A(i, k) * B(k, j) }",
    "def f() -> (float(3, N) O, half P, Q) { O(i) = 1 P min=! .5 Q() *= 1e3 }",
    "def f(bool x, int32(3) y) -> (O) { O = (a ? b : c) ? -(d + !e) : (a - (b - c)) * (d * (e % f)) - - 3 / ((a < b) == (c != d)) }",
    "def f(float(N) x) -> (O) { O(i) = x(i + 1) where i in (a ? b : c):d ? e : f, y = a || b && c, exists (a || b) && half(min(c, 1)) }",
    "def f(float(N) x) -> (O) { A, B = g(x, -1.5, true) C = f(x) O(i) max= A(i) }",
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_surface_programs_round_trip(text: str) -> None:
    for definition in parse(text):
        assert parse(show(definition)) == (definition,)


def test_calls_round_trip() -> None:
    defs = parse("def g(float(N) x) -> (y) { y(i) = x(i) } def f(float(N) x) -> (O) { O = g(x) O() = g(x) }")
    assert parse("\n".join(map(show, defs))) == defs


def random_expression(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([Name("x"), Number("3"), Number("2.5"), Number("true"), Apply("infinity", ())])
    kind = rng.randrange(6)
    sub = [random_expression(rng, depth - 1) for _ in range(3)]
    if kind == 0:
        return Unary(rng.choice("-!"), sub[0])
    if kind == 1:
        return Select(*sub)
    if kind == 2:
        return rng.choice([Apply("A", tuple(sub)), Apply("max", tuple(sub[:2])), Cast(sub[0], dtype="bfloat16")])
    operators = ["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "&&", "||"]
    return Binary(rng.choice(operators), sub[0], sub[1])


def test_random_expressions_round_trip_with_no_parenthesis_too_many() -> None:
    rng = random.Random(7)
    for _ in range(150):
        expr = random_expression(rng, 5)
        text = show(expr)
        (definition,) = parse(f"def f(float(N) A) -> (O) {{ O = {text} }}")
        (statement,) = definition.body
        assert isinstance(statement, Assign) and statement.value == expr, text
        # each pair of parentheses that does not follow a name is needed
        for start in (i for i, c in enumerate(text) if c == "(" and (i == 0 or not text[i - 1].isalnum())):
            depth, end = 0, start
            while True:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if depth == 0:
                    break
                end += 1
            without = text[:start] + text[start + 1 : end] + text[end + 1 :]
            try:
                (other,) = parse(f"def f(float(N) A) -> (O) {{ O = {without} }}")[0].body
            except ParseError as chained:
                assert "do not chain" in str(chained)
                continue
            assert isinstance(other, Assign) and other.value != expr, (text, without)


@pytest.mark.parametrize(
    "text",
    [
        "O(i) = v(i)",
        "O(i) +=! A(i, k) * B(k, j)",
        "O(i, j) +=! half(A(i, k)) * h(j) where k in 0:min(K, s) - 1, exists v(k)",
        "O(i) = -v(i) + d(i) * 0.1 - (Idx(i) + u8(i)) / 3 % i",
        "O(i) = i + 1 < M && !(ok(i) || flag) ? v(i + 1) : infinity()",
        "O(i) = A(Idx(i) / 2, clamp(L(i), 0, K - 1)) * a",
        "T +=! v(i) O(i) = v(i) / T",
        "O(i) = 0.1 * h(i) O(i) *= b(0) > 3 ? h(i) : 1e-7 O(i) = O(i) / M",
    ],
)
def test_typed_programs_show_as_programs_with_the_same_meaning(text: str) -> None:
    d = body(text)
    again = typed(show(d))
    assert again.statements == d.statements
    assert again.tensors == d.tensors


def test_typed_nodes() -> None:
    s = only("O(i) = A(Idx(i) + 1, 0) * double(i) where i in 0:M, exists v(i)")
    assert show(s) == "O(i) = float64(A(Idx(i) + 1, 0)) * float64(i) where i in 0:M, exists v(i)"
    size = Size("M", dtype="int64")
    inferred = replace(s, domain=(Range("i", Const(0, dtype="int64"), size),))
    assert show(inferred).endswith("where i in 0:M, exists v(i)")
    assert show(Cast(Access("L", (Index("i", dtype="int64"),), dtype="int64"), dtype="float32")) == "float32(L(i))"
    assert show(Param("A", "float32", ("M", 4))) == "float32(M, 4) A" and show(Param("a", "bool", ())) == "bool a"
    assert show(Tensor("A", "float32", 2, "output", (size, Const(4, dtype="int64")))) == "float32(M, 4) A"
    assert show(Tensor("A", "float32", 1, "output")) == "A"
    assert show(Agreement(Size("T.0", dtype="int64"), size, "the size")) == "T.0 == M"
    assert show(Range("i", Const(0, dtype="int64"), size)) == "i in 0:M"


def test_annotated_results_show_their_inferred_extents() -> None:
    d = typed("def f(float(M) A) -> (O) { O(i) = A(i) }")
    tensors = tuple(replace(t, shape=(Size("M", dtype="int64"),)) for t in d.tensors)
    assert show(replace(d, tensors=tensors)).startswith("def f(float32(M) A) -> (float32(M) O) {")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_read_back(dtype: str) -> None:
    rng = random.Random(3)
    for _ in range(300):
        numbers = (rng.random(), rng.uniform(-1e4, 1e4), 10.0 ** rng.randrange(-30, 30), float(rng.randrange(-9, 9)))
        value = rounded(rng.choice(numbers), dtype)
        if math.isinf(value):
            continue
        text = number(value, dtype)
        assert rounded(float(text), dtype) == value
        assert any(c in text for c in ".e")
    assert number(rounded(1 / 3, "float32"), "float32") == "0.33333334"
    assert number(math.nan, dtype) == "0.0 / 0.0"
    assert number(1e20, "float64") == "1e+20" and number(100.0, "float64") == "100.0"


def test_constants_bind_like_what_they_look_like() -> None:
    x = Name("x")
    assert show(Binary("-", x, Const(-2.0, dtype="float32"))) == "x - -2.0"
    assert show(Binary("*", x, Const(math.nan, dtype="float32"))) == "x * (0.0 / 0.0)"
    assert show(Unary("-", Const(-math.inf, dtype="float32"))) == "--infinity()"


def test_extents_collect_terms() -> None:
    m, k, one = Size("M", dtype="int64"), Size("K", dtype="int64"), Const(1, dtype="int64")

    def binary(op: str, left: Expr, right: Expr) -> Expr:
        return Binary(op, left, right, dtype="int64")

    assert extent(binary("-", m, binary("-", k, one))) == "M - K + 1"
    assert extent(binary("+", binary("*", Const(2, dtype="int64"), m), binary("-", one, m))) == "M + 1"
    assert extent(binary("/", binary("+", m, Const(122, dtype="int64")), Const(123, dtype="int64"))) == "(M + 122) / 123"
    assert extent(binary("-", m, m)) == "0"
    data = Access("A", (), dtype="int64")
    assert extent(binary("+", data, one)) == "A + 1"
