"""What is proved of a GPU mapping: trees built by hand are accepted, and every way to break them is refused.

Modules: mapping.races
"""

from __future__ import annotations

import time
from dataclasses import replace

import islpy as isl
import pytest
from support.mapping import MATMUL, SOFTMAX, program, scop
from support.trees import (
    BARE,
    CUT,
    LAUNCH,
    S4,
    SIZES,
    band,
    folds,
    mark,
    patch,
    product,
    product_buffers,
    product_tree,
    prove,
    refusal,
    sequence,
    threads,
    tree,
)

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access, Binary, Const, Index
from tcjit.mapping import tree as trees
from tcjit.mapping.dependences import dependences
from tcjit.mapping.gpu_nest import LaunchBounds
from tcjit.mapping.machine import SM_90
from tcjit.mapping.marks import Atomic, GridBlock, Launch, Sync
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, build_scop, map_gpu
from tcjit.mapping.races import verify_races
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer
from tcjit.mapping.verify import verify, verify_privates

POINTWISE = band([{S4: "m"}, {S4: "n"}])
TURNED = threads("16x16", [{S4: "n mod 16"}, {S4: "m mod 16"}], POINTWISE)


def test_a_tiled_product_is_accepted() -> None:
    made = product(*SIZES)
    assert refusal(made, product_tree(made, *CUT), product_buffers(*CUT)) == ""


def test_a_large_product_takes_no_time() -> None:
    made = product(1024, 1024, 1024, 128, 8)
    mapped = product_tree(made, 128, 8)
    start = time.process_time()
    prove(made, mapped, product_buffers(128, 8))
    assert time.process_time() - start < 0.5  # 40 ms on a quiet machine


@pytest.mark.parametrize(
    "change, why",
    [
        ({"first": ""}, "races: S3 and S1 use A_sh"),
        ({"second": ""}, "races: (S1 and S3 use A_sh|S2 and S3 use B_sh)"),
        ({"first": "sync warp"}, "races: S3 and S1 use A_sh"),
        ({"second": "sync warp"}, "races: (S1 and S3 use A_sh|S2 and S3 use B_sh)"),
        ({"a_digits": "16x8"}, "threads: digit 0 .* reaches 31"),
        ({"a_digits": "64x8"}, "threads: .* needs more than the 256 threads"),
        ({"a_digits": "32x2x4"}, "2 members below"),
        ({"swapped": True}, "order"),
        ({"store": TURNED}, "C_acc is read .* by another thread"),
        ({"store": POINTWISE}, "C_acc is used on no thread"),
        ({"store": threads("16x16", [{S4: "m mod 16"}, {S4: "n mod 16"}], mark("sync block", POINTWISE))}, "sync block below"),
        ({"store": mark("shuffle", patch(S4, 32))}, "'shuffle' means nothing"),
        ({"ahead": 1}, "share a slot"),
    ],
)
def test_broken_products(change: dict[str, object], why: str) -> None:
    made = product(*SIZES)
    mapped = product_tree(made, *CUT, **change)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=why):
        prove(made, mapped, product_buffers(*CUT))


@pytest.mark.parametrize(
    "number, change, why",
    [
        (0, {"axes": folds((), (), (), ((1, 16, 1),), ((1, 8, 32),))}, "two elements of A_sh share a slot"),
        (0, {"axes": folds((), (), (), ((1, 32, 1),), ((1, 8, 16),))}, "two elements of A_sh share a slot"),
        (0, {"elements": 255}, "A_sh has slots up to 255"),
        (0, {"space": "thread"}, "A_sh is read .* by another thread"),
        (0, {"mark": GridBlock(1)}, "A_sh has no place"),
        (2, {"axes": folds(((16, 2, 2),), ((16, 1, 1),))}, "two elements of C_acc share a slot"),
        (2, {"axes": folds(((16, 2, 2),), ((8, 2, 1),))}, "two elements of C_acc share a slot"),
        (2, {"elements": 3}, "C_acc has slots up to 3"),
    ],
)
def test_buffers_that_do_not_fit(number: int, change: dict[str, object], why: str) -> None:
    made = product(*SIZES)
    buffers = list(product_buffers(*CUT))
    buffers[number] = replace(buffers[number], **change)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=why):
        prove(made, product_tree(made, *CUT), buffers)


