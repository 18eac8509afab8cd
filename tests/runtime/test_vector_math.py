"""Which vector functions a machine may call."""
from __future__ import annotations

import pytest

from tcjit.codegen.dialect import VECTOR_MATH, vector_math, vector_symbols
from tcjit.runtime import vector_math as probe


def test_symbols_follow_the_vector_function_abi() -> None:
    assert vector_symbols("x86_64", "erf") == ["_ZGVbN2v_erf", "_ZGVcN4v_erf", "_ZGVdN4v_erf", "_ZGVeN8v_erf"]
    assert vector_symbols("x86_64", "sinf")[0] == "_ZGVbN4v_sinf"
    assert vector_symbols("aarch64", "atan2f") == ["_ZGVnN4vv_atan2f"]


def test_a_function_counts_only_with_all_its_variants() -> None:
    there = {*vector_symbols("x86_64", "sinf"), *vector_symbols("x86_64", "cosf")[:3]}
    assert vector_math("x86_64", there.__contains__) == {"sinf"}
    assert vector_math("x86_64", lambda symbol: True) == VECTOR_MATH
    assert vector_math("s390x", lambda symbol: True) == frozenset()


def test_a_machine_without_the_library_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "VECTOR_LIBRARY", "libno-such-thing.so.9")
    assert probe.available({"sinf"}) == frozenset()
    assert probe.vector_math_symbols() <= VECTOR_MATH
