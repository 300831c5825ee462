/* faulty.c - plug-ins with one fault each, for tests: unfused.c, wrong in the way that is defined. */
#define attest_version honest_version
#define attest_plan_create honest_plan_create
#define attest_plan_share honest_plan_share
#define attest_run_forward honest_run_forward
#define attest_run_backward honest_run_backward
#include "proptests/plugin/unfused.c"
#undef attest_version
#undef attest_plan_create
#undef attest_plan_share
#undef attest_run_forward
#undef attest_run_backward

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

uint32_t attest_version(void)
{
#ifdef FAULT_VERSION
    return 90900;
#else
    return honest_version();
#endif
}

enum attest_status attest_plan_create(const struct attest_problem *problem, struct attest_plan **plan)
{
    struct attest_problem seen = *problem;
#ifdef FAULT_STRUCT_SIZE
    seen.struct_size -= 8; /* made for a shorter struct */
#endif
#ifdef FAULT_REFUSES_ALL
    return refuse(ATTEST_UNSUPPORTED, "nothing is taken today");
#endif
    return honest_plan_create(&seen, plan);
}

#ifndef FAULT_NO_SHARE
const struct attest_share *attest_plan_share(const struct attest_plan *plan, enum attest_pass pass, int i)
{
    static union { /* longer than any header's */
        struct attest_recipe recipe;
        unsigned char bytes[sizeof(struct attest_recipe) + 16];
    } all;
    static struct attest_share share;
    struct attest_recipe *const changed = &all.recipe;
#ifdef FAULT_SHARE_ENDLESS
    i = 0;
#endif
    if (i > 0) return honest_plan_share(plan, pass, i);
    share = *honest_plan_share(plan, pass, 0);
    *changed = *share.recipe;
    share.recipe = changed;
#ifdef FAULT_SHARE_NULL
    return NULL;
#endif
#ifdef FAULT_SHARE_SIZE
    share.struct_size = 8;
#endif
#ifdef FAULT_SHARE_SHORT
    share.most_seqlen_k = 0;
#endif
#ifdef FAULT_RECIPE_NULL
    share.recipe = NULL;
#endif
#ifdef FAULT_RECIPE_SIZE
    changed->struct_size = 0;
#endif
#ifdef FAULT_RECIPE_OLD /* of a header without own_sum and what follows it: what is there is something else */
    changed->struct_size = offsetof(struct attest_recipe, own_sum);
    memset(all.bytes + changed->struct_size, 0xff, sizeof all - changed->struct_size);
#endif
#ifdef FAULT_RECIPE_NEW
    changed->struct_size = sizeof all;
#endif
#ifdef FAULT_RECIPE_NEWER /* says something that is not known */
    changed->struct_size = sizeof all;
    all.bytes[sizeof all - 1] = 1;
#endif
#ifdef FAULT_RECIPE_INF
    changed->exp_error = INFINITY;
#endif
#ifdef FAULT_RECIPE_LOOSE
    changed->exp_error = 1e3; /* a bound that nothing can fail */
#endif
    return &share;
}
#endif

#ifndef FAULT_NO_FORWARD
enum attest_status attest_run_forward(const struct attest_plan *plan, const struct attest_forward_args *args,
                                      void *workspace, size_t workspace_bytes, void *stream)
{
    const enum attest_status status = honest_run_forward(plan, args, workspace, workspace_bytes, stream);
    const struct attest_problem *p = &plan->problem;
    const int is_long = p->batch > 0 && p->seqlen_q > 5 && p->seqlen_k > 0;
    (void)is_long;
#ifdef FAULT_CRASH
    if (is_long) raise(SIGSEGV);
#endif
#ifdef FAULT_HANG
    if (is_long) raise(SIGALRM); /* as after a minute */
#endif
#ifdef FAULT_EXIT
    if (is_long) _exit(0);
#endif
#ifdef FAULT_PAST_OUTPUT
    if (is_long) at(&p->o, args->o, p->batch - 1, p->seqlen_q - 1, p->num_heads_q - 1)[p->head_dim_v] = 0;
#endif
#ifdef FAULT_PAST_WORKSPACE
    if (is_long) ((float *)workspace)[workspace_bytes / sizeof(float)] = 0;
#endif
#ifdef FAULT_WRITES_INPUT
    if (is_long) *at(&p->k, args->k, 0, 0, 0) += 1;
#endif
#ifdef FAULT_NO_SENTENCE
    if (is_long) return last_error = NULL, ATTEST_DEVICE_ERROR;
#endif
    return status;
}
#endif

#ifndef FAULT_NO_BACKWARD
enum attest_status attest_run_backward(const struct attest_plan *plan, const struct attest_backward_args *args,
                                       void *workspace, size_t workspace_bytes, void *stream)
{
#ifdef FAULT_CRASH_BACKWARD
    abort();
#endif
    return honest_run_backward(plan, args, workspace, workspace_bytes, stream);
}
#endif

#ifdef FAULT_CRASH_AT_LOAD
__attribute__((constructor)) static void fall(void) { abort(); }
#endif
