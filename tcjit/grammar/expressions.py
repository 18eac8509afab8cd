"""Typing of expressions: names resolved, promotions explicit, weak literals given the type of what stands beside them.

Two contexts. In *values* indices and sizes are int32 and integers wrap; in *indices* (subscripts, ranges, and comparisons of index
arithmetic, which isl must see as the kernel evaluates them) everything is int64, so nothing wraps.
"""
from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple

from tcjit.dataclass import dataclass
from tcjit.errors import CheckError, Where
from tcjit.grammar.ast import Access, Apply, Binary, Call, Cast, Const, Expr, Index, Name, Number, Scalar, Select, Size, Unary
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.dtypes import DTYPES, converted, promote
from tcjit.grammar.walk import children, rebuild

DEFAULTS = {"bool": "bool", "int": "int32", "float": "float32"}  # what a weak expression is when it stands alone
_RANK = {"bool": 0, "int": 1, "unsigned": 1, "signed": 1, "float": 2}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Typed(NamedTuple):
    """A typed expression; ``weak`` is the kind of one whose type is still open: bool, int or float where it is made of literals only,
    float also where they meet sizes and indices."""

    expr: Expr
    weak: str = ""


@dataclass
class Symbol:
    """A tensor while its def is checked. ``dtype`` is empty as long as only literals were written to it (of kind ``weak``)."""

    name: str
    rank: int
    role: str
    dtype: str = ""
    weak: str = ""
    annotated: bool = False
    dims: tuple[str | int, ...] = ()  # of an input
    where: Where | None = None

    def settle(self) -> str:
        """The dtype, for good."""
        self.dtype = self.dtype or DEFAULTS[self.weak]
        return self.dtype


@dataclass
class NameScope:
    """What the names of a def mean at one point of it."""

    sizes: dict[str, None] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)  # dtype
    tensors: dict[str, Symbol] = field(default_factory=dict)  # those that have a value
    written: dict[str, None] = field(default_factory=dict)  # every tensor that some statement of the def writes, and the returns
    own: str = ""  # the def itself
    defs: tuple[str, ...] = ()  # earlier ones

    def kind(self, name: str) -> str:
        """What a name already means, for messages; empty where it is free for an index or a let."""
        if name in self.sizes:
            return "a size"
        if name in self.scalars:
            return "a scalar parameter"
        return "a tensor" if name in self.tensors or name in self.written else ""


def counted(count: int, what: str) -> str:
    """``1 index``, ``no indices``, ``3 indices``."""
    many = what.replace("index", "indice") + "s"
    return f"1 {what}" if count == 1 else f"{count or 'no'} {many}"


def rank(dtype: str) -> int:
    return _RANK[DTYPES[dtype].kind]


