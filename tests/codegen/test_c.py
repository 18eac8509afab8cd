"""The structure of generated C: where threads, lanes and checks appear, and that the same input gives the same text.

Modules: codegen.address codegen.lanes codegen.lower_cpu codegen.reads codegen.scope codegen.source
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.mapping import CONVOLUTION, GATHER, MATMUL, SOFTMAX, program

import tcjit
from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.codegen.loops import For, ParallelLoop, ParallelRegion, Run, Threshold
from tcjit.codegen.lower_cpu import merged
from tcjit.codegen.source import Source
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.grammar.linear import Linear
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

AVX512 = Machine(vector_bytes=64, vector_registers=32)
AVX2 = Machine(vector_bytes=32, vector_registers=16)
PROGRAMS = {
    "matmul": (MATMUL, {"A": (96, 64), "B": (64, 80)}),
    "softmax": (SOFTMAX, {"I": (512, 300)}),
    "convolution": (CONVOLUTION, {"I": (2, 16, 30, 30), "W1": (16, 16, 3, 3)}),
    "gather": (GATHER, {"T": (50, 33), "I": (64, 40)}),
}


def source(
    text: str,
    shapes: dict[str, tuple[int, ...]],
    options: Options | None = None,
    machine: Machine = AVX512,
    checked: bool = True,
    scalars: dict[str, int] | None = None,
) -> Source:
    return emit_c(map_program(program(text, shapes, scalars), options or Options(), machine), C, machine, checked=checked)


def kernel(made: Source) -> str:
    """The text from the kernel's opening on, without the helpers."""
    return made.text[made.text.index(f"int64_t {made.symbol}(") :]


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_only_where_promised(name: str) -> None:
    text, shapes = PROGRAMS[name]
    assert "#pragma omp parallel" in source(text, shapes).text
    assert "omp parallel" not in source(text, shapes, Options(parallel=False)).text
    tiny = {tensor: tuple(min(3, extent) for extent in shape) for tensor, shape in shapes.items()}
    assert "omp parallel" not in source(text, tiny).text


def depths(text: str, pragma: str) -> list[int]:
    """How deep the lines behind pragmas stand."""
    lines = text.splitlines()
    return [len(lines[i + 1]) - len(lines[i + 1].lstrip()) for i, line in enumerate(lines) if line.startswith(pragma)]


def test_threads_share_parts_of_streamed_rows() -> None:
    """Four parts of the columns, the last of fewer tiles, each half a page of a row at least; of shorter rows the tiles of a block."""
    text = source(MATMUL, {"A": (43, 800), "B": (800, 3093)}, Options()).text
    threads, parts, tiles = (text.index(found) for found in ("#pragma omp parallel for", "c0 <= 3;", "c2 <= tc_min_index("))
    assert threads < parts < tiles
    text = source(MATMUL, {"A": (8, 9000), "B": (9000, 1500)}, Options()).text
    blocks, threads = (text.index(found) for found in ("for (int64_t c0", "#pragma omp parallel for"))
    assert blocks < threads


def test_parallel_loops_in_a_row_are_one_teams() -> None:
    text = "def f(float(M,K) A, float(K,N) B) -> (C, S) { C(m,n) +=! A(m,k) * B(k,n)  S(n) max=! C(m,n)  C(m,n) = C(m,n) - S(n) }"
    made = kernel(source(text, {"A": (200, 100), "B": (100, 200)}, Options(vector_width=1)))
    assert depths(made, "#pragma omp parallel") == [2]
    assert len(depths(made, "#pragma omp for")) >= 2 and set(depths(made, "#pragma omp for")) == {4}
    # each of these loops reads what the one before wrote
    assert made.count("nowait") == 1


