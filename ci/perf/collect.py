"""Exact counts, collected: {kernel: {(source, item, count): value}}, and which version of a tool each source speaks of.

Sources: `sim`, the simulated GPU (counts.c); `ptxas`, what nvcc made of each kernel for each GPU (archives that
ci/defs.bzl leaves beside the objects); `callgrind`, instructions of host code (host.c), those of the project's own
objects alone. A source that cannot be asked here is not among the versions, and `unchecked` says why."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile


class Counts:
    def __init__(self):
        self.figures = {}
        self.versions = {}
        self.unchecked = {}

    def add(self, kernel, source, item, count, value):
        if (source, item, count) in self.figures.setdefault(kernel, {}):
            raise SystemExit(f"{kernel}: {source} {item} {count} is counted twice")
        self.figures[kernel][source, item, count] = value


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


# ---- the simulated GPU ----

def add_sim(counts, program):
    lines = run(program).splitlines()
    counts.versions["sim"] = lines[0]
    for line in lines[1:]:
        kernel, problem, count, value = line.split()
        counts.add(kernel, "sim", problem, count, int(value))


# ---- ptxas ----

def entry_name(demangled):
    """dq_kernel<bf16, shape<64> > of "void (anonymous namespace)::dq_kernel<bf16, shape<64> >(params)"."""
    name = re.sub(r"\(anonymous namespace\)::", "", demangled)
    return name[: name.rindex("(")].split(" ", 1)[-1].replace(" >", ">") if "<" in name else name.split("(")[0]


def demangled(names):
    return dict(zip(names, run("c++filt", *names).splitlines())) if names else {}


def code_bytes(folder):
    """{(GPU, mangled name): bytes} of the machine code of the cubins in a folder."""
    sizes = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".cubin"):
            continue
        gpu = file.split(".")[-2].replace("compute_", "sm_")
        table = run("readelf", "-SW", os.path.join(folder, file), stderr=subprocess.DEVNULL)
        for name, size in re.findall(r" \.text\.(\S+) +PROGBITS +\w+ \w+ (\w+)", table):
            sizes[gpu, name] = int(size, 16)
    return sizes


ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<gpu>\w+)'\n"
    r".*Function properties for \S+\n"
    r" +(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers(?P<rest>.*)")


def add_ptxas(counts, archive):
    kernel = os.path.basename(archive).split(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        with open(os.path.join(folder, "ptxas.txt")) as text:
            entries = list(ENTRY.finditer(text.read()))
        sizes = code_bytes(folder)
    if not entries:
        raise SystemExit(f"{archive}: ptxas says nothing of a kernel")
    names = demangled([e["name"] for e in entries])
    for e in entries:
        shared = re.search(r"(\d+) bytes smem", e["rest"])
        item = f"{e['gpu']} {entry_name(names[e['name']])}"
        for count, value in [("registers", e["registers"]), ("stack_bytes", e["stack"]),
                             ("spill_store_bytes", e["stores"]), ("spill_load_bytes", e["loads"]),
                             ("shared_bytes", shared[1] if shared else 0),
                             ("code_bytes", sizes[e["gpu"], e["name"]])]:
            counts.add(kernel, "ptxas", item, count, int(value))


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


def add_callgrind(counts, program):
    if shutil.which("valgrind") is None:
        counts.unchecked["callgrind"] = "there is no valgrind"
        return
    counts.versions["callgrind"] = run(program, "--version").strip()
    for line in run(program, "--list").splitlines():
        workload, units = line.split()
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out")
            run("valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured",
                f"--callgrind-out-file={out}", program, workload, stderr=subprocess.DEVNULL)
            with open(out) as text:
                total = own_instructions(text.read(), program)
        if total == 0:
            raise SystemExit(f"{workload}: callgrind saw nothing of it")
        counts.add("host", "callgrind", workload, "instructions", total)
        counts.add("host", "callgrind", workload, "instructions_per_unit", -(-total // int(units)))


def collect(sim, host, nvcc_version, archives):
    counts = Counts()
    add_sim(counts, sim)
    add_callgrind(counts, host)
    if nvcc_version:
        counts.versions["ptxas"] = nvcc_version
        for archive in archives:
            add_ptxas(counts, archive)
    else:
        counts.unchecked["ptxas"] = "there is no nvcc"
    return counts
