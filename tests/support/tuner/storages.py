"""Random operations on an optuna storage, and what it answers to each: two storages that do the same answer alike."""
from __future__ import annotations

import random
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

LETTERS = CategoricalDistribution(["x", "y"])
STATES = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
Step = tuple[str, int, int, int]  # what, the how-many-th study and trial, a small number that the rest follows from


def steps(seed: int, count: int) -> list[Step]:
    draw = random.Random(seed)
    what = ["study", "trial", "trial", "param", "param", "user", "system", "value", "state", "state", "note", "read", "read", "delete"]
    found: list[Step] = [("study", 0, 0, 0)]
    studies, trials = 1, 0
    for _ in range(count):
        name = draw.choice(what)
        if name == "delete" and draw.random() < 0.8:
            continue
        found.append((name, draw.randrange(studies), max(0, trials - 1 - int(draw.expovariate(0.5))), draw.randrange(12)))
        studies += name == "study"
        trials += name == "trial"
    return found


def answers(storage: BaseStorage, path: list[Step]) -> list[Any]:
    studies: list[int] = []
    trials: list[tuple[int, int]] = []  # each with its study; less than 0 where there is none any more
    found: list[Any] = []
    for step in path:
        try:
            found.append(_answer(storage, step, studies, trials))
        except (KeyError, ValueError, RuntimeError, TypeError, OptunaError) as error:
            found.append(type(error).__name__)
            if step[0] == "trial":
                trials.append((-1, -1))
    return found


def _answer(storage: BaseStorage, step: Step, studies: list[int], trials: list[tuple[int, int]]) -> Any:
    what, study_number, trial_number, n = step
    study = studies[study_number] if studies else -1
    trial = trials[trial_number][0] if trials else -1
    if trial < 0 and what in ("param", "user", "system", "value", "state"):
        return None
    if what == "study":
        studies.append(storage.create_new_study([StudyDirection.MINIMIZE], f"study {len(studies)}"))
        storage.create_new_study([StudyDirection.MINIMIZE], f"study {len(studies) - 1}")  # refused
    elif what == "trial":
        state = (TrialState.RUNNING, TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE)[n % 4]
        given = {"params": {"p0": "x"}, "distributions": {"p0": LETTERS}, "value": 1.0 if state == TrialState.COMPLETE else None}
        trials.append((storage.create_new_trial(study, None if n < 6 and n % 4 < 2 else create_trial(state=state, **given)), study))
    elif what == "param":
        domain = IntDistribution(0, 4) if n == 7 else LETTERS
        if f"p{n % 3}" not in storage.get_trial(trial).params:
            storage.set_trial_param(trial, f"p{n % 3}", 1.0, domain)
    elif what == "user":
        storage.set_trial_user_attr(trial, f"u{n % 3}", [n, study_number])
    elif what == "system":
        storage.set_trial_system_attr(trial, f"s{n % 3}", n)
    elif what == "value":
        storage.set_trial_intermediate_value(trial, n % 3, float(n))
    elif what == "state":
        state = STATES[n % 4]
        return storage.set_trial_state_values(trial, state, [float(n)] if state == TrialState.COMPLETE else None)
    elif what == "note":
        storage.set_study_user_attr(study, f"v{n % 2}", n)
        return storage.get_study_user_attrs(study)
    elif what == "delete":
        storage.delete_study(study)
        trials[:] = [(-1, -1) if of == study else (trial, of) for trial, of in trials]
    else:
        return contents(storage, study)
    return None


def contents(storage: BaseStorage, study: int) -> list[Any]:
    """All that is known of the trials of a study, but for times and numbers."""
    found = storage.get_all_trials(study)
    return [
        (t.state, t.values, t.params, t.distributions, t.user_attrs, t.system_attrs, t.intermediate_values)
        for t in sorted(found, key=lambda t: t.number)
    ]
