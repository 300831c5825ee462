#!/usr/bin/env python3
"""Every row of kernels.inc has a file, a row of the registry or a caller, a wrong version that is rejected and counts.

A kernel that nobody dispatches, mutates or counts would be shipped unseen. Each check is seen to fail on a row that
lacks what it asks for."""

import pathlib
import re
import unittest

ROW = re.compile(r"^KERNEL\((\w+), (\w+), ([\w/]+), (sm_80|sm_90a)\)$", re.M)
MUTANT = re.compile(r"^mutant \w+\nbug +(.+)\nfile +(\S+)$", re.M)


def sources(root):
    """Of kernels; those of the simulated GPU's tests and of probes have no rows."""
    return {str(path.relative_to(root / "kernels")): path.read_text() for path in root.glob("kernels/*/*.cu")
            if path.parent.name not in ("device", "sim")}


def missing(root, rows):
    """Sentences about what rows lack."""
    found = sources(root)
    registry = (root / "kernels/registry.c").read_text()
    recipes = (root / "reference/recipes.c").read_text()
    mutants = (root / "proptests/kernel_mutants/mutants.txt").read_text()
    wrong = {file for bug, file in MUTANT.findall(mutants) if bug != "nothing"}
    out = []
    for name, of_pass, stem, code in ROW.findall(rows):
        file = f"{stem}.cu"
        text = found.get(file, "")
        launcher = f'extern "C" int KERNEL_SYMBOL({name})(const struct {of_pass}_params *'
        if launcher not in text:
            out.append(f"{name}: kernels/{file} has no launcher for {of_pass}")
        if ("_sm90" in name) != (code == "sm_90a"):
            out.append(f"{name}: its name and {code} do not say the same")
        called = any(f"KERNEL_SYMBOL({name})(" in other for at, other in found.items() if at != file)
        dispatched = f"LAUNCHERS({name})" in registry
        if not dispatched and not called:
            out.append(f"{name}: neither the registry nor a kernel calls it")
        if file not in wrong:
            out.append(f"{name}: proptests/kernel_mutants/mutants.txt has no wrong version of it")
        counts = root / "ci/perf/baselines" / f"{name}.txt"
        if not counts.exists() or "\n[ptxas" not in counts.read_text():
            out.append(f"{name}: ci/perf/baselines has no counts of it")
        elif dispatched and "\n[sim" not in counts.read_text():
            out.append(f"{name}: ci/perf/counts.c has no problem that it answers")
        if dispatched and f'"{name}"' not in recipes:
            out.append(f"{name}: reference/recipes.c has no recipe of it")
    listed = {f"{stem}.cu" for _, _, stem, _ in ROW.findall(rows)}
    return out + [f"kernels/{file} has no row" for file in sorted(set(found) - listed)]


class Rows(unittest.TestCase):
    ROOT = pathlib.Path.cwd()
    ROWS = (ROOT / "kernels/kernels.inc").read_text()

    def test_nothing_is_missing(self):
        self.assertGreater(len(ROW.findall(self.ROWS)), 15)
        self.assertEqual(self.ROWS.count("\nKERNEL("), len(ROW.findall(self.ROWS)))
        self.assertEqual(missing(self.ROOT, self.ROWS), [])

    def test_a_toy_without_anything_is_seen(self):
        said = missing(self.ROOT, self.ROWS + "KERNEL(toy_sm90, forward, long/toy_sm90, sm_80)\n")
        self.assertEqual([sentence.split(": ")[1] for sentence in said], [
            "kernels/long/toy_sm90.cu has no launcher for forward",
            "its name and sm_80 do not say the same",
            "neither the registry nor a kernel calls it",
            "proptests/kernel_mutants/mutants.txt has no wrong version of it",
            "ci/perf/baselines has no counts of it",
        ])

    def test_a_file_without_a_row_is_seen(self):
        rows = self.ROWS.replace("KERNEL(dsink, backward, long/dsink, sm_80)\n", "")
        self.assertEqual(missing(self.ROOT, rows), ["kernels/long/dsink.cu has no row"])


if __name__ == "__main__":
    unittest.main()
