"""Kernels of PolyBench beside C compilers, float64, on one thread: ``python benchmarks/generality/polybench.py [--set large] [NAMES...]``.

Each kernel of ``polybench_kernels.py`` is compiled by tcjit, by ``gcc -O3 -march=native`` and, where there is one, by clang with Polly; all
results are compared with those of the loops compiled with ``-O1``, and the calls take turns. What a compiler miscompiles is not timed.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

from generality.polybench_kernels import KERNELS, Kernel  # noqa: E402 - the path above comes first

SETS = ("mini", "medium", "large")
COMPILERS = {
    "gcc": ["gcc", "-O3", "-march=native"],
    "polly": ["clang", "-O3", "-march=native", "-mllvm", "-polly"],
}
TOLERANCE = 1e-10  # largest difference over largest magnitude
READING_S = 5e-3  # a reading is as many calls as take so long


def available() -> dict[str, list[str]]:
    """The compilers that are there and take their flags."""
    found = {}
    for name, command in COMPILERS.items():
        if shutil.which(command[0]):
            done = subprocess.run([*command, "-x", "c", "-c", "-", "-o", os.devnull], input="int x;", capture_output=True, text=True)
            if done.returncode == 0:
                found[name] = command
    return found


def sizes(kernel: Kernel, data_set: str) -> dict[str, int]:
    return {name: values[SETS.index(data_set)] for name, values in kernel.sizes.items()}


def tensors(kernel: Kernel, size: dict[str, int]) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randn(kernel.shape(spec, size), dtype=torch.float64, generator=generator) for spec in kernel.inputs]


def built(kernel: Kernel, size: dict[str, int], command: Sequence[str], folder: str, name: str) -> Callable[..., list[Any]]:
    """The C loops as a function of tensors, which returns new ones."""
    import torch

    source, library = Path(folder) / f"{name}.c", Path(folder) / f"{name}.so"
    source.write_text(kernel.c())
    macros = [f"-D{dim}={value}" for dim, value in size.items()]
    subprocess.run([*command, *macros, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
    run = ctypes.CDLL(str(library)).run

    def call(*inputs: Any) -> list[Any]:
        results = [torch.empty(kernel.shape(spec, size), dtype=torch.float64) for spec in kernel.outputs]
        run(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in [*inputs, *results]))
        return results

    return call


def difference(results: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest difference of two lists of tensors, over the largest magnitude of each."""
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30) for a, b in zip(results, others, strict=True))


def measure(name: str, data_set: str, compilers: dict[str, list[str]], folder: str, rounds: int, seconds: float) -> dict[str, Any]:
    import tcjit
    from generality.measure import on_quiet_machine
    from tcjit.runtime import timing

    kernel = KERNELS[name]
    size = sizes(kernel, data_set)
    inputs = tensors(kernel, size)
    record: dict[str, Any] = {"name": name, "size": size}
    start = time.perf_counter()
    try:
        function = tcjit.define(kernel.text(name))[name]
        results = function(*inputs)
    except tcjit.TCError as error:
        return record | {"kind": "refused", "error": str(error)}
    record["first_s"] = time.perf_counter() - start
    results = results if isinstance(results, tuple) else (results,)
    calls: dict[str, Callable[[], Any]] = {"tcjit": partial(function, *inputs)}
    if compilers:
        first, *_ = next(iter(compilers.values()))
        plain = built(kernel, size, [first, "-O1"], folder, f"{name}_plain")(*inputs)
        if not (error := difference(results, plain)) <= TOLERANCE:
            return record | {"kind": "wrong", "error": f"{error:.2g} of the largest magnitude from the loops by {first} -O1"}
    record["miscompiled"] = {}
    for compiler, command in compilers.items():
        call = built(kernel, size, command, folder, f"{name}_{compiler}")
        if (error := difference(call(*inputs), plain)) <= TOLERANCE:
            calls[compiler] = partial(call, *inputs)
        else:
            record["miscompiled"][compiler] = error
    times = on_quiet_machine(calls, rounds, seconds, reading_s=READING_S, least=2)
    over = {f"over_{one}": statistics.median(timing.ratios(times[one], times["tcjit"])) for one in calls if one != "tcjit"}
    return record | {"kind": "timed"} | over | {f"{one}_ms": 1e3 * statistics.median(readings) for one, readings in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="of " + ", ".join(KERNELS))
    parser.add_argument("--set", choices=SETS, default="large", help="PolyBench's data set")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="no more rounds of a kernel after so long")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    # read when torch is imported, so before that
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    import machine

    compilers = available()
    print(f"{machine.name()}, one thread, data set {given.set}, beside {', '.join(compilers) or 'no compiler'}")
    for name in set(COMPILERS) - set(compilers):
        print(f"{' '.join(COMPILERS[name])}: not here")
    print(f"{'kernel':<12} {'tcjit ms':>9} " + " ".join(f"{one + ' ms':>9} {'ratio':>6}" for one in compilers) + " first s")
    records = []
    with tempfile.TemporaryDirectory(prefix="tcjit-polybench-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = f"{folder}/cache"
        for name in given.names or KERNELS:
            records.append(measure(name, given.set, compilers, folder, given.rounds, given.seconds))
            print(row(records[-1], compilers), flush=True)
    print(summary(records, compilers))
    if given.json:
        given.json.write_text(json.dumps({"machine": machine.describe(), "set": given.set, "rows": records}, indent=1) + "\n")
    return 1 if any(record["kind"] == "wrong" for record in records) else 0


def row(record: dict[str, Any], compilers: Sequence[str] | dict[str, Any]) -> str:
    if record["kind"] != "timed":
        return f"{record['name']:<12} {record['kind'].upper()}: {record['error']}"
    columns = {one: f"{record[f'{one}_ms']:9.3f} {record[f'over_{one}']:6.2f}" for one in compilers if f"{one}_ms" in record}
    others = " ".join(columns.get(one, f"{'miscompiles':>16}") for one in compilers)
    return f"{record['name']:<12} {record['tcjit_ms']:9.3f} {others} {record['first_s']:7.2f}"


def summary(records: Sequence[dict[str, Any]], compilers: Sequence[str] | dict[str, Any]) -> str:
    from tcjit.runtime import timing

    done = [r for r in records if r["kind"] == "timed"]
    ratios = {one: [r[f"over_{one}"] for r in done if f"over_{one}" in r] for one in compilers}
    means = [f"{one} over tcjit: geometric mean {timing.geometric_mean(found):.2f}" for one, found in ratios.items() if found]
    return "; ".join([f"{len(done)} timed, {len(records) - len(done)} not", *means])


if __name__ == "__main__":
    sys.exit(main())
