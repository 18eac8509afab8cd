"""The language in PyTorch, statement by statement over whole domains and in float64: its results carry the graph that autograd follows.

Floats of every type are float64, and nothing is rounded, so that a derivative can be judged. Arms of ``?:`` that are not taken are
evaluated all the same: where they are infinite, autograd's gradient is NaN.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Def, Expr, Index, Program, Scalar, Select, Size, Statement, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.infer import specialise
from tcjit.mapping.reduction import identity

Tensor = torch.Tensor
_INTEGERS = {"uint16": torch.int64, "uint32": torch.int64, "uint64": torch.int64}
_special = torch.special
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv"
        " sigmoid abs relu ceil floor round trunc sign atan2 copysign fmod hypot pow fmax fmin clamp lgamma digamma"
    ).split()},
    "fabs": torch.abs, "max": torch.maximum, "min": torch.minimum, "fdivide": torch.div, "fma": lambda a, b, c: a * b + c,
    "exp10": lambda x: torch.pow(10.0, x), "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "rcbrt": lambda x: torch.sign(x) * torch.abs(x) ** (-1 / 3), "sinpi": lambda x: torch.sin(math.pi * x),
    "cospi": lambda x: torch.cos(math.pi * x), "fdim": lambda a, b: torch.relu(a - b),
    "remainder": lambda a, b: a - b * torch.round(a / b).detach(), "logb": lambda x: torch.floor(torch.log2(torch.abs(x))),
    "normcdf": lambda x: 0.5 * torch.erfc(-x * math.sqrt(0.5)), "normcdfinv": _special.ndtri, "erfcx": _special.erfcx,
    "erfcinv": lambda x: torch.erfinv(1 - x), "cyl_bessel_i0": _special.i0, "cyl_bessel_i1": _special.i1,
    "j0": _special.bessel_j0, "j1": _special.bessel_j1, "y0": _special.bessel_y0, "y1": _special.bessel_y1,
    "rhypot": lambda *a: torch.rsqrt(sum(x * x for x in a)),
}  # fmt: skip
for _name in ("norm3d", "norm4d"):
    _FUNCTIONS[_name] = lambda *a: torch.sqrt(sum(x * x for x in a))
    _FUNCTIONS[f"r{_name}"] = _FUNCTIONS["rhypot"]
_FUNCTIONS["polygamma"] = lambda n, x: _polygamma(n, x)
_WITHOUT_GRADIENT = ("j0", "j1", "y0", "y1")  # PyTorch drops it without a word
_OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "<": torch.lt, ">": torch.gt, "<=": torch.le, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
    "&&": torch.logical_and, "||": torch.logical_or,
}  # fmt: skip
_REDUCTIONS: dict[str, tuple[Callable[[Tensor, tuple[int, ...]], Tensor], Callable[[Tensor, Tensor], Tensor], float]] = {
    "+=": (lambda value, dims: value.sum(dims), torch.add, 0.0),
    "*=": (lambda value, dims: _product(value, dims), torch.mul, 1.0),
    "max=": (lambda value, dims: value.amax(dims), torch.maximum, -math.inf),
    "min=": (lambda value, dims: value.amin(dims), torch.minimum, math.inf),
}


class Unsupported(Exception):
    """Something that PyTorch has no function for."""


def _polygamma(n: Tensor, x: Tensor) -> Tensor:
    orders = n.detach().unique().tolist()
    if n.requires_grad or len(orders) > 1:
        raise Unsupported("polygamma of orders that are not one number")
    return torch.polygamma(int(orders[0]), x.broadcast_to(torch.broadcast_shapes(n.shape, x.shape))) if orders else x.clone()


def dtype_of(name: str) -> torch.dtype:
    """Floats are float64; unsigned integers that PyTorch computes little with are int64."""
    return torch.float64 if DTYPES[name].kind == "float" else _INTEGERS.get(name) or getattr(torch, name)


def run(
    definition: Def, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], initial: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The value of every tensor that the def writes. Raises TCError where the arguments do not fit, Unsupported."""
    shapes = {p.name: tuple(tensors[p.name].shape) for p in definition.params if p.dims}
    whole = {name: int(scalars[name]) for name in definition.specialised if name in scalars}
    program = specialise(definition, shapes, whole)
    state = {**tensors, **(initial or {})}
    for statement, domain in zip(definition.statements, program.domains, strict=True):
        _Statement(program, state, scalars, statement, domain).run()
    return state


