/* published_gpu.c - what others published, on the chip: part of //ci:gpu_bundle. Without a GPU it says UNCHECKED and
 * succeeds. The last line is that of the bundle's counting programs. */
#include "proptests/cases/cuda_memory.h"
#include "proptests/published/published.h"

/* Published: 16 heads where states are merged, 32 in batches of inference. */
enum { HEADS = 16, BATCH_HEADS_Q = 32, BATCH_HEADS_KV = 8 };

int main(void)
{
    const struct machine *const chip = &machine_of_cuda;
    if (cuda_count_devices() == 0) {
        printf("UNCHECKED: no GPU\n");
        return 0;
    }
    const int broken[] = {
        published_merge(chip, stdout),
        published_chunks(chip, &published_head_dim_64, HEADS, stdout),
        published_chunks(chip, &published_head_dim_128, HEADS, stdout),
        published_memory(chip, stdout),
        published_batch(chip, 0, BATCH_HEADS_Q, BATCH_HEADS_KV, stdout),
        published_batch(chip, PUBLISHED_BATCH / 2, BATCH_HEADS_Q, BATCH_HEADS_KV, stdout),
        published_batch(chip, PUBLISHED_BATCH, BATCH_HEADS_Q, BATCH_HEADS_KV, stdout),
    };
    const int checks = sizeof broken / sizeof *broken;
    int failed = 0;
    for (int i = 0; i < checks; ++i) failed += broken[i] != 0;
    printf("%d passed, %d failed, 0 unchecked\n", checks - failed, failed);
    return failed != 0;
}
