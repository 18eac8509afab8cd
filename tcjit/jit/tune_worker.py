"""What a worker process of a search answers (``tuner.worker``): it compiles candidates of a def, or runs, checks and times them."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tcjit.codegen.profile import features
from tcjit.grammar.infer import specialise
from tcjit.jit import targets
from tcjit.jit.compile import definition
from tcjit.jit.signature import of
from tcjit.jit.tune_compiler import Problem, Session, emit_candidate, store_candidate
from tcjit.mapping.options import Options

MAX_PRINTED = 64  # printed candidates that wait to be built
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
        return {"options": [seed.to_dict() for problem in _session.problems for seed in problem.seeds()]}
    if do == "print":
        return _print(_session, Options.from_dict(request["options"]))
    if do == "build":
        for number, (problem, (mapped, source)) in enumerate(zip(_session.problems, _session.printed[request["code"]])):
            store_candidate(_session, request["code"], number, problem, mapped, source)
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
    source_def = definition(facts["text"], facts["name"])
    names = [p.name for p in source_def.params if p.dims]
    program = specialise(source_def, {n: tuple(shape) for n, shape in zip(names, facts["shapes"])}, facts["scalars"])
    target = targets.find(facts["target"], facts["device"])
    return Problem(facts, target, of(source_def), program, dict(zip(names, facts["layouts"])))


def _print(session: Session, options: Options) -> dict[str, Any]:
    printed = [emit_candidate(problem, options) for problem in session.problems]
    texts = "\0".join(source.text for _, source in printed)
    code = hashlib.sha256(texts.encode()).hexdigest()[:32]
    session.printed[code] = printed
    while len(session.printed) > MAX_PRINTED:
        session.printed.pop(next(iter(session.printed)))
    return {"code": code, "features": _mean([features(source) for _, source in printed])}


def _mean(features: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several problems the mean of each number."""
    return {name: sum(one[name] for one in features) / len(features) for name in features[0]}
