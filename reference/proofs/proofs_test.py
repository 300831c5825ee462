#!/usr/bin/env -S python3 -B
"""The proofs hold, lean on no axiom but those of the reals and of classical logic, and on what they say they do: each
mutant, one changed constant or hypothesis, breaks one."""

import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from coq import ALLOWED, THEOREM, axioms, coqc, in_order, mutants, mutated


class Proofs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("coqc") is None:
            raise unittest.SkipTest("UNCHECKED: there is no coqc")
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        for path in HERE.glob("*.v"):
            shutil.copy(path, cls.folder)
        cls.names = in_order(cls.folder)
        cls.failed = {name: said for name, (good, said) in ((n, coqc(cls.folder, n)) for n in cls.names) if not good}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_every_theory_compiles(self):
        self.assertGreater(len(self.names), 4)
        self.assertEqual(self.failed, {})

    def theorems(self):
        return [f"{name}.{theorem}" for name in self.names
                for theorem in THEOREM.findall((self.folder / f"{name}.v").read_text())]

    def test_no_theorem_assumes_more_than_the_reals(self):
        theorems = self.theorems()
        self.assertGreater(len(theorems), 30)
        self.assertLessEqual(axioms(self.folder, theorems), ALLOWED)

    def test_what_is_admitted_is_seen(self):
        (self.folder / "planted.v").write_text("Theorem one : 0 = 1.\nProof. Admitted.\nAxiom two : 0 = 2.\n"
                                               "Theorem three : 0 = 2.\nProof. exact two. Qed.\n"
                                               "Theorem four : 0 = 0.\nProof. reflexivity. Qed.\n")
        self.assertTrue(coqc(self.folder, "planted")[0])
        for planted, found in (("one", {"planted.one"}), ("three", {"planted.two"}), ("four", set())):
            self.assertEqual(axioms(self.folder, ["planted." + planted]), found)
        self.assertIn("planted.one", axioms(self.folder, [*self.theorems(), "planted.one"]))

    def test_the_notes_name_every_theorem(self):
        notes = (HERE / "README.md").read_text()
        self.assertEqual([t for t in self.theorems() if f"`{t.split('.')[1]}`" not in notes], [])

    def test_the_judge_divides_as_its_theory_says(self):
        self.assertIn("    return fabs(e->got - e->want) / e->bound;", pathlib.Path("reference/judge.c").read_text())

    def test_every_mutant_breaks_a_proof(self):
        entries = [entry for entry in mutants((HERE / "mutants.txt").read_text()) if entry["file"].endswith(".v")]
        self.assertGreaterEqual(len(entries), 10)
        for entry in entries:
            with self.subTest(mutant=entry["mutant"]), tempfile.TemporaryDirectory() as copy:
                name = entry["file"]
                text = mutated((self.folder / name).read_text(), entry)
                self.assertIsNotNone(text, "what is replaced is not there exactly once")
                for compiled in self.folder.glob("*.vo"):
                    if compiled.stem != pathlib.Path(name).stem:
                        os.symlink(compiled, pathlib.Path(copy) / compiled.name)
                (pathlib.Path(copy) / name).write_text(text)
                good, said = coqc(copy, pathlib.Path(name).stem)
                self.assertFalse(good, "the proof holds")
                self.assertNotIn("Syntax error", said)
                self.assertNotIn("was not found in the current environment", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
