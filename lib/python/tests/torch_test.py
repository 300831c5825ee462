#!/usr/bin/env python3
"""The package with PyTorch: operators, drop-ins, watch(). ATTEST_PYTHON names a Python that has it, for Bazel."""

import sys
import types
import unittest
import warnings

sys.path.insert(0, "lib/python")
try:
    import torch
except ImportError:
    print("UNCHECKED: PyTorch is not here (ATTEST_PYTHON names a Python that has it)")
    sys.exit(0)

import attest_attention as attest  # noqa: E402
from attest_attention import Invalid, Unsupported, torch_ops  # noqa: E402

torch.manual_seed(0)
warnings.filterwarnings("ignore", message="Cannot enable AMX")
sdpa = torch.nn.functional.scaled_dot_product_attention


def inputs(dtype=torch.float32, batch=2, heads=4, heads_kv=2, rows_q=19, rows_k=27, features=16):
    return [torch.randn(batch, h, n, features).to(dtype).requires_grad_()
            for h, n in ((heads, rows_q), (heads_kv, rows_k), (heads_kv, rows_k))]


def gradients(o, dout, qkv, **more):
    return dict(zip(("dq", "dk", "dv", *more), torch.autograd.grad(o, [*qkv, *more.values()], dout)))


class Operators(unittest.TestCase):
    SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])

    def audited(self, qkv, how, recipe="fp32", **learned):
        """Forward and backward by autograd, judged: as are gradients of what is in `learned`, named as audit() does."""
        o, lse = attest.attention(*qkv, **how, **{n[1:]: x for n, x in learned.items()})
        dout, dlse = torch.randn_like(o), torch.randn_like(lse)
        found = torch.autograd.grad((o, lse), [*qkv, *learned.values()], (dout, dlse))
        grads = dict(zip(("dq", "dk", "dv", *learned), found))
        features = {n[1:]: x.detach() for n, x in learned.items()}
        report = attest.audit(*qkv, o=o, lse=lse, dout=dout, dlse=dlse, **grads, recipe=recipe, statistical=False,
                              **how, **features)
        self.assertTrue(report.passed, report)
        self.assertEqual(list(report.tensors), ["o", "lse", "dq", "dk", "dv", *learned])
        return o, lse

    def test_gradients_by_autograd(self):
        self.audited(inputs(), {})
        self.audited(inputs(), {"causal": True, "diag": "bottom-right", "softcap": 3.0, "alibi_slopes": self.SLOPES})
        self.audited(inputs(), {"mask": torch.rand(2, 1, 19, 27) > 0.3, "window": (5, 3), "diag": 4})
        self.audited(inputs(), {"dropout_p": 0.2, "dropout_seed": torch.tensor([7]), "scale": 0.3})
        self.audited(inputs(), {"block_mask": torch.rand(4, 3, 3) > 0.2, "block_size": (8, 10)})
        self.audited(inputs(), {"seqused_k": torch.tensor([27, 5], dtype=torch.int32)})

    def test_gradients_of_bias_and_sink(self):
        for shape in ((19, 27), (2, 1, 19, 27), (4, 1, 27)):
            self.audited(inputs(), {}, dbias=torch.randn(shape, requires_grad=True),
                         dsink=torch.randn(4, requires_grad=True))

    def test_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            o, lse = self.audited(inputs(dtype), {"causal": True, "diag": "top-left"})
            self.assertEqual((o.dtype, lse.dtype), (dtype, torch.float32))

    def test_gradients_of_lse_alone_and_of_nothing(self):
        q, k, v = inputs()
        o, lse = attest.attention(q, k, v)
        dq, dv = torch.autograd.grad(lse.sum(), (q, v), retain_graph=True)
        self.assertTrue(dq.abs().sum() > 0 and dv.abs().sum() == 0)
        self.assertTrue(torch.autograd.grad(o.sum(), q)[0].isfinite().all())  # a gradient of one number spread out

    def operator_arguments(self, qkv, **how):
        """What attention() hands to the operator."""
        caught, real = [], torch_ops._forward
        torch_ops._forward = lambda *args: caught.append(args) or (None, None)
        try:
            attest.attention(*qkv, **how)
        finally:
            torch_ops._forward = real
        return caught[0]

    def test_opcheck(self):
        ragged = [torch.randn(15, h, 8, requires_grad=True) for h in (4, 2, 2)]
        starts = torch.tensor([0, 4, 15], dtype=torch.int32)
        cases = [(inputs(), {}), (inputs(torch.bfloat16), {"causal": True, "diag": 3}),
                 (inputs(), {"bias": torch.randn(19, 27, requires_grad=True),
                             "sink": torch.randn(4, requires_grad=True)}),
                 (ragged, {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 11, "max_seqlen_k": 11})]
        for qkv, how in cases:
            said = torch.library.opcheck(torch_ops._forward, self.operator_arguments(qkv, **how))
            self.assertEqual(set(said.values()), {"SUCCESS"}, said)

    def test_compile_in_one_graph(self):
        q, k, v = inputs()

        def model(q, k, v):
            return attest.scaled_dot_product_attention(q, k * 2, v, enable_gqa=True).sin()

        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        dout = torch.randn(2, 4, 19, 16)
        for got, want in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v), dout),
                             torch.autograd.grad(model(q, k, v), (q, k, v), dout)):
            self.assertTrue(torch.equal(got, want))


