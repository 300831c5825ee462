"""Draws speeds with gnuplot: a panel for each direction, head_dim and mask, a bar for each implementation."""

import shutil
import subprocess

import report

COLOURS = {"attest": "#c0392b", "FA2": "#2c6fbb", "memeff": "#8fa9bf", "cuDNN": "#5b9a4b"}


def has_gnuplot():
    return shutil.which("gnuplot") is not None


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def script(record, path):
    panels = {}
    for row in sorted(record["rows"], key=lambda row: report.DIRECTIONS.index(row["direction"])):
        panels.setdefault((row["direction"], row["head_dim"], row["causal"]), []).append(row)
    columns = max(1, (len(panels) + 1) // 2)
    lines = [f"set terminal svg noenhanced size {300 * columns},640 background 'white'", f"set output {quoted(path)}",
             f"set multiplot layout 2,{columns} title {quoted(record['gpu'] + ', ' + record['dtype'])}",
             "set style data histogram", "set style histogram clustered gap 1", "set style fill solid",
             "set yrange [0:*]", "set ylabel 'TFLOP/s'", "set xlabel 'seqlen'", "set key below horizontal"]
    for (direction, head_dim, causal), rows in panels.items():
        names = [name for name in report.NAMES if any(report.has_time(row, name) for row in rows)]
        lines.append("$data << END")
        for row in rows:
            speeds = [f"{report.tflops_per_s(row, name):.6g}" if report.has_time(row, name) else "NaN"
                      for name in names]
            lines.append(" ".join([quoted(report.shape_cells(row)[2])] + speeds))
        lines.append("END")
        lines.append("set title " + quoted(f"{direction}, head_dim {head_dim}, {'causal' if causal else 'full'}"))
        lines.append("plot " + ", ".join(
            f"$data using {i + 2}:xtic(1) title {quoted(name)} linecolor rgb {quoted(COLOURS[name])}"
            for i, name in enumerate(names)))
    lines.append("unset multiplot")
    return "\n".join(lines) + "\n"


def draw(record, path):
    subprocess.run(["gnuplot"], input=script(record, path), text=True, check=True)
