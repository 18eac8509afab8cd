"""Whether accesses stay inside their tensors: by interval arithmetic where that is exact, otherwise by isl.

isl is imported and started only when a question needs it, so that plain kernels never wait for it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any

from tcjit.dataclass import dataclass
from tcjit.errors import CheckError, ShapeError, TCError
from tcjit.grammar import polynomial, printer
from tcjit.grammar.affine import affine, condition, isl_name, text
from tcjit.grammar.ast import Def, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import NOTHING, Value, ZeroDivisor, at
from tcjit.grammar.ranges import Analysis, Extents, Ranges, Subscript, reach, solve

# isl operations for one question; the checks of every program in the tests take less than a hundredth of it
BUDGET = 10_000_000
KNOWN = 1 << 14  # answers that are kept: derivatives with other tensors saved, and the kernels of a def, ask much the same

_answers: dict[str, bool] = {}  # by the text of what was asked


class OutOfBudget(Exception):
    """isl gave up on a question."""


@dataclass
class Isl:
    """isl, once it is needed: one context for the questions of one call."""

    _module: ModuleType | None = None
    _context: Any = None

    def set(self, source: str) -> Any:
        return self._read("Set", source)

    def map(self, source: str) -> Any:
        return self._read("Map", source)

    def is_empty(self, source: str) -> bool:
        """Whether the set has no point. Raises OutOfBudget."""
        return self.known(source, lambda: self.set(source).is_empty())

    def known(self, text: str, question: Callable[[], Any]) -> bool:
        """The answer to a question that a text is all of, which is asked once. Raises OutOfBudget."""
        found = _answers.get(text)
        if found is None:
            found = bool(self.answer(question))
            if len(_answers) >= KNOWN:
                _answers.clear()
            _answers[text] = found
        return found

    def answer(self, question: Callable[[], Any]) -> Any:
        """The answer to a question, within the budget. Raises OutOfBudget."""
        self._start()
        assert self._module is not None
        self._context.reset_operations()
        try:
            return question()
        except self._module.Error as error:
            raise OutOfBudget(str(error)) from None

    def _start(self) -> None:
        if self._module is None:
            import islpy

            self._module = islpy
            self._context = islpy.Context()
            self._context.set_max_operations(BUDGET)

    def _read(self, kind: str, source: str) -> Any:
        self._start()
        return getattr(self._module, kind).read_from_str(self._context, source)


@dataclass
class Numbers:
    """The checks of an inferred def for given sizes: ``values`` holds every size and specialised scalar, extents and ranges are ints."""

    definition: Def
    values: Mapping[str, int]
    isl: Isl = field(default_factory=Isl)

    def check(self, analysis: Analysis, ranges: Ranges, extents: Extents) -> None:
        """Raises ShapeError for the first access that leaves its tensor, TCError where isl gives up."""
        for subscript in checked(analysis, ranges):
            extent = extents[subscript.tensor][subscript.position]
            try:
                if not self.is_inside(subscript, ranges, extent):
                    raise self._outside(subscript, ranges, extent)
            except OutOfBudget:
                raise TCError(
                    f"whether `{printer.show(subscript.access)}` stays inside `{subscript.tensor}` could not be decided",
                    where=subscript.where,
                    sizes=self.values,
                    hint="a simpler subscript or condition",
                ) from None

    def is_inside(self, subscript: Subscript, ranges: Ranges, extent: Value) -> bool:
        """Raises OutOfBudget, and ZeroDivisor where the subscript divides by zero for these sizes."""
        if subscript.linear is not None:
            least, greatest, _ = reach(subscript.linear, ranges, self.values)
            if whole(least) >= 0 and whole(greatest) < whole(extent):
                return True
            if not subscript.guards:
                return False
        points, where, target = self._texts(subscript, ranges)
        return self.isl.is_empty(f"{{ {points} : {' and '.join([*where, f'not (0 <= {target} < {extent})'])} }}")

    def _texts(self, subscript: Subscript, ranges: Ranges) -> tuple[str, list[str], str]:
        """isl's text of the points at which an access happens, tuple and constraints, and of the subscript. Raises ZeroDivisor."""
        value = polynomial.integer(subscript.expr, self.values)
        target = None if value is None else text(value)
        assert target is not None  # quasi-affine, and every name has a number
        return *_points(subscript, ranges, self.values), target

    def _outside(self, subscript: Subscript, ranges: Ranges, extent: Value) -> ShapeError:
        if subscript.linear is not None and not subscript.guards:
            least, greatest = map(whole, reach(subscript.linear, ranges, self.values)[:2])
        else:
            points, where, target = self._texts(subscript, ranges)
            relation = f"{{ {points} -> [({target})]{' : ' if where else ''}{' and '.join(where)} }}"
            least, greatest = self.isl.answer(lambda: ends(self.isl.map(relation).range()))
        reaches = f"from {least} to {greatest}" if least != greatest else str(least)
        verb = "is written" if subscript.role == "write" else "is read"
        return ShapeError(
            f"`{subscript.tensor}` {verb} outside dimension {subscript.position}, whose extent is {extent}:"
            f" `{printer.extent(subscript.expr)}` goes {reaches}" + _over(subscript, ranges),
            where=subscript.where,
            sizes=self.values,
            hint=advice(subscript, ranges, self._extent(subscript), least < 0, greatest >= whole(extent)),
        )

    def _extent(self, subscript: Subscript) -> str:
        return printer.extent(self.definition.tensor(subscript.tensor).shape[subscript.position])


