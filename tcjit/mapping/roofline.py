"""The least work that a program can be done with: arithmetic, and memory traffic with a perfect cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, condition
from tcjit.grammar.ast import Access, Binary, Call, Expr, Program, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children
from tcjit.mapping.isl import count_points, sets
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.scop import Scop, ScopStatement


@dataclass(frozen=True)
class Roofline:
    """``flops``: arithmetic operations and calls on values of any type, one each where they are carried out; comparisons, choices and index
    arithmetic are free. ``bytes``: every touched element once, inputs read, outputs written.

    ``intensity`` is their ratio: below a machine's FLOP/s over bytes/s, memory is the bound.
    """

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else float("inf")

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """The least time on a machine with these two ceilings."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)

    def bound(self, flops_per_second: float, bytes_per_second: float) -> str:
        """What the least time is spent on: ``arithmetic`` or ``memory``."""
        return "arithmetic" if self.flops / flops_per_second > self.bytes / bytes_per_second else "memory"


def roofline(program: Program) -> Roofline:
    """Operations and compulsory traffic of a program, counted by isl on its statements as written.

    Under a condition on indices operations count where it holds; under one on data the arm with more of them counts.
    """
    scop = build_scop(program, Options(reduction_chunks=1, pack=False, vector_width=1))
    flops = sum(_operations(scop, s) for s in scop.statements)
    touched: dict[str, list[str]] = {}
    gathered: dict[str, int] = {}
    for s in scop.statements:
        for tensor, subscripts, guards in [(s.tensor, s.subscripts, ()), *((a.tensor, a.subscripts, g) for a, g in s.reads)]:
            if scop.tensor(tensor).role == "temporary":
                continue
            if any(affine(sub, scop.values) is None for sub in subscripts):
                gathered[tensor] = gathered.get(tensor, 0) + s.points  # no more elements than there are reads
            else:
                touched.setdefault(tensor, []).append(scop.access_text(s, tensor, subscripts, guards))
    total = 0
    for storage in scop.tensors:
        exact = scop.relations(touched[storage.name]).range() if storage.name in touched else None
        count = sum(map(count_points, sets(exact))) if exact is not None else 0
        total += min(storage.elements, count + gathered.get(storage.name, 0)) * DTYPES[storage.dtype].bytes
    return Roofline(flops, total)


def _operations(scop: Scop, s: ScopStatement) -> int:
    """Arithmetic of all instances of a statement, the update itself included."""
    guarded = Counter(_arithmetic(s.value, (), scop.values))
    guarded[()] += s.operator != "="
    count = 0
    for guards, each in guarded.items():
        facts = [f"({text})" if holds else f"not ({text})" for text, holds in guards]
        where = " and ".join([*s.facts, *facts])
        points = s.points
        if guards:
            points = count_points(isl.Set(f"{{ {s.tuple_text}{' : ' if where else ''}{where} }}", scop.ctx))
        count += each * points
    return count


Guards = tuple[tuple[str, bool], ...]


def _arithmetic(expr: Expr, guards: Guards, values: Mapping[str, int]) -> list[Guards]:
    """For each operation of an expression the conditions on indices, as isl's texts, under which it is carried out."""
    if isinstance(expr, Access):
        return []
    if isinstance(expr, Select):
        text = condition(expr.condition, values)
        if text is not None:
            then, other = (_arithmetic(arm, (*guards, (text, holds)), values) for arm, holds in ((expr.then, True), (expr.other, False)))
            return then + other
        arms = (_arithmetic(arm, guards, values) for arm in (expr.then, expr.other))
        return _arithmetic(expr.condition, guards, values) + max(arms, key=len)
    found = [one for child in children(expr) for one in _arithmetic(child, guards, values)]
    arithmetic = isinstance(expr, Call) or (isinstance(expr, Binary) and expr.op in "+-*/%") or (isinstance(expr, Unary) and expr.op == "-")
    return [guards, *found] if arithmetic else found
