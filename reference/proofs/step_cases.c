/* step_cases.c - what the simulated tensor cores make of random and hard operands, for tensor_core_test.py: sets of
 * finite operands, and the result of one instruction, which is a chain of steps.
 *
 *     step_cases [TILES]    tiles of 2560 sets of each family, format and generation, to stdout
 *
 * A record is 32-bit words: fraction bits and least exponent of the model, its group, fraction and exponent bits of the
 * format, k, then c, d, and k pairs of raw operands. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/tests/unit_sets.h"
#include "kernels/sim/unit.h"

enum { M = 64, N = 40, MOST_K = 16 };

struct format {
    enum sim_format name;
    int fraction_bits, exponent_bits, unused_bits, k;
};

static const struct format formats[] = {
    {SIM_FP16, 10, 5, 0, 16}, {SIM_BF16, 7, 8, 0, 16}, {SIM_TF32, 10, 8, 13, 8}};

static uint32_t operand(const struct format *f, const void *array, int index)
{
    const int bytes = sim_operand_bytes(f->name);
    uint32_t bits = 0;
    memcpy(&bits, (const char *)array + (size_t)index * bytes, bytes);
    return bits >> f->unused_bits;
}

static bool is_finite(const struct format *f, uint32_t bits)
{
    const uint32_t top = (1u << f->exponent_bits) - 1;
    return (bits >> f->fraction_bits & top) != top;
}

static void print_set(const struct sim_unit_model *model, const struct format *f, const void *a, const void *b,
                      float c, float d)
{
    uint32_t words[8 + 2 * MOST_K] = {(uint32_t)model->fraction_bits, (uint32_t)model->least_exponent,
                                      (uint32_t)model->group, (uint32_t)f->fraction_bits, (uint32_t)f->exponent_bits,
                                      (uint32_t)f->k};
    memcpy(&words[6], &c, sizeof c);
    memcpy(&words[7], &d, sizeof d);
    for (int l = 0; l < f->k; ++l) {
        words[8 + 2 * l] = operand(f, a, l);
        words[9 + 2 * l] = operand(f, b, l);
        if (!is_finite(f, words[8 + 2 * l]) || !is_finite(f, words[9 + 2 * l]) || !isfinite(c)) return;
    }
    fwrite(words, sizeof *words, (size_t)(8 + 2 * f->k), stdout);
}

static void print_tile(enum sim_generation generation, const struct format *f, enum unit_family family, uint64_t seed)
{
    static uint32_t a[M * MOST_K], b[N * MOST_K];
    static float c[M * N], d[M * N];
    const struct sim_unit_model model = sim_unit_model(generation, f->name);
    const size_t row = (size_t)f->k * sim_operand_bytes(f->name);
    unit_sets(family, f->name, seed, M, N, f->k, a, b, c);
    sim_unit(generation, f->name, M, N, f->k, a, b, c, d);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j)
            print_set(&model, f, (const char *)a + i * row, (const char *)b + j * row, c[i * N + j], d[i * N + j]);
}

int main(int argc, char **argv)
{
    const int tiles = argc > 1 ? atoi(argv[1]) : 1;
    const enum sim_generation generations[] = {SIM_SM_80, SIM_SM_90};
    for (int g = 0; g < 2; ++g)
        for (int f = 0; f < 3; ++f)
            for (int family = 0; family < UNIT_FAMILIES; ++family)
                for (int t = 0; family != UNIT_SPECIAL && t < tiles; ++t)
                    print_tile(generations[g], &formats[f], (enum unit_family)family,
                               (uint64_t)(1 + t + tiles * (family + UNIT_FAMILIES * (f + 3 * g))));
    return fflush(stdout) == 0 ? 0 : 1;
}
