"""Mutation testing: small faults in the compiler's own code, one at a time, and whether the tests that run the line notice.

    python tests/mutation_testing.py map --work DIR [--jobs 2] [TEST ...]
    python tests/mutation_testing.py run --work DIR [--count 300] [--seed S] [--jobs 2] [--seconds T]
    python tests/mutation_testing.py table --work DIR

``map`` runs the tests under coverage, file by file, and notes which test functions run which lines (``pip install coverage``). ``run``
draws mutants over the packages, equally many of each, and runs for each one the test functions that reach its line, those of its own
package first, until one fails. Both go on where they were when DIR has results. A mutant that ends in a time-out is killed as well.
``table`` prints how many there were, what killed them, and every survivor; ``DIR/explained.json`` says of survivors, by their number,
why they are none (``equivalent: ...``) or why they live.
"""
from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
ROOT = HOME.parent
PACKAGES = ("mapping", "codegen", "jit", "cache", "runtime", "byoc")
RING = "not opencl and not cuda"  # what runs in the test's own process, where coverage sees it
BATCHES = (12, 60)  # test functions that are tried, the closest first, then the rest of them
LIMIT_S = 300  # processor time of each process of one batch, whatever else the machine does; ten times that by the clock
COPIED = "tcjit tests examples benchmarks docs grammar mapping tuner pyproject.toml setup.py Makefile mkdocs.yml".split()
COPIED += "README.md CONTRIBUTING.md CHANGELOG.md LICENSE".split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("map", "run", "table"))
    parser.add_argument("--work", type=Path, required=True, help="the folder of all results")
    parser.add_argument("--count", type=int, default=300, help="mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--packages", default=",".join(PACKAGES), help="drawn from in turn (%(default)s)")
    parser.add_argument("--seconds", type=float, help="begin nothing after so long")
    parser.add_argument("tests", nargs="*", type=Path, help="test files to map; all of them by default")
    options = parser.parse_intermixed_args()
    options.work.mkdir(parents=True, exist_ok=True)
    until = None if options.seconds is None else time.monotonic() + options.seconds
    if options.command == "map":
        tests = [path.resolve() for path in options.tests] or sorted(HOME.rglob("test_*.py"))
        return make_map(options.work.resolve(), tests, options.jobs, until)
    results = Results(options.work / "mutants.jsonl")
    if options.command == "run":
        campaign(options.work.resolve(), results, options.packages.split(","), options.count, options.seed, options.jobs, until)
    print(table(results.known, _explained(options.work)))
    return 0


# ---------------------------------------------------------------- which tests run which lines


def make_map(work: Path, tests: Sequence[Path], jobs: int, until: float | None) -> int:
    """Run test files under coverage, each with its own data; 0 where all ran, 3 where time was over, 1 where one failed."""
    configuration = work / "coveragerc"
    configuration.write_text("[run]\nsource_pkgs = tcjit\ndynamic_context = test_function\n")
    left, failed = [test for test in tests if not _data(work, test).exists()], []

    def one(test: Path) -> None:
        if until is not None and time.monotonic() > until:
            return
        data = _data(work, test).with_suffix(".new")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", f"--data-file={data}", "-m", "pytest"]
        command += ["-q", "-o", "cache_dir=tmp/pytest", "-m", RING, str(test)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in (0, 5):
            failed.append(test)
            print(f"{test}: {done.stdout[-2000:]}", flush=True)
        if data.exists():
            data.replace(_data(work, test))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, left))
    missing = [test for test in tests if not _data(work, test).exists()]
    print(f"{len(tests) - len(missing)} of {len(tests)} files mapped, {len(failed)} with failures")
    return 1 if failed else 3 if missing else 0


def _data(work: Path, test: Path) -> Path:
    return work / f"{str(test.relative_to(HOME)).replace('/', '.')}.coverage"


def read_map(work: Path) -> dict[tuple[str, int], list[str]]:
    """(file of tcjit, line) -> ``file::function`` of the tests that run it, or ``file`` for what runs when it is imported."""
    from coverage.numbits import numbits_to_nums

    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for data in sorted(work.glob("*.coverage")):
        test = str(HOME / (data.name.removesuffix(".py.coverage").replace(".", "/") + ".py"))
        joined = "line_bits join file on file.id = file_id join context on context.id = context_id"
        with sqlite3.connect(data) as connection:
            for path, context, bits in connection.execute(f"select file.path, context.context, numbits from {joined}"):
                name = os.path.relpath(path, ROOT)
                function = context.rpartition(".")[2]
                node = os.path.relpath(test, ROOT) + (f"::{function}" if function.startswith("test") else "")
                for line in numbits_to_nums(bits):
                    found[name, line].append(node)
    return found


