/* plugin_report.c - verdicts of properties and shares by input family, for people and for programs. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "proptests/plugin/plugin.h"
#include "reference/audit/report.h"

static const char *const device_texts[] = {"cuda", "sim", "reference"};

static void count_verdicts(const struct plugin_audit *audit, int counts[PLUGIN_NUM_VERDICTS])
{
    memset(counts, 0, PLUGIN_NUM_VERDICTS * sizeof *counts);
    for (int i = 0; properties[i].name != NULL; ++i) counts[audit->results[i].verdict] += 1;
}

/* Of all properties. */
static struct plugin_share share_of(const struct plugin_audit *audit, int family, int tensor)
{
    struct plugin_share all = {0};
    for (int i = 0; properties[i].name != NULL; ++i) {
        const struct plugin_share *share = &audit->results[i].shares[family][tensor];
        if (!(share->use <= all.use)) all.use = share->use;
        all.judged += share->judged, all.proven += share->proven;
    }
    return all;
}

static int64_t cases_of(const struct plugin_audit *audit, int family)
{
    int64_t cases = 0;
    for (int i = 0; properties[i].name != NULL; ++i) cases += audit->results[i].family_cases[family];
    return cases;
}

static struct plugin_recipes recipes_of(const struct plugin_audit *audit)
{
    struct plugin_recipes all = {0};
    for (int i = 0; properties[i].name != NULL; ++i)
        for (int r = 0; r < audit->results[i].recipes.count; ++r)
            plugin_note_recipe(&all, &audit->results[i].recipes.recipe[r], audit->results[i].recipes.name[r]);
    return all;
}

static const char *name_in(const char *const *names, int count, int32_t value)
{
    return value >= 0 && value < count ? names[value] : "unknown";
}

static const char *accumulate_of(const struct attest_recipe *r)
{
    static const char *const names[] = {"fp32", "faithful", "ampere", "hopper"};
    return name_in(names, 4, r->accumulate);
}

static const char *delta_of(const struct attest_recipe *r)
{
    static const char *const names[] = {"exact", "from_rounded_o", "corrected", "normalized"};
    return name_in(names, 4, r->delta);
}

static const char *weights_of(int32_t weights)
{
    static const char *const names[] = {"fp32", "one_part", "two_parts", "scaled_fp16"};
    return name_in(names, 4, weights);
}

/* Two parts are nearly fp32. */
static const char *rounding_of(int32_t weights, const char *rounds)
{
    return weights == ATTEST_WEIGHTS_ONE_PART || weights == ATTEST_WEIGHTS_SCALED_FP16 ? rounds : "";
}

/* ---- for people ---- */

/* What the bounds suppose: a verdict is worth no more. */
static void print_recipes(const struct plugin_audit *audit, FILE *out)
{
    const struct plugin_recipes all = recipes_of(audit);
    for (int i = 0; i < all.count; ++i) {
        const struct attest_recipe *r = &all.recipe[i];
        char rescales[32] = "";
        if (r->rescale_log2 > 0) snprintf(rescales, sizeof rescales, ", rescales beyond 2^%d", r->rescale_log2);
        fprintf(out, "  recipe %s: sums %s, delta %s, exp_error %.3g, tile_k %d%s%s%s%s%s%s%s%s%s\n", all.name[i],
                accumulate_of(r), delta_of(r), r->exp_error, r->tile_k, rounding_of(r->weights_p, ", rounds p"),
                r->round_p_ds ? ", rounds p of ds" : "", rounding_of(r->weights_ds, ", rounds ds"),
                r->round_scaled_ds ? ", ds times softmax_scale" : "",
                r->weights_p == ATTEST_WEIGHTS_SCALED_FP16 ? ", both scaled to fp16" : "",
                r->round_dkv_heads ? ", rounds dk and dv of each head" : "",
                r->own_sum ? ", large rows by their own sum" : "", rescales, r->ordered_keys ? ", keys in order" : "");
    }
}

