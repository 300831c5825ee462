#!/bin/bash
# stripped_test.sh KERNELS_TEST: kernels on the simulated GPU in a program without debug information: it says less of
# where a fault is, and finds none that is not there.
set -eu
strip -o "$TEST_TMPDIR/program" "$1"
"$TEST_TMPDIR/program" --filter 'kernels/backward_of_many_tiles' 2>&1 | tee "$TEST_TMPDIR/log"
grep -q 'Tested: 1 | Passing: 1' "$TEST_TMPDIR/log"
