"""Planted regressions: programs that count with one source changed, as regressions.txt says."""

load("//ci:defs.bzl", "C_FLAGS", "NEEDS_CUDA", "cuda_library", "if_cuda", "sim_library")
load(":machine.bzl", "machine_counts")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")

_SOURCES = ["//kernels:%s" % name for name in [
    "decode/one_query.h",
    "decode/one_query_forward_sm80.cu",
    "long/backward_sm80.cu",
    "long/dsink.cu",
    "long/forward_fp32.cu",
    "long/forward_sm80.cu",
    "merge/merge.cu",
    "merge/merge_backward.cu",
    "merge/states.h",
    "registry.c",
    "shared/backward_scores.h",
    "shared/fp32.h",
    "shared/gradients.h",
    "shared/online_softmax.h",
    "shared/scores.h",
    "shared/tiles.h",
    "short/backward_sm90_n128.cu",
    "short/backward_sm90_n128_d256.cu",
    "short/backward_sm90_n128_latency.cu",
    "short/forward_sm90.cu",
    "short/forward_sm90_scaled.cu",
]] + [
    "//lib:plan.c",
    "//reference:dropout.c",
    "//reference:forward.c",
    "//reference:parallel.c",
]

# Where a launch is: all of the way to it.
_LAUNCH_SOURCES = _SOURCES + ["//kernels:%s" % name for name in [
    "shared/scaled_fp16.h",
    "short/tma_maps.h",
]] + ["//kernels/device:%s" % name for name in [
    "device.h",
    "launch.h",
    "launch_chip.h",
]]

def _source(name, extension, listing = "regressions.txt", sources = _SOURCES):
    out = "planted/%s/%s" % (name, extension)
    native.genrule(
        name = name + "_source",
        srcs = [listing] + sources,
        outs = [out],
        cmd = "python3 $(location plant.py) $(location %s) %s $@ %s" %
              (listing, name, " ".join(["$(location %s)" % s for s in sources])),
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
        deps = ["//kernels:headers"],
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
    """NAME: what nvcc made of a changed kernel."""
    cuda_library(
        name = name + "_kernel",
        testonly = True,
        srcs = [_source(name, kernel + ".cu")],
        deps = ["//kernels:headers"],
    )
    machine_counts(name, ":%s_kernel" % name, "planted/%s/machine/%s.tar" % (name, kernel))

def planted_on_launches(name, kernel):
    """NAME: launches.c with a changed launcher of the chip, a Hopper kernel's."""
    cuda_library(
        name = name + "_kernel",
        testonly = True,
        srcs = [_source(name, kernel + ".cu", sources = _LAUNCH_SOURCES)],
        code = "sm_90a",
        deps = ["//kernels:headers"],
    )
    cc_binary(
        name = name,
        testonly = True,
        linkopts = ["-Wl,--allow-multiple-definition"],  # the first, the changed one, is taken
        target_compatible_with = NEEDS_CUDA,
        deps = [
            ":%s_kernel" % name,
            ":launches_main",
        ],
    )

def planted_on_host(name, source, main, deps, copts = []):
    """NAME: the program `main`, a library, with a changed C source, compiled with C_FLAGS and `copts` as it is."""
    cc_library(
        name = name + "_object",
        testonly = True,
        srcs = [_source(name, source)],
        copts = C_FLAGS + copts + ["-w"],
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

def planted_in_times(name, kernel):
    """libbench_NAME.so: what a bundle is timed by, with a changed kernel. Built when asked for: nvcc takes its time."""
    cuda_library(
        name = name + "_kernel",
        testonly = True,
        srcs = [_source(name, kernel + ".cu", "slowdowns.txt")],
        tags = ["manual"],
        deps = ["//kernels:headers"],
    )
    cc_binary(
        name = "libbench_%s.so" % name,
        testonly = True,
        linkopts = ["-Wl,--allow-multiple-definition"],  # the first, the changed one, is taken
        linkshared = True,
        tags = ["manual"],
        target_compatible_with = NEEDS_CUDA,
        deps = [
            ":%s_kernel" % name,
            "//ci/bench:timed",
        ],
    )
