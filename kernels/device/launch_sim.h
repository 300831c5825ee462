/* launch_sim.h - LAUNCH on the simulated GPU. Included by launch.h. */
#ifndef ATTEST_DEVICE_LAUNCH_SIM_H
#define ATTEST_DEVICE_LAUNCH_SIM_H

#include <stdint.h>

#include <tuple>

#include "kernels/sim/sim.h"

#define DEVICE_LAUNCH(kernel, name, ...) launch_on_sim<kernel>(kernel, name, __VA_ARGS__)

/* Reads KERNEL's numbers. Of what the compiler aligns functions with, one byte at most looks like a NOP. */
static inline void read_launch_bounds(const uint8_t *entry, struct sim_launch *launch)
{
    constexpr uint8_t NOP = 0x90, ENDBR64[4] = {0xf3, 0x0f, 0x1e, 0xfa};
    unsigned blocks = 0;
    while (entry[-1 - static_cast<int>(blocks)] == NOP) ++blocks;
    launch->bounds.min_blocks = blocks / 2;
    if (__builtin_memcmp(entry, ENDBR64, sizeof ENDBR64) == 0) entry += sizeof ENDBR64;
    while (entry[launch->bounds.max_threads] == NOP) ++launch->bounds.max_threads;
}

template <auto kernel, typename... P>
static void launch_thread(const void *args)
{
    std::apply(kernel, *static_cast<const std::tuple<P...> *>(args));
}

/* The kernel twice: as a template argument it gives each kernel a function of its own for threads to run, as an
 * ordinary one its parameters. */
template <auto kernel, typename... P, typename... A>
static inline int launch_on_sim(void (*)(P...), const char *name, const launch_shape &shape, void *stream,
                                const A &...args)
{
    const std::tuple<P...> values(static_cast<P>(args)...);
    struct sim_launch launch = {};
    launch.kernel = name;
    for (int axis = 0; axis < 3; ++axis) {
        launch.grid[axis] = shape.grid[axis] ? shape.grid[axis] : 1;
        launch.block[axis] = shape.block[axis] ? shape.block[axis] : 1;
        launch.cluster[axis] = shape.cluster[axis] ? shape.cluster[axis] : 1;
    }
    launch.dynamic_shared = shape.dynamic_shared;
    launch.max_threads = shape.max_threads;
    launch.min_blocks = shape.min_blocks;
    launch.begins_early = shape.begins_early;
    read_launch_bounds(reinterpret_cast<const uint8_t *>(kernel), &launch);
    launch.body = launch_thread<kernel, P...>;
    launch.args = &values;
    launch.args_bytes = sizeof values;
    return sim_launch(static_cast<sim_gpu *>(stream), &launch);
}

static inline unsigned launch_num_sms(void *stream) { return sim_num_sms(static_cast<const sim_gpu *>(stream)); }

static inline unsigned launch_max_shared(void *stream)
{
    return static_cast<unsigned>(sim_max_shared(static_cast<const sim_gpu *>(stream)));
}

/* The rule that was broken; sim_last_report says where and how. */
static inline const char *launch_error_text(int code) { return sim_rule_name(static_cast<sim_rule>(code)); }

#endif
