/* The memory of a kernel on the host: the first part of cuda_host.cpp, which includes it.

   Every tensor and every shared array is a region of its own in an arena of addresses that are otherwise unmapped, so that an
   index that leaves its array hits no other. The compiler calls the hooks of its thread sanitizer before each access; here they check
   bounds and alignment, and keep for each cell (an element, or a byte where types are mixed) who wrote and who read it last. A clock
   ticks at barriers: an access is ordered after another one if it is the same thread's, if a barrier of the block or a full warp barrier
   lies between, or if the other one belongs to an earlier launch. Two unordered accesses, one of them a write, are a race. Only the last
   reader and the last one of another warp are kept, so a race of a read with a later write of the same warp, or of another block, can be
   missed in one order of threads and blocks; in the opposite order the write comes first, and is seen. Runs in both orders miss none.
   A read of several cells needs a value in one of them: vectors may be read whole where only a part of them is used. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

namespace {

constexpr u64 SLOT = 24, SLOTS = 4096, SHARED_SLOTS = 256, LEAD = 1 << 20;  // 16 MB slots; the first 4 GB are for shared arrays
constexpr size_t STACK = 256 << 10, THREADS = 1024;
constexpr u64 PAGE = 64 << 10;  // a multiple of any machine's pages

// time << 16 | thread << 4 | flags, 0 for "never"
constexpr u64 ATOMIC = 1, PENDING = 2, GIVEN = 1 << 16;

struct Cell {
  u64 write, read, other_read;  // the last one, and for reads the last one by another warp than that
  u32 write_at, read_at, other_at;  // where in the kernel's code
};

struct Region {
  std::string name;
  u8 *base;
  size_t bytes, element;
  int shift;  // log2 of a cell's bytes
  bool constant, shared;
  std::unique_ptr<Cell[]> cells;
  size_t count() const { return (bytes >> shift) + 1; }
};

struct Copy {
  u8 *to;
  const u8 *from;
  int bytes, given;
  u8 early[16];
  u32 at;
};

enum State { READY, BLOCK, WARP, DONE };

struct Fiber {
  void *sp;
  State state;
  const char *what;
  int line;
  u32 mask, at;
  void *payload;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

using Together = void (*)(u32 first);  // what a warp does when all of its threads have arrived

u8 *arena, *stacks;
Region *table[SLOTS];
std::vector<std::unique_ptr<Region>> tensors, shared;
std::vector<Fiber> fibers;

// the launch at hand
void (*entry)(void **);
void **values;
u32 grid[3], block[3], threads, now, arrived;
size_t shared_limit;
u64 poison, tick = 2, launch_start, block_start, block_sync, warp_sync[THREADS / 32];
bool early_copies;
u64 image, image_end;
void *scheduler;
sigjmp_buf out;
char message[2048];
u64 fault_at, fault_other;
u32 fault_line;

[[noreturn]] void fail(u32 at, u32 other, const char *format, ...) {
  char text[1500];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  snprintf(message, sizeof message, "block (%u, %u, %u), thread %u: %s", block[0], block[1], block[2], now, text);
  fault_at = at, fault_other = other;
  siglongjmp(out, 1);
}

u32 where(void *address) { return (u32)((u64)address - image); }
#define HERE where(__builtin_return_address(0))

// ---------------------------------------------------------------- memory

bool ordered(u64 stamp, u32 thread) {
  const u64 time = stamp >> 16;
  const u32 other = stamp >> 4 & 0xfff;
  if (time < block_start) return time < launch_start;
  return other == thread || time < block_sync || (other / 32 == thread / 32 && time < warp_sync[thread / 32]);
}

[[noreturn]] void race(const Region &r, u64 position, u64 stamp, u32 other_at, u32 thread, u32 at, const char *mine, const char *other) {
  const bool elsewhere = stamp >> 16 < block_start;
  const std::string who = elsewhere ? "a thread of another block" : "thread " + std::to_string(stamp >> 4 & 0xfff);
  fail(at, other_at, "race: thread %u %s %s[%zu], which %s %s with no barrier between", thread, mine, r.name.c_str(),
       (size_t)(position / r.element), who.c_str(), other);
}

enum { READ = 0, WRITE = 1, IS_ATOMIC = 2, LANDS = 4 };

void access(u64 address, size_t size, int how, u32 at, u32 thread) {
  const u64 offset = address - (u64)arena;
  const char *verb = how & WRITE ? "write" : "read";
  if (__builtin_expect(offset >= SLOTS << SLOT, 0)) {
    const u64 on_stack = address - (u64)stacks;
    if (on_stack < STACK * THREADS) {
      if (on_stack / STACK != thread) fail(at, 0, "%zu-byte %s of a local variable of thread %zu", size, verb, (size_t)(on_stack / STACK));
      return;
    }
    if (address >= image && address + size <= image_end && !(how & WRITE)) return;  // a table of constants
    fail(at, 0, "%zu-byte %s of address %#zx, far from every tensor and shared array", size, verb, (size_t)address);
  }
  Region *r = table[offset >> SLOT];
  if (!r) fail(at, 0, "%zu-byte %s of address %#zx, far from every tensor and shared array", size, verb, (size_t)address);
  const u64 position = address - (u64)r->base;
  if (position >= r->bytes || size > r->bytes - position)
    fail(at, 0, "%zu-byte %s out of bounds: byte %lld of %s, which has %zu", size, verb, (long long)position, r->name.c_str(), r->bytes);
  if ((how & WRITE) && r->constant) fail(at, 0, "write to %s[%zu], an input", r->name.c_str(), (size_t)(position / r->element));
  const u64 me = tick << 16 | thread << 4 | (how & IS_ATOMIC ? ATOMIC : 0);
  bool known = false;
  const u64 first = position >> r->shift, last = (position + size - 1) >> r->shift;
  for (u64 i = first; i <= last; ++i) {
    Cell &cell = r->cells[i];
    const u64 bytes = i << r->shift;
    if ((cell.write & PENDING) && !(how & LANDS))
      fail(at, cell.write_at, "%s of %s[%zu], into which a cp.async of thread %u still copies", verb, r->name.c_str(),
           (size_t)(bytes / r->element), (u32)(cell.write >> 4 & 0xfff));
    if (cell.write && !ordered(cell.write, thread) && !(cell.write & me & ATOMIC))
      race(*r, bytes, cell.write, cell.write_at, thread, at, how & WRITE ? "writes" : "reads", "wrote");
    known |= cell.write != 0;
    if (how & WRITE) {
      if (cell.read && !ordered(cell.read, thread)) race(*r, bytes, cell.read, cell.read_at, thread, at, "writes", "read");
      if (cell.other_read && !ordered(cell.other_read, thread))
        race(*r, bytes, cell.other_read, cell.other_at, thread, at, "writes", "read");
      cell.write = me, cell.write_at = at;
    } else {
      if ((cell.read >> 4 & 0xfff) / 32 != thread / 32) cell.other_read = cell.read, cell.other_at = cell.read_at;
      cell.read = me, cell.read_at = at;
    }
  }
  if (!known && (!(how & WRITE) || (how & IS_ATOMIC)))
    fail(at, 0, "read of %s[%zu], which nothing has written", r->name.c_str(), (size_t)(position / r->element));
}

void aligned(u64 address, size_t size, u32 at, const char *what) {
  if (address % size) fail(at, 0, "misaligned: %s of %zu bytes at an address that is %zu mod %zu", what, size, (size_t)(address % size), size);
}

/* Maps a region at `slot`; its address is a multiple of `align` and of nothing larger. The slots taken. */
u64 place(Region &r, u64 slot, size_t align) {
  const u64 slots = ((LEAD + r.bytes + 2 * align) >> SLOT) + 1;
  u8 *const start = arena + (slot << SLOT) + LEAD;
  r.base = start + align;
  const u64 length = (align + r.bytes + PAGE) / PAGE * PAGE;
  mprotect(start, length, PROT_READ | PROT_WRITE);
  r.cells.reset(new Cell[r.count()]());
  for (u64 i = 0; i < slots; ++i) table[slot + i] = &r;
  return slots;
}

void drop(std::vector<std::unique_ptr<Region>> &regions) {
  for (auto &r : regions) {
    u8 *const start = arena + (((u64)r->base - (u64)arena) >> SLOT << SLOT) + LEAD;
    const u64 length = ((u64)r->base - (u64)start + r->bytes + PAGE) / PAGE * PAGE;
    madvise(start, length, MADV_DONTNEED);
    mprotect(start, length, PROT_NONE);
    for (auto &entry : table)
      if (entry == r.get()) entry = nullptr;
  }
  regions.clear();
}

void fill(u8 *to, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) memcpy(to + i, &poison, std::min<size_t>(8, bytes - i));
}

int log2_of(size_t bytes) { return bytes >= 8 ? 3 : bytes >= 4 ? 2 : bytes >= 2 ? 1 : 0; }
}  // namespace
