"""Groups: statements that share outer loops, which the model plans and the passes carry out as one."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.mapping.scop import Scop


@dataclass(frozen=True)
class Group:
    """Statements in program order and the columns that they share: per column, statement -> dimension."""

    statements: tuple[str, ...]
    columns: tuple[dict[str, str], ...]

    def rest(self, scop: Scop, statement: str) -> tuple[str, ...]:
        """The dimensions of a statement that stay inside."""
        shared = {column[statement] for column in self.columns}
        return tuple(d for d in scop.statement(statement).dims if d not in shared)
