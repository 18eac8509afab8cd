"""What a node of autograd's graph needs to know of a call: all but its tensors and scalars is the same for calls of one key and one pattern
of arguments that require grad, so a prepared call has it made once."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any

import torch

from tcjit.dataclass import dataclass
from tcjit.errors import ShapeError, TCError
from tcjit.grammar.bind import bind
from tcjit.jit import arguments
from tcjit.jit.differentiation import Adjoint, Differentiable
from tcjit.jit.fast import FastCall, Table
from tcjit.jit.launch import RecordedCall
from tcjit.runtime import tensors

_Like = tuple[Sequence[int], torch.dtype, torch.device]  # what zeros and tensors without content are made of


@dataclass(frozen=True)
class Kept:
    """What a derivative reads of a call, by name: the places of tensors and scalars among its arguments and then its results, the sizes;
    and what all its tensors were like."""

    tensors: Mapping[str, int]
    scalars: Mapping[str, int]
    sizes: Mapping[str, int]
    like: Mapping[str, _Like]

    @staticmethod
    def of(
        function: Differentiable, args: Sequence[Any], results: Sequence[Any], reads: Sequence[str], unread: Sequence[str] = (),
        temporaries: Sequence[str] = (),
    ) -> Kept:  # fmt: skip
        """What is read of a call whose results have these ``temporaries`` behind them, but for what is ``unread``: extents alone."""
        signature = function.signature
        names = [*(p.name for p in signature.params), *(r.name for r in signature.returns), *temporaries]
        values = dict(zip(names, (*args, *results)))
        like: dict[str, _Like] = {name: (v.shape, v.dtype, v.device) for name, v in values.items() if isinstance(v, torch.Tensor)}
        places = {name: place for place, name in enumerate(names)}
        sizes: dict[str, int] = {}
        if any(name not in values for name in reads):
            bound = bind(signature.params, [tuple(values[p.name].shape) if p.dims else None for p in signature.params])
            sizes = {name: bound[name] for name in reads if name not in values}
        kept = {name: places[name] for name in reads if name in like and name not in unread}
        return Kept(kept, {name: places[name] for name in reads if name in values and name not in like}, sizes, like)

    def read(self, saved: Sequence[torch.Tensor], scalars: Sequence[Any]) -> dict[str, Any]:
        """The arguments that are no derivatives, by name."""
        return {**self.sizes, **dict(zip(self.scalars, scalars)), **dict(zip(self.tensors, saved))}

    def zeros(self, name: str) -> torch.Tensor | float:
        if name not in self.like:  # a scalar that was given as a number
            return 0.0
        shape, dtype, device = self.like[name]
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    def shaped(self, name: str) -> torch.Tensor:
        """A tensor of extents alone, of one undefined element."""
        shape, dtype, device = self.like[name]
        return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))


@dataclass(frozen=True)
class _Backward:
    """A call of the adjoint: ``places`` of its arguments among saved tensors, scalars, cotangents, sizes, and the tensors of ``fills``.

    ``gradients``: for each parameter the place of its gradient among the results; None where there is none, or nobody asks.
    """

    adjoint: Adjoint
    places: tuple[int, ...]
    fills: tuple[Callable[[], Any], ...]
    gradients: tuple[int | None, ...]


@dataclass(frozen=True)
class Recording:
    """What is recorded of a call: its ``adjoint``, the reason why it has none, or None where no argument requires grad; what the node
    keeps; and the places, as in ``Kept``, of results without derivatives."""

    function: Differentiable
    unchecked: bool
    adjoint: Adjoint | TCError | None
    kept: Kept
    constants: tuple[int, ...]
    _plans: dict[tuple[Any, ...], _Backward | None] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(
        function: Differentiable, unchecked: bool, adjoint: Adjoint | TCError | None, args: Sequence[Any], every: Sequence[Any]
    ) -> Recording:
        """The recording of a call with these results, behind which are temporaries if the forward of ``adjoint.saving`` ran."""
        returns = function.signature.returns
        if not isinstance(adjoint, Adjoint):
            return Recording(function, unchecked, adjoint, Kept({}, {}, {}, {}), ())
        saving = adjoint.saving
        if saving is not None and len(every) < len(returns) + len(saving.names):  # the forward that saves did not run
            saving = None
        takers = [adjoint] if saving is None else [adjoint, saving.adjoint]
        reads = dict.fromkeys(name for taker in takers for name in taker.reads)
        unread = [name for name in reads if all(name in taker.function.signature.unread for taker in takers if name in taker.reads)]
        kept = Kept.of(function, args, every, [*reads], unread, () if saving is None else saving.names)
        constants = (place for place, r in enumerate(returns, len(args)) if r.name not in adjoint.cotangents)
        return Recording(function, unchecked, adjoint, kept, tuple(constants))

    @cached_property
    def ran(self) -> Differentiable:
        """The function that a call runs."""
        saving = self.adjoint.saving if isinstance(self.adjoint, Adjoint) else None
        return self.function if saving is None else saving.forward

    def record(self, ctx: Any, args: Sequence[Any], every: Sequence[Any]) -> Any:
        """What a call returns; its node gets what the backward reads, and which results have no derivatives. The launcher does it in C."""
        self.keep(ctx, args, every)
        ctx.mark_non_differentiable(*(every[place - len(args)] for place in self.constants))
        count = len(self.function.signature.returns)
        return every[0] if count == 1 else tuple(every[:count])

    def keep(self, ctx: Any, args: Sequence[Any], every: Sequence[Any]) -> None:
        """Give a node what its backward reads."""
        values = (*args, *every)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(values[place] for place in self.kept.tensors.values()))
        ctx.recorded = self, tuple(values[place] for place in self.kept.scalars.values())

    def remember(self, table: Table, args: Sequence[Any], prepared: Callable[..., Any], record: Callable[..., Any]) -> FastCall:
        """Prepare a table for more calls like this one, which ran; ``prepared`` and ``record`` are those of a ``RecordedCall``."""
        is_tensor = [isinstance(value, torch.Tensor) for value in args]
        signature = self.function.signature
        if not all(tensors.plain(value) if param.dims else not one for param, value, one in zip(signature.params, args, is_tensor)):
            return table.call
        kernel = self.ran.compile(*args, unchecked=self.unchecked)
        if kernel.binary is None:
            return table.call
        requires = sum(1 << place for place, (one, value) in enumerate(zip(is_tensor, args)) if one and value.requires_grad)
        kept, scalars = tuple(self.kept.tensors.values()), tuple(self.kept.scalars.values())
        recorded = RecordedCall(requires, kept, scalars, self.constants, len(signature.returns), self, prepared, record)
        ran = self.ran.signature
        return table.remember(ran, kernel.key, kernel.binary, arguments.check(ran, args), recorded)

    # ------------------------------------------------------------ the backward

    def gradients(self, ctx: Any, scalars: Sequence[Any], cotangents: Sequence[Any], needed: tuple[bool, ...]) -> tuple[Any, ...]:
        """The gradients by the parameters for cotangents of the returns; None where there is none, or nobody asks."""
        key = needed, torch.is_grad_enabled(), tuple([cotangent is None for cotangent in cotangents])
        try:
            plan = self._plans[key]
        except KeyError:
            plan = self._plans[key] = self._plan(*key)
        if plan is None:
            return (None,) * len(needed)
        dense = [cotangent if cotangent is None else _dense(cotangent) for cotangent in cotangents]
        values = [*ctx.saved_tensors, *scalars, *dense, *self.kept.sizes.values(), *(make() for make in plan.fills)]
        results = plan.adjoint.function.apply([values[place] for place in plan.places], self.unchecked)
        if not isinstance(results, tuple):
            results = (results,)
        gradients = (None if place is None else self._gradient(plan.adjoint, at, results[place]) for at, place in enumerate(plan.gradients))
        return tuple(gradients)

    def _plan(self, needed: Sequence[bool], is_differentiated: bool, is_missing: Sequence[bool]) -> _Backward | None:
        """How the gradients that are ``needed`` are computed; None where all are None."""
        adjoint, signature, kept = self.adjoint, self.function.signature, self.kept
        if isinstance(adjoint, TCError):
            raise adjoint
        if adjoint is None:
            return None
        asked = [param.name if one and param.name in adjoint.gradients else None for param, one in zip(signature.params, needed)]
        given = {r.name: place for place, (r, missing) in enumerate(zip(signature.returns, is_missing)) if not missing}
        if not any(asked) or given.keys().isdisjoint(adjoint.cotangents):
            return None
        saving = adjoint.saving
        if saving is not None and not is_differentiated and {*saving.names} <= {*kept.tensors}:
            adjoint = saving.adjoint
        count = len(kept.tensors) + len(kept.scalars)
        places = {name: place for place, name in enumerate((*kept.tensors, *kept.scalars))}
        places |= {name: count + len(is_missing) + place for place, name in enumerate(kept.sizes)}
        made: list[Callable[[], Any]] = []
        end = count + len(is_missing) + len(kept.sizes)
        for name, parameter in adjoint.cotangents.items():
            if name in given:
                places[parameter] = count + given[name]
            else:
                places[parameter] = end + len(made)
                made.append(partial(kept.zeros, name))
        for name in adjoint.function.signature.unread:
            if name not in places:
                places[name] = end + len(made)
                made.append(partial(kept.shaped, name))
        results = {r.name: place for place, r in enumerate(adjoint.function.signature.returns)}
        gradients = tuple(None if name is None else results[adjoint.gradients[name]] for name in asked)
        return _Backward(adjoint, tuple(places[p.name] for p in adjoint.function.signature.params), tuple(made), gradients)

    def _gradient(self, adjoint: Adjoint, at: int, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient by one parameter; a ShapeError where the adjoint gives it another shape."""
        parameter = self.function.signature.params[at].name
        if adjoint.sums and (dimensions := adjoint.sums.get(parameter)):
            gradient = gradient.sum(dimensions)
        wanted = self.kept.like[parameter][0]
        if gradient.shape != wanted:
            name = adjoint.gradients[parameter]
            raise ShapeError(
                f"{name} of {adjoint.function.signature.name}() has shape {tuple(gradient.shape)}, and {parameter} of "
                f"{self.function.signature.name}() has {tuple(wanted)}",
                hint="ranges in the text of the adjoint",
            )
        return gradient


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A cotangent that is one element for all, as that of a sum is, in memory of its own: kernels are made for strides."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor
