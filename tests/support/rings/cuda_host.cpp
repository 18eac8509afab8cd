/* Runs the blocks of a CUDA kernel on the host, one fiber per thread, and watches every access to memory.

   Fibers: a thread runs until it waits (at a block barrier, a warp barrier, a shuffle, ...) or ends; then the next in the schedule's
   order runs. When none can run and not all have ended, threads have diverged, and the run ends. */
#include "cuda_memory.h"

namespace {
// ---------------------------------------------------------------- fibers

extern "C" void tch_switch(void **from, void *to);
#if defined(__x86_64__)
asm(R"(.text
.globl tch_switch
tch_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
)");
constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(R"(.text
.globl tch_switch
tch_switch:
  sub sp, sp, #176
  stp x19, x20, [sp, #0]; stp x21, x22, [sp, #16]; stp x23, x24, [sp, #32]; stp x25, x26, [sp, #48]; stp x27, x28, [sp, #64]
  stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]; stp x29, x30, [sp, #80]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]; ldp x21, x22, [sp, #16]; ldp x23, x24, [sp, #32]; ldp x25, x26, [sp, #48]; ldp x27, x28, [sp, #64]
  ldp d8, d9, [sp, #96]; ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]; ldp x29, x30, [sp, #80]
  add sp, sp, #176
  ret
)");
#else
#error "no switch of stacks is written for this processor"
#endif

void pause(State state) {
  Fiber &me = fibers[now];
  me.state = state;
  tch_switch(&me.sp, scheduler);
}

void body() {
  entry(values);
  Fiber &me = fibers[now];
  me.state = DONE;
  tch_switch(&me.sp, scheduler);
  __builtin_unreachable();
}

void prepare(u32 thread) {
  Fiber &f = fibers[thread];
  f.state = READY, f.open.clear(), f.groups.clear();
  void **top = (void **)(stacks + (thread + 1) * STACK) - 8;
#if defined(__x86_64__)
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = (void *)body;
  top -= SAVED;
#else
  top -= 22;
  top[11] = (void *)body;
#endif
  f.sp = top;
}

/* Wait until all threads of `mask` in the warp are here; the last one does `together` for all. */
void gather(const char *what, int line, u32 mask, void *payload, u32 at, Together together) {
  Fiber &me = fibers[now];
  const u32 first = now / 32 * 32;
  if (!(mask >> (now - first) & 1)) fail(at, 0, "%s in line %d: the mask %08x lacks the thread's own lane %u", what, line, mask, now - first);
  const u32 there = threads - first >= 32 ? 0xffffffffu : (1u << (threads - first)) - 1;
  if (mask & ~there) fail(at, 0, "%s in line %d: the mask %08x names lanes beyond the %u of the warp", what, line, mask, threads - first);
  me.what = what, me.line = line, me.mask = mask, me.payload = payload, me.at = at, me.state = WARP;
  for (u32 lane = 0; lane < 32 && first + lane < threads; ++lane) {
    const Fiber &f = fibers[first + lane];
    if ((mask >> lane & 1) && !(f.state == WARP && f.line == line && f.what == what && f.mask == mask)) return pause(WARP);
  }
  together(first);
  for (u32 lane = 0; lane < 32 && first + lane < threads; ++lane)
    if (mask >> lane & 1) fibers[first + lane].state = READY;
  pause(READY);  // all go on in the schedule's order
}

[[noreturn]] void diverged() {
  std::string text;
  u32 ended = 0, first_ended = 0;
  std::vector<u32> kinds;
  std::vector<u32> counts;
  for (u32 t = 0; t < threads; ++t) {
    const Fiber &f = fibers[t];
    if (f.state == DONE) {
      if (!ended++) first_ended = t;
      continue;
    }
    size_t k = 0;
    while (k < kinds.size() && !(fibers[kinds[k]].line == f.line && fibers[kinds[k]].what == f.what && fibers[kinds[k]].mask == f.mask)) ++k;
    if (k == kinds.size()) kinds.push_back(t), counts.push_back(0);
    ++counts[k];
  }
  for (size_t k = 0; k < kinds.size(); ++k) {
    const Fiber &f = fibers[kinds[k]];
    text += std::to_string(counts[k]) + " wait at " + f.what + " in line " + std::to_string(f.line) + " (thread " + std::to_string(kinds[k]) +
            " for one), ";
  }
  if (ended) text += std::to_string(ended) + " have ended (thread " + std::to_string(first_ended) + " for one), ";
  now = kinds[0];
  fault_line = fibers[now].line;
  fail(0, 0, "divergence: of %u threads %snone can go on", threads, text.c_str());
}

void run_block(const std::vector<u32> &order) {
  block_start = block_sync = ++tick;
  std::fill(warp_sync, warp_sync + THREADS / 32, tick);
  arrived = 0;
  for (auto &r : shared) {
    fill(r->base, r->bytes);
    memset((void *)r->cells.get(), 0, r->count() * sizeof(Cell));
  }
  for (u32 t = 0; t < threads; ++t) prepare(t);
  for (bool moved = true; moved;) {
    moved = false;
    for (u32 t : order) {
      if (fibers[t].state != READY) continue;
      moved = true, now = t;
      tch_switch(&scheduler, fibers[t].sp);
    }
  }
  for (u32 t = 0; t < threads; ++t)
    if (fibers[t].state != DONE) diverged();
}

void on_signal(int number, siginfo_t *info, void *) {
  fail(0, 0, number == SIGFPE ? "an integer division that traps on the host" : "signal %d at address %p, in code that the hooks do not see", number,
       info->si_addr);
}

}  // namespace

// ---------------------------------------------------------------- the compiler's hooks

#define HOOKS(n)                                                                                             \
  void __tsan_read##n(void *p) { aligned((u64)p, n, HERE, "read"), access((u64)p, n, READ, HERE, now); }     \
  void __tsan_write##n(void *p) { aligned((u64)p, n, HERE, "write"), access((u64)p, n, WRITE, HERE, now); }  \
  void __tsan_unaligned_read##n(void *p) { access((u64)p, n, READ, HERE, now); }                             \
  void __tsan_unaligned_write##n(void *p) { access((u64)p, n, WRITE, HERE, now); }                           \
  void __tsan_volatile_read##n(void *p) { __tsan_read##n(p); }                                               \
  void __tsan_volatile_write##n(void *p) { tch_atomic(p, n); } /* PTX: relaxed, of the whole system: two do not race */

extern "C" {
void tch_atomic(void *p, size_t size) {
  aligned((u64)p, size, HERE, "atomic");
  access((u64)p, size, WRITE | IS_ATOMIC, HERE, now);
}

HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_read_range(void *p, size_t n) { access((u64)p, n, READ, HERE, now); }
void __tsan_write_range(void *p, size_t n) { access((u64)p, n, WRITE, HERE, now); }

struct Located { const char *file; u32 line, column; };

void __ubsan_handle_out_of_bounds(Located *data, u64 index) {
  fault_line = data->line;
  fail(0, 0, "index %lld is out of the array's bounds", (long long)index);
}

void __ubsan_handle_type_mismatch_v1(Located *data, u64 address) {
  const u8 power = *(const u8 *)((const char *)data + sizeof(Located) + sizeof(void *));
  fault_line = data->line;
  fail(0, 0, address ? "misaligned: the address is %zu mod %zu" : "access through a null pointer", (size_t)(address % (1ull << power)),
       (size_t)1 << power);
}

// ---------------------------------------------------------------- what kernels call

struct tch_place { u32 x, y, z; };
tch_place tch_threadIdx() { return {now, 0, 0}; }
tch_place tch_blockIdx() { return {block[0], block[1], block[2]}; }
tch_place tch_blockDim() { return {threads, 1, 1}; }
tch_place tch_gridDim() { return {grid[0], grid[1], grid[2]}; }
u64 tch_poison() { return poison; }
u32 tch_lane() { return now % 32; }

void tch_trap(int line) {
  fault_line = line;
  fail(0, 0, "the kernel traps");
}

void tch_syncthreads(int line) {
  Fiber &me = fibers[now];
  me.what = "__syncthreads", me.line = line, me.mask = 0;
  if (++arrived < threads) return pause(BLOCK);
  me.state = BLOCK;
  for (u32 t = 0; t < threads; ++t)
    if (fibers[t].line != line) diverged();
  arrived = 0, block_sync = ++tick;
  for (u32 t = 0; t < threads; ++t) fibers[t].state = READY;
  pause(READY);
}

void *tch_shared(int index, const char *name, size_t bytes, size_t element, size_t align) {
  if (table[index]) return table[index]->base;
  size_t declared = 0;
  for (auto &r : shared) declared += r->bytes;
  if (!bytes) bytes = shared_limit > declared ? shared_limit - declared : 0;  // extern: what the launch asks for beyond the others
  if (declared + bytes > shared_limit)
    fail(HERE, 0, "the launch says %zu bytes of shared memory, %s makes it at least %zu", shared_limit, name, declared + bytes);
  Region *r = new Region{name, nullptr, bytes, element, log2_of(element), false, true, nullptr};
  shared.emplace_back(r);
  place(*r, index, align);
  fill(r->base, r->bytes);
  return r->base;
}

u32 tch_shared_address(const void *p) {
  const u64 offset = (u64)p - (u64)arena;
  if (offset >= SHARED_SLOTS << SLOT) fail(HERE, 0, "a pointer that is converted to a shared address does not point to shared memory");
  return (u32)offset;
}

void *tch_assume_aligned(const void *p, size_t bytes) {
  aligned((u64)p, bytes, HERE, "__builtin_assume_aligned");
  return (void *)p;
}

}

#include "cuda_warp.h"

extern "C" {
// ---------------------------------------------------------------- what cuda_host.py calls

struct Tensor {
  const char *name;
  void *data;
  const u8 *mask;  // per cell, whether it holds a value; null: all do
  size_t bytes, element;
  u32 constant, align;
  void *address;
};

void tch_open(Tensor *list, int count, u64 with_poison) {
  if (!arena) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = (u8 *)mmap(nullptr, SLOTS << SLOT, PROT_NONE, flags, -1, 0);
    stacks = (u8 *)mmap(nullptr, STACK * THREADS, PROT_READ | PROT_WRITE, flags, -1, 0);
    for (size_t t = 0; t < THREADS; ++t) mprotect(stacks + t * STACK, PAGE, PROT_NONE);
    fibers.resize(THREADS);
  }
  poison = with_poison;
  u64 slot = SHARED_SLOTS;
  for (int i = 0; i < count; ++i) {
    Tensor &t = list[i];
    const int shift = log2_of(t.element);
    Region *r = new Region{t.name, nullptr, t.bytes, t.element, shift, t.constant != 0, false, nullptr};
    tensors.emplace_back(r);
    slot += place(*r, slot, std::max<size_t>(t.align, 1));
    t.address = r->base;
    fill(r->base, r->bytes);
    for (size_t cell = 0; cell < t.bytes >> shift; ++cell)
      if (!t.mask || t.mask[cell]) {
        memcpy(r->base + (cell << shift), (u8 *)t.data + (cell << shift), (size_t)1 << shift);
        r->cells[cell].write = GIVEN;
      }
  }
}

/* order: 0 forward, 1 backward, else a seed. 1 where the run ended early; tch_message has the reason. */
int tch_launch(void (*kernel)(void **), void **arguments, const u32 *size, u32 count, size_t shared_bytes, u64 order, u64 low, u64 high) {
  entry = kernel, values = arguments, threads = count, shared_limit = shared_bytes, image = low, image_end = high;
  early_copies = order == 1;
  fault_at = fault_other = fault_line = 0;
  std::copy(size, size + 3, grid);
  std::mt19937_64 random(order);
  std::vector<u32> places(threads);
  std::vector<u64> blocks((u64)grid[0] * grid[1] * grid[2]);
  for (u32 t = 0; t < threads; ++t) places[t] = order == 1 ? threads - 1 - t : t;
  for (u64 b = 0; b < blocks.size(); ++b) blocks[b] = order == 1 ? blocks.size() - 1 - b : b;
  if (order > 1) std::shuffle(blocks.begin(), blocks.end(), random);
  launch_start = ++tick;
  drop(shared);

  static u8 signal_stack[64 << 10];
  const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE};
  struct sigaction action = {}, before[3];
  stack_t spare = {signal_stack, 0, sizeof signal_stack}, spare_before;
  sigaltstack(&spare, &spare_before);
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 3; ++i) sigaction(numbers[i], &action, &before[i]);
  const int failed = sigsetjmp(out, 1);
  if (!failed)
    for (u64 b : blocks) {
      block[0] = b % grid[0], block[1] = b / grid[0] % grid[1], block[2] = b / grid[0] / grid[1];
      if (order > 1) std::shuffle(places.begin(), places.end(), random);
      run_block(places);
    }
  for (int i = 0; i < 3; ++i) sigaction(numbers[i], &before[i], nullptr);
  sigaltstack(&spare_before, nullptr);
  drop(shared);
  return failed;
}

const char *tch_message(u64 *at, u64 *other, u32 *line) {
  *at = fault_at, *other = fault_other, *line = fault_line;
  return message;
}

/* Copies the tensors back and forgets all. */
void tch_close(Tensor *list, int count) {
  for (int i = 0; i < count; ++i)
    if (!list[i].constant) memcpy(list[i].data, list[i].address, list[i].bytes);
  drop(tensors);
}
}
