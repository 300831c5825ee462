"""From samples to figures: medians, spreads, floors, ratios, and the tables that show them."""

import math
import statistics

from ours import RESULTS, tensor_bytes, tensors_of
from tables import USED, of_row

NAMES = ("attest", "FA2", "FA3", "FA4", "memeff", "cuDNN", "math", "whole", "flex")
DIRECTIONS = ("forward", "backward")


def flops(row):
    """Of the two products forward, where a mask does not hide whole rows, columns or blocks; backward has five, and
    none is counted twice."""
    shape = of_row(row)
    forward = 2 * shape.batch * shape.heads * shape.seqlen_q * shape.seqlen_k * (shape.head_dim + shape.dim_v)
    return forward * shape.visible() * (1 if row["direction"] == "forward" else 2.5)


def compulsory_bytes(row):
    """Each tensor once: q, k, v, o, bias, mask; backward also dout, dq, dk, dv, dbias. Of k, v and their gradients what
    is used. lse is not counted, nor are vectors."""
    shape, total = of_row(row), 0
    names = ("q", "k", "v", "o", "bias", "mask")
    if row["direction"] == "backward":
        names += ("dout", "dq", "dk", "dv", "dbias")
    for name in set(names).intersection(tensors_of(shape)):
        used = USED if name in ("k", "v", "dk", "dv") and shape.has("seqused") else 1
        total += used * tensor_bytes(name, shape)
    return total


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


def over_floor(record, row, name):
    return median_ms(row["runs"][name]) / floor_ms(record, row)


def best_peer(row):
    """Of those that have a time, or None."""
    peers = [name for name in NAMES[1:] if has_time(row, name)]
    return min(peers, key=lambda name: median_ms(row["runs"][name]), default=None)


def beyond_empty(row, key):
    """attest's median of samples_ms or host_ns less that of an empty kernel, or None where one is missing."""
    runs = [row["runs"].get(name, {}).get(key) for name in ("attest", "empty")]
    return statistics.median(runs[0]) - statistics.median(runs[1]) if all(runs) else None


def seqlen_cell(shape):
    same = shape.seqlen_q == shape.seqlen_k
    return str(shape.seqlen_k) if same else f"{shape.seqlen_q} x {shape.seqlen_k}"


def mask_cell(shape):
    if shape.window:
        return f"window {shape.window}"
    return "causal" if shape.causal else "full"


def heads_cell(shape):
    return str(shape.heads) if shape.kv == shape.heads else f"{shape.heads}/{shape.kv}"


def head_dim_cell(shape):
    return str(shape.head_dim) if shape.dim_v == shape.head_dim else f"{shape.head_dim}/{shape.dim_v}"


def shape_cells(row):
    shape = of_row(row)
    return [str(shape.batch), heads_cell(shape), seqlen_cell(shape), head_dim_cell(shape), mask_cell(shape)]


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


def of_product(record, row):
    """attest's flops a second in parts of those of the matrix product, or None."""
    if not (record["matrix_flops_per_s"] and has_time(row, "attest")):
        return None
    return tflops_per_s(row, "attest") * 1e12 / record["matrix_flops_per_s"]


def speed_over_best(row):
    """The best peer's time over attest's, or None."""
    best = best_peer(row)
    return best and ratio(row, best, "attest")


def long_cells(record, row, names):
    own = has_time(row, "attest")
    tensors = RESULTS[row["direction"]]
    cells = shape_cells(row) + [f"{floor_ms(record, row):.3f}"] + [time_cell(row, name) for name in names]
    cells.append(cell(tflops_per_s(row, "attest") if own else None, ".0f"))
    cells.append(cell(of_product(record, row), ".2f"))
    cells.append(cell(over_floor(record, row, "attest") if own else None, ".2f"))
    cells += [cell(speed_over_best(row), ".2f"), best_peer(row) or "-"]
    cells += [error_cell(row, "attest", tensor) for tensor in tensors]
    return cells + [error_cell(row, "FA2", tensors[0])] * ("FA2" in names)


def error_columns(direction):
    first, *others = RESULTS[direction]
    return ["error " + first, *others]


def long_columns(names, direction):
    return ["B", "heads", "seqlen", "head_dim", "mask", "floor", *names, "TFLOP/s", "/ product", "time / floor",
            "speed / best's", "best peer", *error_columns(direction),
            *["FA2's " + RESULTS[direction][0]] * ("FA2" in names)]


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


