"""CUDA C and OpenCL C: helpers compile as they are, and expressions have the values that they have in C.

CUDA is compiled by NVRTC and run on the host's fibers, where the functions of CUDA's own library are the C library's; OpenCL runs on PoCL.

Modules: codegen.dialect codegen.gpu_prelude
"""
from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from support.fuzz.values import FLOATS, INF, INTEGERS, NAN, SPECIAL, assert_same, edges, pairs, samples
from support.rings import opencl
from support.rings.c import Outcome, plain, read
from support.rings.cuda_host import COMPILER
from support.rings.dialect import Group, evaluate, kernel, run, signature

from benchmarks import ulps
from tcjit.codegen import prelude
from tcjit.codegen.dialect import CUDA, OPENCL, C, GpuDialect
from tcjit.codegen.expression import ExpressionPrinter, ctype, literal, vtype
from tcjit.errors import CompileError, Where
from tcjit.grammar.ast import Binary, Call, Cast, Const, Expr, Scalar, Select, Unary
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.dtypes import DTYPES, converted
from tcjit.runtime import functions, nvrtc
from tcjit.runtime.numerics import rounded

DIALECTS = {d.name: d for d in (CUDA, OPENCL)}
CALLED = [name for name, builtin in BUILTINS.items() if builtin.arity]
EXTREME = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, -2.5, 3.0, 1e-40, -1e-40, 1e30, -1e30]
LIMIT = 6.0  # ulp, as in C; next to a zero of these the errors are small, but not in ulp
BESSEL = ("j0", "j1", "y0", "y1")
WHERE = Where(1, 3, 1, "A / B")

each = pytest.mark.parametrize("dialect", [CUDA, OPENCL], ids=lambda d: d.name)


@pytest.fixture(params=[pytest.param("cuda"), pytest.param("opencl", marks=pytest.mark.opencl)])
def runs(request: pytest.FixtureRequest) -> GpuDialect:
    """A dialect whose kernels run here."""
    dialect = DIALECTS[request.param]
    if dialect is OPENCL:
        opencl.require("pocl")
    elif COMPILER is None:
        pytest.skip("needs g++, which stands in for a GPU")
    return dialect


def arguments(name: str, dtype: str) -> tuple[Expr, ...]:
    return tuple(read(a, dtype) for a in "ABCD"[: BUILTINS[name].arity])


def printer(dialect: GpuDialect) -> ExpressionPrinter:
    return ExpressionPrinter(dialect, lambda access, p: access.tensor, lambda kind, name: name)


# ---------------------------------------------------------------- text


@each
def test_every_builtin_has_a_name_at_both_precisions(dialect: GpuDialect) -> None:
    for name in CALLED:
        if name != "fdivide":  # printed as a division
            assert name in dialect.functions, f"the {dialect.name} table of codegen/dialect.py has no {name}"
            assert all(prelude.known(one, dialect) for one in dialect.functions[name]), name


@each
def test_helpers_come_after_those_they_need_in_one_order(dialect: GpuDialect) -> None:
    names = prelude.names(dialect)
    text = prelude.text(names, dialect)
    assert len(names) == len(set(names)) and text == prelude.text(reversed(names), dialect)
    bodies = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for name in names:
        first = re.search(rf"\b{name}\b", bodies)
        assert first is not None
        line = bodies[: first.end()].splitlines()[-1]
        starts = ("TC_INLINE", dialect.outline, "static __device__ __noinline__", "#define")
        assert line.startswith(starts), f"{name} is used before it is defined: {line}"


@each
def test_helpers_hold_nothing_that_only_c_has(dialect: GpuDialect) -> None:
    text = re.sub(r"/\*.*?\*/", "", prelude.text(prelude.names(dialect), dialect), flags=re.DOTALL)
    assert not re.findall(r"#include|__builtin_\w+|_Bool|__auto_type|\(\{|TC_FLAG|\bU?INT\d+_M\w+|\$\w", text)
    if dialect is OPENCL:
        assert not re.findall(r"long long|\bll\b|\d+u?ll\b|\bhalf\b|\basm\b", text)


@each
def test_only_what_is_used_is_emitted(dialect: GpuDialect) -> None:
    assert prelude.text([], dialect) == dialect.top + "\n"
    text = prelude.text(["tc_sigmoid_f32", "NAN", dialect.functions["sin"][0]], dialect)
    assert "tc_sigmoid_f32" in text and "tc_tanh_f32" not in text and "sin" not in text
    assert ("expf(" in text) == ("tc_exp_within_f32" not in text) == (dialect is CUDA)
    with pytest.raises(KeyError, match="tc_nothing"):
        prelude.text(["tc_nothing"], dialect)
    with pytest.raises(KeyError, match="TC_FLAG"):
        prelude.text(["TC_FLAG"], dialect)


