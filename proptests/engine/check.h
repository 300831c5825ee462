/* check.h - property testing: cases drawn from a sequence of choices, and made small when one fails.
 *
 * A generator takes every decision with choose(). What it chose is recorded, so the case can be drawn
 * again and edited: replaying a smaller sequence gives a simpler case. A choice is kept as its
 * distance from the simplest value, `lo`; replayed values beyond the range are clamped, and past the
 * end of a sequence every choice is the simplest, so that every sequence is a case and trailing zeros say
 * nothing. Sequences are ordered shortlex: by length, then choice by choice. */
#ifndef ATTEST_PROPTESTS_ENGINE_CHECK_H
#define ATTEST_PROPTESTS_ENGINE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECK_MAX_CHOICES = 512, CHECK_MAX_SPANS = 256, CHECK_MAX_LINE = 12288 };

/* Trimmed: the last value is not 0. */
struct sequence {
    int count;
    uint64_t at[CHECK_MAX_CHOICES];
};

struct span {
    int begin, end; /* choices begin .. end - 1 belong together */
};

/* Where a generator's choices come from and are recorded. */
struct choices {
    const struct sequence *replay; /* NULL: random */
    uint64_t random;
    struct sequence made;          /* not trimmed */
    struct span spans[CHECK_MAX_SPANS];
    int num_spans, depth, open[16];
};

void choices_start(struct choices *c, const struct sequence *replay, uint64_t seed); /* replay NULL: from the seed */

/* lo <= result <= hi, evenly. lo is the simplest. Ends the program after CHECK_MAX_CHOICES: a generator
 * that draws that much is broken. */
int64_t choose(struct choices *c, int64_t lo, int64_t hi);

/* The same where a random case should take `proposal`: for uneven distributions, made of choices_random(). */
int64_t choose_proposed(struct choices *c, int64_t lo, int64_t hi, int64_t proposal);
uint64_t choices_random(struct choices *c); /* 64 random bits that are no choice; not in a replayed case */
bool choose_flag(struct choices *c, double probability); /* false is the simplest */

/* Around choices that describe one removable thing: a sequence, a mask. */
void span_begin(struct choices *c);
void span_end(struct choices *c);

/* Draws a case and checks it. Returns what is wrong as a failure class, a positive number of the caller's,
 * or one of these. */
enum { TRIAL_PASSES = 0, TRIAL_DISCARDED = -1 };
typedef int trial_function(struct choices *c, void *context);

struct search_result {
    int64_t cases, discarded;
    int failure;              /* class, 0: none */
    int64_t failing_case;     /* 1 for the first */
    struct sequence first, smallest;
    int64_t shrink_runs;
};

/* Draws cases until one fails, then shrinks it. first_case .. first_case + cases - 1 of the seed. */
void search(trial_function *trial, void *context, uint64_t seed, int64_t first_case, int64_t cases,
            struct search_result *result);

/* The smallest sequence found that fails in the same class. Tries at most `runs`. Returns runs made. */
int64_t shrink(trial_function *trial, void *context, int failure, struct sequence *sequence, int64_t runs);

bool sequence_less(const struct sequence *a, const struct sequence *b); /* shortlex */

/* v1;property=NAME;implementation=NAME;choices=HEX.HEX...: all that a case is. */
struct replay_line {
    char property[64], implementation[64];
    struct sequence choices;
};
void replay_format(const struct replay_line *line, char out[CHECK_MAX_LINE]);
/* False with a sentence in `why` for anything that replay_format does not write. */
bool replay_parse(const char *text, struct replay_line *line, char why[160]);

/* splitmix64: the next state and its output; used wherever cases need repeatable bits. */
uint64_t check_mix(uint64_t x);

#endif
