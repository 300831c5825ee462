/* archives_test.c - .npz as numpy writes it and .pt as PyTorch does; damaged ones are refused in one sentence. */
#define _POSIX_C_SOURCE 200809L
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/fuzz/zip_bytes.h"
#include "reference/audit/tensor_file.h"

#define CORPUS "reference/audit/fuzz/corpus/zip/"

static struct tensor_file *opened(const char *path)
{
    char sentence[512] = "";
    struct tensor_file *file;
    cr_assert_eq(tensor_file_open(path, &file, sentence, sizeof sentence), 0, "%s", sentence);
    return file;
}

static const struct tensor *found(const struct tensor_file *file, const char *name, int32_t dtype, int ndim,
                                  const int64_t *shape)
{
    const struct tensor *t = tensor_file_find(file, name);
    cr_assert_not_null(t, "%s", name);
    cr_assert(t->dtype == dtype && t->ndim == ndim, "%s: %s, %d axes", name, tensor_dtype_name(t->dtype), t->ndim);
    for (int i = 0; i < ndim; ++i) cr_expect_eq(t->shape[i], shape[i], "%s[%d]", name, i);
    return t;
}

static void expect_metadata(const struct tensor_file *file, const char *key, const char *value)
{
    const char *got = tensor_file_metadata(file, key);
    cr_assert_not_null(got, "%s", key);
    cr_expect_str_eq(got, value, "%s", key);
}

/* Written by numpy 1.24: q of fp32, k of the same numbers column-major, numbers and a text. */
Test(npz, as_numpy_writes_it)
{
    struct tensor_file *file = opened(CORPUS "numpy.npz");
    const struct tensor *q = found(file, "q", ATTEST_FP32, 3, (int64_t[]){3, 2, 4});
    const struct tensor *k = found(file, "k", ATTEST_FP32, 3, (int64_t[]){3, 2, 4});
    cr_expect_eq(memcmp(q->data, k->data, 24 * sizeof(float)), 0);
    found(file, "causal", ATTEST_UINT8, 0, NULL);
    expect_metadata(file, "layout", "shd");
    tensor_file_close(file);
    file = opened(CORPUS "compressed.npz");
    found(file, "lse", ATTEST_FP32, 2, (int64_t[]){2, 3});
    found(file, "cu_seqlens", TENSOR_INT64, 1, (int64_t[]){2});
    cr_expect_eq(tensor_file_find(file, "objects")->dtype, TENSOR_BYTES); /* of texts: named, not read */
    tensor_file_close(file);
}

/* Written by PyTorch 2.15: views of one storage in a nested dictionary, fp8, formats and objects that are not read. */
Test(pt, as_torch_writes_it)
{
    struct tensor_file *file = opened(CORPUS "views.pt");
    const struct tensor *v[3] = {found(file, "q", ATTEST_FP16, 3, (int64_t[]){3, 2, 4}),
                                 found(file, "k", ATTEST_FP16, 3, (int64_t[]){3, 2, 4}),
                                 found(file, "v", ATTEST_FP16, 3, (int64_t[]){3, 2, 4})};
    cr_expect(memcmp(v[0]->data, v[1]->data, 48) != 0 && memcmp(v[1]->data, v[2]->data, 48) != 0);
    const float *p = found(file, "p", ATTEST_FP32, 1, (int64_t[]){2})->data;
    cr_expect(p[0] == 1 && p[1] == 1);
    found(file, "f8", ATTEST_FP8_E4M3, 2, (int64_t[]){2, 2});
    found(file, "u", TENSOR_UINT16, 1, (int64_t[]){2});
    cr_expect_eq(tensor_file_find(file, "c")->dtype, TENSOR_BYTES);
    expect_metadata(file, "size", "1,2,4,8");
    expect_metadata(file, "odd", "an object, which is not read");
    tensor_file_close(file);
    file = opened(CORPUS "inputs.pt");
    found(file, "query", ATTEST_BF16, 4, (int64_t[]){1, 2, 4, 8});
    expect_metadata(file, "is_causal", "false");
    expect_metadata(file, "window", "None");
    cr_expect_float_eq(atof(tensor_file_metadata(file, "scale")), 0.35355339059327379, 1e-16);
    tensor_file_close(file);
    file = opened(CORPUS "single.pt"); /* arange(6).reshape(2, 3).t(), by itself: called as its file */
    const int64_t *x = found(file, "single", TENSOR_INT64, 2, (int64_t[]){3, 2})->data;
    static const int64_t want[6] = {0, 3, 1, 4, 2, 5};
    cr_expect_eq(memcmp(x, want, sizeof want), 0);
    tensor_file_close(file);
}

