"""The compiler's middle as one page: from a program to a mapped, verified schedule tree for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.ast import Program
from tcjit.mapping import tree as trees
from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import BASELINE, Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.contract import contract
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.passes.parallelise import parallelise
from tcjit.mapping.passes.tile import tile
from tcjit.mapping.passes.vectorise import vectorise
from tcjit.mapping.plan import plan
from tcjit.mapping.schedule import schedule
from tcjit.mapping.scop import Scop, build
from tcjit.mapping.storage import Buffer
from tcjit.mapping.verify import verify, verify_privates
from tcjit.step import Steps

Proof = Literal["every", "last", "none"]  # verify each pass's tree, the final one, or nothing


@dataclass(frozen=True)
class Launch:
    """One kernel on a GPU: what stands below ``mark``, on blocks of ``threads``."""

    mark: str
    threads: int


@dataclass(frozen=True)
class Mapped:
    """A program mapped to a target: its statements, the tree that orders them, the small buffers, and the launches of a GPU."""

    scop: Scop
    tree: isl.Schedule
    privates: tuple[Buffer, ...]
    options: Options
    verified: bool
    launches: tuple[Launch, ...] = ()


def map_program(
    program: Program,
    options: Options,
    machine: Machine = BASELINE,
    layouts: Mapping[str, str] | None = None,
    *,
    prove: Proof = "every",
    steps: Steps | None = None,
) -> Mapped:
    """Map a program to a multicore CPU. ``prove`` says which trees are verified; a VerifyError is a bug in tcjit, never the user's."""
    try:
        return _mapped(program, options, machine, layouts, prove, steps or Steps(program.definition.name))
    except isl.Error as error:
        raise MappingError(f"the compile budget does not suffice: {error}", hint="split the def into several smaller ones") from None


def _mapped(
    program: Program, options: Options, machine: Machine, layouts: Mapping[str, str] | None, prove: Proof, steps: Steps
) -> Mapped:
    scop = steps.run("scop", build, program, options, layouts, show=Scop.show, suffix="scop")
    if not scop.statements:
        return Mapped(scop, isl.Schedule.empty(isl.Space.params_alloc(scop.ctx, 0)), (), options, True)
    deps = steps.run("dependences", dependences, scop, show=lambda d: f"{d.all}\n", suffix="txt")

    proof = partial(verify, scop, deps)

    def step(name: str, function: Callable[..., isl.Schedule], *args: object) -> isl.Schedule:
        return steps.run(name, function, *args, show=trees.show, suffix="tree", check=proof if prove == "every" else None)

    made = step("schedule", schedule, scop, deps)
    made = step("fuse", fuse, scop, deps, made, options)
    groups = groups_of(scop, made)
    privates: tuple[Buffer, ...] = ()
    if groups is not None:
        plans = [plan(scop, group, options, machine) for group in groups]
        made = step("tile", tile, scop, made, groups, plans)
        made = step("vectorise", vectorise, scop, made, groups, plans)
        made = step("parallelise", parallelise, scop, made, options)
        if options.contract:
            proof_of_privates = None if prove == "none" else partial(verify_privates, scop, deps, made)
            privates = steps.run("contract", contract, scop, deps, made, show=_show_privates, check=proof_of_privates)
    if prove == "last":
        steps.run("verify", proof, made)
    return Mapped(scop, made, privates, options, prove != "none")


def _show_privates(privates: tuple[Buffer, ...]) -> str:
    return "".join(f"{b.tensor} below {b.mark}, {b.space}: {b.elements} elements\n" for b in privates)
