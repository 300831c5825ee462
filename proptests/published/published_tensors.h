/* published_tensors.h - tensors of the published checks: on the host, and where the machine has them. */
#ifndef ATTEST_PROPTESTS_PUBLISHED_PUBLISHED_TENSORS_H
#define ATTEST_PROPTESTS_PUBLISHED_PUBLISHED_TENSORS_H

#include <stdbool.h>

#include "proptests/cases/families.h"
#include "proptests/published/published.h"

/* `count` numbers. */
struct tensor {
    int32_t dtype;
    int64_t count;
    size_t bytes;
    void *host, *there;
};

/* All that one check allocates; its functions end the program where there is no memory. */
enum { MAX_TENSORS = 256 };
struct memory {
    const struct machine *machine;
    struct tensor tensors[MAX_TENSORS];
    int num_tensors;
};

/* Poison, NaN in every format, on both sides. */
struct tensor *new_tensor(struct memory *m, int32_t dtype, int64_t count);
/* Numbers of family `normal`, [rows][heads][features]. */
struct tensor *new_normal(struct memory *m, int32_t dtype, enum role role, int64_t rows, int64_t heads,
                          int64_t features);
double *new_doubles(struct memory *m, int64_t count); /* zeros, of the host alone */
void to_machine(struct memory *m, const struct tensor *t);
void to_host(struct memory *m, const struct tensor *t);
void free_memory(struct memory *m, int kept); /* all but the first `kept` */

/* Element `index` of a tensor, on the host or there. */
typedef void *place(const struct tensor *t, int64_t index);
place host_at, there_at;

/* What a comparison with the oracle comes to; zero to begin with. */
struct figures {
    double max, sum, use; /* |got - want|; largest share of a bound, NaN if any is */
    int64_t count;
};
void compare(struct figures *f, double got, double want, double bound);
double mean_of(const struct figures *f);

/* Prints a line and returns 1 where `holds` is false. */
int state(FILE *out, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A plan, its workspace, one pass. False: why not has been printed. */
bool run(struct memory *m, const struct attest_problem *p, const struct attest_backward_args *a, bool backward,
         FILE *out);

struct attest_tensor packed_rows(int32_t dtype, int64_t seqlen, int64_t heads, int64_t features);
struct attest_tensor packed_scalars(int64_t seqlen, int64_t heads);

/* Dense, fp16, forward alone, softmax_scale = head_dim^(-1/2); rows packed as states have them,
 * [batch][seqlen][heads][head_dim]: of one sequence. */
struct attest_problem packed_problem(const struct machine *machine, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                                     int64_t head_dim);

#endif
