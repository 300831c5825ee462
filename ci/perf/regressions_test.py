#!/usr/bin/env -S python3 -B
"""Every planted regression is found by the count that it changes, and by that of its kernel alone; what is harmless is
not. Prints what was found."""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import baseline
import collect
import files
import plant

LEAST, LEAST_HARMLESS = 25, 10  # regressions and harmless changes that are planted


def counts_of(source, path, problems, nvcc_version, nvdisasm_version):
    counts = collect.Counts()
    if source == "sim":
        collect.add_sim(counts, path, *problems)
    elif source == "host":
        collect.add_callgrind(counts, path, *problems)
        collect.add_calls(counts, path, *problems)
    elif source == "launches":
        collect.say_versions(counts, nvcc_version, nvdisasm_version)
        collect.add_launches(counts, path, *problems)
    else:
        collect.say_versions(counts, nvcc_version, nvdisasm_version)
        collect.add_machine(counts, path)
    return counts


def compare(counts, baselines, problems=()):
    """Only what was counted is compared: kernels, sources, problems; and all of the problems that were asked for."""
    mine, asked = {}, {("sim", name) for name in problems if "sim" in counts.versions}
    for kernel in set(counts.figures) | set(baselines):
        versions, figures = baselines.get(kernel, ({}, {}))
        items = {key[:2] for key in counts.figures.get(kernel, {})} | asked
        kept = {key: value for key, value in figures.items() if key[:2] in items}
        if kept or kernel in counts.figures:
            mine[kernel] = (versions, kept)
    return baseline.compare(counts, mine)


def judge(name, entry, result):
    """Says what was found, and whether it is what the entry wants."""
    if not entry["worse"]:
        found = result.worse + result.changed + result.broken
        ok = result.checked > 0 and not found
        print("\n    ".join([f"{'passes' if ok else 'FALSE ALARM'}  {name}: {entry['what']}"] + found))
        return ok
    gone = [line[len("NOT COUNTED "):] for line in result.broken if line.startswith("NOT COUNTED ")]
    lines = result.worse + result.changed + gone
    found = [line for line in lines for kernel, count, item in entry["worse"]
             if line.startswith(f"{kernel}, {item}," if item else kernel + ",") and f", {count}:" in line]
    print(f"{'found' if found else 'MISSED'}  {name}: {entry['what']}\n    {found[0] if found else lines}")
    return bool(found) and len(gone) == len(result.broken)


def why_blind(entry, counts, baselines):
    """Why none of the counts that an entry names can be compared here; empty where one can, or where there is none."""
    reasons = set()
    for kernel, count, _ in entry["worse"]:
        versions, figures = baselines.get(kernel, ({}, {}))
        reasons |= {baseline.why_unchecked(source, counts, versions)
                    for source, _, name in figures if name == count}
    return "" if None in reasons else "; ".join(sorted(reasons))


class Tally:
    """What was compared really, and why the rest was not."""

    def __init__(self, entries, on_chip, nvcc_version):
        self.entries, self.on_chip, self.nvcc_version = entries, on_chip, nvcc_version
        self.compared, self.unchecked, self.ok = [], {}, True

    def leave_out(self, name, why):
        self.unchecked.setdefault(why, []).append(name)

    def add(self, name, counts, baselines):
        result = compare(counts, baselines, self.entries[name].get("problems", ()))
        if result.checked == 0 and (result.missing or counts.unchecked):
            self.leave_out(name, "; ".join(sorted(result.missing or counts.unchecked.values())))
            return
        if why := why_blind(self.entries[name], counts, baselines):
            self.leave_out(name, why)
            return
        self.compared.append(name)
        self.ok = judge(name, self.entries[name], result) and self.ok

    def explain_missing(self, given):
        for name in sorted(set(self.entries) - set(given)):
            if name in self.on_chip and not self.nvcc_version:
                self.leave_out(name, "there is no nvcc")
            else:
                self.leave_out(name, "nothing that is built has it")
                self.ok = False

    def exit_status(self):
        """Whether each that could be compared was judged rightly: another compiler, or no nvcc, is not a failure."""
        for why, names in sorted(self.unchecked.items()):
            print(f"UNCHECKED, {why}: {' '.join(names)}")
        planted = {name for name, entry in self.entries.items() if entry["worse"]}
        compared = planted & set(self.compared)
        print(f"{len(compared)} of {len(planted)} regressions and {len(set(self.compared) - planted)} of "
              f"{len(self.entries) - len(planted)} harmless changes were compared")
        is_short = len(planted) < LEAST or len(self.entries) - len(planted) < LEAST_HARMLESS
        if is_short:
            print(f"FAIL: at least {LEAST} regressions and {LEAST_HARMLESS} harmless changes should be planted")
        return 0 if self.ok and not is_short else 1


def run(args):
    entries, baselines = plant.entries(args.regressions), baseline.read(args.baselines)
    given = {name: (source, path) for source in ("sim", "host", "launches", "machine")
             for name, path in (pair.split("=", 1) for pair in getattr(args, source))}
    if unknown := sorted(set(given) - set(entries)):
        raise collect.Failed(f"{args.regressions} has no {unknown[0]}")
    tally = Tally(entries, args.on_chip, args.nvcc_version)
    for name, (source, path) in given.items():
        tally.add(name, counts_of(source, path, entries[name]["problems"], args.nvcc_version,
                                  args.nvdisasm_version), baselines)
    tally.explain_missing(given)
    return tally.exit_status()


def main():
    parser = argparse.ArgumentParser()
    for name in ("regressions", "baselines", "nvcc-version", "nvdisasm-version"):
        parser.add_argument("--" + name, required=True)
    for source in ("sim", "host", "launches", "machine", "on-chip"):
        parser.add_argument("--" + source, nargs="*", default=[])
    try:
        return run(parser.parse_args())
    except (files.Malformed, collect.Failed) as sentence:
        print(f"FAIL: {sentence}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