def test_a_lost_instance() -> None:
    made = product(*SIZES)
    hole = isl.UnionSet.read_from_str(made.ctx, "{ S1[0, 1, 2, 3, 4] }")
    with pytest.raises(VerifyError, match="coverage"):
        prove(made, product_tree(made, *CUT).intersect_domain(made.domain.subtract(hole)), product_buffers(*CUT))


def test_accumulators_in_memory_need_no_barrier_but_one_thread() -> None:
    made = product(*SIZES)
    copies, accumulators = product_buffers(*CUT)[:2], product_buffers(*CUT)[2]
    prove(made, product_tree(made, *CUT), copies)
    shared = replace(accumulators, space="shared", axes=folds(((1, 32, 32),), ((1, 32, 1),)), elements=1024)
    fenced = product_tree(made, *CUT, store=mark("sync block", TURNED))
    prove(made, fenced, [*copies, shared])
    for buffers in (copies, [*copies, shared]):
        with pytest.raises(VerifyError, match="races: S[03] and S4 use C_acc"):
            prove(made, product_tree(made, *CUT, store=TURNED), buffers)


# ---------------------------------------------------------------- copies that run ahead


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_copies_that_run_ahead(stages: int) -> None:
    made = product(*SIZES)
    waiting = {"ahead": stages - 1, "wait": f"wait_group {stages - 2}", "second": ""}
    prove(made, product_tree(made, *CUT, **waiting), product_buffers(*CUT, stages))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="before what S[12] writes to it has arrived|before it has waited"):
        late = {**waiting, "wait": f"wait_group {stages - 1}"}
        prove(made, product_tree(made, *CUT, **late), product_buffers(*CUT, stages))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="share a slot"):
        prove(made, product_tree(made, *CUT, **waiting), product_buffers(*CUT, stages - 1))  # type: ignore[arg-type]


def test_a_barrier_in_each_iteration_lets_two_pieces_take_turns() -> None:
    """Copy, barrier, product: what the next copy overwrites was read one barrier ago, with two pieces but not with one."""
    made = product(*SIZES)
    mapped = product_tree(made, *CUT, first="")
    prove(made, mapped, product_buffers(*CUT, 2))
    with pytest.raises(VerifyError, match="races: S3 and S1 use A_sh"):
        prove(made, mapped, product_buffers(*CUT))


def test_what_is_written_ahead_must_be_waited_for() -> None:
    made = product(*SIZES)
    text = trees.show(product_tree(made, *CUT, ahead=1, wait="wait_group 0", second=""))
    for old, new, why in (
        ('"sync block"', '"sync warp"', "'wait_group 0' means nothing"),  # a wait stands above a barrier of the block
        ('"wait_group 0"', '"sync block"', "nothing waits for S1"),
        ('"async_copy"', '"copy"', "'copy' means nothing"),
    ):
        with pytest.raises(VerifyError, match=why):
            prove(made, trees.read(made.ctx, text.replace(old, new)), product_buffers(*CUT, 2))
    with pytest.raises(VerifyError, match="S1 below 'async_copy' writes outside shared buffers"):
        prove(made, trees.read(made.ctx, text), product_buffers(*CUT, 2)[1:])


def test_threads_of_a_warp_that_compute_together_read_for_each_other() -> None:
    made = scop("def f(float(N) A) -> (D) { B(i) = A(i)  C(i) = B(i)  D(i) = C(i) }", {"A": (64,)}, BARE)
    buffers = [Buffer("B", GridBlock(0), "shared", folds(((1, 64, 1),)), 64), Buffer("C", GridBlock(0), "thread", folds(()), 1)]

    def mapped(kind: str, barrier: str) -> isl.Schedule:
        parts = [threads("64", [{f"S{n}[i]": "i"}]) for n in range(3)]
        parts[1] = mark(barrier, mark(kind, parts[1]))
        return tree(made, mark("launch 0", mark("block 0", sequence(*((f"S{n}[i]", part) for n, part in enumerate(parts))))))

    prove(made, mapped("", ""), buffers)
    prove(made, mapped("mma", "sync block"), buffers)
    prove(made, mapped("mma", "sync warp"), buffers)
    with pytest.raises(VerifyError, match="races: S0 and S1 use B"):
        prove(made, mapped("mma", ""), buffers)
    with pytest.raises(VerifyError, match="S1 below 'mma' writes outside thread buffers"):
        prove(made, mapped("mma", "sync block"), buffers[:1])


