"""``tcjit explain``: what the compiler makes of a def, stage by stage, without running it."""

from __future__ import annotations

from enum import Enum

import tcjit
from tcjit.cli.sizes import definition, sizes
from tcjit.errors import ArgumentError
from tcjit.grammar.infer import explain_ranges
from tcjit.jit import samples


class Stage(str, Enum):
    """What there is to see, in the order in which the compiler makes it."""

    ranges = "ranges"
    domains = "domains"
    dependences = "dependences"
    tree = "tree"
    code = "code"


def explain(text: str, shapes: str | None, name: str | None, stage: Stage | None, target: str = "cpu") -> list[tuple[Stage, str]]:
    """The stages asked for (all of them by default) with their texts. Ranges are symbolic and need no shapes."""
    chosen = definition(text, name)
    wanted = list(Stage) if stage is None else [stage]
    texts: dict[Stage, str] = {}
    if Stage.ranges in wanted:
        texts[Stage.ranges] = explain_ranges(chosen)
    if wanted != [Stage.ranges]:
        if shapes is None:
            raise ArgumentError("only the ranges can be explained without sizes", hint="--shapes 'A=128x128,...', or --stage ranges")
        given = sizes(chosen, shapes)
        function = getattr(tcjit.define(text, target=target), chosen.name)
        kernel = function.compile(*samples.shape_only(chosen, given.shapes, given.scalars))
        texts.update(
            {
                Stage.domains: kernel.artifacts["scop"],
                Stage.dependences: kernel.artifacts.get("dependences", "none: no statement has an instance at these sizes"),
                Stage.tree: kernel.tree,
                Stage.code: kernel.source,
            }
        )
    return [(s, texts[s]) for s in wanted]
