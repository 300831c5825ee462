/* tma_maps_test.cc - the maps of a launch are those of its own tensors, whatever the launch before had. */
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/short/tma_maps.h"

enum { MAPS = 3, LENGTH = 64, BOX = 32 };

struct operand {
    static constexpr int DIM = 64, KEYS = LENGTH, PANEL = 64;
};

struct three_maps {
    tensor_map of[MAPS];
};

/* Heads beside each other, in rows of a sequence. */
static struct launch {
    forward_params f;
    row_tensor tensors[MAPS];
} launch;

alignas(128) static uint16_t memory[2][8];

static void set_up(void)
{
    launch = {};
    launch.f.num_heads_q = 4, launch.f.batch = 5;
    for (int n = 0; n < MAPS; ++n) {
        launch.tensors[n].data = memory[0], launch.tensors[n].dtype = ATTEST_FP16;
        launch.tensors[n].seqlen = 256, launch.tensors[n].head = 64, launch.tensors[n].batch = 256 * LENGTH;
    }
}

/* Whether find_maps gives what a launch that is the first would have. */
static bool are_own(void)
{
    const row_tensor *const tensors[MAPS] = {&launch.tensors[0], &launch.tensors[1], &launch.tensors[2]};
    const three_maps *const found = find_maps<three_maps, operand, BOX>(launch.f, tensors);
    bool same = found != nullptr;
    for (int n = 0; n < MAPS && same; ++n) {
        tensor_map own;
        memset(&own, 0, sizeof own);
        cr_assert(encode_map<operand>(own, launch.tensors[n], launch.f, BOX));
        same = memcmp(&own, &found->of[n], sizeof own) == 0;
    }
    return same;
}

TestSuite(tma_maps, .init = set_up);

Test(tma_maps, follow_each_tensor)
{
    cr_expect(are_own());
    for (int n = 0; n < MAPS; ++n)
        for (int field = 0; field < 5; ++field) {
            row_tensor &t = launch.tensors[n];
            if (field == 0) t.batch += 8;
            if (field == 1) t.seqlen += 8;
            if (field == 2) t.head += 8;
            if (field == 3) t.dtype = ATTEST_BF16;
            if (field == 4) t.data = memory[1];
            cr_expect(are_own(), "tensor %d, field %d", n, field);
            set_up();
            cr_expect(are_own(), "tensor %d, field %d, back again", n, field);
        }
}

Test(tma_maps, follow_the_problem)
{
    cr_expect(are_own());
    launch.f.batch = 6;
    cr_expect(are_own());
    launch.f.num_heads_q = 3;
    cr_expect(are_own());
}

/* Of rows that no map can say there are none, and the next launch's are made anew. */
Test(tma_maps, of_a_refused_tensor_are_not_kept)
{
    const row_tensor *const tensors[MAPS] = {&launch.tensors[0], &launch.tensors[1], &launch.tensors[2]};
    cr_expect(are_own());
    launch.tensors[1].head += 1;
    cr_expect_eq((find_maps<three_maps, operand, BOX>(launch.f, tensors)), nullptr);
    cr_expect_eq((find_maps<three_maps, operand, BOX>(launch.f, tensors)), nullptr, "nor the second time");
    set_up();
    cr_expect(are_own());
}
