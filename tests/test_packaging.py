"""What an installed tcjit consists of: the wheel is built from a copy of the sources and opened."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import tcjit

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built by setuptools itself: a front end would first download an environment."""
    pytest.importorskip("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tcjit", source / "tcjit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("grammar", "mapping", "tuner"):
        (source / name).symlink_to(f"tcjit/{name}")
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_top_level_is_tcjit_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0] for name in wheel.namelist()} == {"tcjit", f"tcjit-{tcjit.__version__}.dist-info"}


def test_every_source_travels(wheel: zipfile.ZipFile) -> None:
    kinds = {".py", ".lark", ".json", ".c", ".h", ".typed"}
    files = [p for p in (ROOT / "tcjit").rglob("*") if p.suffix in kinds or p.name == "py.typed"]
    here = {p.relative_to(ROOT).as_posix() for p in files if "__pycache__" not in p.parts}
    there = {name for name in wheel.namelist() if name.startswith("tcjit/")}
    assert there == here
    assert {"tcjit/py.typed", "tcjit/grammar/tc.lark", "tcjit/grammar/tc.json", "tcjit/cli/__init__.py"} <= there


def test_metadata(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["Name"] == "tcjit" and metadata["Version"] == tcjit.__version__
    assert metadata["Requires-Python"] in (">=3.10,<3.14", "<3.14,>=3.10")
    (scripts,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    assert "tcjit = tcjit.cli:main" in wheel.read(scripts).decode()
    assert any(name.endswith("LICENSE") for name in wheel.namelist())


def test_requirements(metadata: Message) -> None:
    needs = [(re.match(r"[\w-]+", n).group(), n) for n in metadata.get_all("Requires-Dist")]  # type: ignore[union-attr]
    base = {name for name, need in needs if "extra ==" not in need}
    assert base == {"torch", "islpy", "numpy", "lark", "optuna", "sqlalchemy", "rich", "typer"}
    extras = {e: {name for name, need in needs if re.search(rf"extra == ['\"]{e}['\"]", need)} for e in metadata.get_all("Provides-Extra")}
    assert set(extras) == {"opencl", "cuda", "pycuda", "tuner", "docs", "dev", "all"}
    assert extras["opencl"] == {"pyopencl", "pocl-binary-distribution"}
    assert extras["cuda"] == {"cuda-bindings"} and extras["pycuda"] == {"pycuda"}
    assert extras["tuner"] == {"xgboost-cpu", "xgboost", "psycopg2-binary", "matplotlib"}
    assert extras["all"] == set().union(*(extras[e] for e in ("opencl", "cuda", "tuner", "docs", "dev")))


def test_the_changelog_knows_this_version() -> None:
    assert f"## {tcjit.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
