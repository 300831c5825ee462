/* async_test_tensor.c - tensor maps and tensor copies, element by element against the CUDA programming guide: boxes of
 * random tensors, inside, over the edge and outside. */
#include "kernels/sim/tests/async_test.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 600, MAX_BOX_BYTES = 16384, BARRIER = 60 * 1024, GARBAGE = 0x5a };

static uint64_t random_state;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/* ---- a random tensor, and a box of it ------------------------------------------------------------------------ */

static struct trial {
    struct sim_tensor_map_fields fields;
    _Alignas(64) unsigned char map[128];
    int32_t at[5];
    uint32_t offset; /* of the box in shared memory */
    enum { LOAD, STORE, ADD } what;
    unsigned char shared[MAX_BOX_BYTES + 1024]; /* after a load, before a store */
} trial;

static uint32_t element_bytes(void)
{
    static const uint32_t bytes[] = {
        [SIM_ELEMENT_FP32] = 4, [SIM_ELEMENT_FP16] = 2, [SIM_ELEMENT_BF16] = 2, [SIM_ELEMENT_UINT8] = 1};
    return bytes[trial.fields.element];
}

static uint32_t box_bytes(void)
{
    uint32_t bytes = element_bytes();
    for (int i = 0; i < trial.fields.ndim; ++i) bytes *= trial.fields.box[i];
    return bytes;
}

static void draw_dimensions(struct sim_tensor_map_fields *f)
{
    uint64_t bytes = element_bytes();
    for (int i = 0; i < f->ndim; ++i) {
        f->shape[i] = 1 + draw(i == 0 ? 80 : 9);
        if (i == 0 && trial.what != LOAD && draw(4)) f->shape[0] = (f->shape[0] * bytes + 15) / 16 * 16 / bytes;
        if (i > 0) {
            f->stride_bytes[i] = (bytes + 15) / 16 * 16 + 16 * draw(3);
            bytes = f->stride_bytes[i];
            f->box[i] = 1 + draw(12);
        }
        bytes *= f->shape[i];
    }
}

static bool fits(void)
{
    uint64_t end = element_bytes();
    for (int i = 0; i < trial.fields.ndim; ++i)
        end += (trial.fields.shape[i] - 1) * (i ? trial.fields.stride_bytes[i] : element_bytes());
    return end <= sizeof async_out && box_bytes() <= MAX_BOX_BYTES;
}

static void draw_trial(void)
{
    static const int swizzles[] = {0, 32, 64, 128};
    struct sim_tensor_map_fields *f = &trial.fields;
    do {
        *f = (struct sim_tensor_map_fields){.element = (enum sim_element)draw(4), .ndim = 1 + (int)draw(5)};
        trial.what = draw(f->element == SIM_ELEMENT_UINT8 ? 2 : 3);
        f->swizzle_bytes = swizzles[draw(4)];
        const uint32_t widest = f->swizzle_bytes ? (uint32_t)f->swizzle_bytes : 256 * element_bytes();
        uint32_t inner = 16 * (1 + draw(widest / 16));
        if (f->swizzle_bytes && draw(4)) inner = widest;
        f->box[0] = inner / element_bytes();
        f->nan_fill = f->element != SIM_ELEMENT_UINT8 && draw(3) == 0;
        draw_dimensions(f);
    } while (f->box[0] > 256 || !fits());
    for (int i = 0; i < f->ndim; ++i) {
        const int32_t step = i ? 1 : 16 / (int32_t)element_bytes();
        const int32_t before = trial.what == LOAD ? (int32_t)f->box[i] : 0;
        trial.at[i] = ((int32_t)draw((uint32_t)f->shape[i] + f->box[i] + (uint32_t)before) - before) / step * step;
    }
    if (draw(4) == 0) memset(trial.at, 0, sizeof trial.at);
    trial.offset = 128 * draw(8);
}

