"""What Bazel cannot read for itself: the rows of kernels/kernels.inc and the names of mutants, as @local_cuda//:lists.bzl.

    KERNELS           structs of name, of_pass, folder, file, code
    KERNEL_MUTANTS    names
"""

def _kernel(line):
    name, of_pass, folder, code = [field.strip() for field in line[len("KERNEL("):line.index(")")].split(",")]
    file = name[len(folder) + 1:] if name.startswith(folder + "_") and folder != "merge" else name
    return "struct(name = %r, of_pass = %r, folder = %r, file = %r, code = %r)" % (
        name,
        of_pass,
        folder,
        "%s/%s.cu" % (folder, file),
        code,
    )

def write_lists(rctx):
    """For a repository rule: it runs again when one of the two files changes."""
    kernels = rctx.read(Label("//kernels:kernels.inc")).split("\n")
    mutants = rctx.read(Label("//proptests:kernel_mutants/mutants.txt")).split("\n")
    rctx.file("lists.bzl", "KERNELS = [\n%s]\n\nKERNEL_MUTANTS = [\n%s]\n" % (
        "".join(["    %s,\n" % _kernel(line) for line in kernels if line.startswith("KERNEL(")]),
        "".join(["    %r,\n" % line.split(" ")[1] for line in mutants if line.startswith("mutant ")]),
    ))