class DropIns(unittest.TestCase):
    def test_as_pytorch_has_it(self):
        """What PyTorch returned and what attest does, audited as the same problem."""
        for shape, how, audit in (
                ({}, {"is_causal": True}, {"causal": True, "diag": "top-left"}),
                ({"rows_q": 31}, {"is_causal": True, "scale": 0.3}, {"causal": True, "diag": "top-left", "scale": 0.3}),
                ({}, {"attn_mask": torch.rand(19, 27) > 0.4}, "mask"),
                ({}, {"attn_mask": torch.randn(2, 1, 19, 27)}, "bias")):
            qkv = inputs(**shape)
            audit = {audit: how["attn_mask"]} if isinstance(audit, str) else audit
            for call in (sdpa, attest.scaled_dot_product_attention):
                o = call(*qkv, enable_gqa=True, **how)
                dout = torch.randn_like(o)
                report = attest.audit(*qkv, o=o, dout=dout, **gradients(o, dout, qkv), recipe="fp32", statistical=False,
                                      **audit)
                self.assertTrue(report.passed, report)

    def test_three_axes(self):
        q, k, v = (x[:, 0].detach() for x in inputs())
        mask = torch.rand(2, 19, 27) > 0.3
        torch.testing.assert_close(attest.scaled_dot_product_attention(q, k, v, mask), sdpa(q, k, v, mask))

    def test_as_flash_attn_has_it(self):
        q, k, v = (x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs())
        o, lse, none = attest.flash_attn_func(q, k, v, causal=True, window_size=(7, 3), softcap=2.0,
                                              return_attn_probs=True)
        self.assertEqual((o.shape, lse.shape, none), ((2, 19, 4, 16), (2, 4, 19), None))
        dout = torch.randn_like(o)
        report = attest.audit(q, k, v, o=o, lse=lse, dout=dout, **gradients(o, dout, (q, k, v)), layout="bshd",
                              causal=True, window=(7, 0), diag="bottom-right", softcap=2.0, recipe="fp32")
        self.assertTrue(report.passed, report)
        o = attest.flash_attn_func(q, k, v, window_size=(2, 3))
        self.assertTrue(attest.audit(q, k, v, o=o, layout="bshd", window=(2, 3), diag="bottom-right").passed)

    def test_ragged_is_each_sequence_alone(self):
        q, k, v = (torch.randn(n, h, 16) for n, h in ((15, 4), (20, 2), (20, 2)))
        cu_q, cu_k = torch.tensor([0, 4, 15], dtype=torch.int32), torch.tensor([0, 9, 20], dtype=torch.int32)
        o = attest.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, causal=True)
        for b in range(2):
            one_q, one_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
            alone = attest.flash_attn_func(q[None, one_q], k[None, one_k], v[None, one_k], causal=True)
            self.assertTrue(torch.equal(o[one_q], alone[0]))

    def test_dropout_is_drawn_from_torchs_generator(self):
        q, k, v = inputs()
        outputs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outputs.append(attest.scaled_dot_product_attention(q, k, v, dropout_p=0.5, enable_gqa=True))
        self.assertTrue(torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2]))
        torch.manual_seed(1)
        seed = torch_ops._seed(q, 0.5)
        self.assertTrue(attest.audit(q, k, v, o=outputs[0], dropout_p=0.5, dropout_seed=seed, statistical=False).passed)

    def test_refusals(self):
        q, k, v = (x.detach() for x in inputs())
        flash, packed = [x.transpose(1, 2) for x in (q, k, v)], [x[0, 0, :, None] for x in (q, k, v)]
        starts = torch.tensor([0, 19])
        for sentence, call in (
                ("q is float64", lambda: attest.attention(q.double(), k, v)),
                ("v has a stride of 27", lambda: attest.attention(q, k, v.mT.contiguous().mT)),
                ("attn_mask is given", lambda: attest.scaled_dot_product_attention(q, k, v, q, is_causal=True)),
                ("query has 4 heads and key 2", lambda: attest.scaled_dot_product_attention(q, k, v)),
                ("cu_seqlens_q is int64", lambda: attest.flash_attn_varlen_func(*packed, starts, starts, 19, 19)),
                ("max_seqlen_k is None", lambda: attest.attention(*packed, cu_seqlens_q=starts, max_seqlen_q=1)),
                ("dropout_seed is None", lambda: attest.attention(q, k, v, dropout_p=0.5)),
                ("layout is a dict", lambda: attest.attention(q, k, v, layout={"o": "bshd"})),
                ("window is (1, 1)", lambda: attest.attention(q, k, v, causal=True, window=(1, 1))),
                ("k is on device meta", lambda: attest.audit(q, k.to("meta"), v, o=q))):
            with self.assertRaises(Invalid) as raised:
                call()
            self.assertTrue(str(raised.exception).startswith(sentence), raised.exception)
        with self.assertRaisesRegex(Unsupported, "^block_table is given"):
            attest.flash_attn_varlen_func(*(x[0] for x in flash), None, None, 1, 1, block_table=starts)
        with self.assertRaisesRegex(Unsupported, "^alibi_slopes has 2 axes"):
            attest.flash_attn_func(*flash, alibi_slopes=torch.ones(2, 4))


