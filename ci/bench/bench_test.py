#!/usr/bin/env -S python3 -B
"""The arithmetic, the tables and the picture on recorded samples, and libbench.so on the reference device."""

import contextlib
import ctypes
import io
import json
import math
import os
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from unittest import mock

import bench
import cuda
import measure
import ours
import peers
import picture
import report
import tables

RECORD = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "recorded.json")
FP32, BF16 = ours.DTYPES["fp32"], ours.DTYPES["bf16"]


def row(shape, direction="forward", **samples):
    keys = ("batch", "heads", "seqlen_q", "seqlen_k", "head_dim", "causal")
    return {**dict(zip(keys, shape)), "direction": direction,
            "runs": {name: {"samples_ms": values, "errors": {}} for name, values in samples.items()}}


class Arithmetic(unittest.TestCase):
    # What one H200 measured: 4.28 TB/s, 781 TFLOP/s, and the floors that were published with them.
    RATES = {"copy_bytes_per_s": 4.28e12, "matrix_flops_per_s": 781e12}

    def test_floors(self):
        for shape, forward, backward in [((32, 32, 512, 512, 64, False), 0.088, 0.220),
                                         ((32, 32, 512, 512, 64, True), 0.063, 0.125),
                                         ((2, 32, 8192, 8192, 64, True), 0.704, 1.760),
                                         ((16000, 8, 1, 128, 128, False), 1.975, 3.950),
                                         ((8000, 8, 32, 32, 256, False), 0.980, 1.960)]:
            self.assertAlmostEqual(report.floor_ms(self.RATES, row(shape)), forward, delta=0.001)
            self.assertAlmostEqual(report.floor_ms(self.RATES, row(shape, "backward")), backward, delta=0.001)

    def test_floor_without_a_matrix_rate_is_that_of_bytes(self):
        rates = {**self.RATES, "matrix_flops_per_s": None}
        self.assertAlmostEqual(report.floor_ms(rates, row((2, 32, 8192, 8192, 64, False))), 0.0627, delta=0.0001)

    def test_median_and_spread(self):
        run = {"samples_ms": [5.0, 1.0, 2.0, 100.0, 3.0]}
        self.assertEqual(report.median_ms(run), 3.0)
        self.assertEqual(report.spread(run), (5.0 - 2.0) / 2 / 3.0)

    def test_speed_and_ratio(self):
        r = row((1, 1, 1000, 1000, 100, False), attest=[2.0, 2.0], FA2=[1.0, 1.0])
        self.assertAlmostEqual(report.tflops_per_s(r, "attest"), 0.2)
        self.assertEqual(report.ratio(r, "FA2", "attest"), 0.5)
        self.assertIsNone(report.ratio(r, "cuDNN", "attest"))
        r["direction"], r["causal"] = "backward", True
        self.assertAlmostEqual(report.tflops_per_s(r, "attest"), 0.25)

    def test_tables(self):
        for batch, heads, seqlen_q, seqlen_k, head_dim, causal in tables.LONG:
            self.assertEqual((batch * seqlen_q, heads * head_dim), (16384, 2048))
        self.assertEqual(len(set(tables.LONG)), 12)
        self.assertEqual(measure.tensor_bytes("lse", (2, 3, 5, 7, 11, False)), 2 * 3 * 5 * 4)
        self.assertEqual(measure.tensor_bytes("dv", (2, 3, 5, 7, 11, False)), 2 * 3 * 7 * 11 * 2)