def machine(record):
    software = [f"CUDA {record['driver']}"]
    if record["torch"]:
        software += [f"PyTorch {record['torch']}", f"cuDNN {record['cudnn']}"]
    return f"{record['gpu']}, {', '.join(software)}; {record['dtype']}"


def samples(record):
    return max((len(run.get("samples_ms", ())) for row in record["rows"] for run in row["runs"].values()), default=0)


def kernels(record):
    found = sorted({row["runs"]["attest"]["kernel"] for row in record["rows"] if has_time(row, "attest")})
    return ", ".join(found) or "none"


def medians_sentence(record):
    return ("Times in ms: median ± half the distance of the quartiles of "
            f"{samples(record)} calls, implementations alternating.")


def by_direction(record, unit, header_of, cells_of, names):
    """A table for each direction, and why cells are empty."""
    lines = []
    for direction in DIRECTIONS:
        rows = [row for row in record["rows"] if row["direction"] == direction]
        if rows:
            lines += ["", f"{direction} ({unit})", ""]
            lines += aligned([header_of(direction)] + [cells_of(row) for row in rows])
            lines += refusals(rows, names)
    return lines


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def means_table(record):
    """Over seqlen, of each head_dim and mask: how much faster attest is than the best peer of each row."""
    found = {}
    for row in record["rows"]:
        shape = of_row(row)
        mask = "few rows" if shape.has_few_rows() else mask_cell(shape)
        group = (head_dim_cell(shape), mask if shape.kv == shape.heads else f"{mask}, {heads_cell(shape)}")
        speeds = found.setdefault(group, {direction: [] for direction in DIRECTIONS})[row["direction"]]
        if speed_over_best(row):
            speeds.append(speed_over_best(row))
    lines = [["head_dim", "mask", *DIRECTIONS, "rows"]]
    for group, speeds in found.items():
        lines.append([*group, *(cell(geometric_mean(speeds[direction]), ".3f") for direction in DIRECTIONS),
                      str(max(map(len, speeds.values())))])
    return aligned(lines)


def long_text(record, names):
    lines = [f"{machine(record)}, random normal inputs, each timed call behind one like it.",
             medians_sentence(record), floor_sentence(record),
             "error: |result - oracle| / |oracle| in Frobenius norms, over the last head of the last sequence.",
             "TFLOP/s, ratios and errors are attest's where no other name stands; / product: of the rate of that "
             f"product; speed: the best peer's time over attest's; its kernels here: {kernels(record)}."]
    lines += by_direction(record, "ms", lambda direction: long_columns(names, direction),
                          lambda row: long_cells(record, row, names), names)
    return lines + ["", "best peer's time / attest's, geometric mean", "", *means_table(record)]


def short_cells(record, row, names):
    best = best_peer(row)
    cells = shape_cells(row) + [f"{floor_ms(record, row):.3f}", time_cell(row, "attest"),
                                cell(over_floor(record, row, "attest") if has_time(row, "attest") else None, ".2f")]
    cells += [cell(median_ms(row["runs"][name]) if has_time(row, name) else None, ".3f") for name in names[1:]]
    return cells + [cell(speed_over_best(row), ".2f"), best or "-"]


def over_math(row, tensor):
    """attest's error in parts of that of `math`, or None where one is missing."""
    errors = [row["runs"].get(name, {}).get("errors", {}).get(tensor) for name in ("attest", "math")]
    if None in errors:
        return None
    return errors[0] / errors[1] if errors[1] else math.inf if errors[0] else 1.0


def error_table(rows, names, tensor):
    """A line for each shape and family of inputs."""
    lines = [["seqlen", "head_dim", "inputs", *names, "attest / math"]]
    for row in rows:
        lines.append([*shape_cells(row)[2:4], row.get("family", "normal"),
                      *[error_cell(row, name, tensor) for name in names], cell(over_math(row, tensor), ".2f")])
    return aligned(lines)


def error_tables(record, names):
    """Of every tensor; first attest's in parts of math's, the largest of all shapes."""
    rows = record["rows"] + record.get("error_rows", [])
    tensors = {tensor: [row for row in rows if row["direction"] == direction]
               for direction in DIRECTIONS for tensor in RESULTS[direction] if tensor != "lse"}
    largest = [["inputs", *tensors]]
    for family in dict.fromkeys(row.get("family", "normal") for row in rows):
        line = [family]
        for tensor, found in tensors.items():
            parts = [over_math(row, tensor) for row in found if row.get("family", "normal") == family]
            known = [part for part in parts if part is not None]
            line.append(cell(max(known, key=lambda part: (math.isnan(part), part), default=None), ".2f"))
        largest.append(line)
    lines = ["", "error of attest / of math, the largest of all shapes", "", *aligned(largest)]
    for tensor, found in tensors.items():
        lines += ["", f"error of {tensor}", "", *error_table(found, names, tensor)]
    return lines


