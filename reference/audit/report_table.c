/* report_table.c - the table on standard output. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/blame.h"
#include "reference/audit/report.h"
#include "reference/formats.h"

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static void print_problem(const struct audit *audit, FILE *out)
{
    const struct audit_case *c = audit->problem;
    const struct attest_problem *p = &c->problem;
    fprintf(out, "%s: %s, batch %lld, seqlen %lld x %lld, heads %lld / %lld, head_dim %lld / %lld\n",
            file_name(c->set.paths[0]), ref_dtype_name(p->q.dtype), (long long)p->batch, (long long)p->seqlen_q,
            (long long)p->seqlen_k, (long long)p->num_heads_q, (long long)p->num_heads_kv, (long long)p->head_dim,
            (long long)p->head_dim_v);
    for (int i = 0; i < c->notes.count; ++i) fprintf(out, "  %s\n", c->notes.text[i]);
    const bool statistical = c->statistical && audit->options->sample == 0;
    fprintf(out, "  verdicts by the bound of recipe %s%s%s\n\n", audit->options->recipe->name,
            statistical ? " and, rms and mean, by statistics of family " : "", statistical ? c->family : "");
}

/* The largest of the three statistical ratios, NaN if any is. */
static double statistical_ratio(const struct ref_report *r)
{
    const double ratios[] = {r->mean_ratio, r->direction_ratio};
    double largest = r->rms_ratio;
    for (int i = 0; i < 2; ++i)
        if (!(ratios[i] <= largest) && !isnan(largest)) largest = ratios[i];
    return largest;
}

static int name_width(const struct audit *audit)
{
    int width = (int)strlen("implementation");
    for (int i = 0; i < audit->num_answers; ++i) {
        const int length = (int)strlen(audit->answers[i].name);
        if (length > width) width = length;
    }
    return width;
}

char *report_verdict(const struct judged_tensor *t)
{
    if (t->verdict != VERDICT_PASS) return sentence("%s", verdict_names[t->verdict]);
    return sentence("PASS %s%s", ref_recipes[t->explained_by].name,
                    t->explained_by != REF_RECIPE_FP32 ? ", not fp32" : "");
}

static void print_row(const struct audit *audit, const struct judged_tensor *t, FILE *out)
{
    const struct ref_report *r = &t->reports[audit->recipe];
    if (t->reason != NULL) {
        fprintf(out, "  %s: %s\n", verdict_names[t->verdict], t->reason);
        return;
    }
    char index[64];
    snprintf(index, sizeof index, "%lld,%lld,%lld,%lld", (long long)r->use_index[0], (long long)r->use_index[1],
             (long long)r->use_index[2], (long long)r->use_index[3]);
    fprintf(out, " %9.2e %9.2e %9.2e %10.2e %9.4g %14s %10.3e %10.3e", r->max_error, r->rmse, r->relative_error,
            r->mean_error, r->use, index, r->use_got, r->use_want);
    if (audit->problem->statistical && audit->options->sample == 0) fprintf(out, " %6.3f", statistical_ratio(r));
    else fprintf(out, " %6s", "-");
    char *verdict = report_verdict(t);
    fprintf(out, " %4lld  %s\n", (long long)r->nan_count, verdict);
    free(verdict);
}

static void print_verdicts(const struct audit *audit, int width, FILE *out)
{
    fprintf(out, "%-*s %-5s %9s %9s %9s %10s %9s %14s %10s %10s %6s %4s  %s\n", width, "implementation", "",
            "max error", "RMSE", "relative", "mean", "share", "b,row,head,x", "got", "want", "stat", "NaN", "verdict");
    for (int i = 0; i < audit->num_answers; ++i) {
        bool any = false;
        for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
            const struct judged_tensor *judged = &audit->judgements[i].tensors[t];
            if (!judged->present) continue;
            fprintf(out, "%-*s %-5s", width, audit->answers[i].name, ref_tensor_names[t]);
            print_row(audit, judged, out);
            any = true;
        }
        if (!any) fprintf(out, "%-*s       ERROR: %s\n", width, audit->answers[i].name, audit->answers[i].error);
    }
}

/* Whether some tensor was compared with the bound of a recipe. */
static bool is_compared(const struct audit *audit, int recipe)
{
    for (int i = 0; i < audit->num_answers; ++i)
        if (audit->judgements[i].recipes[recipe]) return true;
    return false;
}

/* Largest error in units of the bound, by each recipe. */
static void print_shares(const struct audit *audit, int width, FILE *out)
{
    fputs("\nlargest share of the bound, by recipe (above 1: not that recipe; o OVERFLOW, v VACUOUS, s statistics)\n",
          out);
    fprintf(out, "%-*s %-5s", width, "implementation", "");
    for (int r = 0; r < recipe_count(); ++r)
        if (is_compared(audit, r)) fprintf(out, " %11s", ref_recipes[r].name);
    fputc('\n', out);
    for (int i = 0; i < audit->num_answers; ++i) {
        for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
            const struct judged_tensor *judged = &audit->judgements[i].tensors[t];
            if (!judged->present || judged->reason != NULL) continue;
            fprintf(out, "%-*s %-5s", width, audit->answers[i].name, ref_tensor_names[t]);
            for (int r = 0; r < recipe_count(); ++r) {
                if (!is_compared(audit, r)) continue;
                const struct ref_report *report = &judged->reports[r];
                const bool by_statistics = report->verdict == REF_FAIL && report->use <= 1;
                const char mark = report->verdict == REF_OVERFLOW ? 'o' : report->verdict == REF_VACUOUS ? 'v'
                                                                        : by_statistics ? 's' : ' ';
                fprintf(out, " %10.4g%c", report->use, mark);
            }
            fputc('\n', out);
        }
    }
}

