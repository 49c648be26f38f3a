/* What the parts of the C library double share, and the switches that tests use.
 *
 * Environment, read when the library is loaded:
 *   MSPTI_DOUBLE_NO_MANAGER=1        the delivery thread is lost at start: only FlushAll delivers
 *   MSPTI_DOUBLE_ENABLE_DELAY_MS=N   msptiActivityEnable sleeps N ms; -1: for ever
 *   MSPTI_DOUBLE_DISABLE_DELAY_MS=N  msptiActivityDisable sleeps N ms
 *   MSPTI_DOUBLE_UNSUBSCRIBE_DELAY_MS=N  msptiUnsubscribe sleeps N ms
 *   MSPTI_DOUBLE_REFUSE=4,5          msptiActivityEnable of these kinds returns 999
 *   MSPTI_DOUBLE_COMPLETE_THREADS=N  every buffer is completed N times, by N threads at once
 *   MSPTI_DOUBLE_TRUNCATE=N          complete reports N bytes less than were written
 *   MSPTI_DOUBLE_NEEDS_CANN=1        abort where MSPTI does for want of a library or a function of
 *                                    CANN: of libprofapi.so and libascendalog.so when loaded, of
 *                                    libascend_hal.so in subscribe, disable and unsubscribe
 *
 * A process that ends while a thread is inside disable or unsubscribe is aborted by the library's
 * destructor, as MSPTI's static destructors do.
 */
#ifndef DOUBLE_H
#define DOUBLE_H

#include "mspti_abi.h"

/* An integer from the environment. */
int double_environment(const char *name, int otherwise);

/* Whether buffer callbacks have been registered. */
bool double_registered(void);

/* Size of the record of a kind, 0 for an unknown one. */
size_t double_record_size(uint32_t kind);

/* Whether records of a kind are wanted: subscribed, callbacks registered, kind enabled. */
bool double_collects(uint32_t kind);

/* Whether markers of a domain are wanted. */
bool double_domain_enabled(const char *domain);

/* Puts one record into the current buffer under lock B, as every recording thread does. */
void double_report(const void *record, size_t size);

/* Draws a correlation id; reports external correlation records while ids are pushed. */
uint64_t double_new_correlation_id(void);

#endif
