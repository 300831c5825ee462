/* readers_test.c - the readers of safetensors and .npy: what they hand out, and what they refuse.
 *
 * All files are made here, byte for byte. The bytes that a reader gets lie in a block of just their
 * size, so that AddressSanitizer sees any reading past their end. */
#define _GNU_SOURCE /* seteuid, mkdtemp */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reference/audit/tensor_file.h"
#include "reference/audit/write_safetensors.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- files in memory ---- */

struct bytes {
    uint8_t *at;
    size_t size;
};

static struct bytes concatenate(const void *a, size_t a_size, const void *b, size_t b_size)
{
    struct bytes joined = {malloc(a_size + b_size + (a_size + b_size == 0)), a_size + b_size};
    memcpy(joined.at, a, a_size);
    if (b_size > 0) memcpy(joined.at + a_size, b, b_size);
    return joined;
}

static struct bytes with_data(struct bytes front, const void *data, size_t size)
{
    struct bytes whole = concatenate(front.at, front.size, data, size);
    free(front.at);
    return whole;
}

static const uint8_t zeros[4096];

static struct bytes safetensors(const char *header, const void *data, size_t size)
{
    const uint64_t length = strlen(header);
    return with_data(concatenate(&length, sizeof length, header, length), data, size);
}

static struct bytes npy(int version, const char *header, const void *data, size_t size)
{
    uint8_t prefix[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0};
    const uint32_t length = (uint32_t)strlen(header);
    memcpy(prefix + 8, &length, version == 1 ? 2 : 4);
    return with_data(concatenate(prefix, version == 1 ? 10 : 12, header, length), data, size);
}

static struct tensor_file *parse(enum tensor_file_format format, const char *path, struct bytes bytes)
{
    char sentence[512] = "";
    struct tensor_file *file;
    const int result = tensor_file_parse(format, path, bytes.at, bytes.size, &file, sentence, sizeof sentence);
    free(bytes.at);
    cr_assert(result == 0 && file != NULL, "%s", sentence);
    return file;
}

static void expect_sentence(const char *sentence, const char *begins, const char *says)
{
    cr_assert(strncmp(sentence, begins, strlen(begins)) == 0, "'%s' begins with '%s'", sentence, begins);
    cr_assert(strstr(sentence, says) != NULL, "'%s' says '%s'", sentence, says);
    for (const char *c = sentence; *c != '\0'; ++c) cr_assert(*c >= ' ' && *c <= '~', "'%s' is printable", sentence);
}

/* The bytes are refused with a sentence that holds `says`. Frees the bytes. */
static void expect_refused(enum tensor_file_format format, struct bytes bytes, const char *says)
{
    char sentence[512] = "";
    struct tensor_file *file = (struct tensor_file *)&file;
    const int result = tensor_file_parse(format, "a/bad", bytes.at, bytes.size, &file, sentence, sizeof sentence);
    free(bytes.at);
    cr_assert(result == -1 && file == NULL, "refused: %s", says);
    expect_sentence(sentence, "a/bad: ", says);
}

static void expect_shape(const struct tensor *t, int ndim, const int64_t *shape, int64_t elements)
{
    cr_assert(t->ndim == ndim && t->elements == elements);
    for (int i = 0; i < ndim; ++i) cr_assert(t->shape[i] == shape[i]);
}

/* ---- safetensors ---- */

