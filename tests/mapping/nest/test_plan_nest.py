"""Plans: nests that fit their statements and the registers, blocks of terms, and copies.

Modules: mapping.nest.stage_operands
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512
from support.nests import CORE, MATMUL, PROGRAMS, TURNED, Shapes, assignments, flat, restricted, statement, tiled

from tcjit.errors import MappingError
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.machine import BASELINE, Machine, core_of
from tcjit.mapping.nest import plan_nest as plan_nest_module
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.nest import Leaf, Loop, Prefetch
from tcjit.mapping.nest.plan_nest import Plan, plan_nest, plan_nests
from tcjit.mapping.nest.split_residues import split_residues
from tcjit.mapping.nest.stage_operands import stage_operands
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.tile import tile, verify_tiles


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("machine", [AVX512, BASELINE, Machine(16, 16)], ids=["512", "256", "128"])
def test_plans_fit(name: str, machine: Machine) -> None:
    s = statement(name)
    lanes = machine.lanes(4)
    core = core_of(machine, lanes, 4)
    plan = plan_nest(s, core)
    nest, leaf = plan.nest, plan.nest.leaf
    assert nest.problem(s, lanes) == ""
    rows = 1
    for dim, count in leaf.rows:
        assert 1 <= count <= s.extent(dim)
        rows *= count
    moving = [operand for operand in plan.operands if leaf.lane in operand.dims]
    assert leaf.vectors * rows + bool(moving) + 1 <= machine.vector_registers, "accumulators, a loaded vector, one value for all lanes"
    assert leaf.vectors == 1 or (leaf.vectors - 1) * lanes < s.extent(leaf.lane), "no vector without a lane"
    assert plan.estimate.cycles > 0 and plan.estimate.staged <= set(range(len(plan.operands)))
    positions = [loop.dim in s.terms for loop in nest.loops]
    assert positions == sorted(positions), "terms are inside"
    verify_tiles(s, tile(s, nest, lanes))
    again = plan_nest(s, core, leaf)
    assert (again.nest.leaf.lane, again.nest.leaf.vectors, again.nest.leaf.rows) == (leaf.lane, leaf.vectors, leaf.rows)


def test_a_short_term_is_a_window() -> None:
    assert plan_nest(statement("pooling"), CORE).nest.leaf.window == ("i", "j")
    assert not plan_nest(statement("matmul"), CORE).nest.leaf.window


def test_loops_over_a_part_that_the_cache_holds() -> None:
    s = statement("large")
    outer = [loop for loop in plan_nest(s, replace(CORE, l2=1 << 20)).nest.loops if loop.dim not in s.terms]
    assert len(outer) > len({loop.dim for loop in outer})
    few = [loop for loop in plan_nest(s, replace(CORE, l2=1 << 30)).nest.loops if loop.dim not in s.terms]
    assert len(few) == len({loop.dim for loop in few})


def test_classes_that_differ_in_constants_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the plan that it would have alone."""
    text = """def f(float(C,H) X, float(C,F,K) G) -> (Y) {
        Y(f,h) +=! (h >= k && h - k < 2 * H && (h - k) % 2 == 0 ? X(c, (h - k) / 2) * G(c,f,k) : 0.0) where h in 0:2*H
    }"""
    parts = [shift_dims(part.flat()) for part, _ in split_residues(restricted(text, {"X": (6, 40), "G": (6, 30, 4)}))]
    assert len(parts) == 2 and parts[0].reads != parts[1].reads
    alone = [plan_nest(s, CORE) for s in parts]
    planned: list[FlatStatement] = []
    monkeypatch.setattr(plan_nest_module, "plan_nest", lambda s, *rest, **more: planned.append(s) or plan_nest(s, *rest, **more))
    assert plan_nests(parts, CORE, {}) == alone and planned == parts[:1]
    assert plan_nests([*parts, statement("matmul")], CORE, {})[2] == plan_nest(statement("matmul"), CORE)


