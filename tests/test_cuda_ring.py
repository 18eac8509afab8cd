"""The runner of the tests that need a GPU, on tests of another ring: in parts, resumed, cut off."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "cuda_ring.py"
TEXT = "import pytest\n\n@pytest.mark.text\ndef test_it():\n    {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ring"
    for name, body in {"library/test_b.py": "assert True", "cuda/test_a.py": "assert True", "jit/test_c.py": "assert False"}.items():
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(TEXT.format(body))
    (made / "jit" / "test_other.py").write_text("def test_of_no_ring(): assert False\n")
    return made


def ring(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["--out", str(folder.parent / "out"), "--tests", str(folder), "--ring", "text", "--jobs", "0", "--only-tests"]
    return subprocess.run([sys.executable, str(RUNNER), *options, *arguments], capture_output=True, text=True)


def test_parts_are_run_once_and_failed_ones_again_on_demand(folder: Path) -> None:
    assert ring(folder, "--list").stdout.split() == ["cuda/test_a.py", "jit/test_c.py", "library/test_b.py"]
    first = ring(folder)
    assert first.returncode == 1 and "2 parts passed, 1 failed, 0 left" in first.stdout, first.stdout + first.stderr
    assert [line.split(",")[0] for line in first.stdout.splitlines()[:3]] == [
        "cuda/test_a.py: passed", "jit/test_c.py: FAILED", "library/test_b.py: passed",
    ]  # fmt: skip
    out = folder.parent / "out"
    assert "assert False" in (out / "jit.test_c.py.log").read_text() and "failures=\"1\"" in (out / "jit.test_c.py.xml").read_text()
    assert ring(folder).stdout == "2 parts passed, 1 failed, 0 left\n"
    (folder / "jit" / "test_c.py").write_text(TEXT.format("assert True"))
    again = ring(folder, "--again")
    assert again.returncode == 0 and again.stdout.splitlines()[1:] == ["3 parts passed, 0 failed, 0 left"]


def test_what_time_cuts_off_is_left_for_the_next_run(folder: Path) -> None:
    (folder / "jit" / "test_c.py").write_text(TEXT.format("import time; time.sleep(60)"))
    (folder / "cuda" / "test_a.py").unlink()
    cut = ring(folder, "--seconds", "8")
    assert cut.returncode == 3 and cut.stdout.startswith("jit/test_c.py: cut off") and "0 parts passed, 0 failed, 2 left" in cut.stdout
    (folder / "jit" / "test_c.py").write_text(TEXT.format("pass"))
    assert ring(folder).stdout.endswith("2 parts passed, 0 failed, 0 left\n")
    assert set(json.loads((folder.parent / "out" / "parts.json").read_text())) == {"jit/test_c.py", "library/test_b.py"}


def test_another_version_of_the_code_is_another_run(folder: Path) -> None:
    (folder / "jit" / "test_c.py").unlink()
    assert ring(folder).returncode == 0
    state = folder.parent / "out" / "parts.json"
    ended = json.loads(state.read_text())
    ended["cuda/test_a.py"]["code"] = "another"
    state.write_text(json.dumps(ended))
    assert [line.split(",")[0] for line in ring(folder).stdout.splitlines()] == ["cuda/test_a.py: passed", "2 parts passed"]
