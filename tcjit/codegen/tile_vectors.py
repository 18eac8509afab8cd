"""Vectors of one type and width for register tiles, as C: loads, stores and selections under masks, minima and maxima that keep NaN.

Processors with AVX-512 have masks of their own. Elsewhere a mask is a vector of integers, all bits set where a lane counts: AVX2 loads and
stores words under such masks (``avx_masks``), and what it has no instruction for is done lane by lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product

from tcjit.codegen import avx_masks, strided_vectors
from tcjit.codegen.predication import comparisons
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.nest.vector_forms import STORED_TOGETHER

# the C type of an element, the name of a vector's without its lanes, and what ends the names of functions
_NAMES = {
    "float32": ("float", "tc_float", "f32"), "float64": ("double", "tc_double", "f64"), "int32": ("int32_t", "tc_int32x", "i32"),
    "int16": ("int16_t", "tc_int16x", "i16"), "int8": ("int8_t", "tc_int8x", "i8"), "uint8": ("uint8_t", "tc_uint8x", "u8"),
}  # fmt: skip
_UPDATES = {"+=": "add", "*=": "mul", "min=": "min", "max=": "max"}  # as the functions that combine lanes are called
_OPERATIONS = {  # in the names of gcc's built-ins
    "float32": ("ps", "ups"), "float64": ("pd", "upd"), "int32": ("d", "dqusi"),
    "int16": ("w", "dquhi"), "int8": ("b", "dquqi"), "uint8": ("b", "dquqi"),
}  # fmt: skip

_TYPES = """
typedef $E $V __attribute__((vector_size($B)));
typedef $E $V_u __attribute__((vector_size($B), aligned($S), may_alias));
typedef $I tc_lanes$N __attribute__((vector_size($B)));

