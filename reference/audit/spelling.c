/* spelling.c - see spelling.h. The first spelling of each part is the contract's. */
#include "reference/audit/spelling.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

enum { MOST = 14 };

static const char *const spellings[PART_NUM][MOST] = {
    [PART_Q] = {"q", "query", "queries", "query_states", "query_layer", "xq"},
    [PART_K] = {"k", "key", "keys", "key_states", "key_layer", "xk", "key_cache", "k_cache"},
    [PART_V] = {"v", "value", "values", "value_states", "value_layer", "xv", "value_cache", "v_cache"},
    [PART_QKV] = {"qkv", "qkv_packed", "mixed_qkv", "mixed_x_layer", "query_key_value"},
    [PART_KV] = {"kv", "kv_packed", "kv_cache", "key_value"},
    [PART_DOUT] = {"dout", "do", "d_out", "d_o", "grad_output", "grad_out", "grad_o", "grad_attn_output", "doutput",
                   "out_grad", "output_grad"},
    [PART_DLSE] = {"dlse", "d_lse", "grad_lse", "grad_logsumexp", "dsoftmax_lse"},
    [PART_BIAS] = {"bias", "attn_bias", "attention_bias", "position_bias", "rel_pos_bias"},
    [PART_MASK] = {"mask", "attn_mask", "attention_mask", "bool_mask"},
    [PART_HIDDEN] = {"key_padding_mask"},
    [PART_SINK] = {"sink", "sinks", "s_aux", "attn_sink", "attn_sinks", "learnable_sink"},
    [PART_SLOPES] = {"alibi_slopes", "slopes"},
    [PART_CU_Q] = {"cu_seqlens_q", "cu_seqlens", "cu_seq_lens_q", "cu_seq_lens", "cu_seqlen_q", "qo_indptr"},
    [PART_CU_K] = {"cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens_k", "cu_seq_lens_kv", "cu_seqlen_k"},
    [PART_USED_Q] = {"seqused_q", "seqlens_q"},
    [PART_USED_K] = {"seqused_k", "cache_seqlens", "seqlens_k", "seqused_kv", "context_lens", "kv_lens"},
    [PART_BLOCK_TABLE] = {"block_table", "block_tables", "page_table"},
    [PART_BLOCK_MASK] = {"block_mask"},
    [PART_Q_SCALE] = {"q_scale", "q_descale", "descale_q"},
    [PART_K_SCALE] = {"k_scale", "k_descale", "descale_k"},
    [PART_V_SCALE] = {"v_scale", "v_descale", "descale_v"},
    [PART_O] = {"o", "out", "output", "attn_output", "attn_out", "context_layer", "attention_output"},
    [PART_LSE] = {"lse", "softmax_lse", "logsumexp", "stats", "softmax_stats", "out_lse"},
    [PART_DQ] = {"dq", "grad_q", "grad_query", "d_q", "dquery", "q_grad", "query_grad", "q.grad", "query.grad"},
    [PART_DK] = {"dk", "grad_k", "grad_key", "d_k", "dkey", "k_grad", "key_grad", "k.grad", "key.grad"},
    [PART_DV] = {"dv", "grad_v", "grad_value", "d_v", "dvalue", "v_grad", "value_grad", "v.grad", "value.grad"},
    [PART_DBIAS] = {"dbias", "grad_bias", "d_bias", "bias_grad", "grad_attn_bias", "bias.grad"},
    [PART_DSINK] = {"dsink", "grad_sink", "d_sink", "sink_grad", "dsinks", "sinks.grad", "sink.grad"},
    [PART_DQKV] = {"dqkv", "grad_qkv", "qkv_grad", "qkv.grad"},
    [PART_DKV] = {"dkv", "grad_kv", "kv_grad", "kv.grad"},
};

/* Read by nobody, and not needed: what a call was given beside what its tensors say. */
static const char *const idle_names[] = {"philox_seed", "philox_offset", "rng_state", "seed",  "offset",
                                         "max_seqlen_q", "max_seqlen_k", "max_q",     "max_k", "debug_attn_mask"};

const char *const part_names[PART_NUM] = {
    "q", "k", "v", "qkv", "kv", "dout", "dlse", "bias", "mask", "key_padding_mask", "sink", "alibi_slopes",
    "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table", "block_mask", "q_scale", "k_scale",
    "v_scale", "o", "lse", "dq", "dk", "dv", "dbias", "dsink", "dqkv", "dkv"};

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count && names[i] != NULL; ++i)
        if (strcasecmp(name, names[i]) == 0) return true;
    return false;
}

enum part part_of(const char *name)
{
    for (int r = 0; r < PART_NUM; ++r)
        if (is_among(name, spellings[r], MOST)) return (enum part)r;
    return is_among(name, idle_names, sizeof idle_names / sizeof *idle_names) ? PART_IDLE : PART_NUM;
}

static const char *const keys[SETTING_NUM][8] = {
    [SETTING_SCALE] = {"softmax_scale", "scale", "sm_scale", "scaling", "attn_scale", "softmax_scaling"},
    [SETTING_CAUSAL] = {"causal", "is_causal"},
    [SETTING_WINDOW] = {"window", "window_size"},
    [SETTING_SLIDING] = {"sliding_window"},
    [SETTING_DIAG] = {"diag"},
    [SETTING_SOFTCAP] = {"softcap", "logits_soft_cap", "attn_logit_softcapping", "soft_cap"},
    [SETTING_ALIBI] = {"alibi"},
    [SETTING_LAYOUT] = {"layout", "qkv_layout", "qkv_format"},
    [SETTING_HEADS] = {"heads", "num_heads", "num_attention_heads", "num_heads_q"},
    [SETTING_HEADS_KV] = {"heads_kv", "num_key_value_heads", "num_kv_heads", "num_heads_kv"},
    [SETTING_BLOCK] = {"block", "block_size", "BLOCK_SIZE"},
    [SETTING_DROPOUT] = {"dropout_p", "dropout", "p_dropout"},
    [SETTING_DROPOUT_SEED] = {"dropout_seed"},
    [SETTING_DROPOUT_OFFSET] = {"dropout_offset"},
    [SETTING_FAMILY] = {"family"},
};

enum setting setting_of(const char *key)
{
    for (int s = 0; s < SETTING_NUM; ++s)
        if (is_among(key, keys[s], 8)) return (enum setting)s;
    return SETTING_NUM;
}

bool key_is_idle(const char *key)
{
    static const char *const idle[] = {
        "format", "implementation", "inputs", "source", "producer", "created", "created_by", "date", "time", "torch",
        "torch_version", "numpy", "cuda", "cudnn", "gpu", "device", "device_name", "host", "driver", "seed", "model",
        "layer", "layer_idx", "step", "name", "description", "comment", "note", "notes", "license", "url", "version",
        "library", "backend", "commit", "hash", "dtype", "batch_size", "batch", "head_dim", "seqlen", "seqlen_q",
        "seqlen_k", "max_seqlen_q", "max_seqlen_k", "deterministic", "training", "requires_grad", "prompt"};
    return is_among(key, idle, sizeof idle / sizeof *idle);
}
