"""The reference as a target: the program as written, interpreted."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit.errors import ArgumentError
from tcjit.jit.targets import KINDS, LoadedKernel, Target, single

if TYPE_CHECKING:
    from tcjit.codegen.source import Source
    from tcjit.grammar.ast import Program
    from tcjit.mapping.pipeline import Mapped


@dataclass(frozen=True)
class Reference(Target):
    name = "reference"
    device_type = device = "cpu"
    interpreted = True

    def layout(self, shape: Sequence[int], strides: Sequence[int]) -> str:
        return "contiguous"  # it reads any

    def reads(self, layout: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        return True

    def emit(self, *_: Any, **__: Any) -> tuple[Mapped, Source]:
        raise ArgumentError("the reference is not compiled", hint='target="cpu"')

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        raise ArgumentError("the reference is not compiled", hint='target="cpu"')

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        raise ArgumentError("the reference is not loaded", hint='target="cpu"')


KINDS["reference"] = lambda detail, device: single(detail, Reference())
