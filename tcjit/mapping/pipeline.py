"""The passes of the mapping in their order: from a program to a mapped, verified schedule tree, for a CPU or a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial, reduce
from itertools import count, groupby
from math import prod
from typing import Literal

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError, VerifyError
from tcjit.grammar.ast import Program
from tcjit.mapping import tree as trees
from tcjit.mapping.assemble import assemble
from tcjit.mapping.assignment import Assignments, to_scop
from tcjit.mapping.bands import NARROW, NARROW_ON_GPU
from tcjit.mapping.collapse import collapse, order_axes, verify_collapse
from tcjit.mapping.dependences import Dependences, dependences
from tcjit.mapping.extract import extract
from tcjit.mapping.gpu_nest import GpuKernel, LaunchBounds
from tcjit.mapping.machine import BASELINE, Device, Machine
from tcjit.mapping.marks import Launch, Tile
from tcjit.mapping.nest.tile_tree import tile_tree
from tcjit.mapping.options import Options
from tcjit.mapping.passes.allocate import allocate
from tcjit.mapping.passes.block_panels import block_panels
from tcjit.mapping.passes.chunk_reductions import chunk_reductions
from tcjit.mapping.passes.chunk_scans import chunk_scans
from tcjit.mapping.passes.collapse_axes import collapse_axes
from tcjit.mapping.passes.combine_in_blocks import combine_in_blocks
from tcjit.mapping.passes.contract import STACK_BYTES, contract
from tcjit.mapping.passes.contract_slices import contract_slices, verify_outer_loops
from tcjit.mapping.passes.distribute_offsets import distribute_offsets
from tcjit.mapping.passes.eliminate_conditions import eliminate_conditions
from tcjit.mapping.passes.eliminate_dead_instances import eliminate_dead_instances
from tcjit.mapping.passes.eliminate_indices import eliminate_indices
from tcjit.mapping.passes.expand_operands import expand_operands
from tcjit.mapping.passes.factor_contractions import factor_contractions
from tcjit.mapping.passes.factor_scans import factor_scans
from tcjit.mapping.passes.fold_contractions import fold_contractions
from tcjit.mapping.passes.fuse import fuse, fused_groups
from tcjit.mapping.passes.fuse_column_reductions import fuse_column_reductions
from tcjit.mapping.passes.fuse_outer_loops import fuse_outer_loops, settle_outer_loops
from tcjit.mapping.passes.fuse_parallel_regions import fuse_parallel_regions
from tcjit.mapping.passes.hoist_invariants import hoist_invariants, split_around_invariants
from tcjit.mapping.passes.map_to_blocks import map_to_blocks
from tcjit.mapping.passes.map_to_threads import map_to_threads
from tcjit.mapping.passes.merge_temporaries import merge_temporaries
from tcjit.mapping.passes.multiply_predicates import multiply_predicates
from tcjit.mapping.passes.narrow_bounds import narrow_bounds
from tcjit.mapping.passes.number_values import number_values
from tcjit.mapping.passes.overlap_tiles import overlap_tiles
from tcjit.mapping.passes.pack_operands import pack_operands
from tcjit.mapping.passes.pad_operands import pad_operands
from tcjit.mapping.passes.pad_tiles import pad_tiles
from tcjit.mapping.passes.parallelise import parallelise, worth_region
from tcjit.mapping.passes.promote_counts import promote_counts
from tcjit.mapping.passes.promote_to_registers import promote_to_registers
from tcjit.mapping.passes.promote_to_shared import promote_to_shared
from tcjit.mapping.passes.reduce_strength import reduce_strength
from tcjit.mapping.passes.rematerialise import rematerialise
from tcjit.mapping.passes.restrict_products import restrict_products
from tcjit.mapping.passes.scatter_reductions import scatter_reductions
from tcjit.mapping.passes.schedule_rows import RowGroup, row_groups, schedule_rows
from tcjit.mapping.passes.schedule_scan import schedule_scan
from tcjit.mapping.passes.schedule_scatter import schedule_scatter
from tcjit.mapping.passes.segment_scans import segment_scans
from tcjit.mapping.passes.simplify_reductions import simplify_reductions
from tcjit.mapping.passes.skew_reductions import skew_reductions
from tcjit.mapping.passes.split_addends import split_addends
from tcjit.mapping.passes.split_copies import split_copies
from tcjit.mapping.passes.split_index_sets import split_index_sets, split_sums
from tcjit.mapping.passes.split_initialisation import split_initialisation
from tcjit.mapping.passes.split_reduction import split_reduction
from tcjit.mapping.passes.split_residues import split_residues
from tcjit.mapping.passes.split_selects import split_selects
from tcjit.mapping.passes.split_subscripts import split_subscripts
from tcjit.mapping.passes.split_terms import split_terms
from tcjit.mapping.passes.split_unions import split_unions
from tcjit.mapping.passes.strip_mine_copies import strip_mine_copies
from tcjit.mapping.passes.strip_mine_gathers import strip_mine_gathers
from tcjit.mapping.passes.strip_mine_products import strip_mine_products
from tcjit.mapping.passes.substitute_forward import substitute_forward
from tcjit.mapping.passes.synchronise import synchronise
from tcjit.mapping.passes.tabulate import tabulate, tabulate_conditions
from tcjit.mapping.passes.tile import tile
from tcjit.mapping.passes.tile_reductions import tile_reductions
from tcjit.mapping.passes.transpose_operands import transpose_operands
from tcjit.mapping.passes.transpose_tables import transpose_tables
from tcjit.mapping.passes.unroll_dims import unroll_dims
from tcjit.mapping.passes.unswitch_reductions import unswitch_reductions
from tcjit.mapping.passes.widen import widen
from tcjit.mapping.plan_fused import Plans, plan_fused
from tcjit.mapping.plan_loops import plan_loops
from tcjit.mapping.races import verify_races
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.scop_builder import LoweredScop
from tcjit.mapping.storage import Buffer, ThreadSlice
from tcjit.mapping.value_flow import verify_lowering
from tcjit.mapping.verify import verify, verify_privates
from tcjit.mapping.verify_assignments import verify_assignments
from tcjit.step import Steps

Proof = Literal["every", "last", "none"]  # verify each pass's tree, the final one, or nothing


# Of a statement's dimensions: for each its least value, and the weight and count of its digits in a mixed radix, the last weight 1.
# In these coordinates the members of a GPU's bands are single digits, which isl generates loops for many times faster.
Digits = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True)
class Mapped:
    """A program mapped to a target: its statements, the tree that orders them, the small buffers, and the launches of a GPU; ``slices``:
    what threads of a CPU keep of temporaries, ``slots`` of them at most."""

    scop: Scop
    tree: isl.Schedule
    privates: tuple[Buffer, ...]
    options: Options
    verified: bool
    launches: tuple[LaunchBounds, ...] = ()
    digits: Mapping[str, Digits] = field(default_factory=dict)  # by statement, on a GPU
    slices: tuple[ThreadSlice, ...] = ()
    slots: int = 1
    rows: tuple[RowGroup, ...] = ()

    @property
    def reductions(self) -> tuple[str, ...]:
        """How a CPU computes each reduction: its nest, or why it has none; and which statements share their outer loops. On a GPU those
        whose conditions stay in their loops, and why."""
        shared: dict[int, list[ScopStatement]] = {}
        for s in self.scop.statements:
            if s.outer is not None:
                shared.setdefault(s.outer.number, []).append(s)
        loops = [(group[-1].outer, dict.fromkeys(s.tensor for s in group)) for group in shared.values()]
        together = [f"outer loops {' '.join(outer.dims)} shared by {' '.join(tensors)}" for outer, tensors in loops if outer]
        nests = [tiled.show() for s in self.scop.statements for tiled in s.tiled]
        nests += [f"{s.tensor}: scatter along {' '.join(s.scatter)}" for s in self.scop.statements if s.scatter]
        nests += [group.show() for group in self.rows]
        rows = {s.name for group in self.rows for s in group.statements}
        others = [s for s in self.scop.statements if s.reduction and s.untiled and s.name not in rows]
        without = dict.fromkeys(f"{s.tensor}: no nest: {s.untiled}" for s in others)
        return (*together, *nests, *without)


def build_scop(
    program: Program,
    options: Options,
    layouts: Mapping[str, str] | None = None,
    target: Machine | Device = BASELINE,
    steps: Steps | None = None,
    *,
    prove: Proof = "none",
) -> Scop:
    """The statements of a program in the forms that suit a target; ``layouts`` as for ``extract``, ``prove`` as for ``map_program``."""
    steps = steps or Steps(program.definition.name)
    nests = isinstance(target, Machine) and options.uses_vectors
    pack = options.pack and (nests or isinstance(target, Device))

    def step(function: Callable[..., Assignments], *args: object) -> Assignments:
        return steps.run(function.__name__, function, *args, show=Assignments.show)

    def proved(function: Callable[..., Assignments], before: Assignments, *args: object) -> Assignments:
        check = None if prove == "none" else partial(verify_assignments, function.__name__, before)
        try:
            return steps.run(function.__name__, function, before, *args, show=Assignments.show, check=check)
        except VerifyError as error:  # what is not proved is not used
            if prove == "every":
                raise
            what = f"{program.definition.name}() is compiled without {function.__name__}, which has no proof"
            warnings.warn(f"{what}; please report it: {error.what}", stacklevel=2)
            return before.with_parts((a,) for a in before.assignments)

    assignments = step(extract, program, layouts)
    assignments = proved(split_addends, assignments) if nests else assignments
    assignments = proved(narrow_bounds, assignments)
    assignments = proved(eliminate_conditions, assignments)
    assignments = step(eliminate_indices, assignments, prove != "none", nests)
    assignments = proved(split_subscripts, assignments) if nests else assignments
    whole = assignments
    assignments = proved(split_selects, assignments) if nests else assignments
    assignments = proved(split_unions, assignments) if nests else assignments
    assignments = proved(tabulate, assignments) if isinstance(target, Machine) else assignments
    assignments = proved(skew_reductions, assignments, NARROW if isinstance(target, Machine) else NARROW_ON_GPU)
    if assignments.assignments != whole.assignments:
        assignments = proved(eliminate_conditions, assignments)
    assignments = proved(widen, assignments)
    assignments = proved(reduce_strength, assignments) if isinstance(target, Machine) else assignments
    assignments = proved(number_values, assignments, target) if isinstance(target, Machine) else assignments
    assignments = proved(multiply_predicates, assignments) if nests or isinstance(target, Device) else assignments
    assignments = proved(promote_counts, assignments) if nests else assignments
    assignments = proved(distribute_offsets, assignments) if nests else assignments
    assignments = proved(factor_contractions, assignments, isinstance(target, Machine))
    assignments = proved(tabulate_conditions, assignments) if isinstance(target, Machine) else assignments
    assignments = proved(strip_mine_gathers, assignments) if nests else assignments
    assignments = proved(unswitch_reductions, assignments) if nests else assignments
    tensor_cores = pack and isinstance(target, Device) and "mma" in target.capabilities
    assignments = proved(split_around_invariants, assignments) if nests else assignments
    assignments, whole = proved(hoist_invariants, assignments, isinstance(target, Machine), tensor_cores), assignments
    if assignments.assignments != whole.assignments:  # invariants have some of their own
        assignments = proved(hoist_invariants, assignments, isinstance(target, Machine), tensor_cores)
    assignments = proved(merge_temporaries, assignments)
    assignments = proved(substitute_forward, assignments) if nests and options.fusion != "minimal" else assignments
    assignments, whole = proved(eliminate_dead_instances, assignments), assignments
    if nests and assignments.assignments != whole.assignments:  # those that are left may be a union
        assignments = proved(split_unions, assignments)
    if nests:
        assignments = proved(factor_scans, assignments)
        assignments = proved(segment_scans, assignments)
        assignments = step(simplify_reductions, assignments)
    if nests or isinstance(target, Device):
        assignments = step(scatter_reductions, assignments, target, prove != "none")
    assignments = proved(split_residues, assignments) if isinstance(target, Device) else assignments
    if nests and not options.tile and not program.dynamic:
        assignments = step(collapse_axes, assignments, prove != "none")
    assignments = step(pad_operands, assignments, target if isinstance(target, Machine) else None) if pack else assignments
    assignments = proved(split_copies, assignments) if nests and pack else assignments
    assignments = proved(split_sums, assignments) if nests and pack else assignments
    assignments = proved(split_terms, assignments) if nests and pack else assignments
    assignments = proved(strip_mine_copies, assignments, target) if nests else assignments
    assignments = proved(transpose_tables, assignments, target) if nests and pack else assignments
    assignments = proved(fold_contractions, assignments, options, target) if nests and pack and not program.dynamic else assignments
    if nests and options.fusion != "minimal" and not program.dynamic:
        assignments = proved(fuse_parallel_regions, assignments, options, target) if pack else assignments
        assignments = proved(fuse_outer_loops, assignments, options, target)
        assignments = proved(overlap_tiles, assignments, target)
        assignments = proved(fuse_column_reductions, assignments, target)
        assignments = proved(block_panels, assignments, options, target) if pack else assignments
    if nests:
        assignments = step(tile_reductions, assignments, options, target, prove != "none")
        assignments = proved(unroll_dims, assignments) if options.fusion != "minimal" else assignments
    if pack and isinstance(target, Machine):  # on a GPU shared memory does the rest
        in_tiles = options.private_buffers and options.fusion != "minimal"  # the copies of one tile stay in a buffer
        assignments = proved(expand_operands, assignments, target, in_tiles)
        assignments = proved(transpose_operands, assignments, target) if in_tiles else assignments
    if isinstance(target, Device):
        assignments = proved(rematerialise, assignments, options, target) if options.fusion != "minimal" else assignments
        assignments, scanned = proved(chunk_scans, assignments, target), assignments
        while assignments.assignments != scanned.assignments:  # of the prefix sums of chunks, too
            assignments, scanned = proved(chunk_scans, assignments, target), assignments
    if pack and isinstance(target, Device):
        assignments = proved(strip_mine_products, assignments, options, target)
        assignments = proved(pack_operands, assignments, options, target)
    assignments = proved(chunk_reductions, assignments, options, target)
    if isinstance(target, Device):
        assignments = proved(combine_in_blocks, assignments)
        assignments = proved(restrict_products, assignments)
    assignments = proved(split_index_sets, assignments) if nests else assignments
    assignments = proved(split_initialisation, assignments)
    assignments = step(settle_outer_loops, assignments) if nests else assignments
    return steps.run("scop", to_scop, assignments, show=Scop.show, suffix="scop")


@contextmanager
def _within_budget() -> Iterator[None]:
    """isl giving up is an error that says what to do."""
    try:
        yield
    except isl.Error as error:
        if "maximal number of operations" not in str(error):
            raise VerifyError(f"isl: {error}", hint="report this: the program is fine, the mapping is not") from None
        raise MappingError(f"the compile budget does not suffice: {error}", hint="split the def into several smaller ones") from None


@_within_budget()
def map_program(
    program: Program,
    options: Options,
    machine: Machine = BASELINE,
    layouts: Mapping[str, str] | None = None,
    *,
    prove: Proof = "every",
    steps: Steps | None = None,
) -> Mapped:
    """Map a program to a multicore CPU. ``prove`` says which trees are verified; a VerifyError is a bug in tcjit, never the user's. A pass
    over assignments that is not proved is left out, with a warning, unless ``every`` tree is verified."""
    steps = steps or Steps(program.definition.name)
    scop = build_scop(program, options, layouts, machine, steps, prove=prove)
    if not options.tile and any(_kind(s) == "loops" for s in scop.statements):
        check = None if prove == "none" else partial(verify_collapse, scop, merges=())
        scop = steps.run("order_axes", order_axes, scop, show=Scop.show, suffix="scop", check=check)
        scop = _collapsed(scop, prove, steps)
    return _CpuMapping(scop, options, machine, prove, steps).mapped()


def _part(scop: Scop, statements: tuple[ScopStatement, ...]) -> Scop:
    """Some of the statements as a scop of their own: temporaries that others use as well are results to it."""
    others = {t for s in scop.statements if s not in statements for t in (s.tensor, *(read.tensor for read, _ in s.reads))}
    tensors = tuple(replace(t, role="output") if t.role == "temporary" and t.name in others else t for t in scop.tensors)
    return scop if len(statements) == len(scop.statements) else replace(scop, statements=statements, tensors=tensors)


def _kind(s: ScopStatement) -> Literal["nest", "scan", "scatter", "loops"]:
    return "nest" if s.tiled or s.fused else "scan" if s.scan else "scatter" if s.scatter else "loops"


class _CpuMapping:
    """A scop on its way to a tree: what nests compute and what they do not follow one another in the order of the program, each mapped by
    itself; private buffers, slices of threads and groups of rows are collected on the way."""

    def __init__(self, scop: Scop, options: Options, machine: Machine, prove: Proof, steps: Steps) -> None:
        self.scop, self.options, self.machine, self.prove, self.steps = scop, options, machine, prove, steps
        self.privates: list[Buffer] = []
        self.slices: list[ThreadSlice] = []
        self.rows: list[RowGroup] = []
        self.slots = 1
        self.counter = count()  # numbers tiles

    def mapped(self) -> Mapped:
        parts = []
        for outer, group in groupby(self.scop.statements, key=lambda s: s.outer and s.outer.number):
            statements = tuple(group)
            parts.append(self.in_order(statements, self.options) if outer is None else self.under_outer_loops(statements))
        tree = reduce(isl.Schedule.sequence, parts) if parts else isl.Schedule.empty(isl.Space.params_alloc(self.scop.ctx, 0))
        proved = self.prove != "none" or not self.scop.statements
        buffers, slices, rows = tuple(self.privates), tuple(self.slices), tuple(self.rows)
        return Mapped(self.scop, tree, buffers, self.options, proved, slices=slices, slots=self.slots, rows=rows)

    def step(self, function: Callable[..., isl.Schedule], proof: Callable[[isl.Schedule], None] | None, *args: object) -> isl.Schedule:
        return self.steps.run(function.__name__, function, *args, show=trees.show, suffix="tree", check=proof)

    def proof(self, scop: Scop, deps: Dependences) -> Callable[[isl.Schedule], None] | None:
        """Of a tree that is the only one for some statements."""
        return None if self.prove == "none" else partial(verify, scop, deps)

    def dependences(self, scop: Scop) -> Dependences:
        return self.steps.run("dependences", dependences, scop, show=lambda d: f"{d.all}\n", suffix="txt")

    def under_outer_loops(self, statements: tuple[ScopStatement, ...]) -> isl.Schedule:
        """The tree of statements under the outer loops that they share, which threads share."""
        part, parallel = _part(self.scop, statements), self.options.parallel
        inside, mark = self.in_order(statements, self.options.but(parallel=False)), Tile(next(self.counter))
        if self.prove != "none":
            self.steps.run("verify outer loops", lambda: verify_outer_loops(part, dependences(part)))
        self.slices += contract_slices(self.scop, statements, mark)
        iterations = max(prod(s.extent(dim) for dim in s.outer.shared) for s in statements if s.outer)
        self.slots = max(self.slots, min(self.machine.threads, iterations)) if parallel else 1
        return trees.outer_tree(part, inside, mark, parallel=parallel)

    def in_order(self, statements: tuple[ScopStatement, ...], options: Options) -> isl.Schedule:
        """The tree of some statements: those of different kinds follow one another in the order of the program."""
        parts = []
        for kind, group in groupby(statements, key=_kind):
            part = _part(self.scop, tuple(group))
            if kind == "nest":
                tiled = [one for s in part.statements for one in s.tiled]
                worth = [options.parallel and worth_region(one.cycles, self.machine.costs) for one in tiled]
                made = [tile_tree(one, part.ctx, parallel=shared) for one, shared in zip(tiled, worth, strict=True)]
            elif kind == "scan":
                made = [self.alone(s, schedule_scan, options, self.counter) for s in part.statements]
            elif kind == "scatter":
                made = [self.alone(s, schedule_scatter, options, self.machine, self.counter) for s in part.statements]
            else:
                groups = row_groups(part, part.statements, self.machine) if options.uses_vectors else [part.statements]
                made = [self.in_rows(one, options) if isinstance(one, RowGroup) else self.in_loops(one, options) for one in groups]
            parts.append(reduce(isl.Schedule.sequence, made))
        return reduce(isl.Schedule.sequence, parts)

    def alone(self, s: ScopStatement, function: Callable[..., isl.Schedule], *args: object) -> isl.Schedule:
        """The tree of a statement by itself, made by a pass for statements of its kind."""
        one = _part(self.scop, (s,))
        return self.step(function, None if self.prove == "none" else self.proof(one, dependences(one)), one, s, *args)

    def in_rows(self, group: RowGroup, options: Options) -> isl.Schedule:
        """The tree of statements that run row by row."""
        scop = _part(self.scop, group.statements)
        deps = self.dependences(scop)
        tree = self.step(schedule_rows, self.proof(scop, deps), scop, group, options, self.counter)
        self.rows.append(group)
        self.contract(scop, deps, tree, options)
        return tree

    def in_loops(self, statements: tuple[ScopStatement, ...], options: Options) -> isl.Schedule:
        """The tree of statements in tiles of loops that groups of them share."""
        scop = _part(self.scop, statements)
        deps = self.dependences(scop)
        proof = self.proof(scop, deps)
        every = proof if self.prove == "every" else None
        groups = self.steps.run("fused_groups", fused_groups, scop, deps, options)
        self.step(fuse, every, scop, groups)  # that groups may share loops is proved of a tree; tiles are made from the groups
        plans = [plan_loops(scop, group, options, self.machine) for group in groups]
        tree = self.step(tile, every, scop, groups, plans, self.counter)
        tree = self.step(parallelise, every, scop, tree, options)
        self.contract(scop, deps, tree, options)
        if self.prove == "last" and proof is not None:
            self.steps.run("verify", proof, tree)
        return tree

    def contract(self, scop: Scop, deps: Dependences, tree: isl.Schedule, options: Options) -> None:
        """Collect the private buffers of a tree."""
        if options.private_buffers:
            check = None if self.prove == "none" else partial(verify_privates, scop, deps, tree)
            most = max(STACK_BYTES, self.machine.cache_bytes // 2)
            found = self.steps.run("contract", contract, scop, deps, tree, most, show=_show_privates, check=check)
            self.privates += found
            self.slots = max(self.slots, self.machine.threads if options.parallel else 1)


@_within_budget()
def map_gpu(
    program: Program,
    options: Options,
    device: Device,
    layouts: Mapping[str, str] | None = None,
    *,
    prove: Proof = "every",
    steps: Steps | None = None,
) -> Mapped:
    """Map a program to a GPU; what it raises is as for ``map_program``."""
    steps = steps or Steps(program.definition.name)
    scop = build_scop(program, options, layouts, device, steps, prove=prove)
    if not scop.statements:
        return Mapped(scop, isl.Schedule.empty(isl.Space.params_alloc(scop.ctx, 0)), (), options, True)
    check = None if prove == "none" else partial(verify_collapse, scop, merges=())
    scop = steps.run("order_axes", order_axes, scop, True, check=check)
    scop = _collapsed(scop, prove, steps, on_gpu=True)
    deps = steps.run("dependences", dependences, scop, show=lambda d: f"{d.all}\n", suffix="txt")
    every = partial(verify, scop, deps) if prove == "every" else None
    groups = steps.run("fused_groups", fused_groups, scop, deps, options, device.processors // 2, True)
    steps.run("fuse", fuse, scop, groups, show=trees.show, suffix="tree", check=every)
    check = None if prove == "none" else partial(_verify_lowered, scop)
    fused = steps.run("plan", plan_fused, scop, deps, groups, options, device, show=Plans.show, check=check)
    lowered = LoweredScop(fused.scop, fused.plans, {})
    last = None if prove == "none" else partial(_verify_lowered, fused.scop)
    for function in (promote_to_registers, split_reduction, pad_tiles, promote_to_shared):
        # the zeros that padded tiles need come with their copies
        check = last if function is promote_to_shared or (prove == "every" and function is not pad_tiles) else None
        lowered = steps.run(function.__name__, function, lowered, show=lambda low: low.scop.show(), suffix="scop", check=check)
    kernels = steps.run("assemble", assemble, lowered)
    kernels = steps.run("allocate", allocate, lowered, kernels, device, show=_show_kernels)
    tree = steps.run("map_to_blocks", map_to_blocks, lowered.scop, kernels, show=trees.show, suffix="tree")
    tree = steps.run("map_to_threads", map_to_threads, lowered.scop, tree, kernels, show=trees.show, suffix="tree")
    tree = steps.run("synchronise", synchronise, lowered, tree, kernels, device, show=trees.show, suffix="tree")
    launches = tuple(LaunchBounds(Launch(number), kernel.threads) for number, kernel in enumerate(kernels))
    buffers = tuple(buffer for kernel in kernels for buffer in kernel.buffers)
    if prove != "none":
        lowered_deps = steps.run("lowered dependences", dependences, lowered.scop)
        steps.run("verify", verify, lowered.scop, lowered_deps, tree)
        steps.run("verify buffers", verify_privates, lowered.scop, lowered_deps, tree, buffers)
        steps.run("verify races", partial(verify_races, warp=device.warp), lowered.scop, tree, buffers, launches)
    return Mapped(lowered.scop, tree, buffers, options, prove != "none", launches, _digits(lowered.scop, kernels))


def _digits(scop: Scop, kernels: tuple[GpuKernel, ...]) -> dict[str, Digits]:
    digits: dict[str, Digits] = {}
    for name, (item, plan) in (found for kernel in kernels for found in kernel.items.items()):
        shares = [(item.share(dim, plan.columns), lower, upper) for dim, lower, upper in scop.statement(name).bounds]
        digits[name] = tuple((lower, share.digits if share else ((1, max(1, upper - lower)),)) for share, lower, upper in shares)
    return digits


def _collapsed(scop: Scop, prove: Proof, steps: Steps, on_gpu: bool = False) -> Scop:
    check = None if prove == "none" else lambda made: verify_collapse(scop, *made)
    collapsed: Scop
    collapsed, _ = steps.run("collapse", collapse, scop, on_gpu, show=lambda made: made[0].show(), suffix="scop", check=check)
    return collapsed


def _verify_lowered(scop: Scop, lowered: Plans | LoweredScop) -> None:
    if lowered.scop is not scop:
        verify_lowering(scop, lowered.scop, lowered.aliases)


def _show_kernels(kernels: tuple[GpuKernel, ...]) -> str:
    return "".join(f"{Launch(n)}: {k.threads} threads\n{_show_privates(k.buffers)}" for n, k in enumerate(kernels))


def _show_privates(privates: tuple[Buffer, ...]) -> str:
    return "".join(f"{b.tensor} below {b.mark}, {b.space}: {b.elements} elements\n" for b in privates)
