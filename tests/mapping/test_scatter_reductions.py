"""Which reductions become scatters, their chunks, and the trees that run them in order, or as atomic updates.

Modules: mapping.passes.scatter_reductions mapping.passes.schedule_scatter mapping.gpu.scatter_time
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import VerifyError
from tcjit.mapping import tree as trees
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.dependences import dependences
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.passes.scatter_reductions import scatter_reductions
from tcjit.mapping.passes.schedule_scatter import schedule_scatter
from tcjit.mapping.passes.widen import widen
from tcjit.mapping.pipeline import build_scop, map_gpu, map_program
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.verify import verify

SUMS = "O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:40"
COUNTS = "O(v) +=! (I(n) == v) ? 1 : 0 where v in 0:64"


def text(body: str, kind: str = "float") -> str:
    return f"def f(int64(N) I, {kind}(N,D) X) -> (O) {{ {body} }}"


def shapes(n: int = 100, d: int = 20) -> dict[str, tuple[int, ...]]:
    return {"I": (n,), "X": (n, d)}


def before(body: str, n: int = 100, d: int = 20, kind: str = "float") -> Assignments:
    return widen(extract(program(text(body, kind), shapes(n, d))))


def shown(given: Assignments) -> list[str]:
    return [a.show() for a in scatter_reductions(given, AVX512, True).assignments]


@pytest.mark.parametrize(
    ("body", "update"),
    [
        (SUMS, "O(v, d) += v == I(n) ? X(n, d) : 0.0 where v in 0:40, d in 0:20, n in 0:100"),
        (
            "O(v,d) max=! (I(n) == v + 1 && d > v) ? X(n,d) : -infinity() where v in 0:40",
            "O(v, d) max= v == int64(I(n) - 1) ? d > v ? X(n, d) : -infinity() : -infinity() where v in 0:40, d in 0:20, n in 0:100",
        ),
        (
            "O(v,d) +=! (n > 0 && I(n-1) == v) ? X(n,d) : 0.0 where v in 0:40, n in 0:N",
            "O(v, d) += v == (n > 0 ? I(n - 1) : -1) ? X(n, d) : 0.0 where v in 0:40, d in 0:20, n in 0:100",
        ),
        (COUNTS, "O(v) += v == I(n) ? 1 : 0 where v in 0:64, n in 0:100"),
    ],
)
def test_scatters(body: str, update: str) -> None:
    found = scatter_reductions(before(body), AVX512, True)
    assert len(found.assignments) == 2 and shown(before(body))[1] == update
    start, scatter = found.assignments
    assert start.operator == "=" and not start.reduction and not start.scatter and start.bounds == scatter.results
    assert scatter.scatter == ("v",) and scatter.start is None


def test_halves_are_summed_in_float() -> None:
    found = shown(before(SUMS, kind="bfloat16"))
    assert found[1].startswith("O_wide(v, d) += v == I(n) ? float32(X(n, d)) : 0.0 where") and len(found) == 3


@pytest.mark.parametrize(
    "body",
    [
        SUMS.replace("==", "!="),
        SUMS.replace(": 0.0", ": 1.0"),
        SUMS.replace("0:40", "0:1"),  # too few results
        COUNTS.replace("0:64", "0:1"),
        "O(v,d) +=! (I((n + v) % N) == v) ? X(n,d) : 0.0 where v in 0:40, n in 0:N",
        "O(n,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:40",  # no index of a result
        "O(v,d) +=! (J((n + v) % N) > 0 && I(I(n)) == v) ? X(n,d) : 0.0 where v in 0:40, n in 0:N".replace("J", "I"),
    ],
)
def test_what_is_none(body: str) -> None:
    given = before(body)
    assert scatter_reductions(given, AVX512, True).assignments == given.assignments


def test_what_is_added_to_a_value() -> None:
    scatter = "O(v, d) += v == I(n) ? X(n, d) : 0.0 where v in 0:40, d in 0:20, n in 0:100"
    value = "O(v,d) = 1.0 where v in 0:40, d in 0:D "
    assert shown(before(value + SUMS.replace("+=!", "+=")))[1:] == ["O(v, d) += 0.0 where v in 0:40, d in 0:20", scatter]  # of a -0.0
    assert shown(before(SUMS + " " + SUMS.replace("+=!", "+=")))[1:] == [scatter, scatter]  # which a sum is never
    lowest = value + SUMS.replace("+=!", "min=").replace(": 0.0", ": infinity()")
    assert len(shown(before(lowest))) == 2


def test_a_sum_of_minus_zero() -> None:
    source = "def f(int64(N) I, float(N) X, float(V) Z) -> (O) { O(v) = Z(v)  O(v) += (I(n) == v) ? X(n) : 0.0 }"
    found = tcjit.define(source).f(torch.tensor([1, 1, 2]), torch.tensor([1.0, 2.0, -0.0]), torch.full((4,), -0.0))
    assert found.tolist() == [0.0, 3.0, 0.0, 0.0] and not found.signbit().any()


def test_chunks_of_many_terms() -> None:
    """Where threads have nothing else to share, or would share rows that come from memory; few terms for each result have none, and more
    results than stay in a cache."""
    assert shown(before(COUNTS, n=1 << 18)) == [
        "O_part(chunk, v) = 0 where chunk in 0:32, v in 0:64",
        "O_part(chunk, v) += v == I(chunk * 8192 + n) ? 1 : 0 where chunk in 0:32, v in 0:64, n in 0:8192",
        "O(v) = 0 where v in 0:64",
        "O(v) += O_part(chunk, v) where v in 0:64, chunk in 0:32",
    ]
    given = program(text(COUNTS), shapes(1 << 18))
    assert any(s.scatter for s in map_program(given, Options(), AVX512, prove="every").scop.statements)
    assert len(shown(before(COUNTS.replace("64", "6000"), n=1 << 18))) == len(shown(before(SUMS, n=1 << 18, d=8000))) == 2
    assert len(shown(before(SUMS, n=1 << 18, d=2000))) == 4 and len(shown(before(SUMS, n=64, d=2000))) == 2


def test_chunks_of_few_results() -> None:
    """Their combination is a reduction over other indices than the statement's."""
    made = program(text("O(v) +=! (I(n) == v) ? X(n,0) : 0.0 where v in 0:3"), shapes(1 << 18))
    scop = build_scop(made, Options(), target=AVX512, prove="every")
    assert [s.tensor for s in scop.statements] == ["O_part", "O_part", "O", "O"]


