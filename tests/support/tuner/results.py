"""Results of searches that never took place: times follow a formula, so that what should be reported is known."""
from __future__ import annotations

import random

from tcjit.mapping.options import Options
from tcjit.tuner.result import TuneResult
from tcjit.tuner.trials import State, Trial

# by what factor a choice slows a kernel
FACTORS = {
    "tile.0": {"0": 1.5, "4": 1.0, "8": 1.2, "16": 2.0},
    "vector_width": {"0": 1.0, "1": 4.0, "8": 1.05, "16": 1.3},
    "parallel": {"True": 1.0, "False": 1.9},
    "private_buffers": {"True": 1.0, "False": 1.0},
    "fusion": {"maximal": 1.02, "minimal": 1.0},
}


def result(count: int = 128, seed: int = 0, noise: float = 0.03) -> TuneResult:
    """A search of so many candidates that more and more varies the best, as a genetic one does; one of nine does not run."""
    draw = random.Random(seed)
    history: list[Trial] = []
    best: Trial | None = None
    for number in range(count):
        values = {name: draw.choice(list(choices)) for name, choices in FACTORS.items()}
        if best is not None and draw.random() < number / count:
            values = {name: value if draw.random() < 0.2 else best.values[name] for name, value in values.items()}
        seconds, state, reason = 1e-3 * draw.gauss(1, noise), "measured", ""
        for name, value in values.items():
            seconds *= FACTORS[name][value]
        code = "-".join(values[name] for name in FACTORS if name != "private_buffers")
        if number % 9 == 5:
            state, reason = draw.choice(
                [
                    ("pruned", "tile = (64, 64) needs 262144 bytes of <shared> memory, the device has 101376\nwhere: line 1"),
                    ("failed", "took longer than 10 s"),
                    ("failed", "its process ended: signal 11"),
                ]
            )
        elif any(t.code == code and t.seconds for t in history):
            state, seconds = "same", next(t.seconds or 0.0 for t in history if t.code == code and t.seconds)
        trial = Trial(number, values, None if reason else seconds, _state(state), reason, 0.11 * number, "" if reason else code)
        history.append(trial)
        if trial.seconds is not None and (best is None or best.seconds is None or trial.seconds < best.seconds):
            best = trial
    assert best is not None and best.seconds is not None
    facts = {"machine": "some CPU, 2 cores", "target": "cpu", "sizes": "A 63x65, B 65x67", "population": 16, "seconds": None}
    options = Options(tile=(4, 32), vector_width=8)
    return TuneResult(options, best.seconds, 1.5e-3, tuple(history), "trials", "matmul & <friends>", 14.2, facts)


def _state(name: str) -> State:
    assert name in ("measured", "same", "pruned", "failed")
    return name  # type: ignore[return-value]
