"""The machinery of mutation testing: what is mutated, which tests are run, the table."""
from __future__ import annotations

import ast
import json
from pathlib import Path

import mutation_testing as mt
import pytest

TEXT = '''"""Documentation 1."""
LIMIT: int = 3


def f(x: int, é: int = 2) -> int:
    """Nothing 4."""
    if x < 3 and é > 0 and x != 7:
        raise ValueError("5" if x > 1 else "6")
    print(f"{x + 1}")
    return min(x, é + x)
'''
HALF = """def half(x):
    if x < 0:
        return 0
    return x // 2


def spare(x):
    return x + 1
"""
TESTS = """from pathlib import Path
from tcjit.cache.half import half

def test_all():
    assert half(4) == 2 and half(-4) == 0 and Path("left_behind").exists()

def test_even():
    assert half(4) == 2

def test_negative():
    assert half(-4) == 0
"""


def test_what_is_mutated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mt, "ROOT", tmp_path)
    (tmp_path / "f.py").write_text(TEXT, encoding="utf-8")
    found = {(m.before, m.after) for m in mt.mutants_of(tmp_path / "f.py")}
    assert found == {
        ("3", "(4)"), ("2", "(3)"), ("0", "(1)"), ("7", "(8)"), ("x < 3", "(x <= 3)"), ("é > 0", "(é >= 0)"), ("x != 7", "(x == 7)"),
        ("x < 3 and é > 0 and x != 7", "(x < 3 or é > 0 or x != 7)"), ("x < 3 and é > 0 and x != 7", "(x < 3 and é > 0)"),
        ('raise ValueError("5" if x > 1 else "6")', "pass"), ('print(f"{x + 1}")', "pass"), ("return min(x, é + x)", "return None"),
        ("min", "(max)"), ("é + x", "(é - x)"),
    }  # fmt: skip
    for mutant in mt.mutants_of(tmp_path / "f.py"):
        ast.parse(TEXT[: mutant.start] + mutant.after + TEXT[mutant.end :])


def test_all_packages_are_drawn_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(mt.PACKAGES) <= {path.parent.name for path in (mt.ROOT / "tcjit").glob("*/__init__.py")}
    monkeypatch.setattr(mt, "ROOT", tmp_path)
    for package, text in (("cache", HALF), ("runtime", TEXT), ("mapping", HALF)):
        (tmp_path / "tcjit" / package).mkdir(parents=True)
        (tmp_path / "tcjit" / package / "part.py").write_text(text, encoding="utf-8")
    some = ("cache", "runtime")
    drawn, again, other = (mt.draw(some, 4, seed) for seed in (3, 3, 4))
    assert [m.path.split("/")[1] for m in drawn] == [*some] * 2 and drawn == again != other


@pytest.mark.cold
def test_a_mutant_is_killed_by_the_test_that_runs_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    root, work = tmp_path / "root", tmp_path / "work"
    (root / "tcjit" / "cache").mkdir(parents=True)
    (root / "tests" / "cache").mkdir(parents=True)
    work.mkdir()
    (root / "tcjit" / "__init__.py").touch()
    (root / "tcjit" / "cache" / "__init__.py").touch()
    (root / "tcjit" / "cache" / "half.py").write_text(HALF)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["opencl", "cuda"]\n')
    test = root / "tests" / "cache" / "test_half.py"
    test.write_text(TESTS)
    (root / "left_behind").touch()  # without it a test fails in every copy
    monkeypatch.setattr(mt, "ROOT", root)
    monkeypatch.setattr(mt, "HOME", root / "tests")
    monkeypatch.setattr(mt, "COPIED", ["tcjit", "tests", "pyproject.toml"])
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of the time that an empty pytest takes
    assert mt.make_map(work, [test], 1, None) == 0
    lines = mt.read_map(work)
    assert sorted(lines["tcjit/cache/half.py", 4]) == [f"tests/cache/test_half.py::test_{name}" for name in ("all", "even")]
    assert sorted(lines["tcjit/cache/half.py", 2]) == [f"tests/cache/test_half.py::test_{name}" for name in ("all", "even", "negative")]
    results = mt.Results(work / "mutants.jsonl")
    mt.campaign(work, results, ["cache"], 1000, 5, 1, None)
    verdicts = {(one["before"], one["after"]): (one["verdict"], one["by"].split(" ")[0]) for one in results.known}
    assert verdicts["x // 2", "(x * 2)"][0] == "killed" and not any("test_all" in one["by"] for one in results.known)
    assert verdicts["x < 0", "(x <= 0)"] == ("survived", "") and verdicts["x + 1", "(x - 1)"] == ("no test runs it", "")
    assert mt.Results(work / "mutants.jsonl").known == [json.loads(json.dumps(one)) for one in results.known]
    equivalent = next(one["number"] for one in results.known if one["after"] == "(x <= 0)")
    page = mt.table(results.known, {str(equivalent): "equivalent: half of 0 is 0"})
    total, killed = len(results.known), sum(one["verdict"] == "killed" for one in results.known)
    assert f"| all | {total} | {killed} | 1 | {total - killed - 1} |" in page and "NOT EXPLAINED" in page