def short_text(record, names):
    lines = [f"{machine(record)}, random normal inputs, each timed call behind one like it.",
             medians_sentence(record), floor_sentence(record),
             "math: PyTorch's unfused path, timed by itself. whole: a Triton kernel with whole sequences in one tile.",
             f"/ floor and speed are attest's; its kernels here: {kernels(record)}."]
    columns = ["B", "heads", "seqlen", "head_dim", "mask", "floor", "attest", "/ floor", *names[1:], "speed / best's",
               "best peer"]
    lines += by_direction(record, "ms", lambda _: columns, lambda row: short_cells(record, row, names), names)
    lines += ["", "Errors: |result - oracle| / |oracle| in Frobenius norms, over all heads of the last sequence."]
    return lines + error_tables(record, names)


def small_cells(row):
    gpu, host = (beyond_empty(row, key) for key in ("samples_ms", "host_ns"))
    errors = [error_cell(row, "attest", tensor) for tensor in RESULTS[row["direction"]]]
    return shape_cells(row) + [cell(gpu and 1e3 * gpu, ".2f"), cell(host, ".0f")] + errors


def small_text(record, names):
    lines = [f"{machine(record)}, random normal inputs. Calls in a row, none waited for: medians of "
             f"{samples(record)} samples.",
             "GPU us: of one call, beyond an empty kernel's. Host ns: until one call returns, beyond the launch of an "
             "empty kernel.",
             f"attest's kernels here: {kernels(record)}."]
    columns = ["B", "heads", "seqlen", "head_dim", "mask", "GPU us", "host ns"]
    return lines + by_direction(record, "one call", lambda direction: columns + error_columns(direction), small_cells,
                                (*names, "empty"))


def same_but_plain(record, row):
    """The row of the same shape and direction without features, or None."""
    plain = of_row(row).plain()
    return next((other for other in record["rows"] if of_row(other) == plain
                 and other["direction"] == row["direction"]), None)


def over_plain(record, row):
    """attest's time over that without features, or None."""
    plain = same_but_plain(record, row)
    if plain is None or not (has_time(row, "attest") and has_time(plain, "attest")):
        return None
    return median_ms(row["runs"]["attest"]) / median_ms(plain["runs"]["attest"])


def feature_cell(shape):
    words = ", ".join(shape.named())
    return f"{words} 1/{shape.blocks}" if shape.has("block_mask") else words


def feature_cells(record, row):
    shape, best, own = of_row(row), best_peer(row), has_time(row, "attest")
    errors = row["runs"].get("attest", {}).get("errors", {})
    worst = max(errors.values(), key=lambda x: (math.isnan(x), x), default=None)
    return [f"{shape.batch} x {seqlen_cell(shape)}", f"{shape.heads}/{shape.kv} of {shape.head_dim}",
            feature_cell(shape), f"{floor_ms(record, row):.3f}", time_cell(row, "attest"),
            cell(over_plain(record, row), ".2f"),
            cell(over_floor(record, row, "attest") if own else None, ".2f"),
            cell(best and median_ms(row["runs"][best]), ".3f"), best or "-",
            cell(speed_over_best(row), ".2f"), cell(worst, ".1e"),
            row["runs"].get("attest", {}).get("kernel", "-")]


def features_text(record, names):
    lines = [f"{machine(record)}, random normal inputs, each timed call behind one like it.",
             medians_sentence(record), floor_sentence(record),
             "Bytes and flops of the floor are those of the row: of a bias, a mask and groups, too; causal, lengths "
             "and blocks take their share off.",
             "/ plain: over the same shape and direction without features; of causal a reader wants twice that, of gqa "
             "/ floor. speed: best peer's time / attest's.",
             "error: the largest of attest's results', |result - oracle| / |oracle|, where the oracle is not too slow; "
             "dbias and dsink, sums over all sequences, are not among them."]
    columns = ["shape", "heads", "feature", "floor", "attest", "/ plain", "/ floor", "best peer", "which", "speed",
               "error", "kernel"]
    return lines + by_direction(record, "ms", lambda _: columns, lambda row: feature_cells(record, row), names)


def text(record):
    names = [name for name in NAMES if any(name in row["runs"] for row in record["rows"])]
    show = {"short": short_text, "small": small_text, "features": features_text}.get(record["table"], long_text)
    return "\n".join(show(record, names)) + "\n"
