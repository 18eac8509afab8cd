"""Tiles of statements with dynamic sizes: for each size what the tiles of a fixed one are, and what the proof refuses.

Modules: mapping.nest.affine_statement
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import islpy as isl
import pytest
from support.mapping import read
from support.nests import DIM, Point, computed, points, stored

from tcjit.errors import VerifyError
from tcjit.grammar.dynamic import PREFIX, generalise
from tcjit.mapping.extract import extract
from tcjit.mapping.isl import context
from tcjit.mapping.nest.affine_statement import affine_statement
from tcjit.mapping.nest.merge_dims import merge, mergeable, shift_dims
from tcjit.mapping.nest.nest import Leaf, Loop, Nest
from tcjit.mapping.nest.restrict import restrict
from tcjit.mapping.nest.statement import FlatStatement, parameter_names
from tcjit.mapping.nest.tile import PointCheck, Tiles, tile, verify_tiles
from tcjit.mapping.passes.widen import widen

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
LOWER = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }"
LATER = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) = 0.0 where m in 0:M, n in 0:N  C(m,n) += A(m,k) * B(k,n) where n in 2:N }"
SIZES = {"M": 7, "K": 6, "N": 11}
Limits = Mapping[str, tuple[int, int]]


def product_nest(rows: int, lanes: int, *, outer: int = 0, terms: int = 0) -> Nest:
    """Rows m, lanes n; perhaps a loop over blocks of rows around both, and over blocks of terms."""
    blocks, inner = [Loop("m", outer)] if outer else [], [Loop("k", terms)] if terms else []
    return Nest((*blocks, Loop("n", lanes), Loop("m", rows), *inner, Loop("k", 1)), Leaf("n", 1, (("m", rows),)))


CASES: dict[str, tuple[str, Limits, Nest, bool]] = {
    "rows": (MATMUL, {"M": (1, 7)}, product_nest(2, 4), False),
    "rows that overlap": (MATMUL, {"M": (3, 7)}, product_nest(3, 4), True),
    "lanes": (MATMUL, {"N": (1, 9)}, product_nest(2, 4), False),
    "lanes that overlap": (MATMUL, {"N": (4, 9)}, product_nest(2, 4), True),
    "terms": (MATMUL, {"K": (1, 6)}, product_nest(2, 4), False),
    "blocks of terms": (MATMUL, {"K": (1, 7)}, product_nest(2, 4, terms=3), False),
    "blocks of rows": (MATMUL, {"M": (1, 9)}, product_nest(2, 4, outer=4), False),
    "all": (MATMUL, {"M": (1, 5), "N": (1, 6), "K": (1, 4)}, product_nest(2, 4, outer=4, terms=2), False),
    "triangular": (LOWER, {"M": (1, 7)}, product_nest(2, 4), False),
    "triangular terms": (LOWER, {"M": (1, 6), "K": (1, 6)}, product_nest(2, 4), False),
    "a later start": (LATER, {"N": (3, 9)}, product_nest(2, 4), False),
}


def dynamic_statement(text: str, limits: Limits) -> FlatStatement:
    found = widen(extract(generalise(read(text)[-1], SIZES, {}, limits), None))
    tensors = {storage.name: storage for storage in found.tensors}
    whole = affine_statement("S", found.assignments[-1], tensors, found.program, context())
    return shift_dims(restrict(whole, "float32", found.values).flat())


def made(name: str) -> tuple[FlatStatement, Nest, Tiles]:
    text, limits, nest, overlaps = CASES[name]
    s = dynamic_statement(text, limits)
    tiles = tile(s, nest, 4)
    assert bool(tiles.overlaps) >= overlaps
    return s, nest, tiles


def at_sizes(where: isl.Set, sizes: Mapping[str, int]) -> isl.Set:
    for number, name in enumerate(parameter_names(where)):
        where = where.fix_val(DIM.param, number, isl.Val(sizes[name], where.get_ctx()))
    return where.project_out(DIM.param, 0, where.dim(DIM.param))


def fixed(s: FlatStatement, tiles: Tiles, sizes: Mapping[str, int]) -> tuple[FlatStatement, Tiles]:
    """The statement and its tiles for the sizes of a call."""

    def check(one: PointCheck) -> PointCheck:
        return replace(one, constant=one.constant + sum(c * sizes[name] for name, c in one.sizes.items()), sizes={})

    def number(text: str) -> int:
        return int(eval(text.replace("/", "//"), {}, dict(sizes)))  # a sum of sizes

    here = replace(s, domain=at_sizes(s.domain, sizes), results=at_sizes(s.results, sizes), dynamic={})
    checks, edges = (tuple(map(check, some)) for some in (tiles.checks, tiles.edges))
    overlaps = tuple(replace(o, greatest=str(number(o.greatest))) for o in tiles.overlaps)
    counts = tuple(number(last) + 1 for last in tiles.lasts)
    box, full, partial = (at_sizes(some, sizes) for some in (tiles.box, tiles.full, tiles.partial))
    return here, replace(tiles, box=box, full=full, partial=partial, checks=checks, edges=edges, overlaps=overlaps, counts=counts)


@pytest.mark.parametrize("name", CASES)
def test_every_point_is_computed_once_for_every_size(name: str) -> None:
    text, limits, nest, _ = CASES[name]
    s, nest, tiles = made(name)
    verify_tiles(s, tiles)
    names = [f"{PREFIX}{size}" for size in limits]
    for values in product(*(range(least, greatest + 1) for least, greatest in limits.values())):
        here, own = fixed(s, tiles, dict(zip(names, values)))
        found, places = computed(here, nest, 4, own), stored(here, nest, 4, own)
        count = len(s.outputs)
        assert Counter(at for _, at in places.elements()) == Counter(points(here.results)), "one tile stores a result"
        kept: Counter[Point] = Counter(at for own_digits, at in found.elements() if (own_digits, at[:count]) in places)
        assert kept == Counter(points(here.domain)), "it computes each term once"


def test_greatest_sizes_are_those_of_plans() -> None:
    s = dynamic_statement(MATMUL, {"M": (1, 7), "K": (1, 6), "N": (3, 11)})
    assert s.extents == {"m": 7, "n": 11, "k": 6} and s.is_box and s.free_dims == {"m", "n"}
    assert (s.least_extent("n"), s.extent_text("n")) == (3, f"{PREFIX}N")
    (a, b), estimated = s.reads.values(), s.estimated()
    assert [axis.axis for axis in a.runtime] == [axis.axis for axis in b.runtime] == [0]
    assert (a.elements, a.dims, a.stride("m")) == (0, {"m", "k"}, 0)
    assert [dict(flat.form) for flat in estimated.reads.values()] == [{"m": 6, "k": 1}, {"k": 11, "n": 1}]
    assert not parameter_names(estimated.domain) and estimated.is_box and s.writes_once


def test_dimensions_merge_where_the_inner_one_is_fixed() -> None:
    text = "def f(float(B,M,K) A, float(K) w) -> (C) { C(b,m) +=! A(b,m,k) * w(k) }"
    found = {}
    for size in ("B", "M"):
        whole = widen(extract(generalise(read(text)[-1], {"B": 3, "M": 4, "K": 2}, {}, {size: (1, 5)}), None))
        tensors = {storage.name: storage for storage in whole.tensors}
        s = affine_statement("S", whole.assignments[0], tensors, whole.program, context()).flat()
        found[size] = mergeable(s, "b", "m"), s
    assert [merges for merges, _ in found.values()] == [True, False]
    one = merge(found["B"][1], "b", "m")
    assert one.dims == ("m", "k") and one.extent("m") == 20 and one.is_box
    assert one.dynamic == {"m": f"4 * ({PREFIX}B)"}


def with_checks(tiles: Tiles, change: Callable[[PointCheck], PointCheck]) -> Tiles:
    loads = {access: tuple(map(change, checks)) for access, checks in tiles.load_checks.items()}
    return replace(tiles, checks=tuple(map(change, tiles.checks)), load_checks=loads)


FAULTS: dict[str, Callable[[Tiles], Tiles]] = {
    "all partial tiles are full": lambda t: replace(t, full=t.full.union(t.partial), partial=t.partial.subtract(t.partial)),
    "partial tiles are lost": lambda t: replace(t, partial=t.partial.subtract(t.partial)),
    "no edges": lambda t: replace(t, edges=()),
    "a check for another size": lambda t: with_checks(t, lambda c: replace(c, constant=c.constant + 1)),
    "an edge for another size": lambda t: replace(t, edges=tuple(replace(e, constant=e.constant - 1) for e in t.edges)),
    "checks without sizes": lambda t: with_checks(t, lambda c: replace(c, sizes={}, constant=6)),
    "tiles of the greatest size alone": lambda t: replace(t, box=t.box.intersect_params(t.box.lexmax().params()), full=t.full.lexmax()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["rows", "lanes", "all", "triangular"])
def test_faults_are_found(name: str, fault: str) -> None:
    s, _, tiles = made(name)
    assert tiles.edges and tiles.checks and not tiles.full.is_empty() and not tiles.partial.is_empty()
    with pytest.raises(VerifyError, match="tile"):
        verify_tiles(s, FAULTS[fault](tiles))
