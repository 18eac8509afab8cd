"""The helpers: each compiles by itself, only what is used is emitted, built-ins are as exact as promised, and loops over them vectorise."""
from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.rings.c import assembly, call, evaluate, has_gcc_with_avx2, plain, program, read

from benchmarks import ulps
from tcjit.codegen import prelude
from tcjit.codegen.dialect import C_FUNCTIONS, VECTOR_MATH, C
from tcjit.codegen.expression import ExpressionPrinter, vtype
from tcjit.grammar.ast import Binary, Call, Cast, Const, Expr, Select
from tcjit.grammar.builtins import BUILTINS
from tcjit.runtime import functions
from tcjit.runtime.numerics import rounded
from tcjit.runtime.vector_math import vector_math_symbols

ROOT = Path(__file__).resolve().parents[2]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, -2.5, 3.0, 1e-40, -1e-40, 1e30, -1e30]
CALLED = [name for name, builtin in BUILTINS.items() if builtin.arity]
LIMIT = 6.0  # ulp: what every built-in keeps, but for these float64 ones
LIMITS = {"cyl_bessel_i0": 12.0, "cyl_bessel_i1": 16.0, "j0": 1e5, "j1": 1e5, "y0": 1e5, "y1": 1e5}
needs_gcc = pytest.mark.skipif(not has_gcc_with_avx2(), reason="asks what gcc makes of AVX2")


# ---------------------------------------------------------------- text


def test_only_what_is_used_is_emitted() -> None:
    assert prelude.text([], C) == "#include <stdint.h>\n"
    text = prelude.text(["tc_max_f32", "TC_FLAG", "sinf"], C)
    assert "tc_max_f32" in text and "float sinf(float);" in text and "#define TC_FLAG(" in text
    assert "tc_min_f32" not in text and "cosf" not in text and len(text.splitlines()) < 10


def test_helpers_come_after_those_they_need_in_one_order() -> None:
    names = prelude.names()
    assert len(names) == len(set(names))
    text = prelude.text(names, C)
    assert text == prelude.text(reversed(names), C)
    bodies = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for name in names:
        first = re.search(rf"\b{name}\b", bodies)
        assert first is not None
        line = bodies[: first.end()].splitlines()[-1]
        assert line.startswith(("TC_INLINE", "static", "#define")), f"{name} is used before it is defined: {line}"


def test_a_name_that_nothing_defines_is_refused() -> None:
    with pytest.raises(KeyError, match="tc_nothing"):
        prelude.text(["tc_nothing"], C)
    assert prelude.known("tc_erf_f32") and prelude.known("sinf") and not prelude.known("A")


def test_every_builtin_has_a_name_at_both_precisions() -> None:
    for name in CALLED:
        if name != "fdivide":  # printed as a division
            assert name in C_FUNCTIONS, f"C_FUNCTIONS of codegen/dialect.py has no {name}"
            assert all(map(prelude.known, C_FUNCTIONS[name])), name
    assert all(map(prelude.known, VECTOR_MATH))


def test_all_helpers_compile_without_a_warning() -> None:
    text = prelude.text(prelude.names(), C)
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"]
    assert "tc_" in text and assembly(text + "\nint64_t f(int64_t a) { return tc_fdiv(a, 3); }\n", flags)


