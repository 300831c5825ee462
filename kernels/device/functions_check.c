/* functions_check.c - errors of functions.h's eight forms, on all cores. */
#define _GNU_SOURCE
#include "kernels/device/functions_check.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 4096, MAX_THREADS = 256 };

static double reciprocal(double x) { return 1 / x; }

/* The instructions' limits are the PTX ISA's ("ex2", "lg2", "rcp", "tanh"). */
#define ANY INFINITY
const struct function_form function_forms[NUM_FUNCTIONS] = {
    {"ex2.approx.ftz", exp2, false, true, false, 0x1p-22, ANY, ANY, ANY, 0},
    {"lg2.approx.ftz", log2, false, true, false, ANY, 0x1p-22, 0x1p-22, ANY, 0},
    {"rcp.approx.ftz", reciprocal, false, true, true, 0x1p-23, ANY, ANY, ANY, 0},
    {"tanh.approx", tanh, false, false, false, 0x1p-11, ANY, ANY, ANY, 0},
    {"exp2_portable", exp2, true, false, false, 0x1p-23, ANY, ANY, 0.88, UINT64_C(0xd1800d040130f75b)},
    {"log2_portable", log2, true, false, false, 0x1p-23, ANY, ANY, 0.97, UINT64_C(0x1a208f77d582efd5)},
    {"rcp_portable", reciprocal, true, false, true, 0x1p-24, ANY, ANY, 0.5, UINT64_C(0xd7c46b7097c1ce85)},
    {"tanh_portable", tanh, true, false, false, 0x1p-22, ANY, ANY, 2.46, UINT64_C(0x54bc5d7d990615a6)},
};

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Distance of fp32 neighbours in the binade of y. */
static double neighbours(double y)
{
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    const uint64_t exponent = bits >> 52 & 0x7ff, least = 1023 - 126;
    bits = ((exponent > least ? exponent : least) - 23) << 52;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static void raise_error(struct function_error *e, double size, uint32_t at)
{
    if (size <= e->size) return;
    e->size = size;
    e->at = at;
}

static void count_first(uint64_t *count, uint32_t *first, uint64_t more, uint32_t at)
{
    if (more > 0 && (*count == 0 || at < *first)) *first = at;
    *count += more;
}

/* A NaN must be the one NaN; infinities and zeros must be exact, signs included. */
static bool is_special(double exact)
{
    const double overflow = 0x1.ffffffp127; /* half way from the largest fp32 to 2^128 */
    return !(fabs(exact) < overflow) || exact == 0;
}

static bool is_right_special(double exact, float got)
{
    return bits_of(got) == (isnan(exact) ? 0x7fffffff : bits_of((float)exact));
}

static void check_number(const struct function_form *form, double exact, float got, uint32_t at,
                         struct function_errors *e)
{
    const double error = fabs(got - exact), size = fabs(exact);
    if (!(error < INFINITY)) return count_first(&e->wrong, &e->wrong_at, 1, at);
    if (form->flushes && size < FLT_MIN && got == 0) {
        e->flushed += 1;
        return;
    }
    raise_error(&e->ulps, error / neighbours(exact), at);
    if (size >= FLT_MIN) raise_error(&e->relative, error / size, at);
    if (size >= 1) raise_error(&e->far, error / size, at);
    if (size <= 1) raise_error(&e->near, error, at);
}

static void check_order(const struct function_form *form, float before, float got, uint32_t at,
                        struct function_errors *e)
{
    const bool falls = form->decreases != (at >> 31 != 0); /* bits of negative numbers run away from zero */
    if (falls ? got > before : got < before) count_first(&e->back, &e->back_at, 1, at);
}

static void check_result(const struct function_form *form, uint32_t at, float before, float got,
                         struct function_errors *e)
{
    const float x = float_of(at);
    const double exact = form->exact(form->flushes && fabsf(x) < FLT_MIN ? copysignf(0, x) : x);
    if (!is_special(exact)) check_number(form, exact, got, at, e);
    else if (!is_right_special(exact, got)) count_first(&e->wrong, &e->wrong_at, 1, at);
    check_order(form, before, got, at, e);
}

/* What one thread does. */
struct part {
    enum function form;
    uint32_t first;
    uint64_t count;
    const float *results;
    struct function_errors errors;
};

static void check_chunk(struct part *p, uint64_t offset, uint32_t count)
{
    const struct function_form *form = &function_forms[p->form];
    const uint32_t first = p->first + (uint32_t)offset;
    struct function_errors *e = &p->errors;
    float own[CHUNK + 1]; /* the result before the first, too */
    if (form->portable) function_values(p->form, first - 1, count + 1, own);
    const float *const results = p->results != NULL ? p->results + offset : own + 1;
    e->count += count;
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t at = first + i;
        if (form->portable) e->hash += mix((uint64_t)at << 32 | bits_of(results[i]));
        if (form->portable && p->results != NULL)
            count_first(&e->different, &e->different_at, bits_of(results[i]) != bits_of(own[i + 1]), at);
        else
            check_result(form, at, results[(int64_t)i - 1], results[i], e);
    }
}

