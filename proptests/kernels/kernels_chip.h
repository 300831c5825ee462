/* kernels_chip.h - the checks of the command kernels_chip, by theme: each prints what it finds, and says whether all is
 * well. */
#ifndef ATTEST_PROPTESTS_KERNELS_KERNELS_CHIP_H
#define ATTEST_PROPTESTS_KERNELS_KERNELS_CHIP_H

#include <stdbool.h>

#include "proptests/cases/sample.h"

extern struct chip_settings {
    bool quick;
    char **names; /* of the checks asked for; NULL: all */
} chip_settings;

#define EVERYTHING                                                                                               \
    (WITH_WINDOW | WITH_BIAS | WITH_ALIBI | WITH_SOFTCAP | WITH_SINK | WITH_DROPOUT | WITH_DLSE | WITH_SEQUSED | \
     WITH_MASK | WITH_BLOCK_MASK | WITH_DBIAS)

struct sample_shape chip_shape(int32_t dtype, int64_t seqlen, int64_t head_dim, unsigned features);
void chip_print_shape(const struct sample_shape *s);
bool chip_run(struct sample *c, void *stream);

/* Shapes that run every kernel; several checks ask them. */
enum { CHIP_NUM_SHAPES = 9 };
struct sample_shape chip_some_shape(int n);

/* kernels_chip_oracle.c */
bool chip_large(void);
bool chip_folded(void);
/* kernels_chip_bits.c */
bool chip_repeats(void);
bool chip_batches(void);
bool chip_many(void);
/* kernels_chip_launches.c */
bool chip_graphs(void);
bool chip_early(void);
/* kernels_chip_places.c */
bool chip_invisible(void);
bool chip_second_gpu(void);
bool chip_far_apart(void);
/* kernels_chip_merges.c */
bool chip_merges(void);

#endif
