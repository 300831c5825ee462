/* emulate.h - a straightforward C emulation of each recipe: what an honest kernel of that recipe does.
 *
 * Tiled online softmax in fp32 with the roundings the recipe names; no shared line with reference/
 * but the public types. Property tests, mutants and the tightness report run on it until, and
 * beside, real kernels. */
#ifndef ATTEST_PROPTESTS_EMULATE_H
#define ATTEST_PROPTESTS_EMULATE_H

#include "lib/attest.h"

/* A way to compute attention: the thing under test. Both return an attest_status. */
struct implementation {
    const char *name;
    const struct attest_recipe *recipe; /* NULL: judged by the oracle's own bound */
    int mutant;                         /* 0: honest; see mutants.h */
    enum attest_status (*forward)(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a);
    enum attest_status (*backward)(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a);
};

enum attest_status emulate_forward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_forward_args *a);
enum attest_status emulate_backward(const struct implementation *self, const struct attest_problem *p,
                                    const struct attest_backward_args *a);

#endif
