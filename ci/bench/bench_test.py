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
from types import SimpleNamespace
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
        long = [shape for shape in tables.LONG if not shape.has_few_rows()]
        self.assertEqual({shape.batch * shape.seqlen_q for shape in long}, {16384})
        self.assertEqual({shape.rows_first for shape in tables.LONG}, {True})
        plain = [shape for shape in long if shape.head_dim in (64, 128, 256)
                 and shape.named() in (("plain",), ("causal",))]
        self.assertEqual({shape.heads * shape.head_dim for shape in plain}, {2048})
        self.assertEqual((len(plain), len(set(long)), len(set(tables.LONG))), (36, 70, 80))
        self.assertEqual([shape.directions() for shape in tables.LONG[-10:]], [("forward",)] * 10)
        self.assertEqual(len(set(tables.SHORT)), 24)
        self.assertEqual([shape[2] for shape in tables.SHORT[::4]], [32, 64, 128, 1, 1, 1])
        self.assertIn(tables.Shape(8000, 8, 1, 128, 256), tables.SHORT)
        self.assertEqual(len(set(tables.SMALL)), 36)
        self.assertEqual(set(tables.BESIDE), set(tables.TABLES))
        shape = tables.Shape(2, 6, 5, 7, 11, heads_kv=3, head_dim_v=4, features=("mask_k", "dbias"))
        self.assertEqual([ours.tensor_bytes(name, shape) for name in ("lse", "dq", "k", "dv", "mask", "dbias")],
                         [2 * 6 * 5 * 4, 2 * 6 * 5 * 11 * 2, 2 * 3 * 7 * 11 * 2, 2 * 3 * 7 * 4 * 2, 2 * 7,
                          6 * 5 * 7 * 2])

    def test_visible_shares(self):
        """Of scores counted one by one; a causal mask over equal lengths counts half of them, as is usual."""
        for shape in (tables.Shape(1, 1, 400, 400, 8, True), tables.Shape(1, 1, 400, 400, 8, True, window=100),
                      tables.Shape(1, 1, 100, 400, 8, True), tables.Shape(1, 1, 100, 400, 8)):
            diag, left = shape.seqlen_k - shape.seqlen_q, shape.window or shape.seqlen_k
            seen = sum(not shape.causal or i + diag - left <= j <= i + diag
                       for i in range(shape.seqlen_q) for j in range(shape.seqlen_k))
            self.assertAlmostEqual(shape.visible(), seen / shape.seqlen_q / shape.seqlen_k, delta=0.003)
        used = tables.Shape(1, 1, 400, 400, 8, features=("seqused", "block_mask"))
        self.assertEqual(used.visible(), 0.75 / 8)

    def test_floors_of_features(self):
        plain = tables.Shape(16000, 8, 64, 64, 64)
        rates = {"copy_bytes_per_s": 1e12, "matrix_flops_per_s": None}

        def floor_bytes(direction="forward", **asked):
            row_of = {**plain._replace(**asked)._asdict(), "direction": direction}
            return round(report.floor_ms(rates, row_of) * 1e9)

        row_bytes = 16000 * 64 * 64 * 2
        self.assertEqual(floor_bytes(), 32 * row_bytes)
        self.assertEqual(floor_bytes(heads_kv=2), 20 * row_bytes)
        self.assertEqual(floor_bytes(features=("bias",)), 32 * row_bytes + 8 * 64 * 64 * 2)
        self.assertEqual(floor_bytes("backward", features=("dbias",)), 64 * row_bytes + 2 * 8 * 64 * 64 * 2)
        self.assertEqual(floor_bytes(features=("mask",)), 32 * row_bytes + 16000 * 64 * 64)
        self.assertEqual(floor_bytes(features=("mask_k",)), 32 * row_bytes + 16000 * 64)
        self.assertEqual(floor_bytes(features=("seqused",)), (16 + 16 * 0.75) * row_bytes)
        self.assertEqual(floor_bytes(head_dim_v=32), 24 * row_bytes)

    def test_features(self):
        """Every feature on every shape; rows of a kind by words."""
        rows = tables.rows("features")
        names = {shape.named() for shape, _ in rows}
        alone = [(feature,) for feature in (*tables.FEATURES, "causal", "gqa", "plain", "all")]
        self.assertEqual(names, set(alone))
        self.assertEqual(len(rows), 10 * (2 * 12 + 1) + 2 * 2)
        self.assertEqual([shape.batch for shape, _ in rows if shape.named() == ("block_mask",)], [2] * 4)
        chosen = tables.chosen("features", ["dropout", "bias", "long", "dim64", "backward"], 2048)
        self.assertEqual([(shape.named(), shape.seqlen_k, direction) for shape, direction in chosen],
                         [(("bias",), 2048, "backward"), (("dropout",), 2048, "backward")])
        self.assertEqual(tables.chosen("features", [], math.inf), rows)
        self.assertEqual({shape.head_dim for shape, _ in tables.chosen("short", ["dim256"], math.inf)}, {256})

    def test_flex_is_asked_where_it_is_needed(self):
        asked = [shape.named()[0] for shape in tables.featured(tables.Shape(2, 16, 8192, 8192, 128))
                 if tables.takes_part("flex", shape)]
        self.assertEqual(asked, ["sink", "alibi", "bias", "dbias", "softcap", "block_mask", "all"])
        self.assertTrue(tables.takes_part("FA2", tables.LONG[0]))

    def test_random_masks(self):
        mask = measure.random_mask(100000)
        self.assertEqual(set(mask), {0, 1})
        self.assertAlmostEqual(sum(mask) / len(mask), tables.VISIBLE, delta=0.01)
        blocks = measure.small_inputs(tables.Shape(1, 1, 8192, 8192, 64, features=("block_mask",)))["block_mask"]
        for row in range(64):
            self.assertEqual(sum(blocks[64 * row:64 * row + 64]), 8)
            self.assertEqual(blocks[65 * row], 1)
        lengths = list(measure.small_inputs(tables.Shape(9000, 1, 64, 64, 64, features=("seqused",)))["seqused_k"])
        self.assertEqual((min(lengths), max(lengths)), (32, 64))
        self.assertAlmostEqual(sum(lengths) / 9000 / 64, tables.USED, delta=0.01)

    def test_best_peer(self):
        r = row((1, 1, 32, 32, 64, False), attest=[1.0], FA2=[3.0], whole=[2.0])
        r["runs"]["math"] = {"refused": "out of memory", "errors": {"o": 1e-3}}
        self.assertEqual(report.best_peer(r), "whole")
        self.assertIsNone(report.best_peer(row((1, 1, 32, 32, 64, False), attest=[1.0])))

    def test_beyond_an_empty_kernel(self):
        r = row((1, 8, 32, 32, 64, False), attest=[0.005, 0.004, 0.006], empty=[0.002, 0.003, 0.001])
        self.assertAlmostEqual(report.beyond_empty(r, "samples_ms"), 0.003)
        self.assertIsNone(report.beyond_empty(r, "host_ns"))


