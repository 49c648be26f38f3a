/* Golden bytes: two records of every kind as a C compiler lays them out. */
#include <string.h>

#include "double.h"

/* The n-th field (from 0) of a record whose values begin at v. */
#define TEXT(n) ((const char *)(v + (n)))
#define DS(n) {w + (n), w + (n) + 1}

static anyRecord golden_record(uint32_t kind, uint64_t v, uint8_t flag) {
    uint32_t w = (uint32_t)v;
    anyRecord r;
    memset(&r, 0xA5, sizeof r);
    switch (kind) {
    case KIND_MARKER:
        r.marker = (msptiActivityMarker){kind, w + 1, w + 2, v + 3, v + 4, {.ds = DS(5)},
                                         TEXT(7), TEXT(8)};
        break;
    case KIND_KERNEL:
        r.kernel = (msptiActivityKernel){kind, v + 1, v + 2, DS(3), v + 5, TEXT(6), TEXT(7)};
        break;
    case KIND_HCCL:
        r.hccl = (msptiActivityHccl){kind, v + 1, v + 2, DS(3), (double)(v + 5) / 2,
                                     TEXT(6), TEXT(7)};
        break;
    case KIND_MEMORY:
        r.memory = (msptiActivityMemory){kind, w + 1, w + 2, v + 3, v + 4, v + 5, v + 6, v + 7,
                                         w + 8, w + 9, w + 10};
        break;
    case KIND_MEMSET:
        r.memset_ = (msptiActivityMemset){kind, w + 1, v + 2, v + 3, v + 4, w + 5, w + 6, v + 7,
                                          flag};
        break;
    case KIND_MEMCPY:
        r.memcpy_ = (msptiActivityMemcpy){kind, w + 1, v + 2, v + 3, v + 4, w + 5, w + 6, v + 7,
                                          flag};
        break;
    case KIND_EXTERNAL_CORRELATION:
        r.external = (msptiActivityExternalCorrelation){kind, w + 1, v + 2, v + 3};
        break;
    case KIND_COMMUNICATION:
        r.communication = (msptiActivityCommunication){kind, w + 1, v + 2, DS(3), v + 5, v + 6,
                                                       TEXT(7), TEXT(8), TEXT(9), v + 10};
        break;
    default:
        r.api = (msptiActivityApi){kind, v + 1, v + 2, DS(3), v + 5, TEXT(6)};
    }
    return r;
}

/* Writes two records of each kind back to back. Every field of the n-th record (from 0) has a
 * value of its own: 1000 * (n + 1) + its place in the struct (kind: the kind; isAsync: n % 2;
 * bandWidth: half of it). Padding is not cleared. Returns the bytes written. */
MSPTI_EXPORT size_t double_golden(uint8_t *data) {
    uint8_t *at = data;
    for (uint32_t n = 0; n < 2 * (KIND_COUNT - 1); n++) {
        uint32_t kind = n / 2 + 1;
        anyRecord record = golden_record(kind, 1000 * (n + 1), n % 2);
        memcpy(at, &record, double_record_size(kind));
        at += double_record_size(kind);
    }
    return (size_t)(at - data);
}
