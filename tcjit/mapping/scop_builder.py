"""What the passes that add statements share: a scop under change, with fresh names, and expressions over dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import divided, index, modulo, plus
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan
from tcjit.mapping.scop import DynamicBounds, Scop, ScopStatement
from tcjit.mapping.storage import Bounds, Buffer, Storage, fresh


@dataclass(frozen=True)
class LoweredScop:
    """A scop with the plans of its groups, whose items name its statements in the order in which they run.

    ``aliases``: temporary that a pass added -> isl map from its elements to those that they stand for; ``buffers``: in shared memory, of
    copies.
    """

    scop: Scop
    plans: tuple[GroupPlan, ...]
    aliases: Mapping[str, str]
    buffers: tuple[Buffer, ...] = ()


class ScopBuilder:
    """Collects the statements and temporaries that one pass adds to a scop."""

    def __init__(self, lowered: LoweredScop) -> None:
        self.scop = lowered.scop
        self.statements = {s.name: s for s in lowered.scop.statements}
        self.tensors = list(lowered.scop.tensors)
        self.aliases = dict(lowered.aliases)

    def temporary(self, stem: str, dtype: str, shape: tuple[int, ...], dynamic_extents: tuple[Expr | None, ...] = ()) -> Storage:
        """A new one; ``dynamic_extents`` as in ``Storage``."""
        taken = {t.name for t in self.tensors} | {p.name for p in self.scop.program.definition.params}
        storage = Storage(fresh(stem, taken), dtype, shape, "temporary", dynamic_extents=dynamic_extents)
        self.tensors.append(storage)
        return storage

    def copy_of(self, storage: Storage, shape: tuple[int, ...] = ()) -> Storage:
        """One whose elements stand for those of a tensor; ``shape``: if it has more."""
        copy = self.temporary(f"{storage.name}_held", storage.dtype, shape or storage.shape, () if shape else storage.dynamic_extents)
        self.aliases[copy.name] = identity_alias(copy.name, storage.name, len(copy.shape))
        return copy

    def add(
        self,
        kind: str,
        like: ScopStatement,
        tensor: str,
        subscripts: Sequence[Expr],
        operator: str,
        value: Expr,
        bounds: Bounds,
        *,
        reduction: tuple[str, ...] = (),
        constraints: tuple[str, ...] = (),
        dynamic_bounds: DynamicBounds = (),
    ) -> str:
        """A new statement, named by a letter for its kind; it belongs to the same statement of the def as ``like``.

        Dimensions that both have, have the dynamic bounds of ``like``; those of others are ``dynamic_bounds``.
        """
        name = fresh(f"{kind}{len(self.statements)}", set(self.statements))
        same = {name for name, lower, upper in like.bounds if (name, lower, upper) in bounds}
        dynamic_bounds += tuple(bound for bound in like.dynamic_bounds if bound[0] in same)
        form = tensor, tuple(subscripts), operator, value, bounds, like.source, reduction, constraints
        self.statements[name] = ScopStatement(*form, name=name, dynamic_bounds=dynamic_bounds)
        return name

    def change(self, name: str, change: Callable[[Access], Access]) -> None:
        """Every access of a statement replaced."""
        self.statements[name] = self.statements[name].with_accesses(change)

    def done(self, plans: Sequence[GroupPlan], buffers: Sequence[Buffer] = ()) -> LoweredScop:
        """The scop with its statements in the order of the plans' items."""
        statements = tuple(self.statements[item.statement] for plan in plans for item in plan.items)
        scop = replace(self.scop, statements=statements, tensors=tuple(self.tensors))
        return LoweredScop(scop, tuple(plans), self.aliases, tuple(buffers))


def owner(dim: str, share: Distribution) -> Expr:
    """Which of a lane's threads has a value of its dimension."""
    place = divided(plus(index(dim), -share.lower), share.vector)
    return place if share.rounds == 1 else modulo(place, share.threads)


def identity_alias(temporary: str, tensor: str, rank: int) -> str:
    axes = ", ".join(f"a{i}" for i in range(rank))
    return f"{{ {isl_name(temporary)}[{axes}] -> {isl_name(tensor)}[{axes}] }}"


def plain_dims(subscripts: Sequence[Expr]) -> tuple[str, ...] | None:
    """The dimensions that are the subscripts, if each is a dimension of its own."""
    names = [sub.name for sub in subscripts if isinstance(sub, Index)]
    return tuple(names) if len(names) == len(subscripts) == len(set(names)) else None


def items_with(
    items: Sequence[StatementPlan], before: Mapping[str, Sequence[StatementPlan]], after: Mapping[str, Sequence[StatementPlan]]
) -> tuple[StatementPlan, ...]:
    """The items with others put before or after some of them."""
    result: list[StatementPlan] = []
    for item in items:
        result += [*before.get(item.statement, ()), item, *after.get(item.statement, ())]
    return tuple(result)
