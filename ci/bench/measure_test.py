#!/usr/bin/env -S python3 -B
"""libbench.so on the reference device, and how rows are measured: on the simulated GPU, with peers made up here."""

import contextlib
import ctypes
import json
import math
import os
import sys
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import bench
import measure
import ours
import peers
import report
import tables

BF16 = ours.DTYPES["bf16"]


class LibraryFunctions(unittest.TestCase):
    SHAPE = tables.Shape(1, 1, 3, 3, 8, True)

    def setUp(self):
        self.library = ours.Library(bench.library_path())

    def test_normal(self):
        count = 100000
        values = (ctypes.c_float * count).from_buffer(self.library.draw("fp32", "normal", "v", count))
        mean = sum(values) / count
        self.assertAlmostEqual(mean, 0, delta=6 / count**0.5)
        self.assertAlmostEqual(sum(x * x for x in values) / count, 1, delta=6 * (2 / count) ** 0.5)
        self.assertAlmostEqual(sum(x**4 for x in values) / count, 3, delta=6 * (96 / count) ** 0.5)
        self.assertAlmostEqual(sum(a * b for a, b in zip(values, values[1:])) / count, 0, delta=6 / count**0.5)

    def test_families(self):
        """Of the same places, so that they differ by what makes the family alone."""
        count = 20000
        drawn = {family: (ctypes.c_float * count).from_buffer(self.library.draw("fp32", family, "q", count))
                 for family in ours.FAMILIES}
        for i, x in enumerate(drawn["normal"]):
            self.assertAlmostEqual(drawn["large"][i], 30 * x, delta=1e-4)
            self.assertAlmostEqual(drawn["tiny"][i], 1e-3 * x, delta=1e-8)
            self.assertAlmostEqual(drawn["mean"][i], 4 + x, delta=1e-5)
        outliers = sum(a != b for a, b in zip(drawn["normal"], drawn["outlier"]))
        self.assertAlmostEqual(outliers, count / 1000, delta=6 * (count / 1000) ** 0.5)

    def test_inputs_differ(self):
        drawn = [bytes(self.library.draw("bf16", "normal", name, 24)) for name in ours.INPUTS]
        self.assertEqual(len(set(drawn)), len(drawn))

    def test_the_oracle_takes_each_head_for_itself(self):
        inputs = {name: self.library.draw("bf16", "normal", name, 48) for name in ours.INPUTS}
        second = {name: ctypes.create_string_buffer(bytes(data)[48:96]) for name, data in inputs.items()}
        both, one = (ours.oracle(self.library, "bf16", tables.Shape(1, heads, 3, 3, 8), data)
                     for heads, data in ((2, inputs), (1, second)))
        for name in both:
            self.assertEqual(list(both[name][len(one[name]):]), list(one[name]))

    def test_relative_error(self):
        want = (ctypes.c_float * 2)(3, 4)
        self.assertEqual(self.library.relative_error("fp32", (ctypes.c_float * 2)(3, 4.5), want), 0.1)
        self.assertEqual(self.library.relative_error("bf16", (ctypes.c_uint16 * 2)(0x4040, 0x4080), want), 0)
        empty = (ctypes.c_float * 2)(3, -math.inf)
        got = (ctypes.c_float * 2)(3.3, -math.inf)
        self.assertAlmostEqual(self.library.relative_error("fp32", got, empty), 0.1, places=6)
        self.assertTrue(math.isnan(self.library.relative_error("fp32", (ctypes.c_float * 2)(3, 4), empty)))
        poison = (ctypes.c_uint16 * 2)(0x4040, 0xFFFF)
        self.assertTrue(math.isnan(self.library.relative_error("bf16", poison, want)))

    def test_oracle_of_a_causal_head(self):
        """The first query sees one key: o is its v. dv's last row is p dout of the last query."""
        inputs = {name: self.library.draw("bf16", "normal", name, 24) for name in ours.INPUTS}
        out = ours.oracle(self.library, "bf16", self.SHAPE, inputs)
        value = {name: [ctypes.c_float.from_buffer_copy(b"\0\0" + bytes(data[2 * i:2 * i + 2])).value
                        for i in range(24)] for name, data in inputs.items()}
        score = [sum(value["q"][16 + x] * value["k"][8 * j + x] for x in range(8)) / 8**0.5 for j in range(3)]
        lse = math.log(sum(map(math.exp, score)))
        self.assertEqual(list(out["o"][:8]), value["v"][:8])
        self.assertAlmostEqual(out["lse"][2], lse, places=5)
        for x in range(8):
            self.assertAlmostEqual(out["dv"][16 + x], math.exp(score[2] - lse) * value["dout"][16 + x], places=5)
            self.assertEqual(out["dq"][x], 0)

    def test_oracle_of_a_full_head_differs(self):
        inputs = {name: self.library.draw("bf16", "normal", name, 24) for name in ours.INPUTS}
        causal, full = (ours.oracle(self.library, "bf16", self.SHAPE._replace(causal=mask), inputs)
                        for mask in (True, False))
        self.assertNotEqual(list(causal["o"][:8]), list(full["o"][:8]))
        self.assertAlmostEqual(causal["lse"][2], full["lse"][2], places=6)

    def test_refusal_is_a_sentence(self):
        with self.assertRaisesRegex(ours.Refused, "head_dim"):
            ours.Plan(self.library, ours.REFERENCE, "bf16", tables.Shape(1, 1, 3, 3, 1000), "forward")
        plan = ours.Plan(self.library, ours.REFERENCE, "bf16", self.SHAPE, "forward")
        with self.assertRaisesRegex(ours.Refused, "q"):
            plan.run({})
        with self.assertRaisesRegex(ours.Refused, "q"):
            plan.queue({}, None, 0, 40)
        plan.destroy()

    def test_queue_runs(self):
        data = {name: self.library.draw("bf16", "normal", name, 24) for name in ours.INPUTS}
        data.update(o=(ctypes.c_float * 24)(), lse=(ctypes.c_float * 3)())
        plan = ours.Plan(self.library, ours.REFERENCE, "bf16", self.SHAPE, "forward")
        self.assertGreater(plan.queue({name: ctypes.addressof(x) for name, x in data.items()}, None, 0, 2), 0)
        self.assertTrue(any(data["o"]))
        plan.destroy()

    def test_an_older_library_plans_plain_shapes(self):
        older = object.__new__(ours.Library)
        older.functions = SimpleNamespace(bench_plan=lambda *arguments: arguments)
        self.assertEqual(older.plan(0, "bf16", tables.Shape(1, 2, 3, 4, 8, True), False), (0, BF16, 1, 2, 3, 4, 8, True,
                                                                                       False))

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_an_empty_kernel_needs_a_gpu(self):
        with self.assertRaises(ours.Refused):
            self.library.queue_empty(40)


