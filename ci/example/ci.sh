#!/bin/bash
# What a CI job does with attest, in plain shell, on Debian 12 with and without a GPU:
#
#     ci/example/ci.sh [BASE]
#
#   tests      bazel test //...
#   coverage   gcovr's report, in coverage/
#   counts     the performance gate without a GPU: exact counts beside their baselines
#   chip       the GPU bundle, run on this machine's GPU; needs nvcc and a GPU
#   times      the performance gate with a GPU: this commit beside the commit BASE (default: HEAD^); needs both, too
#
# Each is tried, whatever became of those before it. The last lines say what came of each, and how many passed; exit
# status 1 where one failed. Logs, the gate's history and every time that was taken are left in ci-report/.
set -u
if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/../.." || exit
base=${1:-HEAD^}
report=$PWD/ci-report
rm -rf "$report"
mkdir "$report"

# What this machine lacks; nvcc is looked for as in ci/cuda/configure.bzl.
lacking() {
    local nvcc=${CUDA_HOME:-}/bin/nvcc  # CUDA_HOME=none: there is none
    [ -n "${CUDA_HOME:-}" ] || nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
    if ! [ -x "$nvcc" ]; then
        echo "there is no nvcc"
    elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
        echo "there is no GPU"
    fi
}

# Of the sources here, to a file.
gpu_bundle() {
    bazel build --noshow_progress //ci:gpu_bundle
    cp -f bazel-bin/ci/gpu_bundle.tar "$1"
}

run_tests() { ci/run test; }

run_coverage() { ci/run coverage; }

run_counts() {
    ci/run perf --page "$report/history.html"
    ci/run perf
}

run_chip() {
    gpu_bundle "$report/head.tar"
    tar -C "$report" -xf "$report/head.tar"
    "$report/gpu_bundle/run"
}

# The base is built in a work tree of its own; where attest lies in a folder of another repository, there, too.
run_times() {
    tree=$(mktemp -d)
    there=$tree/$(git rev-parse --show-prefix)
    git worktree add --quiet --detach "$tree" "$base"
    trap remove_tree EXIT
    (cd "$there" && gpu_bundle "$report/base.tar")
    gpu_bundle "$report/head.tar"
    ci/run perf --base "$report/base.tar" --head "$report/head.tar" --json "$report/times.json"
}

# With what Bazel keeps of it, which nothing would find again: the name of the work tree is new each time.
remove_tree() {
    (cd "$there" && bazel clean --expunge) >/dev/null 2>&1
    git worktree remove --force "$tree"
}

passed=0
failed=0
unchecked=0
for step in tests coverage counts chip times; do
    log=$report/$step.log
    echo "== $step"
    why=""
    [[ $step != chip && $step != times ]] || why=$(lacking)
    if [ -n "$why" ]; then
        echo "UNCHECKED: $why" | tee "$log"
        status=0
    else
        (set -e; "run_$step") 2>&1 | tee "$log"
        status=${PIPESTATUS[0]}
    fi
    last=$(tail -n 1 "$log")
    if [ "$status" != 0 ]; then
        failed=$((failed + 1)) word=FAIL
    elif [[ $last == UNCHECKED* ]]; then
        unchecked=$((unchecked + 1)) word=UNCHECKED
    else
        passed=$((passed + 1)) word=PASS
    fi
    printf '%-9s %-8s %s\n' "$word" "$step" "$last" >>"$report/summary.txt"
done
echo "$passed passed, $failed failed, $unchecked unchecked" >>"$report/summary.txt"
echo "== summary"
cat "$report/summary.txt"
[ "$failed" = 0 ]