Test(safetensors, every_dtype_is_read_and_aligned)
{
    static const struct {
        const char *name;
        int32_t dtype;
        int bytes;
        const char *printed;
    } dtypes[] = {{"U8", ATTEST_UINT8, 1, "uint8"},         {"F64", TENSOR_FP64, 8, "fp64"},
                  {"BOOL", ATTEST_UINT8, 1, "uint8"},       {"F32", ATTEST_FP32, 4, "fp32"},
                  {"F8_E4M3", ATTEST_FP8_E4M3, 1, "fp8_e4m3"}, {"F16", ATTEST_FP16, 2, "fp16"},
                  {"F8_E5M2", ATTEST_FP8_E5M2, 1, "fp8_e5m2"}, {"BF16", ATTEST_BF16, 2, "bf16"},
                  {"I64", TENSOR_INT64, 8, "int64"},        {"I32", TENSOR_INT32, 4, "int32"}};
    char header[2048] = "{";
    uint8_t data[256];
    int end = 0;
    for (size_t i = 0; i < sizeof data; ++i) data[i] = (uint8_t)(7 * i + 1);
    for (size_t i = 0; i < LENGTH(dtypes); ++i) {
        sprintf(header + strlen(header), "%s\"t%zu\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[%d,%d]}",
                i > 0 ? "," : "", i, dtypes[i].name, end, end + 3 * dtypes[i].bytes);
        end += 3 * dtypes[i].bytes;
    }
    strcat(header, "}  ");
    struct tensor_file *file = parse(TENSOR_FILE_SAFETENSORS, "x", safetensors(header, data, (size_t)end));
    cr_assert(file->count == (int)LENGTH(dtypes) && file->num_metadata == 0);
    end = 0;
    for (size_t i = 0; i < LENGTH(dtypes); ++i) {
        char name[8];
        sprintf(name, "t%zu", i);
        const struct tensor *t = tensor_file_find(file, name);
        expect_shape(t, 1, (int64_t[]){3}, 3);
        cr_assert(t == &file->tensors[i] && t->dtype == dtypes[i].dtype);
        cr_assert(strcmp(tensor_dtype_name(t->dtype), dtypes[i].printed) == 0);
        cr_assert(tensor_dtype_bytes(t->dtype) == (size_t)dtypes[i].bytes && (uintptr_t)t->data % 8 == 0);
        cr_assert(memcmp(t->data, data + end, 3 * (size_t)dtypes[i].bytes) == 0, "%s", dtypes[i].name);
        end += 3 * dtypes[i].bytes;
    }
    tensor_file_close(file);
}

Test(safetensors, tensors_are_placed_by_offset_and_empty_ones_have_a_place)
{
    static const float data[] = {1, 2, 3};
    static const char header[] = "{\"last\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
                                 "\"none\":{\"dtype\":\"F32\",\"shape\":[2,0,3],\"data_offsets\":[4,4]},"
                                 "\"nil\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[4,4]},"
                                 "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                                 "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,0],\"data_offsets\":[12,12]}}";
    struct tensor_file *file = parse(TENSOR_FILE_SAFETENSORS, "x", safetensors(header, data, sizeof data));
    static const char *const order[] = {"one", "nil", "none", "last", "deep"};
    cr_assert(file->count == 5);
    for (int i = 0; i < 5; ++i) cr_assert(strcmp(file->tensors[i].name, order[i]) == 0);
    expect_shape(tensor_file_find(file, "one"), 0, NULL, 1);
    expect_shape(tensor_file_find(file, "none"), 3, (int64_t[]){2, 0, 3}, 0);
    expect_shape(tensor_file_find(file, "deep"), 8, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 0}, 0);
    cr_assert(tensor_file_find(file, "none")->data != NULL);
    cr_assert(*(const float *)tensor_file_find(file, "one")->data == 1);
    cr_assert(((const float *)tensor_file_find(file, "last")->data)[1] == 3);
    cr_assert(tensor_file_find(file, "absent") == NULL);
    tensor_file_close(file);
}

Test(safetensors, names_and_metadata_may_hold_any_characters)
{
    static const char header[] = "{\"__metadata__\":{\"causal\":\"true\",\"\":\"a\\nb\"},"
                                 "\"\\u00fc \\\"\\n/..\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    struct tensor_file *file = parse(TENSOR_FILE_SAFETENSORS, "x", safetensors(header, zeros, 2));
    cr_assert(file->count == 2 && file->num_metadata == 2);
    cr_assert(tensor_file_find(file, "\xc3\xbc \"\n/..") == &file->tensors[0]);
    cr_assert(tensor_file_find(file, "") == &file->tensors[1]);
    cr_assert(strcmp(tensor_file_metadata(file, "causal"), "true") == 0);
    cr_assert(strcmp(tensor_file_metadata(file, ""), "a\nb") == 0);
    cr_assert(tensor_file_metadata(file, "absent") == NULL);
    tensor_file_close(file);

    file = parse(TENSOR_FILE_SAFETENSORS, "x", safetensors("{}", NULL, 0));
    cr_assert(file->count == 0 && file->num_metadata == 0 && tensor_file_find(file, "q") == NULL);
    tensor_file_close(file);
    tensor_file_close(NULL);
}

#define Q(dtype, shape, offsets) "{\"q\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define F32(name, offsets) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets "}"

