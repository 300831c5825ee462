"""attest as PyTorch custom operators with gradients, and the calls of PyTorch and flash-attn in their conventions."""

import math

import torch

from . import _run
from ._abi import Invalid, Unsupported

# Arguments of attest::forward in order. What attention() takes becomes these, which torch.compile can trace.
_TENSORS = ("bias", "mask", "block_mask", "sink", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
            "seqused_k", "dropout_seed", "dropout_offset")
_SCALARS = {"layout": "str", "scale": "float", "window_left": "int", "window_right": "int", "diag_kind": "str",
            "diag": "int", "softcap": "float", "alibi_diag_kind": "str", "alibi_diag": "int", "block_q": "int",
            "block_k": "int", "max_seqlen_q": "int", "max_seqlen_k": "int", "q_start": "int", "k_start": "int",
            "dropout_p": "float", "device": "str"}
_NAMES = ("q", "k", "v", *_TENSORS, *_SCALARS)
_SCHEMA = ", ".join(["Tensor q", "Tensor k", "Tensor v", *(f"Tensor? {n}" for n in _TENSORS),
                     *(f"{t} {n}" for n, t in _SCALARS.items())])


def _how(args):
    """The keywords of _run.forward and _run.backward, from an operator's arguments behind q, k and v."""
    x = dict(zip(_NAMES[3:], args))
    for name in ("dropout_seed", "dropout_offset"):
        x[name] = 0 if x[name] is None else x[name]
    x["window"] = (x.pop("window_left"), x.pop("window_right"))
    for name in ("diag", "alibi_diag"):
        kind, value = x.pop(name + "_kind"), x.pop(name)
        x[name] = value if kind == "given" else kind or None
    block_q, block_k = x.pop("block_q"), x.pop("block_k")
    x["block_size"] = (block_q, block_k) if block_q or block_k else None
    if x["cu_seqlens_q"] is None:
        del x["max_seqlen_q"], x["max_seqlen_k"]
    x["device"] = x["device"] or None
    return x


@torch.library.custom_op("attest::forward", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _forward(q, k, v, *args):
    return _run.forward(q, k, v, **_how(args))


def _lse_shape(q, layout, ragged):
    n = dict(zip(layout.replace("t", "s"), q.shape))
    return (n["h"], n["s"]) if ragged else (n["b"], n["h"], n["s"])


@_forward.register_fake
def _(q, k, v, *args):
    x = dict(zip(_NAMES[3:], args))
    o = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return o, q.new_empty(_lse_shape(q, x["layout"], x["cu_seqlens_q"] is not None), dtype=torch.float32)


@torch.library.custom_op(
    "attest::backward", mutates_args=(),
    schema=f"(Tensor dout, Tensor? dlse, Tensor o, Tensor lse, bool dbias, bool dsink, {_SCHEMA}) -> "
           "(Tensor, Tensor, Tensor, Tensor, Tensor)")
def _backward(dout, dlse, o, lse, dbias, dsink, q, k, v, *args):
    made = _run.backward(dout, q, k, v, o, lse, dlse=dlse, dbias=dbias, dsink=dsink, **_how(args))
    return tuple(q.new_empty(0, dtype=torch.float32) if x is None else x for x in made)


@_backward.register_fake
def _(dout, dlse, o, lse, dbias, dsink, q, k, v, *args):
    x = dict(zip(_NAMES[3:], args))
    none = q.new_empty(0, dtype=torch.float32)
    return (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape),
            torch.empty(x["bias"].shape, dtype=x["bias"].dtype, device=q.device) if dbias else none,
            torch.empty(x["sink"].shape, dtype=torch.float32, device=q.device) if dsink else torch.empty_like(none))


