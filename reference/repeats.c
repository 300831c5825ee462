/* repeats.c - see repeats.h. */
#include "reference/repeats.h"

#include <stdlib.h>
#include <string.h>

uint64_t ref_hash(uint64_t so_far, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t mixed = (so_far ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 29;
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

double *ref_repeats_of_rows(const double *want, const double *sigma, int64_t rows, int64_t features,
                            const double *group)
{
    uint64_t *const hashes = malloc((size_t)(rows + 1) * sizeof *hashes);
    double *repeats = malloc((size_t)(rows + 1) * sizeof *repeats);
    for (int64_t n = 0; hashes && n < rows; ++n) {
        hashes[n] = group ? ref_hash(1, group[n]) : 0;
        for (int64_t at = n * features; at < (n + 1) * features; ++at)
            hashes[n] = ref_hash(ref_hash(hashes[n], want[at]), sigma ? sigma[at] : 0.0);
    }
    if (!hashes || !repeats || !ref_count_repeats(hashes, rows, repeats)) {
        free(repeats);
        repeats = NULL;
    }
    free(hashes);
    return repeats;
}