/* Where element number n of the box lies in shared memory, and in the tensor: -1, outside. */
static uint32_t shared_place(uint32_t n, uint32_t window_offset)
{
    const uint32_t swizzle = (uint32_t)trial.fields.swizzle_bytes, row_bytes = trial.fields.box[0] * element_bytes();
    const uint32_t byte = n * element_bytes(), base = window_offset / 128;
    if (!swizzle) return byte;
    if (row_bytes != swizzle) { /* rows side by side, then by the bits of the address */
        const uint32_t line = base + byte / 128, x = byte / 16 % (swizzle / 16);
        return byte / swizzle * swizzle + (x ^ line % (swizzle / 16)) * 16 + byte % 16;
    }
    const uint32_t y = byte / row_bytes, x = byte % row_bytes / 16;
    const uint32_t turn = swizzle == 128 ? (y + base) % 8 : swizzle == 64 ? (y / 2 + base) % 4 : (y / 4 + base) % 2;
    return y * row_bytes + (x ^ turn) * 16 + byte % 16;
}

static int64_t tensor_place(uint32_t n)
{
    const struct sim_tensor_map_fields *f = &trial.fields;
    int64_t byte = 0;
    for (int i = 0; i < f->ndim; ++i) {
        const int64_t at = trial.at[i] + (int64_t)(n % f->box[i]);
        n /= f->box[i];
        if (at < 0 || at >= (int64_t)f->shape[i]) return -1;
        byte += at * (int64_t)(i ? f->stride_bytes[i] : element_bytes());
    }
    return byte;
}

/* A store that reaches the end of a row goes on to its next multiple of 16 bytes: onto bytes that are not mapped. */
static bool overruns(void)
{
    const struct sim_tensor_map_fields *f = &trial.fields;
    if (trial.what == LOAD || f->shape[0] * element_bytes() % 16 == 0) return false;
    if ((uint64_t)trial.at[0] + f->box[0] <= f->shape[0]) return false;
    for (uint32_t n = 0; n < box_bytes() / element_bytes(); ++n)
        if (tensor_place(n) >= 0) return true;
    return false;
}

/* ---- the kernel: one thread ----------------------------------------------------------------------------------- */

static uint32_t window_offset;

static void move_box(const void *args)
{
    (void)args;
    char *shared = async_shared(), *tile = shared + trial.offset;
    window_offset = sim_shared_address(tile);
    if (trial.what == LOAD) {
        memset(shared, GARBAGE, sizeof trial.shared);
        make_barrier(shared + BARRIER, 1);
        sim_mbarrier_arrive_expect_tx(shared + BARRIER, box_bytes());
        sim_tensor_load(tile, trial.map, trial.at, trial.fields.ndim, shared + BARRIER, 0);
        wait_for(shared + BARRIER, 0);
        memcpy(trial.shared, tile, sizeof trial.shared - trial.offset);
        return;
    }
    const bool all = overruns(); /* else what is not stored need not be there */
    for (uint32_t n = 0; n < box_bytes() / element_bytes(); ++n) {
        char *place = tile + shared_place(n, window_offset);
        memcpy(place, trial.shared + n * element_bytes(), element_bytes());
        if (all || tensor_place(n) >= 0) sim_watch_write(place, element_bytes(), element_bytes(), "store", SIM_SITE);
    }
    sim_fence_proxy_async();
    if (trial.what == STORE) sim_tensor_store(trial.map, trial.at, trial.fields.ndim, tile);
    else sim_tensor_reduce_add(trial.map, trial.at, trial.fields.ndim, tile);
    sim_bulk_commit();
    sim_bulk_wait(0);
}

/* ---- what it should have done --------------------------------------------------------------------------------- */

static bool is_fill(const unsigned char *element)
{
    const uint32_t fill = trial.fields.nan_fill ? 0x7ff77ff7 : 0;
    return memcmp(element, &fill, element_bytes()) == 0;
}