# ---------------------------------------------------------------- blocks and launches

TURN = "def f(float(N,N) A) -> (C) { B(i,j) = A(i,j) * 2  C(i,j) = B(j,i) }"


def turned(made: Scop, launches: int) -> isl.Schedule:
    """Rows over blocks, columns over threads."""
    first, second = (threads("64", [{f"S{n}[i,j]": "j"}]) for n in range(2))
    rows = [{"S0[i,j]": "i", "S1[i,j]": "i"}]
    if launches == 1:
        inside = sequence(("S0[i,j]", first), ("S1[i,j]", mark("sync block", second)))
        return tree(made, mark("launch 0", mark("grid", band(rows, mark("block 0", inside)))))
    each = [
        (f"S{n}[i,j]", mark(f"launch {n}", mark("grid", band([{f"S{n}[i,j]": "i"}], mark(f"block {n}", part)))))
        for n, part in enumerate((first, second))
    ]
    return tree(made, sequence(*each))


def test_blocks_of_one_launch_never_depend_on_each_other() -> None:
    made = scop(TURN, {"A": (64, 64)}, BARE)
    both = (LaunchBounds(Launch(0), 64), LaunchBounds(Launch(1), 64))
    prove(made, turned(made, 2), launches=both)
    with pytest.raises(VerifyError, match="order"):
        prove(made, turned(made, 1), launches=both[:1])
    with pytest.raises(VerifyError, match="structure: the launches"):
        prove(made, turned(made, 2), launches=both[:1])
    with pytest.raises(VerifyError, match="B is read in another tile"):
        prove(made, turned(made, 2), [Buffer("B", GridBlock(0), "shared", folds(((1, 64, 64),), ((1, 64, 1),)), 4096)], both)


@pytest.mark.parametrize("text, why", [("i - 1", "runs from -1"), ("2*i", None), ("floor(i/2)", None)])
def test_numbers_of_blocks_count_from_zero(text: str, why: str | None) -> None:
    made = scop("def f(float(N) A) -> (C) { C(i) = A(i) }", {"A": (64,)}, BARE)
    inside = threads("2", [{"S0[i]": "i mod 2"}])
    mapped = tree(made, mark("launch 0", mark("grid", band([{"S0[i]": text}], mark("block 0", inside)))))
    if why is None:
        prove(made, mapped)
    else:
        with pytest.raises(VerifyError, match=why):
            prove(made, mapped)


def test_terms_of_one_sum_in_several_blocks() -> None:
    made = scop("def f(float(N,K) A) -> (r) { r(i) += A(i,k) where i in 0:N }", {"A": (8, 64)}, BARE)
    for members, digits in (([{"S0[i,k]": "k"}], "i"), ([{"S0[i,k]": "i"}], "k")):
        mapped = tree(made, mark("launch 0", mark("grid", band(members, mark("block 0", threads("64", [{"S0[i,k]": digits}]))))))
        with pytest.raises(VerifyError, match="reductions: terms of one reduction run on several threads"):
            prove(made, mapped)


@pytest.mark.parametrize("often", [1, 2])
def test_a_barrier_that_may_be_left_out_does_not_count(often: int) -> None:
    """The middle statement, and with it the barrier above it, exists in every iteration or in every second one."""
    text = f"""
def f(float(N,M) A) -> (C, D) {{
    B(i, j) = A(i, j)
    D(i, j) = A(i, j) where i in 0:{8 // often}
    C(i, j) = B(i, 63 - j) where i in 0:N, j in 0:M
}}"""
    made = scop(text, {"A": (8, 64)}, BARE)
    buffer = Buffer("B", GridBlock(0), "shared", folds((), ((1, 64, 1),)), 64)
    points = [f"S{n}[i,j]" for n in range(3)]
    parts = [threads("64", [{point: "j"}]) for point in points]
    for first in ("sync block", ""):
        body = sequence((points[0], mark(first, parts[0])), (points[1], mark("sync block", parts[1])), (points[2], parts[2]))
        steps = {points[0]: "i", points[1]: f"{often} * i", points[2]: "i"}
        mapped = tree(made, mark("launch 0", mark("block 0", band([steps], body))))
        if first and often == 1:
            prove(made, mapped, [buffer])
            continue
        with pytest.raises(VerifyError, match="races: S0 and S2 use B" if often == 2 else "races: S2 and S0 use B"):
            prove(made, mapped, [buffer])


