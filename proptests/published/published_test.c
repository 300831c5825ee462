/* published_test.c - what others published, on the simulated GPU: the published sizes with one head, or few. */
#include <criterion/criterion.h>

#include "proptests/published/published.h"

Test(published, merge_of_blocks) { cr_expect_eq(published_merge(&machine_of_host, stdout), 0); }

Test(published, chunks_of_head_dim_64)
{
    cr_expect_eq(published_chunks(&machine_of_host, &published_head_dim_64, 1, stdout), 0);
}

Test(published, chunks_of_head_dim_128)
{
    cr_expect_eq(published_chunks(&machine_of_host, &published_head_dim_128, 1, stdout), 0);
}

Test(published, memory) { cr_expect_eq(published_memory(&machine_of_host, stdout), 0); }

enum { HEADS_Q = 2, HEADS_KV = 1 };

Test(published, decode) { cr_expect_eq(published_batch(&machine_of_host, 0, HEADS_Q, HEADS_KV, stdout), 0); }

Test(published, hybrid)
{
    cr_expect_eq(published_batch(&machine_of_host, PUBLISHED_BATCH / 2, HEADS_Q, HEADS_KV, stdout), 0);
}

Test(published, prefill)
{
    cr_expect_eq(published_batch(&machine_of_host, PUBLISHED_BATCH, HEADS_Q, HEADS_KV, stdout), 0);
}
