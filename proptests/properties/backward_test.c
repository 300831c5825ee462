/* backward_test.c - every property of gradients on every honest implementation: the corpus, then 2,000 random cases. */
#include <stdio.h>

#include <criterion/criterion.h>

#include "proptests/engine/campaign.h"

/* Two halves of one run, so that two shards share the work; each covers every pair of features by itself. */
enum { CASES = 2000, HALVES = 2, FAR = 1 << 20, SEED = 1 };

static void run_half(int half)
{
    static struct campaign_result result;
    const struct campaign campaign = {
        .backward = true, .cases = CASES / HALVES, .first_case = (int64_t)half * FAR, .seed = SEED};
    const bool passed = campaign_run(&campaign, &result, stdout);
    cr_expect(campaign_report(&campaign, &result, stdout), "covered too little");
    cr_expect(passed, "%d failures", (int)result.failures);
}

Test(backward, corpus)
{
    int replayed;
    cr_expect_eq(campaign_corpus("proptests/corpus.txt", true, &replayed, stdout), 0);
    printf("%d lines of the corpus replayed\n", replayed);
    cr_expect_gt(replayed, 0);
}

Test(backward, first_half) { run_half(0); }

Test(backward, second_half) { run_half(1); }
