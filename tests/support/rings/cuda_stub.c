/* A libcuda.so.1 without a GPU: loads cubins as far as their ELF headers and section names go, keeps contexts per thread, logs the
 * calls that matter and hands launches to a callback. As strict as the driver where a caller's mistake would only show on a GPU: no
 * call without a context, functions and streams in their own context only, nothing that waits or allocates during a capture, nothing
 * in a forked child. The stub_ functions are for the test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
       CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906, UNKNOWN = 999 };

static const struct { int code; const char *name, *words; } statuses[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

typedef struct { int device; } context;
typedef struct { context *home; int capturing, invalid; } stream;
typedef struct { context *home; double when; } event;
typedef struct { context *home; char *image; size_t size; int loaded; } module;
typedef struct { module *home; char name[200]; int dynamic; } function;
typedef int (*callback)(const char *symbol, const unsigned *grid, const unsigned *block, unsigned shared, uint64_t stream, void **params);

static context contexts[8];
static int devices = 2, started, forked, retained, threads_limit = 1024;
static __thread context *stack[64];
static __thread int depth;
static stream *capture; /* at most one at a time */
static callback on_launch;
static char failing[100];
static int failing_status, quiet;
static char *log_text;
static size_t log_size, log_used;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *format, ...) {
    if (quiet) return;
    pthread_mutex_lock(&log_lock);
    if (log_size - log_used < 1000) log_text = realloc(log_text, log_size += 100000);
    va_list list;
    va_start(list, format);
    log_used += vsnprintf(log_text + log_used, 1000, format, list);
    va_end(list);
    pthread_mutex_unlock(&log_lock);
}

const char *stub_log(void) { return log_text ? log_text : ""; }
void stub_clear(void) { log_used = 0; if (log_text) *log_text = 0; }
void stub_quiet(int on) { quiet = on; }
void stub_on_launch(callback function) { on_launch = function; }
void stub_devices(int number) { devices = number; }
void stub_threads(int most) { threads_limit = most; }
int stub_depth(void) { return depth; }
int stub_retained(void) { return retained; }
/* The next call of the function answers with the status. */
void stub_fail(const char *name, int status) { snprintf(failing, sizeof failing, "%s", name), failing_status = status; }

static int asked_to_fail(const char *name) {
    if (!failing_status || strcmp(name, failing)) return 0;
    int status = failing_status;
    failing_status = 0;
    return status;
}

static context *current(void) { return depth ? stack[depth - 1] : NULL; }

#define START if (asked_to_fail_at(__func__)) return failed
static __thread int failed;
static int asked_to_fail_at(const char *name) {
    failed = !started || forked ? NOT_INITIALIZED : asked_to_fail(name);
    return failed;
}
#define IN_CONTEXT START; if (!current()) return INVALID_CONTEXT
#define NOT_CAPTURED if (capture) return capture->invalid = 1, CAPTURE_UNSUPPORTED

/* ------------------------------------------------------------------ the process, devices, contexts */

