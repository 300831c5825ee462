/* registry.c - the table of kernels, and which problems each is picked for. */
#include "kernels/registry.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kernels/shared/sums.h"

__attribute__((format(printf, 3, 4))) static bool refuse(char *why, size_t bytes, const char *format, ...)
{
    if (why == NULL) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, bytes, format, arguments);
    va_end(arguments);
    return false;
}

/* What all kernels that read scores.h ask for. */
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

static bool has_format(uint32_t formats, int32_t dtype, char *why, size_t bytes)
{
    static const struct {
        int32_t dtype;
        const char *name;
    } known[] = {{ATTEST_FP32, "fp32"}, {ATTEST_FP16, "fp16"}, {ATTEST_BF16, "bf16"}};
    if (dtype >= 0 && dtype < 32 && formats >> dtype & 1) return true;
    if (why == NULL) return false;
    char names[32] = "";
    int left = 0;
    for (int n = 0; n < 3; ++n) left += formats >> known[n].dtype & 1;
    for (int n = 0; n < 3; ++n) {
        if (!(formats >> known[n].dtype & 1)) continue;
        strcat(names, known[n].name); /* three names of four letters, ", " and " or " at most */
        --left;
        strcat(names, left == 0 ? "" : left == 1 ? " or " : ", ");
    }
    return refuse(why, bytes, "q.dtype = %d, but must be %s", dtype, names);
}

/* In the order of enum kernel_tensor. */
static const struct {
    const char *name;
    size_t in_problem;
} tensors[] = {
#define TENSOR(name) {#name, offsetof(struct attest_problem, name)}
    TENSOR(k), TENSOR(v), TENSOR(o), TENSOR(dout), TENSOR(dq), TENSOR(dk), TENSOR(dv),
#undef TENSOR
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static const struct attest_tensor *tensor_of(const struct attest_problem *p, int i)
{
    return (const struct attest_tensor *)((const char *)p + tensors[i].in_problem);
}

static bool are_alike(uint32_t alike, const struct attest_problem *p, char *why, size_t bytes)
{
    for (int i = 0; i < TENSORS; ++i)
        if (alike >> i & 1 && tensor_of(p, i)->dtype != p->q.dtype)
            return refuse(why, bytes, "%s.dtype = %d, but must be q.dtype, %d", tensors[i].name,
                          tensor_of(p, i)->dtype, p->q.dtype);
    return true;
}

static bool has_dims(const struct kernel_reach *reach, const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t widest = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    if (widest < reach->least_dim)
        return refuse(why, bytes, "head_dim and head_dim_v = %lld or less, but one must be at least %d",
                      (long long)widest, reach->least_dim);
    if (reach->most_dim != 0 && widest > reach->most_dim)
        return refuse(why, bytes, "head_dim or head_dim_v = %lld, but must be at most %d", (long long)widest,
                      reach->most_dim);
    return true;
}

/* Of the scores. */
static bool lacks_no_score(uint32_t lacks, const struct attest_problem *p, char *why, size_t bytes)
{
    if (lacks & KERNEL_BIAS && p->bias.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "there is a bias, but must be none");
    if (lacks & KERNEL_MASK && p->mask.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "there is a mask, but must be none");
    if (lacks & KERNEL_BLOCK_MASK && p->block_mask.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "there is a block_mask, but must be none");
    if (lacks & KERNEL_ALIBI && p->has_alibi)
        return refuse(why, bytes, "has_alibi = %d, but must be 0", p->has_alibi);
    if (lacks & KERNEL_SINK && p->has_sink) return refuse(why, bytes, "has_sink = %d, but must be 0", p->has_sink);
    if (lacks & KERNEL_SOFTCAP && p->softcap != 0)
        return refuse(why, bytes, "softcap = %g, but must be 0", (double)p->softcap);
    if (lacks & KERNEL_DROPOUT && p->dropout_p != 0)
        return refuse(why, bytes, "dropout_p = %g, but must be 0", (double)p->dropout_p);
    if (lacks & KERNEL_WINDOW && (p->window_left >= 0 || p->window_right >= 0))
        return refuse(why, bytes, "there is a window, but must be none");
    if (lacks & KERNEL_NEGATIVE_SCALE && !(p->softmax_scale >= 0))
        return refuse(why, bytes, "softmax_scale = %g, but must be at least 0", (double)p->softmax_scale);
    return true;
}

/* Of heads and gradients. */
static bool lacks_no_gradient(uint32_t lacks, const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    const int64_t most_group = lacks & KERNEL_GROUP ? 1 : lacks & KERNEL_LARGE_GROUP ? KERNEL_MOST_GROUP : group;
    if (group > most_group)
        return refuse(why, bytes, "num_heads_q / num_heads_kv = %lld, but must be at most %lld", (long long)group,
                      (long long)most_group);
    if (lacks & KERNEL_DELTA && p->delta.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "delta is given, but must be absent");
    if (lacks & KERNEL_EXTERNAL_LSE && p->external_lse)
        return refuse(why, bytes, "external_lse = %d, but must be 0", p->external_lse);
    if (lacks & KERNEL_DLSE && p->dlse.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "there is a dlse, but must be none");
    if (lacks & KERNEL_DBIAS && p->dbias.dtype != ATTEST_ABSENT)
        return refuse(why, bytes, "dbias is wanted, but must be absent");
    return true;
}

static int64_t rows_of(const struct attest_problem *p) { return p->ragged ? p->total_q : p->batch * p->seqlen_q; }

/* Its bytes, and what rounds them up, must be a size. */
static bool has_workspace(const struct kernel_reach *reach, const struct attest_problem *p, char *why, size_t bytes)
{
    const int64_t rows = rows_of(p), most = INT64_MAX / 32 / p->num_heads_q;
    return reach->workspace_terms == 0 || rows <= most ||
           refuse(why, bytes, "%lld rows of q, but must be at most %lld with num_heads_q = %lld", (long long)rows,
                  (long long)most, (long long)p->num_heads_q);
}

/* Every sequence fills its tiles. */
static bool has_full_lengths(struct lengths most, const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->ragged) return refuse(why, bytes, "ragged = %d, but must be 0", p->ragged);
    if (p->has_seqused_q || p->has_seqused_k)
        return refuse(why, bytes, "has_seqused_%c = 1, but must be 0", p->has_seqused_q ? 'q' : 'k');
    if (p->seqlen_q != most.q)
        return refuse(why, bytes, "seqlen_q = %lld, but must be %d", (long long)p->seqlen_q, most.q);
    if (p->seqlen_k != most.k)
        return refuse(why, bytes, "seqlen_k = %lld, but must be %d", (long long)p->seqlen_k, most.k);
    return true;
}

