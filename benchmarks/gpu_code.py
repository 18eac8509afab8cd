#!/usr/bin/env python3
"""The machine code of tcjit's CUDA kernels for an H100, compiled and disassembled, without a GPU.

    python benchmarks/gpu_code.py                       all programs of gpu_code/programs.py
    python benchmarks/gpu_code.py --only mlp1,softmax   those whose names contain one of these
    python benchmarks/gpu_code.py --out FILE            write the page there, not to the terminal alone

Of every kernel: blocks and threads, registers, shared memory, blocks that a multiprocessor holds, stack and spills, the seconds that NVRTC
takes (CPU time), and the instructions of its inner loop. Needs the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from gpu_code.inspect import PATIENCE, Row, table, within  # noqa: E402 - the path above comes first
from gpu_code.programs import SUBJECTS, Subject  # noqa: E402
from peers.machine import describe  # noqa: E402

from tcjit.runtime import nvrtc  # noqa: E402


def main(given: list[str] | None = None) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--only", default="", metavar="PART,...", help="programs whose names contain one of these")
    top.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one program (%(default)s)")
    top.add_argument("--out", type=Path, help="a file for the page")
    options = top.parse_args(given)
    parts = [part for part in options.only.split(",") if part]
    found: list[tuple[Subject, list[Row] | str]] = []
    for subject in SUBJECTS:
        if not parts or any(part in subject.name for part in parts):
            found.append((subject, within(subject, options.patience)))
            print("\n".join([*table(found)][-1 if isinstance(found[-1][1], str) else -len(found[-1][1]) :]), flush=True)
    if options.out:
        options.out.write_text("\n".join(page(found)) + "\n")
    return 0


def page(found: list[tuple[Subject, list[Row] | str]]) -> list[str]:
    """The lines of the page."""
    facts = describe()
    return [
        "# Machine code of the CUDA kernels",
        "",
        f"NVRTC {nvrtc.version().partition(',')[0]} for sm_90, on {facts['cpu']}, {facts['cores']} cores, without a GPU: nothing here was "
        "timed but the compiler, in CPU seconds. Made by `python benchmarks/gpu_code.py --out FILE`.",
        "",
        *table(found),
    ]


if __name__ == "__main__":
    sys.exit(main())
