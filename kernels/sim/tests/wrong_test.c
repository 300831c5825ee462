/* wrong_test.c - the museum: each wrong kernel is caught with the right report, each mended one is clean and right. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/calls.h"
#include "kernels/sim/tests/wrong/exhibit.h"

enum { MAX_FLOATS = 1024, GAP_STRIDE = 32, GAP_ROW = 24 };

/* What the mended kernels compute. */
static float copied(const float *in, int i) { return in[i]; }
static float doubled(const float *in, int i) { return 2 * in[i]; }
static float first(const float *in, int i) { return in[0 * i]; }
static float even(const float *in, int i) { return in[i & ~1]; }
static float with_right(const float *in, int i) { return i % 64 == 63 ? in[i] : in[i] + in[i + 1]; }
static float mirrored_32(const float *in, int i) { return in[i ^ 31]; }
static float mirrored_64(const float *in, int i) { return in[i ^ 63]; }
static float mirrored_256(const float *in, int i) { return in[i ^ 255]; }
static float exchanged(const float *in, int i) { return in[i ^ 64]; }

static float product(const float *in, int i)
{
    float sum = 0.0f; /* of integers, exact */
    for (int k = 0; k < 16; ++k) sum += in[i / 16 * 16 + k] * in[i % 16 * 16 + k];
    return sum;
}

static float product_doubled(const float *in, int i) { return 2 * product(in, i); }

struct exhibit {
    const char *name;
    int (*launch)(struct sim_gpu *gpu, const struct room *room);
    int floats;
    float (*expected)(const float *in, int i);
    unsigned first_thread, last_thread;
    enum sim_generation wrong_on;
    const char *word;
};

#define EXHIBIT(name, ...) int exhibit_##name(struct sim_gpu *gpu, const struct room *room);
#include "kernels/sim/tests/wrong/exhibits.h"
#undef EXHIBIT
#define EXHIBIT(name, ...) {#name, exhibit_##name, __VA_ARGS__},
static const struct exhibit exhibits[] = {
#include "kernels/sim/tests/wrong/exhibits.h"
};
enum { NUM_EXHIBITS = sizeof exhibits / sizeof exhibits[0] };

/* A label of the sources: what may be found there. */
struct label {
    char file[128], exhibit[64], rule[32], instruction[48];
    int line;
};
static struct label labels[256];
static int num_labels;

/* `text` follows "// HERE ": name: rule, instruction; rule, instruction. */
static void read_label(const char *path, int line, const char *text)
{
    struct label label = {.line = line};
    int used = 0;
    snprintf(label.file, sizeof label.file, "%s", path);
    cr_assert_eq(sscanf(text, "%63[^:]:%n", label.exhibit, &used), 1, "%s:%d", path, line);
    for (text += used; *text == ' '; text += used) {
        const int fields = sscanf(text, " %31[^,], %47[^;\n]%n", label.rule, label.instruction, &used);
        cr_assert_eq(fields, 2, "%s:%d", path, line);
        used += text[used] == ';';
        labels[num_labels++] = label;
    }
}

static void read_labels_of(const char *file)
{
    char path[128], text[256];
    snprintf(path, sizeof path, "kernels/sim/tests/wrong/%s", file);
    FILE *source = fopen(path, "r");
    cr_assert_not_null(source, "%s", path);
    for (int line = 1; fgets(text, sizeof text, source); ++line) {
        const char *here = strstr(text, "// HERE ");
        if (here) read_label(path, line, here + strlen("// HERE "));
    }
    fclose(source);
}

static void read_labels(void)
{
    static const char *const files[] = {"memory.cu", "barrier.cu", "copy.cu", "bulk.cu", "wgmma.cu", "machine.cu"};
    num_labels = 0;
    for (size_t f = 0; f < sizeof files / sizeof files[0]; ++f) read_labels_of(files[f]);
}

static _Alignas(128) float in[MAX_FLOATS], out[MAX_FLOATS], work[MAX_FLOATS];

static bool is_gap(const struct exhibit *e, int i)
{
    return strcmp(e->name, "gap") == 0 && i % GAP_STRIDE >= GAP_ROW;
}

/* Runs an exhibit to its end, on a GPU without findings so far. */
static int run(struct sim_gpu *gpu, const struct exhibit *e, bool wrong)
{
    const struct room room = {in, out, work, wrong};
    const size_t bytes = e->floats * sizeof(float);
    for (int i = 0; i < MAX_FLOATS; ++i) {
        in[i] = (float)(i * 37 % 61 - 30);
        out[i] = work[i] = NAN;
    }
    sim_unmap_all(gpu);
    const int64_t shape[2] = {e->floats / GAP_STRIDE, GAP_ROW}, stride[2] = {GAP_STRIDE, 1};
    cr_assert(sim_map(gpu, "in", in, bytes, SIM_READ));
    if (strcmp(e->name, "gap") == 0)
        cr_assert(sim_map_tensor(gpu, "out", out, sizeof(float), 2, shape, stride, SIM_WRITE));
    else
        cr_assert(sim_map(gpu, "out", out, bytes, SIM_WRITE));
    cr_assert(sim_map(gpu, "work", work, bytes, SIM_READ | SIM_WRITE));
    const int status = e->launch(gpu, &room);
    return status ? status : (int)sim_check_written(gpu);
}