static void in_child(void) { forked = 1; }
int cuInit(unsigned flags) {
    if (forked) return NOT_INITIALIZED;
    int status = asked_to_fail("cuInit");
    if (status) return status;
    if (!started++) pthread_atfork(NULL, NULL, in_child);
    return devices ? OK : NO_DEVICE;
}
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
static const char *describe(int code, int words) {
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].code == code) return words ? statuses[i].words : statuses[i].name;
    return NULL;
}
int cuGetErrorName(int code, const char **text) { *text = describe(code, 0); return *text ? OK : INVALID_VALUE; }
int cuGetErrorString(int code, const char **text) { *text = describe(code, 1); return *text ? OK : INVALID_VALUE; }
int cuDeviceGetCount(int *count) { START; *count = devices; return OK; }
int cuDeviceGet(int *device, int ordinal) {
    START;
    if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
int cuDeviceGetName(char *name, int size, int device) { START; snprintf(name, size, "Stub %d", device); return OK; }
/* Device 0 has the limits of an H100, the others those of an A100. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    START;
    switch (attribute) {
    case 1: *value = 1024; break;
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;
    case 10: *value = 32; break;
    case 12: case 82: *value = 65536; break;
    case 16: *value = device ? 108 : 132; break;
    case 39: *value = 2048; break;
    case 75: *value = device ? 8 : 9; break;
    case 76: *value = 0; break;
    case 97: *value = device ? 166912 : 232448; break;
    case 106: *value = 32; break;
    default: *value = 1;
    }
    return OK;
}
int cuDeviceComputeCapability(int *major, int *minor, int device) { *major = device ? 8 : 9, *minor = 0; return OK; }
int cuDevicePrimaryCtxRetain(context **result, int device) {
    START;
    contexts[device].device = device, retained++;
    *result = &contexts[device];
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) { retained--; return OK; }
int cuCtxPushCurrent_v2(context *pushed) { START; stack[depth++] = pushed; return OK; }
int cuCtxPopCurrent_v2(context **popped) {
    IN_CONTEXT;
    depth--;
    if (popped) *popped = stack[depth];
    return OK;
}
int cuCtxSetCurrent(context *set) {
    START;
    if (depth) stack[depth - 1] = set;
    else stack[depth++] = set;
    return OK;
}
int cuCtxGetCurrent(context **result) { START; *result = current(); return OK; }
int cuCtxGetDevice(int *device) { IN_CONTEXT; *device = current()->device; return OK; }
int cuCtxSynchronize(void) {
    IN_CONTEXT;
    NOT_CAPTURED;
    note("synchronize %d\n", current()->device);
    return OK;
}

/* ------------------------------------------------------------------ modules */

static int load(module **result, const void *data) {
    NOT_CAPTURED;
    const unsigned char *image = data;
    uint16_t machine, count, entry;
    uint32_t flags;
    uint64_t sections;
    if (memcmp(image, "\177ELF", 4)) return INVALID_IMAGE;
    memcpy(&machine, image + 18, 2), memcpy(&sections, image + 40, 8), memcpy(&flags, image + 48, 4);
    memcpy(&entry, image + 58, 2), memcpy(&count, image + 60, 2);
    if (machine != 190) return INVALID_IMAGE;
    int wanted = current()->device ? 80 : 90;
    if ((int)(flags >> 8 & 255) != wanted && (int)(flags & 255) != wanted) return NO_BINARY; /* CUDA 13 has it here, CUDA 12 there */
    module *made = calloc(1, sizeof *made);
    made->home = current(), made->size = sections + (size_t)entry * count, made->loaded = 1;
    made->image = malloc(made->size);
    memcpy(made->image, data, made->size);
    note("load %d\n", current()->device);
    *result = made;
    return OK;
}
int cuModuleLoadData(module **result, const void *data) { IN_CONTEXT; return load(result, data); }
int cuModuleLoadDataEx(module **result, const void *data, unsigned count, void *options, void *values) {
    IN_CONTEXT;
    return load(result, data);
}
int cuModuleUnload(module *unloaded) {
    IN_CONTEXT;
    if (current() != unloaded->home || !unloaded->loaded) return INVALID_HANDLE;
    unloaded->loaded = 0;
    note("unload %d\n", current()->device);
    return OK;
}
int cuModuleGetFunction(function **result, module *home, const char *name) {
    IN_CONTEXT;
    char section[220];
    int length = snprintf(section, sizeof section, ".text.%s", name);
    if (!memmem(home->image, home->size, section, length + 1)) return NOT_FOUND;
    function *made = calloc(1, sizeof *made);
    made->home = home;
    snprintf(made->name, sizeof made->name, "%s", name);
    *result = made;
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, function *f) {
    IN_CONTEXT;
    *value = attribute == 0 ? threads_limit : attribute == 4 ? 32 : attribute == 8 ? f->dynamic : 0;
    return OK;
}
int cuFuncSetAttribute(function *f, int attribute, int value) {
    IN_CONTEXT;
    note("set %s %d=%d\n", f->name, attribute, value);
    if (attribute == 8) f->dynamic = value;
    return OK;
}

/* ------------------------------------------------------------------ streams, events, launches */

int cuStreamCreate(stream **result, unsigned flags) {
    IN_CONTEXT;
    stream *made = calloc(1, sizeof *made);
    made->home = current();
    *result = made;
    return OK;
}
int cuStreamDestroy_v2(stream *s) { return OK; }
static int legacy(stream *s) { return (uintptr_t)s < 2; }
/* What may be put into a stream now: its context is current, and the default stream does not meet a capture. */
static int usable(stream *s) {
    if (legacy(s)) return capture ? capture->invalid = 1, CAPTURE_IMPLICIT : OK;
    if (s->home != current()) return INVALID_HANDLE;
    return s->invalid ? CAPTURE_INVALIDATED : OK;
}
int cuStreamIsCapturing(stream *s, int *status) {
    IN_CONTEXT;
    if (legacy(s)) return *status = 0, capture ? CAPTURE_IMPLICIT : OK;
    *status = s == capture;
    return OK;
}
int cuStreamBeginCapture_v2(stream *s, int mode) { IN_CONTEXT; s->invalid = 0, capture = s; return OK; }
int cuStreamEndCapture(stream *s, void **graph) {
    capture = NULL;
    int invalid = s->invalid;
    s->invalid = 0, *graph = NULL;
    return invalid ? CAPTURE_INVALIDATED : OK;
}
int cuStreamSynchronize(stream *s) { IN_CONTEXT; NOT_CAPTURED; return OK; }
int cuStreamWaitEvent(stream *s, event *e, unsigned flags) {
    IN_CONTEXT;
    int status = usable(s);
    if (status) return status;
    note("wait %s\n", legacy(s) ? "default" : "side");
    return OK;
}
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
int cuEventCreate(event **result, unsigned flags) {
    IN_CONTEXT;
    event *made = calloc(1, sizeof *made);
    made->home = current();
    *result = made;
    return OK;
}
int cuEventDestroy_v2(event *e) { START; free(e); return OK; }
int cuEventRecord(event *e, stream *s) {
    IN_CONTEXT;
    if (e->home != current()) return INVALID_HANDLE;
    int status = usable(s);
    if (status) return status;
    e->when = seconds();
    note("record %s\n", legacy(s) ? "default" : "side");
    return OK;
}
int cuEventSynchronize(event *e) { IN_CONTEXT; NOT_CAPTURED; return OK; }
int cuEventElapsedTime_v2(float *ms, event *start, event *end) { START; *ms = (float)(1e3 * (end->when - start->when)); return OK; }

int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s,
                   void **params, void **extra) {
    IN_CONTEXT;
    if (f->home->home != current() || !f->home->loaded) return INVALID_HANDLE;
    int status = usable(s);
    if (status) return status;
    if (shared > 49152 && shared > (unsigned)f->dynamic) return INVALID_VALUE;
    note("launch %s %u,%u,%u %u,%u,%u shared %u device %d %s%s\n", f->name, gx, gy, gz, bx, by, bz, shared, current()->device,
         legacy(s) ? "default" : "side", !legacy(s) && s == capture ? " captured" : "");
    if (!on_launch) return OK;
    void *slots[64];
    if (!params) { /* 64-bit words in one buffer: {1, buffer, 2, size, 0} */
        size_t size = *(size_t *)extra[3];
        for (size_t i = 0; i < size / 8; i++) slots[i] = (char *)extra[1] + 8 * i;
        params = slots;
    }
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return on_launch(f->name, grid, block, shared, (uintptr_t)s, params);
}

/* ------------------------------------------------------------------ memory */

int cuMemHostAlloc(void **result, size_t bytes, unsigned flags) {
    IN_CONTEXT;
    NOT_CAPTURED;
    note("pinned %zu flags %u\n", bytes, flags);
    *result = malloc(bytes);
    memset(*result, 0xff, bytes);
    return OK;
}
int cuMemHostGetDevicePointer_v2(uint64_t *result, void *host, unsigned flags) { IN_CONTEXT; *result = (uintptr_t)host; return OK; }
int cuMemFreeHost(void *host) { IN_CONTEXT; note("free\n"); free(host); return OK; }

/* ------------------------------------------------------------------ how others find all this */

/* NVRTC asks for the driver's cache of compiled code, and lives without an answer, though not without the function. */
int cuGetExportTable(const void **table, const void *id) { *table = NULL; return NOT_FOUND; }

int cuGetProcAddress_v2(const char *symbol, void **result, int version, uint64_t flags, int *status) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    char name[200];
    *result = NULL;
    for (int i = 0; i < 4 && !*result; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        *result = dlsym(self, name);
    }
    if (status) *status = *result ? 0 : 1;
    return *result ? OK : NOT_FOUND;
}
