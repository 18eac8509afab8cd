"""The passes that map a program to a GPU: statements and trees as text, and what lowered programs compute when run step by step.

Modules: mapping.assemble mapping.footprint mapping.gpu_nest mapping.passes.allocate mapping.passes.map_to_blocks
mapping.passes.map_to_threads mapping.passes.promote_to_registers mapping.passes.promote_to_shared mapping.passes.split_reduction
mapping.passes.synchronise mapping.scop_builder
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from support.fuzz.programs import draw
from support.mapping import GOLDEN, LAYER, MATMUL, SMALL, SOFTMAX, TOTAL, program
from support.pairs import pairs
from support.run import failure

import tcjit
from tcjit.codegen.dialect import OPENCL as CL
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import MappingError
from tcjit.mapping import pipeline
from tcjit.mapping import tree as trees
from tcjit.mapping.machine import OPENCL, SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_gpu

Golden = Callable[[str], None]


def mapped(text: str, shapes: Mapping[str, tuple[int, ...]], device: Device = SM_90, **options: object) -> Mapped:
    return map_gpu(program(text, shapes), Options(**options), device)  # type: ignore[arg-type]


def shown(made: Mapped) -> str:
    """Statements, tree, buffers and launches."""
    parts = ["; ".join(str(axis.parts) for axis in b.axes) for b in made.privates]
    buffers = [f"{b.tensor} {b.space} {b.elements} below {b.mark}: {text}" for b, text in zip(made.privates, parts, strict=True)]
    launches = [f"{launch.mark}: {launch.threads} threads" for launch in made.launches]
    return "\n".join([made.scop.show(), trees.show(made.tree), *buffers, *launches]) + "\n"


@pytest.mark.parametrize(("text", "shapes", "options"), GOLDEN.values(), ids=GOLDEN)
def test_mapped_programs(golden: Golden, text: str, shapes: dict[str, tuple[int, ...]], options: dict[str, object]) -> None:
    golden(shown(mapped(text, shapes, SMALL, **options)))


# ---------------------------------------------------------------- what is decided


def test_a_contraction_gets_a_tile_of_threads_with_results_each() -> None:
    made = mapped(MATMUL, {"A": (4096, 4096), "B": (4096, 4096)})
    assert [(b.tensor, b.space, b.elements) for b in made.privates] == [
        ("A_shared", "shared", 3 * 128 * (16 + 4)),  # as it lies, with neighbouring rows in different banks
        ("B_shared", "shared", 3 * 16 * 128),
        ("C_held", "thread", 64),
    ]
    assert [launch.threads for launch in made.launches] == [256]
    assert trees.show(made.tree).count('mark: "sync block"') == 1
    waiting = mapped(MATMUL, {"A": (4096, 4096), "B": (4096, 4096)}, replace(SM_90, capabilities=frozenset()))
    assert [b.elements for b in waiting.privates] == [16 * 132, 16 * 128, 64]
    assert trees.show(waiting.tree).count('mark: "sync block"') == 2


def test_options_of_a_contraction() -> None:
    asked = {"threads": (8, 16), "registers": (4, 2), "reduction_tile": 16, "reduction_chunks": 1}
    made = mapped(MATMUL, {"A": (512, 512), "B": (512, 512)}, shared=True, **asked)
    sizes = {b.tensor: b.elements for b in made.privates}
    assert made.launches[0].threads == 128
    assert sizes == {"A_shared": 3 * 8 * 4 * (16 + 4), "B_shared": 3 * 16 * 32, "C_held": 8}
    bare = mapped(MATMUL, {"A": (512, 512), "B": (512, 512)}, shared=False)
    assert {b.space for b in bare.privates} == {"thread"}


@pairs(name=list(GOLDEN), block=(1, 33, 100, 128), device={device.name: device for device in (SMALL, SM_90, OPENCL)})
def test_no_block_is_larger_than_asked(name: str, block: int, device: Device) -> None:
    text, shapes, options = GOLDEN[name]
    made = mapped(text, shapes, device, **{**options, "threads": (), "block": block})
    assert max(launch.threads for launch in made.launches) <= block


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(MappingError, match=r"option threads = \(8, 16\) asks for 128 threads, and option block = 64 for fewer") as raised:
        mapped(MATMUL, {"A": (64, 64), "B": (64, 64)}, threads=(8, 16), block=64)
    assert raised.value.hint


def test_a_row_is_read_once_and_stays_with_its_threads() -> None:
    made = mapped(SOFTMAX, {"I": (4096, 4096)})
    reads = [s.name for s in made.scop.statements for a, _ in s.reads if a.tensor == "I"]
    assert len(reads) == 1
    spaces = {b.tensor: (b.space, b.elements) for b in made.privates}
    assert spaces["I_held"] == ("thread", 16)
    assert spaces["O_held"] == ("thread", 16)
    assert spaces["top"] == ("shared", 1)
    assert made.launches[0].threads == 256


def test_short_rows_share_a_warp_and_need_no_barrier_of_the_block() -> None:
    made = mapped(SOFTMAX, {"I": (4096, 64)})
    text = trees.show(made.tree)
    assert "sync warp" in text
    assert "sync block" not in text


def test_a_device_without_warp_barriers_gets_barriers_of_the_block() -> None:
    assert "sync warp" not in trees.show(mapped(SOFTMAX, {"I": (4096, 64)}, OPENCL).tree)


def test_a_long_reduction_with_few_results_is_spread_over_blocks() -> None:
    made = mapped(TOTAL, {"A": (4096, 4096)})
    assert len(made.launches) == 2
    assert any(t.name == "S_part" and t.shape[0] >= 2 * SM_90.processors for t in made.scop.tensors)


def test_dependences_across_blocks_need_another_launch() -> None:
    text = "def f(float(N,N) A) -> (B, C) { B(i,j) = A(i,j) * 2  C(i,j) = B(j,i) + B(i,j) }"
    assert len(mapped(text, {"A": (64, 64)}).launches) == 2


def test_lowering_is_the_same_every_time() -> None:
    shapes = {"X": (64, 64), "W": (64, 64), "b": (64,)}
    assert shown(mapped(LAYER, shapes)) == shown(mapped(LAYER, shapes))


# ---------------------------------------------------------------- run one after the other


@pytest.fixture
def serially(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU target runs the GPU's statements in the order of the tree, threads after one another, every temporary in full."""

    def map_program(program: object, options: Options, machine: object, layouts: object = None, **rest: object) -> Mapped:
        device = random.Random(str(program)).choice([SM_90, SMALL, OPENCL])
        return dataclasses.replace(map_gpu(program, options, device, layouts, **rest), privates=())  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "map_program", map_program)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(4))