def test_names_that_a_language_has_a_use_for() -> None:
    reserved = {CUDA: "template this float4 threadIdx bool", OPENCL: "kernel half uint float4 M_PI global as_float CLK_LOCAL_MEM_FENCE"}
    for dialect, words in reserved.items():
        assert all(prelude.known(word, dialect) for word in words.split())
        assert not any(prelude.known(word, dialect) for word in ("A", "kernels", "halfway", "news"))
    assert not prelude.known("kernel", C) and prelude.known("cosf", CUDA) and prelude.known("cos", OPENCL)


@each
def test_types_and_literals(dialect: GpuDialect) -> None:
    assert (vtype("bool", dialect), vtype("int64", dialect), vtype("bfloat16", dialect)) == ("bool", "int64_t", "float")
    assert (ctype("bool", dialect), ctype("float16", dialect)) == ("uint8_t" if dialect is OPENCL else "bool", "uint16_t")
    wide = "l" if dialect is OPENCL else "ll"
    assert literal("uint64", 5, dialect) == f"5u{wide}" and literal("int64", 1 << 40, dialect) == f"{1 << 40}{wide}"
    infinity = printer(dialect)
    assert infinity.value(Const(-INF, dtype="float64")) == "(double)-INFINITY" and infinity.used == ("INFINITY",)


def test_signed_integers_wrap_in_words() -> None:
    a, b = read("a", "int32"), read("b", "int32")
    show = printer(CUDA)
    assert show.value(Binary("+", Binary("*", a, b, dtype="int32"), a, dtype="int32")) == "tc_add_i32(tc_mul_i32(a, b), a)"
    assert show.value(Unary("-", read("a", "int64"), dtype="int64")) == "tc_neg_i64(a)"
    assert show.value(Binary("-", read("a", "uint32"), read("b", "uint32"), dtype="uint32")) == "a - b"
    assert show.value(Binary("*", read("a", "uint16"), read("b", "uint16"), dtype="uint16")) == "tc_mul_u16(a, b)"
    assert show.combine("+=", "int64", "s", "x") == "tc_add_i64(s, x)" and show.combine("+=", "float32", "s", "x") == "s + x"
    assert show.value(Scalar("s", dtype="int64")) == "(int64_t)s"


def test_checks_name_the_flag_and_the_site() -> None:
    show = printer(OPENCL)
    quotient = show.value(Binary("/", read("a", "int16"), read("b", "int16"), dtype="int16", where=WHERE))
    assert quotient == "(int16_t)tc_div_i32(a, tc_nonzero_i32(b, 1, &tc_failed))"
    assert show.inside("c", "7", show.site("gather", tensor="A", where=WHERE)) == "tc_at(c, 7, 2, &tc_failed)"
    text = prelude.text(show.used, OPENCL)
    assert "int32_t *failed" in text and "TC_FLAG" not in text
    assert [site["kind"] for site in show.sites] == ["division", "gather"]


def test_a_builtin_that_a_target_lacks_is_named() -> None:
    with pytest.raises(CompileError, match="the cuda target has no `gamma`"):
        printer(CUDA).value(Call("gamma", (read("a", "float32"),), dtype="float32"))


# ---------------------------------------------------------------- compilers


HELPER = re.compile(r"^(?:TC_INLINE|static [\w ]*inline(?:__)?) (\w+) (tc_\w+)\(([^)]*)\) \{", re.MULTILINE)


def argument(parameter: str, number: int) -> str:
    """A value out of memory for a parameter; what is behind a pointer is shared memory, or the results."""
    kind, _, name = parameter.replace("*", "* ").rpartition(" ")
    if name == "failed":
        return "&tc_failed"
    array = "R0" if kind.startswith("__global") else "values"
    return "tc_flag" if name == "flag" else f"({kind}){array}" if "*" in kind else f"({kind})A0[{number}]"


