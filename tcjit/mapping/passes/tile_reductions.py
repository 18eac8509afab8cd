"""Tile reductions: give those that a nest computes best their tiled statements, and say of the others why they have none.

A nest takes what keeps registers busy: reductions whose operands are used again, windows, and what conditions cut out of its box. What
reads every element once is bound by memory: it shares its loops with the statements around it where those use the same elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import inf, prod

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Select, Unary
from tcjit.grammar.dtypes import DTYPES, ROUNDED, holds
from tcjit.grammar.walk import walk, with_indices
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.isl import context
from tcjit.mapping.machine import Core, Machine, core_of
from tcjit.mapping.nest.affine_statement import affine_statement, with_epilogue
from tcjit.mapping.nest.convert_operands import Orders, conversions, convert_operands
from tcjit.mapping.nest.epilogue import Epilogue, epilogue_of
from tcjit.mapping.nest.form_dot_products import DotProducts, form_dot_products
from tcjit.mapping.nest.matrix_unit import DEPTH, is_direct
from tcjit.mapping.nest.merge_dims import drop_unit_dims, merge, mergeable, shift_dims
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.plan_nest import Plan, plan_nests
from tcjit.mapping.nest.restrict import restrict, verify_restrict
from tcjit.mapping.nest.split_residues import covers_results, split_residues, verify_split_residues
from tcjit.mapping.nest.stage_operands import stage_operands, unstageable
from tcjit.mapping.nest.statement import AffineStatement, FlatStatement
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.nest.tile import tile, verify_tiles
from tcjit.mapping.nest.tiled_statement import TiledStatement
from tcjit.mapping.nest.transpose_results import GAIN, result_orders
from tcjit.mapping.nest.vector_forms import NARROW, TYPES, has_lane_form, has_vector_form, is_dot_product
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import CPU_CHUNKS, chunk_reduction
from tcjit.mapping.reduction import EXTREMES, combined, guarded_term, identity
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Storage, are_digits
from tcjit.mapping.strides import stride_in
from tcjit.mapping.verify_assignments import verify_assignments

MANY_CHUNKS = 128  # partial results of one result that are worth lanes
NEAR_SHARE = 2  # of the nearest cache, in parts: what stays there while rows pass
OPERATORS = ("+=", "*=", "min=", "max=")
COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}  # types that nests compute in no lanes of


def tile_reductions(before: Assignments, options: Options, machine: Machine, prove: bool) -> Assignments:
    """The program with the nests of its reductions, whose exact rewrites and tiles are proved where ``prove`` says so."""
    number, fused = -1, 0  # of the assignment at hand; how many from it on are part of the nest before,
    within: OuterLoops | None = None  # which stands under loops that others share
    program = before.assignments
    setting = Setting(before, options, machine, prove)

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        nonlocal number, fused, within
        number = program.index(a, number + 1)  # ``rewrite`` passes over what has its form
        if fused:
            fused -= 1
            return [replace(a, fused=True, outer=a.outer if within else None)]
        if (single := _of_single_terms(a)) is not None:
            return [single]
        if a.outer and a.outer.columns:
            return [replace(a, untiled="runs row by row")]
        if a.outer and {*a.outer.dims} & {*a.reduction}:
            return [replace(a, untiled="adds to results once in each iteration of shared loops")]
        shared = [(other, a.inputs & (other.inputs | {other.tensor})) for other in _beside(program, number)]
        alone = not any(names and _walk_alike(other, names, temporaries.tensors, before.values) for other, names in shared)
        by_rows = any(_runs_by_rows(other, names, temporaries.tensors, before.values) for other, names in shared)
        tiling = ReductionTiling(f"T{number}", a, Epilogue(), alone, by_rows, setting)
        if a.operator in EXTREMES and a.value.dtype in COMPUTED_IN:
            try:
                with temporaries.trial(keep=True):
                    return tiling.tiled_wide(temporaries)
            except MappingError as error:
                return [replace(a, untiled=error.what)]
        try:
            with temporaries.trial(keep=True):
                return tiling.tiled_in_chunks(temporaries)
        except MappingError:
            pass  # it is not worth chunks, or they are no nests
        longest = epilogue_of(a, program[number + 1 :], program[:number], temporaries.tensors)
        for epilogue in (longest, Epilogue()) if longest.assignments else (longest,):
            try:
                with temporaries.trial(keep=True):
                    found = replace(tiling, epilogue=epilogue).tiled(temporaries)
            except NoNestError as error:
                reason = error.what
                break
            except MappingError as error:
                reason = error.what
            else:
                fused, within = epilogue.count, a.outer
                return found
        return [replace(a, untiled=reason)]

    return rewrite(before, visit)


@dataclass(frozen=True)
class Setting:
    """What all reductions of a program have in common."""

    program: Assignments
    options: Options
    machine: Machine
    prove: bool


class NoNestError(MappingError):
    """Why a reduction has no nest, whatever follows it."""


@dataclass(frozen=True)
class _Rewritten:
    """The exact rewrites of an assignment: over its box, without conditions, in residue classes, and flat; ``complete``: the classes have
    all results."""

    whole: AffineStatement
    restricted: AffineStatement
    parts: list[tuple[AffineStatement, isl.MultiAff]]
    statements: list[FlatStatement]
    complete: bool

    def verify(self, values: Mapping[str, int]) -> None:
        """Prove that they are exact."""
        verify_restrict(self.whole, self.restricted, values)
        verify_split_residues(self.restricted, self.parts)


@dataclass(frozen=True)
class _Planned:
    """An assignment with the plans of its statements, between the copies ``before`` it and what moves results to their places ``after``
    it; ``sums``: those over single factors of its products."""

    before: tuple[Assignment, ...]
    assignment: Assignment
    epilogue: Epilogue
    rewritten: _Rewritten
    plans: Sequence[Plan]
    sums: tuple[Assignment, ...]
    after: tuple[Assignment, ...]


@dataclass(frozen=True)
class ReductionTiling:
    """One assignment on its way to tiled statements; a MappingError says why there are none."""

    name: str
    a: Assignment
    epilogue: Epilogue
    alone: bool  # no other assignment reads or writes what it reads: sharing loops with others would save no memory traffic
    by_rows: bool  # others run over the rows of what it reads, too
    setting: Setting

    def tiled_wide(self, temporaries: Temporaries) -> list[Assignment]:
        """An extremum of halves as that of their values in single precision, or of truth values as that of bytes: it is one of them."""
        a = self.a
        if a.start != identity(a.operator, a.value.dtype):
            raise NoNestError("starts from another value than the identity")
        result = temporaries.tensors[a.tensor]
        wide = temporaries.add(a.source, f"{a.tensor}_wide", COMPUTED_IN[a.value.dtype], result.shape, result.dynamic_extents)
        value = _as_bytes(a.value) if a.value.dtype == "bool" else Cast(a.value, dtype=wide.dtype)
        start = identity(a.operator, wide.dtype)
        rounded = Cast(Access(wide.name, a.subscripts, dtype=wide.dtype), dtype=a.value.dtype)
        dynamic = {dim: limits for dim, limits in a.dynamic.items() if dim not in a.reduction}
        narrowed = Assignment(a.tensor, a.subscripts, "=", rounded, a.results, a.source, outer=a.outer, dynamic=dynamic)
        # what shares loops with others is converted to and fro in memory at each term, but in passes over rows
        tiling = replace(self, a=replace(a, tensor=wide.name, value=value, start=start), alone=self.alone or not self.by_rows)
        try:
            with temporaries.trial(keep=True):
                return [*tiling.tiled_in_chunks(temporaries), narrowed]
        except MappingError:
            pass
        try:
            with temporaries.trial(keep=True):
                found = replace(tiling, epilogue=Epilogue((narrowed,), stored=False)).tiled(temporaries)
                return [*found, replace(narrowed, fused=True)]
        except NoNestError:
            raise
        except MappingError:  # its tiles may want another order of results
            return [*tiling.tiled(temporaries), narrowed]

    def tiled_in_chunks(self, temporaries: Temporaries) -> list[Assignment]:
        """A reduction that is worth chunks as the nest of their partial results, and what combines those."""
        setting = self.setting
        dots = self.dot_products(self.a, temporaries, panels=False)
        before = replace(setting.program, assignments=tuple(dots.assignment if a is self.a else a for a in setting.program.assignments))
        before = replace(before, temporaries=tuple(temporaries.added))
        parts = chunk_reduction(dots.assignment, temporaries, before, setting.options, setting.machine)
        if len(parts) == 1:
            raise MappingError("not worth chunks")
        if setting.prove:
            replaced = [parts if old is dots.assignment else [old] for old in before.assignments]
            verify_assignments("chunk_reductions", before, before.with_parts(replaced, temporaries))
        accumulate, *rest = parts
        assignments = [*dots.copies, *self.tiled_sums(dots.sums, temporaries), *replace(self, a=accumulate).tiled(temporaries)]
        for part in rest:
            assignments += self.combined(part, temporaries) if part.reduction else [part]
        return assignments

    def tiled_sums(self, sums: Sequence[Assignment], temporaries: Temporaries) -> list[Assignment]:
        """The nests of sums over one factor of a product."""
        tilings = (replace(self, name=f"{self.name}_{n}", a=one, epilogue=Epilogue(), alone=True) for n, one in enumerate(sums))
        return [made for tiling in tilings for made in tiling.tiled(temporaries)]

    def combined(self, part: Assignment, temporaries: Temporaries) -> list[Assignment]:
        """What combines partial results: in lanes where there are many, so that each of them adds few."""
        if prod(upper - lower for _, lower, upper in part.terms) < MANY_CHUNKS:
            return [replace(part, untiled="combines partial results")]
        try:
            with temporaries.trial(keep=True):
                return replace(self, name=f"{self.name}_combined", a=part, alone=True).tiled(temporaries)
        except MappingError as error:
            return [replace(part, untiled=error.what)]

    def tiled(self, temporaries: Temporaries) -> list[Assignment]:
        """The assignment with its nests, behind copies of operands that the plan wants in another order."""
        try:
            with temporaries.trial(keep=True):
                return self.tiled_at_once(temporaries)
        except NoNestError:
            raise
        except MappingError:
            if not self.setting.machine.matrix_types:
                raise
            machine = replace(self.setting.machine, matrix_types=frozenset())
            return replace(self, setting=replace(self.setting, machine=machine)).tiled_at_once(temporaries)

    def tiled_at_once(self, temporaries: Temporaries) -> list[Assignment]:
        """The same; a MappingError where a matrix unit would have to leave points out."""
        prove, planned = self.setting.prove, self.with_panels(self.planned(temporaries), temporaries)
        a, found, plans = planned.assignment, planned.rewritten, planned.plans
        before = [*planned.before, *self.tiled_sums(planned.sums, temporaries)]
        self.refuse_plans(plans)
        if prove:  # of the rewrites only those that are used: a plan alone makes no code
            found.verify(self.setting.program.values)
        tiled = []
        for s, plan in zip(found.statements, plans, strict=True):
            tiles = tile(s, plan.nest, self.core.lanes)
            if plan.nest.leaf.depth and not tiles.partial.is_empty():
                raise MappingError("partial tiles of a matrix unit")
            if prove:
                verify_tiles(s, tiles)
            one = TiledStatement(s, plan.nest, plan.operands, plan.body, tiles, self.core.lanes, plan.estimate.cycles)
            if one.has_results_in_blocks and not s.in_memory:
                one = replace(one, statement=replace(s, stored=True))  # where the sums of blocks wait for an epilogue
            tiled.append(one)
        return [*before, *([] if found.complete else [self.start()]), replace(a, tiled=tuple(tiled)), *planned.after]

    def planned(self, temporaries: Temporaries) -> _Planned:
        """The plan of the assignment's nest, before operands are staged."""
        self.refuse_others(temporaries.tensors)
        options = self.setting.options
        undivided, strips = split_divisions(self.a, self.setting.program.values)
        epilogue = self.epilogue.stripped(strips)
        dots = self.dot_products(undivided, temporaries)
        copies, given = convert_operands(dots.assignment, temporaries, self.copied(dots.assignment, temporaries))
        found = self.rewritten(given, epilogue, temporaries.tensors)
        plan = partial(plan_nests, core=self.core, known=self.setting.program.plans, leaf=self.leaf, cold=self.in_blocks)
        plan = partial(plan, register_tile=options.register_tile)
        plans = plan(found.statements)
        transposed = self.transposed(given, found, plans, temporaries)
        after: list[Assignment] = []
        if transposed is not None:
            if epilogue.assignments:
                raise MappingError("an epilogue of results in another order")
            after = [_copied(transposed, given)]
            given = transposed
            found = self.rewritten(given, epilogue, temporaries.tensors)
            plans = plan(found.statements)
        kept = frozenset[Expr]()
        while options.pack and (refused := unstageable(given, plans[0], temporaries.tensors)):
            kept |= refused
            plans = plan(found.statements, kept=kept)
        return _Planned((*dots.copies, *copies), given, epilogue, found, plans, dots.sums, tuple(after))

    def with_panels(self, planned: _Planned, temporaries: Temporaries) -> _Planned:
        """The plan behind the copies of operands that it wants staged: of the nest that is computed."""
        options, given, found, plans = self.setting.options, planned.assignment, planned.rewritten, planned.plans
        if not options.pack:
            return planned
        outer = given.outer and replace(given.outer, private=given.outer.private and not planned.sums)  # these read the same copies
        staging = stage_operands(replace(given, outer=outer), plans[0], found.statements[0].merged, self.core, temporaries)
        epilogue, a = planned.epilogue.stripped(staging.strips), staging.rewritten(given)
        if staging.copies:
            found = self.rewritten(a, epilogue, temporaries.tensors)
        if staging.copies or any(plan.estimate.staged for plan in plans):
            leaf = plans[0].nest.leaf if staging.strips else None
            kept = frozenset(operand for s in found.statements for operand in s.reads)  # no other copies are made
            plans = plan_nests(found.statements, self.core, self.setting.program.plans, leaf, options.register_tile, kept)
        sums = tuple(map(staging.rewritten, planned.sums))
        return _Planned((*planned.before, *staging.copies), a, epilogue, found, plans, sums, planned.after)

    def copied(self, a: Assignment, temporaries: Temporaries) -> Orders:
        """The tensors that are copied before the reduction, in its type and in an order that suits it: as the model says."""
        choices = list(conversions(a, temporaries.tensors))
        return min(choices, key=partial(self.cycles, a, temporaries)) if len(choices) > 1 else choices[0]

    def dot_products(self, a: Assignment, temporaries: Temporaries, *, panels: bool = True) -> DotProducts:
        """The assignment over groups of terms, as many as a matrix unit takes at once where there is one, also in each of equal chunks,
        which read copies without ``panels``; of halves, whose pairs have to be copied, where the model says that it pays."""
        machine, multiple = self.setting.machine, DEPTH if panels else DEPTH * CPU_CHUNKS
        form = partial(form_dot_products, a, temporaries, machine, panels=panels)
        ways = [(1, False), *([(multiple, False), (multiple, True)] if machine.matrix_types else [])]
        cycles: dict[tuple[int, bool], float] = {}
        for multiple, innermost in ways:
            with temporaries.trial():
                made = form(multiple=multiple, innermost=innermost)
                body = guarded_term(made.assignment.value, a.operator, self.setting.program.values)[1]
                # bytes as they are may need sums that conditions do not allow, where flipped ones need none; those on data stay outside
                if not is_dot_product(body):
                    continue
                whole = a.value.dtype == "int32" and len(ways) == 1
                cycles[multiple, innermost] = 0.0 if whole else self.cycles(made.assignment, temporaries, {}) + self.copying(made.copies)
        if not cycles:
            return DotProducts(a)
        best = min(cycles, key=lambda way: (cycles[way], -way[0]))  # a matrix unit takes bytes of any signs
        if a.value.dtype != "int32":
            plain = min(self.cycles(a, temporaries, choice) for choice in conversions(a, temporaries.tensors))
            if cycles[best] >= plain:
                return DotProducts(a)
        return form(multiple=best[0], innermost=best[1])

    def cycles(self, a: Assignment, temporaries: Temporaries, choice: Orders) -> float:
        """Those of a reduction behind copies of some tensors."""
        with temporaries.trial():
            copies, given = convert_operands(a, temporaries, choice)
            try:
                statements = self.rewritten(given, Epilogue(), temporaries.tensors).statements
                plans = plan_nests(statements, self.core, self.setting.program.plans, cold=self.in_blocks)
            except MappingError:
                return inf  # where no choice has a nest, the first one says why
            return sum(plan.estimate.cycles for plan in plans) + self.copying(copies)

    def copying(self, copies: Sequence[Assignment]) -> float:
        """Cycles of copies."""
        return sum(self.core.copy_cycles(copy.points, together=copy.subscripts == copy.reads[0].subscripts) for copy in copies)

    def transposed(
        self, a: Assignment, found: _Rewritten, plans: Sequence[Plan], temporaries: Temporaries
    ) -> Assignment | None:
        """The assignment to a temporary in an order of results that a plan takes less time for, the copy to their places included, and with
        nothing behind it; None where no other order is better."""
        if a.outer or a.dynamic or a.start is None or not found.complete or len(found.statements) > 1 or not self.setting.options.pack:
            return None  # a temporary does not hold what a result that goes on held before
        least = GAIN * plans[0].estimate.cycles
        copy = self.core.copy_cycles(prod(upper - lower for _, lower, upper in a.results), together=False)
        (s, plan), best = (found.statements[0], plans[0]), None
        lane = plan.nest.leaf.lane
        scattered = frozenset([lane] if lane in s.outputs and s.write.stride(lane) != 1 else [])
        own = tuple(range(len(a.subscripts)))
        flat = found.parts[0][0].flat()
        apart = [own] if any(e.write.form != flat.write.form for e in s.epilogue) else []
        for order in (*apart, *result_orders(a, flat, scattered)) if copy < least else ():
            with temporaries.trial():
                turned = a if order == own else _in_order(a, order, temporaries)
                statements = self.rewritten(turned, Epilogue(), temporaries.tensors).statements
                cycles = plan_nests(statements, self.core, self.setting.program.plans)[0].estimate.cycles + copy
            if cycles < least:
                least, best = cycles, order
        return _in_order(a, best, temporaries) if best else None

    def start(self) -> Assignment:
        """That of all results, for those that no residue class has terms of."""
        assert self.a.start is not None, "conditions were left out"
        return replace(self.a, operator="=", value=self.a.start, bounds=self.a.results, reduction=(), start=None)

    @property
    def core(self) -> Core:
        element, machine = DTYPES[self.a.value.dtype].bytes, self.setting.machine
        return core_of(machine, self.setting.options.vector_width or machine.lanes(element), element)

    @property
    def leaf(self) -> Leaf | None:
        """The register tile that the blocks of shared loops were made for."""
        return self.a.outer.leaf if self.a.outer else None

    @property
    def in_blocks(self) -> bool:
        """Whether shared loops are over blocks that operands are packed for."""
        return self.a.outer is not None and (self.a.outer.leaf is not None or self.a.outer.private)

    @property
    def near_elements(self) -> int:
        """Those that stay in the nearest cache while rows pass, where others run over these too."""
        return self.setting.machine.near_bytes // DTYPES[self.a.value.dtype].bytes // NEAR_SHARE if self.by_rows else 0

    def refuse_others(self, tensors: Mapping[str, Storage]) -> None:
        a = self.a
        if not a.reduction or a.empty or a.operator not in OPERATORS:
            raise NoNestError("no reduction")
        if a.value.dtype not in TYPES or tensors[a.tensor].dtype != a.value.dtype:
            raise NoNestError(f"elements of {a.value.dtype}")
        if a.start is not None and a.start != identity(a.operator, a.value.dtype):
            raise NoNestError("starts from another value than the identity")

    def rewritten(self, a: Assignment, epilogue: Epilogue, tensors: Mapping[str, Storage]) -> _Rewritten:
        """The assignment as statements without conditions and divisions, simplified."""
        program = self.setting.program.program
        whole = affine_statement(self.name, a, tensors, program, context())
        restricted = restrict(whole, a.value.dtype, program.values)
        if restricted.domain.is_empty():
            raise NoNestError("no term counts")
        lanes = has_lane_form(restricted.body) and not _rounds(self.a.value)
        if not (has_vector_form(restricted.body) or lanes):
            raise NoNestError("the body has no form over vectors or lanes")
        own = (a.value.dtype, *NARROW.get(a.value.dtype, ()))
        if not is_dot_product(restricted.body) and any(access.dtype not in own for access in restricted.reads):
            raise NoNestError("operands of other types")
        parts = split_residues(restricted)
        complete = covers_results(restricted, parts)
        if a.start is None and not complete:
            raise MappingError("goes on with results, some of which are in no residue class")
        if epilogue.assignments and (len(parts) > 1 or not complete):
            raise MappingError("an epilogue of residue classes")
        statements = [_simplified(with_epilogue(part.flat(), epilogue, tensors, program)) for part, _ in parts]
        if not all(s.writes_once for s in statements):
            raise MappingError("several results are written to one element")
        if restricted is whole and not self.alone and not any(_reuses(s, self.near_elements) for s in statements):
            raise NoNestError("every operand is used once, by others too")
        return _Rewritten(whole, restricted, parts, statements, complete)

    @staticmethod
    def refuse_plans(plans: Sequence[Plan]) -> None:
        if any(operand.single is None and not is_direct(operand, plan.nest.leaf) for plan in plans for operand in plan.operands):
            raise MappingError("an operand is to be computed once, and cannot be")


