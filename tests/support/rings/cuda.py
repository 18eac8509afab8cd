"""Tests that were written for the CPU, run on a GPU: their tensors are moved there and back, their defs compiled for ``cuda``.

Whole programs run in a worker process: a kernel that goes astray takes CUDA away from its process, and only from that.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tcjit
from support import TESTS
from support.cases import Case, load
from support.library import Case as Operator
from support.rings.opencl import Worker
from tcjit.jit.define import Namespace

LOST = ("CUDA is lost to the process", "CUDA error", "hang:", "crash:")  # in a failure after which a worker is of no use


def missing() -> str:
    """Why tests that need a GPU cannot run here; empty if they can."""
    if torch.cuda.is_available():
        return ""
    return f"no CUDA device: torch {torch.__version__} sees none"


def require() -> None:
    """Skip the test, with the reason, where there is no GPU."""
    if reason := missing():
        pytest.skip(reason)


def module(name: str) -> ModuleType:
    """A module of the tests by its path without ``.py``: its lists of cases serve here as well."""
    spec = util.spec_from_file_location(f"cuda_{name.replace('/', '_')}", TESTS / f"{name}.py")
    assert spec and spec.loader
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# ---------------------------------------------------------------- there and back


def moved(value: Any, place: str = "cuda") -> Any:
    """A tensor of the CPU on a device, with the strides, offset and neighbours that it has in memory; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    own = value.untyped_storage()
    there = torch.empty(own.nbytes(), dtype=torch.uint8, device=place).untyped_storage()
    there.copy_(own)
    with torch.no_grad():
        return torch.empty(0, dtype=value.dtype, device=place).set_(there, value.storage_offset(), value.shape, value.stride())


def back(found: Any) -> Any:
    """A result, or a tuple of them, on the CPU."""
    return tuple(one.cpu() for one in found) if isinstance(found, tuple) else found.cpu()


class OnDevice:
    """A def that takes and gives tensors of the CPU and runs elsewhere; what its kernels flag is raised by the call itself."""

    def __init__(self, function: Any, place: str = "cuda") -> None:
        self._function, self._place = function, place

    def __call__(self, *args: Any, out: Any = None, **options: Any) -> Any:
        given = tuple(moved(one, self._place) for one in (out if isinstance(out, (tuple, list)) else () if out is None else (out,)))
        wanted = None if out is None else given if isinstance(out, (tuple, list)) else given[0]
        found = self._function(*(moved(arg, self._place) for arg in args), out=wanted, **options)
        tcjit.synchronize()
        if out is None:
            return back(found)
        for own, result in zip(out if isinstance(out, (tuple, list)) else (out,), given):
            own.copy_(result.cpu())
        return out

    def compile(self, *args: Any, **options: Any) -> tcjit.Kernel:
        kernel: tcjit.Kernel = self._function.compile(*(moved(arg, self._place) for arg in args), **options)
        return kernel


class Elsewhere:
    """The defs of a text, each as ``OnDevice``."""

    def __init__(self, defs: Namespace, place: str = "cuda") -> None:
        self._defs, self._place = defs, place

    def __getitem__(self, name: str) -> OnDevice:
        return OnDevice(self._defs[name], self._place)

    def __getattr__(self, name: str) -> OnDevice:
        return OnDevice(getattr(self._defs, name), self._place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._defs)


@contextlib.contextmanager
def on_device(place: str = "cuda") -> Iterator[None]:
    """Defs for CUDA are compiled for the device, and their tensors moved there."""
    home = import_module("tcjit.jit.define")
    really = home.define

    def define(source: str, *, target: str | None = None, options: tcjit.Options | None = None) -> Any:
        if target != "cuda":
            return really(source, target=target, options=options)
        return Elsewhere(really(source, target=place, options=options), place)

    tcjit.define = home.define = define  # type: ignore[attr-defined]
    try:
        yield
    finally:
        tcjit.define = home.define = really  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the worker


@functools.cache
def worker() -> Worker:
    """One per test process."""
    return Worker()


def asked(code: str) -> Any:
    """What ``code`` leaves in ``answer`` in the worker, with this module's names."""
    return _kept(worker().ask(kind="code", code=f"from support.rings.cuda import *\n{code}"))


def tested(test: str) -> str:
    """What is wrong with a test, named as pytest does, whose defs and tensors are moved to the GPU; empty where it passes."""
    return str(_kept(worker().tested(test, "cuda")))


def _kept(answer: Any) -> Any:
    """The worker's answer; one after which it is of no use ends it."""
    if any(mark in str(answer) for mark in LOST):
        worker().restart()
    return answer


def assert_agrees(case: Case) -> None:
    """AssertionError unless the GPU computes what the reference does."""
    wrong = asked(f"answer = failure({worker().saved(case)!r})")
    assert wrong == "", f"{wrong}\n{case}\n{case.text}"


def failure(path: str) -> str:
    """In the worker: what is wrong with CUDA on a saved case."""
    from support.run import failure

    return failure(load(Path(path)), "cuda")


def compared(file: str, name: str, dtypes: list[str]) -> str:
    """In the worker: what is wrong with an operator of the library at all its sizes in the first type, at the last one in the others."""
    from support.library import assert_agrees

    wrong, cases = [], operators(file)[name]
    for case in cases:
        for dtype in dtypes if case is cases[-1] else dtypes[:1]:
            try:
                with on_device():
                    assert_agrees(case, dtype, "cuda")
            except BaseException as error:
                wrong.append(f"{case} {dtype}: {type(error).__name__}: {error}")
    return "\n".join(wrong)


@functools.cache
def operators(file: str) -> dict[str, list[Operator]]:
    """The cases of a module of the library's tests, by operator."""
    found: dict[str, list[Operator]] = {}
    for listed in vars(module(f"library/{file}")).values():
        for case in listed if isinstance(listed, list) else []:
            if isinstance(case, Operator):
                found.setdefault(case.name, []).append(case)
    return found