def callers(dialect: GpuDialect) -> str:
    """A kernel that calls every helper."""
    text = prelude.text(prelude.names(dialect), dialect)
    lines = [f"  {dialect.shared} {dialect.aligned.format(bytes=16)} double values[64];", "  int32_t tc_failed = 0;"]
    for result, name, parameters in HELPER.findall(text):
        called = f"{name}({', '.join(argument(p, n) for n, p in enumerate(filter(None, parameters.split(', '))))});"
        lines.append(f"  {called}" if result == "void" else f"  R0[{len(lines)}] = (double){called}")
    assert len(lines) == 2 + sum(name.startswith("tc_") for name in prelude.names(dialect))
    return text + signature("run0", ["double"], ["double"], dialect) + " {\n" + "\n".join(lines) + "\n}\n"


@cache
def compiled(text: str, architecture: str, *options: str) -> nvrtc.CubinFile:
    try:
        nvrtc.find()
    except CompileError as error:
        pytest.skip(f"{error.args[0]}: {nvrtc.INSTALL}")
    return nvrtc.compile(text, ["run0"], architecture, options)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_takes_every_helper_without_a_warning(architecture: str) -> None:
    found = compiled(callers(CUDA), architecture, "-G")  # unoptimised: 1 s instead of 20
    assert found.cubin.startswith(b"\x7fELF")
    assert not re.findall(r".*(?:warning|error).*", found.log)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nvrtc_takes_every_builtin(dtype: str) -> None:
    shown = [Call(name, arguments(name, dtype), dtype=dtype) for name in CALLED]
    text, printed = kernel("run0", (shown, {name: (dtype, [0.0]) for name in "ABCD"}), CUDA)
    found = compiled(prelude.text(printed.used, CUDA) + text, "sm_80")
    assert not re.findall(r".*(?:warning|error).*", found.log)


@pytest.mark.opencl
def test_opencl_takes_every_helper() -> None:
    opencl.require("pocl")
    ((flag, _),) = run(callers(OPENCL), [[np.full(8, 3.0), np.zeros(512)]], [1], OPENCL)
    assert flag == 3, "tc_raise got the first argument, and all others were right"


# ---------------------------------------------------------------- integers


def outcomes(groups: dict[str, Group], dialect: GpuDialect) -> dict[str, Outcome]:
    return dict(zip(groups, evaluate(list(groups.values()), dialect), strict=True))


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda u, v: u // v if v else 0, "%": lambda u, v: u % v if v else 0,
}  # fmt: skip


