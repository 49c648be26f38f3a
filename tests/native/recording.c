/* Records for the C library double: native threads that record at a rate, records from the
 * calling thread, and buffers full of records for benchmarks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double.h"

enum { NAME_COUNT = 64, NAME_BYTES = 32, THREAD_LIMIT = 64, MIX_LIMIT = 4096 };

static char kernel_names[NAME_COUNT][NAME_BYTES];
static char api_names[NAME_COUNT][NAME_BYTES];
static atomic_ullong marker_ids;

typedef struct { uint64_t number, open_marker; uint32_t thread; } recorder;

__attribute__((constructor)) static void make_names(void) {
    for (int i = 0; i < NAME_COUNT; i++) {
        snprintf(kernel_names[i], NAME_BYTES, i % 4 ? "Kernel_%d" : "MatMul_%d", i);
        snprintf(api_names[i], NAME_BYTES, "aclnnApi_%d", i);
    }
}

size_t double_record_size(uint32_t kind) {
    switch (kind) {
    case KIND_MARKER: return sizeof(msptiActivityMarker);
    case KIND_KERNEL: return sizeof(msptiActivityKernel);
    case KIND_API: case KIND_ACL_API: case KIND_NODE_API: case KIND_RUNTIME_API:
        return sizeof(msptiActivityApi);
    case KIND_HCCL: return sizeof(msptiActivityHccl);
    case KIND_MEMORY: return sizeof(msptiActivityMemory);
    case KIND_MEMSET: return sizeof(msptiActivityMemset);
    case KIND_MEMCPY: return sizeof(msptiActivityMemcpy);
    case KIND_EXTERNAL_CORRELATION: return sizeof(msptiActivityExternalCorrelation);
    case KIND_COMMUNICATION: return sizeof(msptiActivityCommunication);
    default: return 0;
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill_marker(msptiActivityMarker *record, recorder *by, uint64_t now) {
    bool ends = by->open_marker;
    uint64_t id = ends ? by->open_marker : ++marker_ids;
    by->open_marker = ends ? 0 : id;
    *record = (msptiActivityMarker){KIND_MARKER, ends ? FLAG_END : FLAG_START, 0, now, id,
                                    {.pt = {(uint32_t)getpid(), by->thread}},
                                    ends ? "" : "step", ends ? "" : "default"};
}

static void fill(anyRecord *record, uint32_t kind, recorder *by, uint64_t correlation) {
    uint64_t end = now_ns(), n = by->number++;
    uint64_t start = end - 1000 - 10 * (n % NAME_COUNT);
    const char *name = kernel_names[n % NAME_COUNT];
    msptiDeviceStream ds = {0, (uint32_t)(n % 4)};
    msptiProcessThread pt = {(uint32_t)getpid(), by->thread};
    switch (kind) {
    case KIND_MARKER: fill_marker(&record->marker, by, end); break;
    case KIND_KERNEL:
        record->kernel = (msptiActivityKernel){kind, start, end, ds, correlation, "KERNEL_AICORE", name};
        break;
    case KIND_HCCL:
        record->hccl = (msptiActivityHccl){kind, start, end, ds, 25.5, "HcclAllReduce", "world"};
        break;
    case KIND_MEMORY:
        record->memory = (msptiActivityMemory){kind, n % 2, 1, correlation, start, end,
                                               0x1000 + n, 512, pt.processId, 0, INVALID_ID};
        break;
    case KIND_MEMSET:
        record->memset_ = (msptiActivityMemset){kind, 0, 512, start, end, 0, 1, correlation, 1};
        break;
    case KIND_MEMCPY:
        record->memcpy_ = (msptiActivityMemcpy){kind, 2, 512, start, end, 0, 1, correlation, 1};
        break;
    case KIND_EXTERNAL_CORRELATION:
        record->external = (msptiActivityExternalCorrelation){kind, 2, n, correlation};
        break;
    case KIND_COMMUNICATION:
        record->communication = (msptiActivityCommunication){
            kind, 4, 1024, ds, start, end, "RING", "hcom_allReduce_", "world", correlation};
        break;
    default:
        record->api = (msptiActivityApi){kind, start, end, pt, correlation, api_names[n % NAME_COUNT]};
    }
}

static void record_one(uint32_t kind, recorder *by) {
    if (!double_collects(kind)) return;
    if (kind == KIND_MARKER && !double_domain_enabled("default")) return;
    anyRecord record;
    fill(&record, kind, by, double_new_correlation_id());
    double_report(&record, double_record_size(kind));
}

/* Records `count` times on the calling thread. */
MSPTI_EXPORT void double_record(uint32_t kind, uint64_t count) {
    static _Thread_local recorder by;
    by.thread = (uint32_t)gettid();
    while (count--) record_one(kind, &by);
}

