"""Exact counts, collected: {kernel: {(source, item, count): value}}, and which version of a tool each source speaks of.

Sources: `sim`, the simulated GPU (counts.c); `ptxas`, what each kernel takes of a GPU, and `sass`, its instructions
there (archives of machine.py, from what ci/defs.bzl leaves beside the objects); `callgrind`, instructions of host code
(host.c), those of the project's own objects alone; `calls`, what that asks of the C library and of threads; `cuda`,
what launches ask of the CUDA runtime (launches.c). A source that cannot be asked here is not among the versions, and
`unchecked` says why."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import tarfile
import tempfile


SM_REGISTERS = 65536
MOST_CTAS = (32, 2048)  # of an SM, as many threads


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


def unpacked(archive):
    """What machine.py wrote: ptxas' words, {kernel: threads}, and lines of instructions, or None without nvdisasm."""
    try:
        with tarfile.open(archive) as tar:
            texts = {file.name: tar.extractfile(file).read().decode(errors="replace") for file in tar}
    except (OSError, tarfile.TarError) as error:
        raise Failed(f"{archive}: {error}") from None
    if "ptxas.txt" not in texts:
        raise Failed(f"{archive}: ptxas says nothing")
    threads = dict(line.split() for line in texts.get("threads.txt", "").splitlines())
    return texts["ptxas.txt"], {kernel: int(n) for kernel, n in threads.items()}, texts.get("sass.txt")


def ctas_by_registers(registers, threads):
    """How many fit on an SM, which gives a warp registers by 256."""
    warps = -(-threads // 32)
    return min(MOST_CTAS[0], MOST_CTAS[1] // threads, SM_REGISTERS // (warps * -(-32 * registers // 256) * 256))


def add_sass(counts, kernel, archive, text, names):
    counted = set()
    for line in text.splitlines():
        gpu, name, region, what, value = matched(r"(\w+) (\S+) (\w+) (\w+) ([0-9]{1,18})", line, archive)
        if name not in names:
            raise Failed(f"{archive}: there are instructions of {name}, of which ptxas does not speak")
        counts.add(kernel, "sass", f"{gpu} {entry_name(names[name])} {region}", what, int(value))
        counted.add(name)
    if lost := sorted(set(names) - counted):
        raise Failed(f"{archive}: there are no instructions of {lost[0]}")


def add_machine(counts, archive):
    """Of machine/NAME.tar, NAME a kernel's."""
    kernel = os.path.basename(archive).split(".")[0]
    text, threads, sass = unpacked(archive)
    try:
        entries = ptxas_entries(text)
    except Failed as sentence:
        raise Failed(f"{archive}: {sentence}") from None
    if not entries:
        raise Failed(f"{archive}: ptxas says nothing of a kernel")
    names = demangled([e["name"] for e in entries])
    if sass is not None:
        add_sass(counts, kernel, archive, sass, names)
    for e in entries:
        item = f"{e['gpu']} {entry_name(names[e['name']])}"
        for count, value in [("registers", e["registers"]), ("stack_bytes", e["stack"]),
                             ("spill_store_bytes", e["stores"]), ("spill_load_bytes", e["loads"]),
                             ("shared_bytes", e["shared"])]:
            counts.add(kernel, "ptxas", item, count, value)
        if e["name"] in threads:
            ctas = ctas_by_registers(e["registers"], threads[e["name"]])
            counts.add(kernel, "ptxas", item, "ctas_by_registers", ctas)


# ---- host code ----

def named(line, names):
    """What `(id) name` or `(id)` of a line of callgrind's stands for."""
    found = re.match(r"\w+=\((\d+)\)(?: (.*))?", line)
    if found[2]:
        names[found[1]] = found[2]
    return names[found[1]]


def own_instructions(text, program):
    """Sum of the self cost of what lies in `program` itself: not the C library, whose routines each processor has its
    own of, nor what counts calls (wrapped.c). In callgrind's format a line `calls=` is followed by one of inclusive
    cost, which is not self cost."""
    program = os.path.realpath(program)
    objects, functions, here, function, total, inclusive = {}, {}, None, "", 0, False
    for line in text.splitlines():
        if re.match(r"c?ob=", line):
            at = os.path.realpath(named(line, objects))
            here = at if line.startswith("ob=") else here
        elif re.match(r"c?fn=", line):
            name = named(line, functions)
            function = name if line.startswith("fn=") else function
        elif line.startswith("calls="):
            inclusive = True
        elif re.match(r"[+\-*\d]", line) and not inclusive:
            total += int(line.split()[1]) if here == program and not function.startswith("__wrap_") else 0
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


def workloads_of(program, names):
    """(name, units of work, threads) of all workloads, or of those that are named."""
    for line in lines_of(program, "--list"):
        name, units, threads = matched(r"(\w+) ([1-9][0-9]{0,17}) ([1-9])", line, program)
        if name in names or not names:
            yield name, int(units), int(threads)


def add_callgrind(counts, program, *names):
    """Of workloads of one thread: how several share the work is chance, but for what add_calls counts."""
    if shutil.which("valgrind") is None:
        counts.unchecked["callgrind"] = "there is no valgrind"
        return
    counts.versions["callgrind"] = lines_of(program, "--version")[0]
    for workload, units, threads in workloads_of(program, names):
        if threads > 1:
            continue
        total = instructions(program, workload)
        counts.add("host", "callgrind", workload, "instructions", total)
        counts.add("host", "callgrind", workload, "instructions_per_unit", -(-total // units))


def add_calls(counts, program, *names):
    counts.versions["calls"] = lines_of(program, "--version")[0]
    for workload, _, _ in workloads_of(program, names):
        for line in lines_of(program, "--calls", workload):
            count, value = matched(r"(\w+) ([0-9]{1,18})", line, program)
            counts.add("host", "calls", workload, count, int(value))


# ---- launches ----

def add_launches(counts, program, *problems):
    """Adds what the chip's launch path asks of CUDA on all problems, or those that are named."""
    for line in lines_of(program, *problems):
        kernel, problem, call, count, value = matched(r"([\w+]+) (\S+) (\w+) (\w+) ([0-9]{1,18})", line, program)
        counts.add(kernel, "cuda", f"{problem} {call}", count, int(value))


def say_versions(counts, nvcc_version, nvdisasm_version):
    for source in ("cuda", "ptxas"):
        if nvcc_version:
            counts.versions[source] = nvcc_version
        else:
            counts.unchecked[source] = "there is no nvcc"
    if nvcc_version and nvdisasm_version:
        counts.versions["sass"] = f"{nvcc_version}, nvdisasm {nvdisasm_version}"
    else:
        counts.unchecked["sass"] = "there is no nvdisasm" if nvcc_version else "there is no nvcc"


def collect(sim, host, launches, nvcc_version, nvdisasm_version, archives):
    counts = Counts()
    say_versions(counts, nvcc_version, nvdisasm_version)
    asked = [(add_sim, sim), (add_callgrind, host), (add_calls, host)]
    asked += [(add_launches, launches)] if launches else []
    asked += [(add_machine, archive) for archive in archives]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for counted in [pool.submit(add, counts, of) for add, of in asked]:
            counted.result()
    return counts
