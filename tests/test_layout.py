"""The shape of the house: one direction of import, torch and the GPU stacks in their rooms, a light front door, the root links."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from support import PYTHONPATH, ROOT

import tcjit
from tcjit.cache.keys import ABOVE

# lowest first: a unit may import itself and anything to its left
ORDER = """errors redact checked dataclass notebook config scratch step layout grammar mapping codegen runtime cache tuner jit nn library
byoc cli __main__""".split()
TORCH = tuple(f"tcjit.{home}" for home in "runtime.tensors runtime.storage_pool jit nn library byoc cli.partition".split())
GPU = ("tcjit.runtime",)
SOURCES = sorted((ROOT / "tcjit").rglob("*.py"))
# what `import tcjit`, `import tcjit.grammar` and `import tcjit.mapping` leave for later
HEAVY = ("torch", "lark", "islpy", "pycuda", "pyopencl")

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCK:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[str]:
    """Modules a file imports, inside functions as well; ``from tcjit import cache`` counts as ``tcjit.cache``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            assert node.module
            found += [f"tcjit.{alias.name}" for alias in node.names] if node.module == "tcjit" else [node.module]
    return found


def within(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": PYTHONPATH}
    )


@pytest.mark.text
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    here = path.relative_to(ROOT / "tcjit").with_suffix("").parts[0]
    assert here == "__init__" or here in ORDER, f"{here} has no place in the order"
    for module in imports(path):
        parts = module.split(".")
        if parts[0] != "tcjit" or len(parts) == 1 or here == "__init__":
            continue
        if parts[1] in ORDER:
            assert ORDER.index(parts[1]) <= ORDER.index(here), f"{here} imports {module}"
        else:
            assert here in ("cli", "__main__", "byoc", "library") or parts[1] == "__version__", f"{here} imports the front door: {module}"


@pytest.mark.text
def test_no_module_of_the_mapping_imports_itself() -> None:
    """Not through others either, nor for types alone; and what a pass builds on knows no pass."""
    paths = {name_of(path): path for path in SOURCES if within(name_of(path), ("tcjit.mapping",))}
    direct = {name: {module for module in imports(path) if module in paths} for name, path in paths.items()}
    reached = direct
    for _ in paths:  # a chain of imports is no longer than this
        reached = {name: modules.union(*(reached[module] for module in modules)) for name, modules in reached.items()}
    assert [name for name, modules in reached.items() if name in modules] == []
    passes = {name for name in paths if within(name, ("tcjit.mapping.passes",))}
    below = set().union(*(reached[name] for name in passes)) - passes
    assert [name for name in below if direct[name] & passes] == []


@pytest.mark.text
def test_what_makes_kernels_stands_below_what_uses_them() -> None:
    """The version of tcjit's code in the cache's keys leaves the packages above ``jit`` out, wherever they would lie."""
    packages = {path.parent for path in SOURCES if path.name == "__init__.py"}
    above = [unit for unit in ORDER[ORDER.index("jit") + 1 :] if ROOT / "tcjit" / unit in packages]
    assert list(ABOVE) == above
    assert sorted(path.name for path in packages if path.name in ABOVE) == sorted(ABOVE)


@pytest.mark.text
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_torch_and_gpu_stacks_stay_in_their_rooms(path: Path) -> None:
    here = name_of(path)
    for module in imports(path):
        top = module.partition(".")[0]
        assert top != "torch" or within(here, TORCH), f"{here} imports {module}"
        assert top not in ("pycuda", "pyopencl", "cuda") or within(here, GPU), f"{here} imports {module}"


@pytest.mark.text
def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("def f():\n    import torch.nn\n    from tcjit import cache\n    from tcjit.jit import call\n")
    assert imports(path) == ["torch.nn", "tcjit.cache", "tcjit.jit"]
    assert within("tcjit.jit.call", TORCH) and not within("tcjit.runtime.host", TORCH)


@pytest.mark.cold
@pytest.mark.text
@pytest.mark.parametrize("module", ["tcjit", "tcjit.grammar", "tcjit.mapping"])
def test_the_front_door_is_light(module: str) -> None:
    out = child(f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert out.stdout.strip() == "[]", out.stderr


@pytest.mark.cold
@pytest.mark.text
@pytest.mark.parametrize("package", ["grammar", "mapping"])
def test_language_and_mapping_work_without_torch(package: str) -> None:
    """Every module of the package imports, with torch and the GPU stacks out of reach."""
    modules = [name_of(path) for path in SOURCES if within(name_of(path), (f"tcjit.{package}",))]
    lines = [f"BLOCK = {('torch', 'pycuda', 'pyopencl', 'cuda')!r}{BLOCKED}", *(f"import {module}" for module in modules), "print('fine')"]
    out = child("\n".join(lines))
    assert out.stdout.strip() == "fine", out.stderr
    assert len(modules) > 1


@pytest.mark.cold
@pytest.mark.text
def test_a_program_is_read_without_torch() -> None:
    code = f"""BLOCK = ('torch',){BLOCKED}
from tcjit.grammar import front
d, = front.read("def f(float(N) X) -> (Y) {{ Y(i) = X(i) + 1.0 }}")
print(d.name, d.sizes)
"""
    out = child(code)
    assert out.stdout.strip() == "f ('N',)", out.stderr
    out = child(f"import sys; sys.modules['torch'] = None\n{code.split(BLOCKED)[1]}")  # the other way to say that there is none
    assert out.stdout.strip() == "f ('N',)", out.stderr


@pytest.mark.host
def test_no_public_name_is_that_of_a_part() -> None:
    """Importing the sub-package would rebind the name. ``tcjit.cache`` is a module on purpose: the name stands for itself."""
    parts = {m.name for m in iter_modules(tcjit.__path__)}
    for name in set(tcjit.__all__) & parts:
        assert getattr(tcjit, name) is import_module(f"tcjit.{name}")
    assert "grammar" in parts and "define" in tcjit.__all__


@pytest.mark.host
def test_public_names_exist() -> None:
    assert sorted(tcjit.__all__) == sorted(dir(tcjit)) == sorted(set(tcjit.__all__))
    for name in tcjit.__all__:
        assert getattr(tcjit, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        tcjit.nothing_of_the_kind  # noqa: B018


@pytest.mark.text
@pytest.mark.parametrize("name", ["grammar", "mapping", "tuner"])
def test_root_names_open_the_same_rooms(name: str) -> None:
    door = ROOT / name
    if not door.is_symlink():
        assert door.read_text().strip() == f"tcjit/{name}"  # a checkout that keeps links as text files
        return
    assert os.readlink(door) == f"tcjit/{name}"
    assert door.resolve() == ROOT / "tcjit" / name
