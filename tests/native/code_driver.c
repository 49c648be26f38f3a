/* Runs the machine code of msmon/ffi/machine_code.py without Python, so that it can be tried on
 * another CPU under an emulator.
 *
 * code_driver CALLBACKS WALK REQUEST COMPLETE LOAD STORE CONTROL COUNT GATHER SLACK
 * The first two are files with the bytes, the others offsets in them and the gather slack. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 6, SLOT_BYTES = 4096, THREADS = 8, ROUNDS = 20000, KINDS = 13, BYTES = 1 << 16 };

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            printf("line %d: not true: %s\n", __LINE__, #condition);              \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static struct {
    uint64_t slot_count, slot_bytes, arena, overflow_address;
    uint64_t requests, overflow_requests, overflow_bytes, reserved;
    struct { uint64_t word, order; } slots[SLOTS];
} control;

static uint8_t arena[(SLOTS + 1) * SLOT_BYTES];
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(uint8_t *, size_t, size_t);
static uint64_t (*load)(const uint64_t *);
static void (*store)(uint64_t *, uint64_t);
static uint64_t (*count)(const uint8_t *, uint64_t, const uint64_t *, uint64_t *, uint64_t);
static void (*gather)(const uint8_t *, uint64_t, const uint64_t *, uint8_t **);

static uint8_t *map_code(const char *path, size_t control_offset) {
    uint8_t bytes[4096];
    FILE *file = fopen(path, "rb");
    CHECK(file);
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    void *address = &control;
    if (control_offset) memcpy(bytes + control_offset, &address, sizeof address);
    uint8_t *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    memcpy(code, bytes, length);
    __builtin___clear_cache((char *)code, (char *)code + length);
    CHECK(!mprotect(code, 4096, PROT_READ | PROT_EXEC));
    return code;
}

static void reset(void) {
    memset(&control, 0, sizeof control);
    control.slot_count = SLOTS;
    control.slot_bytes = SLOT_BYTES;
    control.arena = (uint64_t)arena;
    control.overflow_address = control.arena + SLOTS * SLOT_BYTES;
}

static uint8_t *take(void) {
    uint8_t *buffer = NULL;
    size_t size = 0, limit = 10;
    request(&buffer, &size, &limit);
    CHECK(size == SLOT_BYTES && limit == 0);
    return buffer;
}

static void one_thread(void) {
    reset();
    for (int i = 0; i < SLOTS; i++) CHECK(take() == arena + i * SLOT_BYTES);
    CHECK(take() == arena + SLOTS * SLOT_BYTES && take() == arena + SLOTS * SLOT_BYTES);
    CHECK(control.requests == SLOTS + 2 && control.overflow_requests == 2);
    complete(arena + 2 * SLOT_BYTES, SLOT_BYTES, 100);
    complete(arena + 2 * SLOT_BYTES, SLOT_BYTES, 56); /* again: nothing changes */
    CHECK(load(&control.slots[2].word) == (100 << 2 | 2) && control.slots[2].order == 2);
    complete(arena + 1 * SLOT_BYTES, SLOT_BYTES, 0); /* empty: the slot comes back */
    CHECK(control.slots[1].word == 0);
    CHECK(take() == arena + 1 * SLOT_BYTES && control.slots[1].order == SLOTS + 2);
    complete(arena + SLOTS * SLOT_BYTES, SLOT_BYTES, 77);
    complete(arena + SLOTS * SLOT_BYTES, SLOT_BYTES, 23);
    CHECK(control.overflow_bytes == 100);
    complete(NULL, 0, 0); /* not from this arena */
    complete(arena + (SLOTS + 1) * SLOT_BYTES, SLOT_BYTES, 5);
    complete((uint8_t *)16, SLOT_BYTES, 5);
    store(&control.slots[2].word, 0);
    CHECK(take() == arena + 2 * SLOT_BYTES);
    control.slot_count = 0; /* a forked child */
    CHECK(take() == arena + SLOTS * SLOT_BYTES);
    complete(arena, SLOT_BYTES, 8);
    CHECK(control.slots[0].word == 1);
    puts("one thread ok");
}

static atomic_int owned[SLOTS];
static atomic_ullong overflowed;
static atomic_int running;

