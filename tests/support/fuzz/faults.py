"""Faults put into GPU mappings and kernels one at a time, and which of three rings sees each: the proofs, the host, oclgrind.

A fault is made where it would come from: in the statements that the passes add, in the tree, in the buffers, or in the printed text
(``text_faults``). A mutant of the mapping is judged by the proofs of ``map_gpu`` and, printed and run all the same, by the ring of
its language; a mutant of the text by that ring alone. A ring either refuses what a kernel does, or lets it run to results with other bits
than the right kernel's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import islpy as isl

from support.rings.cuda_host import HostError
from support.rings.oclgrind import Inspector, inspector
from support.subjects import SUBJECTS, Bits, Compiled, arguments, compiled, in_oclgrind, on_host, refuted
from tcjit.codegen.source import Source
from tcjit.errors import TCError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access, Binary, Const, Expr
from tcjit.mapping import tree as trees
from tcjit.mapping.isl import maps
from tcjit.mapping.marks import Mark, Reduce, Sync, Threads, WaitGroup, parse
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.scop_builder import LoweredScop
from tcjit.mapping.storage import Buffer

Change = Callable[[Any], Any]
IDLE = {"digits of threads swapped": "another thread has the same share of a copy, between barriers"}


@dataclass(frozen=True)
class Mutant:
    """One fault in one subject: a mapping with it, or an edit of the text. ``idle`` says why it may be no fault at all."""

    subject: str
    language: str
    fault: str
    where: str
    made: Callable[[], Compiled] | None = None
    text: str = ""
    idle: str = ""


@dataclass(frozen=True)
class Verdict:
    """What each ring says of a mutant: the proofs, then the ring of its language, of what the kernel does and of its results."""

    proof: str = ""
    refused: str = ""
    differs: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.proof or self.refused or self.differs)


# ---------------------------------------------------------------- judging


@cache
def right(subject: str, language: str) -> tuple[Compiled, Source, tuple[Bits, ...]]:
    """The right kernel, and its results; an AssertionError where its ring refuses it."""
    made = compiled(SUBJECTS[subject], language)
    source = made.source()
    refused, results = run(subject, language, source.text, source)
    assert not refused, f"{subject} in {language}: {refused}"
    return made, source, tuple(results)


def run(subject: str, language: str, text: str, source: Source) -> tuple[str, list[Bits]]:
    """What a ring refuses, and the results where there are some."""
    if language == "cuda":
        try:
            return "", on_host(text, source, arguments(subject))
        except HostError as error:
            return str(error), []
    watching: Inspector = inspector()
    results, found, ended = in_oclgrind(watching, text, source, arguments(subject))
    return "; ".join(dict.fromkeys([*(finding.what for finding in found), *([ended] if ended else [])])), results


def judged(mutant: Mutant, proofs_first: bool = False) -> Verdict:
    """What the proofs and the ring of its language say of a mutant; with ``proofs_first`` the ring is not asked what the proofs know."""
    _, source, expected = right(mutant.subject, mutant.language)
    proof, text = "", mutant.text
    if mutant.made is not None:
        try:
            made = mutant.made()
            proof = refuted(made)
            if proof and proofs_first:
                return Verdict(proof)
            source = made.source()
        except (TCError, isl.Error, AssertionError, KeyError, IndexError) as error:
            return Verdict(proof, refused=f"never printed: {type(error).__name__}: {error}")
        text = source.text
    refused, results = run(mutant.subject, mutant.language, text, source)
    differs = [number for number, (a, b) in enumerate(zip(results, expected)) if a.tobytes() != b.tobytes()]
    return Verdict(proof, refused, "" if refused or not differs else _worst(results[differs[0]], expected[differs[0]]))


def _worst(found: Bits, expected: Bits) -> str:
    at = next(n for n, (a, b) in enumerate(zip(found.ravel(), expected.ravel())) if a.tobytes() != b.tobytes())
    return f"element {at} is {found.ravel()[at]}, not {expected.ravel()[at]}"


# ---------------------------------------------------------------- faults of a mapping


def of_mapping(subject: str, language: str) -> Iterator[Mutant]:
    """Every fault of a subject's statements, tree and buffers."""
    made = right(subject, language)[0]
    for fault, where, step, change in [*_statements(made), *_tree(made), *_buffers(made)]:
        name = {"tree": "synchronise", "buffers": "allocate"}.get(step, step)
        yield Mutant(subject, language, fault, where, _making(subject, language, name, change), idle=IDLE.get(fault, ""))


def _making(subject: str, language: str, step: str, change: Change) -> Callable[[], Compiled]:
    return lambda: compiled(SUBJECTS[subject], language, **{step: change})


