/* async.cu - probes of mbarrier.h, bulk.h, cluster.h, grid.h and registers.h. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_async.h"

namespace {

struct ring {
    mbarrier full[PHASES_STAGES], empty[PHASES_STAGES];
    uint32_t words[PHASES_STAGES][32];
};

KERNEL(64, 1) void phases_kernel(phases_out *out)
{
    STATIC_SHARED(ring, r);
    STATIC_SHARED(mbarrier, counted);
    const unsigned me = thread_x() % 32;
    if (thread_x() == 0) {
        for (int s = 0; s < PHASES_STAGES; ++s) mbarrier_init(&r.full[s], 32), mbarrier_init(&r.empty[s], 32);
        mbarrier_init(&counted, 5);
        out->fresh[0] = mbarrier_test_wait(&counted, 0);
        out->fresh[1] = mbarrier_test_wait(&counted, 1);
        mbarrier_arrive(&counted, 2);
        out->half = mbarrier_test_wait(&counted, 0);
        mbarrier_arrive(&counted, 3);
        out->whole[0] = mbarrier_test_wait(&counted, 0);
        out->whole[1] = mbarrier_test_wait(&counted, 1);
        mbarrier_inval(&counted);
        mbarrier_init(&counted, 1);
        out->again[0] = mbarrier_test_wait(&counted, 0);
        out->again[1] = mbarrier_test_wait(&counted, 1);
        mbarrier_inval(&counted);
    }
    sync_threads();
    for (unsigned round = 0; round < PHASES_ROUNDS; ++round) {
        const unsigned s = round % PHASES_STAGES, parity = round / PHASES_STAGES % 2;
        if (thread_x() < 32) {
            mbarrier_wait(&r.empty[s], parity ^ 1);
            r.words[s][me] = 100 * round + me;
            mbarrier_arrive(&r.full[s]);
        } else {
            while (!mbarrier_try_wait(&r.full[s], parity)) {
            }
            out->consumed[round][me] = r.words[s][31 - me];
            mbarrier_arrive(&r.empty[s]);
        }
    }
}

struct alignas(16) bulk_words {
    uint32_t at[BULK_WORDS];
};

/* One thread: twice what is in global memory, by a load, a store and a reduction. */
#define REDUCE_TWICE(field, reduce)                                       \
    do {                                                                  \
        mbarrier_arrive_expect_tx(&full, sizeof(bulk_words));             \
        bulk_load(&words, in->field, sizeof(bulk_words), &full);          \
        mbarrier_wait(&full, parity);                                     \
        parity ^= 1;                                                      \
        bulk_store(out->field, &words, sizeof(bulk_words));               \
        bulk_commit();                                                    \
        bulk_wait<0>();                                                   \
        reduce(out->field, &words, sizeof(bulk_words));                   \
        bulk_commit();                                                    \
        bulk_wait_read<0>();                                              \
    } while (0)

KERNEL(BULK_THREADS, 1) void bulk_kernel(const bulk_in *in, bulk_out *out)
{
    STATIC_SHARED(bulk_words, a);
    STATIC_SHARED(bulk_words, b);
    STATIC_SHARED(bulk_words, words);
    STATIC_SHARED(mbarrier, full_a);
    STATIC_SHARED(mbarrier, full_b);
    STATIC_SHARED(mbarrier, full);
    if (thread_x() == 0) {
        mbarrier_init(&full_a, 1);
        mbarrier_init(&full_b, 1);
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full_a, sizeof(bulk_words));
        bulk_load(&a, in->x[0], sizeof(bulk_words), &full_a);
        mbarrier_expect_tx(&full_b, sizeof(bulk_words));
        bulk_load(&b, in->x[1], sizeof(bulk_words), &full_b);
        mbarrier_arrive(&full_b);
    }
    sync_threads();
    mbarrier_wait(&full_a, 0);
    mbarrier_wait(&full_b, 0);
    for (unsigned n = thread_x(); n < BULK_WORDS; n += BULK_THREADS) b.at[n] += a.at[n];
    fence_proxy_async_shared();
    sync_threads();
    if (thread_x() != 0) return;
    bulk_store(out->copied, &a, sizeof(bulk_words));
    bulk_commit();
    bulk_store(out->sum, &b, sizeof(bulk_words));
    bulk_commit();
    bulk_wait_read<1>();
    a.at[0] = 0; /* free again: the first group has been read */
    unsigned parity = 0;
    REDUCE_TWICE(f32, bulk_reduce_add_f32);
    REDUCE_TWICE(f16x2, bulk_reduce_add_f16);
    REDUCE_TWICE(bf16x2, bulk_reduce_add_bf16);
    bulk_wait<0>();
}

