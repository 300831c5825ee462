/* schedule.h - the scheduler as launch.c drives it. */
#ifndef ATTEST_SIM_SCHEDULE_H
#define ATTEST_SIM_SCHEDULE_H

#include "kernels/sim/machine.h"

struct sim_schedule *sim_schedule_create(void); /* of any cluster, one after the other; NULL: no memory */
void sim_schedule_destroy(struct sim_schedule *schedule);

/* Every thread of the cluster is ready; cluster->schedule and ->random are set. */
void sim_schedule_begin(struct sim_cluster *cluster);
/* Calls deeds(cluster), which sim_abandon ends early. */
void sim_schedule_guard(struct sim_cluster *cluster, void (*deeds)(struct sim_cluster *cluster));
/* Inside deeds: runs the threads until all have exited and nothing is pending. */
void sim_schedule_run(struct sim_cluster *cluster);
/* These lanes, which all wait, have met: unlike sim_wake, no news for threads that keep asking. */
void sim_wake_lanes(struct sim_warp *warp, uint32_t lanes);
/* The running thread has ended. */
_Noreturn void sim_schedule_exit(void);

#endif
