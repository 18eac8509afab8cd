"""Schedule trees of GPU kernels written by hand, the sources that they become, and what these compute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.mapping import program
from support.rings.cuda_host import Array, Host
from tcjit.codegen.dialect import CUDA, GpuDialect
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.codegen.source import Source
from tcjit.mapping import tree as trees
from tcjit.mapping.gpu_nest import LaunchBounds
from tcjit.mapping.machine import SM_90, Device
from tcjit.mapping.marks import Launch
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, build_scop
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer

# marks by name, bands as lists of members (one text, or statement -> text), and last perhaps a sequence: statements -> what stands below
Member = str | Mapping[str, str]
Path = Sequence["str | list[Member] | dict[str, Path]"]


def tree(scop: Scop, path: Path) -> Any:
    """A schedule tree of all statements from its nodes, top down."""
    whole: dict[str, Any] = {"domain": str(scop.domain)}
    whole["child"] = _node(scop, [s.name for s in scop.statements], path)
    return trees.read(scop.ctx, json.dumps(whole))


def _node(scop: Scop, names: Sequence[str], path: Path) -> dict[str, Any]:
    head, *rest = path
    if isinstance(head, dict):
        children = []
        for listed, below in head.items():
            child: dict[str, Any] = {"filter": "{ " + "; ".join(scop.statement(name).tuple_text for name in listed.split()) + " }"}
            if below:
                child["child"] = _node(scop, listed.split(), below)
            children.append(child)
        return {"sequence": children}
    made: dict[str, Any] = {"mark": head}
    if isinstance(head, list):
        members = []
        for member in head:
            texts = {name: member if isinstance(member, str) else member[name] for name in names}
            members.append("{ " + "; ".join(f"{scop.statement(name).tuple_text} -> [({text})]" for name, text in texts.items()) + " }")
        made = {"schedule": f"[{', '.join(members)}]"}
    if rest:
        made["child"] = _node(scop, names, rest)
    return made


def mapped(
    text: str,
    shapes: Mapping[str, tuple[int, ...]],
    path: Path,
    *,
    threads: Sequence[int],
    buffers: Sequence[Buffer] = (),
    layouts: Mapping[str, str] | None = None,
    scalars: Mapping[str, int] | None = None,
) -> Mapped:
    """A program on a tree written by hand; ``threads`` of each launch, in order."""
    scop = build_scop(program(text, shapes, scalars), Options(vector_width=1, pack=False, reduction_chunks=1), layouts)
    launches = tuple(LaunchBounds(Launch(number), count) for number, count in enumerate(threads))
    return Mapped(scop, tree(scop, path), tuple(buffers), Options(vector_width=1), False, launches)


def source(made: Mapped, dialect: GpuDialect = CUDA, device: Device = SM_90, *, checked: bool = True, **changes: Any) -> Source:
    """What a mapped program becomes; ``changes`` are those of the device."""
    return emit_gpu(made, dialect, dataclasses.replace(device, **changes), checked=checked)


def lines(made: Source, number: int = 0) -> list[str]:
    """The lines of a kernel, from its signature on, without indentation."""
    text = made.text[made.text.index(f" {made.launches[number].symbol}(") :]
    return [line.strip() for line in text[: text.index("\n}\n")].splitlines()]


def run(made: Source, outputs: Sequence[Array], inputs: Sequence[Array], numbers: Sequence[int | float] = ()) -> int:
    """Run CUDA text on the host; the outputs hold no values before. Returns the flag."""
    arrays = [*outputs, *(np.ascontiguousarray(each) for each in inputs)]
    return Host(made.text).run(made.launches, arrays, numbers, made.workspace, unset=range(len(outputs)))