def scattered(body: str, n: int = 100, d: int = 20) -> tuple[Scop, ScopStatement]:
    scop = build_scop(program(text(body), shapes(n, d)), Options(), target=AVX512)
    s = next(s for s in scop.statements if s.scatter)
    return replace(scop, statements=(s,)), s


BANDS = {
    SUMS: ["n", "v", "d"],
    COUNTS: ["n", "v"],
    "O(v) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:64": ["n", "v", "d"],  # a sum of each row, in lanes
    "O(v,d,e) +=! (I(n) == v) ? X(n,d) * X(n,e) : 0.0 where v in 0:9": ["n", "v", "d", "e"],
    "O(v,d,e) +=! (I(n) == v) ? X(n,d) * X(n,e) : 0.0 where v in 0:40": ["floor((v", "n", "v", "d", "e"],  # threads
    "O(d,v) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:40": ["n", "v", "d"],
    "O(v,d) +=! (d > 3 && I(n) == v) ? X(n,d) : 0.0 where v in 0:64": ["d", "n", "v"],  # which is picked depends on d
}


@pytest.mark.parametrize("body", BANDS)
def test_trees_are_in_order_and_proved(body: str) -> None:
    scop, s = scattered(body)
    tree = schedule_scatter(scop, s, Options(), AVX512, count())
    verify(scop, dependences(scop), tree)
    lines = trees.show(tree).splitlines()
    assert [line.partition("-> [(")[2].partition(")")[0] for line in lines if "schedule:" in line] == BANDS[body]
    marks = [line.split('"')[1] for line in lines if "mark:" in line]
    assert [mark for mark in marks if mark not in ("parallel", "tiles 0")][:2] == ["tile 0", "scatter"]


