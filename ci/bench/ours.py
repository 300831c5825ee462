"""attest through libbench.so: plans and runs over packed tensors, on the GPU and on the reference device."""

import ctypes
import math
from ctypes import c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

import tables

CUDA, REFERENCE = 0, 2  # enum attest_device
FORWARD, BACKWARD = 1, 2  # enum attest_pass
DTYPES = {"fp32": 1, "fp16": 2, "bf16": 3}  # enum attest_dtype
TENSORS = ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")  # the order of bench.c; of every problem
OF_FEATURES = ("bias", "mask", "block_mask", "alibi_slopes", "sink", "seqused_k", "dropout_stream", "dbias", "dsink")
ROWS = ("q", "k", "v", "o", "dout", "dq", "dk", "dv")  # with an axis head_dim
# Of struct bench_problem, in its order.
PROBLEM = ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "rows_first", "window_left",
           "window_right", "alibi", "sink", "seqused", "softcap", "dropout", "mask_k", "mask", "bias", "dbias",
           "block_mask")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "uint8": 1, "int32": 4, "int64": 8}
FAMILIES = {"normal": 0, "outlier": 1, "large": 2, "tiny": 3, "mean": 4}  # enum family
INPUTS = {"q": 0, "k": 1, "v": 2, "dout": 3}  # enum role
ROLES = {**INPUTS, "bias": 4, "sink": 4}
RESULTS = {"forward": ("o", "lse"), "backward": ("dq", "dk", "dv")}


class Refused(Exception):
    """An implementation does not take a problem; the sentence says why."""


class Problem(ctypes.Structure):
    """struct bench_problem"""
    _fields_ = [(name, c_int64) for name in PROBLEM]


def problem_of(shape):
    fields = {feature: int(shape.has(feature)) for feature in tables.FEATURES}
    fields.update({name: getattr(shape, name) for name in shape._fields if name in PROBLEM})
    fields.update(heads_kv=shape.kv, head_dim_v=shape.dim_v, window_left=shape.window or -1,
                  window_right=0 if shape.causal else -1, softcap=shape.has("softcap") * tables.SOFTCAP,
                  dropout=shape.has("dropout") * round(1000 * tables.DROPOUT),
                  block_mask=shape.has("block_mask") * tables.BLOCK)
    return Problem(**fields)


def tensors_of(shape):
    """What a run of this shape reads or writes, dropout_stream apart, which is its default."""
    features = [("bias", "bias"), ("mask", "mask"), ("mask_k", "mask"), ("block_mask", "block_mask"),
                ("alibi", "alibi_slopes"), ("sink", "sink"), ("seqused", "seqused_k"), ("dbias", "dbias"),
                ("sink", "dsink")]
    return TENSORS + tuple(name for feature, name in features if shape.has(feature))


def axes_of(name, shape):
    """How many there are of sequences, heads, rows and so on. rows_first turns the order of heads and rows."""
    queries, keys = (shape.batch, shape.heads, shape.seqlen_q), (shape.batch, shape.kv, shape.seqlen_k)
    blocks = -(-shape.seqlen_k // tables.BLOCK)
    rows = {"q": (*queries, shape.head_dim), "o": (*queries, shape.dim_v), "k": (*keys, shape.head_dim),
            "v": (*keys, shape.dim_v), "lse": queries, "bias": (1, shape.heads, shape.seqlen_q, shape.seqlen_k),
            "mask": (shape.batch, 1, 1 if shape.has("mask_k") else shape.seqlen_q, shape.seqlen_k),
            "block_mask": (1, 1, blocks, blocks), "alibi_slopes": (shape.heads,), "sink": (shape.heads,),
            "seqused_k": (shape.batch,), "dropout_stream": (shape.batch, shape.heads)}
    return rows["o" if name == "dout" else name[1:] if name not in rows else name]


def dtype_of(name, dtype):
    """Of a tensor; `dtype`: of q."""
    return {"lse": "fp32", "mask": "uint8", "block_mask": "uint8", "alibi_slopes": "fp32", "sink": "fp32",
            "dsink": "fp32", "seqused_k": "int32", "dropout_stream": "int64"}.get(name, dtype)


def tensor_bytes(name, shape, dtype="bf16"):
    return math.prod(axes_of(name, shape)) * BYTES[dtype_of(name, dtype)]


class Library:
    """libbench.so, which may be older than this: ci/perf does without the later functions, and asks of older ones plain
    shapes alone, by bench_plan."""

    LATER = ("bench_queue", "bench_draw", "bench_plan", "bench_plan_problem")

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        signatures = {
            "bench_plan": (c_void_p, [c_int32, c_int32] + 5 * [c_int64] + 2 * [c_int32]),
            "bench_plan_problem": (c_void_p, [c_int32, c_int32, ctypes.POINTER(Problem), c_int32]),
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

    def plan(self, device, dtype, shape, backward):
        if hasattr(self.functions, "bench_plan_problem"):
            return self.functions.bench_plan_problem(device, DTYPES[dtype], problem_of(shape), backward)
        return self.functions.bench_plan(device, DTYPES[dtype], *shape[:6], backward)

    def draw(self, dtype, family, name, count):
        """`count` numbers of a family, those of the input `name`, as a ctypes buffer."""
        buffer = ctypes.create_string_buffer(count * BYTES[dtype])
        self.functions.bench_draw(DTYPES[dtype], FAMILIES[family], ROLES[name], count, buffer)
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


def array_of(pointers):
    names = TENSORS + OF_FEATURES
    return (c_void_p * len(names))(*[pointers.get(name) for name in names])


class Plan:
    """A plan of one shape; `direction` is "forward" or "backward"."""

    def __init__(self, library, device, dtype, shape, direction):
        self.library = library
        self.backward = direction == "backward"
        self.plan = library.plan(device, dtype, shape, self.backward)
        if not self.plan:
            raise Refused(library.sentence())

    def kernel(self):
        pass_ = BACKWARD if self.backward else FORWARD
        return self.library.functions.attest_plan_kernel(self.plan, pass_).decode()

    def workspace_bytes(self):
        """Of either pass."""
        return max(self.library.functions.bench_workspace(self.plan, backward) for backward in (False, True))

    def run(self, pointers, workspace=None, workspace_bytes=0):
        """`pointers` by name of tensor; those that the direction does not take may be left out."""
        self._run("bench_backward" if self.backward else "bench_forward", pointers, workspace, workspace_bytes)

    def run_forward(self, pointers, workspace, workspace_bytes):
        """o and lse, which backward reads."""
        self._run("bench_forward", pointers, workspace, workspace_bytes)

    def _run(self, function, pointers, workspace, workspace_bytes):
        run = getattr(self.library.functions, function)
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


def oracle(library, dtype, shape, inputs):
    """What the reference device makes of a shape: arrays of fp32 by name of tensor. `inputs`: what it reads, as ctypes
    buffers by name."""
    results = [name for name in ("o", "lse", "dq", "dk", "dv", "dbias") if name in tensors_of(shape)]
    arrays = {name: (ctypes.c_float * math.prod(axes_of(name, shape)))() for name in results}
    pointers = {name: ctypes.addressof(array) for name, array in {**inputs, **arrays}.items()}
    for direction in ("forward", "backward"):
        plan = Plan(library, REFERENCE, dtype, shape, direction)
        plan.run(pointers)
        plan.destroy()
    return arrays
