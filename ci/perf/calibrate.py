#!/usr/bin/env -S python3 -B
"""How often the timing gate cries wolf, and what it finds: estimated from recorded runs of one bundle beside itself.

    calibrate.py record BUNDLE [--runs 10] [--out FOLDER]   # A/A runs, a process each; needs a GPU
    calibrate.py estimate [FILE...] [--trials 4800]         # from the files, or from those in recorded/

A recorded run has PAIRS pairs of each configuration, four times what the gate begins with. A resampled run is drawn
from one recorded run, so that what a process does to its libraries as a whole (where they lie in memory) stays in it, in
blocks of BLOCK rounds, so that what drifts stays, too; then the gate decides as it does on a GPU, early looks included.
"""

import argparse
import glob
import hashlib
import json
import lzma
import math
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "bench")]

import times
import verdict

RECORDED = sorted(glob.glob(os.path.join(HERE, "recorded", "*")))
BLOCK = 10         # rounds
SLOWDOWN = 0.03
UNIT = 1e-5        # of ln(head / base), in files
PAIRS = 120        # of a recorded run


# ---- recording ----

def record_one(bundle, seed, path):
    """PAIRS pairs, whatever they say, of which the differences alone are kept."""
    def take_all(more, is_time_left, tables_of):
        more(PAIRS)
        return {}, 1

    record = times.measured(bundle, bundle, math.inf, seed, take_all)
    spoiled = times.faults(record)
    if spoiled:
        print("INVALID: " + "; ".join(spoiled))
        return 2
    differences = {name: [round(d / UNIT) for d in values]
                   for name, values in times.differences(record["samples_ms"]).items()}
    kept = {key: record[key] for key in ("gpu", "driver", "date", "seconds")}
    kept.update(start=digest(machine_start()), unit=digest(record["uuid"]))
    kept["clocks_mhz"] = [min(record["clocks_mhz"], default=None), max(record["clocks_mhz"], default=None)]
    with open(path, "w") as file:
        json.dump({**kept, "differences": differences}, file)
    return 0


def digest(text):
    """To tell machines and GPUs apart without naming them."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine_start():
    """The same for all runs since this machine, or container, began."""
    with open("/proc/sys/kernel/random/boot_id") as boot, open("/proc/1/stat") as first:
        return f"{boot.read().strip()} {first.read().rsplit(')')[-1].split()[19]}"


def record(bundle, runs, out):
    os.makedirs(out, exist_ok=True)
    first = random.SystemRandom().randrange(1 << 30)
    for n in range(runs):
        path = os.path.join(out, f"aa-{first}-{n}.json")
        status = subprocess.run([sys.executable, "-B", os.path.realpath(__file__), "one", bundle, "--seed",
                                 str(first + n), "--out", path], check=False).returncode
        print(f"{path}: {'recorded' if status == 0 else 'nothing'}", flush=True)
    return 0


# ---- estimating ----

def read(path):
    with (lzma.open(path, "rt") if path.endswith(".xz") else open(path)) as file:
        runs = json.load(file)
    return runs if isinstance(runs, list) else [runs]


def resampled(run, rng, slower=None):
    """`more` of verdict.decide: pairs drawn from a recorded run; those of `slower` by SLOWDOWN."""
    names = list(run["differences"])
    rounds = min(len(values) for values in run["differences"].values())
    samples = {name: [] for name in names}

    def more(count):
        for _ in range(count // BLOCK):
            first = rng.randrange(rounds)
            for name in names:
                shift = math.log1p(SLOWDOWN) if name == slower else 0
                values = run["differences"][name]
                samples[name] += [values[(first + i) % rounds] * UNIT + shift for i in range(BLOCK)]
        return samples
    return more


def upper_limit(hits, trials, confidence=0.95):
    """Of a probability that was seen `hits` times in `trials`: Clopper and Pearson, one side."""
    if hits == trials:
        return 1.0

    def at_most(p):  # the probability of no more than `hits`
        return sum(math.exp(math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
                            + k * math.log(p) + (trials - k) * math.log1p(-p)) for k in range(hits + 1))
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 1 - confidence else (low, middle)
    return high


def alarms(verdicts):
    return [name for name, v in verdicts.items() if v[0] in ("SLOWER", "FASTER")]


def judged(run):
    """A recorded run as it is, all pairs at once."""
    samples = {name: [d * UNIT for d in values] for name, values in run["differences"].items()}
    tables = times.tables_of(samples)
    return verdict.judge({**samples, **tables}, 1, tables)


def always():
    return True


def estimate(runs, trials, seed=1):
    """What is published, as a dictionary."""
    rng = random.Random(seed)
    names = list(runs[0]["differences"])

    def decided(slower=None):
        return verdict.decide(resampled(rng.choice(runs), rng, slower), always, times.tables_of)

    false = sum(bool(alarms(decided()[0])) for _ in range(trials))
    own = sum(bool(alarms(judged(run))) for run in runs)
    found, looks = {}, 0
    for name in names:
        verdicts = [decided(name) for _ in range(trials // len(names))]
        found[name] = sum(v[name][0] == "SLOWER" for v, _ in verdicts) / len(verdicts)
        looks += sum(n for _, n in verdicts) / len(verdicts) / len(names)
    return {"runs": len(runs), "minutes": sum(run["seconds"] for run in runs) / 60,
            "starts": len({run["start"] for run in runs}), "units": len({run["unit"] for run in runs}),
            "alarmed_runs": own, "alarmed_runs_limit": upper_limit(own, len(runs)), "trials": trials,
            "false_alarms": false, "false_alarm_limit": upper_limit(false, trials), "found": found, "looks": looks}


def print_estimate(e):
    worst = min(e["found"], key=e["found"].get)
    mean = sum(e["found"].values()) / len(e["found"])
    print(f"{e['runs']} recorded A/A runs of {e['minutes']:.1f} minutes in all, from {e['starts']} machine starts and "
          f"{e['units']} GPUs; {e['alarmed_runs']} of them give an alarm as they are, upper 95 % limit "
          f"{100 * e['alarmed_runs_limit']:.1f} %")
    print(f"false alarms: {e['false_alarms']} of {e['trials']} resampled runs, upper 95 % limit "
          f"{100 * e['false_alarm_limit']:.2f} %")
    print(f"a slowdown of {100 * SLOWDOWN:.0f} % in one configuration alone: found in "
          f"{100 * mean:.1f} % of {e['trials'] // len(e['found'])} resampled runs "
          f"each, least in {worst}: {100 * e['found'][worst]:.1f} %; {e['looks']:.2f} looks a run")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "one"):
        command = commands.add_parser(name)
        command.add_argument("bundle")
        command.add_argument("--out", default="recorded")
        command.add_argument(*(["--runs"] if name == "record" else ["--seed"]), type=int, default=10)
    command = commands.add_parser("estimate")
    command.add_argument("files", nargs="*", default=RECORDED)
    command.add_argument("--trials", type=int, default=4800)
    args = parser.parse_args()
    if args.command == "record":
        return record(args.bundle, args.runs, args.out)
    if args.command == "one":
        return record_one(args.bundle, args.seed, args.out)
    runs = [run for path in args.files for run in read(path)]
    if not runs or args.trials < len(runs[0]["differences"]):
        print("estimate wants recorded runs, and at least one trial for each configuration")
        return 2
    print_estimate(estimate(runs, args.trials))
    return 0


if __name__ == "__main__":
    sys.exit(main())
