"""Which reductions lose an index, and what is left of them.

Modules: mapping.passes.eliminate_indices
"""

from __future__ import annotations

import pytest
from support.mapping import AVX512, program

from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.passes.eliminate_indices import eliminate_indices
from tcjit.mapping.pipeline import build_scop

SHAPES = {"I": (5, 3), "X": (9, 4), "W": (3,)}


def before(text: str) -> Assignments:
    return extract(program(f"def f(int64(N,K) I, float(V,D) X, float(K) W) -> (O) {{ {text} }}", SHAPES))


def eliminated(text: str) -> list[str]:
    return [a.show() for a in eliminate_indices(before(text), True, False).assignments]


GUARD = "0 <= I(n, 0) && I(n, 0) < 9"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (
            "O(n,d) +=! (I(n,0) == v) ? X(v,d) : 0.0",
            f"O(n, d) = {GUARD} ? 0.0 + X(I(n, 0), d) : 0.0 where n in 0:5, d in 0:4",
        ),
        ("O(n,d) *=! (I(n,0) == v) ? X(v,d) : 1.0", f"O(n, d) = {GUARD} ? X(I(n, 0), d) : 1.0 where n in 0:5, d in 0:4"),
        ("O(n,d) max=! (I(n,0) == v) ? X(v,d) : -infinity()", f"O(n, d) = {GUARD} ? X(I(n, 0), d) : -infinity() where n in 0:5, d in 0:4"),
        ("O(n) +=! (I(n,0) == v) ? v : 0 where v in 0:9", f"O(n) = {GUARD} ? int32(I(n, 0)) : 0 where n in 0:5"),
        (
            "O(n) +=! (I(n,0) == v && X(v,0) > W(0)) ? 1.0 : 0.0 where v in 2:9",
            f"O(n) = {GUARD.replace('0 <=', '2 <=')} && X(I(n, 0), 0) > W(0) ? 0.0 + 1.0 : 0.0 where n in 0:5",
        ),
        (  # a bag with weights: the other index is summed over as before
            "O(n,d) +=! (I(n,k) == v) ? X(v,d) * W(k) : 0.0",
            "O(n, d) += 0 <= I(n, k) && I(n, k) < 9 ? X(I(n, k), d) * W(k) : 0.0 from 0.0 where n in 0:5, d in 0:4, k in 0:3",
        ),
        (  # two of them
            "O(n) +=! (I(n,0) == v && I(n,1) == d) ? X(v,d) : 0.0",
            f"O(n) = {GUARD} && 0 <= I(n, 1) && I(n, 1) < 4 ? 0.0 + X(I(n, 0), I(n, 1)) : 0.0 where n in 0:5",
        ),
        (  # data that another condition protects
            "O(n) +=! (n > 0 && I(n-1,0) == v) ? X(v,0) : 0.0 where n in 0:N",
            "O(n) = n > 0 && 0 <= I(n - 1, 0) && I(n - 1, 0) < 9 ? 0.0 + X(I(n - 1, 0), 0) : 0.0 where n in 0:5",
        ),
    ],
)
def test_what_is_left(text: str, result: str) -> None:
    assert eliminated(text) == [result]


@pytest.mark.parametrize(
    "text",
    [
        "O(n,d) +=! (I(n,0) != v) ? X(v,d) : 0.0",
        "O(n,d) +=! (I(n,0) == v) ? X(v,d) : 1.0",
        "O(v,d) +=! (I(n,0) == v) ? X(v,d) : 0.0",  # the index of a result
        "O(n) +=! (I(n,v) == v) ? X(v,0) : 0.0 where v in 0:3",
        "O(n) = 1.0 where n in 0:N  O(n) += (I(n,0) == v) ? X(v,0) : 0.0",  # -0.0 plus all the zeros is 0.0
        "O(n) +=! (n + v < 5 && I(n,0) == v) ? X(v,0) : 0.0 where n in 0:2*N, v in 0:V",  # the condition protects the data
    ],
)
def test_what_stays(text: str) -> None:
    given = before(text)
    assert eliminate_indices(given, True, False).assignments == given.assignments


def test_empty_reductions_stay() -> None:
    given = extract(program("def f(int64(N) I, float(V) X) -> (O) { O(n) +=! (I(n) == v) ? X(v) : 0.0 }", {"I": (5,), "X": (0,)}))
    assert eliminate_indices(given, True, False).assignments == given.assignments


@pytest.mark.parametrize("target", [AVX512, SM_90], ids=["cpu", "gpu"])
@pytest.mark.parametrize("options", [Options(), Options(vector_width=1)])
def test_for_every_target(target: object, options: Options) -> None:
    text = "def f(int64(N) I, bfloat16(V,D) X) -> (O) { O(n,d) +=! (I(n) == v) ? X(v,d) : 0.0 }"
    scop = build_scop(program(text, {"I": (5,), "X": (9, 4)}), options, target=target, prove="every")  # type: ignore[arg-type]
    assert [(s.operator, s.reduction, s.tensor) for s in scop.statements] == [("=", (), "O")]

def test_what_picks_one_of_more_results_stays_for_a_scatter() -> None:
    long = before("O(v) +=! (I(n,0) == v - k) ? X(n,k) : 0.0 where v in 0:V, n in 0:N, k in 0:2")
    assert eliminate_indices(long, True, True).assignments == long.assignments
    assert eliminate_indices(long, True, False).assignments[0].reduction == ("n",)
    short = before("O(v) +=! (I(n,0) == v - k) ? X(n,0) : 0.0 where v in 0:2, n in 0:N, k in 0:D")
    assert eliminate_indices(short, True, True).assignments[0].reduction == ("n",)
