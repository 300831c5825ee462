#!/usr/bin/env python3
"""Wrong kernels made by machine: is each rejected by the properties on the simulated GPU?

    bazel run //proptests:mutate -- --count 200 --seed 1

A mutant is one change on one line of a kernel or of a header that kernels share: an operator, a constant by one, an
index for another, a statement or a barrier left out. It is compiled as ci/defs.bzl says, linked with what calls it, and
has SECONDS of processor time to survive in; of a header, in each of a few kernels, until one is rejected. Mutants that
do not compile, or compile to the same machine code, or of which survivors.md explains that they are as good as the
kernel, are drawn again. Survivors are listed.
"""
import argparse
import concurrent.futures
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROW = re.compile(r"^KERNEL\((\w+), (\w+), ([\w/]+), \w+\)$", re.M)
INCLUDE = re.compile(r'^#include "kernels/([\w/]+\.h)"$', re.M)
CALL = re.compile(r"(?<!int )KERNEL_SYMBOL\((\w+)\)")
UNCHANGED = ("device/", "sim/", "shared/params.h")  # the judge has these structs as well


class Sources:
    """Which sources are changed, and which kernels are compiled to judge a change of one.

    A kernel's own file is judged by it, what it calls by it and the smallest of its callers. A header is judged by the
    kernels that include it, of each folder and pass the smallest, the smallest of all first."""

    def __init__(self, root):
        rows = ROW.findall((root / "kernels" / "kernels.inc").read_text())
        self.files, self.kinds = {}, {}
        for name, of_pass, file in rows:
            self.files[name], self.kinds[name] = f"{file}.cu", (file.split("/")[0], of_pass)
        self.text, self.reach = {}, {}
        for name, file in self.files.items():
            self.reach[name] = self.included(root, file, set())
        self.sizes = {name: sum(len(self.text[file]) for file in reach) for name, reach in self.reach.items()}
        self.callers = {}
        for name in sorted(self.files, key=self.sizes.get):
            for called in CALL.findall(self.text[self.files[name]]):
                if called != name:
                    self.callers.setdefault(called, name)
        self.judges = {file: self.judges_of(file) for file in sorted(self.text)}

    def included(self, root, file, seen):
        if file in seen or file.startswith(UNCHANGED):
            return seen
        self.text[file] = (root / "kernels" / file).read_text()
        seen.add(file)
        for header in INCLUDE.findall(self.text[file]):
            self.included(root, header, seen)
        return seen

    def judges_of(self, file):
        smallest = {}
        for name in sorted(self.files, key=self.sizes.get):
            if file in self.reach[name]:
                smallest.setdefault((self.kinds[name], name in self.callers), name)
        return list(smallest.values())


