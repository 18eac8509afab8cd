"""The C++ of an exported library: tables for ``runtime.h``; and the C header of its kernels."""
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcjit.byoc.exported.kernels import Argument, Exported

RUNTIME = Path(__file__).with_name("runtime.h")
MACHINE = Path(__file__).with_name("machine.h")

_REGION = """\
void run{at}(StableIValue *stack, uint64_t given, uint64_t wanted);
void shape{at}(StableIValue *stack, uint64_t given, uint64_t wanted);
const Region region{at} = {{
    {name},
    {schema},
    run{at},
    shape{at},
    {kernel},
    {inputs},
    {constants},
    {outputs},
    {order},
    {numbers},
    {workspace},
    {failures}}};
void run{at}(StableIValue *stack, uint64_t given, uint64_t wanted) {{ run(region{at}, stack, given, wanted); }}
void shape{at}(StableIValue *stack, uint64_t given, uint64_t wanted) {{ shape(region{at}, stack, given, wanted); }}
"""
_LIBRARY = """\
#include "runtime.h"

#include "kernels.h"

namespace tcjit {{
namespace {{

{regions}
const Library &library() {{
  static const Library all = {{
      {space},
      {{
{constants}
      }},
      {table},
      tc_missing}};
  return all;
}}

const int defined = define();

}} // namespace
}} // namespace tcjit

/* Reads the constants where loading the library could not; NULL, or what is wrong with them. */
extern "C" const char *tcjit_bind(void) {{ return tcjit::bind(); }}
"""


@dataclass(frozen=True)
class Stored:
    """A constant in a file of its own, named from the folder: contiguous, little-endian."""

    argument: Argument
    file: str
    bytes: int
    checksum: int


def namespace(regions: Sequence[Exported], constants: Sequence[Stored], version: str) -> str:
    """The namespace of the operators: another one for every other library, since a process can define an operator once only."""
    facts = (version, RUNTIME.read_text(encoding="utf-8"), MACHINE.read_text(encoding="utf-8"), regions, constants)
    return f"tcjit_{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


def schema(region: Exported) -> str:
    """The operator's type in torch's notation: inputs without constants, one output or several."""
    inputs = ", ".join(f"Tensor input{number}" for number in range(len(region.inputs)))
    outputs = ", ".join(["Tensor"] * len(region.outputs))
    return f"{region.name}({inputs}) -> {outputs if len(region.outputs) == 1 else f'({outputs})'}"


def header(regions: Sequence[Exported]) -> str:
    """The C header: every kernel with the tensors that it is for."""
    lines = [
        "/* Kernels. A kernel is given its tensors, outputs first, each contiguous; numbers; a workspace; and how many threads it may use.",
        " * It returns 0, or the number of the failure. */",
        "#pragma once",
        "#include <stdint.h>",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
    ]
    done = set()
    for region in regions:
        if region.symbol in done:
            continue
        done.add(region.symbol)
        tensors = (*region.inputs, *(bound.argument for bound in region.constants))
        lines += ["", f"/* {region.name}", *(f" *   out {each}" for each in region.outputs)]
        lines += [f" *   in  {tensors[number]}" for number in region.order]
        lines += [f" *   numbers {list(region.numbers)}, workspace {region.workspace} bytes"]
        lines += [f" *   {number}: {what}" for number, what in enumerate(region.failures, 1)]
        lines += [" */", f"int64_t {region.symbol}(void *const *tensors, const int64_t *numbers, void *workspace, int threads);"]
    lines += ["", "/* What this processor lacks of what the kernels were compiled for, or NULL. */", "const char *tc_missing(void);"]
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", ""])


def source(space: str, regions: Sequence[Exported], constants: Sequence[Stored]) -> str:
    """The C++ text."""
    numbers = {stored.argument.name: number for number, stored in enumerate(constants)}
    made = [
        _REGION.format(
            at=at,
            name=_text(region.name),
            schema=_text(schema(region)),
            kernel=region.symbol,
            inputs=_types(region.inputs),
            constants=_list(numbers[bound.constant] for bound in region.constants),
            outputs=_types(region.outputs),
            order=_list(region.order),
            numbers=_list(f"(int64_t)UINT64_C({number % 2**64})" for number in region.numbers),
            workspace=region.workspace,
            failures=_list(map(_text, region.failures)),
        )
        for at, region in enumerate(regions)
    ]
    rows = [f"          {{{_type(each.argument)}, {_text(each.file)}, {each.bytes}u, {each.checksum}u}}," for each in constants]
    table = _list(f"&region{at}" for at in range(len(regions)))
    return _LIBRARY.format(regions="\n".join(made), space=_text(space), constants="\n".join(rows), table=table)


def files(space: str, regions: Sequence[Exported], constants: Sequence[Stored]) -> Mapping[str, str]:
    """Everything below ``src/``, by name."""
    texts = {region.file: region.source for region in regions}
    fixed = {path.name: path.read_text(encoding="utf-8") for path in (RUNTIME, MACHINE)}
    served = [region for region in regions if region.target == "cpu"]
    machine = '#include "machine.h"\n'
    return {**texts, **fixed, "machine.c": machine, "kernels.h": header(served), "library.cpp": source(space, served, constants)}


def _types(arguments: Sequence[Argument]) -> str:
    return "{" + ", ".join(map(_type, arguments)) + "}"


def _type(argument: Argument) -> str:
    sizes, strides = _list(argument.shape), _list(argument.strides)
    return f"{{{_text(argument.name)}, aoti_torch_dtype_{argument.dtype}, {_text(argument.dtype)}, {sizes}, {strides}}}"


def _list(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _text(text: str) -> str:
    """A text as C++ writes it, in ASCII."""
    shown = "".join(c if " " <= c <= "~" and c not in '"\\?' else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in text)
    return f'"{shown}"'
