"""Tile reductions: give those that a nest computes best their tiled statements, and say of the others why they have none.

A nest takes what keeps registers busy: reductions whose operands are used again, windows, and what conditions cut out of its box. What
reads every element once is bound by memory either way, and shares its loops with the statements around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from tcjit.errors import MappingError
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.isl import context
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.affine_statement import affine_statement, with_epilogue
from tcjit.mapping.nest.convert_operands import convert_operands
from tcjit.mapping.nest.cost import Core, core_of
from tcjit.mapping.nest.epilogue import Epilogue, epilogue_of
from tcjit.mapping.nest.merge_dims import drop_unit_dims, merge, mergeable
from tcjit.mapping.nest.plan_nest import Plan, plan_nest
from tcjit.mapping.nest.restrict import restrict, verify_restrict
from tcjit.mapping.nest.shift_dims import shift_dims
from tcjit.mapping.nest.split_residues import covers_results, split_residues, verify_split_residues
from tcjit.mapping.nest.stage_operands import stage_operands
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.strip_mine import Strip
from tcjit.mapping.nest.tile import tile, verify_tiles
from tcjit.mapping.nest.tiled_statement import TiledStatement
from tcjit.mapping.nest.vector_forms import has_vector_form
from tcjit.mapping.options import Options
from tcjit.mapping.reduction import identity
from tcjit.mapping.storage import Storage

ELEMENT_BYTES = {"float32": 4, "float64": 8}
OPERATORS = ("+=", "*=", "min=", "max=")


def tile_reductions(before: Assignments, options: Options, machine: Machine, prove: bool) -> Assignments:
    """The program with the nests of its reductions, whose exact rewrites and tiles are proved where ``prove`` says so."""
    number, fused = -1, 0  # of the assignment at hand; how many from it on are part of the nest before
    program = before.assignments

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        nonlocal number, fused
        number = program.index(a, number + 1)  # ``rewrite`` passes over what has its form
        if fused:
            fused -= 1
            return [replace(a, fused=True)]
        temporary = temporaries.tensors[a.tensor].role == "temporary"
        for epilogue in (epilogue_of(a, program[number + 1 :], program[:number], temporary), Epilogue()):
            try:
                found = _ReductionTiling(f"T{number}", a, epilogue, before, options, machine, prove).tiled(temporaries)
            except MappingError as error:
                reason = error.what
            else:
                fused = len(epilogue.assignments)
                return found
        return [replace(a, untiled=reason)]

    return rewrite(before, visit)


@dataclass(frozen=True)
class _ReductionTiling:
    """One assignment on its way to tiled statements; a MappingError says why there are none."""

    name: str
    a: Assignment
    epilogue: Epilogue
    program: Assignments
    options: Options
    machine: Machine
    prove: bool

    def tiled(self, temporaries: Temporaries) -> list[Assignment]:
        """The assignment with its nests, behind copies of operands that the plan wants in another order."""
        self.refuse_others(temporaries.tensors)
        converted, given = convert_operands(self.a, temporaries)
        statements, complete = self.statements(given, self.epilogue, temporaries.tensors)
        plans = [plan_nest(s, self.core, register_tile=self.options.register_tile) for s in statements]
        a, epilogue, copies = given, self.epilogue, list[Assignment]()
        if self.options.pack:
            copies, a, strips = stage_operands(given, plans[0], self.core.lanes, temporaries)
            epilogue = replace(epilogue, assignments=tuple(_stripped(e, strips) for e in epilogue.assignments))
        if copies:
            leaf = plans[0].nest.leaf if strips else None
            statements, complete = self.statements(a, epilogue, temporaries.tensors)
            plans = [plan_nest(s, self.core, leaf, self.options.register_tile) for s in statements]
        self.refuse_plans(plans)
        tiled = []
        for s, plan in zip(statements, plans, strict=True):
            tiles = tile(s, plan.nest, self.core.lanes)
            if self.prove:
                verify_tiles(s, tiles)
            tiled.append(TiledStatement(s, plan.nest, plan.operands, plan.body, tiles, self.core.lanes, plan.estimate.cycles))
        return [*converted, *copies, *([] if complete else [self.start()]), replace(a, tiled=tuple(tiled))]

    def start(self) -> Assignment:
        """That of all results, for those that no residue class has terms of."""
        assert self.a.start is not None, "conditions were left out"
        return replace(self.a, operator="=", value=self.a.start, bounds=self.a.results, reduction=(), start=None)

    @property
    def core(self) -> Core:
        element = ELEMENT_BYTES[self.a.value.dtype]
        return core_of(self.machine, self.options.vector_width or self.machine.lanes(element), element)

    def refuse_others(self, tensors: Mapping[str, Storage]) -> None:
        a = self.a
        if not a.reduction or a.empty or a.operator not in OPERATORS:
            raise MappingError("no reduction")
        if a.dynamic or self.program.program.dynamic:
            raise MappingError("dynamic sizes")
        if a.value.dtype not in ELEMENT_BYTES or tensors[a.tensor].dtype != a.value.dtype:
            raise MappingError(f"elements of {a.value.dtype}")
        if a.start is not None and a.start != identity(a.operator, a.value.dtype):
            raise MappingError("starts from another value than the identity")
        if a.start is None and a.operator not in ("+=", "*="):
            raise MappingError("goes on with what a result holds")

    def statements(
        self, a: Assignment, epilogue: Epilogue, tensors: Mapping[str, Storage]
    ) -> tuple[list[FlatStatement], bool]:
        """The assignment's exact rewrites, without conditions and divisions, simplified; and whether they have all results."""
        values = self.program.values
        whole = affine_statement(self.name, a, tensors, values, context())
        restricted = restrict(whole, a.value.dtype, values)
        if not has_vector_form(restricted.body):
            raise MappingError("the body has no form over vectors")
        if any(tensors[access.tensor].dtype != a.value.dtype for access in restricted.reads):
            raise MappingError("operands of other types")
        parts = split_residues(restricted)
        if self.prove:
            verify_restrict(whole, restricted, values)
            verify_split_residues(restricted, parts)
        complete = covers_results(restricted, parts)
        if epilogue.assignments and (len(parts) > 1 or not complete):
            raise MappingError("an epilogue of residue classes")
        statements = [_simplified(with_epilogue(part.flat(), epilogue, tensors, values)) for part, _ in parts]
        if not all(s.writes_once for s in statements):
            raise MappingError("several results are written to one element")
        if restricted is whole and not any(map(_reuses, statements)):
            raise MappingError("every operand is used once")
        return statements, complete

    @staticmethod
    def refuse_plans(plans: Sequence[Plan]) -> None:
        if any(operand.single is None for plan in plans for operand in plan.operands):
            raise MappingError("an operand is a product to compute once")


