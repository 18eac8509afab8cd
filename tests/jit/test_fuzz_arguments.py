"""A sample of tests/fuzz_arguments.py, and what the decorator for public functions says.

Modules: checked
"""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fuzz_arguments import calls
from support.calls import assert_refused

import tcjit
from tcjit import library
from tcjit.checked import brief, checked


def test_garbage_is_refused_by_errors_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    found = list(calls(400, 20261122, tmp_path))
    assert len(found) == 400 and [(name, repr(error)) for name, error in found if error is not None] == []
    assert len({name for name, _ in found}) > 40


def test_what_is_said() -> None:
    assert_refused(lambda: library.get(3), tcjit.ArgumentError, "get(): name must be a str, not an int: 3")
    assert_refused(lambda: library.get(Path("x")), tcjit.ArgumentError, "get(): name must be a str, not a PosixPath")
    assert_refused(lambda: library.source("softmax", dtyp="x"), tcjit.ArgumentError, "got an unexpected keyword argument 'dtyp'")
    assert_refused(lambda: tcjit.Options(nonsense=1), tcjit.ArgumentError, "Options() got an unexpected keyword argument 'nonsense'")
    assert_refused(lambda: tcjit.Options.from_dict({1: 2}), tcjit.MappingError, "unknown option 1")
    assert_refused(lambda: tcjit.Options(vector_width=10**5000), tcjit.MappingError, "option vector_width = an int is not 0, 1, 2")
    assert_refused(lambda: tcjit.TunerConfig(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), tcjit.ArgumentError, "TunerConfig()")
    assert_refused(lambda: tcjit.load(None), tcjit.ArgumentError, "load(): file must be a str or a PathLike, not None")
    assert_refused(lambda: tcjit.cache.import_("a\0b"), tcjit.ArgumentError, "file must be")
    assert_refused(lambda: tcjit.cache.gc(10**5000), tcjit.ArgumentError, "gc(): days must be a float, not an int: an int")
    assert_refused(lambda: tcjit.cache.gc(tools={"cpu": torch.ones(2)}), tcjit.ArgumentError, "gc(): tools must map targets to identities")
    traits = torch.tensor(2)
    assert_refused(lambda: tcjit.Options().normalised("cpu", traits, 2), tcjit.ArgumentError, "traits must be a tuple, a list, a set")
    text = "def f(float(N) X, int64 s) -> (Y) { Y(i) = X(i) }"
    assert_refused(lambda: tcjit.define(text).f(torch.ones(2), 10**5000), tcjit.ArgumentError, "cannot be an int: int64 does not hold it")


def test_messages_stay_short() -> None:
    assert brief("a" * 1000) == "'" + "a" * 76 + "..." and brief(torch.ones(2)) == "tensor([1., 1.])"
    assert brief(10**5000) == "an int"


def test_the_decorator_keeps_the_signature() -> None:
    @checked(x=(int, None), rest=str)
    def f(x: int | None, *rest: str) -> tuple[object, ...]:
        """Doc."""
        return (x, *rest)

    assert f.__doc__ == "Doc." and f(None, "a") == (None, "a") and f(3) == (3,)
    assert_refused(lambda: f(True), tcjit.ArgumentError, "x must be an int or None, not a bool: True")
    assert_refused(lambda: f(1, "a", 2), tcjit.ArgumentError, "rest must be a str, not an int: 2")  # type: ignore[arg-type]
