"""Runs the named steps of a compilation: each is timed, checked, and its result kept and dumped as text."""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tcjit import config
from tcjit.errors import TCError

T = TypeVar("T")


class Steps:
    """The steps of one compilation, numbered from 1 in the order in which they run.

    ``label`` names the folder under ``TCJIT_DUMP``, so it should tell kernels apart (name and start of the key).
    ``seconds`` holds the time of each step, ``artifacts`` the text of each step that has one, both by the step's name.

    >>> steps = Steps("example")
    >>> steps.run("double", lambda x: 2 * x, 21, show=str)
    42
    >>> steps.artifacts
    {'double': '42'}
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.seconds: dict[str, float] = {}
        self.artifacts: dict[str, str] = {}
        self._number = 0

    def run(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        show: Callable[[T], str] | None = None,
        suffix: str = "txt",
        file: str = "",
        check: Callable[[T], object] | None = None,
    ) -> T:
        """Return ``function(*args)``.

        ``show`` prints the result; the text is dumped as ``03-name.suffix``, or as ``file`` where one is named
        (``kernel.c``). ``check`` is called on the result after the text is safe, and timed as ``"name check"``: it raises
        if the result is wrong. A name run twice adds up its seconds and keeps the later text.
        """
        self._number += 1
        start = time.perf_counter()
        result = function(*args)
        self._spent(name, start)
        if show is not None:
            self.keep(name, show(result), file or f"{self._number:02d}-{name}.{suffix}")
        if check is not None:
            start = time.perf_counter()
            check(result)
            self._spent(f"{name} check", start)
        return result

    def keep(self, name: str, text: str, file: str) -> None:
        """Keep ``text`` as an artifact without a step, and dump it as ``file``."""
        self.artifacts[name] = text
        folder = config.dump_dir()
        if folder is not None:
            _write(folder / _plain(self.label) / _plain(file), text)

    def _spent(self, name: str, start: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _plain(name: str) -> str:
    """A file name out of any text: letters, digits and ``_ . -`` only, never hidden and never a path."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip(".")[:150] or "unnamed"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise TCError(
            f"cannot write {path}: {error.strerror}", hint="let TCJIT_DUMP name a directory that can be written, or unset it"
        ) from error