/* What errors look like, and which rows carry a share near 1. */
static void print_remarks(const struct audit *audit, FILE *out)
{
    int count = 0;
    for (int i = 0; i < audit->num_answers; ++i) {
        for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
            const struct judged_tensor *judged = &audit->judgements[i].tensors[t];
            const struct ref_report *r = &judged->reports[audit->recipe];
            if (!judged->present || judged->reason != NULL) continue;
            char *const remarks[] = {report_remark(r, (enum ref_tensor)t),
                                     blame(audit, &audit->judgements[i], (enum ref_tensor)t)};
            for (int n = 0; n < 2; ++n) {
                if (remarks[n] != NULL)
                    fprintf(out, "%s%s: %s\n", count++ == 0 ? "\n" : "", audit->answers[i].name, remarks[n]);
                free(remarks[n]);
            }
        }
    }
}

static void print_summary(const struct audit *audit, FILE *out)
{
    int counts[VERDICT_NUM] = {0}, total = 0, unread = 0, otherwise = 0;
    for (int i = 0; i < audit->num_answers; ++i) {
        unread += audit->answers[i].error != NULL;
        otherwise += convention_deviations(&audit->judgements[i].convention) > 0;
        for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
            const struct judged_tensor *judged = &audit->judgements[i].tensors[t];
            counts[judged->verdict] += judged->present;
            total += judged->present;
        }
    }
    fprintf(out, "\naudit: %d tensors of %d implementations:", total, audit->num_answers);
    for (int v = 0, n = 0; v < VERDICT_NUM; ++v)
        if (counts[v] > 0) fprintf(out, "%s %d %s", n++ > 0 ? "," : "", counts[v], verdict_names[v]);
    if (otherwise > 0) fprintf(out, "; %d judged by a convention that was inferred, see above", otherwise);
    if (unread > 0) fprintf(out, "; %d implementations could not be judged", unread);
    fputc('\n', out);
}

/* From this share on the report says which rows carry it. A bound supposes that all roundings have one sign: of so few
 * keys they often have. */
#define SHARE_OF_FEW 0.75
#define FEW_KEYS 16

char *report_remark(const struct ref_report *r, enum ref_tensor tensor)
{
    const char *const name = ref_tensor_names[tensor];
    if (r->direction_ratio > 1 && r->direction_ratio >= r->rms_ratio) {
        char text[256];
        ref_describe_direction(r, tensor, text, sizeof text);
        return sentence("the error of %s looks like %s, %.3g times what honest roundings make of it", name, text,
                        r->direction_ratio);
    }
    if (!(r->use > SHARE_OF_FEW && r->use <= 1)) return NULL;
    if (tensor >= REF_DK)
        return sentence(
            "the share %.3g of %s is that of a key that %lld query rows see: where few of them have most of "
            "its weight, one rounding may be all of the bound",
            r->use, name, (long long)r->use_terms);
    return sentence("the share %.3g of %s is that of a row of %lld keys, with weights as of %.3g equal ones: %s",
                    r->use, name, (long long)r->use_terms, r->use_keys,
                    r->use_keys <= FEW_KEYS ? "of so few, one rounding may be all of the bound"
                                            : "roundings of so many seldom have one sign");
}

char *report_message(const struct audit *audit, const struct judged_tensor *t)
{
    if (t->reason != NULL) return sentence("%s", t->reason);
    const struct ref_report *r = &t->reports[audit->recipe];
    return sentence(
        "largest error is %.4g of the bound of recipe %s, at batch %lld, row %lld, head %lld, feature %lld: got "
        "%.9g, oracle %.9g, bound %.3g, of %lld terms; rms ratio %.3g, mean ratio %.3g, direction ratio %.3g, %lld "
        "NaN, %lld outside the domain",
        r->use, audit->options->recipe->name, (long long)r->use_index[0], (long long)r->use_index[1],
        (long long)r->use_index[2], (long long)r->use_index[3], r->use_got, r->use_want, r->use_bound,
        (long long)r->use_terms, r->rms_ratio, r->mean_ratio, r->direction_ratio, (long long)r->nan_count,
        (long long)r->overflow_count);
}

void report_table(const struct audit *audit, FILE *out)
{
    const int width = name_width(audit);
    print_problem(audit, out);
    print_verdicts(audit, width, out);
    print_shares(audit, width, out);
    print_remarks(audit, out);
    for (int i = 0; i < audit->num_answers; ++i)
        for (int n = 0; n < audit->judgements[i].notes.count; ++n)
            fprintf(out, "%s%s\n", n == 0 ? "\n" : "", audit->judgements[i].notes.text[n]);
    print_summary(audit, out);
}
