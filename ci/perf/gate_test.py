#!/usr/bin/env -S python3 -B
"""The gate's own arithmetic: baselines, comparisons, what tools print, verdicts on times, history."""

import contextlib
import copy
import io
import json
import math
import os
import random
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "bench")]

import baseline
import calibrate
import collect
import files
import history
import nvml
import perf
import record
import regressions_test
import times
import verdict


def counts_of(figures, **versions):
    counts = collect.Counts()
    counts.versions = versions or {"sim": "gcc 1"}
    for (kernel, source, item, count), value in figures.items():
        counts.add(kernel, source, item, count, value)
    return counts


ONE = {("forward", "sim", "d64", "barrier_waits"): 100}
BASE = {"forward": ({"sim": "gcc 1"}, {("sim", "d64", "barrier_waits"): 100})}


class Comparisons(unittest.TestCase):
    def compare(self, figures, baselines=None, **versions):
        return baseline.compare(counts_of(figures, **versions), BASE if baselines is None else baselines)

    def test_equal_passes(self):
        self.assertTrue(self.compare(ONE).passes())

    def test_less_passes_and_is_said(self):
        result = self.compare({k: 99 for k in ONE})
        self.assertTrue(result.passes())
        self.assertEqual(result.better, ["forward, d64, barrier_waits: 100 -> 99, -1.00 %"])

    def test_more_fails_in_one_line(self):
        result = self.compare({k: 101 for k in ONE})
        self.assertFalse(result.passes())
        self.assertEqual(result.worse, ["forward, d64, barrier_waits: 100 -> 101, +1.00 %"])

    def test_from_none_fails(self):
        base = {"forward": ({"sim": "gcc 1"}, {("sim", "d64", "barrier_waits"): 0})}
        self.assertEqual(self.compare(ONE, base).worse, ["forward, d64, barrier_waits: 0 -> 100, from none"])

    def test_a_kernel_without_a_baseline_fails(self):
        result = self.compare({**ONE, ("merge", "sim", "p", "c"): 1})
        self.assertEqual(result.broken, ["NO BASELINE merge: the kernel has no file"])
        self.assertFalse(result.passes())

    def test_a_missing_kernel_fails(self):
        result = self.compare(ONE, {**BASE, "merge": ({"sim": "gcc 1"}, {("sim", "p", "c"): 1})})
        self.assertEqual(result.broken, ["NOT COUNTED merge, p, c: the baseline has 1"])
        self.assertFalse(result.passes())

    def test_a_count_without_a_baseline_fails(self):
        result = self.compare({**ONE, ("forward", "sim", "d64", "launches"): 1})
        self.assertEqual(result.broken, ["NO BASELINE forward, d64, launches: 1"])
        self.assertFalse(result.passes())

    def test_another_compiler_is_unchecked(self):
        result = self.compare(ONE, sim="gcc 2")
        self.assertEqual(result.unchecked,
                         ["UNCHECKED forward, d64, barrier_waits: the baseline is of gcc 1, this is gcc 2"])
        self.assertFalse(result.passes())  # nothing was checked at all

    def printed(self, figures, versions, unchecked, baselines):
        counts = counts_of(figures, **versions)
        counts.unchecked = unchecked
        result, text = baseline.compare(counts, baselines), io.StringIO()
        with contextlib.redirect_stdout(text):
            perf.print_comparison(result)
        return result.passes(), text.getvalue().splitlines()

    def test_each_count_of_a_missing_tool_is_unchecked(self):
        versions, sim = BASE["forward"]
        lacking = {"ptxas": "there is no nvcc", "callgrind": "there is no valgrind"}
        nvcc = {("ptxas", "sm_80 k<64>", "registers"): 8, ("ptxas", "sm_80 k<64>", "code_bytes"): 64}
        base = {"forward": ({**versions, "ptxas": "nvcc 1"}, {**sim, **nvcc}),
                "dbias": ({"ptxas": "nvcc 1"}, {("ptxas", "sm_80 dbias", "registers"): 9}),
                "host": ({"callgrind": "gcc 1"}, {("callgrind", "plan", "instructions"): 7})}
        lines = ["UNCHECKED dbias, sm_80 dbias, registers: there is no nvcc",
                 "UNCHECKED forward, sm_80 k<64>, code_bytes: there is no nvcc",
                 "UNCHECKED forward, sm_80 k<64>, registers: there is no nvcc",
                 "UNCHECKED host, plan, instructions: there is no valgrind"]
        rest = "0 better, 0 without a partner, 4 UNCHECKED: there is no nvcc; there is no valgrind"
        self.assertEqual(self.printed(ONE, {"sim": "gcc 1"}, lacking, base),
                         (True, lines + ["PASS: 1 counts, 0 worse, " + rest]))
        self.assertEqual(self.printed({k: 101 for k in ONE}, {"sim": "gcc 1"}, lacking, base),
                         (False, lines + ["WORSE   forward, d64, barrier_waits: 100 -> 101, +1.00 %",
                                          "FAIL: 1 counts, 1 worse, " + rest]))

    def test_nothing_is_unchecked_where_every_tool_is_there(self):
        self.assertEqual(self.printed(ONE, {"sim": "gcc 1"}, {}, BASE),
                         (True, ["PASS: 1 counts, 0 worse, 0 better, 0 without a partner"]))

    def test_a_source_that_nothing_counts_is_not_unchecked_but_broken(self):
        versions, sim = BASE["forward"]
        base = {"forward": ({**versions, "ptxas": "nvcc 1"}, {**sim, ("ptxas", "k", "registers"): 8})}
        self.assertEqual(self.compare(ONE, base).broken,
                         ["NOT COUNTED forward: the baseline has ptxas, which nothing counts"])

    def test_launches_that_fall_to_none_are_not_better(self):
        for count in ("launches", "blocks"):
            key = ("sim", "d64", count)
            result = self.compare({("forward", *key): 0}, {"forward": ({"sim": "gcc 1"}, {key: 2})})
            self.assertEqual((result.broken, result.better),
                             ([f"COUNTED NOTHING forward, d64, {count}: the baseline has 2"], []))
            self.assertFalse(result.passes())

    def test_what_is_gone(self):
        versions, sim = BASE["forward"]
        base = {"forward": ({**versions, "ptxas": "n"}, {**sim, ("sim", "d64", "launches"): 1, ("ptxas", "k", "r"): 1}),
                "merge": (versions, {("sim", "p", "c"): 1})}
        now = {**ONE, ("forward", "sim", "d64", "launches"): 0}
        self.assertEqual(baseline.gone(counts_of(now), base), ["forward, d64, launches", "merge, p, c"])
        self.assertEqual(baseline.gone(counts_of(now, sim="gcc 2"), base), ["forward, d64, launches", "merge, p, c"])

    def test_nothing_counted_fails(self):
        self.assertFalse(baseline.compare(collect.Counts(), {}).passes())


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def refused(self, text, why):
        path = os.path.join(self.folder.name, "forward.txt")
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        with self.assertRaisesRegex(files.Malformed, why):
            baseline.read(self.folder.name)
        os.remove(path)

    def write(self, counts, old):
        files.replace(baseline.accepted(self.folder.name, counts, old))

    def test_what_is_written_is_read(self):
        counts = counts_of({**ONE, ("forward", "sim", "dq<64, true>", "launches"): 2})
        self.write(counts, {})
        self.assertEqual(baseline.read(self.folder.name)["forward"][1], counts.figures["forward"])

    def test_a_source_that_was_not_asked_keeps_its_counts(self):
        old = {"forward": ({"sim": "gcc 1", "ptxas": "nvcc 1"}, {("ptxas", "k", "registers"): 8})}
        self.write(counts_of(ONE), old)
        versions, figures = baseline.read(self.folder.name)["forward"]
        self.assertEqual(figures["ptxas", "k", "registers"], 8)
        self.assertEqual(versions["ptxas"], "nvcc 1")

    def test_malformed_files_are_refused(self):
        self.refused("d64 barrier_waits 3\n", "forward.txt:1: not `ITEM COUNT VALUE` in a section")
        self.refused("[sim: gcc 1]\nd64 barrier_waits -3\n", "forward.txt:2: not")
        self.refused("[sim: gcc 1]\nd64 barrier_waits\n", "forward.txt:2: not")
        self.refused("[sim: gcc 1]\na b 1\na b 1\n", "forward.txt:3: a b for the second time")
        self.refused("[sim: gcc 1]\n[sim: gcc 1]\n", "forward.txt:2: a second section")
        self.refused(f"[sim: gcc 1]\na b 1{18 * '0'}\n", "forward.txt:2: not")
        self.refused("[sim: gcc 1]\na b \u0661\n", "forward.txt:2: not")
        self.refused("[sim: gcc 1]\na b 01\n", "forward.txt:2: not")
        self.refused("[sim: gcc 1]\na c 1\na b 1\n", "forward.txt:3: not sorted: a b belongs above")
        self.refused("[sim: gcc 1]\na b 1\n[ptxas: nvcc 1]\na b 1\n", "forward.txt:4: not sorted")
        self.refused("[sim: gcc 1]\r\na b 1\r\n", "forward.txt:1: the line ends with CR LF")
        self.refused("[sim: gcc 1]\na b 1", "forward.txt:2: the last line has no end")
        self.refused(b"[sim: gcc 1]\na \xff 1\n", "forward.txt:2: not UTF-8")

    def test_what_is_no_file_is_refused(self):
        path = os.path.join(self.folder.name, "forward.txt")
        os.mkdir(path)
        with self.assertRaisesRegex(files.Malformed, "forward.txt: Is a directory"):
            baseline.read(self.folder.name)
        os.rmdir(path)
        os.symlink("nowhere", path)
        with self.assertRaisesRegex(files.Malformed, "forward.txt: No such file"):
            baseline.read(self.folder.name)
        with self.assertRaisesRegex(files.Malformed, "/nowhere: No such file"):
            baseline.read("/nowhere")

    def test_one_source_has_one_version(self):
        """Else a section of another version hides its counts as UNCHECKED."""
        for kernel, version in (("forward", 1), ("merge", 2)):
            with open(os.path.join(self.folder.name, kernel + ".txt"), "w") as file:
                file.write(f"[sim: gcc {version}]\nd64 launches 1\n")
        with self.assertRaisesRegex(files.Malformed, r"\[sim\] is of gcc 1 in forward.txt, but of gcc 2 in merge.txt"):
            baseline.read(self.folder.name)

    def test_all_files_are_replaced_or_none(self):
        a, b, c = (os.path.join(self.folder.name, name) for name in "abc")
        files.replace({a: "1", b: "1"})
        real, left = os.replace, [1]

        def fails_once(*paths):  # at the second one
            left[0] -= 1
            if left[0] == -1:
                raise OSError(28, "No space left on device")
            real(*paths)
        with mock.patch("os.replace", fails_once), self.assertRaises(OSError):
            files.replace({c: "2", b: "2", a: None})
        self.assertEqual([files.text_of(path) for path in (a, b, c)], ["1", "1", None])
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["a", "b"])
        files.replace({c: "2", b: "2", a: None})
        self.assertEqual([files.text_of(path) for path in (a, b, c)], [None, "2", "2"])