#define TC_LANE_NUMBERS$N ((tc_lanes$N){$NUMBERS})
"""

_ALL = """
TC_TILE $V tc_splat$N($E x) { return x - ($V){0}; }
TC_TILE $V tc_load$N(const $E *p) { return *(const $V_u *)p; }
TC_TILE void tc_store$N($E *p, $V v) { *($V_u *)p = v; }
TC_TILE $V tc_strided$N(const $E *p, int64_t step) {
  $V r;
  for (int l = 0; l < $W; ++l) r[l] = p[l * step];
  return r;
}
"""

_SELECT = """
TC_TILE $V tc_select$N(tc_lanes$N m, $V a, $V b) { return ($V)((m & (tc_lanes$N)a) | (~m & (tc_lanes$N)b)); }
"""

_FABS = """
TC_TILE $V tc_fabs$N($V a) { return ($V)((tc_lanes$N)a & $MOST); }
"""

_CHARS = "typedef char tc_chars$W __attribute__((vector_size($B)));"

# the last bits of the sum are those of the exponent
_INTEGER_POWER = """
TC_TILE $V tc_integer_power$N($V x, $V n, int bits) {
  const tc_lanes$N whole = (tc_lanes$N)(n + 0x1p52);
  const $V one = {0};
  $V r = tc_select$N((whole & 1) != 0, x, one + 1.0);
  if (bits > 1) x *= x, r = tc_select$N((whole & 2) != 0, r * x, r);
  if (bits > 2) x *= x, r = tc_select$N((whole & 4) != 0, r * x, r);
  if (bits > 3) x *= x, r = tc_select$N((whole & 8) != 0, r * x, r);
  return r;
}
"""

_MASKS = """
typedef uint$M_t tc_mask$N;
#define TC_ALL$N ((tc_mask$N)-1)
TC_TILE tc_mask$N tc_from$N(int64_t first) { return first >= 0 ? TC_ALL$N : first <= -$W ? 0 : (tc_mask$N)(TC_ALL$N << -first); }
TC_TILE tc_mask$N tc_until$N(int64_t last) { return last < 0 ? 0 : last >= $W - 1 ? TC_ALL$N : (tc_mask$N)(TC_ALL$N >> ($W - 1 - last)); }
/* of a mask that it knows, gcc 12 makes a whole load and a selection, which may leave the tensor */
TC_TILE tc_mask$N tc_opaque$N(tc_mask$N m) {
  __asm__("" : "+Yk"(m));
  return m;
}
/* of a vector that several sums take, gcc 12 makes a load for each of them */
TC_TILE $V tc_in_register$N($V v) {
  __asm__("" : "+v"(v));
  return v;
}
TC_TILE int tc_any$N(tc_mask$N m) { return m != 0; }
TC_TILE int tc_all$N(tc_mask$N m) { return m == TC_ALL$N; }
TC_TILE int tc_lane$N(tc_mask$N m, int l) { return m >> l & 1; }
TC_TILE $V tc_blend$N($V a, $V b, tc_mask$N m) { return ($V)__builtin_ia32_blendm$P_512_mask(($A)a, ($A)b, m); }
TC_TILE $V tc_or_zero$N($V v, tc_mask$N m) { return tc_blend$N(($V){0}, v, m); }
TC_TILE $V tc_add_masked$N($V a, $V b, tc_mask$N m) { return tc_blend$N(a, a + b, m); }
TC_TILE $V tc_load_masked$N(const $E *p, tc_mask$N m) { return ($V)__builtin_ia32_load$U512_mask((const void *)p, ($A){0}, m); }
TC_TILE void tc_store_masked$N($E *p, $V v, tc_mask$N m) { __builtin_ia32_store$U512_mask((void *)p, ($A)v, m); }
"""

_EXTREMA = """
/* b where it is a NaN, by a table of what becomes of each class of numbers: the first two are those of NaNs */
typedef $CLASSES tc_classes$N __attribute__((vector_size(64)));
TC_TILE $V tc_or_nan$N($V a, $V b) {
  return __builtin_ia32_fixupimm$P512_mask(a, b, (tc_classes$N){0} + 0x11, 0, -1, 4);
}
TC_TILE $V tc_max$N($V a, $V b) {
  return tc_or_nan$N(__builtin_ia32_max$P512_mask(b, a, ($V){0}, -1, 4), b);
}
TC_TILE $V tc_min$N($V a, $V b) {
  return tc_or_nan$N(__builtin_ia32_min$P512_mask(b, a, ($V){0}, -1, 4), b);
}
"""

_LANE_MASKS = """
typedef tc_lanes$N tc_mask$N;
#define TC_ALL$N ((tc_mask$N){0} == 0)
TC_TILE tc_mask$N tc_from$N(int64_t first) {
  $I least = first >= 0 ? 0 : first <= -$W ? $W : ($I)-first;
  return TC_LANE_NUMBERS$N >= least;
}
TC_TILE tc_mask$N tc_until$N(int64_t last) {
  $I most = last < 0 ? -1 : last >= $W ? $W : ($I)last;
  return TC_LANE_NUMBERS$N <= most;
}
TC_TILE $V tc_in_register$N($V v) {
#if defined(__AVX__) && $B <= 32 || defined(__SSE2__) && $B <= 16
  __asm__("" : "+x"(v));
#elif defined(__ARM_NEON) && $B <= 16
  __asm__("" : "+w"(v));
#endif
  return v;
}
TC_TILE $V tc_blend$N($V a, $V b, tc_mask$N m) { return tc_select$N(m, b, a); }
TC_TILE $V tc_or_zero$N($V v, tc_mask$N m) { return ($V)((tc_lanes$N)v & m); }
TC_TILE $V tc_add_masked$N($V a, $V b, tc_mask$N m) { return a + tc_or_zero$N(b, m); }
"""

_LANE_BY_LANE = """
TC_TILE tc_mask$N tc_opaque$N(tc_mask$N m) {
  __asm__("" : "+m"(m));
  return m;
}
TC_TILE int tc_lane$N(tc_mask$N m, int l) { return m[l] != 0; }
TC_TILE int tc_any$N(tc_mask$N m) {
  $I any = 0;
  for (int l = 0; l < $W; ++l) any |= m[l];
  return any != 0;
}
TC_TILE int tc_all$N(tc_mask$N m) { return !tc_any$N(~m); }
TC_TILE $V tc_load_masked$N(const $E *p, tc_mask$N m) {
  $V r = {0};
  for (int l = 0; l < $W; ++l) if (m[l]) r[l] = p[l];
  return r;
}
TC_TILE void tc_store_masked$N($E *p, $V v, tc_mask$N m) {
  for (int l = 0; l < $W; ++l) if (m[l]) p[l] = v[l];
}
"""

_EXTREMA_PLAIN = """
TC_TILE $V tc_max$N($V a, $V b) { return tc_select$N(b != b, b, tc_select$N(b > a, b, a)); }
TC_TILE $V tc_min$N($V a, $V b) { return tc_select$N(b != b, b, tc_select$N(b < a, b, a)); }
"""

_DOTS_BF16 = """
#if defined(__AVX512BF16__) && !defined(__clang__) && $B == 64
typedef int16_t tc_bfloats$N __attribute__((vector_size($B)));
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) { return __builtin_ia32_dpbf16ps_v16sf(sum, (tc_bfloats$N)a, (tc_bfloats$N)b); }
#else
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) {
  const tc_lanes$N high = (tc_lanes$N){0} - 0x10000;
  sum += ($V)((tc_lanes$N)a & high) * ($V)((tc_lanes$N)b & high);
  return sum + ($V)((tc_lanes$N)a << 16) * ($V)((tc_lanes$N)b << 16);
}
#endif
"""

_INTEGERS = """
TC_TILE $V tc_max$N($V a, $V b) { return tc_select$N(b > a, b, a); }
TC_TILE $V tc_min$N($V a, $V b) { return tc_select$N(b < a, b, a); }
"""

_DOTS = """
#if defined(__AVX512VNNI__) && !defined(__clang__) && ($B == 64 || defined(__AVX512VL__) && $B >= 16)
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) { return __builtin_ia32_vpdpwssd_v$Wsi(sum, a, b); }
TC_TILE $V tc_dot4$N($V sum, $V a, $V b) { return __builtin_ia32_vpdpbusd_v$Wsi(sum, a, b); }
#else
#if defined(__AVX512BW__) && !defined(__clang__) && $B == 64
typedef int16_t tc_halves$N __attribute__((vector_size($B)));
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) {
  return sum + ($V)__builtin_ia32_pmaddwd512_mask((tc_halves$N)a, (tc_halves$N)b, ($V){0}, -1);
}
#elif defined(__AVX2__) && $B == 32
typedef int16_t tc_halves$N __attribute__((vector_size($B)));
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) { return sum + ($V)__builtin_ia32_pmaddwd256((tc_halves$N)a, (tc_halves$N)b); }
#else
TC_TILE $V tc_dot2$N($V sum, $V a, $V b) { return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16); }
#endif
TC_TILE $V tc_dot4$N($V sum, $V a, $V b) {
  sum += (a & 255) * ((b << 24) >> 24) + ((a >> 8) & 255) * ((b << 16) >> 24);
  return sum + ((a >> 16) & 255) * ((b << 8) >> 24) + ((a >> 24) & 255) * (b >> 24);
}
#endif
"""

_ENDING = """
TC_TILE $V tc_strided_masked$N(const $E *p, int64_t step, tc_mask$N m) {
  if (tc_all$N(m)) return tc_strided$N(p, step);
  $V r = {0};
  for (int l = 0; l < $W; ++l) if (tc_lane$N(m, l)) r[l] = p[l * step];
  return r;
}
TC_TILE void tc_scatter$N($E *p, int64_t step, $V v, tc_mask$N m) {
  if (tc_all$N(m)) for (int l = 0; l < $W; ++l) p[l * step] = v[l];
  else for (int l = 0; l < $W; ++l) if (tc_lane$N(m, l)) p[l * step] = v[l];
}
"""

# rows of a tile, so many that a place in each fills 16 bytes, to the places of those of their lanes that a mask has
_SCATTER_ROWS = """
TC_TILE void tc_scatter_rows$N($E *p, int64_t step, const $V *r, tc_mask$N m) {
  typedef $E tc_few __attribute__((vector_size($Q)));
  typedef tc_few tc_few_u __attribute__((aligned($S), may_alias));
$PLACES}
"""

_ACROSS = """
TC_TILE $E tc_across_$O$N($V v) {
$TREE  return v[0];
}
"""

TILE_INLINE = "#define TC_TILE static inline __attribute__((always_inline))"
FLOOR_QUOTIENT = "TC_TILE int64_t tc_floor_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }  /* for b > 0 */"
# clang has no shuffle by a variable; gcc warns of vectors wider than those of its target, which these functions never pass
SHUFFLE = """#if defined(__clang__)
#define TC_SHUFFLE(v, lanes) ({ \\
  __typeof__(v) tc_r; \\
  for (unsigned l = 0; l < sizeof(v) / sizeof((v)[0]); ++l) tc_r[l] = (v)[(lanes)[l]]; \\
  tc_r; })
