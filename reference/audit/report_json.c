/* report_json.c - the audit as JSON, schema "attest-audit", version 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "reference/audit/blame.h"
#include "reference/audit/report.h"
#include "reference/formats.h"

json_t *report_number(double x)
{
    if (isnan(x)) return json_string("nan");
    if (isinf(x)) return json_string(x > 0 ? "inf" : "-inf");
    return json_real(x);
}

json_t *report_string(const char *text)
{
    json_t *string = json_string(text);
    if (string != NULL) return string;
    char *copy = sentence("%s", text);
    for (char *c = copy; *c != '\0'; ++c)
        if ((unsigned char)*c >= 0x80) *c = '?';
    string = json_string(copy);
    free(copy);
    return string;
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? report_string(text) : json_null();
}

static json_t *json_files(const struct tensor_set *set)
{
    json_t *files = json_array();
    for (int i = 0; i < set->count; ++i) {
        struct stat s;
        const json_int_t bytes = stat(set->paths[i], &s) == 0 && S_ISREG(s.st_mode) ? (json_int_t)s.st_size : -1;
        json_array_append_new(files, json_pack("{s:o, s:o}", "path", report_string(set->paths[i]), "bytes",
                                               bytes < 0 ? json_null() : json_integer(bytes)));
    }
    return files;
}

static json_t *json_notes(const struct notes *notes)
{
    json_t *list = json_array();
    for (int i = 0; i < notes->count; ++i) json_array_append_new(list, report_string(notes->text[i]));
    return list;
}

static json_t *json_problem(const struct audit_case *c)
{
    static const char *const diag_names[] = {"unset", "top-left", "bottom-right", "given"};
    const struct attest_problem *p = &c->problem;
    json_t *slopes = json_array();
    for (int64_t h = 0; p->has_alibi && h < p->num_heads_q; ++h)
        json_array_append_new(slopes, report_number(c->args.forward.alibi_slopes[h]));
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:s, s:I, s:o, s:b, s:b, s:b, "
                     "s:b, s:b, s:s, s:o}",
                     "dtype", ref_dtype_name(p->q.dtype), "layout", layout_names[c->layout],
                     "batch", (json_int_t)p->batch, "seqlen_q", (json_int_t)p->seqlen_q,
                     "seqlen_k", (json_int_t)p->seqlen_k, "num_heads_q", (json_int_t)p->num_heads_q,
                     "num_heads_kv", (json_int_t)p->num_heads_kv, "head_dim", (json_int_t)p->head_dim,
                     "head_dim_v", (json_int_t)p->head_dim_v, "softmax_scale", report_number(p->softmax_scale),
                     "softcap", report_number(p->softcap), "window_left", (json_int_t)p->window_left,
                     "window_right", (json_int_t)p->window_right, "diag_kind", diag_names[p->diag_kind],
                     "diag", (json_int_t)p->diag, "alibi_slopes", slopes, "has_dout", p->dout.dtype != ATTEST_ABSENT,
                     "has_dlse", p->dlse.dtype != ATTEST_ABSENT, "has_bias", p->bias.dtype != ATTEST_ABSENT,
                     "has_mask", p->mask.dtype != ATTEST_ABSENT, "has_sink", p->has_sink, "family", c->family,
                     "notes", json_notes(&c->notes));
}

static json_t *json_options(const struct options *o)
{
    json_t *settings = json_object();
    for (int i = 0; i < SETTING_NUM; ++i)
        if (o->settings[i] != NULL) json_object_set_new(settings, setting_names[i], report_string(o->settings[i]));
    return json_pack("{s:I, s:I, s:s, s:b, s:b, s:i, s:o, s:o, s:o, s:o}", "sample", (json_int_t)o->sample,
                     "sample_seed", (json_int_t)o->sample_seed, "recipe", o->recipe->name, "all_recipes",
                     o->all_recipes, "strict", o->strict, "threads",
                     o->threads, "settings", settings, "json", text_or_null(o->json), "junit", text_or_null(o->junit),
                     "html", text_or_null(o->html));
}

static json_t *json_environment(void)
{
    struct utsname host = {.sysname = ""};
    uname(&host);
    char version[32];
    snprintf(version, sizeof version, "%u.%u.%u", attest_version() / 10000, attest_version() / 100 % 100,
             attest_version() % 100);
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "attest", version, "system", host.sysname, "release", host.release,
                     "machine", host.machine, "host", host.nodename);
}

static json_t *json_report(const struct ref_report *r, enum ref_tensor tensor)
{
    char looks_like[256] = "";
    if (r->direction_ratio > 1 && r->direction_ratio >= r->rms_ratio)
        ref_describe_direction(r, tensor, looks_like, sizeof looks_like);
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:[I,I,I,I], s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, "
                     "s:o, s:s, s:I, s:o}",
                     "verdict", verdict_names[verdict_of(r->verdict)], "count", (json_int_t)r->count, "max_error",
                     report_number(r->max_error), "rmse", report_number(r->rmse), "relative_error",
                     report_number(r->relative_error), "mean_error", report_number(r->mean_error), "share",
                     report_number(r->use), "index", (json_int_t)r->use_index[0], (json_int_t)r->use_index[1],
                     (json_int_t)r->use_index[2], (json_int_t)r->use_index[3], "got", report_number(r->use_got),
                     "want", report_number(r->use_want), "bound", report_number(r->use_bound), "rms_ratio",
                     report_number(r->rms_ratio), "mean_ratio", report_number(r->mean_ratio), "nan_count",
                     (json_int_t)r->nan_count, "overflow_count", (json_int_t)r->overflow_count, "rms_bound",
                     report_number(r->rms_bound), "rms_oracle", report_number(r->rms_oracle), "direction_ratio",
                     report_number(r->direction_ratio), "looks_like", looks_like, "terms", (json_int_t)r->use_terms,
                     "keys_by_weight", report_number(r->use_keys));
}

static json_t *json_tensor(const struct audit *audit, const struct judgement *j, enum ref_tensor tensor_of)
{
    const struct judged_tensor *t = &j->tensors[tensor_of];
    json_t *recipes = json_object();
    for (int r = 0; r < recipe_count() && t->reason == NULL; ++r)
        if (j->recipes[r]) json_object_set_new(recipes, ref_recipes[r].name, json_report(&t->reports[r], tensor_of));
    char *message = report_message(audit, t), *blamed = t->reason == NULL ? blame(audit, j, tensor_of) : NULL;
    const bool passes = t->verdict == VERDICT_PASS;
    json_t *tensor = json_pack("{s:s, s:o, s:o, s:o, s:o}", "verdict", verdict_names[t->verdict], "explained_by",
                               text_or_null(passes ? ref_recipes[t->explained_by].name : NULL), "message",
                               report_string(message), "blame", text_or_null(blamed), "recipes", recipes);
    free(message);
    free(blamed);
    return tensor;
}

static json_t *json_convention(const struct judgement *j)
{
    static const char *const diag_names[] = {"stated", "top-left", "bottom-right"};
    return json_pack("{s:b, s:s, s:s, s:b, s:b, s:o}", "inferred", convention_deviations(&j->convention) > 0, "diag",
                     diag_names[j->convention.diag_kind], "alibi", alibi_form_name(j->convention.alibi), "lse_base2",
                     j->convention.lse_base2, "lse_plus_inf", j->convention.lse_plus_inf, "notes",
                     json_notes(&j->notes));
}

static json_t *json_implementation(const struct audit *audit, int i)
{
    const struct judgement *j = &audit->judgements[i];
    json_t *tensors = json_object();
    for (int t = 0; t < CASE_NUM_TENSORS; ++t)
        if (j->tensors[t].present)
            json_object_set_new(tensors, ref_tensor_names[t], json_tensor(audit, j, (enum ref_tensor)t));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "name", report_string(audit->answers[i].name), "files",
                     json_files(&audit->answers[i].set), "error", text_or_null(audit->answers[i].error), "convention",
                     json_convention(j), "tensors", tensors);
}

json_t *report_json(const struct audit *audit)
{
    json_t *implementations = json_array();
    for (int i = 0; i < audit->num_answers; ++i)
        json_array_append_new(implementations, json_implementation(audit, i));
    json_t *root = json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:b, s:o}", "schema", "attest-audit", "version", 1,
                             "exit_status", audit_exit_status(audit), "environment", json_environment(), "options",
                             json_options(audit->options), "inputs", json_files(&audit->problem->set), "problem",
                             json_problem(audit->problem), "statistical", audit->problem->statistical,
                             "implementations", implementations);
    if (root == NULL) {
        fputs("audit: out of memory\n", stderr);
        exit(AUDIT_EXIT_UNUSABLE);
    }
    return root;
}

bool report_write_json(const struct audit *audit, const char *path)
{
    json_t *root = report_json(audit);
    const bool written = json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) == 0;
    json_decref(root);
    return written;
}