Test(safetensors, malformed_headers_are_refused_by_the_name_of_the_field)
{
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } bad[] = {
        {"[]", 0, "header begins with byte 0x5b, not with '{'"},
        {" {}", 0, "header begins with byte 0x20"},
        {"{}{}", 0, "header is not valid JSON at byte 3 of 4"},
        {"{\"q\":", 0, "header is not valid JSON"},
        {"{\"q\":\"\xff\"}", 0, "header is not valid JSON"},
        {"{\"\\u0000\":{}}", 0, "header is not valid JSON"},
        {"{\"q\":99999999999999999999}", 0, "header is not valid JSON"},
        {"{" F32("q", "[0,4]") "," F32("q", "[4,8]") "}", 8, "duplicate object key"},
        {"{\"q\":3}", 0, "tensor 'q' is an integer, not an object"},
        {"{\"q\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'q': dtype is missing"},
        {"{\"q\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor 'q': shape is missing"},
        {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 'q': data_offsets is missing"},
        {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"strides\":[1]}}", 4,
         "unknown field 'strides'"},
        {Q("32", "[1]", "[0,4]"), 4, "tensor 'q': dtype is an integer, not a string"},
        {Q("\"I17\"", "[2]", "[0,4]"), 4, "tensor 'q': dtype is 'I17', which is none of safetensors'"},
        {Q("\"f32\"", "[1]", "[0,4]"), 4, "dtype is 'f32'"},
        {Q("\"F32\"", "1", "[0,4]"), 4, "tensor 'q': shape is an integer, not an array"},
        {Q("\"F32\"", "null", "[0,4]"), 4, "shape is null"},
        {Q("\"F32\"", "[-1]", "[0,4]"), 4, "tensor 'q': shape[0] is -1; it must be 0 .. 2^63 - 1"},
        {Q("\"F32\"", "[1,1.0]", "[0,4]"), 4, "tensor 'q': shape[1] is a number with a fraction or exponent"},
        {Q("\"F32\"", "[1e0]", "[0,4]"), 4, "shape[0] is a number with a fraction or exponent"},
        {Q("\"F32\"", "[\"1\"]", "[0,4]"), 4, "shape[0] is a string"},
        {Q("\"F32\"", "[true]", "[0,4]"), 4, "shape[0] is true or false"},
        {Q("\"F32\"", "[[1]]", "[0,4]"), 4, "shape[0] is an array"},
        {Q("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "shape has 9 entries; at most 8 are allowed"},
        {Q("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "shape has a product of more than 2^63 - 1 bytes"},
        {Q("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0, "shape has a product of more than 2^63 - 1 bytes"},
        {Q("\"F64\"", "[1152921504606846976]", "[0,0]"), 0, "shape has a product of more than 2^63 - 1 bytes"},
        {Q("\"F32\"", "[1152921504606846976]", "[0,4]"), 4, "dtype and shape need 4611686018427387904"},
        {Q("\"F32\"", "[1]", "{}"), 4, "tensor 'q': data_offsets is an object, not an array"},
        {Q("\"F32\"", "[1]", "[4]"), 4, "tensor 'q': data_offsets has 1 entries, not 2"},
        {Q("\"F32\"", "[1]", "[0,4,8]"), 8, "tensor 'q': data_offsets has 3 entries"},
        {Q("\"F32\"", "[1]", "[-4,0]"), 4, "tensor 'q': data_offsets[0] is -4"},
        {Q("\"F32\"", "[1]", "[4,0]"), 4, "tensor 'q': data_offsets is [4, 0]; 0 <= begin <= end <= 4"},
        {Q("\"F32\"", "[1]", "[4,8]"), 4, "tensor 'q': data_offsets is [4, 8]; 0 <= begin <= end <= 4"},
        {Q("\"F32\"", "[2]", "[0,8]"), 7, "0 <= begin <= end <= 7 is required"},
        {Q("\"F32\"", "[1]", "[0,9223372036854775807]"), 4, "tensor 'q': data_offsets is [0, 9223372036854775807]"},
        {Q("\"F32\"", "[2]", "[0,4]"), 4, "data_offsets is [0, 4], 4 bytes, but dtype and shape need 8"},
        {Q("\"F32\"", "[1]", "[4,8]"), 8, "tensor 'q': data_offsets is [4, 8], which leaves bytes 0 .. 3 to no tensor"},
        {Q("\"F32\"", "[1]", "[0,4]"), 5, "data_offsets end at 4, but 5 bytes of data follow the header"},
        {"{}", 1, "data_offsets end at 0, but 1 bytes"},
        {"{" F32("q", "[0,4]") "," F32("k", "[2,6]") "}", 6,
         "tensor 'k': data_offsets is [2, 6], which overlaps tensor 'q'"},
        {"{" F32("q", "[0,4]") "," F32("k", "[0,4]") "}", 4, "which overlaps tensor"},
        {"{" F32("q", "[0,4]") "," F32("k", "[8,12]") "}", 12, "leaves bytes 4 .. 7 to no tensor"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is an array, not an object"},
        {"{\"__metadata__\":{\"scale\":0.125}}", 0, "__metadata__: 'scale' is a number with a fraction"},
        {"{\"a\\u001b[31m\xc3\xbc\x7f.\":3}", 0, "tensor 'a?[31m???.' is an integer"},
    };
    for (size_t i = 0; i < LENGTH(bad); ++i)
        expect_refused(TENSOR_FILE_SAFETENSORS, safetensors(bad[i].header, zeros, bad[i].data), bad[i].says);
}

Test(safetensors, lying_header_lengths_are_refused)
{
    static const struct {
        uint64_t length;
        const char *says;
    } bad[] = {{0, "header length is 0; it must be 2 .. 64"},
               {1, "header length is 1; it must be 2 .. 64"},
               {65, "header length is 65; it must be 2 .. 64"},
               {UINT64_MAX, "header length is 18446744073709551615; it must be 2 .. 64"},
               {UINT64_MAX - 7, "header length is 18446744073709551608"},
               {UINT64_C(1) << 32, "header length is 4294967296"}};
    for (size_t i = 0; i < LENGTH(bad); ++i)
        expect_refused(TENSOR_FILE_SAFETENSORS, concatenate(&bad[i].length, 8, zeros, 64), bad[i].says);
    for (size_t size = 0; size < 10; ++size) {
        char says[64];
        sprintf(says, "has %zu bytes; the shortest safetensors file has 10", size);
        expect_refused(TENSOR_FILE_SAFETENSORS, concatenate(zeros, size, NULL, 0), says);
    }
}

Test(safetensors, a_header_of_more_than_100_megabytes_is_refused)
{
    const uint64_t length = 100000001;
    struct bytes bytes = {calloc(length + 8, 1), length + 8};
    memcpy(bytes.at, &length, sizeof length);
    expect_refused(TENSOR_FILE_SAFETENSORS, bytes, "header length is 100000001; it must be 2 .. 100000000");
}

Test(safetensors, deep_nesting_is_refused)
{
    static char header[1 << 20] = "{\"q\":";
    memset(header + 5, '[', sizeof header - 6);
    expect_refused(TENSOR_FILE_SAFETENSORS, safetensors(header, NULL, 0), "header is not valid JSON");
}

/* ---- .npy ---- */

#define HEADER(descr, order, shape) "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

Test(npy, every_dtype_and_version_is_read)
{
    static const struct {
        const char *header;
        int32_t dtype;
    } good[] = {{HEADER("<f8", "False", "(3,)") "      \n", TENSOR_FP64},
                {HEADER("<f4", "False", "(3,)"), ATTEST_FP32},
                {HEADER("<f2", "False", "(3,)"), ATTEST_FP16},
                {HEADER("<i8", "False", "(3,)"), TENSOR_INT64},
                {HEADER("<i4", "False", "(3,)"), TENSOR_INT32},
                {HEADER("|u1", "False", "(3,)"), ATTEST_UINT8},
                {HEADER("|b1", "False", "(3,)"), ATTEST_UINT8}};
    uint8_t data[24];
    for (int i = 0; i < 24; ++i) data[i] = (uint8_t)(7 * i + 1);
    for (int version = 1; version <= 3; ++version) {
        for (size_t i = 0; i < LENGTH(good); ++i) {
            const size_t size = 3 * tensor_dtype_bytes(good[i].dtype);
            struct tensor_file *file = parse(TENSOR_FILE_NPY, "some/dq.npy", npy(version, good[i].header, data, size));
            const struct tensor *t = tensor_file_find(file, "dq");
            cr_assert(file->count == 1 && file->num_metadata == 0 && t == file->tensors);
            cr_assert(t->dtype == good[i].dtype && memcmp(t->data, data, size) == 0);
            expect_shape(t, 1, (int64_t[]){3}, 3);
            tensor_file_close(file);
        }
    }
}

Test(npy, dictionaries_may_be_written_in_any_way_that_python_reads_the_same)
{
    static const struct {
        const char *header;
        int32_t ndim;
        int64_t shape[TENSOR_MAX_NDIM], elements;
    } good[] = {{HEADER("<f4", "False", "()"), 0, {0}, 1},
                {HEADER("<f4", "False", "(0,)"), 1, {0}, 0},
                {HEADER("<f4", "False", "(2, 0, 3)"), 3, {2, 0, 3}, 0},
                {HEADER("<f4", "True", "()"), 0, {0}, 1},
                {HEADER("<f4", "True", "(0, 2)"), 2, {0, 2}, 0},
                {"{\"shape\":(1,2,),\n\t\"fortran_order\":False,\"descr\":\"<f4\"}", 2, {1, 2}, 2},
                {" { 'descr' : '<f4' , 'shape' : ( 2 ,1 ) , 'fortran_order' : False } ", 2, {2, 1}, 2},
                {HEADER("<f4", "False", "(1, 1, 1, 2, 1, 1, 1, 1)"), 8, {1, 1, 1, 2, 1, 1, 1, 1}, 2}};
    for (size_t i = 0; i < LENGTH(good); ++i) {
        const size_t size = 4 * (size_t)good[i].elements;
        struct tensor_file *file = parse(TENSOR_FILE_NPY, "lse", npy(1, good[i].header, zeros, size));
        expect_shape(tensor_file_find(file, "lse"), good[i].ndim, good[i].shape, good[i].elements);
        tensor_file_close(file);
    }
}

Test(npy, column_major_arrays_come_out_row_major)
{
    uint8_t columns[24];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            for (int x = 0; x < 4; ++x) columns[i + 2 * (j + 3 * x)] = (uint8_t)(100 * i + 10 * j + x);
    struct tensor_file *file = parse(TENSOR_FILE_NPY, "x", npy(1, HEADER("|u1", "True", "(2, 3, 4)"), columns, 24));
    const uint8_t *rows = file->tensors[0].data;
    expect_shape(&file->tensors[0], 3, (int64_t[]){2, 3, 4}, 24);
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            for (int x = 0; x < 4; ++x) cr_assert(rows[(i * 3 + j) * 4 + x] == 100 * i + 10 * j + x);
    tensor_file_close(file);

    static const double transposed[] = {1, 4, 2, 5, 3, 6};
    file = parse(TENSOR_FILE_NPY, "x", npy(2, HEADER("<f8", "True", "(2, 3)"), transposed, sizeof transposed));
    for (int i = 0; i < 6; ++i) cr_assert(((const double *)file->tensors[0].data)[i] == i + 1);
    tensor_file_close(file);
}

Test(npy, malformed_headers_are_refused_by_the_name_of_the_field)
{
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } bad[] = {
        {"", 0, "header: '{' is expected at byte 0 of 0"},
        {"   ", 0, "header: '{' is expected at byte 3 of 3"},
        {"('descr', '<f4')", 0, "header: '{' is expected at byte 0"},
        {"{", 0, "header: key at byte 1 of 1 is not a string"},
        {"{,}", 0, "header: key at byte 1 of 3 is not a string"},
        {"{'descr'", 0, "header: ':' is expected at byte 8"},
        {"{'descr", 0, "header: key at byte 1 is not a string"},
        {"{'descr': '<f4' 'shape'", 0, "header: ',' is expected at byte 16"},
        {"{'descr': '<f4", 0, "header: descr at byte 10 is not a string"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", 4, "descr at byte 10 is not a string of 1 .. 31"},
        {"{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}", 4, "descr at byte 10 is not a string"},
        {"{'descr': '<f4<f4<f4<f4<f4<f4<f4<f4<f4<f4<f4'}", 4, "descr at byte 10 is not a string of 1 .. 31"},
        {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, "descr at byte 10 of 64 is not a"},
        {"{'fortran_order': False, 'shape': (1,)}", 4, "header: descr is missing"},
        {"{'descr': '<f4', 'shape': (1,)}", 4, "header: fortran_order is missing"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, "header: shape is missing"},
        {"{'descr': '<f4', 'descr': '<f4'}", 4, "key 'descr' is unknown or there twice"},
        {"{'fortran_order': False, 'fortran_order': False}", 4, "key 'fortran_order' is unknown or there twice"},
        {"{'shape': (1,), 'shape': (1,)}", 4, "key 'shape' is unknown or there twice"},
        {"{'strides': (4,)}", 4, "key 'strides' is unknown or there twice"},
        {HEADER(">f4", "False", "(1,)"), 4, "descr is '>f4', big-endian"},
        {HEADER("<V2", "False", "(2,)"), 4, "descr is '<V2'; <f8, <f4, <f2, integers and |b1 can be read (bf16"},
        {HEADER("|O", "False", "(1,)"), 4, "descr is '|O'"},
        {HEADER("<c8", "False", "(1,)"), 8, "descr is '<c8'"},
        {HEADER("<f4", "0", "(1,)"), 4, "fortran_order at byte 34 is neither True nor False"},
        {HEADER("<f4", "'False'", "(1,)"), 4, "fortran_order at byte 34"},
        {HEADER("<f4", "False", "[1]"), 4, "header: '(' is expected"},
        {HEADER("<f4", "False", "1"), 4, "header: '(' is expected"},
        {HEADER("<f4", "False", "(1)"), 4, "header: shape is not a tuple"},
        {HEADER("<f4", "False", "(,)"), 4, "header: shape[0] at byte 51 is not an integer 0 .. 2^63 - 1"},
        {HEADER("<f4", "False", "(1,,1)"), 4, "shape[1] at byte 53"},
        {HEADER("<f4", "False", "(-1,)"), 4, "shape[0] at byte 51 is not an integer"},
        {HEADER("<f4", "False", "(1.0,)"), 4, "header: ',' is expected at byte 52"},
        {HEADER("<f4", "False", "(1L,)"), 4, "header: ',' is expected at byte 52"},
        {HEADER("<f4", "False", "(9223372036854775808,)"), 4, "shape[0] is more than 2^63 - 1"},
        {HEADER("<f4", "False", "(99999999999999999999999999,)"), 4, "shape[0] is more than 2^63 - 1"},
        {HEADER("<f4", "False", "(4294967296, 4294967296)"), 4, "shape has a product of more than 2^63 - 1 bytes"},
        {HEADER("<f4", "True", "(0, 4294967296, 4294967296)"), 0, "shape has a product of more than 2^63 - 1 bytes"},
        {HEADER("<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 4, "shape has more than 8 entries"},
        {HEADER("<f4", "False", "(1, "), 4, "shape[1] at byte 54"},
        {HEADER("<f4", "False", "(2,)"), 4, "descr and shape need 8 bytes of data, but 4 follow the header"},
        {HEADER("<f4", "False", "(1,)"), 5, "descr and shape need 4 bytes of data, but 5 follow the header"},
        {HEADER("<f4", "True", "(1000000000000,)"), 4, "need 4000000000000 bytes of data, but 4 follow"},
        {HEADER("<f4", "False", "(1,)") "  x", 4, "header: byte 59 of 60 follows the dictionary"},
        {HEADER("<f4", "False", "(1,)") "{}", 4, "header: byte 57 of 59 follows the dictionary"},
        {"{'\x1b\xc3.': 1}", 0, "key '??.' is unknown"},
    };
    for (size_t i = 0; i < LENGTH(bad); ++i)
        expect_refused(TENSOR_FILE_NPY, npy(1, bad[i].header, zeros, bad[i].data), bad[i].says);
}

Test(npy, what_does_not_begin_as_npy_is_refused)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } bad[] = {{"", 0, "is not a .npy file: its first bytes are not \\x93NUMPY and a version"},
               {"\x93NUMPY\x01", 7, "is not a .npy file"},
               {"\x93NUMPy\x01\0\0\0", 10, "is not a .npy file"},
               {"PK\x03\x04\x14\0\0\0\0\0", 10, "is not a .npy file"},
               {"\x93NUMPY\0\0\0\0", 10, "version is 0.0; 1.0, 2.0 and 3.0 can be read"},
               {"\x93NUMPY\x04\0\0\0\0\0", 12, "version is 4.0"},
               {"\x93NUMPY\x01\x02\0\0", 10, "version is 1.2"},
               {"\x93NUMPY\x01\0\0", 9, "is cut off: it has 9 bytes, its header length ends at 10"},
               {"\x93NUMPY\x02\0\0\0\0", 11, "is cut off: it has 11 bytes, its header length ends at 12"},
               {"\x93NUMPY\x01\0\x02\0{", 11, "is cut off: header length is 2; it must be 0 .. 1"},
               {"\x93NUMPY\x03\0\xff\xff\xff\xff{}", 14, "header length is 4294967295; it must be 0 .. 2"}};
    for (size_t i = 0; i < LENGTH(bad); ++i)
        expect_refused(TENSOR_FILE_NPY, concatenate(bad[i].bytes, bad[i].size, NULL, 0), bad[i].says);
}

/* ---- both ---- */

Test(readers, no_beginning_of_a_file_is_a_file)
{
    struct bytes whole[2] = {
        safetensors("{" F32("q", "[0,4]") "," F32("k", "[4,8]") ",\"__metadata__\":{\"a\":\"b\"}}", zeros, 8),
        npy(1, HEADER("<f4", "False", "(2,)") "   \n", zeros, 8)};
    for (int format = 0; format < 2; ++format) {
        for (size_t size = 0; size < whole[format].size; ++size)
            expect_refused((enum tensor_file_format)format, concatenate(whole[format].at, size, NULL, 0), "");
        tensor_file_close(parse((enum tensor_file_format)format, "x", whole[format]));
    }
}

Test(readers, a_sentence_is_cut_to_its_buffer)
{
    struct tensor_file *file;
    char whole[512];
    tensor_file_parse(TENSOR_FILE_NPY, "some/q.npy", "", 0, &file, whole, sizeof whole);
    for (size_t size = 0; size < 64; ++size) {
        char *sentence = malloc(size + 1);
        sentence[size] = 'x';
        cr_assert(tensor_file_parse(TENSOR_FILE_NPY, "some/q.npy", "", 0, &file, sentence, size) == -1);
        cr_assert(size == 0 || (strlen(sentence) == size - 1 && memcmp(sentence, whole, size - 1) == 0));
        cr_assert(sentence[size] == 'x');
        free(sentence);
    }
}

/* ---- files and folders ---- */

/* Of this test's files; each test works in its own, so that paths are short enough to be shown whole. */
static char home[4096];
static const char *const folder = ".";

static const char *path_of(const char *name)
{
    static char path[4][4096];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof *path, "%s/%s", folder, name);
    return to;
}

static void make_folder(void)
{
    const char *parent = getenv("TEST_TMPDIR");
    static char template[4000];
    snprintf(template, sizeof template, "%s/readers.XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert(mkdtemp(template) != NULL && realpath(template, home) != NULL && chdir(home) == 0);
}

static void remove_folder(void)
{
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    cr_assert(system(command) == 0);
}

static void write_file(const char *name, struct bytes bytes)
{
    FILE *f = fopen(path_of(name), "wb");
    cr_assert(f != NULL && fwrite(bytes.at, 1, bytes.size, f) == bytes.size && fclose(f) == 0);
    free(bytes.at);
}

static void expect_unopened(const char *path, const char *begins, const char *says)
{
    char sentence[512] = "";
    struct tensor_file *file = (struct tensor_file *)&file;
    cr_assert(tensor_file_open(path, &file, sentence, sizeof sentence) == -1 && file == NULL);
    expect_sentence(sentence, begins, says);
}

static struct tensor_file *open_file(const char *path)
{
    char sentence[512] = "";
    struct tensor_file *file;
    cr_assert(tensor_file_open(path, &file, sentence, sizeof sentence) == 0, "%s", sentence);
    return file;
}

TestSuite(files, .init = make_folder, .fini = remove_folder);

Test(files, what_is_written_is_read)
{
    static const int32_t dtypes[] = {ATTEST_UINT8, TENSOR_FP64,  ATTEST_BF16,     ATTEST_FP32, ATTEST_FP8_E4M3,
                                     ATTEST_FP16,  TENSOR_INT32, ATTEST_FP8_E5M2, TENSOR_INT64};
    static const char *const names[LENGTH(dtypes)] = {"mask", "\xc3\xbc", "o", "\"", "", "a b", "\n", "q", "none"};
    static const struct tensor_metadata metadata[] = {{"implementation", "x y"}, {"causal", "true"}};
    uint8_t data[48];
    struct tensor tensors[LENGTH(dtypes)];
    for (size_t i = 0; i < sizeof data; ++i) data[i] = (uint8_t)(7 * i + 1);
    for (int i = 0; i < (int)LENGTH(dtypes); ++i)
        tensors[i] = (struct tensor){.name = names[i], .dtype = dtypes[i], .ndim = 2, .shape = {3, i % 3},
                                     .data = data};
    cr_assert(write_safetensors(path_of("x.safetensors"), tensors, LENGTH(dtypes), metadata, 2) == 0);
    struct tensor_file *file = open_file(path_of("x.safetensors"));
    cr_assert(file->count == (int)LENGTH(dtypes));
    for (int i = 0; i < file->count; ++i) {
        const struct tensor *t = tensor_file_find(file, names[i]);
        cr_assert(t != NULL && t->dtype == dtypes[i]);
        expect_shape(t, 2, tensors[i].shape, 3 * (i % 3));
        cr_assert(memcmp(t->data, data, (size_t)t->elements * tensor_dtype_bytes(t->dtype)) == 0);
    }
    cr_assert(strcmp(tensor_file_metadata(file, "implementation"), "x y") == 0);
    tensor_file_close(file);

    const struct tensor absent = {.name = "q", .dtype = ATTEST_ABSENT};
    cr_assert(write_safetensors(path_of("y"), &absent, 1, NULL, 0) != 0 && access(path_of("y"), F_OK) != 0);
    cr_assert(write_safetensors(path_of("no/y"), tensors, 1, NULL, 0) != 0);
}

Test(files, a_folder_of_npy_files_is_one_file)
{
    mkdir(path_of("run"), 0700);
    write_file("run/v.npy", npy(1, HEADER("|u1", "False", "(2,)"), "34", 2));
    write_file("run/q.npy", npy(2, HEADER("|u1", "False", "(1,)"), "1", 1));
    write_file("run/k w.npy", npy(3, HEADER("|u1", "False", "(1,)"), "2", 1));
    write_file("run/._q.npy", npy(1, "junk", NULL, 0));
    write_file("run/README", npy(1, "junk", NULL, 0));
    struct tensor_file *file = open_file(path_of("run"));
    static const char *const names[] = {"k w", "q", "v"};
    cr_assert(file->count == 3 && file->num_metadata == 0);
    for (int i = 0; i < 3; ++i) cr_assert(strcmp(file->tensors[i].name, names[i]) == 0);
    cr_assert(memcmp(tensor_file_find(file, "v")->data, "34", 2) == 0);
    tensor_file_close(file);

    file = open_file(path_of("run/v.npy"));
    cr_assert(file->count == 1 && tensor_file_find(file, "v") != NULL);
    tensor_file_close(file);

    write_file("run/r.npy", npy(1, "junk", NULL, 0));
    expect_unopened(path_of("run"), path_of("run/r.npy: "), "header: '{' is expected");
    unlink(path_of("run/r.npy"));
    mkdir(path_of("run/r.npy"), 0700);
    expect_unopened(path_of("run"), path_of("run/r.npy: "), "is neither a file nor a folder");
}

Test(files, what_cannot_be_read_is_named)
{
    expect_unopened(path_of("missing.npy"), path_of("missing.npy: "), "cannot be opened: No such file or directory");
    expect_unopened("", ": ", "cannot be opened: No such file or directory");
    expect_unopened(folder, folder, "holds no .npy file");
    expect_unopened("/dev/zero", "/dev/zero: ", "is neither a file nor a folder");
    write_file("empty.npy", concatenate("", 0, NULL, 0));
    write_file("empty.safetensors", concatenate("", 0, NULL, 0));
    expect_unopened(path_of("empty.npy"), path_of("empty.npy: "), "is not a .npy file");
    expect_unopened(path_of("empty.safetensors"), path_of("empty.safetensors: "), "has 0 bytes");
    write_file("npy", npy(1, HEADER("|u1", "False", "(1,)"), "1", 1));
    expect_unopened(path_of("npy"), path_of("npy: "), "is no safetensors file");
    cr_assert(mkfifo(path_of("pipe.npy"), 0600) == 0);
    expect_unopened(path_of("pipe.npy"), path_of("pipe.npy: "), "is neither a file nor a folder");
    cr_assert(symlink("nowhere", path_of("link.npy")) == 0);
    expect_unopened(folder, path_of("empty.npy: "), "is not a .npy file");
    expect_unopened(path_of("link.npy"), path_of("link.npy: "), "cannot be opened");
}

Test(files, without_permission_nothing_is_read)
{
    const uid_t user = geteuid();
    write_file("q.npy", npy(1, HEADER("|u1", "False", "(1,)"), "1", 1));
    cr_assert(chmod(path_of("q.npy"), 0) == 0 && chmod(folder, 0755) == 0);
    if (user == 0) cr_assert(seteuid(65534) == 0); /* root may read anything */
    expect_unopened(path_of("q.npy"), path_of("q.npy: "), "Permission denied");
    cr_assert(seteuid(user) == 0 && chmod(folder, 0) == 0);
    if (user == 0) cr_assert(seteuid(65534) == 0);
    expect_unopened(folder, folder, "Permission denied");
    cr_assert(seteuid(user) == 0 && chmod(folder, 0755) == 0);
}

Test(files, the_end_of_a_long_path_is_shown)
{
    char name[300];
    memset(name, 'n', sizeof name);
    strcpy(name + 240, "/absent/q.npy");
    expect_unopened(path_of(name), "...nnnn", "nnnn/absent/q.npy: cannot be opened: ");
}
