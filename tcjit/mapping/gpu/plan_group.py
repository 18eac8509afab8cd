"""The plan of a group of statements for a GPU: of all ways to share it out, the one that takes the least time."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from tcjit.errors import MappingError
from tcjit.grammar.ast import Access
from tcjit.mapping.footprint import piece
from tcjit.mapping.gpu.candidates import elements, fma_tiles, mma_tiles, rows, scattered, shared_elements, squares
from tcjit.mapping.gpu.kernel_time import Phase, cycles
from tcjit.mapping.gpu.statement_group import MemoryAccess, StatementGroup, over_columns
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.machine import BUFFER_REGISTERS, Device
from tcjit.mapping.options import Options
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.storage import BOUNDARY

WORTH = 0.9  # of the time of the plans before them that ways further down the list may take: the model is rough


def plan_group(g: StatementGroup) -> GroupPlan:
    """The plan of one group. A MappingError for options that the device cannot serve, and for those with which no tile fits."""
    _check(g.options, g.device)
    if g.main.scatter:
        return scattered(g)
    options, tile = g.options, _tile(g)
    asked = options.registers or len(options.threads) > 1 or options.reduction_tile or options.pipeline_stages
    if tile and (asked or any(item.mma for item in tile.items)):
        return replace(tile, vector=options.vector)
    best, least = None, inf
    for plans in ([tile] if tile else [], squares(g), rows(g, True), elements(g), rows(g, False), shared_elements(g)):
        times = {plan: cycles([Phase(g, plan)]) for plan in plans}
        plan = min(times, key=lambda plan: times[plan], default=None)
        if plan is not None and times[plan] < WORTH * least:
            best, least = plan, times[plan]
    assert best is not None
    return replace(best, vector=options.vector)


def _check(options: Options, device: Device) -> None:
    """A MappingError for options that the device cannot serve."""
    block, most, threads, results = options.block, device.max_threads, prod(options.threads), prod(options.registers)
    asked = f"option threads = {options.threads} asks for {threads} threads, and"
    kept = f"option registers = {options.registers} asks for {results} results of a thread, which can keep {BUFFER_REGISTERS}"
    for wrong, what, hint in (
        (block > most, f"option block = {block} is more than the {most} threads that a block has on {device.name}", f"block={most}"),
        (threads > most, f"{asked} a block on {device.name} has at most {most}", "threads=(8, 8)"),
        (options.threads and 0 < block < threads, f"{asked} option block = {block} for fewer", f"block={threads}, or none"),
        (results > BUFFER_REGISTERS, kept, "registers=(8, 8)"),
    ):
        if wrong:
            raise MappingError(what, hint=hint)


# ---------------------------------------------------------------- tiles, whose operands go through shared memory


def _tile(g: StatementGroup) -> GroupPlan | None:
    """The fastest tile whose operands find room, one of tensor cores if any does; None without two operands that are read again."""
    for draft in sorted(dict.fromkeys(mma_tiles(g)), key=lambda draft: Phase(g, draft).product_cycles()):
        plan, _ = _with_operands(g, draft)
        if _computes_whole_instructions(g, plan):
            return plan
    refused: list[tuple[Access, int]] = []
    for draft in sorted(dict.fromkeys(fma_tiles(g)), key=lambda draft: Phase(g, draft).product_cycles()):
        plan, beyond = _with_operands(g, draft)
        # what nobody asked for may be read where it lies
        if beyond is None or (plan.stages == 1 and not _more_asked(g)):
            return plan
        refused.append(beyond)
    if refused:
        raise _too_large(g, *min(refused, key=lambda beyond: beyond[1]))
    return None


def _more_asked(g: StatementGroup) -> bool:
    """Whether the user wants so much in shared memory as only a launch can give."""
    return bool(g.options.reduction_tile) or g.options.pipeline_stages > 1


def _with_operands(g: StatementGroup, draft: GroupPlan) -> tuple[GroupPlan, tuple[Access, int] | None]:
    """A plan with the copies for which there is room in shared memory, and tiles that are filled up with zeros where these are copied; an
    operand that finds no room, and the bytes that it takes."""
    items = tuple(replace(item, padded=_pads(g, s, item, draft)) for s, item in zip(g.statements, draft.items, strict=True))
    for way in (replace(draft, items=items), draft):
        plan, beyond = _with_copies(g, way)
        copied = {name: {a for of, a in plan.shared if of == name} for name in g.group.statements}
        if all(a.access in copied[item.statement] for item in plan.items if item.padded for a in _operands(g, item)):
            break
    return plan, beyond


def _operands(g: StatementGroup, item: StatementPlan) -> tuple[MemoryAccess, ...]:
    return g.operands(g.scop.statement(item.statement))


def _with_copies(g: StatementGroup, plan: GroupPlan) -> tuple[GroupPlan, tuple[Access, int] | None]:
    shared: list[tuple[str, Access]] = []
    beyond = None
    room = g.device.shared_bytes
    if g.block:
        room = g.block.room
    elif _more_asked(g):
        room = g.device.max_shared_bytes
    elif plan.stages > 1:
        room = g.device.max_shared_bytes // 2  # a second block hides what the first one waits for
    for s, item in zip(g.statements, plan.items, strict=True):
        for a in g.operands(s) if item.steps and g.options.shared else ():
            if a.tensor in g.kept:
                continue
            copied = piece(g.scop.tensor(a.tensor), s, plan, item, a.access, g.scop.values)
            if copied is None or not _reused(g, s, plan, a):
                continue
            size = -(-copied.elements * plan.stages * a.bytes // BOUNDARY) * BOUNDARY
            if size <= room:
                shared.append((s.name, a.access))
                room -= size
            else:
                beyond = beyond or (a.access, size)
    return replace(plan, shared=tuple(shared)), beyond


def _reused(g: StatementGroup, s: ScopStatement, plan: GroupPlan, a: MemoryAccess) -> bool:
    """Whether several threads of a block read one element."""
    shared_out = [dim for share, dim in zip(plan.columns, g.dims(s), strict=True) if share.shared_out]
    return bool(a.shifted) or any(not a.moves(dim) for dim in shared_out)


def _pads(g: StatementGroup, s: ScopStatement, item: StatementPlan, plan: GroupPlan) -> bool:
    """Whether a statement is to compute whole tiles: a sum of products whose every factor has an axis of its own for the terms of
    steps that are not all whole."""
    if not item.steps or s.operator != "+=" or s.dynamic_bounds or not is_plain_product(s.value):
        return False
    shared_out = [(dim, share) for dim in s.dims if (share := item.share(dim, plan.columns)) is not None]
    if any(s.ranges[dim] != (share.lower, share.lower + share.extent) for dim, share in shared_out):
        return False
    if any(share.tiles > 1 and share.tile != share.whole_tile for _, share in shared_out):
        return False
    partial = {dim for dim, share in shared_out if share.extent % share.whole_tile}
    single = {dim for dim, share in shared_out if share.whole_tile == 1}
    for a in g.operands(s):
        moving = [{dim: f for dim, f in form.items() if dim not in single} for form in a.forms]
        if any([factors for factors in moving if dim in factors] != [{dim: 1}] for dim in partial & set(s.reduction)):
            return False
    return bool(partial) or over_columns(s, item.columns)


def _computes_whole_instructions(g: StatementGroup, plan: GroupPlan) -> bool:
    """What the printer of tensor cores needs: both operands in shared memory, whole instructions along every side of a tile, and nothing
    computed beyond the last term, nor by more than whole tiles of threads."""
    s = g.main
    item = next(item for item in plan.items if item.statement == s.name)
    if not Phase(g, plan).in_shared_memory:
        return False
    shares = [(dim, share) for dim in s.dims if (share := item.share(dim, plan.columns)) is not None]
    whole = all(share.tile <= share.extent and (dim not in s.reduction or share.extent % share.tile == 0) for dim, share in shares)
    return item.padded or (not s.constraints and whole)


def _too_large(g: StatementGroup, access: Access, size: int) -> MappingError:
    name = "reduction_tile" if g.options.reduction_tile else "pipeline_stages"
    return MappingError(
        f"option {name} = {getattr(g.options, name)}: the pieces of {access.tensor} need {size} bytes of "
        f"shared memory beside the other operands, and a block on {g.device.name} has {g.device.max_shared_bytes}",
        hint=f"a smaller {name}, or fewer registers",
    )
