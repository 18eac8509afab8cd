"""The text of a register tile, straight C over vector variables: start, update and store, from constants of the nest alone.

Loads are keyed by what they read, so that each is written once for all rows, vectors and points of a window that use it. In a partial
tile, conditions without the lanes are a branch around a row's update, those with them a mask of lanes; a load that might leave its tensor
there happens under both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import count, product

from tcjit.codegen.tile_epilogue import Names, Pointwise, TileEpilogue, braces
from tcjit.codegen.tile_vectors import SHUFFLED, element_type, narrow_name, narrow_type, rows_together, suffix, vector_type
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.nest.prefetch import lines_of_step
from tcjit.mapping.nest.statement import FlatAccess, PointwiseStore
from tcjit.mapping.nest.tile import PointCheck, stays_inside
from tcjit.mapping.nest.tiled_statement import Kind, TiledStatement
from tcjit.mapping.nest.vector_forms import NARROW, has_vector_form, is_converted, is_dot_product
from tcjit.mapping.reduction import identity

Point = Mapping[str, int]  # of dimensions inside the tile; others are 0 there
Loads = dict[tuple[object, ...], str]  # what is loaded -> the name of its value
_LOADED = re.compile(r"\btc_x\d+\b")
_UPDATES = {"+=": "add", "*=": "mul", "min=": "min", "max=": "max"}


class TilePrinter:
    """Writes one tiled statement; ``names`` are the C names of its tensors and of strides that only a call knows, ``constant`` gives the
    text of a number, ``pointwise`` that of a store, given the elements that it writes and reads."""

    def __init__(
        self, tiled: TiledStatement, dtype: str, names: Names, constant: Callable[[Const], str], pointwise: Pointwise
    ) -> None:
        self.tiled, self.dtype, self.names, self.constant, self.pointwise = tiled, dtype, names, constant, pointwise
        self.s, self.nest, self.width = tiled.statement, tiled.nest, tiled.width
        self.vector, self.ending = vector_type(dtype, tiled.width), suffix(dtype, tiled.width)
        self.element = element_type(dtype)
        read = {int(part.tensor[1:]): part for part in walk(tiled.body) if isinstance(part, Access)}
        self.flats = {read[number]: tiled.operands[number].flats[0] for number in sorted(read)}  # of the operands, as the body has them
        self.narrow = tuple(dict.fromkeys(read.dtype for read in self.flats if read.dtype in NARROW.get(dtype, ())))
        leaf = self.nest.leaf
        rows = product(*(range(count) for _, count in leaf.rows))
        self.rows: list[Point] = [dict(zip((dim for dim, _ in leaf.rows), at, strict=True)) for at in rows]
        self.epilogue = TileEpilogue(self)
        self.numbers = count()  # of loads
        self.block: tuple[str, str] | None = None  # the digit of the loop over blocks of a term, and how many of them there are
        window = product(*(range(self.s.extent(dim)) for dim in leaf.window))
        self.window: list[Point] = [dict(zip(leaf.window, at, strict=True)) for at in window]

    def lines(self, kind: Kind, digits: Sequence[str]) -> list[str]:
        """A tile statement; ``digits``: C texts, in the order of the nest's loops."""
        block = self.nest.block_loop(self.s)
        self.block = None if block is None else (digits[block], self.tiled.tiles.lasts[block])
        inside = {"start": self.start, "store": self.store, "full": self.full, "partial": self.partial}[kind]()
        return braces([*self.origins(digits), *inside])

    # ------------------------------------------------------------ kinds

    def accumulators(self) -> list[str]:
        """Their declarations, and that of an array for what blocks of terms sum where the loop over blocks stands next to the tile."""
        lines = [f"{self.vector} {', '.join(self.sum(r, v) for r, v in self.places)};"]
        if self.nest.block_loop(self.s) is not None and not self.tiled.has_results_in_blocks:
            lines.append(f"{self.element} tc_s[{len(self.places) * self.width}] __attribute__((aligned(64)));")
        return lines

    @property
    def places(self) -> list[tuple[int, int]]:
        """The rows and vectors of the accumulators."""
        return list(product(range(len(self.rows)), range(self.nest.leaf.vectors)))

    @property
    def over_terms(self) -> bool:
        """Whether lanes hold partial results, which are combined at the end."""
        return self.nest.leaf.lane in self.s.terms

    def start(self) -> list[str]:
        if self.s.start is None and not self.over_terms and self.block is None and self.s.is_box:
            return self.results("load")
        first = f"{self.call('splat')}({self.constant(identity(self.s.operator, self.dtype))})"
        sums = [self.sum(r, v) for r in range(len(self.rows)) for v in range(self.nest.leaf.vectors)]
        empty = [f"{total} = {first};" for total in sums]
        if not self.has_start:
            return empty
        started = self.started(first)
        return started if self.block is None else [f"if ({self.block[0]} == 0) {{", *started, "} else {", *empty, "}"]

    @property
    def has_start(self) -> bool:
        """Whether results start from another value than the operator's identity."""
        return self.s.start is not None and self.s.start != identity(self.s.operator, self.dtype)

    def started(self, first: str) -> list[str]:
        """Accumulators with the value from which results start; where lanes hold partial results, one of them has it."""
        assert self.s.start is not None
        lines = self.pointers(self.s.start_reads)
        loads: Loads = {}
        masks: dict[str, str] = {}
        self.numbers = count()
        for r, row in enumerate(self.rows):
            for v in range(self.nest.leaf.vectors):
                mask = self.mask(row, v, self.tiled.tiles.edges, masks, lines)
                value = self.value(self.s.start, self.loaded(self.s.start_reads, row, v, mask, loads, lines))
                if self.over_terms:
                    value = f"{self.call('blend')}({first}, {value}, {self.call('until')}(0))" if v == 0 else first
                lines.append(f"{self.sum(r, v)} = {value};")
        return lines

    def full(self) -> list[str]:
        return self.update(partial=False)

    def partial(self) -> list[str]:
        return self.update(partial=True)

    @property
    def term_checks(self) -> list[PointCheck]:
        """What must hold of a point for its term to count; what is no result is not stored, whatever it is."""
        return [check for check in self.tiled.tiles.checks if check not in self.tiled.tiles.edges]

    def update_by_lanes(self, *, partial: bool) -> list[str]:
        """One step of a body without a form over vectors: from arrays of its operands, in lanes as the C compiler finds them."""
        lines, size = self.pointers(self.flats), len(self.places) * self.width
        loads: Loads = {}
        masks: dict[str, str] = {}
        self.numbers = count()
        arrays = {read: f"tc_i{number}" for number, read in enumerate(self.flats)}
        lines += [f"{self.element} {name}[{size}] __attribute__((aligned(64)));" for name in (*arrays.values(), "tc_t")]
        updates = []
        for number, (r, v) in enumerate(self.places):
            mask = self.mask(self.rows[r], v, self.tiled.tiles.checks, masks, lines) if partial else ""
            loaded = self.loaded(self.flats, self.rows[r], v, mask, loads, lines)
            lines += [f"{self.call('store')}({arrays[read]} + {number * self.width}, {value});" for read, value in loaded.items()]
            kept = self.mask(self.rows[r], v, self.term_checks, masks, lines) if partial else ""
            old = self.sum(r, v)
            new = self.combined(old, f"{self.call('load')}(tc_t + {number * self.width})")
            updates.append(f"{old} = {self.call('blend')}({old}, {new}, {kept});" if kept else f"{old} = {new};")
        store = PointwiseStore(self.s.write, self.dtype, _converted(self.tiled.body), {})
        places = {replace(read, dtype=self.dtype): f"{name}[tc_l]" for read, name in arrays.items()}
        value = self.pointwise(store, "tc_t[tc_l]", places)
        return [*lines, "#pragma omp simd", f"for (int64_t tc_l = 0; tc_l < {size}; ++tc_l) {{", f"  {value}", "}", *updates]

    def update(self, *, partial: bool) -> list[str]:
        """One step: every point of the window, for every accumulator."""
        if not has_vector_form(self.s.body):
            return self.update_by_lanes(partial=partial)
        lines = [*self.pointers(self.flats), *self.prefetches()]
        loads: Loads = {}
        masks: dict[str, str] = {}
        self.numbers = count()
        for number, window in enumerate(self.window):
            if self.nest.leaf.reload and number:
                lines.append('__asm__ volatile("" ::: "memory");')
                loads.clear()
            for r, row in enumerate(self.rows):
                point = {**row, **window}
                if partial and (tests := self.tests_alone(point)):
                    lines += self.branch(tests, r, point, loads, lines)
                    continue
                for v in range(self.nest.leaf.vectors):
                    read = self.mask(point, v, self.tiled.tiles.checks, masks, lines) if partial else ""
                    old = self.sum(r, v)
                    new = self.updated(old, self.tiled.body, self.loaded(self.flats, point, v, read, loads, lines))
                    kept = self.mask(point, v, self.term_checks, masks, lines) if partial else ""
                    lines.append(f"{old} = {self.call('blend')}({old}, {new}, {kept});" if kept else f"{old} = {new};")
        return self.in_registers(lines)

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
                ahead = flat.stride(prefetch.dim) * blocks[prefetch.dim]
                first = lines_of_step(flat, self.s, self.nest.leaf, self.width, DTYPES[read.dtype].bytes)
                lines += [f"__builtin_prefetch(tc_p{number} + {ahead + place});" for place in first]
        return lines

    def tests_alone(self, point: Point) -> list[str]:
        """The conditions on a point where they are the same for all lanes."""
        found = [self.conditions(point, v, self.tiled.tiles.checks) for v in range(self.nest.leaf.vectors)]
        return [] if any(lanes for _, lanes in found) else found[0][0]

    def branch(self, tests: Sequence[str], r: int, point: Point, loads: Loads, lines: list[str]) -> list[str]:
        """The update of a row under conditions; loads that may happen without them are added before."""
        inside: list[str] = []
        own: Loads = {}
        for v in range(self.nest.leaf.vectors):
            operands = {}
            for n, (read, flat) in enumerate(self.flats.items()):
                always = self.stays_inside(flat)
                operands[read] = self.load(n, read, flat, point, v, "", loads if always else own, lines if always else inside)
            old = self.sum(r, v)
            inside.append(f"{old} = {self.updated(old, self.tiled.body, operands)};")
        return [f"if ({' && '.join(tests)}) {{", *("  " + line for line in inside), "}"]

    def store(self) -> list[str]:
        if self.block is None and self.s.start is None and not self.over_terms and not self.s.is_box:  # some results have no terms
            return [*braces(self.results("add")), *self.stored()]
        if self.block is None or self.tiled.has_results_in_blocks:
            return [*self.without_terms(), *self.stored()]
        digit, end = self.block
        self.block = None  # what follows the last one knows of none
        places = [(self.sum(r, v), f"tc_s + {number * self.width}") for number, (r, v) in enumerate(self.places)]
        load, store = self.call("load"), self.call("store")
        added = [f"{total} = {self.combined(f'{load}({place})', total)};" for total, place in places]
        kept = [f"{store}({place}, {total});" for total, place in places]
        held = [] if self.s.start is not None or self.over_terms else braces(self.results("add"))
        last = braces([*held, *self.without_terms(), *self.stored()])
        return [f"if ({digit} > 0) {{", *added, "}", f"if ({digit} < {end}) {{", *kept, "} else", *last]

    def without_terms(self) -> list[str]:
        """The sums that tiles compute for results without terms are thrown away."""
        lines = []
        first = f"{self.call('splat')}({self.constant(identity(self.s.operator, self.dtype))})"
        checks = [check for check in self.tiled.tiles.result_checks if check not in self.tiled.tiles.edges]  # others are not stored
        for r, row in enumerate(self.rows) if checks else ():
            for v in range(self.nest.leaf.vectors):
                tests, lanes = self.conditions(row, v, checks)
                total = self.sum(r, v)
                if lanes:
                    lines.append(f"{total} = {self.call('blend')}({first}, {total}, {self.call('opaque')}({' & '.join(lanes)}));")
                if tests:
                    lines.append(f"if (!({' && '.join(tests)})) {total} = {first};")
        return lines

    def stored(self) -> list[str]:
        """Results in memory, with what follows them."""
        stored = self.totals() if self.over_terms else self.results("store")
        if self.block is None:
            lines = [*self.epilogue.lines(), *(stored if self.s.stored else [])]
            return braces(lines) if self.s.epilogue else lines
        digit, end = self.block
        added = [] if self.over_terms else braces(self.results("add"))
        if added and self.s.start is not None:
            added[0] = f"if ({digit} > 0) {{"
        if not self.s.epilogue:
            return [*added, *stored]
        last = braces([*self.epilogue.lines(), *(stored if self.s.stored else [])])
        last[0] = f"if ({digit} == {end}) {{"
        return [*added, *last, "else", *braces(stored)]

    def single_tile(self, dim: str) -> bool:
        """Whether a dimension's tile always begins at 0."""
        counts = zip(self.nest.loops, self.tiled.tiles.counts, strict=True)
        return all(count == 1 for loop, count in counts if loop.dim == dim)

    def overlaps(self, dim: str) -> bool:
        return any(overlap.dim == dim for overlap in self.tiled.tiles.overlaps)

    def after_overlaps(self, row: Mapping[str, object]) -> list[str]:
        """Conditions on a row of results that the tile before does not store."""
        dims = [overlap.dim for overlap in self.tiled.tiles.overlaps if overlap.dim != self.nest.leaf.lane]
        return [f"tc_o_{dim} + {row.get(dim, 0)} >= tc_f_{dim}" for dim in dims]

    def results(self, what: str) -> list[str]:
        """Accumulators loaded from memory, stored there, or with what is there added to them: lanes that follow one another at once, others
        one by one, or with those of other rows that are their neighbours."""
        head = f"{self.element} *const tc_o = {self.place(self.s.write)};"
        tests = self.tests_of_whole_tile(what != "load")
        checked = self.results_of_tile(what, whole=False)
        if not tests:
            return [head, *checked]
        return [head, f"if ({' && '.join(tests)})", *braces(self.results_of_tile(what, whole=True)), "else", *braces(checked)]

    def results_of_tile(self, what: str, *, whole: bool) -> list[str]:
        """The same; of a ``whole`` tile all rows and lanes."""
        together = self.rows_together(self.s.write) if what == "store" else 1
        end = len(self.rows) // together * together
        lines = []
        for r, v in product(range(len(self.rows)), range(self.nest.leaf.vectors)):
            if together == 1 or r >= end:
                lines.append(self.result(what, r, v, whole))
            elif r % together == 0:
                lines += self.stored_rows(range(r, r + together), v, whole)
        return lines

    def tests_of_whole_tile(self, stored: bool) -> list[str]:
        """What must hold of a tile so that nothing has to be asked of its rows and lanes; nothing where that is not a few comparisons."""
        leaf = self.nest.leaf
        last = {leaf.lane: leaf.vectors * self.width - 1, **{dim: count - 1 for dim, count in leaf.rows}}
        tests = [f"tc_o_{overlap.dim} >= tc_f_{overlap.dim}" for overlap in self.tiled.tiles.overlaps if stored]
        for check in self.tiled.tiles.edges:
            end = check.constant + sum(c * last.get(dim, 0) for dim, c in check.coefficients.items() if c < 0)
            moving = {dim: c for dim, c in check.coefficients.items() if not self.single_tile(dim)}
            if check.equality or (end < 0 and not moving and not check.sizes):
                return []
            terms = [f"{c} * tc_o_{dim}" for dim, c in moving.items()] + [f"{c} * {size}" for size, c in check.sizes.items()]
            tests += [f"{' + '.join([*terms, str(end)])} >= 0"] if terms else []
        return tests if len(self.places) > 1 else []

    def result(self, what: str, r: int, v: int, whole: bool) -> str:
        """One accumulator loaded, stored, or with what is in memory added."""
        step, total = self.step(self.s.write), self.sum(r, v)
        tests, mask = ([], "") if whole else self.kept(r, v, what != "load")
        place = self.result_place(r, v)
        if what == "load":
            text = f"{total} = {self.moved(step, place, mask)}"
        elif what == "add":
            text = f"{total} = {self.combined(self.moved(step, place, mask), total)}"
        elif step == "1":
            text = self.masked("store", [place, total], mask)
        else:
            text = f"{self.call('scatter')}({place}, {step}, {total}, {mask or f'TC_ALL{self.ending}'})"
        return f"{self.guard(tests)}{text};"

    def kept(self, r: int, v: int, stored: bool) -> tuple[list[str], str]:
        """Conditions on a row of results that is in memory, or is ``stored`` by this tile, and the mask of its lanes where it has one."""
        lane, row = self.nest.leaf.lane, self.rows[r]
        tests, lanes = self.conditions(row, v, self.tiled.tiles.edges)
        if stored:
            tests += self.after_overlaps(row)
            lanes += [f"{self.call('from')}(tc_o_{lane} + {v * self.width} - tc_f_{lane})"] if self.overlaps(lane) else []
        return tests, f"{self.call('opaque')}({' & '.join(lanes)})" if lanes else ""

    def result_place(self, r: int, v: int) -> str:
        return f"tc_o + {self.offset(self.s.write, self.at(self.rows[r], v))}"

    def stored_at(self, write: FlatAccess) -> list[str]:
        """The accumulators stored as what another access writes."""
        other = copy(self)
        other.s = replace(self.s, write=write)
        return other.results("store")

    def rows_together(self, write: FlatAccess) -> int:
        """How many rows are stored at once where lanes are apart in memory: those that follow one another there."""
        leaf = self.nest.leaf
        if write.runtime and any(dim in axis.form for axis in write.runtime for dim, _ in leaf.rows):
            return 1
        if write.stride(leaf.lane) == 1 or [write.stride(dim) for dim, _ in leaf.rows] != [1]:
            return 1
        return rows_together(self.dtype, self.width)

    def stored_rows(self, rows: range, v: int, whole: bool) -> list[str]:
        """Rows of results at once, or one by one where not all of them are stored, or not the same lanes."""
        kept = [] if whole else [self.kept(r, v, True) for r in rows]
        tests = list(dict.fromkeys(test for own, _ in kept for test in own))
        masks = list(dict.fromkeys(mask for _, mask in kept)) or [""]
        if len(masks) > 1:
            tests += [f"{self.call('all')}({mask})" for mask in masks if mask]
        mask = masks[0] if len(masks) == 1 and masks[0] else f"TC_ALL{self.ending}"
        step = self.step(self.s.write)
        sums = ", ".join(self.sum(r, v) for r in rows)
        line = f"{self.call('scatter_rows')}({self.result_place(rows[0], v)}, {step}, ({self.vector}[]){{{sums}}}, {mask});"
        if not tests:
            return [line]
        return [f"if ({' && '.join(tests)}) {line}", "else", *braces([self.result("store", r, v, whole) for r in rows])]

    def totals(self) -> list[str]:
        """Partial results in lanes, combined and written as one element of each row."""
        lines = [f"{self.element} *const tc_o = {self.place(self.s.write)};"]
        for r, row in enumerate(self.rows):
            tests = [*self.conditions(row, 0, self.tiled.tiles.edges)[0], *self.after_overlaps(row)]
            place, total = f"tc_o[{self.offset(self.s.write, row)}]", self.total(r)
            if self.block is not None and self.s.start is not None:
                first = self.constant(identity(self.s.operator, self.dtype))
                total = f"({self.block[0]} > 0 ? {place} : {first}) {self.s.operator[0]} {total}"
            assign = "=" if self.s.start is not None else self.s.operator
            lines.append(f"{self.guard(tests)}{place} {assign} {total};")
        return lines

    def total(self, row: int) -> str:
        """The partial results of a row, combined."""
        total = self.sum(row, 0)
        for v in range(1, self.nest.leaf.vectors):
            total = self.combined(total, self.sum(row, v))
        return f"tc_across_{_UPDATES[self.s.operator]}{self.ending}({total})"

    # ------------------------------------------------------------ places and conditions

    def call(self, function: str) -> str:
        return f"tc_{function}{self.ending}"

    def sum(self, row: int, vector: int) -> str:
        return f"tc_a{row}_{vector}"

    @staticmethod
    def guard(tests: Sequence[str]) -> str:
        return f"if ({' && '.join(tests)}) " if tests else ""

    def origins(self, digits: Sequence[str]) -> list[str]:
        """The least point of the tile in each dimension."""
        parts: dict[str, list[str]] = {dim: [] for dim in self.s.dims}
        for digit, loop in zip(digits, self.nest.loops, strict=False):
            parts[loop.dim].append(f"{loop.block} * ({digit})" if loop.block > 1 else f"({digit})")
        greatest = {overlap.dim: overlap.greatest for overlap in self.tiled.tiles.overlaps}
        lines = []
        for dim, terms in parts.items():
            if dim in greatest:
                lines.append(f"const int64_t tc_f_{dim} = {' + '.join(terms)};")
                end = greatest[dim] if greatest[dim].isdigit() else f"({greatest[dim]})"
                terms = [f"(tc_f_{dim} < {end} ? tc_f_{dim} : {end})"]
            lines += [f"const int64_t tc_o_{dim} = {' + '.join(terms)};"] if terms else []
        return lines

    def place(self, flat: FlatAccess) -> str:
        """The element at the origin of the tile, and of the window."""

        def total(form: Mapping[str, int], constant: int) -> list[str]:
            moves = [f"{step} * tc_o_{dim}" for dim, step in form.items() if dim not in self.nest.leaf.window]
            return [*moves, *([str(constant)] if constant else [])]

        sums = [(self.names.stride(flat.tensor, axis.axis), " + ".join(total(axis.form, axis.constant))) for axis in flat.runtime]
        runtime = [f"{stride} * ({text})" for stride, text in sums if text]
        return " + ".join([self.names.tensors[flat.tensor], *total(flat.form, flat.constant), *runtime])

    def offset(self, flat: FlatAccess, point: Point) -> str:
        """How far from the origin of the tile the place at a point of it is."""
        runtime = {axis.axis: sum(axis.form.get(dim, 0) * at for dim, at in point.items()) for axis in flat.runtime}
        moves = [f"{steps} * {self.names.stride(flat.tensor, axis)}" for axis, steps in runtime.items() if steps]
        fixed = sum(flat.stride(dim) * at for dim, at in point.items())
        return " + ".join([*moves, *([str(fixed)] if fixed or not moves else [])])

    def at(self, point: Point, vector: int) -> Point:
        """The first lane of a vector at a point."""
        return {**point, self.nest.leaf.lane: vector * self.width}

    def step(self, flat: FlatAccess) -> str:
        """Elements from one lane to the next."""
        return self.offset(flat, {self.nest.leaf.lane: 1})

    def conditions(self, point: Point, vector: int, checks: Sequence[PointCheck]) -> tuple[list[str], list[str]]:
        """What must hold of a row as a whole, and the masks of its lanes."""
        tests, masks, lane = [], [], self.nest.leaf.lane
        for check in checks:
            window, others = self.nest.leaf.window, {dim: c for dim, c in check.coefficients.items() if dim != lane}
            terms = [f"{c} * (tc_o_{dim} + {point.get(dim, 0)})" for dim, c in others.items() if dim not in window]
            terms += [f"{c} * {size}" for size, c in check.sizes.items()]
            fixed = check.constant + sum(c * point.get(dim, 0) for dim, c in others.items() if dim in window)
            value, step = " + ".join([*terms, str(fixed)]), check.coefficients.get(lane, 0)
            if step < 0 and not terms and self.single_tile(lane) and fixed >= -step * ((vector + 1) * self.width - 1):
                continue  # all of these lanes are before the end
            if step == 0:
                tests.append(f"{value} {'==' if check.equality else '>='} 0")
            else:
                ahead = f"{value} {'+' if step > 0 else '-'} {_times(abs(step), f'(tc_o_{lane} + {vector * self.width})')}"
                ahead = ahead if abs(step) == 1 else f"tc_floor_quotient({ahead}, {abs(step)})"
                masks.append(f"{self.call('from' if step > 0 else 'until')}({ahead})")
        return tests, masks

    def mask(self, point: Point, vector: int, checks: Sequence[PointCheck], masks: dict[str, str], lines: list[str]) -> str:
        """A name for the lanes at a point for which checks hold; nothing where they hold for all of them."""
        tests, lanes = self.conditions(point, vector, checks)
        text = " & ".join(lanes)
        if tests:
            text = f"({' && '.join(tests)}) ? {text or f'TC_ALL{self.ending}'} : (tc_mask{self.ending}){{0}}"
        if text and text not in masks:
            masks[text] = f"tc_m{len(masks)}"
            lines.append(f"const tc_mask{self.ending} {masks[text]} = {self.call('opaque')}({text});")
        return masks[text] if text else ""

    # ------------------------------------------------------------ values

    def stays_inside(self, flat: FlatAccess) -> bool:
        """Whether elements can be read at all points of all tiles."""
        overlaps = [overlap.dim for overlap in self.tiled.tiles.overlaps]
        return stays_inside(flat, self.s, self.nest, self.width, overlaps)

    def pointers(self, reads: Mapping[Access, FlatAccess]) -> list[str]:
        """Declarations of the places that are read."""
        lines = []
        for number, (read, flat) in enumerate(reads.items()):
            kind = narrow_type(read.dtype) if read.dtype in self.narrow else self.element
            lines.append(f"const {kind} *const tc_p{number} = {self.place(flat)};")
        return lines

    def loaded(
        self, reads: Mapping[Access, FlatAccess], point: Point, vector: int, mask: str, loads: Loads, lines: list[str]
    ) -> dict[Access, str]:
        """The names of what is read at a point, from places with the numbers of their order."""
        return {read: self.load(n, read, flat, point, vector, mask, loads, lines) for n, (read, flat) in enumerate(reads.items())}

    def load(
        self, number: int, read: Access, flat: FlatAccess, point: Point, vector: int, mask: str, loads: Loads, lines: list[str]
    ) -> str:
        """A name for what is read from the place with a number at a point, loaded once."""
        step, offset = self.step(flat), self.offset(flat, self.at(point, vector))
        mask = "" if self.stays_inside(flat) else mask
        key = number, offset, mask
        if key not in loads:
            loads[key] = name = f"tc_x{next(self.numbers)}"
            place = f"tc_p{number} + {offset}" if offset != "0" else f"tc_p{number}"
            if step == "0":
                element = f"{self.call('any')}({mask}) ? *({place}) : 0" if mask else f"*({place})"
                value = f"{self.call(self.reading('splat', read))}({element})"
            else:
                value = self.moved(step, place, mask, read)
            lines.append(f"const {self.vector} {name} = {value};")
        return loads[key]

    def reading(self, function: str, read: Access | None) -> str:
        """The name of a function that loads, where it converts what is read as well."""
        return f"{function}_{narrow_name(read.dtype)}" if read is not None and read.dtype in self.narrow else function

    def moved(self, step: str, place: str, mask: str, read: Access | None = None) -> str:
        """A vector from elements ``step`` apart."""
        narrow = read is not None and read.dtype in self.narrow
        if step == "1" or (step in map(str, SHUFFLED) and not narrow):
            return self.masked(self.reading("load" if step == "1" else f"every{step}", read), [place], mask)
        return self.masked(self.reading("strided", read), [place, step], mask)

    def masked(self, function: str, args: Sequence[str], mask: str) -> str:
        """A call, for the lanes of a mask where there is one."""
        return f"{self.call(f'{function}_masked' if mask else function)}({', '.join([*args, mask] if mask else args)})"

    def value(self, expr: Expr, loaded: Mapping[Access, str]) -> str:
        """An expression over what is loaded, as a vector."""
        match expr:
            case Access():
                return loaded[expr]
            case Cast():
                return self.value(expr.operand, loaded)  # which is converted as it is loaded
            case Const():
                return f"{self.call('splat')}({self.constant(expr)})"
            case Unary():
                return f"(-{self.value(expr.operand, loaded)})"
            case Binary():
                op = {"&&": "&", "||": "|"}.get(expr.op, expr.op)
                return f"({self.value(expr.left, loaded)} {op} {self.value(expr.right, loaded)})"
            case Call():
                args = [self.value(arg, loaded) for arg in expr.args]
                if expr.function == "relu":  # keeps a NaN, and the sign of a zero
                    zero = f"{self.call('splat')}(0)"
                    return f"{self.call('select')}({args[0]} < {zero}, {zero}, {args[0]})"
                if expr.function in ("fmin", "fmax"):
                    return self.number_of(expr, *args)
                return f"{self.call('fabs' if expr.function == 'abs' else expr.function)}({', '.join(args)})"
            case Select():
                parts = (self.value(part, loaded) for part in (expr.condition, expr.then, expr.other))
                return f"{self.call('select')}({', '.join(parts)})"
        raise MappingError(f"{type(expr).__name__} has no form over vectors")

    def number_of(self, call: Call, first: str, second: str) -> str:
        """The lesser or greater of two values, or that which is a number, of one zero and another as the helpers for elements choose."""
        relation, select = "<" if call.function == "fmin" else ">", self.call("select")
        is_number = [isinstance(arg, Const) and arg.value == arg.value for arg in call.args]
        if is_number[1]:
            return f"{select}({first} {relation} {second}, {first}, {second})"
        nearer = f"{select}({second} {relation} {first}, {second}, {first})"
        return nearer if is_number[0] else f"{select}({first} != {first}, {second}, {nearer})"

    def updated(self, old: str, body: Expr, operands: Mapping[Access, str]) -> str:
        """An accumulator with one more term."""
        if is_dot_product(body):
            return f"{self.call(body.function)}({old}, {', '.join(self.value(arg, operands) for arg in body.args)})"
        return self.combined(old, self.value(body, operands))

    def combined(self, old: str, new: str) -> str:
        operator = self.s.operator
        return f"({old} {operator[0]} {new})" if operator in ("+=", "*=") else f"{self.call(operator[:-1])}({old}, {new})"


def _converted(body: Expr) -> Expr:
    """A body over what is loaded, which loads have converted."""
    if isinstance(body, Cast) and is_converted(body):
        return replace(body.operand, dtype=body.dtype)
    return rebuild(body, _converted)


def _times(factor: int, text: str) -> str:
    return text if factor == 1 else f"{factor} * {text}"