class Tools(unittest.TestCase):
    def test_callgrind_counts_the_program_alone(self):
        text = "\n".join(["events: Ir", "ob=(1) /x/host", "fn=(1) measured", "0 5", "+1 2", "cob=(2) /lib/libc.so",
                          "cfn=(2) memcpy", "calls=1 0", "0 100", "0 1", "", "ob=(2)", "fn=(2)", "0 100", "",
                          "ob=(1)", "fn=(3)", "* 4"])
        self.assertEqual(collect.own_instructions(text, "/x/host"), 12)

    def test_ptxas_entries_are_found(self):
        text = ("ptxas info    : Compiling entry function '_Z1kv' for 'sm_90a'\n"
                "ptxas info    : Function properties for _Z1kv\n"
                "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
                "ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem\n")
        found = collect.ptxas_entries(text)
        self.assertEqual([(e["gpu"], e["registers"], e["stores"], e["loads"], e["shared"]) for e in found],
                         [("sm_90a", 255, 4, 12, 1024)])

    # What ptxas 13.0 says of a kernel that calls a function that is not inlined, and of one that does not.
    SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kPfi' for 'sm_90a'
ptxas info    : Function properties for _Z1kPfi
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 8 bytes cumulative stack size
ptxas info    : Compile time = 17.128 ms
ptxas info    : Function properties for _Z4manyPfi
    4 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function '_Z2k3Pfi' for 'sm_90a'
