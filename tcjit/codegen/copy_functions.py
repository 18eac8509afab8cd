"""C functions that copy words in vectors: bytes of four rows interleaved, elements transposed, and rows with zeros before and behind.

Processors with AVX-512 copy 64 bytes at once; others transpose squares of 16 bytes a side, with the shuffles that all of them have.
"""

from __future__ import annotations

import re
from itertools import product

from tcjit.codegen.tile_vectors import SHUFFLE, TILE_INLINE
from tcjit.mapping.plan_loops import PLACE

WORD = 4  # bytes
LANES = 16  # elements that one call writes to a row, but for those of 8 bytes
BYTES = WORD * LANES  # that one call writes to a row

_ROWS = """
typedef int32_t tc_words __attribute__((vector_size(64)));
typedef int32_t tc_words_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t tc_quad_u __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t tc_bytes __attribute__((vector_size(64)));
typedef int64_t tc_halves __attribute__((vector_size(64)));
#if defined(__AVX512BW__) && !defined(__clang__)
/* sixteen bytes from a place, or from the last of them */
TC_TILE tc_quad_u tc_quad_of(const char *from, int64_t step, int place, int places) {
  return *(const tc_quad_u *)(from + (place < places ? place : places - 1) * step);
}
/* the same from each of four places, so many apart */
TC_TILE tc_words tc_four_rows(const char *from, int64_t step, int first, int apart, int places) {
  tc_words r = __builtin_ia32_si512_si(tc_quad_of(from, step, first, places));
  r = __builtin_ia32_inserti32x4_mask(r, tc_quad_of(from, step, first + apart, places), 1, r, -1);
  r = __builtin_ia32_inserti32x4_mask(r, tc_quad_of(from, step, first + 2 * apart, places), 2, r, -1);
  return __builtin_ia32_inserti32x4_mask(r, tc_quad_of(from, step, first + 3 * apart, places), 3, r, -1);
}
#endif
"""

_INTERLEAVE = """
#if defined(__AVX512BW__) && !defined(__clang__)
/* words of the bytes that have one column in four rows */
TC_TILE tc_words tc_interleaved(tc_words rows, int32_t signs) {
  const tc_words r = __builtin_shuffle(rows, (tc_words){$QUARTERS});
  return (tc_words)__builtin_shuffle((tc_bytes)r, (tc_bytes){$BYTES}) ^ signs;
}
TC_TILE void tc_interleave(void *to, const void *from, int64_t step, int32_t signs) {
  *(tc_words_u *)to = tc_interleaved(tc_four_rows(from, step, 0, 1, 4), signs);
}
/* the same of fewer than sixteen columns, without what lies behind them */
TC_TILE void tc_interleave_few(void *to, const void *from, int64_t step, int32_t signs, int columns) {
  tc_quad_u rows[4] = {0};
  for (int i = 0; i < 4; ++i) __builtin_memcpy(&rows[i], (const char *)from + i * step, columns);
  tc_words words;
  __builtin_memcpy(&words, rows, 64);
  __builtin_ia32_storedqusi512_mask((int *)to, tc_interleaved(words, signs), (uint16_t)((1u << columns) - 1));
}
#else
TC_TILE void tc_interleave_few(void *to, const void *from, int64_t step, int32_t signs, int columns) {
  for (int l = 0; l < columns; ++l) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= (uint32_t)((const uint8_t *)from)[i * step + l] << 8 * i;
    word ^= (uint32_t)signs;
    __builtin_memcpy((char *)to + 4 * l, &word, 4);
  }
}
TC_TILE void tc_interleave(void *to, const void *from, int64_t step, int32_t signs) {
  typedef int8_t tc_row __attribute__((vector_size(16)));
  typedef int16_t tc_pairs __attribute__((vector_size(16)));
  typedef int32_t tc_quads __attribute__((vector_size(16)));
  typedef tc_row tc_row_u __attribute__((aligned(1), may_alias));
  typedef tc_quads tc_quads_u __attribute__((aligned(1), may_alias));
  const char *const p = from;
  const tc_row a = *(const tc_row_u *)p, b = *(const tc_row_u *)(p + step);
  const tc_row c = *(const tc_row_u *)(p + 2 * step), d = *(const tc_row_u *)(p + 3 * step);
  const tc_pairs ab[2] = {(tc_pairs)TC_SHUFFLE2(a, b, ((tc_row){$LEFT})), (tc_pairs)TC_SHUFFLE2(a, b, ((tc_row){$RIGHT}))};
  const tc_pairs cd[2] = {(tc_pairs)TC_SHUFFLE2(c, d, ((tc_row){$LEFT})), (tc_pairs)TC_SHUFFLE2(c, d, ((tc_row){$RIGHT}))};
  for (int half = 0; half < 2; ++half) {
    tc_quads_u *const q = (tc_quads_u *)to + 2 * half;
    q[0] = (tc_quads)TC_SHUFFLE2(ab[half], cd[half], ((tc_pairs){0, 8, 1, 9, 2, 10, 3, 11})) ^ signs;
    q[1] = (tc_quads)TC_SHUFFLE2(ab[half], cd[half], ((tc_pairs){4, 12, 5, 13, 6, 14, 7, 15})) ^ signs;
  }
}
#endif
"""

