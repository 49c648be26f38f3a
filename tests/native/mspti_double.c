/* A C library with MSPTI's ABI and MSPTI's rules, for tests: subscription, kinds, domains,
 * external ids, and the switches for odd behaviour (double.h). Buffers are in buffers.c. */
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

enum { DOMAIN_LIMIT = 64, STACK_LIMIT = 64, EXTERNAL_KINDS = 8 };

static atomic_bool subscribed, kind_enabled[KIND_COUNT];
static atomic_uint refused[KIND_COUNT], flush_period_ms;
static atomic_ullong correlation_ids;
static atomic_int enable_delay_ms, unsubscribe_delay_ms, disable_delay_ms, calls_inside;
static bool needs_cann;
static int subscriber;

static pthread_mutex_t lock_names = PTHREAD_MUTEX_INITIALIZER;
static struct { char *name; bool disabled; } domains[DOMAIN_LIMIT];
static uint64_t external_ids[EXTERNAL_KINDS][STACK_LIMIT];
static size_t external_depth[EXTERNAL_KINDS];

int double_environment(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Looks up a function of CANN as MSPTI does: in the library by ASCEND_HOME_PATH if that is
 * readable, else by name. MSPTI throws where there is none, which ends the process. */
static void find_or_abort(const char *library, const char *function) {
    if (!needs_cann) return;
    char path[4096];
    const char *home = getenv("ASCEND_HOME_PATH");
    snprintf(path, sizeof path, "%s/lib64/%s", home ? home : "", library);
    bool readable = home && !access(path, R_OK);
    void *handle = dlopen(readable ? path : library, RTLD_LAZY);
    if (!handle || !dlsym(handle, function)) abort();
}

__attribute__((constructor)) static void read_environment(void) {
    enable_delay_ms = double_environment("MSPTI_DOUBLE_ENABLE_DELAY_MS", 0);
    disable_delay_ms = double_environment("MSPTI_DOUBLE_DISABLE_DELAY_MS", 0);
    unsubscribe_delay_ms = double_environment("MSPTI_DOUBLE_UNSUBSCRIBE_DELAY_MS", 0);
    const char *kinds = getenv("MSPTI_DOUBLE_REFUSE");
    for (char *rest = (char *)kinds; rest && *rest; rest += strspn(rest, ",")) {
        unsigned long kind = strtoul(rest, &rest, 10);
        if (kind < KIND_COUNT) refused[kind] = MSPTI_ERROR_INNER;
    }
    needs_cann = double_environment("MSPTI_DOUBLE_NEEDS_CANN", 0);
    find_or_abort("libprofapi.so", "MsprofRegisterProfileCallback");
    find_or_abort("libascendalog.so", "CheckLogLevelForC");
}

/* MSPTI's static destructors take away what a call that has not returned still uses. */
__attribute__((destructor)) static void end_library(void) {
    if (calls_inside) abort();
}

MSPTI_EXPORT void double_set_enable_delay_ms(int ms) { enable_delay_ms = ms; }
MSPTI_EXPORT void double_refuse_kind(uint32_t kind, uint32_t result) { refused[kind] = result; }
MSPTI_EXPORT uint32_t double_flush_period_ms(void) { return flush_period_ms; }
MSPTI_EXPORT bool double_subscribed(void) { return subscribed; }

bool double_collects(uint32_t kind) {
    return subscribed && double_registered() && kind < KIND_COUNT && kind_enabled[kind];
}

uint64_t double_new_correlation_id(void) {
    uint64_t id = ++correlation_ids;
    if (!double_collects(KIND_EXTERNAL_CORRELATION)) return id;
    for (uint32_t kind = 0; kind < EXTERNAL_KINDS; kind++) {
        pthread_mutex_lock(&lock_names);
        size_t depth = external_depth[kind];
        uint64_t external = depth ? external_ids[kind][depth - 1] : 0;
        pthread_mutex_unlock(&lock_names);
        msptiActivityExternalCorrelation record = {KIND_EXTERNAL_CORRELATION, kind, external, id};
        if (depth) double_report(&record, sizeof record);
    }
    return id;
}

/* MSPTI only looks for the text in LD_PRELOAD, once. */
static bool preloaded(void) {
    static atomic_int known = -1;
    if (known < 0) {
        const char *text = getenv("LD_PRELOAD");
        known = text && strstr(text, "libmspti.so");
    }
    return known;
}

static void sleep_ms(int ms) {
    while (ms < 0) pause();
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

MSPTI_EXPORT msptiResult msptiActivityEnable(msptiActivityKind kind) {
    if (kind == 0 || kind >= KIND_COUNT) return MSPTI_ERROR_INVALID_PARAMETER;
    if (kind >= KIND_HCCL && kind <= KIND_MEMCPY && !preloaded()) {
        return MSPTI_ERROR_WITHOUT_LD_PRELOAD;
    }
    sleep_ms(enable_delay_ms);
    if (refused[kind]) return refused[kind];
    kind_enabled[kind] = true;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityDisable(msptiActivityKind kind) {
    if (kind == 0 || kind >= KIND_COUNT) return MSPTI_ERROR_INVALID_PARAMETER;
    find_or_abort("libascend_hal.so", "halProfDataFlush");
    calls_inside++;
    sleep_ms(disable_delay_ms);
    kind_enabled[kind] = false;
    calls_inside--;
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
    while (i < DOMAIN_LIMIT && domains[i].name && strcmp(domains[i].name, name)) i++;
    if (i == DOMAIN_LIMIT) abort();
    if (!domains[i].name) domains[i].name = strdup(name);
    domains[i].disabled = !enable;
    pthread_mutex_unlock(&lock_names);
    return MSPTI_SUCCESS;
}

bool double_domain_enabled(const char *domain) {
    bool enabled = true;
    pthread_mutex_lock(&lock_names);
    for (size_t i = 0; i < DOMAIN_LIMIT && domains[i].name; i++) {
        if (domains[i].disabled && !strcmp(domains[i].name, domain)) enabled = false;
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

/* Full buffers are delivered anyway: the period has no effect that a caller can see. */
MSPTI_EXPORT msptiResult msptiActivityFlushPeriod(uint32_t ms) {
    flush_period_ms = ms;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
    pthread_mutex_lock(&lock_names);
    if (kind < EXTERNAL_KINDS && external_depth[kind] < STACK_LIMIT) {
        external_ids[kind][external_depth[kind]++] = id;
    }
    pthread_mutex_unlock(&lock_names);
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last) {
    if (!last) return MSPTI_ERROR_INVALID_PARAMETER;
    msptiResult result = MSPTI_ERROR_QUEUE_EMPTY;
    pthread_mutex_lock(&lock_names);
    if (kind < EXTERNAL_KINDS && external_depth[kind]) {
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
    find_or_abort("libascend_hal.so", "halGetAPIVersion");
    if (atomic_exchange(&subscribed, true)) return MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *out = &subscriber;
    return MSPTI_SUCCESS;
}

MSPTI_EXPORT msptiResult msptiUnsubscribe(msptiSubscriberHandle handle) {
    if (!subscribed) return MSPTI_SUCCESS;
    if (handle != &subscriber) return MSPTI_ERROR_INVALID_PARAMETER;
    find_or_abort("libascend_hal.so", "prof_stop");
    calls_inside++;
    sleep_ms(unsubscribe_delay_ms);
    subscribed = false;
    calls_inside--;
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
