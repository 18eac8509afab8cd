"""The adjoint and the tangent of a function as functions, and which tensors they read."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from tcjit.dataclass import dataclass
from tcjit.errors import ArgumentError, CheckError
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import derivatives
from tcjit.jit.derivatives import Derivatives
from tcjit.jit.signature import Signature

if TYPE_CHECKING:
    from tcjit.grammar.differentiate import AdjointDef
    from tcjit.grammar.differentiate.size_hints import SizeGuard
    from tcjit.jit.kernel import Kernel
    from tcjit.jit.operator import Operator

Integers = tuple[tuple[str, int], ...]  # scalar parameters with their numbers
MOST_VARIANTS = 8  # of an adjoint, for the numbers of sizes in index arithmetic, as torch.compile's recompile_limit; then one for all


class Differentiable(Protocol):
    """What is asked of a function: ``jit.call.Function`` documents it."""

    @property
    def text(self) -> str: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def derivatives(self) -> Derivatives: ...

    @property
    def origin(self) -> tuple[Differentiable, frozenset[str]] | None: ...

    @property
    def adjoints(self) -> dict[tuple[frozenset[str], Integers], list[Adjoint]]: ...

    def sibling(self, name: str) -> Differentiable: ...

    def derived(self, text: str, name: str) -> Differentiable: ...

    def batched(self, names: frozenset[str]) -> Differentiable: ...

    def apply(self, args: Sequence[Any], unchecked: bool) -> Any: ...

    def repeated(self, args: tuple[Any, ...], unchecked: bool) -> Any: ...

    def compile(self, *args: Any, unchecked: bool = False) -> Kernel: ...

    def operator_for(self, args: Sequence[Any]) -> Operator: ...


@dataclass(frozen=True)
class Adjoint:
    """A function for the gradients of another.

    ``cotangents`` are its parameters by the other's returns, ``gradients`` its returns by the other's parameters; its other parameters are
    parameters, returns and sizes of the other. ``sums`` are the dimensions over which a gradient is then summed. ``saving`` gives the same
    gradients in less time, from what the forward call kept; it has no graph to what that was computed from, and no right derivatives. An
    adjoint is right, and the one to take, where its ``size_guards`` hold.
    """

    function: Differentiable
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    saving: Saving | None = None
    size_guards: tuple[SizeGuard, ...] = ()

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The parameters that are not cotangents."""
        own = {*self.cotangents.values()}
        return tuple(param.name for param in self.function.signature.params if param.name not in own)


@dataclass(frozen=True)
class Saving:
    """``forward`` returns temporaries of a function, ``names``, behind its results, if any; the ``adjoint`` takes them."""

    forward: Differentiable
    names: tuple[str, ...]
    adjoint: Adjoint


@dataclass(frozen=True)
class Tangent:
    """A function for the tangents of another.

    ``tangents`` are its parameters by the other's parameters, ``results`` its returns by the other's returns; ``zeros`` are parameters that
    get zeros, by the parameter or return of the other that has their shape.
    """

    function: Differentiable
    tangents: Mapping[str, str]
    results: Mapping[str, str]
    zeros: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The parameters that are neither tangents nor zeros."""
        own = {*self.tangents.values(), *self.zeros}
        return tuple(param.name for param in self.function.signature.params if param.name not in own)


def integers(signature: Signature, args: Sequence[Any]) -> Integers:
    """The numbers of the integer scalars among arguments, which the derived text of an adjoint has written out; what is none is left to
    the checks of the call."""
    numbers = []
    for param, value in zip(signature.params, args):
        if not param.dims and DTYPES[param.dtype].is_integer:
            with suppress(TypeError):
                numbers.append((param.name, index(value)))
    return tuple(numbers)


def known_sizes(signature: Signature, args: Sequence[Any]) -> dict[str, int]:
    """The sizes of arguments that are numbers, not symbols of a tracer; wrong arguments are left to the checks of the call."""
    sizes: dict[str, int] = {}
    for param, value in zip(signature.params, args):
        if param.dims:
            with suppress(Exception):  # tensors without a shape each refuse in their own way
                named = ((dim, extent) for dim, extent in zip(param.dims, value.shape) if dim in signature.sizes)
                sizes.update((str(dim), extent) for dim, extent in named if type(extent) is int)
    return sizes


def adjoint_of(function: Differentiable, wrt: frozenset[str], numbers: Integers, args: Sequence[Any] = ()) -> Adjoint:
    """The adjoint of a function for gradients by the parameters ``wrt``, or by more, and for integer scalars of these ``numbers``: the
    user's own, or the derived one, for sizes like those of ``args``. A CheckError where there is none."""
    known = function.adjoints.get((wrt, numbers))
    if known and not known[0].size_guards:  # none compares sizes, then
        return known[0]
    return _adjoint_for(function, wrt, numbers, known_sizes(function.signature, args))


