"""Which reductions over rows share chunks of these with what runs row by row; what is computed then; and the proof.

Modules: mapping.passes.fuse_column_reductions
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.caches import small_caches
from support.fuzz.kernels import sweeps
from support.mapping import AVX512, program
from support.run import right_cases

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.fuse_column_reductions import fuse_column_reductions
from tcjit.mapping.verify_assignments import verify_assignments

NORM = """def f(float(M,N) G, float(M,N) X, float(N) w) -> (Y, c, d) {
    s(i) +=! G(i,j) * X(i,j)
    Y(i,j) = G(i,j) * w(j) - X(i,j) * s(i)
    c(j) +=! G(i,j) * X(i,j)
    d(k) +=! Y(h,k)
}"""
BIAS = "def f(float(B,T,N) G, float(B,T,N) X) -> (Y, d) { Y(b,t,j) = X(b,t,j) > 0.0 ? G(b,t,j) : 0.0  d(j) +=! Y(b,t,j) }"
SUMS = "def f(float(M,N) X) -> (r, c) { r(i) +=! X(i,j)  c(j) +=! X(i,j) }"
Shapes = dict[str, tuple[int, ...]]


def norm(m: int, n: int) -> Shapes:
    return {"G": (m, n), "X": (m, n), "w": (n,)}


def fused(text: str, shapes: Shapes) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    return before, fuse_column_reductions(before, AVX512)


def chunks(text: str, shapes: Shapes) -> list[int]:
    """How many chunks each assignment shares with others; 0 for one that shares none."""
    _, after = fused(text, shapes)
    return [next(upper for name, _, upper in a.bounds if name == a.outer.dims[0]) if a.outer else 0 for a in after.assignments]


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (NORM, norm(4096, 768), [32, 32, 32, 0, 0, 32, 0, 0]),
        (NORM, norm(1000, 512), [40, 40, 40, 0, 0, 40, 0, 0]),  # equal ones
        (NORM, norm(1021, 512), [32, 32, 32, 0, 0, 32, 0, 0]),  # there are no equal ones
        (NORM, norm(511, 512), [0] * 4),  # few rows
        (NORM, norm(4096, 16), [0] * 4),  # few elements
        (NORM, norm(1 << 18, 4), [0] * 4),  # rows shorter than vectors
        (BIAS, {"G": (8, 197, 64), "X": (8, 197, 64)}, [0] * 2),
        (BIAS, {"G": (8, 197, 128), "X": (8, 197, 128)}, [29, 29, 0, 0]),
        (SUMS, {"X": (4096, 768)}, [0] * 2),  # in a cache
        (SUMS, {"X": (1 << 14, 1 << 10)}, [32, 32, 0, 0]),
    ],
)
def test_what_shares_chunks(text: str, shapes: Shapes, expected: list[int]) -> None:
    assert chunks(text, shapes) == expected


@pytest.mark.parametrize(
    "text",
    [
        NORM.replace("Y(i,j) =", "Y(j,i) ="),  # another order
        NORM.replace("d(k) +=! Y(h,k)", "t(i) = c(0) where i in 0:4096  d(k) +=! Y(h,k) * t(h)"),  # needs all rows, then goes on
        NORM.replace("Y(i,j) = G(i,j) * w(j)", "Y(i,j) = G(4095-i,j) * w(j)"),  # another row
    ],
)
def test_what_depends_on_other_rows_is_not_among_it(text: str) -> None:
    before, after = fused(text, norm(4096, 768))
    verify_assignments("fuse_column_reductions", before, after)
    assert len([a for a in after.assignments if a.outer]) < 4


def test_what_reads_a_sum_between_them_runs_behind_the_chunks() -> None:
    """As the rounding of a sum to a half type, before other sums."""
    text = NORM.replace("(Y, c, d)", "(Y, t, d)").replace("d(k) +=!", "t(j) = 2.0 * c(j)  d(k) +=!")
    assert chunks(text, norm(4096, 768)) == [32, 32, 32, 0, 0, 0, 32, 0, 0]
    before, after = fused(text, norm(1021, 512))
    verify_assignments("fuse_column_reductions", before, after)
    g, x, w = torch.randn(1021, 512), torch.randn(1021, 512), torch.randn(512)
    y, t, d = tcjit.define(text).f(g, x, w)
    exact = g * w - x * (g * x).sum(1, keepdim=True)
    for own, expected in ((y, exact), (t, 2 * (g * x).sum(0)), (d, exact.sum(0))):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=2e-2)


def test_the_proof_finds_what_is_wrong() -> None:
    before, after = fused(NORM, norm(1021, 512))
    verify_assignments("fuse_column_reductions", before, after)

    def changed(at: int, part: int, **what: object) -> Assignments:
        parts = [list(one) for one in after.replaced]
        parts[at][part] = replace(parts[at][part], **what)
        return replace(after, replaced=tuple(map(tuple, parts)), assignments=tuple(a for one in parts for a in one))

    row, accumulate = after.replaced[0][0], after.replaced[2][0]
    wrong = [
        changed(0, 0, constraints=()),
        changed(0, 0, outer=None),
        changed(0, 0, value=Const(0.0, dtype="float32")),
        changed(0, 0, bounds=tuple((name, lower, upper - (name == "i")) for name, lower, upper in row.bounds)),
        changed(2, 0, outer=None),
        changed(2, 0, constraints=()),
        changed(2, 0, start=Const(1.0, dtype="float32")),
        changed(2, 0, value=Const(0.0, dtype="float32")),
        changed(2, 2, bounds=tuple((name, lower, upper - (name == "chunk")) for name, lower, upper in after.replaced[2][2].bounds)),
    ]
    assert accumulate.outer == replace(row.outer, dims=("chunk",))
    for one in wrong:
        with pytest.raises(VerifyError):
            verify_assignments("fuse_column_reductions", before, one)


@pytest.mark.parametrize(("m", "n"), [(1024, 512), (1021, 257), (600, 1000)])
@pytest.mark.parametrize("dtype", ["float", "double", "int32"])
def test_results(m: int, n: int, dtype: str) -> None:
    text = NORM.replace("float(", f"{dtype}(")
    tensors = {"float": torch.float32, "double": torch.float64, "int32": torch.int32}
    g, x, w = ((torch.randn(*shape) * 4).to(tensors[dtype]) for shape in norm(m, n).values())
    f = tcjit.define(text)["f"]
    kernel = f.compile(g, x, w)
    assert any("share" in line for line in kernel.resources["reductions"])
    y, c, d = f(g, x, w)
    exact = [t.double() for t in (g, x, w)]
    expected = exact[0] * exact[2] - exact[1] * (exact[0] * exact[1]).sum(1, keepdim=True)
    for own, right in ((y, expected), (c, (exact[0] * exact[1]).sum(0)), (d, expected.sum(0))):
        torch.testing.assert_close(own.double(), right, rtol=1e-5, atol=float(right.abs().max()) * (1e-5 if dtype == "float" else 1e-12))


@pytest.mark.parametrize("operator", ["max=!", "min=!", "+="])
def test_other_operators_and_sums_that_go_on(operator: str) -> None:
    text = f"def f(float(M,N) X) -> (Y, c) {{ Y(i,j) = 2.0 * X(i,j)  c(j) = 3.0 where j in 0:N  c(j) {operator} Y(i,j) }}"
    x = torch.randn(1000, 300)
    f = tcjit.define(text)["f"]
    y, c = f(x)
    expected = {"max=!": (2 * x).amax(0), "min=!": (2 * x).amin(0), "+=": 3 + (2 * x).sum(0)}[operator]
    torch.testing.assert_close(c, expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(y, 2 * x)
    assert any("share" in line for line in f.compile(x).resources["reductions"])


@pytest.mark.parametrize("shard", range(4))
def test_random_sweeps(shard: int) -> None:
    """Statements over the rows of a matrix; the soak draws fresh ones."""
    fused = 0
    for case in right_cases(sweeps, range(shard, 28, 4)):
        with small_caches(case.device["cache_bytes"]):
            before = extract(case.program())
            fused += any(a.outer for a in fuse_column_reductions(before, replace(AVX512, shared_bytes=64)).assignments)
    assert fused, "some of them share chunks"


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    g, x, w = (torch.randn(*shape) for shape in norm(1021, 256).values())
    f, threads = tcjit.define(NORM)["f"], torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            results.append(f(g, x, w))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
