"""with attest_attention.watch(model) as seen: model(x).sum().backward()    audits every attention call in there.

scaled_dot_product_attention, flash_attn_func and flash_attn_varlen_func are replaced, wherever they were imported to,
until the block ends. What torch.compile compiled before is not seen."""

import inspect
import sys
import threading
from dataclasses import dataclass, field

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ._abi import Error
from ._audit import audit


@dataclass
class Call:
    """One call: where it was made, and its Report, or why there is none."""

    layer: str
    function: str
    report: object = None
    skipped: str = ""
    tensors: dict = field(default_factory=dict, repr=False)  # what is judged, until it is
    how: dict = field(default_factory=dict, repr=False)
    versions: dict = field(default_factory=dict, repr=False)
    awaited: set = field(default_factory=set, repr=False)  # gradients on their way

    @property
    def passed(self):
        return self.report is not None and self.report.passed


def _sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The arguments of an audit of this call."""
    how = {"layout": "bhsd", "scale": scale, "causal": is_causal, "diag": "top-left"}
    if attn_mask is not None:
        how["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask.detach()
    return query, key, value, how, dropout_p


def _flash(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
           alibi_slopes=None, deterministic=False, return_attn_probs=False):
    left, right = window_size
    how = {"layout": "bshd", "scale": softmax_scale, "causal": causal, "window": (left, -1 if causal else right),
           "diag": "bottom-right", "softcap": softcap, "alibi_slopes": alibi_slopes}
    return q, k, v, how, dropout_p


def _flash_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                  causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                  return_attn_probs=False, block_table=None):
    if block_table is not None:
        raise NotImplementedError("its keys are paged")
    q, k, v, how, dropout_p = _flash(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    how.update(layout="shd", cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=int(max_seqlen_q),
               max_seqlen_k=int(max_seqlen_k))
    return q, k, v, how, dropout_p


# The module that each function is of, and who reads its arguments.
_WATCHED = {"scaled_dot_product_attention": ("torch.nn.functional", _sdpa), "flash_attn_func": ("flash_attn", _flash),
            "flash_attn_varlen_func": ("flash_attn", _flash_varlen)}


def _as_computed(x):
    """x as the function under it took it: autocast rounds it first."""
    if torch.is_autocast_enabled(x.device.type) and x.is_floating_point():
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def _judgeable(x, four_axes):
    """Detached, features side by side, [batch, heads, ...] where heads were left out."""
    x = x.detach()
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x.unsqueeze(1) if four_axes and x.dim() == 3 else x


class Watch:
    """sample: pairs of a sequence and a KV head that are judged of each call, drawn from seed (None: all). every: judge
    one of so many calls. model: its names for layers are used. At the end a table is printed, unless quiet."""

    def __init__(self, model=None, *, sample=1, seed=0, every=1, recipe="flash", statistical=True, quiet=False):
        self.names = {id(m): name for name, m in model.named_modules()} if model is not None else {}
        self.options = {"sample": sample, "recipe": recipe, "statistical": statistical}
        self.seed, self.every, self.quiet = seed, every, quiet
        self.calls, self.count, self.stack, self.undo = [], 0, [], []

    # ---- seeing calls ----

    def __enter__(self):
        self.undo = [register_module_forward_pre_hook(lambda m, _: self.stack.append(m)).remove,
                     register_module_forward_hook(lambda m, i, o: self.stack.pop() and None, always_call=True).remove]
        for name, (module, _) in _WATCHED.items():
            original = getattr(sys.modules.get(module), name, None)
            if original is not None:
                self._replace(name, original)
        return self

    def _replace(self, name, original):
        inside = threading.local()  # a mode such as torch.device() looks PyTorch's function up again, and finds seen()

        def seen(*args, **kwargs):
            if getattr(inside, "yes", False):
                return original(*args, **kwargs)
            inside.yes = True
            try:
                return self._call(name, original, args, kwargs)
            finally:
                inside.yes = False
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, seen)
                self.undo.append(lambda module=module: setattr(module, name, original))

    def __exit__(self, *exception):
        for step in self.undo:
            step()
        for call in self.calls:
            self._judge(call)  # of those whose gradients nobody asked for, the forward pass
        if not self.quiet and exception[0] is None:
            print(self.table())

    def _layer(self):
        if not self.stack:
            return ""
        return self.names.get(id(self.stack[-1])) or type(self.stack[-1]).__name__

    # ---- one call ----

    def _call(self, name, function, args, kwargs):
        self.count += 1
        if (self.count - 1) % self.every:
            return function(*args, **kwargs)
        call = Call(self._layer(), name)
        self.calls.append(call)
        try:
            read = _WATCHED[name][1]
            bound = inspect.signature(read).bind(*args, **kwargs)
            *qkv, how, dropout_p = read(**bound.arguments)
        except (TypeError, NotImplementedError) as why:
            call.skipped = f"not judged: {why}"
            return function(*args, **kwargs)
        if dropout_p > 0:
            call.skipped = "not judged: which scores dropout took away is not known"
            return function(*args, **kwargs)
        # Aliases, so that a gradient is that of this call alone, whoever else uses the tensor.
        aliases = [x.view_as(x) if torch.is_grad_enabled() and x.requires_grad else x for x in qkv]
        args, names = [*aliases[:len(args)], *args[3:]], list(bound.arguments)[:3]
        result = function(*args, **{**kwargs, **{n: x for n, x in zip(names, aliases) if n in kwargs}})
        self._note(call, aliases, result, how)
        return result

    def _note(self, call, qkv, result, how):
        out = result[0] if isinstance(result, tuple) else result
        four_axes = call.function == "scaled_dot_product_attention"
        mask = how.get("mask", how.get("bias"))
        if four_axes and qkv[0].dim() == 3 and mask is not None and mask.dim() == 3:
            how["mask" if "mask" in how else "bias"] = mask.unsqueeze(1)
        if "bias" in how:
            how["bias"] = _as_computed(how["bias"])
        call.how = how
        given = dict(zip("qkv", map(_as_computed, qkv)), o=out)
        if isinstance(result, tuple):
            given["lse"] = result[1]
        call.versions = {n: (x, x._version) for n, x in given.items()}
        call.tensors = {n: _judgeable(x, four_axes and n != "lse") for n, x in given.items()}
        if not out.requires_grad:
            return self._judge(call)
        sources = {"dout": out, **{"d" + n: x for n, x in zip("qkv", qkv) if x.requires_grad}}
        call.awaited = set(sources)
        for name, x in sources.items():
            x.register_hook(lambda g, name=name: self._gradient(call, name, g, four_axes))
        return None

    def _gradient(self, call, name, gradient, four_axes):
        if name not in call.awaited:
            call.skipped = call.skipped or "not judged: its gradients were asked for twice"
            return
        rounded = gradient.to(call.tensors["q"].dtype)  # autocast widens a gradient that was computed in 16 bits
        if torch.equal(rounded.to(gradient.dtype), gradient):
            gradient = rounded
        call.tensors[name] = _judgeable(gradient, four_axes)
        call.awaited.discard(name)
        if not call.awaited:
            self._judge(call)

    def _judge(self, call):
        if call.report is not None or call.skipped or not call.tensors:
            return
        changed = [n for n, (x, version) in call.versions.items() if x._version != version]
        tensors, how = call.tensors, call.how
        call.tensors, call.versions, call.how = {}, {}, {}
        if changed:
            call.skipped = f"not judged: {', '.join(changed)} was changed in place since"
            return
        if call.awaited:
            tensors = {n: x for n, x in tensors.items() if n in ("q", "k", "v", "o", "lse")}
        try:
            call.report = audit(**tensors, seed=self.seed + len(self.calls), **self.options, **how)
        except Error as why:
            call.skipped = f"not judged: {why}"

    # ---- what was seen ----

    @property
    def passed(self):
        """Whether something was judged and all of that passed."""
        judged = [c for c in self.calls if c.report is not None]
        return bool(judged) and all(c.passed for c in judged)

    def table(self):
        lines = [("layer", "function", "tensor", "share", "stat", "verdict")]
        for c in self.calls:
            if c.report is None:
                lines.append((c.layer, c.function, "", "", "", c.skipped or "not judged"))
            else:
                lines += [(c.layer, c.function, n, f"{t.share:.4g}", f"{t.stat:.3f}", t.verdict)
                          for n, t in c.report.tensors.items()]
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        text = ["  ".join([*(x.ljust(w) for x, w in zip(line, widths)), line[5]]).rstrip() for line in lines]
        text += [f"{c.layer}: {s}" for c in self.calls if c.report is not None for s in c.report.sentences()]
        return "\n".join(text)
