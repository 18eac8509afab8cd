// What this machine can do at most, one line of JSON per measurement: fp32 and bf16 arithmetic, bandwidth by working set, first touch.
//   gcc -O3 -march=native -mavx512f -mavx512bf16 -mamx-tile -mamx-bf16 -fopenmp ceil.c -o ceil && ./ceil > ceilings.jsonl
// "ceil compute" and "ceil memory" measure one half. Instructions that the CPU lacks are left out at run time.
#define _GNU_SOURCE
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define PAGE (2L << 20)
#define UNROLL _Pragma("GCC unroll 64")

static float sink[MAX_THREADS]; // keeps the compiler from dropping the work

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// ---------------------------------------------------------------- arithmetic: independent chains, enough to hide the latency

enum { WIDE = 24, NARROW = 12 };

__attribute__((noinline, target("avx512f"))) static void fma_512(long n)
{
    __m512 a[WIDE], b = _mm512_set1_ps(0.999999f), c = _mm512_set1_ps(1e-7f);
    UNROLL for (int i = 0; i < WIDE; i++) a[i] = _mm512_set1_ps(1.0f + i * 1e-6f);
    for (long k = 0; k < n; k++)
        UNROLL for (int i = 0; i < WIDE; i++) __asm__ volatile("vfmadd213ps %2,%1,%0" : "+v"(a[i]) : "v"(b), "v"(c));
    float sum = 0;
    UNROLL for (int i = 0; i < WIDE; i++) sum += _mm512_reduce_add_ps(a[i]);
    sink[omp_get_thread_num()] = sum;
}

__attribute__((noinline, target("avx2,fma"))) static void fma_256(long n)
{
    __m256 a[NARROW], b = _mm256_set1_ps(0.999999f), c = _mm256_set1_ps(1e-7f);
    UNROLL for (int i = 0; i < NARROW; i++) a[i] = _mm256_set1_ps(1.0f + i * 1e-6f);
    for (long k = 0; k < n; k++)
        UNROLL for (int i = 0; i < NARROW; i++) __asm__ volatile("vfmadd213ps %2,%1,%0" : "+x"(a[i]) : "x"(b), "x"(c));
    float sum = 0;
    UNROLL for (int i = 0; i < NARROW; i++) sum += _mm256_cvtss_f32(a[i]);
    sink[omp_get_thread_num()] = sum;
}

__attribute__((noinline, target("avx512f,avx512bf16"))) static void dot_bf16(long n)
{
    __m512 a[WIDE], b = _mm512_setzero_ps(), c = _mm512_setzero_ps();
    UNROLL for (int i = 0; i < WIDE; i++) a[i] = _mm512_setzero_ps();
    for (long k = 0; k < n; k++)
        UNROLL for (int i = 0; i < WIDE; i++) __asm__ volatile("vdpbf16ps %2,%1,%0" : "+v"(a[i]) : "v"(b), "v"(c));
    float sum = 0;
    UNROLL for (int i = 0; i < WIDE; i++) sum += _mm512_reduce_add_ps(a[i]);
    sink[omp_get_thread_num()] = sum;
}

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} __attribute__((packed)) TileConfig;

