/* case_describe.c - what a case has, as features and as a table of fields. */
#include <inttypes.h>

#include "proptests/cases/case.h"
#include "reference/formats.h"

int64_t case_work(const struct prop_case *c)
{
    const struct attest_problem *p = &c->p;
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    int64_t scores = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
        scores += s.seqlen_q * s.seqlen_k;
    }
    return scores * p->num_heads_q * dim;
}

static uint64_t feature_if(bool condition, enum feature f) { return (uint64_t)condition << f; }

static uint64_t sequence_features(const struct prop_case *c)
{
    uint64_t features = 0;
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        features |= feature_if(s.seqlen_q > s.seqlen_k, F_LONG_Q);
        features |= feature_if(s.seqlen_q == 0 || s.seqlen_k == 0, F_EMPTY);
    }
    return features;
}

static bool has_zero_stride(const struct prop_case *c)
{
    static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT};
    for (int i = 0; i < 4; ++i) {
        const struct attest_tensor *s = tensor_rows((struct attest_problem *)&c->p, inputs[i]);
        int64_t e[4];
        case_extents(c, inputs[i], e);
        if (s->dtype == ATTEST_ABSENT || e[0] == 0) continue;
        if ((e[1] > 1 && s->head == 0) || (e[0] > 1 && s->seqlen == 0)) return true;
        if (!c->p.ragged && c->p.batch > 1 && s->batch == 0) return true;
    }
    return false;
}

/* Whether o, or dq where there is no o, is anything but [batch][seqlen][heads][features]. */
static bool is_strided(const struct prop_case *c)
{
    const struct attest_problem *p = &c->p;
    const struct attest_tensor *s = p->o.dtype ? &p->o : &p->dq;
    const int64_t features = p->o.dtype ? p->head_dim_v : p->head_dim;
    return s->head != features || s->seqlen != features * p->num_heads_q;
}

uint64_t case_features(const struct prop_case *c)
{
    const struct attest_problem *p = &c->p;
    const float plain_scale = 1 / sqrtf((float)p->head_dim);
    return sequence_features(c) | feature_if(p->q.dtype == ATTEST_FP16, F_FP16) |
           feature_if(p->q.dtype == ATTEST_BF16, F_BF16) | feature_if(p->q.dtype == ATTEST_FP32, F_FP32) |
           feature_if(p->q.dtype == ATTEST_FP8_E4M3 || p->q.dtype == ATTEST_FP8_E5M2, F_FP8) |
           feature_if(p->num_heads_q > p->num_heads_kv, F_GQA) |
           feature_if(p->head_dim_v != p->head_dim, F_HEAD_DIM_V) |
           feature_if(p->head_dim % 8 || p->head_dim_v % 8, F_ODD_HEAD_DIM) |
           feature_if(p->window_right == 0, F_CAUSAL) |
           feature_if(p->window_left >= 0 || p->window_right > 0, F_WINDOW) |
           feature_if(p->diag_kind == ATTEST_DIAG_TOP_LEFT, F_TOP_LEFT) |
           feature_if(p->diag_kind == ATTEST_DIAG_GIVEN, F_DIAG_GIVEN) | feature_if(p->q_start || p->k_start, F_START) |
           feature_if(p->mask.dtype, F_MASK) | feature_if(p->block_mask.dtype, F_BLOCK_MASK) |
           feature_if(p->bias.dtype, F_BIAS) | feature_if(p->has_alibi, F_ALIBI) |
           feature_if(p->softcap > 0, F_SOFTCAP) |
           feature_if(p->has_sink, F_SINK) | feature_if(p->softmax_scale != plain_scale, F_SCALE) |
           feature_if(p->ragged, F_RAGGED) | feature_if(p->has_seqused_q || p->has_seqused_k, F_SEQUSED) |
           feature_if(is_strided(c), F_STRIDED) | feature_if(c->packed, F_PACKED) |
           feature_if(has_zero_stride(c), F_BROADCAST) | feature_if(p->dropout_p > 0, F_DROPOUT) |
           feature_if(p->dlse.dtype, F_DLSE) | feature_if(p->dbias.dtype, F_DBIAS) |
           feature_if(p->external_lse, F_EXTERNAL) | feature_if(p->delta.dtype && !p->o.dtype, F_DELTA);
}

/* ---- printing ---- */

