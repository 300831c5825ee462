/* work_test.cc - CTAs that stay and those that follow them leave no item out and take none twice. */
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/hopper.h"

enum { MOST = 4000 };

static void judge(unsigned items, unsigned places)
{
    static unsigned char taken[MOST];
    memset(taken, 0, sizeof taken);
    const work w = divide_work(items, places);
    const unsigned ctas = ctas_of(w);
    for (unsigned cta = 0; cta < ctas; ++cta) {
        const share own = share_of(w, cta);
        unsigned count = 0;
        for (unsigned item = own.first; item < own.end; item += own.step, ++count) {
            cr_assert_lt(item, items, "%u of %u items, %u places", item, items, places);
            cr_assert_eq(taken[item], 0, "item %u of %u, %u places, is taken twice", item, items, places);
            taken[item] = 1;
        }
        const bool stays = cta < w.staying;
        const unsigned most = stays ? w.rounds : PIECE;
        cr_assert(count == most || (count > 0 && count + 1 >= most && stays) || (count > 0 && cta + 1 == ctas),
                  "CTA %u takes %u of %u items, %u places", cta, count, items, places);
    }
    for (unsigned item = 0; item < items; ++item)
        cr_assert_eq(taken[item], 1, "item %u of %u, %u places, is left out", item, items, places);
}

Test(work, is_done_once)
{
    for (unsigned places = 0; places <= 40; ++places)
        for (unsigned items = 1; items <= 200; ++items) judge(items, places);
    for (unsigned places = 1; places <= 800; places += 37)
        for (unsigned items = 1; items <= MOST; items += 61) judge(items, places);
}

Test(work, is_left_for_who_is_first)
{
    const work many = divide_work(128000, 792);
    cr_assert_eq(many.staying, 792);
    cr_assert_eq(many.rounds, 128000 * 7 / 8 / 792);
    const work few = divide_work(63 * 132, 132);
    cr_assert_eq(few.rounds, 63);
    cr_assert_eq(ctas_of(few), 132, "all in equal shares");
    cr_assert_eq(ctas_of(divide_work(128, 792)), 128, "a CTA for each, while there is room for all");
    cr_assert_eq(ctas_of(divide_work(128000, 128000)), 128000);
}