def _of_single_terms(a: Assignment) -> Assignment | None:
    """A reduction whose results have one term each as the assignment that it is."""
    if a.operator == "=" or a.start is None or a.dynamic or a.constraints or any(upper - lower != 1 for _, lower, upper in a.terms):
        return None
    value = combined(a.operator, a.start, with_indices(a.value, {name: Const(lower, dtype="int64") for name, lower, _ in a.terms}))
    return replace(a, operator="=", value=value, bounds=a.results, reduction=(), start=None)


def _beside(program: Sequence[Assignment], number: int) -> list[Assignment]:
    """The other assignments that could share loops with one: not what needs its result where that is a single one, which is complete
    after the last of its loops."""
    a = program[number]
    if any(upper - lower > 1 for _, lower, upper in a.results):
        return [*program[:number], *program[number + 1 :]]
    needing, found = {a.tensor}, [*program[:number]]
    for other in program[number + 1 :]:
        if other.inputs & needing:
            needing.add(other.tensor)
        else:
            found.append(other)
    return found


def _walk_alike(other: Assignment, names: Collection[str], tensors: Mapping[str, Storage], values: Mapping[str, int]) -> bool:
    """Whether an assignment walks along memory in some tensor as it does in its result: loops for both suit those that only read it."""
    near = [dim for dim, _, _ in other.results if stride_in(tensors[other.tensor], other.subscripts, dim, values) == 1]
    if other.reduction or other.tensor in names or not near:  # a reduction may walk along its terms
        return True
    reads = [access for access in other.reads if access.tensor in names]
    return any(stride_in(tensors[access.tensor], access.subscripts, near[0], values) in (0, 1, None) for access in reads)


