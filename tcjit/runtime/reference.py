"""The reference: a Program interpreted statement by statement in NumPy. It is the meaning of the language.

Floats are float64 throughout; a store and a cast to a narrower type round to nearest even. Integers are of their own wrapping type.
Each expression is evaluated over the whole domain of its statement at once, in pieces of at most ``POINTS`` instances; a mask says
which instances evaluate an arm of ``?:``, ``&&`` or ``||``, and only those may fault.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from tcjit.dataclass import dataclass
from tcjit.errors import DivisionError, GatherError
from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Program, Scalar, Select, Size, Statement, Unary
from tcjit.grammar.dtypes import DTYPES, FORMATS
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import factors
from tcjit.grammar.wrapping import terms, wrapping
from tcjit.runtime import bounds, reductions
from tcjit.runtime.bounds import Bounded
from tcjit.runtime.numerics import Array, computed_in, convert, is_float, storage

POINTS = 1 << 19


@dataclass(frozen=True)
class Result:
    """What a program returns, by name: floats as float64 rounded to the tensor's dtype, other types as themselves.

    ``error`` (float64, of the same shapes) is the absolute tolerance of each element, by the rule of ``bounds``: 0 asks for the
    very same number, infinity says that the element is not to be compared.
    """

    values: dict[str, Array]
    error: dict[str, Array]


def run(
    program: Program,
    inputs: Mapping[str, Array],
    scalars: Mapping[str, int | float | bool],
    initial: Mapping[str, Array] | None = None,
    checked: bool = True,
    track: bool = True,
) -> Result:
    """Interpret ``program``.

    ``inputs`` holds every tensor parameter, floats as float64 that their dtype holds exactly; ``scalars`` every scalar parameter;
    ``initial`` the values of the outputs that an accumulating statement finds. With ``checked`` a bad index is a GatherError and an
    integer division by zero a DivisionError, otherwise both give 0. ``track=False`` leaves all errors 0, several times faster.
    """
    state = _RunState(program, dict(scalars), checked, track)
    for name, array in {**inputs, **(initial or {})}.items():
        state.tensors[name] = Bounded(np.asarray(array, storage(program.definition.tensor(name).dtype)))
    with np.errstate(all="ignore"):
        for statement, domain in zip(program.definition.statements, program.domains, strict=True):
            _statement(state, statement, domain)
    returned = {name: state.tensors[name] for name in program.definition.returns}
    errors = {n: np.zeros(v.value.shape) if v.error is None else np.array(v.error) for n, v in returned.items()}
    return Result({n: v.value for n, v in returned.items()}, errors)


# ---------------------------------------------------------------- statements


@dataclass
class _RunState:
    program: Program
    scalars: Mapping[str, int | float | bool]
    checked: bool
    track: bool
    tensors: dict[str, Bounded] = field(default_factory=dict)

    wrapping: dict[int, tuple[Expr, ...]] = field(default_factory=dict)  # by id of a subscript: what in it may wrap

    def may_wrap(self, subscript: Expr) -> tuple[Expr, ...]:
        """The arithmetic of a data-dependent subscript that may leave 64 bits: of none in unchecked mode, as in kernels."""
        if id(subscript) not in self.wrapping:
            scalars = {p.name: p.dtype for p in self.program.definition.params if not p.dims}
            looked = self.checked and is_gather(subscript)
            self.wrapping[id(subscript)] = tuple(wrapping(subscript, scalars)) if looked else ()
        return self.wrapping[id(subscript)]


def _statement(state: _RunState, statement: Statement, domain: tuple[tuple[int, int], ...]) -> None:
    tensor = state.program.definition.tensor(statement.tensor)
    shape = state.program.shape(tensor.name)
    if tensor.name not in state.tensors:
        state.tensors[tensor.name] = Bounded(np.zeros(shape, storage(tensor.dtype)))
    indices = [r.index for r in statement.domain]
    kept = len(indices) - len(statement.reduction)
    ranges = dict(zip(indices, domain, strict=True))
    touched = np.zeros(shape, dtype=bool)
    # an empty reduction still fills the range of the left side, and the whole extent of what targets pick from
    touched[tuple(slice(*ranges[s.name]) if isinstance(s, Index) else slice(None) for s in statement.subscripts)] = True

    old, accumulator = state.tensors[tensor.name], None
    stored = Bounded(old.value.copy(), None if old.error is None else np.array(old.error))
    if statement.operator != "=":
        operator = statement.operator.removesuffix("=")
        terms = prod(upper - lower for lower, upper in domain[kept:]) + 1
        if statement.initialise:
            begin = reductions.start(operator, statement.accumulate, shape)
        else:
            begin = bounds.cast(old, tensor.dtype, statement.accumulate)
        accumulator = reductions.Accumulator(operator, statement.accumulate, begin, terms, state.track)
    multiplied = _factors(statement) if state.track and not statement.targets else []
    for piece in pieces(domain):
        reader = _ExpressionEvaluator(state, indices, piece)
        position: reductions.Position = tuple(slice(lower, upper) for lower, upper in piece[:kept])
        if statement.targets:
            assert accumulator is not None  # `=` has no targets
            reader.scatter(statement, accumulator)
            continue
        term = reader.evaluate(statement.value, None)
        if accumulator is None:
            term = bounds.cast(term, statement.value.dtype, tensor.dtype, store=True)
            stored = _write(stored, position, term)
        else:
            if statement.value.dtype != statement.accumulate:
                term = bounds.cast(term, statement.value.dtype, statement.accumulate)
            extents = tuple(upper - lower for lower, upper in piece)
            term = Bounded(np.broadcast_to(term.value, extents), term.error)
            if multiplied:
                greatest = FORMATS[computed_in(statement.accumulate)].greatest / terms
                term = _factored(term, [reader.evaluate(factor, None).value for factor in multiplied], greatest)
            accumulator.add(position, term, tuple(range(kept, len(indices))) if statement.reduction else ())
    if accumulator is not None:
        final = bounds.cast(accumulator.result(), statement.accumulate, tensor.dtype, store=True)
        stored = bounds.select(Bounded(touched), final, old)
    state.tensors[tensor.name] = stored if state.track else Bounded(stored.value)


def _factors(statement: Statement) -> list[Expr]:
    """Those of a sum's terms, one of which may be multiplied with the sum of the others; none where all depend on what is summed over."""
    value = statement.value
    while isinstance(value, Cast):
        value = value.operand
    if statement.operator != "+=" or not is_float(statement.accumulate):
        return []
    divided = isinstance(value, Binary) and value.op == "/"
    found = [*factors(value.left), value.right] if divided and isinstance(value, Binary) else [*factors(value)]
    apart = any(index not in names(factor) for factor in found for index in statement.reduction)
    return found if len(found) > 1 and apart else []


