"""Measures the constants of ``mapping.costs`` on the machine at hand: small C programs, built and loaded as kernels are.

Each is the best of several runs, which is what a machine can do when nothing disturbs it. Vectors are as wide as kernels' are.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tcjit.mapping.machine import LINE, Costs
from tcjit.runtime import host
from tcjit.runtime.matrix_unit import matrix_types

RUNS = 5  # of each measurement at least
LEAST = 0.02  # seconds of one run
SHARE = 1.5  # seconds for one constant
MEMORY = 256 << 20  # bytes, beyond every cache
UNIT = 12 << 10  # counts are multiples of it: of the chains that run at once, and of the indices of a gather
PAGES = (16, 24, 32, 48, 64, 96, 128, 192, 256)  # among which the number of a TLB's entries is sought; more lines leave the first cache
SLOWER = 1.3  # a read whose page has to be looked up, against one whose page is at hand

_SOURCE = """
#include <stdint.h>
#include <string.h>
#include <unistd.h>
typedef float vector __attribute__((vector_size(WIDTH)));
typedef float unaligned __attribute__((vector_size(WIDTH), aligned(4), may_alias));
#define LANES (WIDTH / 4)
#if defined(__x86_64__)
#define KEEP(x) __asm__ volatile("" : "+x"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+w"(x))
#endif

// processors of today add constants while they rename registers, several in a cycle; this they execute
int64_t tc_integers(int64_t count, void *memory, int64_t bytes, int threads) {
  int64_t x = 0, y = bytes;
  __asm__ volatile("" : "+r"(y));
  for (int64_t i = 0; i < count; i += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) { x ^= y; __asm__ volatile("" : "+r"(x)); }
  }
  return x;
}

int64_t tc_chain(int64_t count, void *memory, int64_t bytes, int threads) {
  vector x = *(unaligned *)memory, a = x, b = x;
  KEEP(a); KEEP(b);
  for (int64_t i = 0; i < count; i += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) { x = x * a + b; KEEP(x); }
  }
  return x[0] != 0;
}

int64_t tc_chains(int64_t count, void *memory, int64_t bytes, int threads) {
  vector a = *(unaligned *)memory, b = a, x[12];
#pragma GCC unroll 12
  for (int k = 0; k < 12; k++) x[k] = a;
  KEEP(a); KEEP(b);
  for (int64_t i = 0; i < count; i += 12) {
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++) { x[k] = x[k] * a + b; KEEP(x[k]); }
  }
  float all = 0;
#pragma GCC unroll 12
  for (int k = 0; k < 12; k++) all += x[k][0];
  return all != 0;
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define PRODUCT(c) __asm__ volatile("tdpbf16ps %tmm7, %tmm6, %tmm" #c)
int64_t tc_products(int64_t count, void *memory, int64_t bytes, int threads) {
  struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } layout = {1};
  for (int k = 0; k < 8; k++) layout.bytes[k] = 64, layout.rows[k] = 16;
  __asm__ volatile("ldtilecfg %0" : : "m"(layout));
  for (int64_t i = 0; i < count; i += 4) { PRODUCT(0); PRODUCT(1); PRODUCT(2); PRODUCT(3); }
  __asm__ volatile("tilerelease");
  return 0;
}
#endif

static inline float sum(const float *p, int64_t n) {
  vector s[8], all = {0};
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) s[k] = all;
  for (int64_t i = 0; i + 8 * LANES <= n; i += 8 * LANES) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) s[k] += *(const unaligned *)(p + i + k * LANES);
  }
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) all += s[k];
  float one = 0;
  for (int l = 0; l < LANES; l++) one += all[l];
  return one;
}

int64_t tc_reads(int64_t count, void *memory, int64_t bytes, int threads) {
  float all = 0;
  for (int64_t done = 0; done < count; done += bytes) {
    all += sum(memory, bytes / 4);
    __asm__ volatile("" : : "r"(memory) : "memory");
  }
  return all != 0;
}

int64_t tc_memory(int64_t count, void *memory, int64_t bytes, int threads) {
  int64_t found = 0, parts = 64;
  for (int64_t done = 0; done < count; done += bytes) {
#pragma omp parallel for num_threads(threads) reduction(+ : found)
    for (int64_t part = 0; part < parts; part++) found += sum((float *)memory + part * (bytes / 4 / parts), bytes / 4 / parts) != 0;
  }
  return found;
}

