"""Faults put into GPU mappings and kernels one at a time, and which of the three rings sees each: the proofs, the host, oclgrind.

A fault is made where it would come from: in the statements that the passes add, in the tree, in the buffers, or in the text that is printed.
A mutant of the mapping is judged by the proofs of ``map_gpu`` and, printed and run all the same, by the ring of its language; a mutant of the
text by that ring alone. A ring either refuses what a kernel does, or lets it run to results with other bits than the right kernel's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import islpy as isl
from support_cuda_host import HostError
from support_oclgrind import Inspector, inspector
from support_subjects import SUBJECTS, Bits, Compiled, arguments, compiled, in_oclgrind, on_host, refuted

from tcjit.codegen.source import Source
from tcjit.errors import TCError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access, Binary, Const, Expr
from tcjit.mapping import tree as trees
from tcjit.mapping.fences import radices
from tcjit.mapping.isl import maps
from tcjit.mapping.lowering import Lowered
from tcjit.mapping.scop import Scop, ScopStatement
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
    """What the proofs and the ring of its language say of a mutant."""
    _, source, expected = right(mutant.subject, mutant.language)
    proof, text = "", mutant.text
    if mutant.made is not None:
        try:
            made = mutant.made()
            proof = refuted(made)
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
        name = {"tree": "synchronise", "buffers": "place"}.get(step, step)
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
            if s.name[0] == "R" and not _has_terms(scop, s, f"{isl_name(name)} = {upper - 1}"):
                continue
            yield "added statement one short", s.name, "promote", _on_statement(s.name, bounds=less)
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
    parts = [access.tensor for access, _ in s.reads() if access.tensor != s.tensor]
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
    def changed(lowered: Lowered) -> Lowered:
        return replace(lowered, scop=_on_scop(name, **change)(lowered.scop))

    return changed


def _tree(made: Compiled) -> Iterator[tuple[str, str, str, Change]]:
    """Faults of the final tree."""
    warp = made.device.warp
    threads = 0
    for place, node in enumerate(_nodes(_data(made.mapped.tree))):
        threads = next((launch.threads for launch in made.mapped.launches if launch.mark == node.get("mark")), threads)
        for number, (fault, where, _) in enumerate(_at(node)):
            if fault == "barrier of a warp only" and threads <= warp:
                continue  # all threads of the block are one
            both = node.get("sequence", ())[number : number + 2]
            if both and (len({'"ahead"' in json.dumps(part) for part in both}) > 1 or not _dependent(made.mapped.scop, *both)):
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
    found: list[tuple[str, str, Callable[[dict[str, Any]], None]]] = []
    if name.startswith("sync "):
        found.append(("barrier removed", name, _without))
    if name == "sync block":
        found.append(("barrier of a warp only", name, _named("sync warp")))
    if name.startswith("wait "):
        found.append(("wait removed", name, _without))
        found.append(("wait for one step less", name, _named(f"wait {int(name[5:]) + 1}")))
    if name == "reduce":
        found.append(("threads that do not combine", name, _without))
    if name.startswith("threads "):
        sizes = radices(name)
        if len(sizes) > 1:
            found.append(("digits of threads swapped", name, _with_swapped_digits))
            if sizes[0] != sizes[1]:
                found.append(("radices of threads swapped", name, _named(f"threads {_by((sizes[1], sizes[0], *sizes[2:]))}")))
        if sizes[-1] > 1 and not node["child"]["schedule"].endswith("[(0)] }]"):  # all threads have the digit 0
            found.append(("radix of threads halved", name, _named(f"threads {_by((*sizes[:-1], sizes[-1] // 2))}")))
    for position in range(len(node.get("sequence", ())) - 1):
        found.append(("statements swapped", f"{position} and the next", _swapping(position)))
    return found


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _without(node: dict[str, Any]) -> None:
    below = node["child"]
    node.clear()
    node.update(below)


def _named(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda node: node.update(mark=name)


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


# ---------------------------------------------------------------- faults of a text

_ARRAYS = re.compile(r"^\s*(?:__shared__|__local) .*? (\w+)\[(\d+)\];$", re.MULTILINE)
_BARRIER = re.compile(r"^ *(?:__syncthreads\(\)|__syncwarp\(\)|barrier\(.*\));\n", re.MULTILINE)
_GUARD = re.compile(r"\bif \((.*)\) \{$", re.MULTILINE)
_SHUFFLE = re.compile(r"^ *tc_value = .*tc_shuffle_xor_\w+\(tc_value, (\d+)\).*\n", re.MULTILINE)


def of_text(subject: str, language: str) -> Iterator[Mutant]:
    """Every fault of a subject's kernels as they are printed."""
    whole = right(subject, language)[1].text
    start = re.search(r"^.*(__global__|__kernel) ", whole, re.MULTILINE)
    assert start
    head, text = whole[: start.start()], whole[start.start() :]
    for fault, where, edited, idle in [*_barriers(text), *_shifts(text), *_guards(text), *_levels(text), *_rest(text)]:
        yield Mutant(subject, language, fault, where, text=head + edited, idle=idle)


