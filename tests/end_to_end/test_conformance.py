"""What every target promises beyond agreement on random programs: reproducible bits, IEEE corner cases, odd shapes, far places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rings.cuda_target import compiled_as_well
from support.rings.targets import assert_agrees, everywhere, only, small

import tcjit
from tcjit.mapping.options import Options
from tcjit.mapping.passes import parallelise

EVERYWHERE = pytest.mark.parametrize("on", everywhere())
NAN, INF = float("nan"), float("inf")
FEW = 2  # runs, where each is slow
SOFTMAX = """
def softmax(float(M,N) I) -> (O) {
    top(m) max=! I(m, n)
    O(m, n) = exp(I(m, n) - top(m))
    total(m) +=! O(m, n)
    O(m, n) = O(m, n) / total(m)
}"""
TOTAL = "def total(float(N) X) -> (S) { S +=! X(n) }"
MATMUL = "def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def without_local_memory() -> Iterator[None]:
    """Every CUDA kernel of these tests is compiled for its architecture too, and has neither a stack nor spills."""
    with compiled_as_well():
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------- reproducible bits


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "text, args, runs",
    [
        (TOTAL, (normal(3_000_000),), 1000),  # beyond the caches of a core: threads pay
        (SOFTMAX, (normal(64, 700),), 1000),
        (MATMUL, (normal(150, 90), normal(90, 70)), 200),
        ("def columns(float(M,N) X) -> (S) { S(n) +=! X(m, n) }", (normal(30_000, 7),), 200),
    ],
    ids=["total", "softmax", "matmul", "columns"],
)
def test_the_same_bits_in_every_run_with_any_number_of_threads(on: str, text: str, args: tuple[torch.Tensor, ...], runs: int) -> None:
    """On the CPU OpenMP's threads are changed in between, elsewhere a device has its own."""
    function = only(text, target=on)
    assert on != "cpu" or "#pragma omp parallel" in function.compile(*args).source
    first = function(*args)
    for number in range(runs if on == "cpu" else FEW):
        if number % 50 == 0:
            torch.set_num_threads(1 + number // 50 % 4)
        assert torch.equal(function(*args), first)


@EVERYWHERE
def test_results_do_not_depend_on_verification(on: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, line = normal(20, 333), normal(9999)
    outcomes = []
    for verify in "01":
        monkeypatch.setenv("TCJIT_VERIFY", verify)
        monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / verify))
        tc = tcjit.define(f"{SOFTMAX}\n{TOTAL}\n# {verify}", target=on)  # a text of its own has a function of its own
        kernel = tc.softmax.compile(rows)
        assert kernel.resources["verified"] is (verify == "1")
        outcomes.append((kernel.source, tc.softmax(rows), tc.total(line)))
    (source, *results), (again, *others) = outcomes
    assert source == again and all(torch.equal(one, other) for one, other in zip(results, others))


@EVERYWHERE
def test_several_python_threads_call_and_compile_at_once(on: str) -> None:
    text = """def work(float(M,N) X) -> (Y) { T(m) +=! X(m, n) * X(m, n)  U(n, m) = X(m, n) * T(m)  Y(n) +=! U(n, m) }"""
    function = only(text, target=on)
    inputs = [small(40 + size, 300, seed=size) for size in range(4)]
    expected = [((x * (x * x).sum(1, keepdim=True)).sum(0)) for x in inputs]
    wrong: list[str] = []

    def call(offset: int) -> None:
        for turn in range(60 if on == "cpu" else 10):
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


@pytest.mark.parametrize("on", everywhere(cuda_host="a minute, to watch every access to 18 million elements"))
def test_temporaries_much_larger_than_the_caches(on: str) -> None:
    text = """def big(float(N) X) -> (Y) {
        T(i, j) = X(i) + X(j)
        U(i, j) = T(j, N - 1 - i) + T(i, j)
        Y(i) +=! U(j, i)
    }"""
    n = 3000  # two temporaries of 36 MB
    x = small(n)
    function = only(text, target=on)
    t = x[:, None] + x[None, :]
    u = t.flip(1).t() + t
    assert torch.equal(function(x), u.sum(0))


@pytest.mark.parametrize(
    "on",
    everywhere(
        cuda_host="minutes, to watch two thousand million accesses",
        opencl="a minute, since code for PoCL is not optimised",
        cuda="tests/cuda/test_cuda_calls.py has as many elements",
    ),
)
def test_an_expanded_input_of_more_than_2_to_the_31_elements(on: str) -> None:
    function = only("def f(int8(M,N) X) -> (int32(M) S, T) { S(m) +=! int32(X(m, n))  T(n) = X(0, n) where n in 0:7 }", target=on)
    x = torch.tensor([[1], [3]], dtype=torch.int8).expand(2, (1 << 30) + 5)
    sums, firsts = function(x)
    assert sums.tolist() == [(1 << 30) + 5, (3 * ((1 << 30) + 5) + (1 << 31)) % (1 << 32) - (1 << 31)]
    assert firsts.tolist() == [1] * 7


