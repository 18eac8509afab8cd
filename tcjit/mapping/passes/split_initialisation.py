"""Split initialisation: a reduction that starts from a value becomes an assignment of that value and an update."""

from __future__ import annotations

from dataclasses import replace

from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite


def split_initialisation(before: Assignments) -> Assignments:
    """Plain assignments and updates, none of them over an empty box."""

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        parts = [replace(a, start=None)]
        if a.start is not None:
            started = replace(a, operator="=", value=a.start, bounds=a.results, reduction=(), start=None, constraints=a.start_constraints)
            parts.insert(0, started)
        return [part for part in parts if not part.empty]

    return rewrite(before, visit)
