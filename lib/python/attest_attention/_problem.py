"""From arrays and keywords to attest's problem and arguments."""

import ctypes as C
import math

from . import _abi
from ._abi import Invalid
from ._arrays import CODES, FLOATS, typed

_SIDES = {"top-left": _abi.DIAG_TOP_LEFT, "bottom-right": _abi.DIAG_BOTTOM_RIGHT}
WIDE = ("float32", "float16", "bfloat16")
_OF_ROWS = ("lse", "dlse", "delta")
_OF_K = ("k", "v", "dk", "dv")
_DEVICES = {"cuda": _abi.CUDA, "sim": _abi.SIM, "reference": _abi.REFERENCE}


def _letters(name, layout, ragged, features):
    """What each axis is: b, s, h, d, as the layout says for all tensors, or for this one."""
    if isinstance(layout, dict):
        layout = layout.get(name, layout.get("", "shd" if ragged else "bhsd"))
    letters = layout.replace("t", "s")
    if not features and "d" in letters:
        letters = "hs" if ragged else "bhs"
    needed = ("" if ragged else "b") + "sh" + ("d" if features else "")
    if sorted(letters) != sorted(needed):
        raise Invalid(f"layout of {name} is {layout!r}, but must have each of {', '.join(needed)} once")
    return letters


