"""How a model is partitioned."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcjit.checked import brief, checked, settings
from tcjit.errors import PartitionError

if TYPE_CHECKING:
    from tcjit.byoc.passes import Pipeline


# who may take regions where nobody says so, and who else may where the clock decides: no estimate knows what a layout saves
USUAL, BY_CLOCK = ("tcjit", "vendor"), ("packed",)


@settings
@dataclass(frozen=True)
class PartitionConfig:
    """The settings of a partitioning; a PartitionError names the field that is out of range.

    - ``backends``: who may take regions, the first one first; None for tcjit and vendor, and when measuring packed as well;
    - ``cost``: give regions back that gain nothing by estimate;
    - ``opt_level``: 0 changes nothing but regions, 1 removes what is dead or known,
      2 folds batch norms and reuses results, 3 changes layouts;
    - ``pipeline``: the passes, None for the standard ones;
    - ``without``: names of passes that do not run.
    """

    backends: tuple[str, ...] | None = None
    cost: bool = True
    opt_level: int = 2
    pipeline: Pipeline | None = None
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("backends", "without"):
            value = getattr(self, name)
            if name == "backends" and value is None:
                continue
            if isinstance(value, str) or not all(isinstance(each, str) for each in value):
                raise PartitionError(f"PartitionConfig({name}={brief(value)})", hint="a tuple of names")
            object.__setattr__(self, name, tuple(value))
        if isinstance(self.opt_level, bool) or self.opt_level not in (0, 1, 2, 3):
            raise PartitionError(f"PartitionConfig(opt_level={brief(self.opt_level)})", hint="0, 1, 2 or 3")
        if not isinstance(self.cost, bool):
            raise PartitionError(f"PartitionConfig(cost={brief(self.cost)})", hint="True or False")

    @checked(measure=bool)
    def serving(self, *, measure: bool = False) -> tuple[str, ...]:
        """The backends, the usual ones where none are given.

        >>> PartitionConfig().serving(), PartitionConfig().serving(measure=True), PartitionConfig(backends=("tcjit",)).serving(measure=True)
        (('tcjit', 'vendor'), ('tcjit', 'vendor', 'packed'), ('tcjit',))
        """
        if self.backends is not None:
            return self.backends
        return (*USUAL, *BY_CLOCK) if measure else USUAL
