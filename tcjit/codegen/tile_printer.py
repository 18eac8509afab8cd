"""The text of a register tile, straight C over vector variables: start, update and store, from constants of the nest alone.

Loads are keyed by what they read, so that each is written once for all rows, vectors and points of a window that use it. In a partial
tile, conditions without the lanes are a scalar test of a row, those with them a mask of lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Unary
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatAccess, Statement
from tcjit.mapping.nest.tile import Check, Tiles

Point = Mapping[str, int]  # of dimensions inside the tile; others are 0 there


@dataclass
class TilePrinter:
    """``width`` lanes of ``element`` in a vector; ``args`` of the methods are C texts of the digits, in the nest's order of loops."""

    s: Statement
    nest: Nest
    tiles: Tiles
    operands: Sequence[Operand]
    body: Expr
    width: int
    element: str = "float"
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        leaf = self.nest.leaf
        ranges = [range(count) for _, count in leaf.rows]
        self.rows: list[Point] = [dict(zip((dim for dim, _ in leaf.rows), at, strict=True)) for at in product(*ranges)]
        windows = [range(self.s.range(dim)[0], self.s.range(dim)[1] + 1) for dim in leaf.window]
        self.window: list[Point] = [dict(zip(leaf.window, at, strict=True)) for at in product(*windows)]
        self.edges = [
            Check({dim: -1}, self.s.extent(dim) - 1, False)
            for dim in self.s.outputs
            if self.s.extent(dim) % self.nest.leaf.tile(dim, self.width)
        ]

    # ------------------------------------------------------------ leaves

    def accumulators(self) -> str:
        """Their declaration."""
        return f"tc_vec {', '.join(self.sum(r, v) for r in range(len(self.rows)) for v in range(self.nest.leaf.vectors))};"

    def start(self, identity: str) -> list[str]:
        return [f"{self.sum(r, v)} = tc_splat({identity});" for r in range(len(self.rows)) for v in range(self.nest.leaf.vectors)]

    def update(self, args: Sequence[str], *, partial: bool) -> list[str]:
        """One step: every point of the window, for every accumulator."""
        lines = ["{", *self.origins(args)]
        lines += [f"const {self.element} *p{number} = {self.place(operand)};" for number, operand in enumerate(self.operands)]
        loads: dict[tuple[object, ...], str] = {}
        masks = 0
        for number, window in enumerate(self.window):
            if self.nest.leaf.reload and number:
                lines.append('__asm__ volatile("" ::: "memory");')
                loads.clear()
            for r, row in enumerate(self.rows):
                for v in range(self.nest.leaf.vectors):
                    tests, lanes = self.conditions({**row, **window}, v, self.tiles.checks) if partial else ([], [])
                    mask, row_test = "", " && ".join(tests)
                    if partial and (tests or lanes):
                        mask, masks = f"m{masks}", masks + 1
                        both = " & ".join(lanes) or "tc_all"
                        lines.append(f"const tc_mask {mask} = {f'({row_test}) ? ({both}) : 0' if tests else both};")
                    point, lane_mask = {**row, **window}, " & ".join(lanes)
                    names = [self.load(n, point, v, lane_mask, row_test, loads, lines) for n in range(len(self.operands))]
                    old = self.sum(r, v)
                    new = self.combined(old, self.value(self.body, names))
                    lines.append(f"{old} = {f'tc_blend({old}, {new}, {mask})' if mask else new};")
        return [*lines, "}"]

    def store(self, args: Sequence[str]) -> list[str]:
        """The results: lanes along memory at once, others one by one, sums over lanes as one number."""
        lane, write = self.nest.leaf.lane, self.s.write
        lines = ["{", *self.origins(args), f"{self.element} *o = {self.address(write)};"]
        for r, row in enumerate(self.rows):
            offset = sum(write.stride(dim) * at for dim, at in row.items())
            for v in range(self.nest.leaf.vectors):
                tests, lanes = self.conditions(row, v, self.edges)
                guard = f"if ({' && '.join(tests)}) " if tests else ""
                if lane in self.s.terms:
                    if v == 0:
                        total = self.sum(r, 0)
                        for other in range(1, self.nest.leaf.vectors):
                            total = self.combined(total, self.sum(r, other))
                        lines.append(f"{guard}o[{offset}] = tc_across({total});")
                    continue
                place = offset + write.stride(lane) * v * self.width
                mask = " & ".join(lanes)
                if write.stride(lane) == 1:
                    text = f"tc_store_masked(o + {place}, {self.sum(r, v)}, {mask})" if mask else f"tc_store(o + {place}, {self.sum(r, v)})"
                else:
                    text = f"tc_scatter(o + {place}, {write.stride(lane)}, {self.sum(r, v)}, {mask or 'tc_all'})"
                lines.append(f"{guard}{text};")
        return [*lines, "}"]

    # ------------------------------------------------------------ parts

    def sum(self, row: int, vector: int) -> str:
        return f"a{row}_{vector}"

    def origins(self, args: Sequence[str]) -> list[str]:
        """The least point of the tile in each dimension."""
        parts: dict[str, list[str]] = {dim: [] for dim in self.s.dims}
        for arg, loop in zip(args, self.nest.loops, strict=False):
            parts[loop.dim].append(f"{loop.block} * ({arg})" if loop.block > 1 else f"({arg})")
        return [f"const int64_t o_{dim} = {' + '.join(terms)};" for dim, terms in parts.items() if terms]

    def address(self, flat: FlatAccess) -> str:
        """The element at the origin of the tile, and of the window."""
        moves = [f"{step} * o_{dim}" for dim, step in flat.form.items() if dim not in self.nest.leaf.window]
        return " + ".join([flat.tensor, *moves, str(flat.constant)])

    def place(self, operand: Operand) -> str:
        assert operand.single is not None, "a product is staged"
        return self.address(operand.single)

    def conditions(self, point: Point, vector: int, checks: Sequence[Check]) -> tuple[list[str], list[str]]:
        """What must hold of a row as a whole, and the masks of its lanes."""
        tests, masks, lane = [], [], self.nest.leaf.lane
        for check in checks:
            window, others = self.nest.leaf.window, {dim: c for dim, c in check.coefficients.items() if dim != lane}
            terms = [f"{c} * (o_{dim} + {point.get(dim, 0)})" for dim, c in others.items() if dim not in window]
            fixed = check.constant + sum(c * point.get(dim, 0) for dim, c in others.items() if dim in window)
            value, step = " + ".join([*terms, str(fixed)]), check.coefficients.get(lane, 0)
            if step == 0:
                tests.append(f"{value} {'==' if check.equality else '>='} 0")
            elif abs(step) == 1 and not check.equality:
                first = f"{value} {'+' if step > 0 else '-'} (o_{lane} + {vector * self.width})"
                masks.append(f"{'tc_from' if step > 0 else 'tc_until'}({first})")
            else:
                raise ValueError(f"no mask for {check.text()}")
        return tests, masks

    def load(
        self, number: int, point: Point, vector: int, mask: str, row_test: str, loads: dict[tuple[object, ...], str], lines: list[str]
    ) -> str:
        """A name for an operand at a point, loaded once."""
        flat = self.operands[number].single
        assert flat is not None
        step = flat.stride(self.nest.leaf.lane)
        offset = sum(flat.stride(dim) * at for dim, at in point.items()) + step * vector * self.width
        guard = row_test if any(flat.stride(dim) for dim in point) else ""
        key = (number, offset, mask if step else "", guard)
        if key not in loads:
            loads[key] = name = f"x{len(loads)}_{len(lines)}"
            where = f"p{number} + (({guard}) ? {offset} : 0)" if guard else f"p{number} + {offset}"
            if step == 0:
                lines.append(f"const {self.element} {name} = *({where});")
            else:
                kind = {1: "tc_load", 2: "tc_load_even"}.get(step, "tc_gather")
                more = ([str(step)] if kind == "tc_gather" else []) + ([mask] if mask else [])
                lines.append(f"const tc_vec {name} = {kind}{'_masked' if mask else ''}({', '.join([where, *more])});")
        return loads[key]

    def value(self, expr: Expr, names: Sequence[str]) -> str:
        """The body over loaded operands: scalars widen by themselves."""
        if isinstance(expr, Access):
            return names[int(expr.tensor[1:])]
        if isinstance(expr, Const):
            return f"{float(expr.value)!r}f" if self.element == "float" else repr(float(expr.value))
        if isinstance(expr, Binary):
            return f"({self.value(expr.left, names)} {expr.op} {self.value(expr.right, names)})"
        if isinstance(expr, Unary):
            return f"({expr.op}{self.value(expr.operand, names)})"
        if isinstance(expr, Call) and expr.function in ("abs", "fabs"):
            return f"tc_abs({self.value(expr.args[0], names)})"
        raise ValueError(f"no vector form of {type(expr).__name__}")

    def combined(self, old: str, new: str) -> str:
        operator = self.s.operator
        return f"({old} {operator[0]} {new})" if operator in ("+=", "*=") else f"tc_{operator[:-1]}({old}, {new})"
