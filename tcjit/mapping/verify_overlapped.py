"""The rule for overlapped tiles: blocks of rows compute what the rows of whole tensors did, some rows in several blocks.

Every element of a tile is what the tensor that it is a part of held there: it is computed by the same expression, of elements of which the
same is true, and of tensors that nothing in the blocks writes. Each element that others see is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from tcjit.grammar.affine import affine, guarded_accesses
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import children, same_node, with_indices
from tcjit.mapping.assignment import Assignment, Assignments, to_statement
from tcjit.mapping.instances import Instances


class OverlappedTiles(Instances):
    """A program before and after ``overlap_tiles``."""

    def __init__(self, before: Assignments, after: Assignments) -> None:
        super().__init__(before)
        self.before, self.after = before, after
        self.known = set(before.storages)
        self.storages = after.storages
        pairs = zip(before.assignments, after.replaced, strict=True)
        # of each tile the assignment that computes it, and the one whose result it has
        self.tiles = {new[0].tensor: (new[0], old) for old, new in pairs if new[0].tensor not in self.known}

    def wrong(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """What is wrong with what took the place of an assignment; nothing where all is well."""
        made, *copies = new
        if len(copies) > 1 or any(a.outer is None or a.outer.row is None or len(a.outer.dims) != 1 for a in new):
            return "it has no block of rows"
        group = [a for a in self.after.assignments if a.outer and made.outer and a.outer.number == made.outer.number]
        places = [self.after.assignments.index(a) for a in group]
        if places != list(range(places[0], places[0] + len(group))):
            return "something stands between the statements of a block"
        if sum(a.tensor == old.tensor for a in self.before.assignments) != 1 or old.operator != "=" or old.constraints or old.outer:
            return "it is no plain assignment to a tensor of its own"
        tiled = made.tensor not in self.known
        if tiled and (wrong := self.wrong_tile(old, made)):
            return wrong
        for a in new:
            written = {one.tensor for one in group if one.tensor in self.known}
            if written & a.inputs:
                return "it reads what the blocks write"
            if wrong := self.wrong_reads(a, group):
                return wrong
        row = self.row_dim(old)
        expected = with_indices(old.value, {row: made.outer.row}) if made.outer and made.outer.row else old.value
        if not self.same(expected, made.value, made):
            return "a value changed"
        if not self.rows(made, old).is_subset(self.places(old, old.subscripts)):
            return "rows are computed that there are none of"
        for copy in copies:
            if not tiled or not isinstance(copy.value, Access) or copy.value.tensor != made.tensor:
                return "what is stored is not what was computed"
            if not self.same(Access(old.tensor, copy.subscripts, dtype=copy.value.dtype), copy.value, copy):
                return "what is stored is not what was computed"
        stored = copies[0] if copies else made
        if stored.tensor in self.known:
            return self.wrong_result(old, stored)
        storage = self.before.storages[old.tensor]
        read = any(old.tensor in a.inputs for a in self.after.assignments)
        return "a result is lost" if storage.role != "temporary" or read else ""

    def wrong_tile(self, old: Assignment, made: Assignment) -> str:
        """A tile is a temporary with an axis for blocks, of the type of the tensor, written at its own indices."""
        storage, whole = self.storages[made.tensor], self.storages[old.tensor]
        assert made.outer is not None
        names = (made.outer.dims[0], *(sub.name for sub in old.subscripts if isinstance(sub, Index)))
        plain = made.subscripts == tuple(Index(name, dtype="int64") for name in names) and len(names) == 1 + len(old.subscripts)
        fits = all(0 <= lower and upper <= extent for (_, lower, upper), extent in zip(self.in_order(made), storage.shape))
        alone = sum(a.tensor == made.tensor for a in self.after.assignments) == 1
        ok = storage.role == "temporary" and storage.dtype == whole.dtype and plain and fits and alone
        wide = all(one >= other for one, other in zip(storage.shape[2:], whole.shape[1:], strict=True))
        return "" if ok and wide else "a tile is no temporary of the tensor's type"

    @staticmethod
    def in_order(a: Assignment) -> list[tuple[str, int, int]]:
        return [(sub.name, *a.ranges[sub.name]) for sub in a.subscripts if isinstance(sub, Index)]

    def wrong_reads(self, a: Assignment, group: Sequence[Assignment]) -> str:
        """Elements of tiles are read in the block that wrote them, after they were written."""
        assert a.outer is not None
        for access, guards in guarded_accesses(a.value):
            if access.tensor not in self.tiles:
                if access.tensor not in self.known:
                    return "it reads what nothing computes"
                continue
            writer, _ = self.tiles[access.tensor]
            before = writer in group and group.index(writer) < group.index(a)
            if not before or access.subscripts[0] != Index(a.outer.dims[0], dtype="int64"):
                return "a tile is read before it is computed, or by another block"
            reads = self.relation(a, access, guards).range()
            if not reads.is_subset(self.relation(writer, Access(writer.tensor, writer.subscripts), ()).range()):
                return "an element of a tile is read that nothing computes"
        return ""

    def wrong_result(self, old: Assignment, stored: Assignment) -> str:
        """Each element of a tensor that others see is written once, in its row."""
        assert stored.outer is not None and stored.outer.row is not None
        expected = tuple(with_indices(sub, {self.row_dim(old): stored.outer.row}) for sub in old.subscripts)
        rows = self.rows(stored, old)
        written = self.relation(stored, Access(stored.tensor, stored.subscripts), ())
        if stored.subscripts != expected or not written.is_injective() or not rows.is_equal(self.places(old, old.subscripts)):
            return "results are lost, or written twice"
        return ""

    @staticmethod
    def row_dim(old: Assignment) -> str:
        return old.subscripts[0].name if old.subscripts and isinstance(old.subscripts[0], Index) else ""

    # ------------------------------------------------------------ values and instances

    def same(self, expected: Expr, value: Expr, a: Assignment) -> bool:
        """Whether a value is the expected one, where elements of tiles stand for those of the tensors that they are parts of."""
        if isinstance(value, Access) and value.tensor in self.tiles and isinstance(expected, Access):
            writer, old = self.tiles[value.tensor]
            if expected.tensor != old.tensor or len(value.subscripts) != len(expected.subscripts) + 1:
                return False
            assert writer.outer is not None and writer.outer.row is not None
            block, place, *rest = value.subscripts
            row = with_indices(writer.outer.row, {writer.outer.dims[0]: block, self.row_dim(old): place})
            pairs = zip((row, *rest), expected.subscripts, strict=True)
            return expected.dtype == value.dtype and all(self.equal(one, other, a) for one, other in pairs)
        pairs = zip(children(expected), children(value))
        return same_node(expected, value) and all(self.same(one, other, a) for one, other in pairs)

    def equal(self, one: Expr, other: Expr, a: Assignment) -> bool:
        """Whether two affine expressions are the same at all instances."""
        texts = [affine(expr, self.values) for expr in (one, other)]
        return one == other if None in texts else self.empty(self.instances(a), a, f"{texts[0]} != {texts[1]}")

    def rows(self, a: Assignment, old: Assignment) -> isl.Set:
        """The elements of the old tensor that the instances of an assignment stand for."""
        assert a.outer is not None and a.outer.row is not None
        return self.places(a, [a.outer.row, *old.subscripts[1:]])

    def places(self, a: Assignment, exprs: Sequence[Expr]) -> isl.Set:
        """The values of expressions at the instances of an assignment."""
        return self.instances(a).apply(self.map(a.dims, [str(affine(expr, self.values)) for expr in exprs]))

    def relation(self, a: Assignment, access: Access, guards: tuple[tuple[Expr, bool], ...]) -> isl.Map:
        s = to_statement("I", a, self.values)
        text = replace(self.scop, tensors=self.after.tensors).access_text(s, access.tensor, access.subscripts, guards)
        found = isl.Map.read_from_str(self.scop.ctx, f"{self.scop.parameters}{{ {text} }}")
        return found.intersect_domain(self.scop.instances(s))
