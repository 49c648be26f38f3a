// The two buffer callbacks of MSPTI, and ordered access to a slot's word, for aarch64 (AAPCS64).
//
// ARMv8.0: exclusives only, no LSE. Position independent. `control` at the end is set to the
// address of the control block (msmon/ffi/callbacks.py, ControlBlock) before the code becomes
// executable:
//   0 slot_count   8 slot_bytes   16 arena   24 overflow_address
//   32 requests    40 overflow_requests      48 overflow_bytes
//   64 slots: {word, order} each; word = valid_bytes << 2 | state (0 free, 1 taken, 2 completed)

    .text

// void request(uint8_t **buffer, size_t *size, size_t *max_records)
request:
    hint    #34                     // bti c
    ldr     x3, control
    str     xzr, [x2]
    ldp     x4, x5, [x3]            // slots left to look at, slot_bytes
    ldp     x6, x7, [x3, #16]       // address of the slot looked at, overflow_address
    str     x5, [x1]
    add     x8, x3, #32
1:  ldxr    x9, [x8]                // x9 = number of this request
    add     x10, x9, #1
    stxr    w11, x10, [x8]
    cbnz    w11, 1b
    add     x8, x3, #64             // word of the slot looked at
    mov     x12, #1
2:  cbz     x4, 5f
3:  ldaxr   x10, [x8]
    cbnz    x10, 4f
    stxr    w11, x12, [x8]          // free -> taken
    cbnz    w11, 3b
    str     x9, [x8, #8]            // order
    str     x6, [x0]
    ret
4:  clrex
    add     x8, x8, #16
    add     x6, x6, x5
    sub     x4, x4, #1
    b       2b
5:  add     x8, x3, #40             // none free: the overflow slot, whose content is thrown away
6:  ldxr    x10, [x8]
    add     x10, x10, #1
    stxr    w11, x10, [x8]
    cbnz    w11, 6b
    str     x7, [x0]
    ret

// void complete(uint8_t *buffer, size_t size, size_t valid_size)
    .org    0xc0
complete:
    hint    #34                     // bti c
    ldr     x3, control
    ldp     x4, x5, [x3]            // slot_count, slot_bytes
    ldp     x6, x7, [x3, #16]       // arena, overflow_address
    cmp     x0, x7
    b.eq    3f
    sub     x0, x0, x6
    udiv    x0, x0, x5              // index of the slot
    cmp     x0, x4
    b.hs    2f                      // not a buffer of this arena
    add     x8, x3, #64
    add     x8, x8, x0, lsl #4
    lsl     x9, x2, #2
    orr     x9, x9, #2              // completed
    cmp     x2, #0
    csel    x9, xzr, x9, eq         // nothing in it: free again
1:  ldaxr   x10, [x8]
    cmp     x10, #1
    b.ne    2f                      // a second completion changes nothing
    stlxr   w11, x9, [x8]           // taken -> completed
    cbnz    w11, 1b
    ret
2:  clrex
    ret
3:  add     x8, x3, #48
4:  ldxr    x9, [x8]
    add     x9, x9, x2
    stxr    w11, x9, [x8]
    cbnz    w11, 4b
    ret

// uint64_t load(const uint64_t *word): acquire
    .org    0x140
load:
    hint    #34                     // bti c
    ldar    x0, [x0]
    ret

// void store(uint64_t *word, uint64_t value): release
    .org    0x150
store:
    hint    #34                     // bti c
    stlr    x1, [x0]
    ret

    .org    0x160
control:
    .quad   0
