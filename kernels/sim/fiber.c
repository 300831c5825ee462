/* fiber.c - stacks and switches. The host thread starts fibers, which may switch to each other, until one of them
 * returns to it. */
#define _GNU_SOURCE /* mmap of no file */
#include "kernels/sim/fiber.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

_Thread_local struct sim_thread *sim_self;

enum {
    POISON = 0xff,
    /* Stacks start at different places of their pages, or they would share the same few sets of the cache. */
    COLOURS = 16,
    COLOUR_BYTES = 256,
    /* A thread of a GPU has at most 255 registers: one that left so much of its stack untouched went no deeper. */
    UNTOUCHED_BYTES = 2048,
    POISONED_BYTES = COLOURS * COLOUR_BYTES + 2 * UNTOUCHED_BYTES, /* of a new stack */
    /* Below each stack: more than a page, or a large frame may begin beyond it. */
    GUARD_BYTES = 64 * 1024,
    GROWTH = 32
};

struct sim_stacks {
    char **lows; /* of each stack; the guard lies below */
    unsigned n, capacity;
};

struct sim_stacks *sim_stacks_create(void)
{
    return calloc(1, sizeof(struct sim_stacks));
}

void sim_stacks_destroy(struct sim_stacks *stacks)
{
    if (!stacks) return;
    for (unsigned i = 0; i < stacks->n; ++i) munmap(stacks->lows[i] - GUARD_BYTES, GUARD_BYTES + SIM_STACK);
    free(stacks->lows);
    free(stacks);
}

static bool add_stack(struct sim_stacks *stacks)
{
    char *base = mmap(NULL, GUARD_BYTES + SIM_STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (base == MAP_FAILED) return false;
    if (mprotect(base, GUARD_BYTES, PROT_NONE) != 0) {
        munmap(base, GUARD_BYTES + SIM_STACK);
        return false;
    }
    stacks->lows[stacks->n++] = base + GUARD_BYTES;
    memset(base + GUARD_BYTES + SIM_STACK - POISONED_BYTES, POISON, POISONED_BYTES);
    return true;
}

bool sim_stacks_reserve(struct sim_stacks *stacks, unsigned n)
{
    if (n > stacks->capacity) {
        char **lows = realloc(stacks->lows, (n + GROWTH) * sizeof *lows);
        if (!lows) return false;
        stacks->lows = lows;
        stacks->capacity = n + GROWTH;
    }
    while (stacks->n < n)
        if (!add_stack(stacks)) return false;
    return true;
}

/* Poisons downwards from `top`, line by line, until a stretch that nobody touched. */
static void poison_stack(char *low, char *top)
{
    uint64_t line[8];
    unsigned untouched = 0;
    for (char *at = top - sizeof line; at >= low && untouched < UNTOUCHED_BYTES; at -= sizeof line) {
        uint64_t all = ~(uint64_t)0;
        memcpy(line, at, sizeof line);
        for (int i = 0; i < 8; ++i) all &= line[i];
        untouched += sizeof line;
        if (all == ~(uint64_t)0) continue;
        memset(at, POISON, sizeof line);
        untouched = 0;
    }
}

/* AddressSanitizer wants to know every change of stacks. */
static _Thread_local const void *host_low;
static _Thread_local size_t host_bytes;

static void before_switch(void **fake_stack, const void *low, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, low, bytes);
#else
    (void)fake_stack, (void)low, (void)bytes;
#endif
}

static void after_switch(void *fake_stack, const void **left_low, size_t *left_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, left_low, left_bytes);
#else
    (void)fake_stack, (void)left_low, (void)left_bytes;
#endif
}

/* Frames of a run that was given up may still be marked. */
static void unmark_frames(char *low)
{
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(low, SIM_STACK);
#else
    (void)low;
#endif
}

static _Thread_local bool left_host;

/* In a fiber: the stack that was left is the host's, or another fiber's. */
static void after_switch_to_fiber(void *fake_stack)
{
    const void *low = host_low;
    size_t bytes = host_bytes;
    after_switch(fake_stack, &low, &bytes);
    if (!left_host) return;
    host_low = low;
    host_bytes = bytes;
    left_host = false;
}

static _Thread_local void (*fiber_body)(struct sim_thread *thread);

static void run_body(void *thread)
{
    after_switch_to_fiber(NULL);
    fiber_body(thread);
    abort();
}