def cast(expr: Expr, dtype: str) -> Expr:
    """``expr`` as ``dtype``: itself, a converted constant, or a ``Cast``."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Const):
        return Const(converted(expr.value, dtype), dtype=dtype, where=expr.where)
    return Cast(expr, dtype=dtype, where=expr.where)


def resolve(value: Typed, dtype: str) -> Expr:
    """A value as ``dtype``, which is at least of the kind of a weak one; CheckError where a literal does not fit."""
    expr, weak = value
    if not weak:
        return cast(expr, dtype)
    if isinstance(expr, Const):
        return _literal(expr, dtype)
    if isinstance(expr, Select):
        return replace(expr, then=resolve(Typed(expr.then, weak), dtype), other=resolve(Typed(expr.other, weak), dtype), dtype=dtype)
    if isinstance(expr, Cast):  # of a weaker kind, by _weaken
        return cast(expr.operand, dtype)
    if weak == "float" and DTYPES[dtype].bits == 16:  # which need not hold the sizes and indices in it
        return cast(resolve(value, "float32"), dtype)
    if _RANK[weak] == rank(dtype):
        return replace(rebuild(expr, lambda operand: resolve(Typed(operand, weak), dtype)), dtype=dtype)
    return cast(resolve(value, DEFAULTS[weak]), dtype)  # a division of integers floors before it becomes a float


def _literal(const: Const, dtype: str) -> Const:
    value, target = const.value, DTYPES[dtype]
    if target.is_integer and not isinstance(value, float) and not target.least <= value <= target.greatest:
        wider = next((d for d in ("int16", "int32", "int64") if DTYPES[d].least <= value <= DTYPES[d].greatest), "float64")
        raise CheckError(
            f"{value} does not fit {dtype}",
            where=const.where,
            hint=f"convert it, `{wider}({value})`, or what stands beside it; `{dtype}({value})` wraps",
        )
    return Const(converted(value, dtype), dtype=dtype, where=const.where)


def alone(value: Typed) -> Expr:
    """A value with its own type: a weak one becomes bool, int32 or float32."""
    return resolve(value, DEFAULTS[value.weak]) if value.weak else value.expr


class Typer:
    """Types the expressions of one statement; ``lets`` are its lets so far, by name."""

    def __init__(self, scope: NameScope, later_lets: Sequence[str] = ()) -> None:
        self.scope = scope
        self.lets: dict[str, Expr] = {}
        self.later = set(later_lets)
        self.used: set[str] = set()  # lets
        self._known: dict[tuple[str, bool], Typed] = {}  # typed lets
        self._affine: dict[str, bool] = {}

    # ------------------------------------------------------------ entry points

    def let(self, name: str, value: Expr) -> Typed:
        """Take in ``name = value`` and check it, used or not."""
        typed = self._known[name, False] = self.typed(value)
        self.later.discard(name)
        self.lets[name] = value
        return typed

    def condition(self, expr: Expr) -> Expr:
        """``expr``, which must be bool."""
        typed = alone(self.typed(expr))
        if typed.dtype != "bool":
            raise CheckError(f"a condition is bool, and this is {typed.dtype}", where=expr.where, hint="compare it: `... != 0`")
        return typed

    def index(self, expr: Expr) -> Expr:
        """``expr`` in index arithmetic: int64."""
        typed = alone(self.typed(expr, index=True))
        if not DTYPES[typed.dtype].is_integer:
            raise CheckError(f"an index is an integer, and this is {typed.dtype}", where=expr.where, hint="convert it: `int32(...)`")
        return cast(typed, "int64")

    def typed(self, expr: Expr, index: bool = False) -> Typed:
        """``expr`` typed; in index context its integers are int64 and its literals are not weak."""
        match expr:
            case Number():
                return self._number(expr, index)
            case Name():
                return self._name(expr, index)
            case Apply():
                return self._apply(expr, index)
            case Cast():
                return self._cast(expr)
            case Unary():
                return self._unary(expr, index)
            case Binary():
                return self._binary(expr, index)
            case Select():
                condition = self.condition(expr.condition)
                (then, other), weak = self._operands([expr.then, expr.other], index, expr.where)
                return Typed(Select(condition, then, other, dtype=then.dtype, where=expr.where), weak)
        raise TypeError(f"{type(expr).__name__} is no surface expression")  # unreachable on what the parser builds

    # ------------------------------------------------------------ leaves

    def _number(self, expr: Number, index: bool) -> Typed:
        text = expr.text
        if text in ("true", "false"):
            return Typed(Const(text == "true", dtype="bool", where=expr.where), "bool")
        if not text.isdigit():
            if math.isinf(float(text)):
                raise CheckError(f"{text} is greater than any float", where=expr.where, hint="`infinity()`")
            return Typed(Const(float(text), dtype="float32", where=expr.where), "float")
        if len(text.lstrip("0")) > 20:
            raise CheckError("an integer literal has at most 64 bits", where=expr.where, hint="with `.0` it is a floating literal")
        value = Const(int(text), dtype="int32", where=expr.where)
        return Typed(_literal(value, "int64")) if index else Typed(value, "int")

    def _name(self, expr: Name, index: bool) -> Typed:
        name, scope = expr.name, self.scope
        if name in self.lets:
            self.used.add(name)
            if (name, index) not in self._known:
                self._known[name, index] = self.typed(self.lets[name], index)
            return self._known[name, index]
        if name in self.later:
            raise CheckError(
                f"`{name}` is used before its let", where=expr.where, hint="a let may use the lets before it: change their order"
            )
        if name in scope.scalars:
            dtype = scope.scalars[name]
            return Typed(Scalar(name, dtype="int64" if index and DTYPES[dtype].is_integer else dtype, where=expr.where))
        if name in scope.sizes:
            return Typed(Size(name, dtype="int64" if index else "int32", where=expr.where))
        if scope.kind(name):
            return self._read(name, (), expr.where, index)
        return Typed(Index(name, dtype="int64" if index else "int32", where=expr.where))

    def _read(self, name: str, args: tuple[Expr, ...], where: Where | None, index: bool) -> Typed:
        symbol = self.scope.tensors.get(name)
        if symbol is None:
            what = f"`{name}` is read before any statement defines it"
            raise CheckError(what, where=where, hint=f"a statement before this one has to write `{name}`")
        if len(args) != symbol.rank:
            count = "here is " + ("1 subscript" if args else "no subscript") if len(args) < 2 else f"here are {len(args)} subscripts"
            example = f"`{name}({', '.join('ijklmnopqrstuvw'[: symbol.rank])})`" if 0 < symbol.rank < 16 else f"`{name}`"
            raise CheckError(f"`{name}` has {counted(symbol.rank, 'dimension')}, and {count}", where=where, hint=example)
        access = Access(name, tuple(map(self.index, args)), dtype=symbol.settle(), where=where)
        return Typed(cast(access, "int64") if index and DTYPES[access.dtype].is_integer else access)

    # ------------------------------------------------------------ names with arguments

    def _apply(self, expr: Apply, index: bool) -> Typed:
        name, scope = expr.name, self.scope
        kind = scope.kind(name)
        if kind == "a tensor":
            return self._read(name, expr.args, expr.where, index)
        if name in BUILTINS:
            return self._builtin(expr, index)
        if not expr.args and kind == "a scalar parameter":
            return self._name(Name(name, where=expr.where), index)
        if kind or name in self.lets:
            what = f"`{name}` is {kind or 'a let'} and takes no subscripts"
            raise CheckError(what, where=expr.where, hint=f"`{name}`, or `{name} * ...`")
        if name == scope.own:
            raise CheckError(f"the def `{name}` cannot call itself", where=expr.where, hint="a def may call the ones before it")
        if name in scope.defs:
            raise CheckError(
                f"`{name}` is a def, and a def is called by a statement of its own",
                where=expr.where,
                hint=f"`T = {name}(...)`, then use `T`",
            )
        near = difflib.get_close_matches(name, [*scope.tensors, *BUILTINS], 1)
        raise CheckError(
            f"undefined tensor or function `{name}`",
            where=expr.where,
            hint=f"`{near[0]}`" if near else "tensors: " + (", ".join(scope.tensors) or "none"),
        )

    def _builtin(self, expr: Apply, index: bool) -> Typed:
        builtin = BUILTINS[expr.name]
        if len(expr.args) != builtin.arity:
            names = ("x", "x, y", "x, y, z", "x, y, z, w")
            example = f"{expr.name}({names[builtin.arity - 1] if builtin.arity else ''})"
            what = f"`{expr.name}` takes {counted(builtin.arity, 'argument')}, not {len(expr.args)}"
            raise CheckError(what, where=expr.where, hint=f"`{example}`")
        if not expr.args:
            return Typed(Const(math.inf, dtype="float32", where=expr.where), "float")
        args, weak = self._operands(expr.args, index and builtin.integers, expr.where)
        dtype = args[0].dtype
        if builtin.integers:
            if dtype == "bool" and not builtin.bools:
                raise CheckError(f"`{expr.name}` of a bool", where=expr.where, hint=f"convert it: `{expr.name}(int32(...))`")
        elif DTYPES[dtype].kind != "float":
            dtype = "float32"
            open_type = bool(weak) or all(map(_has_no_type, args))
            args = [_weaken(Typed(arg, weak), "float") if weak else cast(arg, dtype) for arg in args]
            weak = "float" if open_type else ""
        return Typed(Call(expr.name, tuple(args), dtype=dtype, where=expr.where), weak)

    # ------------------------------------------------------------ operators

    def _cast(self, expr: Cast) -> Typed:
        value, target = self.typed(expr.operand), DTYPES[expr.dtype]
        if isinstance(value.expr, Const):
            return Typed(Const(converted(value.expr.value, expr.dtype), dtype=expr.dtype, where=expr.where))
        if value.weak and _RANK[value.weak] == rank(expr.dtype):
            return Typed(resolve(value, expr.dtype))
        operand = alone(value)
        if operand.dtype == expr.dtype and not (target.kind == "float" and target.bits == 16):
            return Typed(operand)  # for the half types it rounds: they are computed in float32
        return Typed(Cast(operand, dtype=expr.dtype, where=expr.where))

    def _unary(self, expr: Unary, index: bool) -> Typed:
        if expr.op == "!":
            return Typed(Unary("!", self.condition(expr.operand), dtype="bool", where=expr.where))
        value = Typed(self.index(expr.operand)) if index else self.typed(expr.operand)
        operand = value.expr
        if operand.dtype == "bool":
            raise CheckError("`-` of a bool", where=expr.where, hint="convert it, `-int32(...)`, or negate it: `!`")
        if isinstance(operand, Const) and (index or value.weak):
            return Typed(Const(-operand.value, dtype=operand.dtype, where=expr.where), value.weak)
        return Typed(Unary("-", operand, dtype=operand.dtype, where=expr.where), value.weak)

    def _binary(self, expr: Binary, index: bool) -> Typed:
        if expr.op in ("&&", "||"):
            left, right = self.condition(expr.left), self.condition(expr.right)
            return Typed(Binary(expr.op, left, right, dtype="bool", where=expr.where))
        comparison = expr.op in COMPARISONS
        if comparison:
            index = self._is_affine(expr.left) and self._is_affine(expr.right)
        (left, right), weak = self._operands([expr.left, expr.right], index, expr.where)
        if comparison:
            left, right = (resolve(Typed(side, weak), DEFAULTS[weak]) if weak else side for side in (left, right))
            return Typed(Binary(expr.op, left, right, dtype="bool", where=expr.where))
        dtype = left.dtype
        if dtype == "bool" and expr.op in "-/%":
            raise CheckError(f"`{expr.op}` of bools", where=expr.where, hint="convert them: `int32(...)`")
        if expr.op in "/%" and isinstance(right, Const) and right.value == 0 and not isinstance(right.value, float):
            raise CheckError("an integer is divided by zero", where=expr.where, hint="a float may be: `x / 0.0`")
        if isinstance(left, Const) and isinstance(right, Const) and (weak or index):
            folded = _fold(expr.op, left.value, right.value)
            if not isinstance(folded, float) and folded.bit_length() > 64:
                raise CheckError("the value of integer literals does not fit 64 bits", where=expr.where, hint="write them as floats: `1.0`")
            const = Const(folded, dtype=dtype, where=expr.where)
            return Typed(const, weak) if weak else Typed(_literal(const, "int64"))
        return Typed(Binary(expr.op, left, right, dtype=dtype, where=expr.where), weak)

    def _operands(self, exprs: Sequence[Expr], index: bool, where: Where | None) -> tuple[list[Expr], str]:
        """Operands brought to one dtype, and its kind where all of them are weak."""
        if index:
            return [self.index(expr) for expr in exprs], ""
        values = [self.typed(expr) for expr in exprs]
        floats = any(value.weak == "float" for value in values)
        if all(value.weak or floats and _has_no_type(value.expr) for value in values):
            weak = "float" if floats else max((value.weak for value in values), key=_RANK.__getitem__)
            return [value.expr if value.weak == weak else _weaken(value, weak) for value in values], weak
        dtype = ""
        for value in values:
            if not value.weak:
                dtype = promoted(dtype, value.expr.dtype, where) if dtype else value.expr.dtype
        kinds = {value.weak for value in values}
        if "float" in kinds and rank(dtype) < 2:
            dtype = "float32"
        elif "int" in kinds and rank(dtype) < 1:
            dtype = "int32"
        return [resolve(value, dtype) for value in values], ""

    def _is_affine(self, expr: Expr) -> bool:
        """Whether ``expr`` is index arithmetic: indices, sizes, integer scalars and literals under + - * / % min max."""
        match expr:
            case Number():
                return expr.text.isdigit()
            case Name():
                if expr.name in self.lets:
                    if expr.name not in self._affine:
                        self._affine[expr.name] = self._is_affine(self.lets[expr.name])
                    return self._affine[expr.name]
                if expr.name in self.scope.scalars:
                    return DTYPES[self.scope.scalars[expr.name]].is_integer
                return self.scope.kind(expr.name) in ("", "a size")
            case Unary():
                return expr.op == "-" and self._is_affine(expr.operand)
            case Binary():
                return expr.op in ("+", "-", "*", "/", "%") and self._is_affine(expr.left) and self._is_affine(expr.right)
            case Apply():
                return expr.name in ("min", "max") and all(map(self._is_affine, expr.args))
        return False


def promoted(left: str, right: str, where: Where | None) -> str:
    """``promote``, with a CheckError for the pairs that PyTorch refuses."""
    dtype = promote(left, right)
    if dtype is None:
        raise CheckError(
            f"{left} and {right} have no common type (nor in PyTorch)",
            where=where,
            hint=f"convert one of them: `{left if DTYPES[left].kind == 'signed' else 'int64'}(...)`",
        )
    return dtype


def _has_no_type(expr: Expr) -> bool:
    """Whether ``expr`` is integer arithmetic of sizes, indices and literals: what it is as a float is for a literal beside it to say."""
    if isinstance(expr, (Access, Scalar)) or expr.dtype != "int32":
        return False
    return all(map(_has_no_type, children(expr)))


def _weaken(value: Typed, weak: str) -> Expr:
    """A weak value as a weak value of a wider kind; constants keep their exact value."""
    if not isinstance(value.expr, Const):
        return resolve(value, DEFAULTS[weak])
    number = value.expr.value
    return Const(converted(number, "float64" if weak == "float" else "int64"), dtype=DEFAULTS[weak], where=value.expr.where)


def _fold(op: str, left: int | float | bool, right: int | float | bool) -> int | float | bool:
    """The value of an operation on literals, in unbounded integers or float64; bools only add (or) and multiply (and)."""
    if isinstance(left, bool):
        return bool(left + right if op == "+" else left * right)
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if isinstance(left, float):
            if right:
                return left / right
            return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
        case "/":
            return left // right
        case _:
            return left % right if right else math.nan
