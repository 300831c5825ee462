#!/usr/bin/env -S python3 -B
"""The gate's own arithmetic on counts: baselines, comparisons, what tools print, what is accepted, history."""

import contextlib
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
import collect
import files
import history
import machine
import perf
import regressions_test
import times


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

    def test_better_is_printed_and_asked_about(self):
        said = self.printed({k: 99 for k in ONE}, {"sim": "gcc 1"}, {}, BASE)
        self.assertEqual(said, (True, [
            "better  forward, d64, barrier_waits: 100 -> 99, -1.00 %",
            "What is better above is to be explained or accepted: it may be work that is no longer done.",
            "PASS: 1 counts, 0 worse, 0 changed, 1 better, 0 without a partner"]))

    def test_what_counts_both_ways_fails_either_way(self):
        for count in baseline.EITHER:
            base = {"forward": ({"sim": "gcc 1"}, {("sim", "d64", count): 100})}
            for value in (99, 101):
                figures = {("forward", "sim", "d64", count): value}
                line = f"forward, d64, {count}: 100 -> {value}, {value - 100:+.2f} %"
                passes, said = self.printed(figures, {"sim": "gcc 1"}, {}, base)
                self.assertEqual((passes, said[0]), (False, "CHANGED " + line))
                self.assertIn("FAIL: 1 counts, 0 worse, 1 changed, 0 better", said[-1])
                self.assertFalse(regressions_test.compare(counts_of(figures), base).passes())

    def test_what_more_is_better_of_fails_where_it_is_less(self):
        for count in baseline.MORE:
            base = {"forward": ({"sim": "gcc 1"}, {("sim", "d64", count): 100})}
            result = self.compare({("forward", "sim", "d64", count): 99}, base)
            self.assertEqual((len(result.worse), result.passes()), (1, False))
            result = self.compare({("forward", "sim", "d64", count): 101}, base)
            self.assertEqual((len(result.better), result.passes()), (1, True))

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

    def test_a_class_of_instructions_that_is_not_there_is_none_of_them(self):
        two = {("sass", "sm_90a k kernel", "mufu"): 2, ("sass", "sm_90a k kernel", "ffma"): 3}
        base = {"k": ({"sass": "n"}, two)}
        fewer = {("k", *key): value for key, value in two.items() if key[2] == "ffma"}
        result = self.compare(fewer, base, sass="n")
        self.assertEqual((result.passes(), result.better), (True, ["k, sm_90a k kernel, mufu: 2 -> 0, -100.00 %"]))
        self.assertEqual(baseline.gone(counts_of(fewer, sass="n"), base), [])
        result = self.compare({**fewer, ("k", "sass", "sm_90a k kernel", "mufu"): 2,
                               ("k", "sass", "sm_90a k kernel", "local"): 1}, base, sass="n")
        self.assertEqual(result.worse, ["k, sm_90a k kernel, local: 0 -> 1, from none"])
        result = self.compare({("k", "sass", "sm_90a other kernel", "mufu"): 2}, base, sass="n")
        self.assertEqual(len(result.broken), 3)

    def test_a_routine_that_is_not_called_is_called_0_times(self):
        base = {"host": ({"calls": "gcc 1"}, {("calls", "plan", "malloc_bytes"): 8})}
        result = self.compare({("host", "calls", "plan", "calloc_bytes"): 9}, base, calls="gcc 1")
        self.assertEqual(result.worse, ["host, plan, calloc_bytes: 0 -> 9, from none"])
        self.assertEqual(result.better, ["host, plan, malloc_bytes: 8 -> 0, -100.00 %"])

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
        rest = "0 changed, 0 better, 0 without a partner, 4 UNCHECKED: there is no nvcc; there is no valgrind"
        self.assertEqual(self.printed(ONE, {"sim": "gcc 1"}, lacking, base),
                         (True, lines + ["PASS: 1 counts, 0 worse, " + rest]))
        self.assertEqual(self.printed({k: 101 for k in ONE}, {"sim": "gcc 1"}, lacking, base),
                         (False, lines + ["WORSE   forward, d64, barrier_waits: 100 -> 101, +1.00 %",
                                          "FAIL: 1 counts, 1 worse, " + rest]))

    def test_nothing_is_unchecked_where_every_tool_is_there(self):
        self.assertEqual(self.printed(ONE, {"sim": "gcc 1"}, {}, BASE),
                         (True, ["PASS: 1 counts, 0 worse, 0 changed, 0 better, 0 without a partner"]))

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
                          "ob=(1)", "fn=(3) own", "* 4", "fn=(4) __wrap_memcpy", "0 30", "cfn=(3)", "calls=1 0", "0 9",
                          "0 1", "fn=(3)", "+2 1"])
        self.assertEqual(collect.own_instructions(text, "/x/host"), 13)

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
                          ("echo plan 1", "not understood"), ("echo plan 0 1", "not understood"),
                          ("echo plan 1 1", "valgrind: exit status 7: ==1== why")):
            with mock.patch.dict(os.environ, PATH=f"{valgrind}:{os.environ['PATH']}"), \
                    self.assertRaisesRegex(collect.Failed, why):
                collect.add_callgrind(collect.Counts(), self.program(text))

    def test_what_launches_ask(self):
        counts = collect.Counts()
        collect.add_launches(counts, self.program("echo k p again cudaGetDevice 2; echo host p plan cudaGetDevice 1"))
        self.assertEqual(counts.figures, {"k": {("cuda", "p again", "cudaGetDevice"): 2},
                                          "host": {("cuda", "p plan", "cudaGetDevice"): 1}})
        for text, why in (("exit 1", "exit status 1"), ("", "prints nothing"), ("echo k p again 2", "not understood")):
            with self.assertRaisesRegex(collect.Failed, why):
                collect.add_launches(collect.Counts(), self.program(text))

    def test_archives_that_cannot_be_read(self):
        for path in ("/nowhere.tar", "/", self.program("")):
            with self.assertRaisesRegex(collect.Failed, f"^{path}: "):
                collect.add_machine(collect.Counts(), path)

    # A loop of two products, of 2048 multiply-adds each, around a loop of an exponential; a branch that lanes may take
    # apart; what nothing leads to.
    SASS = """
.text._Z1kv:
.L_x_9:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0020*/                   BRA.DIV ~URZ, `(.L_x_3) ;
.L_x_2:
        /*0030*/                   MUFU.EX2 R5, R5 ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
        /*0050*/                   IMAD.MOV.U32 R6, RZ, RZ, R7 ;
        /*0060*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   NOP ;
        /*00a0*/                   BRA `(.L_x_2) ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4) ;
"""

    def test_loops_of_machine_code(self):
        (name, (instructions, labels)), = machine.functions_of(self.SASS).items()
        self.assertEqual((name, len(instructions)), ("_Z1kv", 12))
        counts = machine.kernel_counts(instructions, labels)
        of = {region: {c: n for (r, c), n in counts.items() if r == region} for region, _ in counts}
        self.assertEqual(of["kernel"], {"instructions": 11, "move": 2, "hmma": 2, "mufu": 1, "branch": 6})
        self.assertEqual(of["inner_loops"], {"instructions": 2, "mufu": 1, "branch": 1})
        in_loop = {"instructions": 6, "hmma": 2, "move": 1, "branch": 3}
        self.assertEqual(of["tensor_loops"], {c: n * 2**20 // 4096 for c, n in in_loop.items()})

    def test_a_loop_without_products_is_the_innermost(self):
        (_, (instructions, labels)), = machine.functions_of(self.SASS.replace("HMMA.16816", "FADD")).items()
        counts = machine.kernel_counts(instructions, labels)
        self.assertEqual({c: n for (r, c), n in counts.items() if r == "inner_loops"},
                         {"instructions": 2, "mufu": 1, "branch": 1})
        self.assertNotIn(("tensor_loops", "instructions"), counts)

    def test_products_of_warps_and_warpgroups(self):
        for opcode, wanted in (("HMMA.16816.F32", 2048), ("HMMA.1688.F32.TF32", 1024), ("FFMA", 0),
                               ("HGMMA.64x128x16.F32", 64 * 128 * 16 // 4)):
            self.assertEqual(machine.multiply_adds(machine.Instruction(None, opcode, "")), wanted)

    def test_ctas_by_registers(self):
        for registers, threads, wanted in ((32, 1024, 2), (33, 1024, 1), (255, 128, 2), (128, 128, 4), (16, 64, 32),
                                           (16, 256, 8)):
            self.assertEqual(collect.ctas_by_registers(registers, threads), wanted)

    def archive(self, **texts):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "k.tar")
        with tarfile.open(path, "w") as tar:
            for name, text in texts.items():
                info = tarfile.TarInfo(name + ".txt")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        return path

    def test_archives_without_a_kernel_or_its_instructions(self):
        line = "sm_90a {} kernel instructions 7\n"
        both = line.format("_Z1kPfi") + line.format("_Z2k3Pfi")
        counts = collect.Counts()
        collect.add_machine(counts, self.archive(ptxas=self.SAID, sass=both, threads="_Z1kPfi 128\n"))
        self.assertEqual(counts.figures["k"]["sass", "sm_90a k kernel", "instructions"], 7)
        self.assertEqual(counts.figures["k"]["ptxas", "sm_90a k", "ctas_by_registers"], 16)
        for texts, why in (({"sass": both}, "ptxas says nothing"), ({"ptxas": ""}, "ptxas says nothing of a kernel"),
                           ({"ptxas": self.SAID, "sass": line.format("_Z1kPfi")}, "there are no instructions of _Z2k3"),
                           ({"ptxas": self.SAID, "sass": both + line.format("_Z1x")}, "of which ptxas does not speak"),
                           ({"ptxas": self.SAID, "sass": "sm_90a k 7\n"}, "not understood")):
            with self.assertRaisesRegex(collect.Failed, why):
                collect.add_machine(collect.Counts(), self.archive(**texts))

    def test_names_of_entries(self):
        self.assertEqual(collect.entry_name("void (anonymous namespace)::k<bf16, shape<64, true> >(params)"),
                         "k<bf16, shape<64, true>>")
        self.assertEqual(collect.entry_name("(anonymous namespace)::merge_kernel(merge_params, int)"), "merge_kernel")


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
                mock.patch("shutil.which", return_value=None), mock.patch("collect.add_calls"), \
                contextlib.redirect_stdout(text):
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

    ENTRIES = {**{f"r{n}": {"what": "w", "worse": [("forward", "barrier_waits", None)]} for n in range(26)},
               **{name: {"what": "w", "worse": []} for name in ["harmless"] + [f"harmless{n}" for n in range(9)]}}
    ON_CHIP = ["r24", "r25"]

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
        self.assertEqual((status, said[-1]), (0, "26 of 26 regressions and 10 of 10 harmless changes were compared"))

    def test_without_nvcc(self):
        status, said = self.status([name for name in self.ENTRIES if name not in self.ON_CHIP], nvcc="")
        self.assertEqual((status, said[-2:]), (0, ["UNCHECKED, there is no nvcc: r24 r25",
                                                   "24 of 26 regressions and 10 of 10 harmless changes were compared"]))

    def test_what_is_not_built_is_no_matter_of_nvcc(self):
        status, said = self.status([name for name in self.ENTRIES if name != "r3"])
        self.assertEqual((status, said[-2]), (1, "UNCHECKED, nothing that is built has it: r3"))

    def test_another_version_is_one_line_and_all_of_it(self):
        status, said = self.status(self.ENTRIES, version="gcc 2")
        self.assertEqual((status, said), (0, [
            "UNCHECKED, the baseline is of gcc 1, this is gcc 2: " + " ".join(self.ENTRIES),
            "0 of 26 regressions and 0 of 10 harmless changes were compared"]))

    def test_one_whose_count_is_of_a_source_that_cannot_be_asked(self):
        key = ("sass", "sm_90a f kernel", "ffma")
        base = {"forward": ({"sim": "gcc 1", "sass": "nvdisasm 1"}, {("sim", "d64", "barrier_waits"): 100, key: 7})}
        entries = {"r": {"what": "w", "worse": [("forward", "ffma", None)]}}
        counts = counts_of({k: 100 for k in ONE}, sim="gcc 1")
        counts.unchecked["sass"] = "there is no nvdisasm"
        self.assertEqual(regressions_test.why_blind(entries["r"], counts, base), "there is no nvdisasm")
        counts.versions["sass"] = "nvdisasm 1"
        del counts.unchecked["sass"]
        self.assertEqual(regressions_test.why_blind(entries["r"], counts, base), "")
        counts.versions["sass"] = "nvdisasm 2"
        self.assertIn("nvdisasm 2", regressions_test.why_blind(entries["r"], counts, base))

    def test_one_that_is_missed_fails(self):
        for name, value in (("r3", 100), ("harmless", 101)):
            tally = regressions_test.Tally(self.ENTRIES, self.ON_CHIP, "nvcc 1")
            with contextlib.redirect_stdout(io.StringIO()):
                tally.add(name, counts_of({k: value for k in ONE}), BASE)
                self.assertEqual(tally.exit_status(), 1)

    def test_a_short_list_fails(self):
        for lacking in (("r0", "r1"), ("harmless",)):
            entries = {name: entry for name, entry in self.ENTRIES.items() if name not in lacking}
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(regressions_test.Tally(entries, self.ON_CHIP, "nvcc 1").exit_status(), 1)

    def test_what_counts_both_ways_is_found_and_is_not_harmless(self):
        result = baseline.Comparison()
        result.changed, result.checked = ["forward, d64, blocks: 2 -> 1, -50.00 %"], 1
        entry = {"what": "w", "worse": [("forward", "blocks", None)]}
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(regressions_test.judge("r", entry, result))
            self.assertFalse(regressions_test.judge("harmless", {"what": "w", "worse": []}, result))

    def test_another_problem_than_the_named_one_does_not_do(self):
        result = baseline.Comparison()
        result.worse, result.checked = ["host, plan, calls: 1 -> 2, +100.00 %"], 1
        for item, found in ((None, True), ("plan", True), ("merge", False)):
            with contextlib.redirect_stdout(io.StringIO()):
                entry = {"what": "w", "worse": [("host", "calls", item)]}
                self.assertEqual(regressions_test.judge("r", entry, result), found)

    def test_a_harmless_change_of_which_nothing_is_counted_does_not_pass(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertFalse(regressions_test.judge("harmless", self.ENTRIES["harmless"], baseline.Comparison()))


if __name__ == "__main__":
    unittest.main()
