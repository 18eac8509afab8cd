"""What a cost is an estimate of, and what it is computed from: operands, and bodies that have a form over vectors or lanes.

Modules: mapping.nest.cost mapping.nest.operand_use mapping.nest.operands mapping.nest.vector_forms
"""

from __future__ import annotations

from dataclasses import asdict, replace
from math import prod

import pytest
from support.mapping import AVX512
from support.nests import CORE, MATMUL, TURNED, assignments, flat, statement

from tcjit.grammar.printer import show
from tcjit.mapping.machine import Core, Costs, Machine, core_of
from tcjit.mapping.nest import plan_nest as plan_nest_module
from tcjit.mapping.nest.affine_statement import with_epilogue
from tcjit.mapping.nest.cost import Estimate, TileCosts, instructions
from tcjit.mapping.nest.epilogue import Epilogue
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.operand_use import Shape
from tcjit.mapping.nest.operands import operands
from tcjit.mapping.nest.plan_nest import plan_nest
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.tile import tile, verify_tiles
from tcjit.mapping.nest.vector_forms import has_lane_form, has_vector_form


def test_a_core_of_a_machine() -> None:
    core = core_of(Machine(32, 16, 6, 1 << 16, 1 << 21), 4, 8)
    assert (core.lanes, core.element, core.registers, core.l1, core.l2, core.ways) == (4, 8, 16, 1 << 16, 1 << 21, 16)


def test_the_default_core() -> None:
    """Plans of fixed machines, and so the golden kernels, rest on these."""
    times = {"multiply_add": 1.0, "latency": 4.0, "load": 1.0, "gather": 16.0, "scatter": 48.0, "copy": 0.3, "transpose": 1.2}
    more = {"beyond": 1.0, "l2_line": 2.5, "branch": 12.0, "region": 9000.0, "l3_byte": 1 / 12, "memory_byte": 0.3}
    sizes = {"lanes": 16, "element": 4, "registers": 32, "l1": 1 << 15, "l2": 1 << 20, "last": 1 << 24, "ways": 8, "page": 4096, "tlb": 64}
    more |= {"matrix_types": frozenset(), "matrix_multiply": 16.0, "passed_line": 40.0, "threads": 2}
    assert asdict(CORE) == {**times, **more, **sizes}


def test_a_core_has_the_costs_of_its_machine() -> None:
    costs = Costs(fma_latency=5.0, fma_rate=2.0, vector_load=0.5, l2_load=32.0, l3_load=8.0, gather=12.0, scatter=2.0)
    core = core_of(replace(AVX512, costs=replace(costs, copy=0.25, transpose=0.5, branch_miss=20.0, page=1 << 14, tlb=96)), 16, 4)
    assert (core.latency, core.multiply_add, core.load, core.l2_line, core.beyond) == (5.0, 0.5, 0.5, 2.0, 1.5)
    assert (core.gather, core.scatter, core.copy, core.transpose, core.branch) == (12.0, 32.0, 0.25, 0.5, 20.0)
    assert (core.page, core.tlb, core.ways) == (1 << 14, 96, 2)


def test_plans_follow_costs() -> None:
    """Where multiply-adds take long to finish, more of them are under way; of tiles that take as long, the one with more accumulators."""
    s = shift_dims(flat(MATMUL, {"A": (6, 300), "B": (300, 64)}))

    def few_over_many(latency: float) -> float:
        """The time of a tile with 6 accumulators over that of one with 24."""
        core = core_of(replace(AVX512, costs=Costs(fma_latency=latency, vector_load=0.01)), 16, 4)
        few, many = (estimate(s, Shape("n", vectors, "m", 6, (), ("k",)), core) for vectors in (1, 4))
        leaf = plan_nest(s, core).nest.leaf
        assert few is not None and many is not None and leaf.vectors * prod(count for _, count in leaf.rows) >= 20
        return few.cycles / many.cycles

    assert few_over_many(1.0) < 1.1 and few_over_many(20.0) > 2.0


def estimate(s: FlatStatement, shape: Shape, core: Core) -> Estimate | None:
    return TileCosts(s, shape.lane, shape.window, *operands(s, shape.lane), core).estimate(shape)


@pytest.mark.parametrize(
    ("vectors", "rows", "registers", "fits"),
    [(2, 14, 32, True), (2, 14, 30, False), (2, 12, 32, True), (4, 4, 16, False), (3, 4, 16, True), (1, 14, 16, True)],
)
def test_what_registers_hold(vectors: int, rows: int, registers: int, fits: bool) -> None:
    s = statement("matmul")
    cost = estimate(s, Shape("n", vectors, "m", rows, (), ("k",)), replace(CORE, registers=registers))
    assert (cost is not None) == fits == (vectors * rows + vectors + 1 <= registers)