def _stripped(e: Assignment, strips: Sequence[Strip]) -> Assignment:
    for strip in strips:
        e = replace(e, subscripts=tuple(map(strip.rewritten, e.subscripts)), value=strip.rewritten(e.value))
    return e


def _simplified(s: FlatStatement) -> FlatStatement:
    """The statement from 0 on, without dimensions of one value, those that all accesses walk alike as one."""
    if len(s.domain.get_basic_sets()) != 1:
        raise MappingError("the conditions cut out what is not convex")
    s = drop_unit_dims(shift_dims(s))
    while pair := next(((outer, inner) for outer, inner in permutations(s.dims, 2) if mergeable(s, outer, inner)), None):
        s = merge(s, *pair)
    return s


def _reuses(s: FlatStatement) -> bool:
    """Whether an element is read for several results: an operand does not move with one, or a term moves it like a result does."""
    reads = s.reads.values()
    if any(not flat.stride(dim) for flat in reads for dim in s.outputs):
        return True
    return any(_overlap(s, flat.form) for flat in reads)


def _overlap(s: FlatStatement, form: Mapping[str, int]) -> bool:
    """Whether a form takes one value at several points: a window's."""
    steps = sorted((abs(step), s.extent(dim)) for dim, step in form.items())
    reach = 0
    for step, extent in steps:
        if step <= reach:
            return True
        reach += step * (extent - 1)
    return False