@pytest.mark.parametrize("name", ["matmul", "turned", "convolution", "pooling", "vector", "triangular"])
def test_tiles_take_no_less_than_what_bounds_the_search(name: str) -> None:
    """Best-first search finds the best tile only if no estimate is below the bound that its tile was queued with."""
    tiles = list(plan_nest_module._tiles(statement(name), CORE, None, (), frozenset(), cold=False))
    estimates = [(least, cost) for costs, shape, least in tiles for cost in plan_nest_module._estimates(costs, shape)]
    assert len(estimates) > 20 and all(least <= 1.0001 * cost.cycles for least, cost in estimates)
    ranks = [rank for rank, *_ in plan_nest_module._choices(statement(name), CORE, None, ())]
    assert len(ranks) == len(estimates) and ranks == sorted(ranks)


def test_names_of_tensors_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    extents = {"A": (40, 50), "B": (50, 60)}
    renamed = MATMUL.replace("A(", "D(").replace("B(", "E(").replace(") A", ") D").replace(") B", ") E")
    texts = [MATMUL, renamed, MATMUL.replace("B(k,n)", "A(k,n)")]
    shapes = [extents, {"D": (40, 50), "E": (50, 60)}, {"A": (50, 50), "B": (50, 60)}]
    parts = [flat(text, sizes) for text, sizes in zip(texts, shapes, strict=True)]
    alone = [plan_nest(s, CORE) for s in parts]
    planned: list[FlatStatement] = []
    monkeypatch.setattr(plan_nest_module, "plan_nest", lambda s, *rest, **more: planned.append(s) or plan_nest(s, *rest, **more))
    assert plan_nests(parts, CORE, {}) == alone and planned == [parts[0], parts[2]]
    assert [operand.flats[0].tensor for operand in alone[1].operands] == ["D", "E"]


def test_names_matter_to_what_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"def f(float(M,K) A, float(M,K) B) -> (C) {{ C(m) +=! {one}(m,k) * {other}(m,k) }}" for one, other in ("AB", "BA")]
    parts = [flat(text, {"A": (40, 50), "B": (40, 50)}) for text in texts]
    planned: list[FlatStatement] = []
    monkeypatch.setattr(plan_nest_module, "plan_nest", lambda s, *rest, **more: planned.append(s) or plan_nest(s, *rest, **more))
    kept = frozenset(access for access in parts[0].reads if access.tensor == "A")
    plan_nests(parts, CORE, {}, kept=kept)
    assert planned == parts


def test_no_plan() -> None:
    s = statement("matmul")
    with pytest.raises(MappingError, match="S has no register tile"):
        plan_nest(s, replace(CORE, registers=2))


def test_another_tile_where_the_wanted_one_is_gone() -> None:
    """Its rows may have been merged when operands were copied."""
    s = statement("matmul")
    assert plan_nest(s, CORE, Leaf("n", 5, (("m", 9),))) == plan_nest(s, CORE)


@pytest.mark.parametrize(
    ("sizes", "first", "twice"),
    [
        ((64, 900, 64), "m n", False),  # few terms
        ((64, 1024, 64), "m n", True),  # blocks keep digits, inside the results
        ((200, 20000, 200), "k", True),  # panels would leave the second cache
        ((4, 5000, 1500), "k", True),  # rows are streamed
        ((4, 5000, 3000), "n k", True),  # in parts for threads
    ],
)
def test_blocks_of_terms(sizes: tuple[int, int, int], first: str, twice: bool) -> None:
    m, k, n = sizes
    dims = [loop.dim for loop in plan_nest(flat(MATMUL, {"A": (m, k), "B": (k, n)}), CORE).nest.loops]
    assert set(dims[: len(first.split())]) == set(first.split()) and dims.count("k") == 1 + twice


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ((90, 60000), "k"),  # the second cache holds 2184 terms of all rows, which 18 tiles read again
        ((90, 2000), "n"),  # it holds all of them
        ((4, 200000), "n"),  # one tile
        ((2000, 20000), "n"),  # blocks would be so short that sums over lanes take longer
    ],
)
def test_blocks_of_rows_whose_lanes_are_terms(sizes: tuple[int, int], first: str) -> None:
    """Tiles of results read the same rows again and again: blocks of their terms stay in the second cache meanwhile."""
    s = flat("def f(float(M,K) A) -> (C) { C(m,n) +=! m <= n ? A(m,k) * A(n,k) : 0.0 }", {"A": sizes})
    loops = plan_nest(s, CORE, Leaf("k", 1, (("m", 4), ("n", 4)))).nest.loops
    assert loops[0].dim == first