struct alignas(16) cluster_words {
    uint32_t at[CLUSTER_THREADS];
};

KERNEL(CLUSTER_THREADS, 1) void cluster_kernel(const cluster_in *in, cluster_out *out)
{
    STATIC_SHARED(cluster_words, written);
    STATIC_SHARED(cluster_words, own);
    STATIC_SHARED(cluster_words, multicast);
    STATIC_SHARED(cluster_words, copied);
    STATIC_SHARED(mbarrier, loaded);
    STATIC_SHARED(mbarrier, arrived);
    STATIC_SHARED(mbarrier, received);
    const unsigned me = thread_x(), rank = cluster_rank(), next = (rank + 1) % CLUSTER_CTAS;
    const unsigned bytes = sizeof(cluster_words), quarter = CLUSTER_THREADS / CLUSTER_CTAS;
    cluster_cta *const to = &out->at[block_x()];
    if (me == 0) {
        mbarrier_init(&loaded, 1);
        mbarrier_init(&arrived, CLUSTER_CTAS);
        mbarrier_init(&received, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&loaded, bytes);
        mbarrier_arrive_expect_tx(&received, bytes);
        to->rank = rank;
        to->size = cluster_size();
    }
    own.at[me] = 100 * rank + me;
    cluster_sync(); /* all have begun */
    cluster_map(&written, next)->at[me] = 1000 * rank + me;
    fence_proxy_async();
    cluster_arrive();
    cluster_wait(); /* all that is written is there, barriers too */
    if (me == 0) {
        bulk_load_multicast(&multicast.at[quarter * rank], &in->x[quarter * rank], bytes / CLUSTER_CTAS, &loaded,
                            (1 << CLUSTER_CTAS) - 1);
        bulk_copy_cluster(cluster_map(&copied, next), &own, bytes, cluster_map(&received, next));
    }
    to->written[me] = written.at[me];
    to->read[me] = cluster_map(&own, next)->at[me];
    mbarrier_wait(&loaded, 0);
    mbarrier_wait(&received, 0);
    to->multicast[me] = multicast.at[me];
    to->copied[me] = copied.at[me];
    sync_threads();
    if (me < CLUSTER_CTAS) mbarrier_arrive_cluster(cluster_map(&arrived, me));
    mbarrier_wait(&arrived, 0);
    cluster_arrive_relaxed();
    cluster_wait(); /* nobody ends while another reads its memory */
}

KERNEL(REGISTER_THREADS, 1) void registers_kernel(registers_out *out)
{
    if (thread_x() < 128) setmaxnreg_dec<40>();
    else setmaxnreg_inc<232>();
    out->x[thread_x()] = 3 * thread_x();
}

/* The last CTA's numbers are made into the first's: none of a launch can do without all of the one ahead. Its CTAs
 * have exited: what may be late on the chip is their writes. */
KERNEL(ROW_THREADS, 1) void row_kernel(row_out *out, int launch)
{
    const unsigned n = block_x() * ROW_THREADS + thread_x(), last = ROW_CTAS * ROW_THREADS - 1;
    grid_wait();
    out->at[launch][n] = launch == 0 ? n : 3 * out->at[launch - 1][last - n] + 1;
}

} // namespace

extern "C" int KERNEL_SYMBOL(probe_phases)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {64, 1, 1}, {1, 1, 1}, 0, 64, 1};
    return LAUNCH(phases_kernel, shape, stream, static_cast<phases_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_bulk)(const void *in, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {BULK_THREADS, 1, 1}, {1, 1, 1}, 0, BULK_THREADS, 1};
    return LAUNCH(bulk_kernel, shape, stream, static_cast<const bulk_in *>(in), static_cast<bulk_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_cluster)(const void *in, void *out, void *stream)
{
    const launch_shape shape = {
        {CLUSTERS * CLUSTER_CTAS, 1, 1}, {CLUSTER_THREADS, 1, 1}, {CLUSTER_CTAS, 1, 1}, 0, CLUSTER_THREADS, 1};
    return LAUNCH(cluster_kernel, shape, stream, static_cast<const cluster_in *>(in), static_cast<cluster_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_registers)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {REGISTER_THREADS, 1, 1}, {1, 1, 1}, 0, REGISTER_THREADS, 1};
    return LAUNCH(registers_kernel, shape, stream, static_cast<registers_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_row)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{ROW_CTAS, 1, 1}, {ROW_THREADS, 1, 1}, {1, 1, 1}, 0, ROW_THREADS, 1, true};
    int code = 0;
    for (int n = 0; n < ROW_LAUNCHES && code == 0; ++n)
        code = LAUNCH(row_kernel, shape, stream, static_cast<row_out *>(out), n);
    return code;
}
