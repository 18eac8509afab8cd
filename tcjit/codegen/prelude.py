"""The helper functions of generated code: only those that a kernel uses, and what these need, in a fixed order.

Helpers for one type are spelt out here, by templates; the mathematics is C, in ``maths.h``. What a helper needs is read off its text.
Other languages get the same texts with the words of their dialect, and what ``gpu_prelude`` has for them.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

from tcjit.codegen import gpu_prelude
from tcjit.codegen.dialect import FLOATS, INTEGERS, NARROWED, C, Dialect, GpuDialect
from tcjit.grammar.dtypes import DTYPES

_MACROS = """
#define INFINITY __builtin_inff()

#define NAN __builtin_nanf("")

#define TC_FLAG(bad, site) (tc_flag = (bad) && ((site) == TC_SITES || tc_flag < (site)) ? (site) : tc_flag)

#define TC_AT(index, extent, site) ({ \
  const uint64_t tc_index = (uint64_t)(index); \
  const int tc_outside = tc_index >= (extent); \
  TC_FLAG(tc_outside, site); \
  tc_outside ? 0 : (int64_t)tc_index; })

#define TC_TARGET(index, extent, site) ({ \
  const int64_t tc_target = (index); \
  TC_FLAG((uint64_t)tc_target >= (uint64_t)(extent), site); \
  tc_target; })

#define TC_FLAG_ZERO(value, site) ({ __auto_type tc_value = (value); TC_FLAG(tc_value == 0, site); tc_value; })

/* what gcc takes for a variable: with a constant, clamping x is a comparison and a selection for it, and a function of what is clamped
   one of x, one at the constant and more selections; with a variable it is one instruction of a vector, the minimum or the maximum */
#define TC_BOUND(name, value) static float name __attribute__((used)) = value
"""

_STREAMING = """
/* a whole line from one place to another, past the caches; others see it once the stores are finished */
TC_INLINE void tc_store_line(void *to, const void *from) {
#if defined(__clang__)
  typedef float tc_line __attribute__((vector_size(64)));
  __builtin_nontemporal_store(*(const tc_line *)from, (tc_line *)to);
#elif defined(__AVX512F__)
  typedef float tc_line __attribute__((vector_size(64), may_alias));
  __builtin_ia32_movntps512((float *)to, *(const tc_line *)from);
#elif defined(__AVX__)
  typedef float tc_half __attribute__((vector_size(32), may_alias));
  for (int part = 0; part < 2; ++part) __builtin_ia32_movntps256((float *)to + 8 * part, ((const tc_half *)from)[part]);
#else
  __builtin_memcpy(to, from, 64);
#endif
}

/* the same where the place is that of a line */
TC_INLINE void tc_store_vector(void *to, const void *from) {
  if ((uintptr_t)to % 64 == 0) tc_store_line(to, from);
  else __builtin_memcpy(to, from, 64);
}

TC_INLINE void tc_finish_stores(void) {
#if defined(__SSE__)
  __builtin_ia32_sfence();
#else
  __sync_synchronize();
#endif
}
"""

_QUOTIENTS = """
/* a power of two that makes a divisor 1/2 to 1, or less than that if it is denormal, so that a quotient overflows no earlier */
TC_INLINE float tc_scale_of_divisor_f32(float d) {
  uint32_t exponent = tc_bits_f32(d) & 0x7f800000u;
  return tc_from_bits_f32(exponent < 0x7e800000u ? 0x7e800000u - exponent : 0x00800000u);
}

/* a / d, with d times a power of two and the inverse of that: one step of Newton's from a product with the inverse, which rounds
   correctly where the rest is a normal number (Markstein, IA-64 and Elementary Functions, 2000); of quotients below 2^-100 the last bit
   may be another, of denormal ones the last two. Zeros and what is not finite have no rest. */
