"""Vectors of narrow elements as C: loads that convert them, bytes, words of 16 bits and halves, and stores that round to halves."""

from __future__ import annotations

from tcjit.codegen.tile_vectors import filled
from tcjit.grammar.dtypes import DTYPES

# the C type of an element, the bits of a half, and what the names of functions have in addition
_NARROW_NAMES = {
    "float16": ("uint16_t", "f16"), "bfloat16": ("uint16_t", "bf16"),
    "int8": ("int8_t", "i8"), "uint8": ("uint8_t", "u8"), "int16": ("int16_t", "i16"), "bool": ("uint8_t", "b8"),
}  # fmt: skip
# $H: narrow elements, $K: their name
_NARROW = """
typedef $H tc_narrow_$K$N __attribute__((vector_size($C)));
typedef tc_narrow_$K$N tc_narrow_$K$N_u __attribute__((aligned($D), may_alias));
TC_TILE $V tc_converted_$K$N(tc_narrow_$K$N x) {
$CONVERSION}
TC_TILE $V tc_splat_$K$N($H x) { return tc_converted_$K$N(x - (tc_narrow_$K$N){0}); }
TC_TILE $V tc_load_$K$N(const $H *p) { return tc_converted_$K$N(*(const tc_narrow_$K$N_u *)p); }
TC_TILE $V tc_strided_$K$N(const $H *p, int64_t step) {
  tc_narrow_$K$N r;
  for (int l = 0; l < $W; ++l) r[l] = p[l * step];
  return tc_converted_$K$N(r);
}
TC_TILE $V tc_strided_$K_masked$N(const $H *p, int64_t step, tc_mask$N m) {
  tc_narrow_$K$N r = {0};
  for (int l = 0; l < $W; ++l) if (tc_lane$N(m, l)) r[l] = p[l * step];
  return tc_converted_$K$N(r);
}
"""

# what lies in the page of an element can be read, though it may be no element
_NARROW_MASKED = """
TC_TILE $V tc_load_$K_masked$N(const $H *p, tc_mask$N m) {
  if (!tc_any$N(m)) return ($V){0};
  if (tc_all$N(m)) return tc_load_$K$N(p);
  if (((uintptr_t)p & 4095) > 4096 - $C) return tc_strided_$K_masked$N(p, 1, m);
  __asm__("" : "+r"(p));
  return tc_blend$N(($V){0}, tc_load_$K$N(p), m);
}
"""

_SAME_SIZE_MASKED = """
TC_TILE $V tc_load_$K_masked$N(const $H *p, tc_mask$N m) { return tc_converted_$K$N((tc_narrow_$K$N)tc_load_masked$N((const $E *)p, m)); }
"""

_NARROW_MASKED_AVX512 = """
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
TC_TILE $V tc_load_$K_masked$N(const $H *p, tc_mask$N m) {
  typedef $Y $Z __attribute__((vector_size($C)));
  return tc_converted_$K$N((tc_narrow_$K$N)__builtin_ia32_loaddqu$X_mask((const void *)p, ($Z){0}, m));
}
#else
$PLAIN
#endif
"""