__attribute__((noinline, target("amx-tile,amx-bf16"))) static void amx_bf16(long n)
{
    static uint8_t zeros[1024] __attribute__((aligned(64)));
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.column_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" ::: "memory"); // gcc 12 declares only 8 bytes of the configuration as read
    _tile_loadconfig(&config);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < n; k++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

// GFLOP/s of `work` flops per thread, the best of seven runs
static void arithmetic(const char *name, int threads, void (*kernel)(long), long n, double work)
{
    double best = 1e9;
    omp_set_num_threads(threads);
    for (int run = 0; run < 8; run++) { // the first warms up
        double start = now();
        #pragma omp parallel
        kernel(n);
        double spent = now() - start;
        if (run && spent < best) best = spent;
    }
    printf("{\"name\":\"%s_%dT\",\"best\":%.2f,\"unit\":\"GFLOP/s\"}\n", name, threads, threads * work / best / 1e9);
    fflush(stdout);
}

// the clock, from a chain of multiplications that take three cycles each
static void clock_rate(void)
{
    long n = 400000000, x = 1;
    double start = now();
    for (long i = 0; i < n / 8; i++)
        UNROLL for (int j = 0; j < 8; j++) __asm__ volatile("imul %0,%0" : "+r"(x));
    printf("{\"name\":\"clock\",\"best\":%.3f,\"unit\":\"GHz\"}\n", 3.0 * n / (now() - start) / 1e9);
}

static void compute(int threads)
{
    enum { XTILEDATA = 18, ARCH_REQ_XCOMP_PERM = 0x1023 };
    int amx = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
    long n = 8000000, tiles = 1500000;
    if (__builtin_cpu_supports("avx512f")) arithmetic("fma_fp32_avx512", threads, fma_512, n, (double)n * WIDE * 16 * 2);
    if (__builtin_cpu_supports("avx2")) arithmetic("fma_fp32_avx2", threads, fma_256, 2 * n, 2.0 * n * NARROW * 8 * 2);
    if (__builtin_cpu_supports("avx512bf16")) arithmetic("dot_bf16_avx512", threads, dot_bf16, n, (double)n * WIDE * 32 * 2);
    if (amx) arithmetic("amx_bf16", threads, amx_bf16, tiles, (double)tiles * 4 * 16 * 16 * 32 * 2);
}

// ---------------------------------------------------------------- memory: a = b + s c over three arrays, and plain reading

typedef float Vector __attribute__((vector_size(64), may_alias));

enum { TRIAD, TRIAD_NT, READ, KINDS };

static void sweep(int kind, float *a, float *b, float *c, long low, long high)
{
    const Vector s = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
    Vector sum[4] = {0};
    if (kind == TRIAD)
        for (long i = low; i < high; i += 16) *(Vector *)(a + i) = *(Vector *)(b + i) + s * *(Vector *)(c + i);
    else if (kind == TRIAD_NT)
        for (long i = low; i < high; i += 16) {
            Vector v = *(Vector *)(b + i) + s * *(Vector *)(c + i);
            for (int part = 0; part < 4; part++) _mm_stream_ps(a + i + 4 * part, _mm_loadu_ps((float *)&v + 4 * part));
        }
    else {
        float *arrays[3] = {a, b, c};
        for (int w = 0; w < 3; w++)
            for (long i = low; i + 64 <= high; i += 64)
                UNROLL for (int lane = 0; lane < 4; lane++) sum[lane] += *(Vector *)(arrays[w] + i + 16 * lane);
        sink[omp_get_thread_num()] += (sum[0] + sum[1] + sum[2] + sum[3])[0];
    }
    __asm__ volatile("" ::: "memory");
}

static float *array_of(long n)
{
    return aligned_alloc(PAGE, (n * 4 + PAGE) & ~(PAGE - 1));
}

static void bandwidth(int threads, long working_set)
{
    long n = working_set / 12 / (64 * threads) * (64 * threads), per_thread = n / threads;
    long repeats = working_set > (1L << 30) ? 1 : (long)(1.5e9 / (n * 12)) + 1;
    float *a = array_of(n), *b = array_of(n), *c = array_of(n);
    double best[KINDS] = {1e9, 1e9, 1e9}, bytes = (double)repeats * n * 12;
    omp_set_num_threads(threads);
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        a[i] = 0;
        b[i] = 1;
        c[i] = 2;
    }
    for (int run = 0; run < 5; run++)
        for (int kind = 0; kind < KINDS; kind++) {
            double start = now();
            #pragma omp parallel
            for (long k = 0; k < repeats; k++) {
                long low = per_thread * omp_get_thread_num();
                sweep(kind, a, b, c, low, low + per_thread);
            }
            double spent = now() - start;
            if (spent < best[kind]) best[kind] = spent;
        }
    printf("{\"name\":\"bw_ws%ldKB_%dT\",\"triad\":%.1f,\"triad_nt\":%.1f,\"read\":%.1f,\"unit\":\"GB/s\"}\n", n * 12 / 1024, threads,
           bytes / best[TRIAD] / 1e9, bytes / best[TRIAD_NT] / 1e9, bytes / best[READ] / 1e9);
    fflush(stdout);
    free(a);
    free(b);
    free(c);
}

static void memory(int threads)
{
    bandwidth(threads, threads * (24L << 10)); // L1
    bandwidth(threads, threads * (1200L << 10)); // L2
    bandwidth(threads, 24L << 20); // L3
    bandwidth(threads, 96L << 20);
    bandwidth(threads, 384L << 20);
    bandwidth(threads, 3072L << 20); // DRAM
}

// fresh memory costs a page fault per page
static void first_touch(void)
{
    long bytes = 256L << 20;
    char *block = malloc(bytes);
    for (int time = 1; time <= 2; time++) {
        double start = now();
        memset(block, time, bytes);
        __asm__ volatile("" ::"r"(block) : "memory");
        printf("{\"name\":\"touch%d_256MB\",\"best\":%.2f,\"unit\":\"GB/s\"}\n", time, bytes / (now() - start) / 1e9);
    }
    free(block);
}

int main(int argc, char **argv)
{
    int most = omp_get_max_threads() < MAX_THREADS ? omp_get_max_threads() : MAX_THREADS;
    int counts[2] = {1, most}, kinds = most > 1 ? 2 : 1;
    int want_compute = argc < 2 || !strcmp(argv[1], "compute"), want_memory = argc < 2 || !strcmp(argv[1], "memory");
    clock_rate();
    for (int i = 0; i < kinds; i++) {
        if (want_compute) compute(counts[i]);
        if (want_memory) memory(counts[i]);
    }
    if (want_memory) first_touch();
    return 0;
}
