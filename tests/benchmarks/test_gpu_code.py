"""The command that shows the machine code of CUDA kernels: a page for a program that compiles and for one that does not."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.rings import nvrtc
from support.rings.sass import machine_code

COMMAND = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_code.py"


def test_a_page_has_a_row_for_every_kernel(tmp_path: Path) -> None:
    nvrtc.require()
    if machine_code.disassembler() is None:
        pytest.skip("no nvdisasm")
    out = tmp_path / "page.md"
    done = subprocess.run([sys.executable, str(COMMAND), "--only", "tmm_s,softmax 8192", "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in out.read_text().splitlines() if line.startswith(("| tmm_s", "| softmax"))]
    assert len(rows) == 2 and rows[0] in done.stdout
    cells = [cell.strip() for cell in rows[1].split("|")[1:-1]]
    assert cells[:2] == ["softmax 8192x1024", "2048 x 128"] and cells[5:7] == ["0", "0"] and "LDG" in cells[9]


def test_what_takes_too_long_is_a_row_that_says_so(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(COMMAND), "--only", "tmm_s", "--patience", "0"], capture_output=True, text=True)
    assert done.stdout.startswith("| tmm_s 128x32x256 | not within 0 s |"), done.stdout + done.stderr
