/* What the threads of a warp do together, and copies that land later: the last part of cuda_host.cpp, which includes it. */

// ---------------------------------------------------------------- numbers of 16 bits

namespace tch_ptx {
float from_bfloat(unsigned short bits) {
  const u32 wide = (u32)bits << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

float from_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(fraction + 1024, exponent - 25);
  return (float)(bits >> 15 ? -size : size);
}

/* to nearest, ties to even: the spacing of halves at x, or of denormals */
unsigned short to_half(double x) {
  const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  if (x != x) return 0x7fff;
  if (size >= 65520.0) return sign | 0x7c00;
  if (size < 0x1p-14) return sign | (unsigned short)std::nearbyint(size * 0x1p24);
  int exponent;
  const double fraction = std::frexp(size, &exponent);  // in [1/2, 1)
  return sign | (unsigned short)(((exponent + 13) << 10) + (int)std::nearbyint(fraction * 2048));
}

unsigned short to_bfloat(float x) {
  u32 bits;
  memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
}  // namespace tch_ptx

namespace {
float of_kind(int kind, u32 bits) {
  if (kind == 0) return tch_ptx::from_half((unsigned short)bits);
  if (kind == 1) return tch_ptx::from_bfloat((unsigned short)bits);
  const u32 kept = bits & ~0x1fffu;  // the device ignores the rest
  float x;
  memcpy(&x, &kept, 4);
  return x;
}
}  // namespace

extern "C" {
// ---------------------------------------------------------------- shuffles

void tch_syncwarp(int line, u32 mask) {
  gather("__syncwarp", line, mask, nullptr, HERE, [](u32 first) {
    const u32 lanes = threads - first >= 32 ? 0xffffffffu : (1u << (threads - first)) - 1;
    ++tick;
    if ((fibers[now].mask & lanes) == lanes) warp_sync[first / 32] = tick;  // a partial one orders nothing here
  });
}

struct Shuffle { int kind, argument, width; u64 bits, result; };

u64 tch_shuffle(int kind, int line, u32 mask, u64 bits, int argument, int width) {
  static const char *const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
  if (width <= 0 || width > 32 || (width & (width - 1))) fail(HERE, 0, "%s of width %d", names[kind], width);
  Shuffle mine = {kind, argument, width, bits, 0};
  gather(names[kind], line, mask, &mine, HERE, [](u32 first) {
    const u32 lanes = fibers[now].mask;
    for (int lane = 0; lane < 32 && first + lane < threads; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      Shuffle &s = *(Shuffle *)fibers[first + lane].payload;
      const int start = lane & ~(s.width - 1), end = start + s.width - 1;
      int from = s.kind == 0   ? start | (s.argument & (s.width - 1))
                 : s.kind == 1 ? lane - s.argument
                 : s.kind == 2 ? lane + s.argument
                               : lane ^ s.argument;
      if (s.kind && (from > end || (s.kind == 1 && from < start))) from = lane;
      const bool there = from < 32 && first + from < threads && (lanes >> from & 1);
      s.result = there ? ((Shuffle *)fibers[first + from].payload)->bits : poison;  // undefined
    }
  });
  return mine.result;
}

struct Vote { int kind; u64 value, result; };

u64 tch_vote(int kind, int line, u32 mask, u64 value) {
  static const char *const names[] = {"__ballot_sync", "__any_sync", "__all_sync"};
  Vote mine = {kind, value, 0};
  gather(names[kind], line, mask, &mine, HERE, [](u32 first) {
    u32 set = 0, there = 0;
    const u32 lanes = fibers[now].mask;
    for (u32 lane = 0; lane < 32 && first + lane < threads; ++lane)
      if (lanes >> lane & 1) there |= 1u << lane, set |= (u32)((Vote *)fibers[first + lane].payload)->value << lane;
    for (u32 lane = 0; lane < 32 && first + lane < threads; ++lane)
      if (lanes >> lane & 1) {
        Vote &v = *(Vote *)fibers[first + lane].payload;
        v.result = v.kind == 0 ? set : v.kind == 1 ? set != 0 : set == there;
      }
  });
  return mine.result;
}

// ---------------------------------------------------------------- asynchronous copies

static void land(const Copy &copy) {
  access((u64)copy.to, copy.bytes, WRITE | LANDS, copy.at, now);
  if (copy.given) access((u64)copy.from, copy.given, READ, copy.at, now);
  memset(copy.to, 0, copy.bytes);
  memcpy(copy.to, early_copies ? copy.early : copy.from, copy.given);
}

void tch_cp_async(int, u32 to, u64 from, int bytes, int given) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail(HERE, 0, "cp.async of %d bytes", bytes);
  if (given < 0 || given > bytes) fail(HERE, 0, "cp.async of %d bytes is given %d", bytes, given);
  Copy copy = {arena + to, (const u8 *)from, bytes, given, {}, HERE};
  aligned((u64)copy.to, bytes, HERE, "destination of a cp.async");
  aligned(from, bytes, HERE, "source of a cp.async");
  if (from - (u64)arena < SHARED_SLOTS << SLOT) fail(HERE, 0, "a cp.async reads from shared memory");
  if (given) access(from, given, READ, HERE, now), memcpy(copy.early, copy.from, given);
  access((u64)copy.to, bytes, WRITE, HERE, now);
  fill(copy.to, bytes);
  Region &r = *table[((u64)copy.to - (u64)arena) >> SLOT];
  const u64 position = copy.to - r.base;
  for (u64 i = position >> r.shift; i <= (position + bytes - 1) >> r.shift; ++i) r.cells[i].write |= PENDING;
  fibers[now].open.push_back(copy);
}

void tch_cp_async_commit() {
  Fiber &me = fibers[now];
  me.groups.push_back(std::move(me.open));
  me.open.clear();
}

void tch_cp_async_wait(int newest) {
  Fiber &me = fibers[now];
  if (newest < 0) tch_cp_async_commit();
  for (; (int)me.groups.size() > std::max(newest, 0); me.groups.pop_front())
    for (const Copy &copy : me.groups.front()) land(copy);
}

// ---------------------------------------------------------------- matrices

struct Matrices { int count, trans; u32 address, *out; };

/* PTX ISA, "Warp-level matrix load instruction: ldmatrix": lane 8m + i has the address of row i of matrix m; lane t gets of each matrix
   the two 16-bit elements 2 (t mod 4) and the next of row t / 4, or, with .trans, of column t / 4. */
void tch_ldmatrix(int line, int count, int trans, u32 *out_registers, u32 address) {
  Matrices mine = {count, trans, address, out_registers};
  gather("ldmatrix", line, 0xffffffffu, &mine, HERE, [](u32 first) {
    if (first + 32 > threads) fail(fibers[now].at, 0, "ldmatrix in a warp of %u threads", threads - first);
    const Matrices &all = *(Matrices *)fibers[now].payload;
    for (int m = 0; m < all.count; ++m)
      for (u32 t = 0; t < 32; ++t) {
        u32 word = 0;
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = all.trans ? t % 4 * 2 + half : t / 4, column = all.trans ? t / 4 : t % 4 * 2 + half;
          const u32 giver = first + 8 * m + row;
          const u64 start = (u64)arena + ((Matrices *)fibers[giver].payload)->address;
          const u32 at = fibers[giver].at;
          aligned(start, 16, at, "row of an ldmatrix");
          access(start + 2 * column, 2, READ, at, first + t);
          uint16_t bits;
          memcpy(&bits, (void *)(start + 2 * column), 2);
          word |= (u32)bits << 16 * half;
        }
        ((Matrices *)fibers[first + t].payload)->out[m] = word;
      }
  });
}

