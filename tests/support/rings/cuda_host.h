/* What CUDA C takes for granted, for a generated kernel that is compiled as C++ on the host.

   A kernel gets this in front of its text, which cuda_host.py has rewritten in three places: shared arrays become references
   into regions of their own, inline PTX becomes calls of the functions in tch_ptx, and what is declared without a value is poisoned.
   It is compiled with -fsanitize=thread,bounds,alignment but without these sanitizers' libraries: their hooks are in
   cuda_host.cpp, which sees every access to memory before it happens. No header is included, as under NVRTC. */

typedef decltype(sizeof(0)) size_t;
typedef unsigned long long tch_u64;

#define __CUDA_ARCH__ TCH_ARCH
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* ---------------------------------------------------------------- vector types */

#define TCH_VECTOR(T, name, two, four)                                                                       \
  struct name##1 { T x; };                                                                                   \
  struct alignas(two) name##2 { T x, y; };                                                                   \
  struct name##3 { T x, y, z; };                                                                             \
  struct alignas(four) name##4 { T x, y, z, w; };                                                            \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                 \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                         \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

TCH_VECTOR(signed char, char, 2, 4)
TCH_VECTOR(unsigned char, uchar, 2, 4)
TCH_VECTOR(short, short, 4, 8)
TCH_VECTOR(unsigned short, ushort, 4, 8)
TCH_VECTOR(int, int, 8, 16)
TCH_VECTOR(unsigned, uint, 8, 16)
TCH_VECTOR(long long, longlong, 16, 16)
TCH_VECTOR(unsigned long long, ulonglong, 16, 16)
TCH_VECTOR(float, float, 8, 16)
TCH_VECTOR(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* ---------------------------------------------------------------- threads: cuda_host.cpp */

extern "C" {
struct tch_place { unsigned x, y, z; };
tch_place tch_threadIdx() __attribute__((const));
tch_place tch_blockIdx() __attribute__((const));
tch_place tch_blockDim() __attribute__((const));
tch_place tch_gridDim() __attribute__((const));
tch_u64 tch_poison() __attribute__((const));
unsigned tch_lane() __attribute__((const));
void tch_syncthreads(int line);
void tch_syncwarp(int line, unsigned mask);
tch_u64 tch_shuffle(int kind, int line, unsigned mask, tch_u64 bits, int argument, int width);
tch_u64 tch_vote(int kind, int line, unsigned mask, tch_u64 value);
void *tch_shared(int index, const char *name, size_t bytes, size_t element, size_t align);
unsigned tch_shared_address(const void *);
void *tch_assume_aligned(const void *, size_t);
void tch_atomic(void *, size_t);
void tch_trap(int line);
void tch_cp_async(int line, unsigned to, tch_u64 from, int bytes, int given);
void tch_cp_async_commit();
void tch_cp_async_wait(int newest);
void tch_ldmatrix(int line, int count, int trans, unsigned *out, unsigned address);
void tch_mma(int line, int kind, int k, float *d, const unsigned *a, const unsigned *b, const float *c);
}

#define threadIdx tch_threadIdx()
#define blockIdx tch_blockIdx()
#define blockDim tch_blockDim()
#define gridDim tch_gridDim()
#define warpSize 32

#define __syncthreads() tch_syncthreads(__LINE__)
#define __syncwarp(...) tch_syncwarp(__LINE__, tch_mask(__VA_ARGS__))
inline unsigned tch_mask(unsigned mask = 0xffffffffu) { return mask; }

template <class T> inline T tch_shuffled(int kind, int line, unsigned mask, T value, int argument, int width = 32) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  tch_u64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = tch_shuffle(kind, line, mask, bits, argument, width);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
#define __shfl_sync(...) tch_shuffled(0, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) tch_shuffled(1, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) tch_shuffled(2, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) tch_shuffled(3, __LINE__, __VA_ARGS__)
#define __ballot_sync(mask, value) ((unsigned)tch_vote(0, __LINE__, mask, !!(value)))
#define __any_sync(mask, value) ((int)tch_vote(1, __LINE__, mask, !!(value)))
#define __all_sync(mask, value) ((int)tch_vote(2, __LINE__, mask, !!(value)))
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __trap() tch_trap(__LINE__)

#define __builtin_assume_aligned(pointer, bytes) tch_assume_aligned(pointer, bytes)
#define __cvta_generic_to_shared(pointer) ((size_t)tch_shared_address(pointer))
#define __builtin_assume(condition) ((void)0)

template <class T> inline void tch_fill(T &x) {
  const tch_u64 poison = tch_poison();
  for (size_t at = 0; at < sizeof(T); at += 8) __builtin_memcpy((char *)&x + at, &poison, sizeof(T) - at < 8 ? sizeof(T) - at : 8);
}
template <class T, size_t N> inline void tch_fill(T (&x)[N]) {
  for (size_t i = 0; i < N; ++i) tch_fill(x[i]);
}

#define TCH_UNSEEN __attribute__((no_sanitize("thread", "undefined")))

/* one fiber runs at a time, and the hook has seen the access: plain C++ from here */
#define TCH_ATOMIC(name, formula)                                                                            \
  template <class T> TCH_UNSEEN T name(T *p, decltype(T(*p)) v) {                \
    tch_atomic((void *)p, sizeof(T));                                                                        \
    const T old = *p;                                                                                        \
    *p = (formula);                                                                                          \
    return old;                                                                                              \
  }
TCH_ATOMIC(atomicAdd, old + v)
TCH_ATOMIC(atomicMax, old > v ? old : v)
TCH_ATOMIC(atomicMin, old < v ? old : v)
TCH_ATOMIC(atomicExch, v)
TCH_ATOMIC(atomicOr, old | v)
TCH_ATOMIC(atomicAnd, old &v)

/* ---------------------------------------------------------------- mathematics

   What C has is its library's; what only CUDA has (rsqrt, erfinv, ...) is declared by cuda_host.py, which also builds it. */

#define TCH_ONE(name)                                                                                        \
  extern "C" double name(double);                                                                            \
  extern "C" float name##f(float);                                                                           \
  inline float name(float x) { return name##f(x); }
#define TCH_TWO(name)                                                                                        \
  extern "C" double name(double, double);                                                                    \
  extern "C" float name##f(float, float);                                                                    \
  inline float name(float x, float y) { return name##f(x, y); }
TCH_ONE(acos) TCH_ONE(acosh) TCH_ONE(asin) TCH_ONE(asinh) TCH_ONE(atan) TCH_ONE(atanh) TCH_ONE(cbrt) TCH_ONE(ceil) TCH_ONE(cos)
TCH_ONE(cosh) TCH_ONE(erf) TCH_ONE(erfc) TCH_ONE(exp) TCH_ONE(exp2) TCH_ONE(exp10) TCH_ONE(expm1) TCH_ONE(fabs) TCH_ONE(floor)
TCH_ONE(lgamma) TCH_ONE(log) TCH_ONE(log10) TCH_ONE(log1p) TCH_ONE(log2) TCH_ONE(logb) TCH_ONE(nearbyint) TCH_ONE(rint) TCH_ONE(round)
TCH_ONE(sin) TCH_ONE(sinh) TCH_ONE(sqrt) TCH_ONE(tan) TCH_ONE(tanh) TCH_ONE(tgamma) TCH_ONE(trunc) TCH_ONE(j0) TCH_ONE(j1) TCH_ONE(y0)
TCH_ONE(y1) TCH_TWO(atan2) TCH_TWO(copysign) TCH_TWO(fdim) TCH_TWO(fmax) TCH_TWO(fmin) TCH_TWO(fmod) TCH_TWO(hypot) TCH_TWO(nextafter)
TCH_TWO(pow) TCH_TWO(remainder)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }

#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#define TCH_ORDERED(T)                                                                                       \
  inline T min(T a, T b) { return a < b ? a : b; }                                                           \
  inline T max(T a, T b) { return a > b ? a : b; }
TCH_ORDERED(int) TCH_ORDERED(unsigned) TCH_ORDERED(long) TCH_ORDERED(unsigned long) TCH_ORDERED(long long) TCH_ORDERED(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
extern "C" int abs(int);
inline long long abs(long long a) { return a < 0 ? -a : a; }
inline float abs(float a) { return fabsf(a); }
inline double abs(double a) { return fabs(a); }

template <class To, class From> inline To tch_view(From x) {
  static_assert(sizeof(To) == sizeof(From), "views of bits keep the size");
  To y;
  __builtin_memcpy(&y, &x, sizeof(To));
  return y;
}
inline int __float_as_int(float x) { return tch_view<int>(x); }
inline unsigned __float_as_uint(float x) { return tch_view<unsigned>(x); }
inline float __int_as_float(int x) { return tch_view<float>(x); }
inline float __uint_as_float(unsigned x) { return tch_view<float>(x); }
inline long long __double_as_longlong(double x) { return tch_view<long long>(x); }
inline double __longlong_as_double(long long x) { return tch_view<double>(x); }
inline int __double2hiint(double x) { return (int)(tch_view<tch_u64>(x) >> 32); }
inline int __double2loint(double x) { return (int)tch_view<tch_u64>(x); }
inline double __hiloint2double(int high, int low) { return tch_view<double>((tch_u64)(unsigned)high << 32 | (unsigned)low); }

/* float to integer truncates and saturates on the device, NaN gives 0 (for 64 bits the least value); a cast in C would be undefined */
template <class T, class R> inline T tch_truncated(R x, T least, T greatest) {
  if (x != x) return sizeof(T) == 8 ? (T)((tch_u64)1 << 63) : T(0);
  return x <= (R)least ? least : x >= (R)greatest ? greatest : (T)x;
}
#define TCH_CONVERTED(name, T, R, least, greatest)                                                           \
  inline T name(R x) { return tch_truncated<T, R>(x, least, greatest); }
TCH_CONVERTED(__float2int_rz, int, float, -2147483647 - 1, 2147483647)
TCH_CONVERTED(__float2uint_rz, unsigned, float, 0u, 4294967295u)
TCH_CONVERTED(__float2ll_rz, long long, float, -9223372036854775807ll - 1, 9223372036854775807ll)
TCH_CONVERTED(__float2ull_rz, tch_u64, float, 0ull, 18446744073709551615ull)
TCH_CONVERTED(__double2int_rz, int, double, -2147483647 - 1, 2147483647)
TCH_CONVERTED(__double2uint_rz, unsigned, double, 0u, 4294967295u)
TCH_CONVERTED(__double2ll_rz, long long, double, -9223372036854775807ll - 1, 9223372036854775807ll)
TCH_CONVERTED(__double2ull_rz, tch_u64, double, 0ull, 18446744073709551615ull)

/* rounded as they stand: the compiler's flags forbid contraction */
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((tch_u64)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((tch_u64)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline tch_u64 __umul64hi(tch_u64 a, tch_u64 b) { return (tch_u64)((unsigned __int128)a * b >> 64); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
template <class T> inline T __ldg(const T *p) { return *p; }

/* ---------------------------------------------------------------- inline PTX

   cuda_host.py turns each instruction into a call: its name with the dots as underscores, the line, then all operands with the
   vectors' braces dropped. Operands keep the size that their constraint promises. */

template <size_t N, class T> inline T tch_operand(T x) {
  static_assert(sizeof(T) == N, "the operand has not the size that its constraint says");
  return x;
}

namespace tch_ptx {
float from_half(unsigned short);
float from_bfloat(unsigned short);
unsigned short to_half(double);
unsigned short to_bfloat(float);

inline void cvt_f32_f16(int, float &d, unsigned short a) { d = from_half(a); }
inline void cvt_f64_f16(int, double &d, unsigned short a) { d = from_half(a); }
inline void cvt_f32_bf16(int, float &d, unsigned short a) { d = from_bfloat(a); }
inline void cvt_rn_f16_f32(int, unsigned short &d, float a) { d = to_half(a); }
inline void cvt_rn_f16_f64(int, unsigned short &d, double a) { d = to_half(a); }
inline void cvt_rn_bf16_f32(int, unsigned short &d, float a) { d = to_bfloat(a); }
inline void cvt_rn_f16x2_f32(int, unsigned &d, float high, float low) { d = (unsigned)to_half(high) << 16 | to_half(low); }
inline void cvt_rn_bf16x2_f32(int, unsigned &d, float high, float low) { d = (unsigned)to_bfloat(high) << 16 | to_bfloat(low); }
/* -0 is less than 0 */
inline bool below(float a, float b) { return a < b || (a == b && signbit(a) > signbit(b)); }
inline void min_NaN_f32(int, float &d, float a, float b) { d = a != a || b != b ? __builtin_nanf("") : below(b, a) ? b : a; }
inline void max_NaN_f32(int, float &d, float a, float b) { d = a != a || b != b ? __builtin_nanf("") : below(a, b) ? b : a; }
/* to nearest, ties away from zero, 10 bits of fraction left */
inline void cvt_rna_tf32_f32(int, unsigned &d, float a) {
  const unsigned bits = tch_view<unsigned>(a);
  d = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}
template <class D, class A> inline void mov_b32(int, D &d, A a) { d = tch_view<D>(a); }
template <class D, class A> inline void mov_b64(int, D &d, A a) { d = tch_view<D>(a); }
inline void mov_b32(int, unsigned &d, unsigned short low, unsigned short high) { d = (unsigned)high << 16 | low; }
inline void mov_b32(int, unsigned short &low, unsigned short &high, unsigned a) { low = (unsigned short)a, high = (unsigned short)(a >> 16); }
inline void mov_u32(int, unsigned &d, unsigned a) { d = a; }
inline void cvta_to_shared_u64(int, tch_u64 &d, tch_u64 a) { d = tch_shared_address((const void *)a); }
template <class A> inline void setp_ne_b32(int, bool &d, A a, A b) { d = a != b; }
template <class A, class B> inline void setp_ne_b32(int, bool &d, A a, B b) { d = a != (A)b; }

inline void cp_async_ca_shared_global(int line, unsigned to, tch_u64 from, int bytes) { tch_cp_async(line, to, from, bytes, bytes); }
inline void cp_async_ca_shared_global(int line, unsigned to, tch_u64 from, int bytes, int given) { tch_cp_async(line, to, from, bytes, given); }
inline void cp_async_cg_shared_global(int line, unsigned to, tch_u64 from, int bytes, int given) {
  if (bytes != 16) tch_trap(line);
  tch_cp_async(line, to, from, bytes, given);
}
inline void cp_async_cg_shared_global(int line, unsigned to, tch_u64 from, int bytes) { cp_async_cg_shared_global(line, to, from, bytes, bytes); }
inline void cp_async_commit_group(int) { tch_cp_async_commit(); }
inline void cp_async_wait_group(int, int newest) { tch_cp_async_wait(newest); }
inline void cp_async_wait_all(int) { tch_cp_async_wait(-1); }

#define TCH_LDMATRIX(suffix, trans)                                                                          \
  inline void ldmatrix_sync_aligned_m8n8_x1##suffix(int line, unsigned &a, unsigned from) {                  \
    unsigned out[4];                                                                                         \
    tch_ldmatrix(line, 1, trans, out, from), a = out[0];                                                     \
  }                                                                                                          \
  inline void ldmatrix_sync_aligned_m8n8_x2##suffix(int line, unsigned &a, unsigned &b, unsigned from) {     \
    unsigned out[4];                                                                                         \
    tch_ldmatrix(line, 2, trans, out, from), a = out[0], b = out[1];                                         \
  }                                                                                                          \
  inline void ldmatrix_sync_aligned_m8n8_x4##suffix(int line, unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned from) { \
    unsigned out[4];                                                                                         \
    tch_ldmatrix(line, 4, trans, out, from), a = out[0], b = out[1], c = out[2], d = out[3];                 \
  }
TCH_LDMATRIX(_shared_b16, 0)
TCH_LDMATRIX(_trans_shared_b16, 1)

/* D = A B + C, the accumulators as floats; kind 0 is f16, 1 bf16, 2 tf32 */
#define TCH_MMA(name, kind, k)                                                                               \
  inline void name(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,       \
                   unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {                       \
    const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                                 \
    const float c[4] = {c0, c1, c2, c3};                                                                     \
    float d[4];                                                                                              \
    tch_mma(line, kind, k, d, a, b, c), d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                          \
  }
TCH_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 0, 16)
TCH_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 1, 16)
TCH_MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 2, 8)
}  // namespace tch_ptx

/* ---------------------------------------------------------------- how a kernel is called */

/* where the library lies, for tables of constants and for lines */
extern "C" char __ehdr_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));
extern "C" TCH_UNSEEN void tch_image(tch_u64 *ends) { ends[0] = (tch_u64)&__ehdr_start, ends[1] = (tch_u64)&_end; }

