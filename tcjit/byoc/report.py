"""What became of a model's operations, as text for people and as rows for programs."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcjit.byoc.partition_blocks import Partitioning, Placed
from tcjit.byoc.regions import Region


@dataclass(frozen=True)
class Coverage:
    """Fractions from 0 to 1 of a model's tensor operations, of their floating-point operations and of the bytes they move, in regions."""

    nodes: float
    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.nodes:.0%} of the operations, {self.flops:.0%} of the FLOPs, {self.bytes:.0%} of the bytes"


def coverage(cut: Partitioning, backend: str = "") -> Coverage:
    """The part that is in regions, of one backend where one is named; 0 where there is nothing at all."""
    rows = [row for row in cut.placed if row.output]
    taken = [row for row in rows if row.region and backend in ("", row.backend)]

    def part(measure: str) -> float:
        total = sum(getattr(row, measure) for row in rows)
        return sum(getattr(row, measure) for row in taken) / total if total else 0.0

    return Coverage(len(taken) / len(rows) if rows else 0.0, part("flops"), part("bytes"))


def report(cut: Partitioning, measured: Mapping[str, Mapping[str, float]] | None = None, notes: Sequence[str] = ()) -> str:
    """The whole story: coverage, passes, ``notes``, regions with estimated and, where there are some, measured seconds, and every
    operation."""
    backends = Counter(region.backend for region in cut.regions)
    count = ", ".join(f"{number} {name}" for name, number in backends.items())
    head = [f"{len(cut.regions)} regions ({count})" if cut.regions else "no regions"]
    head.append(f"covered: {coverage(cut)}")
    head.append(f"passes: {', '.join(cut.passes) or 'none'}")
    head += notes
    parts = ["\n".join(head)]
    if cut.regions:
        parts.append(_table(["region", "rows", "operations", "in", "out", "estimate", "apart", "measured"], _regions(cut, measured or {})))
    rows = [["  " * row.depth + row.op, row.output, row.region or row.reason or ""] for row in cut.placed]
    parts.append(_table(["operation", "result", "region, or why not"], rows))
    return "\n\n".join(parts)


def rows(cut: Partitioning) -> list[dict[str, Any]]:
    """One dictionary per operation, in the order of the model."""
    return [{name: getattr(row, name) for name in Placed.__dataclass_fields__} for row in cut.placed]


def _regions(cut: Partitioning, measured: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    return [_region(region, cut, measured.get(region.name, {})) for region in cut.regions]


def _region(region: Region, cut: Partitioning, times: Mapping[str, float]) -> list[str]:
    found = cut.estimates[region.name]
    said = ", ".join(f"{name} {_seconds(value)}" for name, value in times.items())
    sizes = [str(len(each)) for each in (region.nodes, (*region.inputs, *region.constants), region.outputs)]
    return [region.name, " ".join(region.rows), *sizes, _seconds(found.together.seconds), _seconds(found.unfused.seconds), said]


def _seconds(value: float) -> str:
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    used = [column for column in range(len(head)) if any(row[column] for row in body)]
    lines = [[head[column] for column in used], *([row[column] for column in used] for row in body)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(used))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines)
