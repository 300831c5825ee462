/* unfused.h - attention that keeps its matrices of seqlen^2 numbers in memory, one kernel a step: what fused kernels
 * are counted against. One head of UNFUSED_SEQLEN queries and keys, fp16, causal, with dropout. */
#ifndef ATTEST_PROPTESTS_KERNELS_UNFUSED_H
#define ATTEST_PROPTESTS_KERNELS_UNFUSED_H

#include <stdint.h>

#include "kernels/shared/params.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { UNFUSED_SEQLEN = 1024, UNFUSED_HEAD_DIM = 64 };

struct unfused_params {
    struct forward_params forward;                 /* its scale and dropout; of its tensors q, k, v, o */
    const uint16_t *dout;                          /* [UNFUSED_SEQLEN][UNFUSED_HEAD_DIM], as q, k, v, o and these: */
    uint16_t *dq, *dk, *dv;
    uint16_t *p, *dropped_p, *dp;                  /* [UNFUSED_SEQLEN][UNFUSED_SEQLEN]; dp becomes ds */
};

/* s = scale q k^T; s = mask(s); p = softmax(s); p' = dropout(p); o = p' v. Five kernels. */
int unfused_forward_sim(const struct unfused_params *params, void *gpu);
/* dv = p'^T dout; dp' = dout v^T; dp = dropout(dp'); ds = p (dp - sum p dp); dq = scale ds k; dk = scale ds^T q. Six
 * kernels. ds needs no mask: p is zero where it would be. */
int unfused_backward_sim(const struct unfused_params *params, void *gpu);

#ifdef __cplusplus
}
#endif

#endif
