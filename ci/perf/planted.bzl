"""Planted regressions: programs that count with one source changed, as regressions.txt says."""

load("//ci:defs.bzl", "C_FLAGS", "cuda_library", "if_cuda", "sim_library")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")

_SOURCES = ["//kernels:%s" % name for name in [
    "backward.cu",
    "backward.h",
    "forward.cu",
    "fp32.h",
    "gradients.h",
    "merge.cu",
    "merge_backward.cu",
    "registry.c",
    "scores.h",
    "states.h",
    "tiles.h",
]] + [
    "//lib:plan.c",
    "//reference:forward.c",
]

def _source(name, extension):
    out = "planted/%s/%s" % (name, extension)
    native.genrule(
        name = name + "_source",
        srcs = ["regressions.txt"] + _SOURCES,
        outs = [out],
        cmd = "python3 $(location plant.py) $(location regressions.txt) %s $@ %s" %
              (name, " ".join(["$(location %s)" % s for s in _SOURCES])),
        tools = ["plant.py"],
    )
    return out

def planted_on_sim(name, kernel):
    """NAME: counts.c with a changed launcher of the simulated GPU."""
    sim_library(
        name = name + "_kernel",
        testonly = True,
        srcs = [_source(name, kernel + ".cu")],
        copts = ["-w"],
        alwayslink = True,  # before the library's own
        deps = ["//kernels:shared"],
    )
    cc_binary(
        name = name,
        testonly = True,
        deps = [
            ":%s_kernel" % name,
            ":counts_main",
        ],
    )

def planted_on_chip(name, kernel):
    """NAME: what ptxas says of a changed kernel."""
    cuda_library(
        name = name + "_kernel",
        testonly = True,
        srcs = [_source(name, kernel + ".cu")],
        deps = ["//kernels:shared"],
    )
    native.filegroup(
        name = name,
        testonly = True,
        srcs = if_cuda([":%s_kernel_nvcc" % name]),
        output_group = "ptxas",
    )

def planted_on_host(name, source, main, deps):
    """NAME: the program `main`, a library, with a changed C source."""
    cc_library(
        name = name + "_object",
        testonly = True,
        srcs = [_source(name, source)],
        copts = C_FLAGS + ["-w"],
        local_defines = if_cuda(["ATTEST_WITH_CUDA"]),
        alwayslink = True,
        deps = deps,
    )
    cc_binary(
        name = name,
        testonly = True,
        deps = [
            ":%s_object" % name,
            main,
        ],
    )