/* Records one kernel with this name (kept for ever; NULL stays NULL) and these times. */
MSPTI_EXPORT void double_record_kernel(const char *name, uint64_t start, uint64_t end) {
    if (!double_collects(KIND_KERNEL)) return;
    msptiActivityKernel record = {KIND_KERNEL, start, end, {0, 0}, double_new_correlation_id(),
                                  "KERNEL_AICORE", name ? strdup(name) : NULL};
    double_report(&record, sizeof record);
}

/* Records one host marker with this name and domain (kept for ever). */
MSPTI_EXPORT void double_record_marker(const char *name, const char *domain, uint32_t flag,
                                       uint64_t id, uint64_t timestamp) {
    if (!double_collects(KIND_MARKER) || !double_domain_enabled(domain)) return;
    msptiActivityMarker record = {KIND_MARKER, flag, 0, timestamp, id,
                                  {.pt = {(uint32_t)getpid(), (uint32_t)gettid()}},
                                  strdup(name), strdup(domain)};
    double_report(&record, sizeof record);
}

/* Puts 56 bytes into the buffer that begin with any kind, known or not. */
MSPTI_EXPORT void double_record_unknown(uint32_t kind) {
    uint32_t record[14] = {kind};
    double_report(record, sizeof record);
}

/* ---- native recording threads ---- */

static pthread_t threads[THREAD_LIMIT];
static size_t thread_count;
static uint32_t mix[MIX_LIMIT];
static size_t mix_length;
static uint64_t per_second, per_thread;
static atomic_bool stopping;

static void sleep_until(const struct timespec *start, uint64_t after_ns) {
    uint64_t at = (uint64_t)start->tv_nsec + after_ns;
    struct timespec until = {start->tv_sec + (time_t)(at / 1000000000u), (long)(at % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void *record_many(void *unused) {
    (void)unused;
    recorder by = {.thread = (uint32_t)gettid()};
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t burst = per_second / 1000 + 1;
    for (uint64_t i = 0; !stopping && (!per_thread || i < per_thread); i++) {
        if (per_second && i % burst == 0) sleep_until(&start, i * 1000000000u / per_second);
        record_one(mix[i % mix_length], &by);
    }
    return NULL;
}

/* Starts `count` native threads; each records the kinds in turn, `records_each` times (0: until
 * stopped), at `records_per_second` (0: as fast as it can). */
MSPTI_EXPORT void double_start_recording(size_t count, uint64_t records_per_second,
                                         const uint32_t *kinds, size_t kind_count,
                                         uint64_t records_each) {
    if (count > THREAD_LIMIT || !kind_count || kind_count > MIX_LIMIT) abort();
    memcpy(mix, kinds, kind_count * sizeof *kinds);
    mix_length = kind_count;
    per_second = records_per_second;
    per_thread = records_each;
    stopping = false;
    for (thread_count = 0; thread_count < count; thread_count++) {
        if (pthread_create(&threads[thread_count], NULL, record_many, NULL)) abort();
    }
}

/* Waits until every thread has recorded all it was told to. */
MSPTI_EXPORT void double_join_recording(void) {
    while (thread_count) pthread_join(threads[--thread_count], NULL);
}

MSPTI_EXPORT void double_stop_recording(void) {
    stopping = true;
    double_join_recording();
}

/* ---- bytes without MSPTI ---- */

/* Fills memory with `count` records of the kinds in turn; returns the bytes written. */
MSPTI_EXPORT size_t double_fill(uint8_t *data, size_t size, const uint32_t *kinds,
                                size_t kind_count, uint64_t count) {
    recorder by = {.thread = (uint32_t)gettid()};
    size_t written = 0;
    for (uint64_t i = 0; i < count; i++) {
        anyRecord record;
        size_t bytes = double_record_size(kinds[i % kind_count]);
        if (written + bytes > size) break;
        fill(&record, kinds[i % kind_count], &by, i + 1);
        memcpy(data + written, &record, bytes);
        written += bytes;
    }
    return written;
}
