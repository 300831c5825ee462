#!/usr/bin/env -S python3 -B
"""The page of the history in headless Chromium: what its script draws, without an error and without a network."""

import html.parser
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import history

NASTY = "merge: </script> <!-- <script> & \"quotes\", 'more' and &amp; größer als π ✓"
H200 = {"gpu": "NVIDIA H200", "driver": "580.159.04"}
A100 = {"gpu": "NVIDIA A100", "driver": None}
STEP, NO_STEP = "head_dim 64 seqlen 512 causal", "head_dim 64 seqlen 2048 causal"


class Node:
    """An element: its attributes by [], the elements inside, its own text."""

    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.inside, self.text = tag, dict(attributes), [], ""

    def __getitem__(self, name):
        return self.attributes[name]

    def all(self, tag):
        for child in self.inside:
            if child.tag == tag:
                yield child
            yield from child.all(tag)

    def one(self, tag):
        found, = self.all(tag)
        return found


class Parser(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open = [Node("document", {})]
        self.root = self.open[0]
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        node = Node(tag, attributes)
        self.open[-1].inside.append(node)
        if tag not in ("meta", "img"):
            self.open.append(node)

    def handle_endtag(self, tag):
        if self.open.pop().tag != tag:
            raise ValueError(f"</{tag}> closes another element")

    def handle_data(self, text):
        self.open[-1].text += text


class Complaint(Exception):
    """What the page wrote to the browser's console."""


def browse(path):
    """The document that the page's script made."""
    with tempfile.TemporaryDirectory() as home:
        run = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={home}/profile", "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom",
             f"file://{path}"], env={**os.environ, "HOME": home}, capture_output=True, timeout=120, check=True)
    complaints = [line for line in run.stderr.decode(errors="replace").splitlines() if ":CONSOLE" in line]
    if complaints:
        raise Complaint("\n".join(complaints))
    return Parser(run.stdout.decode()).root


def commit_of(run):
    return f"{run:02d}" + 38 * "c"


