"""Forms of a sum that vectors can use: cut at conditions, computed with another index last, in an order that memory likes.

Modules: mapping.group mapping.pad mapping.passes.pad_operands mapping.passes.transpose_output
"""

from __future__ import annotations

import pytest
from support.mapping import AVX512, MATMUL, mapped, program, scop

from tcjit.mapping.extract import extract
from tcjit.mapping.group import Group
from tcjit.mapping.options import Options
from tcjit.mapping.passes.pad_operands import pad_operands
from tcjit.mapping.plan import Plan, plan
from tcjit.mapping.scop import Scop

DILATED = "def f(float(C,K) W, float(K,T) X) -> (Y) { Y(c, t) +=! (t >= 5 ? X(k, t - 5) * W(c, k) : 0.0) + X(k, t) where t in 0:T }"
SHAPES = {"W": (8, 16), "X": (16, 64)}
NARROW = "def g(float(N,C,H) I, float(F,C,K) W) -> (O) { O(n, f, h) +=! I(n, c, h + k) * W(f, c, k) }"
NARROW_SHAPES = {"I": (4, 32, 7), "W": (24, 32, 3)}


def planned(made: Scop, *names: str, options: Options | None = None) -> Plan:
    """The plan of an initialisation and its update over all their shared dimensions."""
    update = made.statement(names[-1])
    shared = [d for d in update.dims if d not in update.reduction]
    first = made.statement(names[0])
    columns = tuple(dict(zip(names, pair, strict=True)) for pair in zip(first.dims, shared, strict=True))
    return plan(made, Group(names, columns), options or Options(nest=False), AVX512)


def test_a_sum_is_cut_where_a_condition_changes() -> None:
    made = scop(DILATED, SHAPES)
    updates = [s for s in made.statements if s.operator == "+="]
    assert [{d: (lo, hi) for d, lo, hi in s.bounds}["t"] for s in updates] == [(0, 5), (5, 64)]
    assert all(s.operator == "=" and s.bounds == u.bounds[:2] for s, u in zip(made.statements[::2], updates, strict=True))
    assert len([s for s in scop(DILATED, SHAPES, Options(nest=False, pack=False)).statements if s.operator == "+="]) == 1


@pytest.mark.parametrize(
    "condition, cuts",
    [
        ("t < 7", [7]),
        ("7 > t", [7]),
        ("t <= 7", [8]),
        ("3 - t >= 0", [4]),
        ("t > 63", []),
        ("t + k > 5", []),
        ("2 * t > 9", []),
        ("t == 4", []),
    ],
)
def test_only_plain_comparisons_of_one_index_cut(condition: str, cuts: list[int]) -> None:
    text = f"def f(float(C,K) W, float(K,T) X) -> (Y) {{ Y(c, t) +=! ({condition} ? X(k, t) * W(c, k) : 0.0) where t in 0:T }}"
    made = scop(text, SHAPES)
    assert [s.bounds[1][2] for s in made.statements if s.operator == "+="][:-1] == cuts


PADDED = "{ O(n,f,w) +=! (w + k >= 1 && w + k <= W ? X(n,c,w+k-1) : 0.0) * G(f,c,k) where w in 0:W }"
GROUPS = PADDED.replace("X(n,c,", "X(n,c + 4*(f/2),").replace("c,k) where", "c,k) where c in 0:4,")


@pytest.mark.parametrize(
    ("body", "layouts", "expected"),
    [
        (PADDED, {}, (2, 8, 22)),
        (PADDED, {"X": "dense 0,2,1"}, (2, 8, 22)),  # lanes run along a dimension that moves what is read
        (PADDED, {"X": "dense 0,2,1", "O": "dense 0,2,1"}, (2, 22, 8)),  # all lanes read one element: neighbours stay together
        (GROUPS, {"X": "dense 0,2,1", "O": "dense 0,2,1"}, (2, 8, 22)),
    ],
)
def test_the_order_of_a_padded_copy(body: str, layouts: dict[str, str], expected: tuple[int, ...]) -> None:
    channels = 4 if body is GROUPS else 8
    text = f"def f(float(N,C,W) X, float(F,D,K) G) -> (O) {body}"
    found = extract(program(text, {"X": (2, 8, 20), "G": (4, channels, 3)}), layouts)
    copies = [t for t in pad_operands(found, nests=True, on_gpu=False).tensors if t.name == "X_padded"]
    assert [copy.shape for copy in copies] == [expected]


def test_a_short_last_index_leaves_the_lanes_to_a_longer_one() -> None:
    made = scop(NARROW, NARROW_SHAPES)
    assert [s.tensor for s in made.statements] == ["W_packed", "O_turned", "O_turned", "O"]
    assert made.statement("S2").dims[:3] == ("n", "h", "f") and made.tensor("O_turned").shape == (4, 5, 24)
    assert "O_turned" not in {s.tensor for s in scop(NARROW, NARROW_SHAPES, Options(nest=False, vector_dim=1)).statements}
    wide = {"I": (4, 32, 40), "W": (24, 32, 3)}
    assert "O_turned" not in {s.tensor for s in scop(NARROW, wide).statements}
    assert "O_turned" in {s.tensor for s in scop(NARROW, wide, Options(nest=False, vector_dim=2)).statements}
    assert "O_turned" not in {s.tensor for s in scop(NARROW, wide, Options(nest=False, vector_dim=3)).statements}


def test_the_way_back_shares_no_loops_unless_fusion_is_maximal() -> None:
    assert "O_turned" not in {p.tensor for p in mapped(NARROW, NARROW_SHAPES).privates}
    assert mapped(NARROW, NARROW_SHAPES, Options(nest=False, fusion="maximal")).verified


def test_a_contraction_that_waits_for_memory_reads_it_in_order() -> None:
    text = "def f(float(N,C,K,H) X, float(N,H) Y) -> (O) { O(n, c, h) +=! X(n, c, k, h) * Y(n, h) }"
    made = scop(text, {"X": (4, 128, 8, 784), "Y": (4, 784)}, Options(nest=False, fusion="minimal"))
    found = planned(made, "S0", "S1")
    assert found.order == (0, 1, 2) and found.tile[:2] == (1, 1)


def test_the_innermost_tile_loop_re_reads_the_smaller_operand() -> None:
    text = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    assert planned(scop(text, {"A": (64, 1024), "B": (2048, 1024)}), "S0", "S1").order == (1, 0)
    assert planned(scop(text, {"A": (2048, 1024), "B": (64, 1024)}), "S0", "S1").order == (0, 1)


@pytest.mark.parametrize("outer", [1, 2])
def test_the_outermost_loop_is_an_option(outer: int) -> None:
    made = scop(MATMUL, {"A": (64, 64), "B": (64, 64)})
    assert planned(made, "S0", "S1", options=Options(nest=False, outer_loop=outer)).order[0] == outer - 1
    assert Options(outer_loop=outer).normalised("cpu", (), outer - 1) == Options()
