"""Attention over short sequences in Triton: a program for each head, which has the whole sequence in one tile.

What a good kernel made for these shapes alone reaches: no mask, and seqlens and head_dim are powers of two. p is made
again from the scores and lse, delta from p and dp, so that o is not read again."""

import torch
import triton
import triton.language as tl


@triton.jit
def tile(pointer, head, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Addresses of a head's [ROWS][DIM] numbers."""
    return pointer + head * ROWS * DIM + tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, DIM)[None, :]


@triton.jit
def forward_kernel(q, k, v, o, lse, scale, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    s = tl.dot(tl.load(tile(q, head, M, DIM)), tl.trans(tl.load(tile(k, head, N, DIM)))) * scale
    most = tl.max(s, 1)
    p = tl.exp(s - most[:, None])
    total = tl.sum(p, 1)
    mean = tl.dot(p.to(v.dtype.element_ty), tl.load(tile(v, head, N, DIM))) / total[:, None]
    tl.store(tile(o, head, M, DIM), mean.to(o.dtype.element_ty))
    tl.store(lse + head * M + tl.arange(0, M), most + tl.log(total))


@triton.jit
def backward_kernel(q, k, v, lse, dout, dq, dk, dv, scale, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    q_tile = tl.load(tile(q, head, M, DIM))
    k_tile = tl.load(tile(k, head, N, DIM))
    dout_tile = tl.load(tile(dout, head, M, DIM))
    row_lse = tl.load(lse + head * M + tl.arange(0, M))
    p = tl.exp(tl.dot(q_tile, tl.trans(k_tile)) * scale - row_lse[:, None])
    tl.store(tile(dv, head, N, DIM), tl.dot(tl.trans(p.to(v.dtype.element_ty)), dout_tile).to(dv.dtype.element_ty))
    dp = tl.dot(dout_tile, tl.trans(tl.load(tile(v, head, N, DIM))))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(k.dtype.element_ty)
    tl.store(tile(dq, head, M, DIM), tl.dot(ds, k_tile).to(dq.dtype.element_ty))
    tl.store(tile(dk, head, N, DIM), tl.dot(tl.trans(ds), q_tile).to(dk.dtype.element_ty))


# One query: no matrices, so products and sums. M is 1; it is there for the callers' sake.


@triton.jit
def row(pointer, head, DIM: tl.constexpr):
    return pointer + head * DIM + tl.arange(0, DIM)


@triton.jit
def forward_one_kernel(q, k, v, o, lse, scale, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    query = tl.load(row(q, head, DIM)).to(tl.float32)
    s = tl.sum(tl.load(tile(k, head, N, DIM)).to(tl.float32) * query[None, :], 1) * scale
    most = tl.max(s, 0)
    p = tl.exp(s - most)
    total = tl.sum(p, 0)
    mean = tl.sum(tl.load(tile(v, head, N, DIM)).to(tl.float32) * p[:, None], 0) / total
    tl.store(row(o, head, DIM), mean.to(o.dtype.element_ty))
    tl.store(lse + head, most + tl.log(total))


@triton.jit
def backward_one_kernel(q, k, v, lse, dout, dq, dk, dv, scale, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    query = tl.load(row(q, head, DIM)).to(tl.float32)
    k_tile = tl.load(tile(k, head, N, DIM)).to(tl.float32)
    dout_row = tl.load(row(dout, head, DIM)).to(tl.float32)
    p = tl.exp(tl.sum(k_tile * query[None, :], 1) * scale - tl.load(lse + head))
    dp = tl.sum(tl.load(tile(v, head, N, DIM)).to(tl.float32) * dout_row[None, :], 1)
    ds = p * (dp - tl.sum(p * dp, 0)) * scale
    tl.store(tile(dv, head, N, DIM), (p[:, None] * dout_row[None, :]).to(dv.dtype.element_ty))
    tl.store(tile(dk, head, N, DIM), (ds[:, None] * query[None, :]).to(dk.dtype.element_ty))
    tl.store(row(dq, head, DIM), tl.sum(k_tile * ds[:, None], 0).to(dq.dtype.element_ty))


def launch(kernels, q, k, *others):
    """The kernel for many queries or for one, over all heads. All tensors are packed."""
    batch, heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    many, one = kernels
    # So many warps that registers suffice, where they can: for sm_90.
    kernel, warps = (many, seqlen_k // 16) if seqlen_q > 1 else (one, max(1, seqlen_k * head_dim // 2048))
    kernel[(batch * heads,)](q, k, *others, head_dim**-0.5, M=seqlen_q, N=seqlen_k, DIM=head_dim, num_warps=warps)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        launch((forward_kernel, forward_one_kernel), q, k, v, o, lse)
        ctx.save_for_backward(q, k, v, lse)
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, lse = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        launch((backward_kernel, backward_one_kernel), q, k, v, lse, dout.contiguous(), *gradients)
        return tuple(gradients)


attention = Attention.apply