template <class T> struct tch_kind { static constexpr unsigned value = (T(1) / 2 != 0 ? 4 : 3) << 8 | sizeof(T); };
template <class T> struct tch_kind<T *> { static constexpr unsigned value = 1 << 8; };
template <class T> struct tch_kind<const T *> { static constexpr unsigned value = 2 << 8; };

/* per parameter: 1 a pointer, 2 one to constants, 3 an integer, 4 a float; and bytes of the last two */
template <class... A> struct tch_signature { static constexpr unsigned kinds[] = {tch_kind<A>::value..., 0}; };
template <class... A> constexpr const unsigned *tch_kinds(void (*)(A...)) { return tch_signature<A...>::kinds; }

template <int... I> struct tch_counted {};
template <class... A, int... I> TCH_UNSEEN inline void tch_apply(void (*kernel)(A...), void **values, tch_counted<I...>) {
  kernel(*(A *)values[I]...);
}
template <class... A> TCH_UNSEEN inline void tch_call(void (*kernel)(A...), void **values) {
  tch_apply(kernel, values, tch_counted<__integer_pack(sizeof...(A))...>());
}
#define TCH_KERNEL(name)                                                                                     \
  extern "C" TCH_UNSEEN void tch_entry_##name(void **values) { tch_call(name, values); }                     \
  extern "C" const unsigned *tch_kinds_##name() { return tch_kinds(name); }