@pytest.mark.parametrize(("columns", "registers", "fits"), [(5, 31, True), (5, 30, False), (2, 16, True)])
def test_what_registers_hold_of_rows_along_two_dimensions(columns: int, registers: int, fits: bool) -> None:
    """Accumulators, the values of a point of the rows, which all columns are multiplied by, and these."""
    shape = Shape("k", 1, "m", 5, (), ("k",), "n", columns)
    assert (estimate(statement("turned"), shape, replace(CORE, registers=registers)) is not None) == fits


def test_lanes_in_terms_have_rows_along_both_operands() -> None:
    """Each load is used several times, and no operand is copied for it."""
    s = shift_dims(flat(TURNED, {"A": (30, 2000), "B": (40, 2000)}))
    plan = plan_nest(s, CORE)
    assert plan.nest.leaf.lane == "k" and {dim for dim, _ in plan.nest.leaf.rows} == {"m", "n"} and not plan.estimate.staged
    verify_tiles(s, tile(s, plan.nest, CORE.lanes))
    alone = [estimate(s, Shape("k", 1, "n", rows, (), ("k",)), CORE) for rows in (4, 8, 14)]
    assert all(cost is not None and cost.cycles > plan.estimate.cycles for cost in alone)


def test_vectors_that_lie_in_two_lines_take_two_loads() -> None:
    costs = []
    for terms in (2000, 2001):
        cost = estimate(shift_dims(flat(TURNED, {"A": (30, terms), "B": (40, terms)})), Shape("k", 1, "n", 8, (), ("k",)), CORE)
        assert cost is not None
        costs.append(cost.cycles)
    assert costs[1] > 1.3 * costs[0]


def test_what_does_not_move_with_the_terms_is_loaded_once() -> None:
    """Lanes lie along the rows of what each term has its own of, not along those of a factor of all terms."""
    text = "def f(float(D,A) U, float(A,C,D) V) -> (T) { T(a,d) +=! U(d,a) * V(a,c,d) }"
    nest = plan_nest(flat(text, {"U": (512, 2000), "V": (2000, 60, 512)}), CORE).nest
    assert nest.leaf.lane == "d" and not nest.leaf.staged


def test_rows_that_other_rows_read_from_the_second_cache() -> None:
    """What stays with the rows of a tile is in the first cache; what comes by them is not, if that cache does not hold all of it."""
    costs = []
    for others in (4, 64):
        s = shift_dims(flat(TURNED, {"A": (others, 1920), "B": (64, 1920)}))
        cost = estimate(s, Shape("k", 1, "n", 2, (), ("k",)), replace(CORE, l1=1 << 16))
        assert cost is not None
        costs.append(cost.cycles / others)
    assert costs[1] > 1.1 * costs[0]


@pytest.mark.parametrize(("step", "copied"), [(1024, True), (1000, True), (500, False)])
def test_rows_further_apart_than_prefetchers_follow_are_copied(step: int, copied: bool) -> None:
    s = shift_dims(flat(MATMUL, {"A": (128, 1024), "B": (1024, step)}))
    cost = estimate(s, Shape("m", 2, "n", 4, (), ("k",)), replace(CORE, l2=1 << 18))
    assert cost is not None
    assert any("B" in show(operands(s, "m")[0][number].value) for number in cost.staged) == copied


@pytest.mark.parametrize(("step", "copied"), [(1024, True), (1000, True), (768, True), (500, False), (16, False)])
def test_points_of_rows_that_terms_put_on_pages_or_in_few_sets_are_copied(step: int, copied: bool) -> None:
    """A row operand whose lines meet in few sets of the first cache, or lie on pages of their own."""
    text = "def f(float(K,M) A, float(K,N) B) -> (C) { C(m,n) +=! A(k,m) * B(k,n) }"
    s = shift_dims(flat(text, {"A": (512, step), "B": (512, 256)}))
    cost = estimate(s, Shape("n", 2, "m", 8, (), ("k",)), CORE)
    assert cost is not None
    assert any("A" in show(operands(s, "n")[0][number].value) for number in cost.staged) == copied


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("X(m,k) * Y(k,n)", 1.0),
        ("X(m,k) / Y(k,n)", 21.0),  # and its addition
        ("exp(X(m,k) + Y(k,n))", 22.0),
        ("tanh(X(m,k) + Y(k,n))", 42.0),
        ("exp(double(X(m,k)) + double(Y(k,n)))", 42.0),
    ],
)
def test_divisions_and_functions_are_many(body: str, expected: float) -> None:
    s = flat(f"def f(float(M,K) X, float(K,N) Y) -> (Z) {{ Z(m,n) +=! {body} }}", {"X": (8, 9), "Y": (9, 16)})
    assert instructions(s.body, "+=") == expected


