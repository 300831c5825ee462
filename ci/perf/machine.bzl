"""What nvcc made of a kernel, as the gate counts it: machine.py."""

load("@local_cuda//:defs.bzl", "CUDA_ROOT", "NVDISASM", "NVDISASM_VERSION")
load("//ci:defs.bzl", "NEEDS_CUDA", "if_cuda")

def machine_counts(name, library, out):
    """NAME: the file `out`, a tar of what is to be counted of a cuda_library."""
    native.filegroup(
        name = name + "_ptxas",
        testonly = True,
        srcs = if_cuda([library + "_nvcc"]),
        output_group = "ptxas",
    )
    native.genrule(
        name = name,
        testonly = True,
        srcs = [":%s_ptxas" % name],
        outs = [out],
        # The version makes another disassembler another command.
        cmd = "python3 -B $(location machine.py) $(SRCS) $@ --ptxas %s/bin/ptxas %s # %s" % (
            CUDA_ROOT,
            "--nvdisasm " + NVDISASM if NVDISASM else "",
            NVDISASM_VERSION,
        ),
        tools = ["machine.py"],
        target_compatible_with = NEEDS_CUDA,
    )
