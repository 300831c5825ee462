/* zip_bytes.c - see zip_bytes.h: a local header and the bytes of each member, then the directory and its end. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "reference/audit/fuzz/zip_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void put(FILE *out, uint32_t x, int bytes)
{
    for (int i = 0; i < bytes; ++i) fputc((int)(x >> (8 * i) & 0xff), out);
}

/* What local header and directory say of a member, after their first fields. */
static void put_member(FILE *out, const struct zip_member *m)
{
    put(out, 0, 2); /* flags */
    put(out, 0, 2); /* stored */
    put(out, 0x5a210000, 4); /* 1 January 2025 */
    put(out, (uint32_t)crc32(0, m->bytes, (uInt)m->size), 4);
    put(out, (uint32_t)m->size, 4);
    put(out, (uint32_t)m->size, 4);
    put(out, (uint32_t)strlen(m->name), 2);
    put(out, 0, 2);
}

uint8_t *zip_bytes(const struct zip_member *members, int count, size_t *size)
{
    char *memory = NULL;
    FILE *out = open_memstream(&memory, size);
    long *begins = calloc((size_t)count + 1, sizeof *begins);
    if (out == NULL || begins == NULL) abort();
    for (int i = 0; i < count; ++i) {
        begins[i] = ftell(out);
        put(out, 0x04034b50, 4);
        put(out, 20, 2);
        put_member(out, &members[i]);
        fputs(members[i].name, out);
        fwrite(members[i].bytes, 1, members[i].size, out);
    }
    begins[count] = ftell(out);
    for (int i = 0; i < count; ++i) {
        put(out, 0x02014b50, 4);
        put(out, 20, 2);
        put(out, 20, 2);
        put_member(out, &members[i]);
        for (int n = 0; n < 5; ++n) put(out, 0, 2); /* comment, disk, attributes */
        put(out, (uint32_t)begins[i], 4);
        fputs(members[i].name, out);
    }
    const long end = ftell(out);
    put(out, 0x06054b50, 4);
    put(out, 0, 4);
    put(out, (uint32_t)count, 2);
    put(out, (uint32_t)count, 2);
    put(out, (uint32_t)(end - begins[count]), 4);
    put(out, (uint32_t)begins[count], 4);
    put(out, 0, 2);
    fclose(out);
    free(begins);
    return (uint8_t *)memory;
}
