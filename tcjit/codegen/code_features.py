"""What a printed kernel does, in numbers read off its text: cheap facts of the mapped tree for a model of speed.

The text is our own, so its lines and their indentation say which loops a statement is in and how often these run.
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from tcjit.codegen.source import Source

LANES = 8  # iterations of a vectorised loop that count as one
UNKNOWN = 8  # iterations of a loop whose count is not in the text

_LOOP = re.compile(r"for \(\w+ (\w+) = (.+?); \1 <= (.+); (?:\+\+\1|\1 \+= (\d+))\)")
_LEAST = re.compile(r"min\w*\(.*, (-?\d+)\)$")
_SUM = re.compile(r"s\d+_\d+ \+=")  # of a register patch
_LOAD = re.compile(r"(?:const )?\w+ [vx]\d+ =")
_ACCUMULATOR = re.compile(r"\w+ s\d+_\d+ =")
_ARRAY = re.compile(r"\w+\[(\d+)\](?: __attribute__.*)?;$")
_WIDTH = re.compile(r"typedef \w+ tc_\w*?(\d+) __attribute__\(\(vector_size")


class _Line(NamedTuple):
    """A line with how often it runs; a loop runs as often as its body. ``along`` is the variable of the innermost loop around it."""

    text: str
    runs: float
    depth: int
    loop: bool
    along: str


def figures(source: Source) -> dict[str, float]:
    """The numbers of a kernel, most of them base 2 logarithms: a program at other sizes differs by differences.

    ``runs`` counts statements as often as they run, ``sums`` and ``loads`` those on explicit vectors, ``stores`` those that write elements,
    ``strided`` the subscripts of these that an innermost loop takes apart, ``loops`` iterations, ``tested`` branches, ``waits`` barriers.
    """
    head, _, body = source.text.partition(f" {source.symbol}(")
    counts = dict.fromkeys(("runs", "sums", "loads", "stores", "strided", "loops", "tested", "waits", "accumulators", "private"), 0.0)
    depth = 0
    for line in _lines(body):
        depth = max(depth, line.depth)
        if line.loop:
            counts["loops"] += line.runs
        elif line.text.startswith("if ("):
            counts["tested"] += line.runs
        elif "barrier(" in line.text or "__syncthreads(" in line.text:
            counts["waits"] += line.runs
        elif array := _ARRAY.search(line.text):
            counts["private"] += int(array[1])
        elif line.text.endswith(";") and not line.text.startswith("TC_"):
            counts["runs"] += line.runs
            counts["sums"] += line.runs * bool(_SUM.match(line.text))
            counts["loads"] += line.runs * bool(_LOAD.match(line.text))
            counts["accumulators"] += bool(_ACCUMULATOR.match(line.text))
            if "] = " in line.text:
                counts["stores"] += line.runs
                counts["strided"] += line.runs * len(re.findall(rf" \* {line.along}\b", line.text)) if line.along else 0
    widths = [int(width) for width in _WIDTH.findall(head)]
    launches = source.launches
    counts |= {
        "lines": body.count("\n"),
        "width": max(widths, default=1),
        "workspace": source.workspace,
        "blocks": sum(math.prod(launch.grid) for launch in launches),
        "threads": max((launch.threads for launch in launches), default=0),
        "shared": max((launch.shared_bytes for launch in launches), default=0),
    }
    numbers = {name: round(math.log2(1 + count), 3) for name, count in counts.items()}
    regions = [math.log2(1 + shares) for shares in _shares(body)]
    return {**numbers, "depth": float(depth), "regions": float(len(regions)), "share": round(max(regions, default=0.0), 3)}


def _lines(body: str) -> Iterator[_Line]:
    """Loops and statements with how often they run."""
    around: list[tuple[int, float, str]] = []  # of each loop: indentation, how often its body runs, variable
    vectors = False
    for line in body.split("\n"):
        text = line.strip()
        if not text or text[0] in "#{}":
            vectors = vectors or text.startswith("#pragma omp simd")
            continue
        indent = len(line) - len(line.lstrip())
        while around and around[-1][0] >= indent:
            around.pop()
        runs, along = around[-1][1:] if around else (1.0, "")
        if loop := _LOOP.match(text):
            trips = _trips(*loop.group(2, 3, 4))
            runs *= math.ceil(trips / LANES) if vectors else trips
            around.append((indent, runs, loop[1]))
            vectors = False
        yield _Line(text, runs, len(around), bool(loop), along)


def _trips(lower: str, upper: str, step: str | None) -> int:
    """Iterations of a loop; of one that ends early at a border, those inside."""
    if least := _LEAST.search(upper):
        upper = least[1]
    if not _whole(upper):
        return UNKNOWN
    return max(1, (int(upper) - (int(lower) if _whole(lower) else 0)) // int(step or 1) + 1)


def _shares(body: str) -> Iterator[float]:
    """Of each loop that threads share, collapsed ones as one, the number of iterations."""
    for region in re.finditer(r"#pragma omp parallel for(?: collapse\((\d+)\))?", body):
        loops = [_LOOP.match(line.strip()) for line in body[region.end() :].split("\n", 9)[1 : 1 + int(region[1] or 1)]]
        yield math.prod(_trips(*loop.group(2, 3, 4)) for loop in loops if loop)


def _whole(text: str) -> bool:
    return text.lstrip("-").isdigit()
