"""Rows: which statements run together for each, in how many passes, and what keeps them apart.

Modules: mapping.passes.schedule_rows
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping import marks, tree
from tcjit.mapping.isl import descendants
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.schedule_rows import RowGroup, row_groups
from tcjit.mapping.pipeline import build_scop, map_program

MACHINE = Machine(vector_bytes=64, vector_registers=32)
NORM = """m(i) +=! X(i,j)  v(i) +=! (X(i,j) - m(i)) * (X(i,j) - m(i))  Y(i,j) = (X(i,j) - m(i)) * v(i)"""


def groups(body: str, shape: Sequence[int] = (40, 24), returns: str = "Y") -> list[list[tuple[str, bool]]]:
    """For each group, the tensors that its parts write, and which of these are passes."""
    definition = read(f"def f(float(M,N) X, float(N) g, int64(M) p) -> ({returns}) {{ {body} }}")[-1]
    program = specialise(definition, {"X": tuple(shape), "g": (shape[1],), "p": (shape[0],)}, {})
    scop = build_scop(program, Options(), None, MACHINE)
    found = [group for group in row_groups(scop, scop.statements, MACHINE) if isinstance(group, RowGroup)]
    return [[(" ".join(scop.statement(s).tensor for s in part.statements), part.single_pass) for part in group.parts] for group in found]


def test_passes_of_a_norm() -> None:
    assert groups(NORM) == [[("m v", False), ("m", True), ("v", True), ("Y", True)]]


def test_sums_without_a_dependence_share_a_pass() -> None:
    assert groups("a(i) +=! X(i,j)  b(i) max=! fabs(X(i,j))  Y(i,j) = X(i,j) * g(j) + a(i) - b(i)") == [
        [("a b", False), ("a b", True), ("Y", True)]
    ]


def test_names_of_indices_do_not_matter() -> None:
    body = NORM.replace("v(i) +=! (X(i,j) - m(i)) * (X(i,j) - m(i))", "v(r) +=! (X(r,c) - m(r)) * (X(r,c) - m(r))")
    assert groups(body) == groups(NORM)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("a(j) +=! X(i,j)  Y(i,j) = X(i,j) * a(j)", 0),
        ("a(i) +=! X(i,2*j) where j in 0:12  Y(i,j) = X(i,j) * a(i)", 0),
        ("a(i) +=! X(i,j)  Y(i,j) = X(i,j) * a(M - 1 - i)", 1),
        ("a(i) max=! (j <= i ? X(i,j) : 0.0)  Y(i,j) = X(i,j) * a(i)", 0),
        ("a(i) +=! X(p(i),j)  Y(i,j) = X(i,j) * a(i)", 0),
    ],
    ids=["columns", "every second", "another row", "conditions on indices", "gathered"],
)
def test_what_is_no_row(body: str, count: int) -> None:
    found = groups(body)
    assert len(found) == count and not any("Y" in names for group in found for names, _ in group)


def test_rows_far_shorter_than_a_vector_are_merged_instead() -> None:
    assert not groups(NORM, (40, 4)) and groups(NORM, (40, 5))


def test_a_row_that_others_hand_on_stays_with_them() -> None:
    """A temporary with elements for every point that a statement outside the rows uses is kept in a cache by the loops that all share."""
    body = "E(i,j) = exp(X(i,j) - g(j))  a(i) +=! E(i,j)  b(j) +=! E(i,j)"
    assert groups(body, returns="a, b") == []


def test_the_tree_is_proved() -> None:
    definition = read(f"def f(float(M,N) X) -> (Y) {{ {NORM} }}")[-1]
    mapped = map_program(specialise(definition, {"X": (256, 512)}, {}), Options(), MACHINE)
    nodes = [node for node in descendants(mapped.tree.get_root()) if tree.mark_of(node) == marks.RowPass()]
    assert len(nodes) == 3 and mapped.verified and mapped.reductions == ("rows i: passes over j for m, then v, then Y",)
