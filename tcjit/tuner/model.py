"""A learned model of speed: boosted trees with a rank loss (XGBoost), trained on what was measured while the search goes on.

It sees what a candidate's printed code does, in numbers (``Candidate.features``), as differences from those of the untuned code. So
measurements of other problems on the same kind of target train it too, and it knows something before the first trial. (The genes alone
tell half as much: an offspring has to be printed, which takes a fraction of what compiling and timing it takes.)
"""
from __future__ import annotations

import importlib.util
import json
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcjit.errors import TuneError
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.evaluator import Candidate, Failure
from tcjit.tuner.genetic import Choose, PastTrial, Values
from tcjit.tuner.measurements import Outcome, others

PRINTED = 8  # offspring that are printed for one that is tried
EXPLORED = 0.1  # the part of trials in which the model is not asked
LEAST = 6  # candidates of one problem from which there is something to learn
OWN, FOREIGN, PROBLEMS = 200, 64, 4  # candidates to learn from: of this problem, of each other one, and how many other ones
TREES = 30
BEST = 31.0  # the label of a group's fastest
PARAMETERS = {
    "objective": "rank:pairwise",
    "lambdarank_pair_method": "topk",  # what is slow need not be put in order
    "lambdarank_num_pair_per_sample": 16,
    "max_depth": 4,
    "eta": 0.2,
    "tree_method": "exact",
    "nthread": 1,  # the cores are for compiling
    "verbosity": 0,
}

Features = Mapping[str, float]
Print = Callable[[Sequence[Values]], Sequence[Candidate | Failure]]
Rank = Callable[[Sequence[Features]], list[float]]