/* Features that are refused in the same words, on one line. */
static void print_refused(const struct plugin_survey *survey, bool backward, FILE *out)
{
    uint64_t left = survey->refused[backward];
    if (backward) left &= ~survey->refused[0]; /* said already */
    for (int f = 0; f < NUM_FEATURES; ++f) {
        if (!(left >> f & 1)) continue;
        const char *const sentence = survey->refusals[backward][f];
        fprintf(out, "  %srefuses", backward ? "backward " : "");
        for (int g = f; g < NUM_FEATURES; ++g) {
            if (!(left >> g & 1) || strcmp(survey->refusals[backward][g], sentence) != 0) continue;
            fprintf(out, " %s", feature_names[g]);
            left &= ~(UINT64_C(1) << g);
        }
        fprintf(out, ": %s\n", sentence);
    }
}

static void print_properties(const struct plugin_audit *audit, FILE *out)
{
    fprintf(out, "\n%-28s  cases  refused  verdict\n", "property");
    for (int i = 0; properties[i].name != NULL; ++i) {
        const struct plugin_result *r = &audit->results[i];
        const bool was_asked = r->verdict < PLUGIN_UNSUPPORTED;
        fprintf(out, "%-28s %6" PRId64 " %8" PRId64 "  %s%s%s\n", properties[i].name, r->cases, r->refused,
                plugin_verdict_names[r->verdict], was_asked ? "" : ": ", was_asked ? "" : r->message);
    }
}

static int64_t cases_with(const struct plugin_audit *audit, int feature)
{
    int64_t cases = 0;
    for (int i = 0; properties[i].name != NULL; ++i) cases += audit->results[i].feature_cases[feature];
    return cases;
}

static void print_features(const struct plugin_audit *audit, FILE *out)
{
    enum { IN_A_ROW = 8 };
    fprintf(out, "\ncases with");
    for (int f = 0, printed = 0; f < NUM_FEATURES; ++f) {
        const int64_t cases = cases_with(audit, f);
        if (cases == 0) continue;
        fprintf(out, "%s %s %" PRId64, printed == 0 ? "" : printed % IN_A_ROW == 0 ? ",\n          " : ",",
                feature_names[f], cases);
        ++printed;
    }
    fputc('\n', out);
}

/* A family without cases has no row; a tensor of which no bound proved anything has a v. */
static void print_shares(const struct plugin_audit *audit, FILE *out)
{
    fprintf(out, "\nlargest share of the bound, by input family (v: no bound there says anything)\n");
    fprintf(out, "%-10s  cases", "family");
    for (int t = 0; t < REF_NUM_TENSORS; ++t) fprintf(out, "%10s", ref_tensor_names[t]);
    fputc('\n', out);
    for (int f = 0; f < NUM_FAMILIES; ++f) {
        const int64_t cases = cases_of(audit, f);
        if (cases == 0) continue;
        fprintf(out, "%-10s %6" PRId64, family_names[f], cases);
        for (int t = 0; t < REF_NUM_TENSORS; ++t) {
            const struct plugin_share share = share_of(audit, f, t);
            if (share.judged == 0) fprintf(out, "%10s", "-");
            else fprintf(out, "%9.3g%c", share.use, share.proven == 0 ? 'v' : ' ');
        }
        fputc('\n', out);
    }
}

static void print_failures(const struct plugin_audit *audit, FILE *out)
{
    for (int i = 0; properties[i].name != NULL; ++i) {
        const struct plugin_result *r = &audit->results[i];
        if (r->verdict == PLUGIN_PASS || r->verdict >= PLUGIN_UNSUPPORTED) continue;
        fprintf(out, "\n%s: %s: %s\n  %s\n", plugin_verdict_names[r->verdict], properties[i].name,
                properties[i].sentence, r->message);
        if (*r->line == '\0') continue;
        fprintf(out, "  smallest case: batch %" PRId64 ", seqlen %" PRId64 " x %" PRId64 ", head_dim %" PRId64
                "; again with --replay '%s'\n", r->batch, r->seqlen_q, r->seqlen_k, r->head_dim, r->line);
    }
}

void plugin_report_table(const struct plugin_audit *audit, FILE *out)
{
    int counts[PLUGIN_NUM_VERDICTS], total = 0;
    count_verdicts(audit, counts);
    fprintf(out, "%s, on device %s; verdicts by the bounds of %s\n", audit->name, device_texts[audit->options->device],
            audit->options->recipe != NULL ? "--recipe" : "its plans' recipes");
    print_recipes(audit, out);
    for (int backward = 0; backward < 2; ++backward) print_refused(audit->survey, backward, out);
    print_properties(audit, out);
    print_features(audit, out);
    print_shares(audit, out);
    print_failures(audit, out);
    for (int v = 0; v < PLUGIN_NUM_VERDICTS; ++v) total += counts[v];
    fprintf(out, "\naudit: %d properties of %s:", total, audit->name);
    const char *separator = " ";
    for (int v = 0; v < PLUGIN_NUM_VERDICTS; ++v) {
        if (counts[v] == 0) continue;
        fprintf(out, "%s%d %s", separator, counts[v], plugin_verdict_names[v]);
        separator = ", ";
    }
    fputc('\n', out);
}