def ends(reached: Any) -> tuple[int, int]:
    """The least and greatest element of a bounded set of integers."""
    return int(reached.dim_min_val(0).to_python()), int(reached.dim_max_val(0).to_python())


def _over(subscript: Subscript, ranges: Ranges) -> str:
    """The ranges that a subscript goes over, for a message."""
    parts = [f"{index} in {shown(ranges[index].lower)}:{shown(ranges[index].upper)}" for index in subscript.indices]
    return f" for {', '.join(parts)}" if parts else ""


def whole(value: Value) -> int:
    """A value in which every name has been replaced by a number."""
    assert isinstance(value, int)
    return value


def shown(value: Value) -> str:
    return printer.show(polynomial.expression(value))


def advice(subscript: Subscript, ranges: Ranges, extent: str, below: bool, beyond: bool) -> str:
    """What to try where an access leaves its tensor, at its lower or its upper end."""
    indices = subscript.indices
    index = next((i for i in indices if ranges[i].step.clauses), indices[0] if indices else "")
    if subscript.role == "write":
        first = f"the first statement that writes `{subscript.tensor}` sets its extents"
        return f"{first}; cover a part of them: `where {index} in 0:{extent}`" if index else first
    narrower = f"a shorter range of `{index}`" if index else "a larger tensor"
    if subscript.role == "exists":
        return narrower
    target = printer.extent(subscript.expr)
    guard = " && ".join([f"{target} >= 0"] * below + [f"{target} < {extent}"] * beyond)
    return f"{narrower}, or read it under a condition: `{guard} ? {printer.show(subscript.access)} : 0`"


def checked(analysis: Analysis, ranges: Ranges) -> Iterator[Subscript]:
    """The subscripts that have to be inside: none of an access that never happens because a range is empty.

    A write happens over the indices of the left side even if a reduction is empty: its identity is stored.
    """
    empty = {index for index in analysis.indices if ranges[index].upper == ranges[index].lower}
    for subscript in analysis.subscripts:
        happens = not empty or (subscript.role == "write" and empty <= set(analysis.statement.reduction))
        if subscript.value is not None and happens:
            yield subscript


