"""The functions over vectors of register tiles, compiled and called: ``python -m support.tile_vectors LIBRARY`` checks a compiled one.
`known` behind it: loads under masks that the compiler would know.

In a process of its own, since a lane that is touched though its mask leaves it out may lie on a page that nobody may touch.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import re
import sys
from collections.abc import Iterator

import numpy as np

from tcjit.codegen import prelude
from tcjit.codegen.dialect import C
from tcjit.codegen.narrow_vectors import narrow_declarations, narrow_name, narrow_type
from tcjit.codegen.tile_vectors import declarations, rows_together, transposition, vector_type
from tcjit.mapping.nest.vector_forms import NARROW

FLOATS = {"float32": ("float", "f32", np.float32), "float64": ("double", "f64", np.float64)}
NARROW_INTEGERS = {"int16": ("int16_t", "i16", np.int16), "int8": ("int8_t", "i8", np.int8), "uint8": ("uint8_t", "u8", np.uint8)}
TYPES = {**FLOATS, "int32": ("int32_t", "i32", np.int32), **NARROW_INTEGERS}
WIDTHS = (2, 4, 8, 16)
NARROW_WIDTHS = {"int16": (4, 32), "int8": (16, 64), "uint8": (16, 64)}
VECTORS = [(dtype, width) for dtype in TYPES for width in NARROW_WIDTHS.get(dtype, WIDTHS)]
STEPS = (1, 2, 3, -1, -2)
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5]

_WRAPPERS = """
void do_splat_$N($E x, $E *o) { tc_store_$N(o, tc_splat_$N(x)); }
void do_load_$N(const $E *p, $E *o) { tc_store_$N(o, tc_load_$N(p)); }
void do_every2_$N(const $E *p, $E *o) { tc_store_$N(o, tc_every2_$N(p)); }
void do_every3_$N(const $E *p, $E *o) { tc_store_$N(o, tc_every3_$N(p)); }
void do_every4_$N(const $E *p, $E *o) { tc_store_$N(o, tc_every4_$N(p)); }
void do_strided_$N(const $E *p, int64_t s, $E *o) { tc_store_$N(o, tc_strided_$N(p, s)); }
int do_lanes_$N(int until, int64_t at, int *o) {
  tc_mask_$N m = until ? tc_until_$N(at) : tc_from_$N(at);
  for (int l = 0; l < $W; ++l) o[l] = tc_lane_$N(m, l);
  return tc_any_$N(m);
}
int do_both_$N(int64_t from, int64_t until, int *o) {
  tc_mask_$N m = tc_from_$N(from) & tc_until_$N(until);
  tc_mask_$N all = until > from ? m & TC_ALL_$N : (tc_mask_$N){0};
  for (int l = 0; l < $W; ++l) o[l] = tc_lane_$N(m, l) + 2 * tc_lane_$N(all, l);
  return tc_any_$N(m);
}
#define MASK (until ? tc_until_$N(at) : tc_from_$N(at))
void do_load_masked_$N(const $E *p, int until, int64_t at, $E *o) { tc_store_$N(o, tc_load_masked_$N(p, MASK)); }
void do_every2_masked_$N(const $E *p, int until, int64_t at, $E *o) { tc_store_$N(o, tc_every2_masked_$N(p, MASK)); }
void do_every3_masked_$N(const $E *p, int until, int64_t at, $E *o) { tc_store_$N(o, tc_every3_masked_$N(p, MASK)); }
void do_every4_masked_$N(const $E *p, int until, int64_t at, $E *o) { tc_store_$N(o, tc_every4_masked_$N(p, MASK)); }
void do_strided_masked_$N(const $E *p, int64_t s, int until, int64_t at, $E *o) {
  tc_store_$N(o, tc_strided_masked_$N(p, s, MASK));
}
void do_store_masked_$N($E *p, const $E *v, int until, int64_t at) { tc_store_masked_$N(p, tc_load_$N(v), MASK); }
void do_scatter_$N($E *p, int64_t s, const $E *v, int until, int64_t at) { tc_scatter_$N(p, s, tc_load_$N(v), MASK); }
void do_spread2_$N($E *p, const $E *v, int until, int64_t at) { tc_spread2_$N(p, tc_load_$N(v), MASK); }
void do_spread3_$N($E *p, const $E *v, int until, int64_t at) { tc_spread3_$N(p, tc_load_$N(v), MASK); }
void do_spread4_$N($E *p, const $E *v, int until, int64_t at) { tc_spread4_$N(p, tc_load_$N(v), MASK); }
int do_all_$N(int until, int64_t at) { return tc_all_$N(MASK); }
void do_add_masked_$N(const $E *a, const $E *b, int until, int64_t at, $E *o) {
  tc_store_$N(o, tc_add_masked_$N(tc_load_$N(a), tc_load_$N(b), MASK));
}
void do_blend_$N(const $E *a, const $E *b, int until, int64_t at, $E *o) {
  tc_store_$N(o, tc_blend_$N(tc_load_$N(a), tc_load_$N(b), MASK));
}
#undef MASK
void do_select_$N(const $E *a, const $E *b, $E *o) {
  tc_store_$N(o, tc_select_$N(tc_load_$N(a) < tc_load_$N(b), tc_load_$N(a), tc_load_$N(b)));
}
void do_min_$N(const $E *a, const $E *b, $E *o) { tc_store_$N(o, tc_min_$N(tc_load_$N(a), tc_load_$N(b))); }
void do_max_$N(const $E *a, const $E *b, $E *o) { tc_store_$N(o, tc_max_$N(tc_load_$N(a), tc_load_$N(b))); }
void do_across_$N(const $E *a, $E *o) {
  o[0] = tc_across_add_$N(tc_load_$N(a)), o[1] = tc_across_mul_$N(tc_load_$N(a));
  o[2] = tc_across_min_$N(tc_load_$N(a)), o[3] = tc_across_max_$N(tc_load_$N(a));
}
"""
_TOGETHER = """
void do_scatter_rows_$N($E *p, int64_t s, const $E *v, int last) {
  $V rows[16 / sizeof($E)];
  for (unsigned r = 0; r < 16 / sizeof($E); ++r) rows[r] = tc_load_$N(v + r * $W);
  tc_scatter_rows_$N(p, s, rows, tc_until_$N(last));
}
"""
_TRANSPOSED = "void do_transpose_rows_$N($E *o, int64_t t, const $E *p, int64_t s) { tc_transpose_rows_$N(o, t, p, s); }"
_FLOATS = "void do_fabs_$N(const $E *a, $E *o) { tc_store_$N(o, tc_fabs_$N(tc_load_$N(a))); }"
_DOTS = """
void do_dot2_$N(const $E *s, const $E *a, const $E *b, $E *o) {
  tc_store_$N(o, tc_dot2_$N(tc_load_$N(s), tc_load_$N(a), tc_load_$N(b)));
}
void do_dot4_$N(const $E *s, const $E *a, const $E *b, $E *o) {
  tc_store_$N(o, tc_dot4_$N(tc_load_$N(s), tc_load_$N(a), tc_load_$N(b)));
}
"""
# a mask that the compiler would know, as tiles of a single partial vector have it
_CONSTANT = """
void do_known_$K_$N(const $E *p, $E *o) {
  $V sum = {0};
  const tc_mask_$N m = tc_opaque_$N(tc_until_$N($K));
  for (int64_t i = 0; i < 2; ++i) sum = tc_blend_$N(sum, sum + tc_load_masked_$N(p, m), m);
  tc_store_$N(o, sum);
}
"""
# elements of a narrower type, which loads convert
_NARROW = """
void do_load_all_$K_$N(const $H *p, int64_t count, $E *o) {
  for (int64_t i = 0; i < count; i += $W) tc_store_$N(o + i, tc_load_$K_$N(p + i));
}
void do_splat_$K_$N(const $H *p, $E *o) { tc_store_$N(o, tc_splat_$K_$N(*p)); }
void do_strided_$K_$N(const $H *p, int64_t s, $E *o) { tc_store_$N(o, tc_strided_$K_$N(p, s)); }
#define MASK (until ? tc_until_$N(at) : tc_from_$N(at))
void do_load_$K_masked_$N(const $H *p, int until, int64_t at, $E *o) { tc_store_$N(o, tc_load_$K_masked_$N(p, MASK)); }
void do_strided_$K_masked_$N(const $H *p, int64_t s, int until, int64_t at, $E *o) {
  tc_store_$N(o, tc_strided_$K_masked_$N(p, s, MASK));
}
#undef MASK
"""
_BITS = {"float16": np.float16, "bfloat16": np.uint16, "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "bool": np.uint8}  # in memory
_SCALARS = "$E do_scalar_min_$X($E a, $E b) { return tc_min_$X(a, b); }\n$E do_scalar_max_$X($E a, $E b) { return tc_max_$X(a, b); }"


def known_lanes(width: int) -> list[int]:
    """Last lanes of masks that the compiler would know."""
    return sorted({*range(min(width, 16)), *range(16, width, 15), width - 1})


def source() -> str:
    """Every function for every type and width, each callable."""
    lines = [prelude.text([f"tc_{name}_{x}" for name in ("min", "max") for _, x, _ in FLOATS.values()], C)]
    declared: dict[str, None] = {}
    for dtype, width in VECTORS:
        declared.update(dict.fromkeys(declarations(dtype, width)))
    lines += declared
    lines += [_SCALARS.replace("$E", element).replace("$X", x) for element, x, _ in FLOATS.values()]
    for dtype, width in VECTORS:
        element, x, _ = TYPES[dtype]
        own = [_FLOATS] if dtype in FLOATS else [_DOTS] if dtype == "int32" else []
        together = [_TOGETHER] if rows_together(dtype, width) > 1 else []
        wrappers = [_WRAPPERS, *own, *together, *(_CONSTANT.replace("$K", str(last)) for last in known_lanes(width))]
        if dtype in FLOATS:
            wrappers += [transposition(dtype, width), _TRANSPOSED]
        parts = {"N": f"{x}x{width}", "E": element, "W": str(width), "V": vector_type(dtype, width)}
        lines += [re.sub(r"\$([NEWV])", lambda found, parts=parts: parts[found[1]], text) for text in wrappers]
        for narrow in NARROW.get(dtype, ()):
            lines += narrow_declarations(narrow, dtype, width)
            named = {**parts, "K": narrow_name(narrow), "H": narrow_type(narrow)}
            lines.append(re.sub(r"\$([NEWKH])", lambda found, named=named: named[found[1]], _NARROW))
    return "\n".join(lines)


class Pages:
    """Pages of memory between two that nobody may touch."""

    def __init__(self, count: int = 1) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        size = mmap.PAGESIZE
        base = libc.mmap(None, (count + 2) * size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.start, self.end = base + size, base + (count + 1) * size
        for outside in (base, self.end):
            assert libc.mprotect(outside, size, 0) == 0

    def filled(self, dtype: type[np.number]) -> np.ndarray:
        """One page as an array of distinct numbers."""
        count = mmap.PAGESIZE // np.dtype(dtype).itemsize
        array = np.frombuffer((ctypes.c_char * mmap.PAGESIZE).from_address(self.start), dtype=dtype)
        array[:] = np.arange(1, count + 1)
        return array


class Vectors:
    """The functions of one type and width."""

    def __init__(self, library: ctypes.CDLL, dtype: str, width: int, page: Pages) -> None:
        _, self.x, self.dtype = TYPES[dtype]
        self.name = dtype
        self.library, self.width, self.page = library, width, page
        self.size = np.dtype(self.dtype).itemsize
        self.array = page.filled(self.dtype)
        self.is_integer = dtype not in FLOATS
        integer = {"int16": ctypes.c_int16, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8}.get(dtype, ctypes.c_int32)
        self.scalar = integer if self.is_integer else ctypes.c_float if self.size == 4 else ctypes.c_double

    def __call__(self, name: str, *args: object) -> int:
        """Arrays and addresses are pointers, integers 64 bits."""
        given = [arg.ctypes.data_as(ctypes.c_void_p) if isinstance(arg, np.ndarray) else arg for arg in args]
        found: int = getattr(self.library, f"do_{name}_{self.x}x{self.width}")(*given)
        return found

    def empty(self) -> np.ndarray:
        return np.full(self.width, 77, dtype=self.dtype)

    def masks(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Each mask: whether it ends or begins, at which lane, and its lanes."""
        lanes = np.arange(self.width)
        for at in (*range(-self.width - 2, self.width + 3), -(1 << 40), 1 << 40):
            yield 1, at, lanes <= at
            yield 0, at, lanes + at >= 0

    def origin(self, until: int, step: int, counted: np.ndarray) -> int:
        """Where lane 0 is, such that one of the ends of the lanes that count is at an end of the page."""
        lanes = np.flatnonzero(counted)
        if not len(lanes):
            return self.page.end + 64 if until else self.page.start - 64 * 16
        offsets = lanes * step
        if until == (step > 0):
            return self.page.end - (int(offsets.max()) + 1) * self.size
        return self.page.start - int(offsets.min()) * self.size

    @property
    def middle(self) -> int:
        """A place around which all lanes are in the page, so that a whole vector may be read."""
        return self.page.start + mmap.PAGESIZE // 2

    def at(self, origin: int, step: int, counted: np.ndarray) -> np.ndarray:
        """What is read from there: 0 where a lane does not count."""
        first = (origin - self.page.start) // self.size
        return np.array([self.array[first + step * lane] if counts else 0 for lane, counts in enumerate(counted)], dtype=self.dtype)

    def check(self) -> None:
        self.loads()
        for until, at, counted in self.masks():
            self.masked(until, at, counted)
        self.pairs()
        self.together()
        if self.is_integer:
            self.integers()
        else:
            self.elements()
            self.across()
            self.transposed()

    def transposed(self) -> None:
        rows = np.arange(self.width * (self.width + 3)).astype(self.dtype).reshape(self.width, -1)
        out = np.zeros((self.width, self.width + 1), dtype=self.dtype)
        self("transpose_rows", out, ctypes.c_int64(out.shape[1]), rows, ctypes.c_int64(rows.shape[1]))
        assert (out[:, :-1] == rows[:, : self.width].T).all() and not out[:, -1].any()

    def loads(self) -> None:
        every, out = np.ones(self.width, dtype=bool), self.empty()
        for until in (0, 1):
            for name, step in (("load", 1), ("every2", 2), ("every3", 3), ("every4", 4)):
                origin = self.origin(until, step, every)
                self(name, ctypes.c_void_p(origin), out)
                assert (out == self.at(origin, step, every)).all(), name
            for step in STEPS:
                origin = self.origin(until, step, every)
                self("strided", ctypes.c_void_p(origin), ctypes.c_int64(step), out)
                assert (out == self.at(origin, step, every)).all(), step
        limits = [np.iinfo(self.dtype).min, np.iinfo(self.dtype).max] if self.is_integer else []
        for x in (0, 1, *limits) if self.is_integer else (*SPECIAL, 1e-40):
            self("splat", self.scalar(x), out)
            assert out.tobytes() == np.full(self.width, x, dtype=self.dtype).tobytes() or x != x and np.isnan(out).all(), x

    def known(self) -> None:
        """Loads under masks that the compiler would know, the last lane that counts at the end of the page."""
        out = self.empty()
        for last in known_lanes(self.width):
            counted = np.arange(self.width) <= last
            origin = self.origin(1, 1, counted)
            self(f"known_{last}", ctypes.c_void_p(origin), out)
            assert (out == 2 * self.at(origin, 1, counted)).all(), last

    def masked(self, until: int, at: int, counted: np.ndarray) -> None:
        lanes, out, mask = np.zeros(self.width, dtype=np.int32), self.empty(), (until, ctypes.c_int64(at))
        assert bool(self("lanes", *mask, lanes)) == counted.any() and (lanes == counted).all(), (until, at)
        assert bool(self("all", *mask)) == counted.all(), (until, at)
        for name, step in (("load_masked", 1), ("every2_masked", 2), ("every3_masked", 3), ("every4_masked", 4)):
            for origin in (self.origin(until, step, counted), self.middle):
                self(name, ctypes.c_void_p(origin), *mask, out)
                assert (out == self.at(origin, step, counted)).all(), (name, until, at)
        values = np.arange(100, 100 + self.width).astype(self.dtype)
        for step in STEPS:
            origin = self.origin(until, step, counted)
            self("strided_masked", ctypes.c_void_p(origin), ctypes.c_int64(step), *mask, out)
            assert (out == self.at(origin, step, counted)).all(), (step, until, at)
            self.written(step, origin, counted, values, lambda place, s=step: self("scatter", place, ctypes.c_int64(s), values, *mask))
        for name, step in (("store_masked", 1), ("spread2", 2), ("spread3", 3), ("spread4", 4)):
            origin = self.origin(until, step, counted)
            self.written(step, origin, counted, values, lambda place, name=name: self(name, place, values, *mask))
        self("blend", values, -values, *mask, out)
        assert (out == np.where(counted, -values, values)).all()
        self("add_masked", values, -values, *mask, out)
        assert (out == np.where(counted, 0, values)).all()

    def written(self, step: int, origin: int, counted: np.ndarray, values: np.ndarray, write: object) -> None:
        expected = self.array.copy()
        for lane in np.flatnonzero(counted):
            expected[(origin - self.page.start) // self.size + step * lane] = values[lane]
        write(ctypes.c_void_p(origin))  # type: ignore[operator]
        assert (self.array == expected).all(), (step, counted)
        self.page.filled(self.dtype)

    def together(self) -> None:
        """Neighbours in several rows, at the places of the lanes of a mask."""
        rows = rows_together(self.name, self.width)
        values = np.arange(100, 100 + rows * self.width).astype(self.dtype)
        steps = (rows, rows + 1, -rows - 3) if rows > 1 else ()
        for step, lanes in itertools.product(steps, (0, 1, self.width // 2 + 1, self.width)):
            expected = self.array.copy()
            first = 0 if step > 0 else -step * (self.width - 1)
            for lane, row in itertools.product(range(lanes), range(rows)):
                expected[first + step * lane + row] = values[row * self.width + lane]
            self("scatter_rows", ctypes.c_void_p(self.page.start + first * self.size), ctypes.c_int64(step), values, lanes - 1)
            assert (self.array == expected).all(), (step, lanes)
            self.page.filled(self.dtype)

    def pairs(self) -> None:
        """Two masks at once, as rows between two bounds have them."""
        lanes = np.zeros(self.width, dtype=np.int32)
        numbers = np.arange(self.width)
        for first, last in itertools.product(range(-self.width - 1, 2), range(-1, self.width + 1)):
            counted = (numbers + first >= 0) & (numbers <= last)
            assert bool(self("both", ctypes.c_int64(first), ctypes.c_int64(last), lanes)) == counted.any()
            assert (lanes == counted + 2 * (counted & (last > first))).all(), (first, last)

    def elements(self) -> None:
        """Selection, absolute values, minima and maxima: NaN and signed zeros as the scalar functions have them."""
        every = list(itertools.product(SPECIAL, SPECIAL))
        for first in range(0, len(every), self.width):
            chosen = [every[(first + lane) % len(every)] for lane in range(self.width)]
            a, b = (np.array([pair[side] for pair in chosen], dtype=self.dtype) for side in (0, 1))
            out = self.empty()
            for name in ("min", "max"):
                self(name, a, b, out)
                scalar = getattr(self.library, f"do_scalar_{name}_{self.x}")
                scalar.restype, scalar.argtypes = self.scalar, [self.scalar, self.scalar]
                assert same(out, np.array([scalar(x, y) for x, y in zip(a, b)], dtype=self.dtype)), (name, a, b, out)
                assert (np.isnan(out) == (np.isnan(a) | np.isnan(b))).all()
            self("select", a, b, out)
            assert same(out, np.where(a < b, a, b))
            self("fabs", a, out)
            assert same(out, np.abs(a))

    def integers(self) -> None:
        """Minima, maxima, selection, sums of the products of halves and bytes and across lanes: all of them wrap."""
        random, out, four, bits = np.random.default_rng(0), self.empty(), np.zeros(4, dtype=self.dtype), 8 * self.size
        halves = [0x7FFF, 0x8000, -0x8000, 0x7FFF7FFF, -0x7FFF8000, 0x7FFF8000]
        edges = np.array([0, 1, -1, 2**31 - 1, -(2**31), *halves, 0x7F7F7F7F, -0x7F7F7F80])
        for _ in range(50):
            pools = [np.concatenate([random.integers(-(2**31), 2**31, 4 * self.width), edges]) for _ in range(3)]
            s, a, b = (random.choice(pool, self.width).astype(f"uint{bits}").view(self.dtype) for pool in pools)
            for name, expected in (("min", np.minimum(a, b)), ("max", np.maximum(a, b)), ("select", np.where(a < b, a, b))):
                self(name, a, b, out)
                assert (out == expected).all(), (name, a, b, out)
            for name, types in (("dot2", (np.int16, np.int16)), ("dot4", (np.uint8, np.int8))) if self.name == "int32" else ():
                parts = [part.view(dtype).astype(np.int64).reshape(self.width, -1) for part, dtype in zip((a, b), types)]
                self(name, s, a, b, out)
                assert (out == (s + (parts[0] * parts[1]).sum(1)).astype(np.uint64).astype(np.uint32).view(np.int32)).all(), (s, a, b, out)
            self("across", a, four)
            total, product = (int(x) % 2**bits for x in (a.astype(object).sum(), a.astype(object).prod()))
            assert [int(x) % 2**bits for x in four] == [total, product, int(a.min()) % 2**bits, int(a.max()) % 2**bits]

    def across(self) -> None:
        out = np.zeros(4, dtype=self.dtype)
        numbers = np.random.default_rng(0).standard_normal((8, self.width)).astype(self.dtype)
        numbers[1, 0] = numbers[2, -1] = numbers[3, self.width // 2] = np.nan
        numbers[4, 0], numbers[5, -1] = np.inf, -np.inf
        numbers[6], numbers[7] = -0.0, 1.0
        for row in numbers:
            self("across", row.copy(), out)
            tree = [row.copy(), row.copy()]
            while len(tree[0]) > 1:
                half = len(tree[0]) // 2
                tree = [tree[0][:half] + tree[0][half:], tree[1][:half] * tree[1][half:]]
            assert same(out[:2], np.array([tree[0][0], tree[1][0]])) and same(out[2:], np.array([row.min(), row.max()])), (row, out)


class NarrowVectors(Vectors):
    """Those of one type and width for elements of a narrower type."""

    def __init__(self, library: ctypes.CDLL, narrow: str, dtype: str, width: int, page: Pages) -> None:
        super().__init__(library, dtype, width, page)
        self.narrow, self.bits = narrow, _BITS[narrow]
        self.size = np.dtype(self.bits).itemsize
        self.array = page.filled(np.uint16 if self.size == 2 else np.uint8).view(self.bits)

    def wide(self, bits: np.ndarray) -> np.ndarray:
        if self.narrow == "bfloat16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return (bits != 0).astype(self.dtype) if self.narrow == "bool" else bits.astype(self.dtype)

    def at(self, origin: int, step: int, counted: np.ndarray) -> np.ndarray:
        first = (origin - self.page.start) // self.size
        return self.wide(np.array([self.array[first + step * lane] if counts else 0 for lane, counts in enumerate(counted)], self.bits))

    def check(self) -> None:
        name, every, out = narrow_name(self.narrow), np.ones(self.width, dtype=bool), self.empty()
        values = np.arange(1 << 8 * self.size, dtype=f"uint{8 * self.size}").view(self.bits)
        loaded = np.empty(len(values), dtype=self.dtype)
        self(f"load_all_{name}", values, ctypes.c_int64(len(values)), loaded)
        assert same(loaded, self.wide(values))
        self(f"splat_{name}", values[-self.width :].copy(), out)
        assert same(out, np.full(self.width, self.wide(values[-self.width :])[0]))
        for until, step in itertools.product((0, 1), STEPS):
            origin = self.origin(until, step, every)
            self(f"strided_{name}", ctypes.c_void_p(origin), ctypes.c_int64(step), out)
            assert same(out, self.at(origin, step, every)), step
        for until, at, counted in self.masks():
            mask = until, ctypes.c_int64(at)
            for origin in (self.origin(until, 1, counted), self.middle):
                self(f"load_{name}_masked", ctypes.c_void_p(origin), *mask, out)
                assert same(out, self.at(origin, 1, counted)), (until, at)
            for step in STEPS:
                origin = self.origin(until, step, counted)
                self(f"strided_{name}_masked", ctypes.c_void_p(origin), ctypes.c_int64(step), *mask, out)
                assert same(out, self.at(origin, step, counted)), (step, until, at)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN for any other."""
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)).all())


if __name__ == "__main__":
    page, loaded = Pages(), ctypes.CDLL(sys.argv[1])
    with np.errstate(all="ignore"):
        for dtype, width in VECTORS:
            vectors = Vectors(loaded, dtype, width, page)
            vectors.known() if "known" in sys.argv else vectors.check()
            for narrow in () if "known" in sys.argv else NARROW.get(dtype, ()):
                NarrowVectors(loaded, narrow, dtype, width, page).check()
    print("fine")