TC_INLINE float tc_scaled_quotient_f32(float a, float d, float scaled, float inverse, float scale) {
#if defined(__FMA__) || defined(__aarch64__)
  (void)d;
  float b = a * scale, near = b * inverse, rest = __builtin_fmaf(-near, scaled, b), value = __builtin_fmaf(rest, inverse, near);
  return __builtin_fabsf(rest) > 0.0f && __builtin_fabsf(rest) < INFINITY ? value : near;
#else
  (void)scaled, (void)inverse, (void)scale;
  return a / d;
#endif
}
"""

_REMAINDERS = """
/* |a| less so many multiples of |b| that it is about -|b| to 2|b|: one step leaves 2^-50 of a quotient, which has 277 bits at most, and
   what it leaves is a double */
TC_INLINE double tc_step_of_remainder_f64(double rest, double b, double inverse) {
  return __builtin_fma(-__builtin_trunc(rest * inverse), b, rest);
}

/* fmod in vectors, exactly */
TC_INLINE float tc_fmod_f32(float a, float b) {
#if defined(__FMA__) || defined(__aarch64__)
  double divisor = __builtin_fabs((double)b), inverse = 1.0 / divisor, rest = __builtin_fabs((double)a);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = tc_step_of_remainder_f64(rest, divisor, inverse);
  rest = rest < 0.0 ? rest + divisor : rest;
  rest = rest >= divisor ? rest - divisor : rest;
  float value = __builtin_fabsf(a) < __builtin_fabsf(b) ? a : (float)rest;
  return __builtin_copysignf(value, a);
#else
  return fmodf(a, b);
#endif
}
"""

_PACKED = """
#define TC_FLOAT_WORD(element) (*(const float __attribute__((aligned(1), may_alias)) *)&(element))

#define TC_WORD(element) (*(const int32_t __attribute__((aligned(1), may_alias)) *)&(element))

TC_INLINE int32_t tc_pack2(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)(uint16_t)a | (uint32_t)b << 16);
}

TC_INLINE int32_t tc_pack4(int32_t a, int32_t b, int32_t c, int32_t d) {
  return (int32_t)((uint32_t)(uint8_t)a | (uint32_t)(uint8_t)b << 8 | (uint32_t)(uint8_t)c << 16 | (uint32_t)d << 24);
}

/* the signs of four bytes */
TC_INLINE int32_t tc_flip_signs(int32_t bytes) {
  return (int32_t)((uint32_t)bytes ^ 0x80808080u);
}
"""

# $T the type of an index, $E what ends a name
_INDEX = """
/* floor(a / b) for b > 0 */
TC_INLINE $T tc_fdiv$E($T a, $T b) {
  return a / b - (a % b < 0);
}

/* a - b * floor(a / b) for b > 0 */
TC_INLINE $T tc_mod$E($T a, $T b) {
  $T rest = a % b;
  return rest < 0 ? rest + b : rest;
}

/* (a + b) modulo n for 0 <= a <= n and 0 <= b < n */
TC_INLINE $T tc_wrap$E($T a, $T b, $T n) {
  $T sum = a + b;
  return sum < n ? sum : sum - n;
}

TC_INLINE $T tc_min_index$E($T a, $T b) {
  return a < b ? a : b;
}

TC_INLINE $T tc_max_index$E($T a, $T b) {
  return a > b ? a : b;
}
"""

_WRAPPED = """
/* whether arithmetic wrapped: the same in double is then off by about a multiple of 2^64 */
TC_INLINE int tc_wrapped(int64_t value, double exact) {
  double off = exact - (double)value;
  return !(off < 0x1p+63 && off > -0x1p+63);
}
"""

# $T the C type, $X its short name, $N is -a; division of the types of 8 and 16 bits is done in int32_t
_SIGNED_DIVISION = """
TC_INLINE $T tc_div_$X($T a, $T b) {
  if (b == 0) return 0;
  if (b == -1) return $N;
  return a / b - (a % b != 0 && (a ^ b) < 0);
}

