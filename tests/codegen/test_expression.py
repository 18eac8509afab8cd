"""Each operator, conversion and reduction step of the printer, compiled and run, against Python's exact integers, NumPy and torch.

Modules: codegen.text
"""
from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from support.fuzz.values import FLOATS, INF, INTEGERS, NAN, SPECIAL, assert_same, edges, pairs, samples
from support.rings.c import call, evaluate, plain, read

from tcjit.codegen import prelude
from tcjit.codegen.dialect import C, Dialect
from tcjit.codegen.expression import ExpressionPrinter, ctype, literal, vtype
from tcjit.errors import CompileError, Where
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Size, Unary
from tcjit.grammar.dtypes import DTYPES, converted


def make(access=lambda a, p: a.tensor, name=lambda kind, n: n, **more) -> ExpressionPrinter:
    return ExpressionPrinter(C, access, name, **more)


# ---------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps_and_floors(dtype: str) -> None:
    a, b = pairs(edges(dtype))
    x, y = read("A", dtype), read("B", dtype)
    wrap = lambda value: converted(value, dtype)  # noqa: E731
    exact = {
        "+": lambda u, v: u + v, "-": lambda u, v: u - v, "*": lambda u, v: u * v,
        "/": lambda u, v: u // v if v else 0, "%": lambda u, v: u % v if v else 0,
    }  # fmt: skip
    shown = [Binary(op, x, y, dtype=dtype) for op in exact] + [Unary("-", x, dtype=dtype)]
    # a wrapped value is wrapped before it is used again
    shown.append(Binary("/", Binary("+", x, y, dtype=dtype), Const(3, dtype=dtype), dtype=dtype))
    shown += [Binary(op, x, Const(c, dtype=dtype), dtype=dtype) for c in (2, 7) for op in "/%"]
    outcome = evaluate(shown, {"A": (dtype, a), "B": (dtype, b)})
    expected = [[wrap(f(u, v)) for u, v in zip(a, b)] for f in exact.values()]
    expected += [[wrap(-u) for u in a], [wrap(u + v) // 3 for u, v in zip(a, b)]]
    expected += [[f(u, c) for u in a] for c in (2, 7) for f in (exact["/"], exact["%"])]
    for got, want in zip(outcome.values, expected, strict=True):
        assert_same(got, np.array(want, dtype=dtype))
    assert [s["kind"] for s in outcome.sites] == ["division"], "divisors that are constants need no site, equal sites are one"
    assert outcome.flag == 1


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if DTYPES[d].kind == "signed"])
def test_division_by_a_negative_constant(dtype: str) -> None:
    a = edges(dtype)
    shown = [Binary(op, read("A", dtype), Const(c, dtype=dtype), dtype=dtype) for c in (-1, -3) for op in "/%"]
    outcome = evaluate(shown, {"A": (dtype, a)})
    want = [[converted(f(u, c), dtype) for u in a] for c in (-1, -3) for f in (operator.floordiv, operator.mod)]
    for got, expected in zip(outcome.values, want, strict=True):
        assert_same(got, np.array(expected, dtype=dtype))
    assert outcome.flag == 0 and not outcome.sites


def test_a_zero_divisor_flags_its_site_and_gives_zero_and_unchecked_only_gives_zero() -> None:
    def divide(line: int) -> Expr:
        return Binary("/", read("A", "int32"), read("B", "int32"), dtype="int32", where=Where(line, 3, 1, "A / B"))

    given = {"A": ("int32", [7, 7]), "B": ("int32", [2, 0])}
    outcome = evaluate([divide(1), divide(2)], given)
    assert [v.tolist() for v in outcome.values] == [[3, 0], [3, 0]]
    assert outcome.flag == 2, "the larger site wins"
    assert outcome.sites[1] == {"kind": "division", "line": 2, "column": 3, "line_text": "A / B"}
    free = evaluate([divide(1)], given, checked=False)
    assert free.values[0].tolist() == [3, 0] and free.flag == 0 and not free.sites


def test_a_divisor_is_evaluated_once_however_deep_divisions_nest() -> None:
    expr: Expr = read("A", "int32")
    for _ in range(12):
        expr = Binary("/", read("A", "int32"), expr, dtype="int32")
    outcome = evaluate([expr], {"A": ("int32", [5])})
    assert outcome.values[0].tolist() == [5] and outcome.flag == 0
    assert outcome.text.count("A[i]") == 13


