"""How a partitioned model is called: as the one that it was made of, by place or by name; and what its inputs may be."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from tcjit.byoc.archive import first_line
from tcjit.errors import ArgumentError, PartitionError, ShapeError

Dynamic = bool | Mapping[str, Any] | Sequence[Any] | None
_NONE = inspect.Parameter.empty
_AGAIN = "partition the model with such example inputs"
_DYNAMIC = "tcjit.partition(..., dynamic=True) lets the first dimension of every input change, dynamic={'x': {1: 'length'}} any other"


@dataclass(frozen=True)
class Inputs:
    """Example inputs: arguments by place and by name."""

    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def given_to(self, run: Callable[..., Any]) -> Any:
        return run(*self.args, **self.named)

    def copies(self) -> Inputs:
        """Inputs that the model may write to: tensors as copies."""
        args, named = torch.utils._pytree.tree_map_only(Tensor, Tensor.clone, (self.args, dict(self.named)))
        return Inputs(tuple(args), named)


def inputs_of(model: Any, example_inputs: Any, named: Mapping[str, Any] | None) -> Inputs:
    """Example inputs as the user gives them: a tuple or list, one argument, or a mapping of names. ArgumentError where the model takes
    others."""
    if isinstance(example_inputs, Mapping):
        if named:
            raise ArgumentError("example inputs are given by name twice", hint="example_inputs=(x,), kwargs={'mask': mask}")
        example_inputs, named = (), example_inputs
    args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    given = Inputs(args, dict(named or {}))
    if not all(isinstance(name, str) for name in given.named):
        raise ArgumentError("example inputs by name must have names that are texts", hint="{'x': x}")
    if isinstance(model, torch.jit.ScriptModule):
        return Inputs(_by_place(model, given))
    if isinstance(model, ExportedProgram) and (given.args or given.named):
        _exported_for(model, given)
    elif isinstance(model, torch.nn.Module):
        try:
            inspect.signature(model.forward).bind(*given.args, **given.named)
        except TypeError as error:
            takes = f"{type(model).__name__}.forward{inspect.signature(model.forward)}"
            raise ArgumentError(f"the example inputs do not fit {takes}: {error}", hint="one for each argument") from error
    return given


def _exported_for(program: ExportedProgram, given: Inputs) -> None:
    """Raises PartitionError where a program was exported for tensors of other shapes."""
    calling = calling_of(program)
    if calling is None:
        return
    leaves = torch.utils._pytree.tree_leaves(calling.bound(given.args, dict(given.named)))
    vals = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for name, leaf in zip(program.graph_signature.user_inputs, leaves):
        val = vals.get(str(name))
        if isinstance(val, Tensor) and isinstance(leaf, Tensor):
            fits = leaf.dim() == val.dim() and all(one == other for one, other in zip(leaf.shape, val.shape) if isinstance(other, int))
            if not fits:
                what = f"it was exported for {name} of shape {list(val.shape)}, not {list(leaf.shape)}"
                hint = "example inputs of the shapes that it was exported for"
                raise PartitionError(f"the model fails on its example inputs: {what}", hint=hint)


def _by_place(module: torch.jit.ScriptModule, given: Inputs) -> tuple[Any, ...]:
    """The arguments of a ScriptModule's ``forward``, those by name in their places, defaults between them."""
    arguments: Any = module.forward.schema.arguments[1:]  # type: ignore[attr-defined]
    wanted = [(each.name, each.default_value if each.has_default_value() else _NONE) for each in arguments]
    names = [name for name, _ in wanted]
    parameters = dict(wanted)
    found = _bound(names, parameters, given.args, given.named)
    last = max([len(given.args), *(names.index(name) + 1 for name in given.named)])
    required = [name for name in names if parameters[name] is _NONE]
    missing = [name for name in required if name not in found]
    if missing:
        raise ArgumentError(f"the example inputs lack {', '.join(missing)}", hint=f"forward takes {', '.join(names)}")
    return tuple(found.get(name, parameters[name]) for name in names[:last])


