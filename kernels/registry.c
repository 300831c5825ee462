/* registry.c - the table of kernels, and which problems each takes. */
#include "kernels/registry.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#ifdef ATTEST_WITH_CUDA
#define CUDA(launcher) launcher
#else
#define CUDA(launcher) NULL
#endif

__attribute__((format(printf, 3, 4))) static bool refuse(char *why, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, bytes, format, arguments);
    va_end(arguments);
    return false;
}

/* What all kernels that read shared/scores.h ask for. */
static bool is_in_reach(const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t longest = p->seqlen_q > p->seqlen_k ? p->seqlen_q : p->seqlen_k;
    if (longest > INT32_MAX - 128) /* rows of tiles that hang over are counted in 32 bits, too */
        return refuse(why, bytes, "seqlen_%c = %lld, but must be at most %d", p->seqlen_q == longest ? 'q' : 'k',
                      (long long)longest, INT32_MAX - 128);
    if (!(fabsf(p->softmax_scale) < 0x1p127f)) /* times log2 e they must be numbers */
        return refuse(why, bytes, "softmax_scale = %g, but must be below 2^127 in size", (double)p->softmax_scale);
    if (p->softcap != 0 && !(p->softcap < 0x1p127f && fabsf(p->softmax_scale / p->softcap) < 0x1p127f))
        return refuse(why, bytes, "softcap = %g, but must be below 2^127 and above softmax_scale / 2^127",
                      (double)p->softcap);
    return true;
}

static bool forward_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->q.dtype != ATTEST_FP16 && p->q.dtype != ATTEST_BF16)
        return refuse(why, bytes, "q.dtype = %d, but must be fp16 or bf16", p->q.dtype);
    return is_in_reach(p, why, bytes);
}

static bool fp32_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->q.dtype > ATTEST_BF16) return refuse(why, bytes, "q.dtype = %d, but must be fp32, fp16 or bf16", p->q.dtype);
    return is_in_reach(p, why, bytes);
}

/* For kernels of one format. */
static bool is_of(const struct attest_tensor *t, const char *name, int32_t dtype, char *why, size_t bytes)
{
    return t->dtype == dtype ||
           refuse(why, bytes, "%s.dtype = %d, but must be q.dtype, %d", name, t->dtype, dtype);
}

/* Of one_query_forward_sm80 and short_forward_sm80. */
static bool one_format_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return forward_takes(p, why, bytes) && is_of(&p->o, "o", p->q.dtype, why, bytes);
}

static bool is_of_128_features(const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t widest = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    return widest <= 128 ||
           refuse(why, bytes, "head_dim or head_dim_v = %lld, but must be at most 128", (long long)widest);
}

/* Of 128 rows, wider heads do not fit into the shared memory that every GPU has. */
static bool short_forward_128_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return is_of_128_features(p, why, bytes) && one_format_takes(p, why, bytes);
}

/* Of heads of more than 128 features. */
static bool short_forward_64_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (short_forward_128_takes(p, why, bytes)) return refuse(why, bytes, "of these heads short_forward_sm80 has 128 rows");
    return one_format_takes(p, why, bytes);
}

/* Every row sees every key, and scores are softmax_scale q . k. */
static bool is_plain(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->bias.dtype != ATTEST_ABSENT) return refuse(why, bytes, "there is a bias, but must be none");
    if (p->mask.dtype != ATTEST_ABSENT) return refuse(why, bytes, "there is a mask, but must be none");
    if (p->block_mask.dtype != ATTEST_ABSENT) return refuse(why, bytes, "there is a block_mask, but must be none");
    if (p->has_alibi) return refuse(why, bytes, "has_alibi = %d, but must be 0", p->has_alibi);
    if (p->has_sink) return refuse(why, bytes, "has_sink = %d, but must be 0", p->has_sink);
    if (p->softcap != 0) return refuse(why, bytes, "softcap = %g, but must be 0", (double)p->softcap);
    if (p->dropout_p != 0) return refuse(why, bytes, "dropout_p = %g, but must be 0", (double)p->dropout_p);
    if (p->window_left >= 0 || p->window_right >= 0) return refuse(why, bytes, "there is a window, but must be none");
    return true;
}

/* c is not negative in max(c s) = c max s. */
static bool plain_forward_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (!is_plain(p, why, bytes)) return false;
    if (!(p->softmax_scale >= 0))
        return refuse(why, bytes, "softmax_scale = %g, but must be at least 0", (double)p->softmax_scale);
    return one_format_takes(p, why, bytes);
}

/* What short_forward_sm90_scaled and short_backward_sm90_n128_scaled have from the 65th row or key on,
 * short_forward_sm90 below. */
static bool is_scaled(const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t widest = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    if (widest > 32)
        return refuse(why, bytes, "head_dim or head_dim_v = %lld, but must be at most 32", (long long)widest);
    return p->q.dtype == ATTEST_BF16 || refuse(why, bytes, "q.dtype = %d, but must be bf16", p->q.dtype);
}

static bool short_forward_sm90_scaled_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return is_scaled(p, why, bytes) && plain_forward_takes(p, why, bytes);
}

