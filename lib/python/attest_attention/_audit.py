"""audit() and bounds(): attest_audit and attest_audit_bounds on arrays."""

import ctypes as C
import html
import math
import random
from dataclasses import dataclass, replace

import numpy as np

from . import _abi
from ._abi import AUDITED, Invalid, check, lib
from ._arrays import CODES, SIZES, on_host
from ._problem import WIDE, Call

ARRAYS = ("bias", "mask", "block_mask", "sink", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
          "seqused_k")
_SEVERITY = ("PASS", "VACUOUS", "OVERFLOW", "FAIL")
_BYTES = {_abi.FP32: 4, _abi.FP16: 2, _abi.BF16: 2, _abi.FP8_E4M3: 1, _abi.FP8_E5M2: 1, _abi.UINT8: 1}


@dataclass(frozen=True)
class TensorReport:
    """One tensor beside the exact result; the fields are those of struct attest_audit_report."""

    verdict: str
    count: int
    nan_count: int
    overflow_count: int
    max_error: float
    rmse: float
    relative_error: float
    mean_error: float
    share: float  # the largest |got - exact| / bound
    index: tuple  # where that is: b, row, head, x
    got: float
    exact: float
    bound: float
    rms_ratio: float
    mean_ratio: float
    shape_ratio: float
    rms_bound: float
    rms_exact: float
    sentence: str  # why it is not PASS

    @property
    def stat(self):
        """The largest of the three statistical ratios; above 1 fails."""
        return max(self.rms_ratio, self.mean_ratio, self.shape_ratio)


def _read(r):
    names = [f for f in TensorReport.__dataclass_fields__ if f not in ("verdict", "index", "sentence")]
    return TensorReport(verdict=lib.attest_verdict_name(r.verdict).decode(), index=tuple(r.index),
                        sentence=r.sentence.decode(), **{n: getattr(r, n) for n in names})


class Report:
    """What audit() found. `tensors`: a TensorReport for each result. `recipes`: the same for each recipe asked for."""

    _HEADER = (
    "tensor",
    "max error",
    "RMSE",
    "relative",
    "share",
    "b,row,head,x",
    "got",
    "exact",
    "stat",
    "NaN",
     "verdict")

    def __init__(self, recipe, recipes, note=""):
        self.recipe, self.recipes, self.note = recipe, recipes, note
        self.tensors = recipes[recipe]

    @property
    def passed(self):
        return all(t.verdict == "PASS" for t in self.tensors.values())

    def strictest(self, name):
        """The first recipe, of those asked for in the library's order, under which this tensor passes, or None."""
        passing = [r for r, t in self.recipes.items() if t[name].verdict == "PASS"]
        order = recipes()
        return min(passing, key=lambda r: order.index(r) if r in order else len(order), default=None)

    def _rows(self):
        for name, t in self.tensors.items():
            strictest = self.strictest(name)
            verdict = t.verdict + (f" {strictest}" if strictest and len(self.recipes) > 1 else "")
            yield (name, f"{t.max_error:.2e}", f"{t.rmse:.2e}", f"{t.relative_error:.2e}", f"{t.share:.4g}",
                   ",".join(map(str, t.index)), f"{t.got:.3e}", f"{t.exact:.3e}", f"{t.stat:.3f}", str(t.nan_count),
                   verdict)

    def sentences(self):
        return [f"{t.verdict}: {t.sentence}" for t in self.tensors.values() if t.sentence]

    def table(self):
        rows = [self._HEADER, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:-1], widths[1:-1])), row[-1]])
                 for row in rows]
        return "\n".join(lines + ([self.note] if self.note else []) + self.sentences())

    __str__ = table

    def __repr__(self):
        return f"<attest_attention.Report {' '.join(n + ':' + t.verdict for n, t in self.tensors.items())}>"

    def _repr_html_(self):
        cells = ["".join(f"<th>{html.escape(x)}</th>" for x in self._HEADER)]
        for row in self._rows():
            color = "#0a0" if row[-1].startswith("PASS") else "#c00"
            cells.append("".join(f"<td>{html.escape(x)}</td>" for x in row[:-1]) +
                         f"<td style='color:{color}'><b>{html.escape(row[-1])}</b></td>")
        text = [*([self.note] if self.note else []), *self.sentences()]
        return ("<table>" + "".join(f"<tr>{c}</tr>" for c in cells) + "</table>" +
                "".join(f"<p>{html.escape(x)}</p>" for x in text))


# ---- calls of the library ----

def recipes():
    """Names of the recipes that come with the library."""
    names, i = [], 0
    while lib.attest_recipe_at(i):
        names.append(lib.attest_recipe_at(i).contents.name.decode())
        i += 1
    return names


def _options(recipe, statistical, threads):
    o = _abi.start(_abi.Options, lib.attest_audit_options_init)
    o.statistical, o.threads = bool(statistical), threads
    o.recipe = lib.attest_recipe_named(recipe.encode())
    if not o.recipe:
        raise Invalid(f"recipe is {recipe!r}, but must be one of {', '.join(recipes())}, or a kernel of attest's")
    return o


