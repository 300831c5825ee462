"""PyTorch's FlexAttention, compiled for one shape: what users write where no backend takes their scores."""

import torch
import torch._dynamo
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tables import BLOCK, SOFTCAP


def score_function(shape, extra):
    """softcap, then bias, then ALiBi; None: scores stay as they are."""
    if not any(shape.has(feature) for feature in ("softcap", "bias", "alibi")):
        return None
    caps, diag = shape.has("softcap"), shape.seqlen_k - shape.seqlen_q
    bias, slopes = extra.get("bias"), extra.get("alibi_slopes")

    def score_mod(score, _, head, row, key):
        if caps:
            score = SOFTCAP * torch.tanh(score / SOFTCAP)
        if bias is not None:
            score = score + bias[0, head, row, key]
        if slopes is not None:
            score = score - slopes[head] * torch.abs(row + diag - key)
        return score
    return score_mod


def visible_function(shape, extra):
    """All that hides scores together; None: nothing does."""
    diag, left = shape.seqlen_k - shape.seqlen_q, shape.window
    mask, blocks, lengths = (extra.get(name) for name in ("mask", "block_mask", "seqused_k"))
    of_keys = shape.has("mask_k")
    parts = []
    if shape.causal:
        parts.append(lambda b, row, key: row + diag >= key)
    if left:
        parts.append(lambda b, row, key: row + diag - key <= left)
    if mask is not None:
        parts.append(lambda b, row, key: mask[b, 0, 0 if of_keys else row, key])
    if lengths is not None:
        parts.append(lambda b, row, key: key < lengths[b])
    if blocks is not None:
        parts.append(lambda b, row, key: blocks[0, 0, row // BLOCK, key // BLOCK])
    if not parts:
        return None

    def mask_mod(b, _, row, key):
        visible = parts[0](b, row, key)
        for part in parts[1:]:
            visible = visible & part(b, row, key)
        return visible
    return mask_mod


def attention(shape, extra, compiled=True):
    """A function of q, k, v. A sink is a factor of what comes out without it. Earlier compilations are dropped: past a
    few of the same function PyTorch gives up compiling."""
    if shape.has("dropout"):
        raise NotImplementedError("takes no dropout")
    mask_mod, mask = visible_function(shape, extra), None
    if mask_mod:
        batch = shape.batch if any(shape.has(feature) for feature in ("mask", "mask_k", "seqused")) else None
        mask = create_block_mask(mask_mod, batch, None, shape.seqlen_q, shape.seqlen_k, device=extra["q"].device)
    options = {"score_mod": score_function(shape, extra), "block_mask": mask, "enable_gqa": shape.kv != shape.heads}
    sink = extra.get("sink")

    def attend(q, k, v):
        if sink is None:
            return flex_attention(q, k, v, **options)
        o, lse = flex_attention(q, k, v, return_lse=True, **options)
        return (o * torch.sigmoid(lse - sink[None, :, None])[..., None]).to(o.dtype)

    if not compiled:
        return attend
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # the graph is kept for the next call
    return torch.compile(attend, dynamic=False, fullgraph=True)
