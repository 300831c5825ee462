/* plugin_run.c - a plug-in as an implementation: plans, workspaces, runs. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proptests/plugin/plugin.h"
#include "proptests/plugin/plugin_cuda.h"

enum { ALIGN = 256, GUARD = 256, SECONDS = 60, POISON = 0xff };

static enum attest_status refuse(struct plugin *plugin, enum attest_status status, const char *function,
                                 const char *sentence)
{
    plugin->status = status;
    snprintf(plugin->refusal, sizeof plugin->refusal, "%s: %s: %s", function, attest_status_name(status),
             sentence != NULL && *sentence != '\0' ? sentence : "(no sentence)");
    return status;
}

static enum attest_status answer(struct plugin *plugin, enum attest_status status, const char *function)
{
    return status == ATTEST_OK ? status : refuse(plugin, status, function, plugin->functions.last_error());
}

/* ---- plans ---- */

static enum attest_status make_plan(struct plugin *plugin, const struct attest_problem *problem,
                                    struct attest_plan **plan)
{
    struct attest_problem on_device = *problem;
    on_device.device = plugin->device;
    *plan = NULL;
    return answer(plugin, plugin->functions.plan_create(&on_device, plan), "attest_plan_create");
}

static bool is_same(const struct attest_recipe *a, const struct attest_recipe *b)
{
    return a->accumulate == b->accumulate && a->weights_p == b->weights_p && a->weights_ds == b->weights_ds &&
           a->round_dkv_heads == b->round_dkv_heads && a->delta == b->delta && a->tile_k == b->tile_k &&
           a->round_p_ds == b->round_p_ds && a->exp_error == b->exp_error && a->tanh_error == b->tanh_error &&
           a->own_sum == b->own_sum && a->rescale_log2 == b->rescale_log2 && a->ordered_keys == b->ordered_keys &&
           a->round_scaled_ds == b->round_scaled_ds;
}

void plugin_note_recipe(struct plugin_recipes *recipes, const struct attest_recipe *recipe, const char *name)
{
    for (int i = 0; i < recipes->count; ++i)
        if (is_same(&recipes->recipe[i], recipe) && strncmp(recipes->name[i], name, PLUGIN_NAME - 1) == 0) return;
    if (recipes->count == PLUGIN_MAX_RECIPES) return;
    recipes->recipe[recipes->count] = *recipe;
    snprintf(recipes->name[recipes->count++], PLUGIN_NAME, "%s", name);
}

/* A bound of what no kernel can be would accept anything. */
static bool is_recipe(const struct attest_recipe *r)
{
    return r->accumulate >= ATTEST_ACC_FP32 && r->accumulate <= ATTEST_ACC_HOPPER && r->delta >= ATTEST_DELTA_EXACT &&
           r->delta <= ATTEST_DELTA_NORMALIZED && r->tile_k >= 0 && r->weights_p >= ATTEST_WEIGHTS_FP32 &&
           r->weights_p <= ATTEST_WEIGHTS_SCALED_FP16 && r->weights_ds >= ATTEST_WEIGHTS_FP32 &&
           r->weights_ds <= ATTEST_WEIGHTS_SCALED_FP16 &&
           (r->weights_p == ATTEST_WEIGHTS_SCALED_FP16) == (r->weights_ds == ATTEST_WEIGHTS_SCALED_FP16) &&
           (r->round_dkv_heads | r->round_p_ds | r->own_sum | r->ordered_keys | r->round_scaled_ds | 1) == 1 &&
           r->rescale_log2 >= 0 && r->rescale_log2 <= 64 && r->exp_error >= 0 && r->tanh_error >= 0 &&
           isfinite(r->exp_error) && isfinite(r->tanh_error);
}

/* What the first header had; no header has as much as this. */
enum { FIRST_RECIPE = offsetof(struct attest_recipe, own_sum), MOST_RECIPE = 4096 };

/* A recipe of any header: what an older one lacks is 0, what a newer one has beside must be. NULL, or what is wrong. */
static const char *read_recipe(const struct attest_recipe *recipe, struct attest_recipe *read)
{
    static _Thread_local char sentence[128];
    const size_t size = recipe->struct_size;
    *read = (struct attest_recipe){.struct_size = sizeof *read};
    if (size < FIRST_RECIPE || size > MOST_RECIPE) {
        snprintf(sentence, sizeof sentence, "the recipe's struct_size is %zu, but must be between %d and %d", size,
                 FIRST_RECIPE, MOST_RECIPE);
        return sentence;
    }
    for (size_t i = sizeof *read; i < size; ++i)
        if (((const unsigned char *)recipe)[i] != 0)
            return "the recipe is of a newer header and says what this audit does not know";
    memcpy(read, recipe, size < sizeof *read ? size : sizeof *read);
    read->struct_size = sizeof *read;
    if (is_recipe(read)) return NULL;
    return "the recipe's flags must be 0 or 1, its enums as in attest.h, tile_k and errors numbers >= 0";
}