def test_a_divisor_not_reached_does_not_flag() -> None:
    a, b = read("A", "int32"), read("B", "int32")
    quotient = Binary("/", a, b, dtype="int32")
    fine = Binary("!=", b, Const(0, dtype="int32"), dtype="bool")
    large = Binary(">", quotient, Const(2, dtype="int32"), dtype="bool")
    shown = [
        Select(fine, quotient, Const(-1, dtype="int32"), dtype="int32"),
        Binary("&&", fine, large, dtype="bool"),
        Binary("||", Unary("!", fine, dtype="bool"), large, dtype="bool"),
    ]
    outcome = evaluate(shown, {"A": ("int32", [7, 7]), "B": ("int32", [2, 0])})
    assert [v.tolist() for v in outcome.values] == [[3, -1], [True, False], [True, True]] and outcome.flag == 0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_builtins(dtype: str) -> None:
    a, b = pairs(edges(dtype))
    x, y = read("A", dtype), read("B", dtype)
    functions = {
        "min": (2, min), "max": (2, max), "abs": (1, abs), "sign": (1, lambda u: (u > 0) - (u < 0)), "relu": (1, lambda u: max(u, 0)),
    }  # fmt: skip
    shown = [Call(name, (x, y)[:arity], dtype=dtype) for name, (arity, _) in functions.items()]
    shown.append(Call("clamp", (x, Const(1, dtype=dtype), y), dtype=dtype))
    outcome = evaluate(shown, {"A": (dtype, a), "B": (dtype, b)})
    expected = [[converted(f(*pair[:arity]), dtype) for pair in zip(a, b)] for arity, f in functions.values()]
    expected.append([min(max(u, 1), v) for u, v in zip(a, b)])
    for got, want in zip(outcome.values, expected, strict=True):
        assert_same(got, np.array(want, dtype=dtype))


def test_bools_add_by_or_and_multiply_by_and() -> None:
    a, b = pairs([False, True])
    x, y = read("A", "bool"), read("B", "bool")
    shown = [Binary(op, x, y, dtype="bool") for op in ("+", "*", "&&", "||", "==", "!=", "<")]
    shown += [Call(name, (x, y), dtype="bool") for name in ("min", "max")] + [Unary("!", x, dtype="bool")]
    got = [v.tolist() for v in evaluate(shown, {"A": ("bool", a), "B": ("bool", b)}).values]
    rules = [operator.or_, operator.and_, operator.and_, operator.or_, operator.eq, operator.ne, operator.lt, operator.and_, operator.or_]
    assert got == [[f(u, v) for u, v in zip(a, b)] for f in rules] + [[not u for u in a]]


