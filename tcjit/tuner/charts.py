"""The charts of a report as SVG; colours are classes of the page's style."""
from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tcjit.tuner.importance import Effect
from tcjit.tuner.trials import Trial, TuneRecord, duration

WIDTH, HEIGHT = 920, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 34, 52
ROW = 26  # height of a bar's row
MEANING = {"measured": "measured", "same": "same code as another", "failed": "failed", "pruned": "ruled out before compiling"}


def best_so_far(history: Sequence[Trial]) -> list[tuple[int, float]]:
    """Trial and seconds wherever there was a new best, and at the end."""
    steps: list[tuple[int, float]] = []
    for trial in sorted(history, key=lambda trial: trial.number):
        if trial.seconds is not None and (not steps or trial.seconds < steps[-1][1]):
            steps.append((trial.number, trial.seconds))
    last = max((trial.number for trial in history), default=0)
    return steps + [(last, steps[-1][1])] if steps and steps[-1][0] < last else steps


def times(result: TuneRecord) -> str:
    """Every candidate's time, logarithmic, with the best so far; those without a time stand below."""
    timed = [(trial, trial.seconds) for trial in result.history if trial.seconds is not None]
    steps = best_so_far(result.history)
    everything = [seconds for _, seconds in timed] + [result.default_seconds]
    low, high = math.log10(min(everything)) - 0.06, math.log10(max(everything)) + 0.06
    last = max((trial.number for trial in result.history), default=0)

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / max(1, last)

    def y(seconds: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(seconds)) / (high - low)

    parts = []
    for tick in round_times(10**low, 10**high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{duration(tick)}</text>')
    for number in _round_steps(last):
        parts.append(f'<text x="{x(number):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{number}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{HEIGHT - 12}">candidate</text>')
    level = y(result.default_seconds)
    parts.append(f'<line class="default" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
    for trial, seconds in timed:
        what = f"candidate {trial.number}: {duration(seconds)}, {MEANING[trial.state]}"
        centre = f'cx="{x(trial.number):.1f}" cy="{y(seconds):.1f}"'
        parts.append(f'<circle class="{trial.state}" {centre} r="3.5"><title>{what}</title></circle>')
    for trial in result.history:
        if trial.seconds is None:
            cx, cy = x(trial.number), HEIGHT - BOTTOM + 14
            what = escape(f"candidate {trial.number}: {MEANING[trial.state]}: {trial.reason}"[:300])
            cross = f"M{cx - 3:.1f} {cy - 3}l6 6m0 -6l-6 6"
            parts.append(f'<path class="{trial.state}" d="{cross}"><title>{what}</title></path>')
    if steps:
        path = f"M{x(steps[0][0]):.1f} {y(steps[0][1]):.1f}" + "".join(f"H{x(n):.1f}V{y(seconds):.1f}" for n, seconds in steps[1:])
        parts.append(f'<path class="curve" d="{path}"/>')
        best = y(steps[-1][1])
        apart = max(best, level + 14) if best >= level else min(best, level - 14)
        parts.append(f'<text class="ink" x="{WIDTH - RIGHT + 8}" y="{apart + 4:.1f}">best {duration(steps[-1][1])}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{level + 4:.1f}">untuned</text>')
    return _svg(HEIGHT, _legend({trial.state for trial in result.history}) + "".join(parts), "times of the candidates and the best so far")


def bars(effects: Sequence[Effect]) -> str:
    """A bar for each option."""
    widest = max(effect.share for effect in effects)
    start, full = 170, 330
    parts = []
    for row, effect in enumerate(effects):
        middle = row * ROW + ROW / 2
        length = max(1.0, full * effect.share / widest)
        parts.append(f'<text class="ink" x="{start - 10}" y="{middle + 4}" text-anchor="end">{escape(effect.name)}</text>')
        parts.append(f'<rect class="bar" x="{start}" y="{middle - 8}" width="{length:.1f}" height="16" rx="2"/>')
        parts.append(f'<text x="{start + length + 8:.1f}" y="{middle + 4}">{100 * effect.share:.0f} %</text>')
        note = f"best {effect.best}; {effect.worst} is {effect.factor:.2f} times as slow"
        parts.append(f'<text x="{start + full + 70}" y="{middle + 4}">{escape(note)}</text>')
    return _svg(len(effects) * ROW, "".join(parts), "what each option mattered")


def _legend(states: set[str]) -> str:
    shapes = {
        "measured": '<circle class="measured" cx="5" cy="-4" r="3.5"/>',
        "same": '<circle class="same" cx="5" cy="-4" r="3.5"/>',
        "failed": '<path class="failed" d="M2 -7l6 6m0 -6l-6 6"/>',
        "pruned": '<path class="pruned" d="M2 -7l6 6m0 -6l-6 6"/>',
    }
    parts, at = ['<g transform="translate(64 18)"><path class="curve" d="M0 -4h18"/><text x="24">best so far</text></g>'], 176
    for state, shape in shapes.items():
        if state in states:
            parts.append(f'<g transform="translate({at} 18)">{shape}<text x="16">{MEANING[state]}</text></g>')
            at += 48 + 6 * len(MEANING[state])
    return "".join(parts)


def _svg(height: float, content: str, name: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{content}</svg>'


def round_times(low: float, high: float) -> list[float]:
    """Round values between two: 1, 2 and 5 times powers of ten, or the powers alone where they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors: tuple[float, ...] = (1.0,) if len(powers) > 4 else (1.0, 2.0, 5.0)
    ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
    if len(ticks) >= 3:
        return ticks
    size = 10 ** math.floor(math.log10(high - low))  # times that differ by little
    step = next(f * size for f in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if (high - low) / (f * size) <= 6)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_steps(last: int) -> list[int]:
    """Whole numbers from 0 to the last, at most eight."""
    step = next(f * 10**power for power in range(9) for f in (1, 2, 5) if last / (f * 10**power) <= 8)
    return list(range(0, last + 1, step))
