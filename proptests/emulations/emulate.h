/* emulate.h - a straightforward C emulation of each recipe: what an honest kernel of that recipe does.
 *
 * Tiled online softmax in fp32 with the roundings the recipe names; no shared line with reference/
 * but the public types. Property tests, mutants and the tightness report run on it until, and
 * beside, real kernels. */
#ifndef ATTEST_PROPTESTS_EMULATIONS_EMULATE_H
#define ATTEST_PROPTESTS_EMULATIONS_EMULATE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/attest.h"
#include "reference/bounds.h"

/* How a run computed its results: which recipe judges which sequences. A copy: a plug-in's may end with its plan. */
struct computed {
    int num_shares;
    struct computed_share {
        struct attest_recipe recipe; /* its own `name` is NULL */
        int64_t most_seqlen_q, most_seqlen_k;
    } share[REF_MOST_SHARES];
    char by[128]; /* the shares' names, joined by +: of kernels the kernels', else the recipe's */
};
void computed_by(struct computed *how, const struct attest_recipe *recipe); /* all of it */
/* Adds a share. False where there is no room for it, or a pass has too many. */
bool computed_add(struct computed *how, const char *name, const struct attest_recipe *recipe, int64_t most_seqlen_q,
                  int64_t most_seqlen_k);
struct ref_shares computed_shares(const struct computed *how); /* lives as long as `how` */

/* A way to compute attention: the thing under test. All return an attest_status. */
struct implementation {
    const char *name;
    const struct attest_recipe *recipe; /* what an emulation does; NULL: each run says what it did */
    int mutant;                         /* 0: honest; see mutants.h */
    /* Runs that return ATTEST_OK have filled in `how`. Both NULL: the oracle, judged by its own bound. */
    enum attest_status (*forward)(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a, struct computed *how);
    enum attest_status (*backward)(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a, struct computed *how);
    enum attest_status (*merge)(const struct implementation *self, const struct attest_merge_args *a); /* host memory */
    enum attest_status (*merge_backward)(const struct implementation *self,
                                         const struct attest_merge_backward_args *a); /* NULL: the library's */
    int tile_k; /* keys of a tile, 1 .. EMULATE_MAX_TILE_K; the matrix units take a multiple of 16 */
    const struct attest_recipe *merge_recipe; /* of a merge in fp32; NULL: as attest_merge states it */
    const struct attest_recipe *merge_backward_recipe; /* NULL: the oracle's gradients, rounded once */
    bool is_unkind;  /* an emulation that errs as far as its recipe lets it: head_exp, struct unit */
    bool rounds_late; /* emulation: ds of p in fp32, rounded as it is, where its recipe allows other ways too */
    bool is_partial; /* may answer UNSUPPORTED: such a case does not count */
};

static inline bool is_oracle(const struct implementation *self) { return self->forward == NULL; }

enum { EMULATE_MAX_TILE_K = 128 };

/* attest_merge_states of the reference device. */
enum attest_status emulate_merge(const struct implementation *self, const struct attest_merge_args *a);

/* One per recipe of reference/bounds.h, more tile sizes, and unkind ones. Ends with name == NULL. */
extern const struct implementation emulations[];
const struct implementation *emulation_named(const char *name); /* NULL if there is none of that name */

/* Arguments are trusted: lib/check.h has seen them. Errors: OUT_OF_MEMORY. */
enum attest_status emulate_forward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_forward_args *a, struct computed *how);
enum attest_status emulate_backward(const struct implementation *self, const struct attest_problem *p,
                                    const struct attest_backward_args *a, struct computed *how);

#endif
