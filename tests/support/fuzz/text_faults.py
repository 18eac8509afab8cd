"""Faults of printed kernels, one at a time: barriers, guards and waits removed, copies shifted, trees and digits of threads changed.

Sizes and options are part of a kernel, and only what it gathers depends on data: a ring that runs one sees everything it ever does. So an
edit that no ring sees changes nothing that counts; here stands, of each that may be one of those, the reason why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from support.fuzz.faults import Mutant, right

_ARRAYS = re.compile(r"^\s*(?:__shared__|__local) .*? (\w+)\[(\d+)\];$", re.MULTILINE)
_BARRIER = re.compile(r"^ *(?:__syncthreads\(\)|__syncwarp\(.*\)|barrier\(.*\));\n", re.MULTILINE)
_GUARD = re.compile(r"\bif \((.*)\) \{$", re.MULTILINE)
SWAPPED = "the same terms in another order, which may round alike"
_SHUFFLE = re.compile(r"^ *tc_value = .*tc_shuffle_xor_\w+\(tc_value, (\d+),.*\n", re.MULTILINE)


def of_text(subject: str, language: str) -> Iterator[Mutant]:
    """Every fault of a subject's kernels as they are printed."""
    whole = right(subject, language)[1].text
    start = re.search(r"^.*(__global__|__kernel) ", whole, re.MULTILINE)
    assert start
    head, text = whole[: start.start()], whole[start.start() :]
    for fault, where, edited, idle in [*_barriers(text), *_shifts(text), *_guards(text), *_levels(text), *_rest(text)]:
        changed = next((n for n, (a, b) in enumerate(zip(text, edited)) if a != b), 0)
        yield Mutant(subject, language, fault, where, text=head + edited, idle=_never(text, changed) or idle)


Edited = Iterator[tuple[str, str, str, str]]  # fault, where, text, why it may be idle


def _never(text: str, at: int) -> str:
    """Code of the last block in the branch of the blocks before it."""
    opened: list[str] = []
    for line in text[:at].splitlines()[:-1]:
        opened += [line] * line.count("{")
        del opened[len(opened) - line.count("}") :]
    whole = " ".join(opened)
    last = {name: int(number) for name, number in re.findall(r"\((c\d+) == (\d+)\)", whole)}
    return "never executed" if any(last.get(name, 0) > int(most) for name, most in re.findall(r"\b(c\d+) <= (\d+)", whole)) else ""


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
                idle = "zeros beyond a tensor may be of results that are not stored" if line[0].endswith("] = 0.0f;") else ""
                yield kind, f"{name}: {line[0].strip()}", text[:end] + " + 1" + text[end:], idle


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
    nested = _GUARD.search(_inside(text, match.end()))
    return _on_registers(text, match.end()) or ("what it guards has a guard of its own" if nested else "")


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
    if written <= own:
        return "threads compute in registers what nobody stores"
    return "elements that exist go to slots that nobody reads" if written <= own | shared else ""


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
            yield "text: levels of a tree swapped", _line(text, first.start()), edited, SWAPPED
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
                idle = "of four threads the last one may have no part" if count == 2 and "*=" in one else ""
                yield fault, f"{match[0]} to {one}", text[: match.start()] + one + text[match.end() :], idle


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