def _adjoint_for(function: Differentiable, wrt: frozenset[str], numbers: Integers, sizes: Mapping[str, int]) -> Adjoint:
    known = function.adjoints.setdefault((wrt, numbers), [])
    hints = {**sizes, **dict(numbers)}
    found = next((adjoint for adjoint in known if all(guard.holds(hints) for guard in adjoint.size_guards)), None)
    if found is None:
        found = _adjoint(function, wrt, numbers, sizes, generic=len(known) >= MOST_VARIANTS)
        known.append(found)
    return found


def _adjoint(function: Differentiable, wrt: frozenset[str], numbers: Integers, sizes: Mapping[str, int], *, generic: bool) -> Adjoint:
    if function.origin is not None:
        origin, batched = function.origin
        return _adjoint_over_batch(_adjoint_for(origin, wrt, numbers, sizes), origin, batched)
    signature = function.signature
    other = dict(function.derivatives.backward).get(signature.name)
    if other is None:
        return _derived_adjoint(function, wrt, numbers, sizes, generic=generic)
    adjoint = function.sibling(other)
    match = derivatives.match_adjoint(function.text, signature, adjoint.signature)
    return Adjoint(adjoint, match.inputs, match.results)


def _derived_adjoint(
    function: Differentiable, wrt: frozenset[str], numbers: Integers, sizes: Mapping[str, int], *, generic: bool
) -> Adjoint:
    """The derived adjoint, which is ``generic``, or has the numbers of the sizes that kernels are specialised to written out where that
    saves sums: a subscript like ``(4 * p + i + 3) % N`` has an inverse for a number."""
    from tcjit.grammar.differentiate import SizeHints  # needs isl and lark
    from tcjit.jit.derivative import derived_adjoint, first_order_adjoint

    signature = function.signature
    if signature.accumulates:
        what = f"{signature.name}() adds to values of {', '.join(signature.accumulates)} that the caller passes, and has no gradient"
        raise CheckError(what, hint="`=` or `+=!` in its text, or a call under torch.no_grad()")
    names = [p.name for p in signature.params if p.name in wrt] or None
    saved, ties = function.derivatives.saved, function.derivatives.ties
    size_hints = SizeHints({**sizes, **dict(numbers)})
    values = dict(numbers)
    made = derived_adjoint(function.text, signature.name, names, values, ties, size_hints)
    known = {} if generic else size_hints.numbers(name for name in signature.specialised if name not in values)
    if known and _indices_summed(made) > 0:
        with suppress(CheckError):  # for every size there is one
            numbered = derived_adjoint(function.text, signature.name, names, {**values, **known}, ties, size_hints)
            if _indices_summed(numbered) < _indices_summed(made):
                made, values = numbered, {**values, **known}
                size_hints.keep(known)
    found = first_order_adjoint(function.text, signature.name, names, values, ties, saved, size_hints)
    saving = None
    if found is not None:
        text, temporaries, other = found
        adjoint = Adjoint(function.derived(other.text, other.definition.name), other.cotangents, other.gradients)
        saving = Saving(function.derived(text, signature.name) if temporaries else function, tuple(temporaries), adjoint)
    own = function.derived(made.text, made.definition.name)
    return Adjoint(own, made.cotangents, made.gradients, saving=saving, size_guards=size_hints.guards)