def test_text_of_a_window_has_an_end() -> None:
    s = statement("convolution")
    window = Shape("w", 1, "f", 14, ("i", "j"), ("c",))
    assert estimate(s, window, CORE) is not None
    long = replace(window, vectors=2, rows=14, window=("c", "i", "j"), terms=())
    assert estimate(s, long, replace(CORE, registers=64)) is None


def test_more_work_costs_more() -> None:
    costs = []
    for size in (64, 128, 256):
        s = flat(MATMUL, {"A": (size, size), "B": (size, size)})
        cost = estimate(s, Shape("n", 2, "m", 8, (), ("k",)), CORE)
        assert cost is not None
        costs.append(cost.cycles)
    assert 6 < costs[1] / costs[0] < 12 and 6 < costs[2] / costs[1] < 12


@pytest.mark.parametrize(("extra", "crowded"), [(0, True), (1, False)])
def test_results_whose_lines_meet_in_few_sets_cost_what_they_take(extra: int, crowded: bool) -> None:
    """Lanes a multiple of 64 KB apart: each of their lines leaves the cache before its neighbours are written."""
    text = "def f(float(K,N) A, float(K,M) B, float(Z) Q) -> (C) { C(n,m) +=! A(k,n) * B(k,m) where m in 0:16384 }"
    s = flat(text, {"A": (24, 384), "B": (24, 16384 + extra), "Q": (1,)})
    s = replace(s, write=replace(s.write, form={"n": 16384 + 16 * extra, "m": 1}))
    wide, narrow = (estimate(s, Shape("n", vectors, "m", 4, (), ("k",)), replace(CORE, l2=1 << 20)) for vectors in (6, 1))
    assert wide is not None and narrow is not None
    assert (wide.cycles > 1.5 * narrow.cycles) == crowded


def test_lanes_that_are_gathered_read_each_line_once() -> None:
    """Three elements of a window and two rows, of a line: neither a line for each, nor lanes along two results."""
    text = "def f(float(H,W,4) X) -> (O) { O(h,z) +=! X(h, w, 3*z) where z in 0:2, w in 0:3 }"
    plan = plan_nest(shift_dims(flat(text, {"X": (4096, 3, 4)})), CORE)
    assert plan.nest.leaf.lane == "h"
    apart = "def f(float(H,W,64) X) -> (O) { O(h,z) +=! X(h, w, 40*z) where z in 0:2, w in 0:3 }"
    shape = Shape("h", 1, "z", 2, ("w",), ())
    one, two = (estimate(shift_dims(flat(t, {"X": (4096, 3, n)})), shape, CORE) for t, n in ((text, 4), (apart, 64)))
    assert one is not None and two is not None and two.cycles > 2 * one.cycles


def test_what_follows_a_result_is_read_and_stored_along_lanes() -> None:
    """Lanes along columns of the product would be apart in what is added to it."""
    text = """def f(float(M,K) A, float(K,N) B, float(N,M) Z) -> (Y) {
        C(m,n) +=! A(m,k) * B(k,n)
        Y(n,m) = exp(C(m,n)) * Z(n,m) }"""
    before = assignments(text, {"A": (96, 16), "B": (16, 96), "Z": (96, 96)})
    plans = []
    for count in (0, 1):
        storages = {storage.name: storage for storage in before.tensors}
        epilogue = Epilogue(before.assignments[1 : 1 + count], stored=not count)
        found = flat(text, {"A": (96, 16), "B": (16, 96), "Z": (96, 96)})
        plans.append(plan_nest(with_epilogue(found, epilogue, storages, before.program), CORE).nest.leaf.lane)
    assert plans == ["n", "m"]


