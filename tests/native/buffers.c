/* The buffer protocol of the C library double: current buffer, queue of full ones, delivery.
 *
 * Lock B guards the current buffer and is taken by every record; lock C guards the queue of full
 * buffers and the list of worker threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

enum { QUEUE_LIMIT = 65536, WORKER_LIMIT = 32000 };

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
static bool manager_started, no_manager;

static pthread_mutex_t lock_held = PTHREAD_MUTEX_INITIALIZER;
static buffer held[QUEUE_LIMIT];
static size_t held_count;

static _Atomic(bufferRequest) request_callback;
static _Atomic(bufferComplete) complete_callback;
static atomic_bool holding;
static atomic_ullong reported[KIND_COUNT], dropped, requests, completions, flushes;
static atomic_int complete_threads, truncate_bytes;

__attribute__((constructor)) static void read_environment(void) {
    no_manager = double_environment("MSPTI_DOUBLE_NO_MANAGER", 0);
    complete_threads = double_environment("MSPTI_DOUBLE_COMPLETE_THREADS", 1);
    truncate_bytes = double_environment("MSPTI_DOUBLE_TRUNCATE", 0);
}

MSPTI_EXPORT void double_lose_manager(bool lost) { no_manager = lost; }
MSPTI_EXPORT void double_set_complete_threads(int count) { complete_threads = count; }
MSPTI_EXPORT void double_truncate(int bytes) { truncate_bytes = bytes; }
MSPTI_EXPORT uint64_t double_emitted(uint32_t kind) { return reported[kind]; }
MSPTI_EXPORT uint64_t double_dropped(void) { return dropped; }
MSPTI_EXPORT uint64_t double_requests(void) { return requests; }
MSPTI_EXPORT uint64_t double_completions(void) { return completions; }
MSPTI_EXPORT uint64_t double_flushes(void) { return flushes; }

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
    pthread_setname_np(pthread_self(), "mspti double"); /* else that of msmon's own thread */
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

bool double_registered(void) { return request_callback; }

/* ---- MSPTI's functions around buffers ---- */

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
