#include "reference/audit/pictures.h"

#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"

/* A heat map has at most so many cells; larger tensors show the worst of several rows or heads in one. */
enum { MAX_COLUMNS = 512, MAX_LANES = 96 };
/* Cells are log2(error / bound) in sixteenths; these two stand for no error and for NaN or an infinite one. */
enum { HEAT_STEPS = 16, HEAT_EXACT = -9999, HEAT_BROKEN = 9999 };
/* Octaves of the histogram: 2^FIRST_OCTAVE .. 2^(FIRST_OCTAVE + NUM_OCTAVES); its ends take what lies beyond. */
enum { FIRST_OCTAVE = -24, NUM_OCTAVES = 30 };

struct picture {
    int64_t rows, lanes, rows_per_cell, lanes_per_cell, columns, cell_lanes;
    int *cells;
    int64_t exact, broken, octaves[NUM_OCTAVES];
};

/* Error over bound; NaN where it cannot be said. Equal values, infinities included, are exact. */
static double share(double got, double want, double bound)
{
    if (got == want || (isnan(got) && isnan(want))) return 0;
    return fabs(got - want) / bound;
}

static int heat_code(double share)
{
    if (share == 0) return HEAT_EXACT;
    if (!isfinite(share)) return HEAT_BROKEN;
    const double code = round(HEAT_STEPS * log2(share));
    return code < HEAT_EXACT + 1 ? HEAT_EXACT + 1 : code > HEAT_BROKEN - 1 ? HEAT_BROKEN - 1 : (int)code;
}

static void count(struct picture *picture, double share)
{
    if (share == 0) {
        ++picture->exact;
    } else if (!isfinite(share)) {
        ++picture->broken;
    } else {
        const double octave = floor(log2(share)) - FIRST_OCTAVE;
        ++picture->octaves[octave < 0 ? 0 : octave >= NUM_OCTAVES ? NUM_OCTAVES - 1 : (int)octave];
    }
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static struct picture new_picture(int64_t rows, int64_t lanes)
{
    struct picture p = {.rows = rows, .lanes = lanes, .rows_per_cell = divide_up(rows, MAX_COLUMNS),
                        .lanes_per_cell = divide_up(lanes, MAX_LANES)};
    if (rows > 0 && lanes > 0) {
        p.columns = divide_up(rows, p.rows_per_cell);
        p.cell_lanes = divide_up(lanes, p.lanes_per_cell);
    }
    p.cells = allocate((size_t)(p.columns * p.cell_lanes), sizeof *p.cells);
    for (int64_t i = 0; i < p.columns * p.cell_lanes; ++i) p.cells[i] = HEAT_EXACT;
    return p;
}

static const struct attest_tensor *layout_of(const struct attest_problem *p, enum ref_tensor which)
{
    const struct attest_tensor *const tensors[] = {&p->o, &p->lse, &p->dq, &p->dk, &p->dv};
    return tensors[which];
}

static json_t *to_json(const struct picture *p, int64_t heads)
{
    json_t *cells = json_array(), *octaves = json_array();
    for (int64_t i = 0; i < p->columns * p->cell_lanes; ++i) json_array_append_new(cells, json_integer(p->cells[i]));
    for (int i = 0; i < NUM_OCTAVES; ++i) json_array_append_new(octaves, json_integer(p->octaves[i]));
    return json_pack("{s:{s:I, s:I, s:I, s:I, s:I, s:I, s:o}, s:{s:i, s:I, s:I, s:o}}",
                     "heat", "rows", (json_int_t)p->rows, "heads", (json_int_t)heads, "columns", (json_int_t)p->columns,
                     "lanes", (json_int_t)p->cell_lanes, "rows_per_cell", (json_int_t)p->rows_per_cell,
                     "lanes_per_cell", (json_int_t)p->lanes_per_cell, "cells", cells,
                     "histogram", "from", FIRST_OCTAVE, "exact", (json_int_t)p->exact, "broken", (json_int_t)p->broken,
                     "counts", octaves);
}

json_t *picture_json(const struct audit *audit, const struct judgement *j, enum ref_tensor which)
{
    const struct evaluation *e = j->evaluation;
    const struct attest_problem *p = &e->problem;
    const struct attest_tensor *layout = layout_of(p, which);
    const bool of_keys = which == REF_DK || which == REF_DV;
    const int64_t heads = of_keys ? p->num_heads_kv : p->num_heads_q;
    const int64_t dim = which == REF_LSE ? 1 : which == REF_O || which == REF_DV ? p->head_dim_v : p->head_dim;
    const double *oracle = e->oracle[which], *bound = judgement_bound(j, audit->recipe, which)->bound;
    struct picture picture = new_picture(of_keys ? p->seqlen_k : p->seqlen_q, p->batch * heads);
    for (int64_t lane = 0; lane < picture.lanes; ++lane) {
        const int64_t b = lane / heads, h = lane % heads;
        const struct ref_sequence s = ref_sequence(p, &e->args.forward, b);
        const int64_t first = of_keys ? s.first_k : s.first_q;
        for (int64_t r = 0; r < (of_keys ? s.rows_k : s.rows_q); ++r) {
            const int64_t offset = ref_row_offset(p, layout, &s, of_keys, b, r, h);
            const int64_t canonical = ((first + r) * heads + h) * dim;
            int *cell = &picture.cells[lane / picture.lanes_per_cell * picture.columns + r / picture.rows_per_cell];
            for (int64_t x = 0; x < dim; ++x) {
                const double got = ref_load(layout->dtype, j->tensors[which].got, offset + x);
                const double use = share(got, oracle[canonical + x], bound[canonical + x]);
                const int code = heat_code(use);
                count(&picture, use);
                if (code > *cell) *cell = code;
            }
        }
    }
    json_t *json = to_json(&picture, heads);
    free(picture.cells);
    return json;
}
