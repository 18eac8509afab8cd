"""Faults put into GPU mappings and kernels one at a time, and which of the three rings sees each: the proofs, the host, oclgrind.

A fault is made where it would come from: in the statements that the passes add, in the tree, in the buffers, or in the text that is printed.
A mutant of the mapping is judged by the proofs of ``map_gpu`` and, printed and run all the same, by the ring of its language; a mutant of the
text by that ring alone. A ring either refuses what a kernel does, or lets it run to results with other bits than the right kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import islpy as isl
import numpy as np
from support_cuda_host import HostError
from support_oclgrind import Inspector, inspector
from support_subjects import SUBJECTS, Bits, Compiled, arguments, compiled, in_oclgrind, on_host, refuted

from tcjit.codegen.source import Source
from tcjit.errors import TCError
from tcjit.grammar.ast import Access, Binary, Const, Expr
from tcjit.mapping.fences import radices
from tcjit.mapping.isl import identifier
from tcjit.mapping.lowering import Lowered
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Buffer
from tcjit.mapping.tree import KIND, kind, mark_name, rewrite

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """One fault in one subject: a mapping with it, or an edit of the text. ``idle`` says why it may be no fault at all."""

    subject: str
    language: str
    fault: str
    where: str
    made: Compiled | None = None
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
    """The right kernel, and its results."""
    made = compiled(SUBJECTS[subject], language)
    source = made.source()
    _, results = run(subject, language, source.text, source)
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


def judged(mutant: Mutant) -> Verdict:
    _, source, expected = right(mutant.subject, mutant.language)
    proof, text = "", mutant.text
    if mutant.made is not None:
        proof = refuted(mutant.made)
        try:
            source = mutant.made.source()
        except (TCError, isl.Error, AssertionError, KeyError, IndexError) as error:
            return Verdict(proof, f"not printed: {type(error).__name__}: {error}")
        text = source.text
    refused, results = run(mutant.subject, mutant.language, text, source)
    differs = [number for number, (a, b) in enumerate(zip(results, expected)) if a.tobytes() != b.tobytes()]
    return Verdict(proof, refused, "" if refused or not differs else _worst(results[differs[0]], expected[differs[0]]))


def _worst(found: Bits, expected: Bits) -> str:
    wrong = np.flatnonzero(found.view(np.uint8).reshape(-1, found.itemsize) != expected.view(np.uint8).reshape(-1, found.itemsize))
    at = wrong[0] // found.itemsize
    return f"element {at} is {found.flat[at]}, not {expected.flat[at]}"


# ---------------------------------------------------------------- faults of a mapping


def of_mapping(subject: str, language: str) -> Iterator[Mutant]:
    """Every fault of a subject's statements, tree and buffers."""
    made = right(subject, language)[0]
    for fault, where, step, change in [*_statements(made), *_tree(made), *_buffers(made)]:
        name = {"tree": "synchronise", "buffers": "place"}.get(step, step)
        try:
            broken = compiled(SUBJECTS[subject], language, **{name: change})
        except (TCError, isl.Error):
            continue  # a pass refuses to go on
        yield Mutant(subject, language, fault, where, broken)


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
            yield "copy reads one further", s.name, "promote", _on_statement(s.name, value=moved)
            if s.subscripts:
                subscripts = (*s.subscripts[:-1], _further(s.subscripts[-1]))
                yield "copy writes one further", s.name, "promote", _on_statement(s.name, subscripts=subscripts)
        for number, constraint in enumerate(s.constraints):
            rest = s.constraints[:number] + s.constraints[number + 1 :]
            if not _same_domain(scop, s, replace(s, constraints=rest)):
                yield "guard dropped", f"{s.name}: {constraint}", "promote", _on_statement(s.name, constraints=rest)
        if s.name[0] in "CILRWZ" and s.bounds:
            name, lower, upper = s.bounds[-1]
            less = (*s.bounds[:-1], (name, lower, upper - 1))
            yield "added statement one short", s.name, "promote", _on_statement(s.name, bounds=less)
    for s in made.before.statements:
        for number, constraint in enumerate(s.constraints):
            rest = s.constraints[:number] + s.constraints[number + 1 :]
            if not _same_domain(made.before, s, replace(s, constraints=rest)):
                change = _on_scop(s.name, constraints=rest)
                yield "guard of a short chunk dropped", f"{s.name}: {constraint}", "scop", change


def _same_domain(scop: Scop, one: ScopStatement, other: ScopStatement) -> bool:
    found = [isl.UnionSet.read_from_str(scop.ctx, f"{{ {s.domain_text()} }}") for s in (one, other)]
    return bool(found[0].is_equal(found[1]))


def _on_scop(name: str, **change: Any) -> Change:
    def changed(scop: Scop) -> Scop:
        return replace(scop, statements=tuple(replace(s, **change) if s.name == name else s for s in scop.statements))

    return changed


