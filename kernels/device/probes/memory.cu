/* memory.cu - probes of memory.h and cp_async.h. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_memory.h"

namespace {

struct alignas(16) row {
    sixteen x;
};

typedef row rows[MEMORY_THREADS];

KERNEL(MEMORY_THREADS, 1) void memory_kernel(const memory_in *in, memory_out *out)
{
    STATIC_SHARED(rows, shared);
    DYNAMIC_SHARED(dynamic, 1024);
    const auto parts = cut_shared(dynamic, MEMORY_DYNAMIC - sizeof(rows), SHARED_REST);
    row *const last = reinterpret_cast<row *>(parts.at[1]);
    const unsigned me = thread_x(), other = MEMORY_THREADS - 1 - me;
    store_16(&shared[me], load_16<row>(&in->x[me]));
    last[me] = load_16<row>(&in->x[me]);
    store_global_16(&out->global[me], load_global_16<row>(&in->x[me]));
    store_global_16_streaming(&out->streaming[me], load_global_16_streaming<row>(&in->x[me]));
    sync_threads();
    store_16(&out->plain[me], load_16<row>(&shared[other]));
    store_16(&out->dynamic[me], last[other]);
    sync_threads(); /* the parts are free */
    if (me == 0) expire_shared(last, sizeof(rows));
    row *const joined = reinterpret_cast<row *>(join_shared(dynamic));
    joined[me] = load_16<row>(&in->x[me]);
    sync_threads();
    store_16(&out->joined[me], joined[other]);
    if (me == 0) {
        out->distance = shared_address(&shared[1].x.at[1]) - shared_address(&shared[0].x.at[0]);
        out->alignment = shared_address(dynamic) % 1024;
    }
}

KERNEL(MEMORY_THREADS, 1) void cp_async_kernel(const memory_in *in, cp_async_out *out)
{
    STATIC_SHARED(rows, first);
    STATIC_SHARED(rows, second);
    STATIC_SHARED(rows, third);
    STATIC_SHARED(rows, none);
    const unsigned me = thread_x(), other = MEMORY_THREADS - 1 - me;
    const sixteen *const x = &in->x[me];
    const sixteen *const nowhere = reinterpret_cast<const sixteen *>(1024); /* is not to be read */
    cp_async_16(&first[me], x);
    cp_async_commit();
    cp_async_8(&second[me].x.at[0], &x->at[0]);
    cp_async_8(&second[me].x.at[2], me % 2 == 0 ? &x->at[2] : &nowhere->at[2], me % 2 == 0);
    cp_async_commit();
    cp_async_wait<1>();
    store_16(&out->first[me], first[me]);
    for (unsigned w = 0; w < 4; ++w) {
        const bool valid = (me >> w & 1) == 0;
        cp_async_4(&third[me].x.at[w], valid ? &x->at[w] : &nowhere->at[w], valid);
    }
    cp_async_16(&none[me], nowhere, false);
    cp_async_wait<0>();
    store_16(&out->second[me], second[me]);
    cp_async_wait_all();
    sync_threads();
    store_16(&out->third[me], third[other]);
    store_16(&out->none[me], none[other]);
}

KERNEL(MEMORY_THREADS, 1) void cp_async_mbarrier_kernel(const memory_in *in, cp_async_mbarrier_out *out)
{
    STATIC_SHARED(rows, shared);
    STATIC_SHARED(mbarrier, full);
    const unsigned me = thread_x();
    if (me == 0) mbarrier_init(&full, MEMORY_THREADS);
    sync_threads();
    cp_async_16(&shared[me], &in->x[me]);
    cp_async_mbarrier_arrive(&full);
    mbarrier_wait(&full, 0);
    store_16(&out->x[me], shared[MEMORY_THREADS - 1 - me]);
}

const launch_shape SHAPE = {{1, 1, 1}, {MEMORY_THREADS, 1, 1}, {1, 1, 1}, 0, MEMORY_THREADS, 1};

} // namespace

extern "C" int KERNEL_SYMBOL(probe_memory)(const void *in, void *out, void *stream)
{
    launch_shape shape = SHAPE;
    shape.dynamic_shared = MEMORY_DYNAMIC;
    return LAUNCH(memory_kernel, shape, stream, static_cast<const memory_in *>(in), static_cast<memory_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_cp_async)(const void *in, void *out, void *stream)
{
    return LAUNCH(cp_async_kernel, SHAPE, stream, static_cast<const memory_in *>(in), static_cast<cp_async_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_cp_async_mbarrier)(const void *in, void *out, void *stream)
{
    return LAUNCH(cp_async_mbarrier_kernel, SHAPE, stream, static_cast<const memory_in *>(in),
                  static_cast<cp_async_mbarrier_out *>(out));
}
