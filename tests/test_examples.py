"""Every example runs as a user would run it, and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import PYTHONPATH, ROOT
from support.rings.opencl import require

EXAMPLES = ROOT / "examples"
SAYS = {
    "fused_mlp": ["close to PyTorch: True", "strided argument: True", "ShapeError: "],
    "softmax": ["close to PyTorch: True", "rows sum to one:  True", "agrees with the reference"],
    "convolution": ["stride 1, dilation 1, padding 0: (2, 16, 15, 21), close to PyTorch: True", "(2, 16, 5, 7), close to PyTorch: True"],
    "embedding_bag": ["close to PyTorch: True", "GatherError: ", "T(Idx(b, l), d)"],
    "def_calls": ["close to PyTorch: True", "out= was filled:  True"],
    "gpu": ['mark: "threads ', "rms_norm", "close to PyTorch: True", "agrees with the reference on ", "proved: True"],
    "tune_together": ["both ended well: True", "all tried before: True", "close to PyTorch: True"],
    "physics": ["compiled gradients are those of eager: True", "below 0.01: True"],
    "force_matching": ["forces are PyTorch's: True", "compiled gradients are those of eager: True", "the potential is found: True"],
    "digits": ["the same curve: True", "above 0.9: True"],
    "max_plus": ["gradients are PyTorch's: True", "numbers, fewer than 10240: True", "below 0.001: True"],
    "quickstart": ["tcjit", "for 500 of 500 images", "What the cache saves"],
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.opencl if name == "gpu" else ()) for name in SAYS])
def test_example(name: str, tmp_path: Path) -> None:
    if name == "gpu":
        require("pocl")
    command, environment = [sys.executable, EXAMPLES / f"{name}.py"], {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    for text in SAYS[name]:
        assert text in done.stdout