def test_threads_take_blocks_of_long_rows() -> None:
    scop, s = scattered(SUMS, n=1000, d=200)
    tree = schedule_scatter(scop, s, Options(), AVX512, count())
    verify(scop, dependences(scop), tree)
    assert 'mark: "parallel"' in trees.show(tree) and "floor((d)/128)" in trees.show(tree)
    alone = trees.show(schedule_scatter(scop, s, Options(parallel=False), AVX512, count()))
    assert "parallel" not in alone and "floor" not in alone


def test_wrong_trees_are_refused() -> None:
    """A mark above another loop, and a loop over terms below the result that each of them picks."""
    scop, s = scattered(SUMS)
    deps = dependences(scop)
    good = trees.show(schedule_scatter(scop, s, Options(), AVX512, count()))

    def renamed(**loops: str) -> str:
        """The tree with loops over other dimensions."""
        marked = good
        for old in loops:
            marked = marked.replace(f"-> [({old})]", f"-> [<{old}>]")
        for old, new in loops.items():
            marked = marked.replace(f"-> [<{old}>]", f"-> [({new})]")
        return marked

    wrong = {
        renamed(n="v", v="n"): "no loop over the dimension",
        renamed(v="v + 1"): "no loop over the dimension",
        renamed(n="d", d="n"): "a loop inside changes what picks",
    }
    for text, why in wrong.items():
        with pytest.raises(VerifyError, match=why):
            verify(scop, deps, trees.read(scop.ctx, text))


GPU = replace(SM_90, processors=1)


def gpu_shown(given: Assignments, device: Device = GPU) -> list[str]:
    return [a.show() for a in scatter_reductions(given, device, True).assignments]


def test_atomic_updates_on_a_gpu() -> None:
    assert gpu_shown(before(SUMS)) == shown(before(SUMS))
    assert gpu_shown(before(SUMS), SM_90) == [a.show() for a in before(SUMS).assignments]  # few pairs for so many processors
    assert len(gpu_shown(before(SUMS, n=1 << 14), SM_90)) == 2
    for kind in ("int32", "int64", "uint32", "double"):
        assert len(gpu_shown(before(SUMS.replace("0.0", "0"), kind=kind))) == 2, kind
    assert len(gpu_shown(before(SUMS.replace("0.0", "0"), kind="int8"))) == 1  # of 8 bits
    assert gpu_shown(before(SUMS, kind="bfloat16"))[1].startswith("O_wide(v, d) += v == I(n)")


@pytest.mark.parametrize(
    ("body", "kind", "without", "atomic"),
    [
        (SUMS, "float", "atomic_float_sums", False),
        (COUNTS, "float", "atomic_float_sums", True),
        (SUMS.replace("+=", "max=").replace("0.0", "-infinity()"), "float", "atomic_float_sums", True),
        (SUMS, "double", "atomic64", False),
        (SUMS, "float", "atomic64", True),
        (SUMS, "float", "atomic32", False),
        (SUMS.replace("+=", "*=").replace("0.0", "1.0"), "float", "", False),
    ],
)
def test_what_a_gpu_updates_atomically(body: str, kind: str, without: str, atomic: bool) -> None:
    device = replace(GPU, capabilities=GPU.capabilities - {without})
    assert (len(gpu_shown(before(body, n=1000, kind=kind), device)) == 2) is atomic


def test_extrema_of_what_may_be_a_nan_are_no_atomic_updates() -> None:
    """Which has bits of either sign."""
    value, greatest = "O(v,d) = 1.0 where v in 0:40, d in 0:D ", SUMS.replace("+=!", "max=").replace("0.0", "-infinity()")
    assert gpu_shown(before(value + greatest)) == [a.show() for a in before(value + greatest).assignments]
    assert "scatter" not in str(gpu_shown(before(value + greatest))) and len(gpu_shown(before(value + SUMS.replace("+=!", "+=")))) == 3