# ---------------------------------------------------------------- a softmax of rows

ROW = """
def softmax(float(M,N) I) -> (O) {{
    most(t, m) max=! I(m, {each} * t + r) where t in 0:{lane}, r in 0:{each}
    top(m) max=! most(t, m)
    E(m, n) = exp(I(m, n) - top(m))
    part(t, m) +=! E(m, {each} * t + r) where t in 0:{lane}, r in 0:{each}
    total(m) +=! part(t, m)
    O(m, n) = E(m, n) / total(m)
}}"""
POINTS = ["S0[t,m]", "S1[t,m,r]", "S2[m]", "S3[m,t]", "S4[m,n]", "S5[t,m]", "S6[t,m,r]", "S7[m]", "S8[m,t]", "S9[m,n]"]


def row(lane: int = 32, each: int = 4) -> Scop:
    return scop(ROW.format(lane=lane, each=each), {"I": (12, lane * each)}, BARE)


def row_tree(
    made: Scop,
    lane: int = 32,
    each: int = 4,
    rows: int = 3,
    warps: bool = False,
    combine: tuple[str, str] = ("reduce", "reduce"),
    barriers: tuple[str, str] = ("sync block", "sync block"),
    digit: str = "t",
) -> isl.Schedule:
    """``rows`` rows for each block, one after the other, or, for ``warps``, at once."""
    digits = {point: "0" if point in (POINTS[2], POINTS[7]) else f"floor(n/{each})" if "n" in point else "t" for point in POINTS}
    digits[POINTS[8]] = digit
    parts = []
    for point in POINTS:
        own = [{point: digits[point]}]
        inner = band([{point: "r"}]) if "r" in point else band([{point: f"n mod {each}"}]) if "n" in point else ""
        part = threads(f"{rows}x{lane}", [{point: f"m mod {rows}"}, *own], inner) if warps else threads(str(lane), own, inner)
        if point in (POINTS[3], POINTS[8]):
            part = mark(combine[point == POINTS[8]], part)
        if point in (POINTS[4], POINTS[9]):
            part = mark(barriers[point == POINTS[9]], part)
        parts.append((point, part))
    body = sequence(*parts)
    if not warps:
        body = band([dict.fromkeys(POINTS, f"m mod {rows}")], body)
    return tree(made, mark("launch 0", mark("grid", band([dict.fromkeys(POINTS, f"floor(m/{rows})")], mark("block 0", body)))))


def row_buffers(each: int = 4, rows: int = 1) -> list[Buffer]:
    one = ((1, rows, 1),) if rows > 1 else ()
    return [
        Buffer("most", GridBlock(0), "thread", folds((), ()), 1),
        Buffer("part", GridBlock(0), "thread", folds((), ()), 1),
        Buffer("E", GridBlock(0), "thread", folds((), ((1, each, 1),)), each),
        Buffer("top", GridBlock(0), "shared", folds(one), rows),
        Buffer("total", GridBlock(0), "shared", folds(one), rows),
    ]


ROW_LAUNCH = (LaunchBounds(Launch(0), 96),)


def test_a_softmax_of_rows_is_accepted() -> None:
    made = row()
    assert refusal(made, row_tree(made), row_buffers(), ROW_LAUNCH) == ""
    assert refusal(made, row_tree(made, warps=True), row_buffers(rows=3), ROW_LAUNCH) == ""
    assert refusal(made, row_tree(made, warps=True, barriers=("sync warp", "sync warp")), row_buffers(rows=3), ROW_LAUNCH) == ""


