"""Tiles of a matrix unit: when there are some, their sizes, what they copy, and that their kernels are proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512, program
from support.nests import Shapes, tiled

from tcjit.mapping.machine import Costs, Machine
from tcjit.mapping.nest.matrix_unit import DEPTH, REGISTERS, ROWS
from tcjit.mapping.nest.tile import verify_tiles
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

UNIT = replace(AVX512, dot_ways=4, bfloat16_dots=True, matrix_types=frozenset({"bfloat16", "int8"}))
EAGER = replace(UNIT, costs=Costs(fma_rate=0.02))  # whose vectors are slow
NN = "def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (O) { O(m,n) +=! A(m,k) * B(k,n) }"
NT = "def f(bfloat16(M,K) A, bfloat16(N,K) B) -> (O) { O(m,n) +=! A(m,k) * B(n,k) }"


def reductions(text: str, shapes: Shapes, machine: Machine = UNIT, options: Options | None = None) -> tuple[str, ...]:
    return tuple(map_program(program(text, shapes), options or Options(), machine).reductions)


def test_large_products_use_it_and_small_ones_do_not() -> None:
    assert "matrix unit over 16 k" in reductions(NN, {"A": (256, 256), "B": (256, 256)})[-1]
    assert "matrix unit" not in reductions(NN, {"A": (2, 20), "B": (20, 9)})[-1]
    assert "matrix unit" not in reductions(NN, {"A": (256, 256), "B": (256, 256)}, replace(UNIT, matrix_types=frozenset()))[-1]


@pytest.mark.parametrize("terms", [1 << 17, 131077])
def test_long_sums_have_chunks_of_whole_registers(terms: int) -> None:
    """Whatever the number of terms: zeros end the words of a copy."""
    text = "def f(int8(M,K) A, int8(K,N) B) -> (O) { O(m,n) +=! int32(A(m,k)) * int32(B(k,n)) }"
    first, *_ = reductions(text, {"A": (23, terms), "B": (terms, 13)})
    assert first.startswith("O_part: loops chunk") and "matrix unit" in first


def test_it_takes_no_other_types() -> None:
    shapes: Shapes = {"A": (256, 256), "B": (256, 256)}
    assert "matrix unit" not in reductions(NN.replace("bfloat16", "half"), shapes)[-1]
    assert "matrix unit" not in reductions(NN.replace("bfloat16", "float"), shapes)[-1]
    of_int16 = "def f(int16(M,K) A, int16(K,N) B) -> (O) { O(m,n) +=! int32(A(m,k)) * int32(B(k,n)) }"
    assert "matrix unit" not in reductions(of_int16, shapes)[-1]


@pytest.mark.parametrize("text", [NN, NT])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 70, 45), (17, 333, 100), (200, 32, 16), (5000, 40, 9)])
def test_tiles_are_whole_and_fit_into_the_registers(text: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    found = tiled(text, {"A": (m, k), "B": (k, n) if text == NN else (n, k)}, machine=EAGER)
    nests = [one for a in found.assignments for one in a.tiled if one.nest.leaf.depth]
    assert nests
    for one in nests:
        leaf = one.nest.leaf
        ((_, rows),) = leaf.rows
        across = rows // ROWS
        assert rows % ROWS == 0 and across * leaf.vectors + across + leaf.vectors <= REGISTERS and leaf.depth == ("k", DEPTH)
        assert one.tiles.partial.is_empty() and not leaf.window and not one.nest.prefetch
        verify_tiles(one.statement, one.tiles)


def test_words_that_are_neighbours_in_memory_are_not_copied() -> None:
    """Rows of 64 terms are read as they are; of 63 the last word has a zero, so that they are copied."""

    def staged(text: str, shapes: Shapes) -> set[str]:
        return {storage.name for _, storage in tiled(text, shapes, machine=EAGER).temporaries if storage.name.endswith("_staged")}

    assert staged(NN, {"A": (64, 64), "B": (64, 64)}) == {"B_staged"}
    assert staged(NN, {"A": (64, 63), "B": (63, 64)}) == {"A_staged", "B_staged"}
    assert len(staged(NT, {"A": (64, 64), "B": (64, 64)})) == 1


def test_weights_are_read_once_where_they_lie() -> None:
    """The rows of registers are those of the larger operand, results scattered."""
    found = tiled(NT, {"A": (16, 4096), "B": (4096, 4096)}, machine=UNIT)
    (one,) = [one for a in found.assignments for one in a.tiled]
    assert one.nest.leaf.lane == "m" and [dim for dim, _ in one.nest.leaf.rows] == ["n"]
    assert {storage.name for _, storage in found.temporaries if storage.name.endswith("_staged")} == {"A_staged"}


def test_register_tiles_can_be_asked_for() -> None:
    shapes: Shapes = {"A": (256, 256), "B": (256, 256)}
    assert "1 x 16 n x 48 m, dot2, matrix unit" in reductions(NN, shapes, options=Options(register_tile=(48, 1)))[-1]
    assert "matrix unit" not in reductions(NN, shapes, options=Options(register_tile=(6, 2)))[-1]


def test_conditions_on_terms_are_for_vectors() -> None:
    text = "def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (O) { O(m,n) +=! k <= m ? float(A(m,k)) * float(B(k,n)) : 0.0 }"
    assert "matrix unit" not in reductions(text, {"A": (256, 256), "B": (256, 256)})[-1]
    assert "register tile" in reductions(text, {"A": (256, 256), "B": (256, 256)})[-1]


def test_bytes_that_need_no_sums_with_their_signs_flipped() -> None:
    """As they are they would need some, which the condition does not allow: they stay with vectors, in groups of four."""
    text = "def f(uint8(M,K) X, uint8(K,N) Y) -> (O) { O(m,n) +=! (k <= m ? (int32(X(m,k)) - 128) * int32(Y(k,n)) : 0) }"
    made = reductions(text.replace("k <= m", "m + n < 60"), {"X": (4, 64), "Y": (64, 64)})
    assert made[-1].endswith(", dot4")