SPREAD = "def f(float(F,B,E,A) X, float(E,C,F,D) Y) -> (O) { O(d,c,b,a) +=! X(f,b,e,a) * Y(e,c,f,d) }"


@pytest.mark.parametrize(
    ("text", "extents", "last", "first"),
    [
        (SPREAD, (72, 72, 72, 72), 1 << 24, "f"),  # 432 tiles of rows, each 250 KB, for each of 360 tiles of lanes
        (SPREAD, (72, 72, 72, 72), 1 << 30, ""),  # the last cache holds all of them
        (MATMUL, (3000, 6000, 16), 1 << 24, ""),  # one tile of lanes: nothing is read twice
        ("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! k <= m ? A(m,k) * B(k,n) : 0.0 }", (6000, 6000, 300), 1 << 24, ""),
    ],
)
def test_blocks_stand_around_results_where_panels_come_from_memory(text: str, extents: tuple[int, ...], last: int, first: str) -> None:
    if text is SPREAD:
        shapes = {"X": extents, "Y": extents}
    else:
        m, k, n = extents
        shapes = {"A": (m, k), "B": (k, n)}
    s = flat(text, shapes)
    loops = plan_nest(s, replace(CORE, l2=1 << 20, last=last)).nest.loops
    assert (loops[0].dim == first) if first else loops[0].dim not in s.terms


@pytest.mark.parametrize(
    ("a", "b", "sizes", "blocks"),
    [
        ("A(k,m)", "B(k,n)", (256, 256, 4000), True),  # a gradient of weights: each term of both operands lies in a line of its own
        ("A(k,m)", "B(k,n)", (256, 256, 500), False),  # the second cache holds them
        ("A(m,k)", "B(k,n)", (59, 768, 2672), True),  # rows along the terms, which it holds
        ("A(m,k)", "B(k,n)", (953, 258, 2444), False),  # rows that come from beyond it are read from end to end
        ("A(k,m)", "B(k,n)", (1024, 1024, 1024), False),  # copies, whose terms follow one another
    ],
)
def test_blocks_of_terms_whose_lines_are_apart(a: str, b: str, sizes: tuple[int, int, int], blocks: bool) -> None:
    """All tiles sum the terms of a block before those of the next: what they read lies in few lines and pages meanwhile."""
    extent = dict(zip("mnk", sizes, strict=True))
    shapes = {access[0]: tuple(extent[dim] for dim in access[2:5:2]) for access in (a, b)}
    text = f"def f(float({a[2].upper()},{a[4].upper()}) A, float({b[2].upper()},{b[4].upper()}) B) -> (C) {{ C(m,n) +=! {a} * {b} }}"
    nest = plan_nest(flat(text, shapes), CORE).nest
    assert bool(nest.leaf.block) == blocks
    assert not blocks or nest.loops[0].dim == "k" and nest.loops[0].block <= nest.leaf.block <= 256


def test_rows_from_memory_are_read_one_after_the_other() -> None:
    """Several at once share the end of a sum, which pays where a cache has them; in turns they come more slowly from memory."""
    rows = "def f(float(M,K) A) -> (S) { S(m) +=! A(m,k) }"
    near, far = (plan_nest(flat(rows, {"A": (m, 300)}), CORE).nest.leaf for m in (100, 20_000))
    assert near.rows and near.rows[0][1] > 1 and not far.rows and far.vectors > 1


def test_long_rows_from_memory_are_read_side_by_side() -> None:
    rows = "def f(float(M,K) A) -> (S) { S(m) +=! A(m,k) }"
    long, few = (plan_nest(flat(rows, {"A": (m, k)}), CORE).nest.leaf for m, k in ((1000, 20_000), (10, 2_000_000)))
    assert long.rows and long.rows[0][1] >= 4 and not few.rows


def test_threads_share_equal_parts_of_streamed_rows() -> None:
    nest = plan_nest(flat(MATMUL, {"A": (1, 3000), "B": (3000, 5000)}), CORE).nest
    assert nest.loops[0] == Loop("n", 1280) and nest.loops[1].dim == "k"


def test_what_the_last_cache_holds_is_not_streamed() -> None:
    """Its rows come in parts, which the processor does not foresee: each step fetches what the next tile reads."""
    s = flat(MATMUL, {"A": (8, 200), "B": (200, 3000)})
    far, near = (plan_nest(s, replace(CORE, last=last)).nest for last in (1 << 21, 1 << 26))
    assert [loop.dim for loop in far.loops][:2] != [loop.dim for loop in near.loops][:2]
    assert near.loops[0].dim == "n" and "k" not in {loop.dim for loop in near.loops[:-1]}
    assert near.prefetch == far.prefetch == (Prefetch(1, "n"),)
    assert plan_nest(flat(MATMUL, {"A": (20, 60), "B": (60, 300)}), CORE).nest.prefetch == (), "the second cache holds it"


@pytest.mark.parametrize("read", ["X(c,k,n)", "X(C-1-c,k,n)", "X(c,K-1-k,n)"])
def test_near_terms_are_inside(read: str) -> None:
    text = f"def f(float(C,K,N) X, float(K,C) w) -> (O) {{ O(n) +=! w(k,c) * {read} }}"
    nest = plan_nest(shift_dims(flat(text, {"X": (30, 40, 64), "w": (40, 30)})), CORE).nest
    assert [loop.dim for loop in nest.loops][-2:] == ["c", "k"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(float(K,N) X) -> (Y) { Y(n) min=! X(k,n) }",
        "def f(bfloat16(K,N) X) -> (Y) { Y(n) +=! X(k,n) }",  # the results of a block wait in a temporary
    ],
)
def test_rows_that_are_read_once_are_streamed(text: str) -> None:
    """Whatever the operator is: threads have whole rows each, of which a tile takes equal stretches that are as long as registers hold."""
    (nest,) = (one for a in tiled(text, {"X": (100_000, 300)}).assignments for one in a.tiled)
    assert [loop.dim for loop in nest.nest.loops][:3] == ["chunk", "n", "k"] and nest.nest.leaf.vectors == 10


def test_few_long_rows_are_streamed_in_blocks() -> None:
    """All columns of a few rows before the next rows."""
    (nest,) = (one for a in tiled("def f(float(K,N) X) -> (Y) { Y(n) +=! X(k,n) }", {"X": (500, 9000)}).assignments for one in a.tiled)
    assert [loop.dim for loop in nest.nest.loops] == ["n", "k", "n", "k"]


@pytest.mark.parametrize(
    ("text", "shape", "chunks"),
    [
        ("def f(float(K,N) X) -> (Y) { Y(n) max=! X(k,n) }", (2000, 100), 0),  # the second cache holds it
        ("def f(float(K,N) X) -> (Y) { Y(n) max=! X(k,n) }", (4000, 300), 32),
        ("def f(float(B,K,N) X) -> (Y) { Y(b,n) +=! X(b,k,n) }", (4, 1000, 300), 4),  # of each of the matrices that threads share
        ("def f(float(B,K,N) X) -> (Y) { Y(b,n) +=! X(b,k,n) }", (40, 1000, 30), 0),
        ("def f(float(A,B,N) X) -> (Y) { Y(n) +=! X(a,b,n) }", (8, 160, 2600), 20),  # each with 8 stretches of 8 rows
        ("def f(float(A,B,N) X) -> (Y) { Y(n) +=! X(a,b,n) }", (200, 160, 20), 40),  # of five matrices each
        ("def f(float(A,B,N) X) -> (Y) { Y(n) +=! X(a,b,n) }", (20, 640, 40), 0),  # stretches would be short
        ("def f(float(K,N) X) -> (Y) { Y(k) +=! X(k,n) }", (4000, 300), 0),
        ("def f(float(B,K,N) X) -> (Y) { Y(k) +=! X(b,k,n) }", (40, 100, 300), 0),  # neighbours are terms
        ("def f(float(K,N) X) -> (Y) { Y(n) +=! X(k+j,n) where k in 0:K-2, j in 0:3 }", (4000, 300), 0),  # rows are read again
    ],
)
def test_chunks_of_rows(text: str, shape: tuple[int, ...], chunks: int) -> None:
    parts = [one.shape[0] for a, one in tiled(text, {"X": shape}).temporaries if one.name == "Y_part"]
    assert parts == [chunks] * (chunks > 0)


