"""What every test gets: a private cache, verified kernels, two threads, random numbers of its own, a ring, and ``golden`` files.

``def test_x(golden): golden(text)`` compares with a file at the test's own path; ``pytest --update-golden`` rewrites it.
"""

from __future__ import annotations

import difflib
import functools
import gc
import importlib.util
import itertools
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support import STAND_INS, warm

HOME = Path(__file__).parent
ROOT = HOME.parent
PRIVATE = pytest.StashKey[str]()
RINGS = ("text", "host", "opencl", "cuda")
# quick ones first, the order of the imports; what is in no list stands between (cli, examples, documents), whole programs stand last
ORDER = ["errors", "checked", "notebook", "config", "step", "grammar", "mapping", "codegen", "runtime", "cache", "tuner", "jit", "library"]
LAST = ["end_to_end"]
LINES_OF_DIFF = 60
SAMPLED = {"": ("", *STAND_INS), "targets": STAND_INS, "all targets": (*STAND_INS, "cpu", "reference")}  # by what a sample is over
TARGET = ("on", "target", "tc")  # parameters that say where a test runs
TEXT = {"errors", "config", "step", "grammar", "mapping", "tuner"}  # units whose tests need no more than islpy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--here", action="store_true", help="run in this process what otherwise runs in one of its own")
    parser.addoption("--whole", action="store_true", help="run all of the tests that are marked sample or whole")


def pytest_configure(config: pytest.Config) -> None:
    """The environment, before tcjit or torch is imported: doctests of the package and child processes need it as well.

    Kernels are shared between the tests of one worker, never with the user's own cache. OpenMP threads sleep while they wait:
    with several workers on few cores they would otherwise spin in each other's way.
    """
    config.stash[PRIVATE] = tempfile.mkdtemp(prefix="tcjit-tests-")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each worker, and each process that a test starts, would compile the sources again
    sys.dont_write_bytecode = False
    os.environ.update(
        TCJIT_CACHE_DIR=config.stash[PRIVATE], TCJIT_VERIFY="1", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive", COLUMNS="160", NO_COLOR="1"
    )
    if importlib.util.find_spec("torch") is None:
        config.pluginmanager.register(WithoutTorch())  # as a plugin: a conftest's own hook stops at its folder


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: the garbage collector need not look at it again and again, now and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _start_of_processes(request: pytest.FixtureRequest) -> None:
    """Python processes are forked with PyTorch and tcjit imported, but for tests that are marked ``cold`` or ``bare``."""
    warm.install(request.node.get_closest_marker("cold") is None, request.node.get_closest_marker("bare") is None)


@pytest.fixture(autouse=True)
def _random_numbers(request: pytest.FixtureRequest) -> None:
    """Each test draws the same numbers in every run, whatever ran before it: none is right in most runs only."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(zlib.crc32(request.node.nodeid.encode()))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash.get(PRIVATE, ""), ignore_errors=True)


class WithoutTorch:
    """Collects only what may be of the ring ``text``: other files cannot even be imported."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or _unit(collection_path) in TEXT:
            return None
        return None if "mark.text" in collection_path.read_text(encoding="utf-8") else True


@functools.cache
def _unit(path: Path) -> str:
    """The part of the house that a test or doctest is about: ``grammar`` for ``tests/grammar/test_parse.py``."""
    for top in (ROOT / "tcjit", HOME):
        if path.is_relative_to(top):
            first = path.relative_to(top).parts[0]
            return first.removesuffix(".py").removeprefix("test_")
    return ""


def _place(item: pytest.Item) -> int:
    unit = _unit(item.path)
    if unit in LAST:
        return len(ORDER) + 1
    return ORDER.index(unit) if unit in ORDER else len(ORDER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        apart = item.get_closest_marker("apart")
        if apart and not config.getoption("--here"):
            item.setup = lambda: None  # type: ignore[method-assign]  # its fixtures are for the other process
            item.runtest = functools.partial(_run_apart, item.nodeid, apart.args[0])  # type: ignore[method-assign]
        if not any(item.get_closest_marker(ring) for ring in RINGS):
            item.add_marker("text" if _unit(item.path) in TEXT else "host")
    if not config.getoption("--whole"):
        chosen = _sample(items)
        config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
        items[:] = chosen
    items.sort(key=_place)


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items without those marked ``whole``, and without combinations of tests marked ``sample(n)``: what is left to ``--whole``.

    One in n remains, chosen so that each value of a parameter still meets each of another. Where a parameter is the target, only those that
    stand in for a GPU have a sample, in turn: with two of them each combination runs on one. ``sample(n, over="targets")``, for a whole
    file, leaves tests without a target as they are; ``sample(n, over="all targets")`` also takes turns between the CPU and the reference.
    """
    chosen, seen = [], Counter[tuple[str, str]]()
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        target = next((str(params[name]) for name in TARGET if name in params), "")
        function = item.nodeid.partition("[")[0]
        rest = seen[function, target]
        seen[function, target] += 1
        places = zlib.crc32(function.encode()) + (target in (STAND_INS[1], "reference"))
        for given in reversed(list(item.iter_markers("parametrize"))):  # the outermost one's values change first
            if not set(TARGET).intersection(re.findall(r"\w+", str(given.args[0]))):
                rest, place = divmod(rest, len(given.args[1]))
                places += place
        mark = item.get_closest_marker("sample")
        targets = SAMPLED[mark.kwargs.get("over", "")] if mark else ()
        sampled = mark and target in targets and (places + rest) % mark.args[0]
        if not (sampled or item.get_closest_marker("whole")) or item.nodeid in item.config.args:
            chosen.append(item)
    return chosen


def _run_apart(test: str, target: str) -> None:
    """Let a target's worker run a test, which must pass there."""
    if target == "cuda":
        from support.rings.cuda import require, tested
    else:
        from support.rings.opencl import require, tested
    require()
    if wrong := tested(test):
        pytest.fail(wrong, pytrace=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    where = request.path.relative_to(HOME).with_suffix("")
    path = HOME / "golden" / where / f"{request.node.name}.txt"

    def check(actual: str) -> None:
        __tracebackhide__ = True
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual)
        again = f"pytest --update-golden {request.path.relative_to(ROOT)} writes it: read the diff"
        if not path.exists():
            pytest.fail(f"no golden file {path.relative_to(ROOT)}; {again}", pytrace=False)
        if actual != (expected := path.read_text()):
            changes = difflib.unified_diff(expected.splitlines(), actual.splitlines(), "golden", "now", n=2, lineterm="")
            shown = "\n".join(itertools.islice(changes, LINES_OF_DIFF))
            pytest.fail(f"{path.relative_to(ROOT)} differs, its first lines below; {again}\n{shown}", pytrace=False)

    return check