class HostMemory:
    """What cuda.Cuda offers, over memory of the host: for runs on the simulated GPU."""

    def __init__(self):
        self.buffers = {}

    def name(self):
        return "host"

    def driver_version(self):
        return "0.0"

    def l2_bytes(self):
        return 1

    def allocate(self, count):
        buffer = ctypes.create_string_buffer(count + 256)
        pointer = (ctypes.addressof(buffer) + 255) // 256 * 256
        self.buffers[pointer] = buffer
        return pointer

    def free(self, pointer):
        del self.buffers[pointer]

    def fill(self, pointer, byte, count):
        ctypes.memset(pointer, byte, count)

    def copy(self, target, source, count):
        ctypes.memmove(target, source, count)

    upload = copy

    def download(self, source, count):
        return ctypes.create_string_buffer(ctypes.string_at(source, count), count)

    def synchronize(self):
        pass

    def time_ms(self, call):
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3


class FakeBackend:
    """A peers.Backend that computes nothing, knows who was called, and refuses as cuDNN, as math when it is timed."""

    calls = []

    def __init__(self, torch, name, shape, inputs, direction):
        if name == "cuDNN":
            raise ours.Refused("not today")
        self.name = name

    context = staticmethod(contextlib.nullcontext)

    def call(self):
        if self.name == "math":
            raise ours.Refused("out of memory")
        self.calls.append(self.name)

    def results(self, checked):
        return {}

    def close(self):
        self.calls.append("close")


