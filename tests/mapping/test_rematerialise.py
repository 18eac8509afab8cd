"""Temporaries that are computed again rather than stored between launches: which, and that it is proved.

Modules: mapping.passes.rematerialise
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.gpu import run
from support.mapping import program
from support.rings.cuda_host import COMPILER

from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.passes.rematerialise import rematerialise
from tcjit.mapping.pipeline import map_gpu
from tcjit.mapping.verify_assignments import verify_assignments

LONG = (4, 1 << 20)
SOFTMAX = "top(m) max=! X(m,n)  E(m,n) = exp(X(m,n) - top(m))  total(m) +=! E(m,n)  Y(m,n) = E(m,n) / total(m)"
RESULT = SOFTMAX.replace("E(m,n)", "Y(m,n)")  # which is changed afterwards
VARIANCE = "s(m) +=! X(m,n)  D(m,n) = X(m,n) - s(m) / N  v(m) +=! D(m,n) * D(m,n)  Y(m,n) = D(m,n) * rsqrt(v(m))"


def before(body: str, shape: tuple[int, int] = LONG) -> Assignments:
    return extract(program(f"def f(float(M,N) X, float(M,N) Z) -> (Y) {{ {body} }}", {"X": shape, "Z": shape}), None)


@pytest.mark.parametrize(
    ("body", "gone", "last"),
    [
        (SOFTMAX, "E", "Y(m, n) = exp(X(m, n) - top(m)) / total(m) where"),
        (VARIANCE, "D", "Y(m, n) = (X(m, n) - s(m) / float32(N)) * rsqrt(v(m)) where"),
        (SOFTMAX.replace("/ total(m)", "/ total(m) + Z(m,n)"), "E", "Y(m, n) = exp(X(m, n) - top(m)) / total(m) + Z(m, n) where"),
    ],
)
def test_what_is_computed_again(body: str, gone: str, last: str) -> None:
    whole = before(body)
    after = rematerialise(whole, Options(), SM_90)
    verify_assignments("rematerialise", whole, after)
    assert not any(gone in {a.tensor, *a.inputs} for a in after.assignments)
    assert after.assignments[-1].show().startswith(last)


@pytest.mark.parametrize("shape", [LONG, (256, 393216)])
@pytest.mark.parametrize("body", [SOFTMAX, RESULT])
def test_rows_that_no_block_can_keep(body: str, shape: tuple[int, int]) -> None:
    """Whether they are cut into chunks or not."""
    whole = before(body, shape)
    after = rematerialise(whole, Options(), SM_90)
    verify_assignments("rematerialise", whole, after)
    assert [a.tensor for a in after.assignments] == ["top", "total", "Y"]
    assert after.assignments[-1].show().startswith("Y(m, n) = exp(X(m, n) - top(m)) / total(m) where")


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (SOFTMAX, (4096, 1024)),  # a block keeps its row
        (RESULT, (4096, 1024)),
        (RESULT + " where n in 0:5", LONG),  # not all are changed
        (RESULT + " s(m) +=! Y(m,n)  Y(m,n) = Y(m,n) * s(m)", LONG),  # and changed again
        (SOFTMAX.replace("(X(m,n) - top(m))", "(X(m,n) * Z(m,n) - top(m))"), LONG),  # as much to load as is stored
        (SOFTMAX.replace("E(m,n) / total(m)", "(E(m,n) == total(m)) ? 1.0 : 0.0"), LONG),  # compared
        (SOFTMAX.replace("+=! E", "max=! E"), LONG),  # chosen among
        (SOFTMAX.replace("E(m,n) / total", "max(E(m,n), 0.5) / total"), LONG),
        (SOFTMAX.replace("total(m) +=! E(m,n)", "total(m) +=! E(m,n) top(m) = 0.0"), LONG),  # it would have another value
        (SOFTMAX.replace("total(m) +=! E(m,n)", "total(m) +=! (n > 5) ? E(m,n) : 0.0"), LONG),
        ("E(m,n) = exp(X(m,n))  Y(m,n) = E(m,n)", LONG),
    ],
)
def test_what_is_stored(body: str, shape: tuple[int, int]) -> None:
    whole = before(body, shape)
    assert rematerialise(whole, Options(), SM_90).assignments == whole.assignments


def test_what_a_product_reads_again_is_stored() -> None:
    """An exponential is needed for every column of V."""
    text = f"def f(float(M,N) X, float(N,D) V) -> (O) {{ {SOFTMAX.split('Y(')[0]} O(m,d) +=! E(m,n) * V(n,d) O(m,d) = O(m,d) / total(m) }}"
    whole = extract(program(text, {"X": LONG, "V": (LONG[1], 64)}), None)
    assert rematerialise(whole, Options(), SM_90).assignments == whole.assignments


def test_nothing_large_is_stored_between_launches() -> None:
    text = f"def f(float(M,N) X) -> (Y) {{ {SOFTMAX} }}"
    made = map_gpu(program(text, {"X": LONG}), Options(), SM_90)
    assert made.verified and len(made.launches) == 3
    assert emit_gpu(made, CUDA, SM_90, checked=True).workspace < 1 << 14
    assert len(map_gpu(program(text, {"X": (4096, 1024)}), Options(), SM_90).launches) == 1


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("body", [SOFTMAX, RESULT, VARIANCE])
def test_results(body: str) -> None:
    made = map_gpu(program(f"def f(float(M,N) X) -> (Y) {{ {body} }}", {"X": (2, 4096)}), Options(reduction_chunks=8), SM_90)
    x = np.random.default_rng(1).normal(size=(2, 4096)).astype(np.float32)
    y = np.empty_like(x)
    assert run(emit_gpu(made, CUDA, SM_90, checked=True), [y], [x]) == 0
    exact = x.astype(np.float64)
    if body is not VARIANCE:
        exact = np.exp(exact - exact.max(1, keepdims=True))
        exact /= exact.sum(1, keepdims=True)
    else:
        exact -= exact.mean(1, keepdims=True)
        exact /= np.sqrt((exact**2).sum(1, keepdims=True))
    assert np.allclose(y, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fault", ["value", "reader", "result", "changed"])
def test_faults_are_found(fault: str) -> None:
    whole = before(SOFTMAX)
    after = rematerialise(whole, Options(), SM_90)
    parts = [list(part) for part in after.replaced]
    if fault == "value":
        parts[-1] = [replace(parts[-1][0], value=Const(1.0, dtype="float32"))]
    elif fault == "reader":
        parts[-1] = [whole.assignments[-1]]  # reads what nothing computes
    elif fault == "result":  # which nothing gives again
        whole = before(RESULT.replace("Y(m,n) = Y(m,n) / total(m)", "Y(m,n) = Y(m,n) / total(m) where n in 0:5"))
        after = replace(whole, assignments=whole.assignments[2:], replaced=())
        parts = [[a] for a in whole.assignments]
        parts[2] = []
        parts[3:] = [[replace(a, value=Const(1.0, dtype="float32"))] for a in whole.assignments[3:]]
    else:
        whole = replace(whole, assignments=(*whole.assignments[:-1], replace(whole.assignments[0]), whole.assignments[-1]))
        parts.insert(-1, [whole.assignments[0]])
    made = tuple(map(tuple, parts))
    with pytest.raises(VerifyError, match=r"a value changed|not computed"):
        verify_assignments("rematerialise", whole, replace(after, assignments=tuple(a for part in made for a in part), replaced=made))
