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

/* Everything that is an interval of keys; no masks of bytes, nothing done to scores. */
static bool forward_fp32_takes(const struct attest_problem *p, char *why, size_t bytes)
{
    const struct {
        const char *field;
        int32_t dtype;
    } absent[] = {{"bias", p->bias.dtype}, {"mask", p->mask.dtype}, {"block_mask", p->block_mask.dtype}};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i)
        if (absent[i].dtype != ATTEST_ABSENT)
            return refuse(why, bytes, "%s.dtype = %d, but must be absent", absent[i].field, (int)absent[i].dtype);
    const int64_t longest = p->seqlen_q > p->seqlen_k ? p->seqlen_q : p->seqlen_k;
    if (longest > INT32_MAX - 128) /* rows of tiles that hang over are counted in 32 bits, too */
        return refuse(why, bytes, "seqlen_%c = %lld, but must be at most %d", p->seqlen_q == longest ? 'q' : 'k',
                      (long long)longest, INT32_MAX - 128);
    if (p->q.dtype > ATTEST_BF16) return refuse(why, bytes, "q.dtype = %d, but must be fp32, fp16 or bf16", p->q.dtype);
    if (p->softcap != 0) return refuse(why, bytes, "softcap = %g, but must be 0", (double)p->softcap);
    if (p->has_alibi) return refuse(why, bytes, "has_alibi = 1, but must be 0");
    if (p->dropout_p != 0) return refuse(why, bytes, "dropout_p = %g, but must be 0", (double)p->dropout_p);
    if (fabsf(p->softmax_scale) >= 0x1p127f) /* times log2 e it must be a number */
        return refuse(why, bytes, "softmax_scale = %g, but must be below 2^127 in size", (double)p->softmax_scale);
    return true;
}

const struct forward_kernel forward_kernels[] = {
    {"forward_fp32", forward_fp32_takes, forward_fp32_sim, CUDA(forward_fp32_cuda)},
    {0},
};

const struct backward_kernel backward_kernels[] = {
    {0},
};

const struct merge_kernel merge_kernel = {"merge", merge_sim, CUDA(merge_cuda)};
