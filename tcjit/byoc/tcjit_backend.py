"""The backend "tcjit": a region becomes one TC program, compiled for the shapes that come.

The spec holds the program for the shapes that the model was partitioned with. For other shapes and dtypes the region's nodes are lowered
again; what has no program, and what a kernel refuses, runs in plain ATen.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tcjit.byoc.annotate import supports
from tcjit.byoc.backends import Backend, Row, Verdict, register
from tcjit.byoc.cost import ELEMENT_S, Limits, flops
from tcjit.byoc.graph import Node
from tcjit.byoc.infer import type_of
from tcjit.byoc.lower import RULES, program, refusal
from tcjit.byoc.lower.gradients import ties
from tcjit.byoc.patterns import Match, is_op, optional, wildcard
from tcjit.byoc.regions import Region
from tcjit.byoc.respecialise import guessed, lowered_again, tried
from tcjit.byoc.spec import Spec, Unserved, fits, parse
from tcjit.byoc.spec import spec as written
from tcjit.errors import PartitionError, TCError
from tcjit.grammar.ast import Param
from tcjit.jit.autograd import requiring
from tcjit.jit.call import Function
from tcjit.jit.define import define
from tcjit.jit.differentiation import adjoint_of
from tcjit.runtime.tensors import TORCH, plain_state

ENTRY = "fused"
# Products of more operations than this are left to the vendor's library where that has better: instructions for 16-bit types, tensor cores,
# and attention that never stores its scores.
LARGEST = 50_000_000
# joining more tensors than this is a loop for each on a CPU, and a question for each at every element on a GPU
_JOINED = 32
# so many sets of shapes are compiled for one region
SHAPES = 32

_PRODUCTS = "mm bmm matmul linear addmm baddbmm addmv mv addbmm einsum inner dot"
_CONVOLUTIONS = "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d"
_ACTIVATIONS = """relu relu6 gelu silu mish hardswish hardsigmoid hardtanh elu leaky_relu sigmoid tanh softplus clamp clamp_min clamp_max
    log_sigmoid selu celu prelu"""


def _ops(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


ANCHORS = frozenset(_ops(f"{_PRODUCTS} {_CONVOLUTIONS} scaled_dot_product_attention"))
# Two products of batches fit one region, as attention has them; of everything else that repeats reads there is one in a region. Numbers
# that are counted up cost nothing.
_PAIRED = frozenset(_ops("matmul bmm baddbmm einsum"))
_MOST, _PAIR, _LONE, _COUNTED = 96, 36, 64, "aten.arange"
_UNITS = {op: _PAIR if op in _PAIRED else _LONE for op in sorted(ANCHORS)} | {_COUNTED: 0}


def _attention_row() -> Row:
    scores = is_op(*_ops("matmul bmm baddbmm"))
    scaled = optional(is_op(*_ops("div mul")))(scores)
    masked = optional(is_op(*_ops("add masked_fill where")))(scaled)
    return Row("attention", is_op(*_ops("matmul bmm"))(is_op(*_ops("softmax _softmax"))(masked), wildcard()), _fits)


def _epilogue_row(name: str, ops: str) -> Row:
    normalised = optional(is_op(*_ops("batch_norm _native_batch_norm_legit_no_training native_batch_norm")))(is_op(*_ops(ops)))
    added = optional(is_op(*_ops("add mul div sub")))(normalised)
    return Row(name, optional(is_op(*_ops(_ACTIVATIONS)))(added), _anchored)


def _fits(match: Match) -> Verdict:
    """Whether there is a rule for every part."""
    for node in match.nodes:
        said = _verdict(node)
        if said is not True:
            return said
    return True


def _anchored(match: Match) -> Verdict:
    """The same, for a row that is about a product or convolution."""
    return _fits(match) if any(node.op in ANCHORS for node in match.nodes) else "has no product"


def _verdict(node: Node) -> Verdict:
    """True, or why a node is not for tcjit."""
    if node.op in ("aten.cat", "aten.stack", "aten.concat") and len(node.inputs) > _JOINED:
        return f"joins {len(node.inputs)} tensors, more than {_JOINED}"
    if node.op in ANCHORS and not _depthwise(node) and not _level(node):
        count = flops(node)
        if count > LARGEST:
            return f"a vendor's library is faster for {count} operations"
    try:
        return refusal(tried(node)) or True
    except PartitionError as error:
        return error.what


def _level(node: Node) -> bool:
    """Whether tcjit's product is as fast as the vendor's, whatever its size: in float32 and float64 on a CPU, but for attention's."""
    kinds = [value.type for value in (*node.inputs, *node.outputs) if value.type is not None]
    usual = all(kind.device == "cpu" and kind.dtype in ("float32", "float64") for kind in kinds)
    batches = node.op in _PAIRED and any(len(kind.shape or ()) != 2 for kind in kinds) and not any(value.constant for value in node.inputs)
    return usual and not batches and node.op != "aten.scaled_dot_product_attention"


def _depthwise(node: Node) -> bool:
    groups = node.arguments.get("groups")
    return isinstance(groups, int) and groups > 4


