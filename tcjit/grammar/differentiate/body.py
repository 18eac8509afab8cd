"""The statements of a derivative while they are written: the forward's tensors, and new ones with their names, types and shapes."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tcjit.grammar.ast import Access, Def, Expr, Param, Scalar, Size
from tcjit.grammar.bounds_check import Isl
from tcjit.grammar.differentiate.box import Bounds, IndexBox, positive_scalars
from tcjit.grammar.differentiate.normalise import NormalForm, Update
from tcjit.grammar.differentiate.simplify import literal, reads
from tcjit.grammar.differentiate.size_hints import SizeHints
from tcjit.grammar.differentiate.write import Statements, parameter, statements, write
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import walk

Shape = tuple[Expr, ...]


class Body:
    """``updates`` are the new statements in their order."""

    def __init__(self, form: NormalForm, size_hints: SizeHints | None = None) -> None:
        self.form = form
        self.size_hints = size_hints
        self.names = form.names
        self.dtypes = {**form.dtypes, **{p.name: p.dtype for p in form.definition.params}}
        self.shapes: dict[str, Shape] = {**form.shapes, **{p.name: () for p in form.definition.params if not p.dims}}
        self.updates: list[Update] = []
        self.params: dict[str, Param] = {}
        self.positive = positive_scalars(form.definition)
        self.isl = Isl()

    def box(self, ranges: Bounds) -> IndexBox:
        """The values that indices of these ranges take together."""
        return IndexBox(ranges, self.positive, self.isl)

    def parameter(self, name: str) -> Param:
        """A tensor as a parameter."""
        if name not in self.params:
            self.params[name] = parameter(name, self.dtypes[name], self.shapes[name])
        return self.params[name]

    def new(self, name: str, dtype: str, shape: Shape) -> str:
        """A new tensor, or parameter."""
        name = self.names.tensor(name)
        self.dtypes[name], self.shapes[name] = dtype, shape
        return name

    def add(
        self,
        target: str,
        left: Sequence[str],
        operator: str,
        value: Expr,
        ranges: Mapping[str, tuple[Expr, Expr]],
        targets: Mapping[str, Expr] = MappingProxyType({}),
    ) -> None:
        """A statement that starts a tensor where ``operator`` ends in ``!``."""
        bare, initialise = operator.removesuffix("!"), operator.endswith("!")
        self.updates.append(Update(target, tuple(left), bare, initialise, value, ranges, targets=targets))

    def zero(self, name: str) -> None:
        """Fill a tensor with zeros."""
        shape = self.shapes[name]
        left = [self.names.index(f"i{position}") for position in range(len(shape))]
        self.add(name, left, "=", literal(0, self.dtypes[name]), {i: (number(0), extent) for i, extent in zip(left, shape)})

    def own(self, update: Update) -> Access:
        """The element that an update writes."""
        return Access(update.target, update.places, dtype=self.dtypes[update.target])

    def needed(self, results: Iterable[str], passed: Iterable[str]) -> list[Update]:
        """The statements, the forward's among them, that ``results`` depend on where ``passed`` come in as parameters."""
        wanted, given_in = set(results), set(passed)
        kept: list[Update] = []
        for update in reversed([*self.form.updates, *self.updates]):
            if update.target in wanted and update.target not in given_in:
                kept.append(update)
                wanted.update(tensors_read(update))
        return kept[::-1]


def tensors_read(update: Update) -> dict[str, None]:
    return {name: None for expr in (update.value, *update.exists, *update.targets.values()) for name in reads(expr)}


def text_of(
    name: str, body: Body, new: Sequence[str], passed: Sequence[str], results: Sequence[str], updates: Sequence[Update]
) -> tuple[str, dict[str, bool]]:
    """The text of a derivative, and which of the forward's tensors and scalars it takes, whether for more than their extents.

    Its parameters are ``new``, then those of the forward's parameters and of ``passed`` that ``updates`` read, or whose extents name a size
    that the text needs.
    """
    definition = body.form.definition
    read = {tensor for update in updates for tensor in tensors_read(update)}
    roots = (root for update in updates for root in (update.value, *update.targets.values()))
    needed = {node.name for root in roots for node in walk(root) if isinstance(node, Scalar)}
    taken = [p.name for p in definition.params if p.name in (read if p.dims else needed)]
    shaped: list[str] = []
    while True:
        params = [body.parameter(n) for n in new]
        params += [p for p in definition.params if p.name in taken or p.name in shaped]
        params += [body.parameter(n) for n in passed if n in read]
        lines = statements(params, updates, body.shapes)
        extents = [extent for p in params for extent in body.shapes[p.name]]
        missing = _missing(lines, extents, params, definition)
        if not missing:
            break
        shaped += missing
    uses = {**dict.fromkeys([*shaped], False), **dict.fromkeys([*taken, *(n for n in passed if n in read)], True)}
    ordered = [*(p.name for p in definition.params), *passed]
    return write(name, params, results, lines, body.dtypes, body.shapes), {n: uses[n] for n in ordered if n in uses}


def _missing(lines: Statements, extents: Sequence[Expr], params: Sequence[Param], definition: Def) -> list[str]:
    """Parameters of the forward that give the sizes and integer scalars that the statements and the extents of parameters need and no
    parameter gives."""
    known = {dim for p in params for dim in p.dims} | {p.name for p in params if not p.dims}
    wanted = {node.name: None for extent in extents for node in walk(extent) if isinstance(node, (Size, Scalar)) and node.name not in known}
    for statement in lines:
        bounds = (end for clause in statement.clauses for end in (clause.lower, clause.upper))
        for root in (statement.value, *statement.subscripts, *statement.exists, *bounds, *filter(None, statement.extents)):
            wanted.update({node.name: None for node in walk(root) if isinstance(node, (Size, Scalar)) and node.name not in known})
    found: list[str] = []
    for name in wanted:
        giver = next((p for p in definition.params if p.name == name or name in p.dims), None)
        if giver is not None and giver.name not in found:
            found.append(giver.name)
    return found