class _Statement:
    def __init__(
        self,
        program: Program,
        state: dict[str, Tensor],
        scalars: Mapping[str, Any],
        statement: Statement,
        domain: tuple[tuple[int, int], ...],
    ) -> None:
        self.program, self.state, self.scalars, self.statement = program, state, scalars, statement
        self.names = [r.index for r in statement.domain]
        self.extents = [upper - lower for lower, upper in domain]
        self.domain = domain
        self.grid = {
            name: torch.arange(lower, upper).reshape([-1 if place == position else 1 for place in range(len(domain))])
            for position, (name, (lower, upper)) in enumerate(zip(self.names, domain, strict=True))
        }

    def run(self) -> None:
        statement, shape = self.statement, self.program.shape(self.statement.tensor)
        dtype = dtype_of(self.program.definition.tensor(statement.tensor).dtype)
        value = self.value(statement.value)
        value = (value.double() if DTYPES[statement.accumulate].kind == "float" else value).expand(self.extents)
        if statement.targets:
            self.scatter(value, shape, dtype)
            return
        box = tuple(slice(*ends) for ends, name in zip(self.domain, self.names) if name not in statement.reduction)
        old = self.state.get(statement.tensor)
        old = torch.zeros(shape, dtype=dtype) if old is None else old
        if statement.operator != "=":
            reduce, combine, start = _REDUCTIONS[statement.operator]
            dims = tuple(self.names.index(name) for name in statement.reduction)
            if dims and value.numel() == 0 and statement.operator in ("max=", "min="):
                value = torch.full([e for p, e in enumerate(self.extents) if p not in dims], start, dtype=value.dtype)
            elif dims:
                value = reduce(value, dims)
            if not statement.initialise:
                value = combine(old[box] if shape else old, value)
        value = value.to(dtype)
        if value.shape != old.shape or not shape:
            whole = old.clone()
            whole[box if shape else ...] = value
            value = whole
        self.state[statement.tensor] = value

    def scatter(self, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Combine each term into the element that its targets pick."""
        statement, place = self.statement, torch.zeros((), dtype=torch.int64)
        for subscript, extent in zip(statement.subscripts, shape):
            at = self.value(subscript)
            assert not at.numel() or (at.min() >= 0 and at.max() < extent)
            place = place * extent + at
        reduce = {"+=": "sum", "*=": "prod", "max=": "amax", "min=": "amin"}[statement.operator]
        start = identity(statement.operator, statement.accumulate).value
        if value.dtype not in (torch.float64, torch.bool):
            start = min(start, torch.iinfo(value.dtype).max)
        old = self.state.get(statement.tensor)
        old = torch.zeros(shape, dtype=value.dtype) if old is None else old.to(value.dtype)
        flat = place.expand(self.extents).reshape(-1)
        if reduce == "prod" and value.requires_grad:
            raise Unsupported("a second derivative of a scattered product")
        made = torch.full_like(old, start).reshape(-1)
        if reduce in ("amax", "amin") and value.dtype == torch.float64:  # no infinity that a result starts from counts among equal terms
            terms = torch.full_like(made, math.nan).scatter_reduce(0, flat, value.reshape(-1), reduce, include_self=False)
            made = torch.where(torch.zeros_like(made, dtype=torch.bool).index_fill(0, flat, True), terms, made)
        else:
            made = made.scatter_reduce(0, flat, value.reshape(-1), reduce)
        made = made.reshape(shape)
        if statement.initialise:
            ranges = dict(zip(self.names, self.domain, strict=True))
            box = tuple(slice(*ranges[s.name]) if isinstance(s, Index) else slice(None) for s in statement.subscripts)
            inside = torch.zeros(shape, dtype=torch.bool)
            inside[box] = True
            made = torch.where(inside, made, old)
        else:  # among equal elements what was there counts as one, and alone where no term came
            combined = _REDUCTIONS[statement.operator][1](old, made)
            made = torch.where(made == start, old, combined) if reduce in ("amax", "amin") else combined
        self.state[statement.tensor] = made.to(dtype)

    def value(self, expr: Expr) -> Tensor:
        match expr:
            case Const(value=value):
                return torch.tensor(value, dtype=dtype_of(expr.dtype))
            case Index(name=name):
                return self.grid[name].to(dtype_of(expr.dtype))
            case Size(name=name):
                return torch.tensor(self.program.value(name), dtype=dtype_of(expr.dtype))
            case Scalar(name=name):
                given = self.scalars[name]
                return given if isinstance(given, Tensor) else torch.tensor(given, dtype=dtype_of(expr.dtype))
            case Cast(operand=operand):
                return _converted(self.value(operand), expr.dtype)
            case Unary(op=op, operand=operand):
                return -self.value(operand) if op == "-" else ~self.value(operand)
            case Select(condition=condition, then=then, other=other):
                return torch.where(self.value(condition), self.value(then), self.value(other))
            case Access(tensor=name, subscripts=subscripts):
                return self._read(self.state[name], [self.value(subscript).long() for subscript in subscripts])
            case Binary(op=op, left=left, right=right):
                return _binary(op, self.value(left), self.value(right))
            case Call(function=function, args=args):
                operands = [self.value(arg) for arg in args]
                if function not in _FUNCTIONS or (function in _WITHOUT_GRADIENT and any(o.requires_grad for o in operands)):
                    raise Unsupported(function)
                return _FUNCTIONS[function](*operands)
        raise TypeError(type(expr).__name__)

    def _read(self, tensor: Tensor, places: list[Tensor]) -> Tensor:
        if not places:
            return tensor
        if not tensor.numel():
            return torch.zeros((), dtype=tensor.dtype)
        inside = (place.clamp(0, extent - 1) for place, extent in zip(places, tensor.shape))  # a guard has not been asked yet
        return tensor[tuple(torch.broadcast_tensors(*inside))]


def _binary(op: str, left: Tensor, right: Tensor) -> Tensor:
    if op in _OPERATORS:
        return _OPERATORS[op](left, right)
    if op in "+-*":
        if left.dtype == torch.bool:
            return left | right if op == "+" else left & right
        return left + right if op == "+" else left - right if op == "-" else left * right
    if left.is_floating_point():
        return left / right if op == "/" else torch.remainder(left, right)
    zero, divisor = right == 0, torch.where(right == 0, torch.ones_like(right), right)
    result = torch.div(left, divisor, rounding_mode="floor") if op == "/" else torch.remainder(left, divisor)
    return torch.where(zero, torch.zeros_like(result), result)


def _converted(value: Tensor, dtype: str) -> Tensor:
    kind = DTYPES[dtype]
    if kind.kind == "float" or not value.is_floating_point():
        return value.to(dtype_of(dtype))
    if kind.kind == "bool":
        return value != 0
    return torch.nan_to_num(value.detach()).trunc().clamp(kind.least, kind.greatest).to(dtype_of(dtype))


def _product(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """By halves: the second derivative of ``prod`` divides by its factors twice, and loses all digits where one is nearly 0."""
    for dim in sorted(dims, reverse=True):
        if not value.requires_grad:
            value = value.prod(dim)
            continue
        if not value.shape[dim]:
            value = torch.ones_like(value).sum(dim) + 1
            continue
        while (count := value.shape[dim]) > 1:
            half = count // 2
            both = value.narrow(dim, 0, half) * value.narrow(dim, half, half)
            value = torch.cat([both, value.narrow(dim, 2 * half, count % 2)], dim)
        value = value.squeeze(dim)
    return value