static bool short_forward_sm90_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (is_scaled(p, why, bytes)) return refuse(why, bytes, "of these heads short_forward_sm90_scaled has 128 rows");
    return is_of_128_features(p, why, bytes) && plain_forward_takes(p, why, bytes);
}

/* Where it does not have 128 rows, or has a launch of its own for 64: of more than 64 features, and of those that
 * short_forward_sm90_scaled has from the 65th row or key on. */
static bool short_forward_hopper_64_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->head_dim <= 64 && p->head_dim_v <= 64 && !is_scaled(p, why, bytes))
        return refuse(why, bytes, "of these heads short_forward_sm90 has 128 rows");
    return plain_forward_takes(p, why, bytes);
}

static bool short_forward_sm90_d256_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->head_dim <= 128 && p->head_dim_v <= 128)
        return refuse(why, bytes, "of these heads short_forward_sm90 has 128 rows");
    return plain_forward_takes(p, why, bytes);
}

static bool one_query_backward_sm80_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    if (p->dbias.dtype != ATTEST_ABSENT) return refuse(why, bytes, "dbias is wanted, but must be absent");
    if (p->has_sink) return refuse(why, bytes, "has_sink = %d, but must be 0", p->has_sink);
    if (p->external_lse) return refuse(why, bytes, "external_lse = %d, but must be 0", p->external_lse);
    if (group > 8) /* their p and ds are in shared memory at once */
        return refuse(why, bytes, "num_heads_q / num_heads_kv = %lld, but must be at most 8", (long long)group);
    return forward_takes(p, why, bytes) && is_of(&p->dout, "dout", p->q.dtype, why, bytes) &&
           is_of(&p->dq, "dq", p->q.dtype, why, bytes) && is_of(&p->dk, "dk", p->q.dtype, why, bytes) &&
           is_of(&p->dv, "dv", p->q.dtype, why, bytes);
}

/* Five fp32 a row and head, and what rounds them up, must be a size. */
static bool has_workspace(const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t rows = p->ragged ? p->total_q : p->batch * p->seqlen_q, most = INT64_MAX / 32 / p->num_heads_q;
    return rows <= most || refuse(why, bytes, "%lld rows of q, but must be at most %lld with num_heads_q = %lld",
                                  (long long)rows, (long long)most, (long long)p->num_heads_q);
}

/* Matrix units take no two formats at once. */
static bool backward_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->q.dtype != ATTEST_FP16 && p->q.dtype != ATTEST_BF16)
        return refuse(why, bytes, "q.dtype = %d, but must be fp16 or bf16", p->q.dtype);
    if (p->dout.dtype != p->q.dtype)
        return refuse(why, bytes, "dout.dtype = %d, but must be q.dtype, %d", p->dout.dtype, p->q.dtype);
    return is_in_reach(p, why, bytes) && has_workspace(p, why, bytes);
}

static bool short_backward_sm80_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    const struct attest_tensor *const rows[] = {&p->k, &p->v, &p->dout, &p->dq, &p->dk, &p->dv};
    static const char *const names[] = {"k", "v", "dout", "dq", "dk", "dv"};
    if (p->q.dtype != ATTEST_FP16 && p->q.dtype != ATTEST_BF16)
        return refuse(why, bytes, "q.dtype = %d, but must be fp16 or bf16", p->q.dtype);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        if (rows[i]->dtype != p->q.dtype)
            return refuse(why, bytes, "%s.dtype = %d, but must be q.dtype, %d", names[i], rows[i]->dtype, p->q.dtype);
    if (p->block_mask.dtype != ATTEST_ABSENT) return refuse(why, bytes, "there is a block_mask, but must be none");
    if (p->softcap != 0) return refuse(why, bytes, "softcap = %g, but must be 0", (double)p->softcap);
    if (p->has_sink) return refuse(why, bytes, "there is a sink, but must be none");
    if (p->dbias.dtype != ATTEST_ABSENT) return refuse(why, bytes, "dbias is wanted, but must not be");
    if (p->dlse.dtype != ATTEST_ABSENT) return refuse(why, bytes, "there is a dlse, but must be none");
    if (p->external_lse) return refuse(why, bytes, "external_lse = %d, but must be 0", p->external_lse);
    return is_in_reach(p, why, bytes);
}

/* Every row sees every key, nothing is summed over heads, and delta is the kernel's own. */
static bool plain_backward_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->num_heads_q != p->num_heads_kv)
        return refuse(why, bytes, "num_heads_q / num_heads_kv = %lld, but must be 1",
                      (long long)(p->num_heads_q / p->num_heads_kv));
    if (p->delta.dtype != ATTEST_ABSENT) return refuse(why, bytes, "delta is given, but must be absent");
    return is_plain(p, why, bytes) && short_backward_sm80_takes(p, why, bytes);
}

static bool short_backward_sm90_n128_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return is_of_128_features(p, why, bytes) && plain_backward_takes(p, why, bytes);
}

static bool short_backward_sm90_n128_scaled_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return is_scaled(p, why, bytes) && plain_backward_takes(p, why, bytes);
}

