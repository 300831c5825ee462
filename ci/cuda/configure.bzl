"""Where CUDA is, if it is here: @local_cuda//:defs.bzl says so, @local_cuda//:cudart is its runtime for C.

The lists of ci/lists.bzl are there as well, so that who vendors attest declares one repository."""

load("//ci:lists.bzl", "write_lists")

def _find(rctx):
    home = rctx.os.environ.get("CUDA_HOME", "")
    if home == "none":
        return ""
    nvcc = rctx.which("nvcc")
    roots = [home] if home else ([str(nvcc.realpath.dirname.dirname)] if nvcc else []) + ["/usr/local/cuda"]
    for root in roots:
        if rctx.path(root + "/bin/nvcc").exists:
            return root
    return ""

# nvdisasm is a package of its own, which `ci/run` installs and names.
def _find_nvdisasm(rctx, root):
    named = rctx.os.environ.get("NVDISASM", "")
    found = rctx.which("nvdisasm")
    for path in [named, str(found) if found else "", root + "/bin/nvdisasm"]:
        if path and rctx.path(path).exists:
            return path
    return ""

def _version_of(rctx, program):
    return rctx.execute([program, "--version"]).stdout.strip().split("\n")[-1]

def _cuda_configure_impl(rctx):
    root = _find(rctx)
    nvdisasm = _find_nvdisasm(rctx, root) if root else ""
    linkopts = []
    version = ""
    if root:
        rctx.symlink(root + "/include", "include")
        libraries = root + ("/lib64" if rctx.path(root + "/lib64").exists else "/lib")
        linkopts = ["-L" + libraries, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        version = _version_of(rctx, root + "/bin/nvcc")
    gpus = rctx.os.environ.get("CUDA_GPUS", "sm_90a")
    values = {
        "CUDA_GPUS": gpus,
        "CUDA_ROOT": root,
        "CUDA_VERSION": version,
        "NVDISASM": nvdisasm,
        "NVDISASM_VERSION": _version_of(rctx, nvdisasm) if nvdisasm else "",
    }
    rctx.file("defs.bzl", "".join(["%s = %r\n" % item for item in values.items()]))
    write_lists(rctx)
    rctx.file("BUILD.bazel", """load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "cudart",
    hdrs = glob(["include/*.h", "include/crt/*.h"]),
    includes = ["include"],
    linkopts = %r,
    visibility = ["//visibility:public"],
)
""" % linkopts)

# CUDA_HOME names another place, or none: then everything is built as on a machine without CUDA. CUDA_GPUS names those
# that get machine code, as "sm_80,sm_90a"; others compile PTX when they load it. NVDISASM names the disassembler, with
# which the performance gate counts instructions.
cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_GPUS", "CUDA_HOME", "NVDISASM", "PATH"],
    local = True,
)
