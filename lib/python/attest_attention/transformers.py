"""attn_implementation="attest" for Hugging Face's transformers: import this module, then load a model with it."""

from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from .torch_ops import _seed, attention


def attest_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, s_aux=None,
                     is_causal=None, **_):
    """[batch, heads, rows, features] in, [batch, rows, heads, features] and no weights out. A sliding window is in the
    mask that transformers makes for SDPA."""
    causal = module.is_causal if is_causal is None else is_causal
    causal = causal and attention_mask is None and query.shape[2] > 1
    boolean = attention_mask is not None and not attention_mask.is_floating_point()
    o, _ = attention(query, key, value, scale=scaling, causal=causal, diag="top-left", softcap=softcap or 0.0,
                     mask=attention_mask if boolean else None, bias=None if boolean else attention_mask,
                     sink=None if s_aux is None else s_aux.float(), dropout_p=dropout,
                     dropout_seed=_seed(query, dropout))
    return o.transpose(1, 2), None


AttentionInterface.register("attest", attest_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register("attest", sdpa_mask)