# ---------------------------------------------------------------- floats


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic_and_comparisons(dtype: str) -> None:
    a, b = pairs(SPECIAL)
    x, y = read("A", dtype), read("B", dtype)
    own = np.float64 if dtype == "float64" else np.float32
    u, v = np.array(a, own), np.array(b, own)
    shown = [Binary(op, x, y, dtype=dtype) for op in "+-*/%"] + [Unary("-", x, dtype=dtype)]
    shown += [Binary(op, x, y, dtype="bool") for op in ("<", ">", "<=", ">=", "==", "!=")]
    outcome = evaluate(shown, {"A": (dtype, a), "B": (dtype, b)})
    with np.errstate(all="ignore"):
        expected = [u + v, u - v, u * v, u / v, np.remainder(u, v), -u, u < v, u > v, u <= v, u >= v, u == v, u != v]
    for expr, got, want in zip(shown, outcome.values, expected, strict=True):
        if want.dtype != np.bool_ and dtype in ("float16", "bfloat16"):
            want = torch.tensor(want).to(getattr(torch, dtype)).float().numpy()
        assert_same(plain(expr.dtype, got), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_selections_keep_or_drop_nan(dtype: str) -> None:
    a, b = pairs([0.0, 1.0, -1.0, 2.5, NAN, INF, -INF])
    x, y = read("A", dtype), read("B", dtype)
    u, v = torch.tensor(a).float(), torch.tensor(b).float()
    expected = {
        "min": torch.minimum(u, v), "max": torch.maximum(u, v), "fmin": torch.fmin(u, v), "fmax": torch.fmax(u, v),
        "relu": torch.relu(u), "abs": u.abs(), "fabs": u.abs(), "sign": torch.from_numpy(np.sign(u.numpy())),
    }  # fmt: skip
    shown = [Call(name, (x, y) if name in ("min", "max", "fmin", "fmax") else (x,), dtype=dtype) for name in expected]
    shown.append(Call("clamp", (x, y, Const(2.0, dtype=dtype)), dtype=dtype))
    outcome = evaluate(shown, {"A": (dtype, a), "B": (dtype, b)})
    wanted = [*expected.values(), torch.clamp(u, v, torch.tensor(2.0))]
    for expr, got, want in zip(shown, outcome.values, wanted, strict=True):
        np.testing.assert_array_equal(plain(expr.dtype, got).astype("float32"), want.numpy(), err_msg=str(expr))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_loads_and_stores_as_torch_has_it(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    loaded = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, dtype)).float().numpy()
    name = "half" if dtype == "float16" else "bfloat"
    text = prelude.text([f"tc_{name}_to_float"], C)
    body = f"""int64_t run(void *const *inputs, void *const *outputs, int64_t n) {{
      const uint16_t *x = inputs[0]; float *y = outputs[0];
      for (int64_t i = 0; i < n; ++i) y[i] = tc_{name}_to_float(x[i]);
      return 0; }}"""
    got = np.empty(1 << 16, np.float32)
    call(text + body, "run", [bits], [got], 1 << 16)
    assert_same(got, loaded)

    random = np.random.default_rng(3).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    finite = np.abs(loaded[np.isfinite(loaded)])
    middle = (np.sort(finite)[:-1:2].astype("f8") + np.sort(finite)[1::2]) / 2  # ties
    given = np.concatenate([random, loaded, middle.astype("f4"), np.float32([65519.9, 65520.0, 3.39e38, 3.4e38, 1e-45, -1e-8])])
    (back,) = evaluate([Cast(read("A", "float32"), dtype=dtype)], {"A": ("float32", given)}).values
    want = torch.from_numpy(given).to(getattr(torch, dtype))
    number = ~np.isnan(given)
    np.testing.assert_array_equal(back[number].view(np.int16), want.view(torch.int16).numpy()[number])
    assert np.isnan(plain(dtype, back)[~number]).all()


# ---------------------------------------------------------------- conversions


@pytest.mark.parametrize("source", DTYPES)
def test_every_cast(source: str) -> None:
    given = samples(source)
    shown = [Cast(read("A", source), dtype=target) for target in DTYPES]
    outcome = evaluate(shown, {"A": (source, given)})
    for expr, got in zip(shown, outcome.values, strict=True):
        want = [converted(value, expr.dtype) for value in given]
        got_list = plain(expr.dtype, got).tolist()
        for value, a, b in zip(given, got_list, want, strict=True):
            assert a == b or (a != a and b != b), f"{source}({value}) as {expr.dtype}: {a}, not {b}"


def test_a_half_is_computed_in_float_and_rounded_only_by_casts_and_stores() -> None:
    x = read("A", "float16")
    wide = Binary("+", x, Const(1.0, dtype="float16"), dtype="float16")
    kept = Binary("-", wide, Const(1.0, dtype="float16"), dtype="float16")
    cut = Binary("-", Cast(wide, dtype="float16"), Const(1.0, dtype="float16"), dtype="float16")
    outcome = evaluate([kept, cut], {"A": ("float16", [2.0**-12])})
    assert [plain("float16", v).tolist() for v in outcome.values] == [[2.0**-12], [0.0]]


def test_wide_numbers_round_to_half_types_once() -> None:
    wide = [1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40, -(1 + 2.0**-11 + 2.0**-45), 2.0**-133 * (1.5 + 2.0**-45)]
    shown = [Cast(read("A", "float64"), dtype=d) for d in ("float16", "bfloat16")] + [Cast(read("B", "int64"), dtype="bfloat16")]
    whole = [2**25 + 2**17 + 1, 2**25 + 2**17, -(2**25 + 2**17 + 1), 3, 2**62]
    outcome = evaluate(shown, {"A": ("float64", wide), "B": ("int64", whole)})
    for expr, got, given in zip(shown, outcome.values, (wide, wide, whole), strict=True):
        assert plain(expr.dtype, got).tolist() == [converted(v, expr.dtype) for v in given]


# ---------------------------------------------------------------- literals, names


