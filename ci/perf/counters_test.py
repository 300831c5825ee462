#!/usr/bin/env -S python3 -B
"""What the gate counts, beside what is known: host code and kernels whose counts are known by hand, and the bytes that
every kernel has to move. (The simulated GPU's counters have a test of their own: kernels/sim/tests/counts_test.c.)"""

import argparse
import os
import shutil
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import collect

args = None


class Callgrind(unittest.TestCase):
    def setUp(self):
        if shutil.which("valgrind") is None:
            self.skipTest("UNCHECKED: there is no valgrind")
        counts = collect.Counts()
        collect.add_callgrind(counts, args.known)
        self.of = {item: value for (_, item, count), value in counts.figures["host"].items() if count == "instructions"}

    def test_every_instruction_counts_once(self):
        self.assertEqual(self.of["nops_3100"] - self.of["nops_100"], 3000)
        self.assertTrue(101 < self.of["nops_100"] < 120, self.of)  # and those of measured() itself

    def test_the_library_does_not_count(self):
        self.assertTrue(5 < self.of["of_the_library"] < 30, self.of)


class Ptxas(unittest.TestCase):
    def test_what_kernels_take(self):
        if not args.ptxas:
            self.skipTest("UNCHECKED: there is no nvcc")
        counts = collect.Counts()
        collect.add_ptxas(counts, args.ptxas)
        figures = counts.figures["known"]
        for gpu in ("sm_80", "sm_90a"):
            def of(kernel, count):
                return figures["ptxas", f"{gpu} {kernel}", count]
            self.assertEqual(of("shared_4000", "shared_bytes"), 4000)
            self.assertEqual(of("shared_4000", "stack_bytes"), 0)
            self.assertEqual(of("stack_1024", "stack_bytes"), 1024)
            self.assertEqual(of("stack_1024", "spill_store_bytes"), 0)
            self.assertEqual(of("spills", "registers"), 32)
            self.assertGreaterEqual(of("spills", "spill_store_bytes"), 4 * (64 - 32))
            self.assertGreaterEqual(of("spills", "spill_load_bytes"), 4 * (64 - 32))
            for kernel in ("shared_4000", "stack_1024", "spills"):
                self.assertEqual(of(kernel, "code_bytes") % 128, 0)
                self.assertGreater(of(kernel, "code_bytes"), 0)


class Traffic(unittest.TestCase):
    """No kernel reads less than its inputs, and what is written is written once."""

    def test_bytes_beside_the_compulsory(self):
        counts = collect.Counts()
        collect.add_sim(counts, args.sim)
        checked = 0
        for kernel, figures in sorted(counts.figures.items()):
            for (source, problem, count), compulsory in sorted(figures.items()):
                if not count.startswith("compulsory_"):
                    continue
                moved = figures[source, problem, "global_" + count[len("compulsory_"):]]
                print(f"{kernel:16} {problem:22} {count[11:]:12} {moved:9} of {compulsory:8}: {moved / compulsory:.2f}")
                if count == "compulsory_read_bytes":
                    self.assertGreaterEqual(moved, compulsory, (kernel, problem))
                elif figures.get((source, problem, "workspace_bytes"), 0) == 0:
                    self.assertEqual(moved, compulsory, (kernel, problem))
                else:
                    self.assertTrue(compulsory < moved <= compulsory + figures[source, problem, "workspace_bytes"],
                                    (kernel, problem))
                checked += 1
        self.assertGreater(checked, 40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("sim", "known", "ptxas"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    unittest.main(argv=sys.argv[:1], verbosity=2)
