/* emulate.h - a straightforward C emulation of each recipe: what an honest kernel of that recipe does.
 *
 * Tiled online softmax in fp32 with the roundings the recipe names; no shared line with reference/
 * but the public types. Property tests, mutants and the tightness report run on it until, and
 * beside, real kernels. */
#ifndef ATTEST_PROPTESTS_EMULATE_H
#define ATTEST_PROPTESTS_EMULATE_H

#include "lib/attest.h"

/* A way to compute attention: the thing under test. All return an attest_status. */
struct implementation {
    const char *name;
    const struct attest_recipe *recipe; /* NULL: judged by the oracle's own bound */
    int mutant;                         /* 0: honest; see mutants.h */
    enum attest_status (*forward)(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a);
    enum attest_status (*backward)(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a);
    enum attest_status (*merge)(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                                const float *const *lse_states, float *o, float *lse); /* as attest_merge */
    int tile_k; /* keys of a tile, 1 .. EMULATE_MAX_TILE_K; the matrix units take a multiple of 16 */
};

enum { EMULATE_MAX_TILE_K = 128 };

/* One per recipe of reference/bounds.h, and more tile sizes. Ends with name == NULL. */
extern const struct implementation emulations[];
const struct implementation *emulation_named(const char *name); /* NULL if there is none of that name */

/* Arguments are trusted: lib/check.h has seen them. Errors: OUT_OF_MEMORY. */
enum attest_status emulate_forward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_forward_args *a);
enum attest_status emulate_backward(const struct implementation *self, const struct attest_problem *p,
                                    const struct attest_backward_args *a);

#endif