@pytest.mark.parametrize(
    "lane, change, why",
    [
        (32, {"barriers": ("", "sync block")}, "races: S3 and S4 use top"),
        (32, {"barriers": ("sync block", "")}, "races: S8 and S9 use total"),
        (64, {"barriers": ("sync warp", "sync block")}, "races: S3 and S4 use top"),
        (32, {"combine": ("", "reduce")}, "reductions: terms of one reduction run on several threads"),
        (32, {"combine": ("reduce", "")}, "reductions: terms of one reduction run on several threads"),
        (32, {"digit": "31 - t"}, "part is read .* by another thread"),
        (32, {"digit": "floor(t/2)"}, "reductions: .*several threads|by another thread"),
        (48, {}, "a run of 48 threads"),
    ],
)
def test_broken_softmax(lane: int, change: dict[str, object], why: str) -> None:
    made = row(lane)
    mapped = row_tree(made, lane, **change)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=why):
        prove(made, mapped, row_buffers(), ROW_LAUNCH)


def test_rows_at_once_need_slots_of_their_own() -> None:
    """Of the rows of a block one after the other, each overwrites the statistics of the last one."""
    made = row()
    with pytest.raises(VerifyError, match="two elements of top share a slot"):
        prove(made, row_tree(made, warps=True), row_buffers(), ROW_LAUNCH)


@pytest.mark.parametrize(
    "text, digits, why",
    [
        ("r(i) += P(t, i) where i in 0:4, t in 0:32", ["i", "t"], None),
        ("r(i) += P(t, i) where i in 0:4, t in 0:31", ["i", "t + 1"], "the first thread of a run has no part"),
        ("r(i) += P(t, i) where i in 0:4, t in 0:64", ["i", "t mod 32"], "a thread has several parts"),
        ("r(t) += P(t, i) where i in 0:4, t in 0:32", ["i", "t"], "terms of one reduction run on several threads"),
        ("r(t) += P(t, 0) where t in 0:32", ["0", "t"], "it is not one update"),
        ("r(t) = P(t, 0) where t in 0:32", ["0", "t"], "it is not one update"),
    ],
)
def test_what_a_reduce_may_combine(text: str, digits: list[str], why: str | None) -> None:
    made = scop(f"def f(float(T,N) P) -> (r) {{ {text} }}", {"P": (64, 4)}, BARE)
    found = reduce_refusal(made, digits)
    assert why in found if why else not found


def reduce_refusal(made: Scop, digits: list[str]) -> str:
    point = made.statements[0].tuple_text
    return refusal(made, tree(made, mark("launch 0", mark("block 0", mark("reduce", threads("4x32", [{point: d} for d in digits]))))))


def test_parts_that_read_what_they_are_combined_into() -> None:
    made = scop("def f(float(T,N) P) -> (r) { r(i) += P(t, i) where i in 0:4, t in 0:32 }", {"P": (32, 4)}, BARE)
    s = made.statements[0]
    own = Binary("*", s.value, Access(s.tensor, s.subscripts, dtype=s.value.dtype), dtype=s.value.dtype)
    found = reduce_refusal(replace(made, statements=(replace(s, value=own),)), ["i", "t"])
    assert "the parts read what they are combined into" in found


# ---------------------------------------------------------------- what the passes make


@pytest.mark.parametrize(
    "text, shapes, options",
    [
        (MATMUL, {"A": (1024, 64), "B": (64, 1024)}, Options()),
        (MATMUL, {"A": (100, 300), "B": (300, 70)}, Options(reduction_chunks=1, pipeline_stages=1)),
        (MATMUL, {"A": (256, 64), "B": (64, 256)}, Options(pipeline_stages=3)),
        (SOFTMAX, {"I": (100, 2048)}, Options()),
        (SOFTMAX, {"I": (100, 50)}, Options()),
    ],
)
def test_every_barrier_of_a_mapped_program_is_needed(text: str, shapes: dict[str, tuple[int, ...]], options: Options) -> None:
    made = map_gpu(program(text, shapes), options, SM_90)
    deps = dependences(made.scop)
    verify(made.scop, deps, made.tree)
    verify_privates(made.scop, deps, made.tree, made.privates)
    verify_races(made.scop, made.tree, made.privates, made.launches)
    barriers = sum(line.strip().startswith(('mark: "sync', '- mark: "sync')) for line in trees.show(made.tree).splitlines())
    assert barriers
    for number in range(barriers):
        with pytest.raises(VerifyError, match="races|structure"):
            verify_races(made.scop, without(made.tree, number), made.privates, made.launches)


