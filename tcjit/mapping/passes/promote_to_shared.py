"""Promote to shared memory: give a block a copy of what its threads read again and again, or could not read in memory's order.

The copy is a temporary with one axis for each block loop and each step, and one for each axis of the piece that the block reads there; only
the latter exist in shared memory. A statement for each promoted read fills it, and the reading statement reads it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import divided, index, modulo, plus, total
from tcjit.grammar.ast import Access, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import with_indices
from tcjit.mapping.footprint import WIDE, piece
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan, by_kernel
from tcjit.mapping.isl import constraint_text, images, points
from tcjit.mapping.marks import GridBlock, Mark
from tcjit.mapping.reduction import identity
from tcjit.mapping.scop import DynamicBounds
from tcjit.mapping.scop_builder import LoweredScop, ScopBuilder
from tcjit.mapping.storage import Axis, Buffer, Storage

Origin = tuple[Sequence[tuple[int, Expr]], int]  # a sum of multiples of what is the same for a piece, and a constant


def promote_to_shared(lowered: LoweredScop) -> LoweredScop:
    """The scop with the copies that its plans ask for."""
    draft = ScopBuilder(lowered)
    plans, buffers = list[GroupPlan](), list[Buffer]()
    for number, together in enumerate(by_kernel(lowered.plans)):
        for plan in together:
            items: list[StatementPlan] = []
            for item in plan.items:
                for access in (access for name, access in plan.shared if name == item.statement):
                    copies, buffer = _Promotion(draft, plan, item, access, GridBlock(number)).copies()
                    items += copies
                    buffers.append(buffer)
                items.append(item)
            plans.append(replace(plan, items=tuple(items)))
    return draft.done(plans, buffers)


class _Promotion:
    """One promoted read. ``uniform``: block loops and steps as dimensions of the copy, which count tiles: for each the reader's dimension
    and its share."""

    def __init__(self, draft: ScopBuilder, plan: GroupPlan, item: StatementPlan, access: Access, mark: Mark) -> None:
        self.draft = draft
        self.plan = plan
        self.item = item
        self.access = access
        self.mark = mark
        self.reader = draft.statements[item.statement]
        self.storage = next(t for t in draft.tensors if t.name == access.tensor)
        self.lower = {name: lower for name, lower, _ in self.reader.bounds}
        self.columns = tuple(f"b{n}" if share.tiles > 1 else "" for n, share in enumerate(plan.columns))
        self.steps = {f"s{n}": step for n, step in enumerate(item.steps) if step[1].tiles > 1}
        blocks = zip(self.columns, zip(item.columns, plan.columns, strict=True), strict=True)
        self.uniform = {**{name: block for name, block in blocks if name}, **self.steps}
        found = piece(self.storage, self.reader, plan, item, access, draft.scop.values)
        assert found is not None  # or the plan would not promote it
        self.piece = found
        self.sizes = found.sizes

    def copies(self) -> tuple[list[StatementPlan], Buffer]:
        """The statements that fill a piece, and where it lies."""
        locals_ = [f"l{axis}" for axis in range(len(self.sizes))]
        origins = [self._origin(axis) for axis in range(len(self.sizes))]
        counted = [*((name, share.tiles) for name, (_, share) in self.uniform.items()), *zip(locals_, self.sizes, strict=True)]
        bounds = tuple((name, 0, count) for name, count in counted)
        copy = self.draft.temporary(f"{self.access.tensor}_shared", self.storage.dtype, tuple(count for _, count in counted))
        read, facts, alias, beyond = list[Expr](), list[str](), list[str](), list[str]()
        for axis, (name, (terms, constant), size) in enumerate(zip(locals_, origins, self.sizes, strict=True)):
            extent, known = self.storage.extent_texts[axis], self.storage.extent(axis) is None
            read.append(total([*terms, (1, index(name))], constant))
            text = str(affine(read[-1], {}))
            facts.append(f"0 <= {text} < {extent}")
            alias.append(f"({text})")
            if self.item.padded:
                facts += [f"{place} < {end}" for place, end in self._ends(axis)]
                beyond += [f"{place} >= {end}" for place, end in self._ends(axis)]
            least, most = self._reach(terms, constant)
            beyond += [f"{text} < 0"] if least < 0 else []
            beyond += [f"{text} >= {extent}"] if not known or most + size > self.storage.shape[axis] else []
        subscripts = [index(name) for name, _, _ in bounds]
        value = Access(self.access.tensor, tuple(read), dtype=self.storage.dtype)
        dynamic = self._dynamic_bounds()
        used = self._used(dynamic) if self.asynchronous or self.reader.constraints else []
        facts += used
        name = self.draft.add("C", self.reader, copy.name, subscripts, "=", value, bounds, constraints=tuple(facts), dynamic_bounds=dynamic)
        dims = ", ".join(name for name, _, _ in bounds)
        self.draft.aliases[copy.name] = f"{{ {isl_name(copy.name)}[{dims}] -> {isl_name(self.access.tensor)}[{', '.join(alias)}] }}"
        instead = Access(copy.name, self._places(), dtype=self.storage.dtype)
        self.draft.change(self.reader.name, lambda a: instead if a == self.access else a)
        steps = tuple((step, share.numbers) for step, (_, share) in self.steps.items())
        axes = self._axes(origins)
        filled = StatementPlan(name, self.columns, steps=steps, reader=self.reader.name, axes=axes, async_copy=self.asynchronous)
        items = [filled]
        if (self.item.mma or self.item.padded) and beyond:
            # whole instructions and whole tiles read beyond the edge of the tensor, or the last term: zeros stand there
            where = (f"({' or '.join(beyond)})", *used)
            zero = identity("+=", self.storage.dtype)
            fill = self.draft.add("Z", self.reader, copy.name, subscripts, "=", zero, bounds, constraints=where, dynamic_bounds=dynamic)
            items.append(replace(filled, statement=fill))
        return items, self._buffer(copy)

    def _ends(self, axis: int) -> list[tuple[str, int]]:
        """Where the terms of a padded reader end along an axis: the number of a term, in isl's words, and how many there are."""
        factors = self.piece.forms[axis].factors
        steps_of = {dim: name for name, (dim, _) in self.steps.items()}
        steps = [(dim, share) for dim, share in self.item.steps if dim in factors and share.extent % share.whole_tile]
        return [(f"{share.tile} * {steps_of[dim]} + l{axis}" if dim in steps_of else f"l{axis}", share.extent) for dim, share in steps]

    @property
    def asynchronous(self) -> bool:
        """Whether the copy of a step, or of a tile, is issued in an earlier one."""
        return self.plan.stages > 1 and (bool(self.steps) or self.plan.ahead_over_tiles > 1)

    def _used(self, dynamic: DynamicBounds) -> list[str]:
        """The condition under which a block reads the piece of a step, where it is none for some: their loop ends before it arrives."""
        scop = self.draft.scop
        tiles = [f"floor(({isl_name(dim)} - {share.lower})/{share.tile})" for dim, share in self.uniform.values()]
        facts = [f"0 <= {name} < {share.tiles}" for name, (_, share) in self.uniform.items()]
        facts += [f"{lower} <= {name} < {upper}" for name, lower, upper in dynamic]
        every = points(scop.ctx, self.uniform, [*facts, *scop.context], scop.parameters)
        tile = images(scop.ctx, self.reader.isl_dims, tiles, scop.parameters)
        used = every.intersect(scop.instances(self.reader).reset_tuple_id().apply(tile))
        if every.is_subset(used) or (self.asynchronous and self._interrupted(used)):
            return []
        return [constraint_text(used.gist(every))]

    def _interrupted(self, used: isl.Set) -> bool:
        """Whether copies of the steps that are read, and the steps themselves, would leave out iterations of their loop."""
        *outer, step = self.uniform

        def moved(where: str) -> isl.Map:
            times = f"[{', '.join(self.uniform)}] -> [{', '.join([*outer, 't'])}] : {where}"
            return isl.Map.read_from_str(used.get_ctx(), f"{self.draft.scop.parameters}{{ {times} }}")

        times = used.apply(moved(f"t = {step} or t = {step} - {self.plan.stages - 1}"))
        later, earlier = times.apply(moved(f"t > {step}")), times.apply(moved(f"t < {step}"))
        return not later.intersect(earlier).is_subset(times)

    def _dynamic_bounds(self) -> DynamicBounds:
        """How far block loops and steps go where that depends on dynamic sizes."""
        upper = {dim: upper for dim, _, upper in self.reader.dynamic_bounds}
        open_ended = [(name, dim, share) for name, (dim, share) in self.uniform.items() if dim in upper]
        return tuple((name, "0", f"floor(({upper[dim]} + {s.tile - 1 - s.lower})/{s.tile})") for name, dim, s in open_ended)

    def _origin(self, axis: int) -> Origin:
        """The least subscript of the piece."""
        form = self.piece.forms[axis]
        constant, terms = form.constant, list[tuple[int, Expr]]()
        for dim, factor in form.factors.items():
            constant += factor * self.lower[dim]
            if factor < 0:
                constant += factor * (self.piece.spans[dim] - 1)
            terms += [(factor * share.tile, index(name)) for name, (of, share) in self.uniform.items() if of == dim]
        tiles = {dim: [(share.tile, index(name))] for name, (dim, share) in self.uniform.items()}
        for factor, part in form.rest:  # over dimensions of which a tile has one value
            terms.append((factor, with_indices(part, {dim: total(tiles.get(dim, []), self.lower[dim]) for dim in names(part)})))
        return terms, constant

    def _reach(self, terms: Sequence[tuple[int, Expr]], constant: int) -> tuple[int, int]:
        """The least and greatest origin of all pieces along an axis."""
        ctx = self.draft.scop.ctx
        every = points(ctx, self.uniform, [f"0 <= {name} < {share.tiles}" for name, (_, share) in self.uniform.items()])
        origins = every.apply(images(ctx, self.uniform, [str(affine(total(terms, constant), {}))]))
        return int(origins.dim_min_val(0).to_python()), int(origins.dim_max_val(0).to_python())

    def _places(self) -> tuple[Expr, ...]:
        """The subscripts of the reader's element in the copy."""
        tiles = dict(self.uniform.values())
        result = [divided(plus(index(dim), -share.lower), share.tile) for dim, share in tiles.items()]
        for form in self.piece.forms:
            terms: list[tuple[int, Expr]] = []
            constant = 0
            for dim, factor in form.factors.items():
                place = plus(index(dim), -self.lower[dim])
                terms.append((factor, modulo(place, tiles[dim].tile) if dim in tiles else place))
                if factor < 0:
                    constant -= factor * (self.piece.spans[dim] - 1)
            result.append(total(terms, constant))
        return tuple(result)

    # ------------------------------------------------------------ how it lies and who fills it

    def _buffer(self, copy: Storage) -> Buffer:
        step = self.piece.elements
        axes = [Axis(0, ())] * len(self.uniform)
        if self.asynchronous:  # the pieces of the last steps, or tiles, lie side by side
            axes[-1] = Axis(0, ((1, self.plan.stages, step),))
        axes += [Axis(0, ((1, size, stride),) if size > 1 else ()) for size, stride in zip(self.sizes, self.piece.strides, strict=True)]
        return Buffer(copy.name, self.mark, "shared", tuple(axes), step * (self.plan.stages if self.asynchronous else 1))

    def _axes(self, origins: Sequence[Origin]) -> tuple[tuple[str, Distribution], ...]:
        """The piece on the block's threads, neighbours in memory on neighbouring ones."""
        last = self.piece.contiguous
        left = self.plan.threads
        shares: list[tuple[str, Distribution]] = []
        for axis in (last, *(a for a in reversed(range(len(self.sizes))) if a != last)):
            size = self.sizes[axis]
            vector = self._vector(origins) if axis == last else 1
            count = max(1, min(size // vector, left))
            shares.append((f"l{axis}", Distribution(0, size, size, count, vector)))
            left //= count
        return tuple(reversed(shares))

    def _vector(self, origins: Sequence[Origin]) -> int:
        """Elements of one access, as far as every piece is known to start on a multiple of them."""
        axis = self.piece.contiguous
        wide = WIDE // DTYPES[self.storage.dtype].bytes
        if self.plan.vector:
            wide = min(wide, self.plan.vector)
        if self.storage.strides[axis] != 1 or wide < 2:
            return 1
        terms, constant = origins[axis]
        facts = [self.sizes[axis], self.storage.shape[axis], constant, *(factor for factor, _ in terms)]
        facts += [step if step is not None else 1 for a, step in enumerate(self.storage.strides) if a != axis and self.storage.shape[a] > 1]
        while wide > 1 and any(fact % wide for fact in facts):
            wide //= 2
        return wide