def _factored(term: Bounded, parts: Sequence[Array], greatest: float) -> Bounded:
    """The terms of a sum that may be factored: of infinities it may make others, or NaN, and so where the product of some factors is beyond
    ``greatest``; what is NaN in one factor stays NaN."""
    reach, known = np.ones(term.value.shape), np.zeros(term.value.shape, dtype=bool)
    for part in parts:
        reach = reach * np.maximum(np.abs(part), 1.0)
        known = known | np.isnan(part)
    unknown = ~known & ~(np.isfinite(term.value) & (reach <= greatest))
    if not unknown.any():
        return term
    error = np.zeros(term.value.shape) if term.error is None else term.error
    return bounds.plain(term.value, np.where(unknown, np.inf, error))


def _write(tensor: Bounded, position: reductions.Position, term: Bounded) -> Bounded:
    """Assign one piece, in place."""
    tensor.value[position] = term.value
    if term.error is None and tensor.error is None:
        return tensor
    error = np.zeros(tensor.value.shape) if tensor.error is None else tensor.error
    error[position] = 0.0 if term.error is None else term.error
    return Bounded(tensor.value, error)


def pieces(domain: Sequence[tuple[int, int]], points: int = POINTS) -> Iterator[tuple[tuple[int, int], ...]]:
    """The domain cut into boxes of at most ``points`` instances, outermost index first; none where it is empty.

    >>> list(pieces([(0, 3), (5, 9)], 8))
    [((0, 2), (5, 9)), ((2, 3), (5, 9))]
    """
    if any(upper <= lower for lower, upper in domain):
        return
    if not domain:
        yield ()
        return
    (lower, upper), rest = domain[0], domain[1:]
    inner = prod(b - a for a, b in rest)
    step = max(1, points // inner)
    for first in range(lower, upper, step):
        own = (first, min(upper, first + step))
        if inner <= points:
            yield (own, *rest)
        else:
            for piece in pieces(rest, points):
                yield (own, *piece)


# ---------------------------------------------------------------- expressions


class _ExpressionEvaluator:
    """Evaluates expressions over one piece of a domain: an axis for each index, broadcast where an expression lacks it."""

    def __init__(self, state: _RunState, indices: Sequence[str], piece: Sequence[tuple[int, int]]) -> None:
        self.state = state
        self.extents = tuple(upper - lower for lower, upper in piece)
        self.indices = {
            name: np.arange(lower, upper).reshape([-1 if axis == d else 1 for axis in range(len(indices))])
            for d, (name, (lower, upper)) in enumerate(zip(indices, piece, strict=True))
        }

    def evaluate(self, expr: Expr, mask: Array | None) -> Bounded:
        """``expr`` at every instance; where ``mask`` is off the result is arbitrary and nothing faults."""
        match expr:
            case Const():
                return Bounded(np.asarray(expr.value, storage(expr.dtype)))
            case Index():
                return Bounded(self.indices[expr.name].astype(storage(expr.dtype)))
            case Size():
                return Bounded(np.asarray(self.state.program.value(expr.name), storage(expr.dtype)))
            case Scalar():
                return self._scalar(expr)
            case Access():
                return self._access(expr, mask)
            case Cast():
                return bounds.cast(self.evaluate(expr.operand, mask), expr.operand.dtype, expr.dtype)
            case Unary():
                operand = self.evaluate(expr.operand, mask)
                return Bounded(~operand.value, operand.error) if expr.op == "!" else bounds.negate(operand)
            case Binary():
                return self._binary(expr, mask)
            case Select():
                condition = self.evaluate(expr.condition, mask)
                then = self.evaluate(expr.then, _both(mask, condition.value))
                other = self.evaluate(expr.other, _both(mask, ~condition.value))
                return bounds.select(condition, then, other)
            case Call():
                return bounds.call(expr.function, [self.evaluate(a, mask) for a in expr.args], expr.dtype)
        raise TypeError(f"{type(expr).__name__} is no typed expression")  # unreachable on what the checker builds

    def _scalar(self, expr: Scalar) -> Bounded:
        param = next(p for p in self.state.program.definition.params if p.name == expr.name)
        value = np.asarray(self.state.scalars[expr.name], storage(param.dtype))
        return Bounded(convert(value, param.dtype, expr.dtype))

    def _binary(self, expr: Binary, mask: Array | None) -> Bounded:
        left = self.evaluate(expr.left, mask)
        if expr.op in ("&&", "||"):
            right = self.evaluate(expr.right, _both(mask, left.value if expr.op == "&&" else ~left.value))
            return bounds.conjunction(expr.op, left, right)
        right = self.evaluate(expr.right, mask)
        if expr.op in ("<", "<=", ">", ">=", "==", "!="):
            return bounds.compare(expr.op, left, right)
        if is_float(expr.dtype):
            return bounds.modulo(left, right, expr.dtype) if expr.op == "%" else bounds.arithmetic(expr.op, left, right, expr.dtype)
        return Bounded(self._integers(expr, left.value, right.value, mask), bounds.either(left.error, right.error))

    def _integers(self, expr: Binary, a: Array, b: Array, mask: Array | None) -> Array:
        """Wrapping arithmetic; bools add by `or` and multiply by `and`."""
        if expr.op in "+-*":
            result: Array = {"+": np.add, "-": np.subtract, "*": np.multiply}[expr.op](a, b)
            return result
        zero = _both(mask, b == 0)
        if self.state.checked and np.any(zero):
            raise DivisionError(
                "an integer is divided by zero", where=expr.where, hint="guard it with `?:`, or call with `unchecked=True` to get 0"
            )
        divisor = np.where(b == 0, np.asarray(1, b.dtype), b)
        quotient = np.floor_divide(a, divisor) if expr.op == "/" else np.remainder(a, divisor)
        if DTYPES[expr.dtype].kind == "signed":  # NumPy calls the least integer by -1 an overflow
            quotient = np.where(divisor == -1, -a if expr.op == "/" else np.zeros_like(a), quotient)
        return np.where(b == 0, np.asarray(0, b.dtype), quotient)

    def scatter(self, statement: Statement, accumulator: reductions.Accumulator) -> None:
        """Combine each term into the element that its targets pick; one outside of the tensor is none."""
        written = Access(statement.tensor, statement.subscripts, dtype=statement.value.dtype, where=statement.where)
        places = [self.evaluate(subscript, None) for subscript in statement.subscripts]
        shape = self.state.program.shape(statement.tensor)
        bad = np.zeros((), dtype=bool)
        for dimension in statement.targets:
            at = replace(written, where=statement.subscripts[dimension].where)
            bad = bad | self._outside(at, dimension, shape[dimension], places[dimension].value, None)
        term = self.evaluate(statement.value, None)
        if statement.value.dtype != statement.accumulate:
            term = bounds.cast(term, statement.value.dtype, statement.accumulate)
        inside = np.broadcast_to(~bad, self.extents)
        position = tuple(np.broadcast_to(place.value, self.extents)[inside] for place in places)
        error = None if term.error is None else np.broadcast_to(term.error, self.extents)[inside]
        accumulator.add(position, Bounded(np.broadcast_to(term.value, self.extents)[inside], error), ())
        if any(place.error is not None and np.any(place.error > 0) for place in places):  # which element is picked is not decided
            accumulator.undecided[...] = np.inf

    def _outside(self, expr: Access, dimension: int, extent: int, subscript: Array, mask: Array | None) -> Array:
        """Where a subscript is outside of its tensor; in checked mode a GatherError for it, and for arithmetic in it that wrapped."""
        if np.any(_both(mask, self._wrapped(expr.subscripts[dimension], mask))):
            what = f"an index of `{expr.tensor}` along dimension {dimension} does not fit 64 bits"
            raise GatherError(what, where=expr.where, hint="guard it with `?:`, or indices that are inside")
        outside: Array = (subscript < 0) | (subscript >= extent)
        if self.state.checked:
            _refuse(expr, dimension, extent, subscript, _both(mask, outside))
        return outside

    def _wrapped(self, subscript: Expr, mask: Array | None) -> Array:
        """The mask of instances in which arithmetic in a data-dependent subscript wrapped."""
        wrapped: Array = np.zeros((), dtype=bool)
        for expr in self.state.may_wrap(subscript):
            off = self._chosen_in_float64(expr, mask) - self.evaluate(expr, mask).value.astype(np.float64)
            wrapped = wrapped | ~(np.abs(off) < 2.0**63)
        return wrapped

    def _chosen_in_float64(self, expr: Expr, mask: Array | None) -> Array:
        if not isinstance(expr, Select):
            return self._in_float64(expr, mask)
        condition = self.evaluate(expr.condition, mask).value
        then, other = ((expr.then, _both(mask, condition)), (expr.other, _both(mask, ~condition)))
        return np.where(condition, self._chosen_in_float64(*then), self._chosen_in_float64(*other))

    def _in_float64(self, expr: Expr, mask: Array | None) -> Array:
        """A sum or product of integers that cannot wrap."""
        operands = [self._in_float64(operand, mask) for operand in terms(expr)]
        if not operands:
            return self.evaluate(expr, mask).value.astype(np.float64)
        if isinstance(expr, Binary):
            return np.asarray({"+": np.add, "-": np.subtract, "*": np.multiply}[expr.op](*operands))
        return -operands[0]

    def _access(self, expr: Access, mask: Array | None) -> Bounded:
        tensor = self.state.tensors[expr.tensor]
        subscripts = [self.evaluate(s, mask) for s in expr.subscripts]
        shape = tensor.value.shape
        bad = np.zeros((), dtype=bool)
        for dimension, (subscript, extent) in enumerate(zip(subscripts, shape, strict=True)):
            bad = bad | self._outside(expr, dimension, extent, subscript.value, mask)
        if tensor.value.size == 0:
            everywhere = np.broadcast_shapes(*(s.value.shape for s in subscripts))
            return Bounded(np.zeros(everywhere, tensor.value.dtype))
        position = tuple(np.clip(s.value, 0, extent - 1) for s, extent in zip(subscripts, shape))
        value = np.where(bad, np.asarray(0, tensor.value.dtype), tensor.value[position])
        error = bounds.either(*(s.error for s in subscripts))
        if tensor.error is not None:
            own = np.where(bad, 0.0, tensor.error[position])
            error = own if error is None else own + error
        return Bounded(value, error)


def _both(mask: Array | None, condition: Array) -> Array:
    return condition if mask is None else mask & condition


def _refuse(expr: Access, dimension: int, extent: int, subscript: Array, bad: Array) -> None:
    """GatherError where ``bad`` is on, naming the first such index."""
    if not np.any(bad):
        return
    index = int(np.broadcast_to(subscript, bad.shape)[bad][0]) if bad.ndim else int(subscript)
    raise GatherError(
        f"index {index} is outside `{expr.tensor}`, whose dimension {dimension} has {extent} elements",
        where=expr.where,
        hint="guard it with `?:`, or call with `unchecked=True` to read 0",
    )