/* ---- for programs ---- */

static json_t *json_refused(const struct plugin_survey *survey)
{
    json_t *all = json_array();
    for (int backward = 0; backward < 2; ++backward)
        for (int f = 0; f < NUM_FEATURES; ++f)
            if (survey->refused[backward] >> f & 1)
                json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "feature", feature_names[f], "pass",
                                                     backward ? "backward" : "forward", "sentence",
                                                     report_string(survey->refusals[backward][f])));
    return all;
}

static json_t *json_recipes(const struct plugin_audit *audit)
{
    const struct plugin_recipes all = recipes_of(audit);
    json_t *list = json_array();
    for (int i = 0; i < all.count; ++i) {
        const struct attest_recipe *r = &all.recipe[i];
        const char *const fields = "{s:o, s:s, s:s, s:o, s:o, s:i, s:s, s:b, s:s, s:b, s:b, s:i, s:b, s:b}";
        json_array_append_new(
            list, json_pack(fields, "name", report_string(all.name[i]), "accumulate", accumulate_of(r), "delta",
                            delta_of(r), "exp_error", report_number(r->exp_error), "tanh_error",
                            report_number(r->tanh_error), "tile_k", r->tile_k, "weights_p",
                            weights_of(r->weights_p), "round_p_ds", r->round_p_ds, "weights_ds",
                            weights_of(r->weights_ds), "round_dkv_heads", r->round_dkv_heads, "own_sum",
                            r->own_sum, "rescale_log2", r->rescale_log2, "ordered_keys", r->ordered_keys,
                            "round_scaled_ds", r->round_scaled_ds));
    }
    return list;
}

static json_t *json_property(const struct property *property, const struct plugin_result *r)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "name", property->name, "sentence", property->sentence,
                     "verdict", plugin_verdict_names[r->verdict], "cases", (json_int_t)r->cases, "refused",
                     (json_int_t)r->refused, "message", report_string(r->message), "replay", report_string(r->line));
}

static json_t *json_features(const struct plugin_audit *audit)
{
    json_t *features = json_object();
    for (int f = 0; f < NUM_FEATURES; ++f)
        json_object_set_new(features, feature_names[f], json_integer((json_int_t)cases_with(audit, f)));
    return features;
}

static json_t *json_family(const struct plugin_audit *audit, int family)
{
    json_t *tensors = json_object();
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        const struct plugin_share share = share_of(audit, family, t);
        if (share.judged > 0)
            json_object_set_new(tensors, ref_tensor_names[t],
                                json_pack("{s:o, s:I, s:I}", "share", report_number(share.use), "judged",
                                          (json_int_t)share.judged, "proven", (json_int_t)share.proven));
    }
    return json_pack("{s:s, s:I, s:o}", "family", family_names[family], "cases",
                     (json_int_t)cases_of(audit, family), "tensors", tensors);
}

bool plugin_report_json(const struct plugin_audit *audit, const char *path)
{
    const struct options *o = audit->options;
    json_t *asked = json_array(), *families = json_array();
    for (int i = 0; properties[i].name != NULL; ++i)
        json_array_append_new(asked, json_property(&properties[i], &audit->results[i]));
    for (int f = 0; f < NUM_FAMILIES; ++f) json_array_append_new(families, json_family(audit, f));
    json_t *root = json_pack("{s:s, s:i, s:i, s:o, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "schema",
                             "attest-audit-plugin", "version", 1, "exit_status", audit->exit_status, "plugin",
                             report_string(audit->name), "device", device_texts[o->device], "cases",
                             (json_int_t)o->cases, "seed", (json_int_t)o->seed, "recipes", json_recipes(audit),
                             "refused", json_refused(audit->survey), "properties", asked, "features",
                             json_features(audit), "families", families);
    const bool written = root != NULL && json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) == 0;
    json_decref(root);
    return written;
}
