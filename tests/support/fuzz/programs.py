"""Random programs of the language, nearly all valid: ``draw(rng)`` gives one with its arguments.

A program is built from its extents outwards: indices get ranges first, and every subscript is made to fit a tensor that is there, or
a new input is made to fit the subscript. So what range inference finds is known beforehand, and extents of results are too.
"""
from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from math import prod

from support.cases import Case, Fill
from support.fuzz.expressions import Expressions
from support.fuzz.scope import FLOATS, INTEGERS, LETTERS, Idx, Scope, Ten
from tcjit.errors import ShapeError
from tcjit.grammar.dtypes import DTYPES

EXTENTS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 300)
WEIGHTS = (1, 4, 4, 6, 4, 6, 5, 5, 4, 3, 5, 2, 4, 1, 2, 1, 1)
WORK = 60_000  # instances of one statement


@dataclass
class Statistics:
    """How many drawn programs were refused, and why."""

    drawn: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)


def draw(rng: random.Random, statistics: Statistics | None = None) -> Case:
    """A valid program; those that the shape checks refuse are drawn again. Any error but a ShapeError is passed on."""
    counts = statistics or Statistics()
    while True:
        counts.drawn += 1
        case = candidate(rng)
        try:
            case.program()
        except ShapeError as refusal:
            counts.refused += 1
            counts.reasons.append(str(refusal))
            continue
        return case


def candidate(rng: random.Random) -> Case:
    """One program with its arguments, not yet checked."""
    exact = rng.random() < 0.3
    faults = rng.choice(("gather", "division")) if rng.random() < 0.03 else ""
    helpers = [_definition(rng, f"part{n}", exact, faults, (), rng.randint(1, 2)) for n in range(rng.random() < 0.18)]
    main = _definition(rng, "main", exact, faults, helpers, rng.choice((1, 1, 2, 2, 3, 4)))
    text = "\n".join(d.text for d in (*helpers, main))
    inputs = [t for t in main.scope.tensors.values() if t.fill is not None and t.role == "input"]
    return Case(
        text,
        {t.name: t.extents for t in inputs},
        {t.name: t.fill for t in inputs if t.fill is not None},
        {name: value for name, (_, value) in main.scope.scalars.items()},
        main.initial,
        exact,
        faults,
    )


@dataclass
class Definition:
    name: str
    scope: Scope
    returns: list[str]
    initial: dict[str, Fill]
    text: str = ""


def _definition(
    rng: random.Random, name: str, exact: bool, faults: str, helpers: list[Definition] | tuple[()], count: int
) -> Definition:
    pool = rng.choices(EXTENTS, WEIGHTS, k=rng.randint(2, 4))
    scope = Scope(rng, exact, faults, pool)
    made = Definition(name, scope, [], {})
    body: list[str] = []
    for helper in helpers:
        body.append(_call(scope, helper))
    for position in range(count):
        body.append(_Statement(made, last=position == count - 1).text())
    results = [t.name for t in scope.tensors.values() if t.role == "result"]
    returned = [n for n in results if n in made.initial or n in scope.annotations or rng.random() < 0.6] or [results[-1]]
    if name != "main":
        returned = returned[:3]
    made.returns = returned
    params = [*(_param(t) for t in scope.tensors.values() if t.role == "input"), *(f"{d} {n}" for n, (d, _) in scope.scalars.items())]
    listed = ", ".join(f"{scope.annotations[n]} {n}" if n in scope.annotations else n for n in returned)
    lines = "\n".join(f"    {line}" for line in body)
    made.text = f"def {name}({', '.join(params)}) -> ({listed}) {{\n{lines}\n}}\n"
    return made


def _param(tensor: Ten) -> str:
    return f"{tensor.dtype}({', '.join(tensor.dims or ())}) {tensor.name}"


