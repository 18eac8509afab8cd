"""What distinguishes the languages that kernels are printed in: tables, no behaviour.

A target is one ``Dialect``: the names of its scalar types, the qualifiers of its helper functions, and the name of each built-in at
both precisions. A name that starts with ``tc_`` is a helper of ours (``prelude``), any other the target's own. The integer types are
called as in ``stdint.h`` everywhere; a language without that header gets them as typedefs.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from tcjit.dataclass import dataclass

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
    **dict.fromkeys("sinpi cospi rcbrt erfcx erfinv erfcinv normcdfinv cyl_bessel_i0 cyl_bessel_i1".split(), 1),
    **dict.fromkeys("j0 j1 y0 y1 lgamma tgamma digamma".split(), 1),
    "polygamma": 2,
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
_NOWHERE = ["sigmoid", "digamma", "polygamma"]  # in no library
_BOTH = [*SIMPLE, *"fmin fmax fdim rsqrt".split(), *_NOWHERE, *_OURS.split()]

# built-in -> its names for float32 and float64
C_FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (name + "f", name) for name in _LIBRARY},
    **{name: (f"tc_{name}_f32", name) for name in ("exp", "log", "tanh", "erf", "fmod", *(n for n in NARROWED if n in _LIBRARY))},
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

AnyDialect = TypeVar("AnyDialect", bound="Dialect")


@dataclass(frozen=True)
class Dialect:
    """One target language. The mappings are no part of its identity: the name stands for them."""

    name: str
    inline: str  # how a helper function starts
    functions: Mapping[str, tuple[str, str]] = field(repr=False, compare=False)
    vector_math: frozenset[str] = frozenset()  # library functions that exist for whole registers on the machine at hand
    top: str = "#include <stdint.h>"  # the first lines of a source, which name the integer types
    outline: str = "static inline"  # how a helper starts that is too long to be in many places
    boolean: str = "_Bool"  # the type of a truth value
    stored_boolean: str = "_Bool"  # the same in memory
    any_byte: bool = False  # whether every byte but 0 is true in memory, as in tensors that come from elsewhere
    wide: str = "ll"  # the suffix of 64-bit literals
    wraps: bool = True  # whether signed integers wrap as they are, by a flag of the compiler's
    words: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # what the helpers say -> what they say here
    reserved: str = field(default="", repr=False, compare=False)  # a pattern of names that nothing else may have


def reading_bytes(dialect: AnyDialect) -> AnyDialect:
    """The dialect for kernels that read bools which a caller made: a byte other than 0 and 1 is true, and no ``bool`` to a compiler."""
    return replace(dialect, stored_boolean="uint8_t", any_byte=True)


@dataclass(frozen=True, kw_only=True)
class GpuDialect(Dialect):
    """A language for grids of threads; kernels declare a parameter ``tc_flag``, a pointer to an int in global memory."""

    kernel: str  # what a kernel starts with; ``{threads}`` is the number of threads of a block
    thread: str  # the number of a thread in its block, as an int
    blocks: tuple[str, str, str]  # the numbers of a block along x, y and z, as ints
    barriers: Mapping[str, str] = field(repr=False, compare=False)  # "block", "warp" -> a statement; {mask}: the warp's lanes
    pointer: str = ""  # before the element type of a pointer to global memory
    restrict: str
    shared: str  # before the declaration of an array that the threads of a block share
    dynamic: str  # declares ``tc_shared``, the bytes that a launch asks for; empty where all shared arrays have constant sizes
    aligned: str  # before the element type of an array on a boundary of ``{bytes}``
    unroll: str
    vectors: Mapping[tuple[str, int], str] = field(repr=False, compare=False)  # element type and number -> the type of so many
    load: str  # the value of a ``{vector}`` of ``{count}`` elements that begin at ``{place}``
    store: str  # makes it ``{value}``
    shuffles: bool  # whether helpers ``tc_shuffle_...`` exchange values within a warp


C = Dialect("c", "static inline __attribute__((always_inline))", C_FUNCTIONS)

_BARE = ("fabs", "fabsf", "copysign", "copysignf")  # what the helpers call as built-ins of the C compiler
_TYPEDEFS = "\n".join(f"typedef {{}} {c_type};" for c_type, _ in INTEGERS.values())


def _limits(wide: str) -> dict[str, str]:
    """The macros of ``stdint.h`` that the helpers name, as literals."""
    found = {}
    for bits in (8, 16, 32, 64):
        most, suffix = (1 << (bits - 1)) - 1, wide * (bits == 64)
        found[f"INT{bits}_MAX"], found[f"INT{bits}_MIN"] = f"{most}{suffix}", f"(-{most}{suffix} - 1)"
        found[f"UINT{bits}_MAX"] = f"{2 * most + 1}{'u' * (bits >= 32)}{suffix}"
    return found


# CUDA's own j0 j1 y0 y1 lose digits from 8 on, and its lgammaf loses them next to its zeros
_CUDA_OURS = [*SIMPLE, *_NOWHERE, "j0", "j1", "y0", "y1"]

CUDA_FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (name + "f", name) for name in [*_LIBRARY, *_OURS.split(), "fmin", "fmax", "fdim", "rsqrt"]},
    **{name: (f"tc_{name}_f32", f"tc_{name}_f64") for name in _CUDA_OURS},
    "lgamma": ("tc_lgamma_f32", "lgamma"),
    "abs": ("fabsf", "fabs"),
}

_OPENCL_OURS = [*SIMPLE, *_OURS.split(), *_NOWHERE, "j0", "j1", "y0", "y1"]

# OpenCL allows its float32 erf and tgamma 16 ulp, and lgamma any error
OPENCL_FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (name, name) for name in [*_LIBRARY, "fmin", "fmax", "fdim", "rsqrt"]},
    **{name: (f"tc_{name}_f32", name) for name in ("exp", "log", "tanh", "erf", "lgamma", "tgamma")},
    **{name: (f"tc_{name}_f32", f"tc_{name}_f64") for name in _OPENCL_OURS},
    "abs": ("fabs", "fabs"),
}

_VECTOR_TYPES = "(u?(char|short|int|long|longlong)|float|double|half)(1|2|3|4|8|16)"
_CPP_WORDS = """alignas alignof and and_eq asm bitand bitor bool catch char16_t char32_t char8_t class co_await co_return co_yield compl
concept const_cast consteval constexpr constinit decltype delete dynamic_cast explicit export false friend import module mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert
static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor xor_eq"""
_CUDA_WORDS = "threadIdx blockIdx blockDim gridDim warpSize dim3 atomicAdd atomicMax atomicMin"
_OPENCL_WORDS = """global local constant private kernel read_only write_only read_write pipe generic uniform bool true false half quad
complex imaginary uchar ushort uint ulong size_t ptrdiff_t intptr_t uintptr_t event_t sampler_t get_local_id get_group_id barrier
as_uint as_float as_long as_double MAXFLOAT HUGE_VAL HUGE_VALF CHAR_BIT"""


def _reserved(words: str, *patterns: str) -> str:
    return "|".join([*words.split(), *patterns])


# element type -> what vectors of it are called in OpenCL, and its bytes
_VECTORS_OF: dict[str, tuple[str, int]] = {
    **{f"{u}int{8 * size}_t": (u + word, size) for u in ("", "u") for size, word in ((1, "char"), (2, "short"), (4, "int"), (8, "long"))},
    **{"float": ("float", 4), "double": ("double", 8)},
}


def _vectors(names: Mapping[str, tuple[str, int]], counts: Iterable[int]) -> dict[tuple[str, int], str]:
    """The vectors of at most 16 bytes."""
    return {(kind, count): f"{word}{count}" for count in counts for kind, (word, size) in names.items() if count * size <= 16}


_CUDA_VECTORS_OF = {**{kind: (word.replace("long", "longlong"), size) for kind, (word, size) in _VECTORS_OF.items()}, "bool": ("uchar", 1)}
# there are none of 8 and 16
_CUDA_VECTORS = {(kind, 16 // size): "uint4" for kind, (_, size) in _CUDA_VECTORS_OF.items()} | _vectors(_CUDA_VECTORS_OF, (2, 4))

CUDA = GpuDialect(
    "cuda",
    "static __device__ __forceinline__",
    CUDA_FUNCTIONS,
    top=_TYPEDEFS.format("signed char", "short", "int", "long long", *(f"unsigned {t}" for t in ("char", "short", "int", "long long"))),
    outline="static __device__ inline",
    boolean="bool",
    stored_boolean="bool",
    wraps=False,
    words={**{f"__builtin_{name}": name for name in _BARE}, **_limits("ll"), "tc_exp_f32": "expf", "tc_exp_within_f32": "expf"},
    reserved=_reserved(f"{_CPP_WORDS} {_CUDA_WORDS}", _VECTOR_TYPES),
    kernel='extern "C" __global__ void __launch_bounds__({threads})',
    thread="(int)threadIdx.x",
    blocks=("(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z"),
    barriers={"block": "__syncthreads();", "warp": "__syncwarp({mask});"},
    restrict="__restrict__",
    shared="__shared__",
    dynamic="extern __shared__ __align__(16) char tc_shared[];",
    aligned="__align__({bytes})",
    unroll="#pragma unroll",
    vectors=_CUDA_VECTORS,
    load="*(const {vector} *)&{place}",
    store="*({vector} *)&{place} = {value};",
    shuffles=True,
)

# A barrier orders global memory as well: temporaries of a block may lie there. There is none for a warp.
OPENCL = GpuDialect(
    "opencl",
    "static inline",
    OPENCL_FUNCTIONS,
    top="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    + _TYPEDEFS.format("char", "short", "int", "long", "uchar", "ushort", "uint", "ulong"),
    boolean="bool",
    stored_boolean="uint8_t",  # pointers to bool have no place in the interface of a kernel
    wide="l",
    wraps=False,
    words={
        **{name + "f": name for name in _LIBRARY},
        **{f"__builtin_{name}": name.removesuffix("f") for name in _BARE},
        **_limits("l"),
        "half": "half_",
    },
    reserved=_reserved(_OPENCL_WORDS, _VECTOR_TYPES, "v(load|store).*", "(M|CLK|CL|FLT|DBL|FP)_.*", "(image|atom|cl)[_0-9].*"),
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void",
    thread="(int)get_local_id(0)",
    blocks=("(int)get_group_id(0)", "(int)get_group_id(1)", "(int)get_group_id(2)"),
    barriers=dict.fromkeys(("block", "warp"), "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"),
    pointer="__global",
    restrict="restrict",
    shared="__local",
    dynamic="",
    aligned="__attribute__((aligned({bytes})))",
    unroll="",  # PoCL miscompiles what it is told to unroll
    vectors=_vectors(_VECTORS_OF, (2, 4, 8, 16)),
    load="vload{count}(0, &{place})",
    store="vstore{count}({value}, 0, &{place});",
    shuffles=False,
)


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