TC_INLINE $T tc_mod_$X($T a, $T b) {
  if (b == 0 || b == -1) return 0;
  $T rest = a % b;
  return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}
"""

_UNSIGNED_DIVISION = """
TC_INLINE $T tc_div_$X($T a, $T b) {
  return b == 0 ? 0 : a / b;
}

TC_INLINE $T tc_mod_$X($T a, $T b) {
  return b == 0 ? 0 : a % b;
}
"""

_SIGNED = """
TC_INLINE $T tc_abs_$X($T a) {
  return a < 0 ? $N : a;
}

TC_INLINE $T tc_sign_$X($T a) {
  return (a > 0) - (a < 0);
}
"""

_ORDERED = """
TC_INLINE $T tc_min_$X($T a, $T b) {
  return a < b ? a : b;
}

TC_INLINE $T tc_max_$X($T a, $T b) {
  return a > b ? a : b;
}

TC_INLINE $T tc_relu_$X($T a) {
  return a > 0 ? a : 0;
}

TC_INLINE $T tc_clamp_$X($T a, $T low, $T high) {
  $T least = a > low ? a : low;
  return least < high ? least : high;
}
"""

# min, max, relu and clamp keep a NaN, fmin and fmax drop it. As selections in this order they vectorise: calls of fmaxf do not, nor do
# selections on (a > b || a != a), whose parts gcc follows apart when one value stands on both sides or a bound is constant. In C, beside a
# constant that is a number, one comparison says all.
_BESIDE_A_CONSTANT = "  if (__builtin_constant_p(b) && b == b) return a {} b ? a : b;\n"
_REAL = """
TC_INLINE $T tc_min_$X($T a, $T b) {
  $T least = b < a ? b : a;
  return b != b ? b : least;
}

TC_INLINE $T tc_max_$X($T a, $T b) {
  $T most = b > a ? b : a;
  return b != b ? b : most;
}

TC_INLINE $T tc_fmin_$X($T a, $T b) {
$LEAST  $T least = b < a ? b : a;
  return a != a ? b : least;
}

TC_INLINE $T tc_fmax_$X($T a, $T b) {
$MOST  $T most = b > a ? b : a;
  return a != a ? b : most;
}

TC_INLINE $T tc_relu_$X($T a) {
  return a < 0 ? 0 : a;
}

TC_INLINE $T tc_clamp_$X($T a, $T low, $T high) {
  return tc_min_$X(tc_max_$X(a, low), high);
}

TC_INLINE $T tc_sign_$X($T a) {
  return a != a ? a : (a > 0) - (a < 0);
}

