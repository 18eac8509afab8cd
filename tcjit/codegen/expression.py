"""Typed expressions as C text, or that of a dialect of C, with exactly the language's meaning.

Every text has the C type ``vtype(dtype)`` (or ``int``, for the small integers and bools that C promotes to it) and the value that
the language gives: integers wrap at their own width, ``/`` and ``%`` floor and survive a zero divisor, conversions saturate, ``min``
and ``max`` keep NaN. float16 and bfloat16 lie in memory as bits (compilers vectorise that) and are computed in float.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tcjit.codegen.dialect import FLOATS, INTEGERS, SIMPLE, C, Dialect, GpuDialect
from tcjit.codegen.text import Precedence, Text, atomic, call, choose, join, prefixed
from tcjit.errors import CompileError, Where
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Size, TargetSubscript, Unary
from tcjit.grammar.dtypes import DTYPES, converted
from tcjit.grammar.walk import children, walk
from tcjit.grammar.wrapping import terms
from tcjit.mapping.nest.vector_forms import ADJACENT, INTEGER_POWER, PACK, WORDS
from tcjit.mapping.reduction import identity

FAILED = "tc_failed"  # a thread's variable on a GPU: the number of a site that failed, or 0
_HALVES = {"float16": "half", "bfloat16": "bfloat"}  # as the names of helpers have them
_LITERAL = re.compile(r"\(?(-?\d+)\)?")
_OPERATIONS = {"+": "add", "-": "sub", "*": "mul"}


def ctype(dtype: str, dialect: Dialect = C) -> str:
    """The C type in which an element lies in memory; of the half types, their bits."""
    if dtype in _HALVES:
        return "uint16_t"
    return dialect.stored_boolean if dtype == "bool" else vtype(dtype)


def vtype(dtype: str, dialect: Dialect = C) -> str:
    """The C type in which values are computed: the element's own, and float for the half types."""
    if dtype in INTEGERS:
        return INTEGERS[dtype][0]
    return dialect.boolean if dtype == "bool" else FLOATS.get(dtype, FLOATS["float32"])[0]


def literal(dtype: str, value: int | float | bool, dialect: Dialect = C) -> Text:
    """A constant, exactly; floats as their shortest decimal.

    >>> literal("float32", 0.1), literal("float64", 3), literal("uint64", 5), literal("int32", -2147483648)
    ('0.1f', '3.0', '5ull', '(-2147483647 - 1)')
    """
    kind = DTYPES[dtype]
    if kind.kind == "float":
        return _float_literal(dtype, float(value))
    number = int(value)
    if dtype == "int64" and -(1 << 31) < number < 1 << 31:
        return Text(str(number), Precedence.PREFIX if number < 0 else Precedence.ATOM, number)
    suffix = {"int64": dialect.wide, "uint32": "u", "uint64": f"u{dialect.wide}"}.get(dtype, "")
    if number == kind.least and kind.kind == "signed" and kind.bits >= 32:
        return Text(f"({number + 1}{suffix} - 1)", Precedence.ATOM, number)
    return Text(f"{number}{suffix}", Precedence.PREFIX if number < 0 else Precedence.ATOM, number)


def _float_literal(dtype: str, value: float) -> Text:
    if math.isnan(value):
        return Text("NAN", Precedence.ATOM)
    with np.errstate(over="ignore"):
        own = np.float64(value) if dtype == "float64" else np.float32(value)
    if np.isinf(own):
        return Text("INFINITY" if own > 0 else "-INFINITY", Precedence.ATOM if own > 0 else Precedence.PREFIX)
    text = str(own)
    return Text(text + FLOATS.get(dtype, FLOATS["float32"])[2], Precedence.PREFIX if text.startswith("-") else Precedence.ATOM)


def _short(dtype: str) -> str:
    """How helpers name the type of a value."""
    return INTEGERS[dtype][1] if dtype in INTEGERS else FLOATS.get(dtype, FLOATS["float32"])[1]


def _is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


