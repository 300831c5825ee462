/* functions_check.h - how far exp2, log2, reciprocal and tanh are from the exact functions, over any range of fp32.
 *
 * Eight forms: the approximate instructions of arith.h and the portable functions of functions.h. Inputs are named
 * by their bits, in whose order ranges run. The exact function is the C library's in double, whose own error (2^-51
 * relative, functions_test) is 2^-27 of what is measured here. */
#ifndef ATTEST_DEVICE_FUNCTIONS_CHECK_H
#define ATTEST_DEVICE_FUNCTIONS_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum function {
    FUNCTION_EX2_APPROX,
    FUNCTION_LG2_APPROX,
    FUNCTION_RCP_APPROX,
    FUNCTION_TANH_APPROX,
    FUNCTION_EXP2_PORTABLE,
    FUNCTION_LOG2_PORTABLE,
    FUNCTION_RCP_PORTABLE,
    FUNCTION_TANH_PORTABLE,
    NUM_FUNCTIONS
};

/* Largest errors, each with its place. */
struct function_error {
    double size;
    uint32_t at; /* bits of the input */
};
struct function_errors {
    uint64_t count;
    struct function_error relative; /* where the exact result is a normal number */
    struct function_error far;      /* relative, where it is at least 1 in size */
    struct function_error near;     /* absolute, where it is at most 1 */
    struct function_error ulps;     /* in distances of fp32 neighbours around the exact result */
    uint64_t flushed;               /* exact result subnormal, given as zero */
    uint64_t wrong;                 /* not the NaN, infinity or zero that it should be */
    uint32_t wrong_at;              /* the first of them; so below */
    uint64_t back;                  /* results that step back where the function does not */
    uint32_t back_at;
    uint64_t different;             /* portable forms: other bits than this machine gives */
    uint32_t different_at;
    uint64_t hash;                  /* of inputs and results */
};

struct function_form {
    const char *name;
    double (*exact)(double x);
    bool portable;
    bool flushes;   /* subnormal operands count as zero, subnormal results may be zero */
    bool decreases; /* on either side of zero */
    double relative, far, near, ulps; /* documented or stated limits; infinity: none */
    uint64_t hash;  /* portable: of all 2^32 */
};
extern const struct function_form function_forms[NUM_FUNCTIONS];

/* result[i] = form of the fp32 with bits first + i (modulo 2^32), by this machine. Portable forms only. */
void function_values(enum function form, uint32_t first, uint32_t count, float *result);

/* Adds to `errors`, which begins as {0}, what `count` results from the input `first` on are off by. results[-1] is that
 * of the input before. A portable form is compared with this machine's bits; results NULL: those are checked
 * themselves. threads: 0 for all cores. */
void function_check(enum function form, uint32_t first, uint64_t count, const float *results, int threads,
                    struct function_errors *errors);

/* Whether the form does what it is said to: limits kept, special values right; if it is portable, nothing different
 * and, once all inputs were checked, the hash that every machine gets. */
bool function_holds(enum function form, const struct function_errors *errors);

#ifdef __cplusplus
}
#endif

#endif