def test_vector_prototypes_are_only_for_functions_that_exist() -> None:
    pragma = "#pragma omp declare simd notinbranch"
    assert pragma not in prelude.text(["sinf", "tc_exp10_f32"], C)
    text = prelude.text(["sinf", "cosf"], replace(C, vector_math=frozenset({"sinf"})))
    assert f"{pragma}\nfloat sinf(float);" in text and text.count(pragma) == 1


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_builtins_at_special_values(dtype: str) -> None:
    """Against the reference: NaN, infinities and zeros exactly, the rest nearly."""
    one = np.array(SPECIAL)
    shown: list[Expr] = [
        Call(name, tuple(read(a, dtype) for a in "ABCD"[: BUILTINS[name].arity]), dtype=dtype) for name in CALLED
    ]
    a, b = (part.ravel() for part in np.meshgrid(one, one))
    c, d = np.roll(b, 5), np.roll(a, 7)
    given = [rounded(part, dtype) for part in (a, b, c, d)]
    outcome = evaluate(shown, {name: (dtype, part) for name, part in zip("ABCD", given)})
    for name, got in zip(CALLED, outcome.values, strict=True):
        with np.errstate(all="ignore"):
            exact = rounded(functions.on_floats(name, tuple(given[: BUILTINS[name].arity]), dtype), dtype)
        close = np.isclose(got, exact, rtol=64 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny if name not in "sinpicospi" else 1e-7)
        tame = close | (np.isnan(got) & np.isnan(exact))
        if name in ("sin", "cos", "tan"):  # of 1e30
            tame |= np.isfinite(exact) & np.isfinite(got) & (np.abs(given[0]) > 1e20)
        bad = np.flatnonzero(~tame)[:3]
        assert not len(bad), f"{name}{[tuple(p[i] for p in given) for i in bad]}: {got[bad]}, not {exact[bad]}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_builtins_are_as_exact_as_promised(dtype: str) -> None:
    kernels = ulps.Kernels([(name, dtype) for name in ulps.CASES], replace(C, vector_math=vector_math_symbols()))
    assert set(ulps.CASES) | set(ulps.EXACT) == set(CALLED), "every built-in is in CASES or EXACT of benchmarks/ulps.py"
    for name in ulps.CASES:
        found = ulps.measure(kernels, name, dtype, 300)
        limit = LIMITS.get(name, LIMIT) if dtype == "float64" else LIMIT
        assert found.ulps <= limit, f"{name} in {dtype}: {found}"


def test_the_page_on_numerics_lists_every_builtin() -> None:
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (\S+) \|", page, re.MULTILINE))
    assert set(rows) == set(ulps.CASES), "python benchmarks/ulps.py --write docs/numerics.md measures what is missing"
    assert all(float(single) <= LIMIT for single in rows.values())
    assert all(name in page for name in ulps.EXACT)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_builtins_of_half_types(dtype: str) -> None:
    x, y = [0.0, 1.0, -1.5, 0.125, math.inf, math.nan, 2.0**-20], [1.0, 2.0, -1.5, -3.0, 0.0, 1.0, 0.0]
    names = ["exp", "tanh", "erf", "sigmoid", "normcdf"]
    shown = [Call(name, (read("A", dtype),), dtype=dtype) for name in names]
    shown.append(Call("nextafter", (read("A", dtype), read("B", dtype)), dtype=dtype))
    outcome = evaluate(shown, {"A": (dtype, x), "B": (dtype, y)})
    a, b = rounded(np.array(x), dtype), np.array(y)
    for name, got in zip(names, outcome.values):
        np.testing.assert_allclose(plain(dtype, got), rounded(functions.on_floats(name, (a,), dtype), dtype), rtol=1e-2)
    np.testing.assert_array_equal(plain(dtype, outcome.values[-1]), functions.on_floats("nextafter", (a, b), dtype))


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid"])
def test_our_float32_functions_over_all_magnitudes(name: str) -> None:
    kernels = ulps.Kernels([(name, "float32"), (name, "float64")], C)
    assert ulps.sweep(kernels, name, step=20011).ulps <= 2.6
    ends = np.float32([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-45, 88.7, 88.8, -103.9, -104.0, 3.4e38, -3.4e38] * 3)
    single, double = kernels.run(name, "float32", [ends]), kernels.run(name, "float64", [ends.astype("f8")])
    with np.errstate(over="ignore"):
        expected = double.astype("f4")
    np.testing.assert_array_equal(np.isnan(single), np.isnan(expected))
    np.testing.assert_allclose(single, expected, rtol=3e-7, atol=1.5e-45)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(single[known]), np.signbit(expected[known]))


