"""PyTorch's attention backends, and one of our own in Triton, where PyTorch is present and sees the GPU."""

import contextlib
import ctypes
import functools
import gc
import warnings

from ours import (INPUTS, OF_FEATURES, RESULTS, ROWS, Refused, axes_of, dtype_of, tensor_bytes, tensors_of)
from tables import DROPOUT, SOFTCAP

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
    """Device memory as torch.as_tensor takes it."""

    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3,
                                         "strides": None}


def view(torch, pointer, count):
    """`count` bytes of memory that is not torch's."""
    return torch.as_tensor(_Memory(pointer, count), device="cuda")


def tensors(torch, dtype, shape, pointers):
    """What a shape reads, by name. Those with rows are [batch][heads][seqlen][head_dim] to torch, however they lie."""
    found = {}
    for name in (*INPUTS, *(name for name in tensors_of(shape) if name in OF_FEATURES)):
        if name in ("dbias", "dsink"):
            continue
        axes = axes_of(name, shape)
        torch_type = {"fp32": torch.float32, "uint8": torch.bool, "int32": torch.int32, "fp16": torch.float16,
                      "bf16": torch.bfloat16}[dtype_of(name, dtype)]
        tensor = view(torch, pointers[name], tensor_bytes(name, shape)).view(torch_type)
        if shape.rows_first and name in ROWS:
            batch, heads, seqlen, head_dim = axes
            tensor = tensor.view(batch, seqlen, heads, head_dim).transpose(1, 2)
        found[name] = tensor.view(axes) if tensor.dim() == 1 else tensor
    return found


def must_not_have(shape, *features):
    """A sentence where a peer has no way to say what is asked."""
    for feature in features:
        if shape.window if feature == "window" else shape.has(feature):
            raise NotImplementedError(f"takes no {feature}")


def used_keys(torch, shape, extra):
    """seqused as a mask [batch][1][1][seqlen_k]."""
    keys = torch.arange(shape.seqlen_k, device=extra["seqused_k"].device)
    return (keys[None, :] < extra["seqused_k"][:, None])[:, None, None, :]


def sdpa(torch, name, shape, extra):
    """scaled_dot_product_attention with one backend. Lengths are a mask to it, and so is a causal mask whose last query
    sits on the last key where lengths differ."""
    must_not_have(shape, "sink", "alibi", "softcap", "block_mask", "window")
    masks = [extra[x] for x in ("bias", "mask") if x in extra]
    if shape.has("seqused"):
        masks.append(used_keys(torch, shape, extra))
    causal = shape.causal
    if causal and shape.seqlen_q != shape.seqlen_k:
        from torch.nn.attention.bias import causal_lower_right
        masks.append(causal_lower_right(shape.seqlen_q, shape.seqlen_k))
        causal = False
    if len(masks) + (causal and bool(masks)) > 1:
        raise NotImplementedError("takes one mask or bias")
    options = {"is_causal": causal}
    if masks:
        options["attn_mask"] = masks[0]
    if shape.has("dropout"):
        options["dropout_p"] = DROPOUT
    if shape.kv != shape.heads:
        options["enable_gqa"] = True
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[name])
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, **options)
    return attend, functools.partial(torch.nn.attention.sdpa_kernel, backend)


def whole(shape):
    import whole as triton_kernel  # needs Triton
    if shape.named() != ("plain",):
        raise NotImplementedError("the kernel takes no mask")
    return triton_kernel.attention, contextlib.nullcontext


def rows_first(attend):
    """A function of tensors [batch][seqlen][heads][head_dim] as one of [batch][heads][seqlen][head_dim]."""
    def turned(q, k, v):
        o = attend(*(x.transpose(1, 2) for x in (q, k, v)))
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
    return turned


