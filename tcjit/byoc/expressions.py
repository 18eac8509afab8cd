"""Texts of sizes and conditions in exported programs, which PyTorch evaluates as Python when it loads them: only arithmetic passes."""
from __future__ import annotations

import ast
import re
from collections.abc import Callable

LONGEST = 20_000  # characters
_POWERS = 4  # in one text, with exponents up to this
_EXPONENT = 64
_SYMBOL = re.compile(r"[a-z]{1,4}_?\d+")
_KEY = re.compile(r"[\w ./:+-]*")
_FUNCTIONS = frozenset(
    "Symbol Integer Float Rational Mul Add Pow Max Min Abs Eq Ne Lt Le Gt Ge Equality Unequality StrictLessThan LessThan "
    "StrictGreaterThan GreaterThan And Or Not Piecewise floor ceiling sqrt FloorDiv ModularIndexing Where PythonMod Mod CleanDiv "
    "CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator "
    "TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity BooleanTrue BooleanFalse true false oo".split()
)
_GUARDS = frozenset(
    "L math torch inf IsNonOverlappingAndDenseIndicator cast_symbool_to_symint_guardless max min abs round int float".split()
)
_OF_MATH = frozenset("floor ceil trunc sqrt isnan inf nan pow".split())
_OF_TENSORS = frozenset("size stride storage_offset shape".split())
_PLAIN = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Load, ast.keyword, ast.IfExp, ast.Tuple),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def is_size(text: str) -> bool:
    """Whether a text is arithmetic on sizes as sympy writes it, and nothing else."""
    return _holds(text, _size)


def is_guard(text: str) -> bool:
    """Whether a text is a condition on the sizes, strides and numbers of a model's inputs ``L``, and nothing else."""
    return _holds(text, _guard)


def _holds(text: str, allowed: Callable[[ast.AST], bool]) -> bool:
    if len(text) > LONGEST:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    powers = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift))]
    small = all(isinstance(node.right, ast.Constant) and node.right.value in range(_EXPONENT + 1) for node in powers)
    return small and len(powers) <= _POWERS and all(isinstance(node, _PLAIN) or _constant(node) or allowed(node) for node in nodes)


def _constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant):
        return False
    if isinstance(node.value, str):
        return _KEY.fullmatch(node.value) is not None
    return node.value is None or (isinstance(node.value, (bool, int, float)) and abs(node.value) < 1 << 64)


def _size(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or _SYMBOL.fullmatch(node.id) is not None
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _GUARDS
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, (ast.Constant, ast.UnaryOp))
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name):
            of_torch = node.value.id == "torch" and node.attr.startswith("sym_")
            return of_torch or (node.value.id == "math" and node.attr in _OF_MATH)
        return isinstance(node.value, ast.Subscript) and node.attr in _OF_TENSORS
    return isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