_PADDED = """
/* words first to last of so many at a place, and zeros before and behind them */
#if defined(__AVX512F__) && !defined(__clang__)
TC_TILE uint16_t tc_words_between(int64_t first, int64_t last) {
  uint16_t m = last < 0 || first > 15 || last < first ? 0 : (2u << (last < 15 ? last : 15)) - (1u << (first > 0 ? first : 0));
  __asm__("" : "+Yk"(m)); /* of a mask that it knows, gcc 12 makes a whole load and a selection, which may leave the tensor */
  return m;
}
TC_TILE void tc_copy_padded(void *to, const void *from, int64_t first, int64_t last, int64_t count) {
  for (int64_t l = 0; l < count; l += 16) {
    const uint16_t inside = tc_words_between(first - l, last - l), written = tc_words_between(0, count - 1 - l);
    const tc_words r = __builtin_ia32_loaddqusi512_mask((const int *)from + l, (tc_words){0}, inside);
    __builtin_ia32_storedqusi512_mask((int *)to + l, r, written);
  }
}
#elif defined(__AVX2__) && !defined(__clang__)
typedef int32_t tc_half_words __attribute__((vector_size(32)));
typedef tc_half_words tc_half_words_u __attribute__((aligned(4), may_alias));
TC_TILE tc_half_words tc_words_between(int64_t first, int64_t last) {
  const int32_t least = first < 0 ? 0 : first > 8 ? 8 : (int32_t)first, most = last < -1 ? -1 : last > 7 ? 7 : (int32_t)last;
  const tc_half_words numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  tc_half_words m = (numbers >= least) & (numbers <= most);
  __asm__("" : "+x"(m));
  return m;
}
TC_TILE tc_half_words tc_words_inside(const int *p, int64_t first, int64_t last) {
  if (first > 7 || last < 0 || last < first) return (tc_half_words){0};
  if (first <= 0 && last >= 7) return *(const tc_half_words_u *)p;
  const tc_half_words m = tc_words_between(first, last);
  /* loads under masks take several times as long as others: what lies in the page of a word can be read, though it may be none */
  if (((uintptr_t)p & 4095) <= 4096 - 32) return *(const tc_half_words_u *)p & m;
  return __builtin_ia32_maskloadd256((const tc_half_words *)p, m);
}
TC_TILE void tc_copy_padded(void *to, const void *from, int64_t first, int64_t last, int64_t count) {
  if (count < 8) {
    const tc_half_words r = tc_words_inside(from, first, last);
    __builtin_ia32_maskstored256((tc_half_words *)to, tc_words_between(0, count - 1), r);
    return;
  }
  for (int64_t at = 0; at < count; at += 8) { /* the last vector ends with the row */
    const int64_t l = at <= count - 8 ? at : count - 8;
    *(tc_half_words_u *)((int *)to + l) = tc_words_inside((const int *)from + l, first - l, last - l);
  }
}
#else
TC_TILE void tc_copy_padded(void *to, const void *from, int64_t first, int64_t last, int64_t count) {
  for (int64_t l = 0; l < count; ++l) {
    int32_t word = 0;
    if (first <= l && l <= last) __builtin_memcpy(&word, (const char *)from + 4 * l, 4);
    __builtin_memcpy((char *)to + 4 * l, &word, 4);
  }
}
#endif
"""

