"""Vectors of 16 and 32 bytes under masks as AVX2 has them, for words of 4 and 8 bytes: a mask is a vector of integers, all bits set where a
lane counts. Elsewhere what is masked in memory is done lane by lane: with AVX alone, gcc 12 fails on selections by compared integers.
"""

from __future__ import annotations

from tcjit.grammar.dtypes import DTYPES

# $O: what ends the names of gcc's built-ins, $R: their elements, $L: those of their masks
SELECT = """
#if defined(__AVX2__) && !defined(__clang__)
typedef $R tc_reals$N __attribute__((vector_size($B), may_alias));
typedef $L tc_signs$N __attribute__((vector_size($B)));
TC_TILE $V tc_select$N(tc_lanes$N m, $V a, $V b) { return ($V)__builtin_ia32_blendv$O((tc_reals$N)b, (tc_reals$N)a, (tc_reals$N)m); }
#else
$PLAIN
#endif
"""

MASKED = """
#if defined(__AVX2__) && !defined(__clang__)
/* of a mask that it knows, gcc 12 makes a whole load and a selection, which may leave the tensor */
TC_TILE tc_mask$N tc_opaque$N(tc_mask$N m) {
  __asm__("" : "+x"(m));
  return m;
}
TC_TILE int tc_lane_bits$N(tc_mask$N m) { return __builtin_ia32_movmsk$O((tc_reals$N)m); }
TC_TILE int tc_lane$N(tc_mask$N m, int l) { return tc_lane_bits$N(m) >> l & 1; }
TC_TILE int tc_any$N(tc_mask$N m) { return tc_lane_bits$N(m) != 0; }
TC_TILE int tc_all$N(tc_mask$N m) { return tc_lane_bits$N(m) == (1 << $W) - 1; }
/* loads under masks take several times as long as others: what lies in the page of an element can be read, though it may be no element */
TC_TILE $V tc_load_masked$N(const $E *p, tc_mask$N m) {
  if (tc_any$N(m) && ((uintptr_t)p & 4095) <= 4096 - $B) return ($V)((tc_lanes$N)tc_load$N(p) & m);
  return ($V)__builtin_ia32_maskload$O((const tc_reals$N *)p, (tc_signs$N)m);
}
TC_TILE void tc_store_masked$N($E *p, $V v, tc_mask$N m) {
  if (tc_all$N(m)) tc_store$N(p, v);
  else __builtin_ia32_maskstore$O((tc_reals$N *)p, (tc_signs$N)m, (tc_reals$N)v);
}
#else
$PLAIN
#endif
"""

# a minimum or a maximum of the processor is its second operand where one of both is a NaN
EXTREMA = """
#if defined(__AVX2__) && !defined(__clang__)
TC_TILE $V tc_max$N($V a, $V b) { return tc_select$N(b != b, b, ($V)__builtin_ia32_max$O(b, a)); }
TC_TILE $V tc_min$N($V a, $V b) { return tc_select$N(b != b, b, ($V)__builtin_ia32_min$O(b, a)); }
#else
$PLAIN
#endif
"""


def has_masks(dtype: str, width: int) -> bool:
    """Whether AVX2 has loads and stores of such vectors under masks."""
    size = DTYPES[dtype].bytes
    return size >= 4 and size * width in (16, 32)


def named(dtype: str, width: int) -> dict[str, str]:
    """What stands in the texts for vectors of a type."""
    size = DTYPES[dtype].bytes
    kind = "ps" if size == 4 else "pd"
    wide = "256" if size * width == 32 else ""
    return {"O": kind + wide, "R": "float" if size == 4 else "double", "L": "int" if size == 4 else "long long"}
