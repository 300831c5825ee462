#!/usr/bin/env python3
"""Which lines of which files nothing covers, a line for each file: uncovered.py COVERAGE.JSON, as gcovr writes it."""

import json
import sys


def ranges(lines):
    """Uncovered lines of one file as "3, 7-12"; a range goes on over lines without code."""
    lines = sorted((line for line in lines if not line["gcovr/noncode"]), key=lambda line: line["line_number"])
    out, goes_on = [], False
    for line in lines:
        number = line["line_number"]
        if line["count"] == 0:
            if goes_on:
                out[-1][1] = number
            else:
                out.append([number, number])
        goes_on = line["count"] == 0
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def report(coverage):
    gaps = {file["file"]: ranges(file["lines"]) for file in coverage["files"]}
    listed = [f"{path}: {gap}" for path, gap in sorted(gaps.items()) if gap]
    return listed + [f"{len(gaps)} files, {len(listed)} with lines that nothing covers"]


if __name__ == "__main__":
    with open(sys.argv[1]) as coverage_json:
        print("\n".join(report(json.load(coverage_json))))
