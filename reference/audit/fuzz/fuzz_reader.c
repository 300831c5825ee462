/* fuzz_reader.c - libFuzzer target of one reader: compile with FUZZ_FORMAT set to an enum
 * tensor_file_format, or with FUZZ_PICKLE, and with FUZZ_WITHOUT_HEADER where no header has a length (see run).
 * Whatever the bytes: a file with consistent tensors or one sentence. */
#include <string.h>

#include "reference/audit/fuzz/check_file.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t max_size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
#ifdef FUZZ_PICKLE
    check_pickle(bytes, size);
#else
    check_file(FUZZ_FORMAT, bytes, size);
#endif
    return 0;
}

#ifndef FUZZ_WITHOUT_HEADER

/* A changed header nearly always disagrees with its length, and no further line would be reached: in three
 * of four cases the length is put right, to the last '}' (safetensors) or the last newline (.npy 1.0). */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t max_size, unsigned seed)
{
    const size_t start = FUZZ_FORMAT == TENSOR_FILE_NPY ? 10 : 8;
    size = LLVMFuzzerMutate(bytes, size, max_size);
    if (seed % 4 == 0 || size < start) return size;
    size_t end = size;
    while (end > start && bytes[end - 1] != (FUZZ_FORMAT == TENSOR_FILE_NPY ? '\n' : '}')) --end;
    const uint64_t length = end - start;
    memcpy(bytes + (FUZZ_FORMAT == TENSOR_FILE_NPY ? 8 : 0), &length, FUZZ_FORMAT == TENSOR_FILE_NPY ? 2 : 8);
    return size;
}
#endif
