"""Threads, forked children, and machines on which the fast path cannot be had.

Modules: jit.fast jit.kernel_cache jit.key_locks jit.launch
"""
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.calls import TEXT, assert_fast, assert_refused, child, defs, knows

import tcjit
import tcjit.jit.compile as compiling
from tcjit.errors import CompileError, LaunchError
from tcjit.jit import fast as fast_path
from tcjit.jit import kernel_cache, targets
from tcjit.runtime import launcher, tensors


def together(work: Any, count: int = 8) -> list[Any]:
    """The results of ``work(number)`` on threads that start at once; the first exception is raised."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_one_compile_in_flight_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    really = compiling.compile_kernel

    def counted(*args: Any, **named: Any) -> Any:
        compiled.append(args[2])
        return really(*args, **named)

    monkeypatch.setattr(compiling, "compile_kernel", counted)
    text = "def only_once(float(N) X) -> (Y) { Y(i) = X(i) + 3.0 }"
    x = [torch.ones(5), torch.ones(6)]
    results = together(lambda number: tcjit.define(text).only_once(x[number % 2]))
    assert all(torch.equal(r, x[n % 2] + 3) for n, r in enumerate(results))
    assert sorted(shapes["X"] for shapes in compiled) == [(5,), (6,)]


@pytest.mark.parametrize(("thrown_out", "served"), [(1, True), (kernel_cache.ATTEMPTS, False)])
def test_a_kernel_thrown_out_by_another_process_just_now(monkeypatch: pytest.MonkeyPatch, thrown_out: int, served: bool) -> None:
    """It is compiled once more, but not for ever."""
    target = type(targets.find("cpu"))
    really, seen = target.load, []

    def load(self: Any, record: Any, library: Path) -> Any:
        seen.append(library)
        if len(seen) <= thrown_out:
            library.unlink()
        return really(self, record, library)

    monkeypatch.setattr(target, "load", load)
    thrown = tcjit.define(f"def thrown_out(float(N) X) -> (Y) {{ Y(i) = X(i) - {thrown_out}.5 }}", target="cpu").thrown_out
    x = torch.ones(5)
    if served:
        assert torch.equal(thrown(x), x - thrown_out - 0.5) and len(seen) == 2
    else:
        with pytest.raises(LaunchError, match="cannot load"):
            thrown(x)
        assert len(seen) == kernel_cache.ATTEMPTS


def test_a_failed_compile_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def try_again(float(N) X) -> (Y) { Y(i) = X(i) - 3.0 }"
    tc = tcjit.define(text, target="cpu")
    x = torch.ones(5)

    def broken(*args: Any, **named: Any) -> Any:
        raise CompileError("no compiler")

    with monkeypatch.context() as patched:
        patched.setattr(compiling, "compile_kernel", broken)
        assert_refused(lambda: tc.try_again(x), CompileError)
    assert torch.equal(tc.try_again(x), x - 3)


def test_calls_from_several_threads() -> None:
    tc = defs("cpu")
    a, b, index = torch.randn(40, 30), torch.randn(30, 20), torch.tensor([3, 90])
    expected = assert_fast(tc.mm, a, b)

    def work(number: int) -> None:
        for round in range(100):
            assert torch.equal(tc.mm(a, b), expected)
            x = torch.randn(number + 1)
            assert torch.equal(tc.add(x, x), 2 * x)
            if round % 10 == 0:
                assert_refused(lambda: tc.pick(a, index), tcjit.GatherError)

    together(work)


@pytest.mark.parametrize("seen", [True, False])
def test_a_forked_child_never_hangs(seen: bool) -> None:
    """Whatever the parent did before, and even while another thread of it was compiling."""
    code = f"""
import os, signal, threading, torch, tcjit
from tcjit.jit import call, fast
tc = tcjit.define({TEXT!r})
a = torch.randn(300, 300)
expected = a @ a
if {seen}:
    for _ in range(3):
        assert torch.allclose(tc.mm(a, a), expected, atol=1e-3)
big = torch.ones(1 << 20)
(big + big).sum()
ones, turned, wide = torch.ones(600, 600), torch.ones(600, 600).t(), torch.zeros(600, 1200)
held, done = threading.Event(), threading.Event()
def hold():
    with call._locks.acquired("another key"), call._locks._lock, fast.extension.lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    for _ in range(3):
        product, double = tc.mm(a, a), tc.add(big, big)
        tc.mm(ones, ones, out=wide[:, ::2])
        tc.mm.compile(ones, ones)(turned, turned, out=wide[:, ::2])
    torch.set_num_threads(1)  # torch's own operators would wait for threads that are not there
    assert torch.allclose(product, expected, atol=1e-3) and torch.equal(double, big + big) and wide.sum() == 600 ** 3
    os._exit(7)
done.set()
thread.join()
status = os.waitpid(pid, 0)[1]
for _ in range(3):
    assert torch.allclose(tc.mm(a, a), expected, atol=1e-3)
print(os.waitstatus_to_exitcode(status))
"""
    assert child(code, OMP_NUM_THREADS="2") == "7"


# ---------------------------------------------------------------- without the extension


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Functions of their own, in a process that has not asked for the extension yet."""
    monkeypatch.setattr(fast_path, "extension", fast_path._Extension())
    return tcjit.define(TEXT + "def not_shared(float(N) X) -> (Y) { Y(i) = X(i) }", target="cpu", options=tcjit.Options(tile=(5, 7)))


@pytest.mark.parametrize("lacking", ["exchange", "headers", "compiler", "damaged", "refusing"])
def test_without_the_extension(slow: Any, monkeypatch: pytest.MonkeyPatch, lacking: str, tmp_path: Any) -> None:
    if lacking == "exchange":
        monkeypatch.setattr(tensors, "for_launcher", lambda: None)
    elif lacking == "damaged":
        (tmp_path / "launcher.so").write_bytes(b"not a library")
        monkeypatch.setattr(kernel_cache, "launcher_library", lambda: tmp_path / "launcher.so")
    elif lacking == "refusing":
        offered = tensors.for_launcher()
        assert offered is not None
        monkeypatch.setattr(tensors, "for_launcher", lambda: (int, *offered[1:-2], 3, offered[-1]))
    else:
        monkeypatch.setattr(launcher, "key", lambda memory: f"lacking-{lacking}")
        broken = CompileError("no compiler")

        def build(*_: Any, **__: Any) -> Any:
            raise broken

        if lacking == "compiler":
            monkeypatch.setattr(launcher.host, "build", build)
        else:
            monkeypatch.setattr(launcher.sysconfig, "get_path", lambda name: str(tmp_path))
    x = torch.randn(7)
    table, index = torch.randn(4, 2), torch.tensor([1, 7])
    for _ in range(4):
        assert torch.equal(slow.add(x, x), 2 * x)
        out = torch.empty(7)
        assert slow.add(x, x, out=out) is out
        assert_refused(lambda: slow.pick(table, index), tcjit.GatherError)
        assert torch.equal(slow.step(0.5, x, 2), 0.5 * x[:6:2])
    assert fast_path.extension.tried and fast_path.extension.module is None and not knows(slow.add, x, x)


def test_the_extension_is_not_built_for_a_single_call(slow: Any) -> None:
    x = torch.randn(7)
    slow.not_shared(x)
    assert not fast_path.extension.tried
    slow.not_shared(x)
    assert fast_path.extension.tried
    if fast_path.extension.module is not None:
        assert knows(slow.not_shared, x)
