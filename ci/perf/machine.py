#!/usr/bin/env -S python3 -B
"""machine.py ARCHIVE OUTPUT --ptxas PTXAS --nvdisasm NVDISASM: what nvcc made of a kernel, as the gate counts it.

ARCHIVE is what ci/defs.bzl leaves beside an object: what ptxas said, machine code, PTX. OUTPUT has

  ptxas.txt    that, and what ptxas says of the PTX for sm_80 where nvcc made no machine code for it
  threads.txt  lines of a mangled kernel and the threads that its launch bounds allow a CTA
  sass.txt     with nvdisasm: lines of GPU, mangled kernel, region, class, instructions

Regions: `kernel` is all of it; `tensor_loops` are loops with tensor-core instructions of their own, without the loops
inside them; `inner_loops` are those of the latter that have none, or, where nothing is for tensor cores, all innermost
loops. Instructions of tensor_loops are those of a million (2^20) multiply-adds of the same loops, rounded up, so that a
loop that is unrolled once more counts the same; elsewhere each that stands there counts once."""

import argparse
import collections
import os
import re
import subprocess
import sys
import tarfile
import tempfile

# Opcodes up to the first dot, and the class that they count in; what is in none is `other`.
CLASSES = {
    "ffma": "FFMA FFMA32I",
    "fp32": "FADD FADD32I FMUL FMUL32I FMNMX FSEL FSET FSETP FCHK FSWZADD",
    "mufu": "MUFU",
    "imad": "IMAD UIMAD IMUL",
    "integer": "IADD IADD3 UIADD3 LEA ULEA LOP LOP3 ULOP3 PLOP3 UPLOP3 SHF USHF SHL SHR ISETP UISETP IMNMX IABS BMSK "
               "UBMSK POPC UPOPC FLO UFLO BREV UBREV SGXT USGXT VIMNMX VIADD VIADDMNMX ICMP IDP",
    "move": "MOV MOV32I UMOV SEL USEL PRMT UPRMT R2UR R2P P2R CS2R S2R S2UR",
    "convert": "F2F F2FP F2I I2F I2FP I2I FRND HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HSETP2",
    "shared_load": "LDS LDSM",
    "shared_store": "STS STSM",
    "global": "LD LDG LDGSTS ST STG LDC ULDC RED ATOM ATOMG UBLKCP UTMALDG UTMASTG UTMAPF CCTL",
    "local": "LDL STL",
    "shuffle": "SHFL VOTE VOTEU REDUX MATCH ELECT",
    "barrier": "BAR B2R SYNCS ARRIVES LDGDEPBAR DEPBAR WARPSYNC WARPGROUP MEMBAR FENCE UCGABAR_ARV UCGABAR_WAIT "
               "UTMACMDFLUSH ACQBULK ERRBAR NANOSLEEP YIELD",
    "branch": "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK BPT ENDCOLLECTIVE",
    "hmma": "HMMA IMMA",
    "hgmma": "HGMMA",
}
CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes.split()}
TENSOR = {"hmma", "hgmma"}
UNIT = 2**20

FUNCTION = re.compile(r"^\.text\.(\S+):$")
LABEL = re.compile(r"^(\.L_\w+):$")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@(!?\w+)\s+)?([\w.]+)\s*(.*?)\s*;$")

Instruction = collections.namedtuple("Instruction", "guard opcode operands")


def class_of(instruction):
    """Moves through the multiplier are moves."""
    base, *rest = instruction.opcode.split(".")
    if base == "NOP":
        return None
    if base == "IMAD" and rest[:1] == ["MOV"]:
        return "move"
    return CLASS_OF.get(base, "other")


def multiply_adds(instruction):
    """Of a warp."""
    if shape := re.match(r"HGMMA\.64x(\d+)x(\d+)", instruction.opcode):
        return 64 * int(shape[1]) * int(shape[2]) // 4
    if shape := re.match(r"HMMA\.(16)(8)(8|16)\b", instruction.opcode):
        return int(shape[1]) * int(shape[2]) * int(shape[3])
    return 0


# ---- what nvdisasm prints ----

def functions_of(text):
    """{kernel: (instructions, {label: index})}; what a kernel calls lies behind it in its section."""
    found, here = {}, None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            here = found.setdefault(match[1], ([], {}))
        elif here is None:
            continue
        elif match := LABEL.match(line):
            here[1][match[1]] = len(here[0])
        elif match := INSTRUCTION.match(line):
            here[0].append(Instruction(match[1], match[2], match[3]))
    return found


def successors(instructions, labels):
    """Of each instruction. Calls return; a branch goes on, too, unless nothing is asked."""
    out = []
    for i, (guard, opcode, operands) in enumerate(instructions):
        base = opcode.split(".")[0]
        targets = [labels[label] for label in re.findall(r"\.L_\w+", operands) if label in labels]
        jumps = base in ("BRA", "BRX", "JMP", "JMX")
        asks = guard is not None or opcode.startswith("BRA.DIV") or re.match(r"!?U?P\d", operands)
        ends = (jumps or base in ("EXIT", "RET")) and not asks
        after = targets if jumps else []
        out.append([t for t in after + ([] if ends else [i + 1]) if t < len(instructions)])
    return out


# ---- loops ----