class FakeTensor:
    """So many sequences, of which nothing is known but the same six numbers."""

    def __init__(self, batch):
        self.batch, self.values = batch, (ctypes.c_uint16 * 6)(*range(6))

    def __getitem__(self, key):
        return FakeTensor(min(self.batch, -key.start)) if isinstance(key, slice) else self

    def same(self, *_):
        return self

    detach = requires_grad_ = contiguous = cpu = same

    def data_ptr(self):
        return ctypes.addressof(self.values)

    def numel(self):
        return 6


class Refusals(unittest.TestCase):
    """peers.Backend over a PyTorch that has memory for a hundred sequences."""

    def setUp(self):
        def attend(q, k, v, is_causal, **_):
            if q.batch > 100:
                raise RuntimeError("out of memory\nat great length")
            return FakeTensor(q.batch)

        attention = SimpleNamespace(SDPBackend=SimpleNamespace(MATH=1, FLASH_ATTENTION=2),
                                    sdpa_kernel=lambda backend: contextlib.nullcontext())
        self.torch = SimpleNamespace(nn=SimpleNamespace(
            attention=attention, functional=SimpleNamespace(scaled_dot_product_attention=attend)))
        self.inputs = {name: FakeTensor(16000) for name in ours.INPUTS}

    SHAPE = tables.Shape(16000, 8, 64, 64, 64)

    def backend(self, name, **asked):
        return peers.Backend(self.torch, name, self.SHAPE._replace(**asked), self.inputs, "forward")

    def refused(self, backend):
        with self.assertRaises(ours.Refused) as raised, backend.context():
            backend.call()
        return str(raised.exception)

    def test_what_does_not_fit_into_memory(self):
        self.assertEqual(self.refused(self.backend("FA2")), "out of memory")
        with self.assertRaises(ours.Refused):
            self.backend("FA2").results(self.SHAPE)

    def test_math_has_errors_all_the_same(self):
        backend = self.backend("math")
        self.assertEqual(bytes(backend.results(self.SHAPE)["o"])[:12], bytes(FakeTensor(1).values))
        self.assertEqual(self.refused(backend), "out of memory")

    def test_whole(self):
        with mock.patch.dict(sys.modules, {"whole": None}), self.assertRaisesRegex(ours.Refused, "whole"):
            self.backend("whole")
        with mock.patch.dict(sys.modules, {"whole": SimpleNamespace(attention=mock.Mock(side_effect=AssertionError))}):
            self.assertEqual(self.refused(self.backend("whole")), "AssertionError()")
            with self.assertRaisesRegex(ours.Refused, "mask"):
                self.backend("whole", causal=True)


