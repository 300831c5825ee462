#!/bin/bash
# The installed library as its users meet it: its names, its links, pkg-config, versions, refusals.
set -eu
failed=0
prefix=$TEST_TMPDIR/prefix

fails() {
    echo "FAILED: $1"
    failed=1
}

same() { # WHAT GOT WANT
    [ "$2" = "$3" ] || fails "$1: got '$2', want '$3'"
}

installs() { lib/install "$@" 2>&1; }

compiles() { # OUTPUT FLAGS...: the example, as a user would
    local output=$1
    shift
    gcc -std=c11 -Wall -Wextra -Werror "$TEST_TMPDIR/example.c" -o "$TEST_TMPDIR/$output" "$@"
}

# Every function of the header and nothing else.
check_names() {
    local declared
    declared=$(gcc -E -P lib/attest.h | tr '\n' ' ' | grep -o 'visibility("default"))) [^(]*(' |
        grep -o '[a-z_]*($' | tr -d '(' | sort)
    [ "$(echo "$declared" | wc -l)" -gt 5 ] || fails "no functions found in attest.h"
    same "names of libattest.so" "$(nm -D --defined-only "$prefix/lib/libattest.so" | cut -d' ' -f3 | sort)" "$declared"
    same "names of libattest.a" "$(nm -g --defined-only "$prefix/lib/libattest.a" | sed -n 's/.* [A-Z] //p' | sort)" \
        "$declared"
}

check_files() {
    same "files" "$(cd "$prefix" && find . ! -type d | sort | tr '\n' ' ')" \
        "./include/attest.h ./lib/libattest.a ./lib/libattest.so ./lib/libattest.so.0 ./lib/libattest.so.0.1.0 $(
        )./lib/pkgconfig/attest.pc "
    same "SONAME" "$(readelf -d "$prefix/lib/libattest.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libattest.so.0
    same "links" "$(readlink "$prefix/lib/libattest.so") $(readlink "$prefix/lib/libattest.so.0")" \
        "libattest.so.0 libattest.so.0.1.0"
    cmp lib/attest.h "$prefix/include/attest.h" || fails "another header was installed"
}

# Shared and static, with what pkg-config says and nothing else.
check_programs() {
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    same "pkg-config's version" "$(pkg-config --modversion attest)" 0.1.0
    # shellcheck disable=SC2046  # lists of words
    compiles shared $(pkg-config --cflags --libs attest) -Wl,-rpath,"$prefix/lib" -lm
    # shellcheck disable=SC2046
    compiles static $(pkg-config --cflags attest) "$prefix/lib/libattest.a" \
        $(pkg-config --static --libs-only-l --libs-only-L attest | sed 's/-lattest//')
    local program no_cuda="attest_plan_create: device = 0, ATTEST_CUDA, but this library was built without nvcc"
    ! grep -q cudart "$PKG_CONFIG_PATH/attest.pc" || no_cuda="cuda: this program was built without -DATTEST_WITH_CUDA"
    for program in shared static; do
        "$TEST_TMPDIR/$program" reference || fails "the $program example on reference"
        "$TEST_TMPDIR/$program" sim || fails "the $program example on sim"
        same "status of the $program example on cuda" \
            "$("$TEST_TMPDIR/$program" cuda 2>&1 >/dev/null || echo "status $?")" \
            "example: $no_cuda
status 2"
    done
    same "needed by the static example" "$(readelf -d "$TEST_TMPDIR/static" | grep -c libattest || true)" 0
}

# A program compiled with another version's header, run with this library.
check_version() { # MAJOR MINOR PATCH WANT
    mkdir -p "$TEST_TMPDIR/other"
    sed -e "s/^#define ATTEST_VERSION_MAJOR .*/#define ATTEST_VERSION_MAJOR $1/" \
        -e "s/^#define ATTEST_VERSION_MINOR .*/#define ATTEST_VERSION_MINOR $2/" \
        -e "s/^#define ATTEST_VERSION_PATCH .*/#define ATTEST_VERSION_PATCH $3/" lib/attest.h \
        >"$TEST_TMPDIR/other/attest.h"
    compiles other.out -I"$TEST_TMPDIR/other" -L"$prefix/lib" -lattest -Wl,-rpath,"$prefix/lib" -lm
    local said
    said=$("$TEST_TMPDIR/other.out" reference 2>&1 >/dev/null || echo "status $?")
    same "header $1.$2.$3 with library 0.1.0" "$said" "$4"
}

# The lines of C that README.md shows, as the body of a function, on the simulated GPU. All keys are equal and all values
# are 1, so every number of o must be 1, 0x3f80 in bf16.
check_readme() {
    local said
    {
        printf '%s\n' '#include <attest.h>' '#include <stdio.h>' '#include <stdlib.h>'
        echo 'static int run(const void *q, const void *k, const void *v, void *o, void *stream) {'
        sed -n '/^```c$/,/^```$/{/^```/d; s/= ATTEST_CUDA;/= ATTEST_SIM;/; p}' README.md
        printf '%s\n' 'attest_plan_destroy(plan); return 0; }' 'int main(void) {' \
            'enum { COUNT = 4 * 128 * 8 * 64 };' 'static uint16_t zero[COUNT], one[COUNT], o[COUNT];' \
            'for (int i = 0; i < COUNT; ++i) one[i] = 0x3f80;' 'if (run(zero, zero, one, o, NULL) != 0) return 2;' \
            'for (int i = 0; i < COUNT; ++i) if (o[i] != 0x3f80) return 1;' 'return 0; }'
    } >"$TEST_TMPDIR/readme.c"
    gcc -std=c11 -Wall -Wextra -Werror "$TEST_TMPDIR/readme.c" -o "$TEST_TMPDIR/readme" -I"$prefix/include" \
        -L"$prefix/lib" -lattest -Wl,-rpath,"$prefix/lib"
    said=$("$TEST_TMPDIR/readme" || echo "status $?")
    same "README.md's lines of C" "$said" ""
}

# One sentence, exit status 2, nothing written.
check_refused() { # WANT ARGUMENTS...
    local want=$1 got
    shift
    got=$(installs "$@" || echo "status $?")
    same "install $*" "$got" "install: $want; usage: install --prefix DIR, an absolute path
status 2"
}

cp -L lib/example.c "$TEST_TMPDIR"
installs --prefix "$prefix"
if nm -D "$prefix/lib/libattest.so" | grep -q __asan_init; then
    echo "UNCHECKED: a library with the address sanitizer needs programs that have it"
    exit 0
fi
check_names
check_files
check_programs
check_readme
check_version 0 2 0 "example: compiled for attest 0.2.0, but the library is 0.1.0
status 2"
check_version 1 0 0 "example: compiled for attest 1.0.0, but the library is 0.1.0
status 2"
check_version 0 0 9 ""
DESTDIR=$TEST_TMPDIR/staged installs --prefix /usr/
same "prefix within DESTDIR" "$(sed -n 's/^prefix=//p' "$TEST_TMPDIR/staged/usr/lib/pkgconfig/attest.pc")" /usr
check_refused "expected --prefix DIR, got ''"
check_refused "expected --prefix DIR, got '--prefix'" --prefix
check_refused "expected --prefix DIR, got '--root /x'" --root /x
check_refused "--prefix is 'here'" --prefix here
check_refused "--prefix is '/a b', which a pkg-config file cannot name" --prefix "/a b"
check_refused "cannot write to '/proc/attest'" --prefix /proc/attest
size "$prefix/lib/libattest.so"
ls -l "$prefix/lib"
exit $failed
