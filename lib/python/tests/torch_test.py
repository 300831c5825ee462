#!/usr/bin/env python3
"""The package with PyTorch: operators, drop-ins, watch(). ATTEST_PYTHON names a Python that has it, for Bazel;
ATTEST_DEVICE=cuda runs everything on a GPU, if the library has kernels for one."""

import json
import os
import pathlib
import sys
import tempfile
import threading
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

DEVICE = os.environ.get("ATTEST_DEVICE", "cpu")
torch.set_default_device(DEVICE)
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

    def test_the_same_shapes_again(self):
        """A call that is like an earlier one takes its plan, and everything else from its own arguments."""
        def seed(number):
            return {"dropout_p": 0.3, "dropout_seed": torch.tensor([number])}

        rounds = [{"mask": torch.rand(19, 27) > 0.3}, {"mask": torch.rand(19, 27) > 0.6}, {"scale": 0.1},
                  {"scale": 0.2}, {"sink": torch.randn(4)}, {"sink": torch.randn(4)}, seed(1), seed(2),
                  {"seqused_k": torch.tensor([3, 27], dtype=torch.int32)},
                  {"seqused_k": torch.tensor([27, 3], dtype=torch.int32)}, {"alibi_slopes": self.SLOPES},
                  {"alibi_slopes": self.SLOPES * 2}, {"bias": torch.randn(19, 27)}, {"bias": torch.randn(19, 27)}]
        attest._run._prepared.clear()
        for how in rounds + rounds:
            q, k, v = (x.detach() for x in inputs())
            o, lse = attest.attention(q, k, v, **how)
            self.assertTrue(attest.audit(q, k, v, o=o, lse=lse, recipe="fp32", statistical=False, **how).passed, how)
        self.assertEqual(len(attest._run._prepared), 8)
        wide = torch.randn(2, 2, 27, 40)
        o, _ = attest.attention(q, wide[..., :16], wide[..., 20:36])
        self.assertTrue(torch.equal(o, attest.attention(q, wide[..., :16].clone(), wide[..., 20:36].clone())[0]))

    # Each is a call of its own: what differs from the first line's is one thing.
    ALIKE = ({}, {"scale": 0.2}, {"softcap": 2.0}, {"causal": True}, {"window": (3, -1)}, {"window": (-1, 3)},
             {"causal": True, "diag": "bottom-right"}, {"causal": True, "diag": 2}, {"layout": "bshd"},
             {"q_start": 2, "causal": True}, {"k_start": 2, "causal": True}, {"alibi_slopes": SLOPES},
             {"alibi_slopes": SLOPES, "alibi_diag": 3}, {"sink": SLOPES}, {"bias": SLOPES[:, None]},
             {"bias": SLOPES.bfloat16()[:, None]}, {"mask": SLOPES[:, None] > 0.1}, {"mask": SLOPES > 0.1},
             {"dropout_p": 0.5, "dropout_seed": 1}, {"dropout_p": 0.5, "dropout_seed": 2},
             {"dropout_p": 0.4, "dropout_seed": 1}, {"dropout_p": 0.5, "dropout_seed": 1, "dropout_offset": 1},
             {"o_dtype": "bfloat16"}, {"seqused_k": torch.tensor([3, 4], dtype=torch.int32)},
             {"block_mask": torch.tensor([[True, False], [True, True]]), "block_size": (2, 2)},
             {"block_mask": torch.tensor([[True, False], [True, True]]), "block_size": (2, 3)}, {"device": "sim"})

    def test_one_thing_changed_is_another_plan(self):
        """With the table full of all others, each call gives what it does with none."""
        def calls():
            torch.manual_seed(3)
            q, k, v, wide = (torch.randn(2, 4, 4, n) for n in (4, 4, 4, 12))
            alike = [q.half(), k.half(), v.half()], [q, wide[..., :4], wide[..., 4:8]], [q, k, wide[..., :8]]
            for qkv in ([q, k, v], [q.mT.contiguous().transpose(1, 2), k, v], [q[:1], k[:1], v[:1]], *alike):
                yield qkv, {}
            for how in self.ALIKE:
                if DEVICE == "cpu" or how.get("device") != "sim":
                    yield [q, k, v], how

        forward, prepared = attest._run.forward, attest._run._prepared
        alone = []
        for qkv, how in calls():
            prepared.clear()
            alone.append(self.forward_or_reason(forward, qkv, how))
        for _ in range(2):
            for (qkv, how), want in zip(calls(), alone):
                got = self.forward_or_reason(forward, qkv, how)
                self.assertTrue(got == want if isinstance(want, str) else all(map(torch.equal, got, want)), (how, want))

    @staticmethod
    def forward_or_reason(forward, qkv, how):
        try:
            return forward(*qkv, **how)
        except attest.Error as why:
            return str(why)

    def test_arguments_that_may_change_in_place_have_no_place_in_the_table(self):
        q, k, v = (x.detach() for x in inputs())
        attest._run._prepared.clear()
        scale = torch.tensor(0.1)
        first, _ = attest.forward(q, k, v, scale=scale)
        scale.fill_(0.9)
        self.assertFalse(torch.equal(first, attest.forward(q, k, v, scale=scale)[0]))
        attest.forward(q, k, v, window=[3, 3], diag=0)
        self.assertEqual(len(attest._run._prepared), 0)

    def test_the_table_is_bounded_and_threads_share_it(self):
        q, k, v = (x.detach() for x in inputs())
        wanted = {n: attest.forward(q[:, :, :n], k, v)[0] for n in range(1, 13)}
        run, wrong, interval = attest._run, [], sys.getswitchinterval()
        most, run._MOST_PREPARED = run._MOST_PREPARED, 4

        def work(first):
            try:
                for i in range(200):
                    n = (first + i) % 12 + 1
                    if not torch.equal(attest.forward(q[:, :, :n], k, v)[0], wanted[n]):
                        wrong.append(n)
            except Exception as why:  # noqa: BLE001
                wrong.append(why)

        run._prepared.clear()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(3 * i,)) for i in range(8)]
            for step in ("start", "join"):
                for thread in threads:
                    getattr(thread, step)()
            run._prepared.clear()
            work(0)
            self.assertLessEqual(len(run._prepared), 4)
        finally:
            sys.setswitchinterval(interval)
            run._MOST_PREPARED = most
        self.assertEqual(wrong, [])

    def test_a_table_emptied_between_two_looks_is_no_error(self):
        class Emptied(dict):
            def __contains__(self, key):
                found = super().__contains__(key)
                self.clear()
                return found

        run, (q, k, v) = attest._run, (x.detach() for x in inputs())
        kept, run._prepared = run._prepared, Emptied()
        try:
            first, again = (attest.forward(q, k, v)[0] for _ in range(2))
            self.assertEqual(len(run._prepared), 1)
        finally:
            run._prepared = kept
        self.assertTrue(torch.equal(first, again))

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
                ("block_size is None", lambda: attest.attention(q, k, v, block_mask=q[0, 0] > 0)),
                ("block_size is (0, 4)", lambda: attest.forward(q, k, v, block_mask=q[0, 0] > 0, block_size=(0, 4))),
                ("cu_seqlens_q is None", lambda: attest.forward(q, k, v, cu_seqlens_k=starts)),
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


