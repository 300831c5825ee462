"""Times of two GPU bundles on one GPU: calls of both, pair by pair in random order, and a verdict for each
configuration. Part of the bundle; needs a GPU, and of Python its standard library.

    times.py --base BUNDLE --head BUNDLE [--seconds 150] [--json FILE]

A bundle is gpu_bundle.tar or a folder of what is in it. Both libraries live in this process, on the same buffers."""

import argparse
import json
import math
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time

import cuda
import measure
import nvml
import ours
import verdict

ROUNDS = 30       # before the first look; then as many again
MOST_LOOKS = 4
SHAPES = [(16384 // seqlen, 2048 // head_dim, seqlen, seqlen, head_dim, causal)
          for head_dim in (64, 128) for causal in (False, True) for seqlen in (512, 2048, 8192)]


def name_of(shape, direction):
    return f"{direction} head_dim {shape[4]} seqlen {shape[3]} {'causal' if shape[5] else 'full'}"


def library_of(bundle, folder, side):
    """libbench.so of a bundle, as a file of its own: the loader takes one file twice for one library."""
    out = os.path.join(folder, f"libbench_{side}.so")
    if os.path.isdir(bundle):
        shutil.copy(os.path.join(bundle, "bin", "libbench.so"), out)
        return ours.Library(out)
    with tarfile.open(bundle) as tar, open(out, "wb") as file:
        shutil.copyfileobj(tar.extractfile("gpu_bundle/bin/libbench.so"), file)
    return ours.Library(out)


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


def take_pairs(bench, calls, samples, rounds, watch, rng):
    """`rounds` pairs of every configuration, configurations and sides in an order drawn anew each round."""
    for _ in range(rounds):
        order = list(calls)
        rng.shuffle(order)
        for name in order:
            sides = ["base", "head"]
            rng.shuffle(sides)
            calls[name]["before"]()
            times = {side: bench.sample_ms(calls[name][side]) for side in sides}
            samples[name].append((times["base"], times["head"]))
        watch.look()


def differences(samples):
    return {name: [math.log(head / base) for base, head in pairs] for name, pairs in samples.items()}


def measured(base, head, seconds, seed):
    """A record: every pair, what was observed, the verdicts."""
    begin, rng, watch = time.monotonic(), random.Random(seed), nvml.Watch()
    gpu = cuda.Cuda()
    with tempfile.TemporaryDirectory() as folder:
        libraries = {"base": library_of(base, folder, "base"), "head": library_of(head, folder, "head")}
        bench = measure.Bench(gpu, libraries["head"], "bf16", SHAPES, with_torch=False)
        calls, refused = {}, {}
        for shape in SHAPES:
            for direction in ours.RESULTS:
                try:
                    call = {side: Call(bench, library, shape, direction) for side, library in libraries.items()}
                    forward = direction == "forward"
                    call["before"] = nothing if forward else calls[name_of(shape, "forward")]["head"]  # o, lse
                    calls[name_of(shape, direction)] = call
                except ours.Refused as sentence:
                    refused[name_of(shape, direction)] = str(sentence)
        samples = {name: [] for name in calls}
        take_pairs(bench, calls, {name: [] for name in calls}, measure.WARM_UP, watch, rng)
        looks = 0
        for _ in range(MOST_LOOKS):
            took = time.monotonic()
            take_pairs(bench, calls, samples, ROUNDS, watch, rng)
            took, looks = time.monotonic() - took, looks + 1
            verdicts = verdict.judge(differences(samples), MOST_LOOKS)
            if all(v[0] != "UNSURE" for v in verdicts.values()) or time.monotonic() - begin + took > seconds:
                break
        return {"gpu": gpu.name(), "driver": gpu.driver_version(), "seconds": time.monotonic() - begin, "looks": looks,
                "samples_ms": samples, "refused": refused, "clocks_mhz": watch.clocks, "spoiled": watch.spoiled(),
                "unwatched": watch.why, "verdicts": verdicts, "aggregate": verdict.aggregate(differences(samples))}


def print_record(record):
    pairs = min(len(p) for p in record["samples_ms"].values())
    clocks = record["clocks_mhz"]
    print(f"{record['gpu']}, CUDA {record['driver']}: {pairs} pairs of each configuration, {record['seconds']:.0f} s"
          + (f", SM clock {min(clocks)} to {max(clocks)} MHz" if clocks else f"; UNCHECKED: {record['unwatched']}"))
    print("effect: head's time / base's - 1, its 99 % interval, corrected p")
    for name, (word, middle, low, high, p, wanted) in record["verdicts"].items():
        more = f", wants about {wanted} pairs" if word == "UNSURE" else ""
        print(f"{word:7} {name:42} {100 * middle:+6.2f} % [{100 * low:+.2f}, {100 * high:+.2f}] p {p:.1e}{more}")
    for name, why in record["refused"].items():
        print(f"REFUSED {name}: {why}")
    middle, low, high = record["aggregate"]
    print(f"all     geometric mean {100 * middle:+.2f} % [{100 * low:+.2f}, {100 * high:+.2f}]")


def exit_status(record):
    words = [v[0] for v in record["verdicts"].values()]
    if record["spoiled"]:
        print("INVALID: " + "; ".join(record["spoiled"]))
        return 2
    if record["refused"]:
        print("INVALID: a configuration was refused")
        return 2
    print(("FAIL" if "SLOWER" in words else "PASS") + ": " +
          ", ".join(f"{words.count(w)} {w}" for w in ("SLOWER", "FASTER", "SAME", "UNSURE")))
    return 1 if "SLOWER" in words else 0


def gate(base, head, seconds, seed, json_path):
    try:
        record = measured(base, head, seconds, seed)
    except cuda.NoGpu as missing:
        print(f"UNCHECKED: timing needs an NVIDIA GPU: {missing}")
        return 0
    if json_path:
        with open(json_path, "w") as file:
            json.dump(record, file)
    print_record(record)
    return exit_status(record)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--seconds", type=float, default=150, help="how long it may take in all (default: 150)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: 1)")
    parser.add_argument("--json", help="write every sample to a file")
    args = parser.parse_args()
    return gate(args.base, args.head, args.seconds, args.seed, args.json)


if __name__ == "__main__":
    sys.exit(main())
