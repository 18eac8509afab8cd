"""Calls of earlier defs, written out: the callee's statements over the caller's tensors, scalars, sizes and literals."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from tcjit.dataclass import dataclass
from tcjit.errors import CheckError, Where
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Binary,
    CallDef,
    Cast,
    Const,
    Def,
    Expr,
    Index,
    Name,
    Param,
    RangeClause,
    Scalar,
    Size,
    Statement,
)
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.grammar.expressions import NameScope, Symbol, Typer, cast, counted
from tcjit.grammar.extents import plain
from tcjit.grammar.walk import rebuild


@dataclass(frozen=True)
class Inlined:
    """What a call becomes. ``results`` and ``temporaries`` give dtype and rank of the tensors it writes."""

    statements: tuple[Statement, ...]
    results: dict[str, tuple[str, int]]
    temporaries: dict[str, tuple[str, int]]
    agreements: tuple[Agreement, ...]


@dataclass
class _Binding:
    """What the callee's names stand for in the caller; sizes and scalars by the dtype that the place of use needs."""

    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, Callable[[str], Expr]] = field(default_factory=dict)
    extents: dict[str, tuple[Expr, str]] = field(default_factory=dict)  # per callee size: its value, the argument it came from
    agreements: list[Agreement] = field(default_factory=list)


def inline(call: CallDef, scope: NameScope, earlier: Mapping[str, Def], taken: Collection[str]) -> Inlined:
    """The statements of ``call`` in the caller's names; ``taken`` are the names that new temporaries must avoid.

    Raises ``CheckError`` where the call does not fit the def; extents that only ``infer`` knows become agreements.
    """
    callee = _callee(call, scope, earlier)
    binding = _Binding()
    for param, arg in zip(callee.params, call.args, strict=True):
        if param.dims:
            _bind_tensor(binding, callee, param, arg, scope, call)
        else:
            binding.numbers[param.name] = _scalar(callee, param, arg, scope)
    names = set(taken)
    results, temporaries = {}, {}
    copies = []
    for tensor in callee.tensors:
        shape = (tensor.dtype, tensor.rank)
        if tensor.role == "input":
            continue
        if tensor.role == "output":
            target = call.targets[callee.returns.index(tensor.name)]
            results[target] = shape
            if target not in scope.tensors or _accumulates(callee, tensor.name):
                binding.tensors[tensor.name] = target
                continue
            # the target has extents of its own, which may be larger: the callee computes in a tensor with the extents it means
            copies.append((target, tensor.name, shape))
        binding.tensors[tensor.name] = name = _fresh(f"{callee.name}_{tensor.name}", names)
        temporaries[name] = shape
    outer = {*scope.sizes, *scope.scalars, *scope.tensors, *scope.written, *temporaries}
    statements = [_statement(statement, binding, outer) for statement in callee.statements]
    statements += [_copy(target, binding.tensors[name], shape, outer, call.where) for target, name, shape in copies]
    change = _Substitution(binding, {})
    agreements = [replace(a, left=change(a.left), right=change(a.right)) for a in callee.agreements]
    return Inlined(tuple(statements), results, temporaries, (*binding.agreements, *agreements))


def _callee(call: CallDef, scope: NameScope, earlier: Mapping[str, Def]) -> Def:
    callee = earlier.get(call.name)
    if callee is None:
        hint = "earlier defs: " + ", ".join(earlier) if earlier else "a def stands before the ones that call it, and cannot call itself"
        raise CheckError(f"no earlier def is named `{call.name}`", where=call.where, hint=hint)
    for what, given, wanted, form in (
        ("argument", len(call.args), len(callee.params), ", ".join(p.name for p in callee.params)),
        ("result", len(call.targets), len(callee.returns), ", ".join(callee.returns)),
    ):
        if given != wanted:
            verb = "takes" if what == "argument" else "gives"
            raise CheckError(
                f"`{call.name}` {verb} {counted(wanted, what)}, and here {'is' if given == 1 else 'are'} {given}",
                where=call.where,
                hint=f"in order: {form}" if form else f"`{call.name}()`",
            )
    for position, target in enumerate(call.targets):
        if target in call.targets[:position]:
            raise CheckError(f"`{target}` takes two results of one call", where=call.where, hint="give each result a name of its own")
        if any(isinstance(arg, Name) and arg.name == target for arg in call.args):
            raise CheckError(
                f"`{target}` is an argument and a result of one call", where=call.where, hint="take the result in a tensor of another name"
            )
    return callee


