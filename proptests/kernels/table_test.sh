#!/bin/bash
# kernels/README.md has the table that the registry prints: TABLE README
set -eu
"$1" >table.md
lines=$(wc -l <table.md)
[ "$lines" -ge 15 ] || { echo "the registry prints $lines lines"; exit 1; }
while IFS= read -r line; do
    grep -qxF -- "$line" "$2" || { echo "kernels/README.md lacks a line of \`bazel run //kernels:table\`: $line"; exit 1; }
done <table.md
