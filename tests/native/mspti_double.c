/* A C library with MSPTI's ABI and MSPTI's rules, for tests: fifteen functions, the locks and
 * threads of its buffer protocol, and switches for each odd behaviour (double.h).
 *
 * Lock B guards the current buffer and is taken by every record; lock C guards the queue of full
 * buffers and the list of worker threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double.h"

enum { QUEUE_LIMIT = 65536, WORKER_LIMIT = 32000, DOMAIN_LIMIT = 64, STACK_LIMIT = 64 };

typedef struct { uint8_t *data; size_t size, valid; } buffer;

static pthread_mutex_t lock_b = PTHREAD_MUTEX_INITIALIZER;
static buffer current;
static bool have_current;

static pthread_mutex_t lock_c = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_grew = PTHREAD_COND_INITIALIZER;
static buffer queue[QUEUE_LIMIT];
static size_t queue_head, queue_tail;
static pthread_t workers[WORKER_LIMIT];
static size_t worker_count;
static bool manager_started;

static pthread_mutex_t lock_held = PTHREAD_MUTEX_INITIALIZER;
static buffer held[QUEUE_LIMIT];
static size_t held_count;

static _Atomic(bufferRequest) request_callback;
static _Atomic(bufferComplete) complete_callback;
static atomic_bool subscribed, kind_enabled[KIND_COUNT], holding;
static atomic_uint refused[KIND_COUNT];
static atomic_ullong reported[KIND_COUNT], dropped, requests, completions, flushes;
static atomic_ullong correlation_ids;
static atomic_uint flush_period_ms;
static atomic_int enable_delay_ms, complete_threads = 1, truncate_bytes;
static bool no_manager, needs_cann;

static pthread_mutex_t lock_names = PTHREAD_MUTEX_INITIALIZER;
static char *disabled_domains[DOMAIN_LIMIT];
static uint64_t external_ids[8][STACK_LIMIT];
static size_t external_depth[8];
static int subscriber;

static int environment_int(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Opens a library of CANN as MSPTI does: by ASCEND_HOME_PATH if readable, else by name. */
static void open_or_abort(const char *name) {
    char path[4096];
    const char *home = getenv("ASCEND_HOME_PATH");
    snprintf(path, sizeof path, "%s/lib64/%s", home ? home : "", name);
    bool readable = home && !access(path, R_OK);
    if (!dlopen(readable ? path : name, RTLD_LAZY)) abort();
}

__attribute__((constructor)) static void read_environment(void) {
    no_manager = environment_int("MSPTI_DOUBLE_NO_MANAGER", 0);
    enable_delay_ms = environment_int("MSPTI_DOUBLE_ENABLE_DELAY_MS", 0);
    complete_threads = environment_int("MSPTI_DOUBLE_COMPLETE_THREADS", 1);
    truncate_bytes = environment_int("MSPTI_DOUBLE_TRUNCATE", 0);
    const char *kinds = getenv("MSPTI_DOUBLE_REFUSE");
    for (char *rest = (char *)kinds; rest && *rest; rest += strspn(rest, ",")) {
        unsigned long kind = strtoul(rest, &rest, 10);
        if (kind < KIND_COUNT) refused[kind] = MSPTI_ERROR_INNER;
    }
    needs_cann = environment_int("MSPTI_DOUBLE_NEEDS_CANN", 0);
    if (needs_cann) open_or_abort("libprofapi.so"), open_or_abort("libascendalog.so");
}

/* ---- switches and counters for tests ---- */