@pytest.mark.parametrize("dtype", DTYPES)
def test_literals_are_exact(dtype: str) -> None:
    if dtype == "bool":
        values: list = [True, False]
    elif DTYPES[dtype].is_integer:
        values = edges(dtype)
    else:
        random = np.random.default_rng(5)
        drawn = random.integers(0, 256, 800, dtype=np.uint8).view("float64" if dtype == "float64" else "float32")
        values = [0.0, -0.0, 0.1, 1.0, 1e300, 1e16, 5e-324, 1e-45, 16777216.0, INF, -INF, NAN, *map(float, drawn)]
        values = [converted(v, dtype) for v in values]
    outcome = evaluate([Const(v, dtype=dtype) for v in values], {})
    got = np.array([plain(dtype, v)[0] for v in outcome.values])
    assert_same(got, np.array(values, dtype=got.dtype))


def test_literals_read_well() -> None:
    assert [literal("float32", v) for v in (0.0, 0.5, -2.0, 1e-5, 1e20)] == ["0.0f", "0.5f", "-2.0f", "1e-05f", "1e+20f"]
    assert [literal("float64", v) for v in (0.1, 1.0)] == ["0.1", "1.0"]
    assert [literal("int64", v) for v in (3, 2**31, -(2**63))] == ["3", "2147483648ll", "(-9223372036854775807ll - 1)"]


def test_names_have_the_type_of_the_expression() -> None:
    texts = {"i": "i0", "N": "1024", "s": "s", "k": "(-3)"}
    printer = make(name=lambda kind, name: texts[name])
    assert printer.value(Index("i", dtype="int32")) == "(int32_t)i0"
    assert printer.value(Index("i", dtype="int64")) == "i0"
    assert printer.value(Size("N", dtype="int32")) == "1024"
    assert printer.value(Scalar("s", dtype="uint8")) == "s"
    assert printer.value(Scalar("s", dtype="int64")) == "(int64_t)s"
    assert printer.value(Scalar("k", dtype="int32")) == "-3"
    assert printer.value(Cast(Binary("+", Index("i", dtype="int32"), Const(1, dtype="int32"), dtype="int32"), dtype="float32")) == (
        "(float)((int32_t)i0 + 1)"
    )


# ---------------------------------------------------------------- index arithmetic


def i64(op: str, left: Expr, right: Expr) -> Binary:
    return Binary(op, left, right, dtype="int64")


def number(value: int) -> Const:
    return Const(value, dtype="int64")


def test_index_arithmetic_reads_well() -> None:
    h, k = Index("h", dtype="int64"), Index("k", dtype="int64")
    printer = make()
    assert printer.index(i64("-", i64("+", i64("*", number(2), h), k), number(1))) == "2 * h + k - 1"
    assert printer.index(i64("/", i64("+", h, k), number(3))) == "tc_fdiv(h + k, 3)"
    assert printer.index(i64("%", h, number(3))) == "tc_mod(h, 3)"
    assert printer.index(Cast(read("Idx[b]", "int32"), dtype="int64")) == "(int64_t)Idx[b]"
    assert printer.index(read("Idx[b]", "uint8")) == "(int64_t)Idx[b]"
    assert printer.index(Call("max", (h, number(0)), dtype="int64")) == "tc_max_index(h, 0)"
    assert printer.index(Const(5, dtype="int32")) == "5"
    assert printer.used == ("tc_fdiv", "tc_mod", "tc_max_index")


def test_index_arithmetic_never_overflows_an_int() -> None:
    size = Size("N", dtype="int64")
    printer = make(name=lambda kind, name: "100000")
    assert printer.index(i64("*", size, size)) == "10000000000ll"
    assert printer.index(Unary("-", size, dtype="int64")) == "-100000"
    chosen = Select(Binary("<", read("a", "float32"), read("b", "float32"), dtype="bool"), size, number(3), dtype="int64")
    assert printer.index(i64("*", chosen, size)) == "(a < b ? (int64_t)100000 : 3) * 100000"


def test_floored_index_division_runs() -> None:
    a = [-7, -6, -1, 0, 1, 6, 7, -(2**62)]
    x = read("A", "int64")
    shown = [i64(op, x, number(c)) for c in (3, 4, -3) for op in "/%"]
    outcome = evaluate(shown, {"A": ("int64", a)})
    want = [[f(u, c) for u in a] for c in (3, 4, -3) for f in (operator.floordiv, operator.mod)]
    assert [v.tolist() for v in outcome.values] == want and outcome.flag == 0


# ---------------------------------------------------------------- text


