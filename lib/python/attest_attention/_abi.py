"""The structs and calls of attest.h for ctypes. abi_test.py compares every offset with the compiler's."""

import ctypes as C
import os
import pathlib

OK, INVALID, UNSUPPORTED, OUT_OF_MEMORY, DEVICE_ERROR = range(5)
ABSENT, FP32, FP16, BF16, FP8_E4M3, FP8_E5M2, UINT8 = range(7)
CUDA, SIM, REFERENCE = range(3)
FORWARD, BACKWARD = 1, 2
DIAG_UNSET, DIAG_TOP_LEFT, DIAG_BOTTOM_RIGHT, DIAG_GIVEN = range(4)
AUDITED = ("o", "lse", "dq", "dk", "dv", "dbias", "dsink")

_i32, _u32, _i64, _u64, _f32, _f64, _ptr = (
    C.c_int32, C.c_uint32, C.c_int64, C.c_uint64, C.c_float, C.c_double, C.c_void_p)


def _struct(name, *fields):
    """fields: a type, then the names that have it."""
    return type(name, (C.Structure,), {"_fields_": [(n, t) for t, names in fields for n in names.split()]})


Tensor = _struct("attest_tensor", (_i32, "dtype align"), (_i64, "batch seqlen head"))
ScoreTensor = _struct("attest_score_tensor", (_i32, "dtype align"), (_i64, "batch head seqlen_q seqlen_k"))
Problem = _struct(
    "attest_problem",
    (_u32, "struct_size"), (_i32, "device device_ordinal ragged"),
    (_i64, "batch seqlen_q seqlen_k total_q total_k num_heads_q num_heads_kv head_dim head_dim_v"),
    (Tensor, "q k v o lse dout dlse delta dq dk dv"), (ScoreTensor, "bias dbias mask block_mask"),
    (_i64, "block_q block_k"), (_f32, "softmax_scale softcap"),
    (_i32, "has_alibi has_sink alibi_diag_kind diag_kind"),
    (_i64, "alibi_diag diag window_left window_right q_start k_start"), (_i32, "has_seqused_q has_seqused_k"),
    (_f32, "dropout_p"), (_i32, "external_lse"), (_u64, "dropout_seed dropout_offset"), (Tensor, "o_low lse_low"),
    (_i64, "page_size"), (_u32, "initialized reserved0"))
ForwardArgs = _struct(
    "attest_forward_args", (_u32, "struct_size reserved0"),
    (_ptr, "q k v o lse bias mask block_mask alibi_slopes sink cu_seqlens_q cu_seqlens_k seqused_q seqused_k "
           "dropout_seed dropout_offset dropout_stream o_low lse_low q_scale k_scale v_scale block_table"))
BackwardArgs = _struct(
    "attest_backward_args", (_u32, "struct_size reserved0"), (ForwardArgs, "forward"),
    (_ptr, "dout dlse delta dq dk dv dbias dsink"))
Recipe = _struct(
    "attest_recipe", (_u32, "struct_size"),
    (_i32, "accumulate weights_p weights_ds round_dkv_heads delta tile_k round_p_ds"), (_f64, "exp_error tanh_error"),
    (C.c_char_p, "name"), (_i32, "own_sum rescale_log2 ordered_keys round_scaled_ds"))
Options = _struct(
    "attest_audit_options", (_u32, "struct_size"), (_i32, "threads statistical reserved0"),
    (C.POINTER(Recipe), "recipe"))
TensorReport = _struct(
    "attest_audit_report", (_i32, "verdict reserved0"), (_i64, "count nan_count overflow_count"),
    (_f64, "max_error rmse relative_error mean_error share"), (_i64 * 4, "index"), (_f64, "got exact bound"),
    (_f64, "rms_ratio mean_ratio shape_ratio rms_bound rms_exact"), (C.c_char * 240, "sentence"))
Arrays = _struct(
    "attest_audit_arrays", (_u32, "struct_size reserved0"), (_ptr * len(AUDITED), "exact"),
    (_ptr * len(AUDITED), "bound"))

STRUCTS = (Tensor, ScoreTensor, Problem, ForwardArgs, BackwardArgs, Recipe, Options, TensorReport, Arrays)

_P = C.POINTER
CALLS = {
    "attest_problem_init": (_i32, [_P(Problem), C.c_size_t]),
    "attest_backward_args_init": (_i32, [_P(BackwardArgs), C.c_size_t]),
    "attest_audit_options_init": (_i32, [_P(Options), C.c_size_t]),
    "attest_audit_arrays_init": (_i32, [_P(Arrays), C.c_size_t]),
    "attest_plan_create": (_i32, [_P(Problem), _P(_ptr)]),
    "attest_plan_destroy": (None, [_ptr]),
    "attest_plan_workspace": (_i32, [_ptr, _P(C.c_size_t), _P(C.c_size_t)]),
    "attest_plan_kernel": (C.c_char_p, [_ptr, _i32]),
    "attest_run_forward": (_i32, [_ptr, _P(ForwardArgs), _ptr, C.c_size_t, _ptr]),
    "attest_run_backward": (_i32, [_ptr, _P(BackwardArgs), _ptr, C.c_size_t, _ptr]),
    "attest_audit": (_i32, [_P(Problem), _P(BackwardArgs), _P(Options), _P(TensorReport)]),
    "attest_audit_bounds": (_i32, [_P(Problem), _P(BackwardArgs), _P(Options), _P(Arrays)]),
    "attest_recipe_at": (_P(Recipe), [_i32]),
    "attest_recipe_named": (_P(Recipe), [C.c_char_p]),
    "attest_verdict_name": (C.c_char_p, [_i32]),
    "attest_last_error": (C.c_char_p, []),
    "attest_version": (_u32, []),
}
VERSION = 100  # 0.1.0, whose structs these are


def _load():
    """The library in this folder, as a wheel has it; ATTEST_LIBRARY names another one."""
    path = os.environ.get("ATTEST_LIBRARY", str(pathlib.Path(__file__).parent / "libattest.so.0"))
    library = C.CDLL(path)
    for name, (result, arguments) in CALLS.items():
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    found = library.attest_version()
    if found // 10000 != VERSION // 10000 or found < VERSION:
        raise ImportError(f"{path} has version {found}, but this package needs {VERSION}")
    return library


lib = _load()


class Error(Exception):
    """A call of attest that was refused."""


class Invalid(Error, ValueError):
    """Something is outside its range."""


class Unsupported(Error, NotImplementedError):
    """Valid, but this build has no kernel for it."""


class DeviceError(Error, RuntimeError):
    """The device refused a launch."""


class OutOfMemory(Error, MemoryError):
    """The host has not as much memory."""


_ERRORS = {INVALID: Invalid, UNSUPPORTED: Unsupported, OUT_OF_MEMORY: OutOfMemory, DEVICE_ERROR: DeviceError}


def check(status):
    if status != OK:
        raise _ERRORS[status](lib.attest_last_error().decode())


def start(struct, init):
    """A struct as the library's own function fills it."""
    made = struct()
    check(init(C.byref(made), C.sizeof(made)))
    return made
