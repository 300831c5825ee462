/* mutants.h - named wrong versions of attention, each a bug that was once shipped: what the property tests
 * must notice. Bugs inside a tile are switches of the emulation, one line each beside the right code; the
 * others misread the problem before they compute, or spoil the results after. */
#ifndef ATTEST_PROPTESTS_PROPERTIES_MUTANTS_H
#define ATTEST_PROPTESTS_PROPERTIES_MUTANTS_H

#include "proptests/emulations/emulate.h"

/* struct implementation.mutant: 0 is honest. */
enum {
    MUTANT_TAIL_UNMASKED = 1,   /* keys past the end are zero rows that count, in backward */
    MUTANT_PADDING_SCORED,      /* the same in forward: each adds exp(0 - max) to the sum */
    MUTANT_FINITE_INFINITY,     /* the running maximum begins at -5e4 */
    MUTANT_MAXIMUM_RESET,       /* a row that has seen nothing after a tile has the maximum 0 */
    MUTANT_EMPTY_TILE_NAN,      /* no guard against -inf - -inf */
    MUTANT_MASKED_NAN,          /* p = 0 is multiplied with masked values */
    MUTANT_BIAS_FINITE,         /* a bias of -inf is the lowest finite number */
    MUTANT_TAIL_DROPPED,        /* the last tile is left out where it is not full */
    MUTANT_RESCALE_LOST,        /* weights take a maximum to which o and the sum, which lag, are not rescaled */
    MUTANT_LSE_OF_MAXIMUM,      /* lse has the running maximum where weights are relative to one that lags */
    MUTANT_P_TRUNCATED,         /* p is cut off to 16 bits, not rounded */
    MUTANT_SOFTCAP_SELF,        /* s tanh(s / softcap) */
    MUTANT_HEAD_SPLIT,          /* KV head h mod num_heads_kv */
    MUTANT_GROUP_NOT_SUMMED,    /* dk and dv are those of the group's last head */
    MUTANT_PAST_USED_UNWRITTEN, /* dk and dv past seqused are left as they were */
    MUTANT_LSE_HEADS_SWAPPED,   /* lse of head (kv, g) at (g, kv) */
    MUTANT_WRAPPER              /* all others: see struct mutant */
};

enum { MUTATES_FORWARD = 1, MUTATES_BACKWARD = 2, MUTATES_BOTH = 3 };

struct mutant {
    struct implementation implementation; /* first: the functions in it find the rest by it */
    int row;                              /* among the 65 bugs that the mutants were chosen from; 0: none of them */
    const char *museum;                   /* where it was shipped: repository#issue */
    const char *bug;
    int passes;                           /* which of them `misread` reaches */
    void (*misread)(struct attest_problem *p, struct attest_forward_args *a);
    void (*spoil)(const struct attest_problem *p, const struct attest_forward_args *a); /* after forward */
    int64_t seqlen_q, seqlen_k;           /* the smallest failing case found has at most this many rows and keys */
};

/* Ends with implementation.name == NULL. */
extern const struct mutant mutants[];
const struct mutant *mutant_named(const char *name); /* NULL if there is none of that name */

/* Wrong merges: the function pointer of struct implementation. */
typedef enum attest_status wrong_merge(const struct implementation *self, const struct attest_merge_args *a);
wrong_merge merge_empty_nan, merge_base_2, merge_bf16, merge_wrong_stride;
enum attest_status merge_o_detached(const struct implementation *self, const struct attest_merge_backward_args *a);

#endif