REPLACED = [
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
    (" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " * "), (" % ", " / "),
    (" += ", " -= "), (" += ", " = "), (" *= ", " = "), (" |= ", " = "), (" &= ", " = "),
    (" && ", " || "), (" || ", " && "), (" & ", " | "), (" | ", " & "), (" ^ ", " | "), (" << ", " >> "),
    (" >> ", " << "),
    ("!", ""), ("true", "false"), ("false", "true"), ("++", "--"), ("max_f32", "min_f32"), ("-infinity", "infinity"),
    ("LOG2_E", "1.0f"), ("LN_2", "1.0f"), ("0.0f", "1.0f"), ("1.0f", "0.0f"),
]
SWAPPED = [
    ("seqlen_q", "seqlen_k"), ("used_q", "used_k"), ("first_q", "first_k"), ("first", "last"), ("row", "key"),
    ("rows", "keys"), ("head_dim", "head_dim_v"), ("head", "head_kv"), ("low", "high"), ("batch", "head"),
]
LEFT_OUT = re.compile(r"^\s*(?!return|break|continue|using|const|static|else|case|default)[\w:]+(<[^;]*>)?"
                      r"(\[[^;]*\]|\.\w+|->\w+)*(\([^;]*\)| [-+*|&]?= [^;]*);$")
SKIPPED = re.compile(r"^\s*(#|template|extern|using|struct|namespace|enum \{|static_assert|//|KERNEL\(|\})")


# Of arrays in registers the simulated GPU knows no bounds.
CHECKED = ["-fsanitize=undefined", "-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error"]
EXPLAINED = pathlib.Path("proptests/kernel_mutants/survivors.md")


def code_end(line):
    """Where a comment begins."""
    at = line.find("/*")
    return len(line) if at < 0 else at


def changes(line):
    """All changed versions of a line."""
    end = code_end(line)
    code, rest = line[:end], line[end:]
    if SKIPPED.match(code) or not code.strip():
        return []
    out = []
    for old, new in REPLACED:
        for at in (m.start() for m in re.finditer(re.escape(old), code)):
            if old == "!" and code[at:at + 2] == "!=":
                continue
            out.append(code[:at] + new + code[at + len(old):])
    for number in re.finditer(r"(?<![\w.])\d+(?![\w.])", code):
        value = int(number.group())
        for other in {value + 1, value - 1} - {-1}:
            out.append(code[:number.start()] + str(other) + code[number.end():])
    for pair in SWAPPED:
        for old, new in (pair, pair[::-1]):
            for word in re.finditer(r"\b%s\b" % old, code):
                out.append(code[:word.start()] + new + code[word.end():])
    if LEFT_OUT.match(code.rstrip()):
        out.append(code[:len(code) - len(code.lstrip())] + ";")
    return [version + rest for version in out if version != code]


def code_lines(text):
    """Numbers of lines that are not inside a comment of several lines."""
    inside = False
    for number, line in enumerate(text):
        if not inside and not line.lstrip().startswith("/*"):
            yield number
        if "/*" in line:
            inside = True
        if "*/" in line:
            inside = False


def explained(text):
    """(file, line, changed line) of each change that survivors.md calls as good as the kernel."""
    return set(re.findall(r"^```diff\n(\S+)\n- (.*)\n\+ (.*)\n```", text, re.MULTILINE))


class Workshop:
    """Compiles mutants and has them judged."""

    def __init__(self, root, judge, flags, seconds, folder):
        self.root, self.judge, self.flags, self.seconds, self.folder = root, judge, flags, seconds, folder
        self.sources = Sources(root)
        self.text = {name: text.split("\n") for name, text in self.sources.text.items()}
        self.plain_code, self.most = {}, {}

    def compile(self, kernel, include, out):
        """Whether it compiles; a header in `include` stands for that of the root."""
        command = ["g++", "-x", "c++", *self.flags, *CHECKED, "-w", "-fPIC", f"-I{include}", f"-I{self.root}", "-c",
                   f"kernels/{self.sources.files[kernel]}", "-o", str(out)]
        folder = include if (include / "kernels" / self.sources.files[kernel]).exists() else self.root
        return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0

    def plain_object(self, kernel):
        return self.folder / f"{kernel}.o"

    def compile_plain(self, kernel):
        if not self.compile(kernel, self.root, self.plain_object(kernel)):
            sys.exit(f"kernels/{self.sources.files[kernel]} does not compile")
        self.plain_code[kernel] = self.machine_code(self.plain_object(kernel))

    def machine_code(self, object_file):
        stripped = object_file.with_suffix(".stripped")
        subprocess.run(["objcopy", "--strip-debug", str(object_file), str(stripped)], check=True)
        return stripped.read_bytes()

    def judged(self, folder, objects, seconds, most):
        """What the judge says of a library of these objects, its status (0 rejected, 1 survives) and what it took."""
        library = folder / "mutant.so"
        subprocess.run(["g++", "-shared", "-Wl,-Bsymbolic", "-o", str(library), *map(str, objects)], check=True)
        judge = subprocess.Popen([str(self.judge), str(library), str(seconds), str(most)], stdout=subprocess.PIPE)
        said = judge.stdout.read().decode().strip()
        _, status, usage = os.wait4(judge.pid, 0)
        judge.returncode = os.waitstatus_to_exitcode(status)
        if judge.returncode not in (0, 1):
            sys.exit(f"{self.judge}: {judge.returncode} {said}")
        return judge.returncode, said, usage.ru_utime + usage.ru_stime

    def with_caller(self, kernel, object_file):
        callers = self.sources.callers
        return [object_file, *([self.plain_object(callers[kernel])] if kernel in callers else [])]

    def check_plain(self, kernel):
        """What rejects a kernel as it is would reject every mutant: a round. A mutant has four times as long for it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            objects = self.with_caller(kernel, self.plain_object(kernel))
            status, said, took = self.judged(pathlib.Path(folder), objects, 0, 0)
        if status == 0:
            sys.exit(f"{kernel} as it is: {said}")
        self.most[kernel] = math.ceil(4 * took + 10)
        return took

    def try_mutant(self, name, line, changed):
        """(status, what was said): status 0 rejected, 1 survives, None to be drawn again."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            mutant = pathlib.Path(folder)
            tree = mutant / "kernels"
            (tree / name).parent.mkdir(parents=True)
            text = list(self.text[name])
            text[line] = changed
            (tree / name).write_text("\n".join(text))
            status, said = None, "the same machine code"
            for kernel in self.sources.judges[name]:
                out = mutant / f"{kernel}.o"
                if not self.compile(kernel, mutant, out):
                    return None, "does not compile"
                if self.machine_code(out) == self.plain_code[kernel]:
                    continue
                status, said, _ = self.judged(mutant, self.with_caller(kernel, out), self.seconds, self.most[kernel])
                if status == 0:
                    break
            return status, said


def candidates(text, chance):
    """One change of every line that has any, in random order."""
    out = []
    for name in sorted(text):
        for line in code_lines(text[name]):
            versions = changes(text[name][line])
            if versions:
                out.append((name, line, chance.choice(versions)))
    chance.shuffle(out)
    return out


def judged(workshop, equal, name, line, changed):
    if (name, workshop.text[name][line].strip(), changed.strip()) in equal:
        return None, "as good as the kernel"
    return workshop.try_mutant(name, line, changed)


def print_mutant(workshop, name, line, changed, said):
    print(f"{name}:{line + 1}: {said}\n    - {workshop.text[name][line].strip()}\n    + {changed.strip()}", flush=True)


def chosen(text, only):
    if only is None:
        return text
    names = only.split(",")
    for name in names:
        if name not in text:
            sys.exit(f"--only {name}: must be among {', '.join(sorted(text))}")
    return {name: text[name] for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--seconds", type=float, default=30, help="of processor time, to survive in (30)")
    parser.add_argument("--least", type=float, default=95, help="percent that must be rejected (95)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at once (one a core)")
    parser.add_argument("--only", help="sources that are changed, with commas between (all)")
    parser.add_argument("--judge", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--flags", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    root = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        flags = options.flags.split(",")
        workshop = Workshop(root, options.judge.resolve(), flags, options.seconds, pathlib.Path(folder))
        text = chosen(workshop.text, options.only)
        drawn = candidates(text, random.Random(options.seed))
        equal = explained(EXPLAINED.read_text())
        killed, survivors, left_out = 0, [], {}
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            judges = sorted({kernel for name in text for kernel in workshop.sources.judges[name]})
            callers = {workshop.sources.callers[kernel] for kernel in judges if kernel in workshop.sources.callers}
            list(pool.map(workshop.compile_plain, sorted({*judges, *callers})))
            rounds = dict(zip(judges, pool.map(workshop.check_plain, judges)))
            worst = max(sum(rounds[kernel] for kernel in workshop.sources.judges[name]) for name in text)
            print(f"a round of each kernel passes; {options.count} mutants take "
                  f"{options.count * worst / options.jobs / 3600:.1f} hours if all survive", flush=True)
            place = 0
            while killed + len(survivors) < options.count and place < len(drawn):
                batch = drawn[place:place + options.count - killed - len(survivors)]
                place += len(batch)
                results = pool.map(lambda c: judged(workshop, equal, *c), batch)
                for (name, line, changed), (status, said) in zip(batch, results):
                    if status is None:
                        left_out[said] = left_out.get(said, 0) + 1
                        continue
                    print_mutant(workshop, name, line, changed, said)
                    if status == 0:
                        killed += 1
                    else:
                        survivors.append((name, line, changed))
    count = killed + len(survivors)
    print("\nsurvivors:" if survivors else "\nno survivors")
    for name, line, changed in survivors:
        print_mutant(workshop, name, line, changed, "SURVIVES")
    for why, times in sorted(left_out.items()):
        print(f"{times} more: {why}")
    print(f"killed {killed} of {count}")
    sys.exit(count < options.count or 100 * killed < options.least * count)


if __name__ == "__main__":
    main()