class ExpressionPrinter:
    """Prints the expressions of one kernel and remembers what they need.

    ``access`` gives the text of an element read, already a value (see ``load``); ``name`` that of an ``index``, ``size`` or
    ``scalar``: an index as int64_t, a scalar of its parameter's ``vtype``, any of them as a decimal literal where it is known.
    ``target`` gives that of a subscript of a left side, with its check.
    ``compared`` may have a shorter text for a comparison of int64 expressions, ``addends`` two parts of the dividend of an int64 remainder:
    one from 0 to the divisor, and what is added to it. With ``checked``, ``tc_flag`` tells of integer divisors that
    are zero: a local int64_t in C, on a GPU a pointer to an int that all threads share, which a thread writes at its end, from ``FAILED``.
    """

    def __init__(
        self,
        dialect: Dialect,
        access: Callable[[Access, ExpressionPrinter], str],
        name: Callable[[str, str], str],
        *,
        target: Callable[[TargetSubscript], str] = lambda expr: "",
        checked: bool = True,
        compared: Callable[[Binary], str] = lambda expr: "",
        addends: Callable[[Binary], tuple[Expr, Expr] | None] = lambda expr: None,
    ) -> None:
        self.dialect = dialect
        self.checked = checked
        self.sites: list[dict[str, Any]] = []
        self.checks = 0  # printed so far, each of one of the sites
        self._access = access
        self._name = name
        self._target = target
        self._compared = compared
        self._addends = addends
        self._used: dict[str, None] = {}
        self.bound: dict[int, str] = {}  # by id of a Call or a Select: the variable that holds its value already
        self.quotients: dict[int, tuple[str, tuple[str, ...]]] = {}  # by id of a division: the helper that takes the dividend, and more

    @property
    def used(self) -> tuple[str, ...]:
        """Helpers and library functions that the printed texts call, for ``prelude.text``."""
        return tuple(self._used)

    def site(self, kind: str, **facts: Any) -> int:
        """The number (from 1) of a place that may fail, ``gather`` or ``division``; the same facts give the same number.

        ``where=`` is kept as line, column and line_text, so that sites are plain data.
        """
        self.checks += 1
        if not isinstance(self.dialect, GpuDialect):
            self._used["TC_FLAG"] = None
        where = facts.pop("where", None)
        if isinstance(where, Where):
            facts |= {"line": where.line, "column": where.column, "line_text": where.line_text}
        found = {"kind": kind, **facts}
        if found not in self.sites:
            self.sites.append(found)
        return self.sites.index(found) + 1

    def inside(self, index: str, extent: str, site: int) -> Text:
        """An int64 index that is inside 0..extent-1; of one that is not, 0, and the site is noted: on a GPU in ``FAILED``."""
        return self._checked("tc_at", "TC_AT", index, extent, str(site))

    def target(self, index: str, extent: str, site: int) -> Text:
        """An int64 index; of one that is not inside 0..extent-1 the site is noted."""
        return self._checked("tc_target", "TC_TARGET", index, extent, str(site))

    def shuffled(self, dtype: str, value: str, lanes: int, mask: str) -> Text:
        """The value of the thread whose lane differs in the bits of ``lanes``; all lanes of ``mask`` evaluate this."""
        return self._helper(f"tc_shuffle_xor_{'bool' if dtype == 'bool' else _short(dtype)}", value, str(lanes), mask)

    def helper(self, name: str) -> str:
        """The name of a helper that a text from elsewhere calls."""
        self._used[name] = None
        return name

    def wrapped(self, expr: Expr) -> Text:
        """Whether a sum or product in int64, perhaps an arm of choices, wrapped: it is then far from what the same arithmetic gives in
        double."""
        return self._helper("tc_wrapped", self.value(expr), self._chosen_in_double(expr))

    def _chosen_in_double(self, expr: Expr) -> Text:
        if not isinstance(expr, Select):
            return self._in_double(expr)
        return choose(self.value(expr.condition), self._chosen_in_double(expr.then), self._chosen_in_double(expr.other))

    def _in_double(self, expr: Expr) -> Text:
        operands = [self._in_double(operand) for operand in terms(expr)]
        if isinstance(expr, Binary) and operands:
            return join(expr.op, *operands)
        return prefixed("-", operands[0]) if operands else prefixed("(double)", self.index(expr))

    # ------------------------------------------------------------ elements

    def load(self, dtype: str, element: str) -> Text:
        """The value of an element in memory."""
        if dtype in _HALVES:
            return self._helper(f"tc_{_HALVES[dtype]}_to_float", element)
        return Text(f"({element} != 0)", Precedence.ATOM) if dtype == "bool" and self.dialect.any_byte else atomic(element)

    def store(self, dtype: str, element: str, value: str) -> str:
        """The statement that writes a value of the element's type to memory, rounding the half types."""
        if dtype in _HALVES:
            moved = _argument(f"tc_{_HALVES[dtype]}_to_float", value)
            value = moved or self._helper(f"tc_float_to_{_HALVES[dtype]}", self.unrounded(dtype, value))
        return f"{element} = {value};"

    def unrounded(self, dtype: str, value: str) -> str:
        """A value that is rounded to a half type when it is stored, without what rounds it before."""
        return _argument(f"tc_as_{_HALVES[dtype]}", value) or value

    def combine(self, operator: str, dtype: str, left: str, right: str) -> Text:
        """One step of a reduction, ``operator`` with or without its ``=``."""
        symbol = operator.rstrip("=!")
        if symbol in ("min", "max"):
            return self._simple(symbol, dtype, atomic(left), atomic(right))
        return self._arithmetic(symbol, dtype, atomic(left), atomic(right))

    def identity(self, operator: str, dtype: str) -> Text:
        """What a reduction starts from: 0, 1, the type's greatest or least value."""
        return self.value(identity(operator, dtype))

    # ------------------------------------------------------------ expressions

    def index(self, expr: Expr) -> Text:
        """An integer expression as int64_t, or as a decimal literal."""
        return self.value(expr) if expr.dtype == "int64" else self.convert(expr.dtype, "int64", self.value(expr))

    def bind(self, equal: Sequence[Call | Select], value: Text) -> str:
        """The declaration of a variable with a value that some calls or choices have: from here on it stands for them."""
        name = f"tc_c{len(self.bound)}"
        self.bound |= dict.fromkeys(map(id, equal), name)
        return f"const {vtype(equal[0].dtype)} {name} = {value};"

    def value(self, expr: Expr) -> Text:
        """An expression; evaluating the text evaluates no more reads than the language does."""
        if id(expr) in self.bound:
            return atomic(self.bound[id(expr)])
        match expr:
            case Const():
                return self._constant(expr.dtype, expr.value)
            case Index():
                return self._named("index", expr.name, expr.dtype)
            case Size():
                return self._named("size", expr.name, expr.dtype)
            case Scalar():
                return self._named("scalar", expr.name, expr.dtype)
            case Access():
                return atomic(self._access(expr, self))
            case Cast():
                return self.convert(expr.operand.dtype, expr.dtype, self.value(expr.operand))
            case Unary():
                return self._unary(expr)
            case Binary():
                return self._binary(expr)
            case Select():
                return self._select(expr)
            case Call():
                return self._call(expr)
        raise TypeError(f"{type(expr).__name__} is no typed expression")  # unreachable on what the checker builds

    def convert(self, source: str, target: str, value: str) -> Text:
        """A value of one dtype as another, as a Cast does; half types round even from themselves, for they are computed wider."""
        text = atomic(value)
        if target in _HALVES:
            return self._rounded(source, target, text)
        if source == target:
            return text
        if target == "bool":
            return join("!=", text, literal(source, 0))
        if target in INTEGERS and _is_float(source):
            return self._helper(f"tc_{vtype(source)}_to_{target}", text)
        if target == "int64" and text.literal is not None:
            return literal(target, text.literal, self.dialect)
        return text if vtype(source) == vtype(target) else prefixed(f"({vtype(target, self.dialect)})", text)

    def _rounded(self, source: str, target: str, text: Text) -> Text:
        kind = DTYPES[source]
        if source == "float64" or (kind.kind != "float" and kind.bits > 16):  # more digits than a float has: round once, not twice
            text = self._helper("tc_round_to_odd", text)
        elif kind.kind != "float":
            text = prefixed("(float)", text)
        return self._helper(f"tc_as_{_HALVES[target]}", text)

    def _constant(self, dtype: str, value: int | float | bool) -> Text:
        text = literal(dtype, converted(value, dtype) if not _is_float(dtype) else value, self.dialect)
        if text.endswith(("INFINITY", "NAN")):
            self._used[text.lstrip("-")] = None
            if dtype == "float64" and isinstance(self.dialect, GpuDialect):  # where functions are overloaded, a float is not a double
                return prefixed("(double)", text)
        return text

    def _named(self, kind: str, name: str, dtype: str) -> Text:
        """An index or a size is an integer variable and a scalar of its parameter's type, whatever type the expression gives them."""
        text = self._name(kind, name)
        if number := _LITERAL.fullmatch(text):
            return self._constant(dtype, int(number[1]))
        own = "int64" if kind == "index" else dtype
        if own != dtype or (dtype == "int64" and kind != "index") or kind == "size":
            return prefixed(f"({vtype(dtype, self.dialect)})", atomic(text))
        return atomic(text)

    def _unary(self, expr: Unary) -> Text:
        operand = self.value(expr.operand)
        if expr.op == "!":
            return prefixed("!", operand)
        if expr.dtype == "int64" and operand.literal is not None:
            return self._constant("int64", -operand.literal)
        if not self.dialect.wraps and expr.dtype in ("int32", "int64"):
            return self._helper(f"tc_neg_{_short(expr.dtype)}", operand)
        return self._wrapped(expr.dtype, prefixed("-", operand))

    def _binary(self, expr: Binary) -> Text:
        if id(expr) in self.quotients:
            helper, arguments = self.quotients[id(expr)]
            return self._helper(helper, self.value(expr.left), *arguments)
        if expr.left.dtype == "int64" and expr.dtype == "bool" and (shorter := self._compared(expr)):
            return Text(f"({shorter})", Precedence.ATOM)
        if expr.op == "%" and expr.dtype == "int64" and (parts := self._addends(expr)) is not None:
            near, other = parts  # whose remainder does not change where it does not move
            divisor = self.value(expr.right)
            return self._helper("tc_wrap", self.value(near), self._helper("tc_mod", self.value(other), divisor), divisor)
        left, right = self.value(expr.left), self.value(expr.right)
        if expr.op == "&&" and _may_always_be_read(expr.right, expr.left):
            return join("&", left, right)  # as safe as &&, and compilers vectorise it where it becomes a result
        if expr.dtype == "bool" and expr.op not in "+*":
            return join(expr.op, left, right)
        if expr.op in "/%" and not (_is_float(expr.dtype) and expr.op == "/"):
            return self._divided(expr, left, right)
        if expr.dtype == "int64" and left.literal is not None and right.literal is not None:
            # both are ints to C, in which the operation could overflow
            a, b = left.literal, right.literal
            return self._constant("int64", {"+": a + b, "-": a - b, "*": a * b}[expr.op])
        return self._arithmetic(expr.op, expr.dtype, left, right)

    def _arithmetic(self, symbol: str, dtype: str, left: Text, right: Text) -> Text:
        """A sum, difference or product."""
        if not self.dialect.wraps and (dtype in ("int32", "int64") or (dtype == "uint16" and symbol == "*")):
            return self._helper(f"tc_{_OPERATIONS[symbol]}_{_short(dtype)}", left, right)
        return self._wrapped(dtype, join(symbol, left, right))

    def _divided(self, expr: Binary, left: Text, right: Text) -> Text:
        """Floored quotient or remainder."""
        dtype, name = expr.dtype, "div" if expr.op == "/" else "mod"
        if _is_float(dtype):
            return self._helper(f"tc_mod_{_short(dtype)}", left, right)
        wide = _short(dtype) if DTYPES[dtype].bits >= 32 else "i32"
        divisor = right.literal or 0
        if divisor > 0:
            if DTYPES[dtype].kind == "unsigned":
                return join(expr.op, left, right)
            if dtype == "int64":
                return self._helper("tc_fdiv" if expr.op == "/" else "tc_mod", left, right)
        elif divisor == 0 and self.checked:
            right = self._checked(f"tc_nonzero_{wide}", "TC_FLAG_ZERO", right, str(self.site("division", where=expr.where)))
        return self._wrapped(dtype, self._helper(f"tc_{name}_{wide}", left, right))

    def _select(self, expr: Select) -> Text:
        then, other = self.value(expr.then), self.value(expr.other)
        if expr.dtype == "int64" and then.literal is not None and other.literal is not None:
            then = prefixed("(int64_t)", then)
        return choose(self.value(expr.condition), then, other)

    def _call(self, expr: Call) -> Text:
        function, dtype = expr.function, expr.dtype
        if isinstance(expr, TargetSubscript):
            return atomic(self._target(expr))
        if function in WORDS:
            return self._word(expr)
        args = [self.value(arg) for arg in expr.args]
        if function in SIMPLE and not _is_float(dtype):
            return self._simple(function, dtype, *args)
        if function == "fdivide":
            return join("/", *args)
        if function == INTEGER_POWER:
            exponent = expr.args[1]
            inverse = isinstance(exponent, Const) and exponent.value < 0
            return self._helper(f"tc_{'inverse_power' if inverse else function}_{_short(dtype)}", *args)
        if function == "pow" and expr.args[1] == Const(0.5, dtype=dtype) and not isinstance(self.dialect, GpuDialect):
            return self._helper(f"tc_pow_half_{_short(dtype)}", args[0])
        if function == "nextafter" and dtype in _HALVES:
            return self._helper(f"tc_nextafter_{_HALVES[dtype]}", *args)
        names = self.dialect.functions.get(function)
        if names is None:
            raise CompileError(f"the {self.dialect.name} target has no `{function}`", where=expr.where)
        return self._helper(names[dtype == "float64"], *args)

    def _word(self, expr: Call) -> Text:
        """Narrow integers in 32 bits, or the bits of two bfloat16 as those of a float."""
        function, args = expr.function, expr.args
        if function == ADJACENT:
            first = args[0]
            assert isinstance(first, Access)
            element = self._access(replace(first), self)  # in memory: what is bound to a variable is another access
            if expr.dtype == "float32":
                return self._helper("TC_FLOAT_WORD", _argument("tc_bfloat_to_float", element))
            return self._helper("TC_WORD", element)
        if expr.dtype == "float32":
            return self._helper("tc_pack_bfloats", *map(self.value, args))
        return self._helper(f"tc_pack{len(args)}" if function == PACK else f"tc_{function}", *map(self.value, args))

    def _simple(self, function: str, dtype: str, *args: Text) -> Text:
        """A built-in that every type has."""
        if dtype == "bool":
            return join("|" if function == "max" else "&", *args)
        if dtype == "int64" and function in ("min", "max"):
            return self._helper(f"tc_{function}_index", *args)
        if DTYPES[dtype].kind == "unsigned" and function in ("abs", "relu"):
            return args[0]
        if DTYPES[dtype].kind == "unsigned" and function == "sign":
            return self._wrapped(dtype, join("!=", args[0], literal(dtype, 0)))
        return self._helper(f"tc_{function}_{_short(dtype)}", *args)

    def _wrapped(self, dtype: str, text: Text) -> Text:
        """Integers narrower than C's int back to their own width; what is left of a bool is whether it is not 0."""
        if dtype == "bool":
            return join("!=", text, literal(dtype, 0))
        if dtype in INTEGERS and DTYPES[dtype].bits < 32:
            return prefixed(f"({vtype(dtype)})", text)
        return text

    def _checked(self, on_gpu: str, in_c: str, *arguments: str) -> Text:
        """What notes a site that fails: on a GPU in ``FAILED``."""
        return self._helper(on_gpu, *arguments, f"&{FAILED}") if isinstance(self.dialect, GpuDialect) else self._helper(in_c, *arguments)

    def _helper(self, name: str, *arguments: str) -> Text:
        self._used[name] = None
        return call(name, *arguments)


