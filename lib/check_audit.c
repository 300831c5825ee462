/* check_audit.c - the options of an audit, and the recipe in them, field by field. */
#include <inttypes.h>
#include <math.h>

#include "lib/check.h"
#include "lib/error.h"

static bool in_range(const char *of, const char *field, int64_t value, int64_t low, int64_t high)
{
    if (low <= value && value <= high) return true;
    return attest_refuse(ATTEST_INVALID, "%s.%s = %" PRId64 ", but must be %" PRId64 " .. %" PRId64, of, field, value,
                         low, high);
}

static bool is_error(const char *field, double value)
{
    if (value >= 0 && value <= 1) return true;
    return attest_refuse(ATTEST_INVALID, "recipe.%s = %g, but must be 0 .. 1", field, value);
}

static bool check_weights(const struct attest_recipe *r)
{
    if (!in_range("recipe", "weights_p", r->weights_p, ATTEST_WEIGHTS_FP32, ATTEST_WEIGHTS_SCALED_FP16) ||
        !in_range("recipe", "weights_ds", r->weights_ds, ATTEST_WEIGHTS_FP32, ATTEST_WEIGHTS_SCALED_FP16)) {
        return false;
    }
    const bool together = (r->weights_p == ATTEST_WEIGHTS_SCALED_FP16) == (r->weights_ds == ATTEST_WEIGHTS_SCALED_FP16);
    return together || attest_refuse(ATTEST_INVALID,
                                     "recipe.weights_ds = %" PRId32 ", but must be ATTEST_WEIGHTS_SCALED_FP16 where "
                                     "weights_p, %" PRId32 ", is, and only there",
                                     r->weights_ds, r->weights_p);
}

bool attest_check_recipe(const struct attest_recipe *r)
{
    return attest_check_struct("recipe", r, sizeof *r) &&
           in_range("recipe", "accumulate", r->accumulate, ATTEST_ACC_FP32, ATTEST_ACC_HOPPER) && check_weights(r) &&
           in_range("recipe", "round_dkv_heads", r->round_dkv_heads, 0, 1) &&
           in_range("recipe", "delta", r->delta, ATTEST_DELTA_EXACT, ATTEST_DELTA_NORMALIZED) &&
           in_range("recipe", "tile_k", r->tile_k, 0, INT32_MAX) &&
           in_range("recipe", "round_p_ds", r->round_p_ds, 0, 1) && is_error("exp_error", r->exp_error) &&
           is_error("tanh_error", r->tanh_error) && in_range("recipe", "own_sum", r->own_sum, 0, 1) &&
           in_range("recipe", "rescale_log2", r->rescale_log2, 0, 15) &&
           in_range("recipe", "ordered_keys", r->ordered_keys, 0, 1) &&
           in_range("recipe", "round_scaled_ds", r->round_scaled_ds, 0, 1);
}

bool attest_check_audit_options(const struct attest_audit_options *o)
{
    return attest_check_struct("options", o, sizeof *o) && in_range("options", "threads", o->threads, 0, 4096) &&
           in_range("options", "statistical", o->statistical, 0, 1) &&
           in_range("options", "reserved0", o->reserved0, 0, 0) &&
           (o->recipe == NULL || attest_check_recipe(o->recipe));
}