ptxas info    : Function properties for _Z2k3Pfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""

    def test_functions_that_are_not_inlined_count_with_their_kernel(self):
        found = collect.ptxas_entries(self.SAID)
        self.assertEqual([(e["name"], e["registers"], e["stack"], e["stores"], e["loads"]) for e in found],
                         [("_Z1kPfi", 32, 12, 8, 12), ("_Z2k3Pfi", 8, 0, 0, 0)])

    def test_lines_of_ptxas_between_others_drop_no_kernel(self):
        lines = self.SAID.splitlines()
        for at in range(len(lines) + 1):
            text = "\n".join(lines[:at] + ["ptxas info    : something new"] + lines[at:])
            self.assertEqual(collect.ptxas_entries(text), collect.ptxas_entries(self.SAID))

    def test_a_kernel_of_which_ptxas_says_too_little_is_an_error(self):
        lines = self.SAID.splitlines()
        for at, why in ((1, "of a function before any kernel"), (2, "what _Z1kPfi takes"), (3, "what _Z1kPfi takes"),
                        (4, "what _Z1kPfi takes"), (7, "what _Z1kPfi takes"), (11, "what _Z2k3Pfi takes")):
            with self.assertRaisesRegex(collect.Failed, why):
                collect.ptxas_entries("\n".join(lines[:at] + lines[at + 1:]))
        with self.assertRaisesRegex(collect.Failed, "compiled 3 kernels, 2 are understood"):
            collect.ptxas_entries(self.SAID + "ptxas info : Compiling entry function of another form\n")

    def program(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "program")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def test_programs_that_fail_or_print_odd_lines(self):
        for text, why in (("echo one >&2; echo two >&2; exit 3", "program: exit status 3: two"),
                          ("exit 1", "program: exit status 1: it says nothing"), ("", "prints nothing"),
                          ("echo", "prints nothing"), ("echo gcc; echo forward d64 launches", "not understood"),
                          ("echo gcc; echo forward d64 launches -1", "not understood"),
                          ("echo gcc; echo; echo forward d64 launches 1", "not understood"),
                          ("echo gcc; for i in 1 2; do echo f d l 1; done", "f: sim d l is counted twice")):
            with self.assertRaisesRegex(collect.Failed, why):
                collect.add_sim(collect.Counts(), self.program(text))
        with self.assertRaisesRegex(collect.Failed, "/nowhere: No such file"):
            collect.add_sim(collect.Counts(), "/nowhere")

    def test_host_code_that_cannot_be_counted(self):
        valgrind = os.path.dirname(self.program("echo ==1== why >&2; exit 7"))
        os.rename(os.path.join(valgrind, "program"), os.path.join(valgrind, "valgrind"))
        for text, why in (("exit 1", "program: exit status 1"), ("", "--version: prints nothing"),
                          ("[ $1 = --list ] || echo gcc", "--list: prints nothing"), ("echo plan", "not understood"),
                          ("echo plan 0", "not understood"), ("echo plan 1", "valgrind: exit status 7: ==1== why")):
            with mock.patch.dict(os.environ, PATH=f"{valgrind}:{os.environ['PATH']}"), \
                    self.assertRaisesRegex(collect.Failed, why):
                collect.add_callgrind(collect.Counts(), self.program(text))

    def test_archives_that_cannot_be_read(self):
        for path in ("/nowhere.tar", "/", self.program("")):
            with self.assertRaisesRegex(collect.Failed, f"^{path}: "):
                collect.add_ptxas(collect.Counts(), path)

    def test_names_of_entries(self):
        self.assertEqual(collect.entry_name("void (anonymous namespace)::k<bf16, shape<64, true> >(params)"),
                         "k<bf16, shape<64, true>>")
        self.assertEqual(collect.entry_name("(anonymous namespace)::merge_kernel(merge_params, int)"), "merge_kernel")


class Verdicts(unittest.TestCase):
    def samples(self, rng, shift=0.0, spread=0.004, pairs=30):
        return {n: [rng.gauss(shift if n == 3 else 0, spread) for _ in range(pairs)] for n in range(24)}

    def test_no_alarm_where_nothing_changed(self):
        rng = random.Random(1)
        runs = [verdict.judge(self.samples(rng), 4) for _ in range(100)]
        self.assertEqual(sum(v[0] in ("SLOWER", "FASTER") for run in runs for v in run.values()), 0)

    def test_three_percent_are_found(self):
        rng = random.Random(2)
        for shift, word in ((0.03, "SLOWER"), (-0.03, "FASTER")):
            self.assertEqual([verdict.judge(self.samples(rng, shift), 4)[3][0] for _ in range(20)], 20 * [word])

    def test_too_much_noise_is_unsure_and_asks_for_more(self):
        found = verdict.judge(self.samples(random.Random(3), spread=0.1), 4)
        self.assertTrue(all(v[0] == "UNSURE" and v[5] > 30 for v in found.values()))

    def test_few_pairs_are_never_the_same(self):
        found = verdict.judge({n: [0.0, 0.001, -0.001] for n in range(3)})
        self.assertEqual({v[0] for v in found.values()}, {"UNSURE"})

    def test_signed_ranks_of_a_known_case(self):
        # n = 8, all positive: W = 36, mean 18, variance 51, continuity 1/2.
        self.assertAlmostEqual(verdict.signed_ranks([1, 2, 3, 4, 5, 6, 7, 8]), 17.5 / 51**0.5)
        self.assertEqual(verdict.signed_ranks([0, 0]), 0)

    def test_holm(self):
        self.assertEqual(verdict.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])


    def test_no_pairs_say_nothing(self):
        self.assertEqual(verdict.judge({"a": []})["a"][:4], ("UNSURE", 0.0, -math.inf, math.inf))

    def test_looks_end_when_all_is_decided_or_time_is_over(self):
        def decided(spread, is_time_left):
            rng, taken = random.Random(5), []

            def more(rounds):
                taken.extend(rng.gauss(0, spread) for _ in range(rounds))
                return {"a": taken}
            return verdict.decide(more, is_time_left)[1], len(taken)
        self.assertEqual(decided(0.004, lambda: True), (1, verdict.ROUNDS))
        self.assertEqual(decided(0.5, lambda: True), (verdict.MOST_LOOKS, verdict.ROUNDS << verdict.MOST_LOOKS - 1))
        self.assertEqual(decided(0.5, lambda: False), (1, verdict.ROUNDS))


