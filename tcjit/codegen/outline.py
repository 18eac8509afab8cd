"""Outline: loops of a kernel that differ in their tensors alone become calls of one function, which the C compiler then compiles once.

Layers and unrolled steps of an iteration are such loops. A loop is outlined with the pragma in front of it, inside the region of threads
that it stands in, or inside the loop that several of them share; one that needs anything of the kernel but pointers, the variable of that
loop and the number of threads stays where it is. Of a long kernel all loops are functions, which make several translation units: the C
compiler takes as long as the longest of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

LEAST_LINES = 16  # of a loop: what is shorter costs the compiler about what a call does
LONG = 200  # lines of a kernel all of whose loops are functions,
UNIT = 250  # and those of a translation unit at least: what each of them includes costs about a tenth of a second, as do so many
_NAME = re.compile(r"\b[A-Za-z_]\w*\b", re.ASCII)
_POINTER = re.compile(r" *(?P<type>[\w ]+ \*restrict) (?P<name>\w+) = ", re.ASCII)
_LOOP = re.compile(r" *for \((?P<type>int64_t) (?P<name>\w+) = ", re.ASCII)
_OTHER = re.compile(r" *(?:(?!for|return|goto|else)\w+ )+\**(?:const |restrict )?(?P<name>\w+)(?:[ \[,].*)?;", re.ASCII)
# a kernel's parameters, and what it returns, which checks set
_OF_KERNELS = {"workspace", "numbers", "tensors", "tc_flag", "TC_AT", "TC_FLAG", "TC_FLAG_ZERO", "TC_TARGET"}
_HIDDEN = '__attribute__((visibility("hidden"))) '  # of what only this library calls
_Key = tuple[str, tuple[str, ...]]  # a text over parameters, and their types


def outline(prologue: Sequence[str], lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The functions of repeated loops, or of all of a long kernel, and its body with calls of them; the ``prologue`` declares what loops
    may need."""
    chunks = list(_chunks(lines))
    single = [*prologue, *(chunk[0] for chunk in chunks if len(chunk) == 1)]
    given = {found["name"]: found["type"] for line in single if (found := _POINTER.match(line) or _LOOP.match(line))}
    others = {found["name"] for line in single if (found := _OTHER.match(line))} - given.keys() | _OF_KERNELS
    loops = {number: _canonical(chunk, given) for number, chunk in enumerate(chunks) if len(chunk) >= LEAST_LINES}
    loops = {number: found for number, found in loops.items() if not others & _used(chunks[number])}
    keys, least = [key for key, _ in loops.values()], 1 if len(lines) > LONG else 2
    names = {key: f"tc_outlined{n}" for n, key in enumerate(dict.fromkeys(key for key in keys if keys.count(key) >= least))}
    functions = dict[str, str]()
    body = list[str]()
    for number, chunk in enumerate(chunks):
        key, arguments = loops.get(number, (None, []))
        if key not in names:
            body += chunk
            continue
        alone = keys.count(key) == 1  # it keeps its names
        text, parameters = ("\n".join(chunk), arguments) if alone else (key[0], [f"tc_t{n}" for n in range(len(arguments))])
        functions[names[key]] = _function(names[key], text, key[1], parameters)
        body.append(f"  {names[key]}({', '.join([*arguments, 'threads'])});")
    return list(functions.values()), body


def _used(chunk: Sequence[str]) -> set[str]:
    """The names in a loop but for those of its own variables."""
    return set(_NAME.findall("\n".join(chunk))) - (_declared(chunk) - _OF_KERNELS)


def _declared(chunk: Sequence[str]) -> set[str]:
    """The variables of a loop."""
    return {name for line in chunk if (name := _declared_by(line))}


@lru_cache(1 << 14)
def _declared_by(line: str) -> str:
    """The variable that a line declares, which loops around each other ask for again; empty where there is none."""
    found = _POINTER.match(line) or _LOOP.match(line) or _OTHER.match(line)
    return found["name"] if found else ""


def translation_units(text: str, functions: Sequence[str], most: int) -> list[str]:
    """The text of a kernel in ``most`` translation units at most, of about as many lines each: the first one has the kernel, the others
    some of the ``functions`` that stand together in it, and all have what is in front of these."""
    count = min(most, text.count("\n") // UNIT) if functions else 1
    if count < 2:
        return [text]
    head, kernel = text[: text.index(functions[0])], text[text.index(functions[-1]) + len(functions[-1]) :]
    shares: list[list[str]] = [[] for _ in range(count)]
    lines = [kernel.count("\n"), *(0 for _ in range(count - 1))]
    for function in sorted(functions, key=lambda function: -function.count("\n")):
        least = lines.index(min(lines))
        shares[least].append(function.replace("static ", _HIDDEN, 1))
        lines[least] += function.count("\n")
    calls = [f"{function[: function.index(' {')]};".replace("static ", _HIDDEN, 1) for function in functions]
    first, *others = shares
    return ["\n".join([head, *calls, *first, kernel]), *("\n".join([head, *share]) for share in others if share)]


def _function(name: str, text: str, types: Sequence[str], names: Sequence[str]) -> str:
    parameters = [*map(" ".join, zip(types, names, strict=True)), "int threads"]
    return f"static __attribute__((noinline)) void {name}({', '.join(parameters)}) {{\n{text}\n}}"


def _chunks(lines: Sequence[str], depth: str = "  ") -> Iterator[Sequence[str]]:
    """The lines of each loop of the kernel, of a region of threads, or of a loop that threads share around several, with its pragma; all
    other lines one by one."""
    at = 0
    while at < len(lines):
        first = at + lines[at].startswith("#pragma omp")
        head = lines[first] if first < len(lines) else ""
        indent = head[: len(head) - len(head.lstrip())] if at < first else depth  # a loop below a pragma may stand further left
        is_region, is_loop = at < first and head == f"{depth}{{", head.startswith(f"{indent}for (") and head.endswith("{")
        if (is_region or is_loop) and f"{indent}}}" not in lines[first:]:  # of a loop further left, which ends behind these lines
            yield from ([line] for line in lines[at:])
            return
        end = lines.index(f"{indent}}}", first) + 1 if is_region or is_loop else at + 1
        inside = lines[first + 1 : end - 1]
        braced = is_loop and inside[0] == f"{depth}  {{"
        deeper = depth + ("    " if braced else "  ")
        alone = at < first and "collapse(" not in lines[at]  # else loops below it belong together
        if is_region or is_loop and alone and sum(line.startswith(f"{deeper}for (") for line in inside) > 1:
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
    arguments = [name for name in dict.fromkeys(_NAME.findall(text)) if name in given.keys() - _declared(chunk)]
    numbers = {name: f"tc_t{n}" for n, name in enumerate(arguments)}
    return (_NAME.sub(lambda found: numbers.get(found[0], found[0]), text), tuple(given[name] for name in arguments)), arguments
