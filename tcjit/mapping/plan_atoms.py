"""Contractions on tensor cores: a warp computes a tile in atoms, 16 by 8 results of 16 terms each, which its threads hold together.

What the code printer needs is decided here: whole atoms along every side of a tile, both operands in shared memory, each a matrix that an
instruction can load. Where no tile offers that, a contraction goes thread by thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from tcjit.grammar.ast import Access, Binary, Cast
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan
from tcjit.mapping.plan_contraction import asked, by_time, classes, tile_cycles, tiled
from tcjit.mapping.plan_facts import Facts, bounds, over_columns
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import accesses

# warps down and across a block's tile, and atoms of one warp down and across
TILES = ((2, 2, 4, 8), (2, 4, 4, 4), (2, 2, 2, 4), (2, 2, 1, 2), (1, 2, 1, 2))
# where a block has few rows: more warps across
FLAT = ((2, 4, 2, 4), (1, 8, 2, 4), (1, 4, 2, 4), (1, 8, 1, 4), (1, 4, 1, 4), (1, 4, 1, 2))
ROWS, COLUMNS, TERMS = 16, 8, 16  # of one atom
STAGES = (3, 2, 1)  # of the copies: asynchronous ones keep the next steps out of the registers, which the results fill
STEPS = (64, 32, 16)  # terms that pass through shared memory at once: 128 bytes of a row, or what divides it


def on_tensor_cores(facts: Facts) -> GroupPlan | None:
    """The plan of a product of two half-precision matrices; None for anything else, and where no tile suits it."""
    s = facts.main
    if "mma" not in facts.device.capabilities or not facts.options.shared or not _product_of_halves(s):
        return None
    if s.constraints and not over_columns(s, facts.dims(s)):
        return None
    found = classes(facts)
    apart = set(s.dims) - set(facts.dims(s)) - set(s.reduction)
    open_ended = any(dim in s.reduction for dim, _, _ in s.dynamic_bounds)  # of a dynamic size: the last step may be short of whole atoms
    if found is None or not s.reduction or apart or open_ended:
        return None
    across, down = (each.columns[0] for each in found)
    candidates = []
    for wy, wx, ay, ax in (*TILES, *FLAT) if facts.block else TILES:
        rows, columns = wy * ay * ROWS, wx * ax * COLUMNS
        fits = rows < 2 * facts.extent(down) and columns < 2 * facts.extent(across)
        fits = fits and not (facts.block and facts.most(down) % rows)
        if fits and wy * wx * facts.device.warp <= facts.most_threads:
            candidates.append({down: facts.share(down, rows, 8, 1, wy), across: facts.share(across, columns, 4, 2, wx)})
    sides, rate = [[down], [across]], facts.device.costs.mma_rate
    fitting: list[tuple[float, GroupPlan]] = []
    for shares in by_time(facts, candidates, sides, lambda _: (STEPS[0], STAGES[0]), rate):
        for step, atoms in _atoms(facts, s):
            for stages in STAGES if "async_copy" in facts.device.capabilities and not asked(facts) else (1,):
                plan = tiled(facts, shares, [down, across], step, atoms, stages).plan
                item = next(item for item in plan.items if item.statement == s.name)
                whole = item.padded or (not s.constraints and _whole(facts, plan, item))
                kept = sum(facts.block is not None and a.tensor in facts.block.kept for a in accesses(s)[2:])
                if whole and sum(name == s.name for name, _ in plan.shared) + kept == 2:
                    if facts.block is None:
                        return plan
                    # beside what is kept, the stages for which there is room decide
                    fitting.append((tile_cycles(facts, shares, sides, (step, plan.stages), rate), plan))
    return min(fitting, key=lambda found: found[0])[1] if fitting else None


def _atoms(facts: Facts, s: ScopStatement) -> Iterator[tuple[int, tuple[tuple[str, Distribution], ...]]]:
    """The terms of a step, and the steps of all dimensions of the reduction: one that has whole atoms comes last, the others one by one."""
    for dim in sorted(s.reduction, key=s.extent, reverse=True):
        lower, upper = bounds(s, dim)
        others = tuple((other, Distribution(bounds(s, other)[0], s.extent(other), 1)) for other in s.reduction if other != dim)
        for step in _steps(upper - lower, facts.options.reduction_tile):
            yield step, (*others, (dim, Distribution(lower, upper - lower, step)))


def _whole(facts: Facts, plan: GroupPlan, item: StatementPlan) -> bool:
    """Whether atoms compute nothing beyond the last term, and no more than whole tiles of threads have."""
    s = facts.scop.statement(item.statement)
    shares = [(dim, share) for dim in s.dims if (share := item.share(dim, plan.columns)) is not None]
    return all(share.tile <= share.extent and (dim not in s.reduction or share.extent % share.tile == 0) for dim, share in shares)


def _steps(terms: int, asked: int) -> list[int]:
    """How many terms may pass at once, the best first: whole atoms, and all steps alike, or the last one filled up with zeros."""
    wanted = (asked,) if asked else STEPS
    if terms in (2 * n for n in wanted):
        wanted = (terms, *wanted)
    atoms = [n for n in wanted if n % TERMS == 0]
    return [n for n in atoms if terms % n == 0] or [n for n in atoms if n < 2 * terms]


def _product_of_halves(s: ScopStatement) -> bool:
    """Whether a statement adds products of two elements of one half-precision type in float32."""
    if s.operator != "+=" or not isinstance(s.value, Cast) or s.value.dtype != "float32" or not isinstance(s.value.operand, Binary):
        return False
    product = s.value.operand
    operands = (product.left, product.right)
    halves = product.dtype in ("float16", "bfloat16")
    return product.op == "*" and halves and all(isinstance(a, Access) and a.dtype == product.dtype for a in operands)