static bool fits(const struct label *l, const struct exhibit *e, const struct sim_report *report)
{
    if (strcmp(l->exhibit, e->name) != 0 || strcmp(l->rule, sim_rule_name(report->rule)) != 0) return false;
    if (strcmp(l->instruction, "-") == 0) return report->file[0] == '\0'; /* the launch's fault: no line */
    char place[192];
    snprintf(place, sizeof place, "%s:%d", l->file, l->line);
    return strcmp(l->instruction, report->instruction) == 0 && l->line == report->line &&
           strcmp(l->file, report->file) == 0 && strstr(report->text, place);
}

/* Is this the report that the label promises? */
static void check_report(const struct exhibit *e, const struct sim_report *report, unsigned long seed)
{
    char seed_text[48];
    bool found = false;
    snprintf(seed_text, sizeof seed_text, "Seed %lu,", seed);
    for (int l = 0; l < num_labels && !found; ++l) found = fits(&labels[l], e, report);
    cr_expect(found, "%s: rule %s, instruction %s, %s:%d: no such label. %s", e->name, sim_rule_name(report->rule),
              report->instruction, report->file, report->line, report->text);
    cr_expect(strstr(report->text, e->word), "%s: %s", e->name, report->text);
    if (report->rule == SIM_NOT_WRITTEN) return; /* by all launches together */
    cr_expect_str_eq(report->kernel, e->name);
    cr_expect(report->thread[0] >= e->first_thread && report->thread[0] <= e->last_thread && report->block[0] < 4,
              "%s: thread %u of block %u", e->name, report->thread[0], report->block[0]);
    cr_expect(strstr(report->text, e->name), "%s: %s", e->name, report->text);
    cr_expect(!report->line || strstr(report->text, seed_text), "%s: %s", e->name, report->text);
}

static const enum sim_async_policy policies[] = {SIM_ASYNC_LATE, SIM_ASYNC_EARLY, SIM_ASYNC_RANDOM};

/* Which of two CTAs that race comes second is the host's affair, when they run at once. */
static bool depends_on_workers(const struct exhibit *e)
{
    return e->launch == exhibit_race_of_ctas;
}

static void check_wrong(const struct exhibit *e, unsigned long seed)
{
    struct sim_report reports[2];
    for (int n = 0; n < 2; ++n) {
        const struct sim_options options = {.generation = e->wrong_on, .async = policies[seed % 3], .seed = seed,
                                            .workers = n == 1 && !depends_on_workers(e) ? 2 : 1};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        cr_assert_not_null(gpu);
        cr_expect_neq(run(gpu, e, true), 0, "%s, seed %lu", e->name, seed);
        reports[n] = *sim_last_report(gpu);
        check_report(e, &reports[n], seed);
        sim_gpu_destroy(gpu);
    }
    cr_expect_str_eq(reports[0].text, reports[1].text);
}

Test(wrong, every_wrong_kernel_is_caught_with_the_right_report)
{
    read_labels();
    for (int x = 0; x < NUM_EXHIBITS; ++x)
        for (unsigned long seed = 0; seed < 30; ++seed) check_wrong(&exhibits[x], seed);
}

Test(wrong, every_mended_kernel_is_clean_and_right_under_a_thousand_schedules)
{
    struct sim_options options = {.generation = SIM_SM_90, .workers = 1};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    cr_assert_not_null(gpu);
    for (int x = 0; x < NUM_EXHIBITS; ++x) {
        const struct exhibit *e = &exhibits[x];
        for (unsigned long trial = 0; trial < 1002; ++trial) {
            options.async = policies[trial % 3];
            options.seed = trial;
            options.workers = 1 + trial % 17 / 16;
            sim_gpu_options(gpu, &options);
            cr_assert_eq(run(gpu, e, false), 0, "%s: %s", e->name, sim_last_report(gpu)->text);
            for (int i = 0; i < e->floats; ++i)
                cr_assert(is_gap(e, i) || out[i] == e->expected(in, i), "%s, seed %lu: out[%d] = %g", e->name, trial, i,
                          out[i]);
        }
    }
    sim_gpu_destroy(gpu);
}

Test(wrong, every_rule_has_a_kernel_that_breaks_it)
{
    read_labels();
    for (int rule = SIM_CLEAN + 1; rule <= SIM_TRAP; ++rule) {
        int broken = 0;
        for (int l = 0; l < num_labels; ++l) broken += strcmp(labels[l].rule, sim_rule_name(rule)) == 0;
        cr_expect(broken > 0, "%s", sim_rule_name(rule));
    }
}

/* A map is refused on the host, before any kernel runs. */
Test(wrong, tensor_map_whose_rows_are_not_16_bytes_apart_is_refused)
{
    static _Alignas(64) unsigned char map[128];
    char why[256] = "";
    struct sim_tensor_map_fields fields = {.data = in, .element = SIM_ELEMENT_FP16, .ndim = 2, .shape = {50, 8},
                                           .stride_bytes = {2, 100}, .box = {16, 8}};
    cr_assert_not(sim_tensor_map_encode(map, &fields, why, sizeof why));
    cr_expect(strstr(why, "16"), "%s", why);
    fields.stride_bytes[1] = 112;
    cr_expect(sim_tensor_map_encode(map, &fields, why, sizeof why), "%s", why);
}