static void *check_part(void *argument)
{
    struct part *p = argument;
    for (uint64_t offset = 0; offset < p->count; offset += CHUNK)
        check_chunk(p, offset, (uint32_t)(p->count - offset < CHUNK ? p->count - offset : CHUNK));
    return NULL;
}

static void add_errors(struct function_errors *e, const struct function_errors *more)
{
    e->count += more->count;
    raise_error(&e->relative, more->relative.size, more->relative.at);
    raise_error(&e->far, more->far.size, more->far.at);
    raise_error(&e->near, more->near.size, more->near.at);
    raise_error(&e->ulps, more->ulps.size, more->ulps.at);
    e->flushed += more->flushed;
    count_first(&e->wrong, &e->wrong_at, more->wrong, more->wrong_at);
    count_first(&e->back, &e->back_at, more->back, more->back_at);
    count_first(&e->different, &e->different_at, more->different, more->different_at);
    e->hash += more->hash;
}

static int useful_threads(int threads, uint64_t count)
{
    const long cores = threads > 0 ? threads : sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t chunks = (count + CHUNK - 1) / CHUNK, most = chunks < MAX_THREADS ? chunks : MAX_THREADS;
    return cores < 1 ? 1 : (uint64_t)cores > most ? (int)most : (int)cores;
}

void function_check(enum function form, uint32_t first, uint64_t count, const float *results, int threads,
                    struct function_errors *errors)
{
    struct part parts[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    bool started[MAX_THREADS];
    const int used = useful_threads(threads, count);
    for (int i = 0; i < used; ++i) {
        const uint64_t begin = count * (uint64_t)i / (uint64_t)used, end = count * (uint64_t)(i + 1) / (uint64_t)used;
        parts[i] = (struct part){form, first + (uint32_t)begin, end - begin, NULL, {0}};
        if (results != NULL) parts[i].results = results + begin;
        started[i] = i + 1 < used && pthread_create(&ids[i], NULL, check_part, &parts[i]) == 0;
    }
    for (int i = used - 1; i >= 0; --i) {
        if (started[i]) pthread_join(ids[i], NULL);
        else check_part(&parts[i]);
    }
    for (int i = 0; i < used; ++i) add_errors(errors, &parts[i].errors);
}

bool function_holds(enum function form, const struct function_errors *e)
{
    const struct function_form *f = &function_forms[form];
    if (f->portable && e->count == UINT64_C(1) << 32 && e->hash != f->hash) return false;
    return e->count > 0 && e->wrong == 0 && e->different == 0 && e->relative.size <= f->relative &&
           e->far.size <= f->far && e->near.size <= f->near && e->ulps.size <= f->ulps;
}
