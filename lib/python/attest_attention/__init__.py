"""attest: attention whose every number is checked. lib/python/README.md has examples."""

from ._abi import DeviceError, Error, Invalid, OutOfMemory, Unsupported
from ._arrays import BFloat16, is_torch
from ._audit import Bound, Report, TensorReport, audit, bounds, recipes
from ._run import Gradients, backward, forward

__version__ = "0.1.0"
__all__ = ["BFloat16", "Bound", "DeviceError", "Error", "Gradients", "Invalid", "OutOfMemory", "Report",
           "TensorReport", "Unsupported", "attention", "audit", "backward", "bounds", "forward", "recipes", "watch"]


def attention(q, k, v, **how):
    """o = softmax(scale q k^T) v, row by row, and lse; PyTorch tensors have gradients. `how`: lib/python/README.md."""
    if is_torch(q):
        from .torch_ops import attention as differentiable
        return differentiable(q, k, v, **how)
    return forward(q, k, v, **how)


def watch(*args, **kwargs):
    """Audits every attention call of a PyTorch model: see attest_attention.watch."""
    from .watching import Watch
    return Watch(*args, **kwargs)


_TORCH = ("scaled_dot_product_attention", "flash_attn_func", "flash_attn_varlen_func")


def __getattr__(name):
    """The drop-ins import PyTorch when they are first asked for."""
    if name in _TORCH:
        from . import torch_ops
        return getattr(torch_ops, name)
    raise AttributeError(f"module 'attest_attention' has no attribute {name!r}")
