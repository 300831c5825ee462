#!/usr/bin/env python3
"""The package with numpy alone: every feature as audited by the library, and every sentence of a bad call."""

import sys
import unittest

import numpy as np

sys.path.insert(0, "lib/python")
import attest_attention as attest  # noqa: E402
from attest_attention import BFloat16, Invalid, Unsupported  # noqa: E402

B, HQ, HKV, SQ, SK, D, DV = 2, 4, 2, 9, 13, 8, 6


def numbers(seed=0, **shapes):
    r = np.random.default_rng(seed)
    return {n: r.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}


def dense(seed=0):
    return numbers(seed, q=(B, HQ, SQ, D), k=(B, HKV, SK, D), v=(B, HKV, SK, DV), dout=(B, HQ, SQ, DV))


def softmax_attention(q, k, v, scale, visible=None, bias=0.0):
    """In double, with no maximum taken and no tiles: another way than the library's."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    x = np.exp(scale * q @ k.swapaxes(-1, -2) + bias) * (1.0 if visible is None else visible)
    return (x / x.sum(-1, keepdims=True)) @ v, np.log(x.sum(-1))


def run(c, **how):
    """Results of the reference device, as audit() takes them."""
    o, lse = attest.attention(c["q"], c["k"], c["v"], **how)
    wanted = {"dbias": "bias" in how, "dsink": "sink" in how}
    g = attest.backward(c["dout"], c["q"], c["k"], c["v"], o, lse, **wanted, **how)
    return {"o": o, "lse": lse, **{n: x for n, x in g._asdict().items() if x is not None}}


class Everything(unittest.TestCase):
    """Every feature: what the reference device returns passes, and with one number changed it fails at its place."""

    def check(self, how, count=5, c=None):
        c = c or dense()
        results = run(c, **how)
        self.assertEqual(len(results), count)
        report = attest.audit(**c, **results, recipe="fp32", statistical=False, **how)
        self.assertTrue(report.passed, report)
        self.assertEqual(list(report.tensors), list(results))
        for name in results:
            wrong = results[name].copy()
            at = np.unravel_index(np.argmax(np.abs(np.where(np.isfinite(wrong), wrong, 0))), wrong.shape)
            wrong[at] *= 1.01
            judged = attest.audit(**c, **{**results, name: wrong}, recipe="fp32",
                                  statistical=False, **how).tensors[name]
            self.assertEqual(judged.verdict, "FAIL", name)
            self.assertEqual(np.float32(judged.got), wrong[at], judged.sentence)
        return results

    def test_plain_beside_numpy(self):
        c = dense()
        r = self.check({})
        o, lse = softmax_attention(c["q"], c["k"], c["v"], D ** -0.5)
        np.testing.assert_allclose(r["o"], o, rtol=0, atol=3e-7)
        np.testing.assert_allclose(r["lse"], lse, rtol=0, atol=3e-7)

    def test_causal_either_diagonal(self):
        c = dense()
        for diag, shift in (("bottom-right", SK - SQ), ("top-left", 0), (2, 2)):
            r = self.check({"causal": True, "diag": diag})
            visible = np.tri(SQ, SK, shift)
            np.testing.assert_allclose(r["o"], softmax_attention(c["q"], c["k"], c["v"], D ** -0.5, visible)[0], rtol=0,
                                       atol=3e-7)

    def test_masks_and_biases(self):
        r = np.random.default_rng(5)
        for shape in ((SQ, SK), (1, SK), (HQ, SQ, SK), (B, 1, SQ, SK), (B, HQ, 1, SK)):
            self.check({"mask": r.random(shape) < 0.7, "scale": 0.3})
            self.check({"bias": r.standard_normal(shape, dtype=np.float32)}, 6)
        self.check({"block_mask": r.random((B, HQ, 3, 3)) < 0.8, "block_size": (4, 5)})

    def test_scores(self):
        r = np.random.default_rng(6)
        slopes, sink = (np.abs(r.standard_normal(HQ, dtype=np.float32)) for _ in range(2))
        self.check({"softcap": 2.0})
        self.check({"alibi_slopes": slopes})
        self.check({"alibi_slopes": slopes, "alibi_diag": "top-left"})
        self.check({"sink": sink}, 6)
        self.check({"window": (3, 2), "diag": 1})
        self.check({"dropout_p": 0.3, "dropout_seed": 11, "dropout_offset": 3})
        self.check({"dropout_p": 0.3, "dropout_seed": np.array([11], np.int64)})
        self.check({"q_start": 40, "k_start": 35, "window": (9, 0), "diag": 3, "dropout_p": 0.1})
        self.check({"seqused_q": np.array([9, 4], np.int32), "seqused_k": np.array([2, 13], np.int32)})

    def test_ragged(self):
        c = numbers(7, q=(15, HQ, D), k=(20, HKV, D), v=(20, HKV, DV), dout=(15, HQ, DV))
        starts = {"cu_seqlens_q": np.array([0, 4, 4, 15], np.int32), "cu_seqlens_k": np.array([0, 9, 12, 20], np.int32)}
        r = self.check({**starts, "causal": True, "diag": "bottom-right"}, c=c)
        self.assertEqual(r["lse"].shape, (HQ, 15))
        alone = attest.attention(c["q"][4:][None], c["k"][12:][None], c["v"][12:][None], layout="bshd", causal=True,
                                 diag="bottom-right")
        np.testing.assert_array_equal(r["o"][4:], alone[0][0])
        np.testing.assert_array_equal(r["lse"][:, 4:], alone[1][0])

    def test_layouts_of_each_tensor(self):
        c = dense()
        want = run(c)
        for layout in ("bshd", "sbhd", "hbsd"):
            axes = ["bhsd".index(letter) for letter in layout]
            moved = {n: np.ascontiguousarray(x.transpose(axes)) for n, x in c.items()}
            got = run(moved, layout=layout)
            for name in ("o", "dq", "dk", "dv"):
                np.testing.assert_array_equal(got[name], want[name].transpose(axes))
        seen = attest.audit(c["q"], c["k"], c["v"], o=want["o"].transpose(0, 2, 1, 3).copy(), recipe="fp32",
                            lse=want["lse"].transpose(2, 0, 1).copy(), layout={"o": "bshd", "lse": "sbh"})
        self.assertTrue(seen.passed, seen)

    def test_strided_inputs_are_read_where_they_lie(self):
        c = dense()
        packed = np.full((B, SK, 3, HKV, D), np.nan, np.float32)
        packed[:, :, 1] = c["k"].swapaxes(1, 2)
        k = packed[:, :, 1].swapaxes(1, 2)
        o, _ = attest.attention(c["q"], k, c["v"])
        np.testing.assert_array_equal(o, attest.attention(c["q"], c["k"], c["v"])[0])

    def test_the_simulated_gpu(self):
        c = dense()
        o, lse = attest.attention(c["q"], c["k"], c["v"], device="sim")
        attest.audit(c["q"], c["k"], c["v"], o=o, lse=lse, recipe="forward_fp32")
        self.assertTrue(attest.audit(c["q"], c["k"], c["v"], o=o, lse=lse, recipe="forward_fp32").passed)


class SixteenBits(unittest.TestCase):
    def test_bfloat16_rounds_to_nearest_even(self):
        x = np.array([1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, np.inf, np.nan, -0.0], np.float32)
        got = BFloat16.round(x).float32()
        np.testing.assert_array_equal(got, np.array([1, 1, 1 + 2 ** -6, 1 + 2 ** -7, np.inf, np.nan, -0.0], np.float32))
        self.assertTrue(np.signbit(got[-1]))
        self.assertRaisesRegex(Invalid, "numbers are float64", BFloat16.round, x.astype(np.float64))

    def test_both_formats(self):
        c = dense()
        for dtype, convert in (("bfloat16", BFloat16.round), ("float16", lambda x: x.astype(np.float16))):
            rounded = {n: convert(x) for n, x in c.items()}
            r = run(rounded)
            self.assertEqual(str(r["dv"].dtype), dtype)
            self.assertEqual(r["lse"].dtype, np.float32)
            report = attest.audit(**rounded, **r, also=["fp32", "mixed"])
            self.assertTrue(report.passed, report)
            self.assertEqual(report.strictest("dv"), "fp32")
            self.assertIn("PASS fp32", report.table())
            self.assertFalse(attest.audit(c["q"], c["k"], c["v"], o=r["o"], recipe="fp32", statistical=False).passed,
                             "inputs that were not rounded are other inputs")


class Foreign:
    """An array of somebody else's framework: what DLPack says and nothing else."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **_):
        return self.x.__dlpack__()


