"""Statements, plans and tiles of small programs, and what they compute by enumeration: for the tests of nests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

import islpy as isl

from support.mapping import AVX512, program
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.isl import context
from tcjit.mapping.machine import Machine, core_of
from tcjit.mapping.nest.affine_statement import affine_statement
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.restrict import restrict
from tcjit.mapping.nest.statement import AffineStatement, FlatAccess, FlatStatement, Place
from tcjit.mapping.nest.tile import PointCheck, Tiles
from tcjit.mapping.options import Options
from tcjit.mapping.passes.pad_operands import pad_operands
from tcjit.mapping.passes.tile_reductions import tile_reductions
from tcjit.mapping.passes.widen import widen

DIM = isl.dim_type
Shapes = Mapping[str, tuple[int, ...]]
Point = tuple[int, ...]

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
TURNED = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
PROGRAMS: dict[str, tuple[str, Shapes]] = {
    "matmul": (MATMUL, {"A": (100, 60), "B": (60, 90)}),
    "large": (MATMUL, {"A": (512, 2000), "B": (2000, 1000)}),
    "small": (MATMUL, {"A": (3, 5), "B": (5, 2)}),
    "turned": (TURNED, {"A": (100, 60), "B": (90, 60)}),
    "batched": ("def f(float(B,M,K) X, float(B,K,N) Y) -> (C) { C(b,m,n) +=! X(b,m,k) * Y(b,k,n) }", {"X": (4, 30, 20), "Y": (4, 20, 50)}),
    "vector": ("def f(float(M,K) A, float(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (100, 60), "x": (60,)}),
    "convolution": (
        "def f(float(N,C,H,W) X, float(F,C,I,J) G) -> (O) { O(n,f,h,w) +=! X(n,c,h+i,w+j) * G(f,c,i,j) }",
        {"X": (2, 8, 12, 20), "G": (16, 8, 3, 3)},
    ),
    "depthwise": (
        "def f(float(N,C,H,W) X, float(C,I,J) G) -> (O) { O(n,c,h,w) +=! X(n,c,h+i,w+j) * G(c,i,j) }",
        {"X": (2, 8, 12, 20), "G": (8, 3, 3)},
    ),
    "pooling": (
        "def f(float(N,C,H,W) X) -> (O) { O(n,c,h,w) max=! X(n,c,2*h+i,2*w+j) where i in 0:3, j in 0:3, h in 0:5, w in 0:9 }",
        {"X": (2, 8, 12, 20)},
    ),
    "min-plus": ("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) min=! A(m,k) + B(k,n) }", {"A": (100, 60), "B": (60, 90)}),
    "distance": ("def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! fabs(A(m,k) - B(n,k)) }", {"A": (100, 60), "B": (90, 60)}),
    "triangular": (
        "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }",
        {"A": (60, 60), "B": (60, 90)},
    ),
}  # fmt: skip

CORE = core_of(AVX512, 16, 4)


def assignments(text: str, shapes: Shapes, pad: bool = False, layouts: Mapping[str, str] | None = None) -> Assignments:
    """A program as nests find it, but for padding."""
    found = widen(extract(program(text, shapes), layouts))
    return pad_operands(found, AVX512) if pad else found


def affine_of(text: str, shapes: Shapes, number: int = 0) -> AffineStatement:
    """An assignment of a program as a statement over its box."""
    found = assignments(text, shapes)
    tensors = {storage.name: storage for storage in found.tensors}
    return affine_statement("S", found.assignments[number], tensors, found.program, context())


def restricted(text: str, shapes: Shapes) -> AffineStatement:
    """The first assignment without conditions on its terms."""
    return restrict(affine_of(text, shapes), "float32", sizes(text, shapes))


def sizes(text: str, shapes: Shapes) -> dict[str, int]:
    return assignments(text, shapes).values


def flat(text: str, shapes: Shapes) -> FlatStatement:
    """The first assignment over its exact domain with linear accesses."""
    return restricted(text, shapes).flat()


def tiled(text: str, shapes: Shapes, options: Options | None = None, machine: Machine = AVX512) -> Assignments:
    """A program with the nests of its reductions, all proved."""
    return tile_reductions(assignments(text, shapes, pad=True), options or Options(), machine, True)


def points(where: isl.Set) -> list[Point]:
    """Every point of a bounded set, in order."""
    found: list[Point] = []
    count = where.dim(DIM.set)
    where.foreach_point(lambda at: found.append(tuple(at.get_coordinate_val(DIM.set, d).to_python() for d in range(count))))
    return sorted(found)


def place(access: FlatAccess | Place, dims: tuple[str, ...], at: Point) -> int:
    """The element of memory that an access names at a point."""
    if isinstance(access, FlatAccess):
        return access.constant + sum(access.stride(dim) * value for dim, value in zip(dims, at))
    given = isl.Point.zero(access.fixed.domain().get_space())
    for position, value in enumerate(at):
        given = given.set_coordinate_val(DIM.set, position, isl.Val(value, given.get_ctx()))
    value: int = access.fixed.eval(given).to_python()
    return value


def terms_of(s: FlatStatement | AffineStatement) -> Counter[Point]:
    """What is computed: for every point of the domain the element written and those read, in the order of ``reads``."""
    return Counter(tuple(place(access, s.dims, at) for access in (s.write, *s.reads.values())) for at in points(s.domain))


def results_of(s: FlatStatement) -> Counter[int]:
    """The elements that are started and stored."""
    return Counter(place(s.write, s.outputs, at) for at in points(s.results))


def holds(check: PointCheck, dims: tuple[str, ...], at: Point) -> bool:
    value = check.constant + sum(check.coefficients.get(dim, 0) * x for dim, x in zip(dims, at))
    return value == 0 if check.equality else value >= 0


def _first(s: FlatStatement, nest: Nest, digits: Point) -> dict[str, int]:
    """The place that digits give, in each dimension."""
    first = dict.fromkeys(s.dims, 0)
    for loop, digit in zip(nest.loops, digits):
        first[loop.dim] += loop.block * digit
    return first


def _inside(s: FlatStatement, nest: Nest, width: int, tiles: Tiles, digits: Point) -> list[Point]:
    """The points of a tile, from the nest alone."""
    origin = _first(s, nest, digits)
    for overlap in tiles.overlaps:
        origin[overlap.dim] = min(origin[overlap.dim], s.extent(overlap.dim) - nest.leaf.tile(overlap.dim, width))
    sizes = [s.extent(dim) if dim in nest.leaf.window else nest.leaf.tile(dim, width) for dim in s.dims]
    assert set(tiles.inside) == {dim for dim in s.dims if dim in nest.leaf.window or nest.leaf.tile(dim, width) > 1}
    return [tuple(origin[dim] + r for dim, r in zip(s.dims, at)) for at in product(*map(range, sizes))]


def computed(s: FlatStatement, nest: Nest, width: int, tiles: Tiles) -> Counter[tuple[Point, Point]]:
    """The points that full tiles, and partial ones under their checks, update, each behind the digits of the tile's results."""
    found: Counter[tuple[Point, Point]] = Counter()
    own = len(tiles.own)
    for digits in points(tiles.full):
        found.update((digits[:own], at) for at in _inside(s, nest, width, tiles, digits))
    for digits in points(tiles.partial):
        inside = _inside(s, nest, width, tiles, digits)
        found.update((digits[:own], at) for at in inside if all(holds(check, s.dims, at) for check in tiles.checks))
    return found


def stored(s: FlatStatement, nest: Nest, width: int, tiles: Tiles) -> Counter[tuple[Point, Point]]:
    """The results that tiles store, where the edges hold, each behind the digits of its tile."""
    found: Counter[tuple[Point, Point]] = Counter()
    count = len(s.outputs)
    ranges = [range(number if loop.dim in s.outputs else 1) for loop, number in zip(nest.loops, tiles.counts)]
    for digits in product(*ranges):
        first = _first(s, nest, digits)
        if any(first[overlap.dim] >= s.extent(overlap.dim) for overlap in tiles.overlaps):
            continue  # no such tile
        whole = dict.fromkeys(at[:count] for at in _inside(s, nest, width, tiles, digits))
        whole = {at: None for at in whole if all(at[s.outputs.index(o.dim)] >= first[o.dim] for o in tiles.overlaps)}
        own = digits[: len(tiles.own)]
        found.update((own, at) for at in whole if all(holds(check, s.outputs, at) for check in tiles.edges))
    return found


def statement(name: str) -> FlatStatement:
    """That of one of the programs, with dimensions that start at 0."""
    return shift_dims(flat(*PROGRAMS[name]))