def cells_of(text, title, wanted):
    """The first line of the table under `title` in which the columns `wanted` are so."""
    lines = text.split(f"\n{title}\n")[1].splitlines()
    names = [cell.strip() for cell in lines[1].strip("|").split("|")]
    rows = [dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")))) for line in lines[3:]]
    return next(cells for cells in rows if wanted.items() <= cells.items())


class Text(unittest.TestCase):
    def setUp(self):
        self.record = bench.recorded(RECORD)

    def cells(self, direction, seqlen):
        return cells_of(report.text(self.record), f"{direction} (ms)", {"seqlen": seqlen})

    def test_recorded(self):
        cells = self.cells("forward", "2048")
        self.assertEqual(cells["attest"], "1.020 ±1.0%")
        self.assertEqual(cells["floor"], "0.352")
        self.assertEqual(cells["TFLOP/s"], "269")
        self.assertEqual(cells["time / floor"], "2.90")
        self.assertEqual((cells["speed / best's"], cells["best peer"]), ("0.59", "cuDNN"))
        self.assertEqual(cells["/ product"], "0.35")
        self.assertEqual((cells["error o"], cells["lse"], cells["FA2's o"]), ("1.71e-03", "4.10e-08", "1.72e-03"))

    def test_refused_is_a_dash_and_a_sentence(self):
        cells = self.cells("backward", "2048")
        self.assertEqual((cells["attest"], cells["TFLOP/s"], cells["speed / best's"], cells["error dq"]),
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

    def test_shapes_that_are_not_square(self):
        group = tables.Shape(2, 32, 8192, 8192, 192, True, 8, 128, 1024, True)
        few = tables.Shape(1, 9, 512, 65536, 128)
        self.record["rows"] = [measure.row(shape, "forward", {
            "attest": {"samples_ms": [1.0] * 2, "errors": {}, "kernel": "k"}, "FA4": {"samples_ms": [speed] * 2}})
            for shape, speed in ((group, 1.0), (few, 2.0), (few._replace(seqlen_q=1024), 4.5), (group, 1.21))]
        text = report.text(self.record)
        self.assertEqual(cells_of(text, "forward (ms)", {"seqlen": "512 x 65536"})["speed / best's"], "2.00")
        cells = cells_of(text, "forward (ms)", {"head_dim": "192/128"})
        self.assertEqual((cells["heads"], cells["mask"], cells["FA4"]), ("32/8", "window 1024", "1.000 ±0.0%"))
        title = "best peer's time / attest's, geometric mean"
        self.assertEqual(cells_of(text, title, {"mask": "few rows"}),
                         {"head_dim": "128", "mask": "few rows", "forward": "3.000", "backward": "-", "rows": "2"})
        self.assertEqual(cells_of(text, title, {"mask": "window 1024, 32/8"})["forward"], "1.100")

    def test_lines_of_a_table_are_as_long(self):
        lines = [line for line in report.text(self.record).splitlines() if line.startswith("|")]
        self.assertEqual(len(set(map(len, lines[:3]))), 1)


class Features(unittest.TestCase):
    RATES = {**Arithmetic.RATES, "gpu": "a GPU", "driver": "13.0", "torch": "2", "cudnn": 9, "dtype": "bf16"}

    def record(self):
        plain = tables.Shape(16000, 8, 64, 64, 64)
        rows = []
        for shape, attest, peer in [(plain, 1.0, 1.5), (plain._replace(features=("bias",)), 1.4, 1.95),
                                    (plain._replace(causal=True), 0.75, 0.9), (plain._replace(head_dim=32), 0.5, 0.6)]:
            runs = {"attest": {"samples_ms": [attest] * 3, "errors": {"o": 2e-3, "lse": 1e-7}, "kernel": "short"},
                    "memeff": {"samples_ms": [peer] * 3, "errors": {}},
                    "FA3": {"refused": "not installed: No module named 'fa3_fwd_interface'"}}
            rows.append(measure.row(shape, "forward", runs))
        return {**self.RATES, "table": "features", "rows": rows}

    def test_ratios(self):
        text = report.text(self.record())
        cells = cells_of(text, "forward (ms)", {"feature": "bias"})
        columns = ("shape", "heads", "attest", "/ plain", "/ floor", "best peer", "which", "speed", "error", "kernel")
        self.assertEqual([cells[name] for name in columns],
                         ["16000 x 64", "8/8 of 64", "1.400 ±0.0%", "1.40", "1.43", "1.950", "memeff", "1.39",
                          "2.0e-03", "short"])
        self.assertEqual(cells_of(text, "forward (ms)", {"feature": "causal"})["/ plain"], "0.75")
        self.assertEqual(text.count("- of FA3: not installed"), 1)

    def test_without_the_plain_row(self):
        record = self.record()
        del record["rows"][0]
        self.assertEqual(cells_of(report.text(record), "forward (ms)", {"feature": "bias"})["/ plain"], "-")

    def test_nan_is_the_largest_error(self):
        record = self.record()
        record["rows"][1]["runs"]["attest"]["errors"]["lse"] = math.nan
        self.assertEqual(cells_of(report.text(record), "forward (ms)", {"feature": "bias"})["error"], "nan")

    def test_a_run_cut_short(self):
        self.assertIn("0 calls", report.text({**self.record(), "rows": []}))

    @unittest.skipUnless(picture.has_gnuplot(), "there is no gnuplot")
    def test_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = os.path.join(folder, "x.svg")
            picture.draw(self.record(), svg)
            texts = [t.strip() for t in xml.etree.ElementTree.parse(svg).getroot().itertext()]
        self.assertIn("bias", texts)


class ShortAndSmall(unittest.TestCase):
    """Made-up samples; floors are those of the rates that are published."""

    RATES = {**Arithmetic.RATES, "gpu": "a GPU", "driver": "13.0", "torch": "2", "cudnn": 9, "dtype": "bf16"}

    def short(self):
        rows = []
        for shape in [(16000, 8, 32, 32, 64, False), (16000, 8, 1, 32, 64, False)]:
            forward = row(shape, attest=[0.5, 0.5, 0.51], FA2=[2.8], whole=[0.49], cuDNN=[2.0])
            forward["runs"]["attest"].update(errors={"o": 1.5e-3, "lse": 1e-8}, kernel="short")
            forward["runs"]["math"] = {"refused": "CUDA out of memory.", "errors": {"o": 1e-3}}
            forward["runs"]["memeff"] = {"refused": "not today"}
            backward = row(shape, "backward", FA2=[12.3])
            backward["runs"]["attest"] = {"refused": "too short"}
            rows += [forward, backward]
        family = {**row((4, 8, 32, 32, 64, False)), "family": "mean"}
        family["runs"] = {"attest": {"errors": {"o": 3e-3}}, "math": {"errors": {"o": 1e-3}}}
        return {**self.RATES, "table": "short", "rows": rows, "error_rows": [family]}

    def test_times_of_short_sequences(self):
        text = report.text(self.short())
        cells = cells_of(text, "forward (ms)", {"seqlen": "32"})
        self.assertEqual((cells["floor"], cells["attest"], cells["/ floor"]), ("0.490", "0.500 ±0.5%", "1.02"))
        self.assertEqual([cells[name] for name in ("FA2", "memeff", "cuDNN", "math", "whole")],
                         ["2.800", "-", "2.000", "-", "0.490"])
        self.assertEqual((cells["speed / best's"], cells["best peer"]), ("0.98", "whole"))
        self.assertEqual(cells_of(text, "forward (ms)", {"seqlen": "1 x 32"})["floor"], "0.253")
        cells = cells_of(text, "backward (ms)", {"seqlen": "32"})
        self.assertEqual((cells["attest"], cells["speed / best's"], cells["best peer"]), ("-", "-", "FA2"))
        self.assertEqual(text.count("- of math: CUDA out of memory."), 1)

    def test_errors_of_short_sequences(self):
        text = report.text(self.short())
        cells = cells_of(text, "error of o", {"seqlen": "32", "inputs": "normal"})
        self.assertEqual((cells["attest"], cells["math"], cells["FA2"], cells["attest / math"]),
                         ("1.50e-03", "1.00e-03", "-", "1.50"))
        self.assertEqual(cells_of(text, "error of o", {"inputs": "mean"})["attest / math"], "3.00")
        self.assertEqual(cells_of(text, "error of dq", {"seqlen": "32"})["attest / math"], "-")
        largest = cells_of(text, "error of attest / of math, the largest of all shapes", {"inputs": "mean"})
        self.assertEqual((largest["o"], largest["dq"]), ("3.00", "-"))

    def test_nan_is_the_largest_error(self):
        record = self.short()
        record["rows"][0]["runs"]["attest"]["errors"]["o"] = math.nan
        title = "error of attest / of math, the largest of all shapes"
        self.assertEqual(cells_of(report.text(record), title, {"inputs": "normal"})["o"], "nan")

    def test_heights_over_the_floor(self):
        lines = picture.script(self.short(), "x.svg").splitlines()
        heights = lines[lines.index("$data << END") + 1].split('" ')
        self.assertEqual(heights[0], '"32, 64')
        self.assertAlmostEqual(float(heights[1].split()[0]), 0.5 / 0.490, places=2)
        titles = [line for line in lines if line.startswith("set title")]
        self.assertEqual(titles[:2], ['set title "forward, self-attention: seqlen, head_dim"',
                                      'set title "forward, one query: seqlen, head_dim"'])

    def small(self):
        found = row((16, 8, 64, 64, 128, False), attest=[0.0055] * 3, empty=[0.0025] * 3)
        found["runs"]["attest"].update(host_ns=[3000, 3100, 9000], kernel="forward", errors={"o": 1.7e-3})
        found["runs"]["empty"]["host_ns"] = [2000, 2000, 2500]
        refused = row((16, 8, 64, 64, 128, False), "backward", empty=[0.0025])
        refused["runs"]["attest"] = {"refused": "no"}
        return {**self.RATES, "table": "small", "rows": [found, refused]}

    def test_small_problems(self):
        text = report.text(self.small())
        cells = cells_of(text, "forward (one call)", {"seqlen": "64"})
        self.assertEqual((cells["GPU us"], cells["host ns"], cells["error o"]), ("3.00", "1100", "1.70e-03"))
        cells = cells_of(text, "backward (one call)", {"seqlen": "64"})
        self.assertEqual((cells["GPU us"], cells["host ns"], cells["error dq"]), ("-", "-", "-"))
        self.assertIn('"16, 64" 3\n', picture.script(self.small(), "x.svg"))

    @unittest.skipUnless(picture.has_gnuplot(), "there is no gnuplot")
    def test_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = os.path.join(folder, "x.svg")
            for record, words in ((self.short(), "time / floor"), (self.small(), "us beyond an empty kernel")):
                picture.draw(record, svg)
                texts = [t.strip() for t in xml.etree.ElementTree.parse(svg).getroot().itertext()]
                self.assertIn("attest", texts)
                self.assertIn(words, texts)


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
                                 (("--only", "wide"), "there is no wide; feature: plain causal"),
                                 (("--only", "backward causal seqlen512 dim64 wide"), "there is no wide"),
                                 (("--table", "features", "--only", "block_mask short"), "no row of this table"),
                                 (("--peers", "FA9"), "peers: FA2"), (("--rounds", "1"), "one sample has no spread"),
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
        cells = cells_of(report.text(record), "backward (ms)", {"feature": "dbias"})
        self.assertEqual((cells["heads"], cells["which"], cells["speed"]), ("4/4 of 16", "-", "-"))
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
