"""Patterns against trees read from text."""

from __future__ import annotations

import islpy as isl

from tcjit.mapping.isl import context
from tcjit.mapping.marks import Simd, TileLoops
from tcjit.mapping.match import anything, band, domain, filter, leaf, mark, match, sequence
from tcjit.mapping.tree import read, show

TEXT = """domain: "{ S0[i]: 0 <= i < 4; S1[i, j]: 0 <= i < 4 and 0 <= j < 5 }"
child:
  sequence:
  - filter: "{ S0[i] }"
  - filter: "{ S1[i, j] }"
    child:
      mark: "simd"
      child:
        schedule: "[{ S1[i, j] -> [(j)] }]"
"""


def root() -> isl.ScheduleNode:
    return read(context(), TEXT).get_root()


def test_a_whole_tree_with_names() -> None:
    found = match(root(), domain(sequence(filter(leaf()), filter(mark(Simd(), band(leaf()).named("inner"))))))
    assert found is not None
    assert found["inner"].band_n_member() == 1


def test_rest_fits_every_further_child() -> None:
    assert match(root(), domain(sequence(filter(leaf()), rest=anything()))) is not None
    assert match(root(), domain(sequence(filter(leaf())))) is None
    assert match(root(), domain(sequence(rest=filter(leaf())))) is None


def test_marks_by_name_and_tests() -> None:
    node = root().child(0).child(1).child(0)
    assert match(node, mark(Simd())) is not None
    assert match(node, mark(TileLoops())) is None
    assert match(node.child(0), band().where(lambda b: b.band_n_member() == 2)) is None


def test_trees_survive_text() -> None:
    tree = read(context(), TEXT)
    assert show(read(context(), show(tree))) == show(tree)
