"""How many trials a search takes: ``python benchmarks/tuner/efficiency.py [--seeds 5] [--trials 128] [--minutes 20] [OPS...]``.

Random search, the genetic search from the untuned default alone, the same from all its seeds, and with the learned model, once with nothing
to learn from but itself and once with what the other operators taught, each with several seeds: after how many trials a candidate is
within 5 % of the best known, which is the best of all of these and of one search ten times as long. All share one log of measurements keyed
by generated code, so that no code is timed twice and a run that was cut off, by ``--minutes`` too, goes on where it was.

Searches see single readings. To judge them, codes whose readings are within those 5 %, and those that come before them in a run and are not
far, are timed again in turns with the untuned default; the least of that is the time that counts.

Writes ``benchmarks/results/efficiency-<machine>.json`` and ``.md``; the log is in ``--cache``.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import machine  # noqa: E402 - the path above comes first
from ops import OPS  # noqa: E402

CHOSEN = ("mm_odd", "gconv_14", "softmax", "tccg4")
METHODS = ("random", "genetic", "seeds", "model", "taught")
NAMES = {
    "random": "random",
    "genetic": "genetic, from the default",
    "seeds": "genetic, all seeds",
    "model": "with the model",
    "taught": "with the model, taught by the other operators",
}
NEAR = 0.95  # of the best known
LONGER = 10
DOUBT = 1.25  # times the best: readings that may be of good codes, disturbed
AGAIN, ROUNDS = 15, 24  # so many codes at once, so often


@dataclass(frozen=True)
class Run:
    """The code of each trial; empty where it has none."""

    codes: tuple[str, ...]

    def reached(self, good: Collection[str]) -> int | None:
        """The number of trials until one of these codes."""
        return next((n + 1 for n, code in enumerate(self.codes) if code in good), None)


@dataclass
class Bout:
    """An operator and what is known of it."""

    name: str
    task: Any
    bench: Any
    measured: Any
    again: dict[str, float]  # seconds of codes that were timed again
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    long: Run = Run(())

    @property
    def untuned(self) -> str:
        """The untuned default's code."""
        return self.long.codes[0] if self.long.codes else ""

    @property
    def seconds(self) -> dict[str, float]:
        """What each code takes, as far as that is known by now; searches see the first readings."""
        self.measured.refresh()
        return {code: one.seconds for code, one in self.measured.all().items() if one.seconds is not None} | self.again

    @property
    def best(self) -> float:
        return min(self.seconds.values(), default=float("inf"))

    @property
    def good(self) -> set[str]:
        """The codes that are near enough to the best."""
        seconds = self.seconds
        goal = min(seconds.values(), default=0.0) / NEAR
        return {code for code, each in seconds.items() if each <= goal}

    @property
    def doubtful(self) -> set[str]:
        """The codes that would be the first good ones of a run if their readings were disturbed."""
        seconds, good = self.seconds, self.good
        most = DOUBT * min(seconds.values(), default=0.0)
        early = {code for run in self.runs.values() for code in run.codes[: (run.reached(good) or len(run.codes) + 1) - 1]}
        return {code for code in early if seconds.get(code, float("inf")) <= most}


class OutOfTime(Exception):
    """``--minutes`` are over."""


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Search, print the page, write it and the numbers; the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", default=list(CHOSEN))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=128, help="of a search at most")
    parser.add_argument("--minutes", type=float, default=None, help="until it ends with what it has")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "build" / "efficiency")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    given = parser.parse_args(words)
    os.environ["TCJIT_CACHE_DIR"] = str(given.cache.absolute())
    methods = [method for method in METHODS if method in given.methods.split(",")]
    deadline = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    bouts: list[Bout] = []
    with machine.alone():
        try:
            bouts += [opened(name) for name in given.ops]
            rounds(bouts, methods, given.seeds, given.trials, deadline)
        except OutOfTime:
            print("out of time", flush=True)
        finally:
            for bout in bouts:
                bout.bench.__exit__()
    facts = {"machine": machine.describe(), "seeds": given.seeds, "trials": given.trials, "minutes": given.minutes, "near": NEAR}
    numbers = {**facts, "rows": [row(bout, methods) for bout in bouts]}
    given.out.mkdir(parents=True, exist_ok=True)
    stem = given.out / f"efficiency-{machine.name()}"
    stem.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page(numbers, methods))
    print(page(numbers, methods))
    return numbers


# ---------------------------------------------------------------- an operator


