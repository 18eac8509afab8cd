"""The whole way from text to a kernel's binary, for one def and one set of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tcjit import config
from tcjit.codegen.c import emit
from tcjit.codegen.dialect import C
from tcjit.codegen.source import Source
from tcjit.errors import ArgumentError
from tcjit.grammar.ast import Def, Program
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping import tree as trees
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, Proof, map_program
from tcjit.runtime import host
from tcjit.runtime.vector_math import vector_math_symbols
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
    target: str,
    options: Options | None,
    checked: bool,
    memory: host.Memory | None = None,
) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """Compile a def for the CPU: the launch record, the shared object's bytes, and every step's text.

    ``shapes`` and ``layouts`` are those of the tensor arguments, ``scalars`` the values of the specialised scalars; ``checked`` keeps the
    run-time test of gathers. Raises the TCErrors of every stage; nothing of a failed compile is kept.
    """
    if target != "cpu":
        raise ArgumentError(f"target {target!r} cannot be compiled here", hint='target="cpu" or target="reference"')
    chosen = options or Options()
    found = definition(text, name)
    steps = Steps(f"{name}-{'x'.join(str(extent) for shape in shapes.values() for extent in shape)}")
    program = steps.run("specialise", specialise, found, shapes, scalars)
    tool = host.compiler(memory)
    machine = machine_of(tool)
    dialect = replace(C, vector_math=vector_math_symbols())
    asked = config.verify()
    prove: Proof = "last" if asked is None else "every" if asked else "none"
    mapped = map_program(program, chosen, machine, layouts, prove=prove, steps=steps)
    source = steps.run("code", lambda: emit(mapped, dialect, machine, checked=checked), show=lambda s: s.text, file="kernel.c")
    library = steps.run("compile", lambda: host.build(source.text, source.symbol, memory=memory))
    artifacts = dict(steps.artifacts)
    artifacts["source"] = source.text
    artifacts["tree"] = trees.show(mapped.tree)
    return record(program, mapped, source, layouts, steps), library, artifacts


def record(program: Program, mapped: Mapped, source: Source, layouts: Mapping[str, str], steps: Steps) -> dict[str, Any]:
    """The launch record: all that a later process needs to call the binary."""
    found = program.definition
    return {
        "format": RECORD_FORMAT,
        "symbol": source.symbol,
        "target": "cpu",
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
        "verified": mapped.verified,
        "options": mapped.options.to_dict(),
        "seconds": {name: round(value, 6) for name, value in steps.seconds.items()},
    }


def machine_of(tool: host.Compiler) -> Machine:
    """The vector unit that the compiler's flags make use of."""
    if "-mprefer-vector-width=512" in tool.flags:
        return Machine(vector_bytes=64, vector_registers=32)
    if tool.target.startswith("aarch64") or tool.target.startswith("arm64"):
        return Machine(vector_bytes=16, vector_registers=32)
    return Machine(vector_bytes=32 if "-march=native" in tool.flags else 16, vector_registers=16)
