#!/usr/bin/env -S python3 -B
"""That masks, biases, groups and all the rest mean to PyTorch what they mean to attest: its unfused path and
FlexAttention, both on the host, beside the reference device. Skipped where there is no PyTorch."""

import ctypes
import itertools
import unittest
from unittest import mock

import bench
import measure
import ours
import peers
import tables

try:
    import torch
    import torch.nn.attention
except ImportError:
    torch = None


def host_view(_, pointer, count):
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(pointer), dtype=torch.uint8)


class Host:
    """Inputs of a shape in the host's memory, by name, as ctypes buffers."""

    def __init__(self, library, shape):
        self.library, self.shape = library, shape
        self.buffers = {name: library.draw("bf16", "normal", name, ours.tensor_bytes(name, shape) // 2)
                        for name in ours.INPUTS}
        if shape.has("bias"):
            self.buffers["bias"] = library.draw("bf16", "normal", "bias", ours.tensor_bytes("bias", shape) // 2)
        if shape.has("sink"):
            self.buffers["sink"] = library.draw("fp32", "normal", "sink", shape.heads)
        if shape.has("mask") or shape.has("mask_k"):
            count = ours.tensor_bytes("mask", shape)
            self.buffers["mask"] = ctypes.create_string_buffer(measure.random_mask(count), count)
        self.buffers.update(measure.small_inputs(shape))

    def tensors(self):
        pointers = {name: ctypes.addressof(buffer) for name, buffer in self.buffers.items()}
        with mock.patch.object(peers, "view", host_view):
            return peers.tensors(torch, "bf16", self.shape, pointers)

    def wanted(self):
        """The oracle's results, as tensors."""
        found = ours.oracle(self.library, "bf16", self.shape, self.buffers)
        tensors = {}
        for name, array in found.items():
            axes = ours.axes_of(name, self.shape)
            tensor = torch.tensor(list(array))
            if self.shape.rows_first and name in ours.ROWS:
                tensor = tensor.view(axes[0], axes[2], axes[1], axes[3]).transpose(1, 2)
            tensors[name] = tensor.reshape(axes)
        return tensors


PLAIN = tables.Shape(2, 4, 72, 72, 16)
FEW = tables.Shape(2, 4, 24, 72, 16)
BLOCKS = tables.Shape(1, 1, 2048, 2048, 8, features=("block_mask",))


@unittest.skipUnless(torch, "there is no PyTorch")
class Meaning(unittest.TestCase):
    """Errors of results rounded to bf16 are near 2^-9 in Frobenius norms, of the gradients some times that."""

    def setUp(self):
        self.library = ours.Library(bench.library_path())

    def close(self, got, want, name):
        got, want = got.detach().double(), want.double()
        self.assertFalse(got.isnan().any(), name)
        self.assertTrue((got - want).norm() / want.norm() <= 2**-7, (name, (got - want).norm() / want.norm()))

    def agree(self, shape, name, directions):
        host = Host(self.library, shape)
        want, inputs = host.wanted(), host.tensors()
        for direction in directions:
            backend = peers.Backend(torch, name, shape, inputs, direction)
            with backend.context():
                results = backend.call()
            names = ["o"] if direction == "forward" else ["dq", "dk", "dv"] + ["dbias"] * shape.has("dbias")
            for result, got in zip(names, results):
                self.close(got, want[result], f"{shape.named()} {result}")

    def shapes(self, features):
        """Each feature alone, on both layouts and with few queries."""
        for shape, rows_first in itertools.product((PLAIN, FEW), (False, True)):
            shape = shape._replace(rows_first=rows_first)
            yield shape
            yield shape._replace(causal=True)
            yield shape._replace(heads_kv=2)
            for feature in features:
                yield shape._replace(features=(feature,))

    def test_the_unfused_path(self):
        for shape in self.shapes(("mask_k", "mask", "seqused", "bias", "dbias")):
            with self.subTest(shape=shape):
                self.agree(shape, "math", ours.RESULTS)

    def test_flex(self):
        """Forward alone: it has no backward on the host."""
        import flex
        compiled = flex.attention
        shapes = list(self.shapes(("mask_k", "mask", "seqused", "bias", "softcap", "alibi", "sink")))
        shapes += [PLAIN._replace(causal=True, window=30), BLOCKS,
                   PLAIN._replace(causal=True, heads_kv=2, features=("alibi", "mask", "bias", "softcap"))]
        with mock.patch.object(flex, "attention", lambda shape, extra: compiled(shape, extra, compiled=False)):
            for shape in shapes:
                with self.subTest(shape=shape):
                    self.agree(shape, "flex", ("forward",))


if __name__ == "__main__":
    unittest.main()
