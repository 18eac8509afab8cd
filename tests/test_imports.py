"""Import cycles within the package, and the imports inside functions, each with its reason."""
from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.text

WARM = "a call that finds its kernel in the cache does without"
COMPILES = "needs isl or lark: only what compiles pays for it"
TORCH = "needs torch, which `define` and a compiling worker do without"
RUNS = "a command's own module is imported when the command runs: `tcjit doctor` speaks where torch or isl does not import"
VENDOR = "a package that may be missing"
OPTUNA = "needs optuna or a database's driver: only what opens a study pays for it"
NOTEBOOK = "only notebooks show it"

# by module: what it imports inside functions, and why not at its top
INSIDE: dict[str, dict[str, str]] = {
    "cache": {"tcjit.cache.exchange": WARM},
    "cli": dict.fromkeys(
        (
            "tcjit.byoc.settings", "tcjit.cli.cache", "tcjit.cli.explain", "tcjit.cli.partition", "tcjit.cli.run", "tcjit.cli.tune",
            "tcjit.tuner.config",
        ),
        RUNS,
    ),
    "config": {"tcjit.redact": WARM},
    "grammar.bounds_check": {"islpy": COMPILES},
    "grammar.parse": {"tcjit.grammar.parse_table": COMPILES, "lark.exceptions": COMPILES},
    "grammar.syntax_errors": {"lark.exceptions": COMPILES},
    "jit": {"tcjit.jit.call": TORCH, "tcjit.jit.kernel": TORCH},
    "jit.call": {
        "tcjit.jit.autotune": OPTUNA, "tcjit.notebook": NOTEBOOK, "tcjit.grammar.batch": COMPILES, "tcjit.jit.compile": COMPILES,
        "tcjit.jit.derivative": COMPILES,
    },
    "jit.define": {"tcjit.jit.call": TORCH, "html": NOTEBOOK, "tcjit.notebook": NOTEBOOK},
    "jit.derivatives": {"tcjit.grammar.parse": COMPILES, "tcjit.jit.compile": COMPILES},
    "jit.differentiation": dict.fromkeys(("tcjit.grammar.differentiate", "tcjit.jit.derivative"), COMPILES),
    "jit.dynamic": {"tcjit.mapping.isl": COMPILES},
    "jit.kernel": {
        "tcjit.grammar.infer": COMPILES, "tcjit.jit.compile": COMPILES, "tcjit.mapping.roofline": COMPILES,
        "tcjit.grammar.printer": WARM, "tcjit.runtime.reference": WARM, "tcjit.notebook": NOTEBOOK,
    },
    "jit.kernel_cache": {"tcjit.grammar.front": COMPILES, "tcjit.jit.compile": COMPILES},
    "jit.signature": {"tcjit.grammar.canonical": WARM, "tcjit.grammar.recomputed": WARM},
    "jit.targets.cpu": {
        "tcjit.codegen.c": COMPILES, "tcjit.codegen.outline": COMPILES, "tcjit.mapping.pipeline": COMPILES,
        "tcjit.mapping.seeds": COMPILES,
        "tcjit.codegen.dialect": WARM, "tcjit.runtime.vector_math": WARM,
        "tcjit.runtime.tensors": TORCH, "torch": TORCH,
    },
    "jit.targets.cuda": {"tcjit.codegen.dialect": WARM, "tcjit.runtime.tensors": TORCH, "torch": TORCH},
    "jit.targets.gpu": {"tcjit.codegen.gpu_kernel": COMPILES, "tcjit.mapping.pipeline": COMPILES, "tcjit.mapping.seeds": COMPILES},
    "jit.targets.opencl": {"tcjit.codegen.dialect": WARM, "tcjit.runtime.tensors": TORCH},
    "jit.tune_worker": {"tcjit.jit.tune_runner": TORCH},
    "library": {"tcjit.jit.define": "the operators' texts are read without the calling side"},
    "runtime.cuda_bindings": {"cuda.bindings": VENDOR},
    "runtime.cuda_pycuda": {"pycuda.driver": VENDOR},
    "runtime.opencl": {"pyopencl": VENDOR},
    "tuner.model": {"xgboost": VENDOR},
    "tuner.report": {"matplotlib.figure": VENDOR},
    "tuner.storage": {"tcjit.tuner.database": OPTUNA, "tcjit.tuner.journal": OPTUNA, "tcjit.tuner.study_storage": OPTUNA},
}  # fmt: skip

def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below a node, and whether it stands in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, inside
        yield from imports(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def imported(statement: ast.Import | ast.ImportFrom, modules: Mapping[str, object]) -> list[str]:
    """The modules that a statement names: ``from tcjit.jit import call`` names ``tcjit.jit.call``."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    origin = statement.module or ""
    return [f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in modules else origin for alias in statement.names]


@cache
def scan(root: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The imports of a package: by module the modules of the package, wherever the import stands, and all imported inside functions.

    Imports under ``TYPE_CHECKING`` count. The front door does not: ``tcjit/__init__.py`` names everything.
    """
    trees = {module_name(path, root): ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / "tcjit").rglob("*.py"))}
    edges: dict[str, set[str]] = {module: set() for module in trees if module != "tcjit"}
    local: dict[str, set[str]] = {}
    for module in edges:
        for statement, inside in imports(trees[module]):
            names = imported(statement, trees)
            edges[module] |= {name for name in names if name in edges and name != module}
            if inside:
                local.setdefault(module.removeprefix("tcjit."), set()).update(names)
    return edges, local


def cycles(edges: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import one another: the strongly connected components of more than one module (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: set[frozenset[str]] = set()

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(edges[module]):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            position = stack.index(module)
            component = frozenset(name.removeprefix("tcjit.") for name in stack[position:])
            del stack[position:]
            if len(component) > 1:
                components.add(component)

    for module in edges:
        if module not in number:
            visit(module)
    return components


def test_modules_import_one_another_in_one_direction() -> None:
    edges, _ = scan(ROOT)
    there = cycles(edges)
    assert not [sorted(cycle) for cycle in there]


def test_imports_inside_functions_have_a_reason() -> None:
    _, local = scan(ROOT)
    for module in sorted({*local, *INSIDE}):
        assert local.get(module, set()) == INSIDE.get(module, {}).keys(), module


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    texts = {
        "__init__": "from tcjit import a, b",
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tcjit.b import B",
        "b": "def f():\n    import json\n    from tcjit import c",
        "c": "class C:\n    def f(self):\n        from tcjit.a import A",
        "d": "from tcjit import a",
    }
    (tmp_path / "tcjit").mkdir()
    for name, text in texts.items():
        (tmp_path / "tcjit" / f"{name}.py").write_text(text)
    edges, local = scan(tmp_path)
    assert cycles(edges) == {frozenset("abc")}
    assert local == {"b": {"json", "tcjit.c"}, "c": {"tcjit.a"}}