def test_text_is_parenthesised_as_people_would() -> None:
    a, b, c = (read(name, "float32") for name in "abc")
    f = lambda op, x, y: Binary(op, x, y, dtype="float32")  # noqa: E731
    p = lambda op, x, y: Binary(op, x, y, dtype="bool")  # noqa: E731
    choice = lambda x, y, z: Select(x, y, z, dtype="float32")  # noqa: E731
    printer = make()
    cases = {
        "a + b * c": f("+", a, f("*", b, c)),
        "(a + b) * c": f("*", f("+", a, b), c),
        "a - (b - c)": f("-", a, f("-", b, c)),
        "a + (b + c)": f("+", a, f("+", b, c)),
        "-(a + b) * c": f("*", Unary("-", f("+", a, b), dtype="float32"), c),
        "a - -b": f("-", a, Unary("-", b, dtype="float32")),
        "-(-a)": Unary("-", Unary("-", a, dtype="float32"), dtype="float32"),
        "a < b ? b : c < a ? a : 0.0f": choice(p("<", a, b), b, choice(p("<", c, a), a, Const(0, dtype="float32"))),
        "(a < b ? a : b) + c": f("+", choice(p("<", a, b), a, b), c),
        "((a < b) & (b < c)) || c < a": p("||", p("&&", p("<", a, b), p("<", b, c)), p("<", c, a)),
        "(a < b) == (b < c)": p("==", p("<", a, b), p("<", b, c)),
        "!(a < b)": Unary("!", p("<", a, b), dtype="bool"),
        "(a < b) & (b < a)": p("&&", p("<", a, b), p("<", b, a)),
        "tc_max_f32(a, 0.0f) / b": f("/", Call("max", (a, Const(0.0, dtype="float32")), dtype="float32"), b),
        "a / b": Call("fdivide", (a, b), dtype="float32"),
        "sinf(a + b)": Call("sin", (f("+", a, b),), dtype="float32"),
    }
    for text, expr in cases.items():
        assert printer.value(expr) == text


def test_texts_of_the_caller_are_operands() -> None:
    printer = make(access=lambda access, p: "ok ? A[i] : 0")
    doubled = Binary("*", Access("A", (), dtype="float32"), Const(2.0, dtype="float32"), dtype="float32")
    assert printer.value(doubled) == "(ok ? A[i] : 0) * 2.0f"
    assert printer.load("float16", "A[i]") == "tc_half_to_float(A[i])"
    assert printer.store("bfloat16", "A[i]", "x + y") == "A[i] = tc_float_to_bfloat(x + y);"
    assert (ctype("float16"), vtype("bfloat16"), ctype("bool"), ctype("uint8")) == ("uint16_t", "float", "_Bool", "uint8_t")


def test_a_builtin_that_a_target_lacks_is_named() -> None:
    printer = ExpressionPrinter(Dialect("bare", "static", {}), lambda access, p: access.tensor, lambda kind, name: name)
    with pytest.raises(CompileError, match="the bare target has no `erf`"):
        printer.value(Call("erf", (read("a", "float32"),), dtype="float32"))


# ---------------------------------------------------------------- reductions


def test_reduction_steps_and_identities() -> None:
    printer = make()
    assert printer.combine("+=", "float32", "s", "a * b") == "s + (a * b)"
    product = printer.value(Binary("*", read("a", "float32"), read("b", "float32"), dtype="float32"))
    assert printer.combine("+=", "float32", "s", product) == "s + a * b"
    assert printer.combine("max", "float16", "s", "x") == "tc_max_f32(s, x)"
    assert printer.combine("*=", "uint8", "s", "x") == "(uint8_t)(s * x)"
    assert printer.combine("min=", "bool", "s", "x") == "s & x"
    assert [printer.identity(op, "float32") for op in ("+=", "*=", "min=", "max=")] == ["0.0f", "1.0f", "INFINITY", "-INFINITY"]
    assert [printer.identity(op, "int8") for op in ("+=", "*=", "min=", "max=")] == ["0", "1", "127", "-128"]
    assert [printer.identity(op, "bool") for op in ("+=", "*=", "min=", "max=")] == ["0", "1", "1", "0"]
    assert "INFINITY" in printer.used


def test_sites_are_plain_data_and_not_repeated() -> None:
    printer = make()
    where = Where(2, 5, 1, "  A(I(i))")
    assert printer.site("gather", tensor="A", where=where) == 1 == printer.site("gather", tensor="A", where=where)
    assert printer.site("division", where=None) == 2
    assert printer.sites[0] == {"kind": "gather", "tensor": "A", "line": 2, "column": 5, "line_text": "  A(I(i))"}
    assert printer.used == ("TC_FLAG",)