def _host_call(q, k, v, how):
    if how.get("device") is not None:
        raise Invalid("device is given, but must not be: an audit runs on the host")
    how = {n: on_host(n, x) if n in ARRAYS and x is not None else x for n, x in how.items()}
    return Call(on_host("q", q), on_host("k", k), on_host("v", v), **how)


def _judge(p, a, options):
    found = (_abi.TensorReport * len(AUDITED))()
    check(lib.attest_audit(C.byref(p), C.byref(a), C.byref(options), found))
    return {n: _read(r) for n, r in zip(AUDITED, found) if r.verdict}


# ---- a part of a problem: one KV head, with its query heads, of one sequence ----

def _shift(struct, name, bytes_):
    pointer = getattr(struct, name)
    if pointer:
        setattr(struct, name, pointer + bytes_)


def _part(call, b, h_kv):
    """(problem, arguments, what keeps them alive). It is judged exactly as in the whole."""
    p, a = _abi.Problem.from_buffer_copy(call.p), _abi.BackwardArgs.from_buffer_copy(call.a)
    group = p.num_heads_q // p.num_heads_kv
    h = h_kv * group
    for name in ("q", "k", "v", "o", "lse", "dout", "dlse", "dq", "dk", "dv"):
        t, head = getattr(p, name), h_kv if name in ("k", "v", "dk", "dv") else h
        if t.dtype:
            elements = (0 if p.ragged else b * t.batch) + head * t.head
            _shift(a.forward if name in ("q", "k", "v", "o", "lse") else a, name, elements * _BYTES[t.dtype])
    for name in ("bias", "mask", "block_mask", "dbias"):
        t = getattr(p, name)
        if t.dtype:
            _shift(a if name == "dbias" else a.forward, name, (b * t.batch + h * t.head) * _BYTES[t.dtype])
    for name in ("alibi_slopes", "sink"):
        _shift(a.forward, name, 4 * h)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        _shift(a.forward, name, 4 * b)
    streams = (C.c_int64 * group)(*range(b * p.num_heads_q + h, b * p.num_heads_q + h + group))
    a.forward.dropout_stream = C.addressof(streams)
    if p.dbias.dtype and ((p.dbias.batch == 0 and p.batch > 1) or (p.dbias.head == 0 and p.num_heads_q > 1)):
        p.dbias.dtype, a.dbias = _abi.ABSENT, None  # a sum over parts that are not here
    if p.batch > 1:
        a.dsink = None
    _shift(a, "dsink", 4 * h)
    p.batch, p.num_heads_q, p.num_heads_kv = 1, group, 1
    return p, a, streams


def _in_whole(name, t, b, h_kv, group):
    """A part's report in the terms of the whole."""
    head = h_kv if name in ("dk", "dv") else h_kv * group
    index = (b + t.index[0], t.index[1], head + t.index[2], t.index[3])
    before, after = (f"{name}[{', '.join(map(str, i))}]" for i in (t.index, index))
    return replace(t, index=index, sentence=t.sentence.replace(before, after))


def _badness(t):
    return _SEVERITY.index(t.verdict), math.inf if math.isnan(t.share) else t.share, t.stat


def _sampled(call, options, pairs):
    """Of each tensor the report of the worst part; counts are of all parts."""
    worst, group = {}, call.p.num_heads_q // call.p.num_heads_kv
    for b, h_kv in pairs:
        p, a, streams = _part(call, b, h_kv)
        for name, t in _judge(p, a, options).items():
            t, old = _in_whole(name, t, b, h_kv, group), worst.get(name)
            if old is not None:
                counts = {n: getattr(t, n) + getattr(old, n) for n in ("count", "nan_count", "overflow_count")}
                t = replace(max((t, old), key=_badness), **counts)
            worst[name] = t
        del streams
    return {name: worst[name] for name in AUDITED if name in worst}