/* `dims` are powers of two, added up. */
static bool has_full_dims(int32_t dims, const struct attest_problem *p, char *why, size_t bytes)
{
    const bool is_one = (p->head_dim & (p->head_dim - 1)) == 0 && (p->head_dim & dims) != 0;
    if (is_one && p->head_dim_v == p->head_dim) return true;
    if (is_one)
        return refuse(why, bytes, "head_dim_v = %lld, but must be head_dim, %lld", (long long)p->head_dim_v,
                      (long long)p->head_dim);
    char names[64] = "";
    for (int dim = 1; dim <= dims; dim *= 2) {
        const size_t length = strlen(names);
        if (dims & dim) snprintf(names + length, sizeof names - length, "%s%d", length > 0 ? " or " : "", dim);
    }
    return refuse(why, bytes, "head_dim = %lld, but must be %s", (long long)p->head_dim, names);
}

static bool are_aligned(uint32_t alike, const struct attest_problem *p, char *why, size_t bytes)
{
    if (p->q.align < KERNEL_ALIGN)
        return refuse(why, bytes, "q.align = %d, but must be at least %d", p->q.align, KERNEL_ALIGN);
    for (int i = 0; i < TENSORS; ++i)
        if (alike >> i & 1 && tensor_of(p, i)->align < KERNEL_ALIGN)
            return refuse(why, bytes, "%s.align = %d, but must be at least %d", tensors[i].name, tensor_of(p, i)->align,
                          KERNEL_ALIGN);
    return true;
}

static bool is_full(const struct kernel_reach *reach, struct lengths most, const struct attest_problem *p, char *why,
                    size_t bytes)
{
    return reach->full_dims == 0 ||
           (has_full_lengths(most, p, why, bytes) && has_full_dims(reach->full_dims, p, why, bytes) &&
            are_aligned(reach->alike, p, why, bytes));
}

static bool has_sms(int32_t ctas, const struct attest_problem *p, int num_sms, char *why, size_t bytes)
{
    const int64_t problems = p->batch * p->num_heads_q;
    return ctas == 0 || problems <= num_sms / ctas ||
           refuse(why, bytes, "batch times num_heads_q = %lld, but must be at most %d, with %d SMs for %d CTAs each",
                  (long long)problems, num_sms / ctas, num_sms, ctas);
}

