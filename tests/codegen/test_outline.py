"""Loops that differ in their tensors alone are one function of the C text; what needs more of the kernel stays where it is.

Modules: codegen.outline
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

import tcjit
from tcjit.codegen.outline import LEAST_LINES, LONG, UNIT, outline, translation_units

PROLOGUE = [
    "  float *restrict O = tensors[0];",
    "  const float *restrict X = tensors[1];",
    "  float *restrict T = (float *)((char *)workspace + 64);",
    "  const int64_t n = numbers[0];",
    "  int64_t tc_flag = 0;",
]
CHECKS = ("TC_FLAG(1, 1)", "TC_AT(c0, 8, 1)", "TC_TARGET(c0, 8, 1)", "TC_FLAG_ZERO(c0, 1)")


def loop(write: str, read: str, depth: int = 1, bound: str = "7") -> list[str]:
    inside = [f"{write}[c0 + {number}] = {read}[c0];" for number in range(LEAST_LINES)]
    return ["  " * depth + line for line in (f"for (int64_t c0 = 0; c0 <= {bound}; ++c0) {{", *("  " + line for line in inside), "}")]


def test_equal_loops_are_calls() -> None:
    pragma = "#pragma omp parallel for num_threads(threads)"
    functions, body = outline(PROLOGUE, [*loop("T", "O"), pragma, *loop("O", "T"), *loop("O", "T")])
    assert body[0] == "  tc_outlined0(T, O, threads);" and body[-1] == "  tc_outlined0(O, T, threads);"
    assert body[1:-1] == [pragma, *loop("O", "T")]
    (function,) = functions
    head, *lines = function.splitlines()
    assert head == "static __attribute__((noinline)) void tc_outlined0(float *restrict tc_t0, float *restrict tc_t1, int threads) {"
    assert lines == [*loop("tc_t0", "tc_t1"), "}"]


def test_loops_of_a_region_take_their_pragmas_along() -> None:
    pragma = "#pragma omp for schedule(static)"
    region = ["#pragma omp parallel num_threads(threads)", "  {", pragma, *loop("T", "O", 2), pragma, *loop("O", "T", 2), "  }"]
    functions, body = outline(PROLOGUE, region)
    assert body == [region[0], "  {", "  tc_outlined0(T, O, threads);", "  tc_outlined0(O, T, threads);", "  }"]
    assert pragma in functions[0].splitlines()


@pytest.mark.parametrize("block", [False, True])
def test_loops_that_share_one_of_threads_are_functions_of_its_variable(block: bool) -> None:
    pragma, depth = "#pragma omp parallel for num_threads(threads)", 3 if block else 2
    head, opened, closed = "  for (int64_t c1 = 0; c1 <= 1; ++c1) {", ["    {"] * block, ["    }"] * block
    loops = [line for names in (("T", "O"), ("O", "T")) for line in loop(*names, depth, bound="c1")]
    other = [line.replace("c0", "c1") for line in loop("T", "O")]  # with a variable of that name
    functions, body = outline(PROLOGUE, [pragma, head, *opened, *loops, *closed, "  }", *other, *other])
    assert body[-2:] == ["  tc_outlined1(T, O, threads);"] * 2
    assert body[:-2] == [pragma, head, *opened, "  tc_outlined0(c1, T, O, threads);", "  tc_outlined0(c1, O, T, threads);", *closed, "  }"]
    assert "tc_outlined0(int64_t tc_t0, float *restrict tc_t1, float *restrict tc_t2, int threads)" in functions[0]


@pytest.mark.parametrize(
    "lines",
    [
        [*loop("T", "O"), *loop("T", "X")],  # of another type
        [*loop("T", "O"), *loop("T", "T")],
        [*loop("T", "O"), *loop("O", "T", bound="8")],
        [*loop("T", "O", bound="n"), *loop("O", "T", bound="n")],
        [*loop("T", "O")[:3], "  }", *loop("O", "T")[:3], "  }"],
        ["  {", "    float tc_a;", *loop("T", "O", 2, bound="tc_a"), *loop("O", "T", 2, bound="tc_a"), "  }"],
        *([line.replace("= X[c0]", f"= {check}") for line in (*loop("T", "X"), *loop("O", "X"))] for check in CHECKS),
        ["  int64_t c1 = 0;", *loop("T", "O", bound="c1"), *loop("O", "T", bound="c1")],
        ["  for (int64_t c0 = 0; c0 <= 7; ++c0) O[c0] = 0.0f;", "  T[0] = O[0];"] * 20,
    ],
    ids="a constant tensor|one tensor twice|another bound|a dynamic size|short|beside variables|a flag|a place|a target|a divisor|"
    "a variable|no braces".split("|"),
)
def test_what_stays(lines: list[str]) -> None:
    assert outline(PROLOGUE, lines) == ([], lines)


def test_names_of_their_own_may_be_others_elsewhere() -> None:
    head = ["#pragma omp parallel num_threads(threads)", "  {"]
    other = ["    const float tc_x0 = 2.0f;", "    O[0] = tc_x0;"]  # between the loops
    loops = [loop("T", "O", 2), loop("O", "T", 2)]
    used = [[line.replace(";", " * tc_x0;") if "+ 3" in line else line for line in lines] for lines in loops]
    own = [[lines[0], "      const float tc_x0 = 1.0f;", *lines[1:]] for lines in used]
    functions, body = outline(PROLOGUE, [*head, *other, *own[0], *own[1], "  }"])
    assert body == [*head, *other, "  tc_outlined0(T, O, threads);", "  tc_outlined0(O, T, threads);", "  }"]
    assert "const float tc_x0 = 1.0f;" in functions[0]
    assert outline(PROLOGUE, [*head, *other, *used[0], *used[1], "  }"])[0] == []


def test_a_variable_of_a_loop_is_no_argument_where_another_one_has_its_name() -> None:
    """That of a scatter, and a pointer to a slice, are declared inside."""
    own = ["    const int64_t c7 = 3;", "    const float *restrict S = X + 4;"]
    inner = [[lines[0], *own, *lines[1:]] for lines in (loop("T", "O"), loop("O", "T"))]
    inner = [[line.replace("c0 + 2", "c7").replace("c0 + 3", "S[0] + c0") for line in lines] for lines in inner]
    others = ["  {", "    for (int64_t c7 = 0; c7 <= 3; ++c7) {", "      O[c7] = 0.0f;", "    }"]
    others += ["    const float *restrict S = X + 8;", "  }"]
    functions, body = outline(PROLOGUE, [*others, *inner[0], *inner[1]])
    calls = ["  tc_outlined0(X, T, O, threads);", "  tc_outlined0(X, O, T, threads);"]
    assert body == [*others, *calls] and len(functions) == 1


def test_loops_that_a_pragma_collapses_stay_together() -> None:
    inner = [*loop("T", "O", 2), *loop("O", "T", 2)]
    nest = ["#pragma omp for collapse(2) schedule(static)", "  for (int64_t c1 = 0; c1 <= 1; ++c1) {", *inner, "  }"]
    for lines in (nest, ["#pragma omp parallel num_threads(threads)", "  {", "    f();", *nest, "    g();", "  }"]):
        functions, body = outline(PROLOGUE, lines)
        assert functions == [] and body == lines


def test_scatters_beside_loops_of_the_same_variable() -> None:
    """In a kernel all of whose loops are functions."""
    parameters = "float(K,P,Q,M) X, float(Q,P,K) W, int64(B,L) Idx, float(L,B,E,D) R, float(VV) Like, float(K2,P2) G"
    text = f"""def f({parameters}) -> (Y, C, D0, D1, D2) {{
        Y(m) +=! X(k,p,q,m) * W(q,p,k)
        C(v,e) +=! (Idx(b,l) == v && Idx(b,0) > e) ? R(l,b,e,d) : 0.0 where v in 0:VV
        Z0(p,q) +=! G(p,k) * G(q,k) * 0.5
        D0(p) max=! Z0(p,q)
        Z1(p,q) +=! G(p,k) * G(q,k) * 1.5
        D1(p) max=! Z1(p,q)
        Z2(p,q) +=! G(p,k) * G(q,k) * 2.5
        D2(p) max=! Z2(p,q) }}"""
    generator = torch.Generator().manual_seed(0)
    x, w, r, g = (torch.randn(size, generator=generator) for size in ((10, 6, 7, 8), (7, 6, 10), (90, 6, 3, 5), (40, 60)))
    index = torch.randint(-1, 19, (6, 90), generator=generator)
    kernel = tcjit.define(text, target="cpu").f.compile(x, w, index, r, torch.zeros(19), g)
    results = kernel(x, w, index, r, torch.zeros(19), g)
    chosen = (index[:, :, None] == torch.arange(19)) & True
    counted = (index[:, :1, None] > torch.arange(3)).double()
    expected = torch.einsum("blv,bze,lbed->ve", chosen.double(), counted, r.double())
    torch.testing.assert_close(results[0].double(), torch.einsum("kpqm,qpk->m", x.double(), w.double()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[1].double(), expected, rtol=1e-4, atol=1e-4)
    for factor, result in zip((0.5, 1.5, 2.5), results[2:], strict=True):
        torch.testing.assert_close(result.double(), (factor * g.double() @ g.double().T).amax(1), rtol=1e-4, atol=1e-4)


def test_all_loops_of_a_long_kernel_are_functions_and_make_several_units() -> None:
    lines = [line for number in range(2 * LONG // LEAST_LINES) for line in loop("T", "O", bound=str(number))]
    functions, body = outline(PROLOGUE, lines)
    assert len(functions) == 2 * LONG // LEAST_LINES and [line.split("(")[0].strip() for line in body] == [
        f"tc_outlined{number}" for number in range(len(functions))
    ]
    few = [line for number in range(LONG // LEAST_LINES // 2) for line in loop("T", "O", bound=str(number))]
    assert outline(PROLOGUE, few) == ([], few)
    text = "\n".join(["#include <stdint.h>", *functions, "int64_t f(void) {", *body, "}"])
    for most in (2, 3, 100):
        units = translation_units(text, functions, most)
        assert len(units) == min(most, text.count("\n") // UNIT) > 1
        assert sum("int64_t f(void) {" in unit for unit in units) == 1 and "int64_t f(void) {" in units[0]
        for number in range(len(functions)):
            name = f"void tc_outlined{number}(float *restrict T, float *restrict O, int threads)"
            assert sum(f"{name} {{" in unit for unit in units) == 1 and f"{name};" in units[0]
        assert all(unit.startswith("#include <stdint.h>\n") and "static" not in unit for unit in units)
        assert max(unit.count("\n") for unit in units) < 1.5 * text.count("\n") / len(units) + len(functions)
    assert translation_units(text, functions, 1) == translation_units(text, [], 2) == [text]


def test_a_long_kernel_computes_the_same_in_one_unit_as_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "".join(f"H{n + 1}(i,j) +=! H{n}(i,k) * W(k,j)  H{n + 1}(i,j) = tanh(H{n + 1}(i,j) + {n}.5 * H{n}(j,i))  " for n in range(7))
    text = f"def f(float(N,N) H0, float(N,N) W) -> (H7) {{ {steps} }}"
    torch.manual_seed(0)
    made = []
    for most in (1, 2, 3):
        split = lambda text, functions, _, most=most: made.append(translation_units(text, functions, most)) or made[-1]  # noqa: E731
        monkeypatch.setattr("tcjit.codegen.outline.translation_units", split)
        tensors = [torch.randn(32 + most, 32 + most) / 6 for _ in range(2)]
        expected = tensors[0].double()
        for n in range(7):
            expected = torch.tanh(expected @ tensors[1].double() + (n + 0.5) * expected.T)
        torch.testing.assert_close(tcjit.define(text).f(*tensors), expected.float(), rtol=1e-3, atol=1e-4)
    assert [len(units) for units in made] == [1, 2, 3] and all("tc_outlined" in unit for unit in made[-1])


@pytest.mark.parametrize("size", [64, 200])
def test_layers(size: int) -> None:
    """Small ones run on one thread, large ones in a region of threads."""
    layers = "".join(f"H{n + 1}(i,o) +=! H{n}(i,k) * W{n}(k,o)  H{n + 1}(i,o) = fmax(H{n + 1}(i,o), 0.0)  " for n in range(5))
    weights = ", ".join(f"float(N,N) W{n}" for n in range(5))
    kernel = tcjit.define(f"def f(float(M,N) H0, {weights}) -> (H5) {{ {layers} }}").f.compile
    torch.manual_seed(0)
    tensors = [torch.randn(size, size) / size**0.5 for _ in range(6)]
    made = kernel(*tensors)
    calls = Counter(re.findall(r"tc_outlined\d+\(", made.source))
    assert max(calls.values()) >= 4
    expected = tensors[0].double()
    for weight in tensors[1:]:
        expected = (expected @ weight.double()).relu()
    torch.testing.assert_close(made(*tensors), expected.float(), rtol=1e-4, atol=1e-5)