@EVERYWHERE
def test_far_places_of_an_expanded_input(on: str) -> None:
    text = """def f(int8(M,N) X, int64(K) I) -> (int32(M) S, T, G) {
        S(m) +=! int32(X(m, 4294967296 + 3 * n)) where n in 0:5
        T(n) = X(1, n + 2147483648) where n in 0:7
        G(k) = X(0, I(k))
    }"""
    x = torch.tensor([[1], [3]], dtype=torch.int8).expand(2, (1 << 32) + 20)
    sums, there, gathered = only(text, target=on)(x, torch.tensor([0, (1 << 31) + 1, (1 << 32) + 19]))
    assert sums.tolist() == [5, 15] and there.tolist() == [3] * 7 and gathered.tolist() == [1] * 3


@pytest.mark.parametrize(
    "on",
    everywhere(
        cuda_host="copies of 2 GB, with a mark for every byte",
        opencl="a copy of 2 GB, where it is not aligned by chance",
        cuda="tests/cuda/test_cuda_calls.py has tensors as large",
    ),
)
def test_offsets_beyond_2_to_the_31_are_exact(on: str) -> None:
    base = torch.from_numpy(np.zeros((1 << 31) + 9, dtype=np.int8))  # untouched pages cost nothing
    base[-1] = 7
    view = base.as_strided((2, 9), (1 << 31, 1))
    function = only("def far(int8(M,N) X) -> (Y) { Y(n, m) = X(m, n) * 2 }", target=on)
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


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("values", [v for _, v in SPECIAL], ids=[n for n, _ in SPECIAL])
def test_special_values_through_reductions_and_functions(on: str, values: list[float]) -> None:
    text = """def f(float(N) X) -> (Low, High, Sum, Product, R, F, G, K) {
        Low min=! X(n)  High max=! X(n)  Sum +=! X(n)  Product *=! X(n) where n in 0:3
        R(n) = relu(X(n))  F(n) = fmax(X(n), 0.5)  G(n) = fmin(X(n), -X(n))  K(n) = max(X(n), min(0.25, X(n)))
    }"""
    x = torch.tensor(values)
    low, high, total, product, r, f, g, k = tcjit.define(text, target=on).f(x)
    expected = [x.min(), x.max(), x.double().sum().float(), x[:3].prod(), torch.relu(x), x.fmax(torch.tensor(0.5)), x.fmin(-x)]
    for actual, want in zip([low, high, total, product, r, f, g], expected, strict=True):
        assert torch.equal(actual.nan_to_num(nan=12345.0), want.nan_to_num(nan=12345.0)), (actual, want)
    assert torch.equal(k.isnan(), x.isnan())


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_nan_stays_in_its_row_and_column(on: str, rows: int) -> None:
    x = small(rows, 50)
    x[rows // 2, 17] = NAN
    high, low = tcjit.define("def f(float(M,N) X) -> (H, L) { H(m) max=! X(m, n)  L(n) min=! X(m, n) }", target=on).f(x)
    assert high.isnan().nonzero().tolist() == [[rows // 2]] and low.isnan().nonzero().tolist() == [[17]]


@EVERYWHERE
def test_minus_zero_is_kept_where_nothing_is_computed(on: str) -> None:
    x = torch.tensor([-0.0, 0.0] * 20)
    y = tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(N - 1 - i) where i in 0:N }", target=on).f(x)
    assert torch.equal(torch.signbit(y), torch.signbit(x.flip(0)))


@EVERYWHERE
def test_denormals_survive(on: str) -> None:
    x = torch.full((40,), 1e-40)
    assert torch.equal(tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(i) * 0.5 }", target=on).f(x), torch.full((40,), 1e-40) * 0.5)
    assert (torch.full((40,), 1e-40) * 0.5 > 0).all()  # and loading the kernel left the process alone


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunks", [0, 8])
def test_half_sums_accumulate_in_float32(on: str, dtype: torch.dtype, chunks: int) -> None:
    name = str(dtype)[6:]
    text = f"def f({name}(M,N) X) -> (S, R) {{ S +=! X(m, n)  R(m) +=! X(m, n) }}"
    total, rows = only(text, target=on, options=Options(reduction_chunks=chunks))(torch.ones(3, 5000, dtype=dtype))
    assert total.dtype == dtype and total.item() == torch.tensor(15000.0).to(dtype).item()
    assert torch.equal(rows, torch.full((3,), 5000.0).to(dtype))


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_and_the_least_divided_by_minus_one_too(on: str, dtype: torch.dtype) -> None:
    name, least = str(dtype)[6:], torch.iinfo(dtype).min
    x = torch.tensor([least] * 20 + [7, -7], dtype=dtype)
    d = torch.tensor([-1] * 20 + [2, 2], dtype=dtype)
    text = f"""def f({name}(N) X, {name}(N) D) -> (Q, R, A, S, P) {{
        Q(i) = X(i) / D(i)  R(i) = X(i) % D(i)  A(i) = abs(X(i))  S +=! X(i)  P *=! X(i) + 3
    }}"""
    q, r, a, s, p = tcjit.define(text, target=on).f(x, d)
    assert q.tolist() == [least] * 20 + [3, -4] and r.tolist() == [0] * 20 + [1, 1]
    assert a.tolist() == [least] * 20 + [7, 7]
    assert s.item() == 0  # an even number of them
    power = ((least + 3) ** 20 * 10 * -4) & ((1 << torch.iinfo(dtype).bits) - 1)
    assert p.item() == (power if power < -least else power + 2 * least)


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options", [None, Options(reduction_chunks=3), Options(fusion="maximal", vector_width=1)], ids=["default", "chunks", "maximal"]
)
def test_faults_are_seen_wherever_they_happen(on: str, options: Options | None) -> None:
    divide = tcjit.define("def f(int32(N) A, int32(N) B) -> (Q, S) { Q(i) = A(i) / B(i)  S +=! A(i) % B(i) }", target=on, options=options).f
    pick = tcjit.define("def f(float(V,D) T, int64(N) I) -> (S) { S(d) +=! T(I(n), d) }", target=on, options=options).f
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


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "table",
    [torch.ones(1, 3), torch.ones(3, 1), torch.ones(1, 3).expand(5, 3), torch.ones(5, 1).expand(5, 3), torch.ones(1, 6)[:, ::2]],
    ids=["one row", "one column", "expanded rows", "expanded columns", "one strided row"],
)
def test_indices_are_checked_where_no_address_depends_on_them(on: str, table: torch.Tensor) -> None:
    pick = only("def f(float(V,D) T, int64(N) I, int32(N) J) -> (Y) { Y(n) = T(I(n), J(n)) }", target=on)
    least, most = torch.zeros(4, dtype=torch.int64), torch.full((4,), table.shape[0] - 1)
    low, high = torch.zeros(4, dtype=torch.int32), torch.full((4,), table.shape[1] - 1, dtype=torch.int32)
    for rows, columns in ((least, low), (most, high)):
        assert torch.equal(pick(table, rows, columns), torch.ones(4))
    beyond = torch.tensor([0, 0, 0, 1])
    for rows, columns in ((most + beyond, high), (least - beyond, low), (most, high + beyond.int()), (least, low - beyond.int())):
        with pytest.raises(IndexError):
            pick(table, rows, columns)


