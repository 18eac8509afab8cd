"""Promote: give a block a copy in shared memory of what its threads read again and again, or could not read in memory's order.

The copy is a temporary with one axis for each block loop and each step, and one for each axis of the piece that the block reads there; only
the latter exist in shared memory. A statement for each promoted read fills it, and the reading statement reads it instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.kernels import Copy, GroupPlan, Item, Region, Share
from tcjit.mapping.lowering import Draft, Lowered, divided, index, modulo, total
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Axis, Buffer, Storage
from tcjit.mapping.strides import affine_form

WIDE = 16  # bytes of one access at most
UNROLLED = 32  # rounds of a copy that are worth unrolling


def promote(lowered: Lowered) -> Lowered:
    """The scop with the copies that its plans ask for."""
    draft = Draft(lowered)
    copies = [
        _Promotion(draft, plan, item, access, f"block{number}").copy()
        for number, plan in enumerate(lowered.plans)
        for item in plan.items
        for name, access in plan.shared
        if name == item.statement
    ]
    return draft.done(lowered.plans, copies)


def pieces(scop: Scop, s: ScopStatement, item: Item, columns: tuple[Share, ...], access: Access) -> list[int] | None:
    """Along each axis, how many elements a block spans while it is at one step; None for subscripts that are no plain sums."""
    forms = [affine_form(sub, scop.values) for sub in access.subscripts]
    if any(form is None for form in forms):
        return None
    return [1 + sum(abs(f) * (_range(d, item, columns, s) - 1) for d, f in form[0].items()) for form in forms if form is not None]


def _range(dim: str, item: Item, columns: tuple[Share, ...], s: ScopStatement) -> int:
    share = item.share(dim, columns)
    return s.extent(dim) if share is None else min(share.tile, share.extent)


@dataclass(frozen=True)
class _Uniform:
    """A block loop or a step as the copy sees it: the reader's dimension, its share, the copy's dimension."""

    dim: str
    share: Share
    name: str


class _Promotion:
    """One promoted read."""

    def __init__(self, draft: Draft, plan: GroupPlan, item: Item, access: Access, mark: str) -> None:
        self.draft = draft
        self.plan = plan
        self.item = item
        self.access = access
        self.mark = mark
        self.reader = draft.statements[item.statement]
        self.storage = next(t for t in draft.tensors if t.name == access.tensor)
        self.blocks = [_Uniform(d, s, f"b{n}") for n, (d, s) in enumerate(zip(item.columns, plan.columns, strict=True)) if s.tiles > 1]
        self.steps = [_Uniform(d, s, f"s{n}") for n, (d, s) in enumerate(item.steps) if s.tiles > 1]
        self.forms = [self._form(sub) for sub in access.subscripts]
        sizes = pieces(draft.scop, self.reader, item, plan.columns, access)
        assert sizes is not None  # the plan promotes plain sums only
        self.sizes = sizes

    def _form(self, subscript: Expr) -> tuple[dict[str, int], int]:
        form = affine_form(subscript, self.draft.scop.values)
        assert form is not None
        return form

    def copy(self) -> Copy:
        uniform = [*self.blocks, *self.steps]
        locals_ = [f"l{axis}" for axis in range(len(self.sizes))]
        origins = [self._origin(axis) for axis in range(len(self.sizes))]
        counted = [*((u.name, u.share.tiles) for u in uniform), *zip(locals_, self.sizes, strict=True)]
        bounds = tuple((name, 0, count) for name, count in counted)
        counts = tuple(u.share.tiles for u in uniform)
        copy = self.draft.temporary(f"{self.access.tensor}_shared", self.storage.dtype, (*counts, *self.sizes))
        read, facts, alias, beyond = [], [], [], []
        for name, (terms, constant), extent in zip(locals_, origins, self.storage.shape, strict=True):
            read.append(total([*((factor, index(dim)) for dim, factor in terms), (1, index(name))], constant))
            text = " + ".join([*(f"{factor} * {dim}" for dim, factor in terms), name, str(constant)])
            facts.append(f"0 <= {text} < {extent}")
            beyond.append(f"{text} >= {extent}")
            alias.append(f"({text})")
        subscripts = [index(name) for name, _, _ in bounds]
        value = Access(self.access.tensor, tuple(read), dtype=self.storage.dtype)
        name = self.draft.add("C", self.reader, copy.name, subscripts, "=", value, bounds, constraints=tuple(facts))
        axes = ", ".join(name for name, _, _ in bounds)
        self.draft.aliases[copy.name] = f"{{ {isl_name(copy.name)}[{axes}] -> {isl_name(self.access.tensor)}[{', '.join(alias)}] }}"
        instead = Access(copy.name, self._places(uniform), dtype=self.storage.dtype)
        self.draft.change(self.reader.name, lambda a: instead if a == self.access else a)
        buffer = self._buffer(copy, len(uniform))
        by_block = tuple(u.name for u in self.blocks)
        regions = [self._region(name, origins)]
        if self.item.atoms and any(extent % size for extent, size in zip(self.storage.shape, self.sizes, strict=True)):
            # whole instructions read beyond the edge of the tensor, where zeros stand
            where = (f"({' or '.join(beyond)})",)
            zero = Const(0.0, dtype=self.storage.dtype)
            fill = self.draft.add("Z", self.reader, copy.name, subscripts, "=", zero, bounds, constraints=where)
            regions.append(self._region(fill, origins))
        return Copy(tuple(regions), self.reader.name, by_block, tuple(u.name for u in self.steps), buffer)

    def _origin(self, axis: int) -> tuple[list[tuple[str, int]], int]:
        """The least subscript of the piece: a sum over the copy's block and step dimensions, and a constant."""
        factors, constant = self.forms[axis]
        terms: list[tuple[str, int]] = []
        for dim, factor in factors.items():
            lower = next(low for name, low, _ in self.reader.bounds if name == dim)
            constant += factor * lower
            if factor < 0:
                constant += factor * (_range(dim, self.item, self.plan.columns, self.reader) - 1)
            terms += [(u.name, factor * u.share.tile) for u in (*self.blocks, *self.steps) if u.dim == dim]
        return terms, constant

    def _places(self, uniform: list[_Uniform]) -> tuple[Expr, ...]:
        """The subscripts of the reader's element in the copy."""
        result = [divided(total([(1, index(u.dim))], -u.share.lower), u.share.tile) for u in uniform]
        for factors, _ in self.forms:
            terms: list[tuple[int, Expr]] = []
            constant = 0
            for dim, factor in factors.items():
                lower = next(low for name, low, _ in self.reader.bounds if name == dim)
                place = total([(1, index(dim))], -lower)
                tile = next((u.share.tile for u in uniform if u.dim == dim), 0)
                terms.append((factor, modulo(place, tile) if tile else place))
                if factor < 0:
                    constant -= factor * (_range(dim, self.item, self.plan.columns, self.reader) - 1)
            result.append(total(terms, constant))
        return tuple(result)

    # ------------------------------------------------------------ how it lies and who fills it

    def _contiguous(self) -> int:
        """The axis along which the tensor lies in memory."""
        steps = [step if step else 1 << 62 for step in self.storage.strides]
        return min(range(len(steps)), key=lambda axis: (steps[axis], -axis)) if steps else 0

    def _fast(self) -> int:
        """The axis along which neighbouring threads, or one thread's neighbours, read the copy."""
        wanted = [self.item.columns[c] for c in sorted(self.plan.order, key=lambda c: (self.plan.columns[c].vector > 1, c))]
        if self.item.lane and not self.plan.lane_first:
            wanted.append(self.item.lane[0])
        for dim in reversed(wanted):
            for axis, (factors, _) in enumerate(self.forms):
                if factors.get(dim) == 1 and self.sizes[axis] > 1:
                    return axis
        return len(self.sizes) - 1

    def _buffer(self, copy: Storage, uniform: int) -> Buffer:
        fast = self._fast()
        wide = max(1, WIDE // DTYPES[copy.dtype].bytes // 4)  # keeps rows of 4-byte elements aligned to 16 bytes
        padding = 0 if fast == self._contiguous() else 4 * wide if any(s.vector > 1 for s in self.plan.columns) else 1
        if self.item.atoms:  # rows of 16 bytes more: the eight that an instruction loads at once lie in different banks
            fast, padding = self._contiguous(), WIDE // DTYPES[copy.dtype].bytes
        strides = {}
        step = 1
        for axis in [fast, *(a for a in reversed(range(len(self.sizes))) if a != fast)]:
            strides[axis] = step
            step *= self.sizes[axis] + (padding if axis == fast else 0)
        axes = [Axis(0, ())] * uniform
        if self.steps and self.plan.stages > 1:  # the last step's pieces lie side by side
            axes[-1] = Axis(0, ((1, self.plan.stages, step),))
        axes += [Axis(0, ((1, size, strides[axis]),) if size > 1 else ()) for axis, size in enumerate(self.sizes)]
        return Buffer(copy.name, self.mark, "shared", tuple(axes), step * (self.plan.stages if self.steps else 1))

    def _region(self, name: str, origins: list[tuple[list[tuple[str, int]], int]]) -> Region:
        """The block's threads over the piece, neighbours in memory on neighbouring threads."""
        last = self._contiguous()
        order = [*(a for a in range(len(self.sizes)) if a != last), last] if self.sizes else []
        left = self.plan.threads
        shares: dict[int, Share] = {}
        for axis in reversed(order):
            size = self.sizes[axis]
            vector = self._vector(origins) if axis == last else 1
            count = max(1, min(size // vector, left))
            shares[axis] = Share(0, size, size, count, vector)
            left //= count
        shared_out = [a for a in order if shares[a].threads > 1] or order[-1:]
        rounds = [a for a in order if shares[a].rounds > 1]
        vector_loop = [a for a in order if shares[a].vector > 1]
        loops = [shares[a].round_text(f"l{a}") for a in rounds] + [shares[a].vector_text(f"l{a}") for a in vector_loop]
        trips = 1
        for a in rounds:
            trips *= shares[a].rounds
        unrolled = len(loops) if trips <= UNROLLED else len(vector_loop)
        members = tuple(shares[a].thread_text(f"l{a}") for a in shared_out)
        radices = tuple(shares[a].threads for a in shared_out)
        ahead = self.plan.stages > 1 and bool(self.steps)
        named = tuple((f"l{a}", shares[a]) for a in order)
        return Region(name, radices or (1,), members or ("0",), tuple(loops), unrolled, bool(vector_loop), ahead=ahead, shares=named)

    def _vector(self, origins: list[tuple[list[tuple[str, int]], int]]) -> int:
        """Elements of one access, as far as every piece is known to start on a multiple of them."""
        axis = self._contiguous()
        wide = WIDE // DTYPES[self.storage.dtype].bytes
        if self.storage.strides[axis] != 1 or wide < 2:
            return 1
        terms, constant = origins[axis]
        facts = [self.sizes[axis], self.storage.shape[axis], constant, *(factor for _, factor in terms)]
        facts += [step if step is not None else 1 for a, step in enumerate(self.storage.strides) if a != axis and self.storage.shape[a] > 1]
        while wide > 1 and any(fact % wide for fact in facts):
            wide //= 2
        return wide