def _runs_by_rows(other: Assignment, names: Collection[str], tensors: Mapping[str, Storage], values: Mapping[str, int]) -> bool:
    """Whether an assignment reads elements of tensors one row after the other, each for one result or all of a row for one."""
    reads = [access for access in other.reads if access.tensor in names]
    steps = [(dim, stride_in(tensors[access.tensor], access.subscripts, dim, values)) for access in reads for dim in other.dims]
    return any(step == 1 and (not other.reduction or dim in other.reduction) for dim, step in steps)


def _in_order(a: Assignment, order: Sequence[int], temporaries: Temporaries) -> Assignment:
    """The assignment to a temporary whose axes are those of its result in another order."""
    result = temporaries.tensors[a.tensor]
    shape = [result.shape[axis] for axis in order]
    temporary = temporaries.add(a.source, f"{result.name}_transposed", result.dtype, shape)
    return replace(a, tensor=temporary.name, subscripts=tuple(a.subscripts[axis] for axis in order))


def _copied(transposed: Assignment, a: Assignment) -> Assignment:
    """The copy of a temporary's elements to those of the result."""
    value = Access(transposed.tensor, transposed.subscripts, dtype=a.value.dtype)
    return Assignment(a.tensor, a.subscripts, "=", value, a.results, a.source, fuse_outer_only=True)


