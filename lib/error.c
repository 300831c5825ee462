/* error.c - status names, and the sentence that each thread keeps. */
#include "lib/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[512];
static _Thread_local enum attest_status refused;

bool attest_refuse(enum attest_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    refused = status;
    return false;
}

enum attest_status attest_refused_status(void)
{
    return refused;
}

const char *attest_last_error(void)
{
    return sentence;
}

const char *attest_status_name(enum attest_status status)
{
    switch (status) {
    case ATTEST_OK: return "ATTEST_OK";
    case ATTEST_INVALID: return "ATTEST_INVALID";
    case ATTEST_UNSUPPORTED: return "ATTEST_UNSUPPORTED";
    case ATTEST_OUT_OF_MEMORY: return "ATTEST_OUT_OF_MEMORY";
    case ATTEST_DEVICE_ERROR: return "ATTEST_DEVICE_ERROR";
    }
    return "an unknown status";
}

uint32_t attest_version(void)
{
    return ATTEST_VERSION;
}
