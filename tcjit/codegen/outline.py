"""Outline: loops of a kernel that differ in their tensors alone become calls of one function, which the C compiler then compiles once.

Layers and unrolled steps of an iteration are such loops. A loop is outlined with the pragma in front of it, inside the region of threads
that it stands in, or inside the loop that several of them share; one that needs anything of the kernel but pointers, the variable of that
loop and the number of threads stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

LEAST_LINES = 16  # of a loop: what is shorter costs the compiler about what a call does
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_POINTER = re.compile(r" *(?P<type>[\w ]+ \*restrict) (?P<name>\w+) = ")
_LOOP = re.compile(r" *for \((?P<type>int64_t) (?P<name>\w+) = ")
_OTHER = re.compile(r" *(?:\w+ )+\**(?P<name>\w+)(?:[ \[,].*)?;")
_Key = tuple[str, tuple[str, ...]]  # a text over parameters, and their types


def outline(prologue: Sequence[str], lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The functions of repeated loops, and the body of the kernel with calls of them; the ``prologue`` declares what loops may need."""
    chunks = list(_chunks(lines))
    single = [*prologue, *(chunk[0] for chunk in chunks if len(chunk) == 1)]
    given = {found["name"]: found["type"] for line in single if (found := _POINTER.match(line) or _LOOP.match(line))}
    others = {found["name"] for line in single if (found := _OTHER.match(line))} - given.keys() | {"workspace", "numbers", "tensors"}
    loops = {number: _canonical(chunk, given) for number, chunk in enumerate(chunks) if len(chunk) >= LEAST_LINES}
    loops = {number: found for number, found in loops.items() if not others & set(_NAME.findall("\n".join(chunks[number])))}
    keys = [key for key, _ in loops.values()]
    names = {key: f"tc_outlined{n}" for n, key in enumerate(dict.fromkeys(key for key in keys if keys.count(key) > 1))}
    functions = [_function(name, *key) for key, name in names.items()]
    body = list[str]()
    for number, chunk in enumerate(chunks):
        key, arguments = loops.get(number, (None, []))
        body += [f"  {names[key]}({', '.join([*arguments, 'threads'])});"] if key in names else chunk
    return functions, body


def _function(name: str, text: str, types: Sequence[str]) -> str:
    parameters = [*(f"{kind} tc_t{number}" for number, kind in enumerate(types)), "int threads"]
    return f"static __attribute__((noinline)) void {name}({', '.join(parameters)}) {{\n{text}\n}}"


def _chunks(lines: Sequence[str], depth: str = "  ") -> Iterator[Sequence[str]]:
    """The lines of each loop of the kernel, of a region of threads, or of a loop that threads share around several, with its pragma; all
    other lines one by one."""
    at = 0
    while at < len(lines):
        first = at + lines[at].startswith("#pragma omp")
        head = lines[first] if first < len(lines) else ""
        is_region, is_loop = at < first and head == f"{depth}{{", head.startswith(f"{depth}for (") and head.endswith("{")
        end = lines.index(f"{depth}}}", first) + 1 if is_region or is_loop else at + 1
        inside = lines[first + 1 : end - 1]
        braced = is_loop and inside[0] == f"{depth}  {{"
        deeper = depth + ("    " if braced else "  ")
        if is_region or is_loop and at < first and sum(line.startswith(f"{deeper}for (") for line in inside) > 1:
            before, after = first + 1 + braced, end - 1 - braced
            yield from ([line] for line in lines[at:before])
            yield from _chunks(lines[before:after], deeper)
            yield from ([line] for line in lines[after:end])
        else:
            yield lines[at:end]
        at = end


def _canonical(chunk: Sequence[str], given: Mapping[str, str]) -> tuple[_Key, list[str]]:
    """A loop over parameters in the place of what is given, tensors and the variable of a shared loop, and these in order of appearance."""
    text = "\n".join(chunk)
    own = {found["name"] for line in chunk if (found := _LOOP.match(line))}
    arguments = [name for name in dict.fromkeys(_NAME.findall(text)) if name in given.keys() - own]
    numbers = {name: f"tc_t{n}" for n, name in enumerate(arguments)}
    return (_NAME.sub(lambda found: numbers.get(found[0], found[0]), text), tuple(given[name] for name in arguments)), arguments
