/* kernels.h - the kernels of kernels/registry.h as implementations, on both machines. */
#ifndef ATTEST_PROPTESTS_KERNELS_KERNELS_H
#define ATTEST_PROPTESTS_KERNELS_KERNELS_H

#include <stdint.h>
#include <stdio.h>

#include "kernels/registry.h"
#include "kernels/sim/sim.h"
#include "lib/plan.h"
#include "lib/tensors.h"
#include "proptests/properties/properties_list.h"

/* Launchers in place of the library's own, by place in the registry's tables; NULL: the library's. */
struct kernel_launchers {
    forward_launcher *forward[KERNEL_MOST_ROWS];
    backward_launcher *backward[KERNEL_MOST_ROWS];
    merge_launcher *merge;
    merge_backward_launcher *merge_backward;
};

/* Any of them, to be cast from and to its own type. */
typedef void kernel_launcher(void);

/* Puts a launcher in the place of the kernel of that name. False: there is none. */
bool kernels_replace(struct kernel_launchers *launchers, const char *kernel, kernel_launcher *launcher);

/* The library's plans and calls. Each run is judged by the recipe of the kernel that its plan picked. */
struct kernel_implementation {
    struct implementation implementation; /* first: its functions find the rest by it */
    struct kernel_launchers launchers;
    enum sim_generation generation;       /* of the simulated GPU; on a chip the last one */
    bool is_general;                      /* kernels for short sequences are left out: others run all problems */
    bool only_replaced;                   /* problems that no kernel of `launchers` has a part in are refused */
};

/* On the simulated GPU: each run with a seed and a policy of its own, made of the case. Its tensor cores are those of
 * the generation, so bits are. `launchers` NULL: the library's. */
struct kernel_implementation kernels_on_sim(const char *name, enum sim_generation generation,
                                            const struct kernel_launchers *launchers);
/* On the chip: each run on copies of the case's memory, guarded on both sides. */
struct kernel_implementation kernels_on_cuda(const char *name, const struct kernel_launchers *launchers);

/* With polynomials in place of approximate instructions, every kernel of the registry. */
struct kernel_launchers kernels_sim_poly(void);
struct kernel_launchers kernels_cuda_poly(void);

/* A plan of the library with launchers in place, and room for one of its passes. */
struct kernel_run_plan {
    struct attest_plan plan;
    struct forward_kernel forward[MAX_SHARES];
    struct backward_kernel backward[MAX_SHARES];
    size_t workspace_bytes;
    struct computed computed;
};

/* Of a problem, but on `device`. */
enum attest_status kernels_plan(const struct kernel_implementation *self, const struct attest_problem *p,
                                enum attest_device device, enum attest_pass pass, struct kernel_run_plan *out);

/* `property` as it is asked of kernels: without the features that none takes, with cases of at most `work`. False:
 * nothing would be left of it. */
bool kernels_property(const struct property *property, int64_t work, struct property *out);

/* What became of cases that have names, over all kernels that were asked. */
enum { KERNELS_MAX_NAMES = 256 };
struct kernels_verdicts {
    struct kernels_verdict {
        const char *name;
        int64_t passed, discarded; /* discarded: another kernel answered, or none */
    } of[KERNELS_MAX_NAMES];
    int count;
};

/* Counts a verdict. Returns it, or TRIAL_PASSES for TRIAL_DISCARDED: the other cases are asked all the same. */
int kernels_note(struct kernels_verdicts *verdicts, const char *name, int verdict);

/* Prints how many passed and were discarded, and the name of each case that was discarded for every kernel. Returns
 * whether there was none. */
bool kernels_report_verdicts(const struct kernels_verdicts *verdicts, const char *of, FILE *out);

/* Checks in one dtype that no random case makes, of implementations in host memory: strides of 2^31 elements and more,
 * infinite scores and sinks, the diagonal of seqused, merges of one state. Those of kernels_nan.c and kernels_scaled.c
 * are among them. They return TRIAL_PASSES or the first failure. */
int kernels_corners(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                    struct prop_context *context);
int kernels_nan(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                struct prop_context *context);
int kernels_scaled(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                   struct prop_context *context);
/* Gradients of rows of large scores, which take long and are asked apart. */
int kernels_large(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                  struct prop_context *context);

/* SMs of the simulated GPU that a problem is run on: 1 to 4, or 16. */
unsigned kernels_sim_sms(const struct attest_problem *p);

/* Which cases of several tiles are asked, and in which dtype: number `from` and each `every`-th one after it, of them
 * the one of that name; NULL: whatever their names. Where that is not every one, those about how large a format's
 * numbers may be are asked, too, and those of many keys in bf16 alone. */
struct kernels_long_asked {
    int32_t dtype;
    int from, every;
    const char *only;
};

/* Cases of several tiles, one pass: each within its bounds of the oracle. */
int kernels_long(const struct implementation *self, bool backward, const struct kernels_long_asked *asked,
                 struct kernels_verdicts *verdicts, struct prop_context *context);
bool kernels_long_has(const char *name);

/* Whether a row takes sequences of any length. */
bool kernels_any_length(struct lengths most);

struct kernel_run {
    const struct kernel_implementation *self;
    bool backward;      /* properties of gradients, or of results */
    int64_t cases;      /* over all properties of the pass, by weight; discarded ones do not count */
    int64_t first_case;
    uint64_t seed;
    int64_t work;       /* most scores x head_dim of a case */
};

enum { KERNELS_MAX_PROPERTIES = 64 };

/* What runs came to; zero to begin with. */
struct kernel_tally {
    /* Cases, by place in `properties`; those that the library has no kernel for come on top. */
    int64_t asked[KERNELS_MAX_PROPERTIES], ran[KERNELS_MAX_PROPERTIES], refused[KERNELS_MAX_PROPERTIES];
    int64_t failures;
    double use[REF_NUM_TENSORS]; /* largest shares of bounds */
    int64_t judged[REF_NUM_TENSORS], proven[REF_NUM_TENSORS]; /* as in struct prop_context */
};

/* Asks every property, adds to the tally, prints every failure with the line that replays it. */
void kernels_run(const struct kernel_run *run, struct kernel_tally *tally, FILE *out);
void kernels_add(struct kernel_tally *to, const struct kernel_tally *from);

/* Prints for each property how many cases ran and were refused. Returns whether none failed and every property had its
 * cases. */
bool kernels_report(const struct kernel_tally *tally, const char *name, FILE *out);

/* Replays a line of kernels_run, drawn with the same `work`. Returns whether it is one and passes. */
bool kernels_replay(const char *line, const struct implementation *self, int64_t work, FILE *out);

/* Asks the cases of a corpus again, each of its property, or of `check` unless that is NULL. Returns how many fail, -1
 * where there is no such file; `replayed`: how many were not discarded. */
int kernels_corpus(const char *path, const struct implementation *self, property_check *check, int *replayed,
                   FILE *out);

#endif
