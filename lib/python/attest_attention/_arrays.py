"""Arrays of any framework as pointer, dtype, shape and strides. Nothing is copied or converted here."""

import ctypes as C
from dataclasses import dataclass, replace

import numpy as np

from . import _abi
from ._abi import Invalid

CODES = {"float32": _abi.FP32, "float16": _abi.FP16, "bfloat16": _abi.BF16, "float8_e4m3fn": _abi.FP8_E4M3,
         "float8_e5m2": _abi.FP8_E5M2, "uint8": _abi.UINT8, "bool": _abi.UINT8}
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "bool": 1,
         "int32": 4, "int64": 8, "uint64": 8, "float64": 8}


class BFloat16:
    """bf16 for numpy, which has none: the upper halves of float32, as uint16. Indexing, reshaping and transposing give
    views."""

    dtype = "bfloat16"

    def __init__(self, bits):
        if bits.dtype != np.uint16:
            raise Invalid(f"BFloat16: bits are {bits.dtype}, but must be uint16")
        self.bits = bits

    @classmethod
    def round(cls, numbers):
        """To nearest, ties to even, from float32."""
        numbers = np.asarray(numbers)
        if numbers.dtype != np.float32:
            raise Invalid(f"BFloat16.round: numbers are {numbers.dtype}, but must be float32: rounding twice differs")
        bits = numbers.view(np.uint32)
        rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
        return cls(np.where(np.isnan(numbers), (bits >> 16 | 0x40).astype(np.uint16), rounded))

    shape = property(lambda self: self.bits.shape)

    def float32(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)

    def __getitem__(self, index):
        return BFloat16(self.bits[index])

    def transpose(self, *axes):
        return BFloat16(self.bits.transpose(*axes))

    def reshape(self, *shape):
        return BFloat16(self.bits.reshape(*shape))

    def copy(self):
        return BFloat16(self.bits.copy())


@dataclass(frozen=True)
class Array:
    """What the library must know of an array; `owner` keeps its memory alive."""

    name: str
    pointer: int
    dtype: str
    shape: tuple
    strides: tuple  # in elements
    device: object  # "cpu", or the number of a GPU
    owner: object

    def with_pointer(self, elements):
        return replace(self, pointer=self.pointer + elements * SIZES[self.dtype])


# ---- DLPack, as JAX, CuPy and others give it ----

class _DLTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


_DL_TYPES = {(0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (1, 64): "uint64", (2, 16): "float16",
             (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3fn",
             (12, 8): "float8_e5m2"}
_capsule_pointer = C.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]


def _packed(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _from_dlpack(name, x):
    capsule = x.__dlpack__()
    t = C.cast(_capsule_pointer(capsule, b"dltensor"), C.POINTER(_DLTensor)).contents
    shape = tuple(t.shape[:t.ndim])
    strides = tuple(t.strides[:t.ndim]) if t.strides else _packed(shape)
    if t.device_type not in (1, 2, 3, 13):
        raise Invalid(f"{name} is on a device of DLPack's kind {t.device_type}, but must be on a CPU or a CUDA GPU")
    dtype = _DL_TYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    return Array(name, (t.data or 0) + t.byte_offset, dtype or f"DLPack type {t.code} of {t.bits} bits", shape, strides,
                 t.device_id if t.device_type == 2 else "cpu", capsule)


def _from_cuda_interface(name, x):
    i = x.__cuda_array_interface__
    dtype = np.dtype(i["typestr"])
    strides = i.get("strides") or tuple(s * dtype.itemsize for s in _packed(i["shape"]))
    device = getattr(getattr(x, "device", None), "id", 0)
    return Array(name, i["data"][0], str(getattr(x, "dtype", dtype)), tuple(i["shape"]),
                 _in_elements(name, strides, dtype.itemsize), device, x)


def _in_elements(name, strides, size):
    if any(s % size for s in strides):
        raise Invalid(f"{name} has strides of {strides} bytes, but they must be multiples of {size}")
    return tuple(s // size for s in strides)


def is_torch(x):
    return hasattr(x, "data_ptr") and hasattr(x, "stride")


def array(name, x):
    """x, which is anything that holds numbers, as an Array."""
    if isinstance(x, Array):
        return x
    if isinstance(x, BFloat16):
        bits = array(name, x.bits)
        return replace(bits, dtype="bfloat16", owner=x)
    if is_torch(x):
        device = "cpu" if x.device.type == "cpu" else x.device.index if x.device.type == "cuda" else str(x.device)
        return Array(name, x.data_ptr(), str(x.dtype)[len("torch."):], tuple(x.shape), tuple(x.stride()), device, x)
    if isinstance(x, np.ndarray):
        return Array(name, x.ctypes.data, x.dtype.name, x.shape, _in_elements(name, x.strides, x.itemsize), "cpu", x)
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(name, x)
    if hasattr(x, "__cuda_array_interface__"):
        return _from_cuda_interface(name, x)
    raise Invalid(f"{name} is a {type(x).__name__}, but must be an array: numpy, PyTorch, DLPack or "
                  "__cuda_array_interface__")


def typed(name, x, dtypes):
    """The same, of one of these dtypes."""
    a = array(name, x)
    if a.dtype not in dtypes:
        raise Invalid(f"{name} is {a.dtype}, but must be {' or '.join(dtypes)}: nothing is converted in silence")
    return a


def on_host(name, x):
    """x in memory that the host can read: itself, or a copy of what a GPU holds."""
    a = array(name, x)
    if a.device == "cpu":
        return a
    if is_torch(x):
        if x.device.type == "meta":
            raise Invalid(f"{name} is on device meta, but must be where it has numbers")
        return array(name, x.detach().cpu())
    if hasattr(x, "get"):  # CuPy
        return array(name, x.get())
    return array(name, np.asarray(x))


def empty_like(x, shape, dtype, order=None):
    """New memory on the device of x, in its framework: (object, Array). `order`: axes from widest to narrowest."""
    order = order or tuple(range(len(shape)))
    back = tuple(np.argsort(order))
    stored = tuple(shape[i] for i in order)
    if is_torch(x):
        import torch
        made = torch.empty(stored, dtype=getattr(torch, dtype), device=x.device).permute(back)
    elif dtype == "bfloat16":
        made = BFloat16(np.empty(stored, np.uint16).transpose(back))
    else:
        made = np.empty(stored, dtype).transpose(back)
    return made
