from __future__ import annotations

import subprocess
import sys

import pytest

from tcjit.errors import ArgumentError, ShapeError
from tcjit.grammar.ast import Param
from tcjit.grammar.bind import bind

A = Param("A", "float32", ("M", "K"))
B = Param("B", "float32", ("K", "N"))
C = Param("C", "float32", ("N", 3))
S = Param("s", "int32", ())


def test_sizes_in_order_of_appearance() -> None:
    assert bind((A, S, B), [(2, 3), None, (3, 0)]) == {"M": 2, "K": 3, "N": 0}


def test_a_rank_0_tensor_is_a_scalar() -> None:
    assert bind((S,), [()]) == {}


def test_the_first_argument_that_binds_wins() -> None:
    with pytest.raises(ShapeError) as caught:
        bind((A, B), [(2, 3), (4, 5)])
    assert caught.value.what == "the size K is 3 in dimension 1 of `A` (2, 3), and 4 in dimension 0 of `B` (4, 5)"
    assert caught.value.sizes == {"M": 2, "K": 3}


def test_one_argument_disagrees_with_itself() -> None:
    with pytest.raises(ShapeError, match=r"dimension 0 of `Q` \(2, 3\), and 3 in dimension 1 of `Q`"):
        bind((Param("Q", "float32", ("N", "N")),), [(2, 3)])


def test_constant_extents_come_before_symbolic_ones() -> None:
    with pytest.raises(ShapeError) as caught:
        bind((A, B, C), [(2, 3), (4, 5), (5, 4)])
    assert caught.value.what == "dimension 1 of `C` is 3, and the argument (5, 4) has 4"


def test_ranks_come_first() -> None:
    with pytest.raises(ShapeError, match="`C` has 2 dimensions, and the argument has 1"):
        bind((A, C), [(2, 3), (4,)])
    with pytest.raises(ShapeError, match="the argument has a scalar"):
        bind((A,), [None])
    with pytest.raises(ShapeError, match="`s` has 0 dimensions"):
        bind((S,), [(3,)])


def test_the_number_of_arguments() -> None:
    with pytest.raises(ArgumentError, match="2 arguments wanted, 1 given"):
        bind((A, B), [(2, 3)])


@pytest.mark.cold
def test_binding_needs_neither_parser_nor_isl() -> None:
    code = "import sys, tcjit.grammar.bind; print(sorted({'islpy', 'lark', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