def _setup(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    tensors, ctx.scalars = inputs[:3 + len(_TENSORS)], inputs[3 + len(_TENSORS):]
    ctx.save_for_backward(*output, *tensors)


def _unit(x):
    """What autograd hands over may be one number spread out; the library wants features side by side."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _gradients(ctx, dout, dlse):
    o, lse, q, k, v, *tensors = ctx.saved_tensors
    needed = dict(zip(_NAMES, ctx.needs_input_grad))
    if dout is None and dlse is None:
        return (None,) * len(_NAMES)
    dout = torch.zeros_like(o) if dout is None else _unit(dout)
    dq, dk, dv, dbias, dsink = _backward(dout, dlse, o, lse, needed["bias"], needed["sink"], q, k, v, *tensors,
                                         *ctx.scalars)
    given = {"q": dq, "k": dk, "v": dv, "bias": dbias if needed["bias"] else None,
             "sink": dsink if needed["sink"] else None}
    return tuple(given.get(n) for n in _NAMES)


_forward.register_autograd(_gradients, setup_context=_setup)


def _diagonal(diag):
    return ("", 0) if diag is None else (diag, 0) if isinstance(diag, str) else ("given", diag)


def attention(q, k, v, *, layout=None, scale=None, causal=False, window=(-1, -1), diag=None, softcap=0.0, bias=None,
              mask=None, block_mask=None, block_size=None, sink=None, alibi_slopes=None, alibi_diag=None,
              cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None,
              seqused_k=None, q_start=0, k_start=0, dropout_p=0.0, dropout_seed=None, dropout_offset=None, device=None):
    """o and lse, with gradients of q, k, v, bias and sink. dropout_seed and dropout_offset are tensors of one int64."""
    left, right = (-1 if side is None else side for side in window)
    if causal and right > 0:
        raise Invalid(f"window is {tuple(window)}, but must have 0 or -1 at the right where causal is True")
    if isinstance(layout, dict):
        raise Invalid("layout is a dict, but must be a str: all of q, k, v and o have it")
    if dropout_p > 0 and dropout_seed is None:
        raise Invalid("dropout_seed is None, but must be given where dropout_p > 0: a tensor of one int64")
    ragged = cu_seqlens_q is not None
    if ragged and (max_seqlen_q is None or max_seqlen_k is None):
        raise Invalid(
            f"max_seqlen_{'q' if max_seqlen_q is None else 'k'} is None, but must be given beside cu_seqlens_q")
    block_q, block_k = block_size or (0, 0)
    scalars = (layout or ("shd" if ragged else "bhsd"), 1 / math.sqrt(q.shape[-1]) if scale is None else scale, left,
               0 if causal else right, *_diagonal(diag), softcap or 0.0, *_diagonal(alibi_diag), block_q, block_k,
               max_seqlen_q or 0, max_seqlen_k or 0, q_start, k_start, dropout_p, device or "")
    return _forward(q, k, v, bias, mask, block_mask, sink, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q,
                    seqused_k, dropout_seed, dropout_offset, *scalars)


def _seed(q, dropout_p):
    return torch.randint(0, 2**62, (1,), device=q.device) if dropout_p > 0 else None


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """torch.nn.functional's call: [batch, heads, rows, features], causal from the top left, True in a mask is visible.
    A row that sees no key is 0."""
    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(1)
        return scaled_dot_product_attention(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), mask, dropout_p,
                                            is_causal, scale, enable_gqa).squeeze(1)
    if is_causal and attn_mask is not None:
        raise Invalid("attn_mask is given, but must be None where is_causal is True")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise Invalid(
            f"query has {query.shape[1]} heads and key {key.shape[1]}, but they must be as many: enable_gqa is False")
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    return attention(query, key, value, scale=scale, causal=is_causal, diag="top-left",
                     mask=attn_mask if boolean else None, bias=None if boolean else attn_mask, dropout_p=dropout_p,
                     dropout_seed=_seed(query, dropout_p))[0]


def _flash(q, k, v, layout, dropout_p, softmax_scale, causal,
           window_size, softcap, alibi_slopes, return_attn_probs, **more):
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        raise Unsupported(f"alibi_slopes has {alibi_slopes.dim()} axes, but this build only knows one: (heads,)")
    left, right = window_size
    window = (left, -1 if causal else right)
    o, lse = attention(q, k, v, layout=layout, scale=softmax_scale, causal=causal, window=window,
                       diag="bottom-right", softcap=softcap, alibi_slopes=alibi_slopes, dropout_p=dropout_p,
                       dropout_seed=_seed(q, dropout_p), **more)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash-attn's call: [batch, rows, heads, features], causal from the bottom right. It always is deterministic. With
    return_attn_probs it returns (out, softmax_lse, None)."""
    return _flash(q, k, v, "bshd", dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                  return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """flash-attn's call for ragged batches: [rows, heads, features]; softmax_lse is [heads, rows]."""
    if block_table is not None:
        raise Unsupported("block_table is given, but this build only knows None: keys and values are not paged")
    return _flash(q, k, v, "shd", dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                  return_attn_probs, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                  max_seqlen_k=max_seqlen_k)
