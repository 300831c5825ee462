/* states.h - what merges and their backward share: weights of states, and rows of features.
 *
 * A state of r rows is o [r][head_dim_v] and lse [r], packed. 1 .. 32 neighbours of a warp share a row, each has four
 * features at a time. */
#ifndef ATTEST_KERNELS_MERGE_STATES_H
#define ATTEST_KERNELS_MERGE_STATES_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"

constexpr float STATES_LOG2_E = 1.44269504f;

/* Returns false for a NaN, which must be felt. */
DEVICE bool is_empty(float lse) { return lse == -infinity_f32(); }

/* Returns exp(lse - whole). */
DEVICE float weight(float lse, float whole) { return exp2_f32((lse - whole) * STATES_LOG2_E); }

/* Names four features of a row: which of the tensor's elements they are, and how many of the four the row has. */
struct four_features {
    int64_t at, left;
    bool by_four; /* the four are there, and lie at a multiple of their bytes */
};

INLINE four_features features_at(int64_t row, int64_t head_dim_v, int64_t x, bool by_four)
{
    return {row * head_dim_v + x, head_dim_v - x, by_four};
}

DEVICE float number_of(uint16_t bits, int32_t dtype)
{
    return dtype == ATTEST_FP16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
}

/* Loads four features, with zeros past the row's end. */
INLINE quad load_features(const float *data, const four_features &f)
{
    if (f.by_four) return load_global_16<quad>(data + f.at);
    quad out;
    for (int n = 0; n < 4; ++n) out.at[n] = n < f.left ? data[f.at + n] : 0.0f;
    return out;
}

INLINE quad load_features(const void *data, int32_t dtype, const four_features &f)
{
    if (dtype == ATTEST_FP32) return load_features(static_cast<const float *>(data), f);
    const uint16_t *const numbers = static_cast<const uint16_t *>(data) + f.at;
    uint64_t bits = 0;
    if (f.by_four) bits = *reinterpret_cast<const uint64_t *>(numbers);
    else for (int n = 0; n < 4 && n < f.left; ++n) bits |= static_cast<uint64_t>(numbers[n]) << 16 * n;
    quad out;
    for (int n = 0; n < 4; ++n) out.at[n] = number_of(static_cast<uint16_t>(bits >> 16 * n), dtype);
    return out;
}

/* Stores four features; fp32 is kept bit by bit. */
DEVICE void store_features(float *data, const four_features &f, const quad &value)
{
    if (f.by_four) return store_global_16(data + f.at, value);
    for (int n = 0; n < 4; ++n)
        if (n < f.left) data[f.at + n] = value.at[n];
}

DEVICE void store_features(void *data, int32_t dtype, const four_features &f, const quad &value)
{
    if (dtype == ATTEST_FP32) return store_features(static_cast<float *>(data), f, value);
    uint16_t *const numbers = static_cast<uint16_t *>(data) + f.at;
    uint64_t bits = 0;
    for (int n = 0; n < 4; ++n) {
        const uint16_t number = dtype == ATTEST_FP16 ? to_f16(value.at[n]).bits : to_bf16(value.at[n]).bits;
        bits |= static_cast<uint64_t>(number) << 16 * n;
    }
    if (f.by_four) *reinterpret_cast<uint64_t *>(numbers) = bits;
    else for (int n = 0; n < 4 && n < f.left; ++n) numbers[n] = static_cast<uint16_t>(bits >> 16 * n);
}

/* Returns how many threads share a row, a power of two. Runs on the host. */
static inline int threads_of_row(int64_t head_dim_v)
{
    int threads = 1;
    while (threads < 32 && 4 * threads < head_dim_v) threads *= 2;
    return threads;
}

#endif
