#!/bin/bash
# Every function of kernels/device/ is called by a probe: covered_test.sh HEADERS... -- PROBES...
# Not those of functions.h, which have a probe of their own, nor trap, after which a GPU is no more use.
set -eu
headers=()
while [ "$1" != -- ]; do
    headers+=("$1")
    shift
done
shift

# Names in lines such as `INLINE void name(`; macros that make functions are named by what they make.
functions=$(sed -n '/ trap()/d; /\\$/d; s/^ *INLINE [a-z_0-9 ]*[ *]\([a-z_0-9]*\)(.*/\1/p' "${headers[@]}" | sort -u)
for dims in 1d 2d 3d 4d 5d; do
    functions="$functions tma_load_$dims tma_load_${dims}_multicast tma_store_$dims tma_reduce_add_$dims"
done

count=0
missing=0
for function in $functions; do
    count=$((count + 1))
    grep -qE "(^|[^a-z_0-9])$function(<[^;]*>)?[(),]" "$@" && continue
    echo "no probe calls $function"
    missing=$((missing + 1))
done
echo "$count functions, $missing without a probe"
[ "$count" -gt 100 ] && [ "$missing" = 0 ]