class Call:
    """One problem with its arguments, and what keeps their memory alive."""

    def __init__(self, q, k, v, *, layout=None, scale=None, causal=False, window=(-1, -1), diag=None, softcap=0.0,
                 bias=None, mask=None, block_mask=None, block_size=None, sink=None, alibi_slopes=None, alibi_diag=None,
                 cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None,
                 seqused_k=None, q_start=0, k_start=0, dropout_p=0.0, dropout_seed=0, dropout_offset=0,
                 device=None):
        self.p = _abi.start(_abi.Problem, _abi.lib.attest_problem_init)
        self.a = _abi.start(_abi.BackwardArgs, _abi.lib.attest_backward_args_init)
        self.keep, self.place_of_all = [], None
        self.ragged = cu_seqlens_q is not None
        self.layout = layout if layout is not None else ("shd" if self.ragged else "bhsd")
        self.p.ragged = self.ragged
        self._shapes(q, k, v)
        if cu_seqlens_k is not None and not self.ragged:
            raise Invalid("cu_seqlens_q is None, but must be given beside cu_seqlens_k")
        if self.ragged:
            self._sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        self._device(device)
        self._scores(scale, causal, window, diag, softcap, alibi_slopes, alibi_diag, sink)
        for name, x, dtypes in (("bias", bias, ("float32", self.q.dtype)), ("mask", mask, ("bool", "uint8"))):
            if x is not None:
                self.over_scores(name, x, dtypes)
        if block_mask is not None:
            self._block_mask(block_mask, block_size)
        for name, x in (("seqused_q", seqused_q), ("seqused_k", seqused_k)):
            if x is not None:
                setattr(self.p, "has_" + name, 1)
                self._vector(self.a.forward, name, x, ("int32",), self.p.batch)
        p = self.p
        p.q_start, p.k_start = q_start, k_start
        p.dropout_p = dropout_p
        for name, x in (("dropout_seed", dropout_seed), ("dropout_offset", dropout_offset)):
            if isinstance(x, int):
                setattr(p, name, x)
            else:
                self._vector(self.a.forward, name, x, ("int64", "uint64"), 1)

    # ---- tensors ----

    def take(self, x):
        """Keeps x, which must be where everything else is."""
        if self.place_of_all is None:
            self.place_of_all = x.device
        if x.device != self.place_of_all:
            raise Invalid(f"{x.name} is on device {x.device}, but must be on {self.place_of_all}, where q is")
        self.keep.append(x)
        return x

    def rows(self, name, x, dtypes, expected=None):
        """A tensor of rows: its layout to the problem; its sizes by letter come back."""
        a = self.take(typed(name, x, dtypes))
        letters, features = self.letters(name), name not in _OF_ROWS
        if len(a.shape) != len(letters):
            raise Invalid(f"{name} has shape {a.shape}, but must have {len(letters)} axes: {', '.join(letters)}")
        sizes, strides = dict(zip(letters, a.shape)), dict(zip(letters, a.strides))
        if expected is not None and any(sizes[axis] != expected[axis] for axis in sizes):
            wanted = tuple(expected[axis] for axis in letters)
            raise Invalid(f"{name} has shape {a.shape}, but must have {wanted}: {', '.join(letters)}")
        if features and strides["d"] != 1 and sizes["d"] > 1:
            raise Invalid(f"{name} has a stride of {strides['d']} between features, but must have 1")
        setattr(self.p, name, _abi.Tensor(CODES[a.dtype], 0, strides.get("b", 0), strides["s"], strides["h"]))
        return a, sizes

    def _shapes(self, q, k, v):
        p, f = self.p, self.a.forward
        self.q, n = self.rows("q", q, FLOATS)
        self.k, m = self.rows("k", k, (self.q.dtype,))
        if not self.ragged:
            p.batch = n["b"]
        p.seqlen_q, p.seqlen_k = n["s"], m["s"]
        p.num_heads_q, p.num_heads_kv, p.head_dim = n["h"], m["h"], n["d"]
        if m["d"] != n["d"] or m.get("b") != n.get("b"):
            raise Invalid(f"k has shape {self.k.shape}, but must have the batch and the features of q, {self.q.shape}")
        if m["h"] == 0 or n["h"] % m["h"]:
            raise Invalid(f"q has {n['h']} heads, but must have a multiple of k's, {m['h']}")
        self.v, w = self.rows("v", v, (self.q.dtype,))
        if any(w[axis] != m[axis] for axis in w if axis != "d"):
            raise Invalid(f"v has shape {self.v.shape}, but must have the batch, rows and heads of k, {self.k.shape}")
        p.head_dim_v = w["d"]
        f.q, f.k, f.v = self.q.pointer, self.k.pointer, self.v.pointer

    def sizes(self, name):
        """Of a tensor by letter."""
        p, of_k = self.p, name in _OF_K
        s = (p.total_k if of_k else p.total_q) if self.ragged else (p.seqlen_k if of_k else p.seqlen_q)
        d = p.head_dim_v if name in ("v", "dv", "o", "dout") else p.head_dim
        return {"b": p.batch, "s": s, "h": p.num_heads_kv if of_k else p.num_heads_q, "d": d}

    def letters(self, name):
        return _letters(name, self.layout, self.ragged, name not in _OF_ROWS)

    def shape(self, name):
        letters = self.letters(name)
        sizes = self.sizes(name)
        return tuple(sizes[axis] for axis in letters)

    def place(self, name, x):
        """One of o, lse, dout, dlse, delta, dq, dk, dv, dbias, dsink."""
        if name == "dsink":
            self._vector(self.a, "dsink", x, ("float32",), self.p.num_heads_q)
        elif name == "dbias":
            self._dbias(x)
        else:
            a, _ = self.rows(name, x, ("float32",) if name in _OF_ROWS else WIDE, self.sizes(name))
            setattr(self.a.forward if name in ("o", "lse") else self.a, name, a.pointer)

    # ---- everything else ----

    def _vector(self, struct, name, x, dtypes, count):
        a = self.take(typed(name, x, dtypes))
        if a.shape != (count,) or (count > 1 and a.strides != (1,)):
            raise Invalid(f"{name} has shape {a.shape} and strides {a.strides}, but must have ({count},), packed")
        setattr(struct, name, a.pointer)
        return a

    def _sequences(self, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        p, f = self.p, self.a.forward
        p.total_q, p.total_k = p.seqlen_q, p.seqlen_k
        for side, x, most in (("q", cu_seqlens_q, max_seqlen_q), ("k", cu_seqlens_k, max_seqlen_k)):
            name = "cu_seqlens_" + side
            if x is None:
                raise Invalid(f"{name} is None, but must be given beside cu_seqlens_q")
            starts = typed(name, x, ("int32",))
            if len(starts.shape) != 1 or starts.shape[0] < 1:
                raise Invalid(f"{name} has shape {starts.shape}, but must have (batch + 1,)")
            if side == "k" and starts.shape[0] != p.batch + 1:
                raise Invalid(
                    f"cu_seqlens_k has {starts.shape[0]} numbers, but must have {p.batch + 1}, as cu_seqlens_q")
            p.batch = starts.shape[0] - 1
            self._vector(f, name, starts, ("int32",), p.batch + 1)
            if most is None:
                most = self._longest(starts)
            setattr(p, "seqlen_" + side, most)

    def _longest(self, starts):
        if starts.device != "cpu":
            raise Invalid(f"max_seqlen_{starts.name[-1]} is None, but must be given where {starts.name} is on a GPU")
        numbers = (C.c_int32 * starts.shape[0]).from_address(starts.pointer)
        return max((b - a for a, b in zip(numbers, numbers[1:])), default=0)

    def _device(self, device):
        on_gpu = self.place_of_all != "cpu"
        device = device or ("cuda" if on_gpu else "reference")
        if device not in _DEVICES:
            raise Invalid(f"device is {device!r}, but must be one of {', '.join(_DEVICES)}")
        if on_gpu != (device == "cuda"):
            wanted = "a GPU" if device == "cuda" else "the CPU"
            raise Invalid(f"q is on device {self.place_of_all}, but must be on {wanted} "
                          f"for device={device!r}")
        self.p.device = _DEVICES[device]
        if on_gpu:
            if not isinstance(self.place_of_all, int):
                raise Invalid(f"q is on device {self.place_of_all}, but must be on a CPU or a CUDA GPU")
            self.p.device_ordinal = self.place_of_all

    def _scores(self, scale, causal, window, diag, softcap, alibi_slopes, alibi_diag, sink):
        p, f = self.p, self.a.forward
        p.softmax_scale = 1 / math.sqrt(p.head_dim) if scale is None else scale
        p.softcap = softcap or 0.0
        left, right = (-1 if side is None else side for side in window)
        if causal and right > 0:
            raise Invalid(f"window is {tuple(window)}, but must have 0 or -1 at the right where causal is True")
        p.window_left, p.window_right = left, 0 if causal else right
        p.diag_kind, p.diag = self._diagonal("diag", diag)
        bounded = p.window_left >= 0 or p.window_right >= 0
        if bounded and diag is None and (self.ragged or p.seqlen_q != p.seqlen_k):
            raise Invalid("diag is None, but must be 'top-left' (as PyTorch's is_causal), 'bottom-right' (as "
                          "flash-attn) or a number: a window is bounded and q and k may differ in length")
        if alibi_slopes is not None:
            p.has_alibi = 1
            self._vector(f, "alibi_slopes", alibi_slopes, ("float32",), p.num_heads_q)
        p.alibi_diag_kind, p.alibi_diag = self._diagonal("alibi_diag", alibi_diag)
        if sink is not None:
            p.has_sink = 1
            self._vector(f, "sink", sink, ("float32",), p.num_heads_q)

    @staticmethod
    def _diagonal(name, diag):
        if diag is None or isinstance(diag, str):
            if diag is not None and diag not in _SIDES:
                raise Invalid(f"{name} is {diag!r}, but must be one of {', '.join(_SIDES)} or a number")
            return _SIDES.get(diag, _abi.DIAG_UNSET), 0
        return _abi.DIAG_GIVEN, int(diag)

    def over_scores(self, name, x, dtypes, rows=None, columns=None):
        """bias, mask, block_mask: whatever broadcasts to [batch, heads, rows, columns]."""
        p = self.p
        a = self.take(typed(name, x, dtypes))
        whole = (p.batch, p.num_heads_q, p.seqlen_q if rows is None else rows,
                 p.seqlen_k if columns is None else columns)
        if len(a.shape) > 4 or any(n not in (1, m) for n, m in zip(reversed(a.shape), reversed(whole))):
            raise Invalid(f"{name} has shape {a.shape}, but must broadcast to {whole}: batch, heads, rows, columns")
        strides = [0] * (4 - len(a.shape)) + [s if n > 1 else 0 for n, s in zip(a.shape, a.strides)]
        setattr(p, name, _abi.ScoreTensor(CODES[a.dtype], 0, *strides))
        setattr(self.a if name == "dbias" else self.a.forward, name, a.pointer)
        return a

    def _block_mask(self, x, block_size):
        if block_size is None or min(block_size) < 1:
            raise Invalid(f"block_size is {block_size}, but must be (rows, columns) of a block, each at least 1, where "
                          "block_mask is given")
        self.p.block_q, self.p.block_k = block_size
        self.over_scores("block_mask", x, ("bool", "uint8"), -(-self.p.seqlen_q // block_size[0]),
                         -(-self.p.seqlen_k // block_size[1]))

    def _dbias(self, x):
        if self.p.bias.dtype == _abi.ABSENT:
            raise Invalid("dbias is given, but must not be where bias is not")
        self.over_scores("dbias", x, ("float32", self.q.dtype))

    def needs(self, *names):
        """So that a caller hears of what is missing in its own terms."""
        for name in names:
            if getattr(self.p, name).dtype == _abi.ABSENT:
                raise Invalid(f"{name} is None, but must be given: a backward pass reads it")
