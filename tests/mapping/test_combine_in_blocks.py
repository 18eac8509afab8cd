"""Few results of reductions in chunks are combined where they are used: in the blocks of the chunks.

Modules: mapping.passes.combine_in_blocks
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
from tcjit.grammar.ast import Access, Const, Expr, Index
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import chunk_reductions
from tcjit.mapping.passes.combine_in_blocks import combine_in_blocks
from tcjit.mapping.pipeline import Mapped, map_gpu
from tcjit.mapping.verify_assignments import verify_assignments

SOFTMAX = """def softmax(float(M,N) X) -> (Y) {
    top(m) max=! X(m,n)
    E(m,n) = exp(X(m,n) - top(m))
    total(m) +=! E(m,n)
    Y(m,n) = E(m,n) / total(m)
}"""
NORM = """def norm(float(N,C,S) X) -> (Y) {
    mean(c) +=! X(n,c,s)
    mean(c) = mean(c) / N / S
    var(c) +=! (X(n,c,s) - mean(c)) * (X(n,c,s) - mean(c))
    scale(c) = rsqrt(var(c) / N / S + 0.001)
    Y(n,c,s) = (X(n,c,s) - mean(c)) * scale(c)
}"""
OUTPUT = NORM.replace("-> (Y)", "-> (Y, mean)")
GATHERED = "def f(float(N) X, int32(K) I) -> (Y) { S() +=! X(n)  Y(k) = X(I(k)) / S() }"


def mapped(text: str, shapes: dict[str, tuple[int, ...]], **options: object) -> Mapped:
    return map_gpu(program(text, shapes), Options(**options), SM_90)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shapes", "launches"),
    [
        (SOFTMAX, {"X": (1, 1000000)}, 3),
        (SOFTMAX, {"X": (4, 400000)}, 3),
        (NORM, {"X": (32, 64, 12544)}, 3),
        (OUTPUT, {"X": (32, 64, 12544)}, 4),  # a mean that others see is combined once
        (SOFTMAX, {"X": (1, 999983)}, 5),  # no chunks are equal
        (GATHERED, {"X": (1000000,), "I": (999,)}, 3),  # what uses the sum has no such chunks
        (SOFTMAX, {"X": (8192, 1024)}, 1),
    ],
)
def test_launches(text: str, shapes: dict[str, tuple[int, ...]], launches: int) -> None:
    """With proofs of every pass, and no launch of a block alone where all users have chunks."""
    made = mapped(text, shapes)
    assert made.verified and len(made.launches) == launches
    source = emit_gpu(made, CUDA, SM_90, checked=True)
    if launches == 3 and text is not GATHERED:
        assert all(np.prod(launch.grid) >= SM_90.processors for launch in source.launches)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(("text", "shape", "chunks"), [(SOFTMAX, (2, 4096), 8), (SOFTMAX, (1, 630), 7), (NORM, (8, 3, 40), 4)])
def test_results(text: str, shape: tuple[int, ...], chunks: int) -> None:
    made = mapped(text, {"X": shape}, reduction_chunks=chunks)
    assert any(tensor.name.endswith("_each") for tensor in made.scop.tensors)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    y = np.empty_like(x)
    assert run(emit_gpu(made, CUDA, SM_90, checked=True), [y], [x]) == 0
    exact = x.astype(np.float64)
    if text is SOFTMAX:
        exact = np.exp(exact - exact.max(1, keepdims=True))
        exact /= exact.sum(1, keepdims=True)
    else:
        exact = (exact - exact.mean((0, 2), keepdims=True)) / np.sqrt(exact.var((0, 2), keepdims=True) + 0.001)
    assert np.allclose(y, exact, rtol=1e-5, atol=1e-6)


def test_a_nan_reaches_all_of_its_row() -> None:
    if COMPILER is None:
        pytest.skip("needs g++")
    x = np.zeros((2, 4096), np.float32)
    x[1, 4000] = np.nan
    y = np.empty_like(x)
    assert run(emit_gpu(mapped(SOFTMAX, {"X": x.shape}, reduction_chunks=8), CUDA, SM_90, checked=True), [y], [x]) == 0
    assert np.isnan(y[1]).all() and (y[0] == 1 / 4096).all()


# ---------------------------------------------------------------- the proof


def passed() -> tuple[Assignments, Assignments]:
    before = chunk_reductions(extract(program(SOFTMAX, {"X": (2, 4096)}), None), Options(reduction_chunks=8), SM_90)
    return before, combine_in_blocks(before)


def with_chunk(value: Expr, of: str, chunk: Expr) -> Expr:
    """A value that reads another copy."""
    if isinstance(value, Access) and value.tensor == of:
        return replace(value, subscripts=(chunk, *value.subscripts[1:]))
    return rebuild(value, lambda part: with_chunk(part, of, chunk))


def bound(a: Assignment, number: int, upper: int) -> Assignment:
    name, lower, _ = a.bounds[number]
    return replace(a, bounds=(*a.bounds[:number], (name, lower, upper), *a.bounds[number + 1 :]))


FAULTS: list[tuple[int, Callable[[Assignment], Assignment], str]] = [
    (1, lambda a: bound(a, 0, 7), "not every copy"),
    (1, lambda a: replace(a, value=Const(0.0, dtype="float32")), "not every copy"),
    (2, lambda a: bound(a, 0, 7), "not every copy"),
    (2, lambda a: bound(a, 2, 7), "not every copy"),
    (2, lambda a: replace(a, operator="min="), "not every copy"),
    (3, lambda a: replace(a, value=with_chunk(a.value, "top_each", Const(0, dtype="int64"))), "the copy of another chunk"),
    (3, lambda a: bound(a, 2, 511), "more than chunks"),
    (3, lambda a: bound(a, 0, 7), "the copy of another chunk"),
    (3, lambda a: replace(a, subscripts=(a.subscripts[0], Index(a.bounds[2][0], dtype="int64"))), "more than chunks"),
    (7, lambda a: replace(a, value=with_chunk(a.value, "total_each", Index(a.bounds[1][0], dtype="int64"))), "the copy of another chunk"),
    (7, lambda a: replace(a, tensor="E"), "seen by others|more than chunks"),
]


def test_what_the_pass_does_is_proved() -> None:
    before, after = passed()
    assert [a.tensor for a in after.assignments[:4]] == ["top_part", "top_each", "top_each", "E"]
    assert not any(access.tensor == "top" for a in after.assignments for access in walk(a.value) if isinstance(access, Access))
    verify_assignments("combine_in_blocks", before, after)


@pytest.mark.parametrize(("number", "change", "message"), FAULTS)
def test_faults_are_found(number: int, change: Callable[[Assignment], Assignment], message: str) -> None:
    before, after = passed()
    made = list(after.assignments)
    made[number] = change(made[number])
    assert tuple(made) != after.assignments
    with pytest.raises(VerifyError, match=message):
        verify_assignments("combine_in_blocks", before, replace(after, assignments=tuple(made), replaced=tuple((a,) for a in made)))
