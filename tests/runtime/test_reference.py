"""The reference against NumPy and against values worked out by hand.

Modules: runtime.special
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tcjit.errors import DivisionError, GatherError
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.runtime import reference
from tcjit.runtime.numerics import rounded
from tcjit.runtime.reference import Result, run

rng = np.random.default_rng(0)


def evaluate(
    text: str,
    scalars: Mapping[str, int | float | bool] | None = None,
    initial: Mapping[str, Any] | None = None,
    checked: bool = True,
    **inputs: Any,
) -> Result:
    """Run the last def of ``text``; floats are rounded to the parameter's dtype first."""
    definition = read(text)[-1]
    dtypes = {p.name: p.dtype for p in definition.params}
    arrays = {n: np.asarray(a) for n, a in inputs.items()}
    arrays = {n: rounded(a, dtypes[n]) if a.dtype == np.float64 else a for n, a in arrays.items()}
    scalars = scalars or {}
    known = {n: int(v) for n, v in scalars.items() if n in definition.specialised}
    program = specialise(definition, {n: a.shape for n, a in arrays.items()}, known)
    return run(program, arrays, scalars, initial, checked)


def single(text: str, **arguments: Any) -> np.ndarray:
    """The only result."""
    (value,) = evaluate(text, **arguments).values.values()
    return value


# ---------------------------------------------------------------- statements


def test_matmul_and_the_tolerance_rule() -> None:
    a, b = rounded(rng.normal(size=(9, 40)), "float32"), rounded(rng.normal(size=(40, 7)), "float32")
    result = evaluate("def f(float(M,K) A, float(K,N) B) -> (C) { C(i,j) +=! A(i,k) * B(k,j) }", A=a, B=b)
    np.testing.assert_array_equal(result.values["C"], rounded(a @ b, "float32"))
    rule = (40 + 8) * 2.0**-23 * (np.abs(a) @ np.abs(b))
    assert np.all(result.error["C"] >= rule) and np.all(result.error["C"] <= 1.2 * rule + 2.0**-23 * np.abs(a @ b))
    single_precision = a.astype(np.float32) @ b.astype(np.float32)
    assert np.all(np.abs(single_precision - result.values["C"]) <= result.error["C"])


