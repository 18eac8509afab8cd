"""The program as a tree: frozen nodes, tuple children, no behaviour.

The parser builds the *surface* tree; ``check`` turns it into the *typed* one, in which every expression carries its dtype, every
name is resolved, every promotion is an explicit ``Cast``, lets are substituted and calls of earlier defs are inlined; ``infer``
adds the ranges. Dtypes are the canonical names of ``dtypes.py`` (``float32``, never ``float``).
"""
from __future__ import annotations

from dataclasses import field

from tcjit.dataclass import dataclass
from tcjit.errors import Where

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expr:
    where: Where | None = field(default=None, compare=False, repr=False, kw_only=True)
    dtype: str = field(default="", kw_only=True)


# surface only: the checker replaces these
@dataclass(frozen=True)
class Number(Expr):
    text: str


@dataclass(frozen=True)
class Name(Expr):
    name: str


@dataclass(frozen=True)
class Apply(Expr):
    """``f(a, b)``: an access or a built-in, decided by the checker."""

    name: str
    args: tuple[Expr, ...]


# surface and typed
@dataclass(frozen=True)
class Cast(Expr):
    """Conversion of ``operand`` to ``dtype``."""

    operand: Expr


@dataclass(frozen=True)
class Unary(Expr):
    op: str  # - !
    operand: Expr


@dataclass(frozen=True)
class Binary(Expr):
    """Typed: both operands have one dtype, that of the result (arithmetic) or bool as the result (comparisons, logic)."""

    op: str  # + - * / % < > <= >= == != && ||
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Select(Expr):
    """``condition ? then : other``; only the chosen arm is evaluated."""

    condition: Expr
    then: Expr
    other: Expr


# typed only
@dataclass(frozen=True)
class Const(Expr):
    value: int | float | bool


@dataclass(frozen=True)
class Index(Expr):
    name: str


@dataclass(frozen=True)
class Size(Expr):
    """A size of the parameters (``M``), or, after inlining a call, an extent that only ``infer`` knows: ``T.0`` is that of
    dimension 0 of the output or temporary ``T``, by the first statement writing ``T``; ``infer`` leaves none of these."""

    name: str


@dataclass(frozen=True)
class Scalar(Expr):
    """A scalar parameter."""

    name: str


@dataclass(frozen=True)
class Access(Expr):
    """A read of one element."""

    tensor: str
    subscripts: tuple[Expr, ...]


