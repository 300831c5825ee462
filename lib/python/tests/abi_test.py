#!/usr/bin/env python3
"""The structs of attest_attention._abi beside what the compiler makes of attest.h: sizes, and every field's offset."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "lib/python")
from attest_attention import _abi  # noqa: E402


def fields(struct):
    return [(struct.__name__, name, getattr(struct, name).offset) for name, _ in struct._fields_]


class Abi(unittest.TestCase):
    HEADER = pathlib.Path("lib/attest.h").read_text()

    def test_every_field_is_where_the_compiler_has_it(self):
        mine = [x for s in _abi.STRUCTS for x in fields(s)]
        lines = "".join(f'printf("%zu\\n", offsetof(struct {s}, {f}));\n' for s, f, _ in mine)
        lines += "".join(f'printf("%zu\\n", sizeof(struct {s.__name__}));\n' for s in _abi.STRUCTS)
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "offsets.c")
            pathlib.Path(source).write_text(f'#include <stdio.h>\n#include "attest.h"\nint main(void) {{\n{lines}}}\n')
            program = os.path.join(folder, "offsets")
            subprocess.run(["gcc", "-Ilib", source, "-o", program], check=True)
            said = list(map(int, subprocess.run([program], check=True, capture_output=True).stdout.split()))
        self.assertEqual([offset for _, _, offset in mine] + [ctypes.sizeof(s) for s in _abi.STRUCTS], said)

    def test_no_field_is_missing(self):
        for struct in _abi.STRUCTS:
            body = re.search(rf"^struct {struct.__name__} {{\n(.*?)^}};", self.HEADER, re.M | re.S)[1]
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            declared = [
    name for line in body.split(";") for name in re.findall(
        r"\*?(\w+)(?:\[\w+\])?(?=,|$)",
         line.strip())]
            self.assertEqual(declared, [name for name, _ in struct._fields_], struct.__name__)

    def test_enums_and_version(self):
        self.assertEqual(_abi.lib.attest_version(), _abi.VERSION)
        enums = {}
        for body in re.findall(r"^enum \w+ {(.*?)}", re.sub(r"/\*.*?\*/", "", self.HEADER, flags=re.S), re.M | re.S):
            value = -1
            for name, given in re.findall(r"(\w+)(?: = (\d+))?", body):
                value = int(given) if given else value + 1
                enums[name] = value
        mine = {n: v for n, v in vars(_abi).items() if n.isupper() and isinstance(v, int) and n != "VERSION"}
        self.assertGreater(len(mine), 15)
        self.assertEqual(mine, {n: enums["ATTEST_" + n] for n in mine})
        self.assertEqual([enums["ATTEST_AUDITED_" + n.upper()] for n in _abi.AUDITED], list(range(7)))


if __name__ == "__main__":
    unittest.main()
