"""Layers: a def as a ``torch.nn.Module`` that has some of its parameters."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tcjit.checked import brief, checked
from tcjit.errors import ArgumentError, ShapeError
from tcjit.grammar.ast import Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import arguments
from tcjit.jit.call import Function
from tcjit.jit.signature import describe
from tcjit.runtime import tensors

Initialiser = Callable[[torch.Tensor], object]


class DefModule(torch.nn.Module):
    """A def of which some parameters are the module's; a call takes the others, in the order of the def or by name."""

    def __init__(self, function: Function, shapes: Mapping[str, tuple[int, ...]], initialisers: Mapping[str, Initialiser]) -> None:
        super().__init__()
        self.function = function
        self.initialisers = dict(initialisers)
        self._names = tuple(shapes)
        self._inputs = tuple(p.name for p in function.signature.params if p.name not in shapes)
        dtypes = {p.name: tensors.TORCH[p.dtype] for p in function.signature.params}
        for name, shape in shapes.items():
            try:
                self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=dtypes[name])))
            except KeyError as error:  # a module has attributes of its own
                raise ArgumentError(f"{name} of {function.signature.name}() cannot be a parameter: {error}", hint="another name") from None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters anew."""
        with torch.no_grad():
            for name in self._names:
                self.initialisers.get(name, default)(getattr(self, name))

    def forward(self, *args: Any, **named: Any) -> Any:
        """The def's results, for the parameters that the module has not; ``unchecked=True`` as for a call of the def."""
        unchecked = named.pop("unchecked", False)
        own = {name: getattr(self, name) for name in self._names}
        inputs = dict(zip(self._inputs, args))
        if len(args) > len(self._inputs):
            name, wanted = self.function.signature.name, ", ".join(self._inputs) or "none"
            raise ArgumentError(f"the layer of {name}() takes {wanted}, and {len(args)} arguments were given", hint=repr(self))
        twice = [name for name in named if name in own or name in inputs]
        if twice:
            raise ArgumentError(f"{self.function.signature.name}() got multiple values for argument {twice[0]!r}", hint=repr(self))
        return self.function(*arguments.positional(self.function.signature, (), {**own, **inputs, **named}), unchecked=unchecked)

    def extra_repr(self) -> str:
        """The def, and the shapes of the parameters."""
        shapes = ", ".join(f"{name}={tuple(getattr(self, name).shape)}" for name in self._names)
        return f"{self.function.signature}, {shapes}"


def default(tensor: torch.Tensor) -> None:
    """Uniform within one over the square root of the inputs of each output for matrices and filters, zero for anything else."""
    if tensor.dim() < 2:
        torch.nn.init.zeros_(tensor)
    else:
        bound = 1 / math.sqrt(max(1, math.prod(tensor.shape[1:])))
        torch.nn.init.uniform_(tensor, -bound, bound)


@checked()
def layer(
    function: Function, parameters: Mapping[str, Sequence[int]], *, initialisers: Mapping[str, Initialiser] | None = None
) -> DefModule:
    """The module of a def that has the parameters named here, by their shapes; a call of it takes the others.

    ``initialisers`` fill parameters in place, as those of ``torch.nn.init`` do; see ``default``. To train it, the def must have an adjoint.

    >>> import tcjit, torch
    >>> tc = tcjit.define("def scale(float(N, M) X, float(M) w) -> (Y) { Y(n, m) = X(n, m) * w(m) }", target="reference")
    >>> scale = layer(tc.scale, {"w": (3,)}, initialisers={"w": torch.nn.init.ones_})
    >>> scale
    DefModule(scale(float32(N, M) X, float32(M) w) -> (Y), w=(3,))
    >>> with torch.no_grad():
    ...     print(scale(torch.ones(1, 3)))
    tensor([[1., 1., 1.]])
    """
    if not isinstance(function, Function):
        raise ArgumentError(f"a layer is made of a def, not of {brief(function)}", hint="tcjit.define(...).name")
    signature = function.signature
    known = {param.name: param for param in signature.params}
    for what, given in (("parameters", parameters), ("initialisers", initialisers or {})):
        if not isinstance(given, Mapping):
            raise ArgumentError(f"{what}= takes a dict by names of parameters, not {brief(given)}", hint=f'{what}={{"w": ...}}')
        for name in given:
            if name not in known or (what == "initialisers" and name not in parameters):
                names = ", ".join(known if what == "parameters" else parameters)
                raise ArgumentError(f"{what}= names {brief(name)}, which is no such parameter of {signature.name}()", hint=f"of {names}")
    shapes = {name: _shape(signature.name, known[name], shape) for name, shape in parameters.items()}
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        for dim, extent in zip(known[name].dims, shape):
            least, other = (dim, name) if isinstance(dim, int) else sizes.setdefault(dim, (extent, name))
            if extent != least:
                raise ShapeError(f"{dim} of {signature.name}() is {extent} for {name} and {least} for {other}", hint=str(signature))
    for name, initialiser in (initialisers or {}).items():
        if not callable(initialiser):
            raise ArgumentError(f"the initialiser of {name} is {brief(initialiser)}, which cannot be called", hint="torch.nn.init.ones_")
    return DefModule(function, shapes, initialisers or {})


def _shape(definition: str, param: Param, shape: Any) -> tuple[int, ...]:
    if DTYPES[param.dtype].kind != "float":
        raise ArgumentError(f"{describe(param)} of {definition}() is no float, and cannot be trained", hint="an argument of every call")
    if not isinstance(shape, (tuple, list)) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ArgumentError(f"the shape of {param.name} is {brief(shape)}", hint=f'parameters={{"{param.name}": (3, 4)}}')
    if len(shape) != len(param.dims):
        raise ArgumentError(f"{describe(param)} of {definition}() has {len(param.dims)} dimensions, and its shape here is {tuple(shape)}")
    return tuple(shape)