@pytest.mark.parametrize(("terms", "chunks"), [(65536, 32), (60000, 30), (60001, 32)])
def test_chunks_of_whole_lines(terms: int, chunks: int) -> None:
    """Equal chunks whose rows begin at a line, where there are such near the number that is asked for."""
    found = tiled(TURNED, {"A": (64, terms), "B": (64, terms)}).temporaries
    assert [one.shape[0] for _, one in found if one.name in ("C_part", "C_part_transposed")][:1] == [chunks]


def test_blocks_leave_minima_and_integers_alone() -> None:
    least = flat("def f(float(M,K) A) -> (O) { O(m) min=! A(m,k) }", {"A": (64, 4000)})
    assert [loop.dim for loop in plan_nest(least, CORE).nest.loops].count("k") == 1
    whole = flat("def f(int32(M,K) A, int32(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (64, 1024), "B": (1024, 64)})
    assert [loop.dim for loop in plan_nest(whole, CORE).nest.loops].count("k") == 1


# ------------------------------------------------------------ copies


def staged(text: str, shapes: Shapes) -> tuple[list[Assignment], Assignment, Plan]:
    before = assignments(text, shapes)
    (a,) = before.assignments
    s = shift_dims(flat(text, shapes))
    plan = plan_nest(s, CORE)
    staging = stage_operands(a, plan, s.merged, CORE, Temporaries(before))
    copies, after = list(staging.copies), staging.rewritten(a)
    return copies, after, plan


def test_panels() -> None:
    """An operand whose lanes are strided is copied into panels: blocks outside, terms, and points of a block inside."""
    copies, after, plan = staged(TURNED, {"A": (100, 60), "B": (90, 60)})
    copy, last, padding = copies
    (number,) = plan.estimate.staged
    operand = plan.operands[number].flats[0].tensor
    assert copy.tensor == f"{operand}_staged" and copy.fuse_outer_only and copy.operator == "="
    names = [name for name, _, _ in copy.bounds]
    assert len(names) == 3 and names[1] == "k" and names[0] == f"{names[2]}_block"
    tile_size = plan.nest.leaf.tile(names[2], 16)
    extent = dict(zip("mn", (100, 90), strict=True))[names[2]]
    assert not copy.constraints and not last.constraints and extent % tile_size
    whole, rest = divmod(extent, tile_size)
    assert copy.bounds == ((names[0], 0, whole), ("k", 0, 60), (names[2], 0, tile_size))
    assert last.bounds == ((names[0], whole, whole + 1), ("k", 0, 60), (names[2], 0, rest))
    assert padding.bounds == ((names[0], whole, whole + 1), ("k", 0, 60), (names[2], rest, tile_size)) and show(padding.value) == "0.0"
    assert f"{operand}_staged({', '.join(names)})" in show(after.value) and f"{operand}(" not in show(after.value)


def copies_of(text: str, shapes: Shapes) -> list[tuple[str, list[str], list[str]]]:
    """The copies of a program with products of bytes: tensor, axes, and loops, outermost first."""
    found = tiled(text, shapes, machine=replace(AVX512, dot_ways=4)).assignments
    staged = [a for a in found if a.tensor.endswith("_staged")]
    return [(a.tensor, [show(sub) for sub in a.subscripts], [name for name, _, _ in a.bounds]) for a in staged]


def test_terms_of_a_panel_are_in_the_order_of_their_loops() -> None:
    """Those that are one to the nest too: it walks along the panel, not across it."""
    text = "def f(float(M,I,J) A, float(N,I,J) B) -> (C) { C(m,n) +=! A(m,i,j) * B(n,i,j) }"
    found = copies_of(text, {"A": (300, 40, 50), "B": (310, 40, 50)})
    assert found and all(axes[1:3] == ["i", "j"] for _, axes, _ in found)


@pytest.mark.parametrize(("outer", "inner"), [(40, 3), (5, 21)])
def test_lanes_along_two_axes_of_a_result_are_neighbours_in_a_copy(outer: int, inner: int) -> None:
    """They are one dimension of the nest, and stay one: no blocks of the inner one, which fill vectors badly."""
    text = "def f(float(A,M,F,G) X, float(F,D,E,A,G) U) -> (O) { O(a,m,d,e) +=! X(a,m,f,g) * U(f,d,e,a,g) }"
    shapes = {"X": (8, 680, 16, 4), "U": (16, outer, inner, 8, 4)}
    assert [axes for _, axes, _ in copies_of(text, shapes)] == [["a", "f", "g", "d", "e"]]


def test_words_are_copied_along_the_rows_that_they_are_in() -> None:
    """Rows of terms stay, rows of results are cut in blocks of at least a vector of bytes, and copied one after the other."""
    given = {"X": (200, 64), "Y": (64, 160)}
    text = "def f(uint8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(k,n)) }"
    assert copies_of(text, given) == [
        ("X_staged", ["m", "k"], ["m", "k"]),
        ("Y_staged", ["n_block", "k", "n"], ["k", "n_block", "n"]),
    ]
    turned = text.replace("(M,K)", "(K,M)").replace("X(m,k)", "X(k,m)").replace("(K,N)", "(N,K)").replace("Y(k,n)", "Y(n,k)")
    rows, last, padding, columns = copies_of(turned, {"X": (64, 200), "Y": (160, 64)})
    assert rows == last == padding == ("X_staged", ["m_block", "k", "m"], ["k", "m_block", "m"])
    assert columns == ("Y_staged", ["n_block", "k", "n"], ["n_block", "k", "n"])
    found = tiled(turned, {"X": (64, 200), "Y": (160, 64)}, machine=replace(AVX512, dot_ways=4)).assignments
    sizes = {name: upper for name, _, upper in found[0].bounds}
    ((_, rows_of_tile),) = found[-1].tiled[0].nest.leaf.rows
    assert sizes["m"] >= 64 and sizes["m"] % rows_of_tile == 0


@pytest.mark.parametrize(("terms", "more"), [(4 * 1024, 16), (4 * 512, 16), (4 * 256, 0), (4 * 500, 0)])
def test_rows_of_a_copy_that_would_meet_in_few_sets_are_further_apart(terms: int, more: int) -> None:
    text = "def f(uint8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(k,n)) }"
    found = tiled(text, {"X": (200, terms), "Y": (terms, 160)}, machine=replace(AVX512, dot_ways=4))
    (copy,) = (storage for _, storage in found.temporaries if storage.name == "X_staged")
    assert copy.shape == (200, terms // 4 + more)


@pytest.mark.parametrize(("m", "n"), [(100, 72), (33, 90), (200, 145)])
def test_all_of_a_panel_is_written(m: int, n: int) -> None:
    """Also what lies beyond the extent, once: tiles compute with it, and denormals that memory holds by chance would take long."""
    found = tiled(TURNED, {"A": (m, 60), "B": (n, 60)})
    panels = [storage for _, storage in found.temporaries if storage.name.endswith("_staged")]
    assert panels
    for panel in panels:
        assert sum(a.points for a in found.assignments if a.tensor == panel.name) == panel.elements


def test_large_results_of_short_sums_are_written_row_by_row() -> None:
    """Tiles of all rows one after the other would touch more pages than the TLB has."""
    s = flat(MATMUL, {"A": (1000, 64), "B": (64, 2000)})
    plan = plan_nest(shift_dims(s), CORE)
    assert [loop.dim for loop in plan.nest.loops if loop.dim in s.outputs][-1] == "n"


def test_a_product_is_computed_once() -> None:
    text = "def f(float(B,I) X, float(B,J) Y, float(I,J,O) W) -> (Z) { Z(b,o) +=! X(b,i) * Y(b,j) * W(i,j,o) }"
    copies, after, _ = staged(text, {"X": (8, 5), "Y": (8, 6), "W": (5, 6, 20)})
    assert [show(copy.value) for copy in copies] == ["X(b, i) * Y(b, j)"]
    assert "X(" not in show(after.value) and show(after.value).endswith("W(i, j, o)")


def test_nothing_to_copy() -> None:
    copies, after, _ = staged(MATMUL, {"A": (40, 20), "B": (20, 32)})
    assert copies == [] and "staged" not in show(after.value)


def test_windows_are_not_copied() -> None:
    """Their accesses name an element several times."""
    text = "def f(float(C,H) X, float(F,C,K) G) -> (O) { O(f,h) +=! X(c,2*h+k) * G(f,c,k) where h in 0:80 }"
    result = tiled(text, {"X": (16, 200), "G": (64, 16, 3)})
    assert not any(a.tensor == "X_staged" for a in result.assignments)


def test_copies_stay_inside_their_tensors() -> None:
    text = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! (k < K ? A(m,k) * B(n,k) : 0.0) where k in 0:2*K }"
    result = tiled(text, {"A": (40, 30), "B": (50, 30)})
    for a in result.assignments:
        if a.tensor.endswith("_staged"):
            assert {name: upper for name, _, upper in a.bounds}["k"] <= 30


def test_what_is_copied_before_shared_loops_is_copied_once() -> None:
    """A weight whose columns are lanes, for few rows in each iteration of loops that others share."""
    text = "def f(float(B,M,K) X, float(N,K) W) -> (C) { C(b,m,n) +=! X(b,m,k) * W(n,k) }"
    s = flat(text, {"X": (64, 12, 500), "W": (400, 500)})
    apart = plan_nest(replace(s, shared=("b",)), CORE)
    assert apart.nest.leaf.lane == "n" and apart.estimate.staged
    own = flat(text.replace("W(n,k)", "W(b,n,k)").replace("float(N,K) W", "float(B,N,K) W"), {"X": (64, 12, 500), "W": (64, 400, 500)})
    each = plan_nest(replace(own, shared=("b",)), CORE)
    assert each.estimate.cycles > apart.estimate.cycles


def order(text: str, shapes: Shapes, l2: int) -> list[str]:
    """The dimensions of the loops over results that have several iterations."""
    s = shift_dims(flat(text, shapes))
    nest = plan_nest(s, replace(CORE, l2=l2)).nest
    return [loop.dim for loop in nest.loops if loop.dim in s.outputs and loop.block < s.extent(loop.dim)]


def test_loops_over_what_the_second_cache_holds_of_an_image() -> None:
    """Where it holds no image beside the panels of the filters, but some of its rows, all filters run over these before the next."""
    text = "def f(float(N,C,P) X, float(C,F) K) -> (Y) { Y(n,f,p) +=! X(n,c,p) * K(c,f) }"
    shapes = {"X": (4, 1024, 196), "K": (1024, 256)}
    parts = order(text, shapes, 1 << 20)
    assert parts[0] == "n" and parts.index("f") > parts.index("p") and parts.count("p") == 2
    assert order(text, shapes, 1 << 28)[0] != "n"


def test_rows_of_results_come_one_after_the_other_where_all_panels_are_near() -> None:
    """Threads that have parts of rows would take lines from one another."""
    s = flat(MATMUL, {"A": (1000, 26), "B": (26, 122)})
    assert [plan_nest(s, replace(CORE, l1=l1)).nest.loops[0].dim for l1 in (CORE.l1, CORE.l1 // 4)] == ["m", "n"]


def test_matrices_side_by_side_in_rows_of_results_stand_inside() -> None:
    s = flat("def f(float(B,G,I) X, float(G,I,J) W) -> (Y) { Y(b,g,j) +=! X(b,g,i) * W(g,i,j) }", {"X": (6000, 4, 9), "W": (4, 9, 8)})
    assert [loop.dim for loop in plan_nest(s, CORE).nest.loops][:2] == ["b", "g"]
    t = flat("def f(float(G,B,I) X, float(G,I,J) W) -> (Y) { Y(g,b,j) +=! X(g,b,i) * W(g,i,j) }", {"X": (4, 6000, 9), "W": (4, 9, 8)})
    assert plan_nest(t, CORE).nest.loops[0].dim == "g"


def test_loops_whose_iterations_read_the_same_are_inside() -> None:
    """A filter's gradient: shifts of an image by a row or an element read it once more, other channels read others."""
    text = "def f(float(F,H,W) D, float(C,H+2,W+2) X) -> (K) { K(f,i,j,c) +=! D(f,h,w) * X(c,h+i,w+j) where i in 0:3, j in 0:3 }"
    found = order(text.replace("H+2,W+2", "P,Q"), {"D": (64, 56, 56), "X": (64, 58, 58)}, 1 << 20)
    assert found.index("c") < found.index("i") < found.index("j")


@pytest.mark.parametrize(("columns", "streamed"), [(1024, True), (1000, False)])
def test_rows_that_meet_in_the_sets_of_a_cache_are_streamed(columns: int, streamed: bool) -> None:
    """Lines of a column that lie whole pages apart drive one another out before other tiles of results read them."""
    nest = plan_nest(flat(MATMUL, {"A": (16, 1024), "B": (1024, columns)}), CORE).nest
    assert (nest.loops[0].dim == "k" and not nest.leaf.block) == streamed


@pytest.mark.parametrize("turned", [False, True])
def test_the_larger_operand_is_read_once_beside_lanes_in_terms(turned: bool) -> None:
    """Its rows stand outside, those of the other one, which a cache holds, inside."""
    text = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    shapes = {"A": (9, 680), "B": (1536, 680)}
    nest = plan_nest(flat(text, {"A": shapes["B"], "B": shapes["A"]} if turned else shapes), CORE).nest
    assert nest.leaf.lane == "k" and nest.loops[0].dim == ("m" if turned else "n")


def test_copies_are_a_choice_of_the_model() -> None:
    """Each set of operands that the first cache does not hold, and that several results read, may be copied; the tile of a plan that is
    made again, as for a block of the results, reads the same copies."""
    s = flat("def f(float(K,M) A, float(K,N) B) -> (C) { C(m,n) +=! A(k,m) * B(k,n) }", {"A": (512, 1024), "B": (512, 768)})
    choices = list(plan_nest_module._choices(s, CORE, None, ()))
    assert {cost.staged for _, _, _, cost in choices} == {frozenset(some) for some in ((), (0,), (1,), (0, 1))}
    for staged in {cost.staged for _, _, _, cost in choices}:
        leaf = replace(plan_nest(s, CORE).nest.leaf, staged=staged)
        assert plan_nest(s, CORE, leaf).estimate.staged == staged
    small = flat(MATMUL, {"A": (20, 30), "B": (30, 40)})
    assert all(not cost.staged for _, _, shape, cost in plan_nest_module._choices(small, CORE, None, ()) if shape.lane == "n")
    once = flat("def f(float(K,N) X, float(K) v) -> (Y) { Y(n) +=! v(k) * X(k,n) }", {"X": (3000, 500), "v": (3000,)})
    assert all(not cost.staged for _, _, _, cost in plan_nest_module._choices(once, CORE, None, ()))


def test_rows_a_page_apart_are_copied() -> None:
    """They meet in so few sets that they leave the caches before the next tile reads them."""
    text = "def f(float(K,M) A, float(K,N) B) -> (C) { C(m,n) +=! A(k,m) * B(k,n) }"
    plan = plan_nest(flat(text, {"A": (512, 1024), "B": (512, 768)}), CORE)
    assert any(plan.operands[number].flats[0].tensor == "A" for number in plan.estimate.staged)


LARGE = core_of(replace(AVX512, near_bytes=48 << 10, cache_bytes=2 << 20, shared_bytes=480 << 20), 16, 4)


def test_few_rows_that_tiles_read_to_the_end_are_not_copied() -> None:
    """Each tile begins where the one before it ended, in all rows of its terms."""
    text = "def f(float(N,A,B,L) X, float(N,B,C,L) Y) -> (O) { O(n,a,c,l) +=! X(n,a,b,l) * Y(n,b,c,l) }"
    few = plan_nest(flat(text, {"X": (4, 512, 8, 784), "Y": (4, 8, 2, 784)}), LARGE)
    assert not few.estimate.staged and few.nest.leaf.lane == "l" and few.nest.loops[-2].dim == "l"


def test_lines_of_what_nearly_fills_the_second_cache() -> None:
    """Other tiles do not find them there while more comes by."""
    text = "def f(float(K,M) A, float(N,K) B) -> (C) { C(m,n) +=! A(k,m) * B(n,k) }"
    assert plan_nest(flat(text, {"A": (389, 1103), "B": (4760, 389)}), LARGE).estimate.staged == {0, 1}
