"""Baselines: one text file a kernel, sorted, one count a line, made for diffs; and the comparison with what is counted.

    [sim: gcc 12.2.0]
    bf16_d64_full barrier_waits 288

A section holds what one version of a source's tool said. Less is better; more is a regression."""

import os
import re

HEADER = "# Counts of {kernel}; less is better. Written by: ci/run perf --accept REASON\n"
SECTION = re.compile(r"\[(?P<source>\w+): (?P<version>[^\]]+)\]$")


class Malformed(Exception):
    pass


def read_file(path):
    """{source: version}, {(source, item, count): value}."""
    versions, figures, source = {}, {}, None
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            where = f"{path}:{number}"
            if line.startswith("#") or not line:
                continue
            if found := SECTION.match(line):
                source = found["source"]
                if source in versions:
                    raise Malformed(f"{where}: a second section [{source}]")
                versions[source] = found["version"]
                continue
            words = line.rsplit(" ", 2)
            if source is None or len(words) != 3 or not re.fullmatch(r"\d+", words[2]):
                raise Malformed(f"{where}: not `ITEM COUNT VALUE` in a section: {line!r}")
            key = (source, words[0], words[1])
            if key in figures:
                raise Malformed(f"{where}: {words[0]} {words[1]} for the second time")
            figures[key] = int(words[2])
    return versions, figures


def read(folder):
    """{kernel: (versions, figures)}."""
    names = sorted(n for n in os.listdir(folder) if n.endswith(".txt"))
    return {name[:-4]: read_file(os.path.join(folder, name)) for name in names}


def write(folder, counts, old):
    """Sources that were not asked keep what stands there; kernels that are no more lose their file."""
    for kernel in sorted(set(old) | set(counts.figures)):
        versions, figures = old.get(kernel, ({}, {}))
        kept = {k: v for k, v in figures.items() if k[0] not in counts.versions}
        figures = {**kept, **counts.figures.get(kernel, {})}
        path = os.path.join(folder, kernel + ".txt")
        if not figures:
            os.remove(path)
            continue
        with open(path, "w") as file:
            file.write(HEADER.format(kernel=kernel))
            for source in sorted({k[0] for k in figures}):
                file.write(f"\n[{source}: {counts.versions.get(source) or versions[source]}]\n")
                for key in sorted(k for k in figures if k[0] == source):
                    file.write(f"{key[1]} {key[2]} {figures[key]}\n")


def percent(before, after):
    return "from none" if before == 0 else f"{100 * (after - before) / before:+.2f} %"


class Comparison:
    def __init__(self):
        self.worse, self.broken, self.better, self.unchecked = [], [], [], []
        self.checked = 0
        self.missing = set()  # why there are unchecked ones

    def passes(self):
        return not self.worse and not self.broken and self.checked > 0


def compare(counts, baselines):
    result = Comparison()
    for kernel in sorted(set(baselines) | set(counts.figures)):
        now = counts.figures.get(kernel, {})
        if kernel not in baselines:
            result.broken.append(f"NO BASELINE {kernel}: the kernel has no file")
            continue
        versions, before = baselines[kernel]
        for source in sorted({k[0] for k in now} | {k[0] for k in before}):
            compare_source(result, kernel, source, counts, versions, now, before)
    return result


def why_unchecked(source, counts, versions):
    """A sentence, or None where now can be compared with before."""
    here = counts.versions.get(source)
    if here and source in versions and versions[source] != here:
        return f"the baseline is of {versions[source]}, this is {here}"
    return counts.unchecked.get(source)


def compare_source(result, kernel, source, counts, versions, now, before):
    keys = sorted(k for k in set(now) | set(before) if k[0] == source)
    why = why_unchecked(source, counts, versions)
    if why:
        result.unchecked += [f"UNCHECKED {kernel}, {item}, {count}: {why}" for _, item, count in keys]
        result.missing.add(why)
        return
    if source not in counts.versions:
        result.broken.append(f"NOT COUNTED {kernel}: the baseline has {source}, which nothing counts")
        return
    for key in keys:
        what = f"{kernel}, {key[1]}, {key[2]}"
        if key not in before:
            result.broken.append(f"NO BASELINE {what}: {now[key]}")
        elif key not in now:
            result.broken.append(f"NOT COUNTED {what}: the baseline has {before[key]}")
        elif now[key] != before[key]:
            line = f"{what}: {before[key]} -> {now[key]}, {percent(before[key], now[key])}"
            (result.worse if now[key] > before[key] else result.better).append(line)
        result.checked += 1
