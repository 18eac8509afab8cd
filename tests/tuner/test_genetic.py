"""The genetic search on functions whose best point is known."""
from __future__ import annotations

import math
import statistics

import optuna
import pytest

from tcjit.tuner.config import TunerConfig
from tcjit.tuner.genetic import NOTE, Exhausted, Genetic, PastTrial, distributions, parents, propose
from tcjit.tuner.space import Gene, Space

SPACE = Space(tuple(Gene(f"g{n}", tuple(range(8))) for n in range(6)))


def rough(values: dict[str, str]) -> float:
    """Best, 1, where every gene is 5; neighbours are alike, and the first two genes belong together."""
    genes = [int(value) for value in values.values()]
    away = sum(abs(g - 5) for g in genes) + 2 * (abs(genes[0] - 5) > 1) * abs(genes[1] - 5)
    return math.exp(away / 6)


def trials_until(limit: float, config: TunerConfig, random_only: bool = False) -> int:
    past: list[PastTrial] = []
    for number in range(2000):
        settings = TunerConfig(population=9999, elites=0, seed=config.seed) if random_only else config
        values = propose(SPACE, settings, [] if random_only else past, number)
        assert values is not None
        seconds = rough(values)
        past.append(PastTrial(number, values, seconds, str(values)))
        if seconds <= limit:
            return number + 1
    return 2000


def test_it_is_far_ahead_of_random_search() -> None:
    genetic = [trials_until(1.2, TunerConfig(seed=seed)) for seed in range(9)]
    blind = [trials_until(1.2, TunerConfig(seed=seed), random_only=True) for seed in range(9)]
    assert statistics.median(genetic) < 250, genetic
    assert statistics.median(blind) > 5 * statistics.median(genetic), (genetic, blind)


def test_the_same_seed_and_past_propose_the_same() -> None:
    past = [PastTrial(n, {g.name: str(n % 8) for g in SPACE.genes}, 1.0 + n, f"c{n}") for n in range(20)]
    config = TunerConfig(seed=3)
    first = [propose(SPACE, config, past, number) for number in range(20, 40)]
    assert first == [propose(SPACE, config, past, number) for number in range(20, 40)]
    assert first != [propose(SPACE, TunerConfig(seed=4), past, number) for number in range(20, 40)]


def test_nothing_is_proposed_twice_and_a_small_space_ends() -> None:
    space = Space((Gene("a", (0, 1, 2)), Gene("b", (0, 1))))
    past: list[PastTrial] = []
    while (values := propose(space, TunerConfig(), past, len(past))) is not None:
        past.append(PastTrial(len(past), values, None if values["a"] == "1" else 1.0, "c"))
    assert len({tuple(p.values.items()) for p in past}) == len(past) == space.size


def test_parents_are_the_elites_and_the_best_of_late_each_code_once() -> None:
    config = TunerConfig(population=4, elites=2)
    timed = [(1.0, "a"), (1.0, "a"), (2.0, "b"), (3.0, "c")]
    past = [PastTrial(n, {"g": str(n)}, seconds, code) for n, (seconds, code) in enumerate(timed)]
    past += [PastTrial(n, {"g": str(n)}, 10.0 + n, f"late{n}") for n in range(4, 20)] + [PastTrial(20, {"g": "20"}, None, "failed")]
    assert [p.code for p in parents(config, past)] == ["a", "b", "late13", "late14"]


def test_a_child_has_the_genes_of_three_parents() -> None:
    past = [PastTrial(n, {g.name: str(n) for g in SPACE.genes}, 1.0, f"c{n}") for n in range(3)]
    config = TunerConfig(population=3, elites=3, mutation=0.0, crossover=1.0)
    children = [propose(SPACE, config, past, number) for number in range(100, 160)]
    bred = [child for child in children if child and set(child.values()) <= {"0", "1", "2"}]
    assert len(bred) > 40
    assert any(set(child.values()) == {"0", "1", "2"} for child in bred)


def test_a_model_chooses_among_the_brood() -> None:
    past = [PastTrial(n, {g.name: str(n % 8) for g in SPACE.genes}, 2.0 + n, f"c{n}") for n in range(40)]
    seen = []

    def choose(offspring, past):  # type: ignore[no-untyped-def]
        seen.append(len(offspring))
        return min(offspring, key=rough)

    chosen = [propose(SPACE, TunerConfig(), past, number, choose) for number in range(40, 60)]
    plain = [propose(SPACE, TunerConfig(), past, number) for number in range(40, 60)]
    assert seen == [16] * 20
    assert statistics.mean(rough(values) for values in chosen if values) < statistics.mean(rough(values) for values in plain if values)


def test_optuna_keeps_the_trials() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=Genetic(SPACE, TunerConfig(population=8, elites=2)))
    first = {gene.name: "5" for gene in SPACE.genes}
    study.enqueue_trial(first)
    for _ in range(30):
        trial = study.ask(distributions(SPACE))
        trial.set_user_attr(NOTE, {"code": str(trial.params)})
        study.tell(trial, rough(trial.params))
    assert study.trials[0].params == first and study.best_value == 1.0
    assert len({str(trial.params) for trial in study.trials}) == 30


def test_an_exhausted_space_is_told() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = Space((Gene("a", (0, 1)),))
    study = optuna.create_study(sampler=Genetic(space, TunerConfig()))
    for _ in range(2):
        study.tell(study.ask(distributions(space)), 1.0)
    with pytest.raises(Exhausted):
        study.ask(distributions(space))