#if defined(__x86_64__)

__attribute__((visibility("hidden"))) void sim_switch_stacks(void **save, void *load);
__attribute__((visibility("hidden"))) void sim_fiber_base(void);

static _Thread_local void *host_stack_pointer;

/* What sim_switch_stacks pops. */
struct frame {
    uint64_t r15, r14, r13, r12, rbx, rbp, rip;
};

static void prepare(struct sim_thread *thread, char *top)
{
    struct frame *frame = (struct frame *)(top - 2 * sizeof(void *)) - 1;
    *frame = (struct frame){.r12 = (uint64_t)(uintptr_t)run_body,
                            .r13 = (uint64_t)(uintptr_t)thread,
                            .rip = (uint64_t)(uintptr_t)sim_fiber_base + 1};
    thread->stack_pointer = frame;
}

static void switch_to_fiber(struct sim_thread *thread)
{
    sim_switch_stacks(&host_stack_pointer, thread->stack_pointer);
}

static void switch_to_host(struct sim_thread *thread)
{
    sim_switch_stacks(&thread->stack_pointer, host_stack_pointer);
}

static void switch_between(struct sim_thread *from, struct sim_thread *to)
{
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
}

#else

#include <ucontext.h>

static _Thread_local ucontext_t host_context;

static void enter(unsigned high, unsigned low)
{
    run_body((void *)(uintptr_t)((uint64_t)high << 32 | low));
}

/* The context lies at the stack's low end. */
static void prepare(struct sim_thread *thread, char *top)
{
    ucontext_t *context = (ucontext_t *)thread->stack_low;
    getcontext(context);
    context->uc_stack.ss_sp = thread->stack_low + sizeof *context;
    context->uc_stack.ss_size = (size_t)(top - thread->stack_low) - sizeof *context;
    context->uc_link = NULL;
    const uint64_t address = (uintptr_t)thread;
    makecontext(context, (void (*)(void))enter, 2, (unsigned)(address >> 32), (unsigned)address);
    thread->stack_pointer = context;
}

static void switch_to_fiber(struct sim_thread *thread)
{
    swapcontext(&host_context, thread->stack_pointer);
}

static void switch_to_host(struct sim_thread *thread)
{
    swapcontext(thread->stack_pointer, &host_context);
}

static void switch_between(struct sim_thread *from, struct sim_thread *to)
{
    swapcontext(from->stack_pointer, to->stack_pointer);
}

#endif

void sim_fiber_start(struct sim_stacks *stacks, unsigned number, struct sim_thread *thread,
                     void (*body)(struct sim_thread *thread))
{
    thread->stack_low = stacks->lows[number];
    thread->stack_high = thread->stack_low + SIM_STACK - number % COLOURS * COLOUR_BYTES;
    unmark_frames(thread->stack_low);
    poison_stack(thread->stack_low, thread->stack_high);
    fiber_body = body;
    prepare(thread, thread->stack_high);
}

/* What a fiber asks its host thread to do before it goes on. */
static _Thread_local void (*host_deed)(void *argument);
static _Thread_local void *host_argument;

static bool run_host_deed(void)
{
    if (!host_deed) return false;
    host_deed(host_argument);
    host_deed = NULL;
    return true;
}

void sim_fiber_resume(struct sim_thread *thread)
{
    do {
        void *fake_stack = NULL;
        sim_self = thread;
        left_host = true;
        before_switch(&fake_stack, thread->stack_low, SIM_STACK);
        switch_to_fiber(thread);
        after_switch(fake_stack, NULL, NULL);
        thread = sim_self;
        sim_self = NULL;
    } while (run_host_deed());
}

void sim_fiber_suspend(void)
{
    void *fake_stack = NULL;
    before_switch(&fake_stack, host_low, host_bytes);
    switch_to_host(sim_self);
    after_switch_to_fiber(fake_stack);
}

void sim_fiber_switch(struct sim_thread *next)
{
    struct sim_thread *self = sim_self;
    void *fake_stack = NULL;
    sim_self = next;
    before_switch(&fake_stack, next->stack_low, SIM_STACK);
    switch_between(self, next);
    after_switch_to_fiber(fake_stack);
}

void sim_on_host_stack(void (*deed)(void *argument), void *argument)
{
    if (!sim_self) {
        deed(argument);
        return;
    }
    host_deed = deed;
    host_argument = argument;
    sim_fiber_suspend();
}
