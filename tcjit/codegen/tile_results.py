"""The results of a register tile in memory: loaded into its accumulators, stored from them, or added to them; and what follows them, on
the accumulators, or element by element from an array of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from tcjit.codegen.half_vectors import HALF, rounding_lines, unrounded
from tcjit.codegen.strided_vectors import SHUFFLED
from tcjit.codegen.tile_text import TileLines, TileText, braces
from tcjit.codegen.tile_vectors import rows_together
from tcjit.errors import MappingError
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access
from tcjit.grammar.walk import walk
from tcjit.mapping.nest.statement import FlatAccess, PointwiseStore
from tcjit.mapping.nest.vector_forms import has_vector_form
from tcjit.mapping.operations import CALL, operations


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


class TileEpilogue:
    """Writes the epilogue of one tiled statement."""

    def __init__(self, tile: TileText) -> None:
        self.tile = tile

    def lines(self) -> list[str]:
        """What follows a result, on the accumulators where that has a form over vectors; else element by element from an array of them, in
        lanes as the C compiler finds them."""
        if not self.tile.s.epilogue:
            return []
        if self.is_in_vectors:
            return [line for e in self.tile.s.epilogue for line in braces(self.in_vectors(e))]
        leaf = self.tile.nest.leaf
        lanes = 1 if self.tile.over_terms else leaf.vectors * self.tile.width
        complete = self.tile.sums_in_memory or "tc_t"
        size = self.whole_vectors if self.tile.over_terms else len(self.tile.rows) * lanes
        declared = f"{self.tile.element} tc_t[{size}] __attribute__((aligned(64)));"
        lines = [] if self.tile.sums_in_memory else [declared]
        for r in range(len(self.tile.rows)) if lines else ():
            if self.tile.over_terms:
                lines.append(f"tc_t[{r}] = {self.tile.total(r)};")
            else:
                places = {v: f"tc_t + {r * lanes + v * self.tile.width}" for v in range(leaf.vectors)}
                lines += [f"{self.tile.call('store')}({place}, {self.tile.sum(r, v)});" for v, place in places.items()]
        row = {dim: place for (dim, _), place in zip(leaf.rows, self.places_of_row(), strict=True)}
        tests, limits = self.limits(row)
        count, first = str(lanes), f"tc_f_{leaf.lane} - tc_o_{leaf.lane}" if self.tile.overlaps(leaf.lane) else "0"
        counted = list[str]()
        for number, limit in enumerate(limits):
            counted.append(f"const int64_t tc_n{number or ''} = {limit} < {count} ? {limit} : {count};")
            count = f"tc_n{number or ''}"
        by_row = any("tc_r" in limit for limit in limits)  # each row has a number of lanes of its own
        lines += [] if by_row else counted
        where = {**row, **({} if self.tile.over_terms else {leaf.lane: "tc_l"})}
        if self.along_rows and not by_row:
            return [*lines, *self.by_lanes(where, complete, (first, count), tests)]
        if self.tile.over_terms and not self.tile.sums_in_memory and any(map(self.evaluates_functions, self.tile.s.epilogue)):
            lines += [f"tc_t[{r}] = 0;" for r in range(len(self.tile.rows), self.whole_vectors)]
            return [*lines, *(line for e in self.tile.s.epilogue for line in self.evaluated_rows(e, where, tests))]
        lines.append(f"for (int64_t tc_r = 0; tc_r < {len(self.tile.rows)}; ++tc_r) {self.tile.guard(tests)}{{")
        lines += counted if by_row else []
        for e in self.tile.s.epilogue:
            own = f"{complete}[{lanes} * tc_r + tc_l]"
            reads = [access for access, _ in guarded_accesses(e.value)]
            read = {access: self.element_at(e.reads[access], where) if access in e.reads else own for access in reads}
            target = self.element_at(e.write, where)

            def lane_loop(statement: str) -> list[str]:
                return ["#pragma omp simd", f"  for (int64_t tc_l = {first}; tc_l < {count}; ++tc_l) {{", f"    {statement}", "  }"]

            if e in self.rounded:
                opening, *behind = rounding_lines(lanes, self.tile.width)
                floats = replace(e, dtype=self.tile.dtype, value=unrounded(e.value))
                lines += [opening, *lane_loop(self.tile.pointwise(floats, "tc_c[tc_l]", read)), *behind]
                lines += [*lane_loop(f"{target} = tc_b[tc_l];"), "}"]
            elif e in self.interleaved:
                array = f"tc_s{self.interleaved.index(e)}"
                lines.insert(0, f"{self.tile.element} {array}[{len(self.tile.rows) * lanes}] __attribute__((aligned(64)));")
                lines += lane_loop(self.tile.pointwise(e, f"{array}[{lanes} * tc_r + tc_l]", read))
            elif (first, count) != ("0", str(lanes)) and self.evaluates_functions(e):
                lines += self.evaluated_whole(e, where, read, (first, count), lane_loop)
            else:
                lines += lane_loop(self.tile.pointwise(e, target, read))
        lines.append("}")
        for number, e in enumerate(self.interleaved):
            sums = [(self.tile.sum(r, v), r * lanes + v * self.tile.width) for r in range(len(self.tile.rows)) for v in range(leaf.vectors)]
            loaded = [f"{total} = {self.tile.call('load')}(tc_s{number} + {at})" for total, at in sums]
            lines += braces([f"const {self.tile.vector} {', '.join(loaded)};", *TileResults(self.tile, e.write).lines("store")])
        return lines

    @property
    def is_in_vectors(self) -> bool:
        """Whether all of it is arithmetic on vectors of the accumulators' type."""
        tile = self.tile
        types = {part.dtype for e in tile.s.epilogue for part in walk(e.value) if isinstance(part, Access)}
        types |= {e.dtype for e in tile.s.epilogue}
        return not tile.over_terms and types == {tile.dtype} and all(has_vector_form(e.value) for e in tile.s.epilogue)

    def in_vectors(self, e: PointwiseStore) -> list[str]:
        """A store of what is computed from the accumulators."""
        tile, values = self.tile, []
        out = TileLines(tile.pointers(e.reads), tile.numbers)
        for (r, row), v in product(enumerate(tile.rows), range(tile.nest.leaf.vectors)):
            read = tile.loaded(e.reads, row, v, tile.mask(row, v, tile.tiled.tiles.edges, out), out)
            read |= {access: tile.sum(r, v) for access, _ in guarded_accesses(e.value) if access not in e.reads}
            out.lines.append(f"const {tile.vector} tc_e{r}_{v} = {tile.value(e.value, read)};")
            values.append(f"{tile.sum(r, v)} = tc_e{r}_{v}")
        return [*out.lines, *braces([f"const {tile.vector} {', '.join(values)};", *TileResults(tile, e.write).lines("store")])]

    @property
    def along_rows(self) -> bool:
        """Whether all that is stored has its neighbours along many rows, and none along the lanes."""
        leaf, stores = self.tile.nest.leaf, self.tile.s.epilogue
        if self.tile.over_terms or self.rounded or self.interleaved or len(leaf.rows) != 1 or len(self.tile.rows) < self.tile.width:
            return False
        ((row, _),) = leaf.rows
        return all(e.write.stride(row) == 1 and e.write.stride(leaf.lane) > 1 and not e.write.runtime for e in stores)

    @property
    def is_transposed(self) -> bool:
        """Whether the accumulators are transposed, in whole vectors of rows, before they are stored along their rows."""
        return self.along_rows and len(self.tile.rows) % self.tile.width == 0

    def by_lanes(self, where: Mapping[str, str], complete: str, ends: tuple[str, str], tests: Sequence[str]) -> list[str]:
        """The stores of all rows of one lane after the other, from an array of the accumulators."""
        (first, count), leaf, width = ends, self.tile.nest.leaf, self.tile.width
        ((dim, rows),), lanes, lines = leaf.rows, leaf.vectors * width, list[str]()
        own = f"{complete}[{lanes} * tc_r + tc_l]"
        if self.is_transposed:
            own = f"tc_q[{rows} * tc_l + tc_r]"
            lines.append(f"{self.tile.element} tc_q[{lanes * rows}] __attribute__((aligned(64)));")
            for row, lane in product(range(0, rows, width), range(0, lanes, width)):
                places = f"tc_q + {rows * lane + row}, {rows}, {complete} + {lanes * row + lane}, {lanes}"
                lines.append(f"{self.tile.call('transpose_rows')}({places});")
        overlap = f"tc_f_{dim} - tc_o_{dim}" if self.tile.overlaps(dim) else "0"
        inside = [test for test in tests if test != f"tc_o_{dim} + tc_r >= tc_f_{dim}"]
        lines += [f"for (int64_t tc_l = {first}; tc_l < {count}; ++tc_l) {{", "#pragma omp simd"]
        lines.append(f"  for (int64_t tc_r = {overlap}; tc_r < {rows}; ++tc_r) {self.tile.guard(inside)}{{")
        for e in self.tile.s.epilogue:
            reads = [access for access, _ in guarded_accesses(e.value)]
            read = {access: self.element_at(e.reads[access], where) if access in e.reads else own for access in reads}
            lines.append(f"    {self.tile.pointwise(e, self.element_at(e.write, where), read)}")
        return [*lines, "  }", "}"]

    @property
    def interleaved(self) -> tuple[PointwiseStore, ...]:
        """Those of the epilogue whose rows follow one another in memory and whose lanes do not, and that no other one reads: they are
        stored together when all are there."""
        if self.tile.over_terms:
            return ()
        read = {access.tensor for e in self.tile.s.epilogue for access in e.reads}
        apart = (e for e in self.tile.s.epilogue if e.write.tensor not in read)
        return tuple(e for e in apart if e.dtype == self.tile.dtype and TileResults(self.tile, e.write).rows_together > 1)

    def evaluates_functions(self, e: PointwiseStore) -> bool:
        """Whether a store takes functions of elements of the accumulators' type."""
        return operations(e.value) >= CALL and {e.dtype, *(read.dtype for read, _ in guarded_accesses(e.value))} == {self.tile.dtype}

    def evaluated_whole(
        self, e: PointwiseStore, where: Mapping[str, str], places: Mapping[Access, str], ends: tuple[str, str],
        some: Callable[[str], list[str]],
    ) -> list[str]:  # fmt: skip
        """A store evaluated for all lanes, in whole vectors, from arrays of what those between two ``ends`` read, and written for these:
        functions of those that are left beside whole vectors would be evaluated one by one. No condition on indices stands in an epilogue,
        so that all of it may be read."""
        tile = self.tile
        lane, lanes = tile.nest.leaf.lane, tile.nest.leaf.vectors * tile.width
        array = f"{tile.element} {{}}[{lanes}] __attribute__((aligned(64)))"
        masks = [f"tc_k{v} = {tile.call('opaque')}({self.mask_between(*ends, v * tile.width)})" for v in range(tile.nest.leaf.vectors)]
        lines, own = [f"{array.format('tc_v')};", f"const tc_mask{tile.ending} {', '.join(masks)};"], dict(places)

        def vectors(flat: FlatAccess) -> list[tuple[str, str, int]]:
            """The places, the masks and the first lanes of vectors of what lies along the lanes."""
            firsts = [(v, v * tile.width) for v in range(tile.nest.leaf.vectors)]
            return [(f"&{self.element_at(flat, {**where, lane: str(at)})}", f"tc_k{v}", at) for v, at in firsts]

        for number, (access, flat) in enumerate(e.reads.items()):
            if lane in flat.dims:
                name = f"tc_u{number}"
                lines.append(f"{array.format(name)} = {{0}};")
                if flat.stride(lane) == 1 and not _moves_at_runtime(flat, lane):
                    loads = [(at, f"{tile.call('load_masked')}({place}, {mask})") for place, mask, at in vectors(flat)]
                    lines += [f"{tile.call('store')}({name} + {at}, {load});" for at, load in loads]
                else:
                    lines += some(f"{name}[tc_l] = {places[access]};")
                own[access] = f"{name}[tc_l]"
        value = tile.pointwise(e, "tc_v[tc_l]", own)
        lines += ["#pragma omp simd", f"for (int64_t tc_l = 0; tc_l < {lanes}; ++tc_l) {{", f"  {value}", "}"]
        if e.write.stride(lane) == 1 and not _moves_at_runtime(e.write, lane):
            stored = [(place, f"{tile.call('load')}(tc_v + {at}), {mask}") for place, mask, at in vectors(e.write)]
            return braces([*lines, *(f"{tile.call('store_masked')}({place}, {value});" for place, value in stored)])
        return braces([*lines, *some(f"{self.element_at(e.write, where)} = tc_v[tc_l];")])

    @property
    def whole_vectors(self) -> int:
        """The rows of a tile, and as many more as fill its last vector."""
        return -(-len(self.tile.rows) // self.tile.width) * self.tile.width

    def evaluated_rows(self, e: PointwiseStore, where: Mapping[str, str], tests: Sequence[str]) -> list[str]:
        """A store evaluated for all rows of sums over lanes in whole vectors, from arrays of what they read."""
        tile, whole = self.tile, self.whole_vectors
        one_by_one = f"for (int64_t tc_r = 0; tc_r < {len(tile.rows)}; ++tc_r) {tile.guard(tests)}"
        places = {access: self.element_at(flat, where) for access, flat in e.reads.items()}
        own = {access: places.get(access, "tc_t[tc_r]") for access, _ in guarded_accesses(e.value)}
        target, array = self.element_at(e.write, where), f"{tile.element} {{}}[{whole}] __attribute__((aligned(64)))"
        if not self.evaluates_functions(e):
            return [f"{one_by_one}{{", f"  {tile.pointwise(e, target, own)}", "}"]
        lines = [f"{array.format('tc_v')};"]
        for number, access in enumerate(places):
            own[access] = f"tc_u{number}[tc_r]"
            lines += [f"{array.format(f'tc_u{number}')} = {{0}};", f"{one_by_one}{own[access]} = {places[access]};"]
        value = tile.pointwise(e, "tc_v[tc_r]", own)
        lines += ["#pragma omp simd", f"for (int64_t tc_r = 0; tc_r < {whole}; ++tc_r) {{", f"  {value}", "}"]
        return braces([*lines, f"{one_by_one}{target} = tc_v[tc_r];"])

    def mask_between(self, first: str, count: str, at: int) -> str:
        """The lanes of a vector that begins ``at`` a lane which are between the first one and the end."""
        until = f"{self.tile.call('until')}({count} - 1 - {at})"
        return until if first == "0" else f"{until} & {self.tile.call('from')}({at} - ({first}))"

    def places_of_row(self) -> list[str]:
        """The point along each dimension of the rows of row number ``tc_r``."""
        points = [many for _, many in self.tile.nest.leaf.rows]
        if len(points) < 2:
            return ["tc_r"] * len(points)
        return [f"(tc_r / {prod(points[number + 1 :])} % {many})" for number, many in enumerate(points)]

    @property
    def rounded(self) -> tuple[PointwiseStore, ...]:
        """Those of the epilogue that store floats as halves, in vectors."""
        vectors = self.tile.dtype == "float32" and not self.tile.over_terms
        return tuple(e for e in self.tile.s.epilogue if vectors and e.dtype == HALF and e.value not in e.reads)

    def limits(self, row: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """What must hold of a row of results that is stored, and how many of its lanes there are."""
        lane = self.tile.nest.leaf.lane
        tests, counts = self.tile.after_overlaps(row), list[str]()
        for check in self.tile.tiled.tiles.edges:
            terms = [f"{c} * (tc_o_{dim} + {row.get(dim, 0)})" for dim, c in check.coefficients.items() if dim != lane]
            terms += [f"{c} * {size}" for size, c in check.sizes.items()]
            value = " + ".join([*terms, str(check.constant)])
            if lane not in check.coefficients:
                tests.append(f"{value} {'==' if check.equality else '>='} 0")
            else:
                step = check.coefficients[lane]
                if step > 0 or check.equality:
                    raise MappingError("an epilogue of results whose lanes do not end once", hint="vector_width=1")
                last = value if step == -1 else f"tc_floor_quotient({value}, {-step})"
                counts.append(f"({last} - tc_o_{lane} + 1)")
        return tests, counts

    def element_at(self, flat: FlatAccess, inside: Mapping[str, str]) -> str:
        """An element at a point of the tile."""
        def total(form: Mapping[str, int], constant: int) -> str:
            moves = [f"{step} * ({' + '.join([f'tc_o_{dim}', *([inside[dim]] if dim in inside else [])])})" for dim, step in form.items()]
            return " + ".join([*moves, str(constant)])

        runtime = [f"{self.tile.names.stride(flat.tensor, axis.axis)} * ({total(axis.form, axis.constant)})" for axis in flat.runtime]
        return f"{self.tile.names.tensors[flat.tensor]}[{' + '.join([total(flat.form, flat.constant), *runtime])}]"


def _moves_at_runtime(flat: FlatAccess, dim: str) -> bool:
    """Whether a stride that only the call knows moves an access along a dimension."""
    return any(dim in axis.form for axis in flat.runtime)
