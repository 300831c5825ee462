#!/usr/bin/env -S python3 -B
"""Times of two GPU bundles on one GPU: calls of both, pair by pair in random order, and a verdict for each
configuration. Part of the bundle; needs a GPU, and of Python its standard library.

    times.py --base BUNDLE --head BUNDLE [--seconds 150] [--json FILE]

A bundle is gpu_bundle.tar, a folder of what is in it, or its libbench.so. Both libraries live in this process, on the
same buffers."""

import argparse
import contextlib
import datetime
import json
import lzma
import math
import os
import random
import re
import shutil
import sys
import tarfile
import tempfile
import time
import zlib

import cuda
import measure
import nvml
import ours
import tables
import verdict

SHAPES = [tables.Shape(16384 // seqlen, 2048 // head_dim, seqlen, seqlen, head_dim, causal)
          for head_dim in (64, 128) for causal in (False, True) for seqlen in (512, 2048, 8192)]


class NoBundle(Exception):
    """The sentence says what of a path is no bundle."""


def name_of(shape, direction):
    return f"{direction} head_dim {shape.head_dim} seqlen {shape.seqlen_k} {'causal' if shape.causal else 'full'}"


def extract(tar, folder):
    """libbench.so and the libraries beside it: plain files alone, as a link could lead out of the folder."""
    wanted = re.compile(r"gpu_bundle/((lib|bin)/[\w.+-]+)")
    os.mkdir(os.path.join(folder, "lib"))
    for member in tar:
        name = wanted.fullmatch(member.name)
        if member.isfile() and name and (name[2] == "lib" or name[1] == "bin/libbench.so"):
            with open(os.path.join(folder, name[1]), "wb") as file:
                shutil.copyfileobj(tar.extractfile(member), file)


def library_of(bundle, folder, side):
    """libbench.so of a bundle, as a file of its own: the loader takes one file twice for one library. It finds what it
    needs in ../lib."""
    if not os.path.exists(bundle):
        raise NoBundle(f"--{side}: there is no {bundle}")
    out = os.path.join(folder, side, "bin", f"libbench_{side}.so")
    os.makedirs(os.path.dirname(out))
    try:
        if os.path.isdir(bundle):
            shutil.copytree(os.path.join(bundle, "lib"), os.path.join(folder, side, "lib"))
            shutil.copy(os.path.join(bundle, "bin", "libbench.so"), out)
        elif tarfile.is_tarfile(bundle):
            with tarfile.open(bundle) as tar:
                extract(tar, os.path.join(folder, side))
            os.rename(os.path.join(os.path.dirname(out), "libbench.so"), out)
        else:
            shutil.copy(bundle, out)
        return ours.Library(out)
    except (OSError, EOFError, AttributeError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise NoBundle(f"--{side}: {bundle} is no GPU bundle with a libbench.so: {error}") from None


class Call:
    """One library's run of one configuration."""

    def __init__(self, bench, library, shape, direction):
        self.bench = bench
        self.plan = ours.Plan(library, ours.CUDA, bench.dtype, shape, direction)
        self.bytes = self.plan.workspace_bytes()
        self.workspace = bench.cuda.allocate(self.bytes)

    def __call__(self):
        self.plan.run(self.bench.pointers, self.workspace, self.bytes)


def nothing():
    pass


def take_pairs(bench, calls, samples, rounds, watch, rng, is_time_left):
    """`rounds` pairs of every configuration, fewer when time is over, configurations and sides in an order drawn anew
    each round."""
    for _ in range(rounds):
        if not is_time_left():
            return
        order = list(calls)
        rng.shuffle(order)
        for name in order:
            sides = ["base", "head"]
            rng.shuffle(sides)
            calls[name]["before"]()
            times = {side: bench.sample_ms(calls[name][side]) for side in sides}
            for side, ms in times.items():
                if not 0 < ms < math.inf:
                    raise RuntimeError(f"a call of {side}, {name}, took {ms} ms")
            samples[name].append((times["base"], times["head"]))
        watch.look()


def differences(samples):
    """What verdicts are made of: {configuration: [ln(head / base), ...]}."""
    return {name: [math.log(head / base) for base, head in pairs] for name, pairs in samples.items()}


def tables_of(samples):
    """{name: means of rounds} of the table of each direction, as far as it was timed; `samples` are differences."""
    found = {}
    for direction in ours.RESULTS:
        table = {name: values for name, values in samples.items() if name.startswith(direction + " ")}
        if table:
            found[f"{direction}, geometric mean of all"] = verdict.mean_of_table(table)
    return found


def prepared(bench, libraries):
    """Calls by configuration, and the sentences of those refused."""
    calls, refused = {}, {}
    for shape in SHAPES:
        for direction in ours.RESULTS:
            name = name_of(shape, direction)
            if direction == "backward" and name_of(shape, "forward") in refused:
                refused[name] = "its forward pass was refused, whose results it reads"
                continue
            call = {}
            try:
                for side, library in libraries.items():
                    call[side] = Call(bench, library, shape, direction)
            except ours.Refused as sentence:
                refused[name] = f"by {side}: {sentence}"
                continue
            call["before"] = nothing if direction == "forward" else calls[name_of(shape, "forward")]["head"]  # o, lse
            calls[name] = call
    return calls, refused


def measured(base, head, seconds, seed=None, decide=verdict.decide):
    """A record: every pair, what was observed, the verdicts. `seed`: of the order; None: another each time."""
    seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    begin, rng = time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        libraries = {"base": library_of(base, folder, "base"), "head": library_of(head, folder, "head")}
        gpu = cuda.Cuda()
        watch = nvml.Watch(gpu.uuid())
        bench = measure.Bench(gpu, libraries["head"], "bf16", SHAPES)
        calls, refused = prepared(bench, libraries)
        samples = {name: [] for name in calls}

        def is_time_left():
            return time.monotonic() - begin < seconds

        def more(rounds):
            take_pairs(bench, calls, samples, rounds, watch, rng, is_time_left)
            return differences(samples)

        take_pairs(bench, calls, {name: [] for name in calls}, measure.WARM_UP, watch, rng, is_time_left)
        verdicts, looks = decide(more, is_time_left, tables_of) if is_time_left() else ({}, 0)
        return {"gpu": gpu.name(), "uuid": gpu.uuid(), "driver": watch.driver_version(), "seed": seed,
                "date": datetime.date.today().isoformat(), "seconds": time.monotonic() - begin,
                "looks": looks, "samples_ms": samples, "refused": refused,
                "clocks_mhz": watch.clocks, "capped": watch.capped, "spoiled": watch.spoiled(),
                "unwatched": watch.why, "verdicts": verdicts}


def pairs_of(record):
    return min((len(pairs) for pairs in record["samples_ms"].values()), default=0)


def print_record(record):
    clocks = record["clocks_mhz"]
    print(f"{record['gpu']}, driver {record['driver']}: {pairs_of(record)} pairs of each configuration, "
          f"{record['seconds']:.0f} s" + (f", SM clock {min(clocks)} to {max(clocks)} MHz" if clocks else "")
          + (", held by the power cap at times, which meets both sides of a pair" if record["capped"] else ""))
    print(f"effect: head's time / base's - 1, its {100 * verdict.CONFIDENCE:.0f} % interval, corrected p")
    for name, (word, middle, low, high, p, wanted) in record["verdicts"].items():
        more = f", wants about {wanted} pairs more" if word == "UNSURE" else ""
        print(f"{word:7} {name:42} {100 * middle:+6.2f} % [{100 * low:+.2f}, {100 * high:+.2f}] p {p:.1e}{more}")
    for name, why in record["refused"].items():
        print(f"REFUSED {name}: {why}")
    if record["unwatched"]:
        print(f"UNCHECKED: clocks and other processes: {record['unwatched']}")


def faults(record):
    """Why a run says nothing; none: it does."""
    found = list(record["spoiled"])
    found += [f"{name} was refused" for name in record["refused"]]
    if pairs_of(record) < verdict.LEAST_PAIRS:
        found.append(f"{pairs_of(record)} pairs in {record['seconds']:.0f} s are too few, "
                     f"at least {verdict.LEAST_PAIRS} are wanted")
    return found


def exit_status(record):
    if faults(record):
        print("INVALID: " + "; ".join(faults(record)))
        return 2
    words = [v[0] for v in record["verdicts"].values()]
    verdict_word = "FAIL" if "SLOWER" in words else "UNSURE" if "UNSURE" in words else "PASS"
    print(f"{verdict_word}: " + ", ".join(f"{words.count(w)} {w}" for w in ("SLOWER", "FASTER", "SAME", "UNSURE"))
          + (", clocks and other processes UNCHECKED" if record["unwatched"] else ""))
    return 1 if "SLOWER" in words else 0


def gate(base, head, seconds, json_path):
    """Exit status: 0, also where there is no GPU; 1 where a time is slower; 2 where the run says nothing."""
    try:
        with open(json_path, "w") if json_path else contextlib.nullcontext() as file:
            record = measured(base, head, seconds)
            if file:
                json.dump(record, file)
    except cuda.NoGpu as missing:
        print(f"UNCHECKED: timing needs an NVIDIA GPU: {missing}")
        return 0
    except (NoBundle, ours.Refused, OSError, RuntimeError, AttributeError) as error:  # the last: an NVML of other times
        print(f"INVALID: {error}")
        return 2
    if pairs_of(record) > 0:
        print_record(record)
    return exit_status(record)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--seconds", type=float, default=150, help="how long it may take in all (default: 150)")
    parser.add_argument("--json", help="write every sample to a file")
    args = parser.parse_args()
    return gate(args.base, args.head, args.seconds, args.json)


if __name__ == "__main__":
    sys.exit(main())