def _simplified(s: FlatStatement) -> FlatStatement:
    """The statement from 0 on, without dimensions of one value, those that all accesses walk alike as one."""
    if len(s.domain.get_basic_sets()) != 1:
        raise MappingError("the conditions cut out what is not convex")
    s = drop_unit_dims(shift_dims(s))
    while pair := next(((outer, inner) for outer, inner in permutations(s.dims, 2) if mergeable(s, outer, inner)), None):
        s = merge(s, *pair)
    return s


def _as_bytes(value: Expr) -> Expr:
    """Truth values as bytes of 0 or 1; a MappingError where other types are compared."""
    match value:
        case Access():
            return Cast(value, dtype="uint8")
        case Const():
            return Const(int(value.value), dtype="uint8")
        case Binary(op="&&" | "||" as op, left=left, right=right):
            return Call("min" if op == "&&" else "max", (_as_bytes(left), _as_bytes(right)), dtype="uint8")
        case Binary(op="==" | "!=", left=left, right=right) if left.dtype == right.dtype == "bool":
            differ = replace(value, left=_as_bytes(left), right=_as_bytes(right))
            return Select(differ, Const(1, dtype="uint8"), Const(0, dtype="uint8"), dtype="uint8")
        case Unary(op="!", operand=operand):
            return Binary("-", Const(1, dtype="uint8"), _as_bytes(operand), dtype="uint8")
        case Select(condition=condition, then=then, other=other):
            return Select(condition, _as_bytes(then), _as_bytes(other), dtype="uint8")
    raise NoNestError("elements of bool from others")