def audit(q, k, v, *, o=None, lse=None, dout=None, dlse=None, dq=None, dk=None, dv=None, dbias=None, dsink=None,
          recipe="flash", also=(), statistical=True, threads=0, sample=None, seed=0, **how):
    """Judges what an implementation returned, number by number, and returns a Report.

    q, k, v and `how` are what it was given, in the words of attention(); o, lse, dq, ... what it returned. Arrays may
    lie on a GPU: they are copied to the host. `recipe` says where it may round, `also` names more recipes to compare
    with. `statistical` judges root mean square, mean and shape of the errors, too, which is for inputs like normal ones
    or real activations. `sample` judges that many of the pairs of a sequence and a KV head, drawn from `seed`."""
    results = {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}
    results = {n: x for n, x in results.items() if x is not None}
    if not results:
        raise Invalid("o is None, and so are lse, dq, dk, dv, dbias and dsink, but one must be given: nothing to judge")
    call = _host_call(q, k, v, how)
    for name in results:
        if name not in ("o", "lse") and dout is None:
            raise Invalid(f"dout is None, but must be given: {name} cannot be judged without it")
    for name, x in (("dout", dout), ("dlse", dlse), *results.items()):
        if x is not None:
            call.place(name, on_host(name, x))
    p, note = call.p, ""
    if sample is not None and sample < p.batch * p.num_heads_kv:
        if sample < 1:
            raise Invalid(f"sample is {sample}, but must be at least 1")
        chosen = sorted(random.Random(seed).sample(range(p.batch * p.num_heads_kv), sample))
        pairs = [divmod(i, p.num_heads_kv) for i in chosen]
        note = f"judged: {sample} of {p.batch * p.num_heads_kv} pairs of a sequence and a KV head, seed {seed}"
    found = {}
    for name in dict.fromkeys((recipe, *also)):
        options = _options(name, statistical, threads)
        found[name] = _sampled(call, options, pairs) if note else _judge(p, call.a, options)
    missing = [n for n in results if n not in found[recipe]]
    if missing:
        note += f"; not judged, since they are sums over pairs: {', '.join(missing)}"
    return Report(recipe, found, note)


@dataclass(frozen=True)
class Bound:
    """|result - exact| <= bound for every implementation of the recipe: as atol of one's own comparison."""

    exact: np.ndarray
    bound: np.ndarray


def _bounded(call, has_backward):
    p = call.p
    if not has_backward:
        return ["o", "lse"]
    return ["o", "lse", "dq", "dk", "dv"] + ["dbias"] * bool(p.bias.dtype) + ["dsink"] * bool(p.has_sink)


def _axes(call, name):
    """What the axes of the library's array are, in order."""
    return [axis for axis in "bshd" if not (axis == "b" and call.ragged) and not (axis == "d" and name == "lse")]


def _canonical_shape(call, name):
    p = call.p
    if name == "dsink":
        return (p.num_heads_q,)
    if name == "dbias":
        t, whole = p.bias, (p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_k)
        return tuple(n if s else 1 for n, s in zip(whole, (t.batch, t.head, t.seqlen_q, t.seqlen_k)))
    sizes = call.sizes(name)
    return tuple(sizes[axis] for axis in _axes(call, name))


def _lay_out(call, name, shape, dtype):
    """A result that nobody has, packed, to the problem: its dtype is what the bound depends on."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.insert(0, step)
        step *= n
    if name == "dbias":
        strides = [s if n > 1 else 0 for n, s in zip(shape, steps)]
        call.p.dbias = _abi.ScoreTensor(call.p.bias.dtype, 0, *strides)
    elif name != "dsink":
        by_axis = dict(zip(_axes(call, name), steps))
        code = _abi.FP32 if name == "lse" else CODES[dtype]
        setattr(call.p, name, _abi.Tensor(code, 0, by_axis.get("b", 0), by_axis["s"], by_axis["h"]))


def _in_layout(call, name, x):
    """The library's array with its axes as the tensor's layout has them."""
    if name in ("dbias", "dsink"):
        return x
    axes = _axes(call, name)
    return x.transpose([axes.index(axis) for axis in call.letters(name)])


def bounds(q, k, v, *, o=None, lse=None, dout=None, dlse=None, dtype=None, recipe="flash", threads=0, **how):
    """The exact results and their bounds, in double: a Bound for each of o, lse and, with dout, dq, dk, dv (and dbias,
    dsink, where there is a bias or a sink), shaped as the results would be. `dtype`: of the results, or that of q. o
    and lse, where they are given, are those that the gradients were computed from: bounds of these are smaller then."""
    call = _host_call(q, k, v, how)
    dtype = dtype or (call.q.dtype if SIZES[call.q.dtype] > 1 else "float32")
    if dtype not in WIDE:
        raise Invalid(f"dtype is {dtype!r}, but must be one of {', '.join(WIDE)}")
    given = {n: on_host(n, x) for n, x in {"o": o, "lse": lse, "dout": dout, "dlse": dlse}.items() if x is not None}
    for name, x in given.items():
        call.place(name, x)
    made, arrays = {}, _abi.start(_abi.Arrays, lib.attest_audit_arrays_init)
    for name in _bounded(call, dout is not None):
        shape = _canonical_shape(call, name)
        if name not in given:
            _lay_out(call, name, shape, dtype)
        exact, bound = made[name] = np.empty(shape), np.empty(shape)
        arrays.exact[AUDITED.index(name)] = exact.ctypes.data
        arrays.bound[AUDITED.index(name)] = bound.ctypes.data
    options = _options(recipe, False, threads)
    check(lib.attest_audit_bounds(C.byref(call.p), C.byref(call.a), C.byref(options), C.byref(arrays)))
    return {n: Bound(*(_in_layout(call, n, x) for x in pair)) for n, pair in made.items()}
