"""Results computed in the order that operands have, and copied to their places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.compare import assert_agree
from support.mapping import program
from support.nests import Shapes, assignments, flat, tiled
from support.run import array

import tcjit
from tcjit.mapping.nest.transpose_results import result_orders
from tcjit.mapping.options import Options
from tcjit.runtime import reference

NARROW = "def f(float(A,D) X, float(D,B,C) U) -> (O) { O(a,c,b) +=! X(a,d) * U(d,b,c) }"
SHAPES: Shapes = {"X": (20, 900), "U": (900, 19, 19)}


@pytest.mark.parametrize(
    ("text", "shapes", "lanes", "expected"),
    [
        (NARROW, SHAPES, (), [(0, 2, 1)]),
        # neighbours in an operand are neighbours in the result
        (NARROW.replace("O(a,c,b)", "O(a,b,c)"), SHAPES, (), []),
        (NARROW.replace("O(a,c,b)", "O(b,c,a)"), SHAPES, (), []),
        # nothing to merge along a dimension of one value
        (NARROW, {"X": (20, 900), "U": (900, 19, 1)}, (), []),
        # a product transposed: where lanes are scattered
        ("def f(float(M,K) A, float(K,N) B) -> (C) { C(n,m) +=! A(m,k) * B(k,n) }", {"A": (5, 6), "B": (6, 7)}, (), []),
        ("def f(float(M,K) A, float(K,N) B) -> (C) { C(n,m) +=! A(m,k) * B(k,n) }", {"A": (5, 6), "B": (6, 7)}, ("n",), [(1, 0)]),
        # both operands have two: what the other has stands in its order
        (
            "def f(float(D,A,B) X, float(D,C,E) Y) -> (O) { O(b,e,c,a) +=! X(d,a,b) * Y(d,c,e) }",
            {"X": (3, 4, 5), "Y": (3, 6, 7)}, (), [(2, 1, 3, 0), (3, 0, 2, 1)],
        ),
    ],
)  # fmt: skip
def test_orders(text: str, shapes: Shapes, lanes: tuple[str, ...], expected: list[tuple[int, ...]]) -> None:
    assert list(result_orders(assignments(text, shapes).assignments[0], flat(text, shapes), frozenset(lanes))) == expected


def test_a_reduction_in_the_order_of_its_operand() -> None:
    product, copy = tiled(NARROW, SHAPES).assignments
    assert product.show().startswith("O_transposed(a, b, c) +=")
    assert copy.show() == "O(a, c, b) = O_transposed(a, b, c) where a in 0:20, c in 0:19, b in 0:19"
    (s,) = (one.statement for one in product.tiled)
    assert s.extent("c") == 19 * 19  # merged with b
    assert [a.tensor for a in tiled(NARROW, SHAPES, Options(pack=False)).assignments] == ["O"]


def test_few_terms_are_not_worth_a_copy() -> None:
    assert tiled(NARROW, {"X": (20, 2), "U": (2, 19, 19)}).assignments[-1].tiled


def test_what_follows_in_another_order_is_not_part_of_the_nest() -> None:
    """Where its stores would be scattered; it is where they are not."""
    text = NARROW.replace("O(a,c,b) +=! X(a,d) * U(d,b,c)", "T(a,b,c) +=! X(a,d) * U(d,b,c)  O(%) = fmax(T(a,b,c), 0.0)")
    product, after = tiled(text.replace("%", "a,c,b"), SHAPES).assignments
    assert not after.fused and product.tiled[0].statement.extent("c") == 19 * 19
    product, after = tiled(text.replace("%", "a,b,c"), SHAPES).assignments
    assert after.fused and product.tiled[0].statement.extent("c") == 19 * 19


@pytest.mark.parametrize("result", ["O(a,c,b)", "O(c,a,b)", "O(c,b,a)", "O(b,a,c)"])
@pytest.mark.parametrize("after", ["", "O(%) = fmax(O(%), 0.5)", "P(b,c,a) = O(%) + X(a,0)"])
def test_values(result: str, after: str) -> None:
    text = NARROW.replace("O(a,c,b)", result).replace(" }", f" {after.replace('%', result[2:-1])} }}")
    text = text.replace("(O)", "(O, P)") if "P(" in after else text
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in {"X": (20, 300), "U": (300, 19, 19)}.items()}
    made = program(text, {name: one.shape for name, one in given.items()})
    found = tcjit.define(text).f(*map(torch.from_numpy, given.values()))
    expected = reference.run(made, given, {})
    for name, one in zip(made.definition.returns, found if isinstance(found, tuple) else (found,), strict=True):
        assert_agree(array(one), expected, name)
