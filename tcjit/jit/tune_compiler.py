"""The side of a search that may crash: makes candidates of a def, in a process of its own (``tuner.worker``); ``runs`` runs them.

A problem is a def at one set of shapes; a search has one or several, and a candidate is the same options for all of them.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit.codegen.code_features import features
from tcjit.codegen.source import Source
from tcjit.grammar.ast import Program
from tcjit.grammar.infer import specialise
from tcjit.jit import targets
from tcjit.jit.compile import definition, record
from tcjit.jit.signature import Signature, of
from tcjit.jit.targets import Made, Target
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped
from tcjit.step import Steps

if TYPE_CHECKING:
    import torch

    from tcjit.jit.tolerance import Expected

KEPT = 64  # printed candidates that wait to be built


@dataclass
class Problem:
    """A def at one set of shapes, and, where candidates run, what they run on and what must come out of it."""

    facts: Mapping[str, Any]
    target: Target
    signature: Signature
    program: Program
    layouts: dict[str, str]
    inputs: list[torch.Tensor] = field(default_factory=list)
    outs: list[torch.Tensor] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)


@dataclass
class Session:
    """What a process works on; ``folder`` holds the binaries, for all processes of a search."""

    folder: Path
    problems: list[Problem]
    printed: dict[str, list[tuple[Mapped, Source]]] = field(default_factory=dict)


_session: Session | None = None


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Open the problems; print and build a candidate; load what runs them, get ready to run and to check; time one, or several in turns."""
    global _session
    do = request["do"]
    if do == "open":
        _session = Session(Path(request["folder"]), [_problem(facts) for facts in request["problems"]])
        return {}
    assert _session is not None
    if do == "seeds":
        return {"options": [seed.to_dict() for problem in _session.problems for seed in _seeds(problem)]}
    if do == "print":
        return _print(_session, Options.from_dict(request["options"]))
    if do == "build":
        for number, (problem, (mapped, source)) in enumerate(zip(_session.problems, _session.printed[request["code"]])):
            keep(_session, request["code"], number, problem, mapped, source)
        return {}
    from tcjit.jit import tune_runner  # imports torch, which making candidates does without

    if do == "load":
        return {}
    if do == "ready":
        tune_runner.ready(_session, int(request["threads"]))
        return {}
    if do == "expect":
        tune_runner.expect(_session)
        return {}
    if do == "time":
        return {"seconds": tune_runner.timed(_session, request["code"], request["best"])}
    return {"seconds": tune_runner.final(_session, request["codes"], int(request["rounds"]))}


def _problem(facts: Mapping[str, Any]) -> Problem:
    found = definition(facts["text"], facts["name"])
    names = [p.name for p in found.params if p.dims]
    program = specialise(found, {n: tuple(shape) for n, shape in zip(names, facts["shapes"])}, facts["scalars"])
    target = targets.find(facts["target"], facts["place"])
    return Problem(facts, target, of(found), program, dict(zip(names, facts["layouts"])))


def _seeds(problem: Problem) -> list[Options]:
    return problem.target.seeds(problem.program, problem.layouts, problem.signature.traits)


def _print(session: Session, options: Options) -> dict[str, Any]:
    made = [emitted(problem, options) for problem in session.problems]
    texts = "\0".join(source.text for _, source in made)
    code = hashlib.sha256(texts.encode()).hexdigest()[:32]
    session.printed[code] = made
    while len(session.printed) > KEPT:
        session.printed.pop(next(iter(session.printed)))
    return {"code": code, "features": _mean([features(source) for _, source in made])}


def _mean(features: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several problems the mean of each number."""
    return {name: sum(each[name] for each in features) / len(features) for name in features[0]}


def emitted(problem: Problem, options: Options) -> tuple[Mapped, Source]:
    """The code of a candidate for a problem."""
    signature, target = problem.signature, problem.target
    options = options.normalised(target.heeds, signature.traits, signature.loops)
    # not proved here: the winner is, when it is compiled to be used
    return target.emit(
        problem.program, options, problem.layouts, checked=bool(problem.facts["checked"]), prove="none", steps=Steps(signature.name)
    )


def keep(session: Session, code: str, number: int, problem: Problem, mapped: Mapped, source: Source) -> None:
    """Compile, and leave binary and launch record where the process that runs candidates finds them."""
    binary, resources = problem.target.build(source, problem.program)
    made = Made(mapped, source, binary, resources)
    facts = record(problem.program, made, problem.target, problem.layouts, Steps(problem.signature.name))
    (session.folder / f"{code}.{number}.so").write_bytes(binary)
    (session.folder / f"{code}.{number}.json").write_text(json.dumps(facts), encoding="utf-8")
