#!/usr/bin/env python3
"""What is printed of a coverage report: every line that nothing covers, and no other."""

import unittest

from uncovered import ranges, report


def line(number, count, noncode=False):
    return {"line_number": number, "count": count, "gcovr/noncode": noncode, "branches": []}


class Uncovered(unittest.TestCase):
    def test_ranges_end_at_covered_lines_and_go_on_over_lines_without_code(self):
        self.assertEqual(ranges([line(3, 0), line(4, 1), line(7, 0), line(8, 0, noncode=True), line(12, 0)]), "3, 7-12")
        self.assertEqual(ranges([line(12, 0), line(2, 0)]), "2-12")
        self.assertEqual(ranges([line(2, 0), line(3, 7), line(4, 0, noncode=True)]), "2")
        self.assertEqual(ranges([line(2, 1)]), "")

    def test_files_are_listed_with_their_lines_and_counted(self):
        files = [{"file": "lib/b.c", "lines": [line(1, 0)]}, {"file": "lib/a.c", "lines": [line(1, 5), line(2, 0)]},
                 {"file": "lib/c.c", "lines": [line(1, 1)]}]
        self.assertEqual(report({"files": files}),
                         ["lib/a.c: 2", "lib/b.c: 1", "3 files, 2 with lines that nothing covers"])
        self.assertEqual(report({"files": []}), ["0 files, 0 with lines that nothing covers"])


if __name__ == "__main__":
    unittest.main()
