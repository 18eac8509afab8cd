"""Spaces: options as values of genes and back."""
from __future__ import annotations

import random

import pytest

from tcjit.mapping.options import PRESETS, Options
from tcjit.tuner.space import TILES, Gene, Space, label

TRAITS = ("reduction", "several", "temporary")


@pytest.mark.parametrize("target", ["cpu", "cuda", "opencl"])
def test_every_option_of_a_target_is_a_gene_whose_first_choice_is_its_default(target: str) -> None:
    space = Space.of(target, TRAITS, 2)
    names = {gene.name.partition(".")[0] for gene in space.genes}
    assert names == {option.name for option in Options.described() if target in option.metadata["targets"]}
    default = {gene.name: gene.labels[0] for gene in space.genes}
    assert space.options(default) == Options() and space.values(Options()) == default


def test_what_does_not_matter_to_a_def_is_no_gene() -> None:
    names = {gene.name for gene in Space.of("cpu", (), 1).genes}
    assert "tile.0" in names and "tile.1" not in names
    assert not names & {"fusion", "reduction_chunks", "private_buffers", "block", "pipeline_stages"}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_there_and_back(target: str) -> None:
    space, rng = Space.of(target, TRAITS, 3), random.Random(7)
    for _ in range(200):
        values = {gene.name: rng.choice(gene.labels) for gene in space.genes}
        assert space.values(space.options(values)) == values


def test_what_is_not_among_the_choices_becomes_its_neighbour() -> None:
    space = Space.of("cpu", TRAITS, 2)
    values = space.values(Options(tile=(9, 1000), vector_width=2, reduction_chunks=4096))
    assert values["tile.0"] == "8" and values["tile.1"] == str(TILES[-1])
    assert values["vector_width"] in ("1", "4") and values["reduction_chunks"] == "64"
    for preset in PRESETS.values():
        assert space.options(space.values(preset)).fusion == preset.fusion


def test_neighbours_differ_in_one_gene() -> None:
    space = Space((Gene("vector_width", (0, 4, 8)), Gene("fusion", ("maximal", "minimal", "preserve_three_coincident"))))
    here = {"vector_width": "4", "fusion": "minimal"}
    found = space.neighbours(here)
    assert found == [
        {"vector_width": "0", "fusion": "minimal"},
        {"vector_width": "8", "fusion": "minimal"},
        {"vector_width": "4", "fusion": "maximal"},
        {"vector_width": "4", "fusion": "preserve_three_coincident"},
    ]
    assert space.size == 9


def test_spaces_are_told_apart() -> None:
    assert Space.of("cpu", TRAITS, 2).identity == Space.of("cpu", TRAITS, 2).identity != Space.of("cpu", TRAITS, 3).identity
    assert label((8, 16)) == "8x16" and label(()) == "auto" and label(False) == "False"


def test_the_sizes_of_seeds_become_choices() -> None:
    space = Space.of("cpu", TRAITS, 2).including([Options(tile=(14, 96)), Options(tile=(7,))])
    assert space.options(space.values(Options(tile=(14, 96)))).tile == (14, 96)
    assert space.options(space.values(Options(tile=(7,)))).tile == (7,)
    assert space.genes[1].labels[0] == "0"
