"""Derivatives judged in float64: a def as a function of PyTorch whose gradients are adjoints, against the interpreter's graph."""
from __future__ import annotations

import math
import multiprocessing
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from support import torch_interpreter
from support.fuzz.programs import draw
from support.torch_interpreter import Unsupported
from tcjit.errors import CheckError
from tcjit.grammar.ast import Def
from tcjit.grammar.differentiate import AdjointDef, SizeHints, differentiate, tangent
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise

Tensor = torch.Tensor
GREAT = 1e12
Values = dict[str, Any]  # a tensor or a number for every parameter


def interpret(definition: Def, args: Mapping[str, Any], initial: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The results by the interpreter, whose graph autograd follows."""
    tensors = {p.name: args[p.name] for p in definition.params if p.dims}
    state = torch_interpreter.run(definition, tensors, {p.name: args[p.name] for p in definition.params if not p.dims}, initial)
    return {name: state[name] for name in definition.returns}


class Differentiable:
    """A def whose gradients are its adjoint, that one's gradients those of the adjoint's own adjoint, and so on."""

    def __init__(self, definition: Def, **settings: Any) -> None:
        self.definition, self.settings = definition, settings
        self._adjoint: tuple[AdjointDef, Differentiable] | None = None

    @property
    def adjoint(self) -> tuple[AdjointDef, Differentiable]:
        if self._adjoint is None:
            made = differentiate(self.definition, **self.settings)
            self._adjoint = made, Differentiable(made.definition, **self.settings)
        return self._adjoint

    def __call__(self, args: Mapping[str, Any]) -> dict[str, Tensor]:
        names = [p.name for p in self.definition.params if isinstance(args[p.name], Tensor)]
        results = _Call.apply(self, args, names, *(args[name] for name in names))
        return dict(zip(self.definition.returns, results, strict=True))


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Differentiable, args: Mapping[str, Any], names: list[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        results = interpret(function.definition, {**args, **dict(zip(names, (tensor.detach() for tensor in tensors)))})
        ctx.function, ctx.args, ctx.names = function, args, names
        ctx.save_for_backward(*tensors, *results.values())
        ctx.mark_non_differentiable(*(result for result in results.values() if not result.is_floating_point()))
        return tuple(results.values())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        function, names, returns = ctx.function, ctx.names, ctx.function.definition.returns
        adjoint, backward = function.adjoint
        args = {**ctx.args, **dict(zip([*names, *returns], ctx.saved_tensors, strict=True))}
        args.update({adjoint.cotangents[name]: value for name, value in zip(returns, cotangents) if name in adjoint.cotangents})
        gradients = backward({p.name: args[p.name] for p in adjoint.definition.params})
        return None, None, None, *(gradients[adjoint.gradients[name]] if name in adjoint.gradients else None for name in names)


def distance(actual: Tensor, wanted: Tensor) -> float:
    """The greatest difference, relative beyond 1, where ``wanted`` is finite; infinity where only that is."""
    finite = torch.isfinite(wanted)
    if not bool(torch.isfinite(actual[finite]).all()):
        return math.inf
    apart = (actual - wanted).abs() / (1 + wanted.abs())
    return apart[finite].max().item() if bool(finite.any()) else 0.0


def seeded(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(run: Callable[[Values], dict[str, Tensor]], args: Mapping[str, Any], orders: int) -> list[list[Tensor]]:
    """The gradients by every float argument, and by the cotangents of the order before, of random sums, order by order."""
    given: Values = {
        name: value.detach().clone().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in args.items()
    }
    inputs = [value for value in given.values() if isinstance(value, Tensor) and value.requires_grad]
    outputs = [result for result in run(given).values() if result.is_floating_point()]
    found: list[list[Tensor]] = []
    for order in range(orders):
        weights = [seeded(output.shape, 10 * order + place).requires_grad_() for place, output in enumerate(outputs)]
        total = _total(outputs, weights)
        made = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True) if total.requires_grad else [None] * len(inputs)
        outputs = [torch.zeros_like(i) if gradient is None else gradient for i, gradient in zip(inputs, made)]
        found.append([output.detach() for output in outputs])
        inputs += weights
    return found


def _total(values: Iterable[Tensor], weights: Iterable[Tensor]) -> Tensor:
    return sum(((value * weight).sum() for value, weight in zip(values, weights)), start=torch.zeros((), dtype=torch.float64))


def dual_product(definition: Def, args: Mapping[str, Any]) -> tuple[float, float]:
    """``<Jv, w>`` by the tangent and ``<v, J'w>`` by the adjoint, for random ``v`` and ``w``."""
    forward, backward = tangent(definition), differentiate(definition)
    results = interpret(definition, args)
    floats = [p.name for p in definition.params if p.name in backward.gradients]
    v = {name: seeded(torch.as_tensor(args[name]).shape, place) for place, name in enumerate(floats)}
    w = {name: seeded(results[name].shape, 100 + place) for place, name in enumerate(forward.results)}
    along = interpret(forward.definition, {**args, **{forward.tangents[name]: value for name, value in v.items()}})
    given = {**args, **results, **{backward.cotangents[name]: value for name, value in w.items() if name in backward.cotangents}}
    back = interpret(backward.definition, given)
    one = sum(float((along[forward.results[name]] * value).sum()) for name, value in w.items())
    return one, sum(float((back[backward.gradients[name]] * value).sum()) for name, value in v.items())


# ---------------------------------------------------------------- random programs


@dataclass(frozen=True)
class Trial:
    """A random program in float64 with arguments for it."""

    text: str
    definition: Def
    args: Values
    initial: dict[str, Tensor]
    values: dict[str, int]  # of its sizes and integer scalars


def trial(seed: int) -> Trial | None:
    """The program of a number; None where it has no derivative: no float, no parameter that a result depends on, faults by intent."""
    case = draw(random.Random(seed))
    text = re.sub(r"\b(bfloat16|float16|float32|half|float|double)\b", "float64", case.text)
    if case.faults:
        return None
    try:
        definition = read(text)[-1]
    except CheckError:  # what float32 needs may be too much for float64: a comparison of types, a return's type
        return None
    dtypes = {p.name: p.dtype for p in definition.params}
    args: Values = {}
    for position, (name, shape) in enumerate(case.shapes.items()):
        array = np.asarray(case.fills[name].array(shape))
        if dtypes[name] == "float64":
            args[name] = torch.clamp(seeded(shape, 1000 * seed + position), -1.5, 1.5)
        else:
            args[name] = torch.from_numpy(array.astype(np.int64) if dtypes[name] in ("uint16", "uint32", "uint64") else array)
    for name, value in case.scalars.items():
        args[name] = torch.tensor(float(value), dtype=torch.float64) if dtypes[name] == "float64" else value
    whole = {name: int(args[name]) for name in definition.specialised if name in args}
    program = specialise(definition, case.shapes, whole)
    initial = {}
    for name, fill in case.initial.items():
        made = torch.from_numpy(np.array(fill.array(program.shape(name)))).reshape(program.shape(name))
        initial[name] = made.double() if definition.tensor(name).dtype == "float64" else made
    integers = {name: int(v) for name, v in case.scalars.items() if dtypes[name] not in ("float64", "bool")}
    return Trial(text, definition, args, initial, {**dict(program.sizes), **integers})


def _has_great(args: Values) -> bool:
    """Whether an argument is so great that terms which cancel leave what their order makes of them."""
    return any(bool((value.double().abs() > GREAT).any()) for value in args.values() if isinstance(value, Tensor))


def soak_derivatives(count: int, seed: int, jobs: int, seconds: float | None) -> int:
    """Judge so many random programs in processes of their own, and print what is wrong; 1 where something is."""
    torch.set_num_threads(1)
    until = math.inf if seconds is None else time.monotonic() + seconds
    run, wrong = 0, 0
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        for what in pool.imap_unordered(_judged, range(seed * 1_000_000, seed * 1_000_000 + count)):
            run += 1
            if what:
                wrong += 1
                print(what, flush=True)
            if time.monotonic() > until:
                pool.terminate()
                break
    print(f"{run} run, {wrong} failed, seed {seed}")
    return 1 if wrong else 0


def _judged(seed: int) -> str:
    try:
        return second_order_failure(seed) if seed % 4 == 0 else failure(seed)
    except Exception as error:
        if "can't allocate memory" in str(error):  # the interpreter has all terms at once, those of products by pairs
            return ""
        return f"seed {seed}: {type(error).__name__}: {error}"


def failure(seed: int) -> str:
    """What is wrong with the adjoint of a random program, by the interpreter's graph; empty where nothing is, or nothing can be told."""
    made = trial(seed)
    if made is None or _has_great(made.args):
        return ""
    definition = made.definition
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in {**made.args, **made.initial}.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    given = {name: leaves.get(name, value) for name, value in made.args.items()}
    try:
        results = interpret(definition, given, {name: leaves.get(name, value) for name, value in made.initial.items()})
        floats = {name: result for name, result in results.items() if result.requires_grad}
        # the two differ at NaN maxima, and autograd does not see that terms of great numbers cancel
        if not floats or any(bool((torch.isnan(result) | (result.abs() > GREAT)).any()) for result in floats.values()):
            return ""
        w = {name: seeded(result.shape, place) for place, (name, result) in enumerate(results.items()) if result.is_floating_point()}
        total = _total(floats.values(), (w[name] for name in floats))
        wanted = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except (Unsupported, RuntimeError, NotImplementedError, OverflowError):  # beyond the judge: a type, or a derivative that PyTorch lacks
        return ""
    try:
        written, hints = made.values if seed % 2 else None, SizeHints(made.values if seed % 3 else {})
        adjoint = differentiate(definition, list(leaves), values=written, size_hints=hints)
    except CheckError as error:
        return "" if "no derivative in the language" in str(error) else f"seed {seed}: {error}\n{made.text}"
    args = {**given, **results, **{adjoint.cotangents[name]: value for name, value in w.items() if name in adjoint.cotangents}}
    args.update({parameter: leaves.get(name, made.initial[name]) for name, parameter in adjoint.initial.items()})
    args = {name: value.detach() if isinstance(value, Tensor) else value for name, value in args.items()}
    got = interpret(adjoint.definition, args)
    for name, gradient in zip(leaves, wanted):
        want = torch.zeros_like(leaves[name]) if gradient is None else gradient
        apart = distance(got[adjoint.gradients[name]].reshape(want.shape), want)
        if apart > 1e-6:
            return f"seed {seed}: the gradient by {name} differs by {apart}\n{made.text}\n{adjoint.text}"
    return ""


def second_order_failure(seed: int) -> str:
    """The same for the adjoint of the adjoint."""
    made = trial(seed)
    if made is None or made.initial or _has_great(made.args):
        return ""
    try:
        results = interpret(made.definition, made.args)
        wanted = gradients(lambda given: interpret(made.definition, given), made.args, 2)
    except (Unsupported, RuntimeError, NotImplementedError, OverflowError):
        return ""
    if any(bool(torch.isnan(result).any()) for result in results.values()):  # the two differ at NaN maxima
        return ""
    if any(bool((torch.isnan(value) | (value.abs() > GREAT)).any()) for order in wanted for value in order):
        return ""
    try:
        got = gradients(Differentiable(made.definition), made.args, 2)
    except CheckError as error:
        return "" if "no derivative in the language" in str(error) else f"seed {seed}: {error}\n{made.text}"
    apart = [max(map(distance, one, other), default=0.0) for one, other in zip(got, wanted, strict=True)]
    return f"seed {seed}: the orders differ by {apart}\n{made.text}" if max(apart) > 1e-5 else ""
