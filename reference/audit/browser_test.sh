#!/bin/bash
# The page in headless Chromium: its script runs without an error and draws every table row and picture.
# usage: browser_test.sh AUDIT DEMO_FOLDER
set -eu
audit=$PWD/$1
demo=$PWD/$2
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/browser-XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "browser_test: $1" >&2
    exit 1
}

status=0
"$audit" --recipe=fp32 --html page.html "$demo/mean.safetensors" "$demo/mean.fa2.safetensors" \
    "$demo/mean.math.safetensors" >table.txt || status=$?
[ "$status" = 1 ] || fail "the audit ended with status $status"

browse() {
    HOME=$folder timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$folder/profile" --virtual-time-budget=5000 --enable-logging=stderr "$@" 2>browser.log
    if grep ':CONSOLE' browser.log; then fail "the page's script complained"; fi
}

browse --dump-dom "file://$folder/page.html" >dom.html
# Nine tensors were judged: o, lse, dq, dk, dv of fa2; math returned no lse.
grep -q 'data-pictures="9"' dom.html || fail "the script did not draw nine pictures"
[ "$(grep -o '<section class="card picture">' dom.html | wc -l)" = 9 ] || fail "nine pictures are expected"
[ "$(grep -o '<svg' dom.html | wc -l)" = 9 ] || fail "nine histograms are expected"
grep -q '<span class="badge FAIL">FAIL</span>' dom.html || fail "no failing verdict is shown"
grep -q 'of the bound at batch 0, row' dom.html || fail "no picture says where its largest error is"
# The largest share that the table prints stands in the page too, as the script formats it.
share=$(awk '$1 == "fa2" && $2 == "dq" && NF > 8 { print $7; exit }' table.txt)
grep -qF ">$share<" dom.html || fail "dq's share $share is not in the page"

browse --window-size=1280,2400 --screenshot="$folder/page.png" "file://$folder/page.html"
[ "$(stat -c %s page.png)" -gt 50000 ] || fail "the screenshot is empty"

# A page whose script fails must fail this test.
sed 's/^const audit = /broken(); &/' page.html >broken.html
if (browse --dump-dom "file://$folder/broken.html" >broken.dom 2>&1); then fail "a broken script went unnoticed"; fi
echo "browser_test: passed"
