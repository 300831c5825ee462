/* check_file.h - what must hold of a reader for any bytes at all. The fuzzer and the replay of its
 * corpus both call this. */
#ifndef ATTEST_AUDIT_FUZZ_CHECK_FILE_H
#define ATTEST_AUDIT_FUZZ_CHECK_FILE_H

#include <stdbool.h>

#include "reference/audit/tensor_file.h"

/* Parses the bytes and reads all that comes out of it, so that a sanitizer sees every byte that the
 * result promises. Returns whether the bytes were a file; aborts where a promise is broken. */
bool check_file(enum tensor_file_format format, const uint8_t *bytes, size_t size);

/* The same of a .pt file with this pickle and storages 0 to 4. */
bool check_pickle(const uint8_t *bytes, size_t size);

#endif
