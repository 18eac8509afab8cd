"""Aliases: prove that a lowering of a scop keeps the value of every read.

A lowering adds temporaries that stand for elements of the program's tensors: copies, accumulators, partial results. It names for each an
*alias*, a map from its elements to those that they stand for. The statements of the lowered scop are followed in their order, with the set
of elements of every tensor that are *current*: that hold what the program, at this point, has in the element that they stand for. A
statement of the program must be the same up to aliases and read current elements only; a copy passes currency on; a partial result must
start at the identity and be combined exactly once. The domain of a statement may have grown: what it does there adds products of zeros,
or writes elements that are not current from then on. In the end all outputs must be current. Nothing is taken on trust: a wrong alias is
found out where its temporary is filled, read or stored.

This says that the lowered scop, in its own order, computes what the program says; that a tree keeps that order, ``verify`` proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError
from tcjit.grammar.affine import Guard, affine, guarded_accesses, isl_name
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.isl import decided
from tcjit.mapping.reduction import identity, is_plain_product
from tcjit.mapping.scop import Scop, ScopStatement


def verify_lowering(before: Scop, after: Scop, aliases: Mapping[str, str | isl.UnionMap]) -> None:
    """Prove that ``after`` computes in the outputs what ``before`` does, or raise a VerifyError that names a statement.

    ``aliases``: added temporary -> map from its elements to those of a tensor of ``before``, or of another temporary with an alias.
    """
    with decided("a lowering"):
        _ValueFlow(before, after, aliases).run()


@dataclass
class _Parts:
    """A temporary of partial results.

    ``fresh``: elements at the identity; ``used``: those that were added to since; ``owed``: elements of the program that still lack
    them; ``base``: per tensor, elements that hold what those had before.
    """

    operator: str
    fresh: isl.Set
    used: isl.Set
    owed: isl.Set
    base: dict[str, isl.Set]


class _ValueFlow:
    """The walk over the statements of a lowered scop."""

    def __init__(self, before: Scop, after: Scop, aliases: Mapping[str, str | isl.UnionMap]) -> None:
        self.before = before
        self.after = after
        self.storages = {t.name: t for t in (*before.tensors, *after.tensors)}
        self._sets: dict[str, isl.Set] = {}  # by their text: isl takes longer to read one than to compute with it
        self.alias: dict[str, isl.Map] = {}
        self.root: dict[str, str] = {}  # the program's tensor that a tensor stands for
        for tensor in after.tensors:
            self._resolve(tensor.name, aliases)
        self.current = {t.name: self._none(t.name) if t.name in aliases else self._all(t.name) for t in after.tensors}
        self.zeros = {t.name: self._none(t.name) for t in after.tensors}  # the elements that are known to hold 0
        self.kept = {s.name: s for s in before.statements}
        added = [s for s in after.statements if s.name not in self.kept and s.operator != "="]
        combined = {access.tensor: s.operator for s in added for access, _ in guarded_accesses(s.value)}
        self.parts = {t: _Parts(op, self._none(t), self._none(t), self._none(self.root[t]), {}) for t, op in combined.items()}

    def run(self) -> None:
        if self.before.values != self.after.values:
            raise VerifyError("lowering: a size changed")
        self._order()
        for s in self.after.statements:
            if s.tensor not in self.current:
                self._fail(s, f"there is no {s.tensor} any more")
            if s.name in self.kept:
                self._keep(self.kept[s.name], s)
            elif s.operator != "=":
                self._combine(s)
            elif s.tensor in self.parts:
                self._start(s)
            elif isinstance(s.value, Access):
                self._copy(s)
            else:
                self._fill(s)
        for t in self.after.tensors:
            if t.role == "output" and not self._all(t.name).is_subset(self.current[t.name]):
                raise VerifyError(f"lowering: in the end the output {t.name} lacks {self._all(t.name).subtract(self.current[t.name])}")

    # ------------------------------------------------------------ tensors

    def _all(self, tensor: str) -> isl.Set:
        storage = self.storages[tensor]
        facts = " and ".join([*storage.inside, *self.after.context])
        return self._set(f"{self.after.parameters}{{ {storage.element}{' : ' if facts else ''}{facts} }}")

    def _set(self, text: str) -> isl.Set:
        if text not in self._sets:
            self._sets[text] = isl.Set.read_from_str(self.after.ctx, text)
        return self._sets[text]

    def _none(self, tensor: str) -> isl.Set:
        return isl.Set.empty(self._all(tensor).get_space())

    def _resolve(self, tensor: str, aliases: Mapping[str, str | isl.UnionMap]) -> None:
        """Follow the aliases of a tensor to the program's."""
        known = {t.name: t for t in self.before.tensors}
        names = {isl_name(name): name for name in self.storages}
        root, alias = tensor, isl.Map.identity(self._all(tensor).get_space().map_from_set())
        for _ in aliases:
            if root in aliases:
                given = aliases[root]
                step = isl.UnionMap.read_from_str(self.after.ctx, given) if isinstance(given, str) else given
                alias = isl.Map.from_union_map(alias.to_union_map().apply_range(step))
                root = names.get(alias.get_tuple_name(isl.dim_type.out), "")
        storage = self.after.tensor(tensor)
        if root not in known or root in aliases or self.storages[root] != known[root]:
            raise VerifyError(f"lowering: {tensor} stands for no tensor of the program")
        if tensor in aliases and (tensor in known or storage.role != "temporary" or storage.dtype != known[root].dtype):
            raise VerifyError(f"lowering: {tensor} cannot stand for {root}")
        if not alias.is_single_valued():
            raise VerifyError(f"lowering: one element of {tensor} stands for several of {root}")
        self.alias[tensor], self.root[tensor] = alias, root

    def _standing(self, tensor: str, elements: isl.Set) -> isl.Set:
        """The elements of a tensor that stand for some of the program's."""
        if self.root[tensor] != self._named(elements):
            return self._none(tensor)
        return self.alias[tensor].intersect_range(elements).domain()

    def _named(self, elements: isl.Set) -> str:
        name = elements.get_tuple_name()
        return next(tensor for tensor in self.storages if isl_name(tensor) == name)

    def _overwritten(self, elements: isl.Set) -> None:
        """The program gives these elements of its own new values: nothing is current any more."""
        for tensor in self.current:
            self.current[tensor] = self.current[tensor].subtract(self._standing(tensor, elements))

    def _stored(self, tensor: str, elements: isl.Set) -> None:
        """These elements no longer hold what partial results are to be added to."""
        self.zeros[tensor] = self.zeros[tensor].subtract(elements)
        for parts in self.parts.values():
            if tensor in parts.base:
                parts.base[tensor] = parts.base[tensor].subtract(elements)

    # ------------------------------------------------------------ statements of the program

    def _order(self) -> None:
        """They are all there, once, and in an order of the same meaning."""
        place = {s.name: number for number, s in enumerate(self.after.statements)}
        if len(place) < len(self.after.statements) or not set(self.kept) <= set(place):
            raise VerifyError(f"lowering: of the statements {', '.join(self.kept)} there are {', '.join(place)}")
        for number, second in enumerate(self.before.statements):
            for first in self.before.statements[:number]:
                if place[first.name] > place[second.name] and self._meet(first, second):
                    self._fail(first, f"it must stay before {second.name}")

    def _meet(self, first: ScopStatement, second: ScopStatement) -> bool:
        """Whether one of two statements of the program writes what the other uses."""
        domains = [isl.UnionSet.from_set(self.before.instances(s)) for s in (first, second)]
        reads = [self.before.reads.intersect_domain(domain).range() for domain in domains]
        writes = [self.before.writes.intersect_domain(domain).range() for domain in domains]
        pairs = ((writes[0], writes[1]), (writes[0], reads[1]), (reads[0], writes[1]))
        return not all(a.is_disjoint(b) for a, b in pairs)

    def _keep(self, old: ScopStatement, new: ScopStatement) -> None:
        """A statement of the program computes the same from the same elements into the same element."""
        changed = replace(
            new, tensor=old.tensor, subscripts=old.subscripts, value=old.value, source=old.source, bounds=old.bounds,
            constraints=old.constraints,
        )  # fmt: skip
        grown = [(dim, lower) for dim, lower, _ in new.bounds] == [(dim, lower) for dim, lower, _ in old.bounds]
        grown = grown and all(upper >= end for (_, _, upper), (_, _, end) in zip(new.bounds, old.bounds, strict=True))
        if changed != old or not grown:
            self._fail(new, "its operator or its domain changed")
        if _shape(self.before, old) != _shape(self.after, new):
            self._fail(new, "its value changed")
        if (new.bounds, new.constraints) != (old.bounds, old.constraints):
            self._grown(old, new)
            new = replace(new, bounds=old.bounds, constraints=old.constraints)
        written, writes = self._relation(self.before, old, old.element), self._relation(self.after, new, new.element)
        exact = _is_affine(self.after, new.element)
        if exact and not self._stands_for(new.tensor, writes, written):
            self._fail(new, f"it writes another element of {old.tensor}")
        if any(not p.owed.is_disjoint(written.range()) for t, p in self.parts.items() if self.root[t] == old.tensor):
            self._fail(new, f"it writes {old.tensor} before partial results are added to it")
        for (was, guards), (now, guards_now) in zip(_reads(old), _reads(new), strict=True):
            read, reads = self._relation(self.before, old, was, guards), self._relation(self.after, new, now, guards_now)
            if _is_affine(self.after, now) and not self._stands_for(now.tensor, reads, read):
                self._fail(new, f"it reads another element of {was.tensor}")
            if not reads.range().is_subset(self.current[now.tensor]):
                self._fail(new, f"it reads {now.tensor} where that does not hold {was.tensor}")
            if was.tensor == old.tensor:
                self._reads_itself(new, now, written, read, reads.range().union(writes.range()) if now.tensor == new.tensor else None)
        if new.tensor in self.parts:
            self._add(new, exact, writes.range(), written.range())
            return
        self._distinct(new, writes.range())
        if old.operator != "=" and not writes.range().is_subset(self.current[new.tensor]):
            self._fail(new, f"it updates {new.tensor} where that does not hold {old.tensor}")
        self.zeros[new.tensor] = self.zeros[new.tensor].subtract(writes.range())
        was_current = self.current[new.tensor]
        self._overwritten(written.range())
        # of what a subscript that depends on data may write, only what was current is so for sure
        self.current[new.tensor] = self.current[new.tensor].union(writes.range() if exact else was_current)

    def _grown(self, old: ScopStatement, new: ScopStatement) -> None:
        """What a statement does beyond its domain leaves what it does inside as it is: it adds products of zeros there, or writes other
        elements, which hold nothing then."""
        inside, whole = self.before.instances(old), self.after.instances(new)
        if not inside.is_subset(whole) or new.tensor in self.parts:
            self._fail(new, "its domain changed")
        writes, beyond = self._write(new), whole.subtract(inside)
        spoiling, spoiled_by = beyond, ""
        if new.operator == "+=" and is_plain_product(new.value):
            spoiling = isl.Set.empty(beyond.get_space())
            for access, _ in guarded_accesses(new.value):
                reads = self._relation(self.after, new, access).intersect_domain(beyond)
                zero = reads.intersect_range(self.zeros[access.tensor]).domain()
                if not beyond.is_subset(zero):
                    spoiling, spoiled_by = spoiling.union(beyond.subtract(zero)), spoiled_by or access.tensor
        spoiled = writes.intersect_domain(spoiling).range()
        if not spoiled.is_disjoint(writes.intersect_domain(inside).range()):
            self._fail(new, f"it adds products of {spoiled_by or 'what'} beyond its domain, which may not be 0")
        for known in (self.current, self.zeros):
            known[new.tensor] = known[new.tensor].subtract(spoiled)

    def _reads_itself(self, s: ScopStatement, now: Access, written: isl.Map, read: isl.Map, used: isl.Set | None) -> None:
        """A statement may read what it wrote itself in the tensor that it writes; any other holds only what stood there before.

        ``used``: the elements of that tensor that it uses, None for a read of another one.
        """
        if used is not None and s.tensor not in self.parts:
            self._distinct(s, used)
            return
        earlier = isl.Map.lex_lt(written.get_space().domain())
        if not written.apply_range(read.reverse()).intersect(earlier).is_empty():
            self._fail(s, f"it reads {now.tensor} where it has written a newer value elsewhere")

    def _add(self, s: ScopStatement, exact: bool, places: isl.Set, elements: isl.Set) -> None:
        """A reduction adds to partial results instead."""
        parts = self.parts[s.tensor]
        if not exact or not s.reduction or s.operator != parts.operator or not parts.used.is_empty():
            self._fail(s, f"{s.tensor} does not hold parts of it")
        if not places.is_subset(parts.fresh):
            self._fail(s, f"{s.tensor} does not start at the identity of {s.operator}")
        parts.used, parts.owed, parts.fresh = places, elements, parts.fresh.subtract(places)
        parts.base = {t: self._standing(t, elements).intersect(held) for t, held in self.current.items()}
        self._overwritten(elements)

    # ------------------------------------------------------------ statements that were added

    def _copy(self, s: ScopStatement) -> None:
        """What it writes stands for the same as what it reads, and holds the same."""
        assert isinstance(s.value, Access)
        if s.value.tensor == s.tensor:
            self._fail(s, "it copies inside one tensor")
        source, writes = s.value.tensor, self._write(s)
        reads = self._relation(self.after, s, s.value)
        if self.after.tensor(source).dtype != self.after.tensor(s.tensor).dtype or s.value.dtype != self.after.tensor(source).dtype:
            self._fail(s, "it converts")
        self._matches(s, writes, reads, source)
        if source in self.parts:
            self._fail(s, f"{source} holds partial results")
        stale = writes.intersect_domain(reads.subtract_range(self.current[source]).domain()).range()
        self.current[s.tensor] = self.current[s.tensor].union(writes.range()).subtract(stale)
        self._stored(s.tensor, writes.range())

    def _fill(self, s: ScopStatement) -> None:
        """It writes what stands for nothing in the program."""
        if self.root[s.tensor] == s.tensor or next(_reads(s), None) is not None:
            self._fail(s, "it is no copy")
        written = self._write(s).range()
        self.current[s.tensor] = self.current[s.tensor].subtract(written)
        self._stored(s.tensor, written)
        if isinstance(s.value, Const) and s.value.value == 0:
            self.zeros[s.tensor] = self.zeros[s.tensor].union(written)

    def _start(self, s: ScopStatement) -> None:
        """It sets partial results to the identity."""
        parts, places = self.parts[s.tensor], self._write(s).range()
        if s.value != identity(parts.operator, self.after.tensor(s.tensor).dtype) or not places.is_disjoint(parts.used):
            self._fail(s, f"it does not start {s.tensor} at the identity of {parts.operator}")
        parts.fresh = parts.fresh.union(places)

    def _combine(self, s: ScopStatement) -> None:
        """It adds every partial result once to what the element held before."""
        if not isinstance(s.value, Access) or s.value.tensor == s.tensor or s.tensor in self.parts:
            self._fail(s, "it is no sum of partial results")
        assert isinstance(s.value, Access)
        parts, writes = self.parts[s.value.tensor], self._write(s)
        reads = self._relation(self.after, s, s.value)
        self._matches(s, writes, reads, s.value.tensor)
        if s.operator != parts.operator or not reads.is_injective():
            self._fail(s, f"it does not add each of {s.value.tensor} once")
        if not parts.used.is_subset(reads.range()) or not reads.range().is_subset(parts.used.union(parts.fresh)):
            self._fail(s, f"it does not add all of {s.value.tensor}, or adds what holds nothing")
        owed = self._standing(s.tensor, parts.owed).intersect(writes.range())
        if not owed.is_subset(parts.base.get(s.tensor, owed)) or not writes.range().subtract(owed).is_subset(self.current[s.tensor]):
            self._fail(s, f"{s.tensor} does not hold what {s.value.tensor} is to be added to")
        self._distinct(s, writes.range())
        self.current[s.tensor] = self.current[s.tensor].union(owed)
        self._stored(s.tensor, writes.range())
        parts.used, parts.owed, parts.base = self._none(s.value.tensor), self._none(self.root[s.value.tensor]), {}

    def _write(self, s: ScopStatement) -> isl.Map:
        if self.after.tensor(s.tensor).role == "input" or not _is_affine(self.after, s.element):
            self._fail(s, f"it may not write {s.tensor}")
        return self._relation(self.after, s, s.element)

    def _matches(self, s: ScopStatement, writes: isl.Map, reads: isl.Map, source: str) -> None:
        """What a statement writes and what it reads stand for the same element, everywhere."""
        assert isinstance(s.value, Access)
        domain = self.after.instances(s)
        target = writes.apply_range(self.alias[s.tensor])
        if not _is_affine(self.after, s.value) or not domain.is_subset(target.domain()) or not self._stands_for(source, reads, target):
            self._fail(s, f"{s.tensor} and {source} do not stand for the same element")

    # ------------------------------------------------------------ helpers

    def _relation(self, scop: Scop, s: ScopStatement, access: Access, guards: tuple[Guard, ...] = ()) -> isl.Map:
        text = scop.access_text(s, access.tensor, access.subscripts, guards)
        instances = self._set(f"{scop.parameters}{{ {scop.domain_text(s)} }}")
        return isl.Map.read_from_str(self.after.ctx, f"{scop.parameters}{{ {text} }}").intersect_domain(instances)

    def _stands_for(self, tensor: str, accesses: isl.Map, elements: isl.Map) -> bool:
        """Whether accesses to a tensor stand for accesses to given elements of the program."""
        found = accesses.apply_range(self.alias[tensor])
        return bool(found.get_space().is_equal(elements.get_space()) and found.is_equal(elements))

    def _distinct(self, s: ScopStatement, elements: isl.Set) -> None:
        """No two elements that a statement uses stand for the same one."""
        if not self.alias[s.tensor].intersect_domain(elements).is_injective():
            self._fail(s, f"it uses two elements of {s.tensor} that stand for one of {self.root[s.tensor]}")

    def _fail(self, s: ScopStatement, why: str) -> None:
        raise VerifyError(f"lowering: {s.name}: {why}", hint="report this: the program is fine, the mapping is not")


def _reads(s: ScopStatement) -> Iterator[tuple[Access, tuple[Guard, ...]]]:
    """The accesses of the value and of the subscripts; that of an updated element is not among them."""
    for part in (s.value, *s.subscripts):
        yield from guarded_accesses(part)


def _is_affine(scop: Scop, access: Access) -> bool:
    return all(affine(subscript, scop.values) is not None for subscript in access.subscripts)


def _shape(scop: Scop, s: ScopStatement) -> tuple[Expr, Expr]:
    """Target and value without what aliases may change: the tensors and subscripts of affine accesses."""

    def plain(access: Access) -> Access:
        return Access("", (), dtype=access.dtype) if _is_affine(scop, access) else access

    return with_accesses(s.element, plain), with_accesses(s.value, plain)
