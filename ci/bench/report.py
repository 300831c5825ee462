"""From samples to figures: medians, spreads, floors, ratios, and the tables that show them."""

import statistics

NAMES = ("attest", "FA2", "memeff", "cuDNN")
DIRECTIONS = ("forward", "backward")


def flops(row):
    """Of the two products forward, halved by a causal mask; backward has five, and none is counted twice."""
    forward = 4 * row["batch"] * row["heads"] * row["seqlen_q"] * row["seqlen_k"] * row["head_dim"]
    return forward * (0.5 if row["causal"] else 1) * (1 if row["direction"] == "forward" else 2.5)


def compulsory_bytes(row):
    """q, k, v, o once; backward also dout, dq, dk, dv. 16 bits each."""
    elements = row["batch"] * row["heads"] * row["head_dim"] * (2 * row["seqlen_q"] + 2 * row["seqlen_k"])
    return 2 * elements * (1 if row["direction"] == "forward" else 2)


def floor_ms(record, row):
    """No version runs much faster: the bytes at the rate of a copy, or the products at that of a large one."""
    floors = [compulsory_bytes(row) / record["copy_bytes_per_s"]]
    if record["matrix_flops_per_s"]:
        floors.append(flops(row) / record["matrix_flops_per_s"])
    return max(floors) * 1e3


def median_ms(run):
    return statistics.median(run["samples_ms"])


def spread(run):
    """Half the distance of the quartiles, in parts of the median."""
    low, median, high = statistics.quantiles(run["samples_ms"], n=4, method="inclusive")
    return (high - low) / 2 / median


def tflops_per_s(row, name):
    return flops(row) / median_ms(row["runs"][name]) * 1e-9


def has_time(row, name):
    return "samples_ms" in row["runs"].get(name, {})


def ratio(row, over, under):
    """Of two medians, or None where one is missing."""
    if not (has_time(row, over) and has_time(row, under)):
        return None
    return median_ms(row["runs"][over]) / median_ms(row["runs"][under])


def shape_cells(row):
    same = row["seqlen_q"] == row["seqlen_k"]
    seqlen = str(row["seqlen_k"]) if same else f"{row['seqlen_q']} x {row['seqlen_k']}"
    return [str(row["batch"]), str(row["heads"]), seqlen, str(row["head_dim"]), "causal" if row["causal"] else "full"]


def time_cell(row, name):
    if not has_time(row, name):
        return "-"
    run = row["runs"][name]
    return f"{median_ms(run):.3f} ±{100 * spread(run):.1f}%"


def error_cell(row, name, tensor):
    errors = row["runs"].get(name, {}).get("errors", {})
    return f"{errors[tensor]:.2e}" if tensor in errors else "-"


def cell(value, form):
    return "-" if value is None else format(value, form)


def row_cells(record, row, names):
    floor = floor_ms(record, row)
    own = has_time(row, "attest")
    tensors = ("o", "lse") if row["direction"] == "forward" else ("dq", "dk", "dv")
    cells = shape_cells(row) + [f"{floor:.3f}"] + [time_cell(row, name) for name in names]
    cells.append(cell(tflops_per_s(row, "attest") if own else None, ".0f"))
    cells.append(cell(median_ms(row["runs"]["attest"]) / floor if own else None, ".2f"))
    if "FA2" in names:
        cells.append(cell(ratio(row, "FA2", "attest"), ".2f"))
    cells += [error_cell(row, "attest", tensor) for tensor in tensors]
    if "FA2" in names:
        cells.append(error_cell(row, "FA2", tensors[0]))
    return cells


def header(names, direction):
    cells = ["B", "heads", "seqlen", "head_dim", "mask", "floor"] + list(names) + ["TFLOP/s", "time / floor"]
    if "FA2" in names:
        cells.append("speed / FA2's")
    cells += ["error o", "lse"] if direction == "forward" else ["error dq", "dk", "dv"]
    if "FA2" in names:
        cells.append("FA2's o" if direction == "forward" else "FA2's dq")
    return cells


def aligned(lines):
    """Rows of cells as a Markdown table that also reads well as text."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["| " + " | ".join(c.rjust(w) for c, w in zip(line, widths)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|")
    return text


def refusals(rows, names):
    """Why a cell is empty: each sentence once."""
    sentences = []
    for row in rows:
        for name in names:
            sentence = row["runs"].get(name, {}).get("refused")
            line = f"- of {name}: {sentence}"
            if sentence and line not in sentences:
                sentences.append(line)
    return sentences


def floor_sentence(record):
    sentence = f"floor: compulsory bytes at the rate of a copy, {record['copy_bytes_per_s'] * 1e-12:.2f} TB/s here"
    if record["matrix_flops_per_s"]:
        rate = record["matrix_flops_per_s"] * 1e-12
        return f"{sentence}, or flops at that of an 8192^3 product, {rate:.0f} TFLOP/s, whichever is longer."
    return sentence + "; without PyTorch the rate of products is not known."


def introduction(record):
    software = [f"CUDA {record['driver']}"]
    if record["torch"]:
        software += [f"PyTorch {record['torch']}", f"cuDNN {record['cudnn']}"]
    calls = max(len(run.get("samples_ms", ())) for row in record["rows"] for run in row["runs"].values())
    kernels = sorted({row["runs"]["attest"]["kernel"] for row in record["rows"] if has_time(row, "attest")})
    return [f"{record['gpu']}, {', '.join(software)}; {record['dtype']}, random normal inputs, L2 flushed.",
            f"Times in ms: median ± half the distance of the quartiles of {calls} calls, implementations alternating.",
            floor_sentence(record),
            "error: |result - oracle| / |oracle| in Frobenius norms, over the last head of the last sequence.",
            "TFLOP/s, ratios and errors are attest's where no other name stands; its kernels here: "
            + (", ".join(kernels) or "none") + "."]


def text(record):
    names = [name for name in NAMES if any(name in row["runs"] for row in record["rows"])]
    lines = introduction(record)
    for direction in DIRECTIONS:
        rows = [row for row in record["rows"] if row["direction"] == direction]
        if rows:
            lines += ["", f"{direction} (ms)", ""]
            lines += aligned([header(names, direction)] + [row_cells(record, row, names) for row in rows])
            lines += refusals(rows, names)
    return "\n".join(lines) + "\n"
