"""Where the ranges of a def come from, as a table for people."""
from __future__ import annotations

from dataclasses import replace

from tcjit.grammar import show
from tcjit.grammar.ast import Def
from tcjit.grammar.ranges import Step, Subscript, analyse


def explain_ranges(definition: Def) -> str:
    """Statement by statement, each index of an inferred def with its range, what it is for, and the clause or access that gave it.

    >>> from tcjit.grammar.front import read
    >>> print(explain_ranges(read("def f(float(N) I, float(K) W) -> (O) { O(i) +=! I(i + k) * W(k) }")[0]))
    O(i) +=! I(i + k) * W(k)
      i  0:N - K + 1  left       I(i + k)
      k  0:K          reduction  W(k)
    output O(N - K + 1)
    """
    lines: list[str] = []
    known = {tensor.name for tensor in definition.tensors if tensor.role == "input"}
    for statement in definition.statements:
        steps = {step.index: step for step in analyse(statement, known).steps}
        lines.append(show.show(replace(statement, domain=(), clauses=())))
        rows = [
            (
                found.index,
                f"{show.extent(found.lower)}:{show.extent(found.upper)}",
                "reduction" if found.index in statement.reduction else "left",
                _sources(steps[found.index]),
            )
            for found in statement.domain
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
        lines += ["  " + "  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]) for row in rows]
        known.add(statement.tensor)
    for tensor in definition.tensors:
        extents = ", ".join(map(show.extent, tensor.shape))
        if tensor.role != "input":
            lines.append(f"{tensor.role} {tensor.name}({extents})")
    return "\n".join(lines)


def _sources(step: Step) -> str:
    given = [f"where {show.show(clause)}" for clause in step.clauses] + [_source(s) for s in step.subscripts]
    return ", ".join(dict.fromkeys(given))


def _source(subscript: Subscript) -> str:
    text = show.show(subscript.access)
    return text if subscript.role == "read" else f"{'written' if subscript.role == 'write' else 'exists'} {text}"