class Text(unittest.TestCase):
    def setUp(self):
        self.record = bench.recorded(RECORD)

    def cells(self, direction, seqlen):
        lines = report.text(self.record).split(f"{direction} (ms)")[1].splitlines()
        names = [cell.strip() for cell in lines[2].strip("|").split("|")]
        rows = [dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")))) for line in lines[4:]]
        return next(cells for cells in rows if cells.get("seqlen") == seqlen)

    def test_recorded(self):
        cells = self.cells("forward", "2048")
        self.assertEqual(cells["attest"], "1.020 ±1.0%")
        self.assertEqual(cells["floor"], "0.352")
        self.assertEqual(cells["TFLOP/s"], "269")
        self.assertEqual(cells["time / floor"], "2.90")
        self.assertEqual(cells["speed / FA2's"], "0.90")
        self.assertEqual((cells["error o"], cells["lse"], cells["FA2's o"]), ("1.71e-03", "4.10e-08", "1.72e-03"))

    def test_refused_is_a_dash_and_a_sentence(self):
        cells = self.cells("backward", "2048")
        self.assertEqual((cells["attest"], cells["TFLOP/s"], cells["speed / FA2's"], cells["error dq"]),
                         ("-", "-", "-", "-"))
        self.assertEqual(cells["FA2"], "2.750 ±0.2%")
        sentence = self.record["rows"][1]["runs"]["attest"]["refused"]
        self.record["rows"].append(self.record["rows"][1])
        self.assertEqual(report.text(self.record).count(sentence), 1)

    def test_nan_is_shown(self):
        self.record["rows"][0]["runs"]["attest"]["errors"]["o"] = math.nan
        self.assertEqual(self.cells("forward", "2048")["error o"], "nan")

    def test_without_pytorch(self):
        self.record["matrix_flops_per_s"] = self.record["torch"] = None
        for r in self.record["rows"]:
            r["runs"] = {"attest": r["runs"]["attest"]}
        text = report.text(self.record)
        self.assertIn("without PyTorch the rate of products is not known", text)
        self.assertNotIn("FA2", text)
        self.assertEqual(self.cells("forward", "2048")["floor"], "0.063")

    def test_lines_of_a_table_are_as_long(self):
        lines = [line for line in report.text(self.record).splitlines() if line.startswith("|")]
        self.assertEqual(len(set(map(len, lines[:3]))), 1)


class Command(unittest.TestCase):
    def run_command(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                status = bench.main(arguments)
            except SystemExit as exit_:
                status = exit_.code
        return status, out.getvalue()

    def test_from_and_json_and_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            again, svg = os.path.join(folder, "again.json"), os.path.join(folder, "speed.svg")
            status, out = self.run_command("--from", RECORD, "--json", again, "--picture", svg)
            self.assertEqual(status, 0, out)
            self.assertEqual(out, report.text(bench.recorded(RECORD)))
            self.assertEqual(bench.recorded(again), bench.recorded(RECORD))
            texts = [t.strip() for t in xml.etree.ElementTree.parse(svg).getroot().itertext()]
        for words in ("forward, head_dim 64, full", "backward, head_dim 64, full", "attest", "cuDNN", "TFLOP/s"):
            self.assertIn(words, texts)

    def test_heights_of_bars(self):
        lines = picture.script(bench.recorded(RECORD), "x.svg").splitlines()
        speeds = lines[lines.index("$data << END") + 1].split()
        self.assertEqual(speeds[0], '"2048"')
        self.assertAlmostEqual(float(speeds[1]), 274.877906944 / 1.02, places=2)

    def test_bars_that_are_missing(self):
        record = bench.recorded(RECORD)
        forward = record["rows"][0]
        refused = {"refused": "too long"}
        record["rows"].append({**forward, "seqlen_q": 8192, "seqlen_k": 8192,
                               "runs": {**forward["runs"], "FA2": refused}})
        script = picture.script(record, "x.svg")
        self.assertRegex(script, r'"8192" \S+ NaN \S+ \S+\n')
        self.assertEqual(script.count('title "attest"'), 1)  # not in the panel of backward, where it has no time

    def test_paths_are_those_of_the_user(self):
        with mock.patch.dict(os.environ, {"BUILD_WORKING_DIRECTORY": "/home/me"}):
            chosen = bench.options(["--json", "a.json", "--from", "/tmp/b.json"])
        self.assertEqual((chosen.json, chosen.source), ("/home/me/a.json", "/tmp/b.json"))

    def test_bad_arguments(self):
        for arguments, words in [(("--from", "/nowhere.json"), "No such file"), (("--table", "wide"), "invalid choice"),
                                 (("--from", os.devnull), "Expecting value")]:
            status, out = self.run_command(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(words, out)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_no_gpu(self):
        status, out = self.run_command()
        self.assertEqual(status, 0)
        self.assertRegex(out, r"^UNCHECKED: timing needs an NVIDIA GPU: .*\n$")


class LibraryFunctions(unittest.TestCase):
    SHAPE = (1, 1, 3, 3, 8, True)

    def setUp(self):
        self.library = ours.Library(bench.library_path())

    def test_normal(self):
        count = 100000
        values = (ctypes.c_float * count).from_buffer(self.library.normal("fp32", count, 5))
        mean = sum(values) / count
        self.assertAlmostEqual(mean, 0, delta=6 / count**0.5)
        self.assertAlmostEqual(sum(x * x for x in values) / count, 1, delta=6 * (2 / count) ** 0.5)
        self.assertAlmostEqual(sum(x**4 for x in values) / count, 3, delta=6 * (96 / count) ** 0.5)
        self.assertAlmostEqual(sum(a * b for a, b in zip(values, values[1:])) / count, 0, delta=6 / count**0.5)

    def test_relative_error(self):
        want = (ctypes.c_float * 2)(3, 4)
        self.assertEqual(self.library.relative_error("fp32", (ctypes.c_float * 2)(3, 4.5), want), 0.1)
        self.assertEqual(self.library.relative_error("bf16", (ctypes.c_uint16 * 2)(0x4040, 0x4080), want), 0)
        poison = (ctypes.c_uint16 * 2)(0x4040, 0xFFFF)
        self.assertTrue(math.isnan(self.library.relative_error("bf16", poison, want)))

    def test_oracle_of_a_causal_head(self):
        """The first query sees one key: o is its v. dv's last row is p dout of the last query."""
        inputs = {name: self.library.normal("bf16", 24, seed) for seed, name in enumerate(("q", "k", "v", "dout"))}
        out = ours.oracle(self.library, "bf16", *self.SHAPE[2:], inputs)
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
        inputs = {name: self.library.normal("bf16", 24, seed) for seed, name in enumerate(("q", "k", "v", "dout"))}
        causal, full = (ours.oracle(self.library, "bf16", 3, 3, 8, mask, inputs) for mask in (True, False))
        self.assertNotEqual(list(causal["o"][:8]), list(full["o"][:8]))
        self.assertAlmostEqual(causal["lse"][2], full["lse"][2], places=6)

    def test_refusal_is_a_sentence(self):
        with self.assertRaisesRegex(ours.Refused, "head_dim"):
            ours.Plan(self.library, ours.REFERENCE, "bf16", (1, 1, 3, 3, 1000, False), "forward")
        plan = ours.Plan(self.library, ours.REFERENCE, "bf16", self.SHAPE, "forward")
        with self.assertRaisesRegex(ours.Refused, "q"):
            plan.run({})
        plan.destroy()


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
    """A peers.Backend that computes nothing, knows who was called, and is refused as cuDNN."""

    calls = []

    def __init__(self, torch, name, inputs, causal, direction):
        if name == "cuDNN":
            raise ours.Refused("not today")
        self.name = name

    context = staticmethod(contextlib.nullcontext)

    def call(self):
        self.calls.append(self.name)

    def last_heads(self):
        return {}

    def close(self):
        self.calls.append("close")


class Measuring(unittest.TestCase):
    SHAPES = [(2, 2, 24, 24, 16, True), (1, 2, 1, 40, 32, False)]

    @mock.patch.multiple(measure, FLUSH_BYTES=4096, COPY_BYTES=4096, DRAWN=500)
    @mock.patch.object(peers, "load", lambda: None)
    @mock.patch.object(ours, "CUDA", 1)  # the simulated GPU
    def measured(self):
        memory = HostMemory()
        record = measure.measure(memory, ours.Library(bench.library_path()), "tiny", "bf16", self.SHAPES, 3,
                                 lambda shape: None)
        self.assertEqual(len(memory.buffers), len(ours.TENSORS) + 1)  # nothing else stays allocated
        return record

    def test_on_the_simulated_gpu(self):
        record = self.measured()
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
        self.assertIn("its kernels here: forward", report.text(record))

    @mock.patch.object(measure, "FLUSH_BYTES", 4096)
    @mock.patch.object(ours, "CUDA", 1)
    @mock.patch.object(peers, "load", lambda: "torch")
    @mock.patch.object(peers, "view", lambda torch, dtype, pointer, shape: shape)
    @mock.patch.object(peers, "Backend", FakeBackend)
    def test_implementations_alternate(self):
        shape, rounds = self.SHAPES[0], 30
        buffers = measure.Bench(HostMemory(), ours.Library(bench.library_path()), "bf16", [shape])
        FakeBackend.calls.clear()
        want = {"o": (ctypes.c_float * (24 * 16))(), "lse": (ctypes.c_float * 24)()}
        runs = measure.time_row(buffers, shape, "forward", want, rounds)["runs"]
        self.assertEqual({name: len(run.get("samples_ms", ())) for name, run in runs.items()},
                         {"attest": rounds, "FA2": rounds, "memeff": rounds, "cuDNN": 0})
        self.assertEqual(runs["cuDNN"], {"refused": "not today"})
        calls = FakeBackend.calls
        self.assertEqual(calls[-2:], ["close", "close"])
        turns = [tuple(calls[i:i + 2]) for i in range(0, 2 * (measure.WARM_UP + rounds), 2)]
        self.assertEqual(set(turns), {("FA2", "memeff"), ("memeff", "FA2")})

    @mock.patch.object(measure, "FLUSH_BYTES", 4096)
    @mock.patch.object(peers, "load", lambda: None)
    def test_the_last_head_lies_last(self):
        shape = self.SHAPES[0]
        buffers = measure.Bench(HostMemory(), ours.Library(bench.library_path()), "bf16", [shape])
        k = ctypes.string_at(buffers.pointers["k"], measure.tensor_bytes("k", shape))
        self.assertEqual(bytes(buffers.last_head("k", shape)), k[-24 * 16 * 2:])
        self.assertEqual(len(buffers.last_head("lse", shape)), 24 * 4)

    def test_a_run_that_writes_nothing_is_nan(self):
        with mock.patch.object(ours.Plan, "run", lambda *arguments: None), \
             mock.patch.object(ours, "oracle", lambda library, dtype, seqlen_q, seqlen_k, head_dim, causal, inputs: {
                 name: (ctypes.c_float * (seqlen_q if name == "lse" else head_dim *
                                          (seqlen_q if name in ("o", "dq") else seqlen_k)))(*[1])
                 for name in ("o", "lse", "dq", "dk", "dv")}):
            record = self.measured()
        self.assertTrue(all(map(math.isnan, record["rows"][0]["runs"]["attest"]["errors"].values())))


if __name__ == "__main__":
    unittest.main()
