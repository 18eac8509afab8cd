"""What the CPU target promises beyond plain agreement with the reference: reproducible bits, IEEE corner cases, odd shapes, any names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tcjit
from tcjit.mapping.options import Options
from tcjit.mapping.passes import parallelise

NAN, INF = float("nan"), float("inf")
SOFTMAX = """
def softmax(float(M,N) I) -> (O) {
    top(m) max=! I(m, n)
    O(m, n) = exp(I(m, n) - top(m))
    total(m) +=! O(m, n)
    O(m, n) = O(m, n) / total(m)
}"""
TOTAL = "def total(float(N) X) -> (S) { S +=! X(n) }"
MATMUL = "def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"


def small(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small whole numbers, on which sums and products are exact."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def only(text: str, **named: Any) -> Any:
    """The one def of a text."""
    defs = tcjit.define(text, **named)
    (name,) = defs
    return defs[name]


def same(text: str, *args: Any, out: torch.Tensor | None = None, options: Options | None = None) -> None:
    """A def computes on the CPU what the reference says, bit for bit (the values are exact); -0.0 counts as 0.0."""

    def results(target: str) -> tuple[torch.Tensor, ...]:
        given = None if out is None else out.clone()
        found = only(text, target=target, options=options if target == "cpu" else None)(*args, out=given)
        return found if isinstance(found, tuple) else (found,)

    for actual, expected in zip(results("cpu"), results("reference"), strict=True):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        assert torch.equal(actual.double().nan_to_num(nan=1e300), expected.double().nan_to_num(nan=1e300)), (actual, expected)


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------- reproducible bits


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "text, args, runs",
    [
        (TOTAL, (normal(300_000),), 1000),
        (SOFTMAX, (normal(64, 700),), 1000),
        (MATMUL, (normal(70, 90), normal(90, 50)), 200),
        ("def columns(float(M,N) X) -> (S) { S(n) +=! X(m, n) }", (normal(30_000, 7),), 200),
    ],
    ids=["total", "softmax", "matmul", "columns"],
)
def test_the_same_bits_in_every_run_with_any_number_of_threads(text: str, args: tuple[torch.Tensor, ...], runs: int) -> None:
    function = only(text)
    kernel = function.compile(*args)
    assert "#pragma omp parallel" in kernel.source
    first = function(*args)
    for number in range(runs):
        if number % 50 == 0:
            torch.set_num_threads(1 + number // 50 % 4)
        assert torch.equal(function(*args), first)


def test_results_do_not_depend_on_verification(tmp_path: Path) -> None:
    code = f"""