bool kernel_takes(const struct kernel_reach *reach, struct lengths most, const struct attest_problem *p, int num_sms,
                  char *why, size_t why_bytes)
{
    /* Most problems are not full: rows that take no others are soon left. */
    return is_full(reach, most, p, why, why_bytes) && has_format(reach->formats, p->q.dtype, why, why_bytes) &&
           are_alike(reach->alike, p, why, why_bytes) && has_dims(reach, p, why, why_bytes) &&
           lacks_no_score(reach->lacks, p, why, why_bytes) && lacks_no_gradient(reach->lacks, p, why, why_bytes) &&
           is_in_reach(p, why, why_bytes) && has_sms(reach->ctas, p, num_sms, why, why_bytes) &&
           has_workspace(reach, p, why, why_bytes);
}

size_t kernel_workspace_bytes(const struct kernel_reach *reach, const struct attest_problem *p)
{
    if (reach->only_for_sums && p->dbias.dtype == ATTEST_ABSENT && !p->has_sink) return 0;
    const size_t sums = reach->only_for_sums ? short_sums_bytes(p) : 0;
    const size_t terms = (size_t)reach->workspace_terms * (size_t)rows_of(p) * (size_t)p->num_heads_q * sizeof(float);
    return sums > terms ? sums : terms;
}

#ifdef ATTEST_WITH_CUDA
#define LAUNCHERS(kernel) .name = #kernel, .sim = kernel##_sim, .cuda = kernel##_cuda
#else
#define LAUNCHERS(kernel) .name = #kernel, .sim = kernel##_sim
#endif

#define FP32 (1 << ATTEST_FP32)
#define FP16 (1 << ATTEST_FP16)
#define BF16 (1 << ATTEST_BF16)
#define SIXTEEN (FP16 | BF16) /* formats of 16 bits */
#define ANY {INT32_MAX, INT32_MAX}
#define HOPPER 9

/* Every row sees every key, and scores are softmax_scale q . k. */
#define PLAIN                                                                                                      \
    (KERNEL_BIAS | KERNEL_MASK | KERNEL_BLOCK_MASK | KERNEL_ALIBI | KERNEL_SINK | KERNEL_SOFTCAP | KERNEL_DROPOUT | \
     KERNEL_WINDOW)
/* c is not negative in max(c s) = c max s. */
#define PLAIN_FORWARD (PLAIN | KERNEL_NEGATIVE_SCALE)
/* Their delta is their own, so plain ones are given none. */
#define OTHER_GRADIENTS (KERNEL_DBIAS | KERNEL_DLSE | KERNEL_EXTERNAL_LSE)
#define PLAIN_GRADIENTS (PLAIN | OTHER_GRADIENTS | KERNEL_GROUP | KERNEL_DELTA)
#define WINDOW_GRADIENTS ((PLAIN & ~(uint32_t)KERNEL_WINDOW) | OTHER_GRADIENTS)
#define GRADIENTS (KERNEL_DOUT | KERNEL_DQ | KERNEL_DK | KERNEL_DV)

/* Rows of fewer keys come first, and of those the kernel that is fastest. */
const struct forward_kernel forward_kernels[] = {
    {LAUNCHERS(one_query_forward_sm80), .reach = {SIXTEEN, KERNEL_O}, .most = {1, 512}},
    /* Where it has a launch of its own for 64 rows: of more than 64 features, and of those that
     * short_forward_sm90_scaled has from the 65th row or key on. */
    {LAUNCHERS(short_forward_sm90), .reach = {SIXTEEN, KERNEL_O, PLAIN_FORWARD, .least_dim = 65}, .most = {64, 64},
     .only_major = HOPPER},
    {LAUNCHERS(short_forward_sm90), .reach = {BF16, KERNEL_O, PLAIN_FORWARD, .most_dim = 32}, .most = {64, 64},
     .only_major = HOPPER},
    /* Of 128 rows, wider heads do not fit into the shared memory that every GPU has. */
    {LAUNCHERS(short_forward_sm80), .reach = {SIXTEEN, KERNEL_O, .least_dim = 129}, .most = {64, 64}},
    {LAUNCHERS(short_forward_sm90_scaled), .reach = {BF16, KERNEL_O, PLAIN_FORWARD, .most_dim = 32},
     .most = {128, 128}, .only_major = HOPPER},
    {LAUNCHERS(short_forward_sm90), .reach = {SIXTEEN, KERNEL_O, PLAIN_FORWARD, .most_dim = 128}, .most = {128, 128},
     .only_major = HOPPER},
    {LAUNCHERS(short_forward_sm90_d256), .reach = {SIXTEEN, KERNEL_O, PLAIN_FORWARD, .least_dim = 129},
     .most = {128, 128}, .only_major = HOPPER},
    {LAUNCHERS(short_forward_sm80), .reach = {SIXTEEN, KERNEL_O, .most_dim = 128}, .most = {128, 128}},
    {LAUNCHERS(forward_sm90),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V, PLAIN_FORWARD & ~(KERNEL_SINK | KERNEL_WINDOW)}, .most = ANY,
     .only_major = HOPPER},
    {LAUNCHERS(forward_sm90_any), .reach = {SIXTEEN, KERNEL_K | KERNEL_V, .most_dim = 128}, .most = ANY,
     .only_major = HOPPER},
    {LAUNCHERS(forward_sm80), .reach = {SIXTEEN}, .most = ANY},
    {LAUNCHERS(forward_fp32), .reach = {FP32 | SIXTEEN}, .most = ANY},
    {0},
};

