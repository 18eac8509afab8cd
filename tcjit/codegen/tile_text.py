"""The parts of a register tile's text: places in memory, conditions on points and masks of lanes, loads, and values as vectors.

Loads are keyed by what they read, so that each is written once for all rows, vectors and points of a window that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import count, product

from tcjit.codegen.narrow_vectors import narrow_name, narrow_type
from tcjit.codegen.predication import condition_mask
from tcjit.codegen.strided_vectors import SHUFFLED
from tcjit.codegen.tile_vectors import across, combined, element_type, suffix, vector_type
from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.nest.statement import FlatAccess, PointwiseStore
from tcjit.mapping.nest.tile import PointCheck, stays_inside
from tcjit.mapping.nest.tiled_statement import TiledStatement
from tcjit.mapping.nest.vector_forms import INTEGER_POWER, MASKED_BYTES, NARROW, is_dot_product, predicated
from tcjit.mapping.reduction import identity

Point = Mapping[str, int]  # of dimensions inside the tile; others are 0 there
Pointwise = Callable[[PointwiseStore, str, Mapping[Access, str]], str]


@dataclass(frozen=True)
class Names:
    """The C names of tensors, and of the strides of their axes that only a call knows."""

    tensors: Mapping[str, str]
    stride: Callable[[str, int], str]


@dataclass
class TileLines:
    """Lines as they are written, with the names of what was loaded and of masks so far: each stands there once for all that use it."""

    lines: list[str]
    numbers: Iterator[int] = field(default_factory=count)  # of loads
    loads: dict[tuple[object, ...], str] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)


class TileText:
    """One tiled statement; ``names`` are the C names of its tensors and of strides that only a call knows, ``constant`` gives the text of a
    number, ``pointwise`` that of a store, given the elements that it writes and reads."""

    def __init__(
        self, tiled: TiledStatement, dtype: str, names: Names, constant: Callable[[Const], str], pointwise: Pointwise
    ) -> None:
        self.tiled, self.dtype, self.names, self.constant, self.pointwise = tiled, dtype, names, constant, pointwise
        self.s, self.nest, self.width = tiled.statement, tiled.nest, tiled.width
        self.vector, self.ending = vector_type(dtype, tiled.width), suffix(dtype, tiled.width)
        self.element = element_type(dtype)
        read = {int(part.tensor[1:]): part for part in walk(tiled.body) if isinstance(part, Access)}
        self.flats = {read[number]: tiled.operands[number].flats[0] for number in sorted(read)}  # of the operands, as the body has them
        values = {read: tiled.operands[number].value for number, read in read.items()}
        found = tiled.tiles.load_checks
        self.load_checks = {read: found[value] if isinstance(value, Access) else tiled.tiles.checks for read, value in values.items()}
        self.narrow = tuple(dict.fromkeys(read.dtype for read in self.flats if read.dtype in NARROW.get(dtype, ())))
        leaf = self.nest.leaf
        rows = product(*(range(count) for _, count in leaf.rows))
        self.rows: list[Point] = [dict(zip((dim for dim, _ in leaf.rows), at, strict=True)) for at in rows]
        self.numbers: Iterator[int] = count()  # of the loads of the kind of tile at hand
        self.speculates = False  # while masked products are written as products with 0 (``may_speculate``)
        self.sums_in_memory = ""  # an array that has the accumulators, row by row, when they are complete

    @property
    def places(self) -> list[tuple[int, int]]:
        """The rows and vectors of the accumulators."""
        return list(product(range(len(self.rows)), range(self.nest.leaf.vectors)))

    @property
    def over_terms(self) -> bool:
        """Whether lanes hold partial results, which are combined at the end."""
        return self.nest.leaf.lane in self.s.terms

    @property
    def may_speculate(self) -> bool:
        """Whether masked products are first summed up as products with 0, which takes no instruction for each where a mask is no register
        of its own, and again under their masks where a sum is no number then: 0 times an infinity or a NaN makes one of it, which stays."""
        term = predicated(self.tiled.body, self.s.operator)
        product = term is not None and self.s.operator == "+=" and isinstance(term.then, Binary) and term.then.op == "*"
        blends = self.width * DTYPES[self.dtype].bytes < MASKED_BYTES and DTYPES[self.dtype].kind == "float"
        starts = self.s.start == identity(self.s.operator, self.dtype) and self.nest.block_loop(self.s) is None
        return product and blends and starts

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
            if check.holds(*({**point, lane: vector * self.width + at} for at in (0, self.width - 1))):
                continue
            last = vector * self.width if step > 0 else (vector + 1) * self.width - 1  # of the lanes the first that it leaves out
            if step and not terms and self.single_tile(lane) and fixed + step * last >= 0:
                continue  # all of these lanes are inside
            if step == 0:
                tests.append(f"{value} {'==' if check.equality else '>='} 0")
            else:
                ahead = f"{value} {'+' if step > 0 else '-'} {_times(abs(step), f'(tc_o_{lane} + {vector * self.width})')}"
                ahead = ahead if abs(step) == 1 else f"tc_floor_quotient({ahead}, {abs(step)})"
                masks.append(f"{self.call('from' if step > 0 else 'until')}({ahead})")
        return tests, masks

    def begin(self, lines: list[str]) -> TileLines:
        """A kind of tile, whose loads are numbered from 0 on."""
        self.numbers = count()
        return TileLines(lines, self.numbers)

    def mask(self, point: Point, vector: int, checks: Sequence[PointCheck], out: TileLines) -> str:
        """A name for the lanes at a point for which checks hold; nothing where they hold for all of them."""
        tests, lanes = self.conditions(point, vector, checks)
        if not tests:
            return self.lane_mask(lanes, out)
        every = " & ".join(lanes) or f"TC_ALL{self.ending}"
        return self.lane_mask([f"({' && '.join(tests)}) ? {every} : (tc_mask{self.ending}){{0}}"], out)

    def lane_mask(self, lanes: Sequence[str], out: TileLines) -> str:
        """A name for the lanes that several masks have; nothing for all lanes."""
        text = " & ".join(lanes)
        if text and text not in out.masks:
            out.masks[text] = f"tc_m{len(out.masks)}"
            out.lines.append(f"const tc_mask{self.ending} {out.masks[text]} = {self.call('opaque')}({text});")
        return out.masks[text] if text else ""

    # ------------------------------------------------------------ values

    def stays_inside(self, flat: FlatAccess) -> bool:
        """Whether elements can be read at all points of all tiles: of an operand where terms are, of others where results are stored."""
        overlaps = [overlap.dim for overlap in self.tiled.tiles.overlaps]
        stored = all(flat is not operand for operand in self.flats.values())
        return stays_inside(flat, self.s, self.nest, self.width, overlaps, stored=stored)

    def pointers(self, reads: Mapping[Access, FlatAccess]) -> list[str]:
        """Declarations of the places that are read."""
        lines = []
        for number, (read, flat) in enumerate(reads.items()):
            kind = narrow_type(read.dtype) if read.dtype in self.narrow else self.element
            lines.append(f"const {kind} *const tc_p{number} = {self.place(flat)};")
        return lines

    def loaded(self, reads: Mapping[Access, FlatAccess], point: Point, vector: int, mask: str, out: TileLines) -> dict[Access, str]:
        """The names of what is read at a point, from places with the numbers of their order."""
        return {read: self.load(n, read, flat, point, vector, mask, out) for n, (read, flat) in enumerate(reads.items())}

    def operands(self, point: Point, vector: int, out: TileLines, *, partial: bool) -> dict[Access, str]:
        """The names of the operands at a point; those of a partial tile are loaded where they are inside their tensors."""
        if not partial:
            return self.loaded(self.flats, point, vector, "", out)
        names = {}
        for number, (read, flat) in enumerate(self.flats.items()):
            tests, lanes = self.conditions(point, vector, self.load_checks[read])
            if self.step(flat) == "0" and not lanes:
                names[read] = self.load_one(number, read, flat, point, vector, " && ".join(tests), out)
            else:
                names[read] = self.load(number, read, flat, point, vector, self.mask(point, vector, self.load_checks[read], out), out)
        return names

    def load(self, number: int, read: Access, flat: FlatAccess, point: Point, vector: int, mask: str, out: TileLines) -> str:
        """A name for what is read from the place with a number at a point, loaded once."""
        step, offset = self.step(flat), self.offset(flat, self.at(point, vector))
        mask = "" if self.stays_inside(flat) else mask
        if step == "0":
            return self.load_one(number, read, flat, point, vector, mask and f"{self.call('any')}({mask})", out)
        place = f"tc_p{number} + {offset}" if offset != "0" else f"tc_p{number}"
        return self.named((number, offset, mask), self.moved(step, place, mask, read), out)

    def load_one(self, number: int, read: Access, flat: FlatAccess, point: Point, vector: int, test: str, out: TileLines) -> str:
        """A name for the element that all lanes read, where a test holds."""
        offset = self.offset(flat, self.at(point, vector))
        place = f"*(tc_p{number} + {offset})" if offset != "0" else f"*(tc_p{number})"
        element = f"{test} ? {place} : 0" if test else place
        return self.named((number, offset, test), f"{self.call(self.reading('splat', read))}({element})", out)

    def named(self, key: tuple[object, ...], load: str, out: TileLines) -> str:
        """The name of what a load gives, which is written where there is none with this key."""
        if key not in out.loads:
            out.loads[key] = f"tc_x{next(out.numbers)}"
            out.lines.append(f"const {self.vector} {out.loads[key]} = {load};")
        return out.loads[key]

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
            case Call() if expr.function == INTEGER_POWER:
                base, exponent, bits = expr.args
                assert isinstance(bits, Const)
                return f"{self.call(expr.function)}({self.value(base, loaded)}, {self.value(exponent, loaded)}, {self.constant(bits)})"
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

    def updated(self, old: str, body: Expr, operands: Mapping[Access, str], mask: str = "") -> str:
        """An accumulator with one more term, in the lanes of a mask alone where there is one."""
        if (term := predicated(body, self.s.operator)) is not None:
            lanes = condition_mask(term.condition, self.ending, lambda part: self.value(part, operands))
            if self.speculates and not mask and isinstance(product := term.then, Binary):
                factors = sorted((product.left, product.right), key=self.moves_with_lanes)
                first, second = (self.value(factor, operands) for factor in factors)
                return f"({old} + ({self.call('or_zero')}({first}, {lanes}) * {second}))"
            return self.updated(old, term.then, operands, f"({lanes} & {mask})" if mask else lanes)
        if mask and self.s.operator == "+=" and not is_dot_product(body) and getattr(body, "op", "") != "*":  # no multiply-add
            return f"{self.call('add_masked')}({old}, {self.value(body, operands)}, {mask})"
        if is_dot_product(body):
            new = f"{self.call(body.function)}({old}, {', '.join(self.value(arg, operands) for arg in body.args)})"
        else:
            new = self.combined(old, self.value(body, operands))
        return f"{self.call('blend')}({old}, {new}, {mask})" if mask else new

    def moves_with_lanes(self, factor: Expr) -> bool:
        return any(self.nest.leaf.lane in self.flats[part].dims for part in walk(factor) if isinstance(part, Access))

    def combined(self, old: str, new: str) -> str:
        return combined(self.s.operator, self.ending, old, new)

    def total(self, row: int, beside: str = "") -> str:
        """The partial results of a row, combined; of an extreme with a value ``beside`` them."""
        total = self.sum(row, 0)
        for v in range(1, self.nest.leaf.vectors):
            total = self.combined(total, self.sum(row, v))
        if beside:
            total = self.combined(total, f"{self.call('splat')}({beside})")
        return across(self.s.operator, self.ending, total)


def braces(lines: Sequence[str]) -> list[str]:
    return ["{", *("  " + line for line in lines), "}"]


def _times(factor: int, text: str) -> str:
    return text if factor == 1 else f"{factor} * {text}"
