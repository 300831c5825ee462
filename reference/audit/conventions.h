/* conventions.h - what implementations do otherwise than the contract, and how to judge them all the same.
 *
 * A convention either changes the problem (where the diagonal lies, how ALiBi enters the scores) or how
 * lse is written down (base 2, +inf for an empty row). */
#ifndef ATTEST_AUDIT_CONVENTIONS_H
#define ATTEST_AUDIT_CONVENTIONS_H

#include "reference/audit/case.h"

enum alibi_form {
    ALIBI_CONTRACT,      /* x = t - slope |i + diag - j| */
    ALIBI_TOP_LEFT,      /* x = t - slope |i - j| */
    ALIBI_COLUMN,        /* x = t + slope j */
    ALIBI_SIGNED,        /* x = t + slope (j - i) */
    ALIBI_INSIDE,        /* x = softcap tanh((s - slope |i + diag - j|) / softcap) */
    ALIBI_INSIDE_SIGNED, /* x = softcap tanh((s + slope (j - i)) / softcap) */
    ALIBI_NUM
};

struct convention {
    enum attest_diag diag_kind; /* UNSET: as the problem says */
    enum alibi_form alibi;
    bool lse_base2;
    bool lse_plus_inf; /* +inf where a row sees no key */
};

/* How many things a convention does otherwise; 0 for the contract's own. */
int convention_deviations(const struct convention *c);

/* Every combination that could make a difference for this problem is one number below
 * convention_count(); convention_number gives it, false where it makes none. */
enum { CONVENTION_COUNT = 2 * ALIBI_NUM * 2 * 2 };
bool convention_number(const struct attest_problem *p, int number, struct convention *c);

/* The problem that an implementation of this ALiBi form solves, in the contract's terms: the same, or one
 * whose bias holds what the form adds to t; `*owned` is then that bias. False where it would not fit in memory. */
bool alibi_rewrite(enum alibi_form form, struct attest_problem *p, struct attest_forward_args *a, void **owned);

/* Gradients of an ALiBi inside the cap are not those of the rewritten problem. */
bool alibi_is_forward_only(enum alibi_form form);

/* Converts `lse` [as p lays it out] in place to natural logarithms and -inf. Returns how many +inf were read
 * as -inf; oracle is canonical. */
int64_t convention_convert_lse(const struct convention *c, const struct attest_problem *p,
                               const struct attest_forward_args *a, const double *oracle, float *lse);

/* Adds one sentence for each thing that the implementation `name` does otherwise. */
void convention_explain(const struct convention *c, const struct attest_problem *p, const char *name,
                        int64_t plus_inf_count, struct notes *notes);

const char *alibi_form_name(enum alibi_form form); /* "contract", "top-left", ... */

#endif