def _bind_tensor(binding: _Binding, callee: Def, param: Param, arg: Expr, scope: NameScope, call: CallDef) -> None:
    symbol = scope.tensors.get(arg.name) if isinstance(arg, Name) else None
    if symbol is None:
        undefined = isinstance(arg, Name) and arg.name in scope.written
        if undefined:
            what, hint = f"the argument `{param.name}` of `{callee.name}` is read before any statement defines it", "move that statement up"
        else:
            what, hint = f"the argument `{param.name}` of `{callee.name}` is a tensor", "name one; an expression takes a statement before"
        raise CheckError(what, where=arg.where, hint=hint)
    if symbol.settle() != param.dtype or symbol.rank != len(param.dims):
        raise CheckError(
            f"`{callee.name}` takes {param.dtype} of {counted(len(param.dims), 'dimension')} as `{param.name}`,"
            f" and `{symbol.name}` is {symbol.dtype} of {counted(symbol.rank, 'dimension')}",
            where=arg.where,
            hint="convert or reshape it by a statement before: `T(i) = ...`",
        )
    binding.tensors[param.name] = symbol.name
    for position, dim in enumerate(param.dims):
        own = extents(symbol)[position]
        origin = f"dimension {position} of `{symbol.name}`"
        if not isinstance(dim, int) and dim not in callee.sizes:
            continue  # an expression: one of the callee's agreements
        if isinstance(dim, int):
            _agree(binding, Const(dim, dtype="int64"), own, f"`{callee.name}` wants {dim}, for {origin}", call.where)
        elif dim in binding.extents:
            first, before = binding.extents[dim]
            _agree(binding, first, own, f"the size {dim} of `{callee.name}`: {before} and {origin}", call.where)
        else:
            binding.extents[dim] = (own, origin)
            binding.numbers[dim] = lambda dtype, own=own: _as(own, dtype)  # type: ignore[misc]


def extents(symbol: Symbol) -> tuple[Expr, ...]:
    """The extents of a tensor as far as the checker knows them: ``T.0`` where ``infer`` will."""
    return tuple(map(plain, symbol.dims or tuple(f"{symbol.name}.{position}" for position in range(symbol.rank))))


def _as(extent: Expr, dtype: str) -> Expr:
    return replace(extent, dtype=dtype) if isinstance(extent, Size) else cast(extent, dtype)


def _agree(binding: _Binding, left: Expr, right: Expr, what: str, where: Where | None) -> None:
    if isinstance(left, Const) and isinstance(right, Const) and left != right:
        raise CheckError(f"{what}: {left.value} is not {right.value}", where=where, hint="the extents have to be equal")
    if left != right:
        binding.agreements.append(Agreement(left, right, what, where))


