#!/bin/bash
# The ways of lib/install.md to use the library, word for word: readme_test.sh gcc|bazel CUDA_ROOT
set -eu
install_md=$PWD/lib/install.md
defs=$PWD/ci/defs.bzl
root=$(dirname "$(dirname "$(readlink -f "$install_md")")")
cuda_root=${2:-}
objects=$PWD/kernels # of g++, and of nvcc where there is one
. "$PWD/lib/compiled_already.sh"
cd "$TEST_TMPDIR"

# The code block after the line that begins with $1.
block() {
    awk -v start="$1" 'index($0, start) == 1 { found = 1 }
        found && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$install_md" >"$2"
    [ -s "$2" ] || { echo "lib/install.md has no code block after '$1'"; exit 1; }
}

# Flags that change results or findings are those of ci/defs.bzl.
check_flags() {
    local flag missing=0
    for flag in $(awk '/^_?[A-Z]+_FLAGS = \[/, /^\]/' "$defs" | sed -n 's/^ *"\(-[^"]*\)".*/\1/p' |
        grep -vE 'no-sanitize|profile-update|-Xcompiler'); do
        grep -qF -e " $flag" commands || { echo "the commands of lib/install.md lack $flag"; missing=1; }
    done
    return $missing
}

# The example on a device without a GPU; on the chip where there is one.
check_program() {
    "$1" reference
    "$1" sim
    "$1"
}

# An nvcc that compiles the smallest kernel of each generation, and for others takes the object that the build has of
# that source and those flags: to compile all of them a second time took 129 s of both cores.
make_nvcc() {
    local smallest
    smallest=$(cd "$root" && for flag in -v -e; do ls -S kernels/*/*.cu | grep $flag _sm90 | tail -1; done)
    ln -s "$cuda_root"/{include,lib64} toolkit
    cat >toolkit/bin/nvcc <<END
#!/bin/bash
set -eu
source=\$(printf '%s\n' "\$@" | grep '\.cu\$')
echo "\$source" >>"$TEST_TMPDIR/asked"
for compiled in $(echo $smallest); do
    [ "\$source" != "\$compiled" ] || exec "$cuda_root/bin/nvcc" "\$@"
done
file=\${source#kernels/}
name=\$(sed -n "s|^KERNEL(\([a-z0-9_]*\), [a-z_]*, \${file%.cu}, .*|\1|p" kernels/kernels.inc)
object="$objects/\${name:+\${name}_cuda_nvcc}"
[ -n "\$name" ] || object=$objects/cuda_nvcc
cp "\$object/\$(basename "\$file").pic.o" "\${@: -1}"
END
    chmod +x toolkit/bin/nvcc
}

by_gcc() {
    block "## Without Bazel" commands
    check_flags
    mkdir attest
    cp -r "$root"/{lib,reference,kernels} attest
    mkdir -p toolkit/bin
    [ -z "$cuda_root" ] || make_nvcc
    make_compiler /usr/bin/g++ "$objects" "$root"
    mv compiler toolkit/bin/g++
    export PATH=$PWD/toolkit/bin:/usr/bin:/bin
    local bytes
    (cd attest && bash -eu ../commands) || { echo "the commands of lib/install.md failed"; return 1; }
    check_program attest/out/example
    [ "$(wc -l <compiled)" = 1 ] || { echo "g++ compiled $(wc -l <compiled) kernels, not 1"; return 1; }
    bytes=$(stat -c %s attest/out/libattest.so.0)
    echo "libattest.so.0: $bytes bytes${cuda_root:+, with nvcc for $(wc -l <asked) sources}"
    # Kernels for GPUs are packed in it: to a third (decision 67).
    [ "$bytes" -le 30000000 ] || { echo "that is more than 30000000 bytes"; return 1; }
}

# A server of its own, with the machine's PATH; it stops at the end.
bazel_there() { bazel --output_user_root="$TEST_TMPDIR/bazel" --host_jvm_args=-Xmx1g "$@"; }

builds() { # CUDA_HOME TARGET
    bazel_there build --nosandbox_debug --sandbox_writable_path="$TEST_TMPDIR" --noshow_progress \
        --repo_env=CC="$TEST_TMPDIR/compiler" --repo_env=CUDA_HOME="$1" "$2" # the compiler notes there what it does
}

by_bazel() {
    make_compiler /usr/bin/gcc "$objects" "$root"
    mkdir -p mine/third_party
    ln -s "$root" mine/third_party/attest
    block "## In another Bazel workspace" mine/WORKSPACE
    block "and in a BUILD file," mine/BUILD
    sed 's/#include "attest.h"/#include <attest.h>/' "$root/lib/example.c" >mine/program.c
    cd mine
    export HOME=$TEST_TMPDIR
    trap 'bazel_there shutdown' EXIT
    builds none //:program
    check_program bazel-bin/program
    [ "$(wc -l <../compiled)" = 1 ] || { echo "the compiler compiled $(wc -l <../compiled) kernels, not 1"; return 1; }
    # The kernels were compiled by nvcc for other tests: here one small file is enough.
    [ -z "$cuda_root" ] || builds "$cuda_root" @attest//kernels:cuda
}

case $1 in
gcc) by_gcc ;;
bazel) by_bazel ;;
esac