class Frameworks(unittest.TestCase):
    def test_dlpack(self):
        c = dense()
        o, lse = attest.attention(c["q"], c["k"], c["v"])
        q = Foreign(np.ascontiguousarray(c["q"].swapaxes(1, 2)).swapaxes(1, 2))
        seen = attest.audit(q, Foreign(c["k"]), Foreign(c["v"]), o=Foreign(o), lse=Foreign(lse), recipe="fp32",
                            mask=Foreign(np.ones((SQ, SK), np.uint8)))
        self.assertTrue(seen.passed, seen)
        self.assertRaisesRegex(
    Invalid,
    "q is float64",
    attest.audit,
    Foreign(
        c["q"].astype(
            np.float64)),
            c["k"],
            c["v"],
             o=o)

    def test_cuda_array_interface(self):
        """Memory of the host, described as CuPy describes that of a GPU."""
        from attest_attention._arrays import array
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).swapaxes(0, 1)
        for strides in (x.strides, None):
            data = x if strides else np.ascontiguousarray(x)
            fake = type("Fake", (), {"__cuda_array_interface__": {
                "shape": x.shape, "typestr": "<f4", "data": (data.ctypes.data, False), "strides": strides}})()
            a = array("x", fake)
            self.assertEqual((a.pointer, a.dtype, a.shape, a.device), (data.ctypes.data, "float32", (3, 2, 4), 0))
            self.assertEqual(a.strides, (4, 12, 1) if strides else (8, 4, 1))


