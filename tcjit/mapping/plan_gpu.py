"""The analytic model for GPUs: what each group's blocks, threads and registers get, from strides, reuse and extents.

Three kinds of group. A *contraction* reads every operand for many results: a block computes a tile, each thread a patch of it in registers,
and the operands pass through shared memory in steps. In *rows*, neighbours in memory lie along a dimension that statements do not
share: the threads of a block take a row together. In *columns*, neighbours lie along a shared dimension: a thread for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Cast
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.kernels import GroupPlan, Item, Share
from tcjit.mapping.machine import Device
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import Group
from tcjit.mapping.passes.place import REGISTERS
from tcjit.mapping.passes.promote import pieces
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, affine_form, stride

# threads along rows and columns of a block's tile, and results of one thread along them
TILES = ((16, 16, 8, 8), (16, 16, 4, 4), (8, 16, 4, 4), (16, 16, 2, 2), (8, 16, 2, 2), (8, 8, 2, 2), (16, 16, 1, 1), (8, 8, 1, 1))
# for tensor cores: warps down and across a block's tile, and 16 by 8 atoms of one warp down and across
ATOM_TILES = ((2, 2, 4, 8), (2, 4, 4, 4), (2, 2, 2, 4), (2, 2, 1, 2), (1, 2, 1, 2))
ATOM = (16, 8, 16)  # rows, columns and terms of one instruction
ATOM_STEPS = (64, 32, 16)  # terms that pass through shared memory at once: 128 bytes of a row, or what divides it
STEP = 8  # terms of a reduction that pass through shared memory at once
ROW_ELEMENTS = 16  # of a row, for each thread, before more threads take it
BLOCK = 256  # threads of a block where nothing else decides
SQUARE = 32  # side of the tile that turns a transposed read


def plan_gpu(scop: Scop, group: Group, options: Options, device: Device) -> GroupPlan:
    """The plan of one group."""
    _check(options, device)
    model = _Model(scop, group, options, device)
    return model.contraction() or model.rows() or model.in_columns()


def _check(options: Options, device: Device) -> None:
    """A MappingError for options that the device cannot serve."""
    if options.block > device.max_threads:
        raise MappingError(
            f"option block = {options.block} is more than the {device.max_threads} threads that a block has on {device.name}",
            hint=f"block={device.max_threads}",
        )
    if options.threads and prod(options.threads) > device.max_threads:
        raise MappingError(
            f"option threads = {options.threads} asks for {prod(options.threads)} threads, and a block on {device.name} has at most "
            f"{device.max_threads}",
            hint="threads=(8, 8)",
        )
    if options.threads and options.block and prod(options.threads) > options.block:
        raise MappingError(
            f"option threads = {options.threads} asks for {prod(options.threads)} threads, and option block = {options.block} for fewer",
            hint=f"block={prod(options.threads)}, or none",
        )
    if options.registers and prod(options.registers) > REGISTERS:
        raise MappingError(
            f"option registers = {options.registers} asks for {prod(options.registers)} results of a thread, which can keep {REGISTERS}",
            hint="registers=(8, 8)",
        )


@dataclass(frozen=True)
class _Class:
    """Columns that the same operands use, the one nearest in memory first."""

    columns: tuple[int, ...]
    points: int


class _Model:
    def __init__(self, scop: Scop, group: Group, options: Options, device: Device) -> None:
        self.scop = scop
        self.group = group
        self.options = options
        self.device = device
        self.statements = [scop.statement(name) for name in group.statements]
        self.main = max(self.statements, key=lambda s: (s.points, bool(s.reduction)))
        self.most_threads = min(options.block or BLOCK, device.max_threads)

    # ------------------------------------------------------------ facts

    def dims(self, s: ScopStatement) -> tuple[str, ...]:
        """The dimensions of a statement that run along the columns."""
        return tuple(column[s.name] for column in self.group.columns)

    def extent(self, column: int) -> int:
        return self.main.extent(self.dims(self.main)[column])

    def lower(self, column: int) -> int:
        dim = self.dims(self.main)[column]
        return next(low for name, low, _ in self.main.bounds if name == dim)

    def whole(self, column: int) -> Share:
        """A column of which each block takes one value."""
        return Share(self.lower(column), self.extent(column), 1)

    def items(self) -> tuple[Item, ...]:
        return tuple(Item(s.name, self.dims(s)) for s in self.statements)

    def nearness(self, s: ScopStatement, dim: str) -> tuple[int, bool, int]:
        """How well neighbours along a dimension lie in memory: elements of accesses that move by one there, less those that jump."""
        score = 0
        for a in accesses(s):
            step = stride(self.scop, a, dim)
            touched = prod(s.extent(d) for d in s.dims if _moves_with(self.scop, a, d))
            score += touched * ((step == 1) - (step not in (0, 1)))
        return score, stride(self.scop, accesses(s)[0], dim) == 1, s.extent(dim)

    def shared_out(self, columns: Sequence[int], threads: int, results: int, warps: int = 1) -> dict[int, Share]:
        """Threads and results dealt to columns, the nearest in memory first; that one also over warps, if it is long enough."""
        shares: dict[int, Share] = {}
        for place, c in enumerate(columns):
            extent = self.extent(c)
            count = min(threads, extent)
            each = min(results, -(-extent // count))
            vector = next(v for v in (4, 2, 1) if each % v == 0) if place == 0 else 1
            tile = count * each
            apart = warps if place == 0 and count == threads and tile <= extent else 1
            shares[c] = Share(self.lower(c), extent, min(tile, extent), count // apart, vector, apart)
            threads, results = threads // count, results // each
        return shares

    # ------------------------------------------------------------ contractions

    def contraction(self) -> GroupPlan | None:
        """A tile of results per block, if two classes of columns each reuse an operand."""
        s = self.main
        if not s.reduction or len(self.group.columns) < 2:
            return None
        reads = list(dict.fromkeys(accesses(s)[2:]))
        if any(affine_form(sub, self.scop.values) is None for a in reads for sub in a.subscripts):
            return None
        classes = self._classes(s, reads)
        if len(classes) < 2 or prod(s.extent(d) for d in s.reduction) < 4:
            return None
        across, down = classes
        if plan := self._on_tensor_cores(s, across.columns[0], down.columns[0]):
            return plan
        best: tuple[float, GroupPlan] | None = None
        for ty, tx, ry, rx in self._tiles():
            wy, wx = self._warps(ty, tx)
            shares = self.shared_out(across.columns, tx, rx, wx) | self.shared_out(down.columns, ty, ry, wy)
            time = self._time(shares)
            if best is None or time < best[0]:
                best = time, self._contraction(shares, [*reversed(down.columns), *reversed(across.columns)])
        return best[1] if best else None

    def _on_tensor_cores(self, s: ScopStatement, across: int, down: int) -> GroupPlan | None:
        """The plan of a product of two half-precision matrices, whole in every instruction along the reduction."""
        if "mma" not in self.device.capabilities or not self.options.shared or not _product_of_halves(s):
            return None
        apart = set(s.dims) - set(self.dims(s)) - set(s.reduction)
        terms = s.extent(s.reduction[0]) if len(s.reduction) == 1 and not apart else 0
        step = self.options.step or next((n for n in ATOM_STEPS if terms % n == 0), ATOM[2])
        if not terms or terms % step or step % ATOM[2] or s.constraints:
            return None
        best: tuple[float, GroupPlan] | None = None
        for wy, wx, ay, ax in ATOM_TILES:
            rows, columns = wy * ay * ATOM[0], wx * ax * ATOM[1]
            if rows > self.extent(down) or columns > self.extent(across) or wy * wx * self.device.warp > self.most_threads:
                continue
            shares = {
                down: Share(self.lower(down), self.extent(down), rows, 8, 1, wy),
                across: Share(self.lower(across), self.extent(across), columns, 4, 2, wx),
            }
            time = self._time(shares)
            if best is None or time < best[0]:
                best = time, self._contraction(shares, [down, across], atoms=step)
        return best[1] if best else None

    def _tiles(self) -> Sequence[tuple[int, int, int, int]]:
        threads, results = self.options.threads, self.options.registers
        found = [t for t in TILES if t[0] * t[1] <= self.most_threads] or [(1, self.most_threads, 1, 1)]
        if threads:
            found = [(threads[0], threads[1], ry, rx) for _, _, ry, rx in found]
        if results:
            found = [(ty, tx, results[0], results[1]) for ty, tx, _, _ in found]
        return list(dict.fromkeys(found))

    def _warps(self, ty: int, tx: int) -> tuple[int, int]:
        """How the warps of a block lie in its tile, where a warp is 8 threads down and 4 across: the shape that loads the least."""
        if self.device.warp != 32 or ty % 8 or tx % 4:
            return 1, 1
        return ty // 8, tx // 4

    def _classes(self, s: ScopStatement, reads: Sequence[Access]) -> list[_Class]:
        """The class with the column nearest in memory, then the largest other one."""
        by_use: dict[frozenset[int], list[int]] = {}
        for c, dim in enumerate(self.dims(s)):
            used = frozenset(n for n, a in enumerate(reads) if _moves_with(self.scop, a, dim))
            if self.extent(c) > 1 and used and len(used) < len(reads):
                by_use.setdefault(used, []).append(c)
        write = accesses(s)[0]
        ranked = []
        for columns in by_use.values():
            columns.sort(key=lambda c: (_distance(stride(self.scop, write, self.dims(s)[c])), -c))
            ranked.append(_Class(tuple(columns), prod(self.extent(c) for c in columns)))
        if len(ranked) < 2:
            return []
        across = min(ranked, key=lambda k: _distance(stride(self.scop, write, self.dims(s)[k.columns[0]])))
        down = max((k for k in ranked if k is not across), key=lambda k: k.points)
        return [across, down]

    def _time(self, shares: dict[int, Share]) -> float:
        """Waves of blocks times the time of one: arithmetic, and what it must load for it from shared memory."""
        blocks = prod(shares[c].tiles if c in shares else self.extent(c) for c in range(len(self.group.columns)))
        points = prod(share.tile for share in shares.values())
        each = [share.each for share in shares.values()]
        loads = 1 + 2 * sum(each) / prod(each)
        return -(-blocks // self.device.processors) * points * loads

    def _contraction(self, shares: dict[int, Share], order: Sequence[int], *, atoms: int = 0) -> GroupPlan:
        columns = tuple(shares.get(c) or self.whole(c) for c in range(len(self.group.columns)))
        items = []
        for s in self.statements:
            item = Item(s.name, self.dims(s))
            if s.reduction and len(accesses(s)) > 3:
                item = replace(item, steps=self._steps(s, atoms or self.options.step or STEP), atoms=bool(atoms) and s is self.main)
            items.append(item)
        # copies cannot run further ahead than the loop of steps is long
        trips = [[share.tiles for _, share in item.steps if share.tiles > 1] for item in items]
        stages = min([self.options.stages, *(loops[-1] for loops in trips if loops)])
        shared: list[tuple[str, Access]] = []
        asked = self.options.step or self.options.stages > 1
        room = self.device.max_shared_bytes if asked else self.device.shared_bytes
        for s, item in zip(self.statements, items):
            for a in dict.fromkeys(accesses(s)[2:]) if item.steps else ():
                size = self._size(s, item, columns, a)
                if not self.options.shared or size is None or not self._reused(s, columns, a):
                    continue
                if size * stages <= room:
                    shared.append((s.name, a))
                    room -= size * stages
                elif asked:
                    self._too_large(a, size * stages)
        spread = tuple(c for c in order if columns[c].shared_out)
        return GroupPlan(columns, spread, tuple(items), shared=tuple(shared), stages=stages)

    def _too_large(self, access: Access, size: int) -> None:
        name = "step" if self.options.step else "stages"
        raise MappingError(
            f"option {name} = {getattr(self.options, name)}: the pieces of {access.tensor} need {size} bytes of "
            f"shared memory beside the other operands, and a block on {self.device.name} has {self.device.max_shared_bytes}",
            hint=f"a smaller {name}, or fewer registers",
        )

    def _steps(self, s: ScopStatement, wanted: int) -> tuple[tuple[str, Share], ...]:
        """The terms of a reduction in steps: the last dimensions whole while they are short."""
        taken = 1
        shares: dict[str, Share] = {}
        # windows first: a piece that holds one is hardly larger than without it
        reduced = [d for d in reversed(s.dims) if d in s.reduction]
        for dim in sorted(reduced, key=lambda d: not self._window(s, d)):
            lower, upper = next((lo, hi) for name, lo, hi in s.bounds if name == dim)
            extent = upper - lower
            # beside whole windows, a few more terms make a step worth its barriers
            most = wanted if taken == 1 else 4 * wanted // taken
            size = extent if taken * extent <= 2 * wanted else max(n for n in range(1, max(1, most) + 1) if extent % n == 0 or taken == 1)
            shares[dim] = Share(lower, extent, min(size, extent))
            taken *= min(size, extent)
        return tuple((dim, shares[dim]) for dim in s.dims if dim in shares)

    def _window(self, s: ScopStatement, dim: str) -> bool:
        """Whether a dimension only shifts a subscript that another one moves too."""
        forms = [affine_form(sub, self.scop.values) for a in accesses(s)[2:] for sub in a.subscripts]
        return any(form is not None and len(form[0]) > 1 and dim in form[0] for form in forms)

    def _size(self, s: ScopStatement, item: Item, columns: tuple[Share, ...], access: Access) -> int | None:
        """Bytes of a read's piece in shared memory, rows padded."""
        found = pieces(self.scop, s, item, columns, access)
        if not found:
            return None
        return (prod(found) + 4 * prod(found) // max(found)) * DTYPES[access.dtype].bytes

    def _reused(self, s: ScopStatement, columns: tuple[Share, ...], access: Access) -> bool:
        """Whether several threads of a block read one element."""
        return any(
            share.shared_out and not _moves_with(self.scop, access, dim) for share, dim in zip(columns, self.dims(s), strict=True)
        ) or any(
            len(form[0]) > 1 for sub in access.subscripts if (form := affine_form(sub, self.scop.values)) is not None
        )

    # ------------------------------------------------------------ rows

    def rows(self) -> GroupPlan | None:
        """The threads of a block along a row, if neighbours in memory lie along a dimension that is not shared."""
        lanes = {s.name: dim for s in self.statements if (dim := self._lane(s))}
        main = lanes.get(self.main.name)
        if main is None:
            return None
        best_column = max((self.nearness(self.main, dim) for dim in self.dims(self.main)), default=(-(1 << 62), False, 0))
        columns_points = prod(self.extent(c) for c in range(len(self.group.columns)))
        if best_column[0] >= self.nearness(self.main, main)[0] and columns_points >= 32:
            return None
        longest = max(self.scop.statement(name).extent(dim) for name, dim in lanes.items())
        vector = self._row_vector(lanes)
        threads = self._row_threads(-(-longest // vector), longest)
        # several short rows for a block, as long as every processor has one
        left = max(1, min((self.options.block or 128) // threads, columns_points // self.device.processors))
        near_first = sorted(range(len(self.group.columns)), key=lambda c: -c)
        shares: dict[int, Share] = {}
        for c in near_first:
            count = min(left, self.extent(c))
            shares[c] = Share(self.lower(c), self.extent(c), count, count)
            left //= count
        columns = tuple(shares[c] for c in range(len(self.group.columns)))
        items = []
        for s in self.statements:
            item = Item(s.name, self.dims(s))
            if dim := lanes.get(s.name):
                lower, upper = next((lo, hi) for name, lo, hi in s.bounds if name == dim)
                item = replace(item, lane=(dim, Share(lower, upper - lower, upper - lower, threads, vector)))
            items.append(item)
        order = tuple(c for c in range(len(columns)) if columns[c].shared_out)
        return GroupPlan(columns, order, tuple(items), lane_threads=threads)

    def _lane(self, s: ScopStatement) -> str | None:
        rest = [d for d in s.dims if d not in self.dims(s) and s.extent(d) > 1]
        return max(rest, key=lambda d: self.nearness(s, d)) if rest else None

    def _row_vector(self, lanes: dict[str, str]) -> int:
        """Neighbours that a thread takes at once: as many as fill 16 bytes, where all rows allow it."""
        wide = self.options.vector or 4
        for name, dim in lanes.items():
            s = self.scop.statement(name)
            lower, upper = next((lo, hi) for d, lo, hi in s.bounds if d == dim)
            moves = [stride(self.scop, a, dim) for a in accesses(s)]
            if any(m not in (0, 1) for m in moves):
                return 1
            while wide > 1 and (lower % wide or upper % wide):
                wide //= 2
        return wide

    def _row_threads(self, pieces_of_row: int, longest: int) -> int:
        """A power of two: part of a warp for short rows, a warp up to a length, then more."""
        most = min(self.options.block or 1024, self.device.max_threads)
        wanted = self.options.threads[-1] if self.options.threads else 0
        if not wanted:
            wanted = min(pieces_of_row, 32) if longest <= 32 * 2 * ROW_ELEMENTS else -(-longest // ROW_ELEMENTS)
        return 1 << min(max(0, wanted - 1).bit_length(), most.bit_length() - 1)

    # ------------------------------------------------------------ columns

    def in_columns(self) -> GroupPlan:
        """A thread for each element of the columns; a few long reductions are shared by several."""
        s = self.main
        dims = self.dims(s)
        ranked = sorted(range(len(dims)), key=lambda c: self.nearness(s, dims[c]), reverse=True)
        ranked = ranked[:1] + sorted(ranked[1:], reverse=True)
        turned = self._turned(ranked[0]) if ranked else None
        if turned is not None:
            return self._square(ranked[0], *turned)
        points = prod(self.extent(c) for c in range(len(dims)))
        rest = prod(s.extent(d) for d in s.reduction)
        lane = max(s.reduction, key=s.extent, default="")
        few = points < self.device.processors * 256 and rest >= 64 and s.extent(lane) >= 16
        vector = self._column_vector(ranked[0]) if ranked and not few else 1
        threads = min(32, self.most_threads) if few else self.most_threads
        shares: dict[int, Share] = {}
        for place, c in enumerate(ranked):
            wide = vector if place == 0 else 1
            count = min(threads, -(-self.extent(c) // wide))
            shares[c] = Share(self.lower(c), self.extent(c), min(count * wide, self.extent(c)), count, wide)
            threads //= count
        columns = tuple(shares[c] for c in range(len(dims)))
        order = tuple(reversed([c for c in ranked if columns[c].shared_out]))
        items = list(self.items())
        lane_threads = 1
        if few:
            used = prod(columns[c].threads for c in order)
            lane_threads = 1 << (min(self.most_threads // used, s.extent(lane)).bit_length() - 1)
            lower, upper = next((lo, hi) for name, lo, hi in s.bounds if name == lane)
            position = self.group.statements.index(s.name)
            items[position] = replace(items[position], lane=(lane, Share(lower, upper - lower, upper - lower, lane_threads)))
        return GroupPlan(columns, order, tuple(items), lane_threads=lane_threads, lane_first=True)

    def _column_vector(self, column: int) -> int:
        """Neighbours that a thread takes at once, where every statement moves by 0 or 1 and there is work enough."""
        wide = self.options.vector or 4
        points = prod(self.extent(c) for c in range(len(self.group.columns)))
        for s in self.statements:
            moves = [stride(self.scop, a, self.dims(s)[column]) for a in accesses(s)]
            if any(m not in (0, 1) for m in moves) or self.lower(column):
                return 1
        while wide > 1 and (self.extent(column) % wide or points // wide < self.device.processors * BLOCK):
            wide //= 2
        return wide

    def _turned(self, near: int) -> tuple[int, Access] | None:
        """A read whose neighbours in memory lie along another column, and that column."""
        s = self.main
        if s.reduction or not self.options.shared or self.extent(near) < SQUARE or self.most_threads < SQUARE:
            return None
        for a in accesses(s)[1:]:
            if any(affine_form(sub, self.scop.values) is None for sub in a.subscripts):
                continue
            if SQUARE * (SQUARE + 1) * DTYPES[a.dtype].bytes > self.device.shared_bytes:
                continue
            if stride(self.scop, a, self.dims(s)[near]) in (0, 1):
                continue
            for c, dim in enumerate(self.dims(s)):
                if c != near and stride(self.scop, a, dim) == 1 and self.extent(c) >= SQUARE:
                    return c, a
        return None

    def _square(self, near: int, other: int, access: Access) -> GroupPlan:
        """A square tile that is read along one side and written along the other."""
        down = self.most_threads // SQUARE
        shares = {
            near: Share(self.lower(near), self.extent(near), SQUARE, SQUARE),
            other: Share(self.lower(other), self.extent(other), SQUARE, min(down, SQUARE)),
        }
        columns = tuple(shares.get(c) or self.whole(c) for c in range(len(self.group.columns)))
        return GroupPlan(columns, (other, near), self.items(), shared=((self.main.name, access),))


def _moves_with(scop: Scop, access: Access, dim: str) -> bool:
    """Whether an access moves with a dimension (or may, where it is no plain sum)."""
    for sub in access.subscripts:
        form = affine_form(sub, scop.values)
        if form is None or form[0].get(dim, 0):
            return True
    return False


def _product_of_halves(s: ScopStatement) -> bool:
    """Whether a statement adds products of two elements of one half-precision type in float32."""
    if s.operator != "+=" or not isinstance(s.value, Cast) or s.value.dtype != "float32" or not isinstance(s.value.operand, Binary):
        return False
    product = s.value.operand
    operands = (product.left, product.right)
    halves = product.dtype in ("float16", "bfloat16")
    return product.op == "*" and halves and all(isinstance(a, Access) and a.dtype == product.dtype for a in operands)


def _distance(step: int | None) -> int:
    return abs(step) if step is not None else 1 << 62
