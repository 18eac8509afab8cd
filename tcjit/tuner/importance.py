"""How much each option mattered: a model of the logarithm of the time, a sum of one effect per option and choice.

A genetic search tries good values together and more often than others, so that counting how times vary with one option would credit it
with what its companions did. The effects are therefore fitted together, by least squares with a penalty that draws choices seen
once or twice towards no effect. An option matters by the variance of its effects over its choices, each counted once.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tcjit.tuner.trials import Trial

ENOUGH = 8  # times below which nothing is said
_PENALTY = 1.0  # in trials: an effect seen n times counts n / (n + 1)


@dataclass(frozen=True)
class Effect:
    """Of one option: its ``share`` of all that options do to the time, its fastest and slowest choice, and by what factor they differ."""

    name: str
    share: float
    best: str
    worst: str
    factor: float


def importance(history: Sequence[Trial]) -> tuple[Effect, ...]:
    """The options that were varied, the most important first; none where fewer than 8 candidates ran or all are equally fast.

    >>> trials = [Trial(n, {"tile": str(n % 2), "lanes": str(n // 2 % 2)}, 1.0 + n % 2, "measured") for n in range(16)]
    >>> [(e.name, round(e.share, 2), e.best) for e in importance(trials)]
    [('tile', 1.0, '0'), ('lanes', 0.0, '0')]
    """
    timed = [(trial.values, math.log(trial.seconds)) for trial in history if trial.seconds]
    if len(timed) < ENOUGH:
        return ()
    names = [name for name in timed[0][0] if all(name in values for values, _ in timed)]
    tried = {name: sorted({values[name] for values, _ in timed}) for name in names}
    columns = [(name, choice) for name in names if len(tried[name]) > 1 for choice in tried[name]]
    if not columns:
        return ()
    seen = np.array([[values[name] == choice for name, choice in columns] for values, _ in timed], dtype=np.float64)
    times = np.array([logarithm for _, logarithm in timed])
    seen -= seen.mean(axis=0)
    effects = np.linalg.solve(seen.T @ seen + _PENALTY * np.eye(len(columns)), seen.T @ (times - times.mean()))
    effects_by_option = []
    for name in names:
        mine = {choice: float(effect) for (of, choice), effect in zip(columns, effects) if of == name}
        if mine:
            best, worst = min(mine, key=mine.__getitem__), max(mine, key=mine.__getitem__)
            effects_by_option.append((float(np.var(list(mine.values()))), name, best, worst, math.exp(mine[worst] - mine[best])))
    total = sum(variance for variance, *_ in effects_by_option)
    if total < 1e-9:
        return ()
    effects_by_option.sort(key=lambda effect: (-effect[0], effect[1]))
    return tuple(Effect(name, variance / total, best, worst, factor) for variance, name, best, worst, factor in effects_by_option)
