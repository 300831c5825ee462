/* shares.h - for whoever judges what a plan computes: its shares as the bounds take them. */
#ifndef ATTEST_LIB_SHARES_H
#define ATTEST_LIB_SHARES_H

#include "lib/attest.h"
#include "reference/bounds.h"

static inline struct ref_shares shares_of_plan(const struct attest_plan *plan, enum attest_pass pass)
{
    struct ref_shares out = {0};
    const struct attest_share *s;
    for (; out.count < REF_MOST_SHARES && (s = attest_plan_share(plan, pass, out.count)) != NULL; ++out.count)
        out.share[out.count] = (struct ref_share){s->recipe, s->most_seqlen_q, s->most_seqlen_k};
    return out;
}

#endif