def _bound(names: Sequence[str], known: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; ArgumentError where there are too many, or one twice, or one of no known name."""
    takes = f"the model takes {', '.join(known) or 'no arguments'}"
    if len(args) > len(names):
        raise ArgumentError(f"{takes}; {len(args)} are given by place")
    found = dict(zip(names, args))
    for name, value in named.items():
        if name in found:
            raise ArgumentError(f"{takes}; {name} is given twice")
        if name not in known:
            raise ArgumentError(f"{takes}, and no {name}")
        found[name] = value
    return found


@dataclass(frozen=True)
class Calling:
    """How the module of an exported program is called. ``names`` are those of the arguments that it was exported with, so many of them by
    place (``places``); ``original`` are the parameters of the module that it was made of, with their defaults."""

    names: tuple[str, ...]
    places: int
    original: Mapping[str, Any]
    by_name_only: frozenset[str] = frozenset()

    def bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call of the original as one of the program; ArgumentError where that has no such arguments."""
        if len(args) == self.places and named.keys() == set(self.names[self.places :]):
            return args, named
        placed = [name for name in self.original if name not in self.by_name_only]
        found = _bound(placed, self.original, args, named)
        for name in self.names:
            if name not in found:
                if self.original.get(name, _NONE) is _NONE:
                    raise ArgumentError(f"the model takes {', '.join(self.names)}; {name} is not given", hint=_AGAIN)
                found[name] = self.original[name]
        for name in set(found).difference(self.names):
            default = self.original[name]
            if found[name] is not default and (isinstance(found[name], Tensor) or found[name] != default):
                raise ArgumentError(f"the model was partitioned without {name}", hint=_AGAIN)
        return tuple(found[name] for name in self.names[: self.places]), {name: found[name] for name in self.names[self.places :]}


def calling_of(program: Any, model: Any = None) -> Calling | None:
    """How a program is called; ``model``: what it was made of. None where any call goes through as it is."""
    if not isinstance(program, ExportedProgram) or program.call_spec.in_spec is None:
        return None
    signature = program.module_call_graph[0].signature
    by_place, by_name = program.call_spec.in_spec.children()
    named = tuple(by_name.context)
    names = tuple(getattr(signature, "forward_arg_names", None) or ())
    if len(names) != by_place.num_children + len(named):
        names = (*(f"argument {place}" for place in range(by_place.num_children)), *named)
    names = (*names[: by_place.num_children], *named)
    original: dict[str, Any] = dict.fromkeys(names, _NONE)
    by_name_only: frozenset[str] = frozenset()
    if isinstance(model, torch.nn.Module) and not isinstance(model, (torch.jit.ScriptModule, torch.fx.GraphModule)):
        parameters = inspect.signature(model.forward).parameters
        plain = [each for each in parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if {each.name for each in plain}.issuperset(names):  # others are of *args and **kwargs
            original = {each.name: each.default for each in plain}
            by_name_only = frozenset(each.name for each in plain if each.kind is each.KEYWORD_ONLY)
    return Calling(names, by_place.num_children, original, by_name_only)


def refused(error: Exception) -> Exception:
    """What PyTorch raises for inputs that a program was not exported for, as a TCError; other errors as they are."""
    text = str(error)
    if isinstance(error, AssertionError) and text.startswith("Guard failed: "):
        what = f"the model was partitioned for inputs with {text.removeprefix('Guard failed: ')}, which does not hold for these"
        return ShapeError(what, hint=_DYNAMIC)
    if isinstance(error, (ValueError, RuntimeError)) and text.startswith("Expected input"):
        return ShapeError(f"the model was partitioned for other inputs: {first_line(error)}", hint=_DYNAMIC)
    if isinstance(error, (ValueError, AssertionError)) and "tree spec" in text:
        return ArgumentError("the model was partitioned for inputs that are nested otherwise, or of other classes", hint=_AGAIN)
    return error


def shapes_of(model: torch.nn.Module, given: Inputs, dynamic: Dynamic) -> Any:
    """``dynamic`` as ``torch.export`` takes it: ``True`` is the first dimension of every tensor, a text names an extent."""
    if dynamic is None or dynamic is False:
        return None
    arguments = inspect.signature(model.forward).bind(*given.args, **given.named).arguments
    if dynamic is True:
        first = torch.utils._pytree.tree_map(_first, arguments)
        return dict(first)
    known: dict[str, Any] = {}
    spelled = _spelled(dynamic, known)
    if not isinstance(spelled, dict):
        return spelled
    unknown = [name for name in spelled if name not in arguments]
    if unknown:
        raise ArgumentError(f"dynamic names {unknown[0]!r}, which is no argument of forward", hint=f"arguments: {', '.join(arguments)}")
    return {name: spelled.get(name, torch.utils._pytree.tree_map(lambda leaf: None, each)) for name, each in arguments.items()}


def dimensions(dynamic: Dynamic, module: torch.jit.ScriptModule, args: Sequence[Any]) -> dict[str | int, Sequence[int]]:
    """``dynamic`` as TorchScript's adapter takes it: dimensions by the name or place of an argument."""
    if dynamic is None or dynamic is False:
        return {}
    if dynamic is True:
        return {place: (0,) for place, each in enumerate(args) if isinstance(each, Tensor) and each.dim()}
    entries = dynamic.items() if isinstance(dynamic, Mapping) else enumerate(dynamic)
    found: dict[str | int, Sequence[int]] = {}
    for name, dims in entries:
        if dims is not None and not isinstance(dims, (Mapping, Sequence)):
            raise PartitionError(f"dynamic for {name!r} is {dims!r}", hint="dynamic={'x': {0: 'batch'}}")
        listed = dims if isinstance(dims, Mapping) else dict(enumerate(dims or ()))
        found[name] = tuple(dim for dim, extent in listed.items() if extent is not None)
    return found


def _first(leaf: Any) -> Any:
    return {0: Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() else None


def _spelled(dynamic: Any, known: dict[str, Any]) -> Any:
    """Texts as dimensions, one text as one dimension everywhere."""
    if isinstance(dynamic, str):
        if not dynamic.isidentifier():
            raise ArgumentError(f"dynamic: {dynamic!r} is no name of an extent", hint="dynamic={'x': {0: 'batch'}}")
        return known.setdefault(dynamic, Dim(dynamic))
    if isinstance(dynamic, Mapping):
        return {key: _spelled(each, known) for key, each in dynamic.items()}
    if isinstance(dynamic, (list, tuple)):
        return type(dynamic)(_spelled(each, known) for each in dynamic)
    return dynamic
