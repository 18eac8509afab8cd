"""``tcjit tune``: a search for a def of a file, at one or several shapes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import tcjit
from tcjit.cli.sizes import definition, sizes
from tcjit.errors import TCError
from tcjit.jit import example_inputs, targets
from tcjit.mapping.options import Options
from tcjit.tuner.report import html
from tcjit.tuner.result import TuneResult


def tune(
    text: str, shapes: Sequence[str], name: str | None, target: str | None, config: tcjit.TunerConfig, seed: int, report: Path | None
) -> list[str]:
    """Search, keep the winner, write the report if one is asked for; the lines to print."""
    if report is not None and not (report.parent.is_dir() and os.access(report if report.exists() else report.parent, os.W_OK)):
        raise TCError(f"cannot write {report}", hint="a file in a directory that can be written")  # not only after a long search
    chosen = definition(text, name)
    device = targets.find(target).device if target else "cpu"
    values = [sizes(chosen, one) for one in shapes or [""]]
    sets = [example_inputs.arguments(chosen, one.shapes, one.scalars, seed, device) for one in values]
    function = getattr(tcjit.define(text, target=target), chosen.name)
    result = function.autotune(*sets[0], also=sets[1:], config=config)
    if report is not None:
        report.write_text(html(result), encoding="utf-8")
    return _lines(result, report)


def _lines(result: TuneResult, report: Path | None) -> list[str]:
    plain = Options().to_dict()
    chosen = [f"  {name} = {value}" for name, value in result.options.to_dict().items() if value != plain[name]]
    lines = [str(result), *(["options that differ from the defaults:", *chosen] if chosen else [])]
    return [*lines, f"report: {report}"] if report is not None else lines
