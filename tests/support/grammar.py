"""What the tests of the grammar share."""
from __future__ import annotations

from tcjit.grammar.ast import Def, Statement
from tcjit.grammar.check import check
from tcjit.grammar.parse import parse

# One parameter of every kind; bodies write the result O.
HEAD = (
    "def f(float(M, K) A, float(K, N) B, float(M) v, double(M) d, half(M) h, bfloat16(M) b, int32(M) Idx, int64(M) L,"
    " uint8(M) u8, uint32(M) u32, bool(M) ok, float a, int32 s, int64 l, bool flag) -> (O) {\n"
)


def typed(text: str) -> Def:
    """The last def of a program, checked."""
    return check(parse(text))[-1]


def body(text: str) -> Def:
    """A def with the parameters of HEAD."""
    return typed(HEAD + text + "\n}")


def only(text: str) -> Statement:
    """The last statement of a def with the parameters of HEAD."""
    return body(text).statements[-1]