def opened(name: str) -> Bout:
    """The operator's task, whose space has what the seeds have, and processes that make candidates."""
    import torch

    from tcjit.jit import arguments, autotune, kernel_cache, targets
    from tcjit.tuner.measurements import Measurements

    op = OPS[name]
    signature = kernel_cache.signature(op.source, op.entry)
    bound = arguments.check(signature, [torch.from_numpy(array).clone() for array in op.make_inputs().values()], None)
    folder = tempfile.mkdtemp(prefix="tcjit-efficiency-")
    task = autotune._task(op.source, signature, targets.resolve(None, bound.devices), [bound], Path(folder))
    bench = remembering(task)
    measured = Measurements(str(task.facts["target"]).partition(":")[0], task.name)
    return Bout(name, replace(task, space=task.space.including((*task.seeds, *bench.seeds()))), bench, measured, retimings(task))


def remembering(task: Any) -> Any:
    """A bench that prints nothing twice, in this process or the next."""
    from tcjit.cache import store
    from tcjit.tuner.config import TunerConfig
    from tcjit.tuner.evaluator import Candidate, Evaluator

    log = store().log(f"printed-{task.name}")

    class Remembering(Evaluator):
        def __init__(self) -> None:
            config = TunerConfig()
            super().__init__(task.module, task.opening, task.device, config.compilers, config.timeout)
            self.__enter__()
            self.printed = {r["options"]: Candidate(r["code"], r["features"]) for r in log.read() if r is not None}
            self.first = super().seeds()
            self.bare = False  # begin with the default alone

        def seeds(self) -> list[Any]:
            return [] if self.bare else self.first

        def make(self, batch: Sequence[Any], known: Callable[[str], bool]) -> list[Any]:
            asked = {options.to_json(): options for options in batch}
            missing = {key: o for key, o in asked.items() if key not in self.printed or not known(self.printed[key].code)}
            made = dict(zip(missing, super().make(list(missing.values()), known)))
            fresh = {key: one for key, one in made.items() if isinstance(one, Candidate) and key not in self.printed}
            log.append([{"options": key, "code": one.code, "features": dict(one.features)} for key, one in fresh.items()])
            self.printed |= fresh
            return [made.get(options.to_json()) or self.printed[options.to_json()] for options in batch]

    return Remembering()


# ---------------------------------------------------------------- runs


def rounds(bouts: Sequence[Bout], methods: Sequence[str], seeds: int, trials: int, deadline: float) -> None:
    """The long searches, then every run; again those that fall short of what others found, until nothing changes."""
    for bout in bouts:
        share = (deadline - time.monotonic()) / 3 / len(bouts)
        bout.long = searched(bout, "model", seeds, LONGER * trials, frozenset(), time.monotonic() + share)
        retimed(bout)
        untuned = bout.seconds.get(bout.untuned, float("nan"))
        told = f"{untuned * 1e3:.4g} ms untuned, {bout.best * 1e3:.4g} ms after {len(bout.long.codes)} trials"
        print(f"{bout.name}: {bout.task.space.size} points, {told}", flush=True)
    changed = True
    while changed:
        changed = False
        for seed in range(seeds):
            for bout in bouts:
                for method in methods:
                    run = bout.runs.get((method, seed), Run(()))
                    if run.reached(bout.good) is not None or len(run.codes) >= trials:
                        continue
                    run = searched(bout, method, seed, trials, bout.good, deadline)
                    if time.monotonic() >= deadline:
                        raise OutOfTime
                    bout.runs[method, seed] = run
                    changed = retimed(bout) or changed
                    print(f"{bout.name} {method} {seed}: {run.reached(bout.good) or 'none'} of {len(run.codes)} trials", flush=True)


def retimed(bout: Bout) -> bool:
    """Times the codes that count as good, or may, again, until all of those were; whether any was."""
    from tcjit.tuner.evaluator import Failure

    changed = False
    while bout.untuned:
        seconds = bout.seconds
        near = sorted((bout.good | bout.doubtful) - set(bout.again), key=lambda code: seconds[code])
        if not near:
            break
        asked = list(dict.fromkeys([bout.untuned, *near[:AGAIN]]))
        outcomes = bout.measured.all()
        untuned = bout.task.space.values(bout.task.seeds[0])
        there = {name.partition(".")[0] for name in os.listdir(bout.bench.folder)}
        missing = [outcomes[code].values or {} for code in asked if code not in there]  # measured in an earlier session
        bout.bench.make([bout.task.space.options({**untuned, **values}) for values in missing], lambda code: False)
        found = bout.bench.final(asked, ROUNDS)
        if isinstance(found, Failure):
            raise RuntimeError(f"{bout.name}: {found.reason}")
        # the least, since neighbours on a machine only ever add; the untuned default takes part each time
        told = {code: min(*chain.from_iterable(each), bout.again.get(code, float("inf"))) for code, each in zip(asked, zip(*found))}
        retimings(bout.task, told)
        bout.again |= told
        changed = True
    return changed


def retimings(task: Any, told: Mapping[str, float] | None = None) -> dict[str, float]:
    """What was timed again, in this process or another, with what is told."""
    from tcjit.cache import store

    log = store().log(f"retimed-{task.name}")
    log.append([{"code": code, "seconds": seconds} for code, seconds in (told or {}).items()])
    return {record["code"]: record["seconds"] for record in log.read() if record is not None}


