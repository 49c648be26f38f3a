/* MSPTI's binary interface, restated from mspti_activity.h, mspti_callback.h and mspti_result.h
 * for the C library that tests use in MSPTI's place. Records are packed, then aligned to 8. */
#ifndef MSPTI_ABI_H
#define MSPTI_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSPTI_RECORD __attribute__((packed, aligned(8)))
#define MSPTI_EXPORT __attribute__((visibility("default")))

typedef uint32_t msptiResult;
enum {
    MSPTI_SUCCESS = 0,
    MSPTI_ERROR_INVALID_PARAMETER = 1,
    MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 2,
    MSPTI_ERROR_MAX_LIMIT_REACHED = 3,
    MSPTI_ERROR_QUEUE_EMPTY = 5,
    MSPTI_ERROR_WITHOUT_LD_PRELOAD = 6,
    MSPTI_ERROR_INNER = 999,
};

typedef uint32_t msptiActivityKind;
enum {
    KIND_MARKER = 1,
    KIND_KERNEL = 2,
    KIND_API = 3,
    KIND_HCCL = 4,
    KIND_MEMORY = 5,
    KIND_MEMSET = 6,
    KIND_MEMCPY = 7,
    KIND_EXTERNAL_CORRELATION = 8,
    KIND_COMMUNICATION = 9,
    KIND_ACL_API = 10,
    KIND_NODE_API = 11,
    KIND_RUNTIME_API = 12,
    KIND_COUNT = 13,
};

enum { FLAG_START = 2, FLAG_END = 4 };
#define INVALID_ID 0xFFFFFFFFu

typedef struct { uint32_t deviceId, streamId; } msptiDeviceStream;
typedef struct { uint32_t processId, threadId; } msptiProcessThread;
typedef union { msptiProcessThread pt; msptiDeviceStream ds; } msptiObjectId;

typedef struct MSPTI_RECORD {
    uint32_t kind, flag, sourceKind;
    uint64_t timestamp, id;
    msptiObjectId objectId;
    const char *name, *domain;
} msptiActivityMarker;

typedef struct MSPTI_RECORD {
    uint32_t kind;
    uint64_t start, end;
    msptiProcessThread pt;
    uint64_t correlationId;
    const char *name;
} msptiActivityApi;

typedef struct MSPTI_RECORD {
    uint32_t kind;
    uint64_t start, end;
    msptiDeviceStream ds;
    uint64_t correlationId;
    const char *type, *name;
} msptiActivityKernel;

typedef struct MSPTI_RECORD {
    uint32_t kind;
    uint64_t start, end;
    msptiDeviceStream ds;
    double bandWidth;
    const char *name, *commName;
} msptiActivityHccl;

typedef struct MSPTI_RECORD {
    uint32_t kind, memoryOperationType, memoryKind;
    uint64_t correlationId, start, end, address, bytes;
    uint32_t processId, deviceId, streamId;
} msptiActivityMemory;

typedef struct MSPTI_RECORD {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t deviceId, streamId;
    uint64_t correlationId;
    uint8_t isAsync;
} msptiActivityMemset;

typedef struct MSPTI_RECORD {
    uint32_t kind, copyKind;
    uint64_t bytes, start, end;
    uint32_t deviceId, streamId;
    uint64_t correlationId;
    uint8_t isAsync;
} msptiActivityMemcpy;

typedef struct MSPTI_RECORD {
    uint32_t kind, externalKind;
    uint64_t externalId, correlationId;
} msptiActivityExternalCorrelation;

typedef struct MSPTI_RECORD {
    uint32_t kind, dataType;
    uint64_t count;
    msptiDeviceStream ds;
    uint64_t start, end;
    const char *algType, *name, *commName;
    uint64_t correlationId;
} msptiActivityCommunication;

typedef union {
    uint32_t kind;
    msptiActivityMarker marker;
    msptiActivityApi api;
    msptiActivityKernel kernel;
    msptiActivityHccl hccl;
    msptiActivityMemory memory;
    msptiActivityMemset memset_;
    msptiActivityMemcpy memcpy_;
    msptiActivityExternalCorrelation external;
    msptiActivityCommunication communication;
} anyRecord;

typedef void (*bufferRequest)(uint8_t **buffer, size_t *size, size_t *maxRecords);
typedef void (*bufferComplete)(uint8_t *buffer, size_t size, size_t validSize);
typedef void (*msptiCallbackFunc)(void *userdata, uint32_t domain, uint32_t cbid, const void *data);
typedef void *msptiSubscriberHandle;

#endif