/* Of heads of more than 128 features. */
static bool short_backward_sm90_n128_d256_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->head_dim <= 128 && p->head_dim_v <= 128)
        return refuse(why, bytes, "of these heads short_backward_sm90_n128 has 128 rows");
    return plain_backward_takes(p, why, bytes);
}

static bool backward_fp32_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    return fp32_takes(p, why, bytes) && has_workspace(p, why, bytes);
}

/* Of delta, lse in base 2, its low part, the reference of biases: fp32, one a row and head. */
static size_t row_state_bytes(const struct attest_problem *p)
{
    const int64_t rows = p->ragged ? p->total_q : p->batch * p->seqlen_q;
    return 4 * (size_t)rows * (size_t)p->num_heads_q * sizeof(float);
}

/* And of delta - dlse. */
static size_t row_terms_bytes(const struct attest_problem *p) { return row_state_bytes(p) / 4 * 5; }

static size_t no_bytes(const struct attest_problem *p)
{
    (void)p;
    return 0;
}

#define CLS {1, 512}
#define ANY {INT32_MAX, INT32_MAX}

const struct forward_kernel forward_kernels[] = {
    {"one_query_forward_sm80", one_format_takes, one_query_forward_sm80_sim, CUDA(one_query_forward_sm80_cuda), CLS, "one_query_forward_sm80", 0},
    {"short_forward_sm90", short_forward_hopper_64_takes, short_forward_sm90_sim, CUDA(short_forward_sm90_cuda),
     {64, 64}, "short_forward_sm90", 9},
    {"short_forward_sm80", short_forward_64_takes, short_forward_sm80_sim, CUDA(short_forward_sm80_cuda), {64, 64}, "short_forward_sm80",
     0},
    {"short_forward_sm90_scaled", short_forward_sm90_scaled_takes, short_forward_sm90_scaled_sim, CUDA(short_forward_sm90_scaled_cuda),
     {128, 128}, "short_forward_shared", 9},
    {"short_forward_sm90", short_forward_sm90_takes, short_forward_sm90_sim, CUDA(short_forward_sm90_cuda),
     {128, 128}, "short_forward_sm90", 9},
    {"short_forward_sm90_d256", short_forward_sm90_d256_takes, short_forward_sm90_d256_sim, CUDA(short_forward_sm90_d256_cuda), {128, 128},
     "short_forward_sm90", 9},
    {"short_forward_sm80", short_forward_128_takes, short_forward_sm80_sim, CUDA(short_forward_sm80_cuda), {128, 128}, "short_forward_sm80",
     0},
    {"forward_sm80", forward_takes, forward_sm80_sim, CUDA(forward_sm80_cuda), ANY, "forward_shared", 0},
    {"forward_fp32", fp32_takes, forward_fp32_sim, CUDA(forward_fp32_cuda), ANY, "forward_fp32", 0},
    {0},
};

const struct backward_kernel backward_kernels[] = {
    {"one_query_backward_sm80", one_query_backward_sm80_takes, no_bytes, one_query_backward_sm80_sim, CUDA(one_query_backward_sm80_cuda), CLS, "one_query_backward_sm80",
     0, 0},
    {"short_backward_sm90_n64", plain_backward_takes, no_bytes, short_backward_sm90_n64_sim, CUDA(short_backward_sm90_n64_cuda),
     {64, 64}, "short_backward_sm80", 161 * 1024, 9},
    {"short_backward_sm80", short_backward_sm80_takes, no_bytes, short_backward_sm80_sim, CUDA(short_backward_sm80_cuda), {64, 64},
     "short_backward_sm80", 163 * 1024, 0},
    {"short_backward_sm90_n128_scaled", short_backward_sm90_n128_scaled_takes, no_bytes, short_backward_sm90_n128_scaled_sim,
     CUDA(short_backward_sm90_n128_scaled_cuda), {128, 128}, "short_backward_shared", 113 * 1024, 9},
    {"short_backward_sm90_n128", short_backward_sm90_n128_takes, no_bytes, short_backward_sm90_n128_sim,
     CUDA(short_backward_sm90_n128_cuda), {128, 128}, "short_backward_sm80", 225 * 1024, 9},
    {"short_backward_sm90_n128_d256", short_backward_sm90_n128_d256_takes, no_bytes, short_backward_sm90_n128_d256_sim,
     CUDA(short_backward_sm90_n128_d256_cuda), {128, 128}, "short_backward_sm80", 225 * 1024, 9},
    {"backward_sm80", backward_takes, row_terms_bytes, backward_sm80_sim, CUDA(backward_sm80_cuda), ANY, "backward_shared", 0, 0},
    {"backward_fp32", backward_fp32_takes, row_state_bytes, backward_fp32_sim, CUDA(backward_fp32_cuda), ANY,
     "backward_fp32", 0, 0},
    {0},
};

const struct merge_kernel merge_kernel = {"merge", merge_sim, CUDA(merge_cuda)};

const struct merge_backward_kernel merge_backward_kernel = {"merge_backward", merge_backward_sim,
                                                            CUDA(merge_backward_cuda)};
