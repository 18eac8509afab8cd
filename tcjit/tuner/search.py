"""The search as a page: seeds, generations, a descent from the best, a final in turns.

It sees options and codes; what makes and times candidates is behind ``Evaluator``, and optuna keeps the trials.
"""
from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from statistics import median
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from tcjit.cache import store
from tcjit.errors import MappingError, TuneError
from tcjit.mapping.options import Options
from tcjit.redact import redacted
from tcjit.runtime.timing import ratios
from tcjit.tuner import genetic
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.evaluator import Candidate, Evaluator, Failure
from tcjit.tuner.genetic import NOTE, Exhausted, Genetic, History, distributions
from tcjit.tuner.measurements import Measurements, Outcome
from tcjit.tuner.model import learner
from tcjit.tuner.result import TuneResult
from tcjit.tuner.space import Space
from tcjit.tuner.storage import open_storage
from tcjit.tuner.study_storage import SharedStorage, silence_optuna
from tcjit.tuner.trials import State, Trial
from tcjit.tuner.worker_pool import SearchTimeOver

FINALISTS = 8
ROUNDS = 15  # of the final
CLOSE = 1.3  # a finalist is at most so many times slower than the best
GENES = "tcjit:genes"  # the attribute of a study that names the genes that matter
BETTER = 0.98  # what does not take less than so much of the untuned default's time in every process is not worth another kernel