int64_t tc_copies(int64_t count, void *memory, int64_t bytes, int threads) {
  int64_t half = bytes / 2, parts = 64;
  char *from = memory, *to = from + half;
  for (int64_t done = 0; done < count; done += bytes) {
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts; part++) memcpy(to + part * (half / parts), from + part * (half / parts), half / parts);
  }
  return to[0];
}

int64_t tc_gathers(int64_t count, void *memory, int64_t bytes, int threads) {
  const float *table = memory;
  const int32_t *index = (const int32_t *)((char *)memory + 8192);
  float all = 0;
  for (int64_t done = 0; done < count; done += 1024) {
#pragma omp simd reduction(+ : all)
    for (int64_t i = 0; i < 1024; i++) all += table[index[i] & 1023];
    __asm__ volatile("" : : "r"(memory) : "memory");
  }
  return all != 0;
}

int64_t tc_scatters(int64_t count, void *memory, int64_t bytes, int threads) {
  float *p = memory;
  vector x = *(unaligned *)memory;
  for (int64_t i = 0; i < count; i += LANES) {
    KEEP(x);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) p[32 * l + (i / LANES & 15)] = x[l];
    __asm__ volatile("" : : "r"(memory) : "memory");
  }
  return p[0] != 0;
}

// a square matrix and its copy in panels of two vectors share the memory
#define PANELS(name, down, along)                                                       \
  int64_t tc_##name(int64_t count, void *memory, int64_t bytes, int threads) {          \
    int64_t n = 32;                                                                     \
    while ((n + 32) * (n + 32) * 8 <= bytes) n += 32;                                   \
    const float *restrict from = memory;                                                \
    float *restrict to = (float *)memory + n * n;                                       \
    for (int64_t done = 0; done < count; done += n * n) {                               \
      for (int64_t panel = 0; panel < n; panel += 2 * LANES)                            \
        for (int64_t k = 0; k < n; k++)                                                 \
          _Pragma("omp simd") for (int l = 0; l < 2 * LANES; l++)                       \
            to[panel * n + k * 2 * LANES + l] = from[k * (down) + (panel + l) * (along)]; \
      __asm__ volatile("" : : "r"(memory) : "memory");                                  \
    }                                                                                   \
    return to[0] != 0;                                                                  \
  }
PANELS(rows, n, 1)
PANELS(columns, 1, n)

int64_t tc_pages(int64_t count, void *memory, int64_t bytes, int threads) {
  int64_t page = sysconf(_SC_PAGESIZE), pages = bytes / page;
#define LINE_OF(i) ((char *)memory + (i) * page + 64 * ((i) % 61))
  for (int64_t i = 0; i < pages; i++) *(void **)LINE_OF(i) = LINE_OF((i + 7) % pages);
  void **at = memory;
  for (int64_t i = 0; i < count; i++) at = *at;
  return at != 0;
}

int64_t tc_branches(int64_t count, void *memory, int64_t bytes, int threads) {
  const uint8_t *bits = memory;
  int64_t taken = 0;
  for (int64_t i = 0; i < count; i++) {
    if (bits[i & (bytes - 1)] & 1) { taken++; __asm__ volatile("" : "+r"(taken)); }
  }
  return taken;
}

// one thread writes, and each reads what it wrote, or the others something else
#define WRITTEN(name, apart)                                                                    \
  int64_t tc_##name(int64_t count, void *memory, int64_t bytes, int threads) {                  \
    int64_t found = 0;                                                                          \
    for (int64_t done = 0; done < count; done += bytes) {                                       \
      for (int64_t i = 0; i < bytes; i += 64) *(volatile float *)((char *)memory + i) = done;   \
      _Pragma("omp parallel for num_threads(threads) reduction(+ : found) schedule(static)")    \
      for (int64_t t = 0; t < threads; t++) found += sum((float *)memory + (apart) * t * bytes / 4, bytes / 4) != 0; \
    }                                                                                           \
    return found;                                                                               \
  }
WRITTEN(written, 0)
WRITTEN(kept, 1)

