"""The scalar types by their canonical names: what they hold, how they promote."""
from __future__ import annotations

import math

from tcjit.dataclass import dataclass


@dataclass(frozen=True)
class DType:
    name: str
    kind: str  # bool, unsigned, signed, float
    bits: int

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def least(self) -> int:
        """The least integer the type holds."""
        return -(1 << (self.bits - 1)) if self.kind == "signed" else 0

    @property
    def greatest(self) -> int:
        """The greatest integer the type holds."""
        return (1 << (self.bits - 1)) - 1 if self.kind == "signed" else (1 << self.bits) - 1

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type; bool is not."""
        return self.kind in ("unsigned", "signed")


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bool", "bool", 1),
        *(DType(f"uint{b}", "unsigned", b) for b in (8, 16, 32, 64)),
        *(DType(f"int{b}", "signed", b) for b in (8, 16, 32, 64)),
        DType("float16", "float", 16),
        DType("bfloat16", "float", 16),
        DType("float32", "float", 32),
        DType("float64", "float", 64),
    )
}
ROUNDED = ("float16", "bfloat16")  # computed in float32, and rounded where they are stored or converted
ALIASES = {"float": "float32", "double": "float64", "half": "float16"}


@dataclass(frozen=True)
class Format:
    """A binary floating format: ``digits`` of significand, ``least`` the exponent of its smallest subnormal."""

    digits: int
    least: int
    greatest: float

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0 ** (1 - self.digits)

    @property
    def tiny(self) -> float:
        """The smallest positive number."""
        return 2.0**self.least

    @property
    def integers(self) -> float:
        """Every integer up to here is exact."""
        return 2.0**self.digits


FORMATS = {
    "float16": Format(11, -24, 65504.0),
    "bfloat16": Format(8, -133, math.ldexp((1 << 8) - 1, 120)),
    "float32": Format(24, -149, math.ldexp((1 << 24) - 1, 104)),
    "float64": Format(53, -1074, math.ldexp((1 << 53) - 1, 971)),
}


def promote(left: str, right: str) -> str | None:
    """The dtype that two operands are brought to, that of ``torch.promote_types``; None where PyTorch refuses the pair.

    >>> promote("uint8", "int8"), promote("float16", "bfloat16"), promote("uint32", "int32")
    ('int16', 'float32', None)
    """
    a, b = DTYPES[left], DTYPES[right]
    if left == right:
        return left
    if "float" in (a.kind, b.kind):
        if a.kind != b.kind:
            return left if a.kind == "float" else right
        return "float32" if a.bits == b.bits else max(a, b, key=lambda d: d.bits).name
    if any(d.kind == "unsigned" and d.bits > 8 for d in (a, b)):
        return None
    if "bool" in (a.kind, b.kind):
        return right if a.kind == "bool" else left
    if a.kind == b.kind:
        return max(a, b, key=lambda d: d.bits).name
    return f"int{max(16, a.bits, b.bits)}"  # uint8 beside a signed type


def holds(wide: str, narrow: str) -> bool:
    """Whether ``wide`` holds every value of ``narrow`` exactly; a bool counts as no number.

    >>> holds("int64", "uint32"), holds("float32", "int32"), holds("float64", "int32"), holds("int32", "bool")
    (True, False, True, False)
    """
    w, n = DTYPES[wide], DTYPES[narrow]
    if wide == narrow:
        return True
    if "bool" in (w.kind, n.kind):
        return False
    if w.kind == "float":
        return promote(wide, narrow) == wide if n.kind == "float" else n.greatest <= FORMATS[wide].integers
    return n.kind != "float" and w.least <= n.least and n.greatest <= w.greatest


def rounded(value: float, dtype: str) -> float:
    """``value`` rounded to the floating type ``dtype``, to nearest, ties to even, beyond the greatest finite value to infinity.

    >>> rounded(0.1, "bfloat16"), rounded(65520.0, "float16")
    (0.10009765625, inf)
    """
    if dtype == "float64" or value == 0 or not math.isfinite(value):
        return value
    form = FORMATS[dtype]
    if abs(value) >= 2 * form.greatest:
        return math.copysign(math.inf, value)
    exponent = max(math.frexp(value)[1] - form.digits, form.least)
    nearest = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
    return nearest if abs(nearest) <= form.greatest else math.copysign(math.inf, value)


def converted(value: int | float | bool, dtype: str) -> int | float | bool:
    """``value`` converted as a Cast does: integers wrap, floats truncate and saturate (NaN gives 0), narrower floats round.

    >>> converted(300, "uint8"), converted(-2.7, "int32"), converted(1e9, "int8"), converted(2, "bool")
    (44, -2, 127, True)
    """
    d = DTYPES[dtype]
    if d.kind == "bool":
        return bool(value)
    if d.kind == "float":
        return rounded(float(value), dtype)
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        return min(max(int(value) if math.isfinite(value) else int(math.copysign(1 << 64, value)), d.least), d.greatest)
    return (int(value) - d.least) % (1 << d.bits) + d.least
