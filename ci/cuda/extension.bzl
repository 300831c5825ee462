"""The same for MODULE.bazel."""

load(":configure.bzl", "cuda_configure")

def _cuda_impl(_mctx):
    cuda_configure(name = "local_cuda")

cuda = module_extension(implementation = _cuda_impl)
