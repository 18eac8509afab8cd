"""Passes and the pipeline that runs them: printed, extended, put in another order and switched off by name.

    >>> from tcjit.byoc.passes import Pass, standard
    >>> mine = Pass("mine", lambda block, adapter: block, about="nothing yet")
    >>> standard().without("share_common").with_(mine, after="functionalise").names[:4]
    ('write_numbers', 'remove_identities', 'functionalise', 'mine')
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block
from tcjit.errors import PartitionError

Rewriting: TypeAlias = Callable[[Block, Adapter], Block]
LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Pass:
    """One rewriting of a whole model, inner blocks included; the block that it is given is used up.

    ``requires`` are the names of passes that must come before it; ``level`` the lowest ``opt_level`` that it runs at, None where it runs
    only if a backend asks for it by name; ``about`` is what the table says of it.
    """

    name: str
    run: Rewriting
    requires: tuple[str, ...] = ()
    level: int | None = 1
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise PartitionError(f"a pass is named {self.name!r}", hint="use letters, digits and underscores, as in Pass(\"mine\", mine)")
        if not callable(self.run):
            raise PartitionError(f"pass {self.name}: {self.run!r} cannot be called", hint="give run(block, adapter) -> Block")
        if isinstance(self.level, bool) or self.level not in (*LEVELS, None):
            raise PartitionError(f"pass {self.name}: level {self.level!r}", hint="0, 1, 2, 3, or None to run only where a backend asks")
        required: object = self.requires
        if not isinstance(required, (tuple, list)) or not all(isinstance(each, str) for each in required):
            raise PartitionError(f"pass {self.name}: requires {self.requires!r}", hint="a tuple of names")
        object.__setattr__(self, "requires", tuple(self.requires))


@dataclass(frozen=True)
class Pipeline:
    """Passes in the order in which they run. Every change makes a new pipeline, whose prerequisites are checked when it is made."""

    passes: tuple[Pass, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(self.passes))
        before: list[str] = []
        for each in self.passes:
            if not isinstance(each, Pass):
                raise PartitionError(f"{each!r} is no pass", hint="write Pass(name, run)")
            if each.name in before:
                raise PartitionError(f"there are two passes named {each.name}", hint="give one of them another name")
            for name in each.requires:
                if name not in before:
                    place = "comes after it" if name in self.names else "is not in the pipeline"
                    raise PartitionError(f"pass {each.name} requires {name}, which {place}", hint=f"the order is {', '.join(self.names)}")
            before.append(each.name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.passes)

    def with_(self, new: Pass, *, before: str = "", after: str = "") -> Pipeline:
        """One more pass, before or after one that is named, else at the end."""
        place = _between(self.passes, before, after)
        return Pipeline((*self.passes[:place], new, *self.passes[place:]))

    def without(self, *names: str) -> Pipeline:
        """Without some passes. What requires one of them must go as well."""
        for name in names:
            _index(self.names, name)
        return Pipeline(tuple(each for each in self.passes if each.name not in names))

    def moved(self, name: str, *, before: str = "", after: str = "") -> Pipeline:
        """With a pass at another place."""
        moving = self.passes[_index(self.names, name)]
        if name in (before, after):
            raise PartitionError(f"pass {name} cannot be moved next to itself")
        rest = tuple(each for each in self.passes if each.name != name)
        place = _between(rest, before, after)
        return Pipeline((*rest[:place], moving, *rest[place:]))

    def run(self, block: Block, adapter: Adapter, opt_level: int = 2, asked: Collection[str] = ()) -> tuple[Block, tuple[str, ...]]:
        """The block after all passes of the level and those asked for, and the names of those that ran.

        Raises PartitionError for another level, for a pass asked for that there is none of, and where what a pass requires does not run.
        """
        if isinstance(opt_level, bool) or opt_level not in LEVELS:
            raise PartitionError(f"opt_level is {opt_level!r}", hint="0, 1, 2 or 3")
        for name in asked:
            _index(self.names, name)
        ran: list[str] = []
        for each in self.passes:
            if each.name not in asked and (each.level is None or each.level > opt_level):
                continue
            missing = [name for name in each.requires if name not in ran]
            if missing:
                raise PartitionError(f"pass {each.name} requires {missing[0]}, which does not run at opt_level {opt_level}")
            made = each.run(block, adapter)
            if not isinstance(made, Block):
                raise PartitionError(f"pass {each.name} gave {type(made).__name__}", hint="a pass returns a Block")
            block = made
            ran.append(each.name)
        return block, tuple(ran)

    def __str__(self) -> str:
        head = ("pass", "level", "requires", "what it does")
        rows = [head, *((p.name, "asked" if p.level is None else str(p.level), ", ".join(p.requires), p.about) for p in self.passes)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def _between(passes: Sequence[Pass], before: str, after: str) -> int:
    """The place of a pass among others."""
    if before and after:
        raise PartitionError(f"before={before!r} and after={after!r}", hint="give one of them")
    return _index([each.name for each in passes], before or after) + bool(after) if before or after else len(passes)


def _index(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise PartitionError(f"the pipeline has no pass {name!r}", hint=f"it has {', '.join(names) or 'none'}")
    return names.index(name)
