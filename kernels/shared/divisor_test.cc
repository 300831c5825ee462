/* divisor_test.cc - quotients by multiplication are those of division. */
#include <criterion/criterion.h>

#include "kernels/shared/scores.h"

static void judge(uint32_t n, uint32_t by, const divisor &d)
{
    cr_assert_eq(quotient(n, d), n / by, "%u / %u", n, by);
}

/* Judges quotients around the multiples where they change, over the whole range. */
static void judge_around(uint32_t by)
{
    const divisor d = divisor_of(by);
    const uint32_t last = UINT32_MAX / by;
    uint32_t draw = by;
    cr_assert_eq(d.by, by);
    judge(0, by, d);
    judge(UINT32_MAX, by, d);
    for (int i = 0; i < 64; ++i) {
        draw = draw * 1664525 + 1013904223;
        const uint32_t times = i < 8 ? last - static_cast<uint32_t>(i) % last : draw % last + 1;
        judge(times * by, by, d);
        judge(times * by - 1, by, d);
        judge(draw, by, d);
    }
}

Test(divisor, gives_the_quotients_of_division)
{
    for (uint32_t by = 1; by <= 4096; ++by) judge_around(by);
    for (int bit = 12; bit < 32; ++bit)
        for (uint32_t delta = 0; delta < 3; ++delta) judge_around((1u << bit) - 1 + delta);
    judge_around(UINT32_MAX);
    judge_around(UINT32_MAX - 1);
}
