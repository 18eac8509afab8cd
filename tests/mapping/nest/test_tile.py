"""Tiles in digits: every point once by enumeration, what a nest must fulfil, the tree over tiles, and what the proof refuses.

Modules: mapping.nest.nest mapping.nest.tiled_statement mapping.nest.tile_tree
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import pytest
from support.nests import DIM, Shapes, computed, flat, points, stored

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.isl import context
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.nest import Leaf, Loop, Nest
from tcjit.mapping.nest.statement import FlatAccess, FlatStatement
from tcjit.mapping.nest.tile import PointCheck, Tiles, stays_inside, tile, verify_tiles
from tcjit.mapping.nest.tile_tree import tile_tree
from tcjit.mapping.nest.tiled_statement import KINDS, TiledStatement

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
LOWER = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }"
RESULTS = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (n <= m ? A(m,k) * B(k,n) : 0.0) }"
BAND = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k >= m - 2 && k <= m + 1 && k >= n ? A(m,k) * B(k,n) : 0.0) }"
ROWS = "def f(float(M,K) A) -> (C) { C(m) +=! (k <= m ? A(m,k) : 0.0) }"
WINDOW = "def f(float(N) X, float(K) w) -> (C) { C(n) max=! X(n+k) * w(k) }"
PADDED = "def f(float(N) X, float(K) w) -> (C) { C(n) +=! (n + k >= 1 && n + k <= N ? X(n+k-1) * w(k) : 0.0) where n in 0:N }"
STRIDED = "def f(float(N) X, float(K) w) -> (C) { C(n) +=! (3*n + k >= 2 && 3*n + k <= N ? X(3*n+k-2) * w(k) : 0.0) where n in 0:6 }"
ONE = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k == m ? A(m,k) * B(k,n) : 0.0) }"


def product_nest(rows: int, lanes: int, *, outer: int = 0, terms: int = 0, vectors: int = 1) -> Nest:
    """Rows m, lanes n; perhaps a loop over blocks of rows around both, and over blocks of terms."""
    blocks = [Loop("m", outer)] if outer else []
    inner = [Loop("k", terms)] if terms else []
    return Nest((*blocks, Loop("n", vectors * lanes), Loop("m", rows), *inner, Loop("k", 1)), Leaf("n", vectors, (("m", rows),)))


SHAPES: Shapes = {"A": (7, 6), "B": (6, 11)}
LINE: Shapes = {"X": (13,), "w": (3,)}
CASES: dict[str, tuple[str, Shapes, Nest, int]] = {
    "box": (MATMUL, SHAPES, product_nest(2, 4), 4),
    "whole tiles": (MATMUL, {"A": (6, 4), "B": (4, 8)}, product_nest(2, 4), 4),
    "vectors": (MATMUL, SHAPES, product_nest(3, 2, vectors=2), 2),
    "blocks of rows": (MATMUL, SHAPES, product_nest(2, 4, outer=4), 4),
    "blocks of terms": (MATMUL, SHAPES, product_nest(2, 4, terms=4), 4),
    "both": (MATMUL, SHAPES, product_nest(2, 4, outer=6, terms=4), 4),
    "one tile is too large": (MATMUL, {"A": (1, 3), "B": (3, 2)}, product_nest(1, 4), 4),
    "lower result": (RESULTS, {"A": (8, 6), "B": (6, 8)}, product_nest(2, 4), 4),
    "lower result at odd sizes": (RESULTS, SHAPES, product_nest(2, 4), 4),
    "triangular": (LOWER, SHAPES, product_nest(2, 4), 4),
    "triangular in whole lanes": (LOWER, {"A": (7, 6), "B": (6, 12)}, product_nest(2, 4), 4),
    "triangular in blocks": (LOWER, SHAPES, product_nest(2, 4, outer=4, terms=2), 4),
    "band": (BAND, SHAPES, product_nest(3, 2), 2),
    "dimensions named as digits are": (
        "def f(float(M,K) A, float(K,N) B) -> (C) { C(c1,c3) +=! A(c1,c0) * B(c0,c3) }", SHAPES,
        Nest((Loop("c3", 4), Loop("c1", 2), Loop("c0", 1)), Leaf("c3", 1, (("c1", 2),))), 4,
    ),
    "one term each": (ONE, SHAPES, product_nest(2, 4), 4),
    "lanes bound": (ROWS, {"A": (9, 6)}, Nest((Loop("m", 4), Loop("k", 1)), Leaf("m", 1)), 4),
    "lanes of terms": (ROWS, {"A": (5, 11)}, Nest((Loop("m", 2), Loop("k", 4)), Leaf("k", 1, (("m", 2),))), 4),
    "window": (WINDOW, LINE, Nest((Loop("n", 4),), Leaf("n", 1, (), ("k",))), 4),
    "padded window": (PADDED, LINE, Nest((Loop("n", 4),), Leaf("n", 1, (), ("k",))), 4),
    "padded, of stride 3": (STRIDED, LINE, Nest((Loop("n", 4), Loop("k", 1)), Leaf("n", 1)), 4),
    "padded": (PADDED, LINE, Nest((Loop("n", 8), Loop("k", 1)), Leaf("n", 2)), 4),
}


def made(name: str) -> tuple[FlatStatement, Nest, int, Tiles]:
    text, shapes, nest, width = CASES[name]
    s = shift_dims(flat(text, shapes))
    assert not nest.problem(s, width)
    return s, nest, width, tile(s, nest, width)


def has_terms(s: FlatStatement, tiles: Tiles, at: tuple[int, ...]) -> bool:
    values = dict(zip(s.dims, at))
    return all(check.constant + sum(c * values[dim] for dim, c in check.coefficients.items()) >= 0 for check in tiles.result_checks)


@pytest.mark.parametrize("name", CASES)
def test_every_point_is_computed_once(name: str) -> None:
    s, nest, width, tiles = made(name)
    verify_tiles(s, tiles)
    found, domain, results = computed(s, nest, width, tiles), set(points(s.domain)), set(points(s.results))
    count, places = len(s.outputs), stored(s, nest, width, tiles)
    assert Counter(at for _, at in places.elements()) == Counter(results), "one tile stores a result"
    kept = Counter({(own, at): times for (own, at), times in found.items() if (own, at[:count]) in places and has_terms(s, tiles, at)})
    assert Counter(at for _, at in kept.elements()) == Counter(domain), "it computes each term once"
    if not tiles.overlaps:
        others = [at for _, at in found.keys() - kept.keys() if has_terms(s, tiles, at)]
        assert all(at[:count] not in results for at in others), "what is not in the domain is of no result"
    assert not set(points(tiles.full)) & set(points(tiles.partial))
    if tiles.partial.is_empty():
        assert not tiles.checks


def test_reads_beyond_a_tensor_are_not_computed() -> None:
    """Points beyond the results are computed where all reads stay in their tensors, and nowhere else."""
    text = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) where n in 0:4 }"
    s = flat(text, {"A": (4, 3), "B": (3, 11)})
    nest = Nest((Loop("n", 8), Loop("m", 2), Loop("k", 1)), Leaf("n", 2, (("m", 2),)))
    tiles = tile(s, nest, 4)
    assert tiles.partial.is_empty() and len(tiles.edges) == 1
    assert all(stays_inside(access, s, nest, 4) for access in s.reads.values())
    near = flat(text, {"A": (4, 3), "B": (3, 7)})
    assert not stays_inside(next(reversed(near.reads.values())), near, nest, 4)
    assert not tile(near, nest, 4).partial.is_empty()
    for one in (s, near):
        reads = list(one.reads.values())
        for _, at in computed(one, nest, 4, tile(one, nest, 4)):
            for access in reads:
                where = access.constant + sum(access.stride(dim) * value for dim, value in zip(one.dims, at))
                assert 0 <= where < access.elements


def test_backward_reads_stay_inside_or_not() -> None:
    s = flat("def f(float(N) X, float(K) w) -> (C) { C(n) +=! X(N-1-n) * w(k) }", {"X": (6,), "w": (3,)})
    read = next(iter(s.reads.values()))
    assert read.stride("n") == -1
    assert not stays_inside(read, s, Nest((Loop("n", 4), Loop("k", 1)), Leaf("n", 1)), 4)
    assert stays_inside(read, s, Nest((Loop("n", 2), Loop("k", 1)), Leaf("n", 1)), 2)


# ------------------------------------------------------------ the proof


def first(where: isl.Set) -> isl.Set:
    """A set with one of the tiles."""
    return where.lexmin()


def lighter(tiles: Tiles) -> isl.PwMultiAff:
    """The points with another weight of a digit."""
    points = tiles.points.as_multi_aff()
    wrong = points.get_aff(0).add_coefficient_val(DIM.in_, tiles.digits.index("c1"), -1)
    return isl.PwMultiAff.from_multi_aff(points.set_aff(0, wrong))


def shifted(tiles: Tiles, first: str = "", greatest: int = 0) -> Tiles:
    """Tiles that overlap elsewhere: what is stored begins at another place, or the last tile does."""
    overlaps = tuple(replace(o, first=f"{o.first}{first}") for o in tiles.overlaps)
    text = tiles.points.to_str()
    for o in tiles.overlaps if greatest else ():
        assert str(o.greatest) in text
        text = text.replace(str(o.greatest), str(int(o.greatest) + greatest))
    return replace(tiles, overlaps=overlaps, points=isl.PwMultiAff.read_from_str(tiles.box.get_ctx(), text))


Fault = Callable[[Tiles], Tiles]
FAULTS: dict[str, Fault] = {
    "a partial tile is full": lambda t: replace(t, full=t.full.union(first(t.partial)), partial=t.partial.subtract(first(t.partial))),
    "all partial tiles are full": lambda t: replace(t, full=t.full.union(t.partial), partial=t.partial.subtract(t.partial)),
    "partial tiles are lost": lambda t: replace(t, partial=t.partial.subtract(t.partial)),
    "a partial tile is lost": lambda t: replace(t, partial=t.partial.subtract(first(t.partial))),
    "a full tile is lost": lambda t: replace(t, full=t.full.subtract(first(t.full))),
    "a digit weighs less": lambda t: replace(t, points=lighter(t)),
    "no checks": lambda t: replace(t, checks=()),
    "no checks of loads": lambda t: replace(t, load_checks=dict.fromkeys(t.load_checks, ())),
    "checks of terms are lost": lambda t: replace(t, checks=tuple(check for check in t.checks if "k" not in check.coefficients)),
    "a check is too strict": lambda t: replace(t, checks=(replace(t.checks[0], constant=t.checks[0].constant - 1), *t.checks[1:])),
    "a least value is too great": lambda t: replace(
        t, checks=tuple(replace(check, least=None if check.least is None else check.least + 1) for check in t.checks)
    ),
    "another check": lambda t: replace(t, checks=(*t.checks, PointCheck({"m": -1}, 5, False))),
    "no edges": lambda t: replace(t, edges=()),
    "an edge too soon": lambda t: replace(t, edges=tuple(replace(edge, constant=edge.constant - 1) for edge in t.edges)),
    "an edge too late": lambda t: replace(t, edges=tuple(replace(edge, constant=edge.constant + 1) for edge in t.edges)),
    "a tile is full and partial": lambda t: replace(t, partial=t.partial.union(first(t.full))),
    "another one is both": lambda t: replace(t, full=t.full.union(first(t.partial))),
    "fewer values of a digit": lambda t: replace(t, box=t.box.upper_bound_val(DIM.set, 0, 0)),
    "a tile without its first points": lambda t: replace(t, box=t.box.lower_bound_val(DIM.set, len(t.digits), 1)),
    "points that are not there": lambda t: replace(t, box=t.box.drop_constraints_involving_dims(DIM.set, len(t.digits), 1)
                                                   .lower_bound_val(DIM.set, len(t.digits), 0).upper_bound_val(DIM.set, len(t.digits), 9)),
}  # fmt: skip


OVERLAP_FAULTS: dict[str, Fault] = {
    **{name: FAULTS[name] for name in ("a full tile is lost", "fewer values of a digit", "a tile without its first points")},
    "an edge": lambda t: replace(t, edges=(PointCheck({"m": 1}, -1, False),)),
    "no overlap": lambda t: replace(t, overlaps=()),
    "stored a place late": lambda t: shifted(t, " + 1"),
    "stored a place early": lambda t: shifted(t, " - 1"),
    "the last tile is a place late": lambda t: shifted(t, greatest=1),
}


@pytest.mark.parametrize("fault", OVERLAP_FAULTS)
@pytest.mark.parametrize("name", ["box", "vectors", "blocks of rows", "triangular"])
def test_faults_of_overlaps_are_found(name: str, fault: str) -> None:
    s, _, _, tiles = made(name)
    assert tiles.overlaps and s.is_box == tiles.partial.is_empty() == (not tiles.edges)
    wrong = OVERLAP_FAULTS[fault](tiles)
    with pytest.raises(VerifyError, match="tile"):
        verify_tiles(s, wrong)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["triangular in whole lanes", "band"])
def test_faults_are_found(name: str, fault: str) -> None:
    s, _, _, tiles = made(name)
    assert tiles.edges and tiles.checks and not tiles.full.is_empty() and not tiles.partial.is_empty()
    wrong = FAULTS[fault](tiles)
    with pytest.raises(VerifyError, match="tile"):
        verify_tiles(s, wrong)


# ------------------------------------------------------------ nests


@pytest.mark.parametrize(
    ("loops", "leaf", "problem"),
    [
        ([("n", 4), ("m", 2), ("k", 1), ("j", 1)], Leaf("n", 1, (("m", 2),)), "no loop can run over j"),
        ([("n", 4), ("m", 2), ("k", 1)], Leaf("n", 1, (("m", 2),), ("k",)), "no loop can run over k"),
        ([("m", 5), ("n", 4), ("m", 2), ("k", 1)], Leaf("n", 1, (("m", 2),)), "a block of 2 does not divide that of 5"),
        ([("n", 4), ("m", 2), ("k", 1)], Leaf("n", 1), "the blocks of m do not end in its tile of 1"),
        ([("n", 4), ("m", 2), ("k", 1)], Leaf("n", 2, (("m", 2),)), "the blocks of n do not end in its tile of 8"),
        ([("n", 4), ("m", 2)], Leaf("n", 1, (("m", 2),)), "the blocks of k do not end in its tile of 1"),
        ([("m", 4), ("n", 4), ("m", 0), ("k", 1)], Leaf("n", 1, (("m", 2),)), "a block of 0"),
        ([("n", 4), ("k", 1)], Leaf("n", 1, (), ("m",)), "only terms are written out"),
        ([("m", 1), ("n", 1)], Leaf("k", 1, (), ("k",)), "only terms are written out, and not those in lanes"),
        ([("n", 4), ("m", 1), ("k", 2)], Leaf("n", 1, (("k", 2),)), "rows are results"),
        ([("n", 4), ("m", 1), ("k", 1)], Leaf("n", 1, (("n", 4),)), "rows are results, and not those in lanes"),
        ([("m", 6), ("n", 4), ("m", 2), ("k", 1)], Leaf("n", 1, (("m", 2),)), ""),
        ([("n", 4), ("m", 2)], Leaf("n", 1, (("m", 2),), ("k",)), ""),
    ],
)
def test_problems_of_a_nest(loops: list[tuple[str, int]], leaf: Leaf, problem: str) -> None:
    found = Nest(tuple(Loop(dim, block) for dim, block in loops), leaf).problem(flat(MATMUL, SHAPES), 4)
    assert found.startswith(problem) and bool(found) == bool(problem)


# ------------------------------------------------------------ trees


def tiled_statement(name: str) -> TiledStatement:
    s, nest, width, tiles = made(name)
    return TiledStatement(s, nest, (), Const(0.0, dtype="float32"), tiles, width, 1.0)


@pytest.mark.parametrize("name", CASES)
def test_the_tree_has_every_tile_once(name: str) -> None:
    tiled = tiled_statement(name)
    tree = tile_tree(tiled, tiled.statement.domain.get_ctx(), parallel=False)
    found = {part.get_tuple_name(): part for part in (tree.get_domain().get_set_list().get_at(n) for n in range(tree.get_domain().n_set()))}
    assert found.keys() <= {tiled.tile_statement(kind) for kind in KINDS}
    for kind in ("full", "partial"):
        expected = getattr(tiled.tiles, kind)
        part = found.get(tiled.tile_statement(kind))
        assert (points(part) if part is not None else []) == points(expected)
    starts, stores = (points(found[tiled.tile_statement(kind)]) for kind in ("start", "store"))
    assert starts == stores and len(set(starts)) == len(starts)
    count = len(starts[0])
    assert {at[:count] for kind in ("full", "partial") for at in points(getattr(tiled.tiles, kind))} <= set(starts)


def test_the_order_of_a_tree() -> None:
    """A result starts before its terms and is stored after them, and threads have whole results."""
    text = str(tile_tree(tiled_statement("blocks of rows"), context(), parallel=True))
    assert text.index("parallel") < text.index("accumulators S")
    below = text[text.index("accumulators S") :]
    assert below.index("S_start[c0, c1, c2]") < below.index("S_full[") < below.index("S_store[c0, c1, c2]")
    assert "parallel" not in str(tile_tree(tiled_statement("one tile is too large"), context(), parallel=True))


def test_blocks_of_terms_inside_the_results() -> None:
    """Accumulators are started and stored for each block, in which threads have no part."""
    text = str(tile_tree(tiled_statement("triangular in blocks"), context(), parallel=True))
    below = text[text.index("accumulators S") :]
    assert text.index("parallel") < text.index("accumulators S") and below.index("[(c3)]") < below.index("sequence")
    below = below[below.index("sequence") :]
    assert below.index("S_start[c0, c1, c2, c3]") < below.index("S_full[") < below.index("S_store[c0, c1, c2, c3]")


@pytest.mark.parametrize(("before", "shared"), [("", "inside"), ("m", "inside"), ("mm", "outside")])
def test_blocks_of_terms_around_the_results(before: str, shared: str) -> None:
    """Threads share what stands around the blocks where that is enough, else the results of each block."""
    size = {"": 0, "m": 4, "mm": 2}[before]
    rows = [Loop("m", size)] if size else []
    nest = Nest((*rows, Loop("k", 2), Loop("n", 4), Loop("m", 2), Loop("k", 1)), Leaf("n", 1, (("m", 2),)))
    s = shift_dims(flat(MATMUL, {"A": (8, 6), "B": (6, 11)}))
    assert not nest.problem(s, 4) and nest.block_loop(s) == len(rows) and nest.accumulated(s) == len(rows) + 3
    tiles = tile(s, nest, 4)
    verify_tiles(s, tiles)
    tree = tile_tree(TiledStatement(s, nest, (), Const(0.0, dtype="float32"), tiles, 4, 0.0), context(), parallel=True)
    text = str(tree)
    block = text.index(f"[(c{len(rows)})]")
    assert (text.index("parallel") < text.index("tile_loops") < block) if shared == "outside" else (block < text.index("parallel"))
    assert block < text.index("accumulators S")


def test_conditions_on_results_alone_need_no_mask() -> None:
    """Sums of results without terms are computed beside others, and thrown away."""
    s, _, _, tiles = made("lower result")
    assert tiles.checks == () and [check.coefficients for check in tiles.result_checks] == [{"m": 1, "n": -1}]
    assert tiles.partial.is_empty() and not tiles.full.is_equal(tiles.box.project_out(DIM.set, 3, 2))
    for wrong in (
        (),
        tuple(replace(check, constant=check.constant + 1) for check in tiles.result_checks),
        tuple(replace(check, constant=check.constant - 1) for check in tiles.result_checks),
    ):
        with pytest.raises(VerifyError, match="tile"):
            verify_tiles(s, replace(tiles, result_checks=wrong))


def test_a_check_holds_where_no_partial_tile_is_outside() -> None:
    """Rows in pairs under a diagonal: that of a partial tile leaves out one term of its first row."""
    tiles = made("triangular in whole lanes")[-1]
    _, check = tiles.checks
    assert check.coefficients == {"m": 1, "k": -1} and check.least == -1
    assert not check.holds({"m": 0}) and check.holds({"m": 1}) and not check.holds({"m": 1}, {"m": 0})
    assert not replace(check, equality=True).holds({"m": 1}) and not replace(check, least=None).holds({"m": 1})


def test_what_people_see() -> None:
    tiled = tiled_statement("vectors")
    assert tiled.show() == "C: loops n m k, register tile 2 x 2 n x 3 m" and tiled.name == "S"
    assert tiled_statement("window").show() == "C: loops n, register tile 1 x 4 n, window k"
    assert not tiled_statement("triangular").statement.is_box and tiled_statement("whole tiles").statement.is_box


@pytest.mark.parametrize(("name", "varies"), [("triangular", 2), ("box", 0), ("padded", 0), ("lower result", 2)])
def test_iterations_that_differ(name: str, varies: int) -> None:
    """Those at the ends alone do not count: neighbours go to one thread, as in a box."""
    assert tiled_statement(name).varying(2) == varies


@pytest.mark.parametrize(("terms", "varies"), [(56, 0), (9, 1)])
def test_iterations_that_differ_little(terms: int, varies: int) -> None:
    """Of a sum over an image with a border, which shifts leave out: a line of many, or of few."""
    text = "def f(float(H,F) D, float(H) X) -> (K) { K(i,f) +=! h + i >= 1 && h + i <= H ? D(h,f) * X(h+i-1) : 0.0 where i in 0:3 }"
    s = flat(text, {"D": (terms, 16), "X": (terms,)})
    nest = Nest((Loop("i", 1), Loop("f", 4), Loop("h", 1)), Leaf("f", 1))
    assert TiledStatement(s, nest, (), s.body, tile(s, nest, 4), 4, 1.0).varying(1) == varies


@pytest.mark.parametrize(("rows", "varies"), [(48, 0), (47, 1), (33, 1)])
def test_a_last_block_with_fewer_tiles(rows: int, varies: int) -> None:
    """One thread would have less to do than the others."""
    nest = Nest((Loop("m", 16), Loop("n", 4), Loop("m", 2), Loop("k", 1)), Leaf("n", 1, (("m", 2),)))
    s = flat(MATMUL, {"A": (rows, 8), "B": (8, 16)})
    tiled = TiledStatement(s, nest, (), s.body, tile(s, nest, 4), 4, 1.0)
    assert tiled.varying(2) == varies


def test_what_is_read_where_results_are_stored_may_lie_behind_the_last_part() -> None:
    """Three parts of two matrices of five: the last one has a tile without terms, whose results are not stored."""
    text = "def f(float(B,M,K) X, float(B,K,N) Y, float(B) V) -> (C) { C(b,m,n) +=! X(b,m,k) * Y(b,k,n) }"
    s = flat(text, {"X": (5, 8, 4), "Y": (5, 4, 16), "V": (5,)})
    bias = FlatAccess("V", {"b": 1}, 0, 5)
    loops = [Loop("m", 8), Loop("n", 16), Loop("k", 1)]
    for parts, inside in (([Loop("b", 2), Loop("b", 1)], False), ([Loop("b", 5), Loop("b", 1)], True), ([Loop("b", 1)], True)):
        nest = Nest((*parts, *loops), Leaf("n", 1, (("m", 8),), ()))
        assert stays_inside(bias, s, nest, 16) and stays_inside(bias, s, nest, 16, stored=True) == inside
