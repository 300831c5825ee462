/* zip_bytes.h - for tests and fuzzers: an archive of stored members, in memory. */
#ifndef ATTEST_AUDIT_ZIP_BYTES_H
#define ATTEST_AUDIT_ZIP_BYTES_H

#include <stddef.h>
#include <stdint.h>

struct zip_member {
    const char *name;
    const void *bytes;
    size_t size;
};

/* To be freed. */
uint8_t *zip_bytes(const struct zip_member *members, int count, size_t *size);

#endif