@dataclass(frozen=True)
class Task:
    """What is searched: candidates of ``space`` for the problems that ``module`` understands; ``name`` tells it from all others."""

    name: str
    label: str
    space: Space
    seeds: tuple[Options, ...]  # the untuned default first
    module: str
    opening: Mapping[str, Any]
    device: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a search is: ``left`` is the estimated number of seconds to go, ``best`` the least seconds so far."""

    done: int
    budget: int
    best: float | None
    default: float | None
    elapsed: float
    left: float
    last: Trial


Watch = Callable[[Progress], None]
FinalTimes = list[list[list[float]]]  # seconds by process, finalist, round


def search(
    task: Task, config: TunerConfig, watch: Watch | None = None, choose: genetic.Choose | None = None, began: float | None = None
) -> TuneResult:
    """The best options for a task; a TuneError where no candidate is valid. Ctrl-C ends it with the best so far, and so does the end of
    ``config.seconds`` after ``began``, a ``time.monotonic()``."""
    began = time.monotonic() if began is None else began
    until = began + (math.inf if config.seconds is None else config.seconds)
    where = config.storage if config.storage is not None else store().log(f"study-{task.name}")
    with silence_optuna(), closing(open_storage(where)) as storage, storage.translate_errors():
        with Evaluator(task.module, task.opening, task.device, config.compilers, config.timeout, until) as evaluator:
            return Search(task, config, evaluator, storage, watch, choose, began).run()


class Search:
    """One session of a search."""

    def __init__(
        self,
        task: Task,
        config: TunerConfig,
        evaluator: Evaluator,
        storage: SharedStorage,
        watch: Watch | None,
        choose: genetic.Choose | None,
        began: float,
    ) -> None:
        self.task, self.config, self.evaluator, self.watch, self.choose = task, config, evaluator, watch, choose
        self.space, self.seeds = task.space, task.seeds
        self.target = str(task.facts.get("target", "")).partition(":")[0]
        self.measured = Measurements(self.target, task.name)
        self.began, self.began_at = began, datetime.now()
        self.storage = storage
        name = f"{task.label[:200]} {task.name}"
        self.study = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
        storage.fail_orphans(name)
        self.history = History(self.space, self.study)
        self.first = len(self._ended())  # trials of earlier sessions
        self.recorded = 0

    def run(self) -> TuneResult:
        stopped = "interrupt"
        interrupted = False
        try:
            self._narrow()
            self.study.sampler = Genetic(self.space, self.config, self.choose or self._learner())
            stopped = self._searched()
        except KeyboardInterrupt:
            interrupted = True
        except SearchTimeOver:
            stopped = "seconds"
        best = self._finalists()
        if not best:
            raise self._none_valid(interrupted)
        final: FinalTimes | Failure = Failure("interrupted")
        if not interrupted:
            with suppress(KeyboardInterrupt, SearchTimeOver):
                final = self._final(best)
        return self._result(best, final, stopped)

    # ------------------------------------------------------------ which candidates

    def _narrow(self) -> None:
        """Add the seeds' choices to the space, and drop genes that change the code neither of the untuned default nor of a random point."""
        self.seeds += tuple(self.evaluator.seeds())
        self.space = self.space.including(self.seeds)
        noted = self.study.user_attrs.get(GENES)
        if noted is None:
            noted = sorted(self._effective())
            self.study.set_user_attr(GENES, noted)
        self.space = self.space.only(noted)
        self.history = History(self.space, self.study)

    def _effective(self) -> set[str]:
        """The genes that change the generated code, found by probes; each gene is probed until it does."""
        rng = random.Random(0)
        effective: set[str] = set()
        for base in (self.space.values(self.task.seeds[0]), {gene.name: rng.choice(gene.labels) for gene in self.space.genes}):
            (plain,) = self._printed([base])
            waiting = {gene.name: self.space.probes(gene, base) for gene in self.space.genes}
            while waiting := {name: probes for name, probes in waiting.items() if probes and name not in effective}:
                asked = {name: probes.pop(0) for name, probes in waiting.items()}
                printed = zip(asked, self._printed([*asked.values()]))
                effective |= {name for name, one in printed if isinstance(one, Candidate) and one.code != getattr(plain, "code", "")}
        return effective

    def _learner(self) -> genetic.Choose | None:
        """The learned model, where the settings want one."""
        untuned = self.space.values(self.task.seeds[0])
        return learner(self.config, untuned, self._printed, self.measured.all(), self.target, self.task.name)

    def _printed(self, points: Sequence[Mapping[str, str]]) -> list[Candidate | Failure]:
        """Printed candidates of points, not compiled; contradictory options are failures."""
        options: list[Options | Failure] = []
        for values in points:
            try:
                options.append(self.space.options(values))
            except MappingError as error:
                options.append(Failure(str(error), pruned=True))
        candidates = iter(self.evaluator.make([o for o in options if isinstance(o, Options)], lambda code: True))
        return [o if isinstance(o, Failure) else next(candidates) for o in options]

    def _searched(self) -> str:
        """Try candidates until the budget, the time or the space is used up; which of them it was."""
        for seed in self.seeds:
            self.study.enqueue_trial(self.space.values(seed), user_attrs={NOTE: {}}, skip_if_exists=True)
        batch = max(2, 2 * self.config.compilers)
        descent = self._descent()
        while True:
            left = self.config.budget - len(self._ended())
            if left <= 0:
                return "trials"
            if self.recorded and self._over():
                return "seconds"
            self.storage.fail_orphans(self.study.study_name)
            trials: list[optuna.Trial] = []
            # the last part of the budget goes to the neighbours of the best
            if left <= self.config.budget // 3:
                for values in (values for _, values in zip(range(min(batch, left)), descent)):
                    self.study.enqueue_trial(values, skip_if_exists=True)
            with suppress(Exhausted):
                while len(trials) < min(batch, left):
                    trials.append(self.study.ask(distributions(self.space)))
            self.storage.flush()  # other workers of the study may now see what is being tried
            if not trials:
                return "exhausted"
            self._try(trials)

    def _descent(self) -> Iterator[dict[str, str]]:
        """Neighbours of the best that were not tried; of a new best, its own."""
        while True:
            past = self.history.past()
            tried = [dict(p.values) for p in past]
            best = genetic.parents(self.config, past)[:1]
            fresh = [values for values in self.space.neighbours(best[0].values) if values not in tried] if best else []
            if not fresh:
                return
            for values in fresh:
                yield values
                now = genetic.parents(self.config, self.history.past())[:1]
                if now != best:
                    break

    # ------------------------------------------------------------ trying them

    def _try(self, trials: Sequence[optuna.Trial]) -> None:
        """Make the candidates side by side, then time them one by one."""
        self.measured.refresh()
        options: list[Options | Failure] = []
        for trial in trials:
            try:
                options.append(self.space.options(trial.params))
            except MappingError as error:
                options.append(Failure(str(error), pruned=True))
        valid = [o for o in options if isinstance(o, Options)]
        candidates = iter(self.evaluator.make(valid, lambda code: self.measured.get(code) is not None))
        for trial, chosen in zip(trials, options):
            if self.recorded and self._over():
                raise SearchTimeOver("the search's time is over")
            self._record(trial, *self._outcome(trial, chosen if isinstance(chosen, Failure) else next(candidates)))

    def _outcome(self, trial: optuna.Trial, candidate: Candidate | Failure) -> tuple[State, Outcome, str]:
        """State, outcome and code of a candidate, which is timed if nothing is known of its code."""
        if isinstance(candidate, Failure):
            return ("pruned" if candidate.pruned else "failed"), Outcome(None, candidate.reason), ""
        known = self.measured.get(candidate.code)
        if known is not None:
            return ("same" if known.seconds is not None else "failed"), known, candidate.code
        best = min((o.seconds for o in self.measured.all().values() if o.seconds is not None), default=None)
        took = self.evaluator.timed(candidate.code, best)
        outcome = (
            Outcome(None, took.reason, trial.params, candidate.features)
            if isinstance(took, Failure)
            else Outcome(took, "", trial.params, candidate.features)
        )
        self.measured.add(candidate.code, outcome)
        return ("measured" if outcome.seconds is not None else "failed"), outcome, candidate.code

    def _record(self, trial: optuna.Trial, state: State, outcome: Outcome, code: str) -> None:
        with suppress(UpdateFinishedTrialError):  # another worker may have taken this one for lost
            trial.set_user_attr(NOTE, {"state": state, "reason": outcome.failed[:500], "code": code})
            if outcome.seconds is not None:
                self.study.tell(trial, outcome.seconds, skip_if_finished=True)
            else:
                self.study.tell(trial, state=TrialState.PRUNED if state == "pruned" else TrialState.FAIL, skip_if_finished=True)
        self.recorded += 1
        if self.watch is not None:
            self.watch(self._progress(Trial(trial.number, trial.params, outcome.seconds, state, outcome.failed, self._elapsed(), code)))

    # ------------------------------------------------------------ the final

    def _finalists(self) -> list[genetic.PastTrial]:
        """The untuned default if it runs, then the fastest codes, each once."""
        past = [p for p in self.history.past() if p.seconds is not None]
        ranked: dict[str, genetic.PastTrial] = {}
        for p in sorted(past, key=lambda p: (p.seconds, p.number)):
            ranked.setdefault(p.code, p)
        if not ranked:
            return []
        default = next((p for p in past if dict(p.values) == self.space.values(self.task.seeds[0])), None)
        fastest = next(iter(ranked.values())).seconds or 0.0
        best = [p for p in ranked.values() if p.seconds is not None and p.seconds <= CLOSE * fastest][:FINALISTS]
        return ([default] if default else []) + [p for p in best if default is None or p.code != default.code]

    def _final(self, finalists: Sequence[genetic.PastTrial]) -> FinalTimes | Failure:
        """The times of finalists in turns."""
        there = {name.partition(".")[0] for name in os.listdir(self.evaluator.folder)}
        missing = [p for p in finalists if p.code not in there]  # measured in an earlier session
        candidates = self.evaluator.make([self.space.options(p.values) for p in missing], lambda code: False)
        failed = next((m for m in candidates if isinstance(m, Failure)), None)
        default = self._led_by_default(finalists)
        return failed or self.evaluator.final([p.code for p in finalists], ROUNDS, lambda times: decided(times, default))

    def _led_by_default(self, finalists: Sequence[genetic.PastTrial]) -> bool:
        return dict(finalists[0].values) == self.space.values(self.task.seeds[0])

    def _result(self, finalists: Sequence[genetic.PastTrial], final: FinalTimes | Failure, stopped: str) -> TuneResult:
        times = [[[p.seconds or 0.0] for p in finalists]] if isinstance(final, Failure) else final
        medians = [median(chain.from_iterable(rounds)) for rounds in zip(*times)]
        has_default = self._led_by_default(finalists)
        fastest = winner(times, has_default)
        history = tuple(self._all_trials())
        default = medians[0] if has_default else medians[fastest]
        options = self.space.options(finalists[fastest].values)
        facts = {**self.task.facts, **_settings(self.config)}
        return TuneResult(options, medians[fastest], default, history, stopped, self.task.label, self._elapsed(), facts)

    # ------------------------------------------------------------ telling

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        """The trials that came to an end; one without values is left of where nothing was left to propose."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return [trial for trial in self.study.get_trials(deepcopy=False, states=ended) if trial.params]

    def _all_trials(self) -> Iterator[Trial]:
        for trial in self._ended():
            note = trial.user_attrs.get(NOTE, {})
            at = (trial.datetime_complete - self.began_at).total_seconds() if trial.datetime_complete else 0.0
            seconds = trial.value if trial.state == TrialState.COMPLETE else None
            reason = str(note.get("reason", "")) or ("" if seconds is not None else "its process ended")
            yield Trial(trial.number, trial.params, seconds, note.get("state", "failed"), reason, at, str(note.get("code", "")))

    def _progress(self, last: Trial) -> Progress:
        outcomes = [o.seconds for o in self.measured.all().values() if o.seconds is not None]
        default = next((p for p in self.history.past() if p.number == 0), None)
        done, elapsed = self.first + self.recorded, self._elapsed()
        left = elapsed / self.recorded * max(0, self.config.budget - done)
        if self.config.seconds is not None:
            left = min(left, max(0.0, self.config.seconds - elapsed))
        return Progress(done, self.config.budget, min(outcomes, default=None), default.seconds if default else None, elapsed, left, last)

    def _over(self) -> bool:
        return self.config.seconds is not None and self._elapsed() >= self.config.seconds

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _none_valid(self, interrupted: bool) -> TuneError:
        if interrupted:
            return TuneError(f"{self.task.label}: interrupted before any candidate was measured", hint="call autotune again: it goes on")
        if self._over() and not self.recorded:
            what = f"{self.task.label}: seconds={self.config.seconds:g} were over before any candidate was measured"
            return TuneError(what, hint="more seconds; if it is not for lack of them, the C compiler or the kernel hangs: call it untuned")
        reasons = Counter(trial.reason.splitlines()[0] for trial in self._all_trials() if trial.reason)
        most = "; ".join(f"{count} times: {reason}" for reason, count in reasons.most_common(3))
        hint = "TunerConfig(timeout=...) for slow kernels, or more trials"
        return TuneError(f"{self.task.label}: no candidate is valid ({most})", hint=hint)


def winner(times: FinalTimes, default: bool) -> int:
    """Index of the fastest finalist by the median of its time ratios within rounds; pairing in a round cancels machine noise.

    Where the first finalist is the untuned ``default``, that one, unless the fastest is ``BETTER`` in every process.
    """
    relative = [_ratios(process) for process in times]
    fastest = min(range(len(times[0])), key=lambda k: median(chain.from_iterable(process[k] for process in relative)))
    return 0 if default and any(median(process[fastest]) > BETTER for process in relative) else fastest


def decided(times: FinalTimes, default: bool) -> bool:
    """Whether no further process can change the winner: there is one finalist, or in one process none was ``BETTER``."""
    alone = len(times[0]) == 1
    return alone or (default and any(all(median(rounds) > BETTER for rounds in _ratios(process)[1:]) for process in times))


def _ratios(process: Sequence[Sequence[float]]) -> list[list[float]]:
    """By finalist and round, its time over that of the first finalist."""
    return [ratios(rounds, process[0]) for rounds in process]


def _settings(config: TunerConfig) -> dict[str, Any]:
    return {name: redacted(str(value)) if name == "storage" and value is not None else value for name, value in vars(config).items()}
