"""Translation validation of the passes over assignments: what takes the place of an assignment computes what it does.

A pass says which assignments took the place of which (``Assignments.replaced``); there is a rule for each of them. isl decides what
concerns instances: that parts cover an iteration domain and do not overlap, that chunks hold each term once, that conditions which were
dropped hold or fail everywhere. Values are compared as trees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import condition, guarded_accesses, isl_name
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Cast, Const, Expr, Index, Select
from tcjit.grammar.dtypes import ROUNDED
from tcjit.grammar.polynomial import names, number
from tcjit.grammar.walk import factors, rebuild, with_accesses, with_index, with_indices, with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.instances import Instances, is_given_again, results_of, same_element
from tcjit.mapping.partial_results import Chunks, partial_result
from tcjit.mapping.reduction import combined, guarded_term, identity, with_signs_as_factors
from tcjit.mapping.verify_contractions import wrong_contraction
from tcjit.mapping.verify_factored import wrong_factored
from tcjit.mapping.verify_foldings import wrong_folding
from tcjit.mapping.verify_merged import wrong_merged
from tcjit.mapping.verify_offsets import wrong_offsets
from tcjit.mapping.verify_orders import AxisOrders
from tcjit.mapping.verify_overlapped import OverlappedTiles
from tcjit.mapping.verify_powers import wrong_powers
from tcjit.mapping.verify_predicates import wrong_predicates
from tcjit.mapping.verify_residues import wrong_classes
from tcjit.mapping.verify_scans import wrong_scan
from tcjit.mapping.verify_segments import wrong_segmented
from tcjit.mapping.verify_selects import wrong_selects
from tcjit.mapping.verify_skews import wrong_skews
from tcjit.mapping.verify_subscripts import wrong_subscripts
from tcjit.mapping.verify_tables import wrong_tables
from tcjit.mapping.verify_unions import wrong_addends, wrong_unions
from tcjit.mapping.verify_unswitched import wrong_unswitched
from tcjit.mapping.verify_widened import wrong_counts, wrong_widened


def verify_assignments(rule: str, before: Assignments, after: Assignments) -> None:
    """Prove what the pass named ``rule`` did, or raise a VerifyError that names a statement of the def."""
    if tuple(new for part in after.replaced for new in part) != after.assignments or len(after.replaced) != len(before.assignments):
        raise VerifyError(f"{rule}: assignments were added or lost")
    if after.declared != before.declared or not set(before.temporaries) <= set(after.temporaries):
        raise VerifyError(f"{rule}: a tensor changed")
    replacement: _Replacement | None = None  # made once, where anything was replaced
    for old, new in zip(before.assignments, after.replaced, strict=True):
        explained = len(new) == 1 and replace(new[0], untiled=old.untiled) == old  # why it stays as it is
        if not explained or old.start is not None and not old.tiled and rule == "split_initialisation":
            replacement = replacement or _Replacement(before, after)
            wrong = replacement.rules[rule](old, new)
            if wrong:
                hint = "report this: the program is fine, the mapping is not"
                raise VerifyError(f"{rule}: statement {old.source + 1} of {before.program.definition.name}: {wrong}", hint=hint)


class _Replacement(Instances):
    """The rules; each returns what is wrong, nothing where all is well."""

    def __init__(self, before: Assignments, after: Assignments) -> None:
        super().__init__(before)
        self.programs = before, after
        self.program = after.assignments
        self.before, self.after = before.storages, after.storages
        self.rules: Mapping[str, Callable[[Assignment, Sequence[Assignment]], str]] = {
            "narrow_bounds": self.narrowed,
            "eliminate_conditions": self.parted,
            "widen": lambda old, new: wrong_widened(self, self.before, self.after, old, new),
            "reduce_strength": lambda old, new: wrong_powers(self, old, new),
            "chunk_reductions": self.chunked,
            "chunk_scans": lambda old, new: wrong_scan(self, self.before, self.after, old, new),
            "combine_in_blocks": self.copied,
            "restrict_products": self.restricted,
            "split_residues": lambda old, new: wrong_classes(self, self.before, self.after, old, new),
            "eliminate_dead_instances": self.unread,
            "split_around_invariants": self.parted,
            "split_index_sets": self.parted,
            "split_sums": self.parted,
            "split_initialisation": self.initialised,
            "multiply_predicates": lambda old, new: wrong_predicates(old, new[0]) if len(new) == 1 else "a sum became several",
            "promote_counts": lambda old, new: wrong_counts(self, self.before, self.after, old, new),
            "distribute_offsets": lambda old, new: wrong_offsets(before, after, old, new),
            "factor_contractions": lambda old, new: wrong_contraction(before, after, old, new),
            "factor_scans": lambda old, new: wrong_factored(self, before, after, old, new),
            "segment_scans": lambda old, new: wrong_segmented(self, before, after, old, new),
            "split_selects": lambda old, new: wrong_selects(self, old, new),
            "skew_reductions": lambda old, new: wrong_skews(self, old, new),
            "split_subscripts": lambda old, new: wrong_subscripts(self, old, new),
            "split_copies": lambda old, new: wrong_subscripts(self, old, new),
            "split_addends": lambda old, new: wrong_addends(self, old, new),
            "split_terms": lambda old, new: wrong_unions(self, old, new),
            "split_unions": lambda old, new: wrong_unions(self, old, new),
            "unswitch_reductions": lambda old, new: wrong_unswitched(before, after, old, new),
            "tabulate": lambda old, new: wrong_tables(self, before, after, old, new),
            "tabulate_conditions": lambda old, new: wrong_tables(self, before, after, old, new),
            "hoist_invariants": self.stored,
            "number_values": self.numbered,
            "merge_temporaries": lambda old, new: wrong_merged(before, after, old, new),
            "substitute_forward": self.substituted,
            "rematerialise": self.substituted,
            "expand_operands": self.stored,
            "transpose_operands": self.stored,
            "transpose_tables": lambda old, new: self.orders.wrong(old, new),
            "pack_operands": self.packed,
            "unroll_dims": self.unrolled,
            "fold_contractions": lambda old, new: wrong_folding(before, after, old, new),
            "fuse_outer_loops": self.under_outer_loops,
            "fuse_parallel_regions": self.blocked,
            "strip_mine_copies": self.in_digits,
            "strip_mine_gathers": self.in_digits,
            "strip_mine_products": self.in_digits,
            "block_panels": self.blocked,
            "fuse_column_reductions": self.under_chunks,
            "overlap_tiles": lambda old, new: self.tiles.wrong(old, new),
        }

    @cached_property
    def tiles(self) -> OverlappedTiles:
        return OverlappedTiles(*self.programs)

    @cached_property
    def orders(self) -> AxisOrders:
        return AxisOrders(*self.programs)

    # ------------------------------------------------------------ rules

    def initialised(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """An assignment of the start to every result, also to one without terms, then the update."""
        expected = [replace(old, start=None)]
        if old.start is not None:
            expected.insert(0, replace(results_of(old), operator="=", value=old.start, start=None, constraints=old.start_constraints))
        left = list(new)
        for assignment in expected:
            if left[:1] == [assignment]:
                left.pop(0)
            elif not self.instances(assignment).is_empty():
                return "the results are not started" if assignment.operator == "=" != old.operator else "the update changed"
        return "something was added" if left else ""

    def unrolled(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """The terms of a reduction in one value, from its start on; and an assignment for each point of dimensions of the results."""
        whole = old
        if old.reduction:
            columns = old.outer is not None and old.outer.columns
            if old.start is None or old.dynamic or old.constraints or old.final or columns or old.tensor in old.inputs:
                return "not all of the reduction is known"
            value = old.start
            for point in product(*(range(lower, upper) for _, lower, upper in old.terms)):
                term = with_numbers(old.value, dict(zip(old.reduction, point, strict=True)))
                value = combined(old.operator, value, term)
            whole = replace(old, operator="=", value=value, bounds=old.results, reduction=(), start=None, untiled="")
            if tuple(new) == (whole,):
                return ""
        dims = [name for name in whole.dims if new and name not in new[0].dims]
        own = {access.subscripts for access in whole.reads if access.tensor == old.tensor}
        shared = whole.outer.dims if whole.outer else ()
        if not dims or {*dims} & {*shared} or not whole.is_elementwise_in_loops or not own <= {old.subscripts}:
            return "no dimension of an elementwise assignment is unrolled"
        expected = []
        for point in product(*(range(*whole.ranges[dim]) for dim in dims)):
            at = dict(zip(dims, point, strict=True))
            value, *subscripts = (with_numbers(expr, at) for expr in (whole.value, *old.subscripts))
            bounds = tuple(bound for bound in whole.bounds if bound[0] not in dims)
            expected.append(replace(whole, subscripts=tuple(subscripts), value=value, bounds=bounds))
        return "" if list(new) == expected else "a point is lost, or has another value"

    def numbered(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Elements that hold a part of a value in its place, also at other indices of the same ranges: they were given it before, and
        nothing that it reads has changed since."""
        end = next(number for number, a in enumerate(self.program) if a is new[-1])
        return self.numbered_at(old, new, end)

    def numbered_at(self, old: Assignment, new: Sequence[Assignment], end: int) -> str:
        """What ``numbered`` says, of copies and an update whose place in the program is ``end``."""
        *copies, update = new
        if any(copy.tensor in self.before or self.program[end - len(copies) : end] != tuple(copies) for copy in copies):
            return "a value is stored where others see it"
        if not all(reads_inside(self.programs[1], copy) for copy in copies):
            return "what is stored reads what is not there"
        made = {*self.after} - {*self.before}  # may stand in the values of what this reads, too
        given = (update.inputs - old.inputs) | made
        inlined, value = self.inlined(update.value, self.programs[1], end, given, old), old.value
        alike = inlined == value or with_signs_as_factors(inlined) == with_signs_as_factors(value)
        alike = alike or old.operator == "+=" and Counter(factors(inlined)) == Counter(factors(value))  # in another order
        if not alike:  # what was given to what this reads may stand in elements, too
            start = next(number for number, a in enumerate(self.programs[0].assignments) if a is old)
            given |= {name for a in self.program[:end] if a.tensor in given for name in a.inputs if self.after[name].role == "temporary"}
            inlined = self.inlined(update.value, self.programs[1], end, given, old)
            alike = inlined == self.inlined(value, self.programs[0], start, given, old)
        return "" if alike and replace(update, value=old.value) == old else "a value changed"

    def substituted(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Values in the place of elements that were given them before, of what has not changed since; nothing in the place of a temporary
        that is not read any more, nor in that of what all is given again."""
        before, after = self.programs
        if not new:
            place = next(number for number, a in enumerate(before.assignments) if a is old)
            again = any(is_given_again(old, a) for a in before.assignments[place + 1 :])
            unseen = self.before[old.tensor].role == "temporary" or again
            return "" if unseen and not any(old.tensor in a.tensors_read for a in self.program) else "what is read is not computed"
        gone = {a.tensor for a, parts in zip(before.assignments, after.replaced, strict=True) if not parts}
        end = next(number for number, a in enumerate(before.assignments) if a is old)
        inlined = self.inlined(old.value, before, end, gone, old)
        return "" if new == (replace(old, value=inlined),) else "a value changed"

    @staticmethod
    def inlined(value: Expr, program: Assignments, end: int, given: Collection[str], reader: Assignment) -> Expr:
        """A reader's value at its place with those that elements of some tensors were ``given`` before, of what has not changed since."""
        copied = value if reader.operator == "=" and program.storages[reader.tensor].dtype == value.dtype else None

        def visit(value: Expr) -> Expr:
            if not isinstance(value, Access) or value.tensor not in given:
                return rebuild(value, visit)
            first = max((number for number, a in enumerate(program.assignments[:end]) if a.tensor == value.tensor), default=-1)
            if first < 0:
                return value
            a = program.assignments[first]
            changed = {one.tensor for one in program.assignments[first:end]}
            rounds = a.value.dtype in ROUNDED and not isinstance(a.value, (Access, Cast, Const))
            exact = not rounds or value is copied  # which rounds as well
            plain = a.operator == "=" and not a.constraints and exact and program.storages[a.tensor].dtype == a.value.dtype
            pairs = zip(a.subscripts, value.subscripts, strict=True)
            read = {own.name: other.name for own, other in pairs if isinstance(own, Index) and isinstance(other, Index)}
            whole = set(read) == set(a.dims) and len(read) == len(a.subscripts)
            fits = all(reader.span(name) == a.span(dim) for dim, name in read.items())
            if not (plain and whole and fits) or changed & a.inputs:
                return value
            return visit(with_names(a.value, read))

        return visit(value)

    def blocked(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Loops over digits of dimensions, some of which are shared, in the place of loops: the same instances."""
        if len(new) != 1 or new[0].outer is None or not set(new[0].outer.dims) <= set(new[0].dims):
            return "it shares loops that it does not have"
        return self.in_digits(old, [replace(new[0], outer=None)])

    def in_digits(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Dimensions as digits, those of blocks before that of the points of one, and subscripts that have the same values in them."""
        if len(new) != 1:
            return "more than digits of dimensions changed"
        (a,), values, digits = new, dict[str, Expr](), list[tuple[str, int, int]]()
        bounds, constraints, terms = list[tuple[str, int, int]](), list(a.constraints), set[str]()
        for bound in a.bounds:
            digits.append(bound)
            dim, lower, upper = bound[0], *old.ranges.get(bound[0], (0, 0))
            if dim not in old.ranges:
                continue
            if len(digits) > 1:
                weights = [prod(end for _, _, end in digits[place + 1 :]) for place in range(len(digits))]
                size = weights[0] * digits[0][2]
                if lower or any(first for _, first, _ in digits) or upper > size or upper < size and len(digits) > 2:
                    return "blocks do not have the points of the dimension"
                if upper < size:
                    ended = f"{weights[0]} * {isl_name(digits[0][0])} + {isl_name(dim)} < {upper}"
                    if ended not in constraints:
                        return "the last block does not end where the dimension does"
                    constraints.remove(ended)
                values[dim] = total([(weight, index(name)) for weight, (name, _, _) in zip(weights, digits, strict=True)])
                bound = dim, 0, upper
            bounds.append(bound)
            terms |= {name for name, _, _ in digits if dim in old.reduction}
            digits.clear()
        if digits or {*a.reduction} != terms:
            return "a dimension is added"
        whole = replace(a, bounds=tuple(bounds), constraints=tuple(constraints), reduction=old.reduction)
        same = replace(whole, subscripts=old.subscripts, value=old.value, start=old.start) == old
        moved = [with_indices(expr, values) for expr in (*old.subscripts, old.value, *([] if old.start is None else [old.start]))]
        found = [*a.subscripts, a.value, *([] if a.start is None else [a.start])]
        where = self.instances(a)
        same = same and len(found) == len(moved) and all(self.agree(one, other, where, a) for one, other in zip(moved, found))
        return "" if same else "more than digits of dimensions changed"

    def under_outer_loops(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Shared loops: over digits of dimensions, or over blocks of terms, whose sums update the results one after another: those of the
        def, or partial ones of chunks, which a reduction behind the loops combines."""
        if len(new) == 5:
            *inside, start, combine = new
            accumulate = self.of_chunks(old, inside[1], inside[2])
            if accumulate is None:
                return "there are no chunks of the terms"
            return self.under_outer_loops(accumulate, inside) or self.chunked(old, [accumulate, start, combine])
        if len(new) != 3:
            return self.blocked(old, new)
        start, part, combine = new
        if part.outer is None or combine.outer != part.outer or not part.outer.sequential or part.outer.dims[-1:] != part.dims[:1]:
            return "the loop over blocks of terms is not the last one that is shared"
        return self.chunked(old, [replace(part, outer=None), start, replace(combine, outer=None)])

    def of_chunks(self, old: Assignment, part: Assignment, update: Assignment) -> Assignment | None:
        """The reduction into the partial results that an assignment updates by sums of blocks of terms; None where there is none."""
        chunks = update.outer.dims[-2:-1] if update.outer is not None else ()
        for dim, lower, upper in old.terms:
            if chunks and chunks[0] in update.ranges and part.ranges.get(dim) != (lower, upper):
                count = update.ranges[chunks[0]][1]
                cut = Chunks(dim, lower, upper, -(-(upper - lower) // count), count)
                return partial_result(old, cut, chunks[0], self.after[update.tensor], self.values)
        return None

    def under_chunks(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Chunks of rows as outer loops: of what runs row by row, or of a reduction over the rows, with partial results."""
        if len(new) == 1:
            return self.blocked(old, new)
        accumulate, *rest = new
        if accumulate.outer is None or accumulate.outer.dims != accumulate.dims[:1]:
            return "the loop over chunks is not shared"
        return self.chunked(old, [replace(accumulate, outer=None), *rest])

    def narrowed(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Fewer instances: those that are left out, none of which starts a result, have the identity as their term."""
        *starts, a = new
        left_out = not self.programs[0].may_leave_results(old) and not self.are_started(old, [*starts, results_of(a)])
        if replace(a, bounds=old.bounds) != old or a.operator == "=" or left_out:
            return "more than the bounds of an update changed"
        conditions, _ = guarded_term(old.value, old.operator, self.values)
        counted = self.instances(replace(old, constraints=(*old.constraints, *(text for text, _ in conditions))))
        fewer = self.instances(a)
        return "" if fewer.is_subset(self.instances(old)) and counted.is_subset(fewer) else "a term that counts is lost"

    def are_started(self, old: Assignment, parts: Sequence[Assignment]) -> bool:
        """Whether each result is one of the last part, or has its start from one of the others."""
        alike = replace(results_of(old), operator="=", value=old.start or old.value, start=None)
        left = self.instances(results_of(old))
        for part in parts:
            own = self.instances(part)
            if part is not parts[-1] and replace(part, bounds=alike.bounds) != alike or not own.is_subset(left):
                return False
            left = left.subtract(own)
        return left.is_empty()

    def parted(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Parts of the iteration domain, in each the value that it has there."""
        for part in new:
            if replace(part, bounds=old.bounds, value=old.value) != old or part.dims != old.dims or part.terms != old.terms:
                return "more than domain and value changed"
            instances = self.instances(part)
            if not instances.is_empty() and not self.agree(old.value, part.value, instances, part):
                return "a part has another value"
        for domain in (self.instances, lambda a: self.instances(results_of(a))):  # results without terms are started too
            left = domain(old)
            for part in new:
                if not domain(part).is_subset(left):
                    return "parts overlap, or leave the iteration domain"
                left = left.subtract(domain(part))
            if not left.is_empty():
                return "the parts do not cover the iteration domain"
        return ""

    def chunked(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Partial results of chunks of the terms, each term in one of them, and a reduction that combines every one of them once."""
        if len(new) != (2 if old.start is None else 3):
            return "no partial results and their combination"
        accumulate, combine = new[0], new[-1]
        chunk, lower, count = accumulate.bounds[0]
        storage, target = self.after[accumulate.tensor], self.after[old.tensor]
        if accumulate.tensor in self.before or storage.role != "temporary" or storage.dtype != target.dtype or chunk in old.dims:
            return "the partial results are no temporary of their type"
        if accumulate.start != identity(old.operator, target.dtype) or {accumulate.operator, combine.operator} != {old.operator}:
            return "the partial results do not start at the identity"
        if accumulate.subscripts != (index(chunk), *old.subscripts) or lower != 0 or storage.shape != (count, *target.shape):
            return "partial results share an element"
        if old.tensor in old.inputs:
            return "the terms depend on results"
        if not any(self.once(old, accumulate, dim) for dim, _, _ in old.terms):
            return "the chunks do not hold every term once"
        partial = Access(accumulate.tensor, accumulate.subscripts, dtype=target.dtype)
        if not same_element(combine, old) or combine.value != partial or combine.reduction != (chunk,) or combine.start is not None:
            return "partial results are not combined into their element"
        started, used = self.instances(results_of(accumulate)), self.instances(combine, (chunk, *results_of(old).dims))
        full = self.instances(accumulate).project_out(isl.dim_type.set, started.n_dim(), len(old.terms))
        if not full.is_subset(used) or not used.is_subset(started):
            return "not all partial results are combined, or some that nothing started"
        if old.start is not None:
            start = new[1]
            if start.operator != "=" or start.value != old.start or not same_element(start, old):
                return "the start is not assigned to the results"
            if not self.instances(start).is_equal(self.instances(results_of(old))):
                return "results are left without their start"
        return ""

    def copied(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Temporaries with a copy for each chunk in the place of others, which are gone: every copy is given what these were given, and
        what has chunks reads that of its own. An elementwise assignment may have been cut into chunks."""
        before, after = self.programs
        pairs = [(a, b[0]) for a, b in zip(before.assignments, after.replaced, strict=True) if len(b) == 1]
        copies = {b.tensor: a.tensor for a, b in pairs if a.tensor != b.tensor}
        if len(new) != 1 or len(pairs) < len(before.assignments) or len(set(copies.values())) < len(copies):
            return "something was added"
        used = {tensor for a in after.assignments for tensor in (a.tensor, *a.inputs)}
        for copy, tensor in copies.items():
            whole, each = self.before[tensor], self.after[copy]
            if copy in self.before or {whole.role, each.role} != {"temporary"} or tensor in used:
                return "a temporary is seen by others, or still there"
            if (each.dtype, each.shape[1:], each.dynamic_extents) != (whole.dtype, whole.shape, ()) or whole.dynamic_extents:
                return "copies have other elements"
        a = new[0]
        chunk, first, count = a.bounds[0]
        place, own = index(chunk), True

        def undone(access: Access) -> Access:
            nonlocal own
            if access.tensor not in copies:
                return access
            own = own and access.subscripts[0] == place and (first, count) == (0, self.after[access.tensor].shape[0])
            return replace(access, tensor=copies[access.tensor], subscripts=access.subscripts[1:])

        a = replace(a, value=with_accesses(a.value, undone), fuse_outer_only=old.fuse_outer_only)
        if not own:
            return "it reads the copy of another chunk"
        if a == old:
            return ""
        if chunk in _names_of(old):
            return "the chunks are no dimension of their own"
        if a.tensor in copies:
            every = a.subscripts[:1] == (place,) and (first, count) == (0, self.after[a.tensor].shape[0])
            same = replace(a, tensor=copies[a.tensor], subscripts=a.subscripts[1:], bounds=a.bounds[1:]) == old
            return "" if every and same else "not every copy is given the same"
        cut = [bound for bound in a.bounds[1:] if bound not in old.bounds]
        if len(cut) != 1 or first or cut[0][1] or (cut[0][0], 0, count * cut[0][2]) not in old.bounds or not old.is_elementwise:
            return "more than chunks were made"
        dim, _, size = cut[0]
        moved = total([(size, place), (1, index(dim))])
        bounds = [(name, low, size if name == dim else high) for name, low, high in old.bounds]
        if sorted(bounds) != sorted(a.bounds[1:]):
            return "more than chunks were made"
        subscripts = tuple(with_index(sub, dim, moved) for sub in old.subscripts)
        expected = replace(old, bounds=a.bounds, subscripts=subscripts, value=with_index(old.value, dim, moved))
        return "" if a == expected else "more than chunks were made"

    def stored(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """The same, of what does not depend on results: these may change while it is read."""
        return self.depends(old, new) or self.numbered(old, new)

    @staticmethod
    def depends(old: Assignment, new: Sequence[Assignment]) -> str:
        """Whether a part reads results."""
        return "a part depends on results" if any(old.tensor in copy.inputs for copy in new[:-1]) else ""

    def packed(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """Copies of operands, and perhaps the sum in a temporary, whose every element is copied to its place behind it."""
        *made, last = new
        if last.tensor != old.tensor or last.reduction:
            return self.stored(old, new)
        if not made or last.operator != "=" or not isinstance(last.value, Access):
            return "the results are not what was summed"
        sums, storage, target = made[-1], self.after[last.value.tensor], self.before[old.tensor]
        if storage.name in self.before or (storage.role, storage.dtype) != ("temporary", target.dtype) or sums.tensor != storage.name:
            return "the sum is in no temporary of its own"
        results, places = results_of(old), [sub.name for sub in sums.subscripts if isinstance(sub, Index)]
        every = set(places) == set(results.dims) and [old.ranges[dim] for dim in places] == [(0, extent) for extent in storage.shape]
        if not isinstance(old.start, Const) or last.value.subscripts != sums.subscripts or not every:
            return "the sum has other elements"
        if replace(results, operator="=", value=last.value, start=None) != last:
            return "not all results are copied"
        end = next(number for number, a in enumerate(self.program) if a is sums)
        summed = [*made[:-1], replace(sums, tensor=old.tensor, subscripts=old.subscripts)]
        return self.depends(old, summed) or self.numbered_at(old, summed, end)

    def restricted(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """A part of the terms, each with its value; those that are gone were the identity. Where the sum is in a temporary, results that
        have all of their terms are picked from it, and others are the identity; what results held before is added to that."""
        neutral = identity(old.operator, old.value.dtype)
        whole, left = self.instances(old), self.instances(new[0])
        same = replace(new[0], value=old.value, constraints=old.constraints, tensor=old.tensor, start=old.start)
        if len(new) not in (1, 2) or same != old or (old.start is None and len(new) == 1):
            return "more than domain and value changed"
        if len(new) == 2 and (wrong := self.picked(old, new[0], new[1], neutral)):
            return wrong
        if (new[0].tensor != old.tensor) != (len(new) == 2):
            return "more than domain and value changed"
        start = identity(old.operator, self.before[old.tensor].dtype)
        if new[0].start != start or old.start not in (None, start):
            return "the results do not start at the identity"
        if not left.is_subset(whole) or not self.agree(old.value, new[0].value, left, old):
            return "a term has another value"
        return "" if self.neutral(old.value, neutral, whole.subtract(left), old) else "a term that is no identity is gone"

    def unread(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """The identity instead of terms of elements that no assignment reads."""
        if len(new) != 1 or replace(new[0], value=old.value) != old or self.before[old.tensor].role != "temporary":
            return "more than the value changed"
        neutral = identity(old.operator, old.value.dtype)
        if not isinstance(new[0].value, Select) or (new[0].value.then, new[0].value.other) != (old.value, neutral):
            return "it is no choice between the value and the identity"
        fact = condition(new[0].value.condition, self.values)
        if fact is None:
            return "the condition is not affine"
        results = results_of(old)
        live = self.elements(results, old.subscripts, self.instances(results).intersect(self.where(results, fact)))
        for a in self.program:
            for expr in (a.value, *a.subscripts, *([a.start] if a.start is not None else [])):
                for access, guards in guarded_accesses(expr):
                    if access.tensor == old.tensor and not self.read(a, access, guards).is_subset(live):
                        return "an element is read whose terms are gone"
        return ""

    def read(self, a: Assignment, access: Access, guards: Sequence[tuple[Expr, bool]]) -> isl.Set:
        """The elements of an access, as far as affine conditions tell."""
        where = self.instances(a)
        for guard, true in guards:
            if (fact := condition(guard, self.values)) is not None:
                where = where.intersect(self.where(a, f"({fact})" if true else f"not ({fact})"))
        return self.elements(a, access.subscripts, where)

    def picked(self, old: Assignment, sums: Assignment, pick: Assignment, neutral: Const) -> str:
        storage, target = self.after[sums.tensor], self.before[old.tensor]
        if sums.tensor in self.before or storage.role != "temporary" or (storage.dtype, storage.shape) != (target.dtype, target.shape):
            return "the sum is in no temporary of its own"
        results = self.instances(results_of(old))
        operator = "=" if old.start is not None else old.operator
        if pick.operator != operator or not same_element(pick, old) or not self.instances(pick).is_equal(results):
            return "not all results are picked"
        full = self.instances(old).subtract(self.instances(sums)).project_out(isl.dim_type.set, results.n_dim(), len(old.terms))
        element = Access(sums.tensor, old.subscripts, dtype=storage.dtype)
        if old.start is None and self.agree(pick.value, element, results, pick):
            return ""  # the terms that they lack are the identity
        inside = self.agree(pick.value, element, results.subtract(full), pick)
        return "" if inside and self.neutral(pick.value, neutral, full, pick) else "results are picked that lack terms, or others are not"

    def once(self, old: Assignment, new: Assignment, dim: str) -> bool:
        """Whether the terms of ``new`` are those of ``old``, each once, where ``dim`` counts inside chunks of its extent in ``new``."""
        chunk, size = isl_name(new.bounds[0][0]), new.ranges.get(dim, (0, 0))[1]
        first = old.ranges[dim][0]
        if size < 1 or new.ranges[dim][0] or {*new.dims} != {*old.dims, new.bounds[0][0]} or new.reduction != old.reduction:
            return False
        place = f"{size} * {chunk} + {isl_name(dim)} + {first}"
        to = [place if name == dim else isl_name(name) for name in old.dims]
        terms = self.map(new.dims, to).intersect_domain(self.instances(new))
        if not terms.is_injective() or not terms.range().is_equal(self.instances(old)):
            return False
        return self.agree(old.value, new.value, self.instances(new), new, {dim: place})


def with_numbers(expr: Expr, point: Mapping[str, int]) -> Expr:
    """An expression with numbers in the place of indices."""
    for name, value in point.items():
        expr = with_index(expr, name, number(value))
    return expr


def _names_of(a: Assignment) -> set[str]:
    """The dimensions of an assignment, and the indices that it names."""
    return {*a.dims, *names(a.value), *(name for sub in a.subscripts for name in names(sub))}