def _rounds(value: Expr) -> bool:
    """Whether a part of a value is rounded to a half type, or wraps in a narrow one, before others are computed from it."""
    narrow = {dtype for dtypes in NARROW.values() for dtype in dtypes} - {"bool", *ROUNDED}
    rounded = (part for part in walk(value) if isinstance(part, Cast) and part.dtype in ROUNDED)
    wraps = any(part.dtype in narrow and not isinstance(part, Access) for part in walk(value))
    return wraps or not all(holds(part.dtype, part.operand.dtype) for part in rounded)


def _reuses(s: FlatStatement, near: int) -> bool:
    """Whether an element is read for several results: an operand does not move with one, or a term moves it like a result does. What is
    beside the rows of a matrix that are summed, and is among the ``near`` elements that stay in a cache, does not count."""
    reads = list(s.reads.values())
    rows = any(set(flat.dims) == set(s.dims) and any(flat.stride(dim) == 1 for dim in s.terms) for flat in reads)
    far = [flat for flat in reads if not rows or prod(map(s.extent, flat.dims)) > near]
    if any(dim not in flat.dims for flat in far for dim in s.outputs):
        return True
    # a window's form takes one value at several points
    return not all(are_digits((step, s.extent(dim)) for dim, step in flat.estimated().form.items()) for flat in reads)
