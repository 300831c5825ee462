#!/usr/bin/env -S python3 -B
"""The gate's own arithmetic on times: verdicts, what spoils a run, false alarms, times that are accepted."""

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

import calibrate
import files
import history
import nvml
import perf
import record
import times
import verdict


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
            return verdict.decide(more, is_time_left, lambda _: {})[1], len(taken)
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
        self.assertEqual(seen(2, clocks=[1980, 1910])[0], ["the SM clock fell from 1980 to 1910 MHz"])
        self.assertEqual(seen(2, clocks=[1980, 1930])[0], [])
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
        self.assertGreaterEqual(e["minutes"], 30)
        self.assertGreaterEqual(e["starts"], 3)
        self.assertLess(e["false_alarm_limit"], 0.01)
        self.assertEqual(e["alarmed_runs"], 0)
        self.assertGreaterEqual(min(e["found"].values()), 0.95)

    def test_upper_limits(self):
        self.assertAlmostEqual(calibrate.upper_limit(0, 300), 1 - 0.05**(1 / 300), places=9)
        self.assertAlmostEqual(calibrate.upper_limit(1, 10), 0.394163, places=5)  # Clopper and Pearson's table
        self.assertEqual(calibrate.upper_limit(5, 5), 1)


class Commands(unittest.TestCase):
    def test_the_commands_of_the_bundle_can_be_run_by_name(self):
        for name in ("times.py", "calibrate.py"):
            path = os.path.join(HERE, name)
            with open(path) as file:
                self.assertEqual((name, os.access(path, os.X_OK), file.readline()[:2]), (name, True, "#!"))


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