Edited = Iterator[tuple[str, str, str, str]]  # fault, where, text, why it may be idle


def _barriers(text: str) -> Edited:
    for match in _BARRIER.finditer(text):
        yield "text: barrier removed", _line(text, match.start()), text[: match.start()] + text[match.end() :], _idle_barrier(text, match)


def _idle_barrier(text: str, match: re.Match[str]) -> str:
    """Barriers of a tree that this use of it does not need."""
    kernel = text[: match.start()].rindex("tc_flag) {")
    following = re.match(r"(?: *if \(.*\) \{\n)? *(tc_scratch_\w+)\[(.*?)\] = tc_value", text[match.end() :])
    if following:
        before = text[kernel : match.start()].rpartition(f"= {following[1]}[")
        if not before[1] or following[2] == "tc_thread" or _BARRIER.search(before[2]):
            return "nobody can still read what the last tree left in the scratch array"
    if re.search(r"tc_lanes = 1; .*\n.*\n.*\n *\}\n$", text[: match.start()]):
        return "a tree of one level: its result is used by the thread that computes it"
    return ""


def _shifts(text: str) -> Edited:
    """Each access to a shared array, and each to global memory in a copy to or from one, one element further."""
    shared = [name for name, _ in _ARRAYS.findall(text)]
    for line in re.finditer(r"^.*(?:=|tc_ahead).*;$", text, re.MULTILINE):
        places = [(m.group(1), line.start() + m.end()) for m in re.finditer(r"(\w+)\[", line[0])]
        if "[" not in line[0].split("=")[0] + line[0].split("=")[-1] or " for (" in line[0] or re.search(r"\w+ (\w+)\[\d+\];", line[0]):
            continue
        for name, at in places:
            if name in shared or any(other in shared for other, _ in places):
                if name.startswith("tc_x") or name.startswith("tc_y"):
                    continue
                end = _closing(text, at)
                kind = "text: tree's place shifted" if name.startswith("tc_scratch") else "text: copy shifted"
                yield kind, f"{name}: {line[0].strip()}", text[:end] + " + 1" + text[end:], ""


