"""Boxes in layers: where to draw the nodes of an acyclic graph so that edges lead down and cross little.

After Sugiyama, Tagawa and Toda (1981): layers by longest way, edges over several layers broken at places of their own, order in a layer by
the mean place of the neighbours, sweep after sweep.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

_BETWEEN, _BELOW, _SWEEPS, _SHIFTS = 18.0, 44.0, 12, 16  # pixels between boxes and layers; rounds


@dataclass(frozen=True)
class Drawing:
    """The left upper corner of every box, and the points of every edge: from the bottom of one box to the top of another."""

    places: tuple[Point, ...]
    ways: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def arrange(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Drawing:
    """The layout of boxes of these widths and heights; edges lead from a box to a later one.

    >>> arrange([(10, 5), (20, 5)], [(0, 1)]).places
    ((5.0, 0.0), (0.0, 49.0))
    """
    layer = [0] * len(sizes)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    widths, level = [width for width, _ in sizes], list(layer)
    chains: list[list[int]] = []
    for source, target in edges:
        bends = list(range(len(level), len(level) + layer[target] - layer[source] - 1))
        level += range(layer[source] + 1, layer[target])
        widths += [0.0] * len(bends)
        chains.append([source, *bends, target])
    above: list[list[int]] = [[] for _ in level]
    below: list[list[int]] = [[] for _ in level]
    for chain in chains:
        for upper, lower in zip(chain, chain[1:]):
            below[upper].append(lower)
            above[lower].append(upper)
    rows: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for cell, row in enumerate(level):
        rows[row].append(cell)
    centre = _centres(_ordered(rows, above, below), widths, above, below)
    tops, height = _tops(rows, sizes)
    left = min((centre[cell] - widths[cell] / 2 for cell in range(len(level))), default=0.0)
    centre = [x - left for x in centre]
    places = tuple((centre[box] - sizes[box][0] / 2, tops[layer[box]]) for box in range(len(sizes)))
    ways = tuple(
        (
            (centre[chain[0]], places[chain[0]][1] + sizes[chain[0]][1]),
            *((centre[bend], tops[level[bend]] + y) for bend in chain[1:-1] for y in (0.0, _tall(rows[level[bend]], sizes))),
            (centre[chain[-1]], places[chain[-1]][1]),
        )
        for chain in chains
    )
    right = max((centre[cell] + widths[cell] / 2 for cell in range(len(level))), default=0.0)
    return Drawing(places, ways, right, height)


def _ordered(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Rows sorted by the mean place of their neighbours, downwards and upwards in turn."""
    place = [0.0] * len(above)

    def number(row: list[int]) -> None:
        for at, cell in enumerate(row):
            place[cell] = at / max(1, len(row) - 1)

    for row in rows:
        number(row)
    for sweep in range(_SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            means = {cell: sum(place[other] for other in near[cell]) / len(near[cell]) if near[cell] else place[cell] for cell in row}
            row.sort(key=means.__getitem__)
            number(row)
    return rows


def _centres(rows: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]]) -> list[float]:
    """Centres along a row: as near to the neighbours' as the order and the widths leave room for."""
    centre = [0.0] * len(widths)
    for row in rows:
        _spread(row, widths, centre)
    for shift in range(_SHIFTS):
        near = below if shift % 2 else above
        for row in reversed(rows) if shift % 2 else rows:
            for cell in row:
                if near[cell]:
                    centre[cell] = sum(centre[other] for other in near[cell]) / len(near[cell])
            _spread(row, widths, centre)
    return centre


def _spread(row: list[int], widths: list[float], centre: list[float]) -> None:
    """Pushes apart what overlaps: least squares under the order, by pooling neighbours that touch."""
    offsets: list[float] = []
    groups: list[tuple[float, int]] = []
    total = 0.0
    for at, cell in enumerate(row):
        total += (widths[row[at - 1]] + widths[cell]) / 2 + _BETWEEN if at else 0.0
        offsets.append(total)
        groups.append((centre[cell] - total, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            value, count = groups.pop()
            before, number = groups.pop()
            groups.append(((value * count + before * number) / (count + number), count + number))
    at = 0
    for value, count in groups:
        for _ in range(count):
            centre[row[at]] = value + offsets[at]
            at += 1


def _tops(rows: list[list[int]], sizes: Sequence[Point]) -> tuple[list[float], float]:
    """The upper border of every row, and of what would come after the last."""
    tops: list[float] = []
    top = 0.0
    for row in rows:
        tops.append(top)
        top += _tall(row, sizes) + _BELOW
    return tops, max(0.0, top - _BELOW)


def _tall(row: list[int], sizes: Sequence[Point]) -> float:
    return max((sizes[cell][1] for cell in row if cell < len(sizes)), default=0.0)