/* with the sign of b, as the floored division has it */
TC_INLINE $T tc_mod_$X($T a, $T b) {
  $T rest = $FMOD(a, b);
  return rest == 0 ? __builtin_copysign$S(rest, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}

TC_INLINE $T tc_fdim_$X($T a, $T b) {
  return a <= b ? 0 : a - b;
}

/* pow(a, 0.5), of which gcc makes a sqrt in vectors where a zero and an infinity are negative, too */
TC_INLINE $T tc_pow_half_$X($T a) {
  return a == -INFINITY ? INFINITY : sqrt$S(a) + 0;
}

TC_INLINE $T tc_rsqrt_$X($T a) {
  return 1 / sqrt$S(a);
}
"""

# float to integer truncates and saturates, NaN gives 0; $HIGH and $LOW bound the values that the type holds
_TO_INTEGER = """
TC_INLINE $T tc_$R_to_$I($R x) {
  return x >= $HIGH ? $MAX : x > $LOW ? ($T)x : $BELOW;
}
"""

_HALF = """
/* the bits of a half moved to those of a float are the value times 2^-112 */
TC_INLINE float tc_half_to_float(uint16_t half) {
  uint32_t bits = tc_bits_f32(tc_from_bits_f32((uint32_t)(half & 0x7fff) << 13) * 0x1p+112f);
  bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return tc_from_bits_f32(bits | (uint32_t)(half & 0x8000) << 16);
}

/* to nearest, ties to even; denormals by adding 1/2, whose last bit is theirs */
TC_INLINE uint16_t tc_float_to_half(float x) {
  uint32_t bits = tc_bits_f32(x), a = bits & 0x7fffffffu;
  uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
  uint32_t denormal = tc_bits_f32(tc_from_bits_f32(a) + 0.5f) - 0x3f000000u;
  uint32_t special = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return (uint16_t)((a < 0x38800000u ? denormal : a < 0x477ff000u ? normal : special) | (bits >> 16 & 0x8000u));
}

TC_INLINE float tc_bfloat_to_float(uint16_t bfloat) {
  return tc_from_bits_f32((uint32_t)bfloat << 16);
}

/* of floats that are bfloats the bits, the first in the lower half, as those of a float that is only moved */
TC_INLINE float tc_pack_bfloats(float a, float b) {
  return tc_from_bits_f32(tc_bits_f32(a) >> 16 | (tc_bits_f32(b) & 0xffff0000u));
}

/* to nearest, ties to even; a NaN stays one, and quiet */
TC_INLINE uint16_t tc_float_to_bfloat(float x) {
  uint32_t bits = tc_bits_f32(x);
  return (uint16_t)((x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* truncated, the last bit set if anything was lost: so that rounding once more, to half, rounds as if from x */
TC_INLINE float tc_round_to_odd(double x) {
  float nearest = (float)x;
  uint32_t bits = tc_bits_f32(nearest);
  uint32_t down = __builtin_fabs((double)nearest) > __builtin_fabs(x) ? bits - 1u : bits;
  return (double)nearest == x || x != x ? nearest : tc_from_bits_f32(down | 1u);
}

TC_INLINE float tc_as_half(float x) {
  return tc_half_to_float(tc_float_to_half(x));
}

/* in 32 bits all along, so that vectors are as long as those of floats */
TC_INLINE float tc_as_bfloat(float x) {
  uint32_t bits = tc_bits_f32(x);
  return tc_from_bits_f32((x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}
"""

# the neighbour in its own type, $R
_NEIGHBOUR = """
static inline float tc_nextafter_$R(float x, float y) {
  uint16_t bits = tc_float_to_$R(x);
  float from = tc_$R_to_float(bits), to = tc_as_$R(y);
  if (from != from || to != to || from == to) return from != from ? from : to;
  if (from == 0.0f) return __builtin_copysignf(tc_$R_to_float(1), to);
  return tc_$R_to_float((uint16_t)((to > from) == (from > 0.0f) ? bits + 1 : bits - 1));
}
"""

_NAMED = re.compile(r"(?:^#define |\b)([A-Za-z]\w*)\(", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_COMMENT_OR_WORD = re.compile(rf"{_COMMENT.pattern}|{_WORDS.pattern}", re.DOTALL)
_ARGUMENTS = {"fma": 3, **dict.fromkeys(("pow", "atan2", "hypot", "fmod", "remainder", "copysign", "nextafter", "fmax"), 2)}
_LIBRARY = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmod hypot j0 j1 "
    "lgamma log log10 log1p log2 logb nextafter pow remainder rint round sin sinh sqrt tan tanh tgamma trunc y0 y1"
).split()


def text(used: Iterable[str], dialect: Dialect, sites: int = 0) -> str:
    """The top of a source: standard types, then the named helpers and library functions with all they need, each once; ``sites``: how many
    places may fail.

    Names that are neither are a KeyError, a mistake of the printer's.
    """
    helpers, library = _helpers(dialect), _library(dialect)
    wanted: set[str] = set()
    waiting = list(used)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [] if name in library else _needs(name, dialect)
    blocks = [body for name, body in helpers.items() if name in wanted]
    lines = [dialect.top]
    if any("TC_INLINE" in body for body in blocks):
        lines.append(f"#define TC_INLINE {dialect.inline}")
    for name, prototype in library.items():
        if name in wanted and prototype:
            lines += ["#pragma omp declare simd notinbranch"] * (name in dialect.vector_math) + [prototype]
    macros = [body for body in blocks if body.startswith("#")]
    if any("TC_SITES" in body for body in macros):  # the last of them replaces any other without a comparison
        macros.insert(0, f"#define TC_SITES {sites}")
    return "\n".join(["\n".join(lines + macros), *(body for body in blocks if not body.startswith("#"))]) + "\n"


def known(name: str, dialect: Dialect = C) -> bool:
    """Whether file scope of a kernel may hold this name: a helper of ours or a library function that one may call, or a reserved word."""
    return name in _helpers(dialect) or name in _library(dialect) or re.fullmatch(dialect.reserved, name) is not None


def names(dialect: Dialect = C) -> tuple[str, ...]:
    """Every helper, in the order in which they are emitted: each after those it needs."""
    return tuple(_helpers(dialect))


@cache
def _library(dialect: Dialect) -> dict[str, str]:
    """The functions (and constants) that a language has -> the prototypes that it wants."""
    if isinstance(dialect, GpuDialect):
        found = dict.fromkeys(name for pair in dialect.functions.values() for name in pair)
        return {name: "" for name in (*found, "INFINITY", "NAN") if name not in _helpers(dialect)}
    kinds = [(name, c_type, suffix) for name in _LIBRARY for c_type, suffix in (("float", "f"), ("double", ""))]
    return {f"{name}{end}": f"{kind} {name}{end}({', '.join([kind] * _ARGUMENTS.get(name, 1))});" for name, kind, end in kinds}


@cache
def _helpers(dialect: Dialect) -> dict[str, str]:
    found = {}
    for block in "\n\n".join(_sources(dialect)).split("\n\n"):
        body = block.strip()
        if body and (match := _NAMED.search(_COMMENT.sub("", body))):
            found[match[1]] = body
        elif body.startswith("#define"):
            found[body.split()[1]] = body
    return {name: _in_dialect(body, dialect) for name, body in found.items() if name not in dialect.words}


def _in_dialect(body: str, dialect: Dialect) -> str:
    """A helper in the words of its language."""
    body = re.sub("^static inline", dialect.outline, body, flags=re.MULTILINE)
    return _COMMENT_OR_WORD.sub(lambda match: dialect.words.get(match[0], match[0]), body)


@cache
def _needs(name: str, dialect: Dialect) -> list[str]:
    helpers, library = _helpers(dialect), _library(dialect)
    words = dict.fromkeys(_WORDS.findall(_COMMENT.sub("", helpers[name])))
    return [word for word in words if word != name and (word in helpers or word in library)]


def _sources(dialect: Dialect) -> Iterator[str]:
    """All helpers as text, in their order."""
    gpu = isinstance(dialect, GpuDialect)
    if not gpu:
        yield _MACROS
        yield _STREAMING
        yield _PACKED
        yield _REMAINDERS
    yield _WRAPPED
    yield from (_filled(_INDEX, T=c_type, E=ending) for c_type, ending in (("int64_t", ""), ("int", "_int")))
    if not dialect.wraps:
        yield from (_filled(gpu_prelude.WRAPPING, T=f"int{bits}_t", U=f"uint{bits}_t", X=f"i{bits}") for bits in (32, 64))
        yield gpu_prelude.WRAPPING_SHORT
    for dtype, (c_type, short) in INTEGERS.items():
        signed = DTYPES[dtype].kind == "signed"
        negated = "-a" if dialect.wraps or DTYPES[dtype].bits < 32 else f"tc_neg_{short}(a)"
        if DTYPES[dtype].bits >= 32:
            yield _filled(_SIGNED_DIVISION if signed else _UNSIGNED_DIVISION, T=c_type, X=short, N=negated)
        yield _filled(_ORDERED, T=c_type, X=short)
        if signed:
            yield _filled(_SIGNED, T=c_type, X=short, N=negated)
    least, most = ("", "") if gpu else map(_BESIDE_A_CONSTANT.format, ("<=", ">="))
    for c_type, short, suffix in FLOATS.values():
        fmod = f"fmod{suffix}" if gpu else C.functions["fmod"][short == "f64"]
        yield _filled(_REAL, T=c_type, X=short, S=suffix, FMOD=fmod, LEAST=least, MOST=most)
        for dtype in INTEGERS:
            yield _to_integer(c_type, suffix, dtype)
    if gpu:
        yield "#define TC_BOUND(name, value) const float name = value"
    maths = (files(__package__) / "maths.h").read_text(encoding="utf-8")
    views = maths.index("\n\n", maths.index("tc_from_bits_f32"))  # the half types need these two, and nothing else
    yield maths[:views]
    yield _HALF
    yield from (_filled(_NEIGHBOUR, R=kind) for kind in ("half", "bfloat"))
    yield maths[views:]
    for name, count in NARROWED.items():
        yield _narrowed(name, count, dialect)
    if isinstance(dialect, GpuDialect):
        yield from _gpu_sources(dialect)
    else:
        yield _QUOTIENTS


def _gpu_sources(dialect: GpuDialect) -> Iterator[str]:
    """What only a grid of threads needs, and what its language has in place of C's."""
    yield gpu_prelude.OWN[dialect.name]
    yield _filled(gpu_prelude.CHECKS, F=f"{dialect.pointer} int".strip(), RAISE=gpu_prelude.RAISE[dialect.name])
    for dtype, (c_type, short) in INTEGERS.items():
        if DTYPES[dtype].bits >= 32:
            yield _filled(gpu_prelude.NONZERO, T=c_type, X=short)
    yield from (_filled(template, **parts) for template, parts in gpu_prelude.atomic_updates(dialect))
    if dialect.shuffles:
        narrow = {short for dtype, (_, short) in INTEGERS.items() if DTYPES[dtype].bits < 32} | {"bool"}
        types = [*INTEGERS.values(), *((c_type, short) for c_type, short, _ in FLOATS.values()), (dialect.boolean, "bool")]
        for c_type, short in types:
            yield _filled(gpu_prelude.SHUFFLES, T=c_type, X=short, V="(int)value" if short in narrow else "value")


def _filled(template: str, **parts: str) -> str:
    return re.sub(r"\$([A-Z]+)", lambda match: parts[match[1]], template)


def _to_integer(c_type: str, suffix: str, dtype: str) -> str:
    kind = DTYPES[dtype]
    high = kind.greatest.bit_length()
    signed = kind.kind == "signed"
    named = kind.name.upper()
    return _filled(
        _TO_INTEGER,
        R=c_type,
        I=dtype,
        T=INTEGERS[dtype][0],
        HIGH=f"0x1p+{high}{suffix}",
        LOW=f"-0x1p+{high}{suffix}" if signed else f"0.0{suffix}",
        MAX=f"{named}_MAX",
        BELOW=f"x == x ? {named}_MIN : 0" if signed else "0",
    )


def _narrowed(name: str, count: int, dialect: Dialect) -> str:
    """A float32 built-in done in double."""
    wide = dialect.functions[name][1]
    arguments = "xyzw"[:count]
    parameters = ", ".join(f"float {a}" for a in arguments)
    # where functions are overloaded, a float would choose the other one
    given = ", ".join(arguments if dialect.wraps else (f"(double){a}" for a in arguments))
    return f"TC_INLINE float tc_{name}_f32({parameters}) {{\n  return (float){wide}({given});\n}}"
