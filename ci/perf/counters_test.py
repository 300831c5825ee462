#!/usr/bin/env -S python3 -B
"""What the gate counts, beside what is known: host code and kernels whose counts are known by hand, and the bytes that
every kernel has to move. (The simulated GPU's counters have a test of their own: kernels/sim/tests/counts_test.c.)"""

import argparse
import functools
import os
import shutil
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import collect

args = None


@functools.lru_cache()
def simulated():
    """{kernel: figures} of all problems."""
    counts = collect.Counts()
    collect.add_sim(counts, args.sim)
    return counts.figures


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

    def test_the_counters_of_calls_do_not_count(self):
        self.assertTrue(50 < self.of["asks"] < 150, self.of)

    def test_what_two_threads_share_by_chance_is_not_counted(self):
        self.assertNotIn("seven_of_two", self.of)


class Calls(unittest.TestCase):
    """What host code asks of the C library, and how threads share iterations."""

    def setUp(self):
        counts = collect.Counts()
        collect.add_calls(counts, args.known)
        self.figures = counts.figures["host"]

    def of(self, workload):
        return {count: value for (_, item, count), value in self.figures.items() if item == workload}

    def test_calls_and_bytes_of_each_routine(self):
        asked = {"malloc": (3, 3000), "calloc": (1, 30), "realloc": (1, 2000), "aligned_alloc": (1, 640),
                 "memset": (1, 500), "memcpy": (1, 400), "memmove": (1, 300)}
        expected = {"working_threads": 0, "busiest_thread_iterations": 0}
        for routine, (calls, size) in asked.items():
            expected.update({routine + "_calls": calls, routine + "_bytes": size})
        self.assertEqual(self.of("asks"), expected)

    def test_threads_share_iterations(self):
        for workload, threads, busiest in [("seven_alone", 1, 7), ("seven_of_two", 2, 4), ("one_of_two", 1, 1),
                                           ("nine_and_two", 3, 3 + 1)]:
            self.assertEqual(self.of(workload), {"working_threads": threads, "busiest_thread_iterations": busiest})


def figures_of_known(test):
    if not args.machine:
        test.skipTest("UNCHECKED: there is no nvcc")
    counts = collect.Counts()
    collect.add_machine(counts, args.machine)
    return counts.figures["known"]


class Ptxas(unittest.TestCase):
    def test_what_kernels_take(self):
        figures = figures_of_known(self)
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
            self.assertEqual(of("spills", "ctas_by_registers"), 2)
            self.assertNotIn(("ptxas", f"{gpu} stack_1024", "ctas_by_registers"), figures)  # no bounds, no threads


class Sass(unittest.TestCase):
    def test_instructions_of_kernels_and_of_their_loops(self):
        figures = figures_of_known(self)
        if not args.nvdisasm_version:
            self.skipTest("UNCHECKED: there is no nvdisasm")
        for gpu in ("sm_80", "sm_90a"):
            def of(kernel, region, count):
                return figures.get(("sass", f"{gpu} {kernel} {region}", count), 0)
            # One store, one barrier, one load of shared memory; no loop.
            for count in ("shared_store", "shared_load", "barrier"):
                self.assertEqual(of("shared_4000", "kernel", count), 1)
            self.assertEqual(of("shared_4000", "inner_loops", "instructions"), 0)
            # Seven products behind one another, then a loop of three products and an exponential of each iteration.
            self.assertEqual(of("products", "kernel", "hmma"), 7 + 3)
            self.assertEqual(of("products", "kernel", "mufu"), 1)
            self.assertEqual(of("products", "tensor_loops", "hmma"), 2**20 // 2048)
            self.assertEqual(of("products", "tensor_loops", "mufu"), -(-2**20 // (3 * 2048)))
            # Twice five fused multiply-adds in a loop inside of it.
            self.assertEqual(of("nested", "inner_loops", "ffma"), 5)
            self.assertEqual(of("nested", "tensor_loops", "ffma"), 0)
            self.assertEqual(of("nested", "tensor_loops", "hmma"), 2**20 // 2048)
            # Without products, the innermost loop: of four exponentials, not the one of each row.
            self.assertEqual(of("rows", "inner_loops", "mufu"), 4)
            self.assertEqual(of("rows", "kernel", "mufu"), 5)


class Launches(unittest.TestCase):
    """The stand-in for CUDA sees each launch that the simulated GPU sees, and nothing is asked twice."""

    def setUp(self):
        if not args.launches:
            self.skipTest("UNCHECKED: there is no nvcc")
        self.counts = collect.Counts()
        collect.add_launches(self.counts, args.launches)

    def of(self, call, count):
        return {(kernel, item.split(" ")[0]): value for kernel, figures in self.counts.figures.items()
                for (_, item, name), value in figures.items() if item.endswith(" " + call) and name == count}

    def test_launches_are_the_simulated_ones(self):
        compared = 0
        for (kernel, problem), launches in self.of("again", "cudaLaunchKernelExC").items():
            figures = simulated().get(kernel, {})
            if ("sim", problem, "launches") in figures:
                self.assertEqual(launches, figures["sim", problem, "launches"], (kernel, problem))
                compared += 1
        self.assertGreater(compared, 60)

    def test_nothing_is_asked_for_twice(self):
        long_ones = {"forward_sm90", "forward_sm90_any"}

        def names(is_long):
            return {name for kernel, figures in self.counts.figures.items() for (_, item, name) in figures
                    if not item.endswith(" plan") and is_long != long_ones.isdisjoint(kernel.split("+"))}
        self.assertEqual(names(False), {"cudaGetDevice", "cudaLaunchKernelExC", "cuTensorMapReplaceAddress"})
        self.assertEqual(self.of("again", "cuTensorMapReplaceAddress"), {})
        # Its maps are made anew for each launch, which takes long enough: those of q, k and v.
        self.assertEqual(names(True), {"cudaGetDevice", "cudaLaunchKernelExC", "cuTensorMapEncodeTiled"})
        self.assertLessEqual(max(self.of("again", "cuTensorMapEncodeTiled").values()), 3)


class Traffic(unittest.TestCase):
    """No kernel reads less than its inputs, and what is written is written once."""

    def test_bytes_beside_the_compulsory(self):
        checked = 0
        for kernel, figures in sorted(simulated().items()):
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
                    self.assertTrue(compulsory <= moved <= compulsory + figures[source, problem, "workspace_bytes"],
                                    (kernel, problem))
                checked += 1
        self.assertGreater(checked, 40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("sim", "known", "launches", "machine", "nvdisasm-version"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    unittest.main(argv=sys.argv[:1], verbosity=2)