def test_teams_wait_only_for_what_they_need() -> None:
    text = """def f(float(N,M) A, float(N,M) B) -> (C, D, E, F) {
        C(i,j) = A(i,j) + 1  D(j,i) = B(i,j) * 2  E(i,j) = C(i,j) + D(i,j)  F(j,i) = A(i,j) * 3
    }"""
    made = kernel(source(text, {"A": (300, 300), "B": (300, 300)}, Options(fusion="minimal")))
    pragmas = [line for line in made.splitlines() if line.startswith("#pragma omp for")]
    assert ["nowait" in line for line in pragmas] == [True, False, True, True]
    assert depths(made, "#pragma omp parallel") == [2]
    first = "def f(float(N,M) A) -> (C, D) { C(i,j) = A(i,j) + 1  D(j,i) = C(i,j) * 2 }"
    small = "def f(float(N,M) A, float(K) B) -> (C, E, D) { C(i,j) = A(i,j) + 1  E(k) = B(k)  D(j,i) = C(i,j) * 2 }"
    assert "#pragma omp for" in kernel(source(first, {"A": (300, 300)}, Options(fusion="minimal")))
    between = kernel(source(small, {"A": (300, 300), "B": (3,)}, Options(fusion="minimal")))
    assert "#pragma omp for" not in between and len(depths(between, "#pragma omp parallel for")) == 2


def test_loops_in_a_row_that_are_worth_threads_together_are_one_region() -> None:
    text = "def f(float(N) X) -> (A, B, C) { A(i) = X(i)  B(i) = A(i)  C(i) = B(i) }"
    scop = map_program(program(text, {"X": (9,)}), Options(fusion="minimal")).scop
    worth = Threshold((Linear.of("n"), Linear.of("m") + 1), 9)
    assert worth.written(lambda value: value.text) == "(n) * (m + 1) >= 9"
    always, large, larger = (
        ParallelLoop(For("c0", Linear.of(0), Linear.of(8), 1, (Run(s.name, ()),)), 1, threshold)
        for s, threshold in zip(scop.statements, (None, worth, worth), strict=True)
    )
    assert merged([], scop) == [] and merged([always], scop) == [always]
    assert merged([large], scop) == [ParallelRegion((large,), (False,), worth)]
    assert merged([always, large, larger], scop) == [always, ParallelRegion((large, larger), (True, False), worth)]
    assert merged([larger, always], scop) == [ParallelRegion((larger,), (False,), worth), always]


def test_a_region_for_large_sizes_is_written_without_threads_too() -> None:
    text = "def f(float(N,M) A) -> (C, D) { C(i,j) = A(i,j) + 1  D(i,j) = C(i,j) * 2 }"
    opened = generalise(read(text)[-1], {"N": 300, "M": 300}, {}, {"N": (1, 300)})
    made = kernel(emit_c(map_program(opened, Options(fusion="minimal")), C, AVX512, checked=True))
    threads, alone = made.split("\n  } else {\n")
    assert re.search(r"\n  if \(.* >= \d+\) {\n#pragma omp parallel num_threads\(threads\)\n  {\n#pragma omp for", threads)
    stores = [[line.strip() for line in copy.splitlines() if "] = " in line] for copy in (threads, alone)]
    assert len(stores[0]) == 2 and stores[0] == stores[1]
    assert "#pragma omp parallel" not in alone and "#pragma omp for" not in alone


def test_a_flag_is_joined_only_where_something_can_fail() -> None:
    for name in ("matmul", "softmax", "convolution"):
        made = source(*PROGRAMS[name])
        assert "TC_FLAG" not in made.text and "reduction(max : tc_flag)" not in made.text and not made.sites
    checked = source(*PROGRAMS["gather"])
    assert "parallel for" in checked.text and checked.sites[0]["tensor"] == "T"
    for line in checked.text.splitlines():
        if line.startswith("#pragma omp parallel for"):
            assert ("tc_flag" in line) == ("TC_FLAG" in checked.text[checked.text.index(line) :]), line
    unchecked = source(*PROGRAMS["gather"], checked=False)
    assert "TC_FLAG" not in unchecked.text and not unchecked.sites


def test_loops_of_one_kernel_share_the_flag_only_with_those_that_set_it() -> None:
    text = "def f(float(M,D) T, int64(N) I, float(N,D) X) -> (A, B) { A(n, d) = T(I(n), d)  B(d, n) = X(n, d) * 2 }"
    made = source(text, {"T": (9, 64), "I": (4000,), "X": (4000, 64)}, Options(fusion="minimal"))
    pragmas = [line for line in made.text.splitlines() if line.startswith("#pragma omp for")]
    assert sorted("tc_flag" in line for line in pragmas) == [False, True]