def _further(expr: Expr) -> Expr:
    return Binary("+", expr, Const(1, dtype="int64"), dtype="int64")


def _statements(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the statements that the passes added: they stand after the step ``promote``."""
    scop = made.lowered.scop
    for s in scop.statements:
        assert isinstance(s, ScopStatement)
        if isinstance(s.value, Access) and s.operator == "=" and s.name[0] in "CLW" and s.value.subscripts:
            value = s.value
            moved = replace(value, subscripts=(*value.subscripts[:-1], _further(value.subscripts[-1])))
            yield "copy reads one further", s.name, "promote_to_shared", _on_statement(s.name, value=moved)
            if s.subscripts:
                subscripts = (*s.subscripts[:-1], _further(s.subscripts[-1]))
                yield "copy writes one further", s.name, "promote_to_shared", _on_statement(s.name, subscripts=subscripts)
        for number, constraint in enumerate(s.constraints):
            rest = s.constraints[:number] + s.constraints[number + 1 :]
            if not _same_domain(scop, s, replace(s, constraints=rest)):
                yield "guard dropped", f"{s.name}: {constraint}", "promote_to_shared", _on_statement(s.name, constraints=rest)
        if s.name[0] in "CILRWZ" and s.bounds:
            name, lower, upper = s.bounds[-1]
            less = (*s.bounds[:-1], (name, lower, upper - 1))
            if s.name[0] == "R" and not _has_terms(scop, s, f"{isl_name(name)} = {upper - 1}"):
                continue
            yield "added statement one short", s.name, "promote_to_shared", _on_statement(s.name, bounds=less)
    for s in made.before.statements:
        for number, constraint in enumerate(s.constraints):
            rest = s.constraints[:number] + s.constraints[number + 1 :]
            if not _same_domain(made.before, s, replace(s, constraints=rest)):
                change = _on_scop(s.name, constraints=rest)
                yield "guard of a short chunk dropped", f"{s.name}: {constraint}", "scop", change


def _has_terms(scop: Scop, s: ScopStatement, where: str) -> bool:
    """Whether any term of the program is in the partial results that a statement combines at some of its instances."""
    there = isl.UnionSet.read_from_str(scop.ctx, f"{{ {replace(s, constraints=(*s.constraints, where)).domain_text()} }}")
    terms = [isl.UnionSet.read_from_str(scop.ctx, f"{{ {each.domain_text()} }}") for each in scop.statements if each.name[0] == "S"]
    parts = [access.tensor for access, _ in s.reads if access.tensor != s.tensor]
    read = isl.UnionSet.empty(there.get_space())
    for one in maps(scop.reads.intersect_domain(there)):
        if one.get_tuple_name(isl.dim_type.out) in [isl_name(part) for part in parts]:
            read = read.union(one.range().to_union_set())
    return any(not scop.writes.intersect_domain(each).range().is_disjoint(read) for each in terms)


def _same_domain(scop: Scop, one: ScopStatement, other: ScopStatement) -> bool:
    found = [isl.UnionSet.read_from_str(scop.ctx, f"{{ {s.domain_text()} }}") for s in (one, other)]
    return bool(found[0].is_equal(found[1]))


def _on_scop(name: str, **change: Any) -> Change:
    def changed(scop: Scop) -> Scop:
        return replace(scop, statements=tuple(replace(s, **change) if s.name == name else s for s in scop.statements))

    return changed


def _on_statement(name: str, **change: Any) -> Change:
    def changed(lowered: LoweredScop) -> LoweredScop:
        return replace(lowered, scop=_on_scop(name, **change)(lowered.scop))

    return changed


def _tree(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the final tree."""
    warp = made.device.warp
    threads = 0
    for place, node in enumerate(_nodes(_data(made.mapped.tree))):
        threads = next((launch.threads for launch in made.mapped.launches if str(launch.mark) == node.get("mark")), threads)
        for number, (fault, where, _) in enumerate(_at(node)):
            if fault == "barrier of a warp only" and threads <= warp:
                continue  # all threads of the block are one
            both = node.get("sequence", ())[number : number + 2]
            if both and (len({'"async_copy"' in json.dumps(part) for part in both}) > 1 or not _dependent(made.mapped.scop, *both)):
                continue  # copies that run ahead fill other pieces than those that are read
            yield fault, where, "tree", _on_node(place, number)


def _dependent(scop: Scop, *parts: dict[str, Any]) -> bool:
    """Whether one of two children of a sequence writes what the other one uses."""
    both = [isl.UnionSet.read_from_str(scop.ctx, part["filter"]).intersect(scop.domain) for part in parts]
    reads = [scop.reads.intersect_domain(part).range() for part in both]
    writes = [scop.writes.intersect_domain(part).range() for part in both]
    return not all(a.is_disjoint(b) for a, b in ((writes[0], writes[1]), (writes[0], reads[1]), (reads[0], writes[1])))


def _data(tree: isl.Schedule) -> dict[str, Any]:
    """A tree as JSON has it."""
    pieces = str(tree).split('"')
    pieces[::2] = [re.sub(r"(\w+):", r"'\1':", piece).replace("'", '"') for piece in pieces[::2]]
    text = "".join(piece if n % 2 == 0 else f'"{piece}"' for n, piece in enumerate(pieces))
    return json.loads(text)  # type: ignore[no-any-return]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in [*node.get("sequence", ()), *([node["child"]] if "child" in node else ())]:
        yield from _nodes(below)


def _on_node(place: int, number: int) -> Change:
    def changed(tree: isl.Schedule) -> isl.Schedule:
        data = _data(tree)
        node = list(_nodes(data))[place]
        _at(node)[number][2](node)
        return trees.read(tree.get_ctx(), json.dumps(data))

    return changed


def _at(node: dict[str, Any]) -> list[tuple[str, str, Callable[[dict[str, Any]], None]]]:
    """The faults that fit a node of the tree."""
    name = node.get("mark", "")
    mark = parse(name) if name else None
    found: list[tuple[str, str, Callable[[dict[str, Any]], None]]] = []
    if isinstance(mark, Sync):
        found.append(("barrier removed", name, _without))
    if mark == Sync("block"):
        found.append(("barrier of a warp only", name, _changed(Sync("warp"))))
    if isinstance(mark, WaitGroup):
        found.append(("wait removed", name, _without))
        found.append(("wait for one step less", name, _changed(WaitGroup(mark.number + 1))))
    if isinstance(mark, Reduce):
        found.append(("threads that do not combine", name, _without))
    if isinstance(mark, Threads):
        first, *others = sizes = mark.radices
        if others:
            found.append(("digits of threads swapped", name, _with_swapped_digits))
            if first != others[0]:
                found.append(("radices of threads swapped", name, _changed(Threads((others[0], first, *others[1:])))))
        if sizes[-1] > 1 and not node["child"]["schedule"].endswith("[(0)] }]"):  # all threads have the digit 0
            found.append(("radix of threads halved", name, _changed(Threads((*sizes[:-1], sizes[-1] // 2)))))
    for position in range(len(node.get("sequence", ())) - 1):
        found.append(("statements swapped", f"{position} and the next", _swapping(position)))
    return found


def _without(node: dict[str, Any]) -> None:
    below = node["child"]
    node.clear()
    node.update(below)


def _changed(mark: Mark) -> Callable[[dict[str, Any]], None]:
    return lambda node: node.update(mark=str(mark))


def _with_swapped_digits(node: dict[str, Any]) -> None:
    first, second, *rest = re.findall(r"\{.*?\}", node["child"]["schedule"])
    node["child"]["schedule"] = f"[{', '.join((second, first, *rest))}]"


def _swapping(position: int) -> Callable[[dict[str, Any]], None]:
    def swap(node: dict[str, Any]) -> None:
        children = node["sequence"]
        children[position], children[position + 1] = children[position + 1], children[position]

    return swap


def _buffers(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the small arrays: they stand after the step ``place``."""
    for b in made.mapped.privates:
        where = f"{b.tensor}, {b.space}"
        every = [part for fold in b.axes for part in fold.parts]
        used = 1 + sum((modulus - 1) * stride for _, modulus, stride in every)  # the end of the last row may be padding
        yield "buffer one element short", where, "buffers", _on_buffer(b, elements=used - 1)
        for axis, fold in enumerate(b.axes):
            for number, (divisor, modulus, stride) in enumerate(fold.parts):
                inner = sum((m - 1) * k for _, m, k in every if k < stride)
                if modulus < 2:
                    continue
                for fault, part in (
                    ("buffer with fewer slots along an axis", (divisor, modulus - 1, stride)),
                    ("rows of a buffer overlap", (divisor, modulus, inner)),
                ):
                    parts = (*fold.parts[:number], part, *fold.parts[number + 1 :])
                    axes = (*b.axes[:axis], replace(fold, parts=parts), *b.axes[axis + 1 :])
                    yield fault, f"{where}, axis {axis}", "buffers", _on_buffer(b, axes=axes)
        if b.space == "shared":
            yield "a shared buffer in registers", where, "buffers", _on_buffer(b, space="thread")


def _on_buffer(buffer: Buffer, **change: Any) -> Change:
    def changed(kernels: Any) -> Any:
        def one(kernel: Any) -> Any:
            return replace(kernel, buffers=tuple(replace(b, **change) if b == buffer else b for b in kernel.buffers))

        return tuple(map(one, kernels))

    return changed
