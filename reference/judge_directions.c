/* judge_directions.c - see judge_directions.h. */
#include "reference/judge_directions.h"

#include <math.h>
#include <stdio.h>

#include "reference/formats.h"

/* In units of half a unit of the format: 2^-8 .. 2^-4, then sixteenths. */
static double distance(int n) { return n < 4 ? ldexp(1.0, n - 8) : (double)(n - 3) / 16; }

/* Results that are alike may all be as near ties of their format, where one error before the rounding moves all by a
 * unit: half of one where that may be, less what it is on average where values are unrelated to the format's. */
static void find_ties(int32_t dtype, double want, double half, double noise, double tied[JUDGE_TIES])
{
    const double off = half - fabs(ref_round(dtype, want) - want); /* from a tie */
    for (int n = 0; n < JUDGE_TIES; ++n) {
        const double near = fmin(distance(n) * half, noise);
        tied[n] = (off <= near ? half : 0.0) - near;
    }
}

double judge_most_tied(const double *tied)
{
    double most = 0.0;
    for (int n = 0; n < JUDGE_TIES; ++n) most = fmax(most, tied[n]);
    return most;
}

double judge_most_alike(const double *alike)
{
    double most = 0.0;
    for (int n = 0; n < REF_WAYS; ++n) most = fmax(most, fabs(alike[n]));
    return most;
}

double judge_most_rounded(double rounding, double shifted, const double *phases)
{
    return fmax(fmax(fabs(rounding), fabs(shifted)), judge_most_alike(phases));
}

struct judge_error judge_error_of(int32_t dtype, double got, double want, const struct ref_bound *bound,
                                  int64_t canonical, const double *phases)
{
    const double sigma = bound->sigma ? bound->sigma[canonical] : 0.0;
    const double bias = bound->bias ? bound->bias[canonical] : 0.0;
    const double shift = bound->shift ? bound->shift[canonical] : 0.0;
    const double variance = sigma * sigma, systematic = fabs(bias) + fabs(shift), half = ref_half_ulp(dtype, want);
    const bool rounds = variance > 0.0 && fabs(want) < ref_format(dtype)->overflow;
    const double own = rounds ? fmin(half * half / 3, variance) : 0.0;
    struct judge_error e = {.error = got - want,
                            .expected = variance + systematic * systematic,
                            .bias = fabs(bias),
                            .shift = shift,
                            .rounding = rounds ? ref_round(dtype, want) - want : 0.0,
                            .shifted = rounds ? ref_round(dtype, want + shift) - (want + shift) : 0.0,
                            .sigma = sigma,
                            .own = own};
    for (int n = 0; n < REF_WAYS; ++n) {
        if (!bound->alike[n]) continue;
        e.alike[n] = bound->alike[n][canonical];
        e.has_alike = true;
    }
    const double random = sqrt(2 * log(2 / JUDGE_FALSE_ALARM) * (variance - own));
    if (rounds) find_ties(dtype, want, half, systematic + judge_most_alike(e.alike) + random, e.tied);
    e.has_phases = rounds && phases;
    for (int n = 0; e.has_phases && n < REF_WAYS; ++n) {
        const double moved = want + want * phases[n];
        e.phases[n] = ref_round(dtype, moved) - moved;
    }
    return e;
}

void judge_direction_add(struct judge_direction *d, const struct judge_error *e, double shape)
{
    const double weight = shape / e->expected;
    if (!isfinite(weight)) return;
    d->projection += weight * e->error;
    d->norm += weight * shape;
    d->bias += fabs(weight) * e->bias;
    d->shift += weight * e->shift;
    d->rounding += weight * e->rounding;
    d->shifted += weight * e->shifted;
    for (int n = 0; n < JUDGE_TIES; ++n) d->tied[n] += fabs(weight) * e->tied[n];
    for (int n = 0; e->has_alike && n < REF_WAYS; ++n) d->alike[n] += weight * e->alike[n];
    for (int n = 0; e->has_phases && n < REF_WAYS; ++n) d->phases[n] += weight * e->phases[n];
    d->together += fabs(weight) * sqrt(fmax(0.0, e->sigma * e->sigma - e->own));
    d->own += weight * weight * e->own;
}

void judge_direction_end_row(struct judge_direction *d, double along, double repeats, const double *phases)
{
    for (int n = 0; phases && n < REF_WAYS; ++n) d->phases[n] += (d->norm - d->before) * phases[n];
    d->before = d->norm;
    d->variance += repeats * (fmin(d->together * d->together, along) + d->own);
    d->together = d->own = 0.0;
}

double judge_shift_toward(double error, double shift) { return error * shift > 0.0 ? fabs(shift) : 0.0; }