def components(nodes, edges):
    """Strongly connected ones that are loops: Tarjan's, without recursion."""
    number, low, on_stack, stack, out = {}, {}, set(), [], []
    for root in sorted(nodes):
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        stack.append(root), on_stack.add(root)
        while work:
            node, rest = work[-1]
            follower = next((n for n in rest if n in nodes and (n not in number or n in on_stack)), None)
            if follower is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    members = set()
                    while node not in members:
                        members.add(stack.pop())
                    on_stack -= members
                    if len(members) > 1 or node in edges[node]:
                        out.append(members)
            elif follower in number:
                low[node] = min(low[node], number[follower])
            else:
                number[follower] = low[follower] = len(number)
                stack.append(follower), on_stack.add(follower)
                work.append((follower, iter(edges[follower])))
    return out


def reached(edges):
    """Instructions that the first one leads to: not what is called, nor what fills the end."""
    found, waiting = {0}, [0]
    while waiting:
        new = set(edges[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def loops_inside(loop, edges, entered):
    """Loops of a loop without its head: where it is entered, or its first instruction."""
    heads = loop & entered
    return components(loop - {min(heads or loop)}, edges)


def regions(instructions, edges):
    """(tensor_loops, inner_loops), as sets of instructions."""
    tensor = {i for i, x in enumerate(instructions) if class_of(x) in TENSOR}
    entered_from = collections.defaultdict(set)
    for i, after in enumerate(edges):
        for j in after:
            entered_from[j].add(i)

    def entered(loop):
        return {j for j in loop if entered_from[j] - loop}

    hot, inner = set(), set()
    waiting = components(reached(edges), edges)
    while waiting:
        loop = waiting.pop()
        inside = loops_inside(loop, edges, entered(loop))
        own = loop - set().union(*inside)
        if own & tensor:
            hot |= own
            inner = inner.union(*(other for other in inside if not other & tensor))
        elif not tensor and not inside:
            inner |= loop
        waiting += [other for other in inside if other & tensor or not tensor]
    return hot, inner


# ---- counts ----

def histogram(instructions, chosen):
    counts = collections.Counter(class_of(instructions[i]) for i in chosen)
    del counts[None]
    counts["instructions"] = sum(counts.values())
    return counts


def kernel_counts(instructions, labels):
    """{(region, class): instructions}."""
    edges = successors(instructions, labels)
    hot, inner = regions(instructions, edges)
    out = {("kernel", name): n for name, n in histogram(instructions, range(len(instructions))).items()}
    products = sum(multiply_adds(instructions[i]) for i in hot)
    if products:
        counts = histogram(instructions, hot)
        out.update({("tensor_loops", name): -(-n * UNIT // products) for name, n in counts.items()})
    if inner:
        out.update({("inner_loops", name): n for name, n in histogram(instructions, inner).items()})
    return out


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done


def gpu_of(cubin, said):
    """An only one does not name its GPU."""
    named = re.search(r"\.(?:sm|compute)_(\w+)\.cubin$", cubin)
    return "sm_" + named[1] if named else re.search(r"for '(sm_\w+)'", said)[1]


def assemble_for_sm_80(folder, ptxas):
    """What nvcc compiles for one GPU alone, another one's driver compiles of the PTX."""
    said = ""
    for file in sorted(os.listdir(folder)):
        path, stem = os.path.join(folder, file), os.path.join(folder, file.split(".")[0])
        if not file.endswith(".ptx") or not re.search(r"^\.target sm_80$", open(path).read(), re.M):
            continue
        if not os.path.exists(stem + ".sm_80.cubin") and not os.path.exists(stem + ".compute_80.cubin"):
            said += run(ptxas, "-arch=sm_80", "-v", path, "-o", stem + ".sm_80.cubin").stderr
    return said


def thread_lines(folder):
    for file in sorted(os.listdir(folder)):
        if file.endswith(".ptx"):
            text = open(os.path.join(folder, file)).read()
            for name, threads in re.findall(r"^\.?(?:visible )?\.?entry (\w+)\([^{]*?^\.maxntid (\d+)", text, re.M):
                yield f"{name} {threads}\n"


def sass_lines(folder, nvdisasm, said):
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".cubin"):
            continue
        text = run(nvdisasm, "-c", os.path.join(folder, file)).stdout
        for kernel, (instructions, labels) in sorted(functions_of(text).items()):
            for (region, name), count in sorted(kernel_counts(instructions, labels).items()):
                yield f"{gpu_of(file, said)} {kernel} {region} {name} {count}\n"


def add_lines(output, folder, name, lines):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.writelines(lines)
    output.add(path, name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("archive")
    parser.add_argument("output")
    parser.add_argument("--ptxas", required=True)
    parser.add_argument("--nvdisasm")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(args.output, "w") as output:
        with tarfile.open(args.archive) as tar:
            tar.extractall(folder)
        said = os.path.join(folder, "ptxas.txt")
        before = open(said, errors="replace").read()
        with open(said, "a") as file:
            file.write(assemble_for_sm_80(folder, args.ptxas))
        output.add(said, "ptxas.txt")
        add_lines(output, folder, "threads.txt", thread_lines(folder))
        if args.nvdisasm:
            add_lines(output, folder, "sass.txt", sass_lines(folder, args.nvdisasm, before))


if __name__ == "__main__":
    main()
