#!/bin/bash
# wheel_test.sh WHEEL    installs it in a fresh venv, without an index, and runs what README.md shows and numpy_test.py.
set -eu
wheel=$PWD/$1
venv=$TEST_TMPDIR/venv
failed=0

fails() {
    echo "FAILED: $1"
    failed=1
}

# numpy is the machine's; nothing is fetched.
python3 -m venv --system-site-packages "$venv"
"$venv/bin/pip" install --quiet --no-index --no-deps --disable-pip-version-check "$wheel"
"$venv/bin/pip" show attest-attention 2>&1 | grep -q '^Version: 0.1.0$' || fails "pip does not know the package"
unset ATTEST_LIBRARY

# Lines of Python of a README, with q, k, v, o of its own.
runs() { # FILE
    {
        printf '%s\n' 'import numpy as np' 'r = np.random.default_rng(0)' \
            'q, k, v, dout = (r.standard_normal((2, 4, 64, 32), dtype=np.float32) for _ in range(4))' \
            'import attest_attention as attest' 'o, lse = attest.attention(q, k, v, causal=True)' \
            'dq, dk, dv = attest.backward(dout, q, k, v, o, lse, causal=True)[:3]'
        sed -n '/^```python$/,/^```$/{/^```/d; p}' "$1"
        printf '%s\n' 'assert "PASS" in report.table() and report.passed'
    } >"$TEST_TMPDIR/readme.py"
    (cd "$TEST_TMPDIR" && "$venv/bin/python" readme.py) || fails "the lines of Python of $1"
}
runs README.md
runs lib/python/README.md

# The same tests as from the source tree, but of what was installed.
sed '/^sys.path.insert/d' lib/python/tests/numpy_test.py >"$TEST_TMPDIR/numpy_test.py"
(cd "$TEST_TMPDIR" && "$venv/bin/python" numpy_test.py) || fails "numpy_test.py with the installed package"
(cd "$TEST_TMPDIR" && "$venv/bin/python" -c "
import attest_attention, pathlib
assert str(pathlib.Path(attest_attention.__file__)).startswith('$venv'), attest_attention.__file__")

# Every file is in RECORD with its hash, which pip uses when it uninstalls.
"$venv/bin/pip" uninstall --quiet --yes attest-attention
left=$(find "$venv" -path '*attest_attention*' -name '*.so*')
[ -z "$left" ] || fails "uninstalling left $left"
exit $failed
