#!/usr/bin/env python3
"""wheel.py OUT NAME=FILE...    a wheel of these files, of which two runs make the same bytes.

The library in it needs glibc and libdw1 of the machine, so it is a wheel of linux_x86_64, which no index takes."""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

NAME = "attest_attention"
METADATA = """Metadata-Version: 2.1
Name: attest-attention
Version: {version}
Summary: Attention whose every number is checked: audits of any implementation, and kernels
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: attest
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""


def main(out, *files):
    contents = {name: pathlib.Path(path).read_bytes() for name, path in (f.split("=", 1) for f in files)}
    readme, licence = contents.pop("README.md").decode(), contents.pop("LICENSE")
    version = re.search(r'^__version__ = "(.*)"', contents[NAME + "/__init__.py"].decode(), re.M)[1]
    info = f"{NAME}-{version}.dist-info"
    contents[info + "/LICENSE"] = licence
    contents[info + "/METADATA"] = METADATA.format(version=version, readme=readme).encode()
    contents[info + "/WHEEL"] = WHEEL.encode()
    record = ""
    for name, data in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    contents[info + "/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(out, "w") as wheel:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name)  # of 1980: no time of today
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data, compresslevel=6)


main(*sys.argv[1:])