def _call(scope: Scope, helper: Definition) -> str:
    """A call of an earlier def, with new inputs like its own, or tensors that are there where any value will do."""
    args = []
    for tensor in helper.scope.tensors.values():
        if tensor.role != "input":
            continue
        assert tensor.fill is not None
        free = tensor.fill.kind in ("uniform", "special", "small") and not tensor.fill.nonzero and not tensor.indexing
        like = [t.name for t in scope.tensors.values() if free and (t.dtype, t.extents) == (tensor.dtype, tensor.extents)]
        new = None if like else scope.input(tensor.dtype, tensor.extents, fill=tensor.fill, indexing=tensor.indexing)
        args.append(new or scope.rng.choice(like))
    for dtype, value in helper.scope.scalars.values():
        literal = str(value).lower() if scope.rng.random() < 0.4 else None
        args.append(literal or scope.scalar(dtype, value))
    targets = []
    for name in helper.returns:
        targets.append(scope.new_name("U"))
        scope.tensors[targets[-1]] = replace(helper.scope.tensors[name], name=targets[-1], dims=None, fill=None)
    return f"{', '.join(targets)} = {helper.name}({', '.join(args)})"


class _Statement:
    """One statement of ``made``, which it adds its tensors to."""

    def __init__(self, made: Definition, last: bool) -> None:
        self.made, self.scope, self.rng = made, made.scope, made.scope.rng
        self.last = last

    def text(self) -> str:
        rng, scope = self.rng, self.scope
        written = [t for t in scope.tensors.values() if t.role == "result"]
        again = rng.choice(written) if written and rng.random() < 0.35 else None
        dtype = again.dtype if again else self._dtype()
        left = self._left(again)
        reduction = self._reduction(left)
        operator = self._operator(dtype, again, bool(reduction))
        target = again.name if again else scope.new_name("Y")
        picked = self._picked(left, reduction, operator)
        own = f"{target}({', '.join(picked.get(i.name, i.name) for i in left)})"
        readable_self = again is not None and not reduction and not picked and not operator.endswith("!")
        annotation = self._annotation(dtype, left) if again is None and all(i.upper for i in left) and rng.random() < 0.15 else None
        inner = self._dtype() if annotation and not scope.exact else dtype

        expressions = Expressions(scope, [*(i for i in left if i.name not in picked), *reduction], forbidden=target)
        anchors = [*expressions.anchors()]
        clauses = [expressions.range_clause(i) for i in expressions.indices if i.ranged]
        depth = rng.choice((0, 1, 1, 2, 2, 3))
        value = expressions.value(inner, depth)
        for anchor in anchors:
            value = expressions.joined(value, anchor, inner)
        for index in reduction:
            if not expressions.mentions(value, index.name):
                value = expressions.joined(value, ("int32", index.name), inner)
        if readable_self and again is not None:
            value = expressions.joined(value, (again.dtype, own), inner)
        clauses += expressions.clauses
        if again is None and not (annotation and rng.random() < 0.7):
            clauses += [f"{picked[i.name]} in 0:{scope.extent_text(i.upper)}" for i in left if i.name in picked]
        rng.shuffle(clauses)  # lets keep to one: any order will do
        if rng.random() < 0.05 and expressions.plain_reads:
            clauses.append(f"exists {rng.choice(expressions.plain_reads)}")
        if again is None:
            scope.tensors[target] = Ten(target, dtype, tuple(i.upper for i in left), None, "result", None)
            if annotation:
                scope.annotations[target] = annotation
            if operator != "=" and not operator.endswith("!"):
                kind = "small" if scope.exact or DTYPES[dtype].kind != "float" else "uniform"
                self.made.initial[target] = Fill(dtype, kind, rng.getrandbits(32), -3, 3)
        where = f" where {', '.join(clauses)}" if clauses else ""
        return f"{own if left or rng.random() < 0.5 else target} {operator} {value}{where}"

    def _dtype(self) -> str:
        roll = self.rng.random()
        if roll < 0.6:
            return self.rng.choice(FLOATS)
        return self.rng.choice(INTEGERS) if roll < 0.93 else "bool"

    def _left(self, again: Ten | None) -> list[Idx]:
        rng = self.rng
        names = rng.sample(LETTERS, len(LETTERS))
        if again is not None:
            made = []
            for name, extent in zip(names, again.extents):
                lower, upper = 0, extent
                if rng.random() < 0.3 and extent >= 2:  # a part of it
                    upper = rng.randint(1, extent)
                    lower = rng.randint(0, upper - 1)
                ranged = (lower, upper) != (0, extent) or (extent > 0 and rng.random() < 0.4)
                made.append(Idx(name, lower, upper, ranged, left=True, known=True))
            return made
        count = rng.choice((0, 1, 1, 1, 2, 2, 2, 3))
        return [self._index(name, left=True) for name in names[:count]]

    def _index(self, name: str, left: bool) -> Idx:
        extent = self.scope.extent()
        empty = extent == 0 and extent not in self.scope.sizes.values()  # the number 0 as a range is refused
        return Idx(name, 0, extent, ranged=self.rng.random() < 0.4 and not empty, left=left)

    def _reduction(self, left: list[Idx]) -> list[Idx]:
        rng = self.rng
        free = [n for n in LETTERS if n not in {i.name for i in left}]
        made = [self._index(name, left=False) for name in rng.sample(free, rng.choice((0, 0, 1, 1, 1, 2)))]
        for position, index in enumerate(made):
            if index.ranged and index.upper >= 3 and rng.random() < 0.3:
                made[position] = replace(index, lower=rng.randint(1, index.upper - 1))
        self._shrink(left, made)
        return made

    def _picked(self, left: list[Idx], reduction: list[Idx], operator: str) -> dict[str, str]:
        """Subscripts of the left side that read an integer tensor, in the place of indices that run over all of their dimension."""
        rng, picked = self.rng, dict[str, str]()
        if operator == "=" or rng.random() < 0.75:
            return picked
        chosen = [i for i in left if i.lower == 0 < i.upper and not (i.known and i.ranged) and rng.random() < 0.6]
        others = [i for i in (*left, *reduction) if i not in chosen]
        for index in chosen if others else ():
            dtype = rng.choice(("int32", "int64", "int64", "uint8", "int16"))
            low, high = (-1, index.upper) if self.scope.faults == "gather" and not dtype.startswith("u") else (0, index.upper - 1)
            at = rng.sample(others, min(len(others), rng.choice((1, 1, 2))))
            fill = Fill(dtype, "small", rng.getrandbits(32), low, high)
            table = self.scope.input(dtype, tuple(i.last + 1 if i.upper else 0 for i in at), fill=fill, indexing=True)
            picked[index.name] = f"{table}({', '.join(i.name for i in at)})"
            if rng.random() < 0.2 and not self.scope.faults:
                picked[index.name] = f"({picked[index.name]} + {rng.choice(others).name}) % {index.upper}"
        return picked

    def _shrink(self, left: list[Idx], reduction: list[Idx]) -> None:
        """Keep to the work allowed; the extents of a tensor that is there stay, so reductions go first."""
        for group in (reduction, left):
            for position, index in enumerate(group):
                while prod(max(1, i.upper) for i in (*left, *reduction)) > WORK and group[position].upper > 3 and not index.known:
                    group[position] = replace(group[position], lower=0, upper=3)

    def _operator(self, dtype: str, again: Ten | None, reduces: bool) -> str:
        rng = self.rng
        if not reduces and rng.random() < 0.75:
            return "="
        operator = rng.choice(("+=", "+=", "+=", "*=", "min=", "max="))
        if operator == "*=" and self.scope.exact and rng.random() < 0.7:
            operator = "+="
        if again is not None:
            return operator + ("!" if rng.random() < 0.4 else "")
        return operator + ("" if rng.random() < 0.06 and self.made.name == "main" else "!")

    def _annotation(self, dtype: str, left: list[Idx]) -> str:
        dims = [self.scope.extent_text(i.upper) for i in left]
        return f"{dtype}({', '.join(dims)})" if dims else dtype