_TRANSPOSE = """
#if defined(__AVX512BW__) && !defined(__clang__)
typedef uint32_t tc_unsigned_words __attribute__((vector_size(64)));
typedef uint16_t tc_short_words __attribute__((vector_size(32)));
typedef tc_short_words tc_short_words_u __attribute__((aligned(2), may_alias));
/* four words from each of up to sixteen places, as four vectors of sixteen */
TC_TILE void tc_four_columns(tc_words *r, const char *p, int64_t step, int places) {
  const tc_words a = tc_four_rows(p, step, 0, 4, places), b = tc_four_rows(p, step, 1, 4, places);
  const tc_words c = tc_four_rows(p, step, 2, 4, places), d = tc_four_rows(p, step, 3, 4, places);
  const tc_halves ab = (tc_halves)__builtin_shuffle(a, b, (tc_words){$LOW}), cd = (tc_halves)__builtin_shuffle(c, d, (tc_words){$LOW});
  const tc_halves ef = (tc_halves)__builtin_shuffle(a, b, (tc_words){$HIGH}), gh = (tc_halves)__builtin_shuffle(c, d, (tc_words){$HIGH});
  r[0] = (tc_words)__builtin_shuffle(ab, cd, (tc_halves){0, 8, 2, 10, 4, 12, 6, 14});
  r[1] = (tc_words)__builtin_shuffle(ab, cd, (tc_halves){1, 9, 3, 11, 5, 13, 7, 15});
  r[2] = (tc_words)__builtin_shuffle(ef, gh, (tc_halves){0, 8, 2, 10, 4, 12, 6, 14});
  r[3] = (tc_words)__builtin_shuffle(ef, gh, (tc_halves){1, 9, 3, 11, 5, 13, 7, 15});
}
TC_TILE void tc_store_words(void *to, tc_words r, int words) {
  if (words == 16) *(tc_words_u *)to = r;
  else __builtin_ia32_storedqusi512_mask((int *)to, r, (uint16_t)((1u << words) - 1));
}
TC_TILE void tc_transpose_4(void *to, int64_t to_step, const void *from, int64_t step, int places, int32_t signs) {
  tc_words r[4];
  tc_four_columns(r, from, step, places);
  for (int row = 0; row < 4; ++row) tc_store_words((char *)to + row * to_step, r[row] ^ signs, places);
}
TC_TILE void tc_transpose_8(void *to, int64_t to_step, const void *from, int64_t step, int places) {
  const tc_halves a = (tc_halves)tc_four_rows(from, step, 0, 2, places), b = (tc_halves)tc_four_rows(from, step, 1, 2, places);
  tc_store_words(to, (tc_words)__builtin_shuffle(a, b, (tc_halves){0, 8, 2, 10, 4, 12, 6, 14}), 2 * places);
  tc_store_words((char *)to + to_step, (tc_words)__builtin_shuffle(a, b, (tc_halves){1, 9, 3, 11, 5, 13, 7, 15}), 2 * places);
}
TC_TILE void tc_transpose_2(void *to, int64_t to_step, const void *from, int64_t step, int32_t signs) {
  tc_words r[4];
  tc_four_columns(r, from, step, 16);
  for (int row = 0; row < 4; ++row) {
    const tc_unsigned_words pairs = (tc_unsigned_words)(r[row] ^ signs);
    *(tc_short_words_u *)((char *)to + 2 * row * to_step) = __builtin_convertvector(pairs, tc_short_words);
    *(tc_short_words_u *)((char *)to + (2 * row + 1) * to_step) = __builtin_convertvector(pairs >> 16, tc_short_words);
  }
}
TC_TILE void tc_transpose_1(void *to, int64_t to_step, const void *from, int64_t step) {
  tc_words r[4];
  tc_four_columns(r, from, step, 16);
  for (int row = 0; row < 4; ++row) {
    const tc_words of_lane = (tc_words)__builtin_shuffle((tc_bytes)r[row], (tc_bytes){$BYTES});
    const tc_words of_row = __builtin_shuffle(of_lane, (tc_words){$QUARTERS});
    for (int part = 0; part < 4; ++part) __builtin_memcpy((char *)to + (4 * row + part) * to_step, (const char *)&of_row + 16 * part, 16);
  }
}
#else
$SQUARES
#endif
"""