def test_float32_remainders_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (part.ravel() for part in np.meshgrid(np.float32(SPECIAL), np.float32(SPECIAL)))
    times, divisor = rng.integers(1, 2**20, 20000), rng.random(20000, "f4")  # next to multiples
    bits = rng.integers(0, 2**32, (2, 40000), dtype=np.uint32).view(np.float32)
    x, y = np.concatenate([a, bits[0], (times * divisor).astype("f4")]), np.concatenate([b, bits[1], divisor])
    shown = [single("fmod", "A", "B"), Binary("%", read("A", "float32"), read("B", "float32"), dtype="float32")]
    got, floored = evaluate(shown, {"A": ("float32", x), "B": ("float32", y)}).values
    with np.errstate(all="ignore"):
        exact = np.fmod(x, y)
        expected = np.where(exact == 0, np.copysign(exact, y), np.where((exact < 0) != (y < 0), exact + y, exact))
    for ours, right in ((got, exact), (floored, expected)):
        known = ~np.isnan(right)
        np.testing.assert_array_equal(ours, right)
        np.testing.assert_array_equal(np.signbit(ours[known]), np.signbit(right[known]))


# ---------------------------------------------------------------- vectors


def unary(name: str, dtype: str = "float32") -> Expr:
    return Call(name, (read("A", dtype),), dtype=dtype)


def compared(op: str, right: Expr) -> Expr:
    return Binary(op, read("A", "float32"), right, dtype="bool")


def single(name: str, *args: str | float) -> Expr:
    """A float32 built-in of arrays and constants."""
    made = (read(a, "float32") if isinstance(a, str) else Const(a, dtype="float32") for a in args)
    return Call(name, tuple(made), dtype="float32")


VECTORISED: dict[str, Expr] = {
    **{name: unary(name) for name in ("exp", "log", "tanh", "erf", "sigmoid", "relu", "rsqrt", "sqrt", "floor", "sign", "abs")},
    **{name: single(name, "A", "B") for name in ("min", "max", "fmin", "fmax", "fdim", "copysign")},
    "fmod": single("fmod", "A", "B"),
    "floored remainder": Binary("%", read("A", "float32"), read("B", "float32"), dtype="float32"),
    "clamp": single("clamp", "A", 0.0, "B"),
    "clamp between constants": single("clamp", "A", 0.0, 6.0),
    "max of maxima": Call("max", (single("max", "A", "B"), single("max", 0.0, "B")), dtype="float32"),
    "max of doubles": Call("max", (read("D", "float64"), Const(0.0, dtype="float64")), dtype="float64"),
    "max of bytes": Call("max", (read("U", "uint8"), Const(3, dtype="uint8")), dtype="uint8"),
    "bytes added": Binary("+", read("U", "uint8"), Const(3, dtype="uint8"), dtype="uint8"),
    "to int32": Cast(read("A", "float32"), dtype="int32"),
    "to half": Cast(read("A", "float32"), dtype="float16"),
    "to bfloat16": Cast(read("A", "float32"), dtype="bfloat16"),
    "of half": Cast(read("H", "float16"), dtype="float32"),
    "of bfloat16": Cast(read("H", "bfloat16"), dtype="float32"),
    "exp in an arm": Select(compared("<", read("B", "float32")), unary("exp"), unary("tanh"), dtype="float32"),
    "condition stored": Binary("&&", compared("<", read("B", "float32")), compared(">", Const(0, dtype="float32")), dtype="bool"),
}
INPUTS = {"A": "float32", "B": "float32", "D": "float64", "U": "uint8"}


def body(text: str) -> str:
    """The assembly of ``run``."""
    return text[text.index("\nrun:") : text.index(".size\trun,")]


def calls(text: str) -> list[str]:
    return re.findall(r"\b(?:call|jmp)q?\s+\*?(\w+)", "\n".join(line for line in text.splitlines() if ".L" not in line))


@needs_gcc
@pytest.mark.parametrize("what", VECTORISED)
def test_loops_vectorise(what: str) -> None:
    expr = VECTORISED[what]
    inputs = {**INPUTS, "H": "bfloat16" if what == "of bfloat16" else "float16"}
    text, _ = program([expr], inputs, simd=True)
    made = body(assembly(text, ["-fno-stack-protector"]))
    assert re.search(r"%[yz]mm\d", made), made
    assert not calls(made), f"calls {calls(made)}"