def test_chunks_of_few_results_on_a_gpu() -> None:
    """Updates of one element come one after the other: partial results of chunks, neighbours in the grid, have some each."""
    few = COUNTS.replace("64", "4")
    found = gpu_shown(before(few, n=1 << 18))
    assert found[0] == "O_part(chunk, v) = 0 where chunk in 0:128, v in 0:4" and len(found) == 4
    assert len(gpu_shown(before(COUNTS.replace("64", "4000"), n=1 << 18), SM_90)) == 2
    mapped = map_gpu(program(text(few), shapes(1 << 18)), Options(), GPU, prove="every")
    update = trees.show(mapped.tree).partition('mark: "launch 1"')[2]
    assert "[{ S1[chunk, v, n] -> [(floor((n)/256))] }, { S1[chunk, v, n] -> [(chunk)] }]" in update


def test_threads_of_a_scatter_go_along_rows() -> None:
    mapped = map_gpu(program(text(SUMS), shapes(1 << 14, 48)), Options(), SM_90, prove="every")
    assert mapped.reductions == ("O: scatter along v",)
    below = trees.show(mapped.tree).partition('mark: "launch 1"')[2]
    marks = [line.split('"')[1] for line in below.splitlines() if "mark:" in line]
    assert marks == ["grid", "block 1", "threads 5x48", "atomic", "scatter"]
    assert mapped.launches[1].threads == 5 * 48


def test_threads_sum_what_data_do_not_tell_apart() -> None:
    """If there are threads enough, or few such terms."""
    rows = "O(v) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:400"
    for n, d, inside in ((1 << 12, 4, True), (1 << 12, 40, False), (1 << 15, 40, True)):
        mapped = map_gpu(program(text(rows), shapes(n, d)), Options(), SM_90, prove="every")
        bands = [line.partition("-> [(")[2].partition(")]")[0] for line in trees.show(mapped.tree).splitlines() if "schedule:" in line]
        assert (bands[-1] == "d") is inside and bands[-2 if inside else -1] == "v"
        source = emit_gpu(mapped, CUDA, SM_90, checked=True).text
        assert ("tc_atomic_add_f32(&O[c2], tc_sum);" in source) is inside, source


def test_only_for_a_cpu_with_nests() -> None:
    given = program(text(SUMS), shapes())
    mapped = map_program(given, Options(), AVX512)
    assert any(s.scatter for s in mapped.scop.statements) and mapped.reductions == ("O: scatter along v",)
    assert not any(s.scatter for s in map_program(given, Options(vector_width=1), AVX512).scop.statements)


@pytest.mark.parametrize(
    "first",
    ["S(v) +=! (I(n) == v) ? X(n,0) : 0.0 where v in 0:40", "S(i) +=! (j <= i) ? X(j,0) : 0.0 where i in 0:N, j in 0:N"],
    ids=["scatter", "scan"],
)
def test_nests_behind_one_keep_their_epilogues(first: str) -> None:
    body = f"{first}  P(n,e) +=! X(n,d) * W(d,e)  O(n,e) = max(P(n,e), 0.0)"
    made = program(f"def f(int64(N) I, float(N,D) X, float(D,E) W) -> (S, O) {{ {body} }}", {"I": (64,), "X": (64, 64), "W": (64, 64)})
    scop = map_program(made, Options(), AVX512).scop
    assert [s.tensor for s in scop.statements if s.fused] == ["O"]


@pytest.mark.parametrize("guard", ["n < N && I(n) == v", "n >= M && I(n - M) == v"])
def test_what_a_condition_before_guards_stays_guarded(guard: str) -> None:
    """Terms and further data are read only where they have elements."""
    shift = " - M" if "M" in guard else ""
    text = f"""def f(int64(N) I, int64(N) J, float(N) Z, float(M) B, float(V) W) -> (Y, X) {{
        Y(v) +=! ({guard}) ? Z(n{shift}) : 0.0 where n in 0:N+M, v in 0:V
        X(v, d) +=! ({guard} && J(n{shift}) == d) ? Z(n{shift}) : 0.0 where n in 0:N+M, v in 0:V, d in 0:5 }}"""
    first, second, z = torch.randint(0, 7, (30,)), torch.randint(0, 5, (30,)), torch.randn(30)
    y, x = tcjit.define(text)["f"](first, second, z, torch.randn(11), torch.randn(7))
    torch.testing.assert_close(y, torch.zeros(7).index_add(0, first, z))
    torch.testing.assert_close(x, torch.zeros(7, 5).index_put((first, second), z, accumulate=True))
