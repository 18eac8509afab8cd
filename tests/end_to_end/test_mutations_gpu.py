"""Faults in GPU mappings and kernels are seen by the proofs, by the ring on the host or by oclgrind.

Here a sample of every kind of fault; ``python tests/mutations.py`` makes all there are and prints who sees which.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from support.fuzz.faults import Mutant, judged, of_mapping, right
from support.fuzz.text_faults import SWAPPED, of_text
from support.rings.cuda_host import COMPILER
from support.rings.opencl import require
from support.subjects import arguments

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(COMPILER is None, reason="needs g++")]

SEED = 3
HOST = ("tiles", "stages", "sums", "totals", "columns", "product of halves", "rows of a product")
GRIND = ("tiles", "stages", "sums", "columns")
# kinds of faults that the proofs answer for, whatever a ring sees
PROVED = """added statement one short; barrier removed; barrier of a warp only; buffer one element short; copy reads one further
copy writes one further; guard dropped; radices of threads swapped; radix of threads halved; rows of a buffer overlap; statements swapped
buffer with fewer slots along an axis; a shared buffer in registers; threads that do not combine; wait for one step less; wait removed"""
PRINTED = """array of half the size; barrier removed; copy shifted; digit of a thread's number; distance of a tree changed; guard dropped
level of a tree dropped; levels of a tree swapped; tree's place shifted; wait removed"""


def kinds(listed: str) -> list[str]:
    return listed.replace("\n", "; ").split("; ")


@cache
def mutants(language: str, text: bool) -> Sequence[Mutant]:
    names = HOST if language == "cuda" else GRIND
    return [m for name in names for m in (of_text if text else of_mapping)(name, language) if not m.idle]


def drawn(language: str, fault: str, text: bool, count: int) -> list[Mutant]:
    every = [m for m in mutants(language, text) if m.fault == fault]
    return random.Random(f"{SEED} {language} {fault}").sample(every, min(count, len(every)))


@pytest.mark.parametrize("fault", kinds(PROVED))
def test_the_proofs_see_faults_of_a_mapping(fault: str) -> None:
    chosen = drawn("cuda", fault, text=False, count=1)
    assert chosen
    for mutant in chosen:
        found = judged(mutant, proofs_first=True)
        # the zeros beside a matrix, which only whole instructions of tensor cores read, no proof knows of: the host sees that they lack
        assert found.proof or (mutant.where.startswith("Z") and found.refused), f"{mutant.subject}: {mutant.where}: {found}"


@pytest.mark.parametrize("fault", kinds(PRINTED))
def test_the_host_sees_faults_of_a_text(fault: str) -> None:
    chosen = drawn("cuda", f"text: {fault}", text=True, count=2)
    if fault == "levels of a tree swapped":
        chosen = [m for m in of_text("sums", "cuda") if m.idle == SWAPPED]
    assert chosen
    for mutant in chosen:
        assert judged(mutant).caught, f"{mutant.subject}: {mutant.where}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", kinds(PRINTED))
def test_oclgrind_sees_faults_of_a_text(fault: str) -> None:
    require("oclgrind")
    chosen = drawn("opencl", f"text: {fault}", text=True, count=1)
    assert chosen or fault == "wait removed"  # OpenCL has no copies that arrive later
    for mutant in chosen:
        assert judged(mutant).caught, f"{mutant.subject}: {mutant.where}"


def test_every_kind_of_fault_is_drawn_from() -> None:
    assert {m.fault for m in mutants("cuda", False)} <= {*kinds(PROVED), "guard of a short chunk dropped"}
    assert {m.fault.removeprefix("text: ") for m in mutants("cuda", True)} <= set(kinds(PRINTED))


# ---------------------------------------------------------------- what a tree of a reduction is


def combined(parts: np.ndarray[tuple[int, int], np.dtype[np.float32]], runs: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The sums of rows of partial results: runs of so many neighbours, by halves of the distance, then runs of their sums."""
    for run in runs:
        lanes = parts.reshape(len(parts), -1, run)
        while run > 1:
            run //= 2
            lanes = lanes[..., :run] + lanes[..., run : 2 * run]
        parts = lanes[..., 0]
    return parts[:, 0]


def partials(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], threads: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """What the threads of a row add up, each in the order of its elements: four neighbours, then the four a round further."""
    found = np.zeros((len(rows), threads), np.float32)
    for place in range(rows.shape[1]):
        found[:, place // 4 % threads] += rows[:, place]
    return found


@pytest.mark.parametrize(("language", "runs"), [("cuda", (32, 4)), ("opencl", (128,))])
def test_a_tree_adds_in_its_fixed_order(language: str, runs: Sequence[int]) -> None:
    """Bit by bit: with shuffles warp by warp, without them across all threads at once. Two levels swapped would round otherwise."""
    require("oclgrind")
    (rows,) = arguments("sums").inputs
    want = combined(partials(rows, 128), runs)
    assert right("sums", language)[2][0].tobytes() == want.tobytes()
    swapped = combined(partials(rows, 128)[:, np.arange(128) ^ ((np.arange(128) // 16 ^ np.arange(128) // 8) % 2 * 24)], runs)
    assert swapped.tobytes() != want.tobytes()
