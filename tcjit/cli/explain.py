"""``tcjit explain``: what the compiler makes of a def, stage by stage, without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

import tcjit
from tcjit.cli.sizes import definition, sizes
from tcjit.errors import ArgumentError
from tcjit.grammar.ast import Def
from tcjit.grammar.bind import bind
from tcjit.grammar.differentiate import differentiate
from tcjit.grammar.infer import explain_ranges
from tcjit.jit import example_inputs
from tcjit.jit.kernel import Kernel
from tcjit.mapping import tree as trees
from tcjit.mapping.options import Options
from tcjit.step import Steps


class Stage(str, Enum):
    """The representations that can be printed, in the order of compilation; ``gradient``, a def of its own, only where it is asked for."""

    ranges = "ranges"
    domains = "domains"
    dependences = "dependences"
    options = "options"
    tree = "tree"
    code = "code"
    gradient = "gradient"


def explain(text: str, shapes: str | None, name: str | None, stage: Stage | None, target: str = "cpu") -> list[tuple[Stage, str]]:
    """The stages asked for (by default all but the gradient) with their texts. Ranges are symbolic and need no shapes; a gradient has the
    numbers of shapes that are given."""
    chosen = definition(text, name)
    if stage is Stage.gradient:
        return [(stage, _gradient(chosen, shapes))]
    wanted = [each for each in Stage if each is not Stage.gradient] if stage is None else [stage]
    texts: dict[Stage, str] = {}
    if Stage.ranges in wanted:
        texts[Stage.ranges] = explain_ranges(chosen)
    if wanted != [Stage.ranges]:
        if shapes is None:
            raise ArgumentError("only the ranges can be explained without sizes", hint="--shapes 'A=128x128,...', or --stage ranges")
        values = sizes(chosen, shapes)
        function = getattr(tcjit.define(text, target=target), chosen.name)
        kernel = function.compile(*example_inputs.shape_only(chosen, values.shapes, values.scalars))
        artifacts = _texts(kernel)
        texts.update(
            {
                Stage.domains: artifacts["scop"],
                Stage.dependences: artifacts.get("dependences", "none: no statement has an instance at these sizes"),
                Stage.options: _options(kernel),
                Stage.tree: artifacts["tree"],
                Stage.code: artifacts["source"],
            }
        )
    return [(s, texts[s]) for s in wanted]


def _gradient(chosen: Def, shapes: str | None) -> str:
    """The text of the adjoint."""
    if shapes is None:
        return differentiate(chosen).text
    values = sizes(chosen, shapes)
    integers = {name: int(value) for name, value in values.scalars.items() if name in chosen.specialised}
    return differentiate(chosen, values={**bind(chosen.params, [values.shapes.get(p.name) for p in chosen.params]), **integers}).text


def _texts(kernel: Kernel) -> Mapping[str, str]:
    """The texts of a kernel's compilation; made again where the same program in other words was compiled."""
    if kernel.record["spelling"] == kernel.signature.spelling:
        return kernel.artifacts
    steps = Steps(kernel.signature.name)
    layouts = dict(zip((p.name for p in kernel.signature.params if p.dims), kernel.key.layouts))
    asked = Options.from_dict(kernel.record["asked"])
    mapped, source = kernel.key.target.emit(kernel.program, asked, layouts, checked=kernel.key.checked, prove="none", steps=steps)
    return {**steps.artifacts, "tree": trees.show(mapped.tree), "source": source.text}


def _options(kernel: Kernel) -> str:
    """The origin of a kernel's options, and the options that are not the default."""
    default, used = Options().to_dict(), kernel.options.to_dict()
    changed = [f"  {name} = {json.dumps(value)}" for name, value in used.items() if value != default[name]]
    return "\n".join([kernel.record["origin"], *changed])
