#!/usr/bin/env python3
"""A flash attention in numpy as it was published (4 heads of 4096 rows of 32 uniform numbers, blocks of 64, float64,
equal to its references at allclose's 1e-7), beside attest: what agrees there, and what its author did not see."""

import sys
import unittest

import numpy as np

sys.path.insert(0, "lib/python")
import attest_attention as attest  # noqa: E402
from attest_attention.testing import find_counterexample  # noqa: E402

HEADS, ROWS, DIM, BLOCK, SCALE = 4, 4096, 32, 64, 32 ** -0.5


def published(q, k, v, block=BLOCK):
    """In float64. m is the maximum of the last block, not the largest so far."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    o, l, m = np.zeros_like(q[..., :1] * v[..., :1, :]), np.zeros(q.shape[:-1]), np.full(q.shape[:-1], -np.inf)
    for first in range(0, k.shape[-2], block):
        s = q @ k[..., first:first + block, :].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        m_new = s.max(-1)
        p, scale = np.exp(s - m_new[..., None]), np.exp(m - m_new)
        l = l * scale + p.sum(-1)
        o = o * scale[..., None] + p @ v[..., first:first + block, :]
        m = m_new
    return o / l[..., None]


def softmax_attention(q, k, v, maximum):
    """In one piece, a head at a time, for memory's sake; maximum: what is taken from the scores of a row."""
    o = np.empty((*q.shape[:-1], v.shape[-1]))
    for at in np.ndindex(q.shape[:-2]):
        s = q[at].astype(np.float64) @ k[at].astype(np.float64).T / np.sqrt(q.shape[-1])
        p = np.exp(s - maximum(s))
        o[at] = p @ v[at].astype(np.float64) / p.sum(-1, keepdims=True)
    return o


def with_a_maximum(q, k, v):
    return softmax_attention(q, k, v, lambda s: s.max(-1, keepdims=True))


def without_a_maximum(q, k, v):
    return softmax_attention(q, k, v, lambda s: 0.0)


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        r = np.random.default_rng(0)
        cls.q, cls.k, cls.v = (r.random((1, HEADS, ROWS, DIM), dtype=np.float32) for _ in range(3))

    def some(self, rows):
        """Some rows of q, all keys: a row of o depends on no other."""
        return np.ascontiguousarray(self.q[:, :, :rows]), self.k, self.v

    def test_it_equals_its_references(self):
        got = published(self.q, self.k, self.v)
        np.testing.assert_allclose(got, without_a_maximum(self.q, self.k, self.v), rtol=1e-7)
        np.testing.assert_allclose(got, with_a_maximum(self.q, self.k, self.v), rtol=1e-7)

    def test_reference_and_kernel_are_within_their_bounds_of_both_references(self):
        for device, recipe, rows in (("reference", "fp32", 256), ("sim", "forward_fp32", 8)):
            o, _ = attest.attention(*(self.some(ROWS) if device == "reference" else self.some(rows)), scale=SCALE,
                                    device=device)
            bound = attest.bounds(*self.some(rows), scale=SCALE, recipe=recipe)["o"].bound
            for want in (without_a_maximum(*self.some(rows)), with_a_maximum(*self.some(rows))):
                error = np.abs(o[:, :, :rows] - want)
                self.assertTrue((error <= bound).all(), f"{device}: {(error / bound).max()}")
            self.assertLess(np.square(bound).mean(), np.square(want).mean(), "a bound that is vacuous proves nothing")

    def test_on_the_published_numbers_it_passes_as_an_implementation(self):
        inputs = self.some(256)
        report = attest.audit(*inputs, o=published(*inputs).astype(np.float32), scale=SCALE, recipe="fp32",
                              statistical=False)
        self.assertTrue(report.passed, report)

    def test_the_audit_finds_and_shrinks_what_it_does_wrong(self):
        with np.errstate(all="ignore"):
            found = find_counterexample(published, heads=2, rows_q=4, rows_k=256)
        self.assertIsNotNone(found)
        self.assertGreater(found.report.tensors["o"].nan_count, 0)
        self.assertEqual(found.q.shape[:3], (1, 1, 1), found)
        self.assertLessEqual(found.k.shape[2], BLOCK + 1, found)
        s = (found.q.astype(np.float64) @ found.k.swapaxes(-1, -2).astype(np.float64)) / np.sqrt(found.q.shape[-1])
        fall = s[..., :BLOCK].max() - s[..., BLOCK:].max()
        self.assertGreater(fall, 709, "a block's maximum falls by more than exp can take")
        self.assertIn("NaN where the exact result is not", str(found))

    def test_with_the_true_maximum_nothing_is_found(self):
        self.assertIsNone(find_counterexample(with_a_maximum, heads=2, rows_q=4, rows_k=256))


if __name__ == "__main__":
    unittest.main()
