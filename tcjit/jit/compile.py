"""The whole way from text to a kernel's binary, for one def and one set of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tcjit import config
from tcjit.errors import ArgumentError
from tcjit.grammar.ast import Def, Program
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.jit.targets import Made, Target
from tcjit.mapping import tree as trees
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Proof
from tcjit.step import Steps

RECORD_FORMAT = 1


@lru_cache(maxsize=256)
def definitions(text: str) -> tuple[Def, ...]:
    """The checked defs of a text, kept for the shapes to come."""
    return read(text)


def definition(text: str, name: str) -> Def:
    """One def of a text."""
    for found in definitions(text):
        if found.name == name:
            return found
    known = ", ".join(d.name for d in definitions(text))
    raise ArgumentError(f"the text has no def called {name!r}", hint=f"one of {known}")


def compile_kernel(
    text: str,
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    layouts: Mapping[str, str],
    scalars: Mapping[str, int],
    *,
    target: Target,
    options: Options | None,
    checked: bool,
) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """Compile a def for a target: the launch record, the binary, and every step's text.

    ``shapes`` and ``layouts`` are those of the tensor arguments, ``scalars`` the values of the specialised scalars; ``checked`` keeps the
    run-time test of gathers. Raises the TCErrors of every stage; nothing of a failed compile is kept.
    """
    found = definition(text, name)
    steps = Steps(f"{name}-{'x'.join(str(extent) for shape in shapes.values() for extent in shape)}")
    program = steps.run("specialise", specialise, found, shapes, scalars)
    asked = config.verify()
    prove: Proof = "last" if asked is None else "every" if asked else "none"
    made = target.compile(program, options or Options(), layouts, checked=checked, prove=prove, steps=steps)
    artifacts = dict(steps.artifacts)
    artifacts["source"] = made.source.text
    artifacts["tree"] = trees.show(made.mapped.tree)
    return record(program, made, target, layouts, steps), made.binary, artifacts


def record(program: Program, made: Made, target: Target, layouts: Mapping[str, str], steps: Steps) -> dict[str, Any]:
    """The launch record: all that a later process needs to call the binary."""
    found, source, mapped = program.definition, made.source, made.mapped
    return {
        "format": RECORD_FORMAT,
        "symbol": source.symbol,
        "target": target.code,
        "returns": [{"name": n, "dtype": found.tensor(n).dtype, "shape": list(program.shape(n))} for n in found.returns],
        "params": [
            {
                "name": p.name,
                "dtype": p.dtype,
                "shape": list(program.shape(p.name)) if p.dims else None,
                "layout": layouts.get(p.name, "contiguous"),
            }
            for p in found.params
        ],
        "numbers": [list(n) for n in source.numbers],
        "workspace": source.workspace,
        "sites": list(source.sites),
        "launches": [[launch.symbol, list(launch.grid), launch.threads, launch.shared_bytes] for launch in source.launches],
        "resources": dict(made.resources),
        "verified": mapped.verified,
        "options": mapped.options.to_dict(),
        "seconds": {name: round(value, 6) for name, value in steps.seconds.items()},
    }
