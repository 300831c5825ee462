/* bounds_scaled.c - operands and weights in fp16, scaled by powers of two of the largest numbers of a head:
 * reference/bounds.md section 11.11. */
#include <math.h>

#include "reference/bounds_gradients.h"
#include "reference/formats.h"

/* Of the finite ones. */
static double largest_of(const struct bound_matrix *m)
{
    double largest = 0.0;
    for (int64_t i = 0; i < m->rows * m->features; ++i)
        if (isfinite(m->value[i])) largest = fmax(largest, fabs(m->value[i]));
    return largest;
}

/* Of the largest number; -127 where it is zero or subnormal. */
static int exponent_of(const struct bound_matrix *m)
{
    const double largest = largest_of(m);
    return largest < ref_format(ATTEST_BF16)->min_normal ? -127 : ilogb(largest);
}

/* Of an operand scaled to fp16: half a step of its subnormals, in units of the operand. */
static double floor_of(const struct bound_matrix *m)
{
    const int power = 15 - exponent_of(m);
    return ldexp(SCALED_STEP, -(power < 110 ? power : 110));
}

double bound_floor_of_values(const struct bound_head *head) { return floor_of(&head->v); }

double bound_lost_to_scaling(double weight_floor, double operand_floor, double norm, double sum, double terms)
{
    const double operand = operand_floor * norm;
    return operand + 0x1p-9 * (operand + weight_floor * sum) + 4 * terms * weight_floor * operand_floor;
}

/* |k - c| for every c between the least and the largest of its feature, and for 0. */
static bool centre(struct bound_pool *pool, struct bound_matrix *k)
{
    const double *const value = k->value;
    double *const reach = bound_take(pool, k->rows * k->features);
    if (pool->failed) return false;
    for (int64_t c = 0; c < k->features; ++c) {
        double least = 0.0, largest = 0.0;
        for (int64_t j = 0; j < k->rows; ++j) {
            least = fmin(least, value[j * k->features + c]);
            largest = fmax(largest, value[j * k->features + c]);
        }
        for (int64_t at = c; at < k->rows * k->features; at += k->features)
            reach[at] = fmax(value[at] - least, largest - value[at]);
    }
    k->value = reach;
    return true;
}

bool bound_scale_head(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_matrix *k)
{
    const struct bound_head *head = &g->head;
    const struct attest_problem *p = head->problem;
    const struct ref_sequence *s = &head->sequence;
    struct ref_machine *m = &g->head.machine;
    struct bound_pool rows = {0};
    const struct bound_matrix q = bound_decode_rows(&rows, p, &p->q, head->args->q, s, false, head->b, head->h_kv, 0,
                                                    s->seqlen_q, p->head_dim);
    const struct bound_matrix dout = bound_decode_rows(&rows, p, &p->dout, g->args->dout, s, false, head->b,
                                                       head->h_kv, 0, s->seqlen_q, p->head_dim_v);
    const bool ok = !rows.failed && centre(pool, k);
    if (ok) {
        const int shift = -8 - exponent_of(&dout) - exponent_of(&head->v);
        m->parts = 1, m->parts_size = 1;
        m->p_dv = ref_rounding_to_fp16(ldexp(1.0, m->power));
        m->ds = ref_rounding_to_fp16(ldexp(1.0, m->power + (shift < -126 ? -126 : shift > 126 ? 126 : shift)));
        g->floors = (struct bound_floors){.p = m->p_dv.tiny,
                                          .ds = m->ds.tiny,
                                          .q = floor_of(&q),
                                          .k = 2 * floor_of(&head->k),
                                          .dout = floor_of(&dout),
                                          .k_relative = ref_format(ATTEST_FP16)->unit_roundoff};
    }
    bound_release(&rows);
    return ok;
}

void bound_add_hidden_keys(struct bound_gradient_head *g)
{
    const struct bound_matrix *k = &g->head.k;
    const int64_t over = k->rows % REF_SCALED_ROWS, hidden = over > 0 ? REF_SCALED_ROWS - over : 0;
    for (int64_t c = 0; c < k->features; ++c) {
        double largest = 0.0;
        for (int64_t j = 0; j < k->rows; ++j) largest = fmax(largest, fabs(k->value[j * k->features + c]));
        g->k_sum[c] += (double)hidden * largest;
    }
}
