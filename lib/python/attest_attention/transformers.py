"""attn_implementation="attest" for Hugging Face's transformers: import this module, then load a model with it."""

from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from ._abi import Invalid
from .torch_ops import _seed, attention


def _mask_and_bias(attention_mask, position_bias):
    """attention() takes both; of numbers that are added to scores there may be two tensors."""
    if attention_mask is None or not attention_mask.is_floating_point():
        return attention_mask, position_bias
    return None, attention_mask if position_bias is None else attention_mask + position_bias


def attest_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, s_aux=None,
                     is_causal=None, position_bias=None, head_mask=None, **_):
    """[batch, heads, rows, features] in, [batch, rows, heads, features] and no weights out, as sdpa_attention_forward
    has it. A sliding window is in the mask that transformers makes for SDPA."""
    if head_mask is not None:
        raise Invalid("head_mask is given, but must be None: weights are not multiplied")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal and attention_mask is None and query.shape[2] > 1)
    mask, bias = _mask_and_bias(attention_mask, position_bias)
    o, _ = attention(query, key, value, scale=scaling, causal=causal, diag="top-left", softcap=softcap or 0.0,
                     mask=mask, bias=bias, sink=None if s_aux is None else s_aux.float(), dropout_p=dropout,
                     dropout_seed=_seed(query, dropout))
    return o.transpose(1, 2).contiguous(), None


AttentionInterface.register("attest", attest_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register("attest", sdpa_mask)
