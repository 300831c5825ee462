/* blame.c - see blame.h. What counts is how large scores are, and which term of them is the largest: fp32 keeps them to
 * 2^-24 of themselves, and the exponential makes of that an error of the weights. */
#include "reference/audit/blame.h"

#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"

/* Scores of this size are kept to 2^-6: weights are off by per cents, and more above. */
static const double large_score = 0x1p18;

static double largest(const struct tensor *t)
{
    double most = 0;
    for (int64_t i = 0; t != NULL && i < t->elements; ++i) {
        const double x = fabs(tensor_number(t, i));
        if (isfinite(x) && x > most) most = x;
    }
    return most;
}

static double largest_seen_bias(const struct attest_problem *p, const struct attest_forward_args *a)
{
    double most = 0;
    for (int64_t b = 0; b < p->batch && p->bias.dtype != ATTEST_ABSENT; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        for (int64_t h = 0; h < p->num_heads_q; ++h)
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                for (int64_t c = 0; c < s.seqlen_k; ++c) {
                    if (!ref_visible(p, a, &s, b, h, r, c)) continue;
                    const double x = ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, b, h, r, c));
                    if (isfinite(x) && fabs(x) > most) most = fabs(x);
                }
    }
    return most;
}

/* The inputs' largest numbers. */
struct sizes {
    double q, k, v, dout, bias, slope, score;
};

static struct sizes measure(const struct audit_case *c, const struct attest_problem *p,
                            const struct attest_forward_args *a)
{
    const struct tensor *packed = tensor_set_find(&c->set, PART_QKV), *kv = tensor_set_find(&c->set, PART_KV);
    struct sizes s = {.q = fmax(largest(tensor_set_find(&c->set, PART_Q)), largest(packed)),
                      .k = fmax(largest(tensor_set_find(&c->set, PART_K)), fmax(largest(packed), largest(kv))),
                      .v = fmax(largest(tensor_set_find(&c->set, PART_V)), fmax(largest(packed), largest(kv))),
                      .dout = largest(tensor_set_find(&c->set, PART_DOUT)), .bias = largest_seen_bias(p, a)};
    for (int64_t h = 0; p->has_alibi && h < p->num_heads_q; ++h)
        s.slope = fmax(s.slope, fabs((double)a->alibi_slopes[h]));
    s.slope *= (double)(p->seqlen_q + p->seqlen_k);
    s.score = fabs((double)p->softmax_scale) * s.q * s.k * (double)p->head_dim;
    if (p->softcap > 0) s.score = fmin(s.score, p->softcap);
    return s;
}

static char *blame_scores(const struct attest_problem *p, const struct sizes *s)
{
    if (s->bias >= fmax(s->slope, s->score))
        return sentence(
            "bias is to blame: numbers that rows see reach %.3g in size, of which fp32 keeps steps of %.2g; "
            "-inf, or a mask of booleans, hides a key exactly",
            s->bias, ldexp(s->bias, -23));
    if (s->slope >= s->score)
        return sentence("alibi_slopes are to blame: what they add to scores reaches %.3g; smaller slopes or a window "
                        "would help", s->slope);
    if (fabs(p->softmax_scale) > 1)
        return sentence(
            "softmax_scale is to blame: it is %.3g, and scores may reach %.3g; 1/sqrt(head_dim) would be %.3g",
            p->softmax_scale, s->score, 1 / sqrt((double)p->head_dim));
    return sentence(
        "%s is to blame: its numbers reach %.3g, those of %s %.3g, and scores may reach %.3g; smaller ones, or "
        "a softcap, would help",
        s->q >= s->k ? "q" : "k", fmax(s->q, s->k), s->q >= s->k ? "k" : "q", fmin(s->q, s->k), s->score);
}

char *blame(const struct audit *audit, const struct judgement *j, enum ref_tensor which)
{
    const struct judged_tensor *t = &j->tensors[which];
    if (t->verdict != VERDICT_OVERFLOW && t->verdict != VERDICT_VACUOUS) return NULL;
    const struct ref_report *r = &t->reports[audit->recipe];
    const struct attest_problem *p = j->evaluation != NULL ? &j->evaluation->problem : &audit->problem->problem;
    const struct sizes s = measure(
        audit->problem, p, j->evaluation != NULL ? &j->evaluation->args.forward : &audit->problem->args.forward);
    const char *verdict = verdict_names[t->verdict], *name = ref_tensor_names[which];
    char *why;
    if (fmax(fmax(s.bias, s.slope), s.score) > large_score)
        why = blame_scores(p, &s);
    else if (t->verdict == VERDICT_OVERFLOW)
        why = sentence("%s is to blame: its numbers reach %.3g; smaller ones would help", s.dout > s.v ? "dout" : "v",
                       fmax(s.v, s.dout));
    else
        why = sentence(
            "%s is to blame: its numbers reach %.3g, and what %s sums up of them cancels to a root mean square "
            "of %.2g, less than roundings may add (%.2g); inputs of fp32, or a recipe that rounds less, would help",
            which >= REF_DQ && s.dout > s.v ? "dout" : "v", which >= REF_DQ ? fmax(s.dout, s.v) : s.v, name,
            r->rms_oracle, r->rms_bound);
    char *whole = sentence("%s is %s: %s", name, verdict, why);
    free(why);
    return whole;
}
