"""The scalar types by their canonical names: what they hold, how they promote."""
from __future__ import annotations

from dataclasses import dataclass


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
ALIASES = {"float": "float32", "double": "float64", "half": "float16"}
