"""FreeNames of a def that is being written: which are free, and new ones."""
from __future__ import annotations

from collections.abc import Iterable

from tcjit.grammar.ast import Def, Index
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.dtypes import ALIASES, DTYPES
from tcjit.grammar.walk import walk

# what no tensor, size or index may be called
RESERVED = frozenset("def where in exists min max true false".split()) | DTYPES.keys() | ALIASES.keys()


class FreeNames:
    """The names taken so far: ``tensors``, with scalars and sizes, which an index must not be named like, and ``indices``."""

    def __init__(self, tensors: Iterable[str], indices: Iterable[str] = ()) -> None:
        self.tensors = {*tensors, *RESERVED, *BUILTINS}
        self.indices = set(indices)

    def tensor(self, wanted: str) -> str:
        """``wanted``, or with underscores behind it where that is taken; taken from now on."""
        while wanted in self.tensors or wanted in self.indices:
            wanted += "_"
        self.tensors.add(wanted)
        return wanted

    def index(self, wanted: str, besides: Iterable[str] = ()) -> str:
        """``wanted``, or with a number behind it where that is a tensor, or one of ``besides``."""
        name, count = wanted, 0
        while name in self.tensors or name in besides:
            name, count = f"{wanted}{count}", count + 1
        self.indices.add(name)
        return name


def names_of(definition: Def) -> FreeNames:
    """Those of an inferred def."""
    tensors = [t.name for t in definition.tensors] + [p.name for p in definition.params] + list(definition.sizes)
    indices = [r.index for s in definition.statements for r in s.domain]
    indices += [n.name for s in definition.statements for e in (s.value, *s.exists) for n in walk(e) if isinstance(n, Index)]
    return FreeNames(tensors, indices)
