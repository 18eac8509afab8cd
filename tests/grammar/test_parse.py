"""From text to surface defs.

Modules: grammar.ast
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from support.grammar import HEAD

from tcjit.errors import ParseError, TCError
from tcjit.grammar.ast import (
    Apply,
    Assign,
    Binary,
    CallDef,
    Cast,
    ExistsClause,
    Expr,
    LetClause,
    Name,
    Number,
    Param,
    RangeClause,
    Return,
    Select,
    Unary,
)
from tcjit.grammar.check import check
from tcjit.grammar.parse import parse
from tcjit.grammar.printer import show
from tcjit.grammar.walk import MAX_DEPTH, walk

MATMUL = "def mm(float(M, K) A, float(K, N) B) -> (C) { C(i, j) +=! A(i, k) * B(k, j) }"


def value(text: str) -> Expr:
    (definition,) = parse(f"def f(float(N) A) -> (O) {{ O(i) = {text} }}")
    statement = definition.body[0]
    assert isinstance(statement, Assign)
    return statement.value


def test_a_matmul() -> None:
    (d,) = parse(MATMUL)
    assert d.name == "mm"
    assert d.params == (Param("A", "float32", ("M", "K")), Param("B", "float32", ("K", "N")))
    assert d.returns == (Return("C"),)
    (statement,) = d.body
    assert isinstance(statement, Assign)
    assert (statement.tensor, statement.indices, statement.operator) == ("C", ("i", "j"), "+=!")
    assert statement.value == Binary("*", Apply("A", (Name("i"), Name("k"))), Apply("B", (Name("k"), Name("j"))))


def test_every_type_and_alias() -> None:
    names = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
    text = ", ".join(f"{name} p{n}" for n, name in enumerate([*names, "half", "float", "double"]))
    (d,) = parse(f"def f({text}) -> (float(3, N) O, half P, Q) {{ O = 1 }}")
    assert [p.dtype for p in d.params] == [*names, "float16", "float32", "float64"]
    assert all(p.dims == () for p in d.params)
    assert d.returns == (Return("O", "float32", (3, "N")), Return("P", "float16", ()), Return("Q"))


@pytest.mark.parametrize("operator", ["=", "+=", "+=!", "*=", "*=!", "min=", "min=!", "max=", "max=!"])
def test_every_assignment(operator: str) -> None:
    (d,) = parse(f"def f(float(N) A) -> (O) {{ O(i){operator}A(i) P {operator} A(i) Q() {operator} 1 }}")
    assert [(s.tensor, s.indices, s.operator) for s in d.body if isinstance(s, Assign)] == [
        ("O", ("i",), operator),
        ("P", (), operator),
        ("Q", (), operator),
    ]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a / b * c % d", "((a / b) * c) % d"),
        ("a + b < c - d", "(a + b) < (c - d)"),
        ("a && b || c && d", "(a && b) || (c && d)"),
        ("a || b && c", "a || (b && c)"),
        ("!a && b", "(!a) && b"),
        ("-a * b", "(-a) * b"),
        ("- - a", "-(-a)"),
        ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
        ("a ? b ? c : d : e", "a ? (b ? c : d) : e"),
        ("a || b ? c : d", "(a || b) ? c : d"),
        ("a + b ? c : d + e", "(a + b) ? c : (d + e)"),
        ("((a))", "a"),
    ],
)
def test_precedence(text: str, same: str) -> None:
    assert value(text) == value(same)


def test_precedence_as_trees() -> None:
    assert value("a - b - c") == Binary("-", Binary("-", Name("a"), Name("b")), Name("c"))
    assert value("a ? b : c ? d : e") == Select(Name("a"), Name("b"), Select(Name("c"), Name("d"), Name("e")))
    assert value("-!a") == Unary("-", Unary("!", Name("a")))


@pytest.mark.parametrize("text", ["0", "12", "1.", ".5", "1.5", "3E-5", "1e10", "2.5e+3", "true", "false"])
def test_numbers(text: str) -> None:
    assert value(text) == Number(text)


def test_casts_calls_min_and_max() -> None:
    assert value("half(x)") == Cast(Name("x"), dtype="float16")
    assert value("min(x, max(1, y))") == Apply("min", (Name("x"), Apply("max", (Number("1"), Name("y")))))
    assert value("infinity()") == Apply("infinity", ())


def test_clauses() -> None:
    (d,) = parse("def f(float(N) A) -> (O) { O(i) = x where i in 0:N, x = A(i), exists A(i + 1), i in a ? 1 : 2 : b ? 3 : 4 }")
    statement = d.body[0]
    assert isinstance(statement, Assign)
    assert statement.clauses == (
        RangeClause("i", Number("0"), Name("N")),
        LetClause("x", Apply("A", (Name("i"),))),
        ExistsClause(Apply("A", (Binary("+", Name("i"), Number("1")),))),
        RangeClause("i", Select(Name("a"), Number("1"), Number("2")), Select(Name("b"), Number("3"), Number("4"))),
    )


def test_calls_of_earlier_defs() -> None:
    defs = parse(MATMUL + " def g(float(M, M) A) -> (P) { T = mm(A, A) P, Q = two(T, 3.0, -1) R = relu(3) }")
    assert defs[1].body == (
        CallDef(("T",), "mm", (Name("A"), Name("A"))),
        CallDef(("P", "Q"), "two", (Name("T"), Number("3.0"), Unary("-", Number("1")))),
        Assign("R", (), "=", Apply("relu", (Number("3"),))),
    )


def test_a_tensor_named_like_an_earlier_def_is_a_tensor() -> None:
    defs = parse(MATMUL + " def g(float(M) mm) -> (O) { O = mm(3) }")
    assert defs[1].body == (Assign("O", (), "=", Apply("mm", (Number("3"),))),)


def test_layout_never_matters() -> None:
    spread = MATMUL.replace(" ", "\n\t").replace("{", "{ # a comment } + (\r\n") + "# the end"
    assert parse(spread) == parse(MATMUL)
    dense = "def f(float(N)A)->(O){O(i)+=!A(i)*minx where minx=3,i in 0:N P(i)=-A(i)}"
    (d,) = parse(dense)
    assert [s.tensor for s in d.body if isinstance(s, Assign)] == ["O", "P"]


def test_names_that_begin_like_keywords() -> None:
    (d,) = parse("def define(float(inner) wherever) -> (minimum) { minimum(int) = wherever(int) + floaty + trueish where floaty = maxed }")
    assert d.params[0].dims == ("inner",)


def test_positions() -> None:
    text = "def f(float(N) A) -> (O) {\n    O(i) = A(i) +\n        sqrt(2.0) where i in 0:N\n}"
    (d,) = parse(text)
    statement = d.body[0]
    assert isinstance(statement, Assign) and isinstance(statement.value, Binary)
    assert statement.where and (statement.where.line, statement.where.column) == (2, 5)
    assert statement.where.line_text == "    O(i) = A(i) +"
    left, right = statement.value.left.where, statement.value.right.where
    assert left and (left.line, left.column, left.length) == (2, 12, 4)
    assert right and (right.line, right.column, right.length) == (3, 9, 9)
    assert statement.value.where and statement.value.where.caret().split("\n")[1] == " " * 11 + "^" * 6
    assert statement.subscripts[0].where and statement.subscripts[0].where.column == 7
    assert d.params[0].where and d.params[0].where.length == len("float(N) A")
    clause = statement.clauses[0]
    assert clause.where and clause.where.length == len("i in 0:N")


def test_every_node_has_a_place() -> None:
    (d,) = parse(HEAD + "O(i) = flag ? -A(i, int32(k)) * 2.5 : min(a, infinity()) < 3 && !ok(i) || true }")
    statement = d.body[0]
    assert isinstance(statement, Assign)
    nodes = list(walk(statement.value))
    assert len(nodes) > 15
    assert all(node.where is not None and node.where.line == 2 for node in nodes)


def test_deep_nesting() -> None:
    parentheses = "(" * 50_000 + "A(i)" + ")" * 50_000
    assert value(parentheses) == Apply("A", (Name("i"),))
    for deep in ("-" * 5000 + "A(i)", "A(i) + (" * 5000 + "A(i)" + ")" * 5000, "A(" * 5000 + "i" + ")" * 5000, "a ? b : " * 5000 + "c"):
        with pytest.raises(ParseError, match="operations deep") as error:
            value(deep)
        assert "several statements" in error.value.hint and error.value.where is not None
    assert value(" + ".join(["A(i)"] * (MAX_DEPTH - 1)))


def test_the_deepest_programs_check() -> None:
    for deep in (" + ".join(["v(i)"] * (MAX_DEPTH - 1)), "-" * (MAX_DEPTH - 2) + "v(i)", "ok(i) ? 1.0 : " * (MAX_DEPTH - 2) + "v(i)"):
        (definition,) = check(parse(HEAD + f"O(i) = {deep} }}"))
        assert len(definition.statements) == 1


def test_not_a_string() -> None:
    with pytest.raises(ParseError, match="a program is a string, not int"):
        parse(3)  # type: ignore[arg-type]


def test_threads_do_not_mix_texts() -> None:
    failures: list[str] = []

    def work(n: int) -> None:
        for _ in range(20):
            text = f"def f{n}(float(N{n}) A) -> (O{n}) {{ O{n}(i) = A(i) + }}"
            try:
                parse(text)
            except TCError as error:
                if error.where is None or error.where.line_text != text:
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.cold
def test_importing_the_parser_does_not_import_lark() -> None:
    code = "import sys, tcjit.grammar.parse, tcjit.grammar.check; print(sorted({'lark', 'torch', 'islpy'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# ---------------------------------------------------------------- how editors write files


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_ends_a_comment(end: str) -> None:
    text = end.join(["def f(float(N) A) -> (B) {  # sums", "  B(i) = A(i)  # a comment", "}"])
    (d,) = parse("\ufeff" + text)
    assert d.body[0].where is not None and d.body[0].where.line == 2 and d.body[0].where.line_text == "  B(i) = A(i)  # a comment"
    with pytest.raises(ParseError) as caught:
        parse(text.replace("A(i) ", "A(i) ; "))
    assert caught.value.where is not None and caught.value.where.line == 2


def test_compared_comparisons_keep_their_parentheses() -> None:
    (d,) = parse("def f(float(N) A) -> (B) { B(i) = (A(i) < 1) == (A(i) < 2) && ((A(i) < 1) == true) }")
    assert "(A(i) < 1) == (A(i) < 2) && (A(i) < 1) == true" in show(d) and parse(show(d)) == (d,)


@pytest.mark.parametrize("op", [" + ", " - ", " * ", " / "])
def test_a_flat_sum_is_not_nested(op: str) -> None:
    (d,) = parse("def f(float(N) A) -> (B) { B(i) = " + op.join(["A(i)"] * 1000) + " }")
    assert show(d).count("A(i)") == 1000
    with pytest.raises(ParseError, match="more than 1200 operations in a row") as caught:
        parse("def f(float(N) A) -> (B) { B(i) = " + op.join(["A(i)"] * 1300) + " }")
    assert "reduce over it" in caught.value.hint
    with pytest.raises(ParseError, match="nests more than 150"):
        parse("def f(float(N) A) -> (B) { B(i) = " + "(A(i) + " * 200 + "A(i)" + ")" * 200 + " }")