class Runs(unittest.TestCase):
    """Exit statuses of times: 0 passes, 1 fails, 2 says nothing."""

    def status(self, shift=0.0, pairs=30, **observed):
        rng = random.Random(6)
        shifts = {"a": 0, "b": shift, "c": 0}
        samples = {n: [(1.0, math.exp(rng.gauss(s, 0.004))) for _ in range(pairs)] for n, s in shifts.items()}
        judged = verdict.judge(times.differences(samples))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = times.exit_status({"samples_ms": samples, "verdicts": judged, "seconds": 1, "refused": {},
                                        "spoiled": [], "unwatched": None, **observed})
        return status, text.getvalue()

    def test_the_same_passes(self):
        self.assertEqual(self.status(), (0, "PASS: 0 SLOWER, 0 FASTER, 3 SAME, 0 UNSURE\n"))

    def test_slower_fails(self):
        self.assertEqual(self.status(shift=0.03), (1, "FAIL: 1 SLOWER, 0 FASTER, 2 SAME, 0 UNSURE\n"))

    def test_what_was_spoiled_is_invalid(self):
        for shift in (0, 0.03):
            for observed in ({"pairs": verdict.LEAST_PAIRS - 1}, {"spoiled": ["2 processes were on the GPU"]},
                             {"refused": {"a": "no"}}):
                status, text = self.status(shift, **observed)
                self.assertEqual((status, text[:8]), (2, "INVALID:"))

    def test_tables_have_verdicts(self):
        rng = random.Random(8)
        samples = {f"{direction} {n}": [rng.gauss(shift, 0.002) for _ in range(30)]
                   for direction, shift in (("forward", 0.008), ("backward", -0.0001)) for n in range(12)}
        tables = times.tables_of(samples)
        found = verdict.judge({**samples, **tables}, 1, tables)
        self.assertEqual([found[f"{d}, geometric mean of all"][0] for d in ("forward", "backward")], ["SLOWER", "SAME"])
        self.assertEqual({found[name][0] for name in samples}, {"SAME"})
        self.assertEqual(times.tables_of({}), {})

    def test_times_that_are_none_are_refused(self):
        for wrong in (math.nan, math.inf):
            with self.assertRaisesRegex(ValueError, "no number above zero"):
                verdict.judge({"a": [0.1] * 30, "b": [wrong] * 30})

    def test_a_gpu_that_fails_says_nothing(self):
        class Gpu:
            def sample_ms(self, call):
                return call

        class Blind:
            def look(self):
                pass
        for wrong in (0.0, -1.0, math.nan, math.inf):
            calls = {"a": {"base": 1.0, "head": wrong, "before": times.nothing}}
            with self.assertRaisesRegex(RuntimeError, "a call of head, a, took"):
                times.take_pairs(Gpu(), calls, {"a": []}, 1, Blind(), random.Random(1), lambda: True)
        failures = (RuntimeError("cuEventSynchronize: an illegal memory access"), times.ours.Refused("no"),
                    times.NoBundle("no"), OSError("no"))
        for failure in failures:
            with mock.patch.object(times, "measured", side_effect=failure):
                text = io.StringIO()
                with contextlib.redirect_stdout(text):
                    self.assertEqual(times.gate("a", "b", 1, None), 2)
                self.assertEqual(text.getvalue(), f"INVALID: {failure}\n")

    def test_only_plain_files_come_out_of_a_bundle(self):
        with tempfile.TemporaryDirectory() as folder:
            path, out = os.path.join(folder, "b.tar"), os.path.join(folder, "side")
            with tarfile.open(path, "w") as tar:
                for name, link in (("lib/x.so", None), ("lib/away", "/tmp"), ("lib/away/y", None),
                                   ("bin/libbench.so", None), ("../up", None), ("bin/other", None)):
                    member = tarfile.TarInfo("gpu_bundle/" + name)
                    member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
                    tar.addfile(member, io.BytesIO())
            os.makedirs(os.path.join(out, "bin"))
            with tarfile.open(path) as tar:
                times.extract(tar, out)
            files = sorted(os.path.join(where, f)[len(out) + 1:] for where, _, names in os.walk(out) for f in names)
        self.assertEqual(files, ["bin/libbench.so", "lib/x.so"])

    def test_an_unwatched_gpu_is_said(self):
        self.assertTrue(self.status(unwatched="no NVML")[1].endswith("clocks and other processes UNCHECKED\n"))

    def test_what_nvml_shows(self):
        class Shows:
            def __init__(self, reasons=0, processes=1, clocks=(1980,), errors=(0, 0, 0)):
                self.reasons, self.processes, self.clocks, self.errors = reasons, processes, list(clocks), errors

            def nvmlDeviceGetCurrentClocksThrottleReasons(self, _, reasons):
                reasons._obj.value = self.reasons
                return self.errors[0]

            def nvmlDeviceGetClockInfo(self, _, kind, clock):
                clock._obj.value = self.clocks.pop(0)
                return self.errors[1] if kind == nvml.SM_CLOCK else 2

            def nvmlDeviceGetMaxClockInfo(self, _, kind, clock):
                clock._obj.value = 1980
                return 0 if kind == nvml.SM_CLOCK else 2

            def nvmlDeviceGetComputeRunningProcesses_v3(self, _, count, processes):
                count._obj.value = self.processes
                return self.errors[2] or (0 if len(processes) >= self.processes else 7)

        def seen(looks=1, **shows):
            watch = nvml.Watch("GPU-of-this-test")
            watch.nvml, watch.why = Shows(**shows), None
            for _ in range(looks):
                watch.look()
            return watch.spoiled(), watch.capped, watch.why
        self.assertEqual(seen(), ([], False, None))
        self.assertEqual(seen(reasons=nvml.POWER_CAP), ([], True, None))
        self.assertEqual(seen(reasons=nvml.POWER_CAP, clocks=[1200])[0],
                         ["the power cap held the SM clock at 1200 of 1980 MHz"])
        self.assertEqual(seen(2, clocks=[1980, 1700])[0], ["the SM clock fell from 1980 to 1700 MHz"])
        self.assertEqual(seen(reasons=0x40)[0], ["clocks were held down: hardware thermal slowdown"])
        self.assertEqual(seen(processes=2)[0], ["2 processes were on the GPU"])
        self.assertEqual(seen(processes=70, reasons=0x40)[0],
                         ["clocks were held down: hardware thermal slowdown", "70 processes were on the GPU"])
        self.assertEqual(seen(processes=0), ([], False, "NVML shows no processes, not even this one"))
        for n, what in enumerate(("reasons", "clocks", "processes")):
            errors = tuple(999 if i == n else 0 for i in range(3))
            self.assertEqual(seen(reasons=0x20, errors=errors)[2], f"NVML does not say what {what} it sees (error 999)")


