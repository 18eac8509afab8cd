"""Which reductions become scans, over which results and terms, and the trees that run them in order.

Modules: mapping.passes.simplify_reductions mapping.passes.schedule_scan
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.mapping import AVX512, program
from support.nests import Shapes, assignments

from tcjit.errors import VerifyError
from tcjit.mapping import tree as trees
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.dependences import dependences
from tcjit.mapping.marks import Scan, Simd
from tcjit.mapping.options import Options
from tcjit.mapping.passes.schedule_scan import schedule_scan
from tcjit.mapping.passes.simplify_reductions import simplify_reductions
from tcjit.mapping.pipeline import build_scop, map_program
from tcjit.mapping.verify import verify

X: Shapes = {"X": (6, 9)}


def prefix(condition: str, bounds: str = "where k in 0:N, j in 0:N", body: str = "X(i,k)", neutral: str = "0.0", op: str = "+=!") -> str:
    return f"def f(float(M,N) X) -> (Y) {{ Y(i,j) {op} ({condition} ? {body} : {neutral}) {bounds} }}"


def simplified(text: str, shapes: Shapes = X) -> list[Assignment]:
    return list(simplify_reductions(assignments(text, shapes)).assignments)


@pytest.mark.parametrize(
    ("text", "first", "others"),
    [
        (prefix("k <= j"), "", "Y(i, j) = (j > 0 ? Y(i, j - 1) : 0.0) + X(i, j) where i in 0:6, j in 0:9"),
        (prefix("k < j"), "Y(i, j) = 0.0 where i in 0:6, j in 0:1", "Y(i, j) = Y(i, j - 1) + X(i, j - 1) where i in 0:6, j in 1:9"),
        (
            prefix("k <= j + 2", "where k in 0:N, j in 0:N-2"),
            "i in 0:6, j in 0:1, k in 0:3",
            "Y(i, j) = Y(i, j - 1) + X(i, j + 2) where i in 0:6, j in 1:7",
        ),
        (
            prefix("k >= j"),
            "",
            "Y(i, 8 - j) = (j > 0 ? Y(i, 8 - j + 1) : 0.0) + X(i, 8 - j) where i in 0:6, j in 0:9",
        ),
        (
            prefix("k <= j", neutral="-infinity()", op="max=!"),
            "",
            "Y(i, j) = max(j > 0 ? Y(i, j - 1) : -infinity(), X(i, j)) where i in 0:6, j in 0:9",
        ),
        (
            prefix("k <= j", body="(X(i,k) > 0.0 ? X(i, k / 2) : X(i, min(k + 1, 8)))"),  # whatever a term is
            "",
            "Y(i, j) = (j > 0 ? Y(i, j - 1) : 0.0) + (X(i, j) > 0.0 ? X(i, j / 2) : X(i, min(j + 1, 8))) where i in 0:6, j in 0:9",
        ),
        (
            prefix("X(i,k) > 0.0 && k <= j", body="1.0"),  # data first
            "",
            "Y(i, j) = (j > 0 ? Y(i, j - 1) : 0.0) + (X(i, j) > 0.0 ? 1.0 : 0.0) where i in 0:6, j in 0:9",
        ),
        (
            "def f(float(M,N) X) -> (Y) { Y(i,j) *=! (k <= i ? X(k,j) : 1.0) where k in 0:M, i in 0:M }",
            "i in 0:1, j in 0:9, k in 0:1",
            "Y(i, j) = Y(i - 1, j) * X(i, j) where i in 1:6, j in 0:9",
        ),
    ],
)
def test_scans(text: str, first: str, others: str) -> None:
    """``first``: of the results at the end of the dimension, nothing where the others' loop begins with them."""
    *before, scan = simplified(text)
    assert [first in one.show() and not one.scan for one in before] == [True] * bool(first)
    assert scan.scan and scan.show().replace("+ -1", "- 1") == others


@pytest.mark.parametrize(
    "text",
    [
        prefix("k <= j", body="X(i,k) * float(j)"),  # a term depends on the result
        prefix("k <= j && k > j - 3"),  # a window: terms would have to be taken away
        prefix("k <= 2 * j", "where k in 0:N, j in 0:N"),  # two terms more
        prefix("k <= j", neutral="1.0"),  # what is left out is no identity
        prefix("k <= j", op="+=", bounds="where k in 0:N, j in 0:N").replace("{ Y(i,j)", "{ Y(i,j) = 1.0 where i in 0:M, j in 0:N  Y(i,j)"),
        prefix("k <= j", "where k in 0:N, j in 0:3"),  # too few results
        "def f(float(M,N) X) -> (Y) { Y(i) +=! X(i,k) }",
    ],
)
def test_what_is_none(text: str) -> None:
    before = assignments(text, X)
    assert simplify_reductions(before).assignments == before.assignments


def test_trees_are_in_order_and_proved() -> None:
    """Lanes along memory where another dimension follows it, a register otherwise; a scan that runs backwards is refused."""
    for text, mark in ((prefix("k <= j"), Scan()), (prefix("k <= i", "where k in 0:M, i in 0:M", "X(k,j)"), Simd())):
        scop = build_scop(program(text, X), Options(), target=AVX512)
        s = next(s for s in scop.statements if s.scan)
        alone = replace(scop, statements=(s,))
        tree = schedule_scan(alone, s, Options(), count())
        assert str(mark) in trees.show(tree)
        verify(alone, dependences(alone), tree)
        dim = s.scan
        backwards = trees.show(tree).replace(f"-> [({dim})]", f"-> [(-{dim})]")
        assert backwards != trees.show(tree)
        with pytest.raises(VerifyError, match="backwards"):
            verify(alone, dependences(alone), trees.read(scop.ctx, backwards))


def test_only_for_a_cpu_with_nests() -> None:
    text = prefix("k <= j")
    assert any(s.scan for s in map_program(program(text, X), Options(), AVX512).scop.statements)
    assert not any(s.scan for s in map_program(program(text, X), Options(vector_width=1), AVX512).scop.statements)