def _closing(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _guards(text: str) -> Edited:
    for match in _GUARD.finditer(text):
        for part in dict.fromkeys([match[1], *match[1].split(" && ")]):
            condition = match[1].replace(part, "1")
            edited = text[: match.start(1)] + condition + text[match.end(1) :]
            yield "text: guard dropped", f"{part} in {_line(text, match.start())}", edited, _idle_guard(text, match)


def _idle_guard(text: str, match: re.Match[str]) -> str:
    """What a guard keeps from happening, where that is work on a thread's own registers, or has guards of its own."""
    return _on_registers(text, match.end()) or ("what it guards has a guard of its own" if _GUARD.search(_inside(text, match.end())) else "")


def _inside(text: str, at: int) -> str:
    """The rest of the block that a place is in."""
    depth, end = 1, at
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[at:end]


def _on_registers(text: str, at: int) -> str:
    shared = {name for name, _ in _ARRAYS.findall(text)}
    own = set(re.findall(r"^ *(?:__align__\(16\) |__attribute__\(\(aligned\(16\)\)\) )?[\w ]+ (\w+)\[\d+\];$", text, re.MULTILINE)) - shared
    block = _inside(text, at)
    written = set(re.findall(r"^ *(?:\*\([\w ]+\*\)&)?(\w+)\[.*?\] = ", block, re.MULTILINE))
    if "tc_ahead" in block or _BARRIER.search(block):
        return ""
    if re.fullmatch(r"\s*\w+\[.*\] = \S+;\s*\}", block) and written <= shared:
        return "a thread sets slots that nobody reads"
    if written and written <= shared:
        return "elements that exist go to slots that nobody reads"
    return "threads compute in registers what nobody stores" if written <= own else ""


def _levels(text: str) -> Edited:
    """Faults of the trees that combine values."""
    levels = list(_SHUFFLE.finditer(text))
    for match in levels:
        distance, where = int(match[1]), _line(text, match.start())
        yield "text: level of a tree dropped", where, text[: match.start()] + text[match.end() :], ""
        for other in {distance * 2, max(1, distance // 2)} - {distance, 32}:
            edited = text[: match.start(1)] + str(other) + text[match.end(1) :]
            yield "text: distance of a tree changed", f"{where} to {other}", edited, ""
    for first, second in zip(levels, levels[1:]):
        if first.end() == second.start():
            edited = text[: first.start()] + second[0] + first[0] + text[second.end() :]
            yield "text: levels of a tree swapped", _line(text, first.start()), edited, "another order of the same terms, which may only round otherwise"
    for match in re.finditer(r"for \(int tc_lanes = (\d+); tc_lanes > 0; tc_lanes /= 2\)", text):
        count = int(match[1])
        heads = {
            "text: level of a tree dropped": [f"for (int tc_lanes = {count // 2}; tc_lanes > 0; tc_lanes /= 2)"],
            "text: distance of a tree changed": [f"for (int tc_lanes = {2 * count}; tc_lanes > 0; tc_lanes /= 2)"],
            "text: levels of a tree swapped": [f"for (int tc_lanes = 1; tc_lanes <= {count}; tc_lanes *= 2)"] if count > 1 else [],
        }
        if count > 1:
            heads["text: level of a tree dropped"].append(f"for (int tc_lanes = {count}; tc_lanes > 1; tc_lanes /= 2)")
        for fault, new in heads.items():
            for one in new:
                yield fault, f"{match[0]} to {one}", text[: match.start()] + one + text[match.end() :], ""


def _rest(text: str) -> Edited:
    for match in re.finditer(r"^ *tc_arrived_(\d)\(\);\n", text, re.MULTILINE):
        yield "text: wait removed", _line(text, match.start()), text[: match.start()] + text[match.end() :], ""
    for match in re.finditer(r"tc_thread ([/%]) (\d+)", text):
        if (size := int(match[2])) > 1:
            edited = text[: match.start(2)] + str(size - 1 if size % 2 else size // 2) + text[match.end(2) :]
            yield "text: digit of a thread's number", _line(text, match.start()), edited, _on_registers(text, match.end())
    for match in _ARRAYS.finditer(text):
        size = int(match[2])
        if size > 1:
            edited = text[: match.start(2)] + str(size // 2) + text[match.end(2) :]
            yield "text: array of half the size", match[0].strip(), edited, ""


def _line(text: str, at: int) -> str:
    """The line at a place, with its number."""
    number = text.count("\n", 0, at)
    return f"{number}: {text.splitlines()[number].strip()}"
