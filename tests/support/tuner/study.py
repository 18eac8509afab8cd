"""A process that takes part in a study: ``python -m support.tuner.study WHERE STUDY BUDGET [hang]``.

It asks and tells until so many candidates are told, and says on its output what it does, each line before or after it is so. ``hang``: it
stops for ever in its third trial, to be killed.
"""
from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
import warnings
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from support import PYTHONPATH
from tcjit.tuner.storage import open_storage
from tcjit.tuner.study_storage import SharedStorage, silence_optuna

GENES = {f"gene{n}": CategoricalDistribution([str(choice) for choice in range(5)]) for n in range(12)}


def study_of(storage: SharedStorage, name: str = "study") -> optuna.Study:
    with silence_optuna():
        return optuna.create_study(study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler(), load_if_exists=True)


def value(params: dict[str, Any]) -> float:
    return float(sum(int(choice) for choice in params.values()))


def start(where: str, budget: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "support.tuner.study", where, "study", str(budget), *more]
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, cwd=os.sep)


def main(where: str, name: str, budget: int, hang: bool) -> None:
    warnings.simplefilter("error")
    storage = open_storage(where, heartbeat=1)
    study = study_of(storage, name)
    turn = 0
    while len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < budget:
        for _ in storage.fail_orphans(name):
            print("ended", flush=True)
        trial = study.ask(GENES)
        token = secrets.token_hex(4)
        trial.set_user_attr("token", token)
        storage.flush()
        turn += 1
        print("asked", token, flush=True)
        time.sleep(1000 if hang and turn == 3 else 0.01)
        study.tell(trial, value(trial.params))
        print("told", token, flush=True)
    deadline = time.monotonic() + 60
    while study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) and time.monotonic() < deadline:
        for _ in storage.fail_orphans(name):
            print("ended", flush=True)
        time.sleep(0.1)
    storage.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "hang" in sys.argv[4:])
