"""Calls of the public API with arguments that make no sense: each ends with a result or a TCError.

    python tests/fuzz_arguments.py [--calls 5000] [--seed S]

prints ``N calls, M of another family, seed S``, and before that each kind of call that ended otherwise; the status is then 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import tcjit  # noqa: E402
import tcjit.byoc.backends  # noqa: E402
import tcjit.byoc.patterns  # noqa: E402
from tcjit import library  # noqa: E402

TEXT = """
def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }
def pick(float(V) T, int64(N) I, int32 s) -> (Y) { Y(i) = T(I(i)) * s }
"""
OPTIONS = ("tile", "vector_width", "fusion", "threads", "parallel", "nonsense")


class Hostile:
    """What raises wherever it is looked at."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise TypeError("no hash")


def garbage(rng: random.Random, folder: Path) -> Any:
    """Something that hardly fits anywhere."""
    return rng.choice(
        [
            None, True, 0, 3, -1, 10**5000, 2**64, 1.5, float("nan"), float("inf"), 1j, "", "x", "def", "\0", "\ud800", "cuda:sm_1", "cpu",
            TEXT, b"x", [], [1], ["x"], [None], (), (1, "a"), {}, {"a": 1}, {1: 2}, {"tile": [1]}, {"vector_width": 10**5000}, {3},
            object(),
            Hostile(), int, len, lambda *_: 1, range(3), NotImplemented, Ellipsis, ValueError("x"), folder, folder / "none" / "x",
            np.ones(3), np.float32(2), torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(2, 2), torch.ones(3, device="meta"),
            torch.ones(3).to_sparse(), torch.ones(3, dtype=torch.complex64), torch.tensor(2), torch.float32, torch.nn.Linear(2, 2),
            tcjit.Options(), tcjit.Options, tcjit.TunerConfig(), tcjit.TunerConfig(trials=1), tcjit,
        ]
    )  # fmt: skip


def doors(folder: Path) -> dict[str, tuple[Callable[..., Any], tuple[str, ...], list[Any]]]:
    """By name: what is called, the names of its parameters, and arguments that make sense."""
    tc = tcjit.define(TEXT, target="cpu")
    a = torch.ones(3)
    kernel = tc.add.compile(a, a)
    part = tcjit.partition(torch.jit.script(torch.nn.Linear(2, 2).eval()), (torch.ones(1, 2),), dry_run=True)
    shapes = ("args", "target", "options", "unchecked", "out")
    options, cache = tcjit.Options(), tcjit.cache
    return {
        "define": (tcjit.define, ("source", "target", "options", "dynamic", "backward", "tangent"), [TEXT]),
        "namespace[]": (lambda *names: [tc[name] for name in names], (), ["add"]),
        "compile": (tcjit.compile, ("source", "name", *shapes), [TEXT, "add", a, a]),
        "autotune": (_searching_nothing(tcjit.autotune), ("source", "name", "also"), [TEXT, "add", a]),
        "synchronize": (tcjit.synchronize, (), []),
        "load": (tcjit.load, ("file",), []),
        "partition": (tcjit.partition, ("model", "example_inputs", "config", "dry_run", "measure"), []),
        "Options": (tcjit.Options, OPTIONS, []),
        "Options.from_dict": (tcjit.Options.from_dict, ("values",), [options.to_dict()]),
        "Options.from_json": (tcjit.Options.from_json, ("text",), [options.to_json(), "[" * 100_000, "1" * 5000]),
        "Options.preset": (tcjit.Options.preset, ("name",), ["mlp"]),
        "Options.but": (options.but, OPTIONS, []),
        "Options.to_dict": (options.to_dict, (), []),
        "Options.normalised": (options.normalised, ("target", "traits", "loops"), ["cpu", (), 2]),
        "TunerConfig": (tcjit.TunerConfig, ("population", "seconds", "storage", "nonsense"), [16]),
        "PartitionConfig": (tcjit.PartitionConfig, ("backends", "cost", "opt_level", "without", "nonsense"), []),
        "PartitionConfig.serving": (tcjit.PartitionConfig().serving, ("measure",), []),
        "TuneResult": (tcjit.TuneResult, ("options", "seconds"), []),
        "Kernel": (tcjit.Kernel, ("text", "signature", "key"), [TEXT]),
        "PartitionedModule": (tcjit.PartitionedModule, ("made", "manifest"), []),
        "library.get": (library.get, ("name", "dtype", "index", "target"), ["softmax", "float32"]),
        "library.source": (library.source, ("name", "dtype", "index"), ["softmax", "float32"]),
        "library.names": (library.names, (), []),
        "library.families": (library.families, (), []),
        "cache.path": (cache.path, (), []),
        "cache.entries": (cache.entries, (), []),
        "cache.choices": (cache.choices, (), []),
        "cache.export": (cache.export, ("file", "programs"), [folder / "options.json"]),
        "cache.import_": (cache.import_, ("file",), []),
        "cache.verify": (cache.verify, (), []),
        "cache.clear": (cache.clear, ("days",), []),
        "cache.gc": (cache.gc, ("days", "tools"), [1.0]),
        "cache.trusted": (cache.trusted, (), []),
        "function": (tc.add, ("A", "B", "out", "unchecked", "nonsense"), [a, a]),
        "function with scalars": (tc.pick, ("T", "I", "s", "out", "unchecked"), [a, torch.tensor([0]), 2]),
        "function.compile": (tc.add.compile, ("A", "B", *shapes), [a, a]),
        "function.autotune": (_searching_nothing(tc.add.autotune), ("also", "cache", "A"), [a, a]),
        "nn.layer": (tcjit.nn.layer, ("function", "parameters", "initialisers"), [tc.add, {"A": (3,)}]),
        "kernel": (kernel, ("A", "B", "out"), [a, a]),
        "kernel.check": (kernel.check, ("A", "B"), [a, a]),
        "part.save": (part.save, ("file",), []),
        "part.export": (part.export, ("directory",), []),
        "part.train": (part.train, ("mode",), []),
        "part.report": (part.report, (), []),
        "byoc.register": (tcjit.byoc.backends.register, ("backend",), []),
        "byoc.unregister": (tcjit.byoc.backends.unregister, ("name",), []),
        "byoc.find": (tcjit.byoc.backends.find, ("name",), ["tcjit"]),
        "byoc.is_op": (tcjit.byoc.patterns.is_op, ("names",), ["add"]),
        "byoc.either": (tcjit.byoc.patterns.either, ("options",), []),
        "byoc.optional": (tcjit.byoc.patterns.optional, ("pattern",), []),
    }  # fmt: skip