class Sampled(unittest.TestCase):
    HOW = {"mask": np.random.default_rng(8).random((B, HQ, SQ, SK)) < 0.8, "causal": True, "diag": "bottom-right",
           "alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
           "sink": np.array([0.1, 0, -0.2, 0.5], np.float32),
           "bias": np.random.default_rng(9).standard_normal((B, HQ, SQ, SK), dtype=np.float32),
           "dropout_p": 0.2, "dropout_seed": 5, "seqused_k": np.array([13, 7], np.int32)}

    def test_each_pair_is_judged_as_in_the_whole(self):
        c, found = dense(), {}
        r = run(c, **self.HOW)
        del r["dsink"]
        whole = attest.audit(**c, **r, recipe="fp32", statistical=False, **self.HOW)
        self.assertTrue(whole.passed, whole)
        for seed in range(40):
            one = attest.audit(**c, **r, recipe="fp32", statistical=False, sample=1, seed=seed, **self.HOW)
            self.assertTrue(one.passed, one)
            self.assertIn(f"seed {seed}", one.table())
            for name, t in one.tensors.items():
                self.assertEqual(t.count * B * HKV, whole.tensors[name].count)
                found.setdefault(name, {})[t.index] = t.share
        for name, t in whole.tensors.items():
            self.assertEqual(max(found[name].values()), t.share, name)
            self.assertEqual(found[name][t.index], t.share, name)

    def test_a_fault_is_found_where_it_is(self):
        c = dense()
        r = run(c)
        r["dk"][1, 1, 3, 4] += 1
        verdicts = {seed: attest.audit(**c, **r, statistical=False, sample=1, seed=seed) for seed in range(20)}
        failing = [v.tensors["dk"] for v in verdicts.values() if not v.passed]
        self.assertTrue(0 < len(failing) < 20)
        for t in failing:
            self.assertEqual(t.index, (1, 3, 1, 4))
            self.assertTrue(t.sentence.startswith("dk[1, 3, 1, 4] (b, row, head, x) is "), t.sentence)

    def test_sums_over_pairs_are_not_judged(self):
        c = dense()
        how = {"sink": self.HOW["sink"], "bias": self.HOW["bias"][:1]}
        seen = attest.audit(**c, **run(c, **how), sample=2, statistical=False, **how)
        self.assertIn("not judged, since they are sums over pairs: dbias, dsink", seen.table())
        self.assertNotIn("dsink", seen.tensors)


