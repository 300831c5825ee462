/* fiber.h - stacks of GPU threads, and the switches between them and their host thread. */
#ifndef ATTEST_SIM_FIBER_H
#define ATTEST_SIM_FIBER_H

#include "kernels/sim/machine.h"

/* The stacks that one host thread lends to the clusters it runs, one after the other. */
struct sim_stacks;

struct sim_stacks *sim_stacks_create(void); /* NULL: no memory */
void sim_stacks_destroy(struct sim_stacks *stacks);
bool sim_stacks_reserve(struct sim_stacks *stacks, unsigned n); /* stacks 0 .. n - 1 exist; false: no memory */

/* Gives the thread stack `number`, all of whose bytes that a kernel may see are 0xff. Its first resume calls
 * body(thread), which must not return. */
void sim_fiber_start(struct sim_stacks *stacks, unsigned number, struct sim_thread *thread,
                     void (*body)(struct sim_thread *thread));
/* Runs the thread, as sim_self, until it, or the one that it has by then switched to, suspends itself. A thread that is
 * never resumed again needs no end. */
void sim_fiber_resume(struct sim_thread *thread);
void sim_fiber_suspend(void);
/* From the running thread to another one, which is then sim_self. Where both had stopped at the same place, the
 * processor foresees the returns that follow, unlike those after a way through the host thread. */
void sim_fiber_switch(struct sim_thread *next);
/* Calls deed(argument), which needs more stack than a fiber has, on the host thread's own; sim_self is NULL there. */
void sim_on_host_stack(void (*deed)(void *argument), void *argument);

#endif