def test_division_is_checked_only_by_what_may_be_zero() -> None:
    text = "def f(int32(N) X, int32(N) Y) -> (A, B, C) { A(i) = X(i) / 3  B(i) = X(i) % 7  C(i) = X(i / 2) where i in 0:N }"
    assert not source(text, {"X": (100,), "Y": (100,)}).sites
    made = source("def f(int32(N) X, int32(N) Y) -> (A) { A(i) = X(i) / Y(i) }", {"X": (100,), "Y": (100,)})
    assert [site["kind"] for site in made.sites] == ["division"]
    assert made.sites[0]["line_text"][made.sites[0]["column"] - 1 :].startswith("X(i) / Y(i)")


@pytest.mark.parametrize(
    ("statement", "bound"),
    [
        ("Y(i,j) = m(i,j) ? exp(X(i,j) - M(i)) : 0.0", True),  # a condition on data
        ("Y(i,j) = j <= i ? exp(X(i,j) - M(i)) : 0.0 where i in 0:N, j in 0:K", True),  # each M(i) is read for some j
        ("Y(i,j) = i % 3 == 0 && m(i,j) ? X(i,j) - M(i) : 0.0 where i in 0:N, j in 0:K", False),  # some are read for none
        ("Y(i,j) = i >= 1 && m(i,j) ? X(i,j) - M(i - 1) : 0.0 where i in 0:N, j in 0:K", True),  # asked outside the loop
        ("Y(i,j) = i % 2 == 1 && m(i,j) ? X(i,j) - M(i - 1) : 0.0 where i in 0:N, j in 0:K", False),  # need not be there
        ("Y(i,j) = m(i,j) ? X(i,j) - M(I(i)) : 0.0", False),  # a gather is checked where it happens
    ],
)
def test_what_a_condition_guards_is_read_before_a_loop_where_it_is_there(statement: str, bound: bool) -> None:
    """Under the condition gcc has no vectors for it."""
    text = f"def f(float(N,K) X, float(N) M, bool(N,K) m, int32(N) I) -> (Y) {{ {statement} }}"
    made = source(text, {"X": (64, 96), "M": (64,), "m": (64, 96), "I": (64,)})
    assert ("const float tc_v0 = M[" in kernel(made)) == bound


def test_sums_across_threads_use_no_openmp_reduction() -> None:
    made = source("def total(float(N) X) -> (S) { S +=! X(i) }", {"X": (1 << 20,)}, Options(vector_width=1))
    parallel = [line for line in made.text.splitlines() if line.startswith("#pragma omp parallel")]
    assert parallel and not any("reduction" in line for line in parallel)
    assert "S_part[" in made.text


def test_numbers_list_scalars_in_order_then_strides() -> None:
    text = "def f(float a, float(N,M) X, int32 s, bool p, float(K) Z) -> (Y) { Y(i, j) = p ? a * X(i, j) + Z(s*i) : 0.0 }"
    made = program(text, {"X": (20, 10), "Z": (40,)}, {"s": 2})
    layouts = {"X": "n1", "Z": "n"}
    found = emit_c(map_program(made, Options(vector_width=1), AVX2, layouts), C, AVX2, checked=True)
    assert found.numbers == (("scalar", "a", "float32"), ("scalar", "p", "bool"), ("stride", "X", 0), ("stride", "Z", 0))
    assert "X_stride0" in found.text and "Z_stride0" in found.text and "X_stride1" not in found.text


def test_expanded_dimensions_cost_no_stride() -> None:
    made = program(MATMUL, {"A": (8, 8), "B": (8, 8)})
    found = emit_c(map_program(made, Options(vector_width=1), AVX2, {"A": "00"}), C, AVX2, checked=True)
    assert found.numbers == () and "A[0]" in found.text


def test_the_workspace_holds_what_stays_a_tensor() -> None:
    text = "def f(float(N) X) -> (Y) { T(i, j) = X(i) * X(j)  Y(i) +=! T(j, i) }"
    assert source(text, {"X": (100,)}, Options(private_buffers=False, fusion="minimal")).workspace == 100 * 100 * 4
    assert source(SOFTMAX, {"I": (64, 50)}).workspace == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_input_gives_the_same_text(name: str) -> None:
    assert source(*PROGRAMS[name]) == source(*PROGRAMS[name])


def test_the_text_does_not_depend_on_hashes() -> None:
    code = "from test_c import PROGRAMS, source; print(*(source(*PROGRAMS[n]).text for n in PROGRAMS), sep='')"
    here = Path(__file__).resolve()
    path = os.pathsep.join(map(str, (here.parents[2], here.parents[1], here.parent)))
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {"".join(source(*PROGRAMS[n]).text for n in PROGRAMS) + "\n"}