# squares of 16 bytes a side, the last of which ends with the places: what two of them copy is the same
_SQUARES = """
TC_TILE void tc_transpose_$S(void *to, int64_t to_step, const void *from, int64_t step$ARGUMENTS) {
  typedef $E tc_row __attribute__((vector_size(16)));
  typedef tc_row tc_row_u __attribute__((aligned(1), may_alias));
  for (int first = 0; first < $PLACES; first += $N) {
    const int at = first < $PLACES - $N ? first : $PLACES - $N;
    const char *const p = (const char *)from + at * step;
    char *const q = (char *)to + $S * at;
$STEPS  }
}
"""


def _square(size: int) -> str:
    """A transposition of rows of 16 bytes: each step takes the elements of a row of the upper half and one of the lower half in turns."""
    count, half = PLACE // size, PLACE // size // 2
    lines = [f"    const tc_row r0_{row} = *(const tc_row_u *)(p + {row} * step);\n" for row in range(count)]
    steps = count.bit_length() - 1
    for step, row in product(range(steps), range(count)):
        lanes = ", ".join(str(row % 2 * half + lane // 2 + lane % 2 * count) for lane in range(count))
        both = f"r{step}_{row // 2}, r{step}_{row // 2 + half}"
        lines.append(f"    const tc_row r{step + 1}_{row} = TC_SHUFFLE2({both}, ((tc_row){{{lanes}}}));\n")
    flipped = " ^ signs" if size == WORD else ""
    lines += [f"    *(tc_row_u *)(q + {row} * to_step) = r{steps}_{row}{flipped};\n" for row in range(count)]
    arguments = {1: "", 2: ", int32_t signs", WORD: ", int places, int32_t signs", 2 * WORD: ", int places"}[size]
    parts = {
        "S": str(size), "E": f"int{8 * size}_t", "N": str(count), "STEPS": "".join(lines), "ARGUMENTS": arguments,
        "PLACES": "places" if "places" in arguments else str(LANES),
    }  # fmt: skip
    return re.sub(r"\$([A-Z]+)", lambda found: parts[found[1]], _SQUARES.strip())


def _filled(text: str) -> str:
    quarters = [4 * place + quarter for quarter in range(4) for place in range(4)]
    parts = {
        "QUARTERS": quarters,
        "BYTES": [16 * lane + place for lane in range(4) for place in quarters],
        "LEFT": [lane // 2 + lane % 2 * PLACE for lane in range(PLACE)],
        "RIGHT": [PLACE // 2 + lane // 2 + lane % 2 * PLACE for lane in range(PLACE)],
        "LOW": [4 * lane + place for lane in range(4) for place in (0, 16, 1, 17)],
        "HIGH": [4 * lane + place for lane in range(4) for place in (2, 18, 3, 19)],
    }
    text = text.replace("$SQUARES", "\n".join(map(_square, (WORD, 2 * WORD, 2, 1))))
    return re.sub(r"\$([A-Z]+)", lambda found: ", ".join(map(str, parts[found[1]])), text.strip())


# what each kind of copy is printed with, to stand at the top of a file in this order
INTERLEAVE = (TILE_INLINE, SHUFFLE, _filled(_ROWS), _filled(_INTERLEAVE))
TRANSPOSE = (TILE_INLINE, SHUFFLE, _filled(_ROWS), _filled(_TRANSPOSE))
PADDED = (TILE_INLINE, _filled(_ROWS), _filled(_PADDED))
