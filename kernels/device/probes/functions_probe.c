/* functions_probe.c - exp2, log2, reciprocal and tanh over all 2^32 fp32: on the GPU, what its approximate instructions
 * are off by, and whether the portable functions give the bits that they give here; with --host, what the portable
 * functions are off by. Without a GPU: UNCHECKED. */
#include <argp.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/device/probes/functions_probe.h"

enum { BLOCK = 1 << 24, BLOCKS = 256 };
enum { KEY_HOST = 256, KEY_THREADS, KEY_JSON };

struct options {
    bool host;
    int threads;
    const char *json;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_HOST: o->host = true; return 0;
    case KEY_THREADS: o->threads = atoi(text); return 0;
    case KEY_JSON: o->json = text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"host", KEY_HOST, 0, 0, "Check the portable functions on this processor; no GPU is needed", 0},
    {"threads", KEY_THREADS, "N", 0, "Of this processor; default: all cores", 0},
    {"json", KEY_JSON, "FILE", 0, "Write the table as JSON", 0},
    {0},
};
static const struct argp arguments = {.options = options,
                                      .parser = parse,
                                      .doc = "Errors of exp2, log2, reciprocal and tanh over all fp32."};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "functions_probe: %s: %s\n", what, why);
    exit(1);
}

static void check_on_gpu(enum function form, int threads, float *memory, struct function_errors *e)
{
    char why[256];
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        const uint32_t first = b * (uint32_t)BLOCK;
        if (!functions_probe_cuda(form, first - 1, BLOCK + 1, memory, why, sizeof why))
            fail(function_forms[form].name, why);
        function_check(form, first, BLOCK, memory + 1, threads, e);
    }
}

static void print_error(const char *name, const struct function_error *e)
{
    if (e->size > 0) printf("  %s 2^%.3f at %08x\n", name, log2(e->size), e->at);
}

static void print_count(const char *name, uint64_t count, uint32_t at)
{
    if (count > 0) printf("  %s: %llu, the first at %08x\n", name, (unsigned long long)count, at);
}

static void print_form(enum function form, const struct function_errors *e)
{
    printf("%-15s %s, %llu inputs\n", function_forms[form].name, function_holds(form, e) ? "holds" : "DOES NOT HOLD",
           (unsigned long long)e->count);
    print_error("relative error                    ", &e->relative);
    print_error("relative error where |exact| >= 1 ", &e->far);
    print_error("absolute error where |exact| <= 1 ", &e->near);
    if (e->ulps.size > 0) printf("  distances of fp32 neighbours       %.4f at %08x\n", e->ulps.size, e->ulps.at);
    if (e->flushed > 0) printf("  subnormal results given as zero: %llu\n", (unsigned long long)e->flushed);
    print_count("wrong NaN, infinity or zero", e->wrong, e->wrong_at);
    print_count("steps back", e->back, e->back_at);
    print_count("other bits than this processor's", e->different, e->different_at);
    if (function_forms[form].portable) printf("  hash %016llx\n", (unsigned long long)e->hash);
    fflush(stdout);
}

static json_t *json_error(const struct function_error *e)
{
    return json_pack("{s:f, s:I}", "size", e->size, "at", (json_int_t)e->at);
}

static json_t *json_form(enum function form, const struct function_errors *e)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)e->hash);
    return json_pack("{s:s, s:b, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:s}", "name", function_forms[form].name,
                     "holds", function_holds(form, e), "inputs", (json_int_t)e->count, "relative",
                     json_error(&e->relative), "relative_from_1", json_error(&e->far), "absolute_to_1",
                     json_error(&e->near), "neighbours", json_error(&e->ulps), "flushed", (json_int_t)e->flushed,
                     "wrong", (json_int_t)e->wrong, "steps_back", (json_int_t)e->back, "different",
                     (json_int_t)e->different, "hash", hash);
}

static bool run(const struct options *o, const char *machine, float *memory)
{
    json_t *forms = json_array();
    bool holds = true;
    printf("%s\n", machine);
    for (int form = o->host ? FUNCTION_EXP2_PORTABLE : 0; form < NUM_FUNCTIONS; ++form) {
        struct function_errors e = {0};
        if (o->host) function_check(form, 0, UINT64_C(1) << 32, NULL, o->threads, &e);
        else check_on_gpu(form, o->threads, memory, &e);
        holds &= function_holds(form, &e);
        print_form(form, &e);
        json_array_append_new(forms, json_form(form, &e));
    }
    json_t *root = json_pack("{s:s, s:o}", "machine", machine, "forms", forms);
    if (o->json != NULL && json_dump_file(root, o->json, JSON_INDENT(2)) != 0) fail(o->json, "cannot be written");
    json_decref(root);
    return holds;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    char machine[256] = "this processor";
    float *memory = NULL;
    argp_parse(&arguments, argc, argv, 0, NULL, &o);
    if (!o.host) {
        if (functions_machine_cuda == NULL || !functions_machine_cuda(machine, sizeof machine)) {
            printf("functions_probe: UNCHECKED, there is no GPU\n");
            return 0;
        }
        memory = functions_memory_cuda(BLOCK + 1);
        if (memory == NULL) fail("memory", "none that the GPU can write");
    }
    const bool holds = run(&o, machine, memory);
    printf("functions_probe: %s\n", holds ? "passed" : "FAILED");
    return !holds;
}
