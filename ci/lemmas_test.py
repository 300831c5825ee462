#!/usr/bin/env python3
"""reference/bounds.md has a heading for each lemma that a source names, and one for each kernel that has a recipe.

Each kind is seen to fail on a planted one."""

import pathlib
import re
import unittest

FOLDERS = ("kernels", "lib", "proptests", "reference")
HEADING = re.compile(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", re.M)
NUMBER = r"\d+(?:\.\d+)?"
NUMBERS = rf"{NUMBER}(?:(?:, | and | to |-){NUMBER})*"
NAMED = re.compile(rf"bounds\.md(?:\)?,? sections? |, )({NUMBERS})")
CALLED_BY_OTHERS = {"dbias", "dsink"}  # sections 5.4 and 7: they are a part of every backward pass
KERNEL = re.compile(r"^KERNEL\((\w+),", re.M)


def lemmas(text):
    return HEADING.findall(text)


def references(text):
    """Sections of bounds.md that a source's comments name; a comment goes on in the next line, behind ` * `."""
    text = re.sub(r"\n *(?:\*|//|#)? +", " ", text)
    return [number for named in NAMED.findall(text) for number in re.findall(NUMBER, named)]


def sources():
    return {str(path): path.read_text() for folder in FOLDERS for path in pathlib.Path(folder).rglob("*")
            if path.is_file() and path.suffix in (".c", ".cc", ".cu", ".h", ".py", ".v")}


def unknown(text, found):
    known = set(lemmas(text))
    return [f"{path}: bounds.md has no section {number}" for path, source in found.items()
            for number in references(source) if number not in known]


def unnamed(text, rows):
    headings = " ".join(line for line in text.split("\n") if line.startswith("### 11."))
    return [name for name in KERNEL.findall(rows) if name not in CALLED_BY_OTHERS and f"`{name}`" not in headings]


class Lemmas(unittest.TestCase):
    TEXT = pathlib.Path("reference/bounds.md").read_text()
    ROWS = pathlib.Path("kernels/kernels.inc").read_text()

    def test_headings_are_numbered_in_order(self):
        numbers = [tuple(map(int, number.split("."))) for number in lemmas(self.TEXT)]
        self.assertGreater(len(numbers), 50)
        self.assertEqual(len(numbers), len(re.findall("^##+ ", self.TEXT, re.M)))
        for before, after in zip(numbers, numbers[1:]):
            self.assertIn(after, {(before[0] + 1,), (before + (0,))[:1] + ((before + (0,))[1] + 1,)})

    def test_what_sources_name_is_there(self):
        found = sources()
        self.assertGreater(sum(len(references(source)) for source in found.values()), 60)
        self.assertEqual(unknown(self.TEXT, found), [])

    def test_the_text_itself_names_what_is_there(self):
        own = {"bounds.md": re.sub(r"\b[Ss]ections? ", "bounds.md section ", self.TEXT.replace("section 4.2)", ")"))}
        self.assertGreater(len(references(own["bounds.md"])), 60)
        self.assertEqual(unknown(self.TEXT, own), [])

    def test_every_kernel_has_a_heading(self):
        self.assertEqual(unnamed(self.TEXT, self.ROWS), [])

    def test_what_is_not_there_is_seen(self):
        self.assertEqual(unknown(self.TEXT, {"a.c": "/* reference/bounds.md section\n * 11.99 and 3. */"}),
                         ["a.c: bounds.md has no section 11.99"])
        self.assertEqual(references("(bounds.md, 11.11, 11.12) bounds.md sections 4-5 (bounds.md, section 5.4)"),
                         ["11.11", "11.12", "4", "5", "5.4"])
        self.assertEqual(unnamed(self.TEXT, self.ROWS + "KERNEL(toy_sm90, forward, long/toy_sm90, sm_90a)\n"),
                         ["toy_sm90"])


if __name__ == "__main__":
    unittest.main()