@pytest.mark.parametrize(("step", "again"), [(1 << 16, True), ((1 << 16) + 64, False)])
def test_an_operand_whose_lines_leave_the_cache_between_tiles_is_copied_or_read_again(step: int, again: bool) -> None:
    text = "def f(float(K,N) X, float(D,K) U) -> (C) { C(d,n) +=! X(k,n) * U(d,k) }"
    s = flat(text, {"X": (48, 1 << 14), "U": (24, 48)})
    read = next(access for access in s.reads if access.tensor == "X")
    s = replace(s, reads={**s.reads, read: replace(s.reads[read], form={"k": step // 4, "n": 1})})
    operand, body = operands(s, "n")
    costs = TileCosts(s, "n", (), operand, body, replace(CORE, l2=1 << 20))
    conflict_misses = [use.conflict_misses(Shape("n", 1, "d", 8, (), ("k",))) for use in costs.uses if use.moves]
    assert (conflict_misses[0] > 0) == again


def test_rows_of_a_whole_line_where_neighbours_lie_along_them() -> None:
    text = "def f(float(A,F,E) X, float(D,F) U) -> (O) { O(e,d,a) +=! X(a,f,e) * U(d,f) }"
    s = flat(text, {"X": (4096, 48, 64), "U": (3, 48)})
    assert any(rows == 16 for rows, _ in plan_nest_module.register_tiles(s, CORE))


def test_instructions() -> None:
    def count(name: str) -> float:
        s = statement(name)
        return instructions(s.body, s.operator)

    assert count("matmul") == 1 and count("min-plus") == 4 and count("pooling") == 3 and count("distance") == 3


def test_masks_of_rows_are_made_once_for_their_vectors() -> None:
    """One that moves with the lanes is another for each vector."""
    text = "def f(float(M,K) A, float(K,N) B, float(M,K) Q, float(K,N) R) -> (C) { C(m,n) +=! %s != 0.0 ? A(m,k) * B(k,n) : 0.0 }"
    shapes = {"A": (80, 90), "B": (90, 320), "Q": (80, 90), "R": (90, 320)}
    for mask, of_rows in (("Q(m,k)", 1.0), ("R(k,n)", 0.0)):
        s = flat(text % mask, shapes)
        found, body = operands(s, "n")
        assert instructions(s.body, s.operator) == 2
        assert TileCosts(s, "n", (), found, body, CORE).row_mask == of_rows


# ------------------------------------------------------------ operands


def test_operands_scalars_first() -> None:
    s = statement("matmul")
    found, body = operands(s, "n")
    assert [operand.flats[0].tensor for operand in found] == ["A", "B"] and show(body) == "@0 * @1"
    found, body = operands(s, "m")
    assert [operand.flats[0].tensor for operand in found] == ["B", "A"] and show(body) == "@1 * @0"
    assert found[0].dims == {"k", "n"} and found[0].stride("k") == 90 and found[0].single is not None


def test_factors_that_move_alike_are_one_operand() -> None:
    text = "def f(float(B,I) X, float(B,J) Y, float(I,J,O) W) -> (Z) { Z(b,o) +=! X(b,i) * Y(b,j) * W(i,j,o) }"
    s = flat(text, {"X": (8, 5), "Y": (8, 6), "W": (5, 6, 20)})
    found, body = operands(s, "o")
    assert [show(operand.value) for operand in found] == ["X(b, i) * Y(b, j)", "W(i, j, o)"] and show(body) == "@0 * @1"
    assert found[0].single is None and found[0].dims == {"b", "i", "j"} and found[0].stride("i") == 1
    smaller = replace(s, operator="max=")
    assert len(operands(smaller, "o")[0]) == 3, "only sums of products are regrouped"


def test_one_element_read_twice_is_one_operand() -> None:
    s = flat("def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! (A(m,k) - B(n,k)) * (A(m,k) - B(n,k)) }", {"A": (8, 5), "B": (9, 5)})
    found, body = operands(s, "n")
    assert len(found) == 2 and show(body) == "(@0 - @1) * (@0 - @1)"


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("A(i,k) * B(i,k) / 2.0 - 1.0", True),
        ("min(A(i,k), -B(i,k)) + max(A(i,k), 1.0)", True),
        ("relu(fabs(A(i,k)))", True),
        ("(A(i,k) < B(i,k) || A(i,k) >= 1.0 && B(i,k) != 0.0 ? A(i,k) : B(i,k))", True),
        ("exp(A(i,k))", False),
        ("fmax(A(i,k), B(i,k))", True),
        ("A(i,k) * float(k)", False),
        ("(k < 2 ? A(i,k) : B(i,k))", False),
        ("(!(A(i,k) < 1.0) ? A(i,k) : B(i,k))", False),
        ("A(i,k) * float(N)", False),
        ("float(int32(A(i,k)))", False),
    ],
)
def test_what_has_a_form_over_vectors(value: str, known: bool) -> None:
    text = f"def f(float(N,K) A, float(N,K) B) -> (O) {{ O(i) +=! {value} where k in 0:K, i in 0:N }}"
    (a,) = assignments(text, {"A": (4, 5), "B": (4, 5)}).assignments
    assert has_vector_form(a.value) == known


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("exp(A(i,k)) / B(i,k)", True),
        ("fmod(A(i,k), B(i,k))", True),
        ("A(i,k) * float(k)", False),
        ("exp(float(int32(A(i,k)) / 3))", False),
    ],
)
def test_what_lanes_can_evaluate(value: str, known: bool) -> None:
    text = f"def f(float(N,K) A, float(N,K) B) -> (O) {{ O(i) +=! {value} where k in 0:K, i in 0:N }}"
    (a,) = assignments(text, {"A": (4, 5), "B": (4, 5)}).assignments
    assert has_lane_form(a.value) == known and not has_vector_form(a.value)
