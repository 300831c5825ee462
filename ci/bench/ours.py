"""attest through libbench.so: plans and runs over packed tensors, on the GPU and on the reference device."""

import ctypes
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

CUDA, REFERENCE = 0, 2  # enum attest_device
DTYPES = {"fp32": 1, "fp16": 2, "bf16": 3}  # enum attest_dtype
TENSORS = ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")  # the order of bench.c
RESULTS = {"forward": ("o", "lse"), "backward": ("dq", "dk", "dv")}


class Refused(Exception):
    """An implementation does not take a problem; the sentence says why."""


class Library:
    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        signatures = {
            "bench_plan": (c_void_p, [c_int32, c_int32] + 5 * [c_int64] + 2 * [c_int32]),
            "bench_workspace": (c_size_t, [c_void_p, c_int32]),
            "bench_forward": (c_int32, [c_void_p, ctypes.POINTER(c_void_p), c_void_p, c_size_t]),
            "bench_backward": (c_int32, [c_void_p, ctypes.POINTER(c_void_p), c_void_p, c_size_t]),
            "bench_normal": (None, [c_int32, c_int64, c_uint64, c_void_p]),
            "bench_relative_error": (c_double, [c_int32, c_void_p, c_void_p, c_int64]),
            "attest_plan_kernel": (c_char_p, [c_void_p]),
            "attest_plan_destroy": (None, [c_void_p]),
            "attest_last_error": (c_char_p, []),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments

    def sentence(self):
        return self.functions.attest_last_error().decode()

    def normal(self, dtype, count, seed):
        """`count` random normal numbers as a ctypes buffer."""
        buffer = ctypes.create_string_buffer(count * element_bytes(dtype))
        self.functions.bench_normal(DTYPES[dtype], count, seed, buffer)
        return buffer

    def relative_error(self, dtype, got, want):
        """|got - want| / |want|; `want` is an array of fp32."""
        return self.functions.bench_relative_error(DTYPES[dtype], got, want, len(want))


def element_bytes(dtype):
    return 4 if dtype == "fp32" else 2


class Plan:
    """A plan of one shape; `direction` is "forward" or "backward"."""

    def __init__(self, library, device, dtype, shape, direction):
        self.library = library
        self.backward = direction == "backward"
        batch, heads, seqlen_q, seqlen_k, head_dim, causal = shape
        self.plan = library.functions.bench_plan(device, DTYPES[dtype], batch, heads, seqlen_q, seqlen_k, head_dim,
                                                 causal, self.backward)
        if not self.plan:
            raise Refused(library.sentence())

    def kernel(self):
        return self.library.functions.attest_plan_kernel(self.plan).decode()

    def workspace_bytes(self):
        return self.library.functions.bench_workspace(self.plan, self.backward)

    def run(self, pointers, workspace=None, workspace_bytes=0):
        """`pointers` by name of tensor; those that the direction does not take may be left out."""
        functions = self.library.functions
        tensors = (c_void_p * len(TENSORS))(*[pointers.get(name) for name in TENSORS])
        run = functions.bench_backward if self.backward else functions.bench_forward
        if run(self.plan, tensors, workspace, workspace_bytes) != 0:
            raise Refused(self.library.sentence())

    def destroy(self):
        self.library.functions.attest_plan_destroy(self.plan)


def oracle(library, dtype, seqlen_q, seqlen_k, head_dim, causal, inputs):
    """What the reference device makes of one head: arrays of fp32 by name of tensor. `inputs`: q, k, v, dout."""
    shape = (1, 1, seqlen_q, seqlen_k, head_dim, causal)
    rows = {"o": seqlen_q, "dq": seqlen_q, "dk": seqlen_k, "dv": seqlen_k}
    arrays = {name: (ctypes.c_float * (count * head_dim))() for name, count in rows.items()}
    arrays["lse"] = (ctypes.c_float * seqlen_q)()
    pointers = {name: ctypes.addressof(array) for name, array in {**inputs, **arrays}.items()}
    for direction in ("forward", "backward"):
        plan = Plan(library, REFERENCE, dtype, shape, direction)
        plan.run(pointers)
        plan.destroy()
    return arrays
