"""A random program through the public API: called on torch tensors of any layout, and compared with the reference."""
from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import numpy as np
import torch

from support.cases import Case
from support.compare import assert_agree
from support.fuzz.kernels import changed_device
from support.fuzz.options import threads_for_all
from tcjit import synchronize
from tcjit.errors import DivisionError, GatherError, TCError
from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Program
from tcjit.grammar.walk import walk
from tcjit.jit import targets
from tcjit.jit.call import function
from tcjit.runtime.numerics import Array


def tensor(array: Array, dtype: str) -> torch.Tensor:
    """An array of the reference as a contiguous tensor."""
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).to(getattr(torch, dtype))


def array(given: torch.Tensor) -> Array:
    """A tensor as the reference has it: floats as float64."""
    result: Array = (given.double() if given.is_floating_point() else given).cpu().numpy()
    return result


def laid_out(given: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The same elements, perhaps through other strides: transposed memory, every second element, a dimension of stride 0."""
    roll = rng.random()
    if given.dim() == 0 or roll < 0.6:
        return given
    if roll < 0.75 and given.dim() > 1:
        return given.transpose(0, -1).contiguous().transpose(0, -1)
    wide = torch.zeros([*given.shape[:-1], 2 * given.shape[-1] + 1], dtype=given.dtype, device=given.device)
    view = wide[..., 1::2][..., : given.shape[-1]]
    view.copy_(given)
    return view


def call(case: Case, program: Program, target: str, layouts: bool = True, unchecked: bool = False) -> dict[str, Array]:
    """The results of the last def, by name."""
    definition, place = program.definition, targets.find(target).device
    rng = random.Random(zlib.crc32(case.text.encode()))
    inputs = case.inputs()
    args: list[object] = []
    for param in definition.params:
        if param.dims:
            plain = tensor(inputs[param.name], param.dtype).to(place)
            args.append(laid_out(plain, rng) if layouts else plain)
        else:
            args.append(case.scalars[param.name])
    out = None
    if case.initial:
        given = case.outputs(program)
        out = []
        for name in definition.returns:
            dtype, shape = definition.tensor(name).dtype, program.shape(name)
            empty = torch.empty(shape, dtype=getattr(torch, dtype), device=place)
            out.append(tensor(given[name], dtype).to(place) if name in given else empty)
        out = out[0] if len(out) == 1 else tuple(out)
    options = case.options if target != "reference" else None
    with threads_for_all() if options is not None else nullcontext(), changed_device(case.device):
        called = function(case.text, definition.name, target, options, case.dynamic)
        results = called(*args, out=out, unchecked=unchecked)
    synchronize()  # raises what a GPU found
    results = results if isinstance(results, tuple) else (results,)
    return {name: array(result) for name, result in zip(definition.returns, results, strict=True)}


def right_cases(draw: Callable[[random.Random], Case], numbers: Iterable[int]) -> Iterator[Case]:
    """The random programs with these numbers, each of which is right on the CPU."""
    for number in numbers:
        case = draw(random.Random(f"{draw.__name__} {number}"))
        try:
            assert_right(case, "cpu")
        except (AssertionError, TCError) as error:
            raise AssertionError(f"program {number}: {error}\n{case}\n{case.text}") from error
        yield case


def assert_right(case: Case, target: str) -> None:
    """AssertionError unless ``target`` agrees with the reference, or both refuse the same data; a TCError where it cannot be run.

    Where a gather or a division may go wrong at several places, a target is free to name any; divisions are then compared unchecked.
    """
    program = case.program()
    try:
        expected = case.expected(program)
    except (GatherError, DivisionError) as fault:
        assert case.faults, f"the reference faults where no fault was drawn: {fault}"
        try:
            call(case, program, target)
        except (GatherError, DivisionError):
            pass
        else:
            raise AssertionError(f"the reference raises {type(fault).__name__}, {target} does not: {fault}") from None
        if case.faults == "gather" or isinstance(fault, GatherError) or _gathers(program):
            return  # unchecked, a bad index reads whatever is there, and a divisor of zero may hide one
        expected = case.expected(program, checked=False)
    actual = call(case, program, target, unchecked=case.faults == "division")
    for name in program.definition.returns:
        assert_agree(actual[name], expected, name)


def _gathers(program: Program) -> bool:
    """Whether a subscript depends on data."""
    reads = (node for s in program.definition.statements for node in walk(s.value) if isinstance(node, Access))
    return any(is_gather(subscript) for read in reads for subscript in read.subscripts)


def failure(case: Case, target: str) -> str:
    """What is wrong with ``target`` on a case, as a line that begins with its kind; empty where nothing is.

    A case that is not valid any more fails for nobody.
    """
    try:
        case.program()
    except TCError:
        return ""
    except Exception as error:
        return f"{type(error).__name__} in the grammar: {error}"
    try:
        assert_right(case, target)
    except AssertionError as error:
        return f"mismatch: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