# ---------------------------------------------------------------- programs of odd forms


@EVERYWHERE
def test_a_program_of_thirty_statements(on: str) -> None:
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
    assert_agrees(on, text, small(12, 12))


@EVERYWHERE
def test_everything_of_rank_zero(on: str) -> None:
    text = "def f(float x, int32 n, bool p) -> (A, B, C) { A = p ? x * n : x  B +=! A * k where k in 0:5  C = A + B  A min= B - 3 }"
    assert_agrees(on, text, 2.0, 3, True)
    assert_agrees(on, "def f() -> (A) { A = 3 }")
    assert_agrees(on, "def f(float(N) X) -> (A) { A += X(i) }", small(9), out=torch.tensor(2.0))


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("ones", [(), (0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (0, 3), (0, 1, 2, 3)], ids=str)
def test_extents_of_one_in_each_place(on: str, ones: tuple[int, ...]) -> None:
    b, m, k, n = (1 if place in ones else extent for place, extent in enumerate((3, 18, 20, 33)))
    text = """def f(float(B,M,K) A, float(B,K,N) D, float(N) c) -> (C, S) {
        C(b, m, n) +=! A(b, m, k) * D(b, k, n)
        C(b, m, n) = max(C(b, m, n) + c(n), 0)
        S(n, b) +=! C(b, m, n)
    }"""
    assert_agrees(on, text, small(b, m, k), small(b, k, n, seed=1), small(n, seed=2))


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("m, k, n", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)])
def test_extents_of_zero(on: str, m: int, k: int, n: int) -> None:
    assert_agrees(
        on,
        "def f(float(M,K) A, float(K,N) B) -> (C, S, T) { C(m,n) +=! A(m,k) * B(k,n)  S(m) max=! C(m, n)  T *=! C(m, n) + S(m) }",
        small(m, k),
        small(k, n),
    )


