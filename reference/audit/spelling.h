/* spelling.h - what tensors and metadata are called by those who write them. */
#ifndef ATTEST_AUDIT_SPELLING_H
#define ATTEST_AUDIT_SPELLING_H

#include <stdbool.h>

#include "reference/audit/options.h"

/* What a tensor is. Results begin at PART_O, in the order of enum ref_tensor. */
enum part {
    PART_Q, PART_K, PART_V, PART_QKV, PART_KV, PART_DOUT, PART_DLSE, PART_BIAS, PART_MASK, PART_HIDDEN, PART_SINK,
    PART_SLOPES, PART_CU_Q, PART_CU_K, PART_USED_Q, PART_USED_K, PART_BLOCK_TABLE, PART_BLOCK_MASK, PART_Q_SCALE,
    PART_K_SCALE, PART_V_SCALE,
    PART_O, PART_LSE, PART_DQ, PART_DK, PART_DV, PART_DBIAS, PART_DSINK, PART_DQKV, PART_DKV,
    PART_NUM, PART_IDLE /* of a generator's state and the like: read by nobody, and no part of the problem */
};
extern const char *const part_names[PART_NUM]; /* the contract's: "q", ..., "dsink" */

/* PART_NUM where the name is unknown. Capitals do not matter. */
enum part part_of(const char *name);
static inline bool part_is_input(enum part r) { return r < PART_O; }
static inline bool part_is_result(enum part r) { return r >= PART_O && r < PART_NUM; }

/* The setting of a metadata key; SETTING_NUM where there is none. */
enum setting setting_of(const char *key);
/* Whether a key says where a file comes from and nothing about the problem. */
bool key_is_idle(const char *key);

#endif
