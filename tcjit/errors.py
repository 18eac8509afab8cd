"""Every error a user can meet: what happened, where, with which sizes, and what to try."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A span of a program's text; lines and columns count from 1, ``line_text`` is the whole source line."""

    line: int
    column: int
    length: int = 1
    line_text: str = ""

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def caret(self) -> str:
        """The source line with the span underlined.

        >>> print(Where(1, 3, 2, "A = b").caret())
        A = b
          ^^
        """
        pad = "".join("\t" if c == "\t" else " " for c in self.line_text[: self.column - 1])
        return f"{self.line_text}\n{pad}{'^' * max(1, min(self.length, len(self.line_text) - self.column + 1))}"


class TCError(Exception):
    """Root of all user-facing errors.

    ``what`` says what is wrong, ``where`` points into the program's text, ``sizes`` holds the sizes involved and
    ``hint`` what to try; all of them appear in ``str(error)``.
    """

    def __init__(
        self,
        what: str,
        *,
        where: Where | None = None,
        sizes: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        self.what = what
        self.where = where
        self.sizes = dict(sizes or {})
        self.hint = hint
        lines = [f"{where}: {what}" if where else what]
        if where and where.line_text:
            lines += ["    " + line for line in where.caret().split("\n")]
        if self.sizes:
            lines.append("sizes: " + ", ".join(f"{name} = {value}" for name, value in self.sizes.items()))
        if hint:
            lines.append("try: " + hint)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.sizes, self.hint)


def _rebuild(kind: type[TCError], what: str, where: Where | None, sizes: dict[str, int], hint: str) -> TCError:
    return kind(what, where=where, sizes=sizes, hint=hint)


class ParseError(TCError):
    """The text is not in the language's grammar."""


class CheckError(TCError):
    """The program is grammatical but has no meaning: an unknown name, a type that does not fit, a range that nothing gives."""


class ShapeError(TCError, ValueError):
    """The sizes of a call do not fit the program."""


class ArgumentError(TCError, TypeError):
    """Wrong number, kind, dtype, rank or device of the arguments."""


class GatherError(TCError, IndexError):
    """A data-dependent index lay outside its tensor."""


class DivisionError(TCError, ZeroDivisionError):
    """An integer was divided by zero inside a kernel."""


class MappingError(TCError):
    """Options that the program or the target cannot honour."""


class VerifyError(TCError):
    """A mapped tree could not be proved equal to the program: a bug in tcjit, caught before it ran."""


class CompileError(TCError):
    """The back-end compiler is missing, or refused the generated text."""


class LaunchError(TCError, RuntimeError):
    """A kernel could not be launched, or failed on the device."""


class CacheError(TCError):
    """The cache directory or an imported file cannot be used."""


class TuneError(TCError):
    """Autotuning could not start or found no valid candidate."""


class PartitionError(TCError, RuntimeError):
    """A model could not be partitioned, saved or loaded."""


class TCWarning(UserWarning):
    """A program means something else than its author may think; where, and what to try, stand in the message."""
