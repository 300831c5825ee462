#!/usr/bin/env -S python3 -B
"""The command, the arithmetic, the tables and the picture, on recorded samples."""

import contextlib
import io
import math
import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

import bench
import measure
import ours
import picture
import report
import tables

RECORD = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "recorded.json")


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
        self.assertEqual(len(rows), 10 * (2 * 12 + 1) + 2 * 8)
        self.assertEqual([shape.batch for shape, _ in rows if shape.named() == ("block_mask",)], [2] * 16)
        self.assertEqual(len({shape for shape, _ in rows}), 10 * 13 + 2 * 4)
        chosen = tables.chosen("features", ["dropout", "bias", "long", "dim64", "backward"], 2048)
        self.assertEqual([(shape.named(), shape.seqlen_k, direction) for shape, direction in chosen],
                         [(("bias",), 2048, "backward"), (("dropout",), 2048, "backward")])
        self.assertEqual(tables.chosen("features", [], math.inf), rows)
        self.assertEqual({shape.head_dim for shape, _ in tables.chosen("short", ["dim256"], math.inf)}, {256})

    def test_flex_is_asked_where_it_is_needed(self):
        asked = [shape.named()[0] for shape in tables.featured(tables.Shape(2, 16, 8192, 8192, 128))
                 if tables.takes_part("flex", shape)]
        self.assertEqual(asked, ["sink", "alibi", "bias", "dbias", "softcap", *["block_mask"] * 4, "all"])
        self.assertTrue(tables.takes_part("FA2", tables.LONG[0]))

    def test_random_masks(self):
        mask = measure.random_mask(100000)
        self.assertEqual(set(mask), {0, 1})
        self.assertAlmostEqual(sum(mask) / len(mask), tables.VISIBLE, delta=0.01)
        for every in (2, 4, 8, 16):
            shape = tables.Shape(1, 1, 8192, 8192, 64, features=("block_mask",), blocks=every)
            blocks = measure.small_inputs(shape)["block_mask"]
            for row in range(64):
                self.assertEqual(sum(blocks[64 * row:64 * row + 64]), 64 // every)
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
        blocks = tables.Shape(2, 16, 8192, 8192, 128, features=("block_mask",), blocks=16)
        self.assertEqual(report.feature_cell(blocks), "block_mask 1/16")
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


if __name__ == "__main__":
    unittest.main()