def fa3(shape, direction):
    import fa3_fwd_interface
    must_not_have(shape, "sink", "alibi", "mask", "mask_k", "seqused", "bias", "dropout", "block_mask", "window")
    if direction == "backward":
        raise NotImplementedError("the package has no backward")
    options = {"causal": shape.causal}
    if shape.has("softcap"):
        options["softcap"] = float(SOFTCAP)
    return rows_first(functools.partial(fa3_fwd_interface.flash_attn_func, **options)), contextlib.nullcontext


def fa4(shape, extra):
    from flash_attn.cute import flash_attn_func
    must_not_have(shape, "alibi", "mask", "mask_k", "seqused", "bias", "dropout", "block_mask")
    options = {"causal": shape.causal}
    if shape.window:
        options["window_size"] = (shape.window, 0)
    if shape.has("softcap"):
        options["softcap"] = float(SOFTCAP)
    if shape.has("sink"):
        options["learnable_sink"] = extra["sink"]
    return rows_first(functools.partial(flash_attn_func, **options)), contextlib.nullcontext


def attention(torch, name, shape, direction, extra):
    """A function of q, k, v, and what it is to be called in. `extra`: all that the shape reads, by name."""
    if name == "whole":
        return whole(shape)
    if name == "FA3":
        return fa3(shape, direction)
    if name == "FA4":
        return fa4(shape, extra)
    if name == "flex":
        import flex
        return flex.attention(shape, extra), contextlib.nullcontext
    return sdpa(torch, name, shape, extra)


@contextlib.contextmanager
def refusals():
    """Whatever a peer raises, it refuses, and the others go on."""
    try:
        with warnings.catch_warnings(action="ignore"):  # they say at length why not
            yield
    except ImportError as error:
        raise Refused(f"not installed: {error}") from None
    except Exception as error:
        raise Refused((str(error) or repr(error)).splitlines()[0]) from None


class Backend:
    """One backend on one shape, in one direction. Refused where it takes it not, at once, in results or any call."""

    def __init__(self, torch, name, shape, inputs, direction):
        """`inputs`: what tensors() returns."""
        self.torch, self.name, self.shape, self.direction = torch, name, shape, direction
        self.inputs, self.o = dict(inputs), None
        wanted = ["q", "k", "v", *(x for x, of in (("bias", "dbias"), ("sink", "sink")) if shape.has(of))]
        for x in wanted:
            self.inputs[x] = inputs[x].detach().requires_grad_(direction == "backward")
        self.wanted = [self.inputs[x] for x in wanted]
        with refusals():
            self.attend, self.selected = attention(torch, name, shape, direction, self.inputs)

    @contextlib.contextmanager
    def context(self):
        """Entered around a call, outside of what is timed."""
        with refusals(), self.selected():
            yield

    def call(self):
        """Backward, the first call runs forward, too."""
        if self.direction == "forward":
            return (self.attend(*self.wanted[:3]),)
        if self.o is None:
            self.o = self.attend(*self.wanted[:3])
        return self.torch.autograd.grad(self.o, self.wanted, self.inputs["dout"], retain_graph=True)

    def results(self, checked):
        """Those heads of the last sequence that are checked, by name, as bytes that lie as attest's do. (lse is not
        among what PyTorch returns.) None under dropout, whose random bits are the peer's own."""
        if self.shape.has("dropout"):
            return {}
        called = self
        if self.name == "math":
            few = {x: tensor[-FEW:] if x in ROWS else tensor for x, tensor in self.inputs.items()}
            called = Backend(self.torch, self.name, self.shape._replace(batch=FEW), few, self.direction)
        with self.context():
            results = called.call()
            found = {}
            for name, tensor in zip(RESULTS[self.direction], results):
                values = tensor.detach()[-1, -axes_of(name, checked)[1]:]
                values = (values.transpose(0, 1) if self.shape.rows_first else values).contiguous().cpu()
                found[name] = ctypes.create_string_buffer(ctypes.string_at(values.data_ptr(), 2 * values.numel()))
        return found

    def close(self):
        """Memory goes back, as attest's is not PyTorch's."""
        self.o = self.attend = None
        gc.collect()
        self.torch.cuda.empty_cache()
