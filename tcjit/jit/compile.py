"""The whole way from text to a kernel's binary, for one def and one set of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcjit import config
from tcjit.errors import ArgumentError
from tcjit.grammar.ast import Def, Program
from tcjit.grammar.bind import bind
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.jit.signature import Extent, encode
from tcjit.jit.targets import CompiledProgram, Target
from tcjit.mapping import tree as trees
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Proof
from tcjit.step import Steps

RECORD_FORMAT = 1


def definition(text: str, name: str) -> Def:
    """One def of a text."""
    for one in read(text):
        if one.name == name:
            return one
    known = ", ".join(d.name for d in read(text))
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
    dynamic: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """Compile a def for a target: the launch record, the binary, and every step's text.

    ``shapes`` and ``layouts`` are those of the tensor arguments, ``scalars`` the values of the specialised scalars; ``checked`` keeps the
    run-time test of gathers; ``dynamic`` sizes may be anything between two limits, the shapes are those of the greatest. Raises the
    TCErrors of every stage; nothing of a failed compile is kept.
    """
    source_def = definition(text, name)
    steps = Steps(f"{name}-{'x'.join(str(extent) for shape in shapes.values() for extent in shape)}")
    if dynamic:
        sizes = bind(source_def.params, [shapes.get(param.name) for param in source_def.params])
        program = steps.run("specialise", generalise, source_def, sizes, scalars, dynamic)
    else:
        program = steps.run("specialise", specialise, source_def, shapes, scalars)
    asked = config.verify()
    prove: Proof = "last" if asked is None else "every" if asked else "none"
    compiled = target.compile(program, options or Options(), layouts, checked=checked, prove=prove, steps=steps)
    artifacts = dict(steps.artifacts)
    artifacts["source"] = compiled.source.text
    artifacts["tree"] = trees.show(compiled.mapped.tree)
    return record(program, compiled, target, layouts, steps), compiled.binary, artifacts


def record(program: Program, compiled: CompiledProgram, target: Target, layouts: Mapping[str, str], steps: Steps) -> dict[str, Any]:
    """The launch record: all that a later process needs to call the binary."""
    definition, source, mapped = program.definition, compiled.source, compiled.mapped
    position = {d.name: str(definition.sizes.index(d.size)) for d in program.dynamic}
    return {
        "format": RECORD_FORMAT,
        "symbol": source.symbol,
        "target": target.code,
        "returns": [{"name": n, "dtype": definition.tensor(n).dtype, "shape": list(program.shape(n))} for n in definition.returns],
        "params": [
            {
                "name": p.name,
                "dtype": p.dtype,
                "shape": list(program.shape(p.name)) if p.dims else None,
                "layout": layouts.get(p.name, "contiguous"),
            }
            for p in definition.params
        ],
        "numbers": [_number(n, position) for n in (*source.numbers, *(("value", *value) for value in source.host))],
        "host": len(source.host),
        "workspace": source.workspace,
        "sites": list(source.sites),
        "launches": [[launch.symbol, list(launch.grid), launch.threads, launch.shared_bytes] for launch in source.launches],
        "resources": {**compiled.resources, **({"reductions": list(mapped.reductions)} if mapped.reductions else {})},
        "nests": sum(len(s.tiled) for s in mapped.scop.statements),
        "total": program.total,
        "context": [[d.name for d in program.dynamic], [definition.sizes.index(d.size) for d in program.dynamic], list(program.context)],
        "verified": mapped.verified,
        "options": mapped.options.to_dict(),
        "seconds": {name: round(value, 6) for name, value in steps.seconds.items()},
    }


def _number(number: tuple[str, str, Any], position: Mapping[str, str]) -> list[Any]:
    """A number of the source for the record: expressions have sizes by position, and no name but those that the caller knows."""
    kind, name, last = number
    if kind != "value":
        return [kind, name, last]

    def renamed(extent: Extent) -> Any:
        if isinstance(extent, tuple):
            return [extent[0], *map(renamed, extent[1:])]
        return position[extent] if isinstance(extent, str) else extent

    return [kind, "" if name.startswith("tc_") else name, renamed(encode(last))]
