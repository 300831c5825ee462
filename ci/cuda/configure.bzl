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

def _cuda_configure_impl(rctx):
    root = _find(rctx)
    linkopts = []
    version = ""
    if root:
        rctx.symlink(root + "/include", "include")
        libraries = root + ("/lib64" if rctx.path(root + "/lib64").exists else "/lib")
        linkopts = ["-L" + libraries, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        version = rctx.execute([root + "/bin/nvcc", "--version"]).stdout.strip().split("\n")[-1]
    gpus = rctx.os.environ.get("CUDA_GPUS", "sm_90a")
    rctx.file("defs.bzl", "CUDA_GPUS = %r\nCUDA_ROOT = %r\nCUDA_VERSION = %r\n" % (gpus, root, version))
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
# that get machine code, as "sm_80,sm_90a"; others compile PTX when they load it.
cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_GPUS", "CUDA_HOME", "PATH"],
    local = True,
)
