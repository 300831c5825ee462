"""Exact counts, collected: {kernel: {(source, item, count): value}}, and which version of a tool each source speaks of.

Sources: `sim`, the simulated GPU (counts.c); `ptxas`, what nvcc made of each kernel for each GPU (archives that
ci/defs.bzl leaves beside the objects); `callgrind`, instructions of host code (host.c), those of the project's own
objects alone. A source that cannot be asked here is not among the versions, and `unchecked` says why."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import tarfile
import tempfile


class Failed(Exception):
    """The sentence says what could not be counted, and why."""


class Counts:
    def __init__(self):
        self.figures = {}
        self.versions = {}
        self.unchecked = {}

    def add(self, kernel, source, item, count, value):
        if (source, item, count) in self.figures.setdefault(kernel, {}):
            raise Failed(f"{kernel}: {source} {item} {count} is counted twice")
        self.figures[kernel][source, item, count] = value


def run(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise Failed(f"{command[0]}: exit status {done.returncode}: {said[-1]:.200}")
    return done.stdout


def lines_of(program, *arguments):
    lines = run(program, *arguments).splitlines()
    if not lines or not lines[0].strip():
        raise Failed(f"{' '.join((program, *arguments))}: prints nothing")
    return lines


def matched(pattern, line, program):
    """The parts of a line that a program printed."""
    found = re.fullmatch(pattern, line)
    if not found:
        raise Failed(f"{program}: prints a line that is not understood: {line!r:.100}")
    return found.groups()


# ---- the simulated GPU ----

def add_sim(counts, program, *problems):
    """Adds what all problems, or those that are named, ask of the simulated GPU."""
    version, *lines = lines_of(program, *problems)
    for line in lines:
        kernel, problem, count, value = matched(r"([\w+]+) (\S+) (\w+) ([0-9]{1,18})", line, program)
        counts.add(kernel, "sim", problem, count, int(value))
    counts.versions["sim"] = version


# ---- ptxas ----

def entry_name(demangled):
    """dq_kernel<bf16, shape<64> > of "void (anonymous namespace)::dq_kernel<bf16, shape<64> >(params)"."""
    name = re.sub(r"\(anonymous namespace\)::", "", demangled)
    return name[: name.rindex("(")].split(" ", 1)[-1].replace(" >", ">") if "<" in name else name.split("(")[0]


def demangled(names):
    return dict(zip(names, run("c++filt", *names).splitlines())) if names else {}


def code_bytes(folder, only_gpu):
    """{(GPU, mangled name): bytes} of the machine code of the cubins in a folder. An only one does not name its GPU."""
    sizes = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".cubin"):
            continue
        gpu = file.split(".")[-2].replace("compute_", "sm_") if file.count(".") > 1 else only_gpu
        table = run("readelf", "-SW", os.path.join(folder, file))
        for name, size in re.findall(r" \.text\.(\S+) +PROGBITS +\w+ \w+ (\w+)", table):
            sizes[gpu, name] = int(size, 16)
    return sizes


ENTRY = re.compile(r"Compiling entry function '(?P<name>\S+)' for '(?P<gpu>\w+)'")
FUNCTION = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(?P<stack>[0-9]+) bytes stack frame, (?P<stores>[0-9]+) bytes spill stores, "
                   r"(?P<loads>[0-9]+) bytes spill loads")
USED = re.compile(r"Used (?P<registers>[0-9]+) registers")
SHARED = re.compile(r"([0-9]+) bytes smem")


def ptxas_entries(text):
    """What ptxas says, line by line. What stands between two entries is the first one's: its own frame, registers, and
    the frames of functions that are compiled with it and are not inlined, which are added to its own."""
    entries = []
    for line in text.splitlines():
        if found := ENTRY.search(line):
            entries.append({**found.groupdict(), "functions": [], "frames": 0, "stack": 0, "stores": 0, "loads": 0})
        elif not entries and (FUNCTION.search(line) or FRAME.search(line) or USED.search(line)):
            raise Failed(f"ptxas speaks of a function before any kernel: {line.strip()!r:.100}")
        elif found := FUNCTION.search(line):
            entries[-1]["functions"].append(found[1])
        elif found := FRAME.search(line):
            entries[-1]["frames"] += 1
            for what, value in found.groupdict().items():
                entries[-1][what] += int(value)
        elif found := USED.search(line):
            shared = SHARED.search(line)
            entries[-1].update(registers=int(found["registers"]), shared=int(shared[1]) if shared else 0)
    for e in entries:
        if e["name"] not in e["functions"] or e["frames"] != len(e["functions"]) or "registers" not in e:
            raise Failed(f"ptxas does not say what {e['name']} takes on {e['gpu']}")
    if len(entries) != text.count("Compiling entry function"):
        raise Failed(f"ptxas compiled {text.count('Compiling entry function')} kernels, {len(entries)} are understood")
    return entries


def unpacked(archive, folder):
    """What ptxas says, and {(GPU, mangled name): bytes}."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        with open(os.path.join(folder, "ptxas.txt"), errors="replace") as text:
            said = text.read()
        return said, code_bytes(folder, next((found["gpu"] for found in ENTRY.finditer(said)), None))
    except (OSError, tarfile.TarError) as error:
        raise Failed(f"{archive}: {error}") from None