def test_integers_wrap_and_floor(runs: GpuDialect) -> None:
    groups: dict[str, Group] = {}
    for dtype in INTEGERS:
        a, b = pairs(edges(dtype))
        x, y = read("A", dtype), read("B", dtype)
        shown: list[Expr] = [Binary(op, x, y, dtype=dtype, where=WHERE) for op in ARITHMETIC] + [Unary("-", x, dtype=dtype)]
        shown.append(Binary("/", Binary("+", x, y, dtype=dtype), Const(3, dtype=dtype), dtype=dtype))
        shown += [Binary(op, x, Const(7, dtype=dtype), dtype=dtype) for op in "/%"]
        if DTYPES[dtype].kind == "signed":
            shown += [Binary(op, x, Const(c, dtype=dtype), dtype=dtype) for c in (-1, -3) for op in "/%"]
        groups[dtype] = shown, {"A": (dtype, a), "B": (dtype, b)}
    for dtype, found in outcomes(groups, runs).items():
        a, b = pairs(edges(dtype))
        wrap = lambda value: converted(value, dtype)  # noqa: E731, B023
        want = [[wrap(f(u, v)) for u, v in zip(a, b)] for f in ARITHMETIC.values()]
        want += [[wrap(-u) for u in a], [wrap(u + v) // 3 for u, v in zip(a, b)]]
        divisors = (7, -1, -3) if DTYPES[dtype].kind == "signed" else (7,)
        want += [[wrap(f(u, c)) for u in a] for c in divisors for f in (operator.floordiv, operator.mod)]
        for got, expected in zip(found.values, want, strict=True):
            assert_same(got, np.array(expected, dtype=dtype))
        assert found.flag == 1 and [site["kind"] for site in found.sites] == ["division"]


def test_integer_builtins_and_bools(runs: GpuDialect) -> None:
    named = {
        "min": (2, min), "max": (2, max), "abs": (1, abs), "sign": (1, lambda u: (u > 0) - (u < 0)), "relu": (1, lambda u: max(u, 0)),
    }  # fmt: skip
    groups: dict[str, Group] = {}
    for dtype in INTEGERS:
        a, b = pairs(edges(dtype))
        x, y = read("A", dtype), read("B", dtype)
        shown: list[Expr] = [Call(name, (x, y)[:arity], dtype=dtype) for name, (arity, _) in named.items()]
        groups[dtype] = [*shown, Call("clamp", (x, Const(1, dtype=dtype), y), dtype=dtype)], {"A": (dtype, a), "B": (dtype, b)}
    p, q = read("P", "bool"), read("Q", "bool")
    logical: list[Expr] = [Binary(op, p, q, dtype="bool") for op in ("+", "*", "&&", "||", "==", "!=", "<")]
    logical += [Call(name, (p, q), dtype="bool") for name in ("min", "max")] + [Unary("!", p, dtype="bool")]
    u, v = pairs([False, True])
    groups["bool"] = logical, {"P": ("bool", u), "Q": ("bool", v)}
    found = outcomes(groups, runs)
    rules = [operator.or_, operator.and_, operator.and_, operator.or_, operator.eq, operator.ne, operator.lt, operator.and_, operator.or_]
    assert [got.tolist() for got in found.pop("bool").values] == [[f(s, t) for s, t in zip(u, v)] for f in rules] + [[not s for s in u]]
    for dtype, outcome in found.items():
        a, b = pairs(edges(dtype))
        want = [[converted(f(*pair[:arity]), dtype) for pair in zip(a, b)] for arity, f in named.values()]
        want.append([min(max(s, 1), t) for s, t in zip(a, b)])
        for got, expected in zip(outcome.values, want, strict=True):
            assert_same(got, np.array(expected, dtype=dtype))


def test_flags_are_raised_by_what_is_evaluated_and_the_largest_stays(runs: GpuDialect) -> None:
    a, b = read("A", "int32"), read("B", "int32")

    def divide(line: int) -> Expr:
        return Binary("/", a, b, dtype="int32", where=Where(line, 3, 1, "A / B"))

    fine = Binary("!=", b, Const(0, dtype="int32"), dtype="bool")
    guarded = Select(fine, divide(1), Const(-1, dtype="int32"), dtype="int32")
    given = {"A": ("int32", [7] * 100), "B": ("int32", [2] * 99 + [0])}
    groups: list[Group] = [([divide(1), divide(2)], given), ([guarded], given)]
    both, safe = evaluate(groups, runs)
    assert both.flag == 2 and [v.tolist() for v in both.values] == [[3] * 99 + [0]] * 2
    assert safe.flag == 0 and safe.values[0].tolist() == [3] * 99 + [-1]
    free, _ = evaluate(groups, runs, checked=False)
    assert free.flag == 0 and free.values[0].tolist() == [3] * 99 + [0] and not free.sites


def test_indices_outside_become_zero_and_raise_the_flag(runs: GpuDialect) -> None:
    given = np.array([0, 4, 5, -1, 1 << 32, -(1 << 63), 3], np.int64)
    body = f"  const int i = {runs.thread};\n  int32_t tc_failed = 0;\n"
    body += "  if (i < n) R0[i] = tc_at(A0[i], 5, 9, &tc_failed);\n  if (tc_failed != 0) tc_raise(tc_failed, tc_flag);\n"
    one = prelude.text(["tc_at", "tc_raise"], runs) + signature("run0", ["int64_t"], ["int64_t"], runs) + " {\n" + body + "}\n"
    ((flag, after),) = run(one, [[given, np.zeros(7, np.int64)]], [1], runs)
    assert after[1].tolist() == [0, 4, 0, 0, 0, 0, 3] and flag == 9
    ((flag, _),) = run(one, [[given[:1].repeat(7), np.zeros(7, np.int64)]], [1], runs)
    assert flag == 0


# ---------------------------------------------------------------- floats and conversions


def test_float_arithmetic_comparisons_and_selections(runs: GpuDialect) -> None:
    a, b = pairs(SPECIAL)
    groups: dict[str, Group] = {}
    named = {"min": 2, "max": 2, "fmin": 2, "fmax": 2, "relu": 1, "abs": 1, "fabs": 1, "sign": 1}
    for dtype in FLOATS:
        x, y = read("A", dtype), read("B", dtype)
        shown: list[Expr] = [Binary(op, x, y, dtype=dtype) for op in "+-*/%"] + [Unary("-", x, dtype=dtype)]
        shown += [Binary(op, x, y, dtype="bool") for op in ("<", ">", "<=", ">=", "==", "!=")]
        shown += [Call(name, (x, y)[:count], dtype=dtype) for name, count in named.items()]
        groups[dtype] = [*shown, Call("clamp", (x, y, Const(2.0, dtype=dtype)), dtype=dtype)], {"A": (dtype, a), "B": (dtype, b)}
    for dtype, found in outcomes(groups, runs).items():
        own = np.float64 if dtype == "float64" else np.float32
        u, v = np.array(a, own), np.array(b, own)
        with np.errstate(all="ignore"):
            exact = [u + v, u - v, u * v, u / v, np.remainder(u, v), -u, u < v, u > v, u <= v, u >= v, u == v, u != v]
        s, t = torch.tensor(u), torch.tensor(v)
        kept = [torch.minimum(s, t), torch.maximum(s, t), torch.fmin(s, t), torch.fmax(s, t), torch.relu(s), s.abs(), s.abs()]
        chosen = [*(k.numpy() for k in kept), np.sign(u), torch.clamp(s, t, torch.tensor(2.0, dtype=s.dtype)).numpy()]
        kinds = [e.dtype for e in groups[dtype][0]]
        for k, (got, want) in enumerate(zip(found.values, [*exact, *chosen], strict=True)):
            if want.dtype != np.bool_ and dtype in ("float16", "bfloat16"):
                want = torch.tensor(want).to(getattr(torch, dtype)).float().numpy()
            check = assert_same if k < len(exact) else np.testing.assert_array_equal  # min and max of zeros may be either
            check(plain(kinds[k], got), want)


def test_every_cast(runs: GpuDialect) -> None:
    groups: dict[str, Group] = {
        source: ([Cast(read("A", source), dtype=target) for target in DTYPES], {"A": (source, samples(source))}) for source in DTYPES
    }
    for source, found in outcomes(groups, runs).items():
        for target, got in zip(DTYPES, found.values, strict=True):
            want = [converted(value, target) for value in samples(source)]
            for value, a, b in zip(samples(source), plain(target, got).tolist(), want, strict=True):
                assert a == b or (a != a and b != b), f"{source}({value}) as {target}: {a}, not {b}"


def test_literals_are_exact(runs: GpuDialect) -> None:
    shown: list[Expr] = [Const(value, dtype=dtype) for dtype in DTYPES for value in samples(dtype)]
    found = evaluate([(shown[at : at + 60], {}) for at in range(0, len(shown), 60)], runs)
    for expr, got in zip(shown, (v for outcome in found for v in outcome.values), strict=True):
        assert isinstance(expr, Const)
        assert_same(plain(expr.dtype, got)[0], np.array(expr.value, dtype=plain(expr.dtype, got).dtype))


def test_every_half_loads_and_stores_as_torch_has_it(runs: GpuDialect) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    random = np.random.default_rng(3).integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for dtype, name in (("float16", "half"), ("bfloat16", "bfloat")):
        loaded = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, dtype)).float().numpy()
        finite = np.sort(np.abs(loaded[np.isfinite(loaded)]))
        middle = (finite[:-1:2].astype("f8") + finite[1::2]) / 2  # ties
        ends = np.float32([65519.9, 65520.0, 3.39e38, 3.4e38, 1e-45, -1e-8])
        given = np.concatenate([random, middle.astype("f4"), ends])
        given = np.concatenate([given, np.zeros((1 << 16) - len(given), np.float32)])
        helpers = [f"tc_{name}_to_float", f"tc_float_to_{name}", f"tc_nextafter_{name}"]
        body = f"""  const int i = {runs.blocks[0]} * 64 + {runs.thread};
  R0[i] = {helpers[0]}(A0[i]);
  R1[i] = {helpers[1]}(A1[i]);
  R2[i] = {helpers[2]}(R0[i], 1.0f);
"""
        text = prelude.text(helpers, runs) + signature("run0", ["uint16_t", "float"], ["float", "uint16_t", "float"], runs)
        outputs = [np.zeros(1 << 16, kind) for kind in (np.float32, np.uint16, np.float32)]
        ((_, after),) = run(text + " {\n" + body + "}\n", [[bits, given, *outputs]], [2], runs)
        assert_same(after[2], loaded)
        number = ~np.isnan(given)
        want = torch.from_numpy(given).to(getattr(torch, dtype)).view(torch.int16).numpy()
        np.testing.assert_array_equal(after[3][number].view(np.int16), want[number])
        assert np.isnan(plain(dtype, after[3])[~number]).all()
        with np.errstate(invalid="ignore"):
            assert_same(after[4], functions.on_floats("nextafter", (loaded.astype("f8"), np.ones(1 << 16)), dtype).astype("f4"))


