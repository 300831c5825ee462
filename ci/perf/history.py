"""The log of accepted runs, one JSON line each, and the page that draws it.

A line: commit, date, reason, gpu, driver, versions, figures. Figures are {kernel: {"SOURCE ITEM COUNT": value}}, those
alone that changed since the line before: null, where one is counted no more."""

import json
import math
import os

HERE = os.path.dirname(os.path.realpath(__file__))


def read(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def append(path, entry):
    with open(path, "a") as file:
        file.write(json.dumps(entry, sort_keys=True) + "\n")


def state(entries):
    """What all lines together say now: {(kernel, name): value}."""
    now = {}
    for entry in entries:
        for kernel, figures in entry["figures"].items():
            for name, value in figures.items():
                now[kernel, name] = value
    return {key: value for key, value in now.items() if value is not None}


def changes(entries, figures):
    before = state(entries)
    now = {(kernel, " ".join(key)): value for kernel, all_of in figures.items() for key, value in all_of.items()}
    asked = {name.split(" ")[0] for _, name in now}
    changed = {}
    for key in sorted(set(before) | set(now)):
        if key not in now and key[1].split(" ")[0] not in asked:
            continue  # a source that was not asked
        if before.get(key) != now.get(key):
            changed.setdefault(key[0], {})[key[1]] = now.get(key)
    return changed


def series_of(entries):
    """{(kernel, name): [(run, value)]}: a run repeats what it did not change."""
    series, now = {}, {}
    for run, entry in enumerate(entries):
        for kernel, figures in entry["figures"].items():
            now.update({(kernel, name): value for name, value in figures.items()})
        for key, value in now.items():
            if value is not None:
                series.setdefault(key, []).append((run, value))
    return series


def cost(values):
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values)


def change_points(values):
    """Where a noisy series is best split into stretches of one mean each: of all splittings the one of least squared
    error plus a penalty of 3 log(n) variances a split, the variance being that of neighbours' differences."""
    n = len(values)
    steps = sorted(abs(b - a) for a, b in zip(values, values[1:]))
    if n < 4 or steps[-1] == 0:
        return []
    spread = steps[len(steps) // 2] / 0.954  # median |difference| of two normal numbers, in their standard deviation
    penalty = 3 * math.log(n) * max(spread * spread, 1e-12 * max(map(abs, values)) ** 2)
    best, last = [-penalty], [0]
    for end in range(1, n + 1):
        total, start = min((best[start] + cost(values[start:end]) + penalty, start) for start in range(end))
        best.append(total), last.append(start)
    points, end = [], n
    while end > 0:
        end = last[end]
        points.append(end)
    return sorted(p for p in points if p > 0)


def exact_changes(values):
    return [i for i in range(1, len(values)) if values[i] != values[i - 1]]


def page_data(entries):
    kernels = {}
    for (kernel, name), points in sorted(series_of(entries).items()):
        values = [value for _, value in points]
        drawn = kernels.setdefault(kernel, [])
        if len(set(values)) < 2:
            continue
        find = change_points if name.startswith("times ") else exact_changes
        drawn.append({"name": name, "points": [{"run": run, "value": value} for run, value in points],
                      "changes": [points[i][0] for i in find(values)]})
    runs = [{key: entry[key] for key in ("commit", "date", "reason", "gpu")} for entry in entries]
    return {"runs": runs, "kernels": kernels}


def write_page(entries, path):
    with open(os.path.join(HERE, "page.html")) as file:
        page = file.read()
    data = json.dumps(page_data(entries)).replace("</", "<\\/")
    with open(path, "w") as file:
        file.write(page.replace("/* HISTORY */ []", data))