class Log:
    """A log as ci/run perf --accept writes it."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "history.jsonl")
        self.runs = 0

    def entries(self):
        return history.read(self.path)

    def append(self, figures, reason="a reason", gpu=None, driver=None):
        self.runs += 1
        history.append(self.path, {"commit": commit_of(self.runs), "date": f"2026-01-{self.runs:02d}", "reason": reason,
                                   "gpu": gpu, "driver": driver, "versions": {}, "figures": figures})

    def count(self, waits, reason="counts"):
        counted = {"forward": {("sim", "d64", "barrier_waits"): waits, ("sim", "d64", "launches"): 1},
                   "merge": {("sim", "p<1, true>", "launches"): 1}}
        self.append(history.changes(self.entries(), counted), reason)

    def time(self, rng, step, on):
        """Rounded, so that some are equal to the ones before."""
        figures = {f"times {on['gpu']} {name}": round(rng.gauss(mean, 0.001), 3)
                   for name, mean in ((STEP, step), (NO_STEP, 0.5))}
        self.append({"forward": figures}, "times", **on)


def whole(log):
    """20 runs: counts that change in runs 8 and 20, times of an H200 with a step in run 12, one run on an A100."""
    rng = random.Random(1)
    log.count(100)
    for _ in range(6):
        log.time(rng, 0.30, H200)
    log.count(1090, NASTY)
    for _ in range(3):
        log.time(rng, 0.30, H200)
    for _ in range(6):
        log.time(rng, 0.31, H200)
    log.time(rng, 0.31, A100)
    log.count(1090)
    log.count(95)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("chromium") is None:
            raise AssertionError("there is no chromium: apt-get install chromium")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log, self.path = Log(folder.name), os.path.join(folder.name, "page.html")

    def drawn(self):
        history.write_page(self.log.entries(), self.path)
        return browse(self.path)

    def figures(self, section):
        """{name: (runs with a dot, runs with a change, labels, caption)}, pictures checked."""
        return {figure.one("figcaption").text: self.figure(figure) for figure in section.all("figure")}

    def figure(self, figure):
        dots = {}
        for dot in figure.all("circle"):
            run, date, commit, value = re.match(r"run (\d+), (.+), (.+): (.+)\n.", dot.one("title").text).groups()
            self.assertEqual((date, commit), (f"2026-01-{int(run):02d}", commit_of(int(run))[:10]))
            dots[int(run)] = (float(dot["cx"]), float(dot["cy"]), float(value.replace(",", "")))
        corners = [tuple(map(float, xy.split(","))) for xy in figure.one("polyline")["points"].split(" ")]
        frame = figure.one("rect")
        left, top, wide, high = (float(frame[key]) for key in ("x", "y", "width", "height"))
        self.assertTrue(all(left < x < left + wide and top < y < top + high for x, y in corners))
        self.assertEqual(corners, sorted(corners, key=lambda xy: xy[0]))
        self.assertLessEqual({dot[:2] for dot in dots.values()}, set(corners))
        self.assertEqual(list(dots), sorted(dots))
        heights = [height for _, height in sorted((value, -y) for _, y, value in dots.values())]
        self.assertEqual(heights, sorted(heights))
        changes = []
        for line in figure.all("line"):
            changes.append(int(re.fullmatch(r"change in run (\d+)", line.one("title").text)[1]))
            self.assertEqual({float(line["x1"]), float(line["x2"])}, {dots[changes[-1]][0]})
            self.assertEqual(line["class"], "change")
        labels = {text["class"]: text.text for text in figure.all("text")}
        return list(dots), changes, labels, figure.one("figcaption").one("span").text

    def test_a_history(self):
        whole(self.log)
        page = self.drawn()
        self.assertRegex(page.one("style").text, r"\.change { .*stroke-dasharray")
        sections = {section["id"]: section for section in page.all("section")}
        self.assertEqual(list(sections), ["kernel-forward", "kernel-merge"])
        self.assertEqual([(a["href"], a.text) for a in page.one("nav").all("a")],
                         [("#kernel-forward", "forward (5)"), ("#kernel-merge", "merge (0)"),
                          ("#accepted", "accepted runs")])
        self.assertEqual([h2.text for h2 in page.all("h2")], ["forward", "merge", "Accepted runs"])
        self.assertEqual([p.text for p in sections["kernel-merge"].all("p")], ["Nothing changed yet."])
        self.assertEqual(self.figures(sections["kernel-merge"]), {})
        drawn = self.figures(sections["kernel-forward"])
        on_h200 = [*range(2, 8), *range(9, 18)]
        self.assertEqual({name: figure[:2] for name, figure in drawn.items()}, {
            f"times NVIDIA A100 {STEP}": ([18], []),
            f"times NVIDIA A100 {NO_STEP}": ([18], []),
            f"times NVIDIA H200 {STEP}": (on_h200, [12]),
            f"times NVIDIA H200 {NO_STEP}": (on_h200, []),
            "sim d64 barrier_waits": ([1, 8, 20], [8, 20])})
        self.assertEqual(list(drawn)[0::2], [f"times NVIDIA A100 {STEP}", f"times NVIDIA H200 {STEP}",
                                             "sim d64 barrier_waits"])
        self.assertEqual(drawn["sim d64 barrier_waits"][2:],
                         ({"low": "95", "high": "1,090", "first": "run 1", "last": "run 20"},
                          "100 to 95, \u22125.00 %"))
        self.assertRegex(drawn[f"times NVIDIA H200 {STEP}"][2]["low"], r"^0\.29\d\d\d$")
        self.assertRegex(drawn[f"times NVIDIA H200 {STEP}"][3], r"^0\.\d{5} to 0\.\d{5} ms, \+\d\.\d\d %$")

    def test_the_table_of_runs(self):
        whole(self.log)
        page = self.drawn()
        self.assertEqual([p.text for p in page.all("p")][0], "Accepted runs: 20.")
        head, *rows = [[cell.text for cell in row.inside] for row in page.one("table").all("tr")]
        self.assertEqual(head, ["run", "date", "commit", "measured on", "reason"])
        self.assertEqual(len(rows), 20)
        self.assertEqual(rows[6], ["7", "2026-01-07", commit_of(7)[:10], "NVIDIA H200, driver 580.159.04", "times"])
        self.assertEqual(rows[7], ["8", "2026-01-08", commit_of(8)[:10], "no GPU: counts", NASTY])
        self.assertEqual(rows[17][3], "NVIDIA A100")

    def test_no_history(self):
        page = self.drawn()
        self.assertEqual([list(page.all(tag)) for tag in ("section", "figure", "td")], [[], [], []])
        self.assertEqual([p.text for p in page.all("p")][0], "Accepted runs: 0.")

    def test_one_run_without_a_commit(self):
        self.log.append({"forward": {f"times NVIDIA H200 {STEP}": 0.3, "sim d64 launches": 1}}, **H200)
        entries = self.log.entries()
        entries[0]["commit"] = None
        history.write_page(entries, self.path)
        page = browse(self.path)
        figure = page.one("figure")
        self.assertIn("no commit: 0.30000", figure.one("circle").one("title").text)
        self.assertEqual({text["class"]: text.text for text in figure.all("text")},
                         {"high": "0.30000", "first": "run 1"})
        self.assertEqual(figure.one("figcaption").one("span").text, "0.30000 to 0.30000 ms")
        self.assertEqual([cell.text for cell in page.all("td")][2:4], ["no commit", "NVIDIA H200, driver 580.159.04"])

    def test_a_commit_with_changes_keeps_its_mark(self):
        self.log.count(100)
        entries = self.log.entries()
        entries[0]["commit"] += " + changes"
        history.write_page(entries, self.path)
        self.assertEqual([cell.text for cell in browse(self.path).all("td")][2], commit_of(1)[:10] + " + changes")

    def test_nothing_is_loaded(self):
        whole(self.log)
        history.write_page(self.log.entries(), self.path)
        with open(self.path) as file:
            text = file.read()
        self.assertEqual(set(re.findall(r"\w+://[^\"' ]*", text)), {"http://www.w3.org/2000/svg"})
        self.assertIsNone(re.search(r"\bsrc=|\burl\(|@import|\bfetch\(|XMLHttp|<link|\bimport\b", text))
        # And if it were, Chromium would say so.
        with open(self.path, "w") as file:
            file.write(text + "<img src='http://127.0.0.1:9/x.png'>")
        with self.assertRaisesRegex(Complaint, "Content Security Policy"):
            browse(self.path)

    def test_an_error_of_the_script_is_noticed(self):
        history.write_page([], self.path)
        with open(self.path) as file:
            text = file.read()
        with open(self.path, "w") as file:
            file.write(text.replace("const recorded", "broken(); const recorded"))
        with self.assertRaisesRegex(Complaint, "broken is not defined"):
            browse(self.path)


if __name__ == "__main__":
    unittest.main()
