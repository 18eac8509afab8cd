"""The learned model: what it learns from, what it chooses, and that it helps.

Modules: tuner.measurements
"""
from __future__ import annotations

import importlib.util
import math
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tcjit.errors import TuneError
from tcjit.tuner import model
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.evaluator import Candidate, Failure
from tcjit.tuner.genetic import PastTrial, propose
from tcjit.tuner.measurements import Measurements, Outcome
from tcjit.tuner.model import BEST, LEAST, PRINTED, Learned, RankGroup, foreign, learner, trained
from tcjit.tuner.space import Gene, Space

pytest.importorskip("xgboost", reason="XGBoost is not installed: pip install tcjit[tuner]")

SPACE = Space(tuple(Gene(f"g{n}", tuple(range(8))) for n in range(6)))
UNTUNED = {gene.name: "0" for gene in SPACE.genes}


def features(values: Mapping[str, str]) -> dict[str, float]:
    """What a kernel does: work and loops, of which the genes say something together only."""
    a, b, c, d, e, f = (int(value) for value in values.values())
    return {"work": abs(a * b - 15) / 3 + abs(c - 5), "loops": abs(d + e - 9) / 2, "lines": float(f), "width": float(a % 2)}


def seconds(values: Mapping[str, str]) -> float:
    seen = features(values)
    return math.exp((seen["work"] + seen["loops"]) / 4) * (1 + 0.05 * (int(values["g5"]) != 5))


def printed(points: Sequence[Mapping[str, str]]) -> list[Candidate | Failure]:
    """Two neighbours in the last gene have the same code; where the first is 7 there is none."""
    return [
        Failure("no such candidate", pruned=True) if point["g0"] == "7" else Candidate(code(point), features(point)) for point in points
    ]