def _scalar(callee: Def, param: Param, arg: Expr, scope: NameScope) -> Callable[[str], Expr]:
    """What a scalar parameter stands for."""
    wrong = CheckError(
        f"the argument `{param.name}` of `{callee.name}` is a scalar: a scalar parameter, a tensor without dimensions, or a literal",
        where=arg.where,
        hint=f"`s = ...` in a statement before, then `{callee.name}(..., s, ...)`",
    )
    if isinstance(arg, Name) and not (arg.name in scope.scalars or arg.name in scope.tensors or arg.name in scope.written):
        raise wrong
    expr, weak = Typer(scope).typed(arg)
    if isinstance(expr, Const) and weak:
        kinds = {"bool": ("bool",), "int": ("signed", "unsigned", "float"), "float": ("float",)}[weak]
        target = DTYPES[param.dtype]
        fits = target.kind in kinds and (not target.is_integer or target.least <= expr.value <= target.greatest)
    elif isinstance(expr, (Scalar, Access)) and not getattr(expr, "subscripts", ()):
        fits = holds(param.dtype, expr.dtype)
        if isinstance(expr, Access) and param.name in callee.specialised:
            raise CheckError(
                f"`{callee.name}` is specialised to `{param.name}`, and `{expr.tensor}` is known only when the kernel runs",
                where=arg.where,
                hint="pass a scalar parameter or a literal",
            )
    else:
        raise wrong
    if not fits:
        given = f"{expr.value}" if isinstance(expr, Const) else f"every {expr.dtype}"
        what = f"`{param.name}` of `{callee.name}` is {param.dtype}, which does not hold {given}"
        raise CheckError(what, where=arg.where, hint=f"an argument of type {param.dtype}")
    name = expr.name if isinstance(expr, Scalar) else ""

    def use(dtype: str) -> Expr:
        if name and dtype == "int64":  # index arithmetic for one; a wider parameter holds the same value
            return Scalar(name, dtype="int64", where=arg.where)
        return cast(cast(expr, param.dtype), dtype)

    return use


class _Substitution:
    """Writes an expression of the callee in the caller's names."""

    def __init__(self, binding: _Binding, indices: Mapping[str, str]) -> None:
        self.binding = binding
        self.indices = indices
        self.known: dict[int, Expr] = {}  # shared subtrees stay shared

    def __call__(self, expr: Expr) -> Expr:
        if id(expr) not in self.known:
            self.known[id(expr)] = self._new(expr)
        return self.known[id(expr)]

    def _new(self, expr: Expr) -> Expr:
        match expr:
            case Index(name=name):
                return replace(expr, name=self.indices.get(name, name))
            case Scalar(name=name):
                return self.binding.numbers[name](expr.dtype)
            case Size(name=name) if "." in name:
                tensor, _, position = name.partition(".")
                return replace(expr, name=f"{self.binding.tensors[tensor]}.{position}")
            case Size(name=name):
                return self.binding.numbers[name](expr.dtype)
        new = rebuild(expr, self)
        if isinstance(new, Cast) and isinstance(new.operand, Const):
            return replace(cast(new.operand, new.dtype), where=new.where)
        if isinstance(new, Access):
            return replace(new, tensor=self.binding.tensors[new.tensor])
        if isinstance(new, Binary) and new.op in "/%" and new.right == Const(0, dtype=new.dtype) and DTYPES[new.dtype].is_integer:
            raise CheckError("an integer is divided by zero, an argument of a call", where=expr.where, hint="pass another number")
        return new


def _statement(statement: Statement, binding: _Binding, names: Collection[str]) -> Statement:
    """A statement of the callee; its indices are renamed where they would be named like something of the caller."""
    indices = [node.name for node in statement.subscripts if isinstance(node, Index)] + list(statement.reduction)
    taken = {*names, *indices}
    renamed = {index: _fresh(index, taken) for index in indices if index in names}
    change = _Substitution(binding, renamed)
    return replace(
        statement,
        tensor=binding.tensors[statement.tensor],
        subscripts=tuple(map(change, statement.subscripts)),
        value=change(statement.value),
        reduction=tuple(renamed.get(index, index) for index in statement.reduction),
        clauses=tuple(
            RangeClause(renamed.get(c.index, c.index), change(c.lower), change(c.upper), c.where) for c in statement.clauses
        ),
        exists=tuple(map(change, statement.exists)),
        extents=tuple(extent and change(extent) for extent in statement.extents),
    )


def _copy(target: str, source: str, shape: tuple[str, int], names: Collection[str], where: Where | None) -> Statement:
    dtype, rank = shape
    taken = set(names)
    left = tuple(Index(_fresh(f"i{position}", taken), dtype="int64", where=where) for position in range(rank))
    return Statement(target, left, "=", False, Access(source, left, dtype=dtype, where=where), dtype, (), where=where)


def _accumulates(callee: Def, name: str) -> bool:
    first = next(statement for statement in callee.statements if statement.tensor == name)
    return first.operator != "=" and not first.initialise


def _fresh(wanted: str, taken: set[str]) -> str:
    """A name that is not taken, and now is."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name
