"""Genetic search: selection of parents, crossover of three, mutation. Optuna keeps the trials, this proposes the next."""
from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tcjit.tuner.config import TunerConfig
from tcjit.tuner.space import Gene, Space

Values = Mapping[str, str]
# of several offspring the one to try, by what is known of those measured
Choose = Callable[[Sequence[dict[str, str]], Sequence["PastTrial"]], dict[str, str]]

NOTE = "tcjit"  # the attribute of a trial that holds what the search knows of it
SELECTION_POWER = 4  # a parent's weight is its speed to this power: times differ little among the good
OFFSPRING = 16  # offspring among which a model chooses
MAX_DRAWS = 200  # draws of known points after which the space counts as used up


@dataclass(frozen=True)
class PastTrial:
    """A trial as the search sees it: ``seconds`` is None where it failed or runs, ``code`` identifies the kernel."""

    number: int
    values: Values
    seconds: float | None
    code: str


def propose(
    space: Space, config: TunerConfig, past: Sequence[PastTrial], number: int, choose: Choose | None = None
) -> dict[str, str] | None:
    """Values that were never tried; None where (nearly) all have been.

    The draw depends on the seed, the trial's number and the past alone, so that a search that was cut off goes on as it would have.
    """
    rng = random.Random(f"{config.seed} {number}")
    tried = {_key(space, p.values) for p in past}
    pool = parents(config, past)
    offspring: list[dict[str, str]] = []
    for attempt in range(MAX_DRAWS):
        child = _child(space, config, pool, len(past), rng, attempt)
        key = _key(space, child)
        if key not in tried:
            tried.add(key)
            offspring.append(child)
            if choose is None or not pool or len(offspring) == OFFSPRING:
                break
    if not offspring:
        return _any_left(space, tried)
    return choose(offspring, past) if choose is not None and len(offspring) > 1 else offspring[0]


def parents(config: TunerConfig, past: Sequence[PastTrial]) -> list[PastTrial]:
    """The elites and the fastest recent trials, one per code."""
    fastest: dict[str, PastTrial] = {}
    for p in sorted((p for p in past if p.seconds is not None), key=lambda p: (p.seconds, p.number)):
        fastest.setdefault(p.code, p)
    ranked = list(fastest.values())
    latest = max((p.number for p in past), default=0)
    recent = [p for p in ranked[config.elites :] if p.number > latest - 2 * config.population]
    return ranked[: config.elites] + recent[: config.population - config.elites]


def _child(space: Space, config: TunerConfig, pool: list[PastTrial], tried: int, rng: random.Random, attempt: int) -> dict[str, str]:
    """At first mostly random points, later hardly any."""
    if len(pool) < 2 or rng.random() < max(0.05, 0.6 - tried / config.population):
        return {gene.name: rng.choice(gene.labels) for gene in space.genes}
    best = pool[0].seconds
    weights = [(best / p.seconds) ** SELECTION_POWER if best and p.seconds else 1.0 for p in pool]
    chosen = rng.choices(pool, weights, k=3)
    if rng.random() >= config.crossover:
        chosen = chosen[:1]
    child = {gene.name: rng.choice(chosen).values[gene.name] for gene in space.genes}
    # the longer nothing new comes of it, the more changes
    rate = min(1.0, config.mutation * (1 + attempt / 8))
    for gene in space.genes:
        if rng.random() < rate:
            child[gene.name] = _mutated(gene, child[gene.name], rng)
    return child


def _mutated(gene: Gene, value: str, rng: random.Random) -> str:
    """Another choice: of ordered ones half the time a neighbour."""
    here = gene.labels.index(value)
    if gene.ordered and rng.random() < 0.5:
        near = [n for n in (here - 1, here + 1) if 0 <= n < len(gene.labels)]
        return gene.labels[rng.choice(near)]
    return rng.choice([other for n, other in enumerate(gene.labels) if n != here])


def _any_left(space: Space, tried: set[tuple[str, ...]]) -> dict[str, str] | None:
    """The first point not tried, where the space is small enough to look for it."""
    if space.size > 100_000 or len(tried) >= space.size:
        return None
    for number in range(space.size):
        values = {}
        for gene in space.genes:
            number, position = divmod(number, len(gene.labels))
            values[gene.name] = gene.labels[position]
        if _key(space, values) not in tried:
            return values
    return None


def _key(space: Space, values: Values) -> tuple[str, ...]:
    return tuple(values[gene.name] for gene in space.genes)


# ---------------------------------------------------------------- as a sampler of optuna


class Exhausted(Exception):
    """There is nothing left to propose."""


class Genetic(BaseSampler):
    """Proposes by ``propose`` out of a study's trials, whoever made them."""

    def __init__(self, space: Space, config: TunerConfig, choose: Choose | None = None) -> None:
        self.space = space
        self.config = config
        self.choose = choose
        self._history: History | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self.space)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        if self._history is None or self._history.study is not study:
            self._history = History(self.space, study)
        past = [p for p in self._history.past() if p.number != trial.number]
        values = propose(self.space, self.config, past, trial.number, self.choose)
        if values is None:
            raise Exhausted
        return values

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution) -> Any:
        """A gene that an enqueued trial leaves open."""
        return next(gene.labels[0] for gene in self.space.genes if gene.name == param_name)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space as optuna knows it."""
    return {gene.name: CategoricalDistribution(gene.labels) for gene in space.genes}


class History:
    """The trials of a study that have values for all genes, those still running included; what has ended is looked at once."""

    def __init__(self, space: Space, study: Study) -> None:
        self.space, self.study = space, study
        self._ended: dict[int, PastTrial | None] = {}

    def past(self) -> list[PastTrial]:
        """In the order of their numbers, with what other workers have added."""
        return [p for trial in self.study.get_trials(deepcopy=False) if (p := self._past(trial)) is not None]

    def _past(self, trial: FrozenTrial) -> PastTrial | None:
        if trial.number in self._ended:
            return self._ended[trial.number]
        values = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        past = None
        if all(values.get(gene.name) in gene.labels for gene in self.space.genes):
            seconds = trial.value if trial.state == TrialState.COMPLETE else None
            code = str(trial.user_attrs.get(NOTE, {}).get("code", f"trial {trial.number}"))
            past = PastTrial(trial.number, {gene.name: values[gene.name] for gene in self.space.genes}, seconds, code)
        if trial.state.is_finished():
            self._ended[trial.number] = past
        return past