int64_t tc_regions(int64_t count, void *memory, int64_t bytes, int threads) {
  volatile int64_t *one = memory;
  for (int64_t i = 0; i < count; i++) {
#pragma omp parallel num_threads(threads)
    { if (one[0] < 0) one[1] = 1; }
  }
  return 0;
}
"""
_Program = Callable[[int, int, int, int], int]  # count, address, bytes, threads


def costs_of_host(memory: host.Notes) -> Costs | None:
    """The constants that ``keep`` put there for this processor."""
    note = memory.note(_note_name())
    return None if note is None else Costs.of_note(note)


def keep(memory: host.Notes, costs: Costs) -> None:
    """Keep the constants of this processor."""
    memory.put_note(_note_name(), asdict(costs))


def _note_name() -> str:
    return "costs-" + hashlib.sha256(host.hardware().encode()).hexdigest()[:32]


def calibrate() -> Costs:
    """The constants of this machine, in about half a minute.

    Import torch first: its OpenMP runtime is the one that kernels use. A CompileError where there is no C compiler.
    """
    width, threads = host.compiler().vector_bytes, host.cores()
    near, own = host.cache_bytes(1) or 1 << 15, host.cache_bytes(2) or 1 << 20
    last = 4 * own
    with tempfile.TemporaryDirectory(prefix="tcjit-") as folder:
        text = _SOURCE.replace("WIDTH", str(width))
        path = Path(folder) / f"calibrate_{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        path.write_bytes(host.build(text, "calibrate"))

        def program(name: str) -> _Program:
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
            return kind(host.load(path, f"tc_{name}"))

        memory = ctypes.create_string_buffer(MEMORY + 64)
        start = (ctypes.addressof(memory) + 63) & -64

        def seconds(name: str, size: int = 0, cores: int = 1) -> float:
            """Of one unit of the program's count, at best."""
            return best(lambda count: program(name)(count, start, size, cores), max(size, UNIT))

        cycle = seconds("integers")
        values = {"frequency": 1 / cycle}
        values["fma_latency"] = seconds("chain") / cycle
        values["fma_rate"] = cycle / seconds("chains")
        values["matrix_multiply"] = seconds("products") / cycle if matrix_types() else Costs.matrix_multiply
        values["vector_load"] = width * seconds("reads", near // 2 & -4096) / cycle
        for level, size in (("l2_load", own // 2), ("l3_load", last)):
            values[level] = cycle / seconds("reads", size & -4096)
        ctypes.memmove(start + 8192, bytes(os.urandom(4096)), 4096)
        values["gather"] = width // 4 * seconds("gathers") / cycle
        values["scatter"] = seconds("scatters") / cycle
        for panel, name in (("copy", "rows"), ("transpose", "columns")):
            values[panel] = seconds(name, own // 2) / cycle
        page = os.sysconf("SC_PAGE_SIZE")
        near_pages = seconds("pages", PAGES[0] * page)
        more = bisect(PAGES, False, key=lambda pages: seconds("pages", pages * page) > SLOWER * near_pages)
        values |= {"page": float(page), "tlb": float(PAGES[max(0, more - 1)])}
        ctypes.memset(start, 0, 1 << 16)
        constant = seconds("branches", 1 << 16)
        ctypes.memmove(start, os.urandom(1 << 16), 1 << 16)
        values["branch_miss"] = max(1.0, 2 * (seconds("branches", 1 << 16) - constant) / cycle)
        ctypes.memset(start, 0, MEMORY)
        values["memory_read"] = 1 / seconds("memory", MEMORY, threads)
        values["memory_copy"] = 1 / seconds("copies", MEMORY, threads)
        passed = seconds("written", near & -4096, threads) - seconds("kept", near & -4096, threads)
        values["passed_line"] = max(1.0, LINE * passed / cycle)
        values["parallel_region"] = seconds("regions", cores=threads)
    return Costs(**values)


def best(program: Callable[[int], object], unit: int) -> float:
    """Seconds per count of a program at its fastest: counts, multiples of ``unit``, are raised until one run takes ``LEAST`` seconds."""
    units = 1
    while (spent := _seconds(program, units * unit)) < LEAST:
        units *= max(2, min(64, int(1.2 * LEAST / max(spent, 1e-9))))
    until, least, runs = time.perf_counter() + SHARE, spent, 1
    while runs < RUNS or time.perf_counter() < until:
        least, runs = min(least, _seconds(program, units * unit)), runs + 1
    return least / (units * unit)


def _seconds(program: Callable[[int], object], count: int) -> float:
    begun = time.perf_counter()
    program(count)
    return time.perf_counter() - begun