double judge_direction_ratio(const struct judge_direction *d, double false_alarm)
{
    if (d->projection == 0.0) return 0.0;
    const double random = sqrt(2 * log(2 / false_alarm) * d->variance);
    const double known = judge_shift_toward(d->projection, d->shift) +
                         judge_most_rounded(d->rounding, d->shifted, d->phases) + judge_most_tied(d->tied);
    return fabs(d->projection) / (d->bias + judge_most_alike(d->alike) + known + random);
}

void judge_direction_join(struct judge_direction *to, const struct judge_direction *from)
{
    to->projection += from->projection;
    to->norm += from->norm;
    to->bias += from->bias;
    to->shift += from->shift;
    to->rounding += from->rounding;
    to->shifted += from->shifted;
    to->variance += from->variance;
    for (int n = 0; n < JUDGE_TIES; ++n) to->tied[n] += from->tied[n];
    for (int n = 0; n < REF_WAYS; ++n) to->alike[n] += from->alike[n], to->phases[n] += from->phases[n];
}

/* Of 64 rows or a head. */
static void describe_rows(const struct ref_report *r, const char *name, char *text, size_t size)
{
    const long b = (long)r->direction_index[0], row = (long)r->direction_index[1], h = (long)r->direction_index[2];
    if (r->direction == REF_SCALED_HEAD)
        snprintf(text, size, "%s of head %ld of sequence %ld scaled by %.6g", name, h, b, 1 + r->direction_size);
    else
        snprintf(text, size, "%s of 64 rows from row %ld, head %ld, sequence %ld, scaled by %.6g", name, row, h, b,
                 1 + r->direction_size);
}

/* Of 64 keys, or 64 query rows, and of more of them. */
static void describe_tile(const struct ref_report *r, enum ref_tensor tensor, char *text, size_t size)
{
    static const char *const operands[] = {[REF_O] = "v", [REF_DQ] = "k", [REF_DK] = "q", [REF_DV] = "dout"};
    const char *const name = ref_tensor_names[tensor], *const of = tensor >= REF_DK ? "query row" : "key";
    const long first = (long)r->direction_index[0], count = (long)r->direction_index[1];
    switch (r->direction) {
    case REF_ONE_TILE:
        snprintf(text, size, "%s with the part of 64 %ss from %s %ld times %.3g", name, of, of, first,
                 1 + r->direction_size);
        break;
    case REF_EARLIER_TILES:
        snprintf(text, size, "%s with the part of all %ss before %s %ld times %.6g", name, of, of, first,
                 1 + r->direction_size);
        break;
    case REF_SPLIT:
        snprintf(text, size, "%s with split %ld of %ld of its %ss times %.6g", name, first, count, of,
                 1 + r->direction_size);
        break;
    case REF_STALE_TILE:
        snprintf(text, size, "%s with %s of the 64 %ss before at those from %s %ld, %.3g of it", name,
                 operands[tensor], of, of, first, r->direction_size);
        break;
    default:
        snprintf(text, size, "%s with scores of the 64 %ss before at those from %s %ld, %.3g of it", name, of, of,
                 first, r->direction_size);
    }
}

void ref_describe_direction(const struct ref_report *r, enum ref_tensor tensor, char *text, size_t size)
{
    const char *const name = ref_tensor_names[tensor];
    switch (r->direction) {
    case REF_SCALED: snprintf(text, size, "%s scaled by %.6g", name, 1 + r->direction_size); break;
    case REF_TRUNCATED:
        snprintf(text, size, "%s %s by %.2g of half a unit on average", name,
                 r->direction_size > 0 ? "cut off toward zero" : "rounded away from zero", fabs(r->direction_size));
        break;
    case REF_NEXT_ROW: snprintf(text, size, "%.2g of the next row's %s", r->direction_size, name); break;
    case REF_PREVIOUS_ROW: snprintf(text, size, "%.2g of the previous row's %s", r->direction_size, name); break;
    case REF_NEXT_HEAD: snprintf(text, size, "%.2g of the next head's %s", r->direction_size, name); break;
    case REF_SCORES_SCALED: snprintf(text, size, "%s of scores times %.6g", name, 1 + r->direction_size); break;
    case REF_ALONG_DOUT: snprintf(text, size, "%s with %.3g of dout added", name, r->direction_size); break;
    case REF_DELTA_SHIFTED: snprintf(text, size, "%s of delta with %.3g added", name, r->direction_size); break;
    case REF_DELTA_SCALED: snprintf(text, size, "%s of delta times %.6g", name, 1 + r->direction_size); break;
    case REF_SCALED_HEAD:
    case REF_SCALED_TILE: describe_rows(r, name, text, size); break;
    default: describe_tile(r, tensor, text, size);
    }
}
