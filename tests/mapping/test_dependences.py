"""Dependences beside their definition: pairs of accesses to one element, at least one of them a write, in the order of the program.

Modules: mapping.isl
"""

from __future__ import annotations

import random

import islpy as isl
import pytest
from support.fuzz.programs import draw
from support.mapping import CONVOLUTION, MATMUL, SOFTMAX, program

from tcjit.grammar.ast import Program
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.mapping.dependences import dependences
from tcjit.mapping.isl import maps, union_map
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.scop import Scop


def before(scop: Scop) -> isl.UnionMap:
    """All pairs of instances in the order of the program: of statements' numbers, then of dimensions."""
    depth = max((len(s.dims) for s in scop.statements), default=0)
    times = [
        f"{s.tuple_text} -> [{', '.join([str(number), *s.isl_dims, *['0'] * (depth - len(s.dims))])}]"
        for number, s in enumerate(scop.statements)
    ]
    order = union_map(scop.ctx, times).intersect_domain(scop.domain)
    return order.lex_lt_union_map(order)


def disagreement(found: Program, options: Options | None = None) -> str:
    """What of a program's dependences is not as defined; empty if nothing."""
    scop = build_scop(found, options or Options(vector_width=1))
    deps, order = dependences(scop), before(scop)
    flow = scop.writes.apply_range(scop.reads.reverse()).intersect(order)
    anti = scop.reads.apply_range(scop.writes.reverse()).intersect(order)
    output = scop.writes.apply_range(scop.writes.reverse()).intersect(order)
    ends = [(piece.get_tuple_name(isl.dim_type.in_), piece.get_tuple_name(isl.dim_type.out)) for piece in maps(deps.reduction)]
    sound = {
        "flow": deps.flow.is_equal(flow),
        "all": deps.all.is_equal(flow.union(anti).union(output)),
        "strict and reduction": deps.strict.intersect(deps.reduction).is_empty(),
        "reduction": all(start == end for start, end in ends),
    }
    return ", ".join(name for name, holds in sound.items() if not holds)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    found = draw(random.Random(seed)).program()
    for options in (Options(vector_width=1), Options(vector_width=1, reduction_chunks=3)):
        assert disagreement(found, options) == ""


@pytest.mark.parametrize(("text", "sizes"), [(MATMUL, ["M"]), (MATMUL, ["M", "N", "K"]), (SOFTMAX, ["M", "N"]), (CONVOLUTION, ["H"])])
def test_sizes_that_only_the_call_knows(text: str, sizes: list[str]) -> None:
    known = dict.fromkeys(("M", "N", "K", "H", "W", "C", "O", "F", "KH", "KW", "B"), 12)
    found = generalise(read(text)[0], known, {}, dict.fromkeys(sizes, (3, 12)))
    assert disagreement(found) == ""
    assert maps(dependences(build_scop(found, Options(vector_width=1))).strict), "there are some"


def test_a_reduction_s_own_instances_are_kept_apart() -> None:
    deps = dependences(build_scop(program(MATMUL, {"A": (4, 5), "B": (5, 6)}), Options(vector_width=1)))
    assert {piece.get_tuple_name(isl.dim_type.in_) for piece in maps(deps.reduction)} == {"S1"}
    assert {(p.get_tuple_name(isl.dim_type.in_), p.get_tuple_name(isl.dim_type.out)) for p in maps(deps.strict)} == {("S0", "S1")}
