/* forward_test.c - every property of o and lse on every honest implementation: the corpus, then 10,000 random cases. */
#include <stdio.h>

#include <criterion/criterion.h>

#include "proptests/engine/campaign.h"

/* Two halves of one run, so that two shards share the work; each covers every pair of features by itself. */
enum { CASES = 10000, HALVES = 2, FAR = 1 << 20, SEED = 1 };

static void run_half(int half)
{
    static struct campaign_result result;
    const struct campaign campaign = {
        .backward = false, .cases = CASES / HALVES, .first_case = (int64_t)half * FAR, .seed = SEED};
    const bool passed = campaign_run(&campaign, &result, stdout);
    cr_expect(campaign_report(&campaign, &result, stdout), "covered too little");
    cr_expect(passed, "%d failures", (int)result.failures);
}

Test(forward, corpus)
{
    int replayed;
    cr_expect_eq(campaign_corpus("proptests/corpus.txt", false, &replayed, stdout), 0);
    printf("%d lines of the corpus replayed\n", replayed);
    cr_expect_gt(replayed, 0);
}

Test(forward, first_half) { run_half(0); }

Test(forward, second_half) { run_half(1); }