def code(point: Mapping[str, str]) -> str:
    return " ".join([*list(point.values())[:5], str(int(point["g5"]) // 2)])


def drawn(count: int, seed: int = 0) -> list[dict[str, str]]:
    rng = random.Random(seed)
    return [{gene.name: rng.choice(gene.labels) for gene in SPACE.genes} for _ in range(count)]


def measured(points: Sequence[dict[str, str]]) -> list[PastTrial]:
    return [PastTrial(n, point, seconds(point), code(point)) for n, point in enumerate(points)]


def learned(past: Sequence[PastTrial] = (), seed: int = 0, groups: Sequence[RankGroup] = ()) -> Learned:
    known = {p.code: Outcome(p.seconds, features=features(p.values)) for p in past}
    return Learned(seed, UNTUNED, printed, known, groups)


def group(points: Sequence[dict[str, str]]) -> RankGroup:
    return RankGroup.of(features(UNTUNED), [(features(point), seconds(point)) for point in points], 64)


# ---------------------------------------------------------------- learning


def test_ranks_are_learned_from_groups_that_nothing_else_compares() -> None:
    points, others = drawn(150), drawn(200, 1)
    slower = RankGroup(group(points[75:]).features, tuple(1000 * s for s in group(points[75:]).seconds))  # another machine, say
    rank = trained([group(points[:75]), slower])
    scores = rank([model.difference(features(point), features(UNTUNED)) for point in others])
    fast = sorted(range(200), key=lambda n: seconds(others[n]))[:50]
    right = statistics.mean(scores[n] > scores[m] for n in fast for m in range(200) if seconds(others[m]) > 1.2 * seconds(others[n]))
    assert right > 0.85


def test_what_some_candidates_lack_is_no_obstacle() -> None:
    points = drawn(60)
    other = RankGroup(tuple({"work": f["work"], "depth": 1.0} for f in group(points).features), group(points).seconds)
    best, worst = group(points).features[0], group(points).features[-1]
    scores = trained([group(points), other])([{"work": best["work"]}, {"work": worst["work"], "loops": worst["loops"]}])
    assert scores[0] > scores[1]


def test_the_fastest_are_kept_and_the_slow_ones_thinned_evenly() -> None:
    kept = RankGroup.of({"n": 1.0}, [({"n": float(n)}, float(n + 1)) for n in reversed(range(100))], 20)
    numbers = [each["n"] + 1 for each in kept.features]
    assert numbers[:10] == list(range(10)) and numbers[10] == 10 and numbers[-1] == 91 and len(numbers) == 20
    assert kept.seconds == tuple(n + 1 for n in numbers)
    assert model._labels((3.0, 1.0, 2.0)) == [0.0, BEST, BEST / 2]


def test_training_costs_less_than_compiling_one_candidate() -> None:
    whole = RankGroup.of(features(UNTUNED), [(features(point), seconds(point)) for point in drawn(200)], 200)
    trained([whole])
    spent = []
    for _ in range(5):
        start = time.process_time()
        trained([whole])
        spent.append(time.process_time() - start)
    assert min(spent) < 0.1, spent  # measured: 0.02


# ---------------------------------------------------------------- choosing


def test_it_chooses_the_fast_ones_of_a_brood_but_now_and_then_explores(monkeypatch: pytest.MonkeyPatch) -> None:
    past = measured(drawn(60))
    broods = [[point for point in drawn(2 * PRINTED, 100 + seed) if point["g0"] != "7"][:PRINTED] for seed in range(40)]

    def better() -> list[float]:
        """Of each choice the part of the other offspring that are slower."""
        chosen = [learned(past, seed)(offspring, past) for seed, offspring in enumerate(broods)]
        return [sum(seconds(point) > seconds(c) for point in offspring) / (PRINTED - 1) for c, offspring in zip(chosen, broods)]

    assert statistics.mean(better()) > 0.8
    monkeypatch.setattr(model, "EXPLORED", 1.0)
    assert 0.4 < statistics.mean(better()) < 0.6


def test_the_same_past_and_seed_choose_the_same() -> None:
    past, broods = measured(drawn(40)), [drawn(16, seed) for seed in range(20)]
    first = [learned(past, 3)(offspring, past) for offspring in broods]
    assert first == [learned(past, 3)(offspring, past) for offspring in broods]
    assert first != [learned(past, 4)(offspring, past) for offspring in broods]


def test_a_code_is_not_tried_twice_even_while_the_first_runs() -> None:
    twin, other = {**UNTUNED, "g1": "3"}, {**UNTUNED, "g1": "6"}
    again = {**twin, "g5": "1"}
    assert code(twin) == code(again)
    choose = learned()
    assert choose([twin, other], []) == twin
    running = [PastTrial(0, twin, None, "trial 0")]
    assert choose([again, other], running) == other
    assert choose([again, twin], running) == again  # nothing else is left
    assert choose([again, other], [PastTrial(0, twin, 1.0, code(twin))]) == other


def test_what_cannot_be_printed_is_left_out_and_only_so_many_are_printed() -> None:
    asked: list[Mapping[str, str]] = []

    def watched(points: Sequence[Mapping[str, str]]) -> list[Candidate | Failure]:
        asked.extend(points)
        return printed(points)

    offspring = [{**UNTUNED, "g0": "7", "g1": str(n)} for n in range(8)] + [{**UNTUNED, "g0": "1", "g1": str(n)} for n in range(8)]
    choose = Learned(0, UNTUNED, watched, {})
    assert choose(offspring[8:] + offspring[:8], []) == offspring[8] and len(asked) == PRINTED
    assert choose(offspring, []) == offspring[8]
    assert choose(offspring[:8], []) == offspring[0]
    assert len(asked) == 16, "printed again"


def test_with_too_little_to_learn_from_it_takes_what_comes_first() -> None:
    past, offspring = measured([point for point in drawn(40) if point["g0"] != "7"][: LEAST - 1]), drawn(PRINTED, 5)
    first = next(point for point in offspring if point["g0"] != "7")
    assert {tuple(learned(past, seed)(offspring, past).values()) for seed in range(10)} == {tuple(first.values())}
    taught = [learned(past, seed, [group(drawn(60))])(offspring, past) for seed in range(10)]
    assert statistics.mean(seconds(point) for point in taught) < seconds(first)


def test_a_search_with_it_takes_fewer_trials() -> None:
    def trials(seed: int, choose: Learned | None) -> int:
        past: list[PastTrial] = []
        while len(past) < 400:
            values = propose(SPACE, TunerConfig(seed=seed), past, len(past), choose)
            assert values is not None
            past.append(PastTrial(len(past), values, seconds(values), code(values)))
            if seconds(values) < 1.1:
                break
        return len(past)

    plain = [trials(seed, None) for seed in range(9)]
    helped = [trials(seed, learned(seed=seed)) for seed in range(9)]
    assert statistics.median(helped) < 0.6 * statistics.median(plain), (helped, plain)


# ---------------------------------------------------------------- where it comes from


def test_it_is_asked_for_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(wanted: bool) -> object:
        return learner(TunerConfig(model=wanted), UNTUNED, printed, {}, "nowhere", "problem")

    assert made(False) is None and isinstance(made(True), Learned)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert made(False) is None
    with pytest.raises(TuneError, match="model = True needs XGBoost") as missing:
        made(True)
    assert missing.value.hint == "pip install tcjit[tuner]"


def test_other_problems_of_the_target_teach_it() -> None:
    for number, (target, problem, points) in enumerate(
        [("t1", "old", drawn(20, 1)), ("t1", "new", drawn(30, 2)), ("t2", "elsewhere", drawn(20, 3)), ("t1", "few", drawn(3, 4))]
    ):
        log = Measurements(target, problem)
        log.add("untuned", Outcome(5.0, "", UNTUNED, features(UNTUNED)))
        for point in points:
            log.add(code(point), Outcome(seconds(point), "", point, features(point)))
        log.add("slow", Outcome(None, "no answer", points[0], features(points[0])))
        os.utime(_log_file(f"measured-{target}-{problem}"), (1e9 + number, 1e9 + number))
    again = Measurements("t1", "new").all()
    assert again["untuned"].features == features(UNTUNED) and again["slow"].seconds is None
    groups = foreign("t1", "mine")
    assert [len(each.seconds) for each in groups] == [len(again) - 1, len(Measurements("t1", "old").all()) - 1]
    assert dict.fromkeys(features(UNTUNED), 0.0) in groups[0].features  # differences from the untuned
    assert len(foreign("t1", "new")) == 1 and foreign("t3", "new") == ()


def _log_file(name: str) -> Path:
    return next(Path(os.environ["TCJIT_CACHE_DIR"]).rglob(name))


# ---------------------------------------------------------------- in a search


@pytest.mark.host
def test_a_search_makes_use_of_it_and_leaves_what_it_learned() -> None:
    import torch

    import tcjit

    text = "def rows(float(N,M) X) -> (Y, Z) { Y(i, k) +=! X(i, j) * X(k, j)\n Z(i, j) = X(i, j) / 3.0 }"
    settings = TunerConfig(trials=10, workers=2, model=True, seed=11)
    tc = tcjit.define(text)
    result = tc.rows.autotune(torch.rand(64, 96), config=settings)
    codes = [trial.code for trial in result.history if trial.state in ("measured", "same")]
    assert len(set(codes)) == result.trials["measured"] >= LEAST and result.speedup >= 1
    kept = foreign("cpu", "another problem")[0]  # of the log written to last
    assert len(kept.seconds) == result.trials["measured"]
    assert {"runs", "sums", "share", "lines"} <= set(kept.features[0])
    again = tc.rows.autotune(torch.rand(64, 80), config=settings)
    assert len(again.history) == 10 and foreign("cpu", "another problem")[1] == kept
