// Walking a buffer of mixed activity records, for aarch64 (AAPCS64).
//
// A record begins with its kind (u32); its size comes from a table indexed by kind, 0 where
// no such kind exists. Sizes are multiples of 8 and at most 80 (msmon/ffi/walk.py checks).

    .text

// uint64_t count(const uint8_t *data, uint64_t bytes, const uint64_t *sizes, uint64_t *counts,
//                uint64_t kinds)
// Adds 1 to counts[kind] per whole record; returns the bytes read before the first record that
// is cut off or of an unknown kind.
count:
    hint    #34                     // bti c
    mov     x5, x0
    mov     x0, #0                  // position
1:  add     x6, x0, #4
    cmp     x6, x1
    b.hi    2f
    ldr     w6, [x5, x0]            // kind
    cmp     x6, x4
    b.hs    2f
    ldr     x7, [x2, x6, lsl #3]    // its size
    cbz     x7, 2f
    add     x7, x7, x0
    cmp     x7, x1
    b.hi    2f
    ldr     x8, [x3, x6, lsl #3]
    add     x8, x8, #1
    str     x8, [x3, x6, lsl #3]
    mov     x0, x7
    b       1b
2:  ret

// void gather(const uint8_t *data, uint64_t bytes, const uint64_t *sizes, uint8_t **outputs)
// Appends each record to outputs[kind] and moves that pointer on. `bytes` is what count returned.
// Every output needs room for 80 bytes more than its records: a record is copied without looking
// at its size, and what is too much is overwritten by the next one.
    .org    0x80
gather:
    hint    #34                     // bti c
    add     x1, x1, x0              // end
    sub     x4, x1, #80             // last place where 80 bytes can be read
1:  cmp     x0, x4
    b.hi    2f
    ldr     w5, [x0]                // kind
    ldr     x6, [x3, x5, lsl #3]
    ldr     x7, [x2, x5, lsl #3]
    ldp     q0, q1, [x0]
    ldp     q2, q3, [x0, #32]
    ldr     q4, [x0, #64]
    stp     q0, q1, [x6]
    stp     q2, q3, [x6, #32]
    str     q4, [x6, #64]
    add     x0, x0, x7
    add     x6, x6, x7
    str     x6, [x3, x5, lsl #3]
    b       1b
2:  cmp     x0, x1                  // the last few records: copy no more than there is
    b.hs    4f
    ldr     w5, [x0]
    ldr     x6, [x3, x5, lsl #3]
    ldr     x7, [x2, x5, lsl #3]
3:  ldr     x8, [x0], #8
    str     x8, [x6], #8
    subs    x7, x7, #8
    b.ne    3b
    str     x6, [x3, x5, lsl #3]
    b       2b
4:  ret