/* What a share says, to `how`. NULL, or what is wrong with it. */
static const char *take_share(struct plugin *plugin, const struct attest_share *share, struct computed *how)
{
    enum { LEAST = offsetof(struct attest_share, most_seqlen_k) + sizeof share->most_seqlen_k };
    struct attest_recipe kept;
    if (share->struct_size < LEAST) return "the share's struct_size is less than that of any header's";
    if (share->recipe == NULL) return "the share's recipe is NULL: name a recipe by --recipe";
    if (share->most_seqlen_q < 0 || share->most_seqlen_k < 0) return "the share's lengths are negative";
    const char *const wrong = read_recipe(share->recipe, &kept);
    if (wrong != NULL) return wrong;
    const char *const name = share->kernel != NULL ? share->kernel : kept.name != NULL ? kept.name : "without a name";
    plugin_note_recipe(&plugin->seen, &kept, name);
    if (computed_add(how, name, &kept, share->most_seqlen_q, share->most_seqlen_k)) return NULL;
    return "it has too many shares, or their names are too long";
}

/* The recipes that the pass will be judged by. */
static enum attest_status find_shares(struct plugin *plugin, const struct attest_problem *p,
                                      const struct attest_plan *plan, bool backward, struct computed *how)
{
    static const char function[] = "attest_plan_share";
    const struct attest_share *share;
    if (plugin->recipe != NULL) {
        plugin_note_recipe(&plugin->seen, plugin->recipe, plugin->recipe->name);
        computed_by(how, plugin->recipe);
        return ATTEST_OK;
    }
    *how = (struct computed){0};
    while ((share = plugin->functions.plan_share(plan, backward ? ATTEST_BACKWARD : ATTEST_FORWARD,
                                                 how->num_shares)) != NULL) {
        const char *const wrong = take_share(plugin, share, how);
        if (wrong != NULL) return refuse(plugin, ATTEST_INVALID, function, wrong);
    }
    if (how->num_shares == 0)
        return refuse(plugin, ATTEST_INVALID, function, "it returned NULL: name a recipe by --recipe");
    const struct computed_share *const last = &how->share[how->num_shares - 1];
    if (last->most_seqlen_q < p->seqlen_q || last->most_seqlen_k < p->seqlen_k)
        return refuse(plugin, ATTEST_INVALID, function, "the last share has no room for the problem's lengths");
    return ATTEST_OK;
}

enum attest_status plugin_takes(struct plugin *plugin, const struct attest_problem *problem)
{
    struct attest_plan *plan;
    struct computed how;
    enum attest_status status = make_plan(plugin, problem, &plan);
    if (status != ATTEST_OK) return status;
    status = find_shares(plugin, problem, plan, problem->dq.dtype != ATTEST_ABSENT, &how);
    plugin->functions.plan_destroy(plan);
    plugin->plans += status == ATTEST_OK;
    return status;
}

/* ---- runs ---- */

static const char *const run_names[] = {"attest_run_forward", "attest_run_backward"};

/* What came back from the GPU after a call that ended with `status`. */
static enum attest_status fetch(struct plugin *plugin, enum attest_status status, const char *function)
{
    if (status != ATTEST_OK || plugin->device != ATTEST_CUDA) return status;
    const char *const wrong = plugin_cuda_fetch();
    return wrong != NULL ? refuse(plugin, ATTEST_DEVICE_ERROR, function, wrong) : status;
}

static enum attest_status call(struct plugin *plugin, const struct attest_plan *plan, bool backward,
                               const struct attest_backward_args *a, void *workspace, size_t bytes)
{
    const struct plugin_functions *f = &plugin->functions;
    return answer(plugin, backward ? f->run_backward(plan, a, workspace, bytes, NULL)
                                   : f->run_forward(plan, &a->forward, workspace, bytes, NULL), run_names[backward]);
}

