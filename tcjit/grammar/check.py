"""From the surface tree to the typed one: every rule of the language that needs no ranges."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.errors import CheckError, Where
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Apply,
    Assign,
    CallDef,
    Const,
    Def,
    ExistsClause,
    Expr,
    Index,
    LetClause,
    Name,
    RangeClause,
    Return,
    Size,
    Statement,
    SurfaceDef,
    Tensor,
)
from tcjit.grammar.bounds import bounds
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.dtypes import DTYPES, converted, promote
from tcjit.grammar.expressions import DEFAULTS, NameScope, Symbol, Typed, Typer, alone, cast, counted, rank, resolve
from tcjit.grammar.extents import dims, sizes, typed
from tcjit.grammar.inline import inline
from tcjit.grammar.printer import extent as shown
from tcjit.grammar.printer import show, subscript
from tcjit.grammar.specialised import specialised
from tcjit.grammar.targets import left_subscript, target_extents
from tcjit.grammar.walk import MAX_NODES, excess, measure, operands, walk

RECURRENCE = (
    "recurrences are not in the language: call a def for each step from a loop in Python, or write the closed form as a sum,"
    " `H(t) +=! (s <= t) ? pow(a, t - s) * X(s) : 0.0 where t in 0:N`"
)
MAX_ARGUMENTS = 63  # parameters, and results that come in through `out=`; PyTorch's limit is 64, with our flag `unchecked`
MAX_STATEMENTS = 1_000  # of one def with its calls inlined; no scheduler takes as many


def check(defs: Sequence[SurfaceDef]) -> tuple[Def, ...]:
    """The typed defs; a def may call the ones before it. Raises ``CheckError`` where a program has no meaning."""
    known: dict[str, Def] = {}
    for surface in defs:
        if surface.name in known:
            raise CheckError(f"a second def named `{surface.name}`", where=surface.where, hint="rename one of them")
        try:
            known[surface.name] = _Checker(surface, known).check()
        except RecursionError:
            raise CheckError(
                f"an expression of `{surface.name}` nests too deeply", where=surface.where, hint="split it over several statements"
            ) from None
    return tuple(known.values())


def accumulating(definition: Def) -> tuple[str, ...]:
    """The returns whose first statement accumulates without ``!``: a call must pass them in through ``out=``."""
    first: dict[str, Statement] = {}
    for statement in definition.statements:
        first.setdefault(statement.tensor, statement)
    return tuple(name for name in definition.returns if first[name].operator != "=" and not first[name].initialise)


@dataclass(frozen=True)
class _UntypedStatement:
    """A statement whose literals may still take the type of its tensor."""

    statement: Statement
    value: Typed


class _Checker:
    def __init__(self, surface: SurfaceDef, earlier: dict[str, Def]) -> None:
        self.surface = surface
        self.earlier = earlier
        self.scope = NameScope(own=surface.name, defs=tuple(earlier))
        self.drafts: list[_UntypedStatement] = []
        self.agreements: list[Agreement] = []
        self.shapes: dict[str, tuple[Expr, ...]] = {}  # of parameters
        self.nodes = 0
        self.locals = _locals(surface)

    def check(self) -> Def:
        surface = self.surface
        self._params()
        self._returns()
        for statement in surface.body:
            if isinstance(statement, CallDef):
                self._call(statement)
            else:
                self._assign(statement)
            if len(self.drafts) > MAX_STATEMENTS or self.nodes > MAX_NODES:
                what = f"`{surface.name}` is too large once its lets and calls are written out"
                raise CheckError(what, where=statement.where, hint="keep intermediate results in tensors, and use fewer calls")
        for ret in surface.returns:
            if ret.name not in self.scope.tensors:
                raise CheckError(f"no statement writes the result `{ret.name}`", where=ret.where, hint=f"`{ret.name}(...) = ...`")
            self._annotation(ret)
        statements = tuple(self._finish(draft) for draft in self.drafts)
        tensors = self._tensors()
        self._refuse_many(statements)
        return Def(
            surface.name,
            tuple(replace(param, dims=dims(self.shapes[param.name]), extents=()) for param in surface.params),
            tuple(ret.name for ret in surface.returns),
            tuple(self.scope.sizes),
            specialised(surface.params, statements, tensors),
            tensors,
            statements,
            tuple(self.agreements),
        )

    # ------------------------------------------------------------ names

    def _params(self) -> None:
        scope = self.scope
        scope.sizes.update(sizes(self.surface.params))
        for param in self.surface.params:
            if scope.kind(param.name):
                what = "a size too" if param.name in scope.sizes else "there already"
                raise CheckError(f"a second meaning for `{param.name}`: it is {what}", where=param.where, hint="rename one of them")
            if param.dims:
                self._tensor_name(param.name, param.where)
                symbol = Symbol(param.name, len(param.dims), "input", param.dtype, annotated=True, where=param.where)
                scope.tensors[param.name] = symbol
            else:
                scope.scalars[param.name] = param.dtype
        for param in self.surface.params:
            shape = self.shapes[param.name] = typed(param, scope)
            known = (dim if isinstance(dim, int) or dim in scope.sizes else f"{param.name}.{n}" for n, dim in enumerate(dims(shape)))
            named = tuple(known)
            if param.dims:
                scope.tensors[param.name].dims = named
            for position, (dim, extent) in enumerate(zip(named, shape)):
                if "." in str(dim):
                    what = f"dimension {position} of `{param.name}`, whose extent is {shown(extent)}"
                    self.agreements.append(Agreement(Size(str(dim), dtype="int64"), extent, what, param.where))

    def _returns(self) -> None:
        scope = self.scope
        for ret in self.surface.returns:
            if ret.name in scope.tensors or ret.name in scope.scalars:
                what = f"the result `{ret.name}` is a parameter, and parameters are never written"
                raise CheckError(what, where=ret.where, hint=f"write a new tensor, and list that after `->`: `{ret.name}_out`")
            if ret.name in scope.sizes:
                raise CheckError(f"the result `{ret.name}` is named like a size", where=ret.where, hint="rename one of them")
            if ret.name in scope.written:
                raise CheckError(f"`{ret.name}` is listed twice", where=ret.where, hint="list each result once")
            self._tensor_name(ret.name, ret.where)
            scope.written[ret.name] = None
            for dim in ret.dims or ():
                if isinstance(dim, str) and dim.isidentifier() and dim not in scope.sizes and dim not in scope.scalars:
                    raise CheckError(
                        f"the size `{dim}` stands only in the type of a result",
                        where=ret.where,
                        hint="every size comes from a parameter; the extents of a result are inferred: leave the type out",
                    )
        for statement in self.surface.body:
            for name in statement.targets if isinstance(statement, CallDef) else (statement.tensor,):
                if name in scope.tensors or name in scope.scalars:
                    what = f"`{name}` is a parameter, and parameters are never written"
                    raise CheckError(what, where=statement.where, hint="write a tensor of another name")
                if name in scope.sizes:
                    raise CheckError(f"`{name}` is a size, and cannot be written", where=statement.where, hint="rename the tensor")
                self._tensor_name(name, statement.where)
                scope.written[name] = None

    def _tensor_name(self, name: str, where: Where | None) -> None:
        if name in BUILTINS:
            raise CheckError(f"a tensor cannot be named like the built-in `{name}`", where=where, hint=f"`{name}_` or `{name.upper()}`")

    def _local(self, what: str, name: str, where: Where | None) -> None:
        """Refuse an index or let whose name means something already."""
        if kind := self.scope.kind(name):
            raise CheckError(f"{what} `{name}` is named like {kind}", where=where, hint=f"rename the {what.split()[-1]}")

    # ------------------------------------------------------------ assignments

    def _assign(self, source: Assign) -> None:
        for position, index in enumerate(source.subscripts):
            if isinstance(index, Name):
                self._local("the index", index.name, index.where)
                if index in source.subscripts[:position]:
                    raise CheckError(
                        f"the index `{index.name}` stands twice on the left",
                        where=index.where,
                        hint=f"a diagonal: `{source.tensor}(i, j) = i == j ? ... : 0`",
                    )
        self._refuse_recurrence(source)
        lets = [clause.name for clause in source.clauses if isinstance(clause, LetClause)]
        typer = Typer(self.scope, lets)
        self._lets(source, typer)
        subscripts = tuple(left_subscript(typer, source.tensor, place) for place in source.subscripts)
        value = typer.typed(source.value)
        exists = [alone(typer.typed(clause.value)) for clause in source.clauses if isinstance(clause, ExistsClause)]
        # an unused let computes nothing, and its accesses take part in range inference
        exists += [alone(typer.typed(let)) for name, let in typer.lets.items() if name not in typer.used]
        targets = [place for place in subscripts if not isinstance(place, Index)]
        roots = (*targets, value.expr, *exists)
        used = dict.fromkeys(node.name for root in roots for node in self._nodes(root, source) if isinstance(node, Index))
        reduction = tuple(name for name in used if name not in source.indices)
        clauses = self._ranges(source, typer, {*source.indices, *used})
        operator, initialise = source.operator.removesuffix("!"), source.operator.endswith("!")
        if targets and operator == "=":
            raise CheckError(
                f"`=` stores one value, and several may go to the element `{subscript(targets[0])}` of `{source.tensor}`",
                where=targets[0].where,
                hint="`+=!` adds what goes to one element (also `*=!`, `min=!`, `max=!`)",
            )
        if reduction and operator == "=":
            names, one = ", ".join(f"`{name}`" for name in reduction), len(reduction) == 1
            near = [n for n in (*self.scope.sizes, *self.scope.scalars, *typer.lets) if n.lower() in map(str.lower, reduction)]
            meant = f"; or is `{near[0]}` meant?" if near else ""
            raise CheckError(
                f"{names} {'is an index' if one else 'are indices'} not on the left, and `=` does not reduce",
                where=source.where,
                hint=f"`+=!` sums over {'it' if one else 'them'} (also `*=!`, `min=!`, `max=!`){meant}",
            )
        if operator != "=" and not initialise:
            self._accumulates(source.tensor, operator, source.where)
        for root in (*targets, value.expr):
            self._own_reads(source, root, initialise or bool(targets), reduction)
        given = target_extents(typer, source, {*source.indices, *used})
        extents = tuple(self._extent(source, position, given.get(position)) for position in range(len(subscripts))) if targets else ()
        self._define(source.tensor, len(subscripts), value, source.where)
        statement = Statement(
            source.tensor,
            subscripts,
            operator,
            initialise,
            value.expr,
            "",
            reduction,
            clauses,
            tuple(exists),
            extents=extents,
            where=source.where,
        )
        self.drafts.append(_UntypedStatement(statement, value))

    def _lets(self, source: Assign, typer: Typer) -> None:
        for clause in source.clauses:
            if isinstance(clause, LetClause):
                self._local("the let", clause.name, clause.where)
                if clause.name in source.indices:
                    raise CheckError(f"the let `{clause.name}` is named like an index", where=clause.where, hint="rename the let")
                if clause.name in typer.lets:
                    raise CheckError(f"a second let `{clause.name}`", where=clause.where, hint="rename one of them")
                self._nodes(typer.let(clause.name, clause.value).expr, source)
        bounds = (end for clause in source.clauses if isinstance(clause, RangeClause) for end in (clause.lower, clause.upper))
        typer.used.update(node.name for end in bounds for node in walk(end) if isinstance(node, Name))

    def _nodes(self, root: Expr, source: Assign) -> Sequence[Expr]:
        """All nodes of an expression, once it is known to be of a size that can be walked."""
        size = measure((root,))
        if much := excess(size):
            raise CheckError(
                f"with its lets written out, an expression {much}", where=source.where, hint="keep intermediate results in tensors"
            )
        self.nodes += size.nodes
        return list(walk(root))

    def _ranges(self, source: Assign, typer: Typer, used: set[str]) -> tuple[RangeClause, ...]:
        clauses = []
        for clause in source.clauses:
            if not isinstance(clause, RangeClause):
                continue
            if kind := self.scope.kind(clause.index) or ("a let" if clause.index in typer.lets else ""):
                raise CheckError(f"`{clause.index}` is {kind}, and has no range", where=clause.where, hint="rename the index")
            if clause.index not in used:
                raise CheckError(
                    f"no expression uses `{clause.index}`, which has a range", where=clause.where, hint="drop the range, or use the index"
                )
            clauses.append(bounds(typer, clause, used, source.operator.removesuffix("!")))
        return tuple(clauses)

    # ------------------------------------------------------------ the tensor a statement writes

    def _extent(self, source: Assign, position: int, given: Expr | None) -> Expr | None:
        """The extent of a dimension that a target writes: of its clause, or of the result's type where nothing else gives it."""
        place, tensor = source.subscripts[position], source.tensor
        if isinstance(place, Name):
            return None
        if tensor in self.scope.tensors:
            if given is not None:
                what = f"the range of `{show(place)}` and the extent of dimension {position} of `{tensor}`"
                self.agreements.append(Agreement(Size(f"{tensor}.{position}", dtype="int64"), given, what, place.where))
            return given
        shape = next((typed(ret, self.scope) for ret in self.surface.returns if ret.name == tensor), ())
        if given is None and position >= len(shape):
            raise CheckError(
                f"nothing gives dimension {position} of `{tensor}` an extent: `{show(place)}` is known only when the kernel runs",
                where=place.where,
                hint=f"`where {show(place)} in 0:N`, or the type of the result: `-> (float(...) {tensor})`",
            )
        return shape[position] if given is None else given

    def _accumulates(self, tensor: str, operator: str, where: Where | None) -> None:
        """Refuse ``op=`` into nothing; a result may come in through ``out=``."""
        if tensor not in self.scope.tensors and all(ret.name != tensor for ret in self.surface.returns):
            what = f"`{operator}` accumulates into `{tensor}`, which nothing has defined"
            raise CheckError(what, where=where, hint=f"`{operator}!` starts from the identity")

    def _refuse_recurrence(self, source: Assign) -> None:
        """Refuse a first statement of a tensor that reads that tensor."""
        roots = [source.value, *(clause.value for clause in source.clauses if isinstance(clause, LetClause))]
        roots += source.subscripts
        element = source.subscripts
        own = (node for root in roots for node in walk(root) if isinstance(node, Apply) and node.name == source.tensor)
        if source.tensor not in self.scope.tensors and (read := next((node for node in own if node.args != element), None)):
            what = f"`{source.tensor}` is computed from its own elements, before any has a value"
            raise CheckError(what, where=read.where, hint=RECURRENCE)

    def _own_reads(self, source: Assign, value: Expr, initialise: bool, reduction: tuple[str, ...]) -> None:
        left = tuple(Index(name, dtype="int64") for name in source.indices)
        for node in walk(value):
            if not isinstance(node, Access) or node.tensor != source.tensor:
                continue
            if reduction or initialise:
                raise CheckError(
                    f"a reduction into `{source.tensor}` reads `{source.tensor}` itself",
                    where=node.where,
                    hint="reduce into a tensor of its own, then combine the two in another statement",
                )
            if node.subscripts != left:
                raise CheckError(
                    "a statement may read the tensor it writes only at the element it writes,"
                    f" `{source.tensor}({', '.join(source.indices)})`",
                    where=node.where,
                    hint=f"for the values before this statement, write to a tensor of another name; {RECURRENCE}",
                )

    def _define(self, name: str, rank_: int, value: Typed, where: Where | None) -> None:
        """Note that ``name`` is written with ``rank_`` indices and ``value``; its type is set or agrees."""
        symbol = self.scope.tensors.get(name)
        if symbol is None:
            ret = next((ret for ret in self.surface.returns if ret.name == name), None)
            role = "output" if ret else "temporary"
            symbol = self.scope.tensors[name] = Symbol(name, rank_, role, (ret and ret.dtype) or "", where=where)
            symbol.annotated = bool(ret and ret.dtype)
            if ret and ret.dims is not None and len(ret.dims) != rank_:
                raise CheckError(
                    f"`{name}` has {counted(rank_, 'index')} here and {counted(len(ret.dims), 'extent')} in its type",
                    where=where,
                    hint=f"`-> ({name})` leaves the type to inference",
                )
        if symbol.rank != rank_:
            raise CheckError(
                f"`{name}` has {counted(symbol.rank, 'dimension')} ({symbol.where}), and is written with {counted(rank_, 'index')}",
                where=where,
                hint="all statements writing one tensor agree on its dimensions; use another name",
            )
        if symbol.annotated:
            return
        if value.weak:
            if not symbol.dtype:
                symbol.weak = max(symbol.weak or value.weak, value.weak, key=lambda kind: rank(DEFAULTS[kind]))
                return
            dtype, fits = DEFAULTS[value.weak], rank(DEFAULTS[value.weak]) <= rank(symbol.dtype)
        else:
            dtype = value.expr.dtype
            fits = symbol.dtype == dtype if symbol.dtype else not symbol.weak or rank(DEFAULTS[symbol.weak]) <= rank(dtype)
            symbol.dtype = symbol.dtype or (dtype if fits else DEFAULTS[symbol.weak])
        if not fits:
            both = promote(symbol.dtype, dtype) or symbol.dtype
            raise CheckError(
                f"`{name}` is {symbol.dtype} ({symbol.where}), and this value is {dtype}",
                where=where,
                hint=f"convert it, `{symbol.dtype}(...)`, or give the result its type: `-> ({both}(...) {name})`",
            )

    # ------------------------------------------------------------ calls

    def _call(self, call: CallDef) -> None:
        inlined = inline(call, self.scope, self.earlier, {*self.scope.sizes, *self.scope.scalars, *self.scope.written, *self.locals})
        for name, (dtype, rank_) in inlined.results.items():
            symbol = self.scope.tensors.get(name)
            annotated = next((ret.dtype for ret in self.surface.returns if ret.name == name and ret.dtype), None)
            if annotated and annotated != dtype:
                what = f"`{call.name}` returns {dtype}, and `{name}` is {annotated}"
                raise CheckError(what, where=call.where, hint="take the result in a tensor of its own, and convert that")
            first = next(s for s in inlined.statements if s.tensor == name)
            if symbol is None and first.operator != "=" and not first.initialise:
                self._accumulates(name, first.operator, call.where)
            self._define(name, rank_, Typed(Const(0, dtype=dtype)), call.where)
        for name, (dtype, rank_) in inlined.temporaries.items():
            self.scope.tensors[name] = Symbol(name, rank_, "temporary", dtype, annotated=True, where=call.where)
            self.scope.written[name] = None
        self.agreements += inlined.agreements
        for statement in inlined.statements:
            self.locals.update(node.name for node in statement.subscripts if isinstance(node, Index))
            self.locals.update(statement.reduction)
            self.nodes += measure((statement.value, *statement.exists)).nodes
            self.drafts.append(_UntypedStatement(statement, Typed(statement.value)))

    # ------------------------------------------------------------ the end of a def

    def _finish(self, draft: _UntypedStatement) -> Statement:
        """The statement with its literals resolved and its value converted to the dtype of its tensor, or to the wider one of its sum."""
        statement, value = draft.statement, draft.value
        dtype = self.scope.tensors[statement.tensor].settle()
        accumulate = accumulator(statement.operator, dtype) if statement.reduction else dtype
        if value.weak and rank(DEFAULTS[value.weak]) > rank(dtype):  # `O = 0.5` for an `int32 O`
            expr = value.expr
            converted_ = Const(converted(expr.value, dtype), dtype=dtype, where=expr.where) if isinstance(expr, Const) else None
            final = converted_ or cast(alone(value), dtype)
        else:
            is_wide = rank(accumulate) == 2 and not value.weak and value.expr.dtype != dtype
            final = resolve(value, accumulate if is_wide else dtype)
        return replace(statement, value=final, accumulate=accumulate)

    def _refuse_many(self, statements: Sequence[Statement]) -> None:
        """Raises CheckError for more arguments than an operator of PyTorch takes: those of the def, accumulated results, ``unchecked``."""
        params, surface = len(self.surface.params), self.surface
        passed = sum(s.operator != "=" and not s.initialise for s in {s.tensor: s for s in reversed(statements)}.values())
        if params + passed > MAX_ARGUMENTS:
            what = f"`{surface.name}` takes {params + passed} arguments, and an operator of PyTorch at most {MAX_ARGUMENTS}"
            raise CheckError(what, where=surface.where, hint="stack tensors of one shape into one, or use several defs")

    def _annotation(self, ret: Return) -> None:
        for position, extent in enumerate(typed(ret, self.scope)):
            own = Size(f"{ret.name}.{position}", dtype="int64", where=ret.where)
            what = f"the extent {shown(extent)} of dimension {position} in the type of the result {ret.name}"
            self.agreements.append(Agreement(own, extent, what, ret.where))

    def _tensors(self) -> tuple[Tensor, ...]:
        inputs = tuple(
            Tensor(p.name, p.dtype, len(p.dims), "input", self.shapes[p.name], p.where)
            for p in self.surface.params
            if p.dims
        )
        returns = [ret.name for ret in self.surface.returns]
        symbols = self.scope.tensors
        temporaries = [name for name in dict.fromkeys(d.statement.tensor for d in self.drafts) if name not in returns]
        rest = (symbols[name] for name in (*returns, *temporaries))
        return (*inputs, *(Tensor(s.name, s.settle(), s.rank, s.role, (), s.where) for s in rest))


def _locals(surface: SurfaceDef) -> set[str]:
    """Every name in the def and every built-in: what a temporary of an inlined call must not be named."""
    names = {*BUILTINS, *(param.name for param in surface.params)}
    for statement in surface.body:
        if isinstance(statement, Assign):
            roots = [*statement.subscripts, statement.value]
            for clause in statement.clauses:
                roots += operands(clause)
                if isinstance(clause, LetClause):
                    names.add(clause.name)
            names.update(node.name for root in roots for node in walk(root) if isinstance(node, (Name, Apply)))
    return names


def accumulator(operator: str, dtype: str) -> str:
    """The dtype in which a reduction is carried out: float32 for sums and products of half types, at least int32 for sums of integers.

    >>> accumulator("+=", "float16"), accumulator("+=", "bool"), accumulator("+=", "uint64"), accumulator("max=", "int8")
    ('float32', 'int32', 'uint64', 'int8')
    """
    d = DTYPES[dtype]
    if operator in ("+=", "*=") and d.kind == "float" and d.bits == 16:
        return "float32"
    return "int32" if operator == "+=" and d.kind != "float" and d.bits < 32 else dtype
