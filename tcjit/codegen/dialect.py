"""What distinguishes the languages that kernels are printed in: tables, no behaviour.

A target is one ``Dialect``: the names of its scalar types, the qualifiers of its helper functions, and the name of each built-in at
both precisions. A name that starts with ``tc_`` is a helper of ours (``prelude``), any other the target's own.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

# integer dtype -> C type, and the short name in helpers
INTEGERS: dict[str, tuple[str, str]] = {
    f"{'u' * unsigned}int{bits}": (f"{'u' * unsigned}int{bits}_t", f"{'u' if unsigned else 'i'}{bits}")
    for unsigned in (False, True)
    for bits in (8, 16, 32, 64)
}

# the dtypes in which floats are computed -> C type, short name, suffix of literals and of the library's functions
FLOATS: dict[str, tuple[str, str, str]] = {"float32": ("float", "f32", "f"), "float64": ("double", "f64", "")}

# Built-ins with a helper for every type, integers included (fewer for bool, which the printer writes with & and |).
SIMPLE = frozenset({"abs", "sign", "relu", "min", "max", "clamp"})

# float32 built-ins done in double: rare ones, whose float32 form would be inaccurate -> number of arguments
NARROWED: dict[str, int] = {
    **dict.fromkeys("sinpi cospi rcbrt erfcx erfinv erfcinv normcdf normcdfinv cyl_bessel_i0 cyl_bessel_i1".split(), 1),
    **dict.fromkeys("j0 j1 y0 y1 lgamma tgamma".split(), 1),
    "rhypot": 2,
    "norm3d": 3,
    "rnorm3d": 3,
    "norm4d": 4,
    "rnorm4d": 4,
}

_LIBRARY = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmod hypot "
    "log log10 log1p log2 logb nextafter pow remainder round sin sinh sqrt tan tanh trunc j0 j1 y0 y1 lgamma tgamma"
).split()
_OURS = "exp10 sinpi cospi rcbrt rhypot norm3d norm4d rnorm3d rnorm4d erfcx erfinv erfcinv normcdf normcdfinv cyl_bessel_i0 cyl_bessel_i1"
_BOTH = [*SIMPLE, *"fmin fmax fdim rsqrt sigmoid".split(), *_OURS.split()]

# built-in -> its names for float32 and float64
C_FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (name + "f", name) for name in _LIBRARY},
    **{name: (f"tc_{name}_f32", name) for name in ("exp", "log", "tanh", "erf", *(n for n in NARROWED if n in _LIBRARY))},
    **{name: (f"tc_{name}_f32", f"tc_{name}_f64") for name in _BOTH},
    "abs": ("fabsf", "fabs"),
}

# What a machine's vector library may offer, and gcc may then call on whole registers. Each was measured with glibc 2.36
# (benchmarks/ulps.py --vector): at most 4 ulp; NaN, infinities, signed zeros and denormals as the scalar function has them.
VECTOR_MATH: frozenset[str] = frozenset(
    """acos acosf acosh acoshf asin asinf asinh asinhf atan atan2 atan2f atanf atanh atanhf cbrt cbrtf cos cosf cosh coshf erf erfc
    erfcf exp exp2 exp2f expm1 expm1f hypot hypotf log log10 log10f log1p log1pf log2 log2f pow powf sin sinf sinh sinhf tan
    tanf tanh""".split()
)

_TWO_ARGUMENTS = frozenset({"pow", "atan2", "hypot"})
# machine -> one letter per instruction set, with the bytes of its registers; a compiler may call any of them
_VECTORS = {"x86_64": (("b", 16), ("c", 32), ("d", 32), ("e", 64)), "aarch64": (("n", 16),)}


@dataclass(frozen=True)
class Dialect:
    """One target language. The mappings are no part of its identity: the name stands for them."""

    name: str
    inline: str  # how a helper function starts
    functions: Mapping[str, tuple[str, str]] = field(repr=False, compare=False)
    vector_math: frozenset[str] = frozenset()  # library functions that exist for whole registers on the machine at hand


C = Dialect("c", "static inline __attribute__((always_inline))", C_FUNCTIONS)


def vector_math(machine: str, has: Callable[[str], bool], names: Iterable[str] = VECTOR_MATH) -> frozenset[str]:
    """Those of ``names`` of which a vector library has every variant that compilers for ``machine`` may call.

    ``has`` answers for one symbol, named by the vector function ABI; a machine without such a library offers none.

    >>> vector_math("riscv64", lambda symbol: True)
    frozenset()
    """
    return frozenset(name for name in names if machine in _VECTORS and all(map(has, vector_symbols(machine, name))))


def vector_symbols(machine: str, name: str) -> list[str]:
    """The symbols of the vector variants of a library function.

    >>> vector_symbols("x86_64", "powf")
    ['_ZGVbN4vv_powf', '_ZGVcN8vv_powf', '_ZGVdN8vv_powf', '_ZGVeN16vv_powf']
    """
    single = name.endswith("f") and name != "erf"
    args = "vv" if name.removesuffix("f") in _TWO_ARGUMENTS else "v"
    return [f"_ZGV{letter}N{size // (4 if single else 8)}{args}_{name}" for letter, size in _VECTORS[machine]]
