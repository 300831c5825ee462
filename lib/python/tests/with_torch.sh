#!/bin/bash
# torch_test.py in a Python that has PyTorch, if ATTEST_PYTHON names one.
exec "${ATTEST_PYTHON:-python3}" lib/python/tests/torch_test.py
