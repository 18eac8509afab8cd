"""The index classes of a contraction: a sum of products of two operands as a batched matrix product, of which classes may have several
dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Index
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.storage import Storage

Order = tuple[str, ...]  # dimensions, outermost first


@dataclass(frozen=True)
class IndexClasses:
    """``left``, ``right`` and ``result``: the dimensions of more than one value of each tensor as they lie in memory, outermost first."""

    a: Assignment
    operands: tuple[Access, Access]
    left: Order
    right: Order
    result: Order

    @cached_property
    def batch(self) -> frozenset[str]:
        """What both operands and the result have."""
        return frozenset(self.left) & frozenset(self.right) & frozenset(self.result)

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset(self.left) & frozenset(self.right) - self.batch

    @cached_property
    def rows(self) -> frozenset[str]:
        return frozenset(self.left) & frozenset(self.result) - self.batch

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(self.right) & frozenset(self.result) - self.batch

    @property
    def is_matrix_product(self) -> bool:
        """Whether the dimensions of every class lie together in all of its tensors, in one order."""
        shared = (
            (self.batch, (self.left, self.right, self.result)), (self.terms, (self.left, self.right)),
            (self.rows, (self.left, self.result)), (self.columns, (self.right, self.result)),
        )  # fmt: skip
        for members, tensors in shared:
            orders = [picked(tensor, members) for tensor in tensors]
            if any(order != orders[0] for order in orders) or not all(_together(tensor, members) for tensor in tensors):
                return False
        return True


def index_classes(a: Assignment, tensors: Mapping[str, Storage]) -> IndexClasses | None:
    """An assignment as a contraction; None for what is none, or whose tensors have subscripts that are no indices, or unknown strides."""
    plain = a.operator == "+=" and is_plain_product(a.value) and not (a.constraints or a.dynamic or a.outer or a.final or a.empty)
    operands = tuple(dict.fromkeys(a.reads))
    if not plain or len(a.reads) != 2 or len(operands) != 2 or any(lower for _, lower, _ in a.bounds):
        return None
    if a.tensor in a.inputs or len(a.inputs) < 2:
        return None
    orders = [_memory_order(tensors[access.tensor], access, a) for access in (*operands, a.element)]
    if None in orders:
        return None
    left, right, result = (order or () for order in orders)
    found = IndexClasses(a, operands, left, right, result)
    classes = (found.batch, found.rows, found.columns, found.terms)
    every = frozenset(dim for dim, extent in a.extents.items() if extent > 1)
    whole = every == frozenset().union(*classes) and found.terms == every & set(a.reduction)
    return found if whole and found.rows and found.columns and found.terms else None


def picked(order: Sequence[str], members: frozenset[str]) -> Order:
    """Those of some dimensions that are members of a class."""
    return tuple(dim for dim in order if dim in members)


def _together(order: Order, members: frozenset[str]) -> bool:
    places = [place for place, dim in enumerate(order) if dim in members]
    return not places or places[-1] - places[0] == len(places) - 1


def _memory_order(storage: Storage, access: Access, a: Assignment) -> Order | None:
    names = [sub.name for sub in access.subscripts if isinstance(sub, Index)]
    if len(names) < len(access.subscripts) or len(set(names)) < len(names) or any(storage.dynamic_extents):
        return None
    if any(a.extents.get(name) != extent for name, extent in zip(names, storage.shape, strict=True)):
        return None
    steps = dict(zip(names, storage.strides, strict=True))
    if not storage.known_elements or None in steps.values():
        return None
    return tuple(sorted((name for name in names if a.extents[name] > 1), key=lambda name: -(steps[name] or 0)))
