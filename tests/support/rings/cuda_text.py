"""CUDA text made ready for a C++ compiler: shared arrays, inline PTX and what is declared without a value; every line keeps its number.

>>> rewritten("  __shared__ float a[4][33], b;")
'  float (&a)[4][33] = *(float (*)[4][33])tch_shared(0, "a", sizeof(float[4][33]), sizeof(float), alignof(float)); float (&b) = \
*(float (*))tch_shared(1, "b", sizeof(float), sizeof(float), alignof(float));'
>>> rewritten('asm volatile("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));')
'({ auto &&tch_0 = x; const auto tch_1 = tch_operand<2>(bits); tch_ptx::cvt_f32_f16(__LINE__, tch_0, tch_1); });'
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_SHARED = re.compile(r"(\bextern\s+)?\b__shared__\s+([^;]*);")
_ALIGN = re.compile(r"\b(?:__align__|alignas)\s*\(\s*(\d+)\s*\)|__attribute__\s*\(\(\s*aligned\s*\(\s*(\d+)\s*\)\s*\)\)")
_DECLARATOR = re.compile(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)*)$", re.DOTALL)
_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_OPERAND = re.compile(r'\s*"([=+]?)([a-z])"\s*\((.*)\)\s*$', re.DOTALL)
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_INSTRUCTION = re.compile(r"(?:@(!?)(\w+)\s+)?([\w.:]+)\s*(.*)$", re.DOTALL)
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')
_TYPES = (
    "bool|char|short|int|long|long long|float|double|size_t|u?int(?:8|16|32|64)_t|"
    "unsigned|(?:un)?signed (?:char|short|int|long|long long)|(?:float|int|uint|double|ushort|short)[234]"
)
_DIMS = r"(?:\[[^\];]*\])*"
_UNSET = re.compile(
    rf"((?:^|(?<=[;{{}}]))[ \t]*(?:__align__\(\d+\) )?(?:{_TYPES}) (\w+){_DIMS}(?: __attribute__\(\(aligned\(\d+\)\)\))?;)", re.MULTILINE
)
_BYTES = {"r": 4, "h": 2, "l": 8, "n": 0, "f": 4, "d": 8}
_REGISTERS = {"pred": "bool", "b16": "unsigned short", "f32": "float", "f64": "double", "s32": "int"}
_REGISTERS |= {**dict.fromkeys(("b32", "u32"), "unsigned"), **dict.fromkeys(("b64", "u64"), "tch_u64")}
_SPECIAL = {"%%laneid": "tch_lane()"}


class UnknownPTX(AssertionError):
    """Inline PTX that the host has no words for."""


def kernels(text: str) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """The kernels of a text: the bound on a block's threads, and the names of the parameters."""
    found = {}
    for bound, name, parameters in _KERNEL.findall(_without_comments(text)):
        names = tuple(re.findall(r"\w+", one)[-1] for one in parameters.split(",") if one.strip())
        found[name] = (int(bound) if bound else None, names)
    return found


def dynamic(text: str) -> dict[str, str]:
    """Shared arrays that are declared outside of functions, whose size the launch says -> their text on the host."""
    found = {}
    plain = _without_comments(text)
    for match in _SHARED.finditer(plain):
        before = plain[: match.start()]
        if match[1] and before.count("{") == before.count("}"):
            kind, name, align = _dynamic(match[2])
            found[name] = f'(({kind} *)tch_shared(255, "{name}", 0, sizeof({kind}), {align}))'
    return found


def rewritten(text: str) -> str:
    """The text as C++ for the host, but for what ``dynamic`` finds."""
    plain = _without_comments(text)
    start = min((match.start() for match in _KERNEL.finditer(plain)), default=0)
    plain = plain[:start] + _UNSET.sub(r"\1 tch_fill(\2);", plain[start:]) if "__global__" in plain else plain
    return _assembly(_shared_arrays(plain))


def _without_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else " " + "\n" * found.count("\n")

    return _COMMENT.sub(blank, text)


# ---------------------------------------------------------------- shared arrays


def _shared_arrays(text: str) -> str:
    numbers: list[int] = []
    outside = dynamic(text)

    def declared(match: re.Match[str]) -> str:
        if match[1]:  # all name the same memory: what is left beside the static arrays
            kind, name, align = _dynamic(match[2])
            known = f'{kind} *const {name} = ({kind} *)tch_shared(255, "{name}", 0, sizeof({kind}), {align});'
            return ("" if name in outside else known) + "\n" * match[0].count("\n")
        aligned = _ALIGN.search(match[2])
        first, *others = [part.strip() for part in _ALIGN.sub(" ", match[2]).split(",")]
        opening = _DECLARATOR.match(first)
        assert opening, f"a shared declaration that is not understood: {match[0]}"
        kind = " ".join(opening[1].split())
        made = []
        for declarator in (first[opening.end(1) :], *others):
            parts = _DECLARATOR.match(declarator)
            assert parts and kind, f"a shared declaration that is not understood: {match[0]}"
            name, dims = parts[2], parts[3].replace(" ", "")
            align = next((n for n in aligned.groups() if n), "") if aligned else f"alignof({kind})"
            size = f"sizeof({kind}{dims})"
            call = f'tch_shared({len(numbers)}, "{name}", {size}, sizeof({kind}), {align})'
            made.append(f"{kind} (&{name}){dims} = *({kind} (*){dims}){call};")
            numbers.append(len(numbers))
        return " ".join(made) + "\n" * match[0].count("\n")

    return _SHARED.sub(declared, text)