try:
    import transformers
except ImportError:
    transformers = None


@unittest.skipUnless(transformers, "UNCHECKED: transformers is not here")
class Transformers(unittest.TestCase):
    def test_attn_implementation(self):
        import attest_attention.transformers  # noqa: F401
        config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=97,
                                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
        model, tokens = transformers.LlamaForCausalLM(config), torch.randint(0, 97, (2, 17))
        padded = torch.ones(2, 17, dtype=torch.long)
        padded[1, :5] = 0
        seen = {}
        for implementation in ("sdpa", "attest"):
            model.set_attn_implementation(implementation)
            for mask in (None, padded):
                model.zero_grad()
                logits = model(tokens, attention_mask=mask).logits[:, 5:]
                logits.square().sum().backward()
                seen[implementation, mask is None] = logits, model.model.layers[0].self_attn.q_proj.weight.grad.clone()
            seen[implementation] = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8,
                                                  do_sample=False)
        for plain in (True, False):
            torch.testing.assert_close(seen["attest", plain], seen["sdpa", plain])
        self.assertTrue(torch.equal(seen["attest"], seen["sdpa"]))


    def test_every_argument_is_that_of_sdpa(self):
        """The function itself beside transformers' own for SDPA, forward and backward; beside "eager" for sinks."""
        from attest_attention.transformers import attest_attention
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        cases = []
        for mask in (None, torch.rand(2, 1, 19, 27) > 0.3, torch.randn(2, 1, 19, 27)):
            for position_bias in (None, torch.randn(1, 4, 19, 27)):
                cases.append({"attention_mask": mask, "position_bias": position_bias})
        cases += [{"attention_mask": None, "scaling": 0.3}, {"attention_mask": None, "is_causal": False},
                  {"attention_mask": None, "is_causal": True}]
        for module in (types.SimpleNamespace(is_causal=True, num_key_value_groups=2),
                       types.SimpleNamespace(is_causal=False, num_key_value_groups=2),
                       types.SimpleNamespace(num_key_value_groups=2)):
            for how in cases:
                qkv, dout = inputs(), torch.randn(2, 19, 4, 16)
                results = [f(module, *qkv, **how)[0] for f in (sdpa_attention_forward, attest_attention)]
                self.assertTrue(results[1].is_contiguous())
                for want, got in zip(*([o, *torch.autograd.grad(o, qkv, dout)] for o in results)):
                    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
        q, k, v = inputs(rows_q=1)
        for how in ({"is_causal": True}, {"is_causal": None}):  # one query sees all keys
            got, want = (f(module, q, k, v, None, **how)[0] for f in (attest_attention, sdpa_attention_forward))
            torch.testing.assert_close(got, want)
        with self.assertRaisesRegex(Invalid, "^head_mask is given"):
            attest_attention(module, q, k, v, None, head_mask=q)

    def test_sinks_are_those_of_gpt_oss(self):
        from attest_attention.transformers import attest_attention
        from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
        q, k, v = inputs()
        module = types.SimpleNamespace(sinks=torch.randn(4, requires_grad=True), num_key_value_groups=2, training=False)
        mask, dout = torch.zeros(2, 1, 19, 27), torch.randn(2, 19, 4, 16)
        results = (eager_attention_forward(module, q, k, v, mask, 0.25)[0],
                   attest_attention(module, q, k, v, mask, 0.25, s_aux=module.sinks)[0])
        for want, got in zip(*([o, *torch.autograd.grad(o, (q, k, v, module.sinks), dout)] for o in results)):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