const struct backward_kernel backward_kernels[] = {
    /* p and ds of a large group's heads would not fit into shared memory at once. */
    {LAUNCHERS(one_query_backward_sm80),
     .reach = {SIXTEEN, GRADIENTS, KERNEL_DBIAS | KERNEL_SINK | KERNEL_EXTERNAL_LSE | KERNEL_LARGE_GROUP},
     .most = {1, 512}},
    {LAUNCHERS(short_backward_sm90_n64), .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS},
     .most = {64, 64}, .only_major = HOPPER, .shared_bytes = 161 * 1024},
    {LAUNCHERS(short_backward_sm80), .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, WINDOW_GRADIENTS},
     .most = {64, 64}, .shared_bytes = 163 * 1024},
    /* In the workspace, for dbias and dsink: delta, lse in base 2, its low part, the reference of biases. */
    {LAUNCHERS(short_backward_sm90_any),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, .most_dim = 128, .workspace_terms = 4, .only_for_sums = true},
     .most = {64, 64}, .only_major = HOPPER, .shared_bytes = 84 * 1024},
    {LAUNCHERS(short_backward_sm80_any),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, .workspace_terms = 4, .only_for_sums = true},
     .most = {64, 64}, .shared_bytes = 146 * 1024},
    {LAUNCHERS(short_backward_sm90_n128_scaled),
     .reach = {BF16, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .most_dim = 32},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 113 * 1024},
    /* Few full problems, whose time is that of one. Of 32 features in bf16 they are the row's above. */
    {LAUNCHERS(short_backward_sm90_n128_latency),
     .reach = {FP16, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .full_dims = 32, .ctas = 1},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 225 * 1024},
    {LAUNCHERS(short_backward_sm90_n128_latency),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .full_dims = 64 | 128, .ctas = 1},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 225 * 1024},
    {LAUNCHERS(short_backward_sm90_n128),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .most_dim = 128},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 225 * 1024},
    {LAUNCHERS(short_backward_sm90_n128_d256_latency),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .full_dims = 256, .ctas = 4},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 225 * 1024},
    {LAUNCHERS(short_backward_sm90_n128_d256),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, PLAIN_GRADIENTS, .least_dim = 129},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 225 * 1024},
    {LAUNCHERS(short_backward_sm90_any),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, .most_dim = 128, .workspace_terms = 4, .only_for_sums = true},
     .most = {128, 128}, .only_major = HOPPER, .shared_bytes = 199 * 1024},
    /* Of 128 rows, wider heads do not fit into the shared memory of GPUs before Hopper. */
    {LAUNCHERS(short_backward_sm80_any),
     .reach = {SIXTEEN, KERNEL_K | KERNEL_V | GRADIENTS, .most_dim = 64, .workspace_terms = 4, .only_for_sums = true},
     .most = {128, 128}, .shared_bytes = 134 * 1024},
    /* Matrix units take no two formats at once. In the workspace: delta, lse in base 2, its low part, the reference of
     * biases, delta - dlse. */
    {LAUNCHERS(backward_sm80), .reach = {SIXTEEN, KERNEL_DOUT, .workspace_terms = 5}, .most = ANY},
    {LAUNCHERS(backward_fp32), .reach = {FP32 | SIXTEEN, .workspace_terms = 4}, .most = ANY},
    {0},
};

_Static_assert(sizeof forward_kernels / sizeof *forward_kernels <= KERNEL_MOST_ROWS + 1, "all have a place");
_Static_assert(sizeof backward_kernels / sizeof *backward_kernels <= KERNEL_MOST_ROWS + 1, "all have a place");

const struct merge_kernel merge_kernel = {LAUNCHERS(merge)};

const struct merge_backward_kernel merge_backward_kernel = {LAUNCHERS(merge_backward)};
