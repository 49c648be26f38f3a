# The two buffer callbacks of MSPTI, and ordered access to a slot's word, for x86_64 (System V).
#
# Position independent. `control` at the end is set to the address of the control block
# (msmon/ffi/callbacks.py, ControlBlock) before the code becomes executable:
#   0 slot_count   8 slot_bytes   16 arena   24 overflow_address
#   32 requests    40 overflow_requests      48 overflow_bytes
#   64 slots: {word, order} each; word = valid_bytes << 2 | state (0 free, 1 taken, 2 completed)

    .text

# void request(uint8_t **buffer, size_t *size, size_t *max_records)
request:
    endbr64
    movq    control(%rip), %r8
    movq    $0, (%rdx)
    movq    8(%r8), %rcx            # slot_bytes
    movq    %rcx, (%rsi)
    movl    $1, %r9d
    lock xaddq %r9, 32(%r8)         # r9 = number of this request
    movq    (%r8), %rsi             # slots left to look at
    movq    16(%r8), %rdx           # address of the slot looked at
    leaq    64(%r8), %r10           # its word
    movl    $1, %r11d
1:  testq   %rsi, %rsi
    jz      3f
    xorl    %eax, %eax
    lock cmpxchgq %r11, (%r10)      # free -> taken
    je      2f
    addq    $16, %r10
    addq    %rcx, %rdx
    decq    %rsi
    jmp     1b
2:  movq    %r9, 8(%r10)            # order
    movq    %rdx, (%rdi)
    ret
3:  lock incq 40(%r8)               # none free: the overflow slot, whose content is thrown away
    movq    24(%r8), %rdx
    movq    %rdx, (%rdi)
    ret

# void complete(uint8_t *buffer, size_t size, size_t valid_size)
    .org    0xc0
complete:
    endbr64
    movq    control(%rip), %r8
    cmpq    24(%r8), %rdi
    je      2f
    leaq    2(,%rdx,4), %r9         # completed
    xorl    %eax, %eax
    testq   %rdx, %rdx
    cmoveq  %rax, %r9               # nothing in it: free again
    movq    %rdi, %rax
    subq    16(%r8), %rax
    xorl    %edx, %edx
    divq    8(%r8)                  # rax = index of the slot
    cmpq    (%r8), %rax
    jae     1f                      # not a buffer of this arena
    shlq    $4, %rax
    leaq    64(%r8,%rax), %r10
    movl    $1, %eax
    lock cmpxchgq %r9, (%r10)       # taken -> completed; a second completion changes nothing
1:  ret
2:  lock addq %rdx, 48(%r8)
    ret

# uint64_t load(const uint64_t *word): acquire
    .org    0x140
load:
    endbr64
    movq    (%rdi), %rax
    ret

# void store(uint64_t *word, uint64_t value): release
    .org    0x150
store:
    endbr64
    movq    %rsi, (%rdi)
    ret

    .org    0x160
control:
    .quad   0
