"""Outline: loops of a kernel that differ in their tensors alone become calls of one function, which the C compiler then compiles once.

Layers and unrolled steps of an iteration are such loops. A loop is outlined with the pragma in front of it, inside the region of threads
that it stands in; one that needs anything of the kernel but pointers and the number of threads stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

LEAST_LINES = 16  # of a loop: what is shorter costs the compiler about what a call does
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_POINTER = re.compile(r" *(?P<type>[\w ]+ \*restrict) (?P<name>\w+) = ")
_OTHER = re.compile(r" *[\w ]+ \**(?P<name>\w+)(?:[ \[,].*)?;")
_Key = tuple[str, tuple[str, ...]]  # a text over parameters, and their types


def outline(prologue: Sequence[str], lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The functions of repeated loops, and the body of the kernel with calls of them; the ``prologue`` declares what loops may need."""
    pointers = {found["name"]: found["type"] for line in prologue if (found := _POINTER.match(line))}
    others = {found["name"] for line in prologue if (found := _OTHER.match(line))} | {"workspace", "numbers", "tensors"}
    chunks = list(_chunks(lines))
    others |= {found["name"] for chunk in chunks if len(chunk) == 1 and (found := _OTHER.match(chunk[0]))}
    loops = {number: _canonical(chunk, pointers) for number, chunk in enumerate(chunks) if len(chunk) >= LEAST_LINES}
    loops = {number: found for number, found in loops.items() if not others & set(_NAME.findall("\n".join(chunks[number])))}
    keys = [key for key, _ in loops.values()]
    names = {key: f"tc_outlined{n}" for n, key in enumerate(dict.fromkeys(key for key in keys if keys.count(key) > 1))}
    functions = [_function(name, *key) for key, name in names.items()]
    body = []
    for number, chunk in enumerate(chunks):
        key, tensors = loops.get(number, (None, []))
        body += [f"  {names[key]}({', '.join([*tensors, 'threads'])});"] if key in names else chunk
    return functions, body


def _function(name: str, text: str, types: Sequence[str]) -> str:
    parameters = [*(f"{kind} tc_t{number}" for number, kind in enumerate(types)), "int threads"]
    return f"static __attribute__((noinline)) void {name}({', '.join(parameters)}) {{\n{text}\n}}"


def _chunks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each loop of the kernel or of a region of threads, with its pragma; all other lines one by one."""
    at, depth = 0, "  "
    while at < len(lines):
        if lines[at] == "  {" and at and lines[at - 1].startswith("#pragma omp parallel num_threads"):
            depth = "    "
        elif lines[at] == "  }":
            depth = "  "
        first = at + lines[at].startswith("#pragma omp")
        is_loop = first < len(lines) and lines[first].startswith(f"{depth}for (") and lines[first].endswith("{")
        end = lines.index(f"{depth}}}", first) + 1 if is_loop else at + 1
        yield list(lines[at:end])
        at = end


def _canonical(chunk: Sequence[str], pointers: Mapping[str, str]) -> tuple[_Key, list[str]]:
    """A loop over parameters in the place of tensors, and these in order of appearance."""
    text = "\n".join(chunk)
    tensors = [name for name in dict.fromkeys(_NAME.findall(text)) if name in pointers]
    numbers = {name: f"tc_t{n}" for n, name in enumerate(tensors)}
    return (_NAME.sub(lambda found: numbers.get(found[0], found[0]), text), tuple(pointers[name] for name in tensors)), tensors
