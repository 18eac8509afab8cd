"""What is proved of a GPU mapping: trees built by hand are accepted, and every way to break them is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import islpy as isl
import pytest
from support_mapping import MATMUL, SOFTMAX, program, scop

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index
from tcjit.grammar.walk import rebuild
from tcjit.mapping import tree as trees
from tcjit.mapping.aliases import verify_lowering
from tcjit.mapping.dependences import dependences
from tcjit.mapping.fences import radices, verify_fences
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Launch, map_gpu
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Axis, Buffer, Storage
from tcjit.mapping.verify import verify, verify_privates

BARE = Options(pack=False, reduction_chunks=1)
Member = dict[str, str]

# ---------------------------------------------------------------- trees as text


def mark(name: str, child: str) -> str:
    """A node under a mark; no mark for an empty name."""
    return f'{{ mark: "{name}", child: {child} }}' if name else child


def band(members: Sequence[Member], child: str = "") -> str:
    text = ", ".join("{ " + "; ".join(f"{point} -> [({e})]" for point, e in m.items()) + " }" for m in members)
    return f'{{ schedule: "[{text}]"' + (f", child: {child}" if child else "") + " }"


def sequence(*parts: tuple[str, str]) -> str:
    return "{ sequence: [ " + ", ".join(f'{{ filter: "{{ {points} }}", child: {child} }}' for points, child in parts) + " ] }"


def threads(sizes: str, digits: Sequence[Member], child: str = "") -> str:
    return mark(f"threads {sizes}", band(digits, child))


def tree(made: Scop, child: str) -> isl.Schedule:
    return trees.read(made.ctx, f'{{ domain: "{made.domain}", child: {child} }}')


def prove(
    made: Scop, mapped: isl.Schedule, buffers: Sequence[Buffer] = (), launches: Sequence[Launch] = (Launch("launch0", 256),)
) -> None:
    """All that is proved of a tree."""
    deps = dependences(made)
    verify(made, deps, mapped)
    verify_privates(made, deps, mapped, buffers)
    verify_fences(made, mapped, buffers, launches)


def folds(*parts: tuple[tuple[int, int, int], ...]) -> tuple[Axis, ...]:
    return tuple(Axis(0, part) for part in parts)


# ---------------------------------------------------------------- a tiled product

S0, CA, CB, S3, S4 = "S0[m,n]", "S1[p,q,s,l,c]", "S2[p,q,s,c,l]", "S3[m,n,k]", "S4[m,n]"


def product(m: int, n: int, k: int, tile: int, step: int, shift: int = 0) -> Scop:
    """A product of matrices as a lowering makes it: accumulators, and copies of pieces for each block and step."""
    text = f"""
