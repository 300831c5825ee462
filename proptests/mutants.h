/* mutants.h - named wrong versions of attention, each a bug that was once shipped: what the property tests
 * must notice. Bugs inside a tile are switches of the emulation, one line each beside the right code; the
 * others are wrappers that misread the problem or spoil the results. */
#ifndef ATTEST_PROPTESTS_MUTANTS_H
#define ATTEST_PROPTESTS_MUTANTS_H

#include "proptests/emulate.h"

/* struct implementation.mutant: 0 is honest. */
enum {
    MUTANT_TAIL_UNMASKED = 1,   /* keys past the end are zero rows that count, in backward */
    MUTANT_PADDING_SCORED,      /* the same in forward: each adds exp(0 - max) to the sum */
    MUTANT_FINITE_INFINITY,     /* the running maximum begins at -5e4 */
    MUTANT_MAXIMUM_RESET,       /* a tile in which a row sees nothing sets its maximum to 0 */
    MUTANT_EMPTY_TILE_NAN,      /* no guard against -inf - -inf */
    MUTANT_MASKED_NAN,          /* p = 0 is multiplied with masked values */
    MUTANT_BIAS_FINITE,         /* a bias of -inf is the lowest finite number */
    MUTANT_TAIL_DROPPED,        /* the last tile is left out where it is not full */
    MUTANT_P_TRUNCATED,         /* p is cut off to 16 bits, not rounded */
    MUTANT_SOFTCAP_SELF,        /* s tanh(s) */
    MUTANT_HEAD_SPLIT,          /* KV head h mod num_heads_kv */
    MUTANT_GROUP_NOT_SUMMED,    /* dk and dv are those of the group's last head */
    MUTANT_PAST_USED_UNWRITTEN, /* dk and dv past seqused are left as they were */
    MUTANT_LSE_HEADS_SWAPPED,   /* lse of head (kv, g) at (g, kv) */
    MUTANT_WRAPPER              /* all others: the function pointers say what is wrong */
};

struct mutant {
    struct implementation implementation;
    const char *museum;    /* where it was shipped: repository#issue */
    const char *bug;
    int row;               /* of the list of 65 bugs that escaped in other projects; 0: none of them */
    int backward;          /* 1: only gradients are wrong */
    int seqlen_q, seqlen_k; /* the smallest failing case found is at most this */
};

/* Ends with implementation.name == NULL. */
extern const struct mutant mutants[];

#endif