@dataclass(frozen=True)
class Call(Expr):
    """A built-in function, ``min`` and ``max`` included; the arguments have the dtype that the built-in computes in."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class TargetSubscript(Call):
    """Mapping only, ``target(subscript, extent)``: the subscript of the left side of ``tensor`` that reads tensors; where it is not in
    ``0:extent``, a GatherError."""

    tensor: str


# ---------------------------------------------------------------- surface statements


@dataclass(frozen=True)
class RangeClause:
    index: str
    lower: Expr
    upper: Expr
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class LetClause:
    name: str
    value: Expr
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ExistsClause:
    value: Expr
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ExtentClause:
    """``I(n) in 0:V``, of a subscript of the left side that reads a tensor."""

    subscript: Expr
    lower: Expr
    upper: Expr
    where: Where | None = field(default=None, compare=False, repr=False)


Clause = RangeClause | LetClause | ExistsClause | ExtentClause


@dataclass(frozen=True)
class Assign:
    tensor: str
    subscripts: tuple[Expr, ...]  # names, and expressions that read tensors
    operator: str  # as written: = += +=! *= *=! min= min=! max= max=!
    value: Expr
    clauses: tuple[Clause, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)

    @property
    def indices(self) -> tuple[str, ...]:
        """The subscripts that are plain indices."""
        return tuple(subscript.name for subscript in self.subscripts if isinstance(subscript, Name))


@dataclass(frozen=True)
class CallDef:
    """``A, B = f(X, Y)`` where ``f`` is an earlier def."""

    targets: tuple[str, ...]
    name: str
    args: tuple[Expr, ...]
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Param:
    """``float(M, 4) A``; ``dims`` is empty for a rank-0 parameter, a scalar.

    An extent that is an expression stands in ``dims`` as its text, which is no identifier, and in ``extents``, which have None elsewhere;
    of a checked def it is in the shape of the tensor instead.
    """

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    where: Where | None = field(default=None, compare=False, repr=False)
    extents: tuple[Expr | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Return:
    name: str
    dtype: str | None = None
    dims: tuple[str | int, ...] | None = None
    where: Where | None = field(default=None, compare=False, repr=False)
    extents: tuple[Expr | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class SurfaceDef:
    name: str
    params: tuple[Param, ...]
    returns: tuple[Return, ...]
    body: tuple[Assign | CallDef, ...]
    where: Where | None = field(default=None, compare=False, repr=False)


# ---------------------------------------------------------------- typed statements


@dataclass(frozen=True)
class Range:
    """``lower <= index < upper``, both over sizes and specialised scalars (never over other indices)."""

    index: str
    lower: Expr
    upper: Expr


@dataclass(frozen=True)
class Statement:
    """One assignment. ``domain`` lists the left indices in their order, then the reduction indices by first appearance.

    The subscripts of the left side are indices, each once, and *targets*: expressions that read tensors. The other indices of a target are
    reduction indices.
    """

    tensor: str
    subscripts: tuple[Expr, ...]
    operator: str  # = += *= min= max=
    initialise: bool  # the ! of the source: fill the statement's own range with the identity first
    value: Expr  # of the tensor's dtype, except under `accumulate`
    accumulate: str  # dtype in which the reduction is carried out; the tensor's own where there is none
    reduction: tuple[str, ...]  # reduction indices
    clauses: tuple[RangeClause, ...] = ()  # the user's ranges, lets substituted
    exists: tuple[Expr, ...] = ()
    domain: tuple[Range, ...] = ()  # filled by infer
    extents: tuple[Expr | None, ...] = ()  # of targets, where the text gives them; of no dimension where there is no target
    where: Where | None = field(default=None, compare=False, repr=False)

    @property
    def targets(self) -> tuple[int, ...]:
        """The positions of the subscripts that read tensors."""
        return tuple(position for position, subscript in enumerate(self.subscripts) if not isinstance(subscript, Index))


@dataclass(frozen=True)
class Tensor:
    """``role`` is input, output or temporary; ``shape`` holds expressions over sizes, known for inputs from the start."""

    name: str
    dtype: str
    rank: int
    role: str
    shape: tuple[Expr, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Agreement:
    """Two extents that must be equal: those that one size of an inlined def stands for, or a result's own and its annotation's.

    ``what`` says it for a message: ``the size K of `matmul` (arguments A and B)``.
    """

    left: Expr
    right: Expr
    what: str
    where: Where | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Def:
    """A checked def; after ``infer`` its statements have domains and all its tensors shapes."""

    name: str
    params: tuple[Param, ...]
    returns: tuple[str, ...]
    sizes: tuple[str, ...]  # by first appearance in the parameters
    specialised: tuple[str, ...]  # sizes and scalars whose value must be known before isl sees the program
    tensors: tuple[Tensor, ...]  # inputs, outputs in the order of the returns, temporaries by first write
    statements: tuple[Statement, ...]
    agreements: tuple[Agreement, ...] = ()  # for infer to decide, or specialise where they depend on sizes

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)


@dataclass(frozen=True)
class Dynamic:
    """A size that only the call knows, ``least <= size <= greatest``; in expressions it goes by ``name``, which is free elsewhere."""

    size: str
    name: str
    least: int
    greatest: int


@dataclass(frozen=True)
class Program:
    """A def for one set of sizes: extents and ranges are numbers, every access is proved inside its tensor.

    With ``dynamic`` sizes it stands for many, those of which ``context`` holds: the numbers are the greatest extents and the widest
    ranges, and where one depends on a dynamic size, ``extents`` and ``ranges`` have the expression, None elsewhere.
    """

    definition: Def
    sizes: tuple[tuple[str, int], ...]  # every size but the dynamic ones
    scalars: tuple[tuple[str, int], ...]  # the specialised scalars
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of every tensor
    domains: tuple[tuple[tuple[int, int], ...], ...]  # per statement, per Range of its domain: lower, upper (upper >= lower)
    dynamic: tuple[Dynamic, ...] = ()
    extents: tuple[tuple[str, tuple[Expr | None, ...]], ...] = ()  # of every tensor
    ranges: tuple[tuple[tuple[Expr, Expr] | None, ...], ...] = ()  # per statement, per Range of its domain
    context: tuple[str, ...] = ()  # of the dynamic sizes, in isl's words
    total: bool = True  # whether every value between the limits of the dynamic sizes gives a legal program

    @property
    def parameters(self) -> str:
        """What stands before the braces of isl's texts: nothing without dynamic sizes."""
        return f"[{', '.join(d.name for d in self.dynamic)}] -> " if self.dynamic else ""

    def shape(self, tensor: str) -> tuple[int, ...]:
        return dict(self.shapes)[tensor]

    @property
    def values(self) -> dict[str, int]:
        """The numbers of sizes and specialised scalars."""
        return {**dict(self.sizes), **dict(self.scalars)}

    def value(self, name: str) -> int:
        """The value of a size or specialised scalar."""
        return self.values[name]
