"""Options that cannot matter to a def are dropped before anything is keyed by them: the kernel is the same without."""

from __future__ import annotations

import random

import pytest
from support.fuzz.options import drawn, threads_for_all
from support.fuzz.programs import draw
from support.mapping import CONVOLUTION, GATHER, MATMUL, SOFTMAX

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.grammar.ast import Program
from tcjit.grammar.front import read
from tcjit.mapping.applicability import TRAITS, loops, traits
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

MACHINE = Machine(vector_bytes=64, vector_registers=32)
PLAIN = "def f(float(M,N) X) -> (Y) { Y(m, n) = 2 * X(m, n) }"


@pytest.mark.parametrize(
    "text, expected, most",
    [
        (PLAIN, ("several", "temporary"), 3),  # an operand may be copied
        ("def f(float(M,N) X) -> (Y) { Y(m, n) = X(n, m) }", (), 3),
        ("def f(float(N) X) -> (Y) { Y(n) = 2 * X(n) }", (), 2),
        ("def f(float(M,N) X) -> (Y) { Y(n) += X(1, n) }", (), 2),
        ("def f(float(N) X) -> (Y) { Y(n) +=! X(n) }", ("several",), 2),
        ("def f(float(N) X) -> (Y) { T(n) = X(n)  Y(n) = T(n) }", ("several", "temporary"), 2),
        ("def f(float(N) X) -> (Y, T) { T(n) = X(n)  Y(n) = T(n) }", ("several",), 2),
        ("def f(float(N) X) -> (Y) { Y += X(n) }", TRAITS, 2),
        ("def f(float(N,N,N,N) X) -> (Y) { Y(n) = X(n, n, n, n) }", (), 4),
        (MATMUL, TRAITS, 4),
        (SOFTMAX, TRAITS, 3),
        (CONVOLUTION, TRAITS, 8),
        (GATHER, TRAITS, 4),
    ],
)
def test_traits(text: str, expected: tuple[str, ...], most: int) -> None:
    definition = read(text)[-1]
    assert (traits(definition), loops(definition)) == (expected, most)


def test_what_cannot_matter_gets_its_default() -> None:
    given = Options(
        fusion="minimal", tile=(4, 0, 8, 16, 0), vector_width=4, reduction_chunks=3, parallel=False, private_buffers=False, pack=False
    )
    assert given.normalised("cpu", (), 2) == Options(tile=(4,), vector_width=4, parallel=False)
    assert given.normalised("cpu", ("several",), 3) == Options(fusion="minimal", tile=(4, 0, 8), vector_width=4, parallel=False)
    assert given.normalised("cpu", TRAITS, 5) == given.but(tile=(4, 0, 8, 16))
    for option in Options.described():
        assert option.metadata["needs"] in ("", *TRAITS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(4))
def test_dropped_options_change_no_kernel(shard: int) -> None:
    """The C text of random programs under drawn options and under what is left of them."""
    fewer = 0
    for number in range(shard, 120, 4):
        case = draw(random.Random(f"traits {number}"))
        given = drawn(random.Random(number))
        program = case.program()
        left = given.normalised("cpu", traits(program.definition), loops(program.definition))
        if left == given:
            continue
        fewer += 1
        with threads_for_all():
            made, again = (_text(program, options) for options in (given, left))
        assert made == again, f"number {number}, {given}, {left}\n{case.text}"
    assert fewer > 1


def _text(program: Program, options: Options) -> str:
    return emit_c(map_program(program, options, MACHINE, prove="none"), C, MACHINE, checked=True).text
