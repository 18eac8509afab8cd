"""Results in registers along lanes: sums of gathered rows, their checks, what is asked for early, and reductions of columns.

Modules: codegen.lane_accumulators
"""

from __future__ import annotations

import pytest
import torch

import tcjit

BAG = "def bag(float(E,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(I(b,l), d) }"
WEIGHTED = "def bag(float(E,D) T, int64(B,L) I, float(B,L) W) -> (O) { O(b,d) +=! T(I(b,l), d) * W(b,l) }"
PAIRS = "def pairs(float(E,D) T, float(F,D) U, int64(B,L) I, int64(B,L) J) -> (O) { O(b,d) +=! T(I(b,l), d) * U(J(b,l), d) }"
MOVING = "def f(float(E,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(I(b,l) + b, d) }"


def table(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def places(rows: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(rows, shape, generator=torch.Generator().manual_seed(seed))


BAGS = [(50, 64, 9, 10), (9000, 64, 40, 7), (9000, 40, 5, 100), (3, 33, 4, 5), (9000, 1, 3, 9)]


@pytest.mark.parametrize("rows, width, bags, each", BAGS)
@pytest.mark.parametrize("tile", [(), (2, 32), (3, 16), (1, 16)])
def test_bags(rows: int, width: int, bags: int, each: int, tile: tuple[int, ...]) -> None:
    t, i = table(rows, width), places(rows, bags, each)
    bag = tcjit.define(BAG).bag
    made = bag.compile(t, i, options=tcjit.Options(tile=tile))
    torch.testing.assert_close(made(t, i), t[i].sum(1), atol=1e-4, rtol=1e-5)


def test_rows_with_weights_and_in_pairs() -> None:
    t, u, i, j = table(9000, 48), table(7, 48, 1), places(9000, 12, 6), places(7, 12, 6)
    w = table(12, 6, 2)
    torch.testing.assert_close(tcjit.define(WEIGHTED).bag(t, i, w), (t[i] * w[..., None]).sum(1), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(tcjit.define(PAIRS).pairs(t, u, i, j), (t[i] * u[j]).sum(1), atol=1e-4, rtol=1e-5)
    far = tcjit.define(MOVING).f
    torch.testing.assert_close(far(t, places(8000, 12, 6)), t[places(8000, 12, 6) + torch.arange(12)[:, None]].sum(1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows, bad", [(50, 50), (50, -1), (9000, 1 << 40), (9000, -(1 << 40))])
@pytest.mark.parametrize("where", [(0, 0), (8, 9)])
def test_rows_that_do_not_exist(rows: int, bad: int, where: tuple[int, int]) -> None:
    t, i = table(rows, 64), places(rows, 9, 10)
    i[where] = bad
    with pytest.raises(tcjit.TCError, match="T"):
        tcjit.define(BAG).bag(t, i)


@pytest.mark.parametrize(
    "rows, width, each, distance",
    [
        (20000, 64, 10, "tc_ahead_c0 = c0 < 127 ? 1 : 0"),
        (20000, 64, 100, "tc_ahead_c1 = c0 < 127 ? 16 : 0"),
        (20000, 64, -100, "tc_ahead_c1 = c1 < 84 ? 16 : 0"),
        (50, 64, 10, ""),
    ],
    ids=["next result", "sums one after the other", "same sum", "small table"],
)
def test_what_is_asked_for_early(rows: int, width: int, each: int, distance: str) -> None:
    """Of sums whose subscripts do not follow one another in memory (here each second of a matrix) each ends by itself."""
    chosen = places(rows, 128, each) if each > 0 else places(rows, 256, -each)[::2]
    bag = tcjit.define(BAG).bag.compile(table(rows, width), chosen)
    assert bag.source.count("__builtin_prefetch") == (width // 16 if distance else 0)
    assert distance in bag.source
    torch.testing.assert_close(bag(table(rows, width), chosen), table(rows, width)[chosen].sum(1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("place", "there"), [("J(b,l)", False), ("(I(b,l) + J(b,l)) / 3", False), ("(I(b,l) + K(b,l)) / 2", True)])
def test_subscripts_that_are_not_there_yet_are_not_read(place: str, there: bool) -> None:
    """Nor where a part of them is."""
    t, i, k = table(20000, 64), places(20000, 40, 40), places(20000, 40, 40, seed=1)
    text = f"def bag(float(E,D) T, int64(B,L) I, int64(B,L) K) -> (O, J) {{ J(b,l) = I(b,l) / 2  O(b,d) +=! T({place}, d) }}"
    bag = tcjit.define(text).bag
    assert ("__builtin_prefetch" in bag.compile(t, i, k).source) == there
    rows = {"J(b,l)": i // 2, "(I(b,l) + J(b,l)) / 3": (i + i // 2) // 3, "(I(b,l) + K(b,l)) / 2": (i + k) // 2}[place]
    torch.testing.assert_close(bag(t, i, k)[0], t[rows].sum(1), atol=1e-4, rtol=1e-5)


def test_two_tables_look_ahead_in_one_loop() -> None:
    t, u, i, j = table(20000, 64), table(20000, 64, 1), places(20000, 5, 50), places(20000, 5, 50, seed=1)
    pairs = tcjit.define(PAIRS).pairs
    text = pairs.compile(t, u, i, j).source
    lines = [line for line in text.splitlines() if "__builtin_prefetch" in line]
    assert len(lines) in (4, 8)  # of a half of the columns, or of all
    assert sum("&T[" in line for line in lines) == len(lines) / 2
    assert text.count("const int64_t tc_ahead_") == 1
    torch.testing.assert_close(pairs(t, u, i, j), (t[i] * u[j]).sum(1), atol=1e-4, rtol=1e-5)


def test_an_empty_table() -> None:
    with pytest.raises(tcjit.TCError):
        tcjit.define(BAG).bag(torch.randn(0, 64), torch.zeros(4, 3, dtype=torch.int64))
    assert tcjit.define(BAG).bag(torch.randn(0, 64), torch.zeros(4, 0, dtype=torch.int64)).tolist() == torch.zeros(4, 64).tolist()


COLUMNS = """def f(float(N,M) X) -> (S, T, Y) {
    S(m) OP X(n,m)
    T(m) +=! X(n,m) * X(n,m)
    Y(n,m) = X(n,m) - S(m) + T(m) }"""


@pytest.mark.parametrize("operator", ["+=!", "max=!", "min=!", "*=!"])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 27, 33, 128, 200])
def test_columns_of_every_width(operator: str, width: int) -> None:
    """The last register has lanes of the one before where a tile is no multiple of it."""
    x = torch.rand(20, width, generator=torch.Generator().manual_seed(width)) + 0.5
    kernel = tcjit.define(COLUMNS.replace("OP", operator)).f.compile(x)
    s = {"+=!": x.sum(0), "max=!": x.amax(0), "min=!": x.amin(0), "*=!": x.prod(0)}[operator]
    t = (x * x).sum(0)
    torch.testing.assert_close(kernel(x), (s, t, x - s + t), rtol=1e-4, atol=1e-4)
    assert ("tc_sum0" in kernel.source) == (width > 1)


def test_results_that_go_on_are_read() -> None:
    x, y = torch.rand(20, 64), torch.rand(64)
    text = "def f(float(N,M) X, float(M) A) -> (S, T) { S(m) = A(m)  T(m) max=! X(n,m)  S(m) += X(n,m) * 2.0 + T(m) }"
    torch.testing.assert_close(tcjit.define(text).f(x, y)[0], y + 2 * x.sum(0) + 20 * x.amax(0), rtol=1e-4, atol=1e-4)


def test_nan_stays_in_its_column() -> None:
    x = torch.rand(20, 40)
    x[3, 25] = float("nan")
    text = COLUMNS.replace("OP", "max=!")
    torch.testing.assert_close(tcjit.define(text).f(x)[0], x.amax(0), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_widths(dtype: torch.dtype, width: int) -> None:
    """No wider than a register, whatever is asked for."""
    x = torch.randint(0, 9, (6, 33)).to(dtype)
    kernel = tcjit.define(COLUMNS.replace("float", str(dtype)[6:]).replace("OP", "max=!")).f
    options = tcjit.Options(vector_width=width)
    assert torch.equal(kernel.compile(x, options=options)(x)[0], x.amax(0))
    chunks = tcjit.define(f"def f({str(dtype)[6:]}(N,M) X) -> (Y) {{ Y(m) +=! X(n,m) }}").f
    assert torch.equal(chunks.compile(x, options=options.but(reduction_chunks=3))(x), x.sum(0).to(dtype))
