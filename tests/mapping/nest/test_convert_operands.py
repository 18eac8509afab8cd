"""Operands of half precision: converted once where they are read often.

Modules: mapping.nest.convert_operands
"""

from __future__ import annotations

import pytest
from support.nests import Shapes, assignments

from tcjit.errors import MappingError
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.convert_operands import convert_operands

PRODUCT = "def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
SHAPES: Shapes = {"A": (20, 30), "B": (30, 40)}


def converted(text: str, shapes: Shapes) -> tuple[list[Assignment], Assignment]:
    before = assignments(text, shapes)
    return convert_operands(before.assignments[0], Temporaries(before))


def test_each_tensor_once() -> None:
    copies, a = converted(PRODUCT.replace("A(m,k) * B(k,n)", "A(m,k) * B(k,n) + A(m,k)"), SHAPES)
    assert [copy.show() for copy in copies] == [
        "A_float32(axis0, axis1) = float32(A(axis0, axis1)) where axis0 in 0:20, axis1 in 0:30",
        "B_float32(axis0, axis1) = float32(B(axis0, axis1)) where axis0 in 0:30, axis1 in 0:40",
    ]
    assert "A_float32(m, k) * B_float32(k, n) + A_float32(m, k)" in a.show() and "bfloat16" not in a.show()


def test_single_precision_stays() -> None:
    copies, a = converted(PRODUCT.replace("bfloat16", "float"), SHAPES)
    assert copies == [] and "A(m, k) * B(k, n)" in a.show()


def test_mixed_operands() -> None:
    copies, a = converted(PRODUCT.replace("bfloat16(K,N)", "float(K,N)"), SHAPES)
    assert [copy.tensor for copy in copies] == ["A_float32"] and "A_float32(m, k) * B(k, n)" in a.show()


def test_windows_read_the_converted_tensor_as_they_did() -> None:
    text = "def f(half(N) X, half(K) w) -> (Y) { Y(i) +=! X(2 * i + k) * w(k) }"
    copies, a = converted(text, {"X": (100,), "w": (41,)})
    assert [copy.tensor for copy in copies] == ["X_float32", "w_float32"] and "X_float32(2 * i + k) * w_float32(k)" in a.show()


def test_what_is_read_once_is_not_worth_it() -> None:
    with pytest.raises(MappingError, match="as often as it is read"):
        converted("def f(half(M,K) A, half(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (20, 30), "x": (30,)})
