"""How long a GPU kernel takes to compile, from the text of its def to machine code: ``python benchmarks/compile_time.py [RUNS]``.

Needs no GPU and no driver, and of CUDA only NVRTC. The shapes are known, all that tcjit proves by default is proved, and no kernel comes
from a cache, but Python's modules do. Every run is a process of its own, which compiles one kernel first, imports included, and then a few
times more; the figures are medians over all runs, in milliseconds, of the whole and of its parts:

- ``imports``: tcjit, its parser, isl; only the first time
- ``text``: parsing, checking, shapes
- ``isl``: from statements to a mapped schedule tree
- ``proofs``: that lowering, tree, buffers and barriers are right
- ``emit``: from the tree to loops, which isl makes too, and to CUDA text
- ``nvrtc``: text to a cubin; the first time also loading the library

A table is printed, then a line of JSON, which ``--json FILE`` puts there instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import machine  # noqa: E402

PARTS = ("imports", "text", "isl", "proofs", "emit", "nvrtc")
ARCHITECTURES = ("sm_90", "sm_80")
AGAIN = 3  # compilations after the first, in the same process

# text, shapes of the arguments, and the name of preset options
PROGRAMS: dict[str, tuple[str, dict[str, tuple[int, ...]], str]] = {
    "matmul": (
        "def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }",
        {"A": (4096, 4096), "B": (4096, 4096)},
        "contraction",
    ),
    "matmul_bf16": (
        "def matmul(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }",
        {"A": (4096, 4096), "B": (4096, 4096)},
        "",
    ),
    "softmax": (
        """def softmax(float(M,N) I) -> (O) {
            top(m) max=! I(m, n)
            O(m, n) = exp(I(m, n) - top(m))
            total(m) +=! O(m, n)
            O(m, n) = O(m, n) / total(m)
        }""",
        {"I": (4096, 4096)},
        "",
    ),
    "layernorm": (
        """def layernorm(float(M,N) I, float(N) g, float(N) b) -> (O) {
            mean(m) +=! I(m, n)
            mean(m) = mean(m) / N
            var(m) +=! (I(m, n) - mean(m)) * (I(m, n) - mean(m))
            O(m, n) = (I(m, n) - mean(m)) * rsqrt(var(m) / N + 1e-5) * g(n) + b(n)
        }""",
        {"I": (4096, 4096), "g": (4096,), "b": (4096,)},
        "",
    ),
    "conv": (
        """def conv(float(N,C,H,W) I, float(F,C,KH,KW) W1) -> (O) {
            O(n, f, h, w) +=! (inside ? I(n, c, h + kh - 1, w + kw - 1) : 0.0) * W1(f, c, kh, kw)
                where h in 0:H, w in 0:W, inside = h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W
        }""",
        {"I": (32, 64, 56, 56), "W1": (64, 64, 3, 3)},
        "",
    ),
}


def child(name: str, architecture: str, again: int) -> list[dict[str, float]]:
    """In a fresh process: the seconds of each part, for the first compilation and then for each other one."""
    found = []
    for _ in range(1 + again):
        parts = dict.fromkeys(PARTS, 0.0)
        start = time.perf_counter()
        from tcjit.codegen.dialect import CUDA
        from tcjit.codegen.gpu_kernel import emit_gpu
        from tcjit.errors import CompileError
        from tcjit.grammar.front import read
        from tcjit.grammar.infer import specialise
        from tcjit.jit.targets.cuda import described
        from tcjit.mapping.options import Options
        from tcjit.mapping.pipeline import map_gpu
        from tcjit.runtime import nvrtc
        from tcjit.step import Steps

        parts["imports"] = time.perf_counter() - start
        text, shapes, preset = PROGRAMS[name]
        start = time.perf_counter()
        program = specialise(read(text)[-1], shapes, {})
        parts["text"] = time.perf_counter() - start
        options, device, steps = Options.preset(preset) if preset else Options(), described(architecture), Steps(name)
        start = time.perf_counter()
        mapped = map_gpu(program, options, device, prove="last", steps=steps)
        whole = time.perf_counter() - start
        proofs = sum(seconds for step, seconds in steps.seconds.items() if proves(step))
        parts["proofs"], parts["isl"] = proofs, whole - proofs
        start = time.perf_counter()
        source = emit_gpu(mapped, CUDA, device, checked=True)
        parts["emit"] = time.perf_counter() - start
        start = time.perf_counter()
        try:
            nvrtc.find()
        except CompileError:
            del parts["nvrtc"]
        else:
            nvrtc.compile(source.text, [launch.symbol for launch in source.launches], architecture)
            parts["nvrtc"] = time.perf_counter() - start
        found.append(parts)
    return found


def proves(step: str) -> bool:
    """Whether a step of the pipeline only serves a proof."""
    return step.startswith("verify") or step.endswith(" check") or step == "lowered dependences"


def measure(name: str, architecture: str, runs: int, modules: str) -> dict[str, dict[str, float]]:
    """Median milliseconds of a kernel's ``first`` compilation in a process and of those ``after`` it, by part and in ``total``;
    ``modules`` is a folder for Python's own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": modules}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    firsts, others = [], []
    for _ in range(runs):
        command = [sys.executable, __file__, "--child", name, architecture]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        first, *after = json.loads(done.stdout)
        firsts.append(first)
        others += after
    return {"first": medians(firsts), "after": medians(others)}


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """By part in the middle of the samples, and the middle total, in ms."""
    found = {part: statistics.median(sample[part] for sample in samples) for part in samples[0]}
    found["total"] = statistics.median(sum(sample.values()) for sample in samples)
    return {part: round(1e3 * seconds, 2) for part, seconds in found.items()}


def table(kernels: dict[str, dict[str, dict[str, float]]]) -> str:
    """The figures as a page."""
    lines = [f"{'':20}{'':7}" + "".join(f"{part:>9}" for part in ("total", *PARTS))]
    for title, times in kernels.items():
        for which, parts in times.items():
            cells = [f"{parts[part]:9.1f}" if part in parts else f"{'-':>9}" for part in ("total", *PARTS)]
            lines.append(f"{title if which == 'first' else '':20}{which:7}" + "".join(cells))
    return "\n".join(lines)


def compiler() -> str:
    """The release of NVRTC, or what is missing."""
    from tcjit.errors import CompileError
    from tcjit.runtime import nvrtc

    try:
        return nvrtc.version().partition(",")[0]
    except CompileError as missing:
        return f"not found: {nvrtc.INSTALL}" if "no NVRTC" in str(missing) else str(missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=7, help="processes for each kernel")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="kernels to compile")
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES), help="architectures to compile them for")
    parser.add_argument("--json", type=Path, help="a file for the JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(*given.child, AGAIN)))
        return
    if given.runs < 1:
        parser.error("RUNS is at least 1")
    sys.path.insert(0, str(ROOT))
    facts: dict[str, Any] = {"machine": machine.describe(), "python": platform.python_version(), "nvrtc": compiler(), "runs": given.runs}
    print(f"{machine.name()}, Python {facts['python']}, NVRTC {facts['nvrtc']}: ms, medians of {given.runs} processes")
    with tempfile.TemporaryDirectory() as modules:
        measure(given.only[0], given.arch[0], 1, modules)  # writes them
        kernels = {f"{name} {arch}": measure(name, arch, given.runs, modules) for name in given.only for arch in given.arch}
    print(table(kernels))
    found = json.dumps({**facts, "kernels": kernels})
    if given.json:
        given.json.write_text(found + "\n")
    else:
        print(found)


if __name__ == "__main__":
    main()