static void print_ints(FILE *out, const char *name, const int64_t *values, int64_t count)
{
    if (values == NULL) return;
    fprintf(out, "  %-16s", name);
    for (int64_t i = 0; i < count; ++i) fprintf(out, " %" PRId64, values[i]);
    fputc('\n', out);
}

static void print_int(FILE *out, const char *name, int64_t value, int64_t usual)
{
    if (value != usual) fprintf(out, "  %-16s %" PRId64 "\n", name, value);
}

static void print_float(FILE *out, const char *name, double value, double usual)
{
    if (value != usual) fprintf(out, "  %-16s %.9g\n", name, value);
}

static void print_tensor(const struct prop_case *c, enum tensor_id t, FILE *out)
{
    const int32_t dtype = tensor_dtype(&c->p, t);
    struct attest_problem *p = (struct attest_problem *)&c->p;
    if (dtype == ATTEST_ABSENT) return;
    fprintf(out, "  %-16s %s, strides", tensor_kinds[t].name, ref_dtype_name(dtype));
    if (tensor_kinds[t].shape == SHAPE_ROWS || tensor_kinds[t].shape == SHAPE_SCALARS) {
        const struct attest_tensor *s = tensor_rows(p, t);
        fprintf(out, " %" PRId64 " %" PRId64 " %" PRId64, s->batch, s->seqlen, s->head);
        if (s->align) fprintf(out, ", align %d", s->align);
    } else {
        const struct attest_score_tensor *s = tensor_scores(p, t);
        fprintf(out, " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, s->batch, s->head, s->seqlen_q, s->seqlen_k);
    }
    fputc('\n', out);
}

static void print_dropout(const struct prop_case *c, FILE *out)
{
    if (c->p.dropout_p == 0) return;
    fprintf(out, "  %-16s %.9g, seed 0x%" PRIx64 ", offset 0x%" PRIx64 "%s%s\n", "dropout_p", (double)c->p.dropout_p,
            c->dropout_seed, c->dropout_offset, c->seed_by_pointer ? ", by pointer" : "",
            c->streams != NULL ? ", streams given" : "");
}

void case_print(const struct prop_case *c, FILE *out)
{
    static const char *const kinds[] = {"unset", "top left", "bottom right", "given"};
    const struct attest_problem *p = &c->p;
    fprintf(out, "  %-16s %s, seed %" PRIu64 "\n", "family", family_names[c->data.family], c->data.seed);
    fprintf(out, "  %-16s batch %" PRId64 ", seqlen_q %" PRId64 ", seqlen_k %" PRId64 ", heads %" PRId64 " / %" PRId64
                 ", head_dim %" PRId64 " / %" PRId64 "\n",
            p->ragged ? "ragged" : "dense", p->batch, p->seqlen_q, p->seqlen_k, p->num_heads_q, p->num_heads_kv,
            p->head_dim, p->head_dim_v);
    print_ints(out, "cu_seqlens_q", c->starts_q, p->batch + 1);
    print_ints(out, "cu_seqlens_k", c->starts_k, p->batch + 1);
    if (p->ragged) fprintf(out, "  %-16s %" PRId64 " / %" PRId64 "\n", "total", p->total_q, p->total_k);
    print_ints(out, "seqused_q", c->used_q, p->batch);
    print_ints(out, "seqused_k", c->used_k, p->batch);
    print_float(out, "softmax_scale", (double)p->softmax_scale, NAN);
    print_float(out, "softcap", (double)p->softcap, 0);
    print_int(out, "window_left", p->window_left, -1);
    print_int(out, "window_right", p->window_right, -1);
    if (p->diag_kind) fprintf(out, "  %-16s %s %" PRId64 "\n", "diag", kinds[p->diag_kind], p->diag);
    if (p->has_alibi) fprintf(out, "  %-16s diag %s %" PRId64 "\n", "alibi", kinds[p->alibi_diag_kind], p->alibi_diag);
    print_int(out, "q_start", p->q_start, 0);
    print_int(out, "k_start", p->k_start, 0);
    print_int(out, "has_sink", p->has_sink, 0);
    print_int(out, "external_lse", p->external_lse, 0);
    print_dropout(c, out);
    if (p->block_mask.dtype) fprintf(out, "  %-16s %" PRId64 " x %" PRId64 "\n", "blocks", p->block_q, p->block_k);
    for (int t = 0; t < NUM_TENSORS; ++t) print_tensor(c, t, out);
}