@EVERYWHERE
@pytest.mark.sample(2)
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
def test_fusion_keeps_the_order_that_matters(on: str, text: str, fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)
    for chunks in (1, 3):
        assert_agrees(on, text, small(17, 17), options=Options(fusion=fusion, reduction_chunks=chunks, tile=(4, 5)))


@EVERYWHERE
@pytest.mark.sample(2)
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
        # quotients whose limits hold of multiples alone, and a comparison with what they guard
        (
            """def f(float(C,H) S, float(C,H) Y, float(C,2*H+1) X) -> (D) {
                D(c,h) +=! ((h - i) % 2 == 0 && h - i >= -1 && h - i < 2 * H - 1 && h >= i && X(c,h) == Y(c,(h-i)/2)) ? S(c,(h-i)/2) : 0.0
                    where h in 0:2*H+1, i in 0:3
            }""",
            (small(16, 9), torch.zeros(16, 9), small(16, 19).clamp(min=0)),
        ),
        # quotients without a remainder to know: a limit of multiples is one of theirs, any other is not
        (
            """def f(float(C,H) S, float(C,5) G) -> (D) {
                D(c,h) +=! (h - i >= 0 && h - i < 3 * H - 2 ? S(c, (h - i) / 3) : 0.0) * G(c, i)
                    where h in 0:3*H+1, i in 0:5
            }""",
            (small(16, 9), small(16, 5)),
        ),
        # -0.0 is no identity of what starts from 0.0, and no choice of a select for 0.0
        (
            "def f(float(C,H) S) -> (D) { D(c,h) +=! h >= i ? (i < 2 ? S(c, h - i) : -0.0) : 0.0 where h in 0:H, i in 0:4 }",
            (small(16, 9),),
        ),
    ],
    ids=["strided", "diagonal", "turned", "multiples", "quotients", "zeros"],
)
def test_padded_copies_read_only_what_exists(on: str, text: str, args: tuple[torch.Tensor, ...]) -> None:
    assert_agrees(on, text, *args)


@EVERYWHERE
def test_a_gathered_temporary_is_whole_before_it_is_read(on: str) -> None:
    text = "def f(float(N,M) X, int64(N) J) -> (O) { T(i, j) = 2 * X(i, j)  O(any0, any1) +=! T(J(any0), any1) * X(any0, k) }"
    assert_agrees(on, text, small(64, 64), torch.arange(64).flip(0))


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("fusion", ["maximal", "minimal", "preserve_three_coincident"])
@pytest.mark.parametrize("tile", [(), (16,), (64, 3)], ids=str)
def test_a_patch_with_loops_outside_the_shared_ones_loses_no_sum(on: str, fusion: str, tile: tuple[int, ...]) -> None:
    sums = "def f(bfloat16(1) X) -> (Y) { Y(m, i) +=! X(i) + bfloat16(n) where m in 0:40, n in 9:16 }"
    options = Options(fusion=fusion, tile=tile, reduction_chunks=8, private_buffers=False)
    assert_agrees(on, sums, torch.ones(1, dtype=torch.bfloat16), options=options)
    products = "def f(float(B,K,D) X, float(K,B,D) Y) -> (O, P) { O(b,d) +=! X(b,k,d) * Y(k,b,d)  P(d) +=! O(b,d) }"
    assert_agrees(on, products, small(7, 5, 40), small(5, 7, 40, seed=1), options=Options(fusion=fusion, tile=tile))
    dots = "def f(float(B,D,K) X, float(B,D,K) Y) -> (P) { O(b,d) +=! X(b,d,k) * Y(b,d,k)  P(b) max=! O(b,d) }"
    assert_agrees(on, dots, small(9, 5, 340), small(9, 5, 340, seed=1), options=Options(fusion=fusion, tile=tile))


@EVERYWHERE
def test_maximal_fusion_ends_whatever_the_subscripts(on: str) -> None:
    text = """def f(float(K,N) X, float(Q,P) W) -> (A, B) {
        A(k, n) +=! X(k, n) - W(q, 0)
        B(q, p, l) min=! W(q, p) - A(l, q) where l in 0:130, q in 0:130
        B(n, k, m) *= min(A((p + m + 2) % 512, m), 2.0) where n in 63:81, k in 11:18, p in 0:3, m in 0:4
    }"""
    function = only(text, target=on, options=Options(fusion="maximal", reduction_chunks=8, parallel=False, pack=False))
    a, b = function(small(512, 130), small(130, 64))
    assert a.shape == (512, 130) and b.shape == (130, 64, 130)


@EVERYWHERE
def test_signs_in_a_row_on_vectors(on: str) -> None:
    text = "def f(float(M,K) A, float(K,N) B, float s) -> (C) { C(m,n) +=! -(-A(m,k)) * -(-(-B(k,n))) * -s - -2.0 }"
    assert_agrees(on, text, small(9, 8), small(8, 33), -3.0)