def searched(bout: Bout, method: str, seed: int, trials: int, good: Collection[str], deadline: float) -> Run:
    """One search, until it has found one of the ``good`` codes or has no more trials or time."""
    from tcjit.tuner import model
    from tcjit.tuner.config import TunerConfig
    from tcjit.tuner.search import Progress, Search
    from tcjit.tuner.storage import open_storage
    from tcjit.tuner.study_storage import silence_optuna

    codes: list[str] = []

    def watch(progress: Progress) -> None:
        if method == "random" and progress.last.number == 0:
            return  # every search begins with the untuned default
        codes.append(progress.last.code)
        if codes[-1] in good or len(codes) >= trials or time.monotonic() >= deadline:
            raise KeyboardInterrupt

    bare = method in ("random", "genetic")
    bout.bench.bare = bare
    task = replace(bout.task, seeds=bout.task.seeds[:1]) if bare else bout.task
    # random search must not come to the part where the best one's neighbours are tried
    config = TunerConfig(seed=seed, trials=LONGER * trials if method == "random" else trials, model=method in ("model", "taught"))
    choose = uniform(task.space, seed) if method == "random" else None
    known = model.foreign if method == "taught" else nothing
    with silence_optuna(), closing(open_storage(None)) as storage, mock.patch.object(model, "foreign", known):
        Search(task, config, bout.bench, storage, watch, choose, time.monotonic()).run()
    return Run(tuple(codes))


def uniform(space: Any, seed: int) -> Callable[[Sequence[dict[str, str]], Sequence[Any]], dict[str, str]]:
    """Chooses no offspring but any point that was not tried."""
    labels = {gene.name: gene.labels for gene in space.genes}

    def choose(brood: Sequence[dict[str, str]], past: Sequence[Any]) -> dict[str, str]:
        rng = random.Random(f"{seed} {len(past)} uniform")
        tried = [p.values for p in past]
        while (values := {name: rng.choice(labels[name]) for name in brood[0]}) in tried:
            pass
        return values

    return choose


def nothing(target: str, name: str) -> tuple[()]:
    """What other problems teach a model that is to learn from its own only."""
    return ()


# ---------------------------------------------------------------- the page


def row(bout: Bout, methods: Sequence[str]) -> dict[str, Any]:
    """The numbers of an operator; of each method and seed the trials it took, None where the goal was not reached."""
    good = bout.good
    reached = {
        method: [run.reached(good) for (name, _), run in sorted(bout.runs.items()) if name == method] for method in methods
    }
    known = {"untuned": bout.seconds.get(bout.untuned), "best": bout.best, "long": len(bout.long.codes)}
    return {"op": bout.name, "points": bout.task.space.size, **known, "trials": reached}


def page(numbers: Mapping[str, Any], methods: Sequence[str]) -> str:
    """The table in Markdown."""
    facts, most, minutes = numbers["machine"], numbers["trials"], numbers["minutes"]
    asked = f"--seeds {numbers['seeds']} --trials {most}" + (f" --minutes {minutes:g}" if minutes else "")
    lines = [
        f"# Trials to {100 * NEAR:.0f} % of the best known on {facts['cpu']}, {facts['cores']} cores",
        "",
        f"`python benchmarks/tuner/efficiency.py {asked}`: medians (least to most) of {numbers['seeds']} seeds, at most {most} trials each."
        " The best known is that of all these searches and a longer one, timed again in turns (the least of 24 rounds). All but random "
        "search begin with the untuned default, and the default setting is the genetic search with all seeds.",
        "",
        f"| op | points | untuned ms | best ms | of it untuned | {' | '.join(NAMES[m] for m in methods)} |",
        "|---" * (5 + len(methods)) + "|",
    ]  # fmt: skip
    for r in numbers["rows"]:
        if r["untuned"] is not None:
            cells = [spread(r["trials"][method], most) for method in methods]
            times = f"{r['untuned'] * 1e3:.4g} | {r['best'] * 1e3:.4g} ({r['long']} trials) | {100 * r['best'] / r['untuned']:.0f} %"
            lines.append(f"| {r['op']} | {r['points']} | {times} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def spread(trials: Sequence[int | None], most: int) -> str:
    """Median and extremes.

    >>> spread([3, None, 40], 128), spread([None, None], 128), spread([], 128)
    ('40 (3 to more than 128)', 'more than 128', 'not run')
    """
    counts = sorted(most + 1 if count is None else count for count in trials)
    if not counts:
        return "not run"
    middle, least, last = (str(n) if n <= most else f"more than {most}" for n in (statistics.median_high(counts), counts[0], counts[-1]))
    return middle if least == last else f"{middle} ({least} to {last})"


if __name__ == "__main__":
    main()