def _on_statement(name: str, **change: Any) -> Change:
    def changed(lowered: Lowered) -> Lowered:
        return replace(lowered, scop=_on_scop(name, **change)(lowered.scop))

    return changed


def _tree(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the final tree: at each node that an operator fits, in the order in which ``rewrite`` comes by."""
    fitting: list[tuple[str, str, Callable[[isl.ScheduleNode], isl.ScheduleNode]]] = []
    place = 0
    found: list[tuple[str, str, str, Change]] = []

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        nonlocal place
        for number, (fault, where, _) in enumerate(_at(node)):
            found.append((fault, f"{where} (node {place})", "tree", _on_node(place, number)))
        place += 1
        return node

    rewrite(made.mapped.tree, visit)
    del fitting
    yield from found


def _on_node(place: int, number: int) -> Change:
    def changed(tree: isl.Schedule) -> isl.Schedule:
        count = iter(range(1 << 20))

        def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
            return _at(node)[number][2](node) if next(count) == place else node

        return rewrite(tree, visit)

    return changed


def _at(node: isl.ScheduleNode) -> list[tuple[str, str, Callable[[isl.ScheduleNode], isl.ScheduleNode]]]:
    """The faults that fit a node of the tree."""
    name = mark_name(node)
    found: list[tuple[str, str, Callable[[isl.ScheduleNode], isl.ScheduleNode]]] = []
    if name.startswith("sync "):
        found.append(("barrier removed", name, lambda n: n.delete()))
    if name == "sync block":
        found.append(("barrier of a warp only", name, lambda n: _renamed(n, "sync warp")))
    if name.startswith("wait "):
        found.append(("wait removed", name, lambda n: n.delete()))
        found.append(("wait for one step less", name, lambda n: _renamed(n, f"wait {int(name[5:]) + 1}")))
    if name == "reduce":
        found.append(("threads that do not combine", name, lambda n: n.delete()))
    if name.startswith("threads "):
        sizes = radices(name)
        if len(sizes) > 1:
            found.append(("digits of threads swapped", name, _swapped_digits))
            if sizes[0] != sizes[1]:
                turned = "threads " + "x".join(map(str, (sizes[1], sizes[0], *sizes[2:])))
                found.append(("radices of threads swapped", name, lambda n: _renamed(n, turned)))
        if sizes[-1] > 1:
            half = "threads " + "x".join(map(str, (*sizes[:-1], sizes[-1] // 2)))
            found.append(("radix of threads halved", name, lambda n: _renamed(n, half)))
    if kind(node) == KIND.sequence:
        for position in range(node.n_children() - 1):
            found.append(("statements swapped", f"{position} and the next", _swapping(position)))
    return found


def _renamed(node: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
    return node.delete().insert_mark(identifier(node.get_domain().get_ctx(), name))


def _swapped_digits(node: isl.ScheduleNode) -> isl.ScheduleNode:
    band = node.child(0)
    partial = band.band_get_partial_schedule()
    first, second = partial.get_at(0), partial.get_at(1)
    turned = partial.set_at(0, second).set_at(1, first)
    return band.delete().insert_partial_schedule(turned).parent()


def _swapping(position: int) -> Callable[[isl.ScheduleNode], isl.ScheduleNode]:
    def swap(node: isl.ScheduleNode) -> isl.ScheduleNode:
        """Isl moves no children: the two filters and what stands below them change places in the text of the tree."""
        raise NotImplementedError

    return swap


def _buffers(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the small arrays: they stand after the step ``place``."""
    for b in made.mapped.privates:
        where = f"{b.tensor}, {b.space}"
        yield "buffer one element short", where, "buffers", _on_buffer(b, elements=b.elements - 1)
        for axis, fold in enumerate(b.axes):
            for number, (divisor, modulus, stride) in enumerate(fold.parts):
                if modulus < 2:
                    continue

                def parts(new: tuple[int, int, int], axis: int = axis, number: int = number, b: Buffer = b) -> Any:
                    old = b.axes[axis]
                    changed = replace(old, parts=(*old.parts[:number], new, *old.parts[number + 1 :]))
                    return (*b.axes[:axis], changed, *b.axes[axis + 1 :])

                at = f"{where}, axis {axis}"
                yield "buffer with fewer slots along an axis", at, "buffers", _on_buffer(b, axes=parts((divisor, modulus - 1, stride)))
                if stride > 1:
                    yield "rows of a buffer overlap", at, "buffers", _on_buffer(b, axes=parts((divisor, modulus, stride - 1)))
        if b.space == "shared":
            yield "a shared buffer in registers", where, "buffers", _on_buffer(b, space="thread")


def _on_buffer(buffer: Buffer, **change: Any) -> Change:
    def changed(kernels: Any) -> Any:
        def one(kernel: Any) -> Any:
            return replace(kernel, buffers=tuple(replace(b, **change) if b == buffer else b for b in kernel.buffers))

        return tuple(map(one, kernels))

    return changed