def _may_always_be_read(right: Expr, left: Expr) -> bool:
    """Whether ``right`` reads elements that are there whatever ``left`` is, and does nothing else that may fail or cost: ``left`` reads
    them in any case, or has no comparison of indices, sizes or scalars, which alone guard a read that is not picked by data."""
    reads = [node for node in walk(right) if isinstance(node, Access)]
    plain = not any(isinstance(node, Call) or (isinstance(node, Binary) and node.op in "/%") for node in walk(right))
    picked = any(isinstance(node, Access) for access in reads for sub in access.subscripts for node in walk(sub))
    return bool(reads) and plain and (set(reads) <= set(_certain_reads(left)) or not picked and not _compares_indices(left))


def _compares_indices(expr: Expr) -> bool:
    """Whether an index, a size or a scalar stands in an expression outside of subscripts."""
    return isinstance(expr, (Index, Size, Scalar)) or not isinstance(expr, Access) and any(map(_compares_indices, children(expr)))


def _certain_reads(expr: Expr) -> Iterator[Access]:
    """The reads that evaluating ``expr`` always does."""
    if isinstance(expr, Access):
        yield expr
    first_only = isinstance(expr, Select) or (isinstance(expr, Binary) and expr.op in ("&&", "||"))
    for child in children(expr)[: 1 if first_only else None]:
        yield from _certain_reads(child)


def _argument(function: str, text: str) -> str:
    """The argument of a text that is a call of a function and nothing else: what is only moved needs no conversion and back."""
    if not text.startswith(f"{function}("):
        return ""
    depth = 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ")" and not depth:
            return text[len(function) + 1 : at] if at == len(text) - 1 else ""
    return ""
