"""Runs, checks and times candidates of a search, in a process that may crash.

Results are compared with those of the kernel as it was written, without any scheduling.
"""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tcjit.errors import TCError
from tcjit.grammar.ast import Program
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import example_inputs, targets
from tcjit.jit.launch import runtime_numbers
from tcjit.jit.launch_record import failure
from tcjit.jit.tolerance import Expected
from tcjit.jit.tune_compiler import Problem, Session, emit_candidate, store_candidate
from tcjit.mapping.options import Options
from tcjit.runtime import tensors, timing

MAX_READINGS = 12  # of a candidate at most
MAX_SECONDS = 0.04  # seconds of running after which a candidate is known well enough
MIN_READING, MIN_FINAL_READING = 2e-4, 2e-3  # seconds that one reading of the clock should cover, and one that decides
SLOW_RATIO = 1.5  # a candidate whose first runs take so many times the best's is timed no further
REJECT_RATIO = 10.0  # and not even run again where its first run takes so many times that, and what a first run may be late by
# allowed difference between orders of summation, in ulps of the largest result: a constant, and a factor of the root of the terms
TOLERANCE_ULPS, TOLERANCE_GROWTH = 32.0, 4.0

Run = Callable[[], None]


class WrongResult(TCError):
    """A candidate computed something else than the unscheduled kernel."""


def ready(session: Session, threads: int) -> None:
    """Make the arguments."""
    torch.set_num_threads(threads)
    for problem in session.problems:
        _fill(problem)


def expect(session: Session) -> None:
    """Make the results of the kernel as it was written, without any scheduling; a candidate may be as far from them as orders of
    summation are from one another."""
    for problem in session.problems:
        wanted = [out.clone() for out in _results(session, problem, Options.preset("naive"), "naive")]
        for output, tensor, got in zip(problem.signature.returns, wanted, _results(session, problem, Options(), "default")):
            scale = 0.0
            if DTYPES[output.dtype].kind == "float":
                ulps = TOLERANCE_ULPS + TOLERANCE_GROWTH * math.sqrt(_terms(problem.program))
                scale = torch.finfo(tensors.TORCH[output.dtype]).eps * ulps
            expected = Expected.of(output.name, tensor)
            off = expected.distance(got)
            if off > 100 * scale:
                raise WrongResult(f"{output.name}: the untuned kernel differs from the unscheduled one")
            # two proved kernels may differ by more where results cancel out
            problem.expected.append(replace(expected, allowed=max(scale, 4 * off) if scale else 0.0))


def _fill(problem: Problem) -> None:
    """Arguments: floats from a seed, integers as the user gave them; outputs."""
    definition, facts, device = problem.program.definition, problem.facts, problem.target.device
    shapes = {p.name: tuple(shape) for p, shape in zip((p for p in definition.params if p.dims), facts["shapes"])}
    drawn = example_inputs.arguments(definition, shapes, facts["values"], int(facts["seed"]), device)
    integers = np.load(facts["given"], allow_pickle=False) if facts["given"] else {}
    for param, tensor in zip(definition.params, drawn):
        if not param.dims:
            continue
        assert isinstance(tensor, torch.Tensor)
        if param.name in integers:
            tensor = tensors.from_numpy(integers[param.name], param.dtype).to(device)
        strides = facts["strides"][len(problem.inputs)]
        problem.inputs.append(_strided(tensor, strides))
    problem.outs = [
        torch.ones(problem.program.shape(r.name), dtype=tensors.TORCH[r.dtype], device=device) for r in problem.signature.returns
    ]


def _strided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The same values (where elements share memory, the last of them) under these strides."""
    if tuple(strides) == tensor.stride():
        return tensor
    held = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device)
    if 0 in strides:
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        held[first].copy_(tensor[first])
    else:
        held.copy_(tensor)
    return held


def _terms(program: Program) -> int:
    """Of the statement that sums up the most, how many terms a result has at most."""
    most = 1
    for statement, domain in zip(program.definition.statements, program.domains):
        extents = {r.index: upper - lower for r, (lower, upper) in zip(statement.domain, domain)}
        most = max(most, math.prod(extents[index] for index in statement.reduction))
    return most


def _results(session: Session, problem: Problem, options: Options, name: str) -> list[torch.Tensor]:
    number = session.problems.index(problem)
    mapped, source = emit_candidate(problem, options)
    store_candidate(session, name, number, problem, mapped, source)
    _once(_runner(session, name, number), problem)
    return problem.outs


def _runner(session: Session, code: str, number: int) -> Run:
    """What runs a candidate on one problem, out of the folder."""
    problem = session.problems[number]
    facts = json.loads((session.folder / f"{code}.{number}.json").read_text(encoding="utf-8"))
    launch = problem.target.load(facts, session.folder / f"{code}.{number}.so")
    numbers = runtime_numbers(problem.signature, facts, problem.inputs, problem.facts["values"])
    call = problem.target.repeated(launch, problem.outs, problem.inputs, numbers)

    def run() -> None:
        flag = call()
        if flag:
            raise failure(facts, flag)

    return run


def _once(run: Run, problem: Problem) -> float:
    """Seconds of one run on outputs of ones."""
    for out in problem.outs:
        out.fill_(1)
    targets.synchronize()
    return timing.reading(run, wait=targets.synchronize)


def timed(session: Session, code: str, best: float | None) -> float:
    """Check a candidate's results and time it; of several problems the geometric mean."""
    runs = [_runner(session, code, number) for number in range(len(session.problems))]
    cold = []
    for run, problem in zip(runs, session.problems):
        cold.append(_once(run, problem))
        _check(problem)
    warm = [once - problem.target.first_launch_slack for once, problem in zip(cold, session.problems)]
    if best is not None and timing.geometric_mean(warm) > REJECT_RATIO * best:
        return timing.geometric_mean(cold)
    first = [min(once, _reading(run, once)) for run, once in zip(runs, cold)]
    if best is not None and timing.geometric_mean(first) > SLOW_RATIO * best:
        return timing.geometric_mean(first)
    times = []
    for run, early in zip(runs, first):
        times.append(min(early, *timing.sampled(partial(_reading, run, early), 3, MAX_READINGS - 1, MAX_SECONDS)))
    return timing.geometric_mean(times)


def _reading(run: Run, estimate: float, least: float = MIN_READING) -> float:
    """Seconds of a run, out of as many as cover ``least`` seconds."""
    return timing.reading(run, timing.calls_for(least, estimate), targets.synchronize)


def final(session: Session, codes: Sequence[str], rounds: int) -> list[list[float]]:
    """Seconds of several candidates by round, interleaved; of several problems the geometric mean."""
    runs = [[_runner(session, code, number) for number in range(len(session.problems))] for code in codes]
    estimates = [[_reading(run, _once(run, problem)) for run, problem in zip(by_problem, session.problems)] for by_problem in runs]

    def read(number: int) -> float:
        problems = zip(runs[number], estimates[number])
        return timing.geometric_mean([min(_reading(run, estimate, MIN_FINAL_READING) for _ in range(2)) for run, estimate in problems])

    return list(timing.interleaved({number: partial(read, number) for number in range(len(runs))}, rounds, timing.alternating).values())


def _check(problem: Problem) -> None:
    targets.synchronize()
    for expected, out in zip(problem.expected, problem.outs):
        distance = expected.distance(out)
        if not distance <= expected.allowed:
            raise WrongResult(f"{expected.name} is off by {distance:.3g} of its largest element, {expected.allowed:.3g} is allowed")
