"""The C launcher and its ctypes stand-in with kernels written by hand.

Modules: runtime.launcher layout runtime.tensors
"""
from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tcjit
from tcjit.jit import fast
from tcjit.runtime import host, launcher, tensors

KERNELS = """
#include <stdint.h>
#include <string.h>

int64_t add(void *const *tensors, const int64_t *numbers, void *workspace, int threads) {
    float *c = tensors[0]; const float *a = tensors[1], *b = tensors[2];
    for (int i = 0; i < 8; i++) c[i] = a[i] + b[i];
    return 0;
}

int64_t refuse(void *const *tensors, const int64_t *numbers, void *workspace, int threads) { return 1; }

/* O(0) = the double, O(1) = the integer, O(2) = the bool, O(3) = the stride, O(4) = threads, O(5) = the workspace works */
int64_t echo(void *const *tensors, const int64_t *numbers, void *workspace, int threads) {
    double *o = tensors[0];
    memcpy(&o[0], &numbers[0], 8);
    o[1] = (double)numbers[1], o[2] = (double)numbers[2], o[3] = (double)numbers[3], o[4] = threads;
    if (workspace) memset(workspace, 1, 1000);
    o[5] = workspace && (uintptr_t)workspace % 64 == 0;
    return numbers[1] == 13 ? 2 : 0;
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    path.write_bytes(host.build(KERNELS, "kernels"))
    return {name: host.load(path, name) for name in ("add", "echo", "refuse")}


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    module = fast.extension.load()
    if module is None:
        pytest.skip("this machine cannot build the launcher")
    return module


VECTOR = ("t", (8,), (1,), 2, 32)


def failing(flag: int) -> None:
    raise KeyError(flag)


def adder(extension: ModuleType, kernels: dict[str, int], **changes: Any) -> launcher.Launcher:
    made: launcher.Launcher = extension.Launcher()
    outputs = ((tensors.template((8,), "float32"), (8,), 2, 32),)
    facts = {"address": kernels["add"], "checked": True, "functional": True, "params": (VECTOR, VECTOR), "outputs": outputs, "numbers": ()}
    facts |= {"workspace": 0, "keep": None, "fail": failing} | changes
    assert made.add(*facts.values())
    return made


def test_as_many_arguments_as_an_operator_of_pytorch_has(extension: ModuleType, kernels: dict[str, int]) -> None:
    made = adder(extension, kernels, params=(VECTOR,) * 63)
    given = [torch.full((8,), float(number)) for number in range(63)]
    assert torch.equal(made.call(tuple(given), None, False), torch.ones(8))


def test_calls(extension: ModuleType, kernels: dict[str, int]) -> None:
    table = adder(extension, kernels)
    x, y = torch.randn(8), torch.randn(8)
    assert len(table) == 1 and torch.equal(table.call((x, y), None, False), x + y)
    out = torch.empty(8)
    assert table.call((x, y), out, False) is out and torch.equal(out, x + y) and out._version == 1
    assert table.call((x, y), (out,), False) is out
    assert extension.Launcher().call((x, y), None, False) is NotImplemented


def test_what_it_leaves_to_python(extension: ModuleType, kernels: dict[str, int]) -> None:
    table = adder(extension, kernels)
    x = torch.randn(8)
    for args in ((x,), (x, x, x), ()):
        assert table.call(args, None, False) is NotImplemented
    for other in (None, 3, x.double(), x.int(), x[:4], torch.randn(16)[::2], x.view(2, 4)):
        assert table.call((x, other), None, False) is NotImplemented
    assert table.call((x, x), None, True) is NotImplemented  # this kernel tests its gathers
    assert table.call((x, x), None, 0) is NotImplemented
    for out in (x, x[:], torch.empty(9), torch.empty(16)[::2], (x, x), (), "out", torch.empty(8, dtype=torch.int32)):
        assert table.call((x, x), out, False) is NotImplemented
    only_into = adder(extension, kernels, functional=False)
    assert only_into.call((x, x), None, False) is NotImplemented and torch.equal(only_into.call((x, x), torch.empty(8), False), 2 * x)


def test_scalars_and_the_rest(extension: ModuleType, kernels: dict[str, int]) -> None:
    table: launcher.Launcher = extension.Launcher()
    params = (("f", 0, 0, 0, None), ("i", -128, 127, 1, None), ("b", 0, 0, 2, None), ("i", 0, 100, -1, 7), VECTOR)
    outputs = ((tensors.template((6,), "float64"), (6,), 2, 64),)
    assert table.add(kernels["echo"], True, True, params, outputs, (0, 0, 0, 5), 1000, None, failing)
    x = torch.randn(8)
    threads = torch.get_num_threads()
    third = float(torch.tensor(1 / 3))
    assert table.call((1 / 3, -7, True, 7, x), None, False).tolist() == [third, -7, 1, 5, threads, 1]
    assert table.call((2, 127, False, 7, x), None, False).tolist() == [2, 127, 0, 5, threads, 1]
    for first, second in ((1e300, 1), (2**25, 1), ("1", 1), (1.0, 128), (1.0, 2**70), (1.0, True)):
        assert table.call((first, second, True, 7, x), None, False) is NotImplemented
    for wrong in ((1.0, 1.0, True, 7), (1.0, 1, 1, 7), (1.0, 1, True, 8), (1.0, 1, True, 7.0), (True, 1, True, 7)):
        assert table.call((*wrong, x), None, False) is NotImplemented
    with pytest.raises(KeyError, match="2"):
        table.call((1.0, 13, True, 7, x), None, False)
    torch.set_num_threads(1)
    assert table.call((1.0, 1, True, 7, x), None, False)[4] == 1
    torch.set_num_threads(threads)


def test_without_the_extension(kernels: dict[str, int]) -> None:
    x, y, c = torch.randn(8), torch.randn(8), torch.empty(8)
    add = launcher.prepared(kernels["add"], [t.data_ptr() for t in (c, x, y)], [], 0, 2)
    assert add() == 0 and torch.equal(c, x + y)
    x += 1
    assert add() == 0 and torch.equal(c, x + y), "again, on the same memory"
    o = torch.empty(6, dtype=torch.float64)
    assert launcher.prepared(kernels["echo"], [o.data_ptr()], [0, 13, 1, -4], 0, 3)() == 2
    assert o.tolist() == [0, 13, 1, -4, 3, 0]


def test_wrong_entries_are_refused(extension: ModuleType, kernels: dict[str, int]) -> None:
    table: launcher.Launcher = extension.Launcher()
    good: tuple[Any, ...] = (kernels["add"], True, True, (VECTOR,), (), (), 0, None, failing)
    for position, wrong in (
        (0, "x"), (3, [VECTOR]), (3, (("t", 3, (1,), 2, 32),)), (3, (("t", (8,), (), 2, 32),)), (3, (("i", 0, 1, 5, None),)), (3, (3,)),
        (4, ((1, 2),)), (4, ((None, (2.5,), 2, 32),)), (5, ("x",)), (5, (2**70,)),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError, OverflowError)):
            table.add(*good[:position], wrong, *good[position + 1 :])
    outputs = ((tensors.template((8,), "float32"), (8,), 2, 32),)
    recording: tuple[Any, ...] = (1, print, (None, ()), (0,), (), (), 1)
    for position, wrong in ((0, 0), (0, "x"), (2, ()), (2, None), (3, (2,)), (3, [0]), (4, (-1,)), (5, ("x",)), (6, 0), (6, 2)):
        with pytest.raises((TypeError, ValueError)):
            table.add(*good[:4], outputs, *good[5:], (*recording[:position], wrong, *recording[position + 1 :]))
    with pytest.raises(TypeError):
        table.add(*good, [*recording])
    assert len(table) == 0
    assert not table.add(*good[:3], (VECTOR,) * 65, *good[4:])
    for nonsense in ((), (1,), (1, None, False)):
        with pytest.raises(TypeError):
            table.call(*nonsense)


def test_nothing_is_lost(extension: ModuleType, kernels: dict[str, int]) -> None:
    """References are balanced: for results, for errors, and when a table goes."""

    class Kept:
        pass

    kept = Kept()
    gone = weakref.ref(kept)
    table = adder(extension, kernels, keep=kept)
    x, out = torch.randn(8), torch.empty(8)
    before = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(100):
        table.call((x, x), None, False)
        table.call((x, x), out, False)
        table.call((x, 3), None, False)
        table.call((x, x), x, False)
        table.call((x, x), (out, out), False)
    refused = adder(extension, kernels, address=kernels["refuse"])
    for _ in range(50):
        with pytest.raises(KeyError):
            refused.call((x, x), None, False)
        with pytest.raises(KeyError):
            refused.call((x, x), out, False)
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before
    made = table.call((x, x), None, False)
    assert sys.getrefcount(made) == 2
    for _ in range(270):  # the table is full after 256: the oldest go
        assert table.add(kernels["add"], True, True, (VECTOR, VECTOR), (), (), 0, None, failing)
    del kept
    gc.collect()
    assert len(table) == 256 and gone() is None


def test_other_threads_get_to_run_while_a_call_looks_at_its_arguments(extension: ModuleType, kernels: dict[str, int]) -> None:
    """What torch lets run inside a predicate replaces the first entry: freed memory, which is overwritten here, is not looked at."""
    assert_passes("""
        def is_neg(tensor):
            if len(table) == 1:
                for _ in range(module.ENTRIES):
                    assert table.add(*entry)
            return offered[8](tensor)

        configured(8, is_neg)
        assert torch.equal(table.call((x, y), None, False), x + y) and len(table) == module.ENTRIES
    """)


def test_an_argument_that_changes_during_a_call_is_looked_at_again(extension: ModuleType) -> None:
    """``x`` loses its memory while outputs are allocated or examined, or threads are asked for."""
    assert_passes("""
        for position, made in ((10, None), (9, torch.zeros), (7, None), (7, torch.zeros)):
            x, out = torch.randn(8), made and made(8)

            def meanwhile(*args):
                x.set_(torch.ones(3))
                return offered[position](*args)

            configured(position, meanwhile)
            assert table.call((x, y), out, False) is NotImplemented
            assert out is None or (not out.any() and sys.getrefcount(out) == 2 and out._version == 0)
    """)


def assert_passes(body: str) -> None:
    """Run it in a process where what is freed is overwritten, with a launcher to which torch's functions can be exchanged."""
    start = """
        import sys, pathlib, tempfile, torch
        sys.path.insert(0, "tests/jit")
        from test_launcher import KERNELS, VECTOR, adder, failing
        from tcjit.jit import fast
        from tcjit.runtime import host, tensors

        module, offered, folder = fast.extension.load(), tensors.for_launcher(), tempfile.TemporaryDirectory()
        path = pathlib.Path(folder.name, "kernels.so")
        path.write_bytes(host.build(KERNELS, "kernels"))
        table = adder(module, {"add": host.load(path, "add")})
        outputs = ((tensors.template((8,), "float32"), (8,), 2, 32),)
        entry = (host.load(path, "add"), True, True, (VECTOR, VECTOR), outputs, (), 0, None, failing)
        x, y = torch.randn(8), torch.randn(8)

        def configured(position, function):
            assert module.configure(*offered[:position], function, *offered[position + 1 :])
    """
    environment = {**os.environ, "MALLOC_PERTURB_": "90", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "PYTHONPATH": os.getcwd()}
    code = textwrap.dedent(start) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_entries_of_one_launcher_take_the_same_arguments(extension: ModuleType, kernels: dict[str, int]) -> None:
    table = adder(extension, kernels)
    for params in ((VECTOR,), (VECTOR,) * 3, (VECTOR, ("i", 0, 1, -1, None)), ()):
        with pytest.raises(ValueError, match="same kinds"):
            table.add(kernels["add"], True, True, params, (), (), 0, None, failing)
    assert len(table) == 1