_CONVERSION = "  return __builtin_convertvector(x, $V);\n"
# the bits of a half moved to those of a float are the value times 2^-112
_CONVERSION_F16 = """  tc_bits$N bits = __builtin_convertvector(x, tc_bits$N), sign = (bits & 0x8000) << 16;
  const tc_bits$N special = (tc_bits$N)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
  bits = (tc_bits$N)(($V)((bits & 0x7fff) << 13) * 0x1p+112f);
  return ($V)(bits | special | sign);
"""
_CONVERSION_BOOL = "  return __builtin_convertvector(x != 0, $V) & 1;\n"
_CONVERSION_BF16 = "  return ($V)(__builtin_convertvector(x, tc_bits$N) << 16);\n"
# of what is a bfloat16 already
_STORE_BF16 = """
TC_TILE void tc_store_bf16$N($H *p, $V v) {
#if defined(__AVX512F__) && !defined(__clang__) && $B == 64
  typedef int16_t tc_words __attribute__((vector_size($C)));
  *(tc_narrow_bf16$N_u *)p = (tc_narrow_bf16$N)__builtin_ia32_pmovdw512_mask((tc_lanes$N)v >> 16, (tc_words){0}, -1);
#else
  *(tc_narrow_bf16$N_u *)p = __builtin_convertvector((tc_bits$N)v >> 16, tc_narrow_bf16$N);
#endif
}
"""
_BITS = "typedef uint32_t tc_bits$N __attribute__((vector_size($B)));"
_INSTRUCTION = """#if defined($M) && !defined(__clang__)
  typedef int16_t tc_words __attribute__((vector_size($C)));
  $F;
#else
$OTHERWISE#endif
"""
_INSTRUCTIONS = {  # by what is done, and lanes: what the processor must have, and the statement; gcc 12 widens halves of vectors
    ("float16", 16): ("__AVX512F__", "return __builtin_ia32_vcvtph2ps512_mask((tc_words)x, ($V){0}, -1, 4)"),
    ("float16", 8): ("__F16C__", "return __builtin_ia32_vcvtph2ps256((tc_words)x)"),
    ("bfloat16", 16): ("__AVX512F__", "return ($V)(__builtin_ia32_pmovzxwd512_mask((tc_words)x, (tc_lanes$N){0}, -1) << 16)"),
    ("rounding", 16): (
        "__AVX512F__", "*(tc_narrow_f16$N_u *)p = (tc_narrow_f16$N)__builtin_ia32_vcvtps2ph512_mask(v, 0, (tc_words){0}, -1)"
    ),
    ("rounding", 8): ("__F16C__", "*(tc_narrow_f16$N_u *)p = (tc_narrow_f16$N)__builtin_ia32_vcvtps2ph256(v, 0)"),
}  # fmt: skip

# rounded to nearest, ties to even
_STORE_F16 = """
TC_TILE void tc_store_f16$N(uint16_t *p, $V v) {
$ROUNDING}
"""
_ROUNDING = "  for (int l = 0; l < $W; ++l) p[l] = tc_float_to_half(v[l]);\n"


def narrow_type(narrow: str) -> str:
    """The C type of an element that loads convert."""
    return _NARROW_NAMES[narrow][0]


def narrow_name(narrow: str) -> str:
    """What the names of functions that convert such elements have in addition."""
    return _NARROW_NAMES[narrow][1]


def narrow_declarations(narrow: str, dtype: str, width: int, *, stores: bool = False) -> list[str]:
    """Functions that load elements of a narrower type, to stand behind ``declarations``; with ``stores`` also one that stores floats as
    halves, behind the conversion of a single float."""
    own = DTYPES[narrow].bytes
    conversion = {"float16": _CONVERSION_F16, "bfloat16": _CONVERSION_BF16, "bool": _CONVERSION_BOOL}.get(narrow, _CONVERSION)
    masked = _NARROW_MASKED.strip("\n")
    if own == DTYPES[dtype].bytes:  # bytes from bytes
        masked = _SAME_SIZE_MASKED.strip("\n")
    elif DTYPES[dtype].bytes * width == 64 and width == 16:
        masked = _NARROW_MASKED_AVX512.strip("\n").replace("$PLAIN", masked)
    quad, kind, vector = ("hi256", "int16_t", "tc_words") if own == 2 else ("qi128", "char", "tc_bytes")
    parts = {
        "H": narrow_type(narrow), "K": narrow_name(narrow), "C": str(own * width), "D": str(own), "X": quad, "Y": kind, "Z": vector,
    }  # fmt: skip
    loads = [_NARROW.strip("\n").replace("$CONVERSION", _by_instruction(narrow, width, conversion)), masked]
    texts = ["\n".join([*loads, *([_STORE_BF16.strip("\n")] if narrow == "bfloat16" else [])])]
    texts = [_BITS, *texts] if narrow in ("float16", "bfloat16") else texts
    texts += [_STORE_F16.replace("$ROUNDING", _by_instruction("rounding", width, _ROUNDING))] if stores else []
    return [filled(text, dtype, width, **parts) for text in texts]


def _by_instruction(what: str, width: int, otherwise: str) -> str:
    """Lines of a function, with the instruction for them where a processor has one."""
    if (what, width) not in _INSTRUCTIONS:
        return otherwise
    feature, statement = _INSTRUCTIONS[what, width]
    return _INSTRUCTION.replace("$M", feature).replace("$F", statement).replace("$OTHERWISE", otherwise)
