"""What Bazel cannot read for itself: rows of kernels/kernels.inc, names of mutants, as @local_cuda//:lists.bzl.

    KERNELS           structs of name, file, code
    KERNEL_MUTANTS    names
"""

def _kernel(line):
    name, _, file, code = line[len("KERNEL("):line.index(")")].split(", ")
    return "struct(name = %r, file = %r, code = %r)" % (name, file + ".cu", code)

def write_lists(rctx):
    """For a repository rule: it runs again when one of the two files changes."""
    kernels = rctx.read(Label("//kernels:kernels.inc")).split("\n")
    mutants = rctx.read(Label("//proptests:kernel_mutants/mutants.txt")).split("\n")
    rctx.file("lists.bzl", "KERNELS = [\n%s]\n\nKERNEL_MUTANTS = [\n%s]\n" % (
        "".join(["    %s,\n" % _kernel(line) for line in kernels if line.startswith("KERNEL(")]),
        "".join(["    %r,\n" % line.split(" ")[1] for line in mutants if line.startswith("mutant ")]),
    ))