def test_a_program_without_instances_is_an_empty_kernel() -> None:
    made = source(MATMUL, {"A": (0, 4), "B": (4, 5)})
    assert "for (" not in kernel(made) and made.workspace == 0


@pytest.mark.parametrize(
    "text, shapes, tests",
    [
        (GATHER.replace("+=!", "max=!"), {"T": (50, 33), "I": (64, 40)}, 1),
        (
            "def f(float(E,D) T, int64(K) J, int32(B) I) -> (O) { O(b, d) = T(J(I(b)), d) * 2 }",
            {"T": (50, 33), "J": (9,), "I": (64,)},
            2,
        ),
    ],
    ids=["gather", "gather of a gather"],
)
def test_what_is_evaluated_before_a_vector_loop_is_used_in_it(text: str, shapes: dict[str, tuple[int, ...]], tests: int) -> None:
    """What an index reads is read with the index, and not once more for itself."""
    made = kernel(source(text, shapes))
    assert "omp simd" in made
    for name in re.findall(r"const \w+ (tc_[gv]\w+) =", made):
        assert len(re.findall(rf"\b{name}\b", made)) > 1, f"{name} is used nowhere in\n{made}"
    assert made.count("TC_FLAG(") + made.count("TC_AT(") == tests


LOG_SOFTMAX = """def f(float(N,C) X) -> (Y) {
    M(n) max=! X(n, c)
    S(n) +=! exp(X(n, c) - M(n))
    Y(n, c) = X(n, c) - M(n) - log(S(n))
}"""


def lane_loops(made: str) -> list[str]:
    """The statements of loops in vector lanes."""
    return [body.strip() for body in re.findall(r"#pragma omp simd[^\n]*\n[^\n]*\n(?: *int64_t tc_found[^\n]*\n[^\n]*\n)?([^\n]*)", made)]


@pytest.mark.parametrize("tile", [(), (1,), (4,)], ids=["model", "row", "rows"])
def test_calls_on_what_a_loop_does_not_change_come_before_it(tile: tuple[int, ...]) -> None:
    made = kernel(source(LOG_SOFTMAX, {"X": (64, 128)}, Options(vector_width=1, tile=tile)))
    (bound,) = re.findall(r"const float (tc_c[0-9]+) = tc_log_f32\(tc_v[0-9]+\);", made)
    assert made.count("log") == 1
    assert any(body.startswith("Y[") and body.endswith(f"- {bound};") for body in lane_loops(made))


@pytest.mark.parametrize(
    "value",
    [
        "exp(X(n, c))",
        "exp(S(n) * c)",
        "exp(S(n) + A(n) / B(n))",  # a divisor of zero counts only where the loop runs at all
    ],
)
def test_other_calls_stay_in_the_loop(value: str) -> None:
    text = "def f(float(N,C) X, float(N) S, int32(N) A, int32(N) B) -> (Y) { Y(n, c) = X(n, c) + (" + value + ") where c in 0:C }"
    made = kernel(source(text, {"X": (64, 128), "S": (64,), "A": (64,), "B": (64,)}))
    assert "tc_exp_f32" in made and "tc_c0" not in made


@pytest.mark.parametrize(
    ("value", "nested"), [("log(1.0 + exp(X(i)))", True), ("log(X(i)) + exp(X(i))", False), ("exp(-fabs(X(i)))", False)]
)
def test_functions_of_functions_are_spared_gcc_s_redundancy_elimination(value: str, nested: bool) -> None:
    made = source("def f(float(N) X) -> (Y) { Y(i) = " + value + " }", {"X": (1000,)}).text
    assert ('#pragma GCC optimize ("no-tree-pre")' in made) == nested


CHOICE = "(X(i) <= 0.0 ? 0.0 : X(i) * 0.5)"


@pytest.mark.parametrize("value", [f"{CHOICE} * tanh({CHOICE} > 9.0 ? {CHOICE} : log1p(exp({CHOICE})))", f"{CHOICE} + {CHOICE}"])
def test_a_choice_that_stands_several_times_is_made_once(value: str) -> None:
    """A compiler makes branches of each, and vectorises no call between them."""
    made = source("def f(float(N) X) -> (Y) { Y(i) = " + value + " }", {"X": (1000,)}).text
    assert len(re.findall(r"<= 0\.0f \?", made)) == 1 and re.search(r"const float tc_c0 = X\[.*\] <= 0\.0f \?", made)


