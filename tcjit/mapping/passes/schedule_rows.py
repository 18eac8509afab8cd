"""Schedule rows: statements over the same rows run row by row, in as few passes over each as dependences allow.

A softmax, a layer norm or the moments of a row read the row once for all reductions that do not need one another's results, and what a
pass computes for each point is at hand, in registers or in the nearest cache, for the passes behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Const, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk, with_names
from tcjit.mapping.machine import Machine
from tcjit.mapping.marks import Parallel, RowPass, Tile, TileLoops
from tcjit.mapping.operations import divides_integers
from tcjit.mapping.options import Options
from tcjit.mapping.passes.parallelise import cost_of_point, worth_threads
from tcjit.mapping.scop import Scop, ScopStatement, StatementForm
from tcjit.mapping.storage import are_digits
from tcjit.mapping.strides import accesses, affine_form, stride
from tcjit.mapping.tree import filters, insert_band, insert_mark, insert_sequence

# types whose values vectors hold, converted as they are loaded and stored where they are halves
TYPES = ("float32", "float64", "int32", "float16", "bfloat16")
BYTES = ("bool", "int8", "uint8")  # types that are only read, and converted as they are loaded
OPERATORS = ("+=", "*=", "min=", "max=")
FULL = 4  # of the lanes of a vector one in so many has a point, at least: shorter rows are merged with others into loops over both
SHORT = 8  # vectors of a row, at most, that waits for a sum longer than it runs
TOGETHER, FEW = 16, 4  # rows that take turns, at most and at least
TURNS = 8  # of a thread at least, before rows are taken together
MOST_WAITING = 4  # statements whose place in a group those behind them may show
Naming = Mapping[str, str]  # the dimensions of a statement -> those of the reduction by which a group was found


@dataclass(frozen=True)
class Part:
    """Statements that run after one another for a row, or, in a ``single_pass``, for each of its points."""

    statements: tuple[str, ...]
    single_pass: bool


@dataclass(frozen=True)
class RowGroup:
    """Consecutive statements over the same ``rows``: some once for each, others for every point of its ``columns``, of which the last
    runs along memory; reductions over either. ``dims`` has, for each statement, its dimensions in that order; ``parts`` follow one another
    in so many rows ``together``."""

    statements: tuple[ScopStatement, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    dims: Mapping[str, tuple[str, ...]]
    parts: tuple[Part, ...]
    together: int = 1

    def show(self) -> str:
        """One line, for people."""
        tensors = {s.name: s.tensor for s in self.statements}
        passes = [" ".join(tensors[name] for name in part.statements) for part in self.parts if part.single_pass]
        count = f"{self.together} " if self.together > 1 else ""
        return f"{count}rows {' '.join(self.rows)}: passes over {' '.join(self.columns)} for {', then '.join(passes)}"


def row_groups(scop: Scop, statements: Sequence[ScopStatement], machine: Machine) -> list[RowGroup | tuple[ScopStatement, ...]]:
    """Consecutive statements as groups over rows, with those between them that are in none."""
    found: list[RowGroup | tuple[ScopStatement, ...]] = []
    begin = at = 0
    while at < len(statements):
        columns = _columns(scop, statements[at], machine)
        group = _group_around(scop, statements, begin, at, columns, machine) if columns else None
        if group is None:
            at += 1
            continue
        last = statements.index(group.statements[-1])
        before = [s for s in statements[begin:last] if s not in group.statements]
        found += [tuple(before)] if before else []
        found.append(group)
        begin = at = last + 1
    return [*found, tuple(statements[begin:])] if begin < len(statements) else found


def schedule_rows(scop: Scop, group: RowGroup, options: Options, counter: Iterator[int]) -> isl.Schedule:
    """The tree of a group; ``counter`` numbers tiles."""
    rows = len(group.rows)

    def band(node: isl.ScheduleNode, names: Sequence[str], places: Sequence[int], form: str = "{}") -> isl.ScheduleNode:
        """Loops over some dimensions of a group, the last one in a form."""
        texts = [{name: isl_name(group.dims[name][place]) for name in names} for place in places]
        texts[-1] = {name: form.format(text) for name, text in texts[-1].items()}
        return insert_band(scop, node, texts, range(len(texts)))

    def part(leaf: isl.ScheduleNode, number: int) -> isl.ScheduleNode:
        one = group.parts[number]
        if group.together > 1:
            leaf = band(leaf, one.statements, [rows - 1], f"({{}} mod {group.together})").child(0)
        if one.single_pass:
            leaf = insert_mark(band(leaf, one.statements, range(rows, rows + len(group.columns))), RowPass()).child(0).child(0)
        return insert_sequence(leaf, filters(scop, [(name,) for name in one.statements]), lambda leaf, _: leaf)

    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if group.rows:
        node = band(node, [s.name for s in group.statements], range(rows), f"floor({{}}/{group.together})" if group.together > 1 else "{}")
        if options.parallel and worth_threads(sum(s.points * cost_of_point(s) for s in group.statements)):
            node = insert_mark(insert_mark(node, TileLoops()), Parallel()).child(0).child(0)
        node = node.child(0)
    node = insert_mark(node, Tile(next(counter))).child(0)
    return insert_sequence(node, filters(scop, [one.statements for one in group.parts]), part).get_schedule()


def _columns(scop: Scop, s: ScopStatement, machine: Machine) -> tuple[str, ...]:
    """The dimensions of a statement that are columns, that along memory last; none where it makes no group. They are those that it reduces,
    or, under loops over chunks of rows, those of the results of a reduction over the rows; most lanes of a vector have to have one."""
    if s.operator not in OPERATORS or not s.reduction or not _is_plain(scop, s):
        return ()
    dims = [dim for dim in s.dims if dim not in s.reduction] if s.reduces_rows else s.reduction
    for lane in reversed(dims):
        steps = [stride(scop, access, lane) for access in accesses(s)]
        wide = FULL * s.extent(lane) > machine.lanes(max(4, DTYPES[s.value.dtype].bytes))  # halves are floats there
        if wide and s.extent(lane) > 1 and 1 in steps and all(step in (0, 1) for step in steps):
            chunks = s.outer.dims if s.outer and s.reduces_rows else ()
            return (*(dim for dim in dims if dim != lane and dim not in chunks), lane)
    return ()


def _is_plain(scop: Scop, s: ScopStatement) -> bool:
    """Whether passes over rows can compute a statement. What ends the last chunk of rows concerns no column."""
    chunked = s.outer is not None and s.outer.columns
    return not (s.constraints and not chunked or s.fuse_outer_only) and has_row_form(s, accesses(s), lambda name: scop.tensor(name).dtype)


def has_row_form(s: StatementForm, used: Sequence[Access], dtype: Callable[[str], str]) -> bool:
    """Whether vectors can evaluate a statement over the points of a row: without gathers, in types that they hold, without failing.
    ``used``: what it reads and writes; ``dtype``: that of a tensor."""
    if any(dtype(access.tensor) not in (TYPES if access.tensor == s.tensor else (*TYPES, *BYTES)) for access in used):
        return False
    inside = {id(part) for access in used for sub in access.subscripts for part in walk(sub)}
    for part in walk(s.value):
        if isinstance(part, Access) and any(_reads(sub) for sub in part.subscripts):
            return False
        known = (*TYPES, *BYTES) if isinstance(part, (Access, Const)) else (*TYPES, "bool")
        if id(part) not in inside and (part.dtype not in known or divides_integers(part)):
            return False
    return not any(map(_reads, s.subscripts))


def _reads(subscript: Expr) -> bool:
    return any(isinstance(part, Access) for part in walk(subscript))


def _group_around(
    scop: Scop, statements: Sequence[ScopStatement], begin: int, at: int, columns: tuple[str, ...], machine: Machine
) -> RowGroup | None:
    """The longest group with a reduction, of statements from ``begin`` on."""
    rows = tuple(dim for dim in statements[at].dims if dim not in columns)
    group = _Growing(scop, statements[at], rows, columns)
    first = at - group.grown(statements[begin:at][::-1])
    beyond = at + 1 + group.grown(statements[at + 1 :])
    members = tuple(s for s in statements[first:beyond] if s.name in group.namings)
    others = {access.tensor for s in statements if s.name not in group.namings for access in accesses(s)}
    if any(scop.tensor(tensor).role == "temporary" and group.has_column(tensor) for tensor in others & set(group.used)):
        return None  # loops that all of its statements share keep it in a cache
    dims = {name: tuple(_places(naming, (*rows, *columns))) for name, naming in group.namings.items()}
    parts = _parts(members, group)
    return RowGroup(members, rows, columns, dims, parts, _together(members, group, parts, machine))


def _together(members: Sequence[ScopStatement], group: _Growing, parts: Sequence[Part], machine: Machine) -> int:
    """Short rows that go through one pass before any goes through the next: while one waits for its sum or maximum, the others run. 1 where
    no reduction waits for another, and where rows are few."""
    reduced = {s.name for s in members if s.reduction}
    waiting = sum(not reduced.isdisjoint(part.statements) for part in parts) > 1
    if not waiting or any(s.dynamic_bounds or s.constraints or s.outer for s in members):
        return 1
    rows, row = (prod(group.extents[dim] for dim in dims) for dims in (group.rows, group.columns))
    size = max(4, *(DTYPES[s.value.dtype].bytes for s in members))
    count = min(TOGETHER, rows // (TURNS * machine.threads))
    return count if row <= SHORT * machine.lanes(size) and count >= FEW else 1


def _places(naming: Naming, dims: Sequence[str]) -> Iterator[str]:
    """The dimensions of a statement in the order of others that they stand for."""
    own = {named: dim for dim, named in naming.items()}
    return (own[dim] for dim in dims if dim in own)


class _Growing:
    """A group while statements join it: what each calls the dimensions, and the places in it of the tensors that it writes."""

    def __init__(self, scop: Scop, s: ScopStatement, rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self.scop, self.rows, self.columns = scop, rows, columns
        self.namings: dict[str, Naming] = {s.name: {dim: dim for dim in s.dims}}
        self.ranges = {dim: s.range(dim) for dim in s.dims}
        self.extents = {dim: s.extent(dim) for dim in s.dims}
        self.used: dict[str, set[tuple[Expr, ...]]] = {}
        self.written: set[str] = set()
        self.add(s, self.namings[s.name])

    def add(self, s: ScopStatement, naming: Naming) -> None:
        for access in accesses(s):
            self.used.setdefault(access.tensor, set()).add(self.renamed(access, naming))
        self.namings[s.name] = naming
        self.written.add(s.tensor)

    def grown(self, statements: Sequence[ScopStatement]) -> int:
        """How many of some statements have joined the group, in their order; one may owe its place to the next ones, as the value that a
        reduction starts from does. What a reduction over the rows starts from precedes all of them."""
        count, waiting, passed = 0, list[ScopStatement](), 0
        sums = self.sums(*statements)
        for s in statements:
            before = dict(self.namings), {tensor: set(found) for tensor, found in self.used.items()}, set(self.written)
            if self.joined(s) and all(map(self.joined, reversed(waiting))):
                count, waiting, passed = count + passed + len(waiting) + 1, [], 0
                continue
            self.namings, self.used, self.written = before
            if not waiting and s.operator == "=" and s.tensor in sums and not s.reads:
                passed += 1
                continue
            waiting.append(s)
            if len(waiting) > MOST_WAITING:
                break
        return count

    def joined(self, s: ScopStatement) -> bool:
        """Whether a statement has joined the group."""
        if not _is_plain(self.scop, s):
            return False
        naming = next((found for found in self.namings_of(s) if self.fits(s, found)), None)
        if naming is None:
            return False
        self.add(s, naming)
        return True

    def namings_of(self, s: ScopStatement) -> Iterator[Naming]:
        """What a statement may call the dimensions, from elements that it has in common with the group."""
        for access in accesses(s):
            for subscripts in self.used.get(access.tensor, ()):
                naming: dict[str, str] = {}
                alike = True
                for own, other in zip(access.subscripts, subscripts, strict=True):
                    for dim, named in self.pairs(own, other):
                        alike = alike and naming.setdefault(dim, named) == named
                if alike and len(set(naming.values())) == len(naming) and set(naming) == set(s.dims):
                    yield naming

    def pairs(self, own: Expr, other: Expr) -> list[tuple[str, str]]:
        """The dimensions that stand for one another in two subscripts, those with the same factor; ("", ..) where there are none such."""
        left, right = affine_form(own, self.scop.values), affine_form(other, self.scop.values)
        if left is None or right is None or left[1] != right[1]:
            return [] if own == other else [("", "")]
        mine, others = left[0], right[0]
        named = {factor: name for name, factor in others.items()}
        if sorted(mine.values()) != sorted(others.values()) or len(named) < len(others):
            return [("", "")]
        return [(name, named[factor]) for name, factor in mine.items()]

    def fits(self, s: ScopStatement, naming: Naming) -> bool:
        """Whether a statement runs once for each row, or for each of its points, with what the group passes on in the same places."""
        dims = set(naming.values())
        reduced = {naming[dim] for dim in s.reduction}
        if dims not in (set(self.rows), {*self.rows, *self.columns}) or any(self.ranges[naming[dim]] != s.range(dim) for dim in s.dims):
            return False
        if s.reduces_rows:
            if reduced & set(self.columns) or s.tensor in self.used or s.operator not in OPERATORS:
                return False
        elif reduced and reduced != set(self.columns) or s.operator != "=" and (s.operator not in OPERATORS or not reduced):
            return False
        found = {tensor: set(subscripts) for tensor, subscripts in self.used.items()}
        for access in accesses(s):
            found.setdefault(access.tensor, set()).add(self.renamed(access, naming))
        passed = {tensor: subscripts for tensor, subscripts in found.items() if tensor in (self.written | {s.tensor}) - self.sums(s)}
        if any(len(subscripts) > 1 or not self.one_place(*subscripts) for subscripts in passed.values()):
            return False
        if any(access.tensor in self.sums() for access in accesses(s)):
            return False
        lane = [own for own, named in naming.items() if named == self.columns[-1]]
        return all(stride(self.scop, access, own) in (0, 1) for own in lane for access in accesses(s))

    def sums(self, *more: ScopStatement) -> set[str]:
        """What the group's reductions over rows write, and some statements."""
        members = [*map(self.scop.statement, self.namings), *more]
        return {s.tensor for s in members if s.reduces_rows}

    def over_columns(self, s: ScopStatement) -> bool:
        """Whether a statement runs for every point of a row."""
        return len(self.namings[s.name]) > len(self.rows)

    def has_column(self, tensor: str) -> bool:
        """Whether the group uses elements of a tensor for the points of each row, not for each row alone."""
        named = {part.name for subscripts in self.used[tensor] for sub in subscripts for part in walk(sub) if isinstance(part, Index)}
        return bool(named & set(self.columns))

    def one_place(self, subscripts: tuple[Expr, ...]) -> bool:
        """Whether an element is that of one row, or of one point in it."""
        named: set[str] = set()
        for sub in subscripts:
            form = affine_form(sub, self.scop.values)
            names = {part.name for part in walk(sub) if isinstance(part, Index)}
            terms = [(factor, self.extents[name]) for name, factor in form[0].items()] if form else []
            if names and (not terms or named & names or not are_digits(terms)):
                return False
            named |= names
        return named in (set(self.rows), {*self.rows, *self.columns})

    def renamed(self, access: Access, naming: Naming) -> tuple[Expr, ...]:
        """Subscripts in the dimensions of the group."""

        def summed(sub: Expr) -> Expr:
            form = affine_form(sub, self.scop.values)
            terms = sorted((factor, name) for name, factor in form[0].items()) if form else []
            return total([(factor, index(name)) for factor, name in terms], form[1]) if form and len(terms) > 1 else sub

        return tuple(summed(with_names(sub, naming)) for sub in access.subscripts)


def _parts(statements: Sequence[ScopStatement], group: _Growing) -> tuple[Part, ...]:
    """What runs once for a row, and the passes over it, in turn: each statement as early as what it shares with those before it allows."""
    times: dict[str, int] = {}  # of what runs once behind pass n: 2 n; of pass n: 2 n - 1
    for number, s in enumerate(statements):
        in_pass = group.over_columns(s)
        time = int(in_pass)
        for other in statements[:number]:
            shared = _shared(s, other)
            if shared and in_pass and group.over_columns(other):
                time = max(time, times[other.name] + (0 if all(map(group.has_column, shared)) else 2))
            elif shared:
                time = max(time, times[other.name] + (in_pass or group.over_columns(other)))
        times[s.name] = time
    in_order = sorted(set(times.values()))
    return tuple(Part(tuple(s.name for s in statements if times[s.name] == time), time % 2 == 1) for time in in_order)


def _shared(s: ScopStatement, other: ScopStatement) -> set[str]:
    """The tensors that both of two statements use, and one of them writes."""
    both = {access.tensor for access in accesses(s)} & {access.tensor for access in accesses(other)}
    return both & {s.tensor, other.tensor}