def _dynamic(declaration: str) -> tuple[str, str, str]:
    """Type, name and alignment of a shared array without a size."""
    aligned = _ALIGN.search(declaration)
    parts = _DECLARATOR.match(_ALIGN.sub(" ", declaration).strip())
    assert parts and parts[3].replace(" ", "") == "[]", f"a shared declaration that is not understood: {declaration}"
    kind = " ".join(parts[1].split())
    return kind, parts[2], next((n for n in aligned.groups() if n), "") if aligned else f"alignof({kind})"


# ---------------------------------------------------------------- inline PTX


def _assembly(text: str) -> str:
    parts = []
    at = 0
    while match := _ASM.search(text, at):
        end = _closing(text, match.end())
        parts += [text[at : match.start()], _statement(text[match.end() : end]), "\n" * text[match.start() : end].count("\n")]
        at = end + 1
    return "".join(parts) + text[at:]


def _closing(text: str, at: int) -> int:
    """Where the parenthesis opened before ``at`` closes; strings are passed over."""
    depth = 1
    for match in re.compile(r'"(?:\\.|[^"\\])*"|[()]').finditer(text, at):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return match.start()
    raise UnknownPTX(f"an asm statement does not end: {text[at : at + 80]}")


def _split(text: str, separator: str) -> list[str]:
    """Parts between separators that stand outside of strings and brackets; ``::`` is two colons."""
    parts, depth, start = [], 0, 0
    for match in re.compile(r'"(?:\\.|[^"\\])*"|.', re.DOTALL).finditer(text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        elif match[0] == separator and not depth:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _statement(inside: str) -> str:
    template, outputs, inputs, *_ = [*_split(inside, ":"), "", ""]
    words = "".join(_STRING.findall(template)).replace("\\n", "\n").replace("\\t", " ")
    bound = []
    for number, operand in enumerate(part for group in (outputs, inputs) for part in _split(group, ",") if part.strip()):
        match = _OPERAND.match(operand)
        if not match or match[2] not in _BYTES:
            raise UnknownPTX(f"an operand of inline PTX that is not understood: {operand}")
        sign, letter, value = match.groups()
        if sign:
            bound.append(f"auto &&tch_{number} = {value};")
        elif letter == "l":
            bound.append(f"const auto tch_{number} = (tch_u64)tch_operand<8>({value});")
        elif letter == "n":
            bound.append(f"constexpr auto tch_{number} = {value};")
        else:
            bound.append(f"const auto tch_{number} = tch_operand<{_BYTES[letter]}>({value});")
    body = words.strip()
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1]
    return "({ " + " ".join([*bound, *filter(None, map(_instruction, body.split(";")))]) + " })"


def _instruction(words: str) -> str:
    """One instruction as a call, ``mma.sync...`` as ``tch_ptx::mma_sync...``."""
    words = " ".join(words.split())
    if not words:
        return ""
    match = _INSTRUCTION.match(words)
    if not match:
        raise UnknownPTX(f"PTX that is not understood: {words}")
    negated, predicate, name, rest = match.groups()
    if name.startswith(".reg"):
        kind, _, names = words.removeprefix(".reg").strip().partition(" ")
        if kind.lstrip(".") not in _REGISTERS:
            raise UnknownPTX(f"PTX that is not understood: {words}")
        return f"{_REGISTERS[kind.lstrip('.')]} {names};"
    name = re.sub(r"\.L2::\w+", "", name).replace("::cta", "").replace("::", "_")
    if not all(character.isalnum() or character in "._" for character in name):
        raise UnknownPTX(f"PTX that is not understood: {words}")
    operands = [part.strip() for part in re.sub(r"[{}]", "", rest).split(",") if part.strip()]
    call = f"tch_ptx::{name.replace('.', '_')}({', '.join(['__LINE__', *map(_operand, operands)])});"
    return f"if ({negated}{predicate}) {call}" if predicate else call


def _operand(text: str) -> str:
    for special, value in _SPECIAL.items():
        text = text.replace(special, value)
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    value = re.sub(r"%(\d+)", r"tch_\1", inner).strip()
    return f"({value})" if "+" in value else value
