/* repeats.c - see repeats.h. */
#include "reference/repeats.h"

#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"
#include "reference/oracle.h"

uint64_t ref_hash_hash(uint64_t so_far, uint64_t hash)
{
    const uint64_t mixed = (so_far ^ hash) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 29;
}

uint64_t ref_hash(uint64_t so_far, double value)
{
    const double number = value + 0.0;/* makes 0 of -0 */
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return ref_hash_hash(so_far, bits);
}

uint64_t ref_hash_row(uint64_t so_far, const struct attest_tensor *t, const void *data, int64_t from, int64_t features)
{
    for (int64_t c = 0; c < features; ++c) so_far = ref_hash(so_far, ref_load(t->dtype, data, from + c));
    return so_far;
}

struct place {
    uint64_t hash;
    int64_t at;
};

static int by_hash(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

bool ref_count_repeats(const uint64_t *hashes, int64_t count, double *repeats)
{
    struct place *const places = malloc((size_t)(count + 1) * sizeof *places);
    if (!places) return false;
    for (int64_t n = 0; n < count; ++n) places[n] = (struct place){hashes[n], n};
    qsort(places, (size_t)count, sizeof *places, by_hash);
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && places[end].hash == places[first].hash;) ++end;
        for (int64_t n = first; n < end; ++n) repeats[places[n].at] = (double)(end - first);
    }
    free(places);
    return true;
}

/* Hashes q of each query row and head. */
static void hash_queries(const struct attest_problem *p, const struct attest_forward_args *a, uint64_t *hashes)
{
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        for (int64_t n = 0; n < s.rows_q * p->num_heads_q; ++n) {
            const int64_t row = n / p->num_heads_q, h = n % p->num_heads_q;
            const int64_t from = ref_row_offset(p, &p->q, &s, false, b, row, h);
            uint64_t *const hash = &hashes[s.first_q * p->num_heads_q + n];
            *hash = ref_hash_row(*hash, &p->q, a->q, from, p->head_dim);
        }
    }
}

static void hash_results(const double *want, const double *sigma, int64_t rows, int64_t features, uint64_t *hashes)
{
    for (int64_t at = 0; at < rows * features; ++at) {
        uint64_t *const hash = &hashes[at / features];
        *hash = ref_hash(ref_hash(*hash, want[at]), sigma ? sigma[at] : 0.0);
    }
}

double *ref_repeats_of_rows(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
                            const double *want, const double *sigma, const double *group)
{
    const bool is_k = tensor >= REF_DK, is_of_v = tensor == REF_O || tensor == REF_DV;
    const int64_t rows = is_k ? ref_rows_k(p) * p->num_heads_kv : ref_rows_q(p) * p->num_heads_q;
    const int64_t features = tensor == REF_LSE ? 1 : is_of_v ? p->head_dim_v : p->head_dim;
    uint64_t *const hashes = calloc((size_t)(rows + 1), sizeof *hashes);
    double *repeats = malloc((size_t)(rows + 1) * sizeof *repeats);
    for (int64_t n = 0; hashes && group && n < rows; ++n) hashes[n] = ref_hash(1, group[n]);
    if (hashes && tensor == REF_O && p->dropout_p > 0) hash_queries(p, a, hashes);
    else if (hashes) hash_results(want, sigma, rows, features, hashes);
    if (!hashes || !repeats || !ref_count_repeats(hashes, rows, repeats)) {
        free(repeats);
        repeats = NULL;
    }
    free(hashes);
    return repeats;
}