PICKED = "def f(int64(N) I, float(N,D) X) -> (O) { O(v, d) +=! (I(n) == v) ? X(n, d) : 0.0 where v in 0:500 }"


def picked(d: int = 24) -> Mapped:
    made = map_gpu(program(PICKED, {"I": (3000,), "X": (3000, d)}), Options(), SM_90)
    assert str(Atomic()) in trees.show(made.tree)
    return made


def proved(made: Mapped, tree: isl.Schedule, scop: Scop | None = None) -> None:
    scop = scop or made.scop
    verify(scop, dependences(scop), tree)
    verify_races(scop, tree, made.privates, made.launches)


def test_updates_at_once_are_atomic() -> None:
    made = picked()
    proved(made, made.tree)
    plain = trees.rewrite(made.tree, lambda node: node.delete() if trees.mark_of(node) == Atomic() else node)
    with pytest.raises(VerifyError, match="reductions: terms of one reduction run on several threads"):
        verify(made.scop, dependences(made.scop), plain)
    with pytest.raises(VerifyError, match="races: S1 and S1 use O on different threads"):
        verify_races(made.scop, plain, made.privates, made.launches)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"operator": "*="}, "no update in any order"),
        ({"value": Access("O", (Index("v", dtype="int64"), Const(0, dtype="int64")), dtype="float32")}, "reads what it updates"),
    ],
)
def test_what_no_atomic_update_is(change: dict[str, object], why: str) -> None:
    made = picked()
    start, update = made.scop.statements
    scop = replace(made.scop, statements=(start, replace(update, scatter=(), **change)))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=why):
        verify_races(scop, made.tree, made.privates, made.launches)


def test_nothing_else_meets_atomic_updates() -> None:
    """The start of the results in the same launch: in other blocks, and in other threads of a block."""
    given = program("def f(int64(N) I, int32(N) X) -> (int32(N) O) { O(I(n)) +=! X(n) }", {"I": (256,), "X": (256,)})
    made = build_scop(given, Options(), target=replace(SM_90, processors=1))
    first, second = (s.tuple_text for s in made.statements)
    updates = mark("atomic", mark("scatter", band([{second: "target"}])))
    parts = (first, threads("256", [{first: "target"}])), (second, threads("256", [{second: "n"}], updates))
    launches = [(point, mark(f"launch {n}", mark(f"block {n}", part))) for n, (point, part) in enumerate(parts)]
    prove(made, tree(made, sequence(*launches)), launches=(*LAUNCH, LaunchBounds(Launch(1), 256)))
    block = mark("block 0", sequence(*parts))
    blocks = mark("launch 0", mark("grid", band([{first: "floor(target/64)", second: "floor(n/64)"}], block)))
    with pytest.raises(VerifyError, match="order"):
        prove(made, tree(made, blocks))
    with pytest.raises(VerifyError, match="races: S0 and S1 use O"):
        prove(made, tree(made, mark("launch 0", block)))
    fenced = mark("launch 0", mark("block 0", sequence(parts[0], (second, mark("sync block", parts[1][1])))))
    prove(made, tree(made, fenced))
    with pytest.raises(VerifyError, match="S0 below 'atomic' is no update"):
        start = threads("256", [{first: "target"}], mark("atomic", band([{first: "0"}])))
        prove(made, tree(made, mark("launch 0", mark("block 0", sequence((first, start), parts[1])))))
    with pytest.raises(VerifyError, match="S1 outside global memory"):
        verify_races(made, tree(made, fenced), [Buffer("O", GridBlock(0), "shared", folds(((1, 256, 1),)), 256)], LAUNCH)


def without(mapped: isl.Schedule, number: int) -> isl.Schedule:
    """A tree without one of its barriers."""
    count = iter(range(1 << 10))

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        return node.delete() if isinstance(trees.mark_of(node), Sync) and next(count) == number else node

    return trees.rewrite(mapped, visit)