static void check_load(const char *what)
{
    static bool filled[sizeof trial.shared];
    const unsigned char *tensor = trial.fields.data;
    memset(filled, 0, sizeof filled);
    for (uint32_t n = 0; n < box_bytes() / element_bytes(); ++n) {
        const uint32_t place = shared_place(n, window_offset);
        const int64_t from = tensor_place(n);
        const unsigned char *found = trial.shared + place;
        const bool right = from < 0 ? is_fill(found) : memcmp(found, tensor + from, element_bytes()) == 0;
        cr_assert(right, "%s, element %u", what, n);
        for (uint32_t i = 0; i < element_bytes(); ++i) {
            cr_assert(!filled[place + i]);
            filled[place + i] = true;
        }
    }
    for (uint32_t i = 0; i < sizeof trial.shared - trial.offset; ++i)
        cr_assert(filled[i] || trial.shared[i] == GARBAGE, "%s, byte %u beside the box", what, i);
}

static float number(const unsigned char *element)
{
    uint32_t bits = 0;
    memcpy(&bits, element, element_bytes());
    if (trial.fields.element == SIM_ELEMENT_BF16) bits <<= 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    const bool fp16 = trial.fields.element == SIM_ELEMENT_FP16 && bits;
    return fp16 ? ldexpf((float)(bits & 1023) + 1024, (int)(bits >> 10) - 25) : x;
}

