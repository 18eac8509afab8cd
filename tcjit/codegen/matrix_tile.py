"""The text of a tile of a matrix unit: its registers hold the sums until they are complete, and go through memory into the vectors that
are stored and that an epilogue reads.

The functions are Intel's AMX instructions where the compiler's target has them, and loops elsewhere, so that a text runs on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from tcjit.codegen.narrow_vectors import narrow_type
from tcjit.codegen.tile_printer import TilePrinter
from tcjit.grammar.ast import Access, Call
from tcjit.grammar.walk import walk
from tcjit.mapping.nest.matrix_unit import ROWS
from tcjit.mapping.nest.statement import FlatAccess
from tcjit.mapping.nest.vector_forms import SIGNED_PRODUCTS, UNSIGNED_PRODUCTS
from tcjit.mapping.reduction import identity

CONFIGURE = "tc_matrix_configure();"
RELEASE = "tc_matrix_release();"
# The system gives a process the registers when it asks, which loading a kernel does; a header would cost more time than a kernel.
# The configuration: palette 1, and for each of 8 registers 64 bytes in each of 16 rows.
DECLARATIONS = (
    """#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
static const struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } tc_matrix_layout = {
  1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}
};
#ifdef __linux__
/* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): an exported library may be the first in its process that asks */
static __attribute__((constructor)) void tc_matrix_request(void) {
  long answer = 158;
  __asm__ volatile("syscall" : "+a"(answer) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
}
#endif
static inline void tc_matrix_configure(void) { __asm__ volatile("ldtilecfg %0" : : "m"(tc_matrix_layout)); }
static inline void tc_matrix_release(void) { __asm__ volatile("tilerelease"); }
#define TC_MATRIX_ZERO(c) __asm__ volatile("tilezero %%tmm" #c : : : "memory")
#define TC_MATRIX_LOAD(t, p, bytes) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(p)), "r"((int64_t)(bytes)) : "memory")
#define TC_MATRIX_STORE(t, p, bytes) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(p)), "r"((int64_t)(bytes)) : "memory")
#define TC_MATRIX_UPDATE(how, c, a, b) __asm__ volatile("tdp" #how " %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")
#else
static _Thread_local union { int32_t words[256]; float sums[256]; uint16_t halves[512]; uint8_t bytes[1024]; } tc_matrix[8];
static inline void tc_matrix_configure(void) {}
static inline void tc_matrix_release(void) {}
#define TC_MATRIX_ZERO(c) __builtin_memset(&tc_matrix[c], 0, 1024)
#define TC_MATRIX_LOAD(t, p, bytes) \
  for (int r = 0; r < 16; ++r) __builtin_memcpy(tc_matrix[t].words + 16 * r, (const char *)(p) + r * (int64_t)(bytes), 64)
#define TC_MATRIX_STORE(t, p, bytes) \
  for (int r = 0; r < 16; ++r) __builtin_memcpy((char *)(p) + r * (int64_t)(bytes), tc_matrix[t].words + 16 * r, 64)
static inline float tc_matrix_float(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static inline void tc_matrix_bf16ps(int c, int a, int b) {
  for (int m = 0; m < 16; ++m) for (int k = 0; k < 16; ++k) for (int n = 0; n < 16; ++n) for (int h = 0; h < 2; ++h)
    tc_matrix[c].sums[16 * m + n] += tc_matrix_float(tc_matrix[a].halves[32 * m + 2 * k + h])
                                   * tc_matrix_float(tc_matrix[b].halves[32 * k + 2 * n + h]);
}
static inline void tc_matrix_bytes(int c, int a, int b, int signed_a, int signed_b) {
  for (int m = 0; m < 16; ++m) for (int k = 0; k < 16; ++k) for (int n = 0; n < 16; ++n) for (int h = 0; h < 4; ++h) {
    const uint8_t x = tc_matrix[a].bytes[64 * m + 4 * k + h], y = tc_matrix[b].bytes[64 * k + 4 * n + h];
    tc_matrix[c].words[16 * m + n] += (signed_a ? (int8_t)x : x) * (signed_b ? (int8_t)y : y);
  }
}
#define tc_matrix_busd(c, a, b) tc_matrix_bytes(c, a, b, 0, 1)
#define tc_matrix_bsud(c, a, b) tc_matrix_bytes(c, a, b, 1, 0)
#define tc_matrix_bssd(c, a, b) tc_matrix_bytes(c, a, b, 1, 1)
#define tc_matrix_buud(c, a, b) tc_matrix_bytes(c, a, b, 0, 0)
#define TC_MATRIX_UPDATE(how, c, a, b) tc_matrix_##how(c, a, b)
#endif""",
)


class MatrixTilePrinter(TilePrinter):
    """Writes one tiled statement whose sums are in a matrix unit."""

    @property
    def lines_of_rows(self) -> int:
        """Registers along the rows."""
        return len(self.rows) // ROWS

    def registers(self) -> list[tuple[int, int, int]]:
        """The numbers of the registers of sums, and where along rows and vectors they are."""
        vectors = self.nest.leaf.vectors
        return [(r * vectors + v, r, v) for r in range(self.lines_of_rows) for v in range(vectors)]

    def accumulators(self) -> list[str]:
        return [*super().accumulators(), f"{self.element} tc_c[{len(self.places) * self.width}] __attribute__((aligned(64)));"]

    def start(self) -> list[str]:
        return [f"TC_MATRIX_ZERO({number});" for number, _, _ in self.registers()]

    def update(self, *, partial: bool) -> list[str]:
        """One step: a register of each operand for every 16 of its rows or lanes, and the products of all pairs."""
        assert not partial and isinstance(self.tiled.body, Call) and self.nest.leaf.depth
        (across, along), lane, (depth, _) = self.flats.items(), self.nest.leaf.lane, self.nest.leaf.depth
        ((row, _),) = self.nest.leaf.rows
        moves = (across[1], row), (along[1], depth)  # from one row of a register to the next
        steps = [f"({self.offset(flat, {dim: 1})}) * sizeof(*tc_p{n})" for n, (flat, dim) in enumerate(moves)]
        places = [("tc_p0", across[1], row, self.lines_of_rows), ("tc_p1", along[1], lane, self.nest.leaf.vectors)]
        numbers, lines, number = [], self.pointers(self.flats), len(self.registers())
        for (name, flat, dim, count), step in zip(places, steps, strict=True):
            numbers.append([number + n for n in range(count)])
            for n in range(count):
                lines.append(f"TC_MATRIX_LOAD({number + n}, {name} + {self.offset(flat, {dim: n * ROWS})}, {step});")
            number += count
        how = self.instruction(across[0])
        return [*lines, *(f"TC_MATRIX_UPDATE({how}, {sums}, {numbers[0][r]}, {numbers[1][v]});" for sums, r, v in self.registers())]

    def pointers(self, reads: Mapping[Access, FlatAccess]) -> list[str]:
        """Declarations of the places that are read: of words as they are in memory those of their elements."""
        kinds = {}
        for read in self.flats:
            value = self.tiled.operands[int(read.tensor[1:])].value
            parts = [part.dtype for part in walk(value) if isinstance(part, Access)]
            kinds[read] = self.element if isinstance(value, Access) else narrow_type(parts[0])
        numbered = enumerate(reads.items())
        return [f"const {kinds.get(read, self.element)} *const tc_p{n} = {self.place(flat)};" for n, (read, flat) in numbered]

    def instruction(self, across: Access) -> str:
        """What ends the name of the instruction for the body: of bytes, whether those of the rows and of the lanes are signed or not."""
        assert isinstance(self.tiled.body, Call)
        if self.dtype == "float32":
            return "bf16ps"
        signs = {SIGNED_PRODUCTS: "ss", UNSIGNED_PRODUCTS: "uu"}
        return f"b{signs.get(self.tiled.body.function) or ('us' if self.tiled.body.args[0] == across else 'su')}d"

    def store(self) -> list[str]:
        """The sums as vectors, with what results start from or hold, and what follows them."""
        pitch = self.nest.leaf.vectors * self.width
        lines = [
            f"TC_MATRIX_STORE({number}, tc_c + {r * ROWS * pitch + v * self.width}, {pitch} * sizeof({self.element}));"
            for number, r, v in self.registers()
        ]
        sums = [(self.sum(r, v), f"{self.call('load')}(tc_c + {r * pitch + v * self.width})") for r, v in self.places]
        self.sums_in_memory = ""
        if self.s.start == identity(self.s.operator, self.dtype):
            lines += [f"{total} = {value};" for total, value in sums]
            self.sums_in_memory = "tc_c" if self.block is None and not self.tiled.tiles.result_checks else ""
        else:
            lines += [*super().start(), *(f"{total} = {self.combined(total, value)};" for total, value in sums)]
        return [*lines, *super().store()]