#define TC_SHUFFLE2(v, w, lanes) ({ \\
  __typeof__(v) tc_r; \\
  const unsigned tc_n = sizeof(v) / sizeof((v)[0]); \\
  for (unsigned l = 0; l < tc_n; ++l) tc_r[l] = (lanes)[l] < tc_n ? (v)[(lanes)[l]] : (w)[(lanes)[l] - tc_n]; \\
  tc_r; })
#else
#pragma GCC diagnostic ignored "-Wpsabi"
#define TC_SHUFFLE(v, lanes) __builtin_shuffle(v, lanes)
#define TC_SHUFFLE2(v, w, lanes) __builtin_shuffle(v, w, lanes)
#endif"""


def element_type(dtype: str) -> str:
    """The C type of an element."""
    return _NAMES[dtype][0]


def vector_type(dtype: str, width: int) -> str:
    """The name of the type of a vector."""
    return f"{_NAMES[dtype][1]}{width}"


def suffix(dtype: str, width: int) -> str:
    """What ends the names of the functions for it."""
    return f"_{_NAMES[dtype][2]}x{width}"


def combined(operator: str, ending: str, left: str, right: str) -> str:
    """Two vectors in one step of a reduction."""
    return f"({left} {operator[0]} {right})" if operator in ("+=", "*=") else f"tc_{operator[:3]}{ending}({left}, {right})"


