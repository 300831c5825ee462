/* unit_probe.cu - tensor-core instructions on tiles of numbers, one CTA a tile: see unit_probe.h.
 *
 * Rows of a and b_t are 8 words of 32 bits: 16 16-bit numbers or 8 of tf32. The same words of a fragment lie in the
 * same places for both. */
#include "kernels/device/device.h"
#include "kernels/device/probes/unit_probe.h"

#include <stdio.h>

namespace {

enum { WORDS = 8 };

/* A fragment of 16 rows by 8 words. */
DEVICE void load_a(uint32_t (&fragment)[4], const uint32_t *rows)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    for (int i = 0; i < 4; ++i) fragment[i] = rows[(g + i % 2 * 8) * WORDS + t + i / 2 * 4];
}

/* Where element i of an accumulator fragment of 16 rows lies among rows of n. */
DEVICE int place(int i, int n)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    return (g + i / 2 % 2 * 8) * n + i / 4 * 8 + 2 * t + i % 2;
}

#define MMA_PROBE(id, instruction)                                                                                   \
    KERNEL(32, 1) void id##_kernel(const uint32_t *a, const uint32_t *b_t, const float *c, float *d)                 \
    {                                                                                                                \
        const int tile = static_cast<int>(block_x()), g = static_cast<int>(lane()) / 4;                              \
        uint32_t a_fragment[4], b_fragment[2];                                                                       \
        float c_fragment[4], d_fragment[4];                                                                          \
        load_a(a_fragment, a + tile * 16 * WORDS);                                                                   \
        for (int i = 0; i < 2; ++i)                                                                                  \
            b_fragment[i] = b_t[(tile * 8 + g) * WORDS + static_cast<int>(lane()) % 4 + 4 * i];                      \
        for (int i = 0; i < 4; ++i) c_fragment[i] = c ? c[tile * 128 + place(i, 8)] : 0.0f;                          \
        instruction(d_fragment, a_fragment, b_fragment, c_fragment);                                                 \
        for (int i = 0; i < 4; ++i) d[tile * 128 + place(i, 8)] = d_fragment[i];                                     \
    }

MMA_PROBE(mma_f16, mma_m16n8k16_f16)
MMA_PROBE(mma_bf16, mma_m16n8k16_bf16)
MMA_PROBE(mma_tf32, mma_m16n8k8_tf32)

/* Both operands K-major, not swizzled: core matrices of 8 rows by 16 bytes, the two of 8 rows side by side. */
enum { CORE_BYTES = 128, GROUP_BYTES = 2 * CORE_BYTES };

template <int ROWS>
struct alignas(128) matrix {
    uint32_t words[ROWS * WORDS];
};

template <int ROWS>
DEVICE void load_matrix(matrix<ROWS> &to, const uint32_t *from)
{
    for (int i = static_cast<int>(thread_x()); i < ROWS * WORDS; i += 128) {
        const int row = i / WORDS, word = i % WORDS, core = row / 8 * 2 + word / 4;
        to.words[core * 32 + row % 8 * 4 + word % 4] = from[i];
    }
}

/* registers: A is given as a fragment, else by descriptor. */
#define WGMMA_PROBE(id, format, N, registers)                                                                        \
    KERNEL(128, 1) void id##_kernel(const uint32_t *a, const uint32_t *b_t, const float *c, float *d)                \
    {                                                                                                                \
        STATIC_SHARED(matrix<64>, a_shared);                                                                         \
        STATIC_SHARED(matrix<N>, b_shared);                                                                          \
        const int tile = static_cast<int>(block_x()), row = static_cast<int>(warp()) * 16, at = (tile * 64 + row) * N; \
        uint32_t a_fragment[4];                                                                                      \
        float sum[N / 2];                                                                                            \
        load_a(a_fragment, a + (tile * 64 + row) * WORDS);                                                           \
        load_matrix(a_shared, a + tile * 64 * WORDS);                                                                \
        load_matrix(b_shared, b_t + tile * N * WORDS);                                                               \
        for (int i = 0; i < N / 2; ++i) sum[i] = c ? c[at + place(i, N)] : 0.0f;                                     \
        fence_proxy_async_shared();                                                                                  \
        sync_threads();                                                                                              \
        wgmma_fence();                                                                                               \
        wgmma_m64nNk16_##format<N>(sum, WGMMA_A_##registers,                                                         \
                                   wgmma_descriptor(&b_shared, CORE_BYTES, GROUP_BYTES, 0), c != nullptr);           \
        wgmma_commit();                                                                                              \
        wgmma_wait<0>();                                                                                             \
        wgmma_fence_operand(sum);                                                                                    \
        for (int i = 0; i < N / 2; ++i) d[at + place(i, N)] = sum[i];                                                \
    }
#define WGMMA_A_registers a_fragment
#define WGMMA_A_shared wgmma_descriptor(&a_shared, CORE_BYTES, GROUP_BYTES, 0)