# ---------------------------------------------------------------- built-ins


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_builtins_at_special_values(runs: GpuDialect, dtype: str) -> None:
    """Against the reference: NaN and infinities exactly, the rest nearly."""
    one = np.array(EXTREME)
    a, b = (part.ravel() for part in np.meshgrid(one, one))
    given = [rounded(part, dtype) for part in (a, b, np.roll(b, 5), np.roll(a, 7))]
    shown = [Call(name, arguments(name, dtype), dtype=dtype) for name in CALLED]
    (found,) = evaluate([(shown, {name: (dtype, part) for name, part in zip("ABCD", given)})], runs)
    for name, got in zip(CALLED, found.values, strict=True):
        with np.errstate(all="ignore"):
            exact = rounded(functions.on_floats(name, tuple(given[: BUILTINS[name].arity]), dtype), dtype)
        close = np.isclose(got, exact, rtol=64 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny if name not in "sinpicospi" else 1e-7)
        tame = close | (np.isnan(got) & np.isnan(exact))
        if name in ("sin", "cos", "tan"):  # of 1e30
            tame |= np.isfinite(exact) & np.isfinite(got) & (np.abs(given[0]) > 1e20)
        bad = np.flatnonzero(~tame)[:3]
        assert not len(bad), f"{name}{[tuple(p[i] for p in given) for i in bad]}: {got[bad]}, not {exact[bad]}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_builtins_are_as_exact_as_promised(runs: GpuDialect, dtype: str) -> None:
    ours = {name for name, pair in runs.functions.items() if pair[dtype == "float64"].startswith("tc_")}
    names = sorted(name for name in ulps.CASES if runs is OPENCL or name in ours)  # on the host CUDA's own are the C library's
    drawn = {name: ulps.samples(ulps.CASES[name], dtype, int(300 * ulps.CASES[name].share), seed=sum(map(ord, name))) for name in names}
    points = [np.concatenate([args[min(k, len(args) - 1)] for args in drawn.values()]) for k in range(4)]
    shown = [Call(name, arguments(name, dtype), dtype=dtype) for name in names]
    (found,) = evaluate([(shown, {name: (dtype, part) for name, part in zip("ABCD", points)})], runs)
    start = 0
    for name, values in zip(names, found.values, strict=True):
        args = drawn[name]
        error = ulps.error(ulps.CASES[name], dtype, args, values[start : start + len(args[0])])
        start += len(args[0])
        limit = 1e5 if name in BESSEL and dtype == "float64" else LIMIT
        assert error.ulps <= limit, f"{name} in {dtype}: {error}"


