#!/usr/bin/env python3
"""The proofs hold, lean on no axiom but those of the reals and of classical logic, and on what they say they do: each
mutant, one changed constant or hypothesis, breaks one."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
THEOREM = re.compile(r"^Theorem (\w+)", re.M)
AXIOM = re.compile(r"^([\w.]+) *(?::|$)", re.M)
# Of Coq's real numbers, of Flocq's and Coquelicot's classical logic.
ALLOWED = {
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
}


def coqc(folder, name):
    """Whether folder/name.v compiles, and what Coq says."""
    result = subprocess.run(["coqc", "-q", "-w", "-ambiguous-paths", "-Q", ".", "Attest", name + ".v"], cwd=folder,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.returncode == 0, result.stdout


def in_order(folder):
    """Names of the theories, each after those that it needs."""
    files = sorted(path.name for path in folder.glob("*.v"))
    said = subprocess.run(["coqdep", "-sort", "-Q", ".", "Attest", *files], cwd=folder, text=True, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return [pathlib.Path(name).stem for name in said.split()]


def mutants(text):
    """Entries of mutants.txt: dictionaries with mutant, bug, file, from, to."""
    entries, key = [], None
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("|"):
            entries[-1][key] += line[1:] + "\n"
        elif word in ("from", "to"):
            key = word
            entries[-1][key] = ""
        elif word == "mutant":
            entries.append({word: rest.strip()})
        elif word in ("bug", "file"):
            entries[-1][word] = rest.strip()
    return entries


def mutated(text, entry):
    """text with the entry's change; None where what is replaced is not there exactly once."""
    before, after = entry["from"][:-1], entry["to"][:-1]
    return text.replace(before, after) if text.count(before) == 1 else None


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

    def axioms(self, theorems):
        """What each of the theorems, `theory.name`, assumes."""
        theories = sorted({theorem.split(".")[0] for theorem in theorems})
        script = [f"From Attest Require {' '.join(theories)}.", *(f"Print Assumptions {t}." for t in theorems)]
        (self.folder / "assumptions.v").write_text("\n".join(script))
        good, said = coqc(self.folder, "assumptions")
        self.assertTrue(good, said)
        parts = re.split(r"^(?:Axioms:|Closed under the global context)\n", said, flags=re.M)
        self.assertEqual(len(parts), len(theorems) + 1, said)
        return {theorem: set(AXIOM.findall(part)) for theorem, part in zip(theorems, parts[1:])}

    def test_no_theorem_assumes_more_than_the_reals(self):
        theorems = self.theorems()
        self.assertGreater(len(theorems), 30)
        self.assertEqual({t: found - ALLOWED for t, found in self.axioms(theorems).items() if found - ALLOWED}, {})

    def test_what_is_admitted_is_seen(self):
        (self.folder / "planted.v").write_text("Theorem one : 0 = 1.\nProof. Admitted.\nAxiom two : 0 = 2.\n"
                                               "Theorem three : 0 = 2.\nProof. exact two. Qed.\n"
                                               "Theorem four : 0 = 0.\nProof. reflexivity. Qed.\n")
        self.assertTrue(coqc(self.folder, "planted")[0])
        self.assertEqual(self.axioms(["planted.one", "planted.three", "planted.four"]),
                         {"planted.one": {"planted.one"}, "planted.three": {"planted.two"}, "planted.four": set()})

    def test_the_notes_name_every_theorem(self):
        notes = (HERE / "README.md").read_text()
        self.assertEqual([t for t in self.theorems() if f"`{t.split('.')[1]}`" not in notes], [])

    def test_every_mutant_breaks_a_proof(self):
        entries = mutants((HERE / "mutants.txt").read_text())
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
    unittest.main()
