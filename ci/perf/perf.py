#!/usr/bin/env -S python3 -B
"""The performance gate: counts that got worse or changed, or times of two commits on one GPU."""

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
import files
import history
import record
import times


def options():
    parser = argparse.ArgumentParser(prog="ci/run perf", description=__doc__)
    command = parser.add_mutually_exclusive_group()
    command.add_argument("--accept", metavar="REASON", help="make what is counted now the baselines, and log it")
    parser.add_argument("--gone", action="store_true", help="with --accept: also what is counted no more")
    command.add_argument("--page", metavar="FILE.html", help="draw the history")
    command.add_argument("--base", metavar="BUNDLE", help="time this GPU bundle ...")
    parser.add_argument("--head", metavar="BUNDLE", help="... beside this one, on this machine's GPU")
    parser.add_argument("--seconds", type=float, default=150, help="how long times may take (default: 150)")
    parser.add_argument("--json", metavar="FILE", help="write every sample of times to a file")
    parser.add_argument("--times", metavar="FILE", help="with --accept: count nothing, but log head's times of a file "
                        "that --json wrote; the commit that is logged is always the one checked out here")
    for name in ("sim", "host", "launches", "nvcc-version", "nvdisasm-version", "baselines", "history"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    parser.add_argument("--machine", help=argparse.SUPPRESS, nargs="*", default=[])
    return parser.parse_args()


def in_workspace(path):
    """Where a file lies in the sources, which `bazel run` names; a test's own copy otherwise."""
    return os.path.join(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."), path)


def user_path(path):
    """`bazel run` changes directories; paths are the user's."""
    return os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)


def git(*arguments):
    return subprocess.run(["git", "-C", in_workspace("."), *arguments], check=True, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout.strip()


def commit():
    """What is checked out; where files differ from it, what was measured is no commit yet, and that is said."""
    try:
        return git("rev-parse", "HEAD") + (" + changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def print_differences(result):
    for line in result.unchecked + result.broken:
        print(line)
    for line in result.better:
        print("better  " + line)
    for line in result.changed:
        print("CHANGED " + line)
    for line in result.worse:
        print("WORSE   " + line)


def print_comparison(result):
    print_differences(result)
    verdict = "PASS" if result.passes() else "FAIL"
    unchecked = f", {len(result.unchecked)} UNCHECKED: {'; '.join(sorted(result.missing))}" if result.unchecked else ""
    if result.better:
        print("What is better above is to be explained or accepted: it may be work that is no longer done.")
    print(f"{verdict}: {result.checked} counts, {len(result.worse)} worse, {len(result.changed)} changed, "
          f"{len(result.better)} better, {len(result.broken)} without a partner" + unchecked)


def entry_of(reason, gpu, driver, versions, figures):
    return {"commit": commit(), "date": datetime.date.today().isoformat(), "reason": reason, "gpu": gpu,
            "driver": driver, "versions": versions, "figures": figures}


def sentence_of(error):
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def count(args):
    return collect.collect(args.sim, args.host, args.launches, args.nvcc_version, args.nvdisasm_version, args.machine)


def accept_counts(args, folder, log):
    try:
        old, logged = baseline.read(folder), history.read(log)
        counts = count(args)
        print_differences(baseline.compare(counts, old))
        gone = baseline.gone(counts, old)
        if gone and not args.gone:
            print(f"--accept: {len(gone)} counts are gone or counted nothing, the first: {gone[0]}; where they should, "
                  "add --gone")
            return 2
        changed = history.changes(logged, counts.figures, counts.versions)
        entry = entry_of(args.accept, None, None, counts.versions, changed)
        files.replace({log: history.appended(log, entry), **baseline.accepted(folder, counts, old)})
    except (files.Malformed, collect.Failed, OSError) as error:
        print(f"--accept: {sentence_of(error)}")
        return 2
    print(f"accepted: {sum(len(f) for f in counts.figures.values())} counts in {folder}")
    return 0


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
    try:
        history.read(log)
        history.append(log, entry_of(reason, accepted["gpu"], accepted["driver"], {}, figures))
    except (files.Malformed, OSError) as error:
        print(f"--accept: {sentence_of(error)}")
        return 2
    print(f"accepted: {sum(len(f) for f in figures.values())} times of {accepted['gpu']} in {log}"
          + (f", clocks and other processes UNCHECKED: {accepted['unwatched']}" if accepted["unwatched"] else ""))
    return 0


def write_page(log, path):
    try:
        history.write_page(history.read(log), path)
    except (files.Malformed, OSError) as error:
        print(f"--page: {sentence_of(error)}")
        return 2
    return 0


def compare(args, folder, log):
    try:
        old = baseline.read(folder)
        history.read(log)
        counts = count(args)
    except (files.Malformed, collect.Failed, OSError) as error:
        print(f"FAIL: {sentence_of(error)}")
        return 1
    result = baseline.compare(counts, old)
    print_comparison(result)
    return 0 if result.passes() else 1


def main():
    args = options()
    if args.times is not None and args.accept is None:
        print("--times goes with --accept")
        return 2
    if args.gone and (args.accept is None or args.times is not None):
        print("--gone goes with --accept of counts")
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
    if args.page is not None:
        return write_page(log, user_path(args.page))
    if args.times is not None:
        return accept_times(user_path(args.times), log, args.accept)
    if args.accept is not None:
        return accept_counts(args, folder, log)
    return compare(args, folder, log)


if __name__ == "__main__":
    sys.exit(main())