def test_a_choice_behind_conditions_alone_stays_behind_them() -> None:
    made = source("def f(float(N) X) -> (Y) { Y(i) = X(i) > 1.0 ? " + f"{CHOICE} + {CHOICE}" + " : 0.0 }", {"X": (1000,)}).text
    assert "tc_c0" not in made


def test_the_epilogue_of_a_nest_makes_such_a_choice_once() -> None:
    product = "C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = " + f"{CHOICE} * tanh(exp({CHOICE}))".replace("X(i)", "C(m,n)")
    made = source("def f(float(M,K) A, float(K,N) B) -> (Y) { " + product + " }", {"A": (64, 64), "B": (64, 64)}).text
    assert re.search(r"\{ const float tc_c0 = ", made)


def test_calls_on_indices_outside_of_the_loop_come_before_it() -> None:
    made = kernel(source("def f(float(N,C) X) -> (Y) { Y(n, c) = X(n, c) + sqrt(n + 1.0) }", {"X": (64, 128)}))
    assert re.search(r"const float tc_c0 = sqrtf\(.*c0.*\);", made), made


def test_a_choice_of_all_lanes_is_made_before_them() -> None:
    """Whether a row of a gather is read, with the check of the row; a choice that differs between lanes stays in the loop."""
    rows = "def f(int64(N) I, float(V,D) X) -> (O) {{ O(n,d) +=! (I(n) == v{}) ? X(v,d) : 0.0 }}"
    shapes = {"I": (30,), "X": (9, 20)}
    text = kernel(source(rows.format(""), shapes, Options()))
    assert len(lane_loops(text)) == 2 and not any("I[" in loop or "TC_FLAG" in loop for loop in lane_loops(text))
    (loop,) = lane_loops(kernel(source(rows.format(" && d > v"), shapes, Options())))
    assert "?" in loop


