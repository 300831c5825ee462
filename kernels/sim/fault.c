/* fault.c - a kernel that makes the processor fault ends with a finding, not the process.
 *
 * Accesses are checked before they are made, so what comes here is what the checks let pass: an access whose width the
 * compiler chose, at an address that this width may not have. And indices: kernels are compiled with
 * -fsanitize=bounds-strict, which compares them where the compiler knows an array's length - of a member of a shared
 * struct, of a thread's own array - and traps. What lies behind such an array is mostly another member, mapped and
 * written, so that no other rule would see it. */
#define _GNU_SOURCE /* REG_RIP */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "kernels/sim/machine.h"

static struct sigaction before_segv, before_bus, before_ill;

static const void *site_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (const char *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP] + 1; /* sites are where a call returns to */
#else
    (void)context;
    return NULL;
#endif
}

/* A fault without an address is one of alignment. It is not the kernel's where no thread of it runs. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    if (!sim_self) {
        sigaction(signal, signal == SIGILL ? &before_ill : signal == SIGBUS ? &before_bus : &before_segv, NULL);
        return;
    }
    if (signal == SIGILL)
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "index", site_of(context), NULL, "It is outside of its array.");
    const bool has_address = info->si_code != SI_KERNEL && info->si_addr;
    if (signal == SIGBUS || !has_address)
        sim_fail(sim_self, SIM_MISALIGNED, "access", site_of(context), NULL,
                 "The processor takes 16 bytes at once here, and their address is no multiple of 16.");
    if ((uintptr_t)sim_self->stack_low - (uintptr_t)info->si_addr <= SIM_STACK)
        sim_fail(sim_self, SIM_LIMIT, "stack", site_of(context), NULL,
                 "The thread needs more than the %d bytes of stack that a simulated one has.", SIM_STACK);
    sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "access", site_of(context), info->si_addr, "No memory lies there.");
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
    sigaction(SIGILL, &action, &before_ill);
}

_Static_assert(sizeof(stack_t) <= sizeof((struct sim_fault_watch){0}).before, "it holds one");

void sim_faults_begin(struct sim_fault_watch *watch, void *stack)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const stack_t own = {.ss_sp = stack, .ss_size = SIM_FAULT_STACK};
    stack_t before;
    pthread_once(&once, install);
    sigaltstack(&own, &before);
    memcpy(watch->before, &before, sizeof before);
}

void sim_faults_end(const struct sim_fault_watch *watch)
{
    stack_t before;
    memcpy(&before, watch->before, sizeof before);
    sigaltstack(&before, NULL);
}