class FlashInfer(unittest.TestCase):
    """Folders as FlashInfer's api_logging writes them at level 10."""

    SIGNATURE = ("(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale_q: Optional[torch.Tensor] = None, "
                 "causal: bool = False, kv_layout: str = 'NHD', pos_encoding_mode: str = 'NONE', sm_scale: "
                 "Optional[float] = None, window_left: int = -1, return_lse: bool = False) -> Union[torch.Tensor, "
                 "Tuple[torch.Tensor, torch.Tensor]]")

    def dump(self, folder, number, function, args, kwargs, result):
        where = pathlib.Path(folder) / f"20261128_04_pid7_{function}_call{number:04d}"
        where.mkdir()
        named = {**{f"arg_{i}": x for i, x in enumerate(args)}, **{"kwarg_" + n: x for n, x in kwargs.items()}}
        metadata = {"function_name": function, "function_signature": self.SIGNATURE, "execution_status": "inputs_saved",
                    "input_metadata": {n: x for n, x in named.items() if not isinstance(x, torch.Tensor)}}
        torch.save({n: x for n, x in named.items() if isinstance(x, torch.Tensor)}, where / "inputs.pt")
        lines = [json.dumps(metadata)]
        if result is not None:
            many = isinstance(result, tuple)
            torch.save({f"result_{i}": x for i, x in enumerate(result)} if many else {"result": result},
                       where / "outputs.pt")
            lines.append(json.dumps({**metadata, "execution_status": "completed"}))
        (where / "metadata.jsonl").write_text("\n".join(lines) + "\n")

    def test_calls_are_judged_or_the_reason_is_said(self):
        from attest_attention.flashinfer import audit_dumps
        q, k, v = (torch.randn(n, h, 16).bfloat16() for n, h in ((9, 4), (13, 2), (13, 2)))
        o, lse = (x[0] for x in attest.attention(q[None], k[None], v[None], layout="bshd", causal=True, window=(5, -1),
                                                 diag="bottom-right"))
        last, _ = attest.attention(q[None, -1:], k[None], v[None], layout="bshd", scale=0.3)
        prefill, decode = "single_prefill_with_kv_cache", "single_decode_with_kv_cache"
        hnd = [x.transpose(0, 1).contiguous() for x in (k, v)]
        with tempfile.TemporaryDirectory() as folder:
            how = {"window_left": 5, "kv_layout": "HND"}
            self.dump(folder, 1, prefill, (q, *hnd, None, True), {**how, "return_lse": True}, (o, lse * 1.4427))
            self.dump(folder, 2, prefill, (q, *hnd, None, True), how, o * 1.02)
            self.dump(folder, 3, decode, (q[-1], k, v), {"sm_scale": 0.3}, last[0, 0])
            self.dump(folder, 4, prefill, (q, k, v), {"pos_encoding_mode": "ROPE_LLAMA"}, o)
            self.dump(folder, 5, prefill, (q, k, v, torch.ones(1)), {}, o)
            self.dump(folder, 6, "BatchDecodeWithPagedKVCacheWrapper.run", (q, k), {}, o)
            self.dump(folder, 7, prefill, (q, k, v), {}, None)
            found = {int(d.folder[-4:]): d for d in audit_dumps(folder)}
        said = [found[i].report.tensors["o"].verdict if found[i].report else found[i].skipped for i in range(1, 8)]
        self.assertEqual(said, ["PASS", "FAIL", "PASS", "not judged: pos_encoding_mode is not read",
                                "not judged: scale_q is not read",
                                "not judged: BatchDecodeWithPagedKVCacheWrapper.run is not read",
                                "not judged: its status is inputs_saved"])

    def test_damaged_folders_are_named_and_the_rest_is_judged(self):
        from attest_attention.flashinfer import audit_dumps
        q, k, v = (torch.randn(5, 2, 16) for _ in range(3))
        o = attest.attention(q[None], k[None], v[None], layout="bshd")[0][0]
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1, 8):
                self.dump(folder, number, "single_prefill_with_kv_cache", (q, k, v), {}, o)
            where = {int(p.name[-4:]): p for p in pathlib.Path(folder).iterdir()}
            (where[2] / "metadata.jsonl").write_text("{")
            with (where[3] / "metadata.jsonl").open("a") as f:
                f.write('{"function_name": "single_pre')  # the line before it was written whole
            (where[4] / "outputs.pt").write_bytes(b"PK")
            torch.save({"result_1": o}, where[5] / "outputs.pt")
            torch.save({"arg_0": q[0], "arg_1": k, "arg_2": v}, where[6] / "inputs.pt")
            text = (where[7] / "metadata.jsonl").read_text()
            (where[7] / "metadata.jsonl").write_text(text.replace("(q: torch.Tensor", "(x: Tuple[int, q], q: <odd>"))
            found = {int(d.folder[-4:]): d for d in audit_dumps(folder)}
        said = [found[i].report.tensors["o"].verdict if found[i].report else found[i].skipped for i in range(1, 8)]
        self.assertEqual((said[0], said[2]), ("PASS", "PASS"))
        for number, why in ((2, "metadata.jsonl has no line of JSON"), (4, "outputs.pt cannot be read"),
                            (5, "its outputs have no result"), (6, "q is not a tensor of 3 axes"),
                            (7, "its signature is not understood")):
            self.assertTrue(said[number - 1].startswith(f"not judged: {why}"), said[number - 1])
        with self.assertRaisesRegex(Invalid, "^folder is 'nowhere'"):
            audit_dumps("nowhere")

    def test_types_with_commas_name_no_arguments(self):
        from attest_attention.flashinfer import _names
        self.assertEqual(_names("(q: Tuple[int, int, int], k: Union[float, torch.Tensor] = (1, 2), *, v=None) -> int"),
                         ["q", "k"])


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
        with torch.autocast(DEVICE, torch.bfloat16):
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

    def test_a_mode_of_torch_functions_counts_nothing_twice(self):
        with torch.device(DEVICE):
            seen = watched(Layer(), backward=False)
        self.assertEqual([c.layer for c in seen.calls], ["Layer"])

    def test_one_of_so_many_calls(self):
        seen = watched(torch.nn.Sequential(*(Layer() for _ in range(5))), every=2)
        self.assertEqual([c.layer for c in seen.calls], ["0", "2", "4"])


if __name__ == "__main__":
    unittest.main()
