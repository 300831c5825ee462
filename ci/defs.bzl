"""Kernel sources for both machines: nvcc for the chip, g++ for the simulated GPU.

    kernel_library(name, srcs, hdrs, deps)  both machines; NAME_poly and NAME_cuda_poly, of tests alone, are built with
                                            polynomials
    cuda_library(name, srcs, hdrs, deps)    the chip alone
    sim_library(name, srcs, hdrs, deps)     the simulated GPU alone
    gpu_bundle(name, programs, run, scripts)
                                            a tar of programs for a GPU machine without Bazel or these libraries
    if_cuda(items)                          the items where there is nvcc, else none
    SIM_FLAGS                               how a kernel is compiled for the simulated GPU
    C_FLAGS                                 for copts of C that users vendor: their workspace has its own .bazelrc
    NEEDS_CUDA                              for target_compatible_with: skipped where there is no nvcc
"""

load("@local_cuda//:defs.bzl", "CUDA_GPUS", "CUDA_ROOT", "CUDA_VERSION")
load("@rules_cc//cc:defs.bzl", "cc_library")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def if_cuda(items):
    return items if CUDA_ROOT else []

NEEDS_CUDA = [] if CUDA_ROOT else ["//ci/cuda:needs_cuda"]

C_FLAGS = [
    "-std=c11",
    "-ffp-contract=off",
]

_NVCC_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "-Xfatbin=-compress-all",  # a third of the size; the driver unpacks what it loads
    "-Xcompiler=-fPIC,-Wall,-Wextra",
    "-I.",
]

# What sm_80 has, too, is read once, since read for sm_90a it gives the same machine code: that of the GPUs that
# CUDA_GPUS names, and PTX, which others compile when they load it.
_SM_90A = "-gencode=arch=compute_90a,code=sm_90a"
_CODE = {
    "sm_80": ["-gencode=arch=compute_80,code=[%s,compute_80]" % CUDA_GPUS],
    "sm_90a": [_SM_90A],
    "each": [_SM_90A, "-gencode=arch=compute_80,code=sm_80"],
}

# Every access of a kernel becomes a call into the simulated GPU: the compiler's instrumentation for races puts it
# there, kernels/sim/ has the functions. Other sanitizers that a configuration asks for stay; the address sanitizer
# knows nothing of simulated memory, and misaligned accesses are found by the simulated GPU. Coverage counts with
# atomic additions, which are not taken for accesses of the kernel.
SIM_FLAGS = [
    "-std=c++17",
    "-ffp-contract=off",
    "-O1",
    "-g1",  # lines
    "-fno-sanitize=address",
    "-fno-sanitize=alignment",
    "-fsanitize=thread",
    "-fsanitize=bounds-strict",  # indices of arrays whose length the compiler knows: members of shared structs
    "-fsanitize-undefined-trap-on-error",  # kernels/sim/fault.c says which; calls would make a library a third larger
    "--param=tsan-instrument-func-entry-exit=0",
    "-fstack-reuse=none",  # registers that a wgmma reads or writes keep their place to the end
    "-fprofile-update=atomic",
    "-U_FORTIFY_SOURCE",
    "-fno-builtin-memcpy",
    "-fno-builtin-memmove",
    "-fno-builtin-memset",
    "-Wno-psabi",
]

# Beside the object a tar of what ptxas says (registers, spills), of the machine code for each GPU, and of the PTX.
# nvcc names its scratch files in /tmp after its pid, which sandboxes repeat.
_NVCC_COMMAND = """
    tar=$1; shift
    export TMPDIR="$PWD/$tar.tmp"; mkdir -p "$TMPDIR"
    "$@" --resource-usage --keep --keep-dir "$TMPDIR" 2>"$TMPDIR/ptxas.txt"; rc=$?
    grep -vE '^ptxas info|bytes stack frame' "$TMPDIR/ptxas.txt" >&2
    (cd "$TMPDIR" && tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner ptxas.txt *.cubin *.ptx) >"$tar"
    rm -rf "$TMPDIR"; exit $rc
"""