def test_each_compiler_builds_a_launcher_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One built with a sanitizer's flags, or by a wrapper, must not be loaded by a process whose compiler is another."""
    plain = launcher.key()
    assert plain == launcher.key()
    monkeypatch.setenv("CC", f"{host.compiler().path} -fsanitize=undefined")
    assert launcher.key() != plain
    monkeypatch.undo()
    monkeypatch.setattr(host, "c_library", lambda memory: "glibc 2.99")
    assert launcher.key() != plain


def test_loading_nonsense(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"nonsense")
    with pytest.raises(launcher.LaunchError, match="cannot load the launcher"):
        launcher.load(tmp_path / "x.so")


def advised(address: int) -> bool:
    """Whether the system may back the memory at an address with huge pages."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            here = begin <= address < end
        elif here and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError("no memory there")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="a system without huge pages")
@pytest.mark.usefixtures("extension")
def test_large_outputs_may_have_huge_pages() -> None:
    """What a call allocates, where whole huge pages of it are its own; never what the caller gave."""
    f = tcjit.define("def f(float(N) X) -> (O) { O(n) = X(n) + 1.0 }").f
    x, small, given = torch.zeros(20 << 20), torch.zeros(1000), torch.empty(20 << 20)
    for _ in range(2):  # the first call goes through Python
        out, little, same = f(x), f(small), f(x, out=given)
    inside, second = out.data_ptr() + (8 << 20), given.data_ptr() + (8 << 20)
    assert same is given and torch.equal(out, x + 1) and torch.equal(little, small + 1)
    assert advised(inside) and not advised(second)
