"""Forward mode: the tangent of a def is a def. Each statement of the normal form has a derivative along the tangents of the inputs."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.dataclass import dataclass
from tcjit.errors import ArgumentError
from tcjit.grammar.ast import Access, Def, Expr, Scalar
from tcjit.grammar.differentiate.activity import active_tensors, checked_names, nesting_refused, read_again
from tcjit.grammar.differentiate.body import Body, text_of
from tcjit.grammar.differentiate.normalise import Update, normalise
from tcjit.grammar.differentiate.partials import Leaf, derivatives, may_reuse, read_where
from tcjit.grammar.differentiate.rules import others, winners
from tcjit.grammar.differentiate.simplify import (
    add,
    conjunction,
    conjuncts,
    convert,
    divide,
    is_float,
    literal,
    multiply,
    where,
    wide_type,
)
from tcjit.grammar.differentiate.values import with_values


@dataclass(frozen=True)
class TangentDef:
    """The tangent of a def: ``text``, and what its parameters and returns stand for.

    ``tangents`` maps a parameter of the forward to the parameter for its tangent, ``results`` a return to the return that is its tangent.
    ``reads`` are the parameters of the forward that it takes; of ``shapes`` among them it needs the extents alone. ``initial`` maps a
    result that came in through ``out=`` to the parameter for the value it had.
    """

    text: str
    definition: Def
    tangents: Mapping[str, str]
    results: Mapping[str, str]
    reads: tuple[str, ...]
    shapes: tuple[str, ...]
    initial: Mapping[str, str]


def tangent(
    definition: Def,
    wrt: Sequence[str] | None = None,
    *,
    values: Mapping[str, int] | None = None,
    ties: str = "even",
    differentiable: bool = True,
) -> TangentDef:
    """The derivative of an inferred def along tangents of the parameters ``wrt``, all of floats by default.

    It is called ``<name>_tangent``. Its parameters are ``t_<parameter>`` for ``wrt``, then those of the forward that it reads or needs for
    extents; its returns are ``t_<return>`` for each return of floats. ``values``, ``ties`` and ``differentiable`` are those of
    ``differentiate``, and so are the errors.
    """
    names = checked_names(definition, wrt, (), ties)
    if not any(is_float(definition.tensor(name).dtype) for name in definition.returns):
        raise ArgumentError(f"`{definition.name}` has no result of floats, and so no tangent", hint="convert a result: `float32(...)`")
    with nesting_refused(definition):
        return _Forward(with_values(definition, values) if values else definition, names, ties, differentiable).run()


class _Forward:
    def __init__(self, definition: Def, wrt: Sequence[str], ties: str, differentiable: bool) -> None:
        self.form = normalise(definition)
        self.body = Body(self.form)
        self.wrt = {name: self.form.initial.get(name, name) for name in wrt}  # by the forward's name, that of the version
        self.ties, self.differentiable = ties, differentiable
        self.active = active_tensors(self.form, self.wrt.values())
        self.tangents: dict[str, str] = {}  # of every tensor and scalar so far

    def run(self) -> TangentDef:
        form, body, definition = self.form, self.body, self.form.definition
        tangents = {name: self._new(version, name, body.dtypes[version]) for name, version in self.wrt.items()}
        for update in form.updates:
            if update.target in self.active:
                self._update(update)
        results: dict[str, str] = {}
        for name in definition.returns:
            if is_float(body.dtypes[name]):
                if name not in self.tangents:
                    body.zero(self._new(name, name, body.dtypes[name]))
                results[name] = self.tangents[name]
        passed = list(form.initial.values())
        updates = body.needed(results.values(), passed)
        text, uses = text_of(f"{definition.name}_tangent", body, list(tangents.values()), passed, list(results.values()), updates)
        initial = {name: version for name, version in form.initial.items() if version in uses}
        taken = {name: used for name, used in uses.items() if name not in initial.values()}
        shapes = tuple(name for name, used in taken.items() if not used)
        return TangentDef(text, read_again(text, definition), tangents, results, tuple(taken), shapes, initial)

    def _new(self, version: str, name: str, dtype: str) -> str:
        self.tangents[version] = self.body.new(f"t_{name}", dtype, self.body.shapes[version])
        return self.tangents[version]

    def _tangent_of(self, leaf: Leaf) -> Access:
        name = self.tangents[leaf.name if isinstance(leaf, Scalar) else leaf.tensor]
        return Access(name, () if isinstance(leaf, Scalar) else leaf.subscripts, dtype=self.body.dtypes[name])

    def _read_where(self, leaf: Leaf, update: Update) -> Expr:
        """Where the tangent of a leaf is there: the terms of a derivative that is a sum have a condition each."""
        box = self.body.box(update.ranges)
        return conjunction(*(part for part in conjuncts(read_where(leaf, update.value)) if not box.implies(part)))

    def _update(self, update: Update) -> None:
        body, target = self.body, update.target
        stored = body.own(update) if update.operator == "=" and may_reuse(update.value) else None
        along = derivatives(update.value, self.active, stored)
        started = target in self.tangents
        if not started:
            dtype = body.dtypes[target]
            self._new(target, target, dtype if target in self.form.definition.returns else wide_type(dtype))
        name = self.tangents[target]
        value: Expr = literal(0, body.dtypes[name])
        for leaf, derivative in along.items():
            value = add(value, where(self._read_where(leaf, update), multiply(derivative, self._tangent_of(leaf))))
        if update.operator in ("max=", "min="):
            hit, count = winners(update, body.dtypes[name], body, self.ties)
            value = where(hit, value if count is None else divide(value, count))
        elif update.operator == "*=":
            value = multiply(others(update, body.dtypes[name], body, self.differentiable), value)
        operator = "=" if update.operator == "=" else "+=" if started else "+=!"
        if not along and operator != "=":  # its sum has no tangent, or an index that nothing uses
            if started:
                return
            operator = "="
            if update.targets:
                body.zero(name)
                return
        ranges = {i: ends for i, ends in update.ranges.items() if operator != "=" or i in update.left}
        body.add(name, update.left, operator, convert(value, body.dtypes[name]), ranges, update.targets)