def _points(subscript: Subscript, ranges: Ranges, values: Mapping[str, int]) -> tuple[str, list[str]]:
    """Tuple and constraints of the points at which an access happens; conditions on data are left out: they prove nothing."""
    guards = [(condition(guard, values), guard, holds) for guard, holds in subscript.guards]
    affine_guards = [(source, guard, holds) for source, guard, holds in guards if source is not None]
    needed = dict.fromkeys(subscript.indices)
    for _, guard, _ in affine_guards:
        needed.update(polynomial.names(guard))
    where = [f"{text(ranges[i].lower)} <= {isl_name(i)} < {text(ranges[i].upper)}" for i in needed]
    where += [source if holds else f"not ({source})" for source, _, holds in affine_guards]
    return f"[{', '.join(map(isl_name, needed))}]", where


# ---------------------------------------------------------------- for a def: what no sizes >= 1 can mend


class Solutions:
    """What the examples of sizes give a statement, each solved once for all of its accesses: extents, ranges, and the identities of
    subscripts that have to be inside; nothing for one that has no ranges."""

    def __init__(self, analysis: Analysis, extents: Extents) -> None:
        self.analysis, self.extents = analysis, extents
        self.known: dict[int, tuple[Extents, Ranges, frozenset[int]] | None] = {}

    def of(self, number: int, values: Mapping[str, int]) -> tuple[Extents, Ranges, frozenset[int]] | None:
        """That of an example."""
        if number not in self.known:
            try:
                self.known[number] = self._solved(values)
            except (ZeroDivisor, TCError):
                self.known[number] = None
        return self.known[number]

    def _solved(self, values: Mapping[str, int]) -> tuple[Extents, Ranges, frozenset[int]] | None:
        numbers = {name: tuple(at(e, values) for e in shape) for name, shape in self.extents.items()}
        ranges = solve(self.analysis, numbers, values)
        if any(whole(interval.lower) > whole(interval.upper) for interval in ranges.values()):
            return None
        return numbers, ranges, frozenset(map(id, checked(self.analysis, ranges)))


