"""Forward and backward passes of attest itself."""

import collections
import ctypes as C
import functools

from . import _abi
from ._abi import Invalid, check, lib
from ._arrays import SIZES, array, empty_like, is_torch
from ._problem import Call

Gradients = collections.namedtuple("Gradients", "dq dk dv dbias dsink")


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
    if array("q", x).device == "cpu":
        return None
    if is_torch(x):
        import torch
        return torch.cuda.current_stream(x.device).cuda_stream
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
    _check_framework(q)
    call = Call(q, k, v, **how)
    o = _result(call, "o", q, o_dtype or (call.q.dtype if SIZES[call.q.dtype] > 1 else "float32"))
    lse = _result(call, "lse", q, "float32")
    check(lib.attest_run_forward(plan_of(call.p).handle, C.byref(call.a.forward), None, 0, _stream(q)))
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
