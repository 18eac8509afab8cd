"""A search to look at while it runs: one line on the terminal or in a notebook, nothing where nobody looks."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tcjit.tuner.search import Progress, Watch
from tcjit.tuner.trials import duration


@contextmanager
def shown(label: str, show: bool | None) -> Iterator[Watch | None]:
    """What is to be told of every candidate; None: only where standard error is a terminal or a notebook's."""
    console = Console(file=sys.stderr)
    if show is False or (show is None and not (console.is_terminal or console.is_jupyter)):
        yield None
        return
    what, best = TextColumn("{task.description}"), TextColumn("{task.fields[best]}")
    with Bar(what, BarColumn(), MofNCompleteColumn(), best, TimeRemainingColumn(), console=console) as bar:
        line = bar.add_task(label, total=None, best="the kernel as written comes first")

        def watch(progress: Progress) -> None:
            best = f"best {duration(progress.best)}" if progress.best else "none valid yet"
            if progress.best and progress.default:
                best += f", {progress.default / progress.best:.2f}x untuned"
            bar.update(line, completed=progress.done, total=progress.budget, best=best)

        yield watch
