#!/usr/bin/env -S python3 -B
"""The performance gate: counts that got worse, or times of two commits on one GPU."""

import argparse
import datetime
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "bench")]

import baseline
import collect
import history
import record
import times


def options():
    parser = argparse.ArgumentParser(prog="ci/run perf", description=__doc__)
    command = parser.add_mutually_exclusive_group()
    command.add_argument("--accept", metavar="REASON", help="make what is counted now the baselines, and log it")
    command.add_argument("--page", metavar="FILE.html", help="draw the history")
    command.add_argument("--base", metavar="BUNDLE", help="time this GPU bundle ...")
    parser.add_argument("--head", metavar="BUNDLE", help="... beside this one, on this machine's GPU")
    parser.add_argument("--seconds", type=float, default=150, help="how long times may take (default: 150)")
    parser.add_argument("--json", metavar="FILE", help="write every sample of times to a file")
    parser.add_argument("--times", metavar="FILE", help="with --accept: count nothing, but log head's times of a file "
                        "that --json wrote; the commit that is logged is always the one checked out here")
    for name in ("sim", "host", "nvcc-version", "ptxas", "baselines", "history"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS, nargs="*" if name == "ptxas" else None)
    return parser.parse_args()


def in_workspace(path):
    """Where a file lies in the sources, which `bazel run` names; a test's own copy otherwise."""
    return os.path.join(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."), path)


def user_path(path):
    """`bazel run` changes directories; paths are the user's."""
    return os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)


def commit():
    try:
        return subprocess.run(["git", "-C", in_workspace("."), "rev-parse", "HEAD"], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def print_comparison(result):
    for line in result.unchecked + result.broken:
        print(line)
    for line in result.better:
        print("better  " + line)
    for line in result.worse:
        print("WORSE   " + line)
    verdict = "PASS" if result.passes() else "FAIL"
    unchecked = f", {len(result.unchecked)} UNCHECKED: {'; '.join(sorted(result.missing))}" if result.unchecked else ""
    print(f"{verdict}: {result.checked} counts, {len(result.worse)} worse, {len(result.better)} better, "
          f"{len(result.broken)} without a partner" + unchecked)


def entry_of(reason, gpu, driver, versions, figures):
    return {"commit": commit(), "date": datetime.date.today().isoformat(), "reason": reason, "gpu": gpu,
            "driver": driver, "versions": versions, "figures": figures}


def accept_counts(counts, folder, old, log, logged, reason):
    baseline.write(folder, counts, old)
    history.append(log, entry_of(reason, None, None, counts.versions, history.changes(logged, counts.figures)))
    print(f"accepted: {sum(len(f) for f in counts.figures.values())} counts in {folder}")


def accept_times(path, log, reason):
    try:
        accepted = record.read(path)
    except record.NoRecord as sentence:
        print(f"--times: {path}: {sentence}")
        return 2
    faults = times.faults(accepted)
    if faults:
        print(f"--times: {path}: the run is INVALID: {'; '.join(faults)}")
        return 2
    figures = record.figures(accepted)
    history.append(log, entry_of(reason, accepted["gpu"], accepted["driver"], {}, figures))
    print(f"accepted: {sum(len(f) for f in figures.values())} times of {accepted['gpu']} in {log}"
          + (f", clocks and other processes UNCHECKED: {accepted['unwatched']}" if accepted["unwatched"] else ""))
    return 0


def write_page(log, path):
    try:
        history.write_page(history.read(log), path)
    except (history.Malformed, OSError) as error:
        print(f"--page: {error}")
        return 2
    return 0


def main():
    args = options()
    if args.times is not None and args.accept is None:
        print("--times goes with --accept")
        return 2
    if args.base is not None or args.head is not None:
        if not (args.base and args.head):
            print("--base and --head go together, each with a bundle")
            return 2
        return times.gate(user_path(args.base), user_path(args.head), args.seconds,
                          user_path(args.json) if args.json else None)
    if args.json is not None:
        print("--json goes with --base and --head")
        return 2
    if args.accept is not None and not args.accept.strip():
        print("--accept wants a reason, in words")
        return 2
    folder, log = in_workspace(args.baselines), in_workspace(args.history)
    if args.page:
        return write_page(log, user_path(args.page))
    if args.times is not None:
        return accept_times(user_path(args.times), log, args.accept)
    try:
        old, logged = baseline.read(folder), history.read(log)
    except (baseline.Malformed, history.Malformed) as error:
        print(f"FAIL: {error}")
        return 1
    counts = collect.collect(args.sim, args.host, args.nvcc_version, args.ptxas)
    if args.accept is not None:
        accept_counts(counts, folder, old, log, logged, args.accept)
        return 0
    result = baseline.compare(counts, old)
    print_comparison(result)
    return 0 if result.passes() else 1


if __name__ == "__main__":
    sys.exit(main())
