"""Tensor contractions of the forms of TCCG (Springer and Bientinesi, 2016) and others, against ``torch.einsum``."""
from __future__ import annotations

import math
from typing import Any

import torch

from gpu.case import Case, Entry, Input
from gpu.rows import of_library


def _access(name: str, letters: str) -> str:
    return f"{name}({', '.join(letters)})"


def contraction(form: str, **extents: int) -> Case:
    """``form`` names the indices of the result and of the two operands, as TCCG does: ``abcd-aebf-dfce``."""
    result, left, right = form.split("-")
    params = ", ".join(f"float({', '.join(letter.upper() for letter in letters)}) {name}" for name, letters in (("X", left), ("Y", right)))
    body = f"{_access('Z', result)} +=! {_access('X', left)} * {_access('Y', right)}"
    entry = f"contract_{result}"
    inputs = tuple(Input(name, tuple(extents[c] for c in letters)) for name, letters in (("X", left), ("Y", right)))

    def eager(X: Any, Y: Any) -> Any:
        return torch.einsum(f"{left},{right}->{result}", X, Y)

    return Case(inputs, ("Z",), f"def {entry}({params}) -> (Z) {{ {body} }}", entry, eager, 2 * math.prod(extents.values()))


def mttkrp(I: int, J: int, K: int, R: int) -> Case:  # noqa: E741 - the names of the library's def
    inputs = Input("X", (I, J, K)), Input("A", (J, R)), Input("B", (K, R))

    def eager(X: Any, A: Any, B: Any) -> Any:
        return torch.einsum("ijk,jr,kr->ir", X, A, B)

    return of_library("mttkrp", inputs, eager, 2 * I * J * K * R + 2 * I * J * R, ("M",))


def _entry(form: str, quick: bool = False, **extents: int) -> Entry:
    small = {letter: 2 + place for place, letter in enumerate(extents)}
    return Entry(form, "contraction", lambda **sizes: contraction(form, **sizes), extents, small, quick)


ENTRIES = [
    _entry("abcd-aebf-dfce", True, a=72, b=72, c=72, d=72, e=24, f=24),
    _entry("abcd-dbea-ec", a=72, b=72, c=72, d=72, e=72),
    _entry("abcde-efbad-cf", a=48, b=32, c=24, d=32, e=48, f=32),
    _entry("abc-bda-dc", a=312, b=312, c=24, d=312),
    _entry("ab-acd-dbc", True, a=384, b=384, c=128, d=128),
    _entry("abcdef-dega-gfbc", a=24, b=16, c=16, d=24, e=16, f=16, g=24),
    Entry("mttkrp", "contraction", mttkrp, {"I": 512, "J": 512, "K": 512, "R": 32}, {"I": 3, "J": 4, "K": 5, "R": 2}),
]