/* ---- what is refused ---- */

static void expect_refused(const struct zip_member *members, int count, const char *says)
{
    size_t size = 0;
    uint8_t *bytes = zip_bytes(members, count, &size);
    char sentence[512] = "";
    struct tensor_file *file;
    const int result = tensor_file_parse(TENSOR_FILE_ZIP, "a/bad", bytes, size, &file, sentence, sizeof sentence);
    free(bytes);
    cr_assert(result == -1 && file == NULL, "refused: %s", says);
    cr_expect(strncmp(sentence, "a/bad: ", 7) == 0 && strstr(sentence, says) != NULL, "'%s' says '%s'", sentence, says);
}

#define ARRAY "\x93NUMPY\x01\0\x3b\0{'descr': '|u1', 'fortran_order': False, 'shape': (2,), } \n12"

Test(npz, damaged_ones_are_refused)
{
    const struct zip_member twice[] = {{"q.npy", ARRAY, sizeof ARRAY - 1}, {"x/q.npy", ARRAY, sizeof ARRAY - 1}};
    expect_refused(twice, 2, "x/q.npy: is there twice");
    const struct zip_member cut[] = {{"q.npy", ARRAY, sizeof ARRAY - 2}};
    expect_refused(cut, 1, "q.npy: descr and shape need 2 bytes of data, but 1 follow the header");
    const struct zip_member other[] = {{"q.txt", "1", 1}};
    expect_refused(other, 1, "is an archive without .npy files and without data.pkl");
    size_t size = 0;
    uint8_t *bytes = zip_bytes(twice, 1, &size);
    char sentence[512];
    struct tensor_file *file;
    bytes[90] ^= 1; /* a byte of the array, whose checksum then is another's */
    cr_assert_eq(tensor_file_parse(TENSOR_FILE_ZIP, "a", bytes, size, &file, sentence, sizeof sentence), -1);
    cr_expect_not_null(strstr(sentence, "q.npy: cannot be unpacked: CRC error"), "%s", sentence);
    cr_assert_eq(tensor_file_parse(TENSOR_FILE_ZIP, "a", bytes, size - 9, &file, sentence, sizeof sentence), -1);
    cr_expect_not_null(strstr(sentence, "is no archive that can be read"), "%s", sentence);
    free(bytes);
}

#define STORAGE "(X\x07\0\0\0storagectorch\nByteStorage\nX\x01\0\0\x00\x30X\x03\0\0\0cpuK\x04tQ"
#define TENSOR(offset, size, stride) \
    "\x80\x02}X\x01\0\0\0qctorch._utils\n_rebuild_tensor_v2\n(" STORAGE offset size stride "\x89NtRs."