class Bounds(unittest.TestCase):
    def test_arrays_for_ones_own_comparison(self):
        c = dense()
        how = {"sink": Sampled.HOW["sink"], "bias": Sampled.HOW["bias"][:, :1], "layout": "bhsd"}
        r = run(c, **how)
        found = attest.bounds(**c, o=r["o"], lse=r["lse"], recipe="fp32", **how)
        self.assertEqual(list(found), ["o", "lse", "dq", "dk", "dv", "dbias", "dsink"])
        for name, b in found.items():
            self.assertEqual(b.exact.shape, r[name].shape)
            self.assertTrue((np.abs(r[name] - b.exact) <= b.bound).all(), name)
            self.assertTrue(0 < b.bound.max() < 1e-3, name)
        report = attest.audit(**c, **r, recipe="fp32", statistical=False, **how)
        for name, b in found.items():
            self.assertAlmostEqual(np.nanmax(np.abs(r[name] - b.exact) / b.bound), report.tensors[name].share, places=9)

    def test_in_every_layout_and_ragged(self):
        c = numbers(7, q=(15, HQ, D), k=(20, HKV, D), v=(20, HKV, DV))
        starts = {"cu_seqlens_q": np.array([0, 4, 15], np.int32), "cu_seqlens_k": np.array([0, 9, 20], np.int32)}
        o, lse = attest.attention(**c, **starts)
        found = attest.bounds(**c, **starts)
        self.assertTrue((np.abs(o - found["o"].exact) <= found["o"].bound).all())
        self.assertTrue((np.abs(lse - found["lse"].exact) <= found["lse"].bound).all())
        self.assertGreater(found["o"].bound.max(), 0)

    def test_wider_results_have_smaller_bounds(self):
        c = {n: BFloat16.round(x) for n, x in dense().items()}
        narrow, wide = (attest.bounds(c["q"], c["k"], c["v"], dtype=t, recipe="fp32") for t in ("bfloat16", "float32"))
        self.assertGreater(narrow["o"].bound.mean(), 100 * wide["o"].bound.mean())


class Reports(unittest.TestCase):
    def test_what_a_failing_test_prints(self):
        c = dense()
        o, lse = attest.attention(c["q"], c["k"], c["v"])
        from attest_attention.testing import assert_attention_close
        self.assertTrue(assert_attention_close(c["q"], c["k"], c["v"], o=o, lse=lse).passed)
        o[1, 2, 3, 4] += 0.5
        with self.assertRaises(AssertionError) as raised:
            assert_attention_close(c["q"], c["k"], c["v"], o=o, lse=lse)
        self.assertRegex(str(raised.exception), r"^FAIL: o\[1, 3, 2, 4\] \(b, row, head, x\) is \S+, but must be "
                                                r"within \S+ of \S+: \S+ times the bound\ntensor ")

    def test_html_is_escaped_and_whole(self):
        c = dense()
        o, _ = attest.attention(c["q"], c["k"], c["v"])
        o[0, 0, 0, 0] = np.nan
        report = attest.audit(c["q"], c["k"], c["v"], o=o)
        page = report._repr_html_()
        self.assertIn("<b>FAIL</b>", page)
        self.assertIn(f"1 of {B * HQ * SQ * DV} elements of o are NaN", page)
        self.assertEqual(page.count("<tr>"), 2)
        self.assertEqual(report.tensors["o"].nan_count, 1)
        self.assertIn("o:FAIL", repr(report))

    def test_recipes(self):
        self.assertEqual(attest.recipes(), ["fp32", "mixed", "flash", "ampere", "hopper", "lazy"])


