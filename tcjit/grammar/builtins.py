"""The built-in functions: how many arguments, and what becomes of integer ones."""
from __future__ import annotations

from tcjit.dataclass import dataclass


@dataclass(frozen=True)
class Builtin:
    """``integers``: integer arguments stay integers; otherwise they become float32, or the type of a float beside them."""

    name: str
    arity: int
    integers: bool = False
    bools: bool = False


_FLOAT = {
    0: "infinity",
    1: """acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 digamma erf erfc erfcinv erfcx erfinv
          exp exp10 exp2 expm1 fabs floor j0 j1 lgamma log log10 log1p log2 logb normcdf normcdfinv rcbrt round rsqrt sigmoid
          sin sinh sinpi sqrt tan tanh tgamma trunc y0 y1""",
    2: "atan2 copysign fdim fdivide fmax fmin fmod hypot nextafter polygamma pow remainder rhypot",
    3: "fma norm3d rnorm3d",
    4: "norm4d rnorm4d",
}

BUILTINS: dict[str, Builtin] = {
    **{name: Builtin(name, arity) for arity, names in _FLOAT.items() for name in names.split()},
    **{name: Builtin(name, arity, integers=True) for name, arity in (("abs", 1), ("clamp", 3), ("relu", 1), ("sign", 1))},
    **{name: Builtin(name, 2, integers=True, bools=True) for name in ("min", "max")},
}

# built-ins that take about one vector instruction
ONE_OPERATION = frozenset("abs clamp fabs fdim fmax fmin max min relu sign".split())