class Calibration(unittest.TestCase):
    def recorded(self, bias):
        rng = random.Random(7)
        return [{"start": str(n % 3), "unit": str(n), "seconds": 30, "differences":
                 {name: [round((rng.gauss(0, 0.003) + (bias if name == "b" else 0)) / calibrate.UNIT)
                         for _ in range(120)] for name in "abc"}} for n in range(4)]

    def test_runs_alike_give_no_alarm_and_slowdowns_are_found(self):
        e = calibrate.estimate(self.recorded(0), 300)
        self.assertEqual((e["runs"], e["minutes"], e["starts"], e["units"]), (4, 2, 3, 4))
        self.assertEqual((e["alarmed_runs"], e["false_alarms"]), (0, 0))
        self.assertEqual(set(e["found"].values()), {1.0})

    def test_a_process_that_is_slower_as_a_whole_is_an_alarm(self):
        e = calibrate.estimate(self.recorded(0.02), 60)
        self.assertEqual((e["alarmed_runs"], e["false_alarms"]), (4, 60))

    def test_what_is_published_of_the_recorded_runs(self):
        runs = [run for path in calibrate.RECORDED for run in calibrate.read(path)]
        e = calibrate.estimate(runs, 480, seed=2)
        self.assertGreaterEqual(e["starts"], 3)
        self.assertLess(e["false_alarm_limit"], 0.01)
        self.assertEqual(e["alarmed_runs"], 0)
        self.assertGreaterEqual(min(e["found"].values()), 0.95)

    def test_upper_limits(self):
        self.assertAlmostEqual(calibrate.upper_limit(0, 300), 1 - 0.05**(1 / 300), places=9)
        self.assertAlmostEqual(calibrate.upper_limit(1, 10), 0.394163, places=5)  # Clopper and Pearson's table
        self.assertEqual(calibrate.upper_limit(5, 5), 1)


