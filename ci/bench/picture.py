"""Draws a table with gnuplot: in each panel a bar for every implementation on every shape."""

import collections
import shutil
import subprocess

import report

COLOURS = {"attest": "#c0392b", "FA2": "#2c6fbb", "memeff": "#8fa9bf", "cuDNN": "#5b9a4b", "math": "#b8a04a",
           "whole": "#7d5ba6", "flex": "#d98c3f", "FA3": "#3f8f8f", "FA4": "#8f3f6b"}

# Functions of a row: how high a bar is (of record and name, too), the words over its panel beside the direction, and
# those under it; then the axes, and a panel's width.
Kind = collections.namedtuple("Kind", "height panel label axes width")
LONG = Kind(lambda record, row, name: report.tflops_per_s(row, name),
            lambda row: "head_dim {3}, {4}".format(*report.shape_cells(row)),
            lambda row: report.shape_cells(row)[2],
            ["set ylabel 'TFLOP/s'", "set xlabel 'seqlen'", "set yrange [0:*]"], 300)
SHORT = Kind(report.over_floor,
             lambda row: ("one query" if row["seqlen_q"] == 1 else "self-attention") + ": seqlen, head_dim",
             lambda row: f"{row['seqlen_k']}, {row['head_dim']}",
             ["set ylabel 'time / floor'", "set logscale y", "set yrange [0.5:*]", "set xtics rotate",
              "set bmargin 5"], 700)
SMALL = Kind(lambda record, row, name: 1e3 * report.beyond_empty(row, "samples_ms"),
             lambda row: f"head_dim {row['head_dim']}",
             lambda row: f"{row['batch']}, {row['seqlen_k']}",
             ["set ylabel 'us beyond an empty kernel'", "set xlabel 'batch, seqlen'", "set yrange [0:*]"], 400)


FEATURES = Kind(lambda record, row, name: report.median_ms(row["runs"][name]),
                lambda row: "{2}, head_dim {3}".format(*report.shape_cells(row)),
                lambda row: report.feature_cell(report.of_row(row)),
                ["set ylabel 'ms'", "set logscale y", "set xtics rotate", "set bmargin 7"], 500)


def has_gnuplot():
    return shutil.which("gnuplot") is not None


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def script(record, path):
    kind = {"short": SHORT, "small": SMALL, "features": FEATURES}.get(record["table"], LONG)
    rows = [row for row in record["rows"] if any(report.has_time(row, name) for name in report.NAMES)]
    panels = {}
    for row in sorted(rows, key=lambda row: report.DIRECTIONS.index(row["direction"])):
        panels.setdefault(f"{row['direction']}, {kind.panel(row)}", []).append(row)
    columns = max(1, (len(panels) + 1) // 2)
    lines = [f"set terminal svg noenhanced size {kind.width * columns},800 background 'white'",
             f"set output {quoted(path)}",
             f"set multiplot layout 2,{columns} title {quoted(record['gpu'] + ', ' + record['dtype'])}",
             "set style data histogram", "set style histogram clustered gap 1", "set style fill solid",
             "set key outside top center horizontal", "set grid ytics", *kind.axes]
    for title, rows in panels.items():
        names = [name for name in report.NAMES if any(report.has_time(row, name) for row in rows)]
        lines.append("$data << END")
        for row in rows:
            heights = [f"{kind.height(record, row, name):.6g}" if report.has_time(row, name) else "NaN"
                       for name in names]
            lines.append(" ".join([quoted(kind.label(row))] + heights))
        lines.append("END")
        lines.append(f"set title {quoted(title)}")
        lines.append("plot " + ", ".join(
            f"$data using {i + 2}:xtic(1) title {quoted(name)} linecolor rgb {quoted(COLOURS[name])}"
            for i, name in enumerate(names)))
    lines.append("unset multiplot")
    return "\n".join(lines) + "\n"


def draw(record, path):
    subprocess.run(["gnuplot"], input=script(record, path), text=True, check=True)
