/* switch.S - the switch between stacks on x86-64, System V: what a function must keep is kept on the old stack.
 * The floating-point environment is the cluster's: launch.c.
 *
 *     void sim_switch_stacks(void **save, void *load);
 *
 * A new fiber's stack holds zeros for the registers and sim_fiber_base as the address to return to; r12 is its function,
 * r13 the argument. The base's frame has no caller: debuggers stop there. */
#if defined(__x86_64__)

    .text
    .globl sim_switch_stacks
    .hidden sim_switch_stacks
    .type sim_switch_stacks, @function
sim_switch_stacks:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r12, 0
    pushq %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r13, 0
    pushq %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r14, 0
    pushq %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r15, 0
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r15
    popq %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r14
    popq %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r13
    popq %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r12
    popq %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size sim_switch_stacks, . - sim_switch_stacks

    .globl sim_fiber_base
    .hidden sim_fiber_base
    .type sim_fiber_base, @function
sim_fiber_base:
    .cfi_startproc
    .cfi_undefined %rip
    nop /* an address inside of this function, for who looks one byte before the place to return to */
    movq %r13, %rdi
    callq *%r12
    ud2
    .cfi_endproc
    .size sim_fiber_base, . - sim_fiber_base

#endif

    .section .note.GNU-stack, "", @progbits
