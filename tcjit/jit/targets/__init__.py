"""Targets, which kernels are compiled for and run on: a class per kind, found by name.

A target says on which tensors it works, what its binaries depend on, how a program becomes one, and how one is launched. Calls,
cache, operators and the command ask it, and name no target themselves. Importing this imports neither torch nor isl nor a GPU's
packages; a target does when it needs them.
"""
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tcjit.errors import ArgumentError
from tcjit.layout import fits, layout_class

if TYPE_CHECKING:
    import torch

    from tcjit.codegen.source import Source
    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps


class LoadedKernel(Protocol):
    """A loaded kernel: runs on plain tensors and 64-bit patterns, and returns the number of the site that failed, or 0.

    ``address`` is that of machine code which the C launcher may call itself, 0 where there is none. A target that does not wait
    returns 0, and raises what failed when it is synchronised.
    """

    @property
    def address(self) -> int: ...

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int: ...


@dataclass(frozen=True)
class Workspace:
    """Bytes of workspace of a call: ``fixed``, or the number in ``slot``."""

    fixed: int
    slot: int = -1

    @staticmethod
    def of(record: Mapping[str, Any]) -> Workspace:
        kernel = len(record["numbers"]) - record["host"]
        slots = [slot for slot, (_, name, _) in enumerate(record["numbers"]) if slot >= kernel and name == "workspace"]
        return Workspace(record["workspace"], slots[0] if slots else -1)

    def bytes(self, numbers: Sequence[int]) -> int:
        return self.fixed if self.slot < 0 else numbers[self.slot]


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program: schedule tree, generated text, the bytes that ``Target.load`` takes, and the compiler's report of resources."""

    mapped: Mapped
    source: Source
    binary: bytes
    resources: Mapping[str, Any] = field(default_factory=dict)


class Target(ABC):
    """A machine, or a kind of machine; subclasses are frozen dataclasses."""

    name: str  # as a user says it
    device_type: str  # of the torch device that its tensors are on; nothing: any, since no kernel runs
    device: str  # that device, with its number
    interpreted = False  # whether the reference runs the program, and nothing is compiled
    supports_dynamic = False  # whether one of its kernels can serve many values of a size
    first_launch_slack = math.inf  # seconds by which a first launch may take longer than later ones, where drivers load or compile

    @property
    def code(self) -> str:
        """What its binaries are for, in the key of the cache."""
        return self.name

    @property
    def option_kind(self) -> str:
        """Key into ``Option.targets``: cpu, cuda or opencl."""
        return self.name.partition(":")[0]

    def pinned(self) -> Target:
        """This target with its device decided, where that is the current one."""
        return self

    def identity(self) -> str:
        """Compiler, flags and driver, on which its binaries depend beside ``code``."""
        return ""

    def hardware(self) -> str:
        """The device that options are tuned for, whatever compiles for it."""
        return ""

    def layout(self, shape: Sequence[int], strides: Sequence[int]) -> str:
        """The class of layouts that a kernel is made for."""
        return layout_class(shape, strides)

    def reads(self, layout: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a kernel made for ``layout`` reads a tensor of these strides."""
        return fits(layout, shape, strides)

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Whether a kernel takes a plain tensor where it lies; a contiguous one that does not suit is copied."""
        return True

    def compile(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> CompiledProgram:
        """Map, print and compile a program; TCErrors of those stages."""
        mapped, source = self.emit(program, options, layouts, checked=checked, prove=prove, steps=steps)
        binary, resources = steps.run("compile", self.build, source, program)
        return CompiledProgram(mapped, source, binary, resources)

    def seeds(self, program: Program, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
        """Where a search for the best options may begin, beside the untuned default."""
        return []

    @abstractmethod
    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        """Map a program and print it."""

    @abstractmethod
    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        """The bytes that ``load`` takes, and the compiler's report of resources; a CompileError if it refuses."""

    @abstractmethod
    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        """The kernel whose launch record and binary these are."""

    def repeated(
        self, launch: LoadedKernel, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]
    ) -> Callable[[], int]:
        """What makes the same launch again and again to time it, with no more around it than a call has."""
        return partial(launch, outs, inputs, numbers)


# how the targets of a kind are made: from what stands behind the colon, and the device of the tensors ("" where there are none)
TargetFactory = Callable[[str, str], Target]
KINDS: dict[str, TargetFactory] = {}
_MODULES = {kind: f"tcjit.jit.targets.{kind}" for kind in ("cpu", "cuda", "opencl", "reference")}  # each registers its kind
_BY_DEVICE = {"cpu": "cpu", "cuda": "cuda"}
# by kind, where a call returns before its kernels are done: waits for them, and raises what they flagged
WAITS: dict[str, Callable[[], None]] = {}


def known() -> list[str]:
    """The kinds that there are."""
    return sorted({*KINDS, *_MODULES})


def find(name: str, device: str = "") -> Target:
    """The target called ``name`` for tensors on ``device``; an ArgumentError where there is none of that name."""
    kind, _, detail = name.partition(":")
    if kind not in KINDS and kind in _MODULES:
        import_module(_MODULES[kind])
    if kind not in KINDS:
        raise ArgumentError(
            f"there is no target {name!r}",
            hint=f'{", ".join(known())}, an architecture as in "cuda:sm_90", or None for the device of the arguments',
        )
    return KINDS[kind](detail, device)


def resolve(asked: str | None, devices: Iterable[str]) -> Target:
    """The target of a call on tensors of these devices; meta tensors are nowhere."""
    device = next((d for d in devices if d != "meta"), "")
    return find(asked or _BY_DEVICE[device.partition(":")[0] or "cpu"], device)


def single(detail: str, target: Target) -> Target:
    """The one target of a kind that has no others; an ArgumentError where more was asked for."""
    if detail:
        raise ArgumentError(f'there is no target "{target.name}:{detail}"', hint=f'"{target.name}"')
    return target


def synchronize() -> None:
    """Wait for the kernels in flight on every target, and raise what they flagged."""
    for wait in list(WAITS.values()):
        wait()
