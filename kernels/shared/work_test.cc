/* work_test.cc - persistent CTAs and those that follow them leave no item out and take none twice. */
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/shared/wgmma_tiles.h"

enum { MOST = 4000 };

static void judge(unsigned items, unsigned places, int64_t most_rounds)
{
    static unsigned char taken[MOST];
    memset(taken, 0, sizeof taken);
    const work w = divide_work(items, places, most_rounds);
    const unsigned ctas = ctas_of(w);
    for (unsigned cta = 0; cta < ctas; ++cta) {
        const share own = share_of(w, cta);
        unsigned count = 0;
        for (unsigned item = own.first; item < own.end; item += own.step, ++count) {
            cr_assert_lt(item, items, "%u of %u items, %u places", item, items, places);
            cr_assert_eq(taken[item], 0, "item %u of %u, %u places, is taken twice", item, items, places);
            taken[item] = 1;
        }
        const bool stays = cta < w.staying * w.waves;
        const unsigned most = stays ? w.rounds : w.piece;
        cr_assert(count == most || (count > 0 && count + 1 >= most && stays) || (count > 0 && cta + 1 == ctas),
                  "CTA %u takes %u of %u items, %u places", cta, count, items, places);
    }
    for (unsigned item = 0; item < items; ++item)
        cr_assert_eq(taken[item], 1, "item %u of %u, %u places, is left out", item, items, places);
}

Test(work, is_done_once)
{
    for (int64_t most_rounds : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8}, ALL_ROUNDS}) {
        for (unsigned places = 0; places <= 40; ++places)
            for (unsigned items = 1; items <= 200; ++items) judge(items, places, most_rounds);
        for (unsigned places = 1; places <= 800; places += 37)
            for (unsigned items = 1; items <= MOST; items += 61) judge(items, places, most_rounds);
    }
}

Test(work, is_left_for_who_is_first)
{
    const work many = divide_work(128000, 792, ALL_ROUNDS);
    cr_assert_eq(many.staying, 792);
    cr_assert_eq(many.rounds, 128000 * 7 / 8 / 792);
    cr_assert_eq(many.waves, 1);
    cr_assert_eq(many.piece, 4);
    const work few = divide_work(63 * 132, 132, 2);
    cr_assert_eq(few.rounds, 63);
    cr_assert_eq(ctas_of(few), 132, "all in equal shares");
    cr_assert_eq(ctas_of(divide_work(128, 792, ALL_ROUNDS)), 128, "a CTA for each, while there is room for all");
    cr_assert_eq(ctas_of(divide_work(128000, 128000, ALL_ROUNDS)), 128000);
}

/* Item 0 of every CTA of a wave comes before item 1 of any, and all of a wave before all of the next. */
Test(work, goes_in_waves)
{
    const work w = divide_work(64 * 132 + 5, 132, 3);
    cr_assert_eq(w.rounds, 3);
    cr_assert_eq(w.waves, 21);
    cr_assert_eq(w.piece, 3);
    cr_assert_eq(ctas_of(w), 21 * 132 + (64 * 132 + 5 - 63 * 132 + 2) / 3);
    for (unsigned wave = 0; wave < w.waves; ++wave)
        for (unsigned n = 0; n < 132; ++n) {
            const share own = share_of(w, wave * 132 + n);
            cr_assert_eq(own.first, wave * 3 * 132 + n);
            cr_assert_eq(own.step, 132);
        }
}
