#!/bin/bash
# bazel run //lib:install -- --prefix DIR    installs header, libraries and attest.pc; DESTDIR is honoured.
set -eu

refuse() {
    echo "install: $1; usage: install --prefix DIR, an absolute path" >&2
    exit 2
}

[ "$#:${1:-}" = 2:--prefix ] || refuse "expected --prefix DIR, got '$*'"
prefix=${2%/}
case $prefix in
/*) ;;
*) refuse "--prefix is '$2'" ;;
esac
case $prefix in
*[[:space:]\|\&\\]*) refuse "--prefix is '$2', which a pkg-config file cannot name" ;;
esac

to=${DESTDIR:-}$prefix
mkdir -p "$to/include" "$to/lib/pkgconfig" 2>/dev/null || refuse "cannot write to '$to'"
number() { sed -n "s/^#define ATTEST_VERSION_$1 //p" lib/attest.h; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)
install -m 644 lib/attest.h "$to/include"
install -m 644 lib/packaged/libattest.a "$to/lib"
install -m 755 "lib/packaged/libattest.so.$version" "$to/lib"
ln -sf "libattest.so.$version" "$to/lib/libattest.so.${version%%.*}"
ln -sf "libattest.so.${version%%.*}" "$to/lib/libattest.so"
sed -e "s|@PREFIX@|$prefix|; s|@VERSION@|$version|; s|@LIBS@|$(cat lib/packaged/libs)|" lib/attest.pc.in \
    >"$to/lib/pkgconfig/attest.pc"
echo "installed attest $version in $to"
