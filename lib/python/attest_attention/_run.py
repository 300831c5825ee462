"""Forward and backward passes of attest itself."""

import collections
import ctypes as C
import functools

from . import _abi
from ._abi import Invalid, check, lib
from ._arrays import SIZES, array, empty_like, is_torch
from ._problem import Call

Gradients = collections.namedtuple("Gradients", "dq dk dv dbias dsink")
_FORWARD_BYTES = C.sizeof(_abi.ForwardArgs)


class Plan:
    """A plan of the library, and what a run of it needs."""

    def __init__(self, problem):
        self.handle, forward, backward = C.c_void_p(), C.c_size_t(), C.c_size_t()
        check(lib.attest_plan_create(C.byref(problem), C.byref(self.handle)))
        check(lib.attest_plan_workspace(self.handle, C.byref(forward), C.byref(backward)))
        self.forward_bytes, self.backward_bytes = forward.value, backward.value

    def kernel(self, a_pass):
        name = lib.attest_plan_kernel(self.handle, a_pass)
        return name.decode() if name else None

    def __del__(self):
        lib.attest_plan_destroy(self.handle)


@functools.lru_cache(maxsize=1024)
def _plan_of(problem):
    return Plan(_abi.Problem.from_buffer_copy(problem))


def plan_of(problem):
    """Plans are immutable, so problems that are equal byte by byte share one."""
    return _plan_of(bytes(problem))


def _stream(x):
    """The stream on which the framework of x would work now; NULL on a host."""
    if is_torch(x):
        import torch
        return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None
    if array("q", x).device == "cpu":
        return None
    if hasattr(x, "__cuda_array_interface__"):
        return x.__cuda_array_interface__.get("stream")
    return None


def _workspace(x, size):
    """(object, pointer) of so many bytes that begin at a multiple of 256."""
    if size == 0:
        return None, None
    made = empty_like(x, (size + 256,), "uint8")
    return made, -(-array("workspace", made).pointer // 256) * 256


def _result(call, name, like, dtype):
    """New memory in the layout of the tensor that `like` is, packed; and the call knows of it."""
    made = empty_like(like, call.shape(name), dtype)
    call.place(name, made)
    return made


def _check_framework(x):
    if array("q", x).device != "cpu" and not is_torch(x):
        raise Invalid("q is on a GPU, but must be a PyTorch tensor there: results of other frameworks cannot be made; "
                      "audit() takes them")


def forward(q, k, v, *, o_dtype=None, **how):
    """o and lse, without autograd."""
    key = _key(q, k, v, o_dtype, how)
    prepared = _prepared.get(key) if key is not None else None
    if prepared is not None:
        return _again(prepared, q, k, v, how)
    _check_framework(q)
    call = Call(q, k, v, **how)
    o = _result(call, "o", q, o_dtype or (call.q.dtype if SIZES[call.q.dtype] > 1 else "float32"))
    lse = _result(call, "lse", q, "float32")
    plan = plan_of(call.p)
    check(lib.attest_run_forward(plan.handle, C.byref(call.a.forward), None, 0, _stream(q)))
    if key is not None:
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        _prepared[key] = plan, o.shape, o.dtype, lse.shape
    return o, lse


# ---- the same shapes and strides again: nothing is checked twice ----

# Other threads may empty the table between any two of these lines: it is asked once a call, by get().
_prepared, _MOST_PREPARED = {}, 1024
_POINTERS = ("bias", "mask", "block_mask", "sink", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
             "seqused_k")
_POINTERS_OR_NUMBERS = ("dropout_seed", "dropout_offset")
_PLAIN = {int, float, bool, str, type(None)}  # equal where they mean the same, and never changed in place


def _key(q, k, v, o_dtype, how):
    """All of PyTorch's tensors and numbers that a problem is made of. None: lengths are read from memory, something is
    of another framework, or an argument is not a plain number or name, which may change in place."""
    if how.get("cu_seqlens_q") is not None and (how.get("max_seqlen_q") is None or how.get("max_seqlen_k") is None):
        return None
    parts = [o_dtype]
    for x in (q, k, v):
        if not is_torch(x):
            return None
        parts += (x.shape, x.stride(), x.dtype, x.device)
    for name, x in how.items():
        if type(x) in _PLAIN or (type(x) is tuple and all(type(y) in _PLAIN for y in x)):
            parts += (name, x)
        elif (name in _POINTERS or name in _POINTERS_OR_NUMBERS) and is_torch(x):
            parts += (name, x.shape, x.stride(), x.dtype, x.device)
        else:
            return None
    return tuple(parts) if type(o_dtype) in _PLAIN else None


def _again(prepared, q, k, v, how):
    import torch
    plan, o_shape, o_dtype, lse_shape = prepared
    o = torch.empty(o_shape, dtype=o_dtype, device=q.device)
    lse = torch.empty(lse_shape, dtype=torch.float32, device=q.device)
    f = _abi.ForwardArgs(_FORWARD_BYTES, 0, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())
    for name in _POINTERS:
        x = how.get(name)
        if x is not None:
            setattr(f, name, x.data_ptr())
    for name in _POINTERS_OR_NUMBERS:
        x = how.get(name)
        if x is not None and not isinstance(x, int):
            setattr(f, name, x.data_ptr())
    check(lib.attest_run_forward(plan.handle, C.byref(f), None, 0, _stream(q)))
    return o, lse


def backward(dout, q, k, v, o, lse, *, dlse=None, dbias=None, dsink=None, **how):
    """Gradients, without autograd. dbias and dsink: True for those, too."""
    _check_framework(q)
    call = Call(q, k, v, **how)
    for name, x in (("dout", dout), ("o", o), ("lse", lse), ("dlse", dlse)):
        if x is not None:
            call.place(name, x)
    call.needs("dout", "o", "lse")
    made = {}
    for name, like in (("dq", q), ("dk", k), ("dv", v)):
        made[name] = _result(call, name, like, call.q.dtype if SIZES[call.q.dtype] > 1 else "float32")
    if dbias:
        if how.get("bias") is None:
            raise Invalid("dbias is True, but must not be where bias is None")
        bias = array("bias", how["bias"])
        made["dbias"] = empty_like(q, bias.shape, bias.dtype)
        call.place("dbias", made["dbias"])
    if dsink:
        made["dsink"] = empty_like(q, (call.p.num_heads_q,), "float32")
        call.place("dsink", made["dsink"])
    # o is read here, not made: a plan for o as well would be one of both passes.
    plan = plan_of(call.p)
    workspace, start = _workspace(q, plan.backward_bytes)
    check(lib.attest_run_backward(plan.handle, C.byref(call.a), start, plan.backward_bytes, _stream(q)))
    del workspace
    return Gradients(*(made.get(name) for name in Gradients._fields))
