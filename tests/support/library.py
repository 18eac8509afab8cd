"""Library operators against the PyTorch expression that stands above each def."""
from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import util
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tcjit
from support import TESTS
from support.compare import assert_agree, decided
from support.fuzz.kernels import changed_device, device
from support.fuzz.options import changed, drawn, refused
from support.rings.targets import everywhere, on
from tcjit import library
from tcjit.errors import MappingError
from tcjit.grammar import front
from tcjit.grammar.ast import Param
from tcjit.grammar.infer import specialise
from tcjit.mapping.options import Options
from tcjit.runtime import reference
from tcjit.runtime.tensors import TORCH

Draw = Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]
SLACK = 2  # PyTorch's float64 result has an error of its own, of the same size
CUDA = "tests/cuda/test_cuda_library.py has every operator on a GPU"
NAMES = library.names()
TARGETS = ["reference", *everywhere(cuda=CUDA)]


def below(bound: int) -> Draw:
    """Indices in 0:bound."""
    return lambda random, shape: torch.randint(0, bound, shape, generator=random)


def between(low: float, high: float) -> Draw:
    return lambda random, shape: torch.rand(shape, generator=random, dtype=torch.float64) * (high - low) + low


def normal(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64)


def coin(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, generator=random) < 0.5


def distribution(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Rows of probabilities."""
    return torch.softmax(normal(random, shape), -1)


@dataclass(frozen=True)
class Case:
    """One operator at one size; ``draws`` replaces the normal distribution for single inputs."""

    name: str
    sizes: Mapping[str, int]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Draw] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = {**self.sizes, **self.scalars}
        return "-".join([self.name, *(f"{name}{value}" for name, value in facts.items())])


def cases(
    name: str, *sizes: Mapping[str, int], scalars: Mapping[str, Any] | None = None, draws: Mapping[str, Draw] | None = None
) -> list[Case]:
    """One operator at several sizes."""
    return [Case(name, one, scalars or {}, draws or {}) for one in sizes]


def runs(all_cases: Iterable[Case]) -> list[Any]:
    """Parameters ``case, dtype, target``: every case on the reference in both wide types and compiled for the CPU in float32; because
    compiling takes most of the time, only the last of each operator in float64, and on one GPU target in turn. On the other one
    ``tests/end_to_end/test_library_options.py`` has the operator. The suite itself compiles the first and the last for the CPU."""
    listed = list(all_cases)
    chosen = [(case, dtype, "reference") for case in listed for dtype in ("float64", "float32")]
    chosen += [(case, "float32", "cpu") for case in listed]
    last = {case.name: case for case in listed}.values()
    chosen += [(case, "float64", "cpu") for case in last]
    chosen += [(case, "float32", "opencl" if case.name in NAMES[::2] else "cuda_host") for case in last]
    ends = [*last, *{case.name: case for case in reversed(listed)}.values()]
    between = [target == "cpu" and case not in ends for case, _, target in chosen]
    return [on(target, case, dtype, marks=[pytest.mark.whole] * left) for left, (case, dtype, target) in zip(between, chosen)]


def documented(name: str) -> str:
    """The PyTorch expression in the comment above the def; fails where the comment has not its three lines."""
    comment = re.search(rf"((?:^#[^\n]*\n)+)def {name}\(", library.source(name), re.MULTILINE)
    assert comment, f"{name} has no comment"
    lines = comment[1].splitlines()
    assert len(lines) == 3 and lines[2].startswith("# PyTorch: "), f"{name}: what, shapes, PyTorch in three lines"
    return lines[2].removeprefix("# PyTorch: ")


def inputs(case: Case, params: tuple[Param, ...], dtype: str) -> dict[str, torch.Tensor]:
    """The tensors of a call, the same for the same case: floating ones of ``dtype``."""
    random = torch.Generator().manual_seed(len(str(case)))
    made = {}
    for param in params:
        if param.dims:
            shape = tuple(case.sizes[dim] if isinstance(dim, str) else dim for dim in param.dims)
            drawn = case.draws.get(param.name, normal)(random, shape)
            made[param.name] = drawn.to(TORCH[param.dtype])
    return made


def wide(value: torch.Tensor) -> torch.Tensor:
    """float64, int64 or bool: what PyTorch takes everywhere."""
    return value.double() if value.is_floating_point() else value if value.dtype == torch.bool else value.long()


def expected(case: Case, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What the documented expression gives in float64."""
    names = {"torch": torch, "F": F, **{name: wide(tensor) for name, tensor in tensors.items()}, **case.scalars}
    result = eval(documented(case.name), names)
    return result if isinstance(result, tuple) else (result,)


def assert_agrees(
    case: Case,
    dtype: str,
    target: str,
    index: str = "int64",
    options: Options | None = None,
    changes: Mapping[str, int] | None = None,
) -> None:
    """Run a case on a target and hold it against PyTorch in float64, by the language's rule on tolerances.

    Half types are held against the reference. ``changes`` are those of a GPU target's device.
    """
    __tracebackhide__ = True
    definition = front.read(library.source(case.name, dtype, index))[-1]
    tensors = inputs(case, definition.params, dtype)
    arrays = {name: wide(tensor).numpy() if tensor.is_floating_point() else tensor.numpy() for name, tensor in tensors.items()}
    whole = {name: case.scalars[name] for name in definition.specialised if name in case.scalars}
    program = specialise(definition, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, whole)
    oracle = reference.run(program, arrays, case.scalars)
    if target == "reference":
        results = [torch.from_numpy(np.asarray(oracle.values[name])) for name in definition.returns]
    else:
        arguments = [tensors[param.name] if param.dims else case.scalars[param.name] for param in definition.params]
        with changed_device(changes or {}):
            out = getattr(tcjit.define(library.source(case.name, dtype, index), target=target, options=options), case.name)(*arguments)
        results = list(out) if isinstance(out, tuple) else [out]
    wanted = expected(case, tensors)
    assert len(results) == len(wanted)
    for name, result, want in zip(definition.returns, results, wanted):
        facts = torch.finfo(TORCH[definition.tensor(name).dtype])
        assert target == "reference" or result.dtype == TORCH[definition.tensor(name).dtype], name
        value = want.double().numpy()
        stored = facts.eps * np.abs(value) + facts.smallest_normal * facts.eps  # PyTorch's value is not rounded to the type
        allowed = reference.Result({name: value}, {name: SLACK * oracle.error[name] + stored})
        if dtype in ("float16", "bfloat16"):  # a def of several statements rounds between them, which PyTorch's float64 does not
            allowed = oracle
        assert decided(allowed) == 1, f"{case}: nothing is known of some elements of {name}"
        assert_agree(result.double().numpy(), allowed, name)


@cache
def listed() -> dict[str, tuple[Case, ...]]:
    """The cases that the tests of the library list, by operator, the first one first."""
    found: dict[str, list[Case]] = {name: [] for name in library.names()}
    for path in sorted((TESTS / "library").glob("test_*.py")):
        spec = util.spec_from_file_location(f"listed_{path.stem}", path)
        assert spec and spec.loader
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for value in vars(module).values():
            for case in value if isinstance(value, list) else []:
                if isinstance(case, Case) and case not in found[case.name]:
                    found[case.name].append(case)
    return {name: tuple(cases) for name, cases in found.items()}


def assert_agrees_drawn(name: str, target: str, rng: random.Random) -> str:
    """Run an operator with options of its own on a target; what was drawn, in words.

    The case, the type and the device are drawn as well; options that the device cannot serve are drawn again.
    """
    kind = "opencl" if target == "opencl" else "cuda"
    while True:
        case, dtype = rng.choice(listed()[name]), rng.choice(("float32", "float32", "float32", "float64", "float16", "bfloat16"))
        options, changes = drawn(rng, kind), device(rng)
        what = f"{case} {dtype} {target} {changed(options)} {changes}"
        try:
            assert_agrees(case, dtype, target, options=options, changes=changes)
        except MappingError as error:
            if not refused(f"MappingError: {error}"):
                raise AssertionError(f"{what}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            return what


def assert_family_covered(family: str, all_cases: list[Case]) -> None:
    """Every operator of a family has a case."""
    listed = {case.name for case in all_cases}
    missing = [name for name in library.families()[family] if name not in listed]
    assert not missing, f"{family}: no case of {', '.join(missing)}; add cases(name, sizes)"
    assert listed <= set(library.families()[family]), f"{family} has no {', '.join(listed - set(library.families()[family]))}"
