"""Baselines: one text file a kernel, sorted, one count a line, made for diffs; and the comparison with what is counted.

    [sim: gcc 12.2.0]
    bf16_d64_full barrier_waits 288

A section holds what one version of a source's tool said. Less is better, more is a regression, but for the counts in
MORE, where it is the other way around, and for those in EITHER: what is less there may be the regression itself, as
where a stage of copies is gone, which takes less shared memory. Any change of them fails until it is accepted."""

import os
import re

import files
from files import Malformed

HEADER = "# Counts of {kernel}. Written by: ci/run perf --accept REASON\n"
SECTION = re.compile(r"\[(?P<source>\w+): (?P<version>[^\]]+)\]")
NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
MORE = {"ctas_by_registers", "ctas_by_shared_memory", "early_launches", "products_beside_copies", "working_threads"}
WITHOUT_ZEROS = {"calls", "cuda", "sass"}
EITHER = {"blocks", "cluster_ctas", "dynamic_shared_bytes", "registers", "shared_bytes", "threads"}


def read_line(where, line, source, figures):
    words = line.rsplit(" ", 2)
    if source is None or len(words) != 3 or not all(words) or not NUMBER.fullmatch(words[2]):
        raise Malformed(f"{where}: not `ITEM COUNT VALUE` in a section: {line!r:.100}")
    key = (source, words[0], words[1])
    if key in figures:
        raise Malformed(f"{where}: {words[0]} {words[1]} for the second time")
    if figures and key < next(reversed(figures)):
        raise Malformed(f"{where}: not sorted: {words[0]} {words[1]} belongs above the line before")
    figures[key] = int(words[2])


def read_file(path):
    """{source: version}, {(source, item, count): value}."""
    versions, figures, source = {}, {}, None
    for where, line in files.lines(path):
        if line.startswith("#") or not line:
            continue
        if found := SECTION.fullmatch(line):
            source = found["source"]
            if source in versions:
                raise Malformed(f"{where}: a second section [{source}]")
            versions[source] = found["version"]
        else:
            read_line(where, line, source, figures)
    return versions, figures


def check_versions(folder, baselines):
    """One run counts all of a source: a section of another version than the rest would hide its counts as UNCHECKED."""
    first = {}
    for kernel, (versions, _) in baselines.items():
        for source, version in versions.items():
            other, known = first.setdefault(source, (kernel, version))
            if known != version:
                raise Malformed(f"{folder}: [{source}] is of {known} in {other}.txt, but of {version} in {kernel}.txt")


def read(folder):
    """{kernel: (versions, figures)}."""
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".txt"))
    except OSError as error:
        raise Malformed(f"{folder}: {error.strerror}") from None
    baselines = {name[:-4]: read_file(os.path.join(folder, name)) for name in names}
    check_versions(folder, baselines)
    return baselines


def text_of(kernel, versions, figures):
    text = HEADER.format(kernel=kernel)
    for source in sorted({k[0] for k in figures}):
        text += f"\n[{source}: {versions[source]}]\n"
        text += "".join(f"{key[1]} {key[2]} {figures[key]}\n" for key in sorted(figures) if key[0] == source)
    return text


def accepted(folder, counts, old):
    """{path: text} of the new baselines. Sources that were not asked keep what stands there; of a kernel that is no
    more the text is None."""
    texts = {}
    for kernel in sorted(set(old) | set(counts.figures)):
        versions, figures = old.get(kernel, ({}, {}))
        kept = {k: v for k, v in figures.items() if k[0] not in counts.versions}
        figures = {**kept, **counts.figures.get(kernel, {})}
        path = os.path.join(folder, kernel + ".txt")
        texts[path] = text_of(kernel, {**versions, **counts.versions}, figures) if figures else None
    return texts


def counted_nothing(key, before, now):
    """A simulated kernel that was not launched at all: every count of it is less, and none of them better."""
    return key[0] == "sim" and key[2] in ("launches", "blocks") and before > 0 and now == 0


def gone(counts, old):
    """What the baselines have, of sources that were asked, and what now is missing or counted nothing."""
    lost = []
    for kernel, (_, before) in sorted(old.items()):
        now = with_zeros(counts.figures.get(kernel, {}), before)
        lost += [f"{kernel}, {key[1]}, {key[2]}" for key in sorted(before) if key[0] in counts.versions
                 and (key not in now or counted_nothing(key, before[key], now[key]))]
    return lost


def percent(before, after):
    return "from none" if before == 0 else f"{100 * (after - before) / before:+.2f} %"


class Comparison:
    def __init__(self):
        self.worse, self.changed, self.broken, self.better, self.unchecked = [], [], [], [], []
        self.checked = 0
        self.missing = set()  # why there are unchecked ones

    def passes(self):
        return not self.worse and not self.changed and not self.broken and self.checked > 0

    def add(self, count, before, after, line):
        if count in EITHER:
            self.changed.append(line)
        elif (after > before) != (count in MORE):
            self.worse.append(line)
        else:
            self.better.append(line)


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


def with_zeros(figures, others):
    """Classes of instructions of which a region has none, and calls that a workload or launch does not make, are not
    printed; they are 0 where the region, workload or launch is known."""
    items = {key[:2] for key in figures}
    return {**{key: 0 for key in others if key[0] in WITHOUT_ZEROS and key[:2] in items}, **figures}


def compare_source(result, kernel, source, counts, versions, now, before):
    now, before = with_zeros(now, before), with_zeros(before, now)
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
        elif counted_nothing(key, before[key], now[key]):
            result.broken.append(f"COUNTED NOTHING {what}: the baseline has {before[key]}")
        elif now[key] != before[key]:
            line = f"{what}: {before[key]} -> {now[key]}, {percent(before[key], now[key])}"
            result.add(key[2], before[key], now[key], line)
        result.checked += 1