static void *fill_buffers(void *argument) {
    uint64_t thread = (uint64_t)argument;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint8_t *buffer = take();
        uint64_t valid = 8 + 8 * ((thread + round) % 100);
        if (buffer == arena + SLOTS * SLOT_BYTES) {
            overflowed++;
            complete(buffer, SLOT_BYTES, valid);
            sched_yield(); /* let the collector free slots */
            continue;
        }
        int slot = (int)((buffer - arena) / SLOT_BYTES);
        CHECK(atomic_exchange(&owned[slot], 1) == 0);
        for (uint64_t at = 0; at < valid; at += 8) *(uint64_t *)(buffer + at) = valid;
        atomic_store(&owned[slot], 0);
        complete(buffer, SLOT_BYTES, valid);
    }
    running--;
    return NULL;
}

static uint64_t collect(void) {
    uint64_t collected = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        uint64_t word = load(&control.slots[slot].word);
        if ((word & 3) != 2) continue;
        uint64_t valid = word >> 2;
        uint8_t *buffer = arena + slot * SLOT_BYTES;
        for (uint64_t at = 0; at < valid; at += 8) CHECK(*(uint64_t *)(buffer + at) == valid);
        memset(buffer, 0, valid);
        store(&control.slots[slot].word, 0);
        collected++;
    }
    return collected;
}

static void many_threads(void) {
    reset();
    pthread_t ids[THREADS];
    uint64_t collected = 0;
    running = THREADS;
    for (uint64_t i = 0; i < THREADS; i++) pthread_create(&ids[i], NULL, fill_buffers, (void *)i);
    while (running) {
        uint64_t found = collect();
        collected += found;
        if (!found) sched_yield();
    }
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    collected += collect();
    CHECK(control.requests == (uint64_t)THREADS * ROUNDS);
    CHECK(control.overflow_requests == overflowed);
    CHECK(collected + overflowed == control.requests);
    CHECK(collected > SLOTS);
    printf("%d threads ok: %llu collected, %llu overflowed\n", THREADS,
           (unsigned long long)collected, (unsigned long long)overflowed);
}

static const uint64_t sizes[KINDS] = {0, 56, 56, 48, 56, 64, 56, 56, 24, 72, 48, 48, 80};

static void walk(size_t slack, unsigned seed) {
    static uint8_t data[BYTES], outputs[KINDS][2 * BYTES], expected[KINDS][BYTES];
    uint64_t lengths[KINDS] = {0}, counts[KINDS] = {0}, position = 0;
    uint8_t *ends[KINDS];
    srand(seed);
    for (size_t i = 0; i < BYTES; i++) data[i] = (uint8_t)rand();
    uint64_t limit = (uint64_t)rand() % BYTES;
    for (;;) {
        uint32_t kind = (uint32_t)rand() % (KINDS - 1) + 1;
        if (position + sizes[kind] > limit) break;
        memcpy(data + position, &kind, sizeof kind);
        memcpy(expected[kind] + lengths[kind], data + position, sizes[kind]);
        lengths[kind] += sizes[kind];
        position += sizes[kind];
    }
    uint32_t bad = seed % 3 ? 12 : 12345; /* cut off, or unknown */
    uint64_t valid = position + (seed % 4 ? 4 + (uint64_t)rand() % 70 : 0);
    memcpy(data + position, &bad, sizeof bad);
    CHECK(count(data, valid, sizes, counts, KINDS) == position);
    for (int kind = 0; kind < KINDS; kind++) {
        CHECK(counts[kind] * sizes[kind] == lengths[kind]);
        memset(outputs[kind], 0x5A, lengths[kind] + slack + 64);
        ends[kind] = outputs[kind];
    }
    gather(data, position, sizes, ends);
    for (int kind = 0; kind < KINDS; kind++) {
        CHECK(ends[kind] == outputs[kind] + lengths[kind]);
        CHECK(!memcmp(outputs[kind], expected[kind], lengths[kind]));
        for (int i = 0; i < 64; i++) CHECK(outputs[kind][lengths[kind] + slack + i] == 0x5A);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 11);
    size_t offsets[11];
    for (int i = 3; i < 11; i++) offsets[i] = strtoul(argv[i], NULL, 0);
    uint8_t *callbacks = map_code(argv[1], offsets[7]);
    uint8_t *walking = map_code(argv[2], 0);
    request = (void *)(callbacks + offsets[3]);
    complete = (void *)(callbacks + offsets[4]);
    load = (void *)(callbacks + offsets[5]);
    store = (void *)(callbacks + offsets[6]);
    count = (void *)(walking + offsets[8]);
    gather = (void *)(walking + offsets[9]);
    one_thread();
    many_threads();
    for (unsigned seed = 0; seed < 200; seed++) walk(offsets[10], seed);
    puts("walk ok");
    return 0;
}