class Symbols:
    """Questions about all sizes >= 1 (and all scalars) at once: first tried on examples, then decided by isl."""

    def __init__(self, definition: Def) -> None:
        self.definition = definition
        self.sizes = definition.sizes
        scalars = [p.name for p in definition.params if not p.dims and DTYPES[p.dtype].kind in ("signed", "unsigned")]
        self.parameters = f"[{', '.join(map(isl_name, (*self.sizes, *scalars)))}]"
        self.isl = Isl()
        self.examples = tuple(_examples(self.sizes, scalars))

    def is_possible(self, left: Value, relation: str, right: Value) -> bool:
        """Whether ``left relation right`` (one of ``< = ``) holds for some sizes; True where that cannot be decided."""
        for values in self.examples:
            try:
                a, b = whole(at(left, values)), whole(at(right, values))
            except ZeroDivisor:
                continue
            if a < b if relation == "<" else a == b:
                return True
        sides = text(left), text(right)
        return None in sides or not self._is_empty([f"{sides[0]} {relation} {sides[1]}"])

    def _is_empty(self, facts: Sequence[str]) -> bool:
        try:
            return self.isl.is_empty(f"{self.parameters} -> {{ : {' and '.join([*self._positive(), *facts]) or '0 = 0'} }}")
        except OutOfBudget:
            return False

    def _positive(self) -> list[str]:
        return [f"{isl_name(size)} >= 1" for size in self.sizes]

    def check(self, analysis: Analysis, ranges: Ranges, extents: Extents) -> None:
        """Raises CheckError for an access that is inside its tensor for no sizes >= 1."""
        solutions = Solutions(analysis, extents)
        for subscript in analysis.subscripts:
            extent = extents[subscript.tensor][subscript.position]
            if subscript.value is None or _is_proved(subscript, ranges, extent):
                continue
            if not self._fits_an_example(solutions, subscript) and self._never_fits(analysis, subscript, ranges, extent):
                verb = "written" if subscript.role == "write" else "read"
                raise CheckError(
                    f"`{subscript.tensor}` is {verb} outside dimension {subscript.position} whatever the sizes: its extent is"
                    f" {shown(extent)}, and the subscript `{printer.extent(subscript.expr)}`"
                    f" goes beyond it{_over(subscript, ranges)}",
                    where=subscript.where,
                    hint=advice(subscript, ranges, shown(extent), *_doubtful(subscript, ranges, extent)),
                )

    def _fits_an_example(self, solutions: Solutions, subscript: Subscript) -> bool:
        for number, values in enumerate(self.examples):
            try:
                found = solutions.of(number, values)
                if found is None:
                    continue
                numbers, ranges, happening = found
                if id(subscript) not in happening:
                    return True
                if Numbers(self.definition, values, self.isl).is_inside(subscript, ranges, numbers[subscript.tensor][subscript.position]):
                    return True
            except (ZeroDivisor, TCError, OutOfBudget):
                continue
        return False

    def _never_fits(self, analysis: Analysis, subscript: Subscript, ranges: Ranges, extent: Value) -> bool:
        texts = [text(side) for index in analysis.indices for side in (ranges[index].lower, ranges[index].upper)]
        target, size = affine(subscript.expr, NOTHING), text(extent)
        if None in texts or target is None or size is None or any(self._waits(guard) for guard, _ in subscript.guards):
            return False
        needed = analysis.indices if subscript.role != "write" else subscript.indices
        legal = self._positive() + [f"{text(ranges[i].lower)} <= {text(ranges[i].upper)}" for i in analysis.indices]
        _, where = _points(subscript, ranges, NOTHING)
        where += [f"{text(ranges[i].lower)} <= {isl_name(i)} < {text(ranges[i].upper)}" for i in needed if i not in subscript.indices]
        bad = " and ".join([*where, f"not (0 <= {target} < {size})"])
        points = f"[{', '.join(map(isl_name, analysis.indices))}]"

        def question() -> bool:
            context = self.isl.set(f"{self.parameters} -> {{ : {' and '.join(legal) or '0 = 0'} }}")
            outside = self.isl.set(f"{self.parameters} -> {{ {points} : {bad} }}").params()
            return bool(context.subtract(outside).is_empty())

        try:
            return self.isl.known(f"{self.parameters} {legal} {points} {bad}", question)
        except OutOfBudget:
            return False

    def _waits(self, guard: Expr) -> bool:
        """Whether isl understands a condition only with numbers in it (one on data it never does)."""
        return condition(guard, NOTHING) is None and any(condition(guard, values) is not None for values in self.examples)


def _is_proved(subscript: Subscript, ranges: Ranges, extent: Value) -> bool:
    """Whether an access is inside by construction: its subscript gave an interval, or it is so for all sizes."""
    if any(subscript in ranges[index].step.subscripts for index in subscript.indices):
        return True
    return _doubtful(subscript, ranges, extent) == (False, False)


def _doubtful(subscript: Subscript, ranges: Ranges, extent: Value) -> tuple[bool, bool]:
    """Whether a subscript may go below 0, and beyond the extent; only what simplification shows for all sizes is ruled out."""
    if subscript.linear is None:
        return True, True
    least, greatest, assumed = reach(subscript.linear, ranges, NOTHING)
    room = extent - 1 - greatest
    return assumed or not isinstance(least, int) or least < 0, assumed or not isinstance(room, int) or room < 0


def _examples(sizes: Sequence[str], scalars: Sequence[str]) -> Iterator[dict[str, int]]:
    count = len(sizes)
    for size in (1, 2, 3, 8, 60, 1024):
        for step in (0, 1, -1):
            numbers = (max(1, size + step * (position - (count - 1 if step < 0 else 0))) for position in range(count))
            yield {**dict(zip(sizes, numbers, strict=True)), **dict.fromkeys(scalars, 1 + (step != 0))}