class TcjitBackend(Backend):
    """Fused TC programs, on whatever tcjit has a target for."""

    name = "tcjit"
    patterns = (
        _attention_row(),
        _epilogue_row("product_epilogue", _PRODUCTS),
        _epilogue_row("convolution_epilogue", _CONVOLUTIONS),
    )
    limits = Limits(units=_MOST, takes=_UNITS, element_s={op: own for op, (_, own) in ELEMENT_S.items()})
    dynamic = True
    devices = ("cpu", "cuda")

    def lower(self, region: Region) -> Mapping[str, Any]:
        """The program, the def's name, and the shapes of its parameters: inputs, then constants; those without dimensions are passed as
        one element. Where extents are known at the run only, the program is that for a guess."""
        inputs = (*region.inputs, *region.constants)
        if all(tried(node) is node for node in region.nodes):
            made = program(region.nodes, inputs, region.outputs)
        else:
            made = lowered_again(parse(written(region, {})), [guessed(value.type) for value in inputs])
        return {"text": made.text, "entry": ENTRY, "shapes": [list(shape) for shape in made.shapes], "saved": list(made.saved)}

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        code = spec.get("code")
        if not isinstance(code, Mapping) or not isinstance(code.get("text"), str) or not isinstance(code.get("shapes"), list):
            raise PartitionError(f"the spec of {spec.get('name')} holds no program", hint="partition the model again")
        return Runner(dict(spec))

    def without_gradients(self, spec: Mapping[str, Any]) -> str:
        return _ties(spec)[1]


def _ties(spec: Mapping[str, Any]) -> tuple[str, str]:
    """The ties of a spec's gradients, and why it has none."""
    try:
        return ties(spec["nodes"]), ""
    except PartitionError as error:
        return "even", error.what


class Runner:
    """Runs a region; a kernel per set of shapes and dtypes, made when they come first."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._ties, self._without_gradients = _ties(spec)
        self._kernels: dict[tuple[Any, ...], Function | str] = {}
        self._adjoints: dict[tuple[Function, frozenset[str]], str] = {}  # by what requires gradients, why there is none
        self._single = len(spec["outputs"]) == 1
        self._numbers = tuple(place for place, each in enumerate(spec["inputs"]) if each["shape"] == [])

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        kernel = self._kernel(tensors)
        if self._numbers:
            tensors = self._ranked(tensors)
        try:
            found = kernel(*tensors)
        except TCError as error:  # a place outside of a table, an integer divided by zero: PyTorch says it in its own words
            raise Unserved(error.what) from error
        return [found] if self._single else list(found)

    def recorded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same while gradients are recorded, whose adjoints are derived; Unserved where there are none."""
        if self._without_gradients:
            raise Unserved(self._without_gradients)
        kernel = self._kernel(tensors)
        why = self._without_adjoint(kernel, tensors)
        if why:
            raise Unserved(why)
        if plain_state():
            return self(tensors)
        tensors = self._ranked(tensors)
        found = kernel.operator_for(tensors)(tensors, (), False)  # what watches operators, or transforms them, sees this one
        return [found] if self._single else list(found)

    def _without_adjoint(self, kernel: Function, tensors: Sequence[Tensor]) -> str:
        """Why there is no adjoint by what requires gradients, or no kernel of it, which a backward could not mend any more."""
        wrt = requiring(kernel.signature, tensors)
        if (kernel, wrt) in self._adjoints:
            return self._adjoints[kernel, wrt]
        why = ""
        try:
            adjoint = adjoint_of(kernel, wrt, ())
            function = adjoint.function if adjoint.saving is None else adjoint.saving.adjoint.function
            if isinstance(function, Function) and tensors[0].device.type == "cpu":
                function.compile(*map(_like, function.signature.params))
        except TCError as error:
            why = error.what.partition("\n")[0]
        self._adjoints[kernel, wrt] = why
        return why

    def _ranked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors without dimensions as such of one element."""
        return [each.reshape(1) if place in self._numbers else each for place, each in enumerate(tensors)]

    def _kernel(self, tensors: Sequence[Tensor]) -> Function:
        key = tuple([(each.shape, each.dtype) for each in tensors])
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._kernel_for(tensors)
        if isinstance(kernel, str):
            raise Unserved(kernel)
        return kernel

    def fixed(self, tensors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]] | None:
        """What runs tensors of these shapes and dtypes without looking at them; None where there is none."""
        kernel = self._kernels.get(tuple([(each.shape, each.dtype) for each in tensors]))
        if kernel is None or isinstance(kernel, str) or self._numbers:
            return None
        run = kernel
        return (lambda *given: (run(*given),)) if self._single else run

    def _kernel_for(self, tensors: Sequence[Tensor]) -> Function | str:
        """A kernel, or why there is none."""
        if len(self._kernels) >= SHAPES:
            return f"{SHAPES} sets of shapes have kernels of their own already"
        try:
            text, saved = self._spec["code"]["text"], self._spec["code"].get("saved")
            shapes = [list(each.shape) or [1] for each in tensors]
            if shapes != self._spec["code"]["shapes"] or not fits(self._spec, tensors):
                made = lowered_again(self._spec, [type_of(each) for each in tensors])
                text, saved = made.text, made.saved
            return define(text, saved=saved, ties=self._ties)[ENTRY]
        except TCError as error:
            return error.what


def _like(param: Param) -> Tensor | float:
    """An argument of a parameter's extents, all of which are numbers in the text of a region."""
    extents = [extent for extent in param.dims if isinstance(extent, int)]
    return torch.empty(extents, dtype=TORCH[param.dtype], device="meta") if param.dims else 1.0


supports(*RULES, backend="tcjit")(_verdict)
register(TcjitBackend())