def test_convolution_with_stride_and_padding() -> None:
    text = """def conv(float(N,C,H,W) I, float(O,C,KH,KW) F, int32 s) -> (Y) {
        Y(n,o,h,w) +=! (s*h + kh >= 1 && s*h + kh <= H && s*w + kw >= 1 && s*w + kw <= W ? I(n,c,s*h + kh - 1,s*w + kw - 1) : 0.0)
            * F(o,c,kh,kw) where h in 0:3, w in 0:4
    }"""
    i, f = rng.normal(size=(2, 3, 5, 7)), rng.normal(size=(4, 3, 3, 3))
    padded = np.pad(rounded(i, "float32"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    wanted = np.einsum("nchwyx,ocyx->nohw", windows, rounded(f, "float32"))
    np.testing.assert_allclose(single(text, I=i, F=f, scalars={"s": 2}), wanted, rtol=1e-6, atol=1e-6)


def test_softmax_in_several_statements() -> None:
    text = """def softmax(double(N,D) X) -> (Y) {
        M(n) max=! X(n,d)
        E(n,d) = exp(X(n,d) - M(n))
        S(n) +=! E(n,d)
        Y(n,d) = E(n,d) / S(n)
    }"""
    x = rng.normal(size=(5, 11))
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(single(text, X=x), e / e.sum(1, keepdims=True), rtol=1e-14)


def test_a_statement_reads_the_element_it_writes_and_covers_a_part() -> None:
    text = """def f(float(N) X) -> (Y) {
        Y(i) = X(i) * 2.0
        Y(i) = Y(i) + 1.0 where i in 1:3
        Y(i) += X(i) where i in 0:2
        Y(i) max=! X(i) where i in 4:5
    }"""
    assert single(text, X=np.arange(6.0)).tolist() == [0.0, 4.0, 5.0, 6.0, 4.0, 10.0]


def test_accumulating_into_what_the_caller_passes_in() -> None:
    text = "def f(float(N,K) X) -> (Y) { Y(i) += X(i,k) }"
    assert single(text, X=np.ones((2, 3)), initial={"Y": np.array([10.0, -1.0])}).tolist() == [13.0, 2.0]


def test_reductions_and_their_identities() -> None:
    text = """def f(int32(N,K) X, float(N,K) F) -> (A,B,C,D,E) {
        A(i) +=! X(i,k)  B(i) *=! X(i,k)  C(i) min=! X(i,k)  D(i) max=! X(i,k)  E(i) max=! F(i,k)
    }"""
    x = rng.integers(-9, 9, (3, 4), dtype=np.int32)
    got = evaluate(text, X=x, F=x.astype(float)).values
    for name, wanted in zip("ABCDE", (x.sum(1), x.prod(1), x.min(1), x.max(1), x.max(1))):
        assert got[name].tolist() == wanted.tolist()
    empty = evaluate(text, X=np.zeros((2, 0), np.int32), F=np.zeros((2, 0))).values
    assert [empty[n].tolist() for n in "ABCDE"] == [[0, 0], [1, 1], [2**31 - 1] * 2, [-(2**31)] * 2, [-np.inf] * 2]


def test_zero_extents_and_rank_zero() -> None:
    got = evaluate("def f(float(N) X) -> (Y, S) { Y(i) = X(i) + 1.0  S +=! X(i) }", X=np.zeros(0)).values
    assert got["Y"].shape == (0,) and got["S"].shape == () and got["S"] == 0


def test_a_large_domain_in_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(float(M,K) A, float(K,N) B) -> (C, D) { C(i,j) +=! A(i,k) * B(k,j)  D(i,k) = exp(A(i,k)) }"
    a, b = rng.integers(-3, 4, (6, 20)).astype(float), rng.integers(-3, 4, (20, 5)).astype(float)
    whole = evaluate(text, A=a, B=b)
    monkeypatch.setattr(reference.pieces, "__defaults__", (17,))
    pieced = evaluate(text, A=a, B=b)
    for name in "CD":
        np.testing.assert_array_equal(pieced.values[name], whole.values[name])
        np.testing.assert_array_equal(pieced.error[name], whole.error[name])


@pytest.mark.parametrize("domain", [[], [(0, 0), (0, 5)], [(2, 9)], [(0, 3), (1, 4), (0, 7)]])
def test_pieces_cover_a_domain_once(domain: list[tuple[int, int]]) -> None:
    boxes = list(reference.pieces(domain, 5))
    points = sum(int(np.prod([b - a for a, b in box])) for box in boxes)
    covered = {tuple(a + i for (a, _), i in zip(box, p)) for box in boxes for p in np.ndindex(*(b - a for a, b in box))}
    wanted = {tuple(a + i for (a, _), i in zip(domain, p)) for p in np.ndindex(*(b - a for a, b in domain))}
    assert covered == wanted and points == len(wanted)


# ---------------------------------------------------------------- reading


def test_gathers_raise_name_the_tensor_and_give_zero_unchecked() -> None:
    text = "def f(float(V) T, int32(N) I) -> (Y) { Y(i) = T(I(i)) }"
    indices = np.array([1, 5, -1, 0], dtype=np.int32)
    with pytest.raises(GatherError, match="index 5 is outside `T`") as caught:
        single(text, T=np.arange(3.0) + 1, I=indices)
    assert caught.value.where is not None and caught.value.where.line == 1
    assert single(text, T=np.arange(3.0) + 1, I=indices, checked=False).tolist() == [2.0, 0.0, 0.0, 1.0]


def test_what_is_not_evaluated_does_not_fault() -> None:
    text = """def f(float(V) T, int32(N) I, int32(N) D) -> (Y, Z, B) {
        Y(i) = I(i) >= 0 && I(i) < V ? T(I(i)) : -1.0
        Z(i) = D(i) == 0 ? 0 : I(i) / D(i)
        B(i) = I(i) < 0 || I(i) >= V || T(I(i)) > 1.5
    }"""
    got = evaluate(text, T=np.arange(3.0), I=np.array([2, 7, -4, 0], np.int32), D=np.array([2, 0, 3, 0], np.int32)).values
    assert got["Y"].tolist() == [2.0, -1.0, -1.0, 0.0]
    assert got["Z"].tolist() == [1, 0, -2, 0]
    assert got["B"].tolist() == [True, True, True, False]


def test_a_gather_from_an_empty_tensor() -> None:
    text = "def f(float(V) T, int32(N) I) -> (Y) { Y(i) = I(i) < 0 ? 7.0 : T(I(i)) }"
    assert single(text, T=np.zeros(0), I=np.array([-1], np.int32)).tolist() == [7.0]
    with pytest.raises(GatherError):
        single(text, T=np.zeros(0), I=np.array([0], np.int32))


# ---------------------------------------------------------------- numbers


def test_integers_wrap_and_floor() -> None:
    text = """def f(int8(N) X, int8(N) D) -> (A, Q, R, S) {
        A(i) = X(i) * X(i)  Q(i) = X(i) / D(i)  R(i) = X(i) % D(i)  S +=! X(i)
    }"""
    x, d = np.array([-128, 100, -7, 7], np.int8), np.array([-1, 7, 2, -2], np.int8)
    got = evaluate(text, X=x, D=d).values
    assert got["A"].tolist() == [0, 16, 49, 49]
    assert got["Q"].tolist() == [-128, 14, -4, -4]
    assert got["R"].tolist() == [0, 2, 1, -1]
    assert got["S"] == -28


def test_division_by_zero() -> None:
    text = "def f(int32(N) X, int32(N) D) -> (Y, Z) { Y(i) = X(i) / D(i)  Z(i) = X(i) % D(i) }"
    x, d = np.array([5, 6], np.int32), np.array([2, 0], np.int32)
    with pytest.raises(DivisionError, match="divided by zero"):
        evaluate(text, X=x, D=d)
    unchecked = evaluate(text, X=x, D=d, checked=False).values
    assert unchecked["Y"].tolist() == [2, 0] and unchecked["Z"].tolist() == [1, 0]


def test_float_to_integer_truncates_and_saturates() -> None:
    x = np.array([2.9, -2.9, 1e20, -1e20, np.nan, np.inf])
    text = "def f(double(N) X) -> (A, B, C) { A(i) = int32(X(i))  B(i) = uint8(X(i))  C(i) = int64(X(i)) }"
    got = evaluate(text, X=x).values
    assert got["A"].tolist() == [2, -2, 2**31 - 1, -(2**31), 0, 2**31 - 1]
    assert got["B"].tolist() == [2, 0, 255, 0, 0, 255]
    assert got["C"].tolist() == [2, -2, 2**63 - 1, -(2**63), 0, 2**63 - 1]


def test_nan_in_minima_and_maxima() -> None:
    x = np.array([[1.0, np.nan, 3.0], [0.0, -1.0, 2.0]])
    text = """def f(float(N,K) X) -> (A, B, C, D, E) {
        A(i) max=! X(i,k)  B(i,k) = relu(X(i,k))  C(i,k) = clamp(X(i,k), 0.0, 2.0)  D(i,k) = fmax(X(i,k), 0.5)  E(i,k) = min(X(i,k), 0.5)
    }"""
    got = evaluate(text, X=x).values
    np.testing.assert_array_equal(got["A"], [np.nan, 2.0])
    np.testing.assert_array_equal(got["B"], [[1, np.nan, 3], [0, 0, 2]])
    np.testing.assert_array_equal(got["C"], [[1, np.nan, 2], [0, 0, 2]])
    np.testing.assert_array_equal(got["D"], [[1, 0.5, 3], [0.5, 0.5, 2]])
    np.testing.assert_array_equal(got["E"], [[0.5, np.nan, 0.5], [0, -1, 0.5]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_accumulate_in_float32_and_round_once(dtype: str) -> None:
    x = np.full(4096, 1.0)
    x[0] = 2.0**-7
    got = evaluate(f"def f({dtype}(N) X) -> (S, Y) {{ S +=! X(i)  Y(i) = X(i) * 0.1 * 10.0 }}", X=x).values
    assert got["S"] == rounded(np.array(4095.0 + 2.0**-7), dtype)
    assert got["Y"][1] == 1.0


def test_an_explicit_cast_rounds_an_intermediate() -> None:
    x = np.array([1.0 + 2.0**-12])
    text = "def f(float(N) X) -> (A, B) { A(i) = float32(half(X(i))) - X(i)  B(i) = X(i) - X(i) }"
    got = evaluate(text, X=x).values
    assert got["A"].tolist() == [-(2.0**-12)] and got["B"].tolist() == [0.0]


def test_sizes_indices_and_scalars_are_values() -> None:
    text = "def f(float(N) X, int32 s, float t, bool b) -> (Y) { Y(i) = b ? X(i) * t + N * i - s : 0.0 }"
    assert single(text, X=np.ones(3), scalars={"s": 2, "t": 0.5, "b": True}).tolist() == [-1.5, 1.5, 4.5]


def test_calls_and_lets() -> None:
    text = """def twice(float(N) A, float s) -> (B) { B(i) = A(i) * t where t = s * 2.0 }
    def f(float(N) X) -> (Y) { T = twice(X, 3.0)  Y(i) = T(i) + 1.0 }"""
    assert single(text, X=np.array([1.0, 2.0])).tolist() == [7.0, 13.0]


def test_sums_that_may_be_factored_leave_infinities_open() -> None:
    """``sum(X) * inf`` for ``sum(X * inf)``: an infinity, or NaN; NaN in a factor stays NaN."""
    inf, nan = np.inf, np.nan
    program = specialise(read("def f(float(N) X, float(M) Z) -> (Y) { Y(j) +=! X(i) * Z(j) }")[-1], {"X": (2,), "Z": (4,)}, {})
    found = run(program, {"X": np.array([1.0, -3.0]), "Z": np.array([2.0, inf, -inf, nan])}, {})
    assert (found.error["Y"] == [0, inf, inf, 0]).all() and found.values["Y"][0] == -4 and np.isnan(found.values["Y"][3])
    found = run(program, {"X": np.array([3e38, 3e38]), "Z": np.array([0.0, 1.0, 2.0, 0.5])}, {})
    assert (found.error["Y"] == inf).all()  # the sum of X overflows
    dot = specialise(read("def f(float(N) X, float(N) Z) -> (Y) { Y() +=! X(i) * Z(i) }")[-1], {"X": (2,), "Z": (2,)}, {})
    found = run(dot, {"X": np.array([1.0, -3.0]), "Z": np.array([inf, inf])}, {})
    assert found.error["Y"] == 0 and np.isnan(found.values["Y"])
