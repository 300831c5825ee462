"""audit_dumps(folder): what FlashInfer wrote with FLASHINFER_LOGLEVEL=10, audited call by call.

FlashInfer keeps a folder for each call: metadata.jsonl, whose last line is the latest, and inputs and outputs as .pt or
.safetensors, where arguments are arg_0, arg_1, ... or kwarg_NAME. Read are single_prefill_with_kv_cache and
single_decode_with_kv_cache. Of other calls, and of arguments that change results and are not understood, the report
says so: nobody is accused for what was not read. Its lse is in base 2 and is not judged."""

import json
import pathlib
import re
from dataclasses import dataclass

import torch

from ._abi import Error
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
    return torch.load(folder / f"{kind}.pt", map_location="cpu", weights_only=True)


def _arguments(metadata, inputs):
    """Arguments by name: positional ones are named by the signature that FlashInfer wrote down."""
    names = re.findall(r"[(,]\s*(\w+)\s*(?=[:=,)])", metadata["function_signature"])
    found = {}
    for key, value in {**metadata["input_metadata"], **inputs}.items():
        if re.fullmatch(r"arg_\d+", key):
            found[names[int(key[len("arg_"):])]] = value
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
    o = outputs["result"] if "result" in outputs else outputs["result_0"]
    o = o[None] if function == "single_decode_with_kv_cache" else o
    return audit(o=o[None], **problem, **options)


def audit_dumps(folder, **options):
    """A Dump for each call in the folder, in order. `options` go to audit(): recipe, sample, seed, statistical."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*/metadata.jsonl")):
        metadata = json.loads(path.read_text().strip().splitlines()[-1])
        dump = Dump(str(path.parent), metadata["function_name"])
        found.append(dump)
        try:
            dump.report = _audit(path.parent, metadata, options)
        except (_NotRead, Error) as why:
            dump.skipped = f"not judged: {why}"
    return found
