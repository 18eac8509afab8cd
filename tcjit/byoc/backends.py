"""Backends: who may take regions of a model, and the registry of their names.

A backend is a table of patterns, predicates on single operations (``supports``), limits, and a ``lower`` that turns a region into a spec:

    class Mine(Backend):
        name = "mine"
        patterns = (Row("linear_relu", is_op("aten.relu")(is_op("aten.linear")(wildcard(), is_const(), is_const()))),)

        def lower(self, region): ...
        def load(self, spec): ...

    register(Mine())
"""
from __future__ import annotations

import importlib
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tcjit.byoc.cost import Limits
from tcjit.byoc.graph import Node
from tcjit.byoc.patterns import Match, Pattern
from tcjit.byoc.regions import Region
from tcjit.checked import checked
from tcjit.errors import PartitionError

if TYPE_CHECKING:
    from tcjit.byoc.adapter import Adapter

Verdict: TypeAlias = "bool | str"  # True, or why not; False is a reason left unsaid


@dataclass(frozen=True)
class Row:
    """A pattern in a backend's table. ``check`` sees the match, types and constants included, and says True or why not.

    Where something outside of the match uses a value inside of it that is not the match's result, ``escapes`` says what then: the
    match is refused, or that value becomes another output of the region.
    """

    name: str
    pattern: Pattern
    check: Callable[[Match], Verdict] | None = None
    escapes: Literal["refuse", "output"] = "refuse"

    def __str__(self) -> str:
        return f"{self.name}: {self.pattern}"


class Backend:
    """What the partitioner asks of a backend; a subclass gives ``name`` and ``lower``, ``load``, and what else it wants to differ.

    ``patterns`` is in order: earlier rows win. ``passes`` are the names of passes that a model goes through before it is cut for this
    backend. ``merges`` False keeps every match a region of its own. ``dynamic`` accepts extents that are known at the run only,
    ``untyped`` tensors of unknown dtype or rank. ``devices`` are those that it serves, all if empty. ``contiguous`` False says that its
    regions' results may have any strides; what the model returns is then made contiguous.
    """

    name: str = ""
    patterns: Sequence[Row] = ()
    passes: Sequence[str] = ()
    limits: Limits = Limits()
    merges: bool = True
    dynamic: bool = False
    untyped: bool = False
    devices: Sequence[str] = ()
    contiguous: bool = True

    def supports(self, node: Node) -> Verdict:
        """Whether it takes one operation, or why not; asked where no ``@supports`` names the operation."""
        return f"{self.name} has no rule for {node.op}"

    def rewrite(self, region: Region, adapter: Adapter) -> Sequence[Node] | None:
        """Nodes in place of a region, which compute its very outputs; None to have it called through its spec."""
        return None

    def lower(self, region: Region) -> Mapping[str, Any]:
        """What goes into the region's spec, as JSON can hold it; raises PartitionError to leave the region to PyTorch."""
        raise PartitionError(f"backend {self.name} cannot lower {region.name}", hint="give the backend a method `lower(region)`")

    def load(self, spec: Mapping[str, Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """What runs a spec: from the region's inputs and constants, tensors, to its outputs."""
        raise PartitionError(f"backend {self.name} cannot run {spec.get('name')}", hint="give the backend a method `load(spec)`")

    def without_gradients(self, spec: Mapping[str, Any]) -> str:
        """Why what runs a spec does not record gradients, so that plain ATen does; empty where it does, by a method ``recorded``."""
        return f"backend {self.name} has no gradients"

    def __repr__(self) -> str:
        return f"<backend {self.name}: {len(self.patterns)} patterns>"


_BACKENDS: dict[str, Backend] = {}
# those that come with tcjit: where they are registered, which happens when they are asked for
_OWN = {"tcjit": "tcjit.byoc.tcjit_backend", "vendor": "tcjit.byoc.vendor", "packed": "tcjit.byoc.onednn_prepacked"}


@checked(backend=Backend)
def register(backend: Backend) -> Backend:
    """Makes a backend known by its name; a later one of the same name replaces it. Raises PartitionError where its table is no table."""
    name = backend.name
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise PartitionError(f"a backend is named {name!r}", hint="use letters, digits and underscores, as in `name = \"mine\"`")
    seen: set[str] = set()
    for row in backend.patterns:
        if not isinstance(row, Row) or not isinstance(row.pattern, Pattern):
            raise PartitionError(f"backend {name}: {row!r} is no row", hint="write Row(name, pattern, check)")
        if row.escapes not in ("refuse", "output"):
            raise PartitionError(f"backend {name}, row {row.name}: escapes is {row.escapes!r}", hint="write \"refuse\" or \"output\"")
        if row.name in seen:
            raise PartitionError(f"backend {name} has two rows named {row.name}", hint="reports tell rows by their names")
        seen.add(row.name)
    _BACKENDS[name] = backend
    return backend


@checked(name=str)
def unregister(name: str) -> None:
    """Forgets a backend; nothing happens where there is none."""
    _BACKENDS.pop(name, None)


@checked()
def known() -> tuple[str, ...]:
    """The names of all backends, tcjit's own first, then in the order of their registration."""
    return tuple(dict.fromkeys((*_OWN, *_BACKENDS)))


@checked(name=str)
def find(name: str) -> Backend:
    """The backend of a name; raises PartitionError where there is none."""
    if name not in _BACKENDS and name in _OWN:
        importlib.import_module(_OWN[name])
    if name not in _BACKENDS:
        raise PartitionError(f"there is no backend {name!r}", hint=f"known: {', '.join(known())}; `register` makes one known")
    return _BACKENDS[name]