# ---------------------------------------------------------------- mutants


@dataclass(frozen=True)
class Mutant:
    """A piece of a file, and what takes its place."""

    path: str
    line: int
    start: int  # characters from the beginning of the file
    end: int
    before: str
    after: str
    kind: str


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "LOCK_EX": "LOCK_SH"}


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in a node's place, with a word for the kind of fault."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield "comparison", ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not any(isinstance(x, ast.JoinedStr) for x in ast.walk(node)):
        yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield "and, or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield "condition dropped", ast.BoolOp(node.op, node.values[:-1]) if len(node.values) > 2 else node.values[0]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "negation dropped", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield "name", ast.Name(NAMES[node.id], node.ctx)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield "name", ast.Attribute(node.value, NAMES[node.attr], node.ctx)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call dropped", ast.Pass()
    elif isinstance(node, ast.Raise):
        yield "error dropped", ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "result dropped", ast.Return(ast.Constant(None))
    elif isinstance(node, (ast.Continue, ast.Break)):
        yield "loop left or not", ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    elif isinstance(node, ast.IfExp):
        yield "branch", node.body
        yield "branch", node.orelse


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that do something: without annotations, documentation, decorators, the words of errors, and imports for types.

    Nor what stands inside f-strings: before Python 3.12 it has no places.
    """
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                yield from _code(child)


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:  # columns count bytes
        begin = starts[line - 1]
        return begin + len(text[begin : starts[line]].encode()[:column].decode())

    found = []
    for node in _code(ast.parse(text)):
        for kind, other in replacements(node):
            assert isinstance(node, (ast.expr, ast.stmt)) and node.end_lineno is not None and node.end_col_offset is not None
            start, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
            after = ast.unparse(other)
            after = f"({after})" if isinstance(node, ast.expr) else after
            found.append(Mutant(os.path.relpath(path, ROOT), node.lineno, start, end, text[start:end], after, kind))
    return found


def draw(packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Equally many mutants of each package, in an order in which the packages alternate."""
    rng = random.Random(seed)
    pools = []
    for package in packages:
        files = sorted((ROOT / "tcjit" / package).rglob("*.py"))
        every = [mutant for path in files for mutant in mutants_of(path)]
        pools.append(rng.sample(every, min(len(every), -(-count // len(packages)))))
    return [mutant for together in zip(*pools) for mutant in together][:count]


# ---------------------------------------------------------------- a campaign


class Results:
    """What became of each mutant, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self._lock = threading.Lock()

    def add(self, result: dict[str, Any]) -> None:
        with self._lock, self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")
            self.known.append(result)


def campaign(
    work: Path, results: Results, packages: Sequence[str], count: int, seed: int | None, jobs: int, until: float | None
) -> None:
    """Try mutants until there are ``count``; the seed of what is known already goes on."""
    seed = results.known[0]["seed"] if results.known else random.SystemRandom().getrandbits(32) if seed is None else seed
    lines, done = read_map(work), {known["number"] for known in results.known}
    left = iter([(number, mutant) for number, mutant in enumerate(draw(packages, count, seed)) if number not in done])
    lock = threading.Lock()

    def worker(_: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tcjit-mutant-") as folder:
            for name in COPIED:
                source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
                if source.is_symlink():
                    os.symlink(os.readlink(source), Path(folder, name))
                elif source.is_dir():
                    shutil.copytree(source, Path(folder, name), symlinks=True, ignore=ignored)
                else:
                    shutil.copy2(source, Path(folder, name))
            sound: dict[str, bool] = {}
            while until is None or time.monotonic() < until:
                with lock:
                    entry = next(left, None)
                if entry is None:
                    return
                number, mutant = entry
                found = tried(Path(folder), mutant, lines, sound)
                results.add({"number": number, "seed": seed, **asdict(mutant), **found})
                said = f"{found['verdict']} {found['by']} {found['seconds']} s"
                print(f"{number}: {mutant.path}:{mutant.line} {mutant.kind}: {said}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(worker, range(jobs)))


def tried(folder: Path, mutant: Mutant, lines: dict[tuple[str, int], list[str]], sound: dict[str, bool]) -> dict[str, Any]:
    """Put a mutant into a copy of the project, and run the tests that reach it until one fails that passes without the mutant.

    ``sound`` holds which tests do, from mutant to mutant: a test that fails in every copy of the project kills nothing.
    """
    began = time.monotonic()
    path = folder / mutant.path
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert text[mutant.start : mutant.end] == mutant.before
    nodes, verdict, by, first = tests_for(mutant, lines), "survived", "", 0
    for size in BATCHES:
        batch = nodes[first : first + size]
        first += size
        batch = [node for node in batch if sound.get(node, True)]
        while batch and verdict == "survived":
            path.write_text(text[: mutant.start] + mutant.after + text[mutant.end :], encoding="utf-8")
            try:
                by = _failing(folder, batch)
            finally:
                path.write_text(text, encoding="utf-8")
            if not by:
                break
            failed = by.split()[1].split("[")[0] if by.startswith(("FAILED", "ERROR")) else ""
            blamed = [node for node in batch if node == failed or node.split("::")[0] == failed]
            if blamed:
                sound.update({node: not _failing(folder, [node]) for node in blamed if node not in sound})
                verdict = "killed" if all(sound[node] for node in blamed) else "survived"
                batch = [node for node in batch if sound.get(node, True)]
            elif not _failing(folder, batch):  # a time-out, or pytest itself ended
                verdict = "killed"
            else:
                sound.update({node: not _failing(folder, [node]) for node in batch if node not in sound})
                batch = [node for node in batch if sound[node]] if any(not sound[node] for node in batch) else []
    if not nodes:
        verdict = "no test runs it"
    return {"verdict": verdict, "by": by if verdict == "killed" else "", "tests": len(nodes), "seconds": round(time.monotonic() - began)}


def tests_for(mutant: Mutant, lines: dict[tuple[str, int], list[str]]) -> list[str]:
    """The test functions that run a mutant's line, the closest first: of a file with the module's name, of its package, others."""
    package, module = Path(mutant.path).parts[1], Path(mutant.path).stem
    nodes = dict.fromkeys(lines.get((mutant.path, mutant.line), ()))
    functions = [node for node in nodes if "::" in node] or list(nodes)

    def distance(node: str) -> tuple[bool, bool, bool]:
        file = node.split("::")[0]
        return module not in Path(file).stem, f"tests/{package}/" not in file, "end_to_end" in file

    return sorted(functions, key=distance)


def _failing(folder: Path, nodes: Sequence[str]) -> str:
    """The first of some tests that fails in a copy, or what else went wrong; nothing where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", "cache_dir=tmp/pytest", "--no-header", "-m", RING, "-rfE", *nodes]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S)),
    )  # fmt: skip
    try:
        said = process.communicate(timeout=10 * LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        return "time-out"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        shutil.rmtree(folder / "tmp", ignore_errors=True)
    if process.returncode in (0, 5):
        return ""
    if process.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        return "time-out"
    words = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (words or said.splitlines()[-1:] or [f"status {process.returncode}"])[0][:200]


# ---------------------------------------------------------------- what came of it


def _explained(work: Path) -> dict[str, str]:
    path = work / "explained.json"
    return json.loads(path.read_text()) if path.exists() else {}


def table(known: Sequence[dict[str, Any]], explained: dict[str, str]) -> str:
    """Numbers by package, then every mutant that lives, with the reason where one is known."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    lives = []
    for result in sorted(known, key=lambda one: int(one["number"])):
        reason = explained.get(str(result["number"]), "")
        verdict = "killed" if result["verdict"] == "killed" else "equivalent" if reason.startswith("equivalent") else "survived"
        for row in (result["path"].split("/")[1], "all"):
            rows[row].update(["mutants", verdict])
        if verdict != "killed":
            change = f"`{' '.join(result['before'].split())[:60]}` -> `{result['after'][:60]}`"
            where = f"{result['number']}. {result['path']}:{result['line']}"
            lives.append(f"{where} {change}, {result['tests']} tests: {reason or 'NOT EXPLAINED'}")
    heads = ("mutants", "killed", "equivalent", "survived")
    lines = [f"| package | {' | '.join(heads)} |", "| --- " * (len(heads) + 1) + "|"]
    order: Callable[[str], int] = [*PACKAGES, "all"].index
    lines += [f"| {name} | {' | '.join(str(rows[name][head]) for head in heads)} |" for name in sorted(rows, key=order)]
    return "\n".join([*lines, *lives])


if __name__ == "__main__":
    sys.exit(main())