#define WGMMA_PROBES(format, N)                                          \
    WGMMA_PROBE(wgmma_##format##_##N##_registers, format, N, registers) \
    WGMMA_PROBE(wgmma_##format##_##N##_shared, format, N, shared)

WGMMA_PROBES(f16, 8)
WGMMA_PROBES(f16, 64)
WGMMA_PROBES(f16, 256)
WGMMA_PROBES(bf16, 8)
WGMMA_PROBES(bf16, 64)
WGMMA_PROBES(bf16, 256)

int launch(unit_instruction instruction, int tiles, const uint32_t *a, const uint32_t *b_t, const float *c, float *d,
           void *stream)
{
    launch_shape shape = {};
    shape.grid[0] = static_cast<unsigned>(tiles);
    shape.block[0] = shape.max_threads = instruction <= UNIT_mma_tf32 ? 32 : 128;
    shape.min_blocks = 1;
    switch (instruction) {
#define X(id, format, m, n, name) \
    case UNIT_##id: return LAUNCH(id##_kernel, shape, stream, a, b_t, c, d);
        UNIT_INSTRUCTIONS(X)
#undef X
    default: return -1;
    }
}

struct extents {
    int m, n;
};

extents extents_of(unit_instruction instruction)
{
    static const extents all[] = {
#define X(id, format, m, n, name) {m, n},
        UNIT_INSTRUCTIONS(X)
#undef X
    };
    return all[instruction];
}

} // namespace

#if ON_CHIP

namespace {

/* Device memory for as long as this lives. */
struct device_array {
    void *data = nullptr;
    cudaError_t code = cudaSuccess;
    device_array(const void *from, size_t bytes)
    {
        code = cudaMalloc(&data, bytes);
        if (code == cudaSuccess)
            code = from ? cudaMemcpy(data, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(data, 0x5a, bytes);
    }
    ~device_array() { cudaFree(data); }
};

} // namespace

bool unit_probe_cuda(enum unit_instruction instruction, int tiles, const void *a, const void *b_t, const float *c,
                     float *d, char *why, size_t why_bytes)
{
    const extents e = extents_of(instruction);
    const size_t row = WORDS * sizeof(uint32_t), d_bytes = sizeof(float) * tiles * e.m * e.n;
    const device_array a_device(a, row * tiles * e.m), b_device(b_t, row * tiles * e.n), c_device(c, d_bytes),
        d_device(nullptr, d_bytes);
    int code = a_device.code | b_device.code | c_device.code | d_device.code;
    if (code == cudaSuccess)
        code = launch(instruction, tiles, static_cast<const uint32_t *>(a_device.data),
                      static_cast<const uint32_t *>(b_device.data), c ? static_cast<float *>(c_device.data) : nullptr,
                      static_cast<float *>(d_device.data), nullptr);
    if (code == cudaSuccess) code = cudaMemcpy(d, d_device.data, d_bytes, cudaMemcpyDeviceToHost);
    if (code != cudaSuccess) snprintf(why, why_bytes, "%s", launch_error_text(code));
    return code == cudaSuccess;
}

bool unit_probe_machine_cuda(char *text, size_t bytes)
{
    int devices = 0;
    cudaDeviceProp properties;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return false;
    char driver[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file) {
        if (fscanf(file, "%255[^\n]", driver) != 1) driver[0] = 0;
        fclose(file);
    }
    snprintf(text, bytes, "%s, sm_%d%d, %s", properties.name, properties.major, properties.minor, driver);
    return true;
}

#else

bool unit_probe_sim(enum unit_instruction instruction, int tiles, const void *a, const void *b_t, const float *c,
                    float *d, char *why, size_t why_bytes)
{
    const extents e = extents_of(instruction);
    const size_t row = WORDS * sizeof(uint32_t), d_bytes = sizeof(float) * tiles * e.m * e.n;
    sim_options options = {};
    options.generation = SIM_SM_90;
    sim_gpu *gpu = sim_gpu_create(&options);
    bool good = gpu && sim_map(gpu, "a", a, row * tiles * e.m, SIM_READ) &&
                sim_map(gpu, "b", b_t, row * tiles * e.n, SIM_READ) &&
                (!c || sim_map(gpu, "c", c, d_bytes, SIM_READ)) && sim_map(gpu, "d", d, d_bytes, SIM_WRITE);
    snprintf(why, why_bytes, "no memory");
    if (good && (launch(instruction, tiles, static_cast<const uint32_t *>(a), static_cast<const uint32_t *>(b_t), c, d,
                        gpu) != SIM_CLEAN || sim_check_written(gpu) != SIM_CLEAN)) {
        snprintf(why, why_bytes, "%s", sim_last_report(gpu)->text);
        good = false;
    }
    if (gpu) sim_gpu_destroy(gpu);
    return good;
}

#endif
