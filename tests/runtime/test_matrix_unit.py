"""Whether this process may use the processor's matrix unit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tcjit.jit.targets import cpu
from tcjit.runtime import host, matrix_unit

ABLE = {"amx_tile", "amx_bf16", "amx_int8", "avx512f", "avx512_bf16"}


class System:
    """A C library whose one system call answers the same every time."""

    def __init__(self, answer: int) -> None:
        self.answer, self.asked = answer, list[list[int]]()

    def syscall(self, *numbers: ctypes.c_long) -> int:
        self.asked.append([number.value for number in numbers])
        return self.answer


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(matrix_unit.sys, "platform", "linux")
    monkeypatch.setattr(matrix_unit.os, "uname", lambda: type("Names", (), {"machine": "x86_64"}))
    matrix_unit.matrix_types.cache_clear()
    yield
    matrix_unit.matrix_types.cache_clear()


@pytest.mark.parametrize(
    ("features", "answer", "expected"),
    [(ABLE, 0, {"bfloat16", "int8"}), (ABLE, -1, set()), (ABLE - {"amx_int8"}, 0, set()), ({"avx512f"}, 0, set())],
)
def test_it_needs_the_processor_and_the_system(
    features: set[str], answer: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(answer)
    monkeypatch.setattr(host, "cpu_features", lambda: features)
    monkeypatch.setattr(matrix_unit.ctypes, "CDLL", lambda *_, **__: system)
    assert matrix_unit.matrix_types() == matrix_unit.matrix_types() == expected
    assert system.asked == ([[158, 0x1023, 18]] if features == ABLE else []), "once, for the registers of tiles"


def test_kernels_that_use_it_are_for_processes_that_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one process has cached is none of another's that the system refuses."""
    names = []
    for types in (frozenset[str](), frozenset({"bfloat16", "int8"})):
        monkeypatch.setattr(cpu, "matrix_types", lambda types=types: types)
        names.append(cpu.Cpu().identity())
        assert names[-1] in cpu.identities()
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("version", "known"),
    [("gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)", True), ("gcc version 11.1.0", True), ("gcc version 10.2.1", False), ("cc", False)],
)
def test_compilers_that_do_not_know_it_get_no_text_for_it(version: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would compile the loops that stand in its place."""
    types = frozenset({"bfloat16", "int8"})
    monkeypatch.setattr(cpu, "matrix_types", lambda: types)
    monkeypatch.setattr(host, "cpu_features", lambda: ABLE)
    tool = replace(host.compiler(), version=version, flags=("-march=native", "-mprefer-vector-width=512"))
    assert cpu.machine_of(tool).matrix_types == (types if known else frozenset())
