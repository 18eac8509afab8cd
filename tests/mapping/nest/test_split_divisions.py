"""Dimensions that are divided by constants: what they are split into.

Modules: mapping.nest.strip_mine
"""

from __future__ import annotations

import pytest
from support.mapping import program

from tcjit.mapping.assignment import Assignment
from tcjit.mapping.extract import extract
from tcjit.mapping.nest.strip_mine import split_divisions


def first(text: str) -> Assignment:
    return extract(program(f"def f(float(A,K) X, float(B,K,N) Y) -> (O) {{ {text} }}", {"X": (5, 9), "Y": (4, 9, 33)})).assignments[0]


def test_quotients_and_rests_are_indices() -> None:
    a, (strip,) = split_divisions(first("O(i,n) +=! X(i/4,k) * Y(i%4,k,n) where i in 0:20"))
    assert a.show() == (
        "O(4 * i_block + i, n) += X(i_block, k) * Y(i, k, n) from 0.0 where i_block in 0:5, i in 0:4, n in 0:33, k in 0:9"
    )
    assert (strip.dim, strip.outer, strip.block) == ("i", "i_block", 4)


@pytest.mark.parametrize(
    "text",
    [
        "O(i,n) +=! X(i/4,k) * Y(0,k,n) where i in 0:18",  # the last block would be shorter
        "O(i,n) +=! X((i+1)/4,k) * Y(0,k,n) where i in 0:16",
        "O(n) +=! X(k/3,k) * Y(0,k,n)",  # a term
        "O(i,n) +=! X(i,k) * Y(0,k,n)",
    ],
)
def test_what_stays(text: str) -> None:
    a = first(text)
    assert split_divisions(a) == (a, [])