@needs_gcc
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_that_keep_nan_vectorise(dtype: str) -> None:
    printer = ExpressionPrinter(C, lambda access, p: f"{access.tensor}[i]", lambda kind, name: name)
    step, start = printer.combine("max=", dtype, "omp_out", "omp_in"), printer.identity("max=", dtype)
    kind = vtype(dtype)
    text = f"""{prelude.text(printer.used, C)}
#pragma omp declare reduction(largest : {kind} : omp_out = {step}) initializer(omp_priv = {start})
int64_t run(void *const *inputs, void *const *outputs, int64_t n) {{
  const {kind} *restrict A = inputs[0];
  {kind} s = {start};
#pragma omp simd reduction(largest : s)
  for (int64_t i = 0; i < n; ++i) s = {printer.combine("max=", dtype, "s", "A[i]")};
  *({kind} *)outputs[0] = s;
  return 0;
}}
"""
    assert re.search(r"%[yz]mm\d", body(assembly(text, ["-fno-stack-protector"])))
    for special in (math.nan, math.inf, 5.0):
        for place in (0, 40, 99):
            given, got = np.linspace(-2, -1, 100).astype(dtype), np.empty(1, dtype)
            given[place] = special
            call(text, "run", [given], [got], 100)
            np.testing.assert_array_equal(got[0], special)


@needs_gcc
@pytest.mark.parametrize("name", ["sin", "exp2", "log1p", "pow", "atan2"])
def test_library_functions_vectorise_where_the_library_has_them(name: str) -> None:
    library = C_FUNCTIONS[name][0]
    if library not in vector_math_symbols():
        pytest.skip("no libmvec")
    expr = Call(name, tuple(read(a, "float32") for a in "AB"[: BUILTINS[name].arity]), dtype="float32")
    with_it = assembly(program([expr], INPUTS, replace(C, vector_math=vector_math_symbols()), simd=True)[0])
    assert re.search(rf"_ZGV[cde]N\d+v+_{library}\b", with_it)
    without = assembly(program([expr], INPUTS, C, simd=True)[0])
    assert "_ZGV" not in without and library in without


@needs_gcc
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_normal_distribution_is_one_function_of_the_library_in_all_its_range(dtype: str) -> None:
    if not {"erfc", "erfcf"} <= vector_math_symbols():
        pytest.skip("no libmvec")
    shown = [unary("normcdf", dtype)]
    text, _ = program(shown, {"A": dtype}, replace(C, vector_math=vector_math_symbols()), simd=True)
    made = body(assembly(text, ["-fno-stack-protector"]))
    assert re.search(r"_ZGV[cde]N\d+v_erfcf?\b", made) and not re.search(r"\b_ZGV\w*_(?!erfc)", made)
    assert {name.removesuffix("@PLT") for name in calls(made) if not name.startswith("_ZGV")} <= {"erfc", "erfcf"}
    with np.errstate(over="ignore"):
        x = np.array([math.inf, -math.inf, math.nan, -1e300, 1e300, 0.0, -0.0, 1e-310, -14.0, -37.5]).astype(dtype)
        exact = functions.on_floats("normcdf", (x,), dtype).astype(dtype)
    (got,) = evaluate(shown, {"A": (dtype, x)}).values
    np.testing.assert_allclose(got, exact, rtol=1e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_nan_stays_one_whatever_its_bits(dtype: str) -> None:
    """Parts of its payload are no exponent."""
    kind, least = ("uint32", 0x7F800001) if dtype == "float32" else ("uint64", 0x7FF0000000000001)
    rng, bits = np.random.default_rng(0), 23 if dtype == "float32" else 52
    payloads = np.concatenate([rng.integers(1, 2**bits, 400), 2 ** np.arange(bits), 2**bits - 1 - 2 ** np.arange(bits - 1)])
    x = np.concatenate([payloads, payloads]).astype(kind) + np.asarray(least - 1, kind)
    x[: len(payloads)] |= np.asarray(1, kind) << np.asarray(31 if dtype == "float32" else 63, kind)
    unary_ones = [name for name, builtin in BUILTINS.items() if builtin.arity == 1]
    found = evaluate([unary(name, dtype) for name in unary_ones], {"A": (dtype, x.view(dtype))}).values
    lost = {name: x[~np.isnan(got)] for name, got in zip(unary_ones, found, strict=True) if not np.isnan(got).all()}
    assert not lost
