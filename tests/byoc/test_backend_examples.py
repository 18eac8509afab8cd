"""The examples of backends of one's own run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "byoc"
SAYS = {
    "toy": ["close to PyTorch: True", "toy_0_linear_linear", "toy has no rule for aten.softmax"],
    "external": ["close to PyTorch: True", "1 regions (1 external)", "the interpreter does not know aten.sin"],
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "interpreter"}


@pytest.mark.parametrize("name", list(SAYS))
def test_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    for text in SAYS[name]:
        assert text in done.stdout


def test_a_toy_backend_is_short() -> None:
    assert len((EXAMPLES / "toy.py").read_text(encoding="utf-8").splitlines()) < 100
