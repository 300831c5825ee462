#!/usr/bin/env python3
"""What each folder includes, and what its BUILD files name: lib, kernels and reference know nothing of who tests them.

An arrow that points up would make the judge depend on what it judges. Each kind is seen to fail on a planted one."""

import pathlib
import re
import unittest

MAY_INCLUDE = {
    "kernels": {"kernels", "lib"},
    "lib": {"kernels", "lib", "reference"},
    "reference": {"lib", "reference"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<](\w+)/.*[">]', re.M)
LABEL = re.compile(r'"(@attest)?//(\w*)[^"]*"')
# A function whose result g++ may build in shared memory, unseen (kernels/device/machine.h).
SCALAR = r"(?:void|bool|float|double|unsigned|int|u?int\d+_t|size_t)"
BUILT_UNSEEN = re.compile(rf"^DEVICE (?!(?:constexpr |const )*{SCALAR} \w+\()(?!.*[\w>] \(?[*&]\w+\().*\w+\(", re.M)
RULES = {"ci", "visibility"}  # rules and Criterion
OF_ALL = {'"//:README.md"', '"//:LICENSE"', '"//:CMakeLists.txt"', '"//conditions:default"'}  # of the whole project
COMMAND = 'actual = "//proptests/plugin:audit"'  # of the alias //reference/audit


def wrong_includes(folder, path, text):
    return [f"{path} includes {m[0].split()[-1]}" for m in INCLUDE.finditer(text)
            if m[1] in {"ci", "proptests", *MAY_INCLUDE} - MAY_INCLUDE[folder]]


def wrong_labels(folder, path, text):
    if path == "reference/audit/BUILD":
        text = text.replace(COMMAND, "", 1)
    return [f"{path} names {m[0]}" for m in LABEL.finditer(text)
            if m[2] not in MAY_INCLUDE[folder] | RULES and m[0] not in OF_ALL]


def files(folder):
    return {str(path): path.read_text() for path in pathlib.Path(folder).rglob("*")
            if path.is_file() and (path.name == "BUILD" or path.suffix in (".c", ".cc", ".cu", ".h"))}


def wrong(folder, path, text):
    return (wrong_labels if path.endswith("/BUILD") else wrong_includes)(folder, path, text)


class Layers(unittest.TestCase):
    def test_no_arrow_points_up(self):
        for folder in MAY_INCLUDE:
            found = files(folder)
            self.assertGreater(len(found), 20, folder)
            self.assertIn(f"{folder}/BUILD", found)
            self.assertEqual([sentence for path, text in found.items() for sentence in wrong(folder, path, text)], [])

    def test_what_returns_a_struct_is_inline(self):
        found = {path: BUILT_UNSEEN.findall(text) for path, text in files("kernels").items()}
        self.assertEqual({path: lines for path, lines in found.items() if lines}, {})
        self.assertGreater(sum(len(re.findall("^DEVICE ", text, re.M)) for text in files("kernels").values()), 500)
        for line in ("DEVICE row_lse split_lse(float max)", "DEVICE typename cta::stages scores_of_head(const cta &c)",
                     "DEVICE own_chunks<tile, THREADS> chunks_of(unsigned thread)", "DEVICE T shuffle(T value)"):
            self.assertEqual(len(BUILT_UNSEEN.findall(line)), 1, line)
        for line in ("DEVICE void end(row_lse &to)", "DEVICE constexpr int row_step(int n)", "DEVICE T *find(int n)",
                     "DEVICE const score_rule &rule_of(int n)", "DEVICE float (&flat(quad (&of)[2]))[8]",
                     "INLINE row_lse split_lse(float max)"):
            self.assertEqual(BUILT_UNSEEN.findall(line), [], line)

    def test_an_include_of_proptests_is_seen(self):
        self.assertEqual(wrong("reference", "reference/audit/a.c", '#include "proptests/properties/properties.h"\n'),
                         ['reference/audit/a.c includes "proptests/properties/properties.h"'])
        self.assertEqual(len(wrong("reference", "reference/a.h", '#include "kernels/cuda.h"\n# include <ci/a.h>\n')), 2)
        self.assertEqual(wrong("lib", "lib/a.c", '#include "kernels/cuda.h"\n#include <math.h>\n#include "a.h"\n'), [])

    def test_a_label_of_proptests_is_seen_but_for_the_one_alias(self):
        audit = pathlib.Path("reference/audit/BUILD").read_text()
        self.assertEqual(wrong("reference", "reference/audit/BUILD", audit), [])
        self.assertEqual(wrong("reference", "reference/audit/BUILD", audit + 'deps = ["//proptests:case"]'),
                         ['reference/audit/BUILD names "//proptests:case"'])
        self.assertEqual(len(wrong("reference", "reference/BUILD", COMMAND)), 1)
        self.assertEqual(len(wrong("kernels", "kernels/BUILD", '"//reference:oracle", "//kernels/sim", "//ci:x"')), 1)


if __name__ == "__main__":
    unittest.main()
