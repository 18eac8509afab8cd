"""The text of a register tile, straight C over vector variables: start, update and store, from constants of the nest alone.

In a partial tile, conditions without the lanes are a branch around a row's update, those with them a mask of lanes; a load that might leave
its tensor there happens under both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from tcjit.codegen.tile_results import TileEpilogue, TileResults
from tcjit.codegen.tile_text import Names, Point, Pointwise, TileLines, TileText, braces
from tcjit.grammar.ast import Cast, Const, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import rebuild
from tcjit.mapping.nest.prefetch import lines_of_step
from tcjit.mapping.nest.statement import PointwiseStore
from tcjit.mapping.nest.tile import PointCheck
from tcjit.mapping.nest.tiled_statement import Kind, TiledStatement
from tcjit.mapping.nest.vector_forms import has_vector_form, is_converted
from tcjit.mapping.reduction import EXTREMES, identity

_LOADED = re.compile(r"\btc_x\d+\b")


class TilePrinter(TileText):
    """Writes one tiled statement."""

    def __init__(
        self, tiled: TiledStatement, dtype: str, names: Names, constant: Callable[[Const], str], pointwise: Pointwise
    ) -> None:
        super().__init__(tiled, dtype, names, constant, pointwise)
        self.results, self.epilogue = TileResults(self, self.s.write), TileEpilogue(self)
        self.block: tuple[str, str] | None = None  # the digit of the loop over blocks of a term, and how many of them there are
        window = product(*(range(self.s.extent(dim)) for dim in self.nest.leaf.window))
        self.window: list[Point] = [dict(zip(self.nest.leaf.window, at, strict=True)) for at in window]

    def lines(self, kind: Kind, digits: Sequence[str]) -> list[str]:
        """A tile statement; ``digits``: C texts, in the order of the nest's loops."""
        block = self.nest.block_loop(self.s)
        self.block = None if block is None else (digits[block], self.tiled.tiles.lasts[block])
        if kind in ("full", "partial"):
            return braces([*self.origins(digits), *self.update(partial=kind == "partial")])
        return braces([*self.origins(digits), *(self.start() if kind == "start" else self.store())])

    # ------------------------------------------------------------ kinds

    def accumulators(self) -> list[str]:
        """Their declarations, and that of an array for what blocks of terms sum where the loop over blocks stands next to the tile."""
        lines = [f"{self.vector} {', '.join(self.sum(r, v) for r, v in self.places)};"]
        if self.nest.block_loop(self.s) is not None and not self.tiled.has_results_in_blocks:
            lines.append(f"{self.element} tc_s[{len(self.places) * self.width}] __attribute__((aligned(64)));")
        return lines

    def start(self) -> list[str]:
        if self.s.start is None and not self.over_terms and self.block is None and self.s.is_box:
            return self.results.lines("load")
        first = f"{self.call('splat')}({self.constant(identity(self.s.operator, self.dtype))})"
        empty = [f"{self.sum(r, v)} = {first};" for r, v in self.places]
        if self.s.start is None or self.s.start == identity(self.s.operator, self.dtype):
            return empty
        started = self.started(first)
        return started if self.block is None else [f"if ({self.block[0]} == 0) {{", *started, "} else {", *empty, "}"]

    def started(self, first: str) -> list[str]:
        """Accumulators with the value from which results start; where lanes hold partial results, one of them has it."""
        assert self.s.start is not None
        out = self.begin(self.pointers(self.s.start_reads))
        for r, v in self.places:
            mask = self.mask(self.rows[r], v, self.tiled.tiles.edges, out)
            value = self.value(self.s.start, self.loaded(self.s.start_reads, self.rows[r], v, mask, out))
            if self.over_terms:
                value = f"{self.call('blend')}({first}, {value}, {self.call('until')}(0))" if v == 0 else first
            out.lines.append(f"{self.sum(r, v)} = {value};")
        return out.lines

    @property
    def term_checks(self) -> list[PointCheck]:
        """What must hold of a point for its term to count; what is no result is not stored, whatever it is."""
        return [check for check in self.tiled.tiles.checks if check not in self.tiled.tiles.edges]

    def update_by_lanes(self, *, partial: bool) -> list[str]:
        """One step of a body without a form over vectors: for each accumulator from arrays of its operands, of a vector's size, which the C
        compiler keeps in registers; the loops over their lanes are vectors as it finds them."""
        out = self.begin([*self.pointers(self.flats), *self.prefetches()])
        lanes = f"[{self.width}] __attribute__((aligned(64)))"
        store = PointwiseStore(self.s.write, self.dtype, _converted(self.tiled.body), {})
        for n, (r, v) in enumerate(self.places):
            arrays = {read: f"tc_i{number}_{n}" for number, read in enumerate(self.flats)}
            loaded = self.operands(self.rows[r], v, out, partial=partial)
            kept = self.mask(self.rows[r], v, self.term_checks, out) if partial else ""
            old, new = self.sum(r, v), f"tc_t{n}"
            places = {replace(read, dtype=self.dtype): f"{name}[tc_l]" for read, name in arrays.items()}
            value = self.combined(old, f"{self.call('load')}({new})")
            out.lines += [
                *(f"{self.element} {name}{lanes};" for name in (*arrays.values(), new)),
                *(f"{self.call('store')}({arrays[read]}, {value});" for read, value in loaded.items()),
                "#pragma omp simd",
                f"for (int64_t tc_l = 0; tc_l < {self.width}; ++tc_l) {{",
                f"  {self.pointwise(store, f'{new}[tc_l]', places)}",
                "}",
                f"{old} = {self.call('blend')}({old}, {value}, {kept});" if kept else f"{old} = {value};",
            ]
        return out.lines

    def update(self, *, partial: bool) -> list[str]:
        """One step: every point of the window, for every accumulator."""
        if not has_vector_form(self.s.body):
            return self.update_by_lanes(partial=partial)
        out = self.begin([*self.pointers(self.flats), *self.prefetches()])
        fixed = [(number, flat) for number, flat in enumerate(self.flats.values()) if flat.dims.isdisjoint(self.nest.leaf.window)]
        shuffled = {number for number, flat in fixed if self.step(flat) not in ("0", "1")}
        for number, window in enumerate(self.window):
            if self.nest.leaf.reload and number:
                out.lines.append('__asm__ volatile("" ::: "memory");')
                # what is shuffled once for all points of the window takes less time from memory than again
                out.loads = {key: name for key, name in out.loads.items() if key[0] in shuffled}
            for r, row in enumerate(self.rows):
                point = {**row, **window}
                if partial and (tests := self.conditions(point, 0, self.tiled.tiles.checks)[0]):  # the same for all vectors
                    out.lines += self.branch(tests, r, point, out)
                    continue
                for v in range(self.nest.leaf.vectors):
                    old = self.sum(r, v)
                    operands = self.operands(point, v, out, partial=partial)
                    kept = self.mask(point, v, self.term_checks, out) if partial else ""
                    out.lines.append(f"{old} = {self.updated(old, self.tiled.body, operands, kept)};")
        return self.in_registers(out.lines)

    def in_registers(self, lines: Sequence[str]) -> list[str]:
        """The lines of an update, in which vectors that several sums take are loaded once."""
        uses = Counter(name for line in lines for name in set(_LOADED.findall(line)))

        def once(line: str) -> str:
            name, _, load = line.removeprefix(f"const {self.vector} ").partition(" = ")
            several = uses[name] > 2 and load.startswith(f"{self.call('load')}(")
            return f"const {self.vector} {name} = {self.call('in_register')}({load.removesuffix(';')});" if several else line

        return [once(line) for line in lines]

    def prefetches(self) -> list[str]:
        """What a tile to come reads at this step."""
        lines = []
        flats = {int(read.tensor[1:]): (number, read) for number, read in enumerate(self.flats)}
        blocks = {loop.dim: loop.block for loop in self.nest.loops}  # of the innermost loop over each
        for prefetch in self.nest.prefetch:
            number, read = flats[prefetch.operand]
            flat = self.flats[read]
            if not flat.runtime:
                ahead = flat.stride(prefetch.dim) * blocks[prefetch.dim] * prefetch.distance
                first = lines_of_step(flat, self.s, self.nest.leaf, self.width, DTYPES[read.dtype].bytes)
                lines += [f"__builtin_prefetch(tc_p{number} + {ahead + place});" for place in first]
        return lines

    def branch(self, tests: Sequence[str], r: int, point: Point, out: TileLines) -> list[str]:
        """The update of a row under conditions, and under masks of lanes where there are others; loads that need none are added before."""
        inside = TileLines([], out.numbers)
        for v in range(self.nest.leaf.vectors):
            operands = {}
            for n, (read, flat) in enumerate(self.flats.items()):
                own, lanes = self.conditions(point, v, self.load_checks[read])
                operands[read] = self.load(n, read, flat, point, v, self.lane_mask(lanes, out), inside if own else out)
            old, kept = self.sum(r, v), self.lane_mask(self.conditions(point, v, self.term_checks)[1], out)
            inside.lines.append(f"{old} = {self.updated(old, self.tiled.body, operands, kept)};")
        return [f"if ({' && '.join(tests)}) {{", *("  " + line for line in inside.lines), "}"]

    def no_number(self) -> str:
        """Whether a sum is none."""
        return f"{self.call('any')}({' | '.join(f'({self.sum(r, v)} != {self.sum(r, v)})' for r, v in self.places)})"

    def store(self) -> list[str]:
        if self.speculates:
            return [f"tc_again = {self.no_number()};", "if (!tc_again) {", *("  " + line for line in self.stored_sums()), "}"]
        return self.stored_sums()

    def stored_sums(self) -> list[str]:
        if self.block is None and self.s.start is None and not self.over_terms and not self.s.is_box:  # some results have no terms
            return [*braces(self.results.lines("add")), *self.stored()]
        if self.block is None or self.tiled.has_results_in_blocks:
            return [*self.without_terms(), *self.stored()]
        digit, end = self.block
        self.block = None  # what follows the last one knows of none
        places = [(self.sum(r, v), f"tc_s + {number * self.width}") for number, (r, v) in enumerate(self.places)]
        load, store = self.call("load"), self.call("store")
        added = [f"{total} = {self.combined(f'{load}({place})', total)};" for total, place in places]
        kept = [f"{store}({place}, {total});" for total, place in places]
        held = [] if self.s.start is not None or self.over_terms else braces(self.results.lines("add"))
        last = braces([*held, *self.without_terms(), *self.stored()])
        return [f"if ({digit} > 0) {{", *added, "}", f"if ({digit} < {end}) {{", *kept, "} else", *last]

    def without_terms(self) -> list[str]:
        """The sums that tiles compute for results without terms are thrown away."""
        lines = []
        first = f"{self.call('splat')}({self.constant(identity(self.s.operator, self.dtype))})"
        checks = [check for check in self.tiled.tiles.result_checks if check not in self.tiled.tiles.edges]  # others are not stored
        for r, v in self.places if checks else ():
            (tests, lanes), total = self.conditions(self.rows[r], v, checks), self.sum(r, v)
            if lanes:
                lines.append(f"{total} = {self.call('blend')}({first}, {total}, {self.call('opaque')}({' & '.join(lanes)}));")
            if tests:
                lines.append(f"if (!({' && '.join(tests)})) {total} = {first};")
        return lines

    def stored(self) -> list[str]:
        """Results in memory, with what follows them."""
        stored = self.totals() if self.over_terms else self.results.lines("store")
        if self.block is None:
            lines = [*self.epilogue.lines(), *(stored if self.s.stored else [])]
            return braces(lines) if self.s.epilogue else lines
        digit, end = self.block
        added = [] if self.over_terms else braces(self.results.lines("add"))
        if added and self.s.start is not None:
            added[0] = f"if ({digit} > 0) {{"
        if not self.s.epilogue:
            return [*added, *stored]
        last = braces([*self.epilogue.lines(), *(stored if self.s.stored else [])])
        last[0] = f"if ({digit} == {end}) {{"
        return [*added, *last, "else", *braces(stored)]

    def totals(self) -> list[str]:
        """Partial results in lanes, combined and written as one element of each row."""
        lines = [f"{self.element} *const tc_o = {self.place(self.s.write)};"]
        for r, row in enumerate(self.rows):
            tests = [*self.conditions(row, 0, self.tiled.tiles.edges)[0], *self.after_overlaps(row)]
            place = f"tc_o[{self.offset(self.s.write, row)}]"
            extreme = self.s.start is None and self.s.operator in EXTREMES
            total = self.total(r, place if extreme else "")
            if self.block is not None and self.s.start is not None:
                first = self.constant(identity(self.s.operator, self.dtype))
                total = f"({self.block[0]} > 0 ? {place} : {first}) {self.s.operator[0]} {total}"
            assign = "=" if self.s.start is not None or extreme else self.s.operator
            lines.append(f"{self.guard(tests)}{place} {assign} {total};")
        return lines


def _converted(body: Expr) -> Expr:
    """A body over what is loaded, which loads have converted."""
    if isinstance(body, Cast) and is_converted(body):
        return replace(body.operand, dtype=body.dtype)
    return rebuild(body, _converted)
