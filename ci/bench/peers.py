"""PyTorch's attention backends, where PyTorch is present and sees the GPU."""

import ctypes
import warnings

from ours import RESULTS, Refused

BACKENDS = {"FA2": "FLASH_ATTENTION", "memeff": "EFFICIENT_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}


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


class Backend:
    """One backend of scaled_dot_product_attention on one shape, in one direction. Refused where it takes it not."""

    def __init__(self, torch, name, inputs, causal, direction):
        """`inputs`: tensors q, k, v, dout [batch][heads][seqlen][head_dim]."""
        self.torch, self.causal, self.direction = torch, causal, direction
        self.backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[name])
        self.qkv = [inputs[x].detach().requires_grad_(direction == "backward") for x in "qkv"]
        self.dout = inputs["dout"]
        try:
            with warnings.catch_warnings(action="ignore"), self.context():  # they say at length why not
                self.o = self._attention() if direction == "backward" else None
                self.call()
        except RuntimeError as error:
            raise Refused(str(error).splitlines()[0]) from None

    def context(self):
        """Entered around a call, outside of what is timed."""
        return self.torch.nn.attention.sdpa_kernel(self.backend)

    def _attention(self):
        return self.torch.nn.functional.scaled_dot_product_attention(*self.qkv, is_causal=self.causal)

    def call(self):
        if self.direction == "forward":
            return (self._attention(),)
        return self.torch.autograd.grad(self.o, self.qkv, self.dout, retain_graph=True)

    def last_heads(self):
        """The results' last head of the last sequence, by name. (lse is not among what PyTorch returns.)"""
        with self.context():
            results = self.call()
        heads = {}
        for name, tensor in zip(RESULTS[self.direction], results):
            values = tensor.detach()[-1, -1].contiguous().cpu()
            heads[name] = ctypes.create_string_buffer(ctypes.string_at(values.data_ptr(), 2 * values.numel()))
        return heads

    def close(self):
        self.o = None
