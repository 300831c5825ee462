"""PyTorch's attention backends, and one of our own in Triton, where PyTorch is present and sees the GPU."""

import contextlib
import ctypes
import functools
import warnings

from ours import RESULTS, Refused

BACKENDS = {"FA2": "FLASH_ATTENTION", "memeff": "EFFICIENT_ATTENTION", "cuDNN": "CUDNN_ATTENTION", "math": "MATH"}
FEW = 4  # sequences on which errors of `math` are taken: of thousands its matrices may not fit into memory


def load():
    """The module torch, or None."""
    try:
        import torch.nn.attention
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def torch_dtype(torch, dtype):
    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


class _Memory:
    """Device memory as torch.as_tensor takes it: 16-bit integers, as that interface has no bf16."""

    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<i2", "data": (pointer, False), "version": 3,
                                         "strides": None}


def view(torch, dtype, pointer, shape):
    """A tensor [batch][heads][seqlen][head_dim] over memory that is not torch's."""
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return torch.as_tensor(_Memory(pointer, count), device="cuda").view(torch_dtype(torch, dtype)).view(shape)


def attention(torch, name, causal):
    """A function of q, k, v, and what it is to be called in."""
    if name == "whole":
        import whole  # needs Triton
        if causal:
            raise NotImplementedError("the kernel takes no mask")
        return whole.attention, contextlib.nullcontext
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[name])
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
    return attend, functools.partial(torch.nn.attention.sdpa_kernel, backend)


@contextlib.contextmanager
def refusals():
    """Whatever a peer raises, it refuses, and the others go on."""
    try:
        with warnings.catch_warnings(action="ignore"):  # they say at length why not
            yield
    except Exception as error:
        raise Refused((str(error) or repr(error)).splitlines()[0]) from None


class Backend:
    """One backend on one shape, in one direction. Refused where it takes it not, in last_heads or any call."""

    def __init__(self, torch, name, inputs, causal, direction):
        """`inputs`: tensors q, k, v, dout [batch][heads][seqlen][head_dim]."""
        self.torch, self.name, self.causal, self.direction = torch, name, causal, direction
        with refusals():
            self.attend, self.selected = attention(torch, name, causal)
        self.inputs, self.o = inputs, None
        self.qkv = [inputs[x].detach().requires_grad_(direction == "backward") for x in "qkv"]

    @contextlib.contextmanager
    def context(self):
        """Entered around a call, outside of what is timed."""
        with refusals(), self.selected():
            yield

    def call(self):
        """Backward, the first call runs forward, too."""
        if self.direction == "forward":
            return (self.attend(*self.qkv),)
        if self.o is None:
            self.o = self.attend(*self.qkv)
        return self.torch.autograd.grad(self.o, self.qkv, self.inputs["dout"], retain_graph=True)

    def last_heads(self, count):
        """The results' last `count` heads of the last sequence, by name. (lse is not among what PyTorch returns.)"""
        called = self
        if self.name == "math":
            few = {name: tensor[-FEW:] for name, tensor in self.inputs.items()}
            called = Backend(self.torch, self.name, few, self.causal, self.direction)
        with self.context():
            results = called.call()
            heads = {}
            for name, tensor in zip(RESULTS[self.direction], results):
                values = tensor.detach()[-1, -count:].contiguous().cpu()
                heads[name] = ctypes.create_string_buffer(ctypes.string_at(values.data_ptr(), 2 * values.numel()))
        return heads

    def close(self):
        """Memory goes back, as attest's is not PyTorch's."""
        self.o = None
        self.torch.cuda.empty_cache()