def mm(float(M,K) A, float(K,N) B) -> (C) {{
    C_acc(m, n) = 0.0 where m in 0:M, n in 0:N
    A_sh(p, q, s, l, c) = A({tile} * p + l, {step} * s + c{" + 1" if shift else ""})
        where p in 0:{m // tile}, q in 0:{n // tile}, s in 0:{k // step}, l in 0:{tile}, c in 0:{step - shift}
    B_sh(p, q, s, c, l) = B({step} * s + c, {tile} * q + l)
        where p in 0:{m // tile}, q in 0:{n // tile}, s in 0:{k // step}, l in 0:{tile}, c in 0:{step}
    C_acc(m, n) += A_sh(m/{tile}, n/{tile}, k/{step}, m%{tile}, k%{step}) * B_sh(m/{tile}, n/{tile}, k/{step}, k%{step}, n%{tile})
        where m in 0:M, n in 0:N, k in 0:K
    C(m, n) = C_acc(m, n) where m in 0:M, n in 0:N
}}"""
    return scop(text, {"A": (m, k), "B": (k, n)}, BARE)


def patch(point: str, tile: int, child: str = "") -> str:
    """The threads of a patch of results: 16 x 16, each with every sixteenth row and column."""
    inner = band([{point: f"floor((m mod {tile})/16)"}, {point: f"floor((n mod {tile})/16)"}])
    return threads("16x16", [{point: "m mod 16"}, {point: "n mod 16"}], band([{point: child}], inner) if child else inner)


def product_tree(
    made: Scop,
    tile: int,
    step: int,
    first: str = "sync block",
    second: str = "sync block",
    a_digits: str = f"32x{8}",
    ahead: int = 0,
    swapped: bool = False,
    store: str = "",
    wait: str = "",
) -> isl.Schedule:
    """A loop of steps, each with a barrier, the two copies, a barrier, and the products."""
    copy_a = threads(a_digits, [{CA: "l mod 32"}, {CA: "c"}], band([{CA: "floor(l/32)"}]))
    copy_b = threads("2x128", [{CB: "c mod 2"}, {CB: "l mod 128"}], band([{CB: "floor(c/2)"}, {CB: "floor(l/128)"}]))
    if wait:
        copy_a, copy_b = mark("ahead", copy_a), mark("ahead", copy_b)
    copies = sequence((CA, copy_a), (CB, copy_b))
    parts = [(f"{CA}; {CB}", copies if wait else mark(first, copies)), (S3, mark(second, patch(S3, tile, f"k mod {step}")))]
    body = sequence(*(reversed(parts) if swapped else parts))
    loop = band(
        [{CA: f"s - {ahead}", CB: f"s - {ahead}", S3: f"floor(k/{step})"}], mark(wait, mark("sync block", body)) if wait else body
    )
    inside = sequence((S0, patch(S0, tile)), (f"{CA}; {CB}; {S3}", loop), (S4, store or patch(S4, tile)))
    blocks = [{point: f"floor({d}/{tile})" for point in (S0, S3, S4)} | {CA: b, CB: b} for d, b in (("m", "p"), ("n", "q"))]
    return tree(made, mark("launch0", mark("blocks", band(blocks, mark("block0", inside)))))


def product_buffers(tile: int, step: int, stages: int = 1) -> tuple[Buffer, Buffer, Buffer]:
    piece = tile * step
    stage = ((1, stages, piece),) if stages > 1 else ()
    each = tile // 16
    return (
        Buffer("A_sh", "block0", "shared", folds((), (), stage, ((1, tile, 1),), ((1, step, tile),)), piece * stages),
        Buffer("B_sh", "block0", "shared", folds((), (), stage, ((1, step, tile),), ((1, tile, 1),)), piece * stages),
        Buffer("C_acc", "block0", "thread", folds(((16, each, each),), ((16, each, 1),)), each * each),
    )


SIZES = (64, 128, 32, 32, 8)  # m, n, k, tile, step
CUT = SIZES[3:]


def test_a_tiled_product_is_accepted() -> None:
    made = product(*SIZES)
    prove(made, product_tree(made, *CUT), product_buffers(*CUT))


def test_a_large_product_takes_no_time() -> None:
    made = product(1024, 1024, 1024, 128, 8)
    mapped = product_tree(made, 128, 8)
    start = time.process_time()
    prove(made, mapped, product_buffers(128, 8))
    assert time.process_time() - start < 0.5  # 40 ms on a quiet machine


@pytest.mark.parametrize(
    "change, why",
    [
        ({"first": ""}, "fences: S3 and S1 use A_sh"),
        ({"second": ""}, "fences: S1 and S3 use A_sh"),
        ({"first": "sync warp"}, "fences: S3 and S1 use A_sh"),
        ({"second": "sync warp"}, "fences: S1 and S3 use A_sh"),
        ({"a_digits": "16x8"}, "threads: digit 0 .* reaches 31"),
        ({"a_digits": "64x8"}, "threads: .* needs more than the 256 threads"),
        ({"a_digits": "32x2x4"}, "2 members below"),
        ({"swapped": True}, "order"),
        ({"store": threads("16x16", [{S4: "n mod 16"}, {S4: "m mod 16"}], band([{S4: "m"}, {S4: "n"}]))}, "C_acc is read .* by another thread"),
        ({"store": band([{S4: "m"}, {S4: "n"}])}, "structure: S4 on no thread|used on no thread"),
        ({"store": threads("16x16", [{S4: "m mod 16"}, {S4: "n mod 16"}], mark("sync block", band([{S4: "m"}, {S4: "n"}])))}, "sync block below"),
        ({"store": mark("shuffle", patch(S4, 32))}, "'shuffle' means nothing"),
        ({"ahead": 1}, "order|share a slot"),
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
        (0, {"mark": "block1"}, "A_sh has no place"),
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
    turned = threads("16x16", [{S4: "n mod 16"}, {S4: "m mod 16"}], band([{S4: "m"}, {S4: "n"}]))
    shared = replace(accumulators, space="shared", axes=folds(((1, 32, 32),), ((1, 32, 1),)), elements=1024)
    fenced = product_tree(made, *CUT, store=mark("sync block", turned))
    prove(made, fenced, [*copies, shared])
    for buffers in (copies, [*copies, shared]):
        with pytest.raises(VerifyError, match="fences: S[03] and S4 use C_acc"):
            prove(made, product_tree(made, *CUT, store=turned), buffers)


# ---------------------------------------------------------------- copies that run ahead


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_copies_that_run_ahead(stages: int) -> None:
    made = product(*SIZES)
    waiting = {"ahead": stages - 1, "wait": f"wait {stages - 2}", "second": ""}
    prove(made, product_tree(made, *CUT, **waiting), product_buffers(*CUT, stages))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="before what S[12] writes to it has arrived|before it has waited"):
        late = {**waiting, "wait": f"wait {stages - 1}"}
        prove(made, product_tree(made, *CUT, **late), product_buffers(*CUT, stages))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="share a slot"):
        prove(made, product_tree(made, *CUT, **waiting), product_buffers(*CUT, stages - 1))  # type: ignore[arg-type]


def test_a_barrier_in_each_iteration_lets_two_pieces_take_turns() -> None:
    """Copy, barrier, product: what the next copy overwrites was read one barrier ago, with two pieces but not with one."""
    made = product(*SIZES)
    mapped = product_tree(made, *CUT, first="")
    prove(made, mapped, product_buffers(*CUT, 2))
    with pytest.raises(VerifyError, match="fences: S3 and S1 use A_sh"):
        prove(made, mapped, product_buffers(*CUT))


def test_what_is_written_ahead_must_be_waited_for() -> None:
    made = product(*SIZES)
    mapped = product_tree(made, *CUT)
    text = trees.show(mapped).replace("unroll", "ahead")
    assert text == trees.show(mapped)
    copy = f'mark: "threads 32x8"'
    unmarked = trees.show(product_tree(made, *CUT, ahead=1, wait="wait 0", second=""))
    assert copy in unmarked
    with pytest.raises(VerifyError, match="means nothing"):  # the barrier that a wait needs is gone
        prove(made, trees.read(made.ctx, unmarked.replace('"sync block"', '"sync warp"')), product_buffers(*CUT, 2))
    with pytest.raises(VerifyError, match="nothing waits for S1"):
        prove(made, trees.read(made.ctx, unmarked.replace('"wait 0"', '"sync block"')), product_buffers(*CUT, 2))
    with pytest.raises(VerifyError, match="writes outside shared buffers"):
        prove(made, trees.read(made.ctx, unmarked), product_buffers(*CUT, 2)[1:])


def test_threads_of_a_warp_that_compute_together_read_for_each_other() -> None:
    made = scop("def f(float(N) A) -> (D) { B(i) = A(i)  C(i) = B(i)  D(i) = C(i) }", {"A": (64,)}, BARE)
    buffers = [Buffer("B", "block0", "shared", folds(((1, 64, 1),)), 64), Buffer("C", "block0", "thread", folds(()), 1)]

    def mapped(kind: str, barrier: str) -> isl.Schedule:
        parts = [threads("64", [{f"S{n}[i]": "i"}]) for n in range(3)]
        parts[1] = mark(barrier, mark(kind, parts[1]))
        return tree(made, mark("launch0", mark("block0", sequence(*((f"S{n}[i]", part) for n, part in enumerate(parts))))))

    prove(made, mapped("", ""), buffers)
    prove(made, mapped("atoms", "sync block"), buffers)
    prove(made, mapped("atoms", "sync warp"), buffers)
    with pytest.raises(VerifyError, match="fences: S0 and S1 use B"):
        prove(made, mapped("atoms", ""), buffers)
    with pytest.raises(VerifyError, match="S1 below 'atoms' writes outside thread buffers"):
        prove(made, mapped("atoms", "sync block"), buffers[:1])


# ---------------------------------------------------------------- blocks and launches

TURN = "def f(float(N,N) A) -> (C) { B(i,j) = A(i,j) * 2  C(i,j) = B(j,i) }"


def turned(made: Scop, launches: int) -> isl.Schedule:
    """Rows over blocks, columns over threads."""
    first, second = (threads("64", [{f"S{n}[i,j]": "j"}]) for n in range(2))
    rows = [{"S0[i,j]": "i", "S1[i,j]": "i"}]
    if launches == 1:
        inside = sequence(("S0[i,j]", first), ("S1[i,j]", mark("sync block", second)))
        return tree(made, mark("launch0", mark("blocks", band(rows, mark("block0", inside)))))
    each = [
        (f"S{n}[i,j]", mark(f"launch{n}", mark("blocks", band([{f"S{n}[i,j]": "i"}], mark(f"block{n}", part)))))
        for n, part in enumerate((first, second))
    ]
    return tree(made, sequence(*each))


def test_blocks_of_one_launch_never_depend_on_each_other() -> None:
    made = scop(TURN, {"A": (64, 64)}, BARE)
    both = (Launch("launch0", 64), Launch("launch1", 64))
    prove(made, turned(made, 2), launches=both)
    with pytest.raises(VerifyError, match="order"):
        prove(made, turned(made, 1), launches=both[:1])
    with pytest.raises(VerifyError, match="structure: the launches"):
        prove(made, turned(made, 2), launches=both[:1])
    with pytest.raises(VerifyError, match="B is read in another tile"):
        prove(made, turned(made, 2), [Buffer("B", "block0", "shared", folds(((1, 64, 64),), ((1, 64, 1),)), 4096)], both)


@pytest.mark.parametrize("text, why", [("i - 1", "runs from -1"), ("2*i", None), ("floor(i/2)", None)])
def test_numbers_of_blocks_count_from_zero(text: str, why: str | None) -> None:
    made = scop("def f(float(N) A) -> (C) { C(i) = A(i) }", {"A": (64,)}, BARE)
    inside = threads("2", [{"S0[i]": "i mod 2"}])
    mapped = tree(made, mark("launch0", mark("blocks", band([{"S0[i]": text}], mark("block0", inside)))))
    if why is None:
        prove(made, mapped)
    else:
        with pytest.raises(VerifyError, match=why):
            prove(made, mapped)


def test_terms_of_one_sum_in_several_blocks() -> None:
    made = scop("def f(float(N,K) A) -> (r) { r(i) += A(i,k) where i in 0:N }", {"A": (8, 64)}, BARE)
    for members, digits in (([{"S0[i,k]": "k"}], "i"), ([{"S0[i,k]": "i"}], "k")):
        mapped = tree(made, mark("launch0", mark("blocks", band(members, mark("block0", threads("64", [{"S0[i,k]": digits}]))))))
        with pytest.raises(VerifyError, match="reductions: terms of one reduction run on several threads"):
            prove(made, mapped)


def test_a_barrier_that_may_be_left_out_does_not_count() -> None:
    """The middle statement, and with it the barrier above it, exists in every second iteration only."""
    text = """
def f(float(N,M) A) -> (C, D) {
    B(i, j) = A(i, j)
    D(i, j) = A(2*i, j) where i in 0:4
    C(i, j) = B(i, 63 - j) where i in 0:N, j in 0:M
}"""
    made = scop(text, {"A": (8, 64)}, BARE)
    buffer = Buffer("B", "block0", "shared", folds((), ((1, 64, 1),)), 64)

    def mapped(middle: str, twice: int, last: str = "sync block") -> isl.Schedule:
        points = [f"S{n}[i,j]" for n in range(3)]
        parts = [threads("64", [{point: "j"}]) for point in points]
        steps = {points[0]: "i", points[1]: f"{twice}*i", points[2]: "i"}
        body = sequence((points[0], mark(last, parts[0])), (points[1], mark(middle, parts[1])), (points[2], parts[2]))
        return tree(made, mark("launch0", mark("block0", band([steps], body))))

    with pytest.raises(VerifyError, match="fences: S0 and S2 use B"):
        prove(made, mapped("sync block", 2), [buffer])
    whole = scop(text.replace("0:4", "0:8").replace("2*i", "i"), {"A": (8, 64)}, BARE)
    assert str(whole.domain) != str(made.domain)
    made = whole
    prove(made, mapped("sync block", 1), [buffer])
    with pytest.raises(VerifyError, match="fences: S2 and S0 use B"):
        prove(made, mapped("sync block", 1, last=""), [buffer])


def test_radices() -> None:
    assert radices("threads 4x8x32") == (4, 8, 32)
    for name in ("threads", "threads 4x", "threads 0x4", "blocks"):
        with pytest.raises(VerifyError, match="names no threads"):
            radices(name)


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
        body = band([{point: f"m mod {rows}" for point in POINTS}], body)
    return tree(made, mark("launch0", mark("blocks", band([{point: f"floor(m/{rows})" for point in POINTS}], mark("block0", body)))))


def row_buffers(each: int = 4, rows: int = 1) -> list[Buffer]:
    one = ((1, rows, 1),) if rows > 1 else ()
    return [
        Buffer("most", "block0", "thread", folds((), ()), 1),
        Buffer("part", "block0", "thread", folds((), ()), 1),
        Buffer("E", "block0", "thread", folds((), ((1, each, 1),)), each),
        Buffer("top", "block0", "shared", folds(one), rows),
        Buffer("total", "block0", "shared", folds(one), rows),
    ]


ROW_LAUNCH = (Launch("launch0", 96),)


def test_a_softmax_of_rows_is_accepted() -> None:
    made = row()
    prove(made, row_tree(made), row_buffers(), ROW_LAUNCH)
    prove(made, row_tree(made, warps=True), row_buffers(rows=3), ROW_LAUNCH)
    prove(made, row_tree(made, warps=True, barriers=("sync warp", "sync warp")), row_buffers(rows=3), ROW_LAUNCH)


@pytest.mark.parametrize(
    "lane, change, why",
    [
        (32, {"barriers": ("", "sync block")}, "fences: S3 and S4 use top"),
        (32, {"barriers": ("sync block", "")}, "fences: S8 and S9 use total"),
        (64, {"barriers": ("sync warp", "sync block")}, "fences: S3 and S4 use top"),
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


def test_rows_that_share_a_slot_need_a_barrier_between() -> None:
    """Of the rows of a block one after the other, each overwrites the statistics of the last one."""
    made = row()
    with pytest.raises(VerifyError, match="two elements of top share a slot"):
        prove(made, row_tree(made, warps=True), row_buffers(), ROW_LAUNCH)
    text = trees.show(row_tree(made))
    assert text.count('"sync block"') == 2


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
    refuses_reduce(made, digits, why)


def refuses_reduce(made: Scop, digits: list[str], why: str | None) -> None:
    point = made.statements[0].tuple_text
    mapped = tree(made, mark("launch0", mark("block0", mark("reduce", threads("4x32", [{point: d} for d in digits])))))
    if why is None:
        prove(made, mapped)
    else:
        with pytest.raises(VerifyError, match=why):
            prove(made, mapped)


def test_parts_that_read_what_they_are_combined_into() -> None:
    made = scop("def f(float(T,N) P) -> (r) { r(i) += P(t, i) where i in 0:4, t in 0:32 }", {"P": (32, 4)}, BARE)
    s = made.statements[0]
    own = Binary("*", s.value, Access(s.tensor, s.subscripts, dtype=s.value.dtype), dtype=s.value.dtype)
    refuses_reduce(replace(made, statements=(replace(s, value=own),)), ["i", "t"], "the parts read what they are combined into")


# ---------------------------------------------------------------- lowerings


def lowered_product(shift: int = 0) -> tuple[Scop, Scop, dict[str, str]]:
    """A product, the same with accumulators and copies, and what those stand for."""
    before = scop(MATMUL, {"A": (64, 32), "B": (32, 128)}, BARE)
    made = product(*SIZES, shift=shift)
    names = ["S0", "C1", "C2", "S1", "W3"]
    kept = dict(zip(("S0", "S1"), before.statements, strict=True))
    statements = [replace(s, name=name, source=0) for s, name in zip(made.statements, names, strict=True)]
    statements[0] = replace(kept["S0"], tensor="C_acc")
    aliases = {
        "C_acc": "{ C_acc[a, b] -> C[a, b] }",
        "A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, 8s + c] }",
        "B_sh": "{ B_sh[p, q, s, c, l] -> B[8s + c, 32q + l] }",
    }
    return before, replace(before, statements=tuple(statements), tensors=made.tensors), aliases


def statement(after: Scop, name: str, **change: object) -> Scop:
    """The scop with one statement changed."""
    changed = replace(after.statement(name), **change)  # type: ignore[arg-type]
    return replace(after, statements=tuple(changed if s.name == name else s for s in after.statements))


def moved(after: Scop, name: str, place: int) -> Scop:
    """The scop with one statement moved."""
    rest = [s for s in after.statements if s.name != name]
    return replace(after, statements=(*rest[:place], after.statement(name), *rest[place:]))


def dropped(after: Scop, name: str) -> Scop:
    return replace(after, statements=tuple(s for s in after.statements if s.name != name))


def test_a_lowered_product_is_accepted() -> None:
    before, after, aliases = lowered_product()
    verify_lowering(before, after, aliases)
    verify_lowering(before, before, {})
    verify_lowering(before, moved(after, "C2", 0), aliases)
    chained = aliases | {"C_acc": "{ C_acc[a, b] -> other[a, b] }", "other": "{ other[a, b] -> C[a, b] }"}
    other = Storage("other", "float32", (64, 128), "temporary")
    verify_lowering(before, replace(after, tensors=(*after.tensors, other)), chained)


LOWERING_MUTANTS: dict[str, tuple[Callable[[Scop], Scop], str]] = {
    "a copy lost": (lambda a: dropped(a, "C1"), "S1: it reads A_sh where that does not hold A"),
    "a copy too late": (lambda a: moved(a, "C1", 3), "S1: it reads A_sh where"),
    "a copy of less": (lambda a: statement(a, "C1", constraints=("l < 31",)), "S1: it reads A_sh where"),
    "the store lost": (lambda a: dropped(a, "W3"), "the output C lacks"),
    "the store too early": (lambda a: moved(a, "W3", 1), "the output C lacks"),
    "a store of less": (lambda a: statement(a, "W3", bounds=(("m", 0, 64), ("n", 0, 127))), "the output C lacks"),
    "a store turned": (lambda a: statement(a, "W3", subscripts=tuple(reversed(a.statement("W3").subscripts))), "do not stand for the same"),
    "the start lost": (lambda a: dropped(a, "S0"), "of the statements"),
    "the start elsewhere": (lambda a: statement(a, "S0", tensor="C"), "S1: it updates C_acc where"),
    "statements turned": (lambda a: moved(a, "S1", 0), "S0: it must stay before S1"),
    "other operator": (lambda a: statement(a, "S1", operator="max="), "S1: its operator or its domain changed"),
    "fewer terms": (lambda a: statement(a, "S1", bounds=(("m", 0, 64), ("n", 0, 128), ("k", 0, 31))), "its operator or its domain"),
    "other value": (lambda a: statement(a, "S1", value=swapped_operands(a.statement("S1"))), "S1: it reads another element of A"),
    "another place": (lambda a: statement(a, "S1", subscripts=tuple(reversed(a.statement("S1").subscripts))), "writes another element of C"),
    "a write in vain": (lambda a: statement(a, "W3", tensor="A"), "may not write A|do not stand"),
    "twice": (lambda a: replace(a, statements=(*a.statements, a.statements[-1])), "of the statements"),
}


def swapped_operands(s: ScopStatement) -> Expr:
    assert isinstance(s.value, Binary)
    return replace(s.value, left=s.value.right, right=s.value.left)


@pytest.mark.parametrize("name", list(LOWERING_MUTANTS))
def test_broken_lowerings(name: str) -> None:
    before, after, aliases = lowered_product()
    change, why = LOWERING_MUTANTS[name]
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, change(after), aliases)


def test_a_copy_shifted_by_one() -> None:
    before, after, aliases = lowered_product(shift=1)
    with pytest.raises(VerifyError, match="C1: A_sh and A do not stand for the same element"):
        verify_lowering(before, after, aliases)
    lying = aliases | {"A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, 8s + c + 1] }"}
    with pytest.raises(VerifyError, match="S1: it reads another element of A"):
        verify_lowering(before, after, lying)


@pytest.mark.parametrize(
    "aliases, why",
    [
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> B[32p + l, 8s + c] }"}, "do not stand for the same"),
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> A_sh[p, q, s, l, c] }"}, "A_sh stands for no tensor"),
        ({"C": "{ C[a, b] -> A[a, b] }"}, "C cannot stand for A|C_acc"),
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, x] }"}, "stands for several"),
    ],
)
def test_wrong_aliases(aliases: dict[str, str], why: str) -> None:
    before, after, right = lowered_product()
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, after, right | aliases)


def test_what_stands_for_nothing_may_hold_anything_but_not_be_read() -> None:
    before, after, aliases = lowered_product()
    copy = after.statement("C1")
    zero = Const(0.0, dtype="float32")
    fill = replace(copy, name="Z4", value=zero, constraints=("l > 40",), bounds=(*copy.bounds[:3], ("l", 32, 48), copy.bounds[4]))
    verify_lowering(before, replace(after, statements=(fill, *after.statements)), aliases)
    with pytest.raises(VerifyError, match="S1: it reads A_sh where"):
        over = replace(fill, bounds=copy.bounds, constraints=("l = 3",))
        verify_lowering(before, moved(replace(after, statements=(over, *after.statements)), "Z4", 3), aliases)


SUM = "def total(float(M,N) A) -> (s) { s(m) +=! A(m, n) }"


def lowered_sum() -> tuple[Scop, Scop, dict[str, str]]:
    """Sums of rows, and the same in 32 parts."""
    before = scop(SUM, {"A": (8, 96)}, BARE)
    text = """
def total(float(M,N) A) -> (s) {
    s(m) = 0.0 where m in 0:M
    P(t, m) = 0.0 where m in 0:M, t in 0:32
    P(n % 32, m) += A(m, n) where m in 0:M, n in 0:N
    s(m) += P(t, m) where m in 0:M, t in 0:32
}"""
    made = scop(text, {"A": (8, 96)}, BARE)
    start, add = before.statements
    zero = replace(made.statements[1], name="I1", value=Const(0.0, dtype="float32"))
    parts = replace(made.statements[2], name="S1", source=add.source)
    assert parts.bounds == add.bounds and parts.reduction == add.reduction
    combine = replace(made.statements[3], name="R2")
    after = replace(before, statements=(start, zero, parts, combine), tensors=made.tensors)
    return before, after, {"P": "{ P[t, m] -> s[m] }"}


def test_partial_sums_are_accepted() -> None:
    before, after, aliases = lowered_sum()
    verify_lowering(before, after, aliases)
    verify_lowering(before, moved(after, "I1", 0), aliases)


SUM_MUTANTS: dict[str, tuple[Callable[[Scop], Scop], str]] = {
    "no start": (lambda a: dropped(a, "I1"), "S1: P does not start at the identity"),
    "a start of less": (lambda a: statement(a, "I1", constraints=("t < 31",)), "S1: P does not start at the identity"),
    "another start": (lambda a: statement(a, "I1", value=Const(1.0, dtype="float32")), "I1: it does not start P at the identity"),
    "a start too late": (lambda a: moved(a, "I1", 2), "P does not start at the identity"),
    "no end": (lambda a: dropped(a, "R2"), "S1|the output s"),
    "an end of less": (lambda a: statement(a, "R2", constraints=("t < 31",)), "R2: it does not add all of P"),
    "an end too early": (lambda a: moved(a, "R2", 2), "the output s lacks"),
    "twice": (
        lambda a: replace(a, statements=(*a.statements, replace(a.statement("R2"), name="R3"))),
        "R3: .*adds what holds nothing",
    ),
    "each part twice": (
        lambda a: statement(a, "R2", bounds=(*a.statement("R2").bounds, ("u", 0, 2))),
        "R2: it does not add each of P once",
    ),
    "combined by another operator": (lambda a: statement(a, "R2", operator="max="), "I1: it does not start|S1"),
    "added to another row": (
        lambda a: statement(a, "R2", subscripts=(Binary("-", Const(7, dtype="int64"), Index("m", dtype="int64"), dtype="int64"),)),
        "R2: s and P do not stand for the same",
    ),
    "the start of the sum after it": (lambda a: moved(a, "S0", 3), "S0: it must stay before S1"),
}


@pytest.mark.parametrize("name", list(SUM_MUTANTS))
def test_broken_partial_sums(name: str) -> None:
    before, after, aliases = lowered_sum()
    change, why = SUM_MUTANTS[name]
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, change(after), aliases)


def test_a_held_row_must_be_what_it_was_when_it_is_read() -> None:
    """A copy taken before its tensor changes does not hold the new values."""
    before = scop("def f(float(N) A) -> (B, C) { B(i) = A(i)  C(i) = B(i)  B(i) = B(i) * 2.0  C(i) = C(i) + B(i) }", {"A": (16,)}, BARE)
    held = Storage("B_held", "float32", (16,), "temporary")
    first, second, third, fourth = before.statements
    copy = replace(second, name="L4", tensor="B_held")

    def reading(s: ScopStatement) -> ScopStatement:
        return replace(s, value=renamed(s.value, "B", "B_held"))

    def after(*statements: ScopStatement) -> Scop:
        return replace(before, statements=statements, tensors=(*before.tensors, held))

    alias = {"B_held": "{ B_held[i] -> B[i] }"}
    verify_lowering(before, after(first, copy, reading(second), third, fourth), alias)
    verify_lowering(before, after(first, copy, second, reading(third), fourth), alias)
    with pytest.raises(VerifyError, match="S3: it reads B_held where that does not hold B"):
        verify_lowering(before, after(first, copy, second, third, reading(fourth)), alias)
    with pytest.raises(VerifyError, match="S1: it reads B_held where that does not hold B"):
        verify_lowering(before, after(copy, first, reading(second), third, fourth), alias)


def renamed(value: Expr, tensor: str, other: str) -> Expr:
    inner = rebuild(value, lambda child: renamed(child, tensor, other))
    return replace(inner, tensor=other) if isinstance(inner, Access) and inner.tensor == tensor else inner


def test_a_statement_that_reads_what_it_wrote() -> None:
    """Each element is the last one doubled: a copy of the tensor made before has only the first."""
    before = scop("def f(float(N) A) -> (B) { B(i) = A(i)  B(i) = B(i - 1) * 2.0 where i in 1:N }", {"A": (16,)}, BARE)
    first, second = before.statements
    held = Storage("B_held", "float32", (16,), "temporary")
    whole = replace(first, name="L2", tensor="B_held", value=Access("B", first.subscripts, dtype="float32"))
    stale = replace(second, value=renamed(second.value, "B", "B_held"))
    after = replace(before, statements=(first, whole, stale), tensors=(*before.tensors, held))
    with pytest.raises(VerifyError, match="S1: it reads B_held where it has written a newer value elsewhere"):
        verify_lowering(before, after, {"B_held": "{ B_held[i] -> B[i] }"})
    inside = replace(stale, tensor="B_held")
    store = replace(whole, name="W3", tensor="B", value=Access("B_held", first.subscripts, dtype="float32"))
    verify_lowering(before, replace(after, statements=(first, whole, inside, store)), {"B_held": "{ B_held[i] -> B[i] }"})


# ---------------------------------------------------------------- what the passes make


@pytest.mark.parametrize(
    "text, shapes, options",
    [
        (MATMUL, {"A": (1024, 64), "B": (64, 1024)}, Options()),
        (MATMUL, {"A": (100, 30), "B": (30, 70)}, Options()),
        (MATMUL, {"A": (256, 64), "B": (64, 256)}, Options(stages=3)),
        (SOFTMAX, {"I": (100, 2048)}, Options()),
        (SOFTMAX, {"I": (100, 50)}, Options()),
    ],
)
def test_every_barrier_of_a_mapped_program_is_needed(text: str, shapes: dict[str, tuple[int, ...]], options: Options) -> None:
    made = map_gpu(program(text, shapes), options, SM_90)
    deps = dependences(made.scop)
    verify(made.scop, deps, made.tree)
    verify_privates(made.scop, deps, made.tree, made.privates)
    verify_fences(made.scop, made.tree, made.privates, made.launches)
    barriers = sum(line.strip().startswith(('mark: "sync', '- mark: "sync')) for line in trees.show(made.tree).splitlines())
    assert barriers
    for number in range(barriers):
        with pytest.raises(VerifyError, match="fences|structure"):
            verify_fences(made.scop, without(made.tree, number), made.privates, made.launches)


def without(mapped: isl.Schedule, number: int) -> isl.Schedule:
    """A tree without one of its barriers."""
    count = iter(range(1 << 10))

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        return node.delete() if trees.mark_name(node).startswith("sync ") and next(count) == number else node

    return trees.rewrite(mapped, visit)
