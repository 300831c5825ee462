#!/usr/bin/env -S python3 -B
"""Every planted regression is found by the count that it changes, and by that of its kernel alone; what is harmless is
not. Prints what was found."""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import baseline
import collect
import plant


def counts_of(source, path, nvcc_version):
    counts = collect.Counts()
    if source == "sim":
        collect.add_sim(counts, path)
    elif source == "host":
        collect.add_callgrind(counts, path)
    else:
        counts.versions["ptxas"] = nvcc_version
        collect.add_ptxas(counts, path)
    return counts


def worse_of(counts, baselines):
    """Lines of what is worse, and what is broken; only kernels and sources that were counted are compared."""
    mine = {}
    for kernel in counts.figures:
        versions, figures = baselines.get(kernel, ({}, {}))
        mine[kernel] = (versions, {key: value for key, value in figures.items() if key[0] in counts.versions})
    result = baseline.compare(counts, mine)
    return result


def check(name, entry, source, path, args, baselines):
    result = worse_of(counts_of(source, path, args.nvcc_version), baselines)
    if result.unchecked and not result.checked:
        print(f"UNCHECKED {name}: {result.unchecked[0]}")
        return True
    if not entry["worse"]:
        ok = not result.worse and not result.broken
        print("\n    ".join([f"{'passes' if ok else 'FALSE ALARM'}  {name}: {entry['what']}"] + result.worse))
        return ok
    found = [line for line in result.worse for kernel, count in entry["worse"]
             if line.startswith(kernel + ",") and f", {count}:" in line]
    print(f"{'found' if found else 'MISSED'}  {name}: {entry['what']}\n    {found[0] if found else result.worse}")
    return bool(found) and not result.broken


def main():
    parser = argparse.ArgumentParser()
    for name in ("regressions", "baselines", "nvcc-version"):
        parser.add_argument("--" + name, required=True)
    for source in ("sim", "host", "ptxas"):
        parser.add_argument("--" + source, nargs="*", default=[])
    args = parser.parse_args()
    entries, baselines = plant.entries(args.regressions), baseline.read(args.baselines)
    given = [(source, *pair.split("=", 1)) for source in ("sim", "host", "ptxas") for pair in getattr(args, source)]
    missing = set(entries) - {name for _, name, _ in given}
    ok = all([check(name, entries[name], source, path, args, baselines) for source, name, path in given])
    if missing:
        print("UNCHECKED, no nvcc: " + " ".join(sorted(missing)))
    print(f"{len(given)} of {len(entries)} regressions checked")
    return 0 if ok and given else 1


if __name__ == "__main__":
    sys.exit(main())
