/* tanh_test.cc - tanh_accurate keeps to what its comment says, built with polynomials. */
#include <math.h>

#include <criterion/criterion.h>

#include "kernels/device/functions.h"

/* Asks every 97th fp32 but 0, in either sign, for the largest error over 2^-22 (1 + |tanh|). */
Test(tanh, is_as_accurate_as_said)
{
    double worst = 0;
    uint32_t at = 0;
    for (uint32_t bits = 1; bits < 0x7f800000; bits += 97) {
        const float x = float_of(bits);
        const double exact = tanh(static_cast<double>(x)), got = static_cast<double>(tanh_accurate(x));
        const double use = fabs(got - exact) / (0x1p-22 * (1 + exact));
        cr_assert_eq(bits_of(tanh_accurate(-x)), bits_of(tanh_accurate(x)) ^ 0x80000000, "%a", static_cast<double>(x));
        if (!(use <= worst)) worst = use, at = bits;
    }
    cr_assert(worst <= 1, "%g of the limit at %a", worst, static_cast<double>(float_of(at)));
    printf("tanh_accurate: %.3f of its limit at %a\n", worst, static_cast<double>(float_of(at)));
}

/* Where the polynomial ends, the two formulas lie next to each other. */
Test(tanh, has_no_step_at_a_half)
{
    const float below = tanh_accurate(float_of(bits_of(0.5f) - 1)), above = tanh_accurate(0.5f);
    cr_assert(fabsf(above - below) <= 0x1p-22f, "%a %a", static_cast<double>(below), static_cast<double>(above));
}

Test(tanh, has_the_limits_of_tanh)
{
    cr_assert_eq(tanh_accurate(infinity_f32()), 1.0f);
    cr_assert_eq(tanh_accurate(-infinity_f32()), -1.0f);
    cr_assert_eq(tanh_accurate(-0.0f), 0.0f);
    const float of_nan = tanh_accurate(float_of(0x7fffffff));
    cr_assert(of_nan != of_nan);
}
