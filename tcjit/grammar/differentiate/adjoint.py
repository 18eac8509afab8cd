"""Reverse mode: the adjoint of a def is a def. ``differentiate`` gives its text, in which every sum gathers and nothing scatters.

The statements of the normal form are visited from the last to the first. When one is reached, all reads of its target have been: the
contributions of those reads are summed into the target's cotangent, and the statement contributes to what it reads. The forward's own
statements that the result reads stand before, except for results, which come in as parameters.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Def, Expr, Index, Scalar, Select
from tcjit.grammar.differentiate.activity import active_tensors, checked_names, nesting_refused, read_again
from tcjit.grammar.differentiate.body import Body, tensors_read, text_of
from tcjit.grammar.differentiate.box import IndexBox
from tcjit.grammar.differentiate.contribute import Contribution, by_cases, contribution, materialise, plain_read
from tcjit.grammar.differentiate.dead_terms import without_dead_terms
from tcjit.grammar.differentiate.invert import dimension_name
from tcjit.grammar.differentiate.normalise import Update, normalise
from tcjit.grammar.differentiate.rules import terms
from tcjit.grammar.differentiate.shifts import shifts
from tcjit.grammar.differentiate.simplify import index, is_float, reads, wide_type
from tcjit.grammar.differentiate.size_hints import SizeHints
from tcjit.grammar.differentiate.values import with_values
from tcjit.grammar.walk import walk, with_indices

TIES = ("even", "first")
MOST_CASES = 32  # of one read, each of which is a sum: those of a border in three dimensions are 27


@dataclass(frozen=True)
class AdjointDef:
    """The adjoint of a def: ``text``, and what its parameters and returns stand for.

    ``cotangents`` maps a return of the forward to the parameter that holds its cotangent, ``gradients`` a parameter of the forward to the
    return that is its gradient. ``reads`` are the parameters, returns and saved temporaries of the forward that it takes, by their own
    names; of ``shapes`` among them it needs the extents alone. ``initial`` maps a result that came in through ``out=`` to the parameter
    for the value it had.
    """

    text: str
    definition: Def
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    reads: tuple[str, ...]
    shapes: tuple[str, ...]
    initial: Mapping[str, str]


def differentiate(
    definition: Def,
    wrt: Sequence[str] | None = None,
    *,
    values: Mapping[str, int] | None = None,
    saved: Collection[str] = (),
    ties: str = "even",
    differentiable: bool = True,
    size_hints: SizeHints | None = None,
) -> AdjointDef:
    """The adjoint of an inferred def by the parameters ``wrt``, all of floats by default.

    It is called ``<name>_backward``. Its parameters are ``d_<return>`` for each float return that depends on ``wrt``, then those of the
    forward's parameters and returns that it reads or needs for extents, under their own names; its returns are ``d_<parameter>`` in the
    order of the forward. A name that is taken gets underscores behind it.

    ``values`` are sizes and integer scalars whose numbers are written out. Without them the text holds for every size, and for integer
    scalars that are at least 1 where they are a factor or divisor in index arithmetic. ``saved`` are temporaries that come in as
    parameters instead of being computed again. ``ties`` shares the cotangent of a ``max`` or ``min`` evenly among equal elements, or gives
    all to the ``first``. ``differentiable=False`` allows products a form that takes linear time, but whose own derivative is wrong where a
    factor is 0. Of sums that are equal, ``size_hints`` choose those over the indices with the fewest values; they get the guards of these
    choices.

    Raises ArgumentError for names that are none of the def's, CheckError for a function without a derivative.
    """
    names = checked_names(definition, wrt, saved, ties)
    with nesting_refused(definition):
        numbered = with_values(definition, values) if values else definition
        return _Reverse(numbered, names, saved, ties, differentiable, size_hints).run()


class _Reverse:
    def __init__(
        self, definition: Def, wrt: Sequence[str], saved: Collection[str], ties: str, differentiable: bool, size_hints: SizeHints | None
    ) -> None:
        self.form = without_dead_terms(normalise(definition))
        self.wrt = {name: self.form.initial.get(name, name) for name in wrt}  # by the forward's name, that of the version
        self.body = Body(self.form, size_hints)
        self.saved, self.ties, self.differentiable = saved, ties, differentiable
        self.contributions: dict[str, list[Contribution]] = {}
        self.cotangents: dict[str, str] = {}  # of each return, the parameter

    def run(self) -> AdjointDef:
        form, body, definition = self.form, self.body, self.form.definition
        self.active = active_tensors(form, self.wrt.values())
        cancelled = shifts(form, self.active)
        if cancelled:
            self.active = active_tensors(form, self.wrt.values(), cancelled)
        self._seed()
        gradients: dict[str, str] = {}
        results = {version: body.new(f"d_{name}", body.dtypes[version], body.shapes[version]) for name, version in self.wrt.items()}
        known: dict[str, str] = {}
        for update in reversed(form.updates):
            if update.target in self.active:
                if update.target not in known:
                    known[update.target] = self._cotangent(update.target)
                if name := known[update.target]:
                    self._reverse(update, Access(name, update.places, dtype=body.dtypes[name]), self._nonzero(update))
        for name, version in self.wrt.items():
            gradients[name] = results[version]
            self._gradient(version, results[version])
        passed = [*form.initial.values(), *(r for r in (*definition.returns, *self._saved()) if self._is_available(r))]
        updates = body.needed(gradients.values(), passed)
        read_there = {name for update in updates for name in tensors_read(update)}
        cotangents = {name: seed for name, seed in self.cotangents.items() if seed in read_there}
        text, uses = text_of(f"{definition.name}_backward", body, list(cotangents.values()), passed, list(gradients.values()), updates)
        initial = {name: version for name, version in form.initial.items() if version in uses}
        taken = {name: used for name, used in uses.items() if name not in initial.values()}
        shapes = tuple(name for name, used in taken.items() if not used)
        return AdjointDef(text, read_again(text, definition), cotangents, gradients, tuple(taken), shapes, initial)

    # ------------------------------------------------------------ what depends on what

    def _saved(self) -> list[str]:
        return [t.name for t in self.form.definition.tensors if t.name in self.saved]

    def _is_available(self, name: str) -> bool:
        """Whether a result or saved tensor may come in as it was stored.

        Not an extreme that is compared with what is computed here again: that need not round alike. Nor a running one: of what is given
        nobody knows that it does not decrease, which sums over ties are scans by. Nor an integer without dimensions: as a scalar parameter
        in a subscript it would be part of the code.
        """
        if not self.body.shapes[name] and not is_float(self.body.dtypes[name]):
            return False
        if name not in self._compared():
            return True
        if any(u.target == name and u.operator in ("max=", "min=") and _is_running(u) for u in self.form.updates):
            return False
        passed = (*self.form.definition.returns, *self.saved)
        extremes = [u for u in self.form.updates if u.target == name and u.operator in ("max=", "min=")]
        sources = (source for update in extremes for source in tensors_read(update) if source not in self.form.inputs)
        return all(source in passed and self._is_available(source) for source in sources)

    def _compared(self) -> set[str]:
        """The tensors of floats that a statement asks equal to something."""
        nodes = (node for update in (*self.form.updates, *self.body.updates) for node in walk(update.value))
        equalities = (node for node in nodes if isinstance(node, Binary) and node.op in ("==", "!=") and is_float(node.left.dtype))
        return {name for node in equalities for name in reads(node)}

    # ------------------------------------------------------------ cotangents

    def _seed(self) -> None:
        body, definition = self.body, self.form.definition
        for name in definition.returns:
            if name in self.active:
                seed = self.cotangents[name] = body.new(f"d_{name}", body.dtypes[name], body.shapes[name])
                places = tuple(index(dimension_name(j)) for j in range(len(body.shapes[name])))
                self.contributions[name] = [Contribution(Access(seed, places, dtype=body.dtypes[name]))]

    def _cotangent(self, tensor: str) -> str:
        """The cotangent of a tensor; empty where no result depends on that."""
        parts = self.contributions.get(tensor)
        if not parts:
            return ""
        plain = plain_read(parts, len(self.body.shapes[tensor]))
        if plain is not None:
            return plain.tensor
        wanted = f"d_all_{tensor}" if tensor in self.cotangents else f"d_{tensor}"
        name = self.body.new(wanted, wide_type(self.body.dtypes[tensor]), self.body.shapes[tensor])
        materialise(name, parts, self.body)
        return name

    def _nonzero(self, update: Update) -> tuple[Expr, ...]:
        """Where the cotangent of what an update stores can be other than 0: not in parts that are overwritten before any read.

        What a derivative has there is no part of the gradient, and 0 times it need not be 0.
        """
        parts = self.contributions[update.target]
        if len(parts) > 1 or any(map(reads, update.places)):
            return ()
        places = {dimension_name(j): place for j, place in enumerate(update.places)}
        guards = (guard for guard in parts[0].guards if not reads(guard))
        own = (guard for guard in guards if all(node.name in places for node in walk(guard) if isinstance(node, Index)))
        return tuple(with_indices(guard, places) for guard in own)

    def _reverse(self, update: Update, gradient: Access, nonzero: Sequence[Expr]) -> None:
        for leaf, term, conditions, over in terms(update, gradient, self.active, self.body, self.ties, self.differentiable):
            name = leaf.name if isinstance(leaf, Scalar) else leaf.tensor
            cases = list(by_cases(leaf, IndexBox(over.ranges, self.body.positive, self.body.isl)))
            for read, decided in cases if len(cases) <= MOST_CASES else [(leaf, ())]:
                made = contribution(read, term, over, (*conditions, *nonzero, *decided), self.body)
                self.contributions.setdefault(name, []).append(made)

    def _gradient(self, version: str, result: str) -> None:
        parts = self.contributions.get(version)
        if parts:
            materialise(result, parts, self.body)
        else:
            self.body.zero(result)


def _is_running(update: Update) -> bool:
    """Whether a reduction is over the elements up to each result, or from there on."""
    if not isinstance(update.value, Select) or len(update.reduction) != 1:
        return False
    test, over = update.value.condition, update.reduction[0]
    if not isinstance(test, Binary) or test.op not in ("<=", ">="):
        return False
    places = {node.name for node in (test.left, test.right) if isinstance(node, Index)} - {over}
    return over in _indices(test) and len(places) == 1 and places.isdisjoint(_indices(update.value.then))


def _indices(value: Expr) -> set[str]:
    return {node.name for node in walk(value) if isinstance(node, Index)}