def test_lowered_programs_compute_the_same(serially: None, shard: int) -> None:
    """`make soak` runs more of what this mapping makes, on two GPU targets."""
    for number in range(shard, 24, 4):
        case = draw(random.Random(f"gpu {number}"))
        what = failure(case, "cpu")
        assert not what, f"program {number}: {what}\n{case.text}"


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 65, 17), (128, 20, 40)])
def test_lowered_products(serially: None, shape: tuple[int, int, int], stages: int) -> None:
    m, k, n = shape
    a, b = torch.randn(m, k), torch.randn(k, n)
    for options in (Options(pipeline_stages=stages), Options(pipeline_stages=stages, threads=(4, 8), registers=(3, 2), reduction_tile=5)):
        found = tcjit.define(MATMUL + f"# {shape} {stages}", options=options).matmul(a, b)
        torch.testing.assert_close(found, a @ b)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("terms", [257, 256, 250])
def test_copies_of_a_shorter_part_are_all_waited_for(terms: int, stages: int) -> None:
    """The last of eight parts of a reduction has fewer terms than the others, and so perhaps fewer steps."""
    text = "def f(uint64(2) W, int8(K) X, double(J,L) A) -> (Y) { Y(j, l) min=! A(j, l) * W(1) * X(j + m) }"
    shapes = {"W": (2,), "X": (63 + terms,), "A": (64, 5)}
    options = Options(reduction_chunks=8, pipeline_stages=stages)
    made = map_gpu(program(text, shapes), options, OPENCL)  # proved, barriers and waits too
    assert made.verified and len(made.launches) == 2 and '"wait_group' in trees.show(made.tree)


def test_shared_memory_leaves_room_for_what_combines_parts() -> None:
    """A row kept in shared memory would fill it to the last byte, and the trees of an OpenCL device need some of it."""
    text = """def f(float(M,N) X) -> (Z) {
        s(m) +=! X(m, n)
        Y(m, n) = X(m, n) - s(m)
        Z(m, n) = Y(m, N - 1 - n) + s(m)
    }"""
    device = dataclasses.replace(OPENCL, shared_bytes=8192, max_shared_bytes=8192)
    for columns in (1000, 1990, 2000, 2040, 2048):
        launches = emit_gpu(mapped(text, {"X": (8, columns)}, device), CL, device, checked=True).launches
        assert max(launch.shared_bytes for launch in launches) <= 8192


@pytest.mark.parametrize(("stride", "reason"), [(2, ""), (6, "residue classes: more than"), (7, "combinations of residues: more than")])
def test_too_many_residue_classes_are_told(stride: int, reason: str) -> None:
    """A sum keeps its conditions then, and says why."""
    inside = f"y >= 0 && y < {stride}*H && y % {stride} == 0 && x >= 0 && x < {stride}*W && x % {stride} == 0"
    text = f"""def f(float(N,C,H,W) X, float(C,F,K,L) G) -> (O) {{
        O(n,f,h,w) +=! ({inside}) ? X(n,c,y/{stride},x/{stride}) * G(c,f,k,l) : 0.0
            where h in 0:60, w in 0:60, y = h - k, x = w - l }}"""
    made = map_gpu(program(text, {"X": (2, 4, 8, 8), "G": (4, 4, 1, 1) if stride == 6 else (4, 4, 3, 3)}), Options(), SM_90)
    assert made.verified and reason in " ".join(made.reductions) and bool(made.reductions) == bool(reason)
