"""What a program needs of ``opencl-c.h``, which PoCL otherwise reads whole, in 0.3 s of the second that a small kernel takes.

The declarations are the header's own, all that it has of each function that the text names.
"""
from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

VARIABLE, FLAGS = "POCL_EXTRA_BUILD_FLAGS", "-D_OPENCL_H_"  # as if the header had been read already


def variables() -> dict[str, str]:
    """What PoCL's process needs in its environment; nothing where PoCL is not the one whose header is known."""
    return {VARIABLE: FLAGS} if _folder() else {}


def install() -> None:
    """Let ``tcjit.runtime.opencl`` build with it in this process, if ``variables`` were its own when it began."""
    if os.environ.get(VARIABLE) != FLAGS:
        return
    from tcjit.runtime import opencl

    really = opencl.build
    opencl.build = lambda text, symbol: really(f"{declarations(text)}#line 1\n{text}", symbol)


def declarations(text: str) -> str:
    """The lines of PoCL's header for the preprocessor, and those that declare a function which is named in ``text``."""
    named = set(re.findall(r"\w+", text))
    return "\n".join(line for line, names in _statements() if not names or named & names) + "\n"


@functools.cache
def _statements() -> list[tuple[str, frozenset[str]]]:
    """The header, statement by statement, with the functions that each declares."""
    folder = _folder()
    assert folder
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", "", (folder / "opencl-c.h").read_text(), flags=re.DOTALL)
    text = text.replace('"opencl-c-base.h"', f'"{folder}/opencl-c-base.h"').replace("_OPENCL_H_", "_SHORT_OPENCL_H_")
    found = []
    for part in re.findall(r"^#[^\n]*|[^#;]+;", text, flags=re.MULTILINE):
        found.append((part.strip(), frozenset(() if part.startswith("#") else re.findall(r"\b(\w+)\s*\(", part))))
    return found


@functools.cache
def _folder() -> Path | None:
    spec = importlib.util.find_spec("pocl_binary_distribution")
    folder = Path(spec.origin).parent / ".libs" / "share" / "pocl" / "include" if spec and spec.origin else None
    return folder if folder and (folder / "opencl-c.h").exists() else None
