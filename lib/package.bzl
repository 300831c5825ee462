"""The library as a file: libattest.a and libattest.so, in which no name but attest_* is seen from outside.

A cc_library is many archives, whose names (of the oracle, of the simulated GPU, of its stand-ins for the compiler's
race detector) would meet those of the program that links them. So all objects that the library needs become one, and
its other names local; from that one come the archive and the shared library."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _last_of_each(items):
    kept = []
    for item in reversed(items):
        if item not in kept:
            kept.insert(0, item)
    return kept

def _run(ctx, toolchain, executable, inputs, output, arguments):
    ctx.actions.run(
        executable = executable,
        inputs = depset(inputs, transitive = [toolchain.all_files]),
        outputs = [output],
        arguments = arguments,
        mnemonic = "Package",
        env = {"PATH": "/usr/bin:/bin"},
    )

def _packaged_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    flags = []
    archives = []
    for linker_input in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        flags.extend(linker_input.user_link_flags)
        archives.extend([library.pic_static_library or library.static_library for library in linker_input.libraries])
    roots = [a for a in archives if a.owner == ctx.attr.library.label]
    flags = _last_of_each(flags + ["-lstdc++"])

    parts = ctx.actions.declare_file(ctx.label.name + "/parts.o")
    whole = ctx.actions.declare_file(ctx.label.name + "/attest.o")
    static = ctx.actions.declare_file(ctx.label.name + "/libattest.a")
    shared = ctx.actions.declare_file("%s/libattest.so.%s" % (ctx.label.name, ctx.attr.version))
    libs = ctx.actions.declare_file(ctx.label.name + "/libs")

    cc = toolchain.compiler_executable
    _run(ctx, toolchain, cc, archives, parts, [
        "-r",
        "-nostdlib",
        "-Wl,--force-group-allocation",
        "-o",
        parts.path,
        "-Wl,--whole-archive",
    ] + [a.path for a in roots] + ["-Wl,--no-whole-archive", "-Wl,--start-group"] + [a.path for a in archives] +
         ["-Wl,--end-group"])
    names = ["--wildcard", "--keep-global-symbol=attest_*", "--localize-hidden"]
    _run(ctx, toolchain, toolchain.objcopy_executable, [parts], whole, names + [parts.path, whole.path])
    _run(ctx, toolchain, toolchain.ar_executable, [whole], static, ["rcsD", static.path, whole.path])
    _run(ctx, toolchain, cc, [whole], shared, [
        "-shared",
        "-Wl,-soname,libattest.so.%s" % ctx.attr.version.split(".")[0],
        "-Wl,--exclude-libs,ALL",  # the CUDA runtime's names stay inside
        "-Wl,--compress-debug-sections=zlib",  # lines of kernels, a quarter of the file; libdw unpacks them
        "-o",
        shared.path,
        whole.path,
    ] + flags)
    ctx.actions.write(libs, " ".join(flags) + "\n")
    files = [static, shared, libs]
    return [DefaultInfo(files = depset(files), runfiles = ctx.runfiles(files))]

# `version` is that of attest.h: a test compares them.
packaged_library = rule(
    implementation = _packaged_library_impl,
    attrs = {
        "library": attr.label(providers = [CcInfo]),
        "version": attr.string(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
)