MSPTI_EXPORT void double_lose_manager(bool lost) { no_manager = lost; }
MSPTI_EXPORT void double_set_enable_delay_ms(int ms) { enable_delay_ms = ms; }
MSPTI_EXPORT void double_refuse_kind(uint32_t kind, uint32_t result) { refused[kind] = result; }
MSPTI_EXPORT void double_set_complete_threads(int count) { complete_threads = count; }
MSPTI_EXPORT void double_truncate(int bytes) { truncate_bytes = bytes; }
MSPTI_EXPORT uint64_t double_emitted(uint32_t kind) { return reported[kind]; }
MSPTI_EXPORT uint64_t double_dropped(void) { return dropped; }
MSPTI_EXPORT uint64_t double_requests(void) { return requests; }
MSPTI_EXPORT uint64_t double_completions(void) { return completions; }
MSPTI_EXPORT uint64_t double_flushes(void) { return flushes; }
MSPTI_EXPORT uint32_t double_flush_period_ms(void) { return flush_period_ms; }
MSPTI_EXPORT bool double_subscribed(void) { return subscribed; }

/* While holding, buffers that would be completed are kept back, also by FlushAll. */
MSPTI_EXPORT void double_hold_completions(bool hold) { holding = hold; }

/* ---- completing buffers ---- */

typedef struct { buffer item; pthread_barrier_t *together; } completion;

static void *complete_once(void *argument) {
    completion *job = argument;
    if (job->together) pthread_barrier_wait(job->together);
    bufferComplete complete = complete_callback;
    complete(job->item.data, job->item.size, job->item.valid);
    return NULL;
}

static void complete_buffer(buffer item) {
    if (holding) {
        pthread_mutex_lock(&lock_held);
        held[held_count++] = item;
        pthread_mutex_unlock(&lock_held);
        return;
    }
    size_t cut = (size_t)truncate_bytes;
    item.valid -= cut < item.valid ? cut : item.valid;
    completions++;
    int threads = complete_threads;
    if (threads <= 1) {
        complete_once(&(completion){item, NULL});
        return;
    }
    pthread_t ids[threads];
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    completion job = {item, &together};
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, complete_once, &job);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&together);
}

static void *deliver_held(void *reverse) {
    pthread_mutex_lock(&lock_held);
    for (size_t i = 0; i < held_count; i++) {
        complete_buffer(held[reverse ? held_count - 1 - i : i]);
    }
    held_count = 0;
    pthread_mutex_unlock(&lock_held);
    return NULL;
}

/* Completes what was held back, on a new native thread; returns how many buffers. */
MSPTI_EXPORT size_t double_deliver_held(bool reverse) {
    holding = false;
    size_t count = held_count;
    pthread_t id;
    pthread_create(&id, NULL, deliver_held, reverse ? &held_count : NULL);
    pthread_join(id, NULL);
    return count;
}

/* Asks for a buffer and completes it with nothing in it. */
MSPTI_EXPORT void double_complete_empty(void) {
    buffer item = {0};
    size_t ignored = 0;
    bufferRequest request = request_callback;
    requests++;
    request(&item.data, &item.size, &ignored);
    complete_buffer(item);
}

static void *work(void *argument) {
    buffer item = *(buffer *)argument;
    free(argument);
    complete_buffer(item);
    return NULL;
}

/* The ActivityManager thread: one new native thread per full buffer. */
static void *manage(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock_c);
    for (;;) {
        while (queue_head == queue_tail) pthread_cond_wait(&queue_grew, &lock_c);
        buffer *item = malloc(sizeof *item);
        *item = queue[queue_head++ % QUEUE_LIMIT];
        if (worker_count == WORKER_LIMIT) abort(); /* MSPTI: std::system_error, SIGABRT */
        if (pthread_create(&workers[worker_count++], NULL, work, item)) abort();
    }
}

/* ---- recording ---- */

static void rotate(void) { /* with lock B */
    if (have_current) {
        pthread_mutex_lock(&lock_c);
        queue[queue_tail++ % QUEUE_LIMIT] = current;
        pthread_cond_signal(&queue_grew);
        pthread_mutex_unlock(&lock_c);
    }
    size_t ignored = 0;
    current = (buffer){0};
    bufferRequest request = request_callback;
    requests++;
    request(&current.data, &current.size, &ignored);
    have_current = true;
}