def test_rows_that_data_pick_for_all_lanes_are_no_choices_of_theirs() -> None:
    """Where there is no such row, as the check has noted, the first is read; an element is read before the loop."""
    text = "def f(float(N,N) D, int64(1) P) -> (O) { O(i,j) = min(D(i,j), D(i,P(0)) + D(P(0),j)) }"
    (loop,) = lane_loops(kernel(source(text, {"D": (70, 70), "P": (1,)})))
    assert "?" not in loop and loop.count("D[") == 2
    f, d = tcjit.define(text).f, torch.randn(70, 70)
    for at in (0, 69):
        assert torch.equal(f(d, torch.tensor([at])), torch.minimum(d, d[:, at : at + 1] + d[at]))
    for at in (-1, 70, 2**62):
        with pytest.raises(IndexError):
            f(d, torch.tensor([at]))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (
            "def f(int64(N) I, float(N,D) X) -> (O) { O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:50 }",
            {"I": (999,), "X": (999, 200)},
        ),
        ("def f(int64(N) I) -> (O) { O(v) +=! (I(n) == v) ? 1 : 0 where v in 0:50 }", {"I": (1 << 18,)}),
    ],
    ids=["blocks", "chunks"],
)
def test_threads_do_not_share_the_terms_of_a_scatter(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    found = kernel(source(text, shapes, Options()))
    before, _, after = found.partition("const int64_t c2 = I[")
    assert after and "collapse" not in before.rpartition("#pragma omp parallel")[2] and "if (0 <= c2 && c2 <= 49)" in after
    assert "== I[" not in found, "what picks the result is compared with nothing else"


@pytest.mark.parametrize("terms", [1, 7, 8, 9, 41])
@pytest.mark.parametrize("dynamic", [[], ["N"]])
def test_updates_that_data_pick_are_unrolled(terms: int, dynamic: list[str]) -> None:
    text = "def f(int64(N) I, float(N) X) -> (O) { O(v) +=! (I(n) == v) ? X(n) : 0.0 where v in 0:5 }"
    index, x = torch.randint(-1, 7, (terms,)), torch.randn(terms)
    f = tcjit.define(text, dynamic=dynamic).f
    inside = (index >= 0) & (index < 5)
    torch.testing.assert_close(f(index, x), torch.zeros(5).index_add(0, index[inside], x[inside]))
    assert ("#pragma GCC unroll" in kernel(source(text, {"I": (terms,), "X": (terms,)}))) == (terms > 1)


def test_an_update_of_many_elements_is_not_unrolled() -> None:
    text = "def f(int64(N) I, float(N,D) X) -> (O) { O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:5 }"
    found = kernel(source(text, {"I": (9,), "X": (9, 1000)}))
    assert "= I[" in found and "unroll" not in found


@pytest.mark.parametrize(
    ("statement", "calls", "bound"),
    [
        ("Y(i) = exp(X(i)) / (1.0 + exp(X(i)))", 1, 1),
        ("Y(i) = exp(X(i)) > 2.0 ? exp(X(i)) : 0.0", 1, 1),  # asked in any case
        ("Y(i) = X(i) > 2.0 ? exp(X(i)) : 2.0 * exp(X(i))", 2, 0),  # each in one case only
        ("Y(i) = exp(X(i)) + exp(X(i) + 1.0)", 2, 0),
        ("Y(i) = tanh(exp(X(i))) + exp(X(i)) * tanh(exp(X(i)))", 2, 2),
        ("Y(i) = fmax(X(i), 0.0) + fmax(X(i), 0.0)", 0, 0),
        ("Y(i) = exp(X(I(i))) + exp(X(I(i)))", 2, 0),  # a gather is checked where it happens
    ],
)
def test_calls_that_a_statement_repeats_are_evaluated_once(statement: str, calls: int, bound: int) -> None:
    text = f"def f(float(N) X, int32(N) I) -> (Y) {{ {statement} }}"
    made = kernel(source(text, {"X": (100,), "I": (100,)}))
    assert sum(made.count(f"tc_{name}_f32(") for name in ("exp", "tanh")) == calls
    assert made.count("const float tc_c") == bound


def test_two_statements_of_one_loop_have_variables_of_their_own() -> None:
    text = "def f(float(N) X) -> (Y, Z) { Y(i) = exp(X(i)) / (1.0 + exp(X(i)))  Z(i) = tanh(X(i)) / (1.0 + tanh(X(i))) }"
    x = torch.linspace(0.0, 3.0, 700)
    found = tcjit.define(text).f(x)
    torch.testing.assert_close(found, (x.sigmoid(), x.tanh() / (1 + x.tanh())), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bound", ["0.0", "-0.0", "1.0", "-1.0", "infinity()", "nan()"])
@pytest.mark.parametrize("function", ["fmin", "fmax", "min", "max"])
def test_extrema_beside_a_constant(function: str, bound: str) -> None:
    """NaN and the signs of zeros are those of the reference, on whichever side the constant is."""
    x = torch.tensor([float("nan"), -0.0, 0.0, 1.0, -1.0, 2.5, -3.0, float("inf"), float("-inf")] * 5)
    bound = "0.0 / 0.0" if bound == "nan()" else bound
    for call in (f"{function}(X(i), {bound})", f"{function}({bound}, X(i))"):
        text = f"def f(float(N) X) -> (O) {{ O(i) = {call} }}"
        found, expected = (tcjit.define(text, target=target).f(x) for target in ("cpu", "reference"))
        assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0)), call
        numbers = ~expected.isnan()
        assert torch.equal(found[numbers].signbit(), expected[numbers].signbit()), call


@pytest.mark.parametrize(("machine", "text", "short"), [
    (AVX2, "def f(float(N,2) X) -> (O) { O(n) = X(n,0) * X(n,0) + X(n,1) }", True),
    (AVX2, "def f(float(N,2) X) -> (O) { O(n) = X(n,0) + float(n) }", True),
    (AVX2, "def f(float(N,9) X) -> (O) { O(n) = X(n,0) + X(n,8) }", False),
    (AVX512, "def f(float(N,2) X) -> (O) { O(n) = X(n,0) * X(n,0) + X(n,1) }", False),
])  # fmt: skip
def test_interleaved_elements_are_read_in_short_vectors(machine: Machine, text: str, short: bool) -> None:
    """Where words move slowly between the two parts of a vector."""
    made = program(text, {"X": (400, 9 if "(N,9)" in text else 2)})
    source = emit_c(map_program(made, Options(), machine), C, machine, checked=True).text
    assert ("#pragma omp simd simdlen(4)\n" in source) == short and ("simdlen" in source) == short
