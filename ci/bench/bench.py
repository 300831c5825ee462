#!/usr/bin/env -S python3 -B
"""Times attest beside PyTorch's backends on this machine's GPU, with errors against the oracle."""

import argparse
import json
import math
import os
import sys

import cuda
import measure
import ours
import picture
import report
import tables


def options(arguments):
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--table", choices=tables.TABLES, default="long", help="which shapes (default: long)")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="of the tensors (default: bf16)")
    parser.add_argument("--quick", action="store_true",
                        help=f"{measure.QUICK_SAMPLES} samples, sequences of at most {tables.QUICK_SEQLEN}")
    parser.add_argument("--only", metavar="WORDS", default="",
                        help="rows by words, as 'dropout bias long dim64 forward': any of those of one kind, and of "
                             "each kind; an unknown one lists them")
    parser.add_argument("--peers", metavar="NAMES", help="what is timed beside attest, as 'FA2 cuDNN' (default: all)")
    parser.add_argument("--rounds", metavar="N", type=rounds_of, help=f"samples of each (default: {measure.SAMPLES})")
    parser.add_argument("--json", metavar="FILE", type=user_path, help="write every sample to FILE")
    parser.add_argument("--picture", metavar="FILE.svg", type=user_path, help="draw the times (needs gnuplot)")
    parser.add_argument("--from", metavar="FILE", dest="source", type=user_path,
                        help="show what --json wrote, here or on another machine, and measure nothing")
    chosen = parser.parse_args(arguments)
    chosen.only = split(parser, "--only", chosen.only, tables.words(chosen.table))
    if chosen.peers is not None:
        chosen.peers = split(parser, "--peers", chosen.peers, {"peers": tables.BESIDE[chosen.table]})
    chosen.rows = tables.chosen(chosen.table, chosen.only, tables.QUICK_SEQLEN if chosen.quick else math.inf)
    if not chosen.rows:
        parser.error(f"--only: no row of this table is of all kinds of {' '.join(chosen.only)}")
    if chosen.picture and not picture.has_gnuplot():
        parser.error("--picture needs gnuplot (Debian: gnuplot-nox); --json now and --from elsewhere draw it, too")
    return chosen


def rounds_of(text):
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value} is below 2, and one sample has no spread")
    return value


def split(parser, option, text, known):
    """Words, between spaces or commas, all of which `known` has: lists by kind."""
    found = text.replace(",", " ").split()
    for word in found:
        if not any(word in words for words in known.values()):
            lists = "; ".join(f"{kind}: {' '.join(words)}" for kind, words in known.items())
            parser.error(f"{option}: there is no {word}; {lists}")
    return found


def user_path(path):
    """`bazel run` changes directories; paths are the user's."""
    return os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)


def library_path():
    """Beside the program, in Bazel's output as in the GPU bundle."""
    return os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "libbench.so")


def write(path, record):
    """At once: whoever is interrupted keeps what was written before."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def show(shape):
    print(f"batch {shape.batch}, heads {shape.heads}, seqlen {shape.seqlen_q} x {shape.seqlen_k}, head_dim "
          f"{shape.head_dim}, {', '.join(shape.named())}", file=sys.stderr)


def measured(chosen):
    gpu = cuda.Cuda()
    rounds = chosen.rounds or (measure.QUICK_SAMPLES if chosen.quick else measure.SAMPLES)
    library = ours.Library(library_path())

    def progress(shape, record):
        show(shape)
        if chosen.json:
            write(chosen.json, record)

    return measure.measure(gpu, library, chosen.table, chosen.dtype, chosen.rows, rounds, progress,
                           chosen.peers)


def recorded(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(arguments):
    chosen = options(arguments)
    try:
        record = recorded(chosen.source) if chosen.source else measured(chosen)
    except cuda.NoGpu as missing:
        print(f"UNCHECKED: timing needs an NVIDIA GPU: {missing}")
        return 0
    except (OSError, json.JSONDecodeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if chosen.json:
        write(chosen.json, record)
    print(report.text(record), end="")
    if chosen.picture:
        picture.draw(record, chosen.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
