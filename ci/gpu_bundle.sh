#!/bin/bash
# Runs the programs of this bundle on a GPU machine: one line each, the output in logs/, and last
# `N passed, M failed, K unchecked`. Programs that count say so in the same form; others count as one.
#
#     gpu_bundle/run            all of them
#     gpu_bundle/run probe ...  those named
#     gpu_bundle/run sanitize   a set that runs every kernel, under each of compute-sanitizer's tools
set -u
cd "$(dirname "$0")"
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p logs

# program, arguments
programs() {
    cat <<'TABLE'
probe --cuda
unit_probe --cuda --json logs/unit_probe.json
functions_probe --json logs/functions_probe.json
kernels_gpu --corpus bin/corpus.txt
kernels_chip
published_gpu
audit --device cuda --cases 5000
example
bench.py --quick --json logs/bench.json
TABLE
}

# A line a tool; its findings are in logs/. UNCHECKED where there is no such tool, or it does not know the machine.
sanitize() {
    local tool log verdict failed=0
    for tool in memcheck racecheck initcheck synccheck; do
        log=logs/$tool.log
        verdict="FAIL, see $log"
        if compute-sanitizer --tool "$tool" --error-exitcode 9 ./bin/kernels_chip --quick >"$log" 2>&1; then
            verdict=PASS
            ! grep -q UNCHECKED "$log" || verdict="UNCHECKED: no GPU"
        elif ! command -v compute-sanitizer >/dev/null; then
            verdict="UNCHECKED: there is no compute-sanitizer"
        elif grep -q 'Device not supported' "$log"; then
            verdict="UNCHECKED: compute-sanitizer does not support this machine"
        else
            failed=$((failed + 1))
        fi
        echo "$tool: $verdict; $(grep -E 'SUMMARY' "$log" | tail -n 1)"
    done
    return "$failed"
}

if [ "${1:-}" = sanitize ]; then
    sanitize
    exit
fi

passed=0
failed=0
unchecked=0
while read -r program arguments; do
    if [ $# -gt 0 ] && [[ " $* " != *" $program "* ]]; then continue; fi
    log=logs/$program.log
    start=$(date +%s)
    # shellcheck disable=SC2086  # a list of words
    ./bin/"$program" $arguments >"$log" 2>&1
    status=$?
    if counts=$(tail -n 1 "$log" | grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ unchecked'); then
        read -r p _ f _ u _ <<<"$counts"
        [ "$status" = 0 ] || [ "$f" -gt 0 ] || f=1
    elif tail -n 1 "$log" | grep -q UNCHECKED || { [ "$status" = 0 ] && grep -q UNCHECKED "$log"; }; then
        read -r p f u <<<"0 0 1"
    elif [ "$status" != 0 ]; then
        read -r p f u <<<"0 1 0"
    else
        read -r p f u <<<"1 0 0"
    fi
    passed=$((passed + p)) failed=$((failed + f)) unchecked=$((unchecked + u))
    echo "$program: $p passed, $f failed, $u unchecked; status $status, $(($(date +%s) - start)) s"
    [ "$f" = 0 ] || tail -n 20 "$log" | sed 's/^/    /'
done < <(programs)
echo "$passed passed, $failed failed, $unchecked unchecked"
[ "$failed" = 0 ] && [ $((passed + unchecked)) -gt 0 ]