struct Product { int kind, k; float *d; const u32 *a, *b; const float *c; };

/* PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "mma.m16n8k8": with group = lane / 4 and member = lane % 4,
   element i of A in 16 bits is in row group (i = 0, 1, 4, 5) or group + 8, column 2 member + i % 2, and 8 more from i = 4 on; of B in
   row 2 member + i % 2, and 8 more from i = 2 on, column group. In tf32, A is in row group (i = 0, 2) or group + 8, column member, and 4
   more from i = 2 on; B in row member, 4 more for i = 1, column group. C and D are in row group (i = 0, 1) or group + 8, column
   2 member + i % 2. Sums are exact here up to a double's rounding; a device's are rounded in its own way. */
void tch_mma(int line, int kind, int k, float *d, const u32 *a, const u32 *b, const float *c) {
  Product mine = {kind, k, d, a, b, c};
  gather("mma.sync", line, 0xffffffffu, &mine, HERE, [](u32 first) {
    if (first + 32 > threads) fail(fibers[now].at, 0, "mma.sync in a warp of %u threads", threads - first);
    const int kind = ((Product *)fibers[now].payload)->kind, k = ((Product *)fibers[now].payload)->k;
    double A[16][16], B[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const Product &p = *(Product *)fibers[first + lane].payload;
      const int group = lane / 4, member = lane % 4;
      if (kind == 2) {
        for (int i = 0; i < 4; ++i) A[group + 8 * (i % 2)][member + 4 * (i / 2)] = of_kind(2, p.a[i]);
        for (int i = 0; i < 2; ++i) B[member + 4 * i][group] = of_kind(2, p.b[i]);
        continue;
      }
      for (int i = 0; i < 8; ++i) A[group + 8 * (i / 2 % 2)][2 * member + i % 2 + 8 * (i / 4)] = of_kind(kind, p.a[i / 2] >> 16 * (i % 2));
      for (int i = 0; i < 4; ++i) B[2 * member + i % 2 + 8 * (i / 2)][group] = of_kind(kind, p.b[i / 2] >> 16 * (i % 2));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const Product &p = *(Product *)fibers[first + lane].payload;
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = p.c[i];
        for (int at = 0; at < k; ++at) sum += A[row][at] * B[at][column];
        p.d[i] = (float)sum;
      }
    }
  });
}
}