Test(pt, damaged_ones_are_refused)
{
    static const struct {
        const char *pickle;
        size_t size;
        const char *says;
    } cases[] = {
#define CASE(text, says) {text, sizeof text - 1, says}
        CASE("", "pickle: there is no end at byte 0 of 0"),
        CASE("\x80\x02", "pickle: there is no end"),
        CASE(".", "pickle: a value is missing"),
        CASE("\x80\x02\xfe.", "pickle: code 0xfe at byte 2 is not understood"),
        CASE("X\xff\xff\xff\xff"
             "a.",
             "pickle: the pickle ends"),
        CASE("t.", "pickle: a mark is missing"),
        CASE("h\x05.", "pickle: the memo has no such place"),
        CASE("Nr\xff\xff\xff\x7f.", "pickle: a place of the memo is too large"),
        CASE("cos", "pickle: a line does not end"),
        CASE("}X\x01\0\0\0au.", "pickle: a mark is missing"),
        CASE("}(X\x01\0\0\0au.", "pickle: a key has no value"),
        CASE("}Na.", "pickle: a key has no value"),
        CASE("]q\0h\0a.", "lies in more than 8 containers"), /* a list that holds itself */
        CASE(TENSOR("J\xff\xff\xff\xff", "K\x02\x85", "K\x01\x85"),
             "tensor 'q' reaches from element -1 to 0 of a storage of 4"),
        CASE(TENSOR("K\x03", "K\x02\x85", "K\x01\x85"), "tensor 'q' reaches from element 3 to 4 of a storage of 4"),
        CASE(TENSOR("K\x00", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85",
                    "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"),
             "tensor 'q' reaches from element 0 to 9223372036854775807"),
        CASE(TENSOR("K\x00", "\x8a\x08\0\0\0\0\0\0\0\x10\x85", "K\x00\x85"),
             "tensor 'q' expands a storage of 4 bytes beyond measure"),
        CASE(TENSOR("K\x00", "K\x02\x85", "K\x01K\x01\x86"),
             "tensor 'q': offset, size and stride are not what torch.save writes"),
        CASE(TENSOR("K\x00", "J\xff\xff\xff\xff\x85", "K\x01\x85"),
             "tensor 'q': sizes and strides must be 0 .. 2^63 - 1"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const struct zip_member members[] = {{"x/data.pkl", cases[i].pickle, cases[i].size}, {"x/data/0", "1234", 4}};
        expect_refused(members, 2, cases[i].says);
    }
    const char good[] = TENSOR("K\x01", "K\x02K\x02\x86", "K\x00K\x01\x86");
    const struct zip_member no_storage[] = {{"x/data.pkl", good, sizeof good - 1}};
    expect_refused(no_storage, 1, "tensor 'q': there is no storage '0'");
    const struct zip_member big[] = {
        {"x/data.pkl", good, sizeof good - 1}, {"x/data/0", "1234", 4}, {"x/byteorder", "big", 3}};
    expect_refused(big, 3, "its byte order is not little");
    size_t size = 0;
    uint8_t *bytes = zip_bytes(big, 2, &size);
    char sentence[512];
    struct tensor_file *file;
    cr_assert_eq(tensor_file_parse(TENSOR_FILE_ZIP, "a", bytes, size, &file, sentence, sizeof sentence), 0, "%s",
                 sentence);
    cr_expect_eq(memcmp(found(file, "q", ATTEST_UINT8, 2, (int64_t[]){2, 2})->data, "2323", 4), 0);
    tensor_file_close(file);
    free(bytes);
}

/* What runs a command when Python loads it is an object here. */
Test(pt, nothing_of_a_pickle_is_called)
{
    static const char pickle[] = "}X\x01\0\0\0acposix\nsystem\nX\x0c\0\0\0touch /tmp/x\x85Rs.";
    const struct zip_member members[] = {{"x/data.pkl", pickle, sizeof pickle - 1}};
    size_t size = 0;
    uint8_t *bytes = zip_bytes(members, 1, &size);
    char sentence[512];
    struct tensor_file *file;
    cr_assert_eq(tensor_file_parse(TENSOR_FILE_ZIP, "a", bytes, size, &file, sentence, sizeof sentence), 0, "%s",
                 sentence);
    expect_metadata(file, "a", "an object, which is not read");
    tensor_file_close(file);
    free(bytes);
}
