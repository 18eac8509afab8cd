"""Scans in chunks on a GPU: which reductions have some, what they compute, and that every fault in them is found.

Modules: mapping.instances mapping.passes.chunk_scans mapping.scans mapping.verify_scans
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.gpu import run
from support.mapping import program
from support.rings.cuda_host import COMPILER

from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import VerifyError
from tcjit.grammar.arithmetic import plus
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select
from tcjit.grammar.walk import rebuild, with_index
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_scans import chunk_scans
from tcjit.mapping.pipeline import map_gpu
from tcjit.mapping.verify_assignments import verify_assignments

EAGER = replace(SM_90, costs=replace(SM_90.costs, launch=0.0))  # as if launches cost nothing: scans of few results are cut, too
Shapes = dict[str, tuple[int, ...]]

ROWS = "def f({type}(M,N) X) -> (Y) {{ Y(i,j) {op} ({guard}) ? {body} : {neutral} where j in 0:N, k in 0:N }}"
COLUMNS = "def f(float(M,N) X) -> (Y) {{ Y(i,j) {op} ({guard}) ? X(k,j) : {neutral} where i in 0:M, k in 0:M }}"
MIDDLE = "def f(float(A,N,B) X) -> (Y) { Y(a,j,b) +=! (k <= j) ? X(a,k,b) : 0.0 where j in 0:N, k in 0:N }"


def rows(guard: str, op: str = "+=!", neutral: str = "0.0", body: str = "X(i,k)", dtype: str = "float") -> str:
    return ROWS.format(type=dtype, op=op, guard=guard, body=body, neutral=neutral)


def columns(guard: str, op: str = "+=!", neutral: str = "0.0") -> str:
    return COLUMNS.format(op=op, guard=guard, neutral=neutral)


def before(text: str, shapes: Shapes) -> Assignments:
    return extract(program(text, shapes), None)


def summed(x: np.ndarray, mask: np.ndarray, axis: int = 1) -> np.ndarray:
    """The sums of the terms that a mask over results and terms has."""
    return np.moveaxis(np.tensordot(mask.astype(np.float64), x.astype(np.float64), (1, axis)), 0, axis)


def triangle(n: int, offset: int = 0) -> np.ndarray:
    return np.tri(n, k=offset, dtype=bool)


# ---------------------------------------------------------------- which have chunks


@pytest.mark.parametrize(
    ("text", "shape", "sums"),
    [
        (rows("k <= j"), (480, 9207), ["Y_sums(i, chunk) += X(i, 8 * chunk + k) from 0.0 where i in 0:480, chunk in 0:1150, k in 0:8"]),
        (rows("k >= j"), (64, 2048), ["Y_sums(i, chunk) += X(i, 32 * chunk + k) from 0.0 where i in 0:64, chunk in 1:64, k in 0:32"]),
        (rows("k < j"), (64, 2048), ["Y_sums(i, chunk) += X(i, 32 * chunk + k) from 0.0 where i in 0:64, chunk in 0:63, k in 0:32"]),
        (columns("k <= i"), (1896, 779), ["Y_sums(chunk, j) += X(32 * chunk + k, j) from 0.0 where chunk in 0:59, j in 0:779, k in 0:32"]),
    ],
)
def test_sums_of_chunks(text: str, shape: tuple[int, ...], sums: list[str]) -> None:
    after = chunk_scans(before(text, {"X": shape}), SM_90)
    assert [a.show() for a in after.assignments][:1] == sums and len(after.assignments) == 4


@pytest.mark.parametrize(
    "text",
    [
        rows("k <= j", body="X(i,k) * float(j)"),  # a term depends on the result
        rows("k <= j && k > j - 3"),  # a window
        rows("k <= j", neutral="1.0"),  # what is left out is no identity
        rows("k <= j").replace("+=!", "+="),  # onto what is there
        rows("k <= j || k == 5"),  # terms in pieces
        "def f(float(M,N) X, float(N,N) W) -> (Y) { Y(i,j) +=! (k <= i) ? X(k,j) * W(i,k) : 0.0 where i in 0:M, k in 0:M }",
        "def f(float(M,N) X) -> (Y) { Y(i) +=! X(i,k) }",
    ],
)
def test_what_has_none(text: str) -> None:
    text = text.replace("{ Y(i,j) += ", "{ Y(i,j) = 1.0 where i in 0:M, j in 0:N  Y(i,j) += ")
    made = before(text, {"X": (2000, 2000), **({"W": (2000, 2000)} if " W" in text else {})})
    assert chunk_scans(made, EAGER).assignments == made.assignments


def test_short_and_dynamic_ones_stay() -> None:
    short = before(rows("k <= j"), {"X": (1000, 100)})
    assert chunk_scans(short, SM_90).assignments == short.assignments


def test_scans_of_chunks_have_chunks() -> None:
    made = map_gpu(program(rows("k <= j"), {"X": (1, 3000000)}), Options(), SM_90)
    assert made.verified and len([t for t in made.scop.tensors if t.name.endswith("_sums")]) > 1
    assert max(s.points for s in made.scop.statements) <= 64 * 3000000


@pytest.mark.parametrize("guard", ["k <= i", "k > i"])
def test_across_memory_a_thread_has_a_chunk(guard: str) -> None:
    """It loads a term once for all results, of which the first has all terms."""
    made = map_gpu(program(columns(guard), {"X": (1896, 779)}), Options(), SM_90)
    text = emit_gpu(made, CUDA, SM_90, checked=True).text
    assert len(made.launches) == 3 and "float Y_scan_p[32];" in text
    assert "if (c4 <= c3)" in text if guard == "k <= i" else "if (c4 + 1 <= c3)" in text or "c4 <= c3 - 1" in text


# ---------------------------------------------------------------- what they compute


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("n", [64, 100, 257])
@pytest.mark.parametrize(
    ("guard", "mask"),
    [
        ("k <= j", lambda n: triangle(n)),
        ("k < j", lambda n: triangle(n, -1)),
        ("k >= j", lambda n: triangle(n).T),
        ("k > j", lambda n: triangle(n, -1).T),
        ("k <= j && k >= 3", lambda n: triangle(n) & (np.arange(n) >= 3)),
        ("k >= j && k < N - 5", lambda n: triangle(n).T & (np.arange(n) < n - 5)),
        ("k <= j + 3", lambda n: triangle(n, 3)),
        ("k <= j - 40", lambda n: triangle(n, -40)),
        ("k >= j + 3", lambda n: triangle(n, -3).T),
        ("k + 40 >= j && 2 < k", lambda n: triangle(n, 40).T & (np.arange(n) > 2)),
    ],
)
def test_sums(guard: str, mask: Callable[[int], np.ndarray], n: int) -> None:
    _check(rows(guard), (3, n), lambda x: summed(x, mask(n)))
    _check(columns(guard.replace("j", "i").replace("N", "M")), (n, 5), lambda x: summed(x, mask(n), 0))


def _check(text: str, shape: tuple[int, ...], exact: Callable[[np.ndarray], np.ndarray], dtype: str = "float32") -> None:
    made = map_gpu(program(text, {"X": shape}), Options(), EAGER)
    assert made.verified and any(tensor.name.endswith("_sums") for tensor in made.scop.tensors)
    x = np.random.default_rng(1).integers(-50, 50, shape).astype(dtype)
    y = np.empty_like(x)
    assert run(emit_gpu(made, CUDA, SM_90, checked=True), [y], [x]) == 0
    expected = exact(x)
    assert np.array_equal(y, expected.astype(dtype)) if np.all(expected == np.round(expected)) else np.allclose(y, expected, rtol=1e-5)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_other_operators_and_types() -> None:
    _check(rows("k <= j", "max=!", "-infinity()"), (3, 200), lambda x: np.maximum.accumulate(x, 1))
    _check(columns("k >= i", "min=!", "infinity()"), (200, 5), lambda x: np.minimum.accumulate(x[::-1], 0)[::-1])
    _check(rows("k <= j", neutral="0", dtype="int32"), (3, 200), lambda x: np.cumsum(x, 1), "int32")
    _check(rows("k <= j", "*=!", "1", "X(i,k)", "int32"), (3, 200), lambda x: np.multiply.accumulate(x, 1, dtype=np.int32), "int32")
    _check(rows("k <= j", body="exp(X(i,k) * 0.01)"), (3, 200), lambda x: np.cumsum(np.exp(x.astype(np.float64) * 0.01), 1))
    _check(rows("k <= j", body="(X(i,k) > 0.0 ? X(i,k) : 0.0)"), (3, 200), lambda x: np.cumsum(np.maximum(x, 0), 1))
    _check(MIDDLE, (3, 100, 7), lambda x: np.cumsum(x, 1))


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_halves_are_added_in_a_wider_type() -> None:
    text = rows("k <= j", neutral="float16(0.0)", dtype="float16")
    _check(text, (3, 300), lambda x: np.cumsum(x.astype(np.float32), 1), "float16")
    after = map_gpu(program(text, {"X": (3, 300)}), Options(), EAGER)
    assert any(tensor.name.endswith("_sums") and tensor.dtype == "float32" for tensor in after.scop.tensors)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_a_nan_reaches_what_comes_after_it() -> None:
    made = map_gpu(program(rows("k <= j"), {"X": (2, 100)}), Options(), EAGER)
    x = np.ones((2, 100), np.float32)
    x[1, 37] = np.nan
    y = np.empty_like(x)
    assert run(emit_gpu(made, CUDA, SM_90, checked=True), [y], [x]) == 0
    assert np.array_equal(y[0], np.arange(1, 101)) and np.isnan(y[1, 37:]).all() and np.array_equal(y[1, :37], np.arange(1, 38))


# ---------------------------------------------------------------- the proof

Change = Callable[[Assignment], Assignment]
SUMS, PREFIX, SCAN, STORE = range(4)


def bound(dim: str, lower: int, upper: int) -> Change:
    """The ends of a dimension moved."""

    def change(a: Assignment) -> Assignment:
        bounds = tuple((name, low + lower * (name == dim), high + upper * (name == dim)) for name, low, high in a.bounds)
        return replace(a, bounds=bounds)

    return change


def moved(dim: str, by: int) -> Change:
    """Another place for an index in the value."""
    return lambda a: replace(a, value=with_index(a.value, dim, plus(Index(dim, dtype="int64"), by)))


def compared(op: str) -> Change:
    """Another comparison in the place of that of chunks."""

    def change(value: Expr) -> Expr:
        if isinstance(value, Select) and isinstance(value.condition, Binary):
            return replace(value, condition=replace(value.condition, op=op))
        return rebuild(value, change)

    return lambda a: replace(a, value=change(a.value))


def stored(by: int) -> Change:
    return lambda a: replace(a, subscripts=tuple(plus(sub, by) if isinstance(sub, Binary) else sub for sub in a.subscripts))


ONE, ZERO = Const(1.0, dtype="float32"), Const(0.0, dtype="float32")
ROW, COLUMN = Index("i", dtype="int64"), Index("j", dtype="int64")
FAULTS: list[tuple[str, int, Change, str]] = [
    ("k <= j", SUMS, bound("k", 0, -1), "two ranges|is lost"),
    ("k <= j", SUMS, bound("chunk", 1, 0), "two ranges"),
    ("k <= j", SUMS, bound("chunk", 0, 1), "two ranges"),
    ("k <= j", SUMS, moved("k", 1), "added twice|is lost|terms of others"),
    ("k <= j", SUMS, moved("k", -1), "added twice|is lost|terms of others"),
    ("k <= j", SUMS, lambda a: replace(a, value=ONE), "another value"),
    ("k <= j", SUMS, lambda a: replace(a, operator="max="), "at the identity"),
    ("k <= j", SUMS, lambda a: replace(a, start=ONE), "at the identity"),
    ("k <= j", SUMS, lambda a: replace(a, constraints=("k >= 1",)), "is lost"),
    ("k <= j", SUMS, lambda a: replace(a, subscripts=(ROW, ROW)), "share an element"),
    ("k <= j", SUMS, lambda a: replace(a, tensor="Y"), "no temporaries"),
    ("k <= j", PREFIX, compared("<="), "added twice|terms of others"),
    ("k <= j", PREFIX, compared(">"), "terms of others|added twice"),
    ("k <= j", PREFIX, bound("at", 0, -1), "two ranges"),
    ("k <= j", PREFIX, bound("chunk", 1, 0), "two ranges"),
    ("k <= j", PREFIX, lambda a: replace(a, start=ONE), "at the identity"),
    ("k <= j", PREFIX, lambda a: replace(a, start=None), "at the identity"),
    ("k <= j", PREFIX, lambda a: replace(a, constraints=("chunk >= 1",)), "is lost"),
    ("k <= j", PREFIX, lambda a: replace(a, value=replace(a.value, other=ONE)), "not what was computed"),  # type: ignore[call-arg, type-var]
    ("k <= j", SCAN, bound("k", 1, 0), "two ranges"),
    ("k <= j", SCAN, moved("k", 1), "added twice|terms of others"),
    ("k <= j", SCAN, lambda a: replace(a, constraints=()), "terms of others"),
    ("k <= j", SCAN, lambda a: replace(a, constraints=("k < j",)), "is lost"),
    ("k <= j", SCAN, lambda a: replace(a, constraints=("k <= j + 1",)), "terms of others"),
    ("k <= j", SCAN, lambda a: replace(a, start=ZERO), "not what was computed"),
    ("k <= j", SCAN, lambda a: replace(a, operator="*="), "at the identity"),
    ("k <= j", STORE, stored(1), "results are lost"),
    ("k <= j", STORE, bound("at", 0, -1), "two ranges"),
    ("k <= j", STORE, lambda a: replace(a, constraints=("j >= 1",)), "results are lost"),
    ("k <= j", STORE, lambda a: replace(a, value=ZERO), "not what was computed"),
    ("k <= j", STORE, lambda a: replace(a, operator="+="), "depend on results"),
    ("k > j", PREFIX, compared(">="), "added twice|terms of others"),
    ("k > j", PREFIX, compared("<"), "terms of others"),
    ("k > j", SCAN, lambda a: replace(a, constraints=(*a.constraints[:-1], "k >= j")), "terms of others"),
    ("k > j", SCAN, lambda a: replace(a, constraints=(*a.constraints[:-1], "k > j + 1")), "is lost"),
    ("k > j", STORE, stored(-1), "results are lost"),
    ("k > j", STORE, lambda a: replace(a, constraints=()), "results are lost"),
    # across memory, where terms and results of a chunk count backwards
    ("k <= i", SCAN, lambda a: replace(a, constraints=("k > i",)), "is lost"),
    ("k <= i", SCAN, lambda a: replace(a, constraints=("k + 1 >= i",)), "terms of others"),
    ("k <= i", SCAN, lambda a: replace(a, constraints=("k <= i",)), "terms of others"),
    ("k <= i", SCAN, moved("k", 1), "added twice|terms of others|is lost"),
    ("k <= i", STORE, stored(1), "results are lost"),
]


def passed(guard: str) -> tuple[Assignments, Assignments]:
    across = guard.endswith("i")
    whole = before(columns(guard) if across else rows(guard), {"X": (96, 3) if across else (3, 96 if guard == "k <= j" else 100)})
    return whole, chunk_scans(whole, EAGER)


@pytest.mark.parametrize("guard", ["k <= j", "k > j", "k <= i"])
def test_what_the_pass_does_is_proved(guard: str) -> None:
    whole, after = passed(guard)
    assert len(after.assignments) == 4
    verify_assignments("chunk_scans", whole, after)


@pytest.mark.parametrize(("guard", "part", "change", "message"), FAULTS)
def test_faults_are_found(guard: str, part: int, change: Change, message: str) -> None:
    whole, after = passed(guard)
    made = list(after.assignments)
    made[part] = change(made[part])
    assert tuple(made) != after.assignments
    with pytest.raises(VerifyError, match=message):
        verify_assignments("chunk_scans", whole, replace(after, assignments=tuple(made), replaced=(tuple(made),)))


def test_terms_that_depend_on_results_are_found() -> None:
    whole, after = passed("k <= j")
    made = [replace(a, value=with_access(a.value, (COLUMN, ROW))) for a in after.assignments[:1]] + list(after.assignments[1:])
    with pytest.raises(VerifyError, match="another value"):
        verify_assignments("chunk_scans", whole, replace(after, assignments=tuple(made), replaced=(tuple(made),)))


def with_access(value: Expr, subscripts: tuple[Expr, ...]) -> Expr:
    """A value that reads another element."""
    return replace(value, subscripts=subscripts) if isinstance(value, Access) else rebuild(value, lambda one: with_access(one, subscripts))