void double_report(const void *record, size_t size) {
    uint32_t kind = *(const uint32_t *)record;
    pthread_mutex_lock(&lock_b);
    if (!have_current || (float)current.valid >= 0.8f * (float)current.size) rotate();
    if (current.data && current.valid + size <= current.size) {
        memcpy(current.data + current.valid, record, size);
        current.valid += size;
    } else {
        dropped++;
    }
    pthread_mutex_unlock(&lock_b);
    if (kind < KIND_COUNT) reported[kind]++;
}

bool double_collects(uint32_t kind) {
    return subscribed && request_callback && kind < KIND_COUNT && kind_enabled[kind];
}

uint64_t double_new_correlation_id(void) {
    uint64_t id = ++correlation_ids;
    if (!double_collects(KIND_EXTERNAL_CORRELATION)) return id;
    for (uint32_t kind = 0; kind < 8; kind++) {
        pthread_mutex_lock(&lock_names);
        size_t depth = external_depth[kind];
        uint64_t external = depth ? external_ids[kind][depth - 1] : 0;
        pthread_mutex_unlock(&lock_names);
        msptiActivityExternalCorrelation record = {KIND_EXTERNAL_CORRELATION, kind, external, id};
        if (depth) double_report(&record, sizeof record);
    }
    return id;
}

/* ---- the fifteen functions ---- */

/* MSPTI only looks for the text in LD_PRELOAD, once. */
static bool preloaded(void) {
    static atomic_int known = -1;
    if (known < 0) {
        const char *text = getenv("LD_PRELOAD");
        known = text && strstr(text, "libmspti.so");
    }
    return known;
}

MSPTI_EXPORT msptiResult msptiActivityRegisterCallbacks(bufferRequest request,
                                                        bufferComplete complete) {
    if (!request || !complete) return MSPTI_ERROR_INVALID_PARAMETER;
    complete_callback = complete;
    request_callback = request;
    pthread_mutex_lock(&lock_c);
    bool start = !manager_started;
    manager_started = true;
    pthread_mutex_unlock(&lock_c);
    pthread_t id;
    if (start && !no_manager && !pthread_create(&id, NULL, manage, NULL)) pthread_detach(id);
    return MSPTI_SUCCESS;
}