# ---------------------------------------------------------------- warps


@pytest.mark.skipif(COMPILER is None, reason="needs g++, which stands in for a GPU")
def test_values_of_every_type_cross_a_warp() -> None:
    texts, arrays, show = [], [], printer(CUDA)
    for k, dtype in enumerate(d for d in DTYPES if d not in ("float16", "bfloat16")):
        kind = ctype(dtype, CUDA)
        lines = [f"  const int i = {CUDA.blocks[0]} * 64 + {CUDA.thread};", f"  {vtype(dtype, CUDA)} x = A0[i];"]
        lines.append(f"  R0[i] = {show.shuffled(dtype, 'x', 5, '0xffffffffu')};")
        texts.append(signature(f"run{k}", [kind], [kind], CUDA) + " {\n" + "\n".join(lines) + "\n}\n")
        given = np.random.default_rng(k).integers(0, 2 if dtype == "bool" else 100, 64).astype(dtype)
        if DTYPES[dtype].is_integer:
            given[:2] = DTYPES[dtype].least, DTYPES[dtype].greatest
        arrays.append([given, np.zeros_like(given)])
    lane = np.arange(64)
    for (_, after), before in zip(run(prelude.text(show.used, CUDA) + "".join(texts), arrays, [1] * len(arrays), CUDA), arrays):
        np.testing.assert_array_equal(after[1], before[0][lane ^ 5])


@each
def test_gamma_and_bessel_functions_of_float32_are_done_in_double(dialect: GpuDialect) -> None:
    shown = [Call(name, (read("A", "float32"),), dtype="float32") for name in ("lgamma", *BESSEL)]
    show = printer(dialect)
    assert [show.value(e) for e in shown] == [f"tc_{e.function}_f32(A)" for e in shown]
    assert "(float)lgamma((double)x)" in prelude.text(show.used, dialect)
