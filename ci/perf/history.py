"""The log of accepted runs, one JSON line each, and the page that draws it.

A line: commit, date, reason, gpu, driver, versions, figures. Figures of counts are {kernel: {"SOURCE ITEM COUNT":
value}}, those alone that changed since the line before: null, where one is counted no more. Figures of times, in ms,
are {kernel: {"times GPU CONFIGURATION": value}}, all that the run measured, changed or not."""

import json
import math
import os
import re

import files
from files import Malformed

HERE = os.path.dirname(os.path.realpath(__file__))
LEAST_RUNS = 6  # with fewer, a step and noise look alike
MOST_MS = 1e6
MOST_COUNTED = 10**18


def is_text(value):
    return isinstance(value, str) and value.strip() != ""


def is_text_or_null(value):
    return value is None or is_text(value)


def is_versions(value):
    return isinstance(value, dict) and all(map(is_text, value.values()))


def is_figure(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        return False
    if is_time(name):
        return value is not None and 0 < value <= MOST_MS
    return value is None or isinstance(value, int) and 0 <= value < MOST_COUNTED


def wrong_figure(value):
    """Which of an entry's figures is none, in words; None where all are right."""
    for kernel, figures in value.items():
        if not isinstance(figures, dict):
            return f"figures of {kernel!r:.60} are {figures!r:.60}, not an object"
        for name, number in figures.items():
            if not is_figure(name, number):
                return f"{kernel!r:.60}, {name!r:.90} is {number!r:.60}, not a count, a time in ms or null"
    return None


FIELDS = {
    "commit": (is_text_or_null, "a commit or null"),
    "date": (is_text, "a date"),
    "reason": (is_text, "words"),
    "gpu": (is_text_or_null, "the name of a GPU or null"),
    "driver": (is_text_or_null, "a driver's version or null"),
    "versions": (is_versions, "an object of versions"),
    "figures": (lambda value: isinstance(value, dict), "an object of kernels"),
}


def check(where, entry):
    if not isinstance(entry, dict):
        raise Malformed(f"{where}: {entry!r:.60} is not an object")
    for field, (is_right, wanted) in FIELDS.items():
        if field not in entry:
            raise Malformed(f"{where}: there is no {field}")
        if not is_right(entry[field]):
            raise Malformed(f"{where}: {field} is {entry[field]!r:.60}, not {wanted}")
    if wrong := wrong_figure(entry["figures"]):
        raise Malformed(f"{where}: {wrong}")


def read(path):
    if not os.path.lexists(path):
        return []
    entries = []
    for where, line in files.lines(path):
        try:
            entries.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise Malformed(f"{where}: not JSON: {error}") from None
        check(where, entries[-1])
    return entries


def appended(path, entry):
    """The log's text with one entry more."""
    return (files.text_of(path) or "") + json.dumps(entry, sort_keys=True) + "\n"


def append(path, entry):
    files.replace({path: appended(path, entry)})


def state(entries):
    """What all lines together say now: {(kernel, name): value}."""
    now = {}
    for entry in entries:
        for kernel, figures in entry["figures"].items():
            for name, value in figures.items():
                now[kernel, name] = value
    return {key: value for key, value in now.items() if value is not None}


def changes(entries, figures, sources=()):
    """What differs from the log, of the sources that were asked: those that counted something, and `sources`."""
    before = state(entries)
    now = {(kernel, " ".join(key)): value for kernel, all_of in figures.items() for key, value in all_of.items()}
    asked = {*sources, *(name.split(" ")[0] for _, name in now)}
    changed = {}
    for key in sorted(set(before) | set(now)):
        if key not in now and key[1].split(" ")[0] not in asked:
            continue  # a source that was not asked
        if before.get(key) != now.get(key):
            changed.setdefault(key[0], {})[key[1]] = now.get(key)
    return changed


def is_time(name):
    return name.startswith("times ")


def series_of(entries):
    """{(kernel, name): [(run, value)]}: a run repeats the counts that it did not change; a time has a point in the runs
    alone that measured it."""
    series, now = {}, {}
    for run, entry in enumerate(entries):
        for kernel, figures in entry["figures"].items():
            now.update({(kernel, name): value for name, value in figures.items()})
        for key, value in now.items():
            if value is not None:
                series.setdefault(key, []).append((run, value))
        now = {key: value for key, value in now.items() if not is_time(key[1])}
    return series


def change_points(values):
    """Where a noisy series is best split into stretches of one mean each: of all splittings the one of least squared
    error plus a penalty for each split, in variances, the variance being that of neighbours' differences. Few runs say
    little of their variance, so the penalty is larger there: noise alone is split in about 3 of 100 series of 6 runs,
    in 1 of 100 from 12 on."""
    n = len(values)
    if n < LEAST_RUNS:
        return []
    steps = sorted(abs(b - a) for a, b in zip(values, values[1:]))
    middle = (steps[(n - 2) // 2] + steps[(n - 1) // 2]) / 2
    spread = middle / 0.954  # median |difference| of two normal numbers, in their standard deviation
    penalty = 4 * math.log(n) * (1 + 20 / n) * max(spread * spread, 1e-12 * max(map(abs, values)) ** 2)
    sums, squares = [0.0], [0.0]  # of all values before; less the first, so that little is lost in their differences
    for value in values:
        sums.append(sums[-1] + value - values[0])
        squares.append(squares[-1] + (value - values[0]) ** 2)

    def cost(start, end):
        return squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)

    best, last = [-penalty], [0]
    for end in range(1, n + 1):
        total, start = min((best[start] + cost(start, end) + penalty, start) for start in range(end))
        best.append(total), last.append(start)
    points, end = [], n
    while end > 0:
        end = last[end]
        points.append(end)
    return sorted(p for p in points if p > 0)


def exact_changes(values):
    return [i for i in range(1, len(values)) if values[i] != values[i - 1]]


def order(key):
    """Kernels by name, times first, numbers by size."""
    kernel, name = key
    return kernel, not is_time(name), [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def page_data(entries):
    """What page.html draws: all times, and the counts that ever changed. Points are [run, value], changes are runs."""
    kernels = {}
    series = series_of(entries)
    for key in sorted(series, key=order):
        kernel, name = key
        values = [value for _, value in series[key]]
        drawn = kernels.setdefault(kernel, [])
        if is_time(name) or len(set(values)) > 1:
            at = change_points(values) if is_time(name) else exact_changes(values)
            drawn.append({"name": name, "points": series[key], "changes": [series[key][i][0] for i in at]})
    runs = [{key: entry[key] for key in ("commit", "date", "reason", "gpu", "driver")} for entry in entries]
    return {"runs": runs, "kernels": kernels}


def write_page(entries, path):
    with open(os.path.join(HERE, "page.html"), encoding="utf-8") as file:
        page = file.read()
    data = json.dumps(page_data(entries)).replace("<", "\\u003c")  # no reason ends the script, or begins another
    with open(path, "w", encoding="utf-8") as file:
        file.write(page.replace("/* HISTORY */ []", data))
