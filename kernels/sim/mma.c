/* mma.c - matrices by warp: mma.sync, ldmatrix, stmatrix.
 *
 * Fragments as the PTX manual lays them out: lane 4 g + t holds, of A (16 x k), rows g and g + 8; of B (k x 8), column
 * g; of C and D (16 x 8), columns 2 t and 2 t + 1 of rows g and g + 8. 16-bit operands come in pairs along k. */
#include <string.h>

#include "kernels/sim/machine.h"

enum {
    M = 16,
    N = 8,
    WORDS = 8, /* of 32 bits in a row of k: pairs of 16-bit operands, or tf32 */
    ALL_LANES = -1
};
typedef uint16_t half_word __attribute__((may_alias)); /* shared memory has whatever type the kernel gave it */

struct mma_args {
    enum sim_format format;
    float *d;
    const uint32_t *a, *b;
    const float *c;
};

static void gather(void *const args[SIM_WARP], uint32_t a[M][WORDS], uint32_t b_t[N][WORDS], float c[M][N])
{
    for (int lane = 0; lane < SIM_WARP; ++lane) {
        const struct mma_args *own = args[lane];
        const int g = lane / 4, t = lane % 4;
        for (int half = 0; half < 2; ++half) {
            a[g][t + 4 * half] = own->a[2 * half];
            a[g + 8][t + 4 * half] = own->a[2 * half + 1];
            b_t[g][t + 4 * half] = own->b[half];
            memcpy(&c[g + 8 * half][2 * t], own->c + 2 * half, 2 * sizeof(float));
        }
    }
}

static void run_mma(struct sim_warp *warp, void *const args[SIM_WARP])
{
    const struct mma_args *first = args[0];
    const struct sim_cluster *cluster = warp->cta->cluster;
    const int k = first->format == SIM_TF32 ? 8 : 16;
    uint32_t a[M][WORDS], b_t[N][WORDS];
    float c[M][N], d[M][N];
    gather(args, a, b_t, c);
    sim_unit(sim_options_of(cluster)->generation, first->format, M, N, k, a, b_t, &c[0][0], &d[0][0]);
    for (int lane = 0; lane < SIM_WARP; ++lane)
        for (int half = 0; half < 2; ++half)
            memcpy(((struct mma_args *)args[lane])->d + 2 * half, &d[lane / 4 + 8 * half][lane % 4 * 2],
                   2 * sizeof(float));
    struct sim_counts *counts = sim_tally(warp->cta->cluster);
    counts->mma_instructions += 1;
    counts->tensor_core_flops += 2 * M * N * k;
    sim_overlap_product(warp->lanes, SIM_WARP, false);
}

void sim_mma(enum sim_format format, float *d, const uint32_t *a, const uint32_t *b, const float *c)
{
    static const char name[] = "mma.sync";
    struct mma_args args = {format, d, a, b, c};
    sim_watch_read(a, 4 * sizeof *a, 4, name, SIM_SITE);
    sim_watch_read(b, 2 * sizeof *b, 4, name, SIM_SITE);
    sim_watch_read(c, 4 * sizeof *c, 4, name, SIM_SITE);
    const float *nobody = sim_self->cta->cluster->watched ? sim_unwritten_register(c, 4) : NULL;
    if (nobody)
        sim_fail(sim_self, SIM_UNINITIALISED, name, SIM_SITE, nobody,
                 "The product is added to accumulators that nobody has written.");
    sim_watch_write(d, 4 * sizeof *d, 4, name, SIM_SITE);
    sim_collect_warp(name, SIM_SITE, (uint32_t)ALL_LANES, &args, run_mma);
}

/* A matrix of 8 x 8 16-bit numbers: row r lies where lane 8 j + r says, j the matrix. Lane L holds elements (L / 4,
 * 2 (L % 4)) and the one beside it, or, transposed, (2 (L % 4), L / 4) and the one below it. */
struct rows_args {
    void *row;
    uint32_t *fragment;
    int count;
    bool transpose;
};

static half_word *element(void *const args[SIM_WARP], int matrix, int lane, int half)
{
    const struct rows_args *own = args[0];
    const int i = lane / 4, j = 2 * (lane % 4) + half;
    const struct rows_args *row = args[8 * matrix + (own->transpose ? j : i)];
    return (half_word *)row->row + (own->transpose ? i : j);
}

static void move(struct sim_warp *warp, void *const args[SIM_WARP], bool store)
{
    const struct rows_args *own = args[0];
    for (int matrix = 0; matrix < own->count; ++matrix)
        for (int lane = 0; lane < SIM_WARP; ++lane) {
            uint32_t *fragment = &((struct rows_args *)args[lane])->fragment[matrix];
            half_word *low = element(args, matrix, lane, 0), *high = element(args, matrix, lane, 1);
            if (store) {
                *low = (uint16_t)*fragment;
                *high = (uint16_t)(*fragment >> 16);
            } else {
                *fragment = (uint32_t)*high << 16 | *low;
            }
        }
    sim_tally(warp->cta->cluster)->warp_collectives += 1;
}

static void run_load(struct sim_warp *warp, void *const args[SIM_WARP]) { move(warp, args, false); }
static void run_store(struct sim_warp *warp, void *const args[SIM_WARP]) { move(warp, args, true); }

/* Only the first 8 `count` lanes' rows are used. They lie in shared memory of their own CTA. */
static bool gives_row(const char *name, const void *site, const void *row, int count)
{
    unsigned rank;
    uint32_t offset;
    if (sim_self->lane >= 8u * count) return false;
    if (!sim_in_window(sim_self->cta->cluster, row, &rank, &offset) || rank != sim_self->cta->rank)
        sim_fail(sim_self, SIM_BAD_OPERAND, name, site, row,
                 "Rows lie in the shared memory of this CTA and nowhere else.");
    return true;
}

void sim_ldmatrix(uint32_t *fragment, const void *row, int count, bool transpose)
{
    static const char name[] = "ldmatrix";
    struct rows_args args = {(void *)row, fragment, count, transpose};
    if (gives_row(name, SIM_SITE, row, count)) sim_watch_read(row, 16, 16, name, SIM_SITE);
    sim_watch_write(fragment, count * sizeof *fragment, 4, name, SIM_SITE);
    sim_collect_warp(name, SIM_SITE, (uint32_t)ALL_LANES, &args, run_load);
}

void sim_stmatrix(void *row, const uint32_t *fragment, int count, bool transpose)
{
    static const char name[] = "stmatrix";
    struct rows_args args = {row, (uint32_t *)fragment, count, transpose};
    if (sim_options_of(sim_self->cta->cluster)->generation < SIM_SM_90)
        sim_fail(sim_self, SIM_WRONG_GENERATION, name, SIM_SITE, NULL, "It needs sm_90; this GPU is sm_80.");
    if (gives_row(name, SIM_SITE, row, count)) sim_watch_write(row, 16, 16, name, SIM_SITE);
    sim_watch_read(fragment, count * sizeof *fragment, 4, name, SIM_SITE);
    sim_collect_warp(name, SIM_SITE, (uint32_t)ALL_LANES, &args, run_store);
}