def _indices_summed(made: AdjointDef) -> int:
    """Those over which statements of an adjoint sum."""
    return sum(len(statement.reduction) for statement in made.definition.statements)


def _adjoint_over_batch(adjoint: Adjoint, origin: Differentiable, batched: frozenset[str]) -> Adjoint:
    """The adjoint of a function over a batch: gradients by what all elements of the batch share are summed over them."""
    varying = {*batched, *(r.name for r in origin.signature.returns), *adjoint.cotangents.values()}
    made = adjoint.function.batched(frozenset(p.name for p in adjoint.function.signature.params if p.name in varying))
    sums = {}
    for parameter in adjoint.gradients:
        inner = tuple(dimension + 1 for dimension in adjoint.sums.get(parameter, ()))
        sums[parameter] = inner if parameter in batched else (0, *inner)
    summed = {p: dimensions for p, dimensions in sums.items() if dimensions}
    return Adjoint(made, adjoint.cotangents, adjoint.gradients, summed, size_guards=adjoint.size_guards)


def tangent_of(function: Differentiable, numbers: Integers) -> Tangent:
    """The tangent of a function for integer scalars of these ``numbers``: the user's own, that of the user's adjoint, or the derived one.

    The adjoint is linear in the cotangents, so its own adjoint, by them, is the tangent.
    """
    signature = function.signature
    if function.origin is not None:
        origin, batched = function.origin
        return _tangent_over_batch(tangent_of(origin, numbers), origin, batched)
    other = dict(function.derivatives.tangent).get(signature.name)
    if other is not None:
        tangent = function.sibling(other)
        match = derivatives.match_tangent(function.text, signature, tangent.signature)
        return Tangent(tangent, match.inputs, match.results)
    if signature.name not in dict(function.derivatives.backward):
        return _derived_tangent(function, numbers)
    first = adjoint_of(function, frozenset(), numbers)
    second = adjoint_of(first.function, frozenset(first.cotangents.values()), ())
    if not {*first.cotangents.values()} <= {*second.gradients}:
        raise ArgumentError(
            f"{signature.name}() has no tangent, which differentiation in forward mode needs",
            hint=f'tcjit.define(..., tangent={{"{signature.name}": "{signature.name}_tangent"}}), or reverse mode (vjp, jacrev)',
        )
    zeros = {parameter: output for output, parameter in first.cotangents.items()}
    zeros |= {gradient: parameter for parameter, gradient in first.gradients.items()}
    return Tangent(
        second.function,
        {parameter: second.cotangents[gradient] for parameter, gradient in first.gradients.items() if gradient in second.cotangents},
        {output: second.gradients[parameter] for output, parameter in first.cotangents.items()},
        {p.name: zeros[p.name] for p in second.function.signature.params if p.name in zeros},
    )


def _derived_tangent(function: Differentiable, numbers: Integers) -> Tangent:
    from tcjit.jit.derivative import derived_tangent  # needs isl and lark

    made = derived_tangent(function.text, function.signature.name, dict(numbers), function.derivatives.ties)
    return Tangent(function.derived(made.text, made.definition.name), made.tangents, made.results)


def _tangent_over_batch(tangent: Tangent, origin: Differentiable, batched: frozenset[str]) -> Tangent:
    """The tangent of a function over a batch."""
    of_batch = {*batched, *(r.name for r in origin.signature.returns)}
    moving = (name for parameter, name in tangent.tangents.items() if parameter in of_batch)
    varying = {*of_batch, *moving, *(name for name, shaped in tangent.zeros.items() if shaped in of_batch)}
    made = tangent.function.batched(frozenset(p.name for p in tangent.function.signature.params if p.name in varying))
    return Tangent(made, tangent.tangents, tangent.results, tangent.zeros)