def _nvcc_objects_impl(ctx):
    contexts = [d[CcInfo].compilation_context for d in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    flags = ctx.actions.args()
    flags.add_all(_NVCC_FLAGS)
    flags.add_all(_CODE[ctx.attr.code])
    for c in contexts:
        flags.add_all(c.quote_includes, before_each = "-I")
        flags.add_all(c.includes, before_each = "-I")
        flags.add_all(c.system_includes, before_each = "-isystem")
        flags.add_all(c.defines, format_each = "-D%s")
    flags.add_all(ctx.attr.local_defines, format_each = "-D%s")
    objects, figures = [], []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, src.basename))
        tar = ctx.actions.declare_file("%s/%s.ptxas.tar" % (ctx.label.name, src.basename))
        objects.append(out)
        figures.append(tar)
        ctx.actions.run_shell(
            command = _NVCC_COMMAND,
            arguments = [tar.path, CUDA_ROOT + "/bin/nvcc", flags, "-c", src.path, "-o", out.path],
            inputs = depset([src], transitive = [headers]),
            outputs = [out, tar],
            env = {"PATH": "/usr/bin:/bin", "CUDA_VERSION_KEY": CUDA_VERSION},
            mnemonic = "Nvcc",
            progress_message = "nvcc %s" % src.short_path,
        )
    return [DefaultInfo(files = depset(objects)), OutputGroupInfo(ptxas = depset(figures))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "code": attr.string(values = _CODE.keys()),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "local_defines": attr.string_list(),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], local_defines = [], code = "sm_80", **kwargs):
    """.cu files for the chip; whoever depends on it does so through if_cuda or NEEDS_CUDA.

    `code` says whose instructions these are; "each": of either, as the source asks for whom it is compiled."""
    deps = deps + ["//kernels/device"]
    _nvcc_objects(
        name = name + "_nvcc",
        srcs = srcs,
        hdrs = hdrs,
        local_defines = local_defines,
        code = code,
        tags = kwargs.get("tags", []),
        target_compatible_with = NEEDS_CUDA,
        deps = deps,
    )
    cc_library(
        name = name,
        srcs = [":" + name + "_nvcc"],
        hdrs = hdrs,
        alwayslink = True,  # programs that run without CUDA, too, refer to it weakly
        target_compatible_with = NEEDS_CUDA,
        deps = deps + ["@local_cuda//:cudart"],
        **kwargs
    )

def sim_library(name, srcs, hdrs = [], deps = [], local_defines = [], copts = [], **kwargs):
    """.cu files of this package for the simulated GPU: for each a .cc that includes it."""
    sources = []
    for src in srcs:
        file = src[1:] if src.startswith(":") else src
        source = "%s_%s.cc" % (name, file.replace("/", "_"))
        sources.append(source)
        native.genrule(
            name = source + "_source",
            outs = [source],
            cmd = "echo '#include \"%s/%s\"' >$@" % (native.package_name(), file),
        )
    cc_library(
        name = name,
        srcs = sources,
        hdrs = hdrs,
        textual_hdrs = srcs,
        copts = SIM_FLAGS + copts,
        local_defines = local_defines,
        deps = deps + ["//kernels/device", "//kernels/sim"],
        **kwargs
    )

def kernel_library(name, srcs, hdrs = [], deps = [], code = "sm_80", **kwargs):
    """Launchers by all names that KERNEL_SYMBOL makes; those of the chip only where there is nvcc.

    NAME_cuda_poly is not among what NAME_poly brings, nor among //...: it takes as long as NAME_cuda, for one program."""
    quickly = ["-Og", "-g0"]  # a third less to compile, the same bits
    for suffix, local_defines, copts in [("", [], []), ("_poly", ["ATTEST_POLYNOMIAL"], quickly)]:
        sim_library(name + "_sim" + suffix, srcs, hdrs, deps, local_defines, copts, **kwargs)
        tags = ["manual"] if suffix else []
        cuda_library(
            name + "_cuda" + suffix,
            srcs,
            hdrs,
            deps,
            local_defines,
            code,
            tags = tags,
            **kwargs
        )
        cc_library(
            name = name + suffix,
            hdrs = hdrs,
            deps = deps + [":%s_sim%s" % (name, suffix)] + ([] if suffix else if_cuda([":%s_cuda" % name])),
            **kwargs
        )

def gpu_bundle(name, programs, run, scripts = [], **kwargs):
    """NAME.tar: a folder NAME with bin/, the libraries that a bare machine may lack in lib/, and the script `run`.

    `scripts` lie in bin/, too."""
    native.genrule(
        name = name,
        srcs = programs + [run] + scripts,
        outs = [name + ".tar"],
        cmd = """
            dir=$$(mktemp -d)
            mkdir -p $$dir/{name}/bin $$dir/{name}/lib
            cp -L {programs} {scripts} $$dir/{name}/bin
            cp -L $(location {run}) $$dir/{name}/run
            ldd {programs} | sed -n 's/.* => \\(.*\\) (.*/\\1/p' | sort -u |
                grep -vE '/(libc|libm|libmvec|libdl|librt|libpthread|libstdc\\+\\+|libgcc_s|libz)\\.so' |
                xargs -r cp -L -t $$dir/{name}/lib
            chmod -R u+w,a+rX $$dir
            tar -C $$dir -cf $@ {name}
            rm -r $$dir
        """.format(
            name = name,
            programs = " ".join(["$(location %s)" % p for p in programs]),
            run = run,
            scripts = " ".join(["$(locations %s)" % s for s in scripts]),
        ),
        target_compatible_with = NEEDS_CUDA,
        **kwargs
    )
