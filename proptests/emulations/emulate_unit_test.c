/* emulate_unit_test.c - the emulation of matrix units against the simulated GPU's tensor cores: written apart, the same
 * bits. The emulation knows neither infinities and NaN as the chip has them, nor how deep sums of tiny terms are
 * aligned, nor tf32's steps of 4. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/sim/tests/unit_sets.h"
#include "kernels/sim/unit.h"
#include "lib/attest.h"
#include "proptests/emulations/emulate_formats.h"
#include "proptests/emulations/emulate_unit.h"

enum { M = 64, N = 8, K = 16 };

static int compare(int generation, int format, int family)
{
    static uint16_t a_bits[M * K], b_bits[N * K];
    static float a[M * K], b[N * K], c[M * N], d[M * N];
    const int dtype = format == SIM_FP16 ? ATTEST_FP16 : ATTEST_BF16, least = emulate_min_exponent(dtype);
    unit_sets(family, format, 9, M, N, K, a_bits, b_bits, c);
    for (int i = 0; i < M * K; ++i) a[i] = emulate_load(dtype, a_bits, i);
    for (int i = 0; i < N * K; ++i) b[i] = emulate_load(dtype, b_bits, i);
    sim_unit(generation, format, M, N, K, a_bits, b_bits, c, d);
    const struct unit unit = {.accumulate = generation == SIM_SM_90 ? ATTEST_ACC_HOPPER : ATTEST_ACC_AMPERE,
                              .min_exponent = {least, least}};
    unit_multiply(&unit, M, N, K, (struct matrix){a, K, 1}, (struct seen){0}, (struct matrix){b, 1, K},
                  (struct matrix){c, N, 1});
    return memcmp(c, d, sizeof c);
}

Test(emulate_unit, has_the_bits_of_the_simulated_tensor_cores)
{
    static const int families[] = {UNIT_NEAR, UNIT_SPREAD, UNIT_POSITIVE, UNIT_CANCEL, UNIT_EDGES, UNIT_ZEROS};
    for (int generation = SIM_SM_80; generation <= SIM_SM_90; ++generation)
        for (int format = SIM_FP16; format <= SIM_BF16; ++format)
            for (size_t f = 0; f < sizeof families / sizeof *families; ++f)
                cr_assert_eq(compare(generation, format, families[f]), 0, "sm_%d0, %s, %s", generation + 8,
                             format == SIM_FP16 ? "fp16" : "bf16", unit_family_name(families[f]));
}
