"""audit_dumps(folder): what FlashInfer wrote with FLASHINFER_LOGLEVEL=10, audited call by call.

FlashInfer keeps a folder for each call: metadata.jsonl, whose last line is the latest, and inputs and outputs as .pt or
.safetensors, where arguments are arg_0, arg_1, ... or kwarg_NAME. Read are single_prefill_with_kv_cache and
single_decode_with_kv_cache. Of other calls, and of arguments that change results and are not understood, the report
says so: nobody is accused for what was not read. Its lse is in base 2 and is not judged."""

import ast
import json
import pathlib
import pickle
import re
from dataclasses import dataclass

import torch

from ._abi import Error, Invalid
from ._audit import Report, audit


class _NotRead(Exception):
    """Why a call cannot be judged."""


@dataclass
class Dump:
    """One call: its folder, function and Report, or why there is none."""

    folder: str
    function: str
    report: Report = None
    skipped: str = ""


# What changes nothing, and what is read; anything else must have its default.
_IGNORED = {"backend", "return_lse", "enable_pdl", "use_tensor_cores", "o_dtype", "out"}
_DEFAULTS = {"pos_encoding_mode": ("NONE",), "custom_mask": (None,), "packed_custom_mask": (None,),
             "scale_q": (None,), "scale_k": (None,), "scale_v": (None,), "q_scale": (None, 1, 1.0),
             "k_scale": (None, 1, 1.0), "v_scale": (None, 1, 1.0), "use_fp16_qk_reduction": (None, False),
             "rope_scale": None, "rope_theta": None}  # None: anything; rope is off where pos_encoding_mode is NONE


def _tensors(folder, kind):
    packed = folder / f"{kind}.safetensors"
    if packed.exists():
        from safetensors.torch import load_file
        return load_file(packed)
    if not (folder / f"{kind}.pt").exists():
        raise _NotRead(f"{kind} were not written")
    try:
        return torch.load(folder / f"{kind}.pt", map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as why:
        raise _NotRead(f"{kind}.pt cannot be read: {str(why).splitlines()[0]}") from None


def _names(signature):
    """Of the arguments that may be positional, in order."""
    try:
        arguments = ast.parse(f"def f{signature}: pass").body[0].args
    except SyntaxError:
        raise _NotRead(f"its signature is not understood: {signature}") from None
    return [a.arg for a in arguments.posonlyargs + arguments.args]


def _arguments(metadata, inputs):
    """Arguments by name: positional ones are named by the signature that FlashInfer wrote down."""
    names, found = _names(metadata["function_signature"]), {}
    for key, value in {**metadata["input_metadata"], **inputs}.items():
        if re.fullmatch(r"arg_\d+", key):
            number = int(key[len("arg_"):])
            if number >= len(names):
                raise _NotRead(f"{key} is not in its signature")
            found[names[number]] = value
        elif key.startswith("kwarg_"):
            found[key[len("kwarg_"):]] = value
    return found


def _take(arguments, name, default):
    value = arguments.pop(name, default)
    return default if value is None else value


def _problem(function, arguments):
    """Keywords of audit()."""
    try:
        q, k, v = (arguments.pop(name) for name in "qkv")
    except KeyError as name:
        raise _NotRead(f"it has no {name}") from None
    layout = _take(arguments, "kv_layout", "NHD")
    if layout not in ("NHD", "HND"):
        raise _NotRead(f"kv_layout is {layout!r}")
    axes = {"q": 2 if function == "single_decode_with_kv_cache" else 3, "k": 3, "v": 3}
    for name, x in zip("qkv", (q, k, v)):
        if not isinstance(x, torch.Tensor) or x.dim() != axes[name]:
            raise _NotRead(f"{name} is not a tensor of {axes[name]} axes")
    window = _take(arguments, "window_left", -1)
    how = {"scale": arguments.pop("sm_scale", None), "softcap": _take(arguments, "logits_soft_cap", 0.0),
           "window": (window, -1), "causal": bool(_take(arguments, "causal", False)), "diag": "bottom-right"}
    if function == "single_decode_with_kv_cache":
        q = q[None]
    if layout == "HND":
        k, v = (x.transpose(0, 1) for x in (k, v))
    for name, value in arguments.items():
        if name in _IGNORED:
            continue
        allowed = _DEFAULTS.get(name, (None,))
        if allowed is not None and (isinstance(value, torch.Tensor) or value not in allowed):
            raise _NotRead(f"{name} is not read")
    return {"q": q[None], "k": k[None], "v": v[None], "layout": "bshd", **how}


def _audit(folder, metadata, options):
    function = metadata["function_name"]
    if function not in ("single_prefill_with_kv_cache", "single_decode_with_kv_cache"):
        raise _NotRead(f"{function} is not read")
    if metadata["execution_status"] != "completed":
        raise _NotRead(f"its status is {metadata['execution_status']}")
    problem = _problem(function, _arguments(metadata, _tensors(folder, "inputs")))
    outputs = _tensors(folder, "outputs")
    o = outputs.get("result", outputs.get("result_0"))
    if o is None:
        raise _NotRead("its outputs have no result")
    o = o[None] if function == "single_decode_with_kv_cache" else o
    return audit(o=o[None], **problem, **options)


def _latest(path):
    """The last line that was written whole."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        missing = {"function_name", "function_signature", "execution_status", "input_metadata"} - set(found)
        if missing:
            raise _NotRead(f"metadata.jsonl has no {sorted(missing)[0]}")
        return found
    raise _NotRead("metadata.jsonl has no line of JSON")


def audit_dumps(folder, **options):
    """A Dump for each call in the folder, in order. `options` go to audit(): recipe, sample, seed, statistical."""
    if not pathlib.Path(folder).is_dir():
        raise Invalid(f"folder is {str(folder)!r}, but must be a folder: FLASHINFER_DUMP_DIR named it")
    found = []
    for path in sorted(pathlib.Path(folder).glob("*/metadata.jsonl")):
        dump = Dump(str(path.parent), "")
        found.append(dump)
        try:
            metadata = _latest(path)
            dump.function = metadata["function_name"]
            dump.report = _audit(path.parent, metadata, options)
        except (_NotRead, Error) as why:
            dump.skipped = f"not judged: {why}"
    return found