class Measuring(unittest.TestCase):
    SHAPES = [tables.Shape(2, 2, 24, 24, 16, True), tables.Shape(1, 2, 1, 40, 32)]

    @mock.patch.multiple(measure, FLUSH_BYTES=4096, COPY_BYTES=4096, DRAWN=500)
    @mock.patch.object(peers, "load", lambda: None)
    @mock.patch.object(ours, "CUDA", 1)  # the simulated GPU
    def measured(self, table="long", shapes=SHAPES):
        memory = HostMemory()
        self.rows_there = []
        record = measure.measure(memory, ours.Library(bench.library_path()), table, "bf16",
                                 [(shape, direction) for shape in shapes for direction in shape.directions()], 3,
                                 lambda shape, record: self.rows_there.append(len(record["rows"])))
        names = {name for shape in shapes if shape.plain() == shapes[-1].plain() for name in ours.tensors_of(shape)}
        self.assertEqual(len(memory.buffers), len(names) + 1)  # nothing else stays allocated
        return record

    def test_on_the_simulated_gpu(self):
        record = self.measured()
        self.assertEqual(self.rows_there, [0, 1, 2, 3])  # what --json has if this is as far as it came
        self.assertEqual([(r["seqlen_k"], r["direction"]) for r in record["rows"]],
                         [(24, "forward"), (24, "backward"), (40, "forward"), (40, "backward")])
        for r in record["rows"]:
            run = r["runs"]["attest"]
            if r["direction"] == "backward" and "refused" in run:
                continue
            self.assertEqual(len(run["samples_ms"]), 3)
            self.assertEqual(sorted(run["errors"]), sorted(ours.RESULTS[r["direction"]]))
            for error in run["errors"].values():
                self.assertTrue(0 <= error < 2**-6, run["errors"])
        self.assertIn("its kernels here: one_query_backward_sm80, one_query_forward_sm80, short_backward_sm80, "
                      "short_forward_sm80", report.text(record))

    @mock.patch.object(measure.Bench, "sample_ms", lambda buffers, call: 1.0)
    def test_features_on_the_simulated_gpu(self):
        """Errors of the last part of a problem are those of the whole: dropout, masks and heads are found there."""
        plain = tables.Shape(2, 4, 24, 24, 16)
        record = self.measured("features", tables.featured(plain) + [
            tables.Shape(1, 1, 256, 256, 16, features=("block_mask",)),
            tables.Shape(2, 4, 130, 130, 16, True, heads_kv=2, head_dim_v=24, rows_first=True,
                         features=("mask", "bias")),
        ])
        for r in record["rows"]:
            run = r["runs"]["attest"]
            self.assertNotIn("refused", run, r)
            self.assertEqual(sorted(run["errors"]), sorted(ours.RESULTS[r["direction"]]))
            for error in run["errors"].values():
                self.assertTrue(0 <= error < 2**-6, r)
        self.assertEqual(report.text(json.loads(json.dumps(record))), report.text(record))

    def test_whatever_goes_wrong_is_the_rows_own(self):
        """A driver that fails in the first row, as after a fault of a kernel."""
        faults = [RuntimeError("cuStreamSynchronize: an illegal memory access")]

        def fail(buffers, shape):
            if faults:
                raise faults.pop()
            return None
        with mock.patch.object(measure.Bench, "oracle", fail):
            record = self.measured()
        self.assertIn("illegal memory access", record["rows"][0]["runs"]["attest"]["refused"])
        self.assertEqual([len(r["runs"]["attest"].get("samples_ms", ())) for r in record["rows"]], [0, 3, 3, 3])
        self.assertIn("- of attest: RuntimeError: cuStreamSynchronize", report.text(record))

    def test_short_has_errors_of_families(self):
        with mock.patch.object(measure, "FAMILY_BATCH", 1):
            record = self.measured("short")
        self.assertEqual({r["batch"] for r in record["error_rows"]}, {1})
        self.assertEqual([(r["family"], r["seqlen_k"], r["direction"]) for r in record["error_rows"]],
                         [(family, seqlen, direction) for family in ("outlier", "large", "tiny", "mean")
                          for seqlen in (24, 40) for direction in ours.RESULTS])
        for r in record["error_rows"]:
            self.assertEqual(sorted(r["runs"]["attest"]["errors"]), sorted(ours.RESULTS[r["direction"]]))
        self.assertIn("error of dv", report.text(record))

    def test_small_queues_calls(self):
        with mock.patch.object(measure, "CALLS", 2), \
             mock.patch.object(ours.Library, "queue_empty", lambda library, calls: 7):
            record = self.measured("small")
        runs = record["rows"][0]["runs"]
        self.assertEqual((len(runs["attest"]["samples_ms"]), len(runs["attest"]["host_ns"])), (3, 3))
        self.assertEqual(runs["empty"]["host_ns"], [3.5] * 3)
        self.assertGreater(report.beyond_empty(record["rows"][0], "samples_ms"), 0)
        self.assertNotIn("error_rows", record)

    @mock.patch.object(measure, "FLUSH_BYTES", 4096)
    @mock.patch.object(ours, "CUDA", 1)
    @mock.patch.object(peers, "load", lambda: "torch")
    @mock.patch.object(peers, "tensors", lambda *arguments: {})
    @mock.patch.object(peers, "Backend", FakeBackend)
    def test_implementations_alternate(self):
        shape, rounds = self.SHAPES[0], 30
        buffers = measure.Bench(HostMemory(), ours.Library(bench.library_path()), "bf16", [shape],
                                ("FA2", "memeff", "cuDNN", "math"))
        FakeBackend.calls.clear()
        want = {"o": (ctypes.c_float * (2 * 24 * 16))(), "lse": (ctypes.c_float * (2 * 24))()}
        runs = measure.time_row(buffers, shape, "forward", want, rounds)["runs"]
        self.assertEqual({name: len(run.get("samples_ms", ())) for name, run in runs.items()},
                         {"attest": rounds, "FA2": rounds, "memeff": rounds, "cuDNN": 0, "math": 0})
        self.assertEqual(runs["cuDNN"], {"refused": "not today"})
        self.assertEqual(runs["math"], {"errors": {}, "refused": "out of memory"})
        calls = FakeBackend.calls
        self.assertEqual(calls[-3:], ["close"] * 3)
        turns = [tuple(calls[i:i + 4]) for i in range(0, 4 * (measure.WARM_UP + rounds), 4)]  # each sample is two calls
        self.assertEqual(set(turns), {("FA2", "FA2", "memeff", "memeff"), ("memeff", "memeff", "FA2", "FA2")})

    @mock.patch.object(measure, "FLUSH_BYTES", 4096)
    @mock.patch.object(peers, "load", lambda: None)
    def test_the_last_heads_lie_last(self):
        shape = self.SHAPES[0]
        buffers = measure.Bench(HostMemory(), ours.Library(bench.library_path()), "bf16", [shape])
        k = ctypes.string_at(buffers.pointers["k"], ours.tensor_bytes("k", shape))
        self.assertEqual(bytes(buffers.last("k", shape)), k[-2 * 24 * 16 * 2:])
        self.assertEqual(len(buffers.last("lse", shape)), 2 * 24 * 4)
        self.assertEqual(measure.checked_part(tables.Shape(2, 32, 8192, 8192, 64, heads_kv=8))[:2], (1, 4))

    @mock.patch.object(measure, "FLUSH_BYTES", 4096)
    @mock.patch.object(peers, "load", lambda: None)
    def test_the_last_heads_lie_apart_where_rows_come_first(self):
        shape = tables.Shape(2, 4, 129, 130, 16, heads_kv=2, rows_first=True)
        buffers = measure.Bench(HostMemory(), ours.Library(bench.library_path()), "bf16", [shape])
        k = ctypes.string_at(buffers.pointers["k"], ours.tensor_bytes("k", shape))
        rows = [k[(130 + row) * 64:(131 + row) * 64] for row in range(130)]
        self.assertEqual(bytes(buffers.last("k", shape)), b"".join(row[32:] for row in rows))
        self.assertEqual(len(buffers.last("q", shape)), 129 * 2 * 32)

    def test_a_run_that_writes_nothing_is_nan(self):
        with mock.patch.object(ours.Plan, "run", lambda *arguments: None), \
             mock.patch.object(measure.Bench, "oracle", lambda buffers, shape: {
                 name: (ctypes.c_float * (len(buffers.last(name, shape)) // (4 if name == "lse" else 2)))(1)
                 for name in ("o", "lse", "dq", "dk", "dv")}):
            record = self.measured()
        self.assertTrue(all(map(math.isnan, record["rows"][0]["runs"]["attest"]["errors"].values())))


if __name__ == "__main__":
    unittest.main()