def halved(names: Sequence[str], both: Callable[[str, str], str]) -> list[str]:
    """Lines after which the first of some variables holds all of them, combined by halves."""
    lines, left = [], list(names)
    while len(left) > 1:
        half = len(left) // 2
        lines += [f"{one} = {both(one, other)};" for one, other in zip(left, left[-half:])]
        left = left[:-half]
    return lines


def across(operator: str, ending: str, vector: str) -> str:
    """All lanes of a vector combined."""
    return f"tc_across_{_UPDATES[operator]}{ending}({vector})"


def filled(text: str, dtype: str, width: int, **more: str) -> str:
    """A text for vectors of a type, with ``more`` that stands in it: names behind ``$``."""
    size = DTYPES[dtype].bytes
    parts = {
        "E": element_type(dtype), "V": vector_type(dtype, width), "B": str(size * width), "S": str(size), "I": f"int{8 * size}_t",
        "Q": str(STORED_TOGETHER),
        "N": suffix(dtype, width), "W": str(width), "M": str(max(8, width)),
        "P": _OPERATIONS[dtype][0], "U": _OPERATIONS[dtype][1], "A": vector_type(dtype, width) if size > 1 else f"tc_chars{width}",
        "CLASSES": "int" if size == 4 else "long long",  # the same as gcc's builtin, which tells types of one size apart
        **avx_masks.named(dtype, width),
        "NUMBERS": ", ".join(map(str, range(width))), "MOST": "0x7fffffff" if size == 4 else "0x7fffffffffffffff",
        **more,
    }  # fmt: skip
    return re.sub(r"\$([A-Z]+)", lambda found: parts[found[1]], text.strip("\n"))


def declarations(dtype: str, width: int) -> list[str]:
    """Types and functions, to stand at the top of a file in this order."""
    ending = suffix(dtype, width)
    floats = DTYPES[dtype].kind == "float"
    extrema, plain_extrema = ([_EXTREMA], [_EXTREMA_PLAIN]) if floats else ([], [])
    own_forms = [_FABS] if extrema else [_INTEGERS, _DOTS] if dtype == "int32" else [_INTEGERS]
    head, numbers = filled(_TYPES, dtype, width).split("\n\n")
    compared, select = comparisons(dtype, masks=False), _SELECT
    halves = DTYPES[dtype].bytes * width == 32
    shuffled = strided_vectors.loads(width, halves=halves)
    if DTYPES[dtype].bytes * width == 64:
        words = DTYPES[dtype].bytes >= 4
        lane_by_lane = [*strided_vectors.plain_loads(), *strided_vectors.plain_masked()]
        plain = [_LANE_MASKS, _LANE_BY_LANE, *compared, *plain_extrema, _ENDING, *lane_by_lane]
        apart = [*shuffled, *strided_vectors.masked(width)] if words else lane_by_lane  # masks of 64 bits at most
        own = [*([] if DTYPES[dtype].bytes > 1 else [_CHARS]), _MASKS, *comparisons(dtype, masks=True), *extrema, _ENDING, *apart]
        functions = [f"#if defined({'__AVX512F__' if words else '__AVX512BW__'}) && !defined(__clang__)", *own, "#else", *plain, "#endif"]
    else:
        functions = ["#if !defined(__clang__)", *shuffled, "#else", *strided_vectors.plain_loads(), "#endif"]
        if avx_masks.has_masks(dtype, width):
            select = avx_masks.SELECT.replace("$PLAIN", _SELECT.strip("\n"))
            masked = avx_masks.MASKED.replace("$PLAIN", _LANE_BY_LANE.strip("\n"))
            extrema = [avx_masks.EXTREMA.replace("$PLAIN", text.strip("\n")) for text in plain_extrema]
            functions += [_LANE_MASKS, masked, *compared, *extrema, _ENDING, *strided_vectors.lane_masked(width, halves=halves)]
        else:
            functions += [_LANE_MASKS, _LANE_BY_LANE, *compared, *plain_extrema, _ENDING, *strided_vectors.plain_masked()]
    lines = [filled(text, dtype, width) for text in (_ALL, select, *own_forms, *functions)]
    lines += [filled(_INTEGER_POWER, dtype, width)] if dtype == "float64" else []
    if rows_together(dtype, width) > 1:
        lines.append(filled(_SCATTER_ROWS, dtype, width, PLACES=_interleaved(dtype, width)))
    for name, combined in (("add", "v + u"), ("mul", "v * u"), ("min", f"tc_min{ending}(v, u)"), ("max", f"tc_max{ending}(v, u)")):
        lines.append(filled(_ACROSS, dtype, width, O=name, TREE=_tree(dtype, width, combined)))
    return [TILE_INLINE, FLOOR_QUOTIENT, SHUFFLE, *head.split("\n"), numbers, "\n".join(lines)]


