"""Fused kernels: groups that hand temporaries to each other, tile by tile, run in one kernel, which keeps these in shared memory.

Groups that follow each other share columns along which every dependence between them has distance zero. A block takes a tile of one of
these, one value of each other, and all of the columns that a group has for itself. Each group keeps a plan of its own kind, whose tiles
the block takes one after the other. The model (``kernel_time``) compares that with kernels of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.affine import affine
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.gpu.kernel_time import Phase, cycles
from tcjit.mapping.gpu.plan_group import plan_group
from tcjit.mapping.gpu.statement_group import BLOCK, BlockShape, StatementGroup
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan, by_kernel
from tcjit.mapping.machine import Device
from tcjit.mapping.marks import GridBlock
from tcjit.mapping.options import Options
from tcjit.mapping.passes.allocate import passed_on
from tcjit.mapping.passes.fuse import same_box, shared_columns
from tcjit.mapping.scop import Group, Scop, ScopStatement
from tcjit.mapping.scop_builder import identity_alias
from tcjit.mapping.storage import BOUNDARY, fresh
from tcjit.mapping.strides import accesses

TILES = (128, 64, 32, 16)  # values of the column of which a block takes several
RESIDENT = (1, 2, 3, 4)  # blocks that a processor is to hold at once
RESERVED = 1024  # bytes of shared memory that the system takes for each block
SMALL = 2048  # bytes of shared memory for what a block keeps beside tiles and pieces: statistics of rows, parts of reductions
CLOSE = 1.05  # of the least time that ways take which are as good
WORTH = 0.9  # of the time of kernels of their own that a fused one may take: the model is rough

Columns = Sequence[Mapping[str, str]]  # statement -> dimension


@dataclass(frozen=True)
class Plans:
    """The plans of all groups, and the scop that they are for; ``aliases``: as of a lowering, for temporaries that it has for live ranges;
    ``considered``: which groups could run in one kernel, and what the model says of that."""

    scop: Scop
    plans: tuple[GroupPlan, ...]
    aliases: Mapping[str, str]
    considered: tuple[str, ...]

    def show(self) -> str:
        kernels = [" | ".join(" ".join(item.statement for item in plan.items) for plan in plans) for plans in by_kernel(self.plans)]
        return "\n".join([*kernels, *self.considered]) + "\n"


def plan_fused(scop: Scop, deps: Dependences, groups: Sequence[Group], options: Options, device: Device) -> Plans:
    """The plans of all groups; those that go on in the kernel of the group before them are marked ``fused``."""
    alone = [Phase(g, plan_group(g)) for g in (StatementGroup(scop, group, options, device) for group in groups)]
    plans: list[GroupPlan] = []
    aliases: dict[str, str] = {}
    considered: list[str] = []
    while len(plans) < len(groups):
        fused = _fused(scop, deps, alone[len(plans) :], considered)
        if fused is None:
            plans.append(alone[len(plans)].plan)
            continue
        plans += [replace(phase.plan, fused=number > 0) for number, phase in enumerate(fused)]
        aliases |= range_aliases(scop, fused[0].group.scop)
        scop = fused[0].group.scop
    return Plans(scop, tuple(plans), aliases, tuple(considered))


def _fused(scop: Scop, deps: Dependences, alone: Sequence[Phase], considered: list[str]) -> list[Phase] | None:
    """The first groups in one kernel, as many as save the most; None where they are better alone. Adds what was ``considered``."""
    options = alone[0].group.options
    if options.fusion == "minimal" or not options.shared or scop.parameters:
        return None
    best: tuple[float, list[Phase] | None] = (0.0, None)
    for count, columns in _chains(scop, deps, [phase.group.group for phase in alone]):
        own = sum(cycles([phase]) for phase in alone[:count])
        ways = [(cycles(way), way) for way in _ways([replace(phase.group, scop=scop) for phase in alone[:count]], columns)]
        time, phases = _best(ways)
        considered.append(f"{_tensors(alone[:count])} in one kernel: {_estimate(time, own, phases)}")
        if phases is not None and time < WORTH * own and own - time > best[0]:
            best = own - time, phases
    return best[1]


def _best(ways: Sequence[tuple[float, list[Phase]]]) -> tuple[float, list[Phase] | None]:
    """The fastest way; of some that take about as long, one with several blocks of a processor: one computes while others wait."""
    least = min((time for time, _ in ways), default=0.0)
    return min(((time, way) for time, way in ways if time <= least * CLOSE), key=_blocks_and_time, default=(0.0, None))


def _blocks_and_time(way: tuple[float, Sequence[Phase]]) -> tuple[int, float]:
    block = way[1][0].group.block
    return -min(block.resident, 2) if block else 0, way[0]


def _tensors(phases: Sequence[Phase]) -> str:
    return " | ".join(" ".join(dict.fromkeys(s.tensor for s in phase.group.statements)) for phase in phases)


def _estimate(time: float, own: float, phases: Sequence[Phase] | None) -> str:
    block = phases[0].group.block if phases else None
    if block is None:
        return "no tile fits in shared memory"
    kept = ", ".join(sorted(block.kept))
    tile = max(block.values.values())
    return f"{time:.0f} cycles with {kept} in shared memory, {tile} at a time, and {own:.0f} in kernels of their own"


def _chains(scop: Scop, deps: Dependences, groups: Sequence[Group]) -> list[tuple[int, Columns]]:
    """How many groups share columns, and these."""
    found: list[tuple[int, Columns]] = []
    every = groups[0]
    for number, other in enumerate(groups[1:], 2):
        columns = tuple(shared_columns(scop, deps, every, other))
        # blocks share a result whose parts they have, or that data pick
        parts = any(scop.statement(name).fuse_outer_only for name in other.statements)
        picked = any(scop.statement(name).scatter for name in (*every.statements, *other.statements))
        if not columns or parts or picked or not same_box(scop, columns):
            break
        every = Group(every.statements + other.statements, columns)
        found.append((number, columns))
    return found


def _ways(chain: Sequence[StatementGroup], columns: Columns) -> Iterator[list[Phase]]:
    """Plans with which groups can run in one kernel."""
    scop, device = _split(chain), chain[0].device
    chain = [replace(g, scop=scop) for g in chain]
    chain = [replace(g, group=_shared_first(g.group, columns)) for g in chain]
    for several, column in enumerate(columns):
        name, dim = next(iter(column.items()))
        extent = scop.statement(name).extent(dim)
        for tile in dict.fromkeys(min(tile, extent) for tile in TILES):
            values = {c: tile if c == several else 1 for c in range(len(columns))}
            kept = _kept(chain, values)
            for resident in RESIDENT if kept else ():
                room = (device.max_shared_bytes + RESERVED) // resident - RESERVED - SMALL - sum(kept.values())
                made = _phases(chain, BlockShape(values, frozenset(kept), room, resident)) if room > 0 else None
                if made is not None:
                    yield made


def _shared_first(group: Group, columns: Columns) -> Group:
    """A group with the columns that it shares before its own."""
    shared = [{name: column[name] for name in group.statements} for column in columns]
    return Group(group.statements, (*shared, *(column for column in group.columns if column not in shared)))


def _handed(chain: Sequence[StatementGroup]) -> set[str]:
    """The tensors that a group writes and another one uses."""
    written = [{s.tensor for s in g.statements} for g in chain]
    used = [{a.tensor for s in g.statements for a in accesses(s)} for g in chain]
    return {t for n, tensors in enumerate(written) for m, others in enumerate(used) if n != m for t in tensors & others}


def _split(chain: Sequence[StatementGroup]) -> Scop:
    """The scop, where what groups hand to each other in a tensor that has to be in memory later is a temporary of its own."""
    scop = chain[0].scop
    inside = {name for g in chain for name in g.group.statements}
    for tensor in sorted(_handed(chain)):
        users = {s.name for s in scop.statements if any(a.tensor == tensor for a in accesses(s))}
        if scop.tensor(tensor).role == "output" or not users <= inside:
            scop = split_live_range(scop, tensor, inside) or scop
    return scop


def _kept(chain: Sequence[StatementGroup], values: Mapping[int, int]) -> dict[str, int]:
    """The temporaries that groups hand to each other, and their bytes in a block of so many values of columns; nothing where one of them
    has to stay in memory."""
    scop = chain[0].scop
    plans = []
    for g in chain:
        blocks = tuple(Distribution(g.lower(c), g.extent(c), values.get(c, g.extent(c))) for c in g.columns)
        plans.append(GroupPlan(blocks, (), tuple(StatementPlan(s.name, g.dims(s)) for s in g.statements)))
    found: dict[str, int] = {}
    for storage in scop.tensors:
        buffer = passed_on(scop, plans, storage, GridBlock(0))
        if buffer is not None:
            found[storage.name] = -(-buffer.elements * DTYPES[storage.dtype].bytes // BOUNDARY) * BOUNDARY
    return found if _handed(chain) <= set(found) else {}


def _phases(chain: Sequence[StatementGroup], shape: BlockShape) -> list[Phase] | None:
    """A plan for each group; None unless their blocks are the same, and all operands of products find room in shared memory, in the
    steps and stages that options ask for."""
    products = [g for g in chain if g.main.reduction and len(accesses(g.main)) > 3]
    each = replace(shape, room=shape.room // max(1, len(products)))
    made: dict[int, Phase] = {}
    for number, g in sorted(enumerate(chain), key=lambda pair: pair[1] not in products):
        threads = max([BLOCK, *(phase.plan.threads for phase in made.values())])
        within = g.within(replace(each, threads=min(threads, g.most_threads)))
        try:
            made[number] = Phase(within, plan_group(within))
        except MappingError:
            return None
    phases = [made[number] for number in range(len(chain))]
    for phase in phases:
        shares = phase.plan.columns
        if any(share.sequence * share.tile != shape.values[c] for c, share in enumerate(shares) if c in shape.values):
            return None
        if phase.product is not None and not phase.in_shared_memory:
            return None
    return phases


# ---------------------------------------------------------------- live ranges

# A program may compute into a result step by step. What the steps before the last hand on can then stay in a block, while the result, or
# what others read later, goes to memory.


def split_live_range(scop: Scop, tensor: str, inside: Collection[str]) -> Scop | None:
    """The scop with a temporary for what a tensor holds before the last of the statements ``inside`` that overwrites all of it; None where
    others use it before, or no statement does so."""
    users = [s for s in scop.statements if any(a.tensor == tensor for a in accesses(s))]
    if any(affine(sub, scop.values) is None for s in users for a in accesses(s) if a.tensor == tensor for sub in a.subscripts):
        return None
    writers = [n for n, s in enumerate(users) if s.tensor == tensor and s.name in inside and _overwrites(scop, s)]
    over = max(writers, default=0)
    if over == 0 or any(s.name not in inside for s in users[:over]):
        return None
    old = scop.tensor(tensor)
    taken = {t.name for t in scop.tensors} | {p.name for p in scop.program.definition.params}
    new = replace(old, name=fresh(f"{tensor}_before", taken), role="temporary")
    changed = {s.name: _renamed(s, tensor, new.name, write=True) for s in users[:over]}
    changed[users[over].name] = _renamed(users[over], tensor, new.name, write=False)
    return replace(scop, statements=tuple(changed.get(s.name, s) for s in scop.statements), tensors=(*scop.tensors, new))


def range_aliases(before: Scop, after: Scop) -> dict[str, str]:
    """The temporaries that ``after`` has for live ranges of ``before``, with maps to the tensors that they stand for."""
    known = {t.name for t in before.tensors}
    pairs = [(old, new) for old, new in zip(before.statements, after.statements, strict=True) if old != new]
    tensor_of = {b.tensor: a.tensor for old, new in pairs for a, b in zip(accesses(old), accesses(new), strict=True)}
    return {t.name: identity_alias(t.name, tensor_of[t.name], len(t.shape)) for t in after.tensors if t.name not in known}


def _overwrites(scop: Scop, s: ScopStatement) -> bool:
    """Whether a statement gives every element of its tensor a value that depends on no other element."""
    elsewhere = any(a.tensor == s.tensor and a.subscripts != s.subscripts for a, _ in s.reads)
    if s.operator != "=" or elsewhere:
        return False
    writes = scop.relations([scop.access_text(s, s.tensor, s.subscripts, ())])
    return bool(writes.is_injective() and scop.elements.intersect(scop.universe(s.tensor)).is_subset(writes.range()))


def _renamed(s: ScopStatement, tensor: str, new: str, *, write: bool) -> ScopStatement:
    renamed = s.with_accesses(lambda access: replace(access, tensor=new) if access.tensor == tensor else access)
    return renamed if write else replace(renamed, tensor=s.tensor)
