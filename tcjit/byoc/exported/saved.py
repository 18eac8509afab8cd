"""What an export saves as TorchScript: the model, and example inputs with the outputs that belong to them."""
from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Collection
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tcjit.byoc.exported.traced import Recorded
from tcjit.errors import PartitionError

SCRIPT = "the torch.jit.script of the model"


def _fitting(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    if list(tensor.shape) != shape:
        raise RuntimeError("tcjit: the model was exported for an input of shape " + str(shape) + ", not " + str(tensor.shape))
    return tensor


class _Checked(torch.nn.Module):
    """A model that refuses other shapes than those it is traced with: its trace would take them for those."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.fitting = _jit(torch.jit.script, _fitting)  # not traced, so that it stays a check

    def forward(self, *args: Any) -> Any:
        return self.model(*pytree.tree_map_only(torch.Tensor, lambda each: self.fitting(each, list(map(int, each.shape))), args))


def model(made: Callable[..., Any], form: str, inputs: tuple[Any, ...], file: Path, unused: Collection[str] = ()) -> None:
    """Saves a realised model as TorchScript, without gradients; an FX graph as the trace of a run on the example inputs.

    ``unused`` are the paths of parameters and buffers that ``forward`` does not read: they stay as empty tensors.
    """
    if form == "fx":
        made = _traced(made, inputs)
    if not isinstance(made, torch.jit.ScriptModule):
        raise PartitionError(f"a {type(made).__name__} cannot be saved as TorchScript", hint="export a model that was scripted or traced")
    own = _jit(torch.jit.load, io.BytesIO(made.save_to_buffer()))  # parameters of its own, to be changed
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    for path in unused:
        *names, last = path.split(".")
        reduce(getattr, names, own)._c.setattr(last, torch.empty(0))
    own.save(str(file))


def examples(made: Callable[..., Any], form: str, inputs: tuple[Any, ...], file: Path) -> None:
    """Saves example inputs, and what a model makes of them."""
    given = copy.deepcopy(inputs)
    with torch.no_grad():
        outputs = (_module(made) if form == "fx" else made)(*copy.deepcopy(inputs))
    try:
        _jit(torch.jit.script, _Examples(_plain(given), (_plain(outputs),))).save(str(file))
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        what = f"the example inputs or outputs have no place in TorchScript: {said}"
        raise PartitionError(what, hint="tensors, numbers, lists, tuples") from error


class _Examples(torch.nn.Module):
    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs

    def forward(self) -> None:
        return None


def _plain(tree: Any) -> Any:
    """Tensors without gradients, in lists, tuples and dicts as they are."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), tree)


def _module(made: Any) -> torch.nn.Module:
    module: torch.nn.Module = made.module() if isinstance(made, torch.export.ExportedProgram) else made
    return module


def _traced(made: Any, inputs: tuple[Any, ...]) -> Any:
    if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(inputs)):
        raise PartitionError("an exported program with other inputs than tensors cannot be traced", hint=f"export {SCRIPT}")
    try:
        with torch.no_grad(), Recorded():
            return _jit(torch.jit.trace, _Checked(_module(made)), copy.deepcopy(inputs), check_trace=False, strict=False)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise PartitionError(f"the model cannot be traced: {said}", hint=f"export {SCRIPT}") from error


def _jit(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """A call without the warnings that TorchScript is old, and that a trace takes numbers for constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **named)