class Refused(unittest.TestCase):
    """Each sentence has the field's name."""

    def refused(self, sentence, error=Invalid, call=None, **change):
        c = {n: x for n, x in dense().items() if n != "dout"}
        with self.assertRaises(error) as raised:
            (call or attest.attention)(**{**c, **change})
        self.assertTrue(str(raised.exception).startswith(sentence), raised.exception)

    def test_arrays(self):
        c = dense()
        self.refused("q is float64, but must be float32 or float16", q=c["q"].astype(np.float64))
        self.refused("k is float16, but must be float32", k=c["k"].astype(np.float16))
        self.refused("q is a list, but must be an array", q=[1.0])
        self.refused(
    "v has a stride of 13 between features",
    v=np.ascontiguousarray(
        c["v"].swapaxes(
            2,
            3)).swapaxes(
                2,
                 3))
        self.refused("q has shape (4, 9, 8), but must have 4 axes: b, h, s, d", q=c["q"][0])
        self.refused("k has shape (1, 2, 13, 8), but must have the batch and the features of q", k=c["k"][:1])
        self.refused("k has shape (2, 2, 13, 7), but must have the batch", k=np.ascontiguousarray(c["k"][..., :7]))
        self.refused("v has shape (2, 2, 12, 6), but must have the batch, rows and heads of k", v=c["v"][:, :, :12])
        self.refused("q has 3 heads, but must have a multiple of k's, 2", q=c["q"][:, :3])
        self.refused("layout of q is 'bsd'", layout="bsd")
        self.refused("mask is int64, but must be bool or uint8", mask=np.ones((SQ, SK), np.int64))
        self.refused("mask has shape (13, 9), but must broadcast to (2, 4, 9, 13)", mask=np.ones((SK, SQ), bool))
        self.refused("bias is float64", bias=np.zeros((SQ, SK)))
        self.refused("sink has shape (3,)", sink=np.zeros(3, np.float32))
        self.refused("alibi_slopes is float64", alibi_slopes=np.zeros(HQ))
        self.refused("block_size is None", block_mask=np.ones((1, 1), bool))
        self.refused("seqused_k is int64", seqused_k=np.zeros(B, np.int64))
        self.refused("device is 'gpu', but must be one of cuda, sim, reference", device="gpu")
        self.refused("q is on device cpu, but must be on a GPU for device='cuda'", device="cuda")

    def test_scores(self):
        self.refused("diag is None, but must be 'top-left'", causal=True)
        self.refused("diag is 'left', but must be one of", causal=True, diag="left")
        self.refused("window is (2, 3), but must have 0 or -1 at the right", causal=True, window=(2, 3), diag=0)
        self.refused("softmax_scale = inf, but must be finite", scale=np.inf)
        self.refused("dropout_p = 1, but must be 0 .. 0.99999", dropout_p=1.0)
        self.refused("seqused_k[0] = 14, but must be 0 .. 13", seqused_k=np.array([14, 2], np.int32))
        self.refused("softcap = -1, but must be", softcap=-1.0)

    def test_ragged(self):
        c = numbers(7, q=(15, HQ, D), k=(20, HKV, D), v=(20, HKV, DV))
        starts = np.array([0, 4, 15], np.int32), np.array([0, 9, 20], np.int32)
        def refused(sentence, a, b, **more):
            self.refused(sentence, cu_seqlens_q=a, cu_seqlens_k=b, **c, **more)
        refused(
    "cu_seqlens_q is int64, but must be int32: nothing is converted in silence",
    starts[0].astype(
        np.int64),
         starts[1])
        refused("cu_seqlens_k is None", starts[0], None)
        refused("cu_seqlens_k has 2 numbers, but must have 3", starts[0], starts[1][:2])
        refused("cu_seqlens_q[2] = 99, but must be", np.array([0, 4, 99], np.int32), starts[1])
        refused("cu_seqlens_k[1] = 9, but must be 0 .. 5", *starts, max_seqlen_k=5)

    def test_audits(self):
        c = dense()
        o, _ = attest.attention(c["q"], c["k"], c["v"])
        self.refused("o is None, and so are lse", call=attest.audit)
        self.refused("dout is None, but must be given: dq cannot be judged", call=attest.audit, dq=c["q"])
        self.refused("o has shape (2, 4, 13, 6), but must have (2, 4, 9, 6): b, h, s, d", call=attest.audit,
                     o=np.zeros((B, HQ, SK, DV), np.float32))
        self.refused("lse is float64", call=attest.audit, lse=np.zeros((B, HQ, SQ)))
        self.refused("recipe is 'flush', but must be one of fp32, mixed", call=attest.audit, o=o, recipe="flush")
        self.refused("sample is 0, but must be at least 1", call=attest.audit, o=o, sample=0)
        self.refused("dbias is given, but must not be where bias is not", call=attest.audit,
                     dbias=np.zeros((SQ, SK), np.float32), dout=c["dout"])
        self.refused("device is given, but must not be", call=attest.audit, o=o, device="sim")

    def test_backward(self):
        c = dense()
        o, lse = attest.attention(c["q"], c["k"], c["v"])
        def refused(sentence, **change):
            self.refused(sentence, call=attest.backward, **{"dout": c["dout"], "o": o, "lse": lse, **change})
        refused("lse is None, but must be given", lse=None)
        refused("dbias is True, but must not be where bias is None", dbias=True)
        refused("dout has shape (2, 4, 9, 8)", dout=c["q"])
        self.refused("no kernel takes the problem: softcap = 3e+38", Unsupported, device="sim", softcap=3e38)


if __name__ == "__main__":
    unittest.main()