@dataclass(frozen=True)
class RankGroup:
    """Candidates of one problem: differences of their features from the untuned code's, and seconds."""

    features: tuple[Features, ...]
    seconds: tuple[float, ...]

    @staticmethod
    def of(untuned: Features, timed: Sequence[tuple[Features, float]], most: int) -> RankGroup:
        """At most ``most`` candidates: the fastest, then evenly spaced slower ones, so that good ones are ranked most finely."""
        ranked = sorted(timed, key=lambda item: item[1])
        if len(ranked) > most:
            fast, slow = ranked[: most // 2], ranked[most // 2 :]
            kept = most - len(fast)
            ranked = fast + [slow[n * len(slow) // kept] for n in range(kept)]
        return RankGroup(tuple(difference(features, untuned) for features, _ in ranked), tuple(seconds for _, seconds in ranked))


def learner(config: TunerConfig, untuned: Values, printed: Print, known: Mapping[str, Outcome], target: str, name: str) -> Choose | None:
    """What chooses among offspring for a problem called ``name`` on a kind of target, or None where the settings do without.

    ``untuned`` is the point of the untuned default, ``printed`` prints points, ``known`` is what was measured of the problem. A TuneError
    where a model is asked for and XGBoost is missing.
    """
    if not config.model:
        return None
    if importlib.util.find_spec("xgboost") is None:
        raise TuneError("TunerConfig: model = True needs XGBoost, which is not installed", hint="pip install tcjit[tuner]")
    return Learned(config.seed, untuned, printed, known, foreign(target, name))


def foreign(target: str, name: str) -> tuple[RankGroup, ...]:
    """What was measured of the problems that were searched last on a kind of target, but for the one of this name."""
    groups = []
    for outcomes in others(target, name):
        timed = [(o.features, o.seconds) for o in outcomes if o.features and o.seconds is not None]
        if len(timed) >= LEAST and outcomes[0].features:  # a search begins with the untuned code
            groups.append(RankGroup.of(outcomes[0].features, timed, FOREIGN))
        if len(groups) == PROBLEMS:
            break
    return tuple(groups)


class Learned:
    """Prints offspring and chooses the one whose code is ranked first, among those whose code was not tried yet; a ``Choose``."""

    def __init__(
        self, seed: int, untuned: Values, printed: Print, known: Mapping[str, Outcome], groups: Sequence[RankGroup] = ()
    ) -> None:
        self.seed, self.untuned, self.printed, self.known, self.groups = seed, untuned, printed, known, tuple(groups)
        self._made: dict[str, Candidate | Failure] = {}  # by point
        self._features: dict[str, Features] = {}  # by code
        self._trained: tuple[tuple[str, ...], Rank | None] | None = None  # on which codes

    def __call__(self, offspring: Sequence[dict[str, str]], past: Sequence[PastTrial]) -> dict[str, str]:
        rng = random.Random(f"{self.seed} {len(past)} model")
        fresh = self._fresh(offspring, self._codes(past))
        rank = None if len(fresh) < 2 or rng.random() < EXPLORED else self._rank(past)
        if rank is None:
            return fresh[0][0] if fresh else offspring[0]
        scores = rank([self._difference(candidate.features) for _, candidate in fresh])
        return fresh[max(range(len(fresh)), key=scores.__getitem__)][0]

    # ------------------------------------------------------------ what is new

    def _fresh(self, offspring: Sequence[dict[str, str]], tried: Collection[str]) -> list[tuple[dict[str, str], Candidate]]:
        """The first of the offspring that print and whose code differs from all others."""
        by_code: dict[str, tuple[dict[str, str], Candidate]] = {}
        for start in range(0, len(offspring), PRINTED):
            part = offspring[start : start + PRINTED]
            for values, candidate in zip(part, self._print(part)):
                if isinstance(candidate, Candidate) and candidate.code not in tried:
                    by_code.setdefault(candidate.code, (values, candidate))
            if by_code:
                break
        return list(by_code.values())

    def _codes(self, past: Sequence[PastTrial]) -> set[str]:
        """The codes of all trials, those included that run."""
        running = (self._made.get(_key(p.values)) for p in past if p.seconds is None)
        return {p.code for p in past} | {candidate.code for candidate in running if isinstance(candidate, Candidate)}

    def _print(self, points: Sequence[Values]) -> list[Candidate | Failure]:
        missing = [point for point in points if _key(point) not in self._made]
        for point, candidate in zip(missing, self.printed(missing)):
            self._made[_key(point)] = candidate
            if isinstance(candidate, Candidate):
                self._features[candidate.code] = candidate.features
        return [self._made[_key(point)] for point in points]

    # ------------------------------------------------------------ what is known

    def _rank(self, past: Sequence[PastTrial]) -> Rank | None:
        """Trained on the past; anew where more of it is known."""
        timed = {p.code: p.seconds for p in past if p.seconds is not None}
        codes = tuple(timed)
        if self._trained is None or self._trained[0] != codes:
            own = [(features, timed[code]) for code in codes if (features := self._known_features(code))]
            enough = len(own) >= LEAST
            groups = (*((RankGroup.of(self._untuned, own, OWN),) if enough else ()), *self.groups)
            self._trained = codes, trained(groups) if groups else None
        return self._trained[1]

    def _known_features(self, code: str) -> Features:
        outcome = self.known.get(code)
        return self._features.get(code) or (outcome.features if outcome else {})

    def _difference(self, features: Features) -> Features:
        return difference(features, self._untuned)

    @property
    def _untuned(self) -> Features:
        candidate = self._print([self.untuned])[0]
        return candidate.features if isinstance(candidate, Candidate) else {}


def difference(features: Features, untuned: Features) -> Features:
    """Features as differences from those of the untuned code."""
    return {name: value - untuned.get(name, 0.0) for name, value in features.items()}


def trained(groups: Sequence[RankGroup]) -> Rank:
    """Scores of features, the best highest, learned from groups whose members are compared among themselves."""
    import xgboost  # slow to import, and may be missing

    names = sorted({name for group in groups for features in group.features for name in features})

    def matrix(rows: Iterable[Features], labels: Sequence[float] | None = None) -> Any:
        table = np.array([[row.get(name, math.nan) for name in names] for row in rows], dtype=np.float32)
        return xgboost.DMatrix(table, label=labels, nthread=1)

    rows = [features for group in groups for features in group.features]
    data = matrix(rows, [label for group in groups for label in _labels(group.seconds)])
    data.set_group([len(group.seconds) for group in groups])
    booster = xgboost.train(PARAMETERS, data, TREES)
    return lambda features: [float(score) for score in booster.predict(matrix(features))]


def _key(point: Values) -> str:
    return json.dumps(point, sort_keys=True)


def _labels(seconds: Sequence[float]) -> list[float]:
    """From ``BEST`` for the fastest down to 0, by rank."""
    order = sorted(range(len(seconds)), key=lambda n: -seconds[n])
    labels = [0.0] * len(seconds)
    for rank, n in enumerate(order):
        labels[n] = BEST * rank / max(1, len(seconds) - 1)
    return labels
