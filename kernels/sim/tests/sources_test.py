#!/usr/bin/env -S python3 -B
"""Sources of kernels do nothing that the simulated GPU cannot watch, and nothing that it allows and the chip does not.

Compilers expand __builtin_memcpy of large objects, and atomics, in place: no call says that memory is touched. A tensor
map is read by the copy engine from the kernel's parameters, which GRID_CONSTANT leaves there; a copy of it in local
memory is what the simulated GPU reads as well, and the chip does not."""

import re
import sys
import unittest

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
UNWATCHED = re.compile(r"\b__(?:atomic|sync)_\w+|\bstd::atomic\w*|\basm\b|\batomic(?:Add|CAS|Exch|Max|Min|Or|And)\b")
BUILTIN = re.compile(r"\b__builtin_mem(?:cpy|move|set|cmp)\(([^;]*)\);")
KERNEL = re.compile(r"\bKERNEL\((?:[^()]|\([^()]*\))*\)\s*void\s+\w+\s*\(([^{;]*?)\)\s*\{", re.S)
LOCAL_MAP = re.compile(r"^\s+(?:const )?tensor_map \w+(?: =|;|\{)", re.M)
MOST_BUILTIN_BYTES = 16  # of registers: what a compiler keeps there


def faults_of(text):
    """Sentences of what is wrong in a source."""
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    for match in UNWATCHED.finditer(code):
        yield f"{match[0]}: the simulated GPU does not see it"
    for match in BUILTIN.finditer(code):
        size = match[1].split(",")[-1].strip()
        if not (size.isdigit() and int(size) <= MOST_BUILTIN_BYTES):
            yield f"__builtin_mem... of {size} bytes: the simulated GPU does not see more than {MOST_BUILTIN_BYTES}"
    if len(KERNEL.findall(code)) != len(re.findall(r"^KERNEL\(", code, re.M)):
        yield "the parameters of a kernel are not understood"
    for match in KERNEL.finditer(code):
        for parameter in match[1].split(","):
            if re.search(r"\btensor_map\b|_maps\b", parameter) and "GRID_CONSTANT" not in parameter:
                yield f"{parameter.strip()}: a tensor map is read from a parameter that is GRID_CONSTANT"
    for match in LOCAL_MAP.finditer(code):
        yield f"{match[0].strip()}: a tensor map in a kernel's own memory cannot be read by a copy"


class Sources(unittest.TestCase):
    def test_kernels(self):
        self.assertGreater(len(sources), 20)
        for path in sources:
            with open(path) as file:
                self.assertEqual(list(faults_of(file.read())), [], path)

    def test_that_faults_are_seen(self):
        wrong = {
            "__builtin_memset(t.at, 0, 64);": "64 bytes",
            "__builtin_memcpy(&to, &from, sizeof to);": "sizeof to",
            "x = __atomic_load_n(&y, 0);": "__atomic_load_n",
            'asm volatile("bar.sync 0;");': "asm",
            "KERNEL(128, 1) void f(const tensor_map m, int n)\n{": "GRID_CONSTANT",
            "KERNEL(128, 1) void f(GRID_CONSTANT const params p,\n const tma_maps maps)\n{": "GRID_CONSTANT",
            "{\n    tensor_map own = *map;\n": "own memory",
        }
        for text, words in wrong.items():
            found = list(faults_of(text))
            self.assertEqual(len(found), 1, text)
            self.assertIn(words, found[0])
        right = """__builtin_memcpy(&to, &from, 16); // asm
            /* std::atomic */
KERNEL(64, 1) void f(GRID_CONSTANT const tensor_map m, bool b) {"""
        self.assertEqual(list(faults_of(right)), [])


if __name__ == "__main__":
    sources = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