class Layer(torch.nn.Module):
    """Self-attention as models have it; `attend` is what they call."""

    def __init__(self, attend=None, layout="bhsd"):
        super().__init__()
        self.project, self.attend, self.layout = torch.nn.Linear(32, 96), attend, layout

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        if self.attend is None:
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        else:
            o = self.attend(*(x.transpose(1, 2) for x in (q, k, v)))
        return x + o.flatten(2)


def watched(model, x=None, backward=True, **how):
    x = torch.randn(2, 20, 32) if x is None else x
    with attest.watch(model, quiet=True, **how) as seen:
        y = model(x)
        if backward:
            y.square().sum().backward()
    return seen


class Watched(unittest.TestCase):
    def test_every_layer_forward_and_backward(self):
        seen = watched(torch.nn.Sequential(Layer(), Layer()), sample=None)
        self.assertTrue(seen.passed, seen.table())
        self.assertEqual([(c.layer, list(c.report.tensors)) for c in seen.calls],
                         [("0", ["o", "dq", "dk", "dv"]), ("1", ["o", "dq", "dk", "dv"])])

    def test_a_forward_pass_alone(self):
        for context in (torch.no_grad(), torch.enable_grad()):
            with context:
                seen = watched(Layer(), backward=False)
            self.assertTrue(seen.passed, seen.table())
            self.assertEqual(list(seen.calls[0].report.tensors), ["o"])

    def test_pytorchs_own_layers(self):
        model = torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2)
        seen = watched(model)
        self.assertTrue(seen.passed, seen.table())
        self.assertEqual([c.layer for c in seen.calls], ["layers.0.self_attn", "layers.1.self_attn"])
        self.assertIn("layers.1.self_attn  scaled_dot_product_attention  dv", seen.table())

    def test_faults_are_found(self):
        functional = torch.nn.functional
        for fault in (lambda q, k, v, **how: sdpa(q, k, v, **how) * 1.01, lambda q, k, v, **how: sdpa(q, k, v)):
            functional.scaled_dot_product_attention = fault
            try:
                seen = watched(Layer())
            finally:
                functional.scaled_dot_product_attention = sdpa
            self.assertFalse(seen.passed)
            self.assertIn("FAIL: o[", seen.table())
        self.assertIs(functional.scaled_dot_product_attention, sdpa)

    def test_a_wrong_gradient_is_found(self):
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                return g * 1.01

        functional = torch.nn.functional
        functional.scaled_dot_product_attention = lambda q, k, v, **how: sdpa(q, Wrong.apply(k), v, **how)
        try:
            seen = watched(Layer())
        finally:
            functional.scaled_dot_product_attention = sdpa
        verdicts = {n: t.verdict for n, t in seen.calls[0].report.tensors.items()}
        self.assertEqual(verdicts, {"o": "PASS", "dq": "PASS", "dk": "FAIL", "dv": "PASS"})

    def test_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            seen = watched(Layer(), backward=False)
        self.assertTrue(seen.passed, seen.table())
        self.assertGreater(seen.calls[0].report.tensors["o"].share, 0.1, "judged as what it is, 16 bits")

    def test_flash_attn(self):
        module = types.ModuleType("flash_attn")
        module.flash_attn_func = original = lambda *args, **how: attest.flash_attn_func(*args, **how)
        sys.modules["flash_attn"] = module
        user = types.ModuleType("somebodys_model")
        user.flash_attn_func = original
        sys.modules["somebodys_model"] = user
        try:
            seen = watched(Layer(lambda q, k, v: user.flash_attn_func(q, k, v, causal=True, window_size=(5, 5))))
        finally:
            del sys.modules["flash_attn"], sys.modules["somebodys_model"]
        self.assertTrue(seen.passed, seen.table())
        self.assertEqual([c.function for c in seen.calls], ["flash_attn_func"])
        self.assertEqual(len(seen.calls[0].report.tensors), 4)
        self.assertTrue(user.flash_attn_func is original and module.flash_attn_func is original)

    def test_nobody_is_accused_for_what_is_not_known(self):
        def changed(q, k, v):
            o = sdpa_of(q, k, v)
            o.mul_(2)
            return o

        def sdpa_of(q, k, v, **how):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2)

        for attend, reason in ((changed, "o was changed in place"),
                               (lambda q, k, v: sdpa_of(q, k, v, dropout_p=0.5), "which scores dropout took away"),
                               (lambda q, k, v: sdpa_of(q.double(), k.double(), v.double()).float(), "q is float64")):
            seen = watched(Layer(attend), backward=False)
            self.assertIn(reason, seen.calls[0].skipped)
            self.assertFalse(seen.passed, "nothing was judged")
            self.assertIn(reason, seen.table())

    def test_one_of_so_many_calls(self):
        seen = watched(torch.nn.Sequential(*(Layer() for _ in range(5))), every=2)
        self.assertEqual([c.layer for c in seen.calls], ["0", "2", "4"])


if __name__ == "__main__":
    unittest.main()