static enum attest_status run_on_host(struct plugin *plugin, const struct attest_plan *plan, bool backward,
                                      const struct attest_backward_args *a, size_t bytes)
{
    const size_t room = bytes + GUARD < bytes ? 0 : (bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *workspace = room != 0 ? aligned_alloc(ALIGN, room) : NULL;
    if (workspace == NULL)
        return refuse(plugin, ATTEST_OUT_OF_MEMORY, "attest_plan_workspace", "it asks for more than there is");
    memset(workspace, POISON, room);
    enum attest_status status = call(plugin, plan, backward, a, bytes != 0 ? workspace : NULL, bytes);
    for (size_t i = bytes; i < room && status == ATTEST_OK; ++i)
        if (workspace[i] != POISON)
            status = refuse(plugin, ATTEST_DEVICE_ERROR, run_names[backward], "it wrote past the end of its workspace");
    free(workspace);
    return status;
}

static enum attest_status run_on_cuda(struct plugin *plugin, const struct attest_problem *p,
                                      const struct attest_plan *plan, bool backward,
                                      const struct attest_backward_args *a, size_t bytes)
{
    struct attest_backward_args on_device;
    void *workspace;
    const char *const wrong = plugin_cuda_send(p, a, backward, bytes, &on_device, &workspace);
    if (wrong != NULL) return refuse(plugin, ATTEST_DEVICE_ERROR, "CUDA", wrong);
    return fetch(plugin, call(plugin, plan, backward, &on_device, workspace, bytes), run_names[backward]);
}

static enum attest_status run_plan(struct plugin *plugin, const struct attest_problem *p,
                                   const struct attest_plan *plan, bool backward, const struct attest_backward_args *a,
                                   struct computed *how)
{
    size_t bytes[2] = {0, 0};
    enum attest_status status = find_shares(plugin, p, plan, backward, how);
    if (status == ATTEST_OK)
        status = answer(plugin, plugin->functions.plan_workspace(plan, &bytes[0], &bytes[1]), "attest_plan_workspace");
    if (status != ATTEST_OK) return status;
    return plugin->device == ATTEST_CUDA ? run_on_cuda(plugin, p, plan, backward, a, bytes[backward])
                                         : run_on_host(plugin, plan, backward, a, bytes[backward]);
}

static struct plugin *plugin_of(const struct implementation *self)
{
    return ((const struct plugin_self *)self)->plugin;
}

static enum attest_status run(const struct implementation *self, const struct attest_problem *p, bool backward,
                              const struct attest_backward_args *a, struct computed *how)
{
    struct plugin *const plugin = plugin_of(self);
    struct attest_plan *plan;
    alarm(SECONDS); /* what does not return is a crash, too */
    enum attest_status status = make_plan(plugin, p, &plan);
    if (status == ATTEST_OK) {
        status = run_plan(plugin, p, plan, backward, a, how);
        plugin->functions.plan_destroy(plan);
    }
    alarm(0);
    return status;
}

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a, struct computed *how)
{
    struct attest_backward_args all = ATTEST_BACKWARD_ARGS_INIT;
    all.forward = *a;
    return run(self, p, false, &all, how);
}

static enum attest_status backward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a, struct computed *how)
{
    return run(self, p, true, a, how);
}

/* ---- merges ---- */

static enum attest_status merge(const struct implementation *self, const struct attest_merge_args *a)
{
    static const char function[] = "attest_merge_states";
    struct plugin *const plugin = plugin_of(self);
    struct attest_merge_args on_device = *a;
    const char *const wrong = plugin->device == ATTEST_CUDA ? plugin_cuda_send_merge(a, &on_device) : NULL;
    if (wrong != NULL) return refuse(plugin, ATTEST_DEVICE_ERROR, "CUDA", wrong);
    on_device.device = plugin->device;
    return fetch(plugin, answer(plugin, plugin->functions.merge_states(&on_device, NULL), function), function);
}

static enum attest_status merge_backward(const struct implementation *self, const struct attest_merge_backward_args *a)
{
    static const char function[] = "attest_merge_states_backward";
    struct plugin *const plugin = plugin_of(self);
    struct attest_merge_backward_args on_device = *a;
    const char *const wrong = plugin->device == ATTEST_CUDA ? plugin_cuda_send_merge_backward(a, &on_device) : NULL;
    if (wrong != NULL) return refuse(plugin, ATTEST_DEVICE_ERROR, "CUDA", wrong);
    on_device.device = plugin->device;
    return fetch(plugin, answer(plugin, plugin->functions.merge_states_backward(&on_device, NULL), function), function);
}

void plugin_implementation(struct plugin *plugin, const char *name)
{
    const bool on_host = plugin->device == ATTEST_REFERENCE, has_merge = plugin->functions.merge_states != NULL;
    const bool has_merge_backward = plugin->functions.merge_states_backward != NULL;
    plugin->self.plugin = plugin;
    plugin->self.implementation = (struct implementation){
        .name = name,
        .forward = forward,
        .backward = backward,
        .merge = has_merge ? merge : emulate_merge,
        .merge_recipe = has_merge && !on_host ? ref_kernel_recipe("merge") : NULL,
        .merge_backward = has_merge_backward ? merge_backward : NULL,
        .merge_backward_recipe = has_merge_backward && !on_host ? ref_kernel_recipe("merge_backward") : NULL,
        .is_partial = true};
}
