"""Candidates of a search compiled: printed, built, and left in a folder with their launch records.

A problem is a def at one set of shapes; a search has one or several, and a candidate is the same options for all of them.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit.codegen.source import Source
from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Program
from tcjit.jit.compile import record
from tcjit.jit.signature import Signature
from tcjit.jit.targets import CompiledProgram, Target
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped
from tcjit.step import Steps

if TYPE_CHECKING:
    import torch

    from tcjit.jit.tolerance import Expected


@dataclass
class Problem:
    """A def at one set of shapes; in the process that runs candidates also inputs, outputs and expected results."""

    facts: Mapping[str, Any]
    target: Target
    signature: Signature
    program: Program
    layouts: dict[str, str]
    inputs: list[torch.Tensor] = field(default_factory=list)
    outs: list[torch.Tensor] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)

    def seeds(self) -> list[Options]:
        """Where the search may begin, beside the untuned default."""
        return self.target.seeds(self.program, self.layouts, self.signature.traits)


@dataclass
class Session:
    """The problems of a worker process; ``folder`` holds the binaries for all processes of a search."""

    folder: Path
    problems: list[Problem]
    printed: dict[str, list[tuple[Mapped, Source]]] = field(default_factory=dict)


def emit_candidate(problem: Problem, options: Options) -> tuple[Mapped, Source]:
    """The code of a candidate for a problem."""
    signature, target = problem.signature, problem.target
    options = options.normalised(target.option_kind, signature.traits, signature.loops)
    # not proved here: the winner is, when it is compiled to be used
    return target.emit(
        problem.program, options, problem.layouts, checked=bool(problem.facts["checked"]), prove="none", steps=Steps(signature.name)
    )


def store_candidate(session: Session, code: str, number: int, problem: Problem, mapped: Mapped, source: Source) -> None:
    """Compile, and leave binary and launch record where the process that runs candidates finds them."""
    binary, resources = problem.target.build(source, problem.program)
    compiled = CompiledProgram(mapped, source, binary, resources)
    facts = record(problem.program, compiled, problem.target, problem.layouts, Steps(problem.signature.name))
    (session.folder / f"{code}.{number}.so").write_bytes(binary)
    (session.folder / f"{code}.{number}.json").write_text(json.dumps(facts), encoding="utf-8")