import torch, tcjit
torch.manual_seed(0)
softmax, total = tcjit.define({SOFTMAX!r}).softmax, tcjit.define({TOTAL!r}).total
k = softmax.compile(torch.empty(20, 333))
print(k.source, softmax(torch.randn(20, 333)).numpy().tobytes().hex(), total(torch.randn(9999)).item())
"""
    outputs = set()
    for verify in ("0", "1"):
        environment = {**os.environ, "TCJIT_VERIFY": verify, "TCJIT_CACHE_DIR": str(tmp_path / verify)}
        outputs.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1 and next(iter(outputs))


def test_several_python_threads_call_and_compile_at_once() -> None:
    text = """def work(float(M,N) X) -> (Y) { T(m) +=! X(m, n) * X(m, n)  U(n, m) = X(m, n) * T(m)  Y(n) +=! U(n, m) }"""
    function = only(text)
    inputs = [small(40 + size, 300, seed=size) for size in range(4)]
    expected = [((x * (x * x).sum(1, keepdim=True)).sum(0)) for x in inputs]
    wrong: list[str] = []

    def call(offset: int) -> None:
        for turn in range(60):
            which = (turn + offset) % len(inputs)
            if not torch.equal(function(inputs[which]), expected[which]):
                wrong.append(f"thread {offset}, turn {turn}")

    workers = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


# ---------------------------------------------------------------- memory


def test_temporaries_much_larger_than_the_caches() -> None:
    text = """def big(float(N) X) -> (Y) {
        T(i, j) = X(i) + X(j)
        U(i, j) = T(j, N - 1 - i) + T(i, j)
        Y(i) +=! U(j, i)
    }"""
    n = 3000  # two temporaries of 36 MB
    x = small(n)
    function = only(text)
    t = x[:, None] + x[None, :]
    u = t.flip(1).t() + t
    assert torch.equal(function(x), u.sum(0))


def test_an_expanded_input_of_more_than_2_to_the_31_elements() -> None:
    function = only("def f(int8(M,N) X) -> (int32(M) S, T) { S(m) +=! int32(X(m, n))  T(n) = X(0, n) where n in 0:7 }")
    x = torch.tensor([[1], [3]], dtype=torch.int8).expand(2, (1 << 30) + 5)
    sums, firsts = function(x)
    assert sums.tolist() == [(1 << 30) + 5, (3 * ((1 << 30) + 5) + (1 << 31)) % (1 << 32) - (1 << 31)]
    assert firsts.tolist() == [1] * 7


def test_offsets_beyond_2_to_the_31_are_exact() -> None:
    base = torch.from_numpy(np.zeros((1 << 31) + 9, dtype=np.int8))  # untouched pages cost nothing
    base[-1] = 7
    view = base.as_strided((2, 9), (1 << 31, 1))
    function = only("def far(int8(M,N) X) -> (Y) { Y(n, m) = X(m, n) * 2 }")
    assert function(view).tolist() == [*([[0, 0]] * 8), [0, 14]]


# ---------------------------------------------------------------- numbers

SPECIAL = [
    ("a NaN first", [NAN, 1.0, 2.0]),
    ("a NaN in the middle", [1.0] * 20 + [NAN] + [-1.0] * 30),
    ("a NaN last", [1.0] * 40 + [NAN]),
    ("only NaN", [NAN] * 17),
    ("infinities", [INF, 1.0, -INF]),
    ("one infinity", [1.0] * 33 + [INF]),
    ("only minus infinity", [-INF] * 19),
    ("denormals", [1e-45, 2e-45, -1e-45] * 11),
    ("zeros of both signs", [0.0, -0.0] * 9),
]


@pytest.mark.parametrize("values", [v for _, v in SPECIAL], ids=[n for n, _ in SPECIAL])
def test_special_values_through_reductions_and_functions(values: list[float]) -> None:
    text = """def f(float(N) X) -> (Low, High, Sum, Product, R, F, G, K) {
        Low min=! X(n)  High max=! X(n)  Sum +=! X(n)  Product *=! X(n) where n in 0:3
        R(n) = relu(X(n))  F(n) = fmax(X(n), 0.5)  G(n) = fmin(X(n), -X(n))  K(n) = max(X(n), min(0.25, X(n)))
    }"""
    x = torch.tensor(values)
    low, high, total, product, r, f, g, k = tcjit.define(text).f(x)
    expected = [x.min(), x.max(), x.double().sum().float(), x[:3].prod(), torch.relu(x), x.fmax(torch.tensor(0.5)), x.fmin(-x)]
    for actual, want in zip([low, high, total, product, r, f, g], expected, strict=True):
        assert torch.equal(actual.nan_to_num(nan=12345.0), want.nan_to_num(nan=12345.0)), (actual, want)
    assert torch.equal(k.isnan(), x.isnan())


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_nan_stays_in_its_row_and_column(rows: int) -> None:
    x = small(rows, 50)
    x[rows // 2, 17] = NAN
    high, low = tcjit.define("def f(float(M,N) X) -> (H, L) { H(m) max=! X(m, n)  L(n) min=! X(m, n) }").f(x)
    assert high.isnan().nonzero().tolist() == [[rows // 2]] and low.isnan().nonzero().tolist() == [[17]]


def test_minus_zero_is_kept_where_nothing_is_computed() -> None:
    x = torch.tensor([-0.0, 0.0] * 20)
    y = tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(N - 1 - i) where i in 0:N }").f(x)
    assert torch.equal(torch.signbit(y), torch.signbit(x.flip(0)))


def test_denormals_survive() -> None:
    x = torch.full((40,), 1e-40)
    assert torch.equal(tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(i) * 0.5 }").f(x), torch.full((40,), 1e-40) * 0.5)
    assert (torch.full((40,), 1e-40) * 0.5 > 0).all()  # and loading the kernel left the process alone


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunks", [0, 8])
def test_half_sums_accumulate_in_float32(dtype: torch.dtype, chunks: int) -> None:
    name = str(dtype)[6:]
    total, rows = tcjit.define(
        f"def f({name}(M,N) X) -> (S, R) {{ S +=! X(m, n)  R(m) +=! X(m, n) }}", options=Options(reduction_chunks=chunks)
    ).f(torch.ones(3, 5000, dtype=dtype))
    assert total.dtype == dtype and total.item() == torch.tensor(15000.0).to(dtype).item()
    assert torch.equal(rows, torch.full((3,), 5000.0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_and_the_least_divided_by_minus_one_too(dtype: torch.dtype) -> None:
    name, least = str(dtype)[6:], torch.iinfo(dtype).min
    x = torch.tensor([least] * 20 + [7, -7], dtype=dtype)
    d = torch.tensor([-1] * 20 + [2, 2], dtype=dtype)
    text = f"""def f({name}(N) X, {name}(N) D) -> (Q, R, A, S, P) {{
        Q(i) = X(i) / D(i)  R(i) = X(i) % D(i)  A(i) = abs(X(i))  S +=! X(i)  P *=! X(i) + 3
    }}"""
    q, r, a, s, p = tcjit.define(text).f(x, d)
    assert q.tolist() == [least] * 20 + [3, -4] and r.tolist() == [0] * 20 + [1, 1]
    assert a.tolist() == [least] * 20 + [7, 7]
    assert s.item() == 0  # an even number of them
    power = ((least + 3) ** 20 * 10 * -4) & ((1 << torch.iinfo(dtype).bits) - 1)
    assert p.item() == (power if power < -least else power + 2 * least)


@pytest.mark.parametrize(
    "options", [None, Options(reduction_chunks=3), Options(fusion="maximal", lanes=1)], ids=["default", "chunks", "maximal"]
)
def test_faults_are_seen_wherever_they_happen(options: Options | None) -> None:
    divide = tcjit.define("def f(int32(N) A, int32(N) B) -> (Q, S) { Q(i) = A(i) / B(i)  S +=! A(i) % B(i) }", options=options).f
    pick = tcjit.define("def f(float(V,D) T, int64(N) I) -> (S) { S(d) +=! T(I(n), d) }", options=options).f
    for place in (0, 1234, 3999):
        divisors = torch.ones(4000, dtype=torch.int32)
        divide(divisors, divisors)
        divisors[place] = 0
        with pytest.raises(tcjit.TCError, match="divided by zero"):
            divide(divisors, divisors)
        indices = torch.zeros(4000, dtype=torch.int64)
        pick(torch.ones(5, 3), indices)
        for wrong in (-1, 5, 1 << 40):
            indices[place] = wrong
            with pytest.raises(IndexError):
                pick(torch.ones(5, 3), indices)


# ---------------------------------------------------------------- programs of odd forms


def test_a_program_of_thirty_statements() -> None:
    lines = ["T0(i, j) = X(i, j)"]
    for n in range(1, 30):
        previous = f"T{n - 1}"
        lines.append(
            (
                f"T{n}(i, j) = {previous}(i, j) + X(i, j)",
                f"T{n}(j, i) = {previous}(i, j) - {n}" if n % 2 else f"T{n}(i, j) = -{previous}(i, j)",
                f"T{n}(i, j) = max({previous}(i, j), T{max(0, n - 3)}(i, j))",
            )[n % 3]
        )
    text = "def deep(float(N,N) X) -> (Y) {\n" + "\n".join(lines) + "\nY(i) max=! T29(i, j)\n}"
    same(text, small(12, 12))


def test_everything_of_rank_zero() -> None:
    text = "def f(float x, int32 n, bool p) -> (A, B, C) { A = p ? x * n : x  B +=! A * k where k in 0:5  C = A + B  A min= B - 3 }"
    same(text, 2.0, 3, True)
    same("def f() -> (A) { A = 3 }")
    same("def f(float(N) X) -> (A) { A += X(i) }", small(9), out=torch.tensor(2.0))


@pytest.mark.parametrize("ones", [(), (0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (0, 3), (0, 1, 2, 3)], ids=str)
def test_extents_of_one_in_each_place(ones: tuple[int, ...]) -> None:
    b, m, k, n = (1 if place in ones else extent for place, extent in enumerate((3, 18, 20, 33)))
    text = """def f(float(B,M,K) A, float(B,K,N) D, float(N) c) -> (C, S) {
        C(b, m, n) +=! A(b, m, k) * D(b, k, n)
        C(b, m, n) = max(C(b, m, n) + c(n), 0)
        S(n, b) +=! C(b, m, n)
    }"""
    same(text, small(b, m, k), small(b, k, n, seed=1), small(n, seed=2))


@pytest.mark.parametrize("m, k, n", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)])
def test_extents_of_zero(m: int, k: int, n: int) -> None:
    same(
        "def f(float(M,K) A, float(K,N) B) -> (C, S, T) { C(m,n) +=! A(m,k) * B(k,n)  S(m) max=! C(m, n)  T *=! C(m, n) + S(m) }",
        small(m, k),
        small(k, n),
    )


@pytest.mark.parametrize("fusion", ["maximal", "minimal", "preserve_three_coincident"])
@pytest.mark.parametrize(
    "text",
    [
        # a partial result that statements of another group stand around (an order that only the scheduler knew)
        "def f(float(N,N) X) -> (A, B) { A(i) min=! X(i, j)  B +=! X(i, j) + A(i)  A(i) = A(i) + B where i in 0:N }",
        # shared loops over boxes of different sizes
        "def f(float(N,N) X) -> (A, B) { A(i, j) +=! X(i, k) * X(k, j)  B(i, j) = 2 * A(i, j) where i in 0:1, j in 0:5 }",
        # what an earlier group wrote, read transposed, reversed and shifted
        """def f(float(N,N) X) -> (A, B) {
            A(j, i) = X(i, j)
            B(i, j) = A(i, j) + A(N - 1 - i, j) + (i >= 1 ? A(i - 1, j) : 0.0) where i in 0:N
        }""",
        # parts of a tensor, written one after another
        """def f(float(N,N) X) -> (A) {
            A(i, j) = X(i, j)
            A(i, j) += X(j, i) where i in 2:9, j in 3:N
            A(i, j) max=! X(i, k) where i in 1:4, j in 4:7
        }""",
    ],
    ids=["around", "boxes", "crossed", "parts"],
)
def test_fusion_keeps_the_order_that_matters(text: str, fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)
    for chunks in (1, 3):
        same(text, small(17, 17), options=Options(fusion=fusion, reduction_chunks=chunks, tile=(4, 5)))


@pytest.mark.parametrize(
    "text, args",
    [
        # the padded copy's box holds places that the strided subscript never takes, beyond the tensor
        (
            "def f(float(C,H) I, float(F,C,K) W) -> (O) { O(f,h) +=! (2*h < 10 ? I(c, 2*h) : 0.0) * W(f,c,k) where h in 0:7 }",
            (small(16, 9), small(32, 16, 3)),
        ),
        # a guard on one of two subscripts that move together
        (
            "def f(float(H,H) I, float(F,C) W) -> (O) { O(f,h) +=! (h < 9 ? I(h, h) : 0.0) * W(f,c) where h in 0:32 }",
            (small(9, 9), small(64, 64)),
        ),
        # a guard with its sides turned round, under !
        (
            "def f(float(C,H) I, float(F,C,K) W) -> (O) { O(f,h) +=! (!(k > h) ? I(c, h - k) : 0.5) * W(f,c,k) where h in 0:H }",
            (small(16, 9), small(32, 16, 6)),
        ),
    ],
    ids=["strided", "diagonal", "turned"],
)
def test_padded_copies_read_only_what_exists(text: str, args: tuple[torch.Tensor, ...]) -> None:
    same(text, *args)


def test_a_gathered_temporary_is_whole_before_it_is_read() -> None:
    text = "def f(float(N,M) X, int64(N) J) -> (O) { T(i, j) = 2 * X(i, j)  O(any0, any1) +=! T(J(any0), any1) * X(any0, k) }"
    same(text, small(64, 64), torch.arange(64).flip(0))


@pytest.mark.parametrize("fusion", ["maximal", "minimal", "preserve_three_coincident"])
@pytest.mark.parametrize("tile", [(), (16,), (64, 3)], ids=str)
def test_a_patch_with_loops_outside_the_shared_ones_loses_no_sum(fusion: str, tile: tuple[int, ...]) -> None:
    sums = "def f(bfloat16(1) X) -> (Y) { Y(m, i) +=! X(i) + bfloat16(n) where m in 0:40, n in 9:16 }"
    same(sums, torch.ones(1, dtype=torch.bfloat16), options=Options(fusion=fusion, tile=tile, reduction_chunks=8, contract=False))
    products = "def f(float(B,K,D) X, float(K,B,D) Y) -> (O, P) { O(b,d) +=! X(b,k,d) * Y(k,b,d)  P(d) +=! O(b,d) }"
    same(products, small(7, 5, 40), small(5, 7, 40, seed=1), options=Options(fusion=fusion, tile=tile))
    dots = "def f(float(B,D,K) X, float(B,D,K) Y) -> (P) { O(b,d) +=! X(b,d,k) * Y(b,d,k)  P(b) max=! O(b,d) }"
    same(dots, small(9, 5, 340), small(9, 5, 340, seed=1), options=Options(fusion=fusion, tile=tile))


def test_maximal_fusion_ends_whatever_the_subscripts() -> None:
    text = """def f(float(K,N) X, float(Q,P) W) -> (A, B) {
        A(k, n) +=! X(k, n) - W(q, 0)
        B(q, p, l) min=! W(q, p) - A(l, q) where l in 0:130, q in 0:130
        B(n, k, m) *= min(A((p + m + 2) % 512, m), 2.0) where n in 63:81, k in 11:18, p in 0:3, m in 0:4
    }"""
    function = only(text, options=Options(fusion="maximal", reduction_chunks=8, parallel=False, pack=False))
    a, b = function(small(512, 130), small(130, 64))
    assert a.shape == (512, 130) and b.shape == (130, 64, 130)


def test_signs_in_a_row_on_vectors() -> None:
    text = "def f(float(M,K) A, float(K,N) B, float s) -> (C) { C(m,n) +=! -(-A(m,k)) * -(-(-B(k,n))) * -s - -2.0 }"
    same(text, small(9, 8), small(8, 33), -3.0)


# ---------------------------------------------------------------- names

C_WORDS = """
int for main while do auto struct union static const void return double_ goto switch case default break continue sizeof enum typedef asm
inline restrict register typeof static_assert thread_local nullptr constexpr alignas complex imaginary volatile extern short long signed
unsigned char linux unix errno malloc memcpy NULL assert offsetof stdin EOF FILE uint8_t int64_t size_t intptr_t INT8_MAX INT_MAX
INTMAX_MAX INT_LEAST8_MAX WCHAR_MAX SIZE_MAX UINT64_MAX M_PI
""".split()
ISL_WORDS = "and or not implies mod floor ceil floord ceild rat infty infinity NaN nan".split()
OUR_WORDS = """
c0 c1 s1 s0_16 v2 x0 x1 threads numbers tensors workspace tc_flag tc_sum tc_at0 tc_g0_0 tc_v0 tc_ok0 tc_fdiv tc_max_f32 TC_FLAG
TC_INLINE INFINITY NAN _x __x _Bool X_p X_bits X_stride0 omp omp_out omp_in omp_priv S0 S1 S2 chunk any0 a0 y0_ tile0 tiles lanes unroll
registers parallel tc_float16 tc_sum_float16 tc_min_float tc_value e1 E10 expf fmaxf sqrtf True False None self lambda class P_wide
P_part
""".split()
BUILT_INS = "exp log sqrt fmax abs j0 y1 relu".split()
WORDS = [*C_WORDS, *ISL_WORDS, *OUR_WORDS]
TENSOR_WORDS = [w for w in WORDS if w not in ("floor", "ceil", "infinity")]  # names of built-ins are no names of tensors
BATCH = 22


def batches(words: list[str]) -> list[list[str]]:
    return [words[start : start + BATCH] for start in range(0, len(words), BATCH)]


@pytest.mark.parametrize("words", batches(TENSOR_WORDS), ids=lambda w: w[0])
def test_any_name_for_inputs_and_scalars(words: list[str]) -> None:
    params = ", ".join(f"float(N) {w}" for w in words)
    value = " + ".join(f"{n + 1} * {w}(i)" for n, w in enumerate(words))
    xs = [small(20, seed=n) for n in range(len(words))]
    found = tcjit.define(f"def f({params}, int64(N) Jx) -> (Q) {{ Q(i) = {value} + {words[0]}(Jx(i)) }}").f(*xs, torch.arange(20))
    assert torch.equal(found, torch.stack([(n + 1) * x for n, x in enumerate(xs)]).sum(0) + xs[0])
    params = ", ".join(f"half {w}" for w in words)
    value = " + ".join(f"{n + 1} * float({w})" for n, w in enumerate(words))
    found = tcjit.define(f"def f({params}, half(N) X) -> (P) {{ P +=! X(i) * half({value}) }}", options=Options(reduction_chunks=2)).f(
        *[1.0] * len(words), torch.ones(4, dtype=torch.half)
    )
    assert found.item() == 4 * len(words) * (len(words) + 1) / 2


@pytest.mark.parametrize("words", batches(TENSOR_WORDS), ids=lambda w: w[0])
def test_any_name_for_outputs_and_temporaries(words: list[str]) -> None:
    chain = " ".join(f"{w}(i) = {before}(i) + {n}" for n, (before, w) in enumerate(zip(["Xin", *words], words)))
    returned = [words[-1], *words[::3]]
    found = tcjit.define(f"def f(float(N) Xin) -> ({', '.join(dict.fromkeys(returned))}) {{ {chain} }}").f(torch.zeros(20))
    for w, result in zip(dict.fromkeys(returned), found, strict=True):
        assert result[3] == sum(range(words.index(w) + 1)), w


@pytest.mark.parametrize("words", batches([*ISL_WORDS, *OUR_WORDS, *BUILT_INS, "int", "for"]), ids=lambda w: w[0])
def test_any_name_for_sizes_and_indices(words: list[str]) -> None:
    dims = [min(n % 3 + 1, 2) for n in range(len(words))]
    params = ", ".join(f"float({w}) Z{n}" for n, w in enumerate(words))
    zs = [torch.ones(d) for d in dims]
    found = tcjit.define(f"def f({params}) -> (Q) {{ Q = {' + '.join(words)} + Z0(0) }}").f(*zs)
    assert found.item() == sum(dims) + 1
    lines = " ".join(f"T{n}({w}) +=! X({w}, Kx) * {w} + ({w} >= 1 ? X({w} / 2, Kx) : 1.0)" for n, w in enumerate(words[:6]))
    last = " + ".join(f"T{n}(i)" for n in range(len(words[:6])))
    same(f"def f(float(M,K) X) -> (Q) {{ {lines} Q(i) = {last} }}", small(9, 4))
    for n, w in enumerate(words[6:]):
        other = words[n]
        if n % 4 == 0:
            same(f"def f(float(M,M) X) -> (Q) {{ Q({w}, {other}) = X({other}, {w}) + {w} - 2 * ({other} % 3) }}", small(3, 3))


@pytest.mark.parametrize("name", "fdiv bits_f32 float_to_half float8 sum_float8 flag int main and mod exp _x lambda".split())
def test_any_name_for_a_def(name: str) -> None:
    text = f"""def {name}(float(M,K) A, float(K,N) B, half(M) H) -> (C, D) {{
        C(m,n) +=! A(m,k) * B(k,n)  D(i) = H((i + 1) % M) / 2 where i in 0:M
    }}"""
    a, b = small(9, 8), small(8, 16)
    product, moved = getattr(tcjit.define(text, options=Options(lanes=8)), name)(a, b, torch.ones(9, dtype=torch.half))
    assert torch.equal(product, a @ b) and torch.equal(moved, torch.full((9,), 0.5, dtype=torch.half))


@pytest.mark.parametrize("word", "def where in exists min max true false bool float half int32 2x a-b é".split())
def test_words_of_the_language_are_refused(word: str) -> None:
    for text in (
        f"def {word}(float(N) X) -> (Y) {{ Y(i) = X(i) }}",
        f"def f(float(N) {word}) -> (Y) {{ Y(i) = {word}(i) }}",
        f"def f(float(N) X) -> ({word}) {{ {word}(i) = X(i) }}",
        f"def f(float(N) X) -> (Y) {{ Y({word}) = X({word}) }}",
    ):
        with pytest.raises(tcjit.TCError):
            tcjit.define(text)
