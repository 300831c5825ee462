#!/bin/bash
# The three ways of lib/install.md to use the library with CMake, word for word: find_package, add_subdirectory,
# FetchContent. Each project builds lib/example.c and runs it.
set -eu
install_md=$PWD/lib/install.md
simulated=$PWD/kernels
root=$(dirname "$(dirname "$(readlink -f "$install_md")")")
. "$PWD/lib/compiled_already.sh"
cd "$TEST_TMPDIR"
export PATH=/usr/bin:/bin # without nvcc
failed=0

fails() {
    echo "FAILED: $1"
    failed=1
}

# The code block after the line that begins with $1.
block() {
    awk -v start="$1" 'index($0, start) == 1 { found = 1 }
        found && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$install_md"
}

# As a launcher of compilers. Of the library's C it compiles each file once.
make_launcher() {
    mkdir objects
    make_compiler '' "$simulated" "$root"
    cat >launcher <<END
#!/bin/bash
set -eu
object=; source=
for ((i = 1; i <= \$#; ++i)); do
    next=\$((i + 1))
    case \${!i} in -o) object=\${!next} ;; -c) source=\${!next} ;; esac
done
case \$source in
*/lib/*.c | */reference/*.c | */kernels/*.c | */kernels/*.S)
    kept="$TEST_TMPDIR/objects/\$(basename "\$(dirname "\$source")")_\$(basename "\$source").o"
    [ -f "\$kept" ] || { "\$@"; cp "\$object" "\$kept"; exit; }
    cp "\$kept" "\$object" ;;
*) exec "$PWD/compiler" "\$@" ;;
esac
END
    chmod +x launcher
}

configures() { # SOURCE BUILD FLAGS...
    local source=$1 build=$2
    shift 2
    cmake -S "$source" -B "$build" -DCMAKE_C_COMPILER_LAUNCHER="$PWD/launcher" \
        -DCMAKE_CXX_COMPILER_LAUNCHER="$PWD/launcher" "$@" >"$build.log" 2>&1
}

builds() { # SOURCE BUILD FLAGS...
    if ! configures "$@" || ! cmake --build "$2" --parallel 2 >>"$2.log" 2>&1; then
        tail -n 30 "$2.log"
        fails "$1 does not build"
    fi
}

# A project of somebody else's, with these lines in the middle.
project() { # NAME LINES
    mkdir "$1"
    cp "$root/lib/example.c" "$1/program.c"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(mine LANGUAGES C CXX)' "$2" \
        'add_executable(program program.c)' 'target_link_libraries(program PRIVATE attest::attest m)' \
        >"$1/CMakeLists.txt"
}

runs() { # PROGRAM
    "$1" reference >/dev/null || fails "$1 reference"
    "$1" sim >/dev/null || fails "$1 sim"
}

# Flags that change results or findings are those of ci/defs.bzl.
check_flags() {
    local flag
    for flag in $(awk '/^_?[A-Z]+_FLAGS = \[/, /^\]/' "$root/ci/defs.bzl" | sed -n 's/^ *"\(-[^"]*\)".*/\1/p' |
        grep -vE 'no-sanitize|profile-update|-Xcompiler|-Wall|^-I|-std='); do
        grep -qF -e "$flag" "$root/CMakeLists.txt" || fails "CMakeLists.txt lacks $flag"
    done
}

same_names() { # LIBRARY
    diff <(nm -D --defined-only "$1" | cut -d' ' -f3 | sort) \
        <(gcc -E -P "$root/lib/attest.h" | tr '\n' ' ' | grep -o 'visibility("default"))) [^(]*(' |
            grep -o '[a-z_]*($' | tr -d '(' | sort) || fails "$1 has other names than attest.h"
}

make_launcher
check_flags

# Installed, and then moved: nothing in it names the folder that it was made in.
builds "$root" whole
cmake --install whole --prefix "$PWD/first" >/dev/null
mv first prefix
same_names "$(find prefix -name libattest.so.0)"
project installed "$(block 'find_package')"
builds installed installed/out -DCMAKE_PREFIX_PATH="$PWD/prefix"
runs installed/out/program
sed -i 's/find_package(attest 0.1/find_package(attest 1.0/' installed/CMakeLists.txt
! configures installed installed/newer -DCMAKE_PREFIX_PATH="$PWD/prefix" || fails "find_package takes 0.1.0 for 1.0"
grep -q 'version: 0.1.0' installed/newer.log || fails "find_package does not say which version it found"

# A folder of the project.
project inside "$(block 'add_subdirectory')"
mkdir inside/third_party
ln -s "$root" inside/third_party/attest
builds inside inside/out
runs inside/out/program

# Fetched: here from an archive on disk.
tar -C "$root" -chf attest.tar CMakeLists.txt lib kernels reference
project fetched "$(block 'FetchContent' | sed "s|URL .*)|URL file://$PWD/attest.tar)|")"
builds fetched fetched/out
runs fetched/out/program

[ "$(wc -l <compiled)" = 3 ] || fails "the smallest kernel was compiled $(wc -l <compiled) times, not 3"
exit $failed
