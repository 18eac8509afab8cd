"""The results of a register tile in memory: loaded into its accumulators, stored from them, or added to them."""

from __future__ import annotations

from itertools import product

from tcjit.codegen.strided_vectors import SHUFFLED
from tcjit.codegen.tile_text import TileText, braces
from tcjit.codegen.tile_vectors import rows_together
from tcjit.mapping.nest.statement import FlatAccess


class TileResults:
    """The accumulators of a tile, and the elements that an access writes."""

    def __init__(self, tile: TileText, write: FlatAccess) -> None:
        self.tile, self.write = tile, write

    def lines(self, what: str) -> list[str]:
        """Accumulators loaded from memory, stored there, or with what is there added to them: lanes that follow one another at once, others
        one by one, or with those of other rows that are their neighbours."""
        head = f"{self.tile.element} *const tc_o = {self.tile.place(self.write)};"
        tests = self.tests_of_whole_tile(what != "load")
        checked = self.of_tile(what, whole=False)
        if not tests:
            return [head, *checked]
        return [head, f"if ({' && '.join(tests)})", *braces(self.of_tile(what, whole=True)), "else", *braces(checked)]

    def of_tile(self, what: str, *, whole: bool) -> list[str]:
        """The same; of a ``whole`` tile all rows and lanes."""
        together = self.rows_together if what == "store" else 1
        end = len(self.tile.rows) // together * together
        lines = []
        for r, v in product(range(len(self.tile.rows)), range(self.tile.nest.leaf.vectors)):
            if together == 1 or r >= end:
                lines.append(self.result(what, r, v, whole))
            elif r % together == 0:
                lines += self.stored_rows(range(r, r + together), v, whole)
        return lines

    def tests_of_whole_tile(self, stored: bool) -> list[str]:
        """What must hold of a tile so that nothing has to be asked of its rows and lanes; nothing where that is not a few comparisons."""
        leaf = self.tile.nest.leaf
        last = {leaf.lane: leaf.vectors * self.tile.width - 1, **{dim: count - 1 for dim, count in leaf.rows}}
        tests = [f"tc_o_{overlap.dim} >= tc_f_{overlap.dim}" for overlap in self.tile.tiled.tiles.overlaps if stored]
        for check in self.tile.tiled.tiles.edges:
            end = check.constant + sum(c * last.get(dim, 0) for dim, c in check.coefficients.items() if c < 0)
            moving = {dim: c for dim, c in check.coefficients.items() if not self.tile.single_tile(dim)}
            if check.equality or (end < 0 and not moving and not check.sizes):
                return []
            terms = [f"{c} * tc_o_{dim}" for dim, c in moving.items()] + [f"{c} * {size}" for size, c in check.sizes.items()]
            tests += [f"{' + '.join([*terms, str(end)])} >= 0"] if terms else []
        return tests if len(self.tile.places) > 1 else []

    def result(self, what: str, r: int, v: int, whole: bool) -> str:
        """One accumulator loaded, stored, or with what is in memory added."""
        step, total = self.tile.step(self.write), self.tile.sum(r, v)
        tests, mask = ([], "") if whole else self.kept(r, v, what != "load")
        place = self.result_place(r, v)
        if what == "load":
            text = f"{total} = {self.tile.moved(step, place, mask)}"
        elif what == "add":
            text = f"{total} = {self.tile.combined(self.tile.moved(step, place, mask), total)}"
        elif step == "1":
            text = self.tile.masked("store", [place, total], mask)
        elif step in map(str, SHUFFLED):
            text = f"{self.tile.call(f'spread{step}')}({place}, {total}, {mask or f'TC_ALL{self.tile.ending}'})"
        else:
            text = f"{self.tile.call('scatter')}({place}, {step}, {total}, {mask or f'TC_ALL{self.tile.ending}'})"
        return f"{self.tile.guard(tests)}{text};"

    def kept(self, r: int, v: int, stored: bool) -> tuple[list[str], str]:
        """Conditions on a row of results that is in memory, or is ``stored`` by this tile, and the mask of its lanes where it has one."""
        lane, row = self.tile.nest.leaf.lane, self.tile.rows[r]
        tests, lanes = self.tile.conditions(row, v, self.tile.tiled.tiles.edges)
        if stored:
            tests += self.tile.after_overlaps(row)
            lanes += [f"{self.tile.call('from')}(tc_o_{lane} + {v * self.tile.width} - tc_f_{lane})"] if self.tile.overlaps(lane) else []
        return tests, f"{self.tile.call('opaque')}({' & '.join(lanes)})" if lanes else ""

    def result_place(self, r: int, v: int) -> str:
        return f"tc_o + {self.tile.offset(self.write, self.tile.at(self.tile.rows[r], v))}"

    @property
    def rows_together(self) -> int:
        """How many rows are stored at once where lanes are apart in memory: those that follow one another there."""
        leaf = self.tile.nest.leaf
        if any(dim in axis.form for axis in self.write.runtime for dim, _ in leaf.rows):
            return 1
        if self.write.stride(leaf.lane) == 1 or [self.write.stride(dim) for dim, _ in leaf.rows] != [1]:
            return 1
        return rows_together(self.tile.dtype, self.tile.width)

    def stored_rows(self, rows: range, v: int, whole: bool) -> list[str]:
        """Rows of results at once, or one by one where not all of them are stored, or not the same lanes."""
        kept = [] if whole else [self.kept(r, v, True) for r in rows]
        tests = list(dict.fromkeys(test for own, _ in kept for test in own))
        masks = list(dict.fromkeys(mask for _, mask in kept)) or [""]
        if len(masks) > 1:
            tests += [f"{self.tile.call('all')}({mask})" for mask in masks if mask]
        mask = masks[0] if len(masks) == 1 and masks[0] else f"TC_ALL{self.tile.ending}"
        step = self.tile.step(self.write)
        sums = ", ".join(self.tile.sum(r, v) for r in rows)
        line = f"{self.tile.call('scatter_rows')}({self.result_place(rows[0], v)}, {step}, ({self.tile.vector}[]){{{sums}}}, {mask});"
        if not tests:
            return [line]
        return [f"if ({' && '.join(tests)}) {line}", "else", *braces([self.result("store", r, v, whole) for r in rows])]