/* The small integer n, 0 .. 7, as an element; bytes: anything. */
static void write_number(unsigned char *element, uint32_t n)
{
    static const uint16_t fp16[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
    const float x = (float)n;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (trial.fields.element == SIM_ELEMENT_FP16) bits = fp16[n];
    if (trial.fields.element == SIM_ELEMENT_BF16) bits >>= 16;
    if (trial.fields.element == SIM_ELEMENT_UINT8) bits = 1 + n;
    memcpy(element, &bits, element_bytes());
}

static void check_store(const unsigned char *before, const char *what)
{
    static unsigned char expected[sizeof async_out];
    memcpy(expected, before, sizeof expected);
    for (uint32_t n = 0; n < box_bytes() / element_bytes(); ++n) {
        const int64_t to = tensor_place(n);
        const unsigned char *from = trial.shared + n * element_bytes();
        if (to < 0) continue;
        if (trial.what == STORE) memcpy(expected + to, from, element_bytes());
        else write_number(expected + to, (uint32_t)(number(from) + number(expected + to)));
    }
    cr_assert_eq(memcmp(async_out, expected, sizeof expected), 0, "%s", what);
}

/* ---- trials --------------------------------------------------------------------------------------------------- */

static int num_overruns;

static bool map_tensor(struct sim_gpu *gpu, void *data, int access)
{
    int64_t shape[5], stride[5];
    for (int i = 0; i < trial.fields.ndim; ++i) {
        shape[i] = (int64_t)trial.fields.shape[i];
        stride[i] = i ? (int64_t)(trial.fields.stride_bytes[i] / element_bytes()) : 1;
    }
    return sim_map_tensor(gpu, "tensor", data, element_bytes(), trial.fields.ndim, shape, stride, access);
}

static void run_trial(unsigned number_of_trial)
{
    static unsigned char before[sizeof async_out];
    const struct sim_options options = {
        .generation = SIM_SM_90, .async = number_of_trial % 3, .seed = number_of_trial, .workers = 1};
    const struct sim_launch launch = {.kernel = "move_box", .grid = {1, 1, 1}, .block = {1, 1, 1}, .cluster = {1, 1, 1},
                                      .dynamic_shared = ASYNC_SHARED, .max_threads = 1, .min_blocks = 1,
                                      .body = move_box, .args = &trial, .args_bytes = sizeof trial};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    char why[256] = "", what[256];
    random_state = number_of_trial;
    draw_trial();
    trial.fields.data = trial.what == LOAD ? async_in : async_out;
    cr_assert(sim_tensor_map_encode(trial.map, &trial.fields, why, sizeof why), "%s", why);
    snprintf(what, sizeof what, "trial %u: %d dimensions, swizzle %d, box %u x %u, at %d, %d, action %d",
             number_of_trial, trial.fields.ndim, trial.fields.swizzle_bytes, trial.fields.box[0], trial.fields.box[1],
             trial.at[0], trial.at[1], trial.what);
    for (size_t i = 0; i < sizeof async_in; ++i) ((unsigned char *)async_in)[i] = (unsigned char)(1 + draw(255));
    for (size_t i = 0; i < sizeof async_out / element_bytes(); ++i)
        write_number((unsigned char *)async_out + i * element_bytes(), trial.what == ADD ? draw(4) : draw(8));
    for (uint32_t i = 0; trial.what != LOAD && i < MAX_BOX_BYTES / element_bytes(); ++i)
        write_number(trial.shared + i * element_bytes(), trial.what == ADD ? draw(4) : draw(8));
    memcpy(before, async_out, sizeof before);
    cr_assert(map_tensor(gpu, (void *)trial.fields.data,
                         trial.what == LOAD ? SIM_READ : SIM_READ | SIM_WRITE | SIM_INITIALISED | SIM_REDUCE));
    const enum sim_rule found = sim_launch(gpu, &launch), right = overruns() ? SIM_OUT_OF_BOUNDS : SIM_CLEAN;
    cr_assert_eq(found, right, "%s: %s", what, found ? sim_last_report(gpu)->text : "an overrun is not seen");
    if (trial.what == LOAD) check_load(what);
    else if (!found) check_store(before, what);
    num_overruns += found != SIM_CLEAN;
    sim_gpu_destroy(gpu);
}

Test(tensor, boxes_are_moved_element_by_element_as_the_guide_says)
{
    num_overruns = 0;
    for (unsigned i = 0; i < TRIALS; ++i) run_trial(i);
    cr_assert(num_overruns > TRIALS / 100, "%d", num_overruns);
}

/* ---- what is refused ------------------------------------------------------------------------------------------ */

Test(tensor, maps_that_the_driver_refuses_are_refused)
{
    static const struct sim_tensor_map_fields good = {.data = async_in, .element = SIM_ELEMENT_FP16, .ndim = 3,
                                                      .shape = {100, 7, 5}, .stride_bytes = {0, 208, 1504},
                                                      .box = {64, 7, 2}, .swizzle_bytes = 128, .nan_fill = true};
    static _Alignas(64) unsigned char map[128];
    char why[200];
    struct sim_tensor_map_fields f = good;
    cr_assert(sim_tensor_map_encode(map, &f, why, sizeof why), "%s", why);
#define REFUSED(change, words)                                                                       \
    do {                                                                                             \
        f = good;                                                                                    \
        change;                                                                                      \
        why[0] = 0;                                                                                  \
        cr_expect_not(sim_tensor_map_encode(map, &f, why, sizeof why), #change);                     \
        cr_expect(strstr(why, words) && why[strlen(why) - 1] == '.', "%s: %s", #change, why);        \
    } while (0)
    REFUSED(f.ndim = 0, "1 to 5 dimensions");
    REFUSED(f.ndim = 6, "1 to 5 dimensions");
    REFUSED(f.data = async_in + 2, "multiple of 16");
    REFUSED(f.shape[1] = 0, "dimension 1");
    REFUSED(f.shape[0] = ((uint64_t)1 << 32) + 1, "2^32");
    REFUSED(f.stride_bytes[1] = 200, "multiples of 16");
    REFUSED(f.stride_bytes[2] = (uint64_t)1 << 40, "2^40");
    REFUSED(f.box[0] = 60, "multiples of 16");
    REFUSED(f.box[1] = 0, "1 to 256");
    REFUSED(f.box[2] = 257, "1 to 256");
    REFUSED(f.box[0] = 72, "swizzle");
    REFUSED(f.swizzle_bytes = 64, "swizzle");
    REFUSED(f.swizzle_bytes = 16, "32, 64 or 128");
    REFUSED(f.element = SIM_ELEMENT_UINT8, "NaN");
#undef REFUSED
    f = good;
    f.shape[0] = (uint64_t)1 << 32;
    f.stride_bytes[2] = ((uint64_t)1 << 40) - 16;
    f.box[1] = 256;
    cr_assert(sim_tensor_map_encode(map, &f, why, sizeof why), "%s", why);
}

static _Alignas(64) unsigned char source[128], target[128], bytes_target[128];

/* A box of 8 x 32 numbers of matrices that are 40 wide and 20 high. */
static void misuse(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *barrier = shared + 8192;
    const int32_t at[] = {variant == 12 ? 3 : 4, variant == 13 ? -4 : 4, 4}, inside[] = {16, 4};
    make_barrier(barrier, 1);
    sim_tensor_prefetch(variant == 1 ? source + 32 : source);
    sim_mbarrier_arrive_expect_tx(barrier, 1024);
    sim_tensor_load(shared + (variant == 2 ? 64 : 0), variant == 3 ? (const void *)async_in : source, at,
                    variant == 4 ? 3 : 2, barrier, 0);
    if (variant == 5) get(shared);
    wait_for(barrier, 0);
    for (int i = 0; i < 256; ++i) put(async_out + 8192 + i, get(shared + 4 * i));
    if (variant == 6) put(shared, 1.0f);
    if (variant == 7) sim_tensor_reduce_add(bytes_target, inside, 2, shared);
    if (variant == 8) sim_tensor_store(target, at, 2, shared + 64);
    if (variant == 9) return (void)(sim_tensor_store(target, at, 2, shared), sim_bulk_commit());
    sim_tensor_store(target, at, 2, shared);
    sim_bulk_commit();
    if (variant == 10) get(async_out + 4 * 40 + 4);
    if (variant == 11) put(shared, 1.0f);
    sim_bulk_wait(0);
}

Test(tensor, each_misuse_is_found)
{
    static const char copy[] = "cp.async.bulk.tensor";
    static const struct async_case cases[] = {
        {"misuse", misuse, 1, 1, 0, SIM_CLEAN, "", ""},
        {"misuse", misuse, 1, 1, 1, SIM_MISALIGNED, "prefetch.tensormap", "multiple of 64"},
        {"misuse", misuse, 1, 1, 2, SIM_MISALIGNED, copy, "128"},
        {"misuse", misuse, 1, 1, 3, SIM_BAD_OPERAND, copy, "No tensor map"},
        {"misuse", misuse, 1, 1, 4, SIM_BAD_OPERAND, copy, "3 coordinates"},
        {"misuse", misuse, 1, 1, 5, SIM_MISSING_WAIT, "load", copy},
        {"misuse", misuse, 1, 1, 6, SIM_MISSING_PROXY_FENCE, copy, "fence.proxy.async"},
        {"misuse", misuse, 1, 1, 7, SIM_BAD_OPERAND, "cp.reduce.async.bulk.tensor", "added"},
        {"misuse", misuse, 1, 1, 8, SIM_MISALIGNED, copy, "128"},
        {"misuse", misuse, 1, 1, 9, SIM_LEFT_PENDING, copy, "wait_group.read"},
        {"misuse", misuse, 1, 1, 10, SIM_MISSING_WAIT, "load", copy},
        {"misuse", misuse, 1, 1, 11, SIM_MISSING_WAIT, "store", copy},
        {"misuse", misuse, 1, 1, 12, SIM_MISALIGNED, copy, "first coordinate, 3"},
        {"misuse", misuse, 1, 1, 13, SIM_BAD_OPERAND, copy, "Coordinate 1 is -4"},
    };
    struct sim_tensor_map_fields f = {.data = async_in, .element = SIM_ELEMENT_FP32, .ndim = 2, .shape = {40, 20},
                                      .stride_bytes = {4, 160}, .box = {32, 8}, .swizzle_bytes = 128};
    char why[200];
    cr_assert(sim_tensor_map_encode(source, &f, why, sizeof why), "%s", why);
    f.data = async_out;
    cr_assert(sim_tensor_map_encode(target, &f, why, sizeof why), "%s", why);
    f.element = SIM_ELEMENT_UINT8;
    f.box[0] = 128;
    cr_assert(sim_tensor_map_encode(bytes_target, &f, why, sizeof why), "%s", why);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) async_expect(&cases[i], 10, NULL);
}
