/* emulate_formats.h - the number formats as the emulation converts them: from and to fp32, as a GPU does. */
#ifndef ATTEST_PROPTESTS_EMULATIONS_EMULATE_FORMATS_H
#define ATTEST_PROPTESTS_EMULATIONS_EMULATE_FORMATS_H

#include <stdint.h>

/* dtype: a floating-point one of enum attest_dtype. Element `index` of an array. */
float emulate_load(int32_t dtype, const void *data, int64_t index);
void emulate_store(int32_t dtype, void *data, int64_t index, float value);

/* To the nearest number of the format, ties to even; beyond the largest one infinity, or NaN in e4m3. */
float emulate_round(int32_t dtype, float value);
/* By enum attest_weights; scaled ones as two parts. */
float emulate_round_weight(int32_t dtype, int32_t weights, float value);

/* Exponent of the smallest normal number. */
int emulate_min_exponent(int32_t dtype);

#endif
