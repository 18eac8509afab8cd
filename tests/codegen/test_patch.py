"""Contractions on explicit vectors: registers that overlap, results that start in them, operands that stay there, partial sums."""

from __future__ import annotations

import re

import pytest
from support.mapping import AVX512, MATMUL, program

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.errors import MappingError
from tcjit.mapping.machine import Machine, vector_cover
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

PRODUCT = {"A": (48, 64), "B": (64, 96)}
DOT = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
ROWS = "def f(float(M,N) X) -> (Y) { Y(m) +=! exp(X(m, n)) }"


def kernel(text: str, shapes: dict[str, tuple[int, ...]], options: Options | None = None, machine: Machine = AVX512) -> str:
    made = emit_c(map_program(program(text, shapes), options or Options(nest=False), machine), C, machine, checked=True)
    return made.text[made.text.index(f"int64_t {made.symbol}(") :]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_registers_cover_every_lane_and_no_more(width: int) -> None:
    for extent in range(1, 70):
        found = vector_cover(extent, width)
        assert {lane for start, lanes in found for lane in range(start, start + lanes)} == set(range(extent))
        assert all(lanes <= width and lanes & (lanes - 1) == 0 for _, lanes in found)
        assert len(found) <= -(-extent // width) + (extent < width)


def test_a_rest_of_lanes_costs_one_register() -> None:
    made = kernel(MATMUL, {"A": (8, 64), "B": (64, 26)}, Options(nest=False, register_tile=(8, 2)))
    assert len(re.findall(r"s\d+_\d+ \+= ", made)) == 16
    assert "C[10] = s0_10;" in made and "tc_float8" not in made


@pytest.mark.parametrize("text", [MATMUL, DOT])
def test_results_start_at_zero_in_their_registers(text: str) -> None:
    shapes = PRODUCT if text is MATMUL else {"A": (48, 512), "B": (96, 512)}
    made = kernel(text, shapes)
    assert "= 0.0f;" not in made and "= {0};" in made
    assert re.search(r"C\[[^]]*\] = tc_sum|\)&C\[[^]]*\] = s", made)


def test_results_that_go_on_are_read() -> None:
    text = MATMUL.replace("{ C(m,n) +=!", "{ C(m,n) = A(m,n)  C(m,n) +=")
    made = kernel(text, {"A": (48, 48), "B": (48, 48)}, Options(nest=False, fusion="minimal"))
    assert re.search(r"s\d+(_\d+)? = \*\(tc_float16_u \*\)&C\[", made)


def test_what_several_results_use_stays_in_a_register() -> None:
    made = kernel(MATMUL, PRODUCT)
    assert "TC_KEEP(v" in made
    assert "TC_KEEP" not in kernel(MATMUL, PRODUCT, Options(nest=False, register_tile=(1, 4)))


@pytest.mark.parametrize("tile", [(5, 5), (3, 8), (8, 3), (2, 12), (12, 2), (4, 6)])
def test_few_operands_are_there_at_once(tile: tuple[int, int]) -> None:
    """All sums of a patch, the operands of its shorter side and one more fit the registers: nothing has to leave them in between."""
    made = kernel(DOT, {"A": (120, 512), "B": (120, 512)}, Options(nest=False, tile=tile))
    loop = made[made.index("tc_float16 v0") :]
    loop = loop[: loop.index("}")]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, line in enumerate(line for line in loop.splitlines() if "TC_KEEP" not in line):
        for name in re.findall(r"\bv\d+\b", line):
            first.setdefault(name, number)
            last[name] = number
    assert len(first) == sum(tile) and loop.count("+=") == tile[0] * tile[1]
    most = max(sum(first[name] <= number <= last[name] for name in first) for number in range(max(last.values()) + 1))
    assert most == min(tile) + 1 and tile[0] * tile[1] + most <= AVX512.vector_registers


def test_the_patch_is_an_option() -> None:
    for rows, vectors in ((2, 3), (6, 1), (12, 2)):
        made = kernel(MATMUL, PRODUCT, Options(nest=False, register_tile=(rows, vectors)))
        assert max(len(set(re.findall(r"(s\d+(?:_\d+)?) \+= ", body))) for body in made.split("for (")) == rows * vectors
    with pytest.raises(MappingError, match=r"option register_tile = \(12, 3\) needs 40 vector registers, and this processor has 32"):
        kernel(MATMUL, PRODUCT, Options(nest=False, register_tile=(12, 3)))
    assert "+=" in kernel(MATMUL, {"A": (2, 8), "B": (8, 16)}, Options(nest=False, register_tile=(12, 2)))  # as far as extents allow


def test_the_innermost_loop_is_unrolled_on_demand() -> None:
    assert "#pragma GCC unroll" not in kernel(MATMUL, PRODUCT)
    lines = kernel(MATMUL, PRODUCT, Options(nest=False, unroll=4)).splitlines()
    after = [lines[number + 1] for number, line in enumerate(lines) if line == "#pragma GCC unroll 4"]
    assert after and all("<= 63" in line for line in after)


@pytest.mark.parametrize(("size", "asked", "written"), [(2, 0, 1), (3, 0, 3), (5, 0, 5), (9, 0, 1), (3, 1, 1), (3, 2, 2)])
def test_a_short_innermost_loop_is_written_out(size: int, asked: int, written: int) -> None:
    text = "def conv(float(N,H,W) I, float(F,KH,KW) K) -> (O) { O(n,f,h,w) +=! I(n,h+i,w+j) * K(f,i,j) }"
    made = kernel(text, {"I": (2, 20, 40), "K": (4, 3, size)}, Options(nest=False, unroll=asked))
    assert {int(count) for count in re.findall("#pragma GCC unroll ([0-9]+)", made)} == ({written} if written > 1 else set())


def test_what_would_become_very_long_is_not() -> None:
    shapes = {"A": (28, 8), "B": (8, 32)}
    assert "#pragma GCC unroll 8" in kernel(MATMUL, shapes, Options(nest=False, register_tile=(4, 2)))
    assert "#pragma GCC unroll" not in kernel(MATMUL, shapes, Options(nest=False, register_tile=(14, 2)))


@pytest.mark.parametrize("asked, variables", [(0, 2), (1, 1), (4, 4), (5, 5)])
def test_one_sum_is_shared_by_variables(asked: int, variables: int) -> None:
    made = kernel(ROWS, {"X": (64, 1000)}, Options(nest=False, accumulators=asked))
    names = re.findall(r"simd reduction\(\+ : ([^)]*)\)", made)
    assert len(names[0].split(", ")) == variables
    left = 1000 - variables * (1000 // variables // 16 * 16)
    assert len(names) == 1 + (left >= 16) + (left % 16 > 0)  # it goes to the first, in whole vectors, and one that overlaps them
    assert all(other == names[0].split(", ")[0] for other in names[1:])
    assert "tc_sum1" not in kernel(ROWS, {"X": (64, 100)}, Options(nest=False, accumulators=asked))  # too short to share


def test_a_maximum_keeps_to_one_variable_unless_asked() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(m) max=! X(m, n) }"
    assert "tc_sum1" not in kernel(text, {"X": (64, 1000)})
    assert "tc_sum0 = tc_max_f32(tc_sum0, tc_sum1);" in kernel(text, {"X": (64, 1000)}, Options(nest=False, accumulators=2))
