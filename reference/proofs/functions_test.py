#!/usr/bin/env -S python3 -B
"""The polynomials and constants that the kernels have, read from their sources, are as near to exp2, log2, log2 e and
ln 2 as bounds.md says: Coq's interval arithmetic for the polynomials, Gappa for their roundings, whose proofs Coq
checks too. A changed coefficient breaks one."""

import os
import pathlib
import re
import shutil
import string
import struct
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from coq import ALLOWED, THEOREM, axioms, coqc, gappa, mutants, mutated

FUNCTIONS, SCORES = "kernels/device/functions.h", "kernels/shared/scores.h"
NUMBER = r"(-?0x[0-9a-f.]+p-?\d+|1\.0)f"
HORNER = re.compile(rf"    float p = {NUMBER};\n((?:    p = fma_rn\(p, f, {NUMBER}\);\n)+)")
LOG2_END = re.compile(rf"    const float log2_1_f = fma_rn\(f, {NUMBER}, fma_rn\(f, {NUMBER}, f \* f \* p\)\);\n")
CONSTANTS = re.compile(r"constexpr float LOG2_E = ([\d.]+)f, LN_2 = ([\d.]+)f;")


def body(text, name):
    return re.search(rf"(?:DEVICE|INLINE) float {name}\(float x\)\n{{\n(.*?)\n}}", text, re.S)[1]


def coefficients(text, name):
    """Of the polynomial in f, the highest first."""
    first, rest, _ = HORNER.search(body(text, name)).groups()
    return [first, *re.findall(NUMBER, rest)]


def horner(numbers):
    text = numbers[0]
    for number in numbers[1:]:
        text = f"({text}) * f + {number}"
    return text


def steps(numbers):
    """Lines of Gappa: q0 is what fused multiply-adds compute, p0 the polynomial."""
    lines, q, p = [], numbers[0], numbers[0]
    for left, number in reversed(list(enumerate(reversed(numbers[1:])))):
        lines += [f"q{left} = f32({q} * f + {number});", f"p{left} = {p} * f + {number};"]
        q, p = f"q{left}", f"p{left}"
    return "\n".join(lines)


def fp32(decimal):
    return struct.unpack("f", struct.pack("f", float(decimal)))[0].hex()


def fill(name, **values):
    return string.Template((HERE / f"{name}.in").read_text()).substitute(values)


def write(folder, functions, scores):
    """functions.v, exp2.gappa and log2.gappa of two sources."""
    exp2, log2 = coefficients(functions, "exp2_portable"), coefficients(functions, "log2_portable")
    high, low = LOG2_END.search(body(functions, "log2_portable")).groups()
    log2_e, ln_2 = map(fp32, CONSTANTS.search(scores).groups())
    (folder / "functions.v").write_text(fill("functions.v", log2_e=log2_e, ln_2=ln_2, exp2=horner(exp2),
                                             log2=horner(log2), log2_high=high, log2_low=low))
    (folder / "exp2.gappa").write_text(fill("exp2.gappa", steps=steps(exp2)))
    (folder / "log2.gappa").write_text(fill("log2.gappa", steps=steps(log2), high=high, low=low))


class Functions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [tool for tool in ("coqc", "gappa") if shutil.which(tool) is None]
        if missing:
            raise unittest.SkipTest(f"UNCHECKED: there is no {' and no '.join(missing)}")
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        cls.sources = {name: pathlib.Path(name).read_text() for name in (FUNCTIONS, SCORES)}
        write(cls.folder, cls.sources[FUNCTIONS], cls.sources[SCORES])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_polynomials_and_constants_are_near_what_they_stand_for(self):
        good, said = coqc(self.folder, "functions")
        self.assertTrue(good, said)
        theorems = [f"functions.{name}" for name in THEOREM.findall((self.folder / "functions.v").read_text())]
        self.assertEqual(len(theorems), 5)
        self.assertLessEqual(axioms(self.folder, theorems), ALLOWED)
        notes = (HERE / "README.md").read_text()
        self.assertEqual([t for t in theorems if f"`{t.split('.')[1]}`" not in notes], [])

    def test_gappa_proves_roundings_and_coq_its_proofs(self):
        for name in ("exp2", "log2"):
            with self.subTest(function=name):
                good, proof = gappa(self.folder, name)
                self.assertTrue(good, proof)
                (self.folder / f"gappa_{name}.v").write_text(proof)
                good, said = coqc(self.folder, f"gappa_{name}")
                self.assertTrue(good, said)
                lemma = f"gappa_{name}.{re.findall('^Lemma (l[0-9]+)', proof, re.M)[-1]}"
                self.assertLessEqual(axioms(self.folder, [lemma]), ALLOWED)

    def test_a_changed_source_breaks_a_proof(self):
        entries = [entry for entry in mutants((HERE / "mutants.txt").read_text()) if entry["file"] in self.sources]
        self.assertGreaterEqual(len(entries), 4)
        for entry in entries:
            with self.subTest(mutant=entry["mutant"]), tempfile.TemporaryDirectory() as folder:
                text = mutated(self.sources[entry["file"]], entry)
                self.assertIsNotNone(text, "what is replaced is not there exactly once")
                sources = {**self.sources, entry["file"]: text}
                write(pathlib.Path(folder), sources[FUNCTIONS], sources[SCORES])
                good, said = coqc(folder, "functions")
                self.assertFalse(good, "all is proven")
                self.assertNotIn("Syntax error", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