def _searching_nothing(autotune: Callable[..., Any]) -> Callable[..., Any]:
    """A search would take its time: its settings are garbage whatever else is right."""
    return lambda *args, **named: autotune(*args, config=object(), **named)


def calls(count: int, seed: int, folder: Path) -> Iterator[tuple[str, BaseException | None]]:
    """So many calls: what was called, and the error that is no TCError, if it was one."""
    rng = random.Random(seed)
    open_ = doors(folder)
    for _ in range(count):
        name = rng.choice(list(open_))
        function, names, fitting = open_[name]
        args = [value if rng.random() < 0.6 else garbage(rng, folder) for value in fitting[: rng.randrange(len(fitting) + 2)]]
        args += [garbage(rng, folder) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        named = {n: garbage(rng, folder) for n in rng.sample(names, rng.randrange(min(2, len(names)) + 1))}
        if name in ("cache.gc", "cache.export"):
            args = [value for value in args if not isinstance(value, Path) or value != folder]
        if name == "part.export":
            args, named = [v for v in args if not isinstance(v, str)], {k: v for k, v in named.items() if not isinstance(v, str)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*args, **named)
        except tcjit.TCError as error:
            assert str(error)
            yield name, None
        except Exception as error:
            yield f"{name}(*{_brief(args)}, **{_brief(named)})", error
        else:
            yield name, None


def _brief(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception as error:
        return f"<{type(error).__name__} in repr>"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TCJIT_CACHE_DIR"] = str(Path(folder) / "cache")
        os.chdir(folder)  # garbage may be the name of a file
        for name, error in calls(given.calls, given.seed, Path(folder)):
            if error is not None:
                kind = f"{name.partition('(')[0]}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
                if not kinds[kind]:
                    print(f"{kind}\n    {name[:300]}", flush=True)
                kinds[kind] += 1
        os.chdir(HOME)
    print(f"{given.calls} calls, {sum(kinds.values())} of another family, seed {given.seed}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
