"""attest through libbench.so: plans and runs over packed tensors, on the GPU and on the reference device."""

import ctypes
from ctypes import c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

CUDA, REFERENCE = 0, 2  # enum attest_device
FORWARD, BACKWARD = 1, 2  # enum attest_pass
DTYPES = {"fp32": 1, "fp16": 2, "bf16": 3}  # enum attest_dtype
TENSORS = ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")  # the order of bench.c
FAMILIES = {"normal": 0, "outlier": 1, "large": 2, "tiny": 3, "mean": 4}  # enum family
INPUTS = {"q": 0, "k": 1, "v": 2, "dout": 3}  # enum role
RESULTS = {"forward": ("o", "lse"), "backward": ("dq", "dk", "dv")}


class Refused(Exception):
    """An implementation does not take a problem; the sentence says why."""


class Library:
    """libbench.so, which may be older than this: ci/perf does without the later functions."""

    LATER = ("bench_queue", "bench_draw")

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        signatures = {
            "bench_plan": (c_void_p, [c_int32, c_int32] + 5 * [c_int64] + 2 * [c_int32]),
            "bench_workspace": (c_size_t, [c_void_p, c_int32]),
            "bench_forward": (c_int32, [c_void_p, ctypes.POINTER(c_void_p), c_void_p, c_size_t]),
            "bench_backward": (c_int32, [c_void_p, ctypes.POINTER(c_void_p), c_void_p, c_size_t]),
            "bench_queue": (c_int64, [c_void_p, c_int32, ctypes.POINTER(c_void_p), c_void_p, c_size_t, c_int32]),
            "bench_draw": (None, [c_int32, c_int32, c_int32, c_int64, c_void_p]),
            "bench_relative_error": (c_double, [c_int32, c_void_p, c_void_p, c_int64]),
            "attest_plan_kernel": (c_char_p, [c_void_p, c_int]),
            "attest_plan_destroy": (None, [c_void_p]),
            "attest_last_error": (c_char_p, []),
        }
        for name, (result, arguments) in signatures.items():
            if name in self.LATER and not hasattr(self.functions, name):
                continue
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments

    def sentence(self):
        return self.functions.attest_last_error().decode()

    def draw(self, dtype, family, name, count):
        """`count` numbers of a family, those of the input `name`, as a ctypes buffer."""
        buffer = ctypes.create_string_buffer(count * element_bytes(dtype))
        self.functions.bench_draw(DTYPES[dtype], FAMILIES[family], INPUTS[name], count, buffer)
        return buffer

    def queue_empty(self, calls):
        """As Plan.queue, of an empty kernel."""
        nanoseconds = self.functions.bench_queue(None, 0, None, None, 0, calls)
        if nanoseconds < 0:
            raise Refused("no kernel can be launched here")
        return nanoseconds

    def relative_error(self, dtype, got, want):
        """|got - want| / |want|; `want` is an array of fp32."""
        return self.functions.bench_relative_error(DTYPES[dtype], got, want, len(want))


def element_bytes(dtype):
    return 4 if dtype == "fp32" else 2


def array_of(pointers):
    return (c_void_p * len(TENSORS))(*[pointers.get(name) for name in TENSORS])


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
        pass_ = BACKWARD if self.backward else FORWARD
        return self.library.functions.attest_plan_kernel(self.plan, pass_).decode()

    def workspace_bytes(self):
        return self.library.functions.bench_workspace(self.plan, self.backward)

    def run(self, pointers, workspace=None, workspace_bytes=0):
        """`pointers` by name of tensor; those that the direction does not take may be left out."""
        functions = self.library.functions
        run = functions.bench_backward if self.backward else functions.bench_forward
        if run(self.plan, array_of(pointers), workspace, workspace_bytes) != 0:
            raise Refused(self.library.sentence())

    def queue(self, pointers, workspace, workspace_bytes, calls):
        """`calls` runs in a row; the nanoseconds that the host took."""
        nanoseconds = self.library.functions.bench_queue(self.plan, self.backward, array_of(pointers), workspace,
                                                         workspace_bytes, calls)
        if nanoseconds < 0:
            raise Refused(self.library.sentence())
        return nanoseconds

    def destroy(self):
        self.library.functions.attest_plan_destroy(self.plan)


def oracle(library, dtype, heads, seqlen_q, seqlen_k, head_dim, causal, inputs):
    """What the reference device makes of `heads` heads: arrays of fp32 by name of tensor. `inputs`: q, k, v, dout."""
    shape = (1, heads, seqlen_q, seqlen_k, head_dim, causal)
    rows = {"o": seqlen_q, "dq": seqlen_q, "dk": seqlen_k, "dv": seqlen_k}
    arrays = {name: (ctypes.c_float * (heads * count * head_dim))() for name, count in rows.items()}
    arrays["lse"] = (ctypes.c_float * (heads * seqlen_q))()
    pointers = {name: ctypes.addressof(array) for name, array in {**inputs, **arrays}.items()}
    for direction in ("forward", "backward"):
        plan = Plan(library, REFERENCE, dtype, shape, direction)
        plan.run(pointers)
        plan.destroy()
    return arrays
