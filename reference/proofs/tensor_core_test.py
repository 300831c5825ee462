#!/usr/bin/env -S python3 -B
"""The tensor cores of which tensor_core.v proves things are those of the simulated GPU: a million sets of operands,
random and hard, give the same bits."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from coq import coqc

CASES = pathlib.Path(sys.argv.pop()).resolve()
EXTRACT = """From Coq Require Extraction ExtrOcamlBasic ExtrOcamlZInt.
From Attest Require Import tensor_core.
Extraction "tensor_core.ml" multiply step.
"""


class TensorCore(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [tool for tool in ("coqc", "ocamlopt") if shutil.which(tool) is None]
        if missing:
            raise unittest.SkipTest(f"UNCHECKED: there is no {' and no '.join(missing)}")
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        for name in ("tensor_core.v", "step_check.ml"):
            shutil.copy(HERE / name, cls.folder)
        (cls.folder / "extract.v").write_text(EXTRACT)
        for name in ("tensor_core", "extract"):
            good, said = coqc(cls.folder, name)
            if not good:
                raise AssertionError(said)
        sources = ["tensor_core.mli", "tensor_core.ml", "step_check.ml"]
        subprocess.run(["ocamlopt", "-w", "-a", *sources, "-o", "step_check"], cwd=cls.folder, check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def compare(self, tiles, more):
        """How many sets there are, and of how many the model with `more` fraction bits makes other bits."""
        with subprocess.Popen([CASES, str(tiles)], stdout=subprocess.PIPE) as cases:
            said = subprocess.run([self.folder / "step_check", str(more)], stdin=cases.stdout, stdout=subprocess.PIPE,
                                  text=True, check=True).stdout
        self.assertEqual(cases.returncode, 0)
        return tuple(map(int, re.fullmatch(r"(\d+) sets, (\d+) wrong\n", said).groups()))

    def test_a_million_sets_have_the_same_bits(self):
        sets, wrong = self.compare(7, 0)
        self.assertGreater(sets, 10**6)
        self.assertEqual(wrong, 0)

    def test_a_fraction_bit_more_or_less_is_seen(self):
        for more in (1, -1):
            sets, wrong = self.compare(1, more)
            self.assertGreater(wrong, sets // 100)


if __name__ == "__main__":
    unittest.main(verbosity=2)
