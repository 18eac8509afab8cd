"""verify accepts what the pipeline makes, and refuses mutants of it: that is the promise that a kernel is never wrong.

Modules: mapping.passes.tile mapping.storage
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import islpy as isl
import pytest
from support.mapping import AVX512, GATHER, MATMUL, SOFTMAX, mapped, program, scop

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Program
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.mapping import tree as trees
from tcjit.mapping.dependences import Dependences, dependences
from tcjit.mapping.marks import Simd, Tile, parse
from tcjit.mapping.options import Options
from tcjit.mapping.passes import tile as tiling
from tcjit.mapping.passes.fuse import fuse, fused_groups
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Axis, Buffer
from tcjit.mapping.tree import insert_mark
from tcjit.mapping.verify import verify, verify_privates

SHAPES = {"A": (40, 24), "B": (24, 70)}


@pytest.mark.parametrize(
    "text, shapes",
    [(MATMUL, SHAPES), (SOFTMAX, {"I": (20, 33)}), (GATHER, {"T": (7, 3), "I": (2, 5)}), (MATMUL, {"A": (1, 1), "B": (1, 1)})],
)
@pytest.mark.parametrize(
    "options",
    [Options(vector_width=1), Options.preset("naive"), Options(vector_width=1, fusion="maximal"), Options(vector_width=1, tile=(3, 5))],
)
def test_mapped_trees_are_accepted(text: str, shapes: dict[str, tuple[int, ...]], options: Options) -> None:
    made = mapped(text, shapes, options)
    assert made.verified
    verify(made.scop, dependences(made.scop), made.tree)


def assert_refused(made: Scop, text: str, promise: str) -> None:
    """The tree in ``text`` is refused for breaking ``promise``."""
    with pytest.raises(VerifyError, match=promise):
        verify(made, dependences(made), trees.read(made.ctx, text))


def test_a_lost_instance() -> None:
    made = mapped(MATMUL, SHAPES)
    smaller = made.tree.intersect_domain(made.scop.domain.subtract(isl.UnionSet.read_from_str(made.scop.ctx, "{ S1[3, 4, 5] }")))
    with pytest.raises(VerifyError, match="coverage"):
        verify(made.scop, dependences(made.scop), smaller)


def sequence(made: Scop, *filters: str) -> str:
    children = "".join(f"\n  - filter: \"{{ {one} }}\"" for one in filters)
    return f"domain: \"{made.domain}\"\nchild:\n  sequence:{children}"


def test_a_lost_child_and_a_doubled_one() -> None:
    made = scop("def f(float(N) A) -> (B, C) { B(i) = A(i)  C(i) = A(i) }", {"A": (8,)})
    assert_refused(made, sequence(made, "S0[i]"), "coverage")
    assert_refused(made, sequence(made, "S0[i]", "S1[i]", "S1[i] : i = 3"), "coverage")
    verify(made, dependences(made), trees.read(made.ctx, sequence(made, "S1[i]", "S0[i]")))


def test_a_use_before_its_definition() -> None:
    made = scop("def f(float(N) A) -> (C) { B(i) = A(i)  C(i) = B(i) }", {"A": (8,)})
    assert_refused(made, sequence(made, "S1[i]", "S0[i]"), "order")
    verify(made, dependences(made), trees.read(made.ctx, sequence(made, "S0[i]", "S1[i]")))


def test_a_reversed_loop_that_dependences_forbid() -> None:
    made = scop("def f(float(N) A) -> (C) { B(i) = A(i)  C(i) +=! B(j) where i in 0:N }", {"A": (8,)})
    shared = "[{ S0[i] -> [(i)]; S1[i] -> [(i)]; S2[i, j] -> [(i)] }]"
    fused = f"domain: \"{made.domain}\"\nchild:\n  schedule: \"{shared}\"\n  child:\n    sequence:"
    fused += "".join(f"\n    - filter: \"{{ {s} }}\"" for s in ("S0[i]", "S1[i]", "S2[i, j]"))
    assert_refused(made, fused, "order")


def test_a_dropped_dependence_lets_a_wrong_tree_through() -> None:
    """The proof rests on the dependences: without one, the tree that test_a_use_before_its_definition refuses would pass."""
    made = scop("def f(float(N) A) -> (C) { B(i) = A(i)  C(i) = B(i) }", {"A": (8,)})
    deps = dependences(made)
    wrong = trees.read(made.ctx, sequence(made, "S1[i]", "S0[i]"))
    with pytest.raises(VerifyError):
        verify(made, deps, wrong)
    verify(made, replace(deps, strict=deps.strict.subtract(deps.strict)), wrong)


@pytest.mark.parametrize("names, refused", [(("parallel", "tile_loops"), "reductions"), (("simd",), None)])
def test_a_reduction_run_at_once(names: tuple[str, ...], refused: str | None) -> None:
    made = scop("def f(float(N,K) A) -> (r) { r(i) +=! A(i,k) }", {"A": (8, 8)}, Options(vector_width=1, reduction_chunks=1))
    node = trees.read(made.ctx, sequence(made, "S0[i]", "S1[i, k]")).get_root().child(0).child(1).child(0)
    node = node.insert_partial_schedule(isl.MultiUnionPwAff.read_from_str(made.ctx, "[{ S1[i, k] -> [(k)] }]"))
    for name in reversed(names):
        node = insert_mark(node, parse(name))
    if refused is None:
        verify(made, dependences(made), node.get_schedule())
    else:
        with pytest.raises(VerifyError, match=refused):
            verify(made, dependences(made), node.get_schedule())


def test_dependent_lanes() -> None:
    made = scop("def f(float(N) A) -> (C) { B(i) = A(i)  C(i) = B(i) }", {"A": (8,)})
    node = isl.Schedule.from_domain(made.domain).get_root().child(0)
    node = node.insert_partial_schedule(isl.MultiUnionPwAff.read_from_str(made.ctx, "[{ S0[i] -> [(i)]; S1[i] -> [(i + 1)] }]"))
    verify(made, dependences(made), node.get_schedule())
    with pytest.raises(VerifyError, match="order"):
        verify(made, dependences(made), insert_mark(node, Simd()).get_schedule())


def test_a_shifted_access_leaves_the_tensor() -> None:
    made = scop("def f(float(N) A) -> (C) { C(i) = A(i) }", {"A": (8,)})
    first = made.statements[0]
    moved = replace(first, bounds=(("i", 1, 9),))
    mutant = replace(made, statements=(moved,))
    with pytest.raises(VerifyError, match="bounds"):
        verify(mutant, dependences(mutant), isl.Schedule.from_domain(mutant.domain))


def test_a_read_that_leaves_the_tensor() -> None:
    """While all writes stay inside theirs."""
    made = scop("def f(float(N) A) -> (C) { C(i) = A(i) }", {"A": (8,)})
    verify(made, dependences(made), isl.Schedule.from_domain(made.domain))
    shorter = replace(made, tensors=tuple(replace(t, shape=(7,)) if t.name == "A" else t for t in made.tensors))
    with pytest.raises(VerifyError, match=r"bounds: accesses outside.*A\["):
        verify(shorter, dependences(shorter), isl.Schedule.from_domain(shorter.domain))


def test_private_buffers_too_small_or_in_the_wrong_place() -> None:
    text = "def f(float(M,N) A) -> (C) { B(i,j) = A(i,j)  D(j,i) = B(i,j)  C(i,j) = B(i,j) + D(j,i) }"
    made = mapped(text, {"A": (50, 60)})
    deps = dependences(made.scop)
    assert {p.tensor for p in made.privates} == {"B", "D"}
    verify_privates(made.scop, deps, made.tree, made.privates)
    one = made.privates[0]
    axes = tuple(replace(axis, parts=tuple((d, max(1, m - 1), k) for d, m, k in axis.parts)) for axis in one.axes)
    smaller = replace(one, axes=axes)
    with pytest.raises(VerifyError, match="share a slot"):
        verify_privates(made.scop, deps, made.tree, [smaller])
    with pytest.raises(VerifyError, match="no place"):
        verify_privates(made.scop, deps, made.tree, [replace(one, mark=Tile(1 << 10))])


def test_a_value_that_crosses_tiles_cannot_be_private() -> None:
    text = "def f(float(N) A) -> (C) { B(i) = A(i)  C(i) +=! B(j) where i in 0:N }"
    made = mapped(text, {"A": (4096,)}, Options(vector_width=1, fusion="minimal"))
    deps = dependences(made.scop)
    assert made.privates == ()
    with pytest.raises(VerifyError, match="value flow"):
        verify_privates(made.scop, deps, made.tree, [Buffer("B", Tile(0), "thread", (Axis(0, ((1, 4096, 1),)),), 4096)])


@pytest.mark.parametrize("reader", [1, 2])
def test_a_compiler_that_drops_a_dependence_is_refused(reader: int) -> None:
    """The mapping is made without the dependences of one use at a distance, so that it shares a loop, and judged with all of them."""
    made = scop("def f(float(N) A) -> (C) { B(i) = A(i)  D(i) = B(i) + B(N - 1 - i)  C(i) = D(i) + D(N - 1 - i) }", {"A": (8,)})
    true = dependences(made)
    lost = isl.UnionMap.read_from_str(made.ctx, f"{{ S{reader - 1}[i] -> S{reader}[j] : i != j }}")
    blind = replace(true, strict=true.strict.subtract(lost), flow=true.flow.subtract(lost))

    def tree(deps: Dependences) -> isl.Schedule:
        return fuse(made, fused_groups(made, deps, Options(vector_width=1, fusion="maximal")))

    verify(made, true, tree(true))
    verify(made, blind, tree(blind))
    with pytest.raises(VerifyError, match="order"):
        verify(made, true, tree(blind))


# ---------------------------------------------------------------- dynamic sizes


def dynamic(text: str, sizes: dict[str, int], limits: dict[str, tuple[int, int]]) -> Program:
    return generalise(read(text)[0], sizes, {}, limits)


@pytest.mark.parametrize(
    "limits", [{"M": (1, 32)}, {"M": (33, 1024)}, {"N": (33, 1024)}, {"K": (33, 1024)}, {"M": (1, 32), "N": (33, 1024)}]
)
def test_trees_with_dynamic_sizes_are_accepted(limits: dict[str, tuple[int, int]]) -> None:
    assert map_program(dynamic(MATMUL, {"M": 40, "K": 40, "N": 64}, limits), Options(vector_width=1), AVX512).verified


def test_a_remainder_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tiling._cuts

    def short(*args: Any, **named: Any) -> Any:
        first, *rest = usual(*args, **named)
        return [replace(first, upper=first.upper - 1), *rest] if rest else [first]

    monkeypatch.setattr(tiling, "_cuts", short)
    with pytest.raises(VerifyError, match="coverage"):
        map_program(program(SOFTMAX.replace("(m, n)", "(n, m)"), {"I": (20, 300)}), Options(), AVX512)


def test_a_box_wider_than_a_dynamic_tensor_is_noticed() -> None:
    opened = dynamic(SOFTMAX, {"M": 5, "N": 7}, {"M": (1, 32)})
    wide = replace(opened, ranges=tuple(tuple(None for _ in box) for box in opened.ranges))
    with pytest.raises(VerifyError, match="bounds"):
        map_program(wide, Options(vector_width=1), AVX512)