class History(unittest.TestCase):
    def test_changes_alone_are_logged_and_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            for value in (100, 100, 90):
                figures = {"forward": {("sim", "d64", "barrier_waits"): value, ("sim", "d64", "launches"): 1}}
                history.append(log, {"commit": "c", "date": "2026-01-01", "reason": "</script>", "gpu": None,
                                     "driver": None, "versions": {},
                                     "figures": history.changes(history.read(log), figures)})
            entries = history.read(log)
        self.assertEqual(entries[1]["figures"], {})
        self.assertEqual(entries[2]["figures"], {"forward": {"sim d64 barrier_waits": 90}})
        drawn = history.page_data(entries)["kernels"]["forward"]
        self.assertEqual([(s["name"], s["changes"]) for s in drawn], [("sim d64 barrier_waits", [2])])

    def test_a_count_that_is_gone_is_said(self):
        entries = [{"figures": {"forward": {"sim a b": 1, "ptxas a b": 1}}}]
        self.assertEqual(history.changes(entries, {"forward": {("sim", "c", "d"): 2}}),
                         {"forward": {"sim a b": None, "sim c d": 2}})
        self.assertEqual(history.changes(entries, {}, ["sim"]), {"forward": {"sim a b": None}})

    def test_change_points_of_noise(self):
        rng = random.Random(4)
        steps = [1 + rng.gauss(0, 0.01) for _ in range(30)] + [1.05 + rng.gauss(0, 0.01) for _ in range(30)]
        self.assertEqual(history.change_points(steps), [30])
        self.assertEqual(history.change_points(steps[:30]), [])
        self.assertEqual(history.change_points([1000 + step for step in steps]), [30])
        self.assertEqual(history.change_points(20 * [1.5]), [])
        self.assertEqual(history.change_points(5 * [1.0] + 5 * [1.5] + 5 * [1.0]), [5, 10])
        self.assertEqual({len(history.change_points(steps[:n])) for n in range(history.LEAST_RUNS)}, {0})

    def test_noise_alone_is_seldom_split(self):
        rng = random.Random(8)
        for runs, most in ((6, 0.05), (12, 0.02), (40, 0.01)):
            split = sum(bool(history.change_points([rng.gauss(1, 0.01) for _ in range(runs)])) for _ in range(600))
            self.assertLessEqual(split / 600, most)

    def test_times_are_drawn_in_the_runs_that_measured_them(self):
        name, entries = "times GPU head_dim 64", []
        for run in range(20):
            counts = {"sim d64 launches": run // 10} if run in (0, 10) else {}
            measured = {name: [1.0, 1.001, 1.0, 1.002][run % 4] + (run > 12) * 0.1} if run % 2 else {}
            entries.append({"commit": "c", "date": "d", "reason": "r", "gpu": None, "driver": None,
                            "figures": {"forward": {**counts, **measured}}})
        drawn = {s["name"]: s for s in history.page_data(entries)["kernels"]["forward"]}
        self.assertEqual([run for run, _ in drawn[name]["points"]], list(range(1, 20, 2)))
        self.assertEqual(drawn[name]["changes"], [13])
        self.assertEqual([run for run, _ in drawn["sim d64 launches"]["points"]], list(range(20)))
        self.assertEqual(drawn["sim d64 launches"]["changes"], [10])
        # Counts that are accepted later say nothing of times.
        self.assertEqual(history.changes(entries, {"forward": {("sim", "d64", "launches"): 1}}), {})

    def test_figures_are_in_the_order_of_their_numbers_times_first(self):
        names = ["sim d64\u00b22", "sim d64\u00b210", "times B 128", "times A 64", "times A 128"]
        self.assertEqual(sorted([("merge", "sim"), *(("forward", name) for name in names)], key=history.order),
                         [("forward", names[i]) for i in (3, 4, 2, 0, 1)] + [("merge", "sim")])

    def test_no_reason_ends_the_script_of_the_page(self):
        entry = {"commit": "c", "date": "d", "reason": "</script><!--<script>", "gpu": None, "driver": None,
                 "figures": {}}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.html")
            history.write_page([entry], path)
            with open(path) as file:
                page = file.read()
        self.assertEqual([page.count(text) for text in ("<script", "</script", "<!--")], [1, 1, 0])
        self.assertIn(r"\u003c/script>\u003c!--\u003cscript>", page)

    def test_a_malformed_log_is_refused(self):
        entry = {"commit": None, "date": "2026-01-01", "reason": "r", "gpu": None, "driver": None, "versions": {},
                 "figures": {"forward": {"sim a b": 1, "times A b": 0.5}}}

        def refused(text, why):
            with open(path, "wb") as file:
                file.write(json.dumps(entry).encode() + b"\n" + text)
            with self.assertRaisesRegex(files.Malformed, why):
                history.read(path)

        def other(**fields):
            return json.dumps({**entry, **fields}).encode() + b"\n"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            for text in (b"<<<<<<< ours\n", b"\n", 100000 * b"[" + b"\n", b"1" + 10000 * b"0" + b"\n"):
                refused(text, "log:2: not JSON")
            refused(b"\xff\n", "log:2: not UTF-8")
            refused(other()[:-1], "log:2: the last line has no end")
            refused(b"[]\n", r"log:2: \[\] is not an object")
            for field in entry:
                refused(json.dumps({k: v for k, v in entry.items() if k != field}).encode() + b"\n",
                        f"log:2: there is no {field}")
                refused(other(**{field: 7}), f"log:2: {field} is 7, not ")
            refused(other(versions={"sim": None}), "log:2: versions is ")
            refused(other(figures={"forward": []}), "log:2: figures of 'forward' are ")
            for name, value in (("sim a b", 0.5), ("sim a b", -1), ("sim a b", True), ("sim a b", "1"),
                                ("sim a b", 10**18), ("times A b", None), ("times A b", 0), ("times A b", 1e7),
                                ("times A b", math.nan), ("times A b", [])):
                refused(other(figures={"forward": {name: value}}), f"log:2: 'forward', '{name}' is ")
            os.remove(path)
            self.assertEqual(history.read(path), [])
            os.mkdir(path)
            with self.assertRaisesRegex(files.Malformed, "log: Is a directory"):
                history.read(path)

    def test_the_log_says_what_the_baselines_say(self):
        """A count that somebody raised by hand has no reason in the log."""
        entries = history.read(os.path.join(HERE, "history.jsonl"))
        baselines = baseline.read(os.path.join(HERE, "baselines"))
        logged = {key: value for key, value in history.state(entries).items() if not history.is_time(key[1])}
        self.assertEqual(logged, {(kernel, " ".join(key)): value for kernel, (_, figures) in baselines.items()
                                  for key, value in figures.items()})
        versions = {}
        for entry in entries:
            versions.update(entry["versions"])
        for kernel, (of, _) in baselines.items():
            self.assertEqual(of, {source: versions[source] for source in of}, kernel)


class Accepted(unittest.TestCase):
    """perf.py --accept REASON, and its comparison, on a program that prints what a test wants."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.log = os.path.join(folder.name, "baselines"), os.path.join(folder.name, "log")
        os.mkdir(self.folder)
        self.sim = os.path.join(folder.name, "counts")
        self.counts({"forward d64 launches": 1, "forward d64 waits": 9, "merge p launches": 1})
        self.assertEqual(self.run_perf("--accept", "first")[0], 0)

    def counts(self, figures):
        with open(self.sim, "w") as file:
            file.write("#!/bin/sh\necho gcc 1\n" + "".join(f"echo {what} {n}\n" for what, n in figures.items()))
        os.chmod(self.sim, 0o755)

    def run_perf(self, *arguments):
        text = io.StringIO()
        argv = ["perf.py", f"--baselines={self.folder}", f"--history={self.log}", f"--sim={self.sim}", *arguments]
        with mock.patch("sys.argv", argv), mock.patch.dict(os.environ, BUILD_WORKSPACE_DIRECTORY="/"), \
                mock.patch("shutil.which", return_value=None), contextlib.redirect_stdout(text):
            return perf.main(), text.getvalue()

    def everything(self):
        paths = [self.log, *(os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder)))]
        return {path: files.text_of(path) for path in paths if os.path.isfile(path)}

    def refused(self, why, *arguments):
        before = self.everything()
        status, said = self.run_perf("--accept", "r", *arguments)
        self.assertEqual((status, self.everything()), (2, before), said)
        self.assertIn(why, said.splitlines()[-1])

    def test_differences_are_said_before_they_are_accepted(self):
        self.counts({"forward d64 launches": 1, "forward d64 waits": 8, "merge p launches": 2, "merge p waits": 3})
        status, said = self.run_perf("--accept", "r")
        self.assertEqual((status, said.splitlines()), (0, [
            "NO BASELINE merge, p, waits: 3", "better  forward, d64, waits: 9 -> 8, -11.11 %",
            "WORSE   merge, p, launches: 1 -> 2, +100.00 %", f"accepted: 4 counts in {self.folder}"]))
        self.assertEqual(self.run_perf()[0], 0)
        self.assertEqual(history.read(self.log)[1]["figures"],
                         {"forward": {"sim d64 waits": 8}, "merge": {"sim p launches": 2, "sim p waits": 3}})

    def test_what_is_gone_is_accepted_on_demand_alone(self):
        self.counts({"forward d64 launches": 1})
        self.refused("--accept: 2 counts are gone or counted nothing, the first: forward, d64, waits; where they "
                     "should, add --gone")
        self.counts({"forward d64 launches": 0, "forward d64 waits": 9, "merge p launches": 1})
        self.refused("1 counts are gone or counted nothing, the first: forward, d64, launches")
        self.counts({"forward d64 launches": 1})
        self.assertEqual(self.run_perf("--accept", "r", "--gone")[0], 0)
        self.assertEqual(os.listdir(self.folder), ["forward.txt"])
        self.assertEqual(history.read(self.log)[1]["figures"],
                         {"forward": {"sim d64 waits": None}, "merge": {"sim p launches": None}})
        for arguments in (["--gone"], ["--gone", "--accept", "r", "--times", "x"]):
            self.assertEqual(self.run_perf(*arguments), (2, "--gone goes with --accept of counts\n"))

    def test_all_is_read_before_anything_is_written(self):
        self.counts({"forward d64 launches": 2, "forward d64 waits": 9, "merge p launches": 1})
        log = files.text_of(self.log)
        for text, why in ((log + "{}\n", "2: there is no commit"), (log[:-1], "1: the last line has no end")):
            with open(self.log, "w") as file:
                file.write(text)
            self.refused(f"--accept: {self.log}:{why}")
            self.assertEqual(self.run_perf()[0], 1)
            self.assertEqual(self.run_perf("--page", self.log + ".html")[0], 2)

    def test_files_that_cannot_be_written(self):
        self.counts({"forward d64 launches": 2, "forward d64 waits": 9, "merge p launches": 1})
        os.mkdir(os.path.join(self.folder, "merge.txt.new"))
        self.refused(f"--accept: {self.folder}/merge.txt.new: Is a directory")

    def test_what_cannot_be_counted_fails(self):
        self.counts({"forward d64": 1})
        self.refused(f"--accept: {self.sim}: prints a line that is not understood: 'forward d64 1'")
        self.assertEqual(self.run_perf(), (1, f"FAIL: {self.sim}: prints a line that is not understood: "
                                           "'forward d64 1'\n"))

    def test_a_commit_with_changes_is_said(self):
        for changes, wanted in (("", "c0ffee"), (" M file", "c0ffee + changes")):
            said = {"rev-parse": "c0ffee", "status": changes}
            with mock.patch("perf.git", lambda command, _: said[command]):
                self.assertEqual(perf.commit(), wanted)


class Regressions(unittest.TestCase):
    """regressions_test.py: how many were compared really."""

    ENTRIES = {**{f"r{n}": {"what": "w", "worse": [("forward", "barrier_waits")]} for n in range(13)},
               "harmless": {"what": "w", "worse": []}}
    ON_CHIP = ["r11", "r12"]

    def status(self, given, nvcc="nvcc 1", version="gcc 1"):
        tally, text = regressions_test.Tally(self.ENTRIES, self.ON_CHIP, nvcc), io.StringIO()
        with contextlib.redirect_stdout(text):
            for name in given:
                counts = counts_of({k: 100 + bool(self.ENTRIES[name]["worse"]) for k in ONE}, sim=version)
                tally.add(name, counts, BASE)
            tally.explain_missing(given)
            return tally.exit_status(), text.getvalue().splitlines()

    def test_all_are_compared(self):
        status, said = self.status(self.ENTRIES)
        self.assertEqual((status, said[-1]), (0, "13 of 13 regressions and 1 of 1 harmless changes were compared"))

    def test_without_nvcc(self):
        status, said = self.status([name for name in self.ENTRIES if name not in self.ON_CHIP], nvcc="")
        self.assertEqual((status, said[-2:]), (0, ["UNCHECKED, there is no nvcc: r11 r12",
                                                   "11 of 13 regressions and 1 of 1 harmless changes were compared"]))

    def test_what_is_not_built_is_no_matter_of_nvcc(self):
        status, said = self.status([name for name in self.ENTRIES if name != "r3"])
        self.assertEqual((status, said[-2]), (1, "UNCHECKED, nothing that is built has it: r3"))

    def test_another_version_is_one_line_and_all_of_it(self):
        status, said = self.status(self.ENTRIES, version="gcc 2")
        self.assertEqual((status, said), (0, [
            "UNCHECKED, the baseline is of gcc 1, this is gcc 2: " + " ".join(self.ENTRIES),
            "0 of 13 regressions and 0 of 1 harmless changes were compared"]))

    def test_one_that_is_missed_fails(self):
        for name, value in (("r3", 100), ("harmless", 101)):
            tally = regressions_test.Tally(self.ENTRIES, self.ON_CHIP, "nvcc 1")
            with contextlib.redirect_stdout(io.StringIO()):
                tally.add(name, counts_of({k: value for k in ONE}), BASE)
                self.assertEqual(tally.exit_status(), 1)

    def test_a_short_list_fails(self):
        entries = {name: entry for name, entry in self.ENTRIES.items() if name not in ("r0", "r1")}
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(regressions_test.Tally(entries, self.ON_CHIP, "nvcc 1").exit_status(), 1)

    def test_a_harmless_change_of_which_nothing_is_counted_does_not_pass(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertFalse(regressions_test.judge("harmless", self.ENTRIES["harmless"], baseline.Comparison()))


class AcceptedTimes(unittest.TestCase):
    """perf.py --accept REASON --times FILE."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log, self.json = os.path.join(folder.name, "history.jsonl"), os.path.join(folder.name, "times.json")
        rng = random.Random(9)
        samples = {name: [[1 + rng.random(), 2 + rng.random()] for _ in range(verdict.LEAST_PAIRS)]
                   for name in record.CONFIGURATIONS}
        self.record = {"gpu": "NVIDIA H200", "driver": "580.1", "seconds": 40.0, "samples_ms": samples, "refused": {},
                       "spoiled": [], "unwatched": None}

    def run_perf(self, *arguments):
        text = io.StringIO()
        argv = ["perf.py", "--baselines=/nowhere", f"--history={self.log}", *arguments]
        with mock.patch("sys.argv", argv), mock.patch.dict(os.environ, BUILD_WORKSPACE_DIRECTORY="/"), \
                contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                status = perf.main()
            except SystemExit as usage:
                status = usage.code
        return status, text.getvalue()

    def accept(self, text=None, reason="faster"):
        with open(self.json, "w") as file:
            file.write(json.dumps(self.record) if text is None else text)
        return self.run_perf("--accept", reason, "--times", self.json)

    def refused(self, why, text=None, **fields):
        saved, self.record = self.record, {**copy.deepcopy(self.record), **fields}
        status, said = self.accept(text)
        self.record = saved
        self.assertEqual((status, said.count("\n"), os.path.exists(self.log)), (2, 1, False), said)
        self.assertIn(why, said)
        self.assertLess(len(said), 400)

    def test_medians_of_head_are_appended_whole_each_time(self):
        for run in (1, 2):
            status, said = self.accept()
            self.assertEqual((status, said), (0, f"accepted: 24 times of NVIDIA H200 in {self.log}\n"))
            self.assertEqual(len(history.read(self.log)), run)
        first, second = history.read(self.log)
        self.assertEqual(first, second)
        self.assertEqual(sorted(first), ["commit", "date", "driver", "figures", "gpu", "reason", "versions"])
        self.assertEqual([first[key] for key in ("reason", "gpu", "driver")], ["faster", "NVIDIA H200", "580.1"])
        self.assertEqual({kernel: len(figures) for kernel, figures in first["figures"].items()},
                         {"forward": 12, "backward": 12})
        heads = sorted(head for _, head in self.record["samples_ms"]["forward head_dim 64 seqlen 512 causal"])
        self.assertAlmostEqual(first["figures"]["forward"]["times NVIDIA H200 head_dim 64 seqlen 512 causal"],
                               (heads[9] + heads[10]) / 2, places=5)

    def test_an_unwatched_gpu_is_said(self):
        self.record.update(unwatched="no NVML", driver=None)
        self.assertEqual(self.accept()[1], f"accepted: 24 times of NVIDIA H200 in {self.log}, clocks and other "
                         "processes UNCHECKED: no NVML\n")

    def test_a_malformed_log_is_refused_and_stays(self):
        with open(self.log, "w") as file:
            file.write("{}\n")
        self.assertEqual(self.accept(), (2, f"--accept: {self.log}:1: there is no commit\n"))
        self.assertEqual(files.text_of(self.log), "{}\n")

    def test_invalid_runs_are_refused(self):
        self.refused("the run is INVALID: 2 processes were on the GPU", spoiled=["2 processes were on the GPU"])
        name = "forward head_dim 64 seqlen 512 full"
        samples = dict(self.record["samples_ms"])
        few = {**samples, name: samples[name][1:]}
        self.refused("the run is INVALID: 19 pairs in 40 s are too few, at least 20", samples_ms=few)
        del samples[name]
        self.refused(f"the run is INVALID: {name} was refused", samples_ms=samples, refused={name: "no"})

    def test_what_is_no_record_is_refused(self):
        for text in ("", "{", "\0", 100000 * "[", "1" + 10000 * "0"):
            self.refused("not JSON", text)
        for text in ("[]", "null", "NaN", '"samples_ms"'):
            self.refused("the record is", text)
        self.refused("there is no gpu", "{}")
        for field in ("gpu", "driver", "seconds", "samples_ms", "refused", "spoiled", "unwatched"):
            self.refused(f"there is no {field}", json.dumps({k: v for k, v in self.record.items() if k != field}))
            self.refused(f"{field} is ", **{field: True})
        self.refused("gpu is ' ', not the name of a GPU", gpu=" ")
        self.refused("seconds is nan, not a number above 0 and at most 1e+06", seconds=math.nan)
        self.refused("spoiled is [1], not a list of sentences", spoiled=[1])

    def test_wrong_samples_are_refused(self):
        name = "backward head_dim 128 seqlen 8192 causal"
        samples = self.record["samples_ms"]
        self.refused("samples_ms is {}, not an object of configurations", samples_ms={})
        self.refused(f"samples_ms misses the configuration '{name}'",
                     samples_ms={key: value for key, value in samples.items() if key != name})
        self.refused("samples_ms has what is no configuration that is timed: 'merge head_dim 64'",
                     samples_ms={**samples, "merge head_dim 64": samples[name]})
        self.refused(f"samples_ms, {name}, is 7, not a list of pairs", samples_ms={**samples, name: 7})
        for pair in ([1], [1, 2, 3], [1, "2"], [1, None], [1, True], [0, 1], [-1, 1], [1, math.nan], [1, math.inf],
                     [1, 1.1e6], [1, 10**4000], 1):
            self.refused(f"samples_ms, {name}, pair 21 is {pair!r:.60}, not two times above 0 and at most 1e+06 ms",
                         samples_ms={**samples, name: samples[name] + [pair]})

    def test_wrong_usage_is_refused(self):
        for arguments, why in ((["--accept", "r", "--times", self.json], "No such file"),
                               (["--accept", "r", "--times", "/"], "Is a directory"),
                               (["--accept", " ", "--times", self.json], "--accept wants a reason, in words"),
                               (["--times", self.json], "--times goes with --accept"),
                               (["--times", self.json, "--base", "a", "--head", "b"], "--times goes with --accept"),
                               (["--accept", "r", "--base", "a", "--head", "b"], "not allowed with argument"),
                               (["--accept", "r", "--page", "p"], "not allowed with argument"),
                               (["--page", "/nowhere/page.html"], "--page: /nowhere/page.html: No such file")):
            status, said = self.run_perf(*arguments)
            self.assertEqual((status, os.path.exists(self.log)), (2, False), said)
            self.assertIn(why, said)


if __name__ == "__main__":
    unittest.main()
