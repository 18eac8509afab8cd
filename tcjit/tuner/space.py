"""What a search may choose: a gene per mapping option that matters to a def, and options as values of genes and back.

A value is a text (``"8x16"``, ``"True"``), as storages, dashboards and reports show it.
"""
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tcjit.mapping.options import Options

SHARED_LOOPS = 4  # tile sizes are searched for so many loops: deeper ones are cut by what is inside of them
TILES = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


@dataclass(frozen=True)
class Gene:
    """One choice; ``choices`` are values of an option, the first what holds where nothing is said."""

    name: str
    choices: tuple[Any, ...]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The choices as texts, all different."""
        return tuple(map(label, self.choices))

    @property
    def ordered(self) -> bool:
        """Whether neighbours among the choices are alike."""
        return all(type(choice) is int for choice in self.choices)


@dataclass(frozen=True)
class Space:
    """All combinations of the genes' choices.

    >>> space = Space.of("cpu", (), 1)
    >>> space.options(space.values(Options(tile=(8,)))) == Options(tile=(8,))
    True
    """

    genes: tuple[Gene, ...]

    @staticmethod
    def of(target: str, traits: Collection[str], loops: int) -> Space:
        """The space of a kind of target (``cpu``, ``cuda``, ``opencl``) for a def with these traits and so many loops to share."""
        genes = []
        for option in Options.described():
            needs = option.metadata["needs"]
            if target not in option.metadata["targets"] or (needs and needs not in traits):
                continue
            if option.name == "tile":
                genes += [Gene(f"tile.{loop}", TILES) for loop in range(min(loops, SHARED_LOOPS))]
            else:
                others = tuple(choice for choice in option.metadata["choices"] if choice != option.default)
                genes.append(Gene(option.name, (option.default, *others)))
        return Space(tuple(gene for gene in genes if len(gene.choices) > 1))

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(len(gene.choices) for gene in self.genes)

    @cached_property
    def identity(self) -> str:
        """A hash of the genes and their choices: studies of different spaces have nothing to tell one another."""
        return hashlib.sha256(json.dumps([[gene.name, *gene.labels] for gene in self.genes]).encode()).hexdigest()[:16]

    def options(self, values: Mapping[str, str]) -> Options:
        """The options that values of all genes stand for; a MappingError where they exclude each other."""
        chosen = {gene.name: gene.choices[gene.labels.index(values[gene.name])] for gene in self.genes}
        tile = [chosen.pop(f"tile.{loop}", 0) for loop in range(SHARED_LOOPS)]
        while tile and not tile[-1]:
            tile.pop()
        return Options(**chosen, tile=tuple(tile))

    def including(self, seeds: Sequence[Options]) -> Space:
        """The space with the tile sizes of ``seeds`` among its choices."""
        genes = []
        for gene in self.genes:
            name, _, loop = gene.name.partition(".")
            if loop:
                asked = {seed.tile[int(loop)] for seed in seeds if int(loop) < len(seed.tile)}
                gene = Gene(gene.name, (gene.choices[0], *sorted(asked.union(gene.choices) - {gene.choices[0]})))
            genes.append(gene)
        return Space(tuple(genes))

    def only(self, names: Collection[str]) -> Space:
        """The space of some of the genes; the others keep their first choice."""
        return Space(tuple(gene for gene in self.genes if gene.name in names))

    def probes(self, gene: Gene, base: Mapping[str, str]) -> list[dict[str, str]]:
        """Points that differ from ``base`` in one gene, spread over its choices: whether it matters shows there."""
        others = [label for label in gene.labels if label != base[gene.name]]
        picked = sorted({0, len(others) // 2, len(others) - 1})
        return [{**base, gene.name: others[n]} for n in picked]

    def values(self, options: Options) -> dict[str, str]:
        """The nearest point of the space: choices that it does not have become those next to them, or the first."""
        values = {}
        for gene in self.genes:
            name, _, loop = gene.name.partition(".")
            value = getattr(options, name)
            if loop:
                value = value[int(loop)] if int(loop) < len(value) else 0
            values[gene.name] = label(_nearest(gene, value))
        return values

    def neighbours(self, values: Mapping[str, str]) -> list[dict[str, str]]:
        """All points that differ in one gene: of ordered ones by a step, of the others by any change."""
        neighbours = []
        for gene in self.genes:
            here = gene.labels.index(values[gene.name])
            near = (here - 1, here + 1) if gene.ordered else range(len(gene.choices))
            neighbours += [{**values, gene.name: gene.labels[n]} for n in near if 0 <= n < len(gene.choices) and n != here]
        return neighbours


def label(choice: Any) -> str:
    """A choice as a text.

    >>> label((8, 16)), label(()), label(True)
    ('8x16', 'auto', 'True')
    """
    if isinstance(choice, tuple):
        return "x".join(map(str, choice)) or "auto"
    return str(choice)


def _nearest(gene: Gene, value: Any) -> Any:
    if value in gene.choices:
        return value
    if gene.ordered and type(value) is int and value > 0:
        return min((c for c in gene.choices if c > 0), key=lambda c: abs(math.log2(c / value)), default=gene.choices[0])
    return gene.choices[0]
