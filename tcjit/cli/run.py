"""``tcjit run``: one call on random inputs, and what came out."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import tcjit
from tcjit.cli.sizes import definition, sizes
from tcjit.jit import example_inputs, targets
from tcjit.runtime import timing

ENOUGH = 0.5  # seconds of measuring, after the first call


def run(text: str, shapes: str, name: str | None, seed: int, target: str | None, timed: bool) -> list[str]:
    """Lines to print: an output each, then the times if asked."""
    chosen = definition(text, name)
    values = sizes(chosen, shapes)
    function = getattr(tcjit.define(text, target=target), chosen.name)
    device = targets.find(target).device if target else "cpu"
    arguments = example_inputs.arguments(chosen, values.shapes, values.scalars, seed, device)

    def finished() -> Any:
        done = function(*arguments)
        tcjit.synchronize()  # a GPU works on after the call, and says then what it flagged
        return done

    start = time.perf_counter()
    result = finished()
    first = time.perf_counter() - start

    outputs = result if isinstance(result, tuple) else (result,)
    rows = [
        [name, _kind(tensor), f"sum {example_inputs.total(tensor):.6g}", f"crc {example_inputs.checksum(tensor)}"]
        for name, tensor in zip(chosen.returns, outputs)
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if timed:
        runs = timing.sampled(partial(timing.reading, finished), 3, 1000, ENOUGH)
        lines.append(f"first call {_milliseconds(first)}, then {_milliseconds(statistics.median(runs))} (median of {len(runs)})")
    return lines


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}({', '.join(map(str, tensor.shape))})"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
