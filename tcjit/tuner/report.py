"""A search for people: as a matplotlib figure, and as a page of HTML that needs nothing else."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from tcjit.errors import TuneError
from tcjit.mapping.options import Options
from tcjit.notebook import code, fragment, table
from tcjit.redact import redacted
from tcjit.tuner import charts
from tcjit.tuner.importance import ENOUGH, importance
from tcjit.tuner.space import label
from tcjit.tuner.trials import Trial, TuneRecord, duration

BEST = 10  # rows of the table of candidates
SHOWN = 12  # options in a chart

_STYLE = """
:root {
  --ink: #1c2430; --soft: #66707f; --line: #dfe3ea; --paper: #ffffff; --panel: #f6f7f9; --blue: #2563c9; --red: #c2402f;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #98a2b1; --line: #343b46; --paper: #14181e; --panel: #1c2129; --blue: #6ea2f5; --red: #f0806f; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 960px; padding: 28px 20px 60px; background: var(--paper); color: var(--ink); }
body { font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 10px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0; }
.card { background: var(--panel); border-radius: 8px; padding: 10px 16px; min-width: 130px; }
.card b { display: block; font-size: 21px; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
td, th { padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; text-align: left; }
th { font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.long { white-space: normal; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, monospace; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); }
svg .ink { fill: var(--ink); }
.grid { stroke: var(--line); }
.default { stroke: var(--soft); stroke-dasharray: 5 4; }
.curve { fill: none; stroke: var(--blue); stroke-width: 2; }
.measured { fill: var(--blue); fill-opacity: .45; }
.same { fill: none; stroke: var(--blue); stroke-opacity: .6; }
.failed { fill: none; stroke: var(--red); stroke-width: 1.5; }
.pruned { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.bar { fill: var(--blue); }
"""


# ---------------------------------------------------------------- a page


def html(result: TuneRecord) -> str:
    """The search as one HTML page: best so far, the best candidates, what each option mattered, failures, machine and settings."""
    body = [
        _head(result),
        f"<h2>Times of the candidates</h2>{charts.times(result)}",
        f"<h2>The options of the winner</h2>{_chosen(result)}",
        f"<h2>The best candidates</h2>{_best(result)}",
        f"<h2>What each option mattered</h2>{_importance(result)}",
        f"<h2>Candidates without a time</h2>{_failures(result)}",
        f"<h2>Machine and settings</h2>{_facts(result.facts)}",
    ]
    title = escape(f"Tuning of {result.label}" if result.label else "Tuning")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def in_notebook(result: TuneRecord) -> str:
    """The winner and the best candidates, for ``_repr_html_``."""
    return fragment(_head(result).replace("<h1>", "<p><b>").replace("</h1>", "</b></p>"), _chosen(result), _best(result))


def _head(result: TuneRecord) -> str:
    timed = sum(trial.seconds is not None for trial in result.history)
    cards = [
        (duration(result.seconds), "the winner"),
        (duration(result.default_seconds), "untuned"),
        (f"{result.speedup:.2f}×", "as fast as untuned"),
        (str(len(result.history)), f"candidates, {timed} with a time"),
        (_clock(result.elapsed), f"ended by {result.stopped}"),
    ]
    shown = "".join(f'<div class="card"><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>' for value, name in cards)
    return f'<h1>{escape(result.label or "Tuning")}</h1><div class="cards">{shown}</div>'


def _chosen(result: TuneRecord) -> str:
    rows = []
    for option in Options.described():
        value = getattr(result.options, option.name)
        if value != option.default:
            rows.append([code(option.name), code(label(value)), code(label(option.default)), escape(option.metadata["meaning"])])
    if not rows:
        return "<p>No candidate was faster than the untuned default.</p>"
    return table(("option", "winner", "default", "meaning"), rows, long=(3,))


def _best(result: TuneRecord) -> str:
    """The fastest codes, each once; options that all of them share stand in a line of their own."""
    fastest: dict[str, Trial] = {}
    for trial in sorted((t for t in result.history if t.seconds is not None), key=lambda t: (t.seconds, t.number)):
        fastest.setdefault(trial.code or str(trial.number), trial)
    best = list(fastest.values())[:BEST]
    if not best:
        return "<p>There was none.</p>"
    first = best[0].seconds or 0.0
    names = list(best[0].values)
    shared = [name for name in names if len({trial.values.get(name) for trial in best}) == 1]
    varied = [name for name in names if name not in shared]
    rows = [
        [str(trial.number), duration(trial.seconds or 0.0), f"{(trial.seconds or 0.0) / first:.2f}"]
        + [code(trial.values.get(name, "")) for name in varied]
        for trial in best
    ]
    note = f'<p class="soft">All of them: {", ".join(code(f"{name}={best[0].values[name]}") for name in shared)}.</p>' if shared else ""
    return table(("candidate", "time", "to the best", *varied), rows, numbers=(0, 1, 2)) + note


def _importance(result: TuneRecord) -> str:
    effects = importance(result.history)
    if not effects:
        return f"<p>Nothing can be said: fewer than {ENOUGH} candidates have a time, or all have the same.</p>"
    note = (
        "Each option's part in how the times differ, by a model that adds up one effect per option. "
        "Beside it the choice that the model takes for the fastest, and how much slower it takes the slowest to be."
    )
    return f'<p class="soft">{note}</p>{charts.bars(effects[:SHOWN])}'


def _failures(result: TuneRecord) -> str:
    without = [trial for trial in result.history if trial.seconds is None]
    if not without:
        return "<p>Every candidate ran.</p>"
    reasons = [(trial.state, _line(trial.reason)) for trial in without]
    example = {reason: trial.number for reason, trial in zip(reversed(reasons), reversed(without))}
    counted = Counter(reasons).most_common()
    rows = [[str(count), escape(state), escape(reason), str(example[state, reason])] for (state, reason), count in counted]
    return table(("how many", "state", "reason", "first one"), rows, numbers=(0, 3), long=(2,))


def _facts(facts: Mapping[str, Any]) -> str:
    if not facts:
        return "<p>Nothing was noted.</p>"
    rows = [[escape(str(name)), escape("–" if value is None else redacted(str(value)))] for name, value in facts.items()]
    return table(("", ""), rows, long=(1,))


def _line(reason: str) -> str:
    return (reason.strip().splitlines() or ["no reason is known"])[0]


def _clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> _clock(8.25), _clock(3725)
    ('8.2 s', '1:02:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02} min"


# ---------------------------------------------------------------- a figure


def figure(result: TuneRecord, file: str | Path | None = None) -> Any:
    """The times with the best so far, and what each option mattered, as a ``matplotlib.figure.Figure``; saved to ``file`` if one is named.

    A TuneError where matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install matplotlib, or tcjit's extra `tuner`; a report as HTML does without"
        raise TuneError("a plot needs matplotlib, which is not installed", hint=hint) from error
    drawing = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = drawing.subplots(1, 2, width_ratios=(3, 2))
    for state, face in (("measured", "C0"), ("same", "none")):
        timed = [(t.number, t.seconds) for t in result.history if t.state == state and t.seconds is not None]
        if timed:
            left.scatter(*zip(*timed), s=16, facecolors=face, edgecolors="C0", alpha=0.5, label=charts.MEANING[state])
    for state, colour in (("failed", "C3"), ("pruned", "C7")):
        without = [t.number for t in result.history if t.state == state and t.seconds is None]
        if without:
            bottom = left.get_xaxis_transform()
            left.plot(without, [0.02] * len(without), "x", color=colour, markersize=5, transform=bottom, label=charts.MEANING[state])
    steps = charts.best_so_far(result.history)
    if steps:
        left.step(*zip(*steps), where="post", color="C0", label="best so far")
    left.axhline(result.default_seconds, color="C7", linestyle="--", label="untuned")
    left.set(yscale="log", xlabel="candidate", title=result.label)
    ticks = charts.round_times(*left.get_ylim())
    left.set_yticks(ticks, [duration(tick) for tick in ticks])
    left.set_yticks([], minor=True)
    drawing.legend(loc="outside lower left", ncols=6, fontsize="small", frameon=False)
    effects = importance(result.history)[:SHOWN][::-1]
    if effects:
        right.barh([effect.name for effect in effects], [100 * effect.share for effect in effects])
        right.set(xlabel="part in how the times differ, %", title="what each option mattered")
    else:
        right.set_axis_off()
        right.set_title("too few times to compare options")
    if file is not None:
        try:
            drawing.savefig(file)
        except (OSError, ValueError) as error:
            raise TuneError(f"the plot cannot be written to {file}: {error}", hint="a path that ends in .png, .svg or .pdf") from error
    return drawing
