# Walking a buffer of mixed activity records, for x86_64 (System V, SSE2).
#
# A record begins with its kind (u32); its size comes from a table indexed by kind, 0 where
# no such kind exists. Sizes are multiples of 8 and at most 80 (msmon/ffi/walk.py checks).

    .text

# uint64_t count(const uint8_t *data, uint64_t bytes, const uint64_t *sizes, uint64_t *counts,
#                uint64_t kinds)
# Adds 1 to counts[kind] per whole record; returns the bytes read before the first record that
# is cut off or of an unknown kind.
count:
    endbr64
    xorl    %eax, %eax              # position
1:  leaq    4(%rax), %r9
    cmpq    %rsi, %r9
    ja      2f
    movl    (%rdi,%rax), %r9d       # kind
    cmpq    %r8, %r9
    jae     2f
    movq    (%rdx,%r9,8), %r10      # its size
    testq   %r10, %r10
    jz      2f
    addq    %rax, %r10
    cmpq    %rsi, %r10
    ja      2f
    incq    (%rcx,%r9,8)
    movq    %r10, %rax
    jmp     1b
2:  ret

# void gather(const uint8_t *data, uint64_t bytes, const uint64_t *sizes, uint8_t **outputs)
# Appends each record to outputs[kind] and moves that pointer on. `bytes` is what count returned.
# Every output needs room for 80 bytes more than its records: a record is copied without looking
# at its size, and what is too much is overwritten by the next one.
    .org    0x80
gather:
    endbr64
    xorl    %eax, %eax              # position
    subq    $80, %rsi               # last position where 80 bytes can be read
1:  cmpq    %rsi, %rax
    jg      2f
    movl    (%rdi,%rax), %r8d       # kind
    movq    (%rcx,%r8,8), %r9
    movq    (%rdx,%r8,8), %r10
    movdqu  (%rdi,%rax), %xmm0
    movdqu  16(%rdi,%rax), %xmm1
    movdqu  32(%rdi,%rax), %xmm2
    movdqu  48(%rdi,%rax), %xmm3
    movdqu  64(%rdi,%rax), %xmm4
    movdqu  %xmm0, (%r9)
    movdqu  %xmm1, 16(%r9)
    movdqu  %xmm2, 32(%r9)
    movdqu  %xmm3, 48(%r9)
    movdqu  %xmm4, 64(%r9)
    addq    %r10, %rax
    addq    %r10, %r9
    movq    %r9, (%rcx,%r8,8)
    jmp     1b
2:  addq    $80, %rsi               # the last few records: copy no more than there is
3:  cmpq    %rsi, %rax
    jae     5f
    movl    (%rdi,%rax), %r8d
    movq    (%rcx,%r8,8), %r9
    movq    (%rdx,%r8,8), %r10
4:  movq    (%rdi,%rax), %r11
    movq    %r11, (%r9)
    addq    $8, %rax
    addq    $8, %r9
    subq    $8, %r10
    jnz     4b
    movq    %r9, (%rcx,%r8,8)
    jmp     3b
5:  ret