def add_ptxas(counts, archive):
    """Of //kernels:NAME_cuda_nvcc, or of a planted source by its own name."""
    rule = os.path.basename(os.path.dirname(archive))
    kernel = rule[:-len("_cuda_nvcc")] if rule.endswith("_cuda_nvcc") else os.path.basename(archive).split(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        text, sizes = unpacked(archive, folder)
    try:
        entries = ptxas_entries(text)
    except Failed as sentence:
        raise Failed(f"{archive}: {sentence}") from None
    if not entries:
        raise Failed(f"{archive}: ptxas says nothing of a kernel")
    names = demangled([e["name"] for e in entries])
    for e in entries:
        if (e["gpu"], e["name"]) not in sizes:
            raise Failed(f"{archive}: there is no machine code of {e['name']} for {e['gpu']}")
        item = f"{e['gpu']} {entry_name(names[e['name']])}"
        for count, value in [("registers", e["registers"]), ("stack_bytes", e["stack"]),
                             ("spill_store_bytes", e["stores"]), ("spill_load_bytes", e["loads"]),
                             ("shared_bytes", e["shared"]), ("code_bytes", sizes[e["gpu"], e["name"]])]:
            counts.add(kernel, "ptxas", item, count, value)


# ---- callgrind ----

def own_instructions(text, program):
    """Sum of the self cost of what lies in `program` itself: not the C library, whose routines each processor has its
    own of. In callgrind's format a line `calls=` is followed by one of inclusive cost, which is not self cost."""
    objects, here, total, inclusive = {}, None, 0, False
    for line in text.splitlines():
        if found := re.match(r"c?ob=\((\d+)\)(?: (.*))?", line):
            if found[2]:
                objects[found[1]] = os.path.realpath(found[2])
            if line.startswith("ob="):
                here = objects[found[1]]
        elif line.startswith("calls="):
            inclusive = True
        elif re.match(r"[+\-*\d]", line) and not inclusive:
            total += int(line.split()[1]) if here == os.path.realpath(program) else 0
        elif re.match(r"[+\-*\d]", line):
            inclusive = False
    return total


def instructions(program, workload):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        run("valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured",
            f"--callgrind-out-file={out}", program, workload)
        try:
            with open(out, errors="replace") as text:
                total = own_instructions(text.read(), program)
        except OSError as error:
            raise Failed(f"{workload}: callgrind wrote nothing: {error.strerror}") from None
    if total == 0:
        raise Failed(f"{workload}: callgrind saw nothing of it")
    return total


def add_callgrind(counts, program):
    if shutil.which("valgrind") is None:
        counts.unchecked["callgrind"] = "there is no valgrind"
        return
    counts.versions["callgrind"] = lines_of(program, "--version")[0]
    for line in lines_of(program, "--list"):
        workload, units = matched(r"(\w+) ([1-9][0-9]{0,17})", line, program)
        total = instructions(program, workload)
        counts.add("host", "callgrind", workload, "instructions", total)
        counts.add("host", "callgrind", workload, "instructions_per_unit", -(-total // int(units)))


def collect(sim, host, nvcc_version, archives):
    counts = Counts()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for counted in [pool.submit(add_sim, counts, sim), pool.submit(add_callgrind, counts, host)]:
            counted.result()
    if nvcc_version:
        counts.versions["ptxas"] = nvcc_version
        for archive in archives:
            add_ptxas(counts, archive)
    else:
        counts.unchecked["ptxas"] = "there is no nvcc"
    return counts