static void delay_enable(void) {
    int ms = enable_delay_ms;
    while (ms < 0) pause();
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

MSPTI_EXPORT msptiResult msptiActivityEnable(msptiActivityKind kind) {
    if (kind == 0 || kind >= KIND_COUNT) return MSPTI_ERROR_INVALID_PARAMETER;
    if (kind >= KIND_HCCL && kind <= KIND_MEMCPY && !preloaded()) {
        return MSPTI_ERROR_WITHOUT_LD_PRELOAD;
    }
    delay_enable();
    if (refused[kind]) return refused[kind];
    kind_enabled[kind] = true;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityDisable(msptiActivityKind kind) {
    if (kind == 0 || kind >= KIND_COUNT) return MSPTI_ERROR_INVALID_PARAMETER;
    kind_enabled[kind] = false;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT bool msptiActivityIsEnabled(msptiActivityKind kind) {
    if (kind >= KIND_COUNT) abort(); /* MSPTI reads past its array */
    return kind_enabled[kind];
}

static msptiResult switch_domain(const char *name, bool enable) {
    if (!name || strlen(name) >= 255) return MSPTI_ERROR_INVALID_PARAMETER;
    pthread_mutex_lock(&lock_names);
    size_t i = 0;
    while (i < DOMAIN_LIMIT - 1 && disabled_domains[i] && strcmp(disabled_domains[i], name)) i++;
    if (enable && disabled_domains[i]) disabled_domains[i][0] = '\0';
    if (!enable && !disabled_domains[i]) disabled_domains[i] = strdup(name);
    pthread_mutex_unlock(&lock_names);
    return MSPTI_SUCCESS;
}

bool double_domain_enabled(const char *domain) {
    bool enabled = true;
    pthread_mutex_lock(&lock_names);
    for (size_t i = 0; i < DOMAIN_LIMIT && disabled_domains[i]; i++) {
        if (*domain && !strcmp(disabled_domains[i], domain)) enabled = false;
    }
    pthread_mutex_unlock(&lock_names);
    return enabled;
}

MSPTI_EXPORT msptiResult msptiActivityEnableMarkerDomain(const char *name) {
    return switch_domain(name, true);
}

MSPTI_EXPORT msptiResult msptiActivityDisableMarkerDomain(const char *name) {
    return switch_domain(name, false);
}

/* The position is thread-local and only forgotten at the end, as in MSPTI. */
MSPTI_EXPORT msptiResult msptiActivityGetNextRecord(uint8_t *data, size_t valid, uint8_t **record) {
    static _Thread_local size_t position;
    if (!data) return MSPTI_ERROR_INVALID_PARAMETER;
    if (position >= valid) {
        position = 0;
        return MSPTI_ERROR_MAX_LIMIT_REACHED;
    }
    size_t size = double_record_size(*(uint32_t *)(data + position));
    if (!size) return MSPTI_ERROR_INNER;
    *record = data + position;
    position += size;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    flushes++;
    for (;;) { /* step 1: every full buffer, no lock held */
        pthread_mutex_lock(&lock_c);
        bool empty = queue_head == queue_tail;
        buffer item = empty ? (buffer){0} : queue[queue_head++ % QUEUE_LIMIT];
        pthread_mutex_unlock(&lock_c);
        if (empty) break;
        complete_buffer(item);
    }
    pthread_mutex_lock(&lock_c); /* step 2: join all workers with lock C */
    while (worker_count) pthread_join(workers[--worker_count], NULL);
    pthread_mutex_unlock(&lock_c);
    pthread_mutex_lock(&lock_b); /* step 3: the current buffer with lock B */
    if (have_current) complete_buffer(current);
    have_current = false;
    pthread_mutex_unlock(&lock_b);
    return MSPTI_SUCCESS;
}

/* Full buffers are delivered anyway: the period has no effect that a caller can see. */
MSPTI_EXPORT msptiResult msptiActivityFlushPeriod(uint32_t ms) {
    flush_period_ms = ms;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
    pthread_mutex_lock(&lock_names);
    if (kind < 8 && external_depth[kind] < STACK_LIMIT) {
        external_ids[kind][external_depth[kind]++] = id;
    }
    pthread_mutex_unlock(&lock_names);
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last) {
    if (!last) return MSPTI_ERROR_INVALID_PARAMETER;
    msptiResult result = MSPTI_ERROR_QUEUE_EMPTY;
    pthread_mutex_lock(&lock_names);
    if (kind < 8 && external_depth[kind]) {
        *last = external_ids[kind][--external_depth[kind]];
        result = MSPTI_SUCCESS;
    }
    pthread_mutex_unlock(&lock_names);
    return result;
}

MSPTI_EXPORT msptiResult msptiSubscribe(msptiSubscriberHandle *out, msptiCallbackFunc callback,
                                        void *userdata) {
    (void)callback;
    (void)userdata;
    if (!out) return MSPTI_ERROR_INVALID_PARAMETER;
    if (needs_cann) open_or_abort("libascend_hal.so");
    if (atomic_exchange(&subscribed, true)) return MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *out = &subscriber;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiUnsubscribe(msptiSubscriberHandle handle) {
    if (!subscribed) return MSPTI_SUCCESS;
    if (handle != &subscriber) return MSPTI_ERROR_INVALID_PARAMETER;
    subscribed = false;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiEnableCallback(uint32_t enable, msptiSubscriberHandle handle,
                                             uint32_t domain, uint32_t cbid) {
    (void)enable;
    if (!preloaded()) return MSPTI_ERROR_WITHOUT_LD_PRELOAD;
    bool known = handle == &subscriber && domain >= 1 && domain <= 2 && cbid < 64;
    return known ? MSPTI_SUCCESS : MSPTI_ERROR_INVALID_PARAMETER;
}

MSPTI_EXPORT msptiResult msptiEnableDomain(uint32_t enable, msptiSubscriberHandle handle,
                                           uint32_t domain) {
    return msptiEnableCallback(enable, handle, domain, 0);
}