def bfloat16_dots(width: int) -> str:
    """A function that adds the products of two pairs of bfloat16 in each lane to a float, to stand behind ``declarations``."""
    return filled(_DOTS_BF16, "float32", width)


def transposition(dtype: str, width: int) -> str:
    """A function that transposes as many rows as a vector has lanes, to stand behind ``declarations``: each step takes the elements of the
    upper half of the rows and those of the lower half in turns."""
    vector, lanes, half = vector_type(dtype, width), f"tc_lanes{suffix(dtype, width)}", width // 2
    turns = [", ".join(str(first + lane // 2 + lane % 2 * width) for lane in range(width)) for first in (0, half)]
    lines = [f"  const {vector} r0_{row} = tc_load$N(from + {row} * step);\n" for row in range(width)]
    steps = width.bit_length() - 1
    for step, row in product(range(steps), range(width)):
        both = f"r{step}_{row // 2}, r{step}_{row // 2 + half}"
        lines.append(f"  const {vector} r{step + 1}_{row} = TC_SHUFFLE2({both}, (({lanes}){{{turns[row % 2]}}}));\n")
    lines += [f"  tc_store$N(to + {row} * to_step, r{steps}_{row});\n" for row in range(width)]
    head = "TC_TILE void tc_transpose_rows$N($E *to, int64_t to_step, const $E *from, int64_t step) {\n"
    return filled("".join([head, *lines, "}"]), dtype, width)


def rows_together(dtype: str, width: int) -> int:
    """Rows of a tile that are stored together where they are neighbours in memory and lanes are not: 16 bytes at each lane's place."""
    size = DTYPES[dtype].bytes
    return STORED_TOGETHER // size if size * width >= STORED_TOGETHER and size >= 4 else 1


def _interleaved(dtype: str, width: int) -> str:
    """Lines that transpose rows ``r`` in groups of 16 bytes, pairs of rows first, and store each group at its lane's place."""
    count = rows_together(dtype, width)
    ending = suffix(dtype, width)
    vector, lanes = vector_type(dtype, width), f"tc_lanes{ending}"
    lines, names, size = [], [f"r[{row}]" for row in range(count)], 1  # ``size``: rows that stand side by side so far
    while size < count:
        made: list[str] = []
        for first, second in zip(names[::2], names[1::2], strict=True):
            for half in (0, 1):
                places = [
                    group + half * (count // 2) + source * width + pair * size + at
                    for group in range(0, width, count)
                    for pair in range(count // 2 // size)
                    for source in (0, 1)
                    for at in range(size)
                ]
                made.append(f"v{size}_{len(made)}")
                chosen = ", ".join(map(str, places))
                lines.append(f"  const {vector} {made[-1]} = TC_SHUFFLE2({first}, {second}, (({lanes}){{{chosen}}}));\n")
        size *= 2
        names = made if size == count else [*made[::2], *made[1::2]]  # the lower halves of all pairs meet, and the upper ones
    for lane in range(width):
        group, at = divmod(lane, count)
        stored = f"*(tc_few_u *)(p + {lane} * step) = ((const tc_few *)&{names[at]})[{group}];"
        lines.append(f"  if (tc_lane{ending}(m, {lane})) {stored}\n")
    return "".join(lines)


def _tree(dtype: str, width: int, combined: str) -> str:
    """Lines that leave all lanes of ``v`` combined in lane 0, halves by halves; a lane of the upper half is ``u``."""
    lines, half = [], width // 2
    vector, lanes = vector_type(dtype, width), f"tc_lanes{suffix(dtype, width)}"
    while half:
        upper = ", ".join(str((lane + half) % width) for lane in range(width))
        lines.append(f"  {{ const {vector} u = TC_SHUFFLE(v, (({lanes}){{{upper}}})); v = {combined}; }}\n")
        half //= 2
    return "".join(lines)
