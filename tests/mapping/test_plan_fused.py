"""Which groups share a kernel on a GPU, what stays in shared memory between them, and what is proved of temporaries for live ranges.

Modules: mapping.plan_fused mapping.gpu.kernel_time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.mapping import LAYER, MATMUL, SMALL, SOFTMAX, program

from tcjit import library
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.machine import OPENCL, SM_80, SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, build_scop, map_gpu
from tcjit.mapping.plan_fused import range_aliases, split_live_range
from tcjit.mapping.scop import Scop
from tcjit.mapping.value_flow import verify_lowering
from tcjit.step import Steps

Shapes = Mapping[str, tuple[int, ...]]
ROWS = """def rows(float(M,K) X, float(N,K) W) -> (Y) {
    S(m, n) +=! X(m, k) * W(n, k)
    top(m) max=! S(m, n)
    S(m, n) = exp(S(m, n) - top(m))
    total(m) +=! S(m, n)
    Y(m, n) = S(m, n) / total(m)
}"""
IN_PLACE = """def norm(float(M,K) X, float(N,K) W) -> (Y) {
    Y(m, n) +=! X(m, k) * W(n, k)
    mean(m) +=! Y(m, n)
    mean(m) = mean(m) / N
    var(m) +=! (Y(m, n) - mean(m)) * (Y(m, n) - mean(m))
    Y(m, n) = (Y(m, n) - mean(m)) * rsqrt(var(m) / N + 1e-5)
}"""
LAYERS = """def layers(float(B,I) X, float(O,I) W, float(P,O) V) -> (Z) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o) = fmax(Y(n, o), 0.0)
    Z(n, p) +=! Y(n, o) * V(p, o)
}"""
TURNED = """def turned(float(M,K) X, float(N,K) W) -> (Z) {
    Y(m, n) +=! X(m, k) * W(n, k)
    top(n) max=! Y(m, n)
    Z(n, m) = exp(Y(m, n) - top(n))
}"""


def heads(keys: int, queries: int = 0) -> Shapes:
    return {"Query": (8, 16, queries or keys, 64), "Key": (8, 16, keys, 64), "Value": (8, 16, keys, 64)}


def mapped(text: str, shapes: Shapes, device: Device = SM_90, **options: Any) -> tuple[Mapped, str]:
    """A mapping, proved, and what was considered."""
    steps = Steps("test")
    made = map_gpu(program(text, shapes), Options(**options), device, steps=steps)
    return made, steps.artifacts["plan"]


def shared(made: Mapped) -> dict[str, int]:
    """The elements of arrays in shared memory that are no copies of what lies elsewhere."""
    return {b.tensor: b.elements for b in made.privates if b.space == "shared" and not b.tensor.endswith("_shared")}


def in_memory(made: Mapped) -> set[str]:
    """Temporaries that go through the workspace."""
    return {t.name for t in made.scop.tensors if t.role == "temporary"} - {b.tensor for b in made.privates}


# ---------------------------------------------------------------- what shares a kernel


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_and_their_softmax_share_a_kernel(dtype: str) -> None:
    """The product with the values has larger tiles in a kernel of its own, which save more than its operand costs."""
    made, text = mapped(library.source("attention", dtype), heads(512))
    assert len(made.launches) == 2
    assert in_memory(made) == {"S", "total"}
    assert shared(made)["S_before"] == 32 * (512 + 4)
    assert "S | top S total | O Y in one kernel" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_short_attention_is_one_kernel(dtype: str) -> None:
    made, _ = mapped(library.source("attention", dtype), heads(128))
    assert len(made.launches) == 1
    assert not in_memory(made)
    assert {"S", "total"} <= set(shared(made))


def test_causal_attention() -> None:
    made, _ = mapped(library.source("causal_attention", "float32"), heads(512))
    assert len(made.launches) == 2
    assert "S_before" in shared(made)


def test_rows_that_find_no_room_stay_in_memory() -> None:
    made, text = mapped(library.source("attention", "float32"), heads(16384))
    assert len(made.launches) == 3
    assert text.count("no tile fits in shared memory") == 3
    assert "S_before" not in {t.name for t in made.scop.tensors}


def test_a_device_with_less_shared_memory_takes_fewer_rows() -> None:
    rows = {"X": (8192, 16), "W": (2048, 16)}
    assert shared(mapped(ROWS, rows, SM_90)[0])["S"] == 16 * (2048 + 4)
    assert len(mapped(ROWS, rows, SM_80)[0].launches) == 2
    small, _ = mapped(ROWS, rows, OPENCL)
    assert len(small.launches) == 2


PROGRAMS: dict[str, tuple[str, Shapes, int]] = {
    "softmax_of_a_product": (ROWS, {"X": (8192, 128), "W": (512, 128)}, 1),
    "softmax_of_a_long_product": (ROWS, {"X": (8192, 4096), "W": (512, 4096)}, 2),
    "norm_in_place": (IN_PLACE, {"X": (8192, 64), "W": (512, 64)}, 1),
    "narrow_middle": (LAYERS, {"X": (8192, 256), "W": (32, 256), "V": (256, 32)}, 1),
    "wide_middle": (LAYERS, {"X": (4096, 4096), "W": (4096, 4096), "V": (4096, 4096)}, 2),
    "other_rows": (TURNED, {"X": (512, 64), "W": (512, 64)}, 2),
    "softmax": (SOFTMAX, {"I": (4096, 1024)}, 1),
    "layer": (LAYER, {"X": (4096, 512), "W": (512, 512), "b": (512,)}, 1),
}


@pytest.mark.parametrize(("text", "shapes", "launches"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs_and_their_kernels(text: str, shapes: Shapes, launches: int) -> None:
    made, _ = mapped(text, shapes)
    assert len(made.launches) == launches


def test_what_a_result_holds_in_between_is_a_temporary() -> None:
    """Only its last value is stored, once."""
    made, _ = mapped(IN_PLACE, {"X": (8192, 64), "W": (512, 64)})
    assert [s.name[0] for s in made.scop.statements if s.tensor == "Y"] in (["S"], ["W"])
    assert "Y_before" in shared(made)


def test_options_that_keep_groups_apart() -> None:
    shapes = {"X": (8192, 128), "W": (512, 128)}
    for options in ({"fusion": "minimal"}, {"shared": False}):
        made, text = mapped(ROWS, shapes, **options)
        assert len(made.launches) > 1
        assert "in one kernel" not in text


def test_parts_of_a_reduction_are_not_combined_by_the_block_that_makes_them() -> None:
    made, text = mapped(MATMUL, {"A": (16, 4096), "B": (4096, 16)}, reduction_chunks=16)
    assert len(made.launches) == 2
    assert "in one kernel" not in text


def test_what_is_not_read_again_is_not_stored() -> None:
    text = """def f(float(M,N) X) -> (Z) {
        S(m, n) = exp(X(m, n))
        top(m) max=! S(m, n)
        S(m, n) = S(m, n) - top(m)
        total(m) +=! S(m, n)
        Z +=! total(m)
    }"""
    made, _ = mapped(text, {"X": (4096, 1024)}, fusion="minimal")
    assert all(s.name.startswith("S") for s in made.scop.statements if s.tensor == "S")


@pytest.mark.parametrize("rows", [70, 96])
def test_rows_that_tiles_do_not_divide(rows: int) -> None:
    made, _ = mapped(ROWS, {"X": (rows, 20), "W": (50, 20)}, SMALL)
    assert len(made.launches) == 1


def test_copies_run_ahead_over_the_tiles_of_a_block() -> None:
    """Where the terms of a product make one step."""
    text = ROWS.replace("float(", "bfloat16(").replace("X(m, k) * W(n, k)", "float32(X(m, k) * W(n, k))")
    made, _ = mapped(text, {"X": (8192, 64), "W": (1024, 64)}, pipeline_stages=2)
    source = emit_gpu(made, CUDA, SM_90, checked=True)
    assert len(source.launches) == 1
    assert "tc_mma_bfloat" in source.text
    assert "tc_arrived_" in source.text


# ---------------------------------------------------------------- live ranges


def scop_of(text: str, shapes: Shapes) -> Scop:
    return build_scop(program(text, shapes), Options(), target=SM_90)


def split(text: str, shapes: Shapes) -> tuple[Scop, Scop]:
    before = scop_of(text, shapes)
    after = split_live_range(before, "Y", {s.name for s in before.statements})
    assert after is not None
    return before, after


def test_a_split_live_range_is_accepted() -> None:
    before, after = split(IN_PLACE, {"X": (20, 8), "W": (12, 8)})
    verify_lowering(before, after, range_aliases(before, after))
    assert [s.tensor for s in after.statements if s.tensor.startswith("Y")] == ["Y_before", "Y_before", "Y"]


def renamed(scop: Scop, number: int, **change: Any) -> Scop:
    """The scop with one of its statements changed."""
    statements = list(scop.statements)
    statements[number] = replace(statements[number], **change)
    return replace(scop, statements=tuple(statements))


def test_broken_live_ranges() -> None:
    before, after = split(IN_PLACE, {"X": (20, 8), "W": (12, 8)})
    last, aliases = len(after.statements) - 1, range_aliases(before, after)
    with pytest.raises(VerifyError, match="it reads Y where that does not hold Y"):
        verify_lowering(before, renamed(after, last, value=before.statements[last].value), aliases)
    with pytest.raises(VerifyError, match="in the end the output Y lacks"):
        verify_lowering(before, renamed(after, last, tensor="Y_before"), aliases)
    with pytest.raises(VerifyError, match=f"{after.statements[0].name}: its value changed"):
        verify_lowering(before, renamed(after, 0, value=Const(1.0, dtype="float32")), aliases)


UNSPLIT = {
    "part": "def f(float(M,N) X) -> (Y) { Y(m, n) = X(m, n)  Y(m, n) = 2 * Y(m, n) where m in 0:M, n in 1:N }",
    "read": "def f(float(M,N) X) -> (Y, Z) { Y(m, n) = X(m, n)  Z(m, n) = Y(m, n) + Y(m, N - 1 - n) where n in 0:N }",
    "updates": "def f(float(M,N) X) -> (Y) { Y(m, n) = X(m, n)  Y(m, n) += X(m, n) * Y(m, n) }",
    "once": "def f(float(M,N) X) -> (Y) { Y(m, n) = X(m, n) }",
}


@pytest.mark.parametrize("text", UNSPLIT.values(), ids=UNSPLIT)
def test_live_ranges_that_are_not_split(text: str) -> None:
    scop = scop_of(text, {"X": (6, 8)})
    assert split_live_range(scop, "Y", {s.name for s in scop.statements}) is None


def test_a_live_range_that_others_use_is_not_split() -> None:
    scop = scop_of(IN_PLACE, {"X": (20, 8), "W": (12, 8)})
    assert split_live_range(scop, "Y", {s.name for s in scop.statements[2:]}) is None
