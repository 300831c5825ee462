/* unit_probe.c - asks a machine's tensor cores what they compute, and compares with the model of kernels/sim/unit.h bit
 * by bit: random and hard sets, questions one by one, and how often other models would be wrong. On the simulated GPU
 * it checks fragments and descriptors; with --cuda the chip. */
#include <argp.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/device/probes/unit_probe.h"
#include "kernels/device/probes/unit_questions.h"
#include "kernels/sim/tests/unit_sets.h"
#include "kernels/sim/unit.h"

struct options {
    bool cuda;
    long random, hard; /* sets of each instruction */
    const char *json;
};

struct instruction {
    const char *name;
    enum sim_format format;
    int m, n, k;
};

static const struct instruction instructions[] = {
#define X(id, format, m, n, name) {name, format, m, n, format == SIM_TF32 ? 8 : 16},
    UNIT_INSTRUCTIONS(X)
#undef X
};

/* Operands and results of some tiles of one instruction. */
struct tiles {
    const struct instruction *instruction;
    enum unit_instruction id;
    int count;
    char *a, *b_t;
    float *c, *d, *model;
};

static void *take(size_t count, size_t bytes)
{
    void *data = calloc(count, bytes);
    if (!data) abort();
    return data;
}

static struct tiles new_tiles(enum unit_instruction id, int count)
{
    const struct instruction *i = &instructions[id];
    const size_t row = (size_t)i->k * sim_operand_bytes(i->format), results = (size_t)i->m * i->n;
    struct tiles tiles = {i, id, count, take(count, row * i->m), take(count, row * i->n), take(count, results * 4),
                          take(count, results * 4), take(count, results * 4)};
    memset(tiles.d, 0x5a, count * results * 4);
    return tiles;
}

static void free_tiles(struct tiles *tiles)
{
    free(tiles->a), free(tiles->b_t), free(tiles->c), free(tiles->d), free(tiles->model);
}

static long num_results(const struct tiles *tiles)
{
    return (long)tiles->count * tiles->instruction->m * tiles->instruction->n;
}

static void fill(struct tiles *tiles, enum unit_family family, uint64_t seed)
{
    const struct instruction *i = tiles->instruction;
    const size_t row = (size_t)i->k * sim_operand_bytes(i->format);
    for (int t = 0; t < tiles->count; ++t)
        unit_sets(family, i->format, seed + t, i->m, i->n, i->k, tiles->a + t * row * i->m, tiles->b_t + t * row * i->n,
                  tiles->c + (size_t)t * i->m * i->n);
}

/* The machine's results in d. */
static void run(const struct options *options, struct tiles *tiles, const float *c)
{
    char why[1024] = "";
    unit_probe *machine = options->cuda ? unit_probe_cuda : unit_probe_sim;
    if (machine(tiles->id, tiles->count, tiles->a, tiles->b_t, c, tiles->d, why, sizeof why)) return;
    fprintf(stderr, "%s: %s\n", tiles->instruction->name, why);
    exit(1);
}

/* A model's results; NULL: that of the simulated GPU. */
static void run_model(struct tiles *tiles, const struct sim_unit_model *other, const float *c)
{
    const struct instruction *i = tiles->instruction;
    const size_t row = (size_t)i->k * sim_operand_bytes(i->format);
    for (int t = 0; t < tiles->count; ++t) {
        const char *a = tiles->a + t * row * i->m, *b_t = tiles->b_t + t * row * i->n;
        const size_t at = (size_t)t * i->m * i->n;
        if (other)
            sim_unit_plain(other, i->format, i->m, i->n, i->k, a, b_t, c ? c + at : NULL, tiles->model + at);
        else
            sim_unit(SIM_SM_90, i->format, i->m, i->n, i->k, a, b_t, c ? c + at : NULL, tiles->model + at);
    }
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static long count_mismatches(const struct tiles *tiles, long *first)
{
    long mismatches = 0;
    for (long r = 0; r < num_results(tiles); ++r) {
        if (bits_of(tiles->d[r]) == bits_of(tiles->model[r])) continue;
        if (mismatches++ == 0 && first) *first = r;
    }
    return mismatches;
}

static void print_operands(enum sim_format format, int k, const char *row)
{
    for (int l = 0; l < k; ++l) {
        uint32_t bits = 0;
        memcpy(&bits, row + (size_t)l * sim_operand_bytes(format), sim_operand_bytes(format));
        printf(" %0*x", 2 * sim_operand_bytes(format), bits);
    }
}

static void print_set(const struct tiles *tiles, long result)
{
    const struct instruction *i = tiles->instruction;
    const size_t row = (size_t)i->k * sim_operand_bytes(i->format);
    const long per_tile = (long)i->m * i->n, tile = result / per_tile;
    printf("        first: a");
    print_operands(i->format, i->k, tiles->a + (tile * i->m + result % per_tile / i->n) * row);
    printf("\n               b");
    print_operands(i->format, i->k, tiles->b_t + (tile * i->n + result % i->n) * row);
    printf("\n               c %08x: machine %08x, model %08x\n", bits_of(tiles->c[result]), bits_of(tiles->d[result]),
           bits_of(tiles->model[result]));
}

static long ask_family(const struct options *options, enum unit_instruction id, enum unit_family family, long wanted,
                       json_t *record, long *sets)
{
    const int per_tile = instructions[id].m * instructions[id].n;
    struct tiles tiles = new_tiles(id, (int)((wanted + per_tile - 1) / per_tile));
    fill(&tiles, family, UINT64_C(1000003) * id);
    run(options, &tiles, tiles.c);
    run_model(&tiles, NULL, tiles.c);
    long first = 0;
    const long mismatches = count_mismatches(&tiles, &first);
    if (mismatches) {
        printf("    %-9s %ld of %ld sets differ\n", unit_family_name(family), mismatches, num_results(&tiles));
        print_set(&tiles, first);
    }
    json_array_append_new(record, json_pack("{s:s, s:I, s:I}", "family", unit_family_name(family), "sets",
                                            (json_int_t)num_results(&tiles), "mismatches", (json_int_t)mismatches));
    *sets += num_results(&tiles);
    free_tiles(&tiles);
    return mismatches;
}

/* Other models on sets that tell them apart: which would have been wrong, and how often. */
static void try_models(const struct options *options, enum unit_instruction id, json_t *record)
{
    static const enum unit_family families[] = {UNIT_SPREAD, UNIT_CANCEL, UNIT_EDGES, UNIT_TINY};
    enum { FAMILIES = sizeof families / sizeof *families };
    const struct sim_unit_model right = sim_unit_model(SIM_SM_90, instructions[id].format);
    struct tiles tiles[FAMILIES];
    long results = 0;
    for (int f = 0; f < FAMILIES; ++f) {
        const int per_tile = instructions[id].m * instructions[id].n;
        tiles[f] = new_tiles(id, (int)((options->hard / 8 + per_tile - 1) / per_tile));
        fill(&tiles[f], families[f], 17);
        run(options, &tiles[f], tiles[f].c);
        results += num_results(&tiles[f]);
    }
    printf("    other models, wrong results of %ld:\n", results);
    for (int group = 4; group <= instructions[id].k; group *= 2)
        for (int nearest = 0; nearest < 2; ++nearest) {
            printf("      steps of %2d, rounded %s", group, nearest ? "to nearest " : "toward zero");
            for (int bits = 23; bits <= 27; ++bits) {
                const struct sim_unit_model other = {bits, group, right.least_exponent, nearest};
                long mismatches = 0;
                for (int f = 0; f < FAMILIES; ++f) {
                    run_model(&tiles[f], &other, tiles[f].c);
                    mismatches += count_mismatches(&tiles[f], NULL);
                }
                printf("  F=%d: %ld", bits, mismatches);
                json_array_append_new(record, json_pack("{s:i, s:i, s:b, s:I}", "fraction_bits", bits, "group", group,
                                                        "to_nearest", nearest, "mismatches", (json_int_t)mismatches));
            }
            printf("\n");
        }
    for (int f = 0; f < FAMILIES; ++f) free_tiles(&tiles[f]);
}

static void put_question(struct tiles *tiles, const struct unit_question *q)
{
    const struct instruction *i = tiles->instruction;
    const int bytes = sim_operand_bytes(i->format);
    for (int row = 0; row < i->m + i->n; ++row)
        for (int l = 0; l < i->k; ++l) {
            const uint32_t bits = unit_encode(i->format, row < i->m ? q->a[l] : q->b[l]);
            char *matrix = row < i->m ? tiles->a + (size_t)row * i->k * bytes
                                      : tiles->b_t + (size_t)(row - i->m) * i->k * bytes;
            memcpy(matrix + (size_t)l * bytes, &bits, bytes);
        }
    for (int r = 0; r < i->m * i->n; ++r) tiles->c[r] = q->c;
}

/* Every element of a tile asks the same. */
static int ask_questions(const struct options *options, enum unit_instruction id, bool in_full, json_t *record)
{
    static struct unit_question questions[UNIT_MAX_QUESTIONS];
    const int count = unit_questions(instructions[id].format, questions);
    struct tiles tiles = new_tiles(id, 1);
    int different = 0;
    for (int q = 0; q < count; ++q) {
        put_question(&tiles, &questions[q]);
        const float *c = questions[q].no_accumulator ? NULL : tiles.c;
        run(options, &tiles, c);
        run_model(&tiles, NULL, c);
        const bool differs = count_mismatches(&tiles, NULL) != 0;
        different += differs;
        if (differs || in_full)
            printf("    %-96s %08x%s\n", questions[q].text, bits_of(tiles.d[0]), differs ? "  NOT AS MODELLED" : "");
        json_array_append_new(record, json_pack("{s:s, s:I, s:I}", "question", questions[q].text, "bits",
                                                (json_int_t)bits_of(tiles.d[0]), "model",
                                                (json_int_t)bits_of(tiles.model[0])));
    }
    printf("    %d questions, %d not as modelled\n", count, different);
    free_tiles(&tiles);
    return different;
}

/* Of results with k turned round: one step of exact sums gives the same bits in any order. */
static long reverse_order(const struct options *options, enum unit_instruction id, json_t *record)
{
    const struct instruction *i = &instructions[id];
    const int bytes = sim_operand_bytes(i->format), per_tile = i->m * i->n;
    struct tiles tiles = new_tiles(id, (int)((options->hard / 8 + per_tile - 1) / per_tile));
    fill(&tiles, UNIT_SPREAD, 23);
    run(options, &tiles, tiles.c);
    memcpy(tiles.model, tiles.d, sizeof(float) * num_results(&tiles));
    for (int side = 0; side < 2; ++side) {
        char *data = side ? tiles.b_t : tiles.a;
        for (long row = 0; row < (long)tiles.count * (side ? i->n : i->m); ++row, data += i->k * bytes)
            for (int l = 0; l < i->k / 2; ++l) {
                char other[4], *low = data + l * bytes, *high = data + (i->k - 1 - l) * bytes;
                memcpy(other, low, bytes), memcpy(low, high, bytes), memcpy(high, other, bytes);
            }
    }
    run(options, &tiles, tiles.c);
    const long moved = count_mismatches(&tiles, NULL);
    printf("    k reversed: %ld of %ld results change\n", moved, num_results(&tiles));
    json_object_set_new(record, "reversed_sets", json_integer(num_results(&tiles)));
    json_object_set_new(record, "reversed_changes", json_integer(moved));
    free_tiles(&tiles);
    return moved;
}

/* Returns whether the machine is as modelled. */
static bool ask_instruction(const struct options *options, enum unit_instruction id, json_t *results)
{
    json_t *families = json_array(), *models = json_array(), *questions = json_array(), *record = json_object();
    long sets[2] = {0}, mismatches[2] = {0};
    const bool in_full = id == 0 || instructions[id].format != instructions[id - 1].format;
    printf("%s\n", instructions[id].name);
    for (int family = 0; family < UNIT_FAMILIES; ++family) {
        const bool hard = family >= UNIT_RANDOM_FAMILIES;
        const long wanted = hard ? options->hard / (UNIT_FAMILIES - UNIT_RANDOM_FAMILIES)
                                 : options->random / UNIT_RANDOM_FAMILIES;
        mismatches[hard] += ask_family(options, id, family, wanted, families, &sets[hard]);
    }
    printf("    %ld random sets, %ld mismatches; %ld hard sets, %ld mismatches\n", sets[0], mismatches[0], sets[1],
           mismatches[1]);
    const int different = ask_questions(options, id, in_full, questions);
    const long moved = reverse_order(options, id, record);
    try_models(options, id, models);
    json_object_set_new(record, "instruction", json_string(instructions[id].name));
    json_object_set_new(record, "families", families);
    json_object_set_new(record, "questions", questions);
    json_object_set_new(record, "models", models);
    json_array_append_new(results, record);
    fflush(stdout);
    return mismatches[0] + mismatches[1] + different + moved == 0;
}

static const struct argp_option option_table[] = {
    {"cuda", 'c', NULL, 0, "Ask the GPU; without it the simulated one", 0},
    {"random", 'r', "N", 0, "Random sets of each instruction (2^20)", 0},
    {"hard", 'h', "N", 0, "Hard sets of each instruction (2^18)", 0},
    {"json", 'j', "FILE", 0, "Write everything found to FILE", 0},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'c': options->cuda = true; return 0;
    case 'r': options->random = atol(text); return 0;
    case 'h': options->hard = atol(text); return 0;
    case 'j': options->json = text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp parser = {option_table, parse_option, NULL,
                                       "Compares tensor cores with their model, bit for bit.", NULL, NULL, NULL};
    struct options options = {.random = 1 << 20, .hard = 1 << 18};
    char machine[512] = "simulated GPU", date[32];
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    if (options.cuda && (!unit_probe_machine_cuda || !unit_probe_machine_cuda(machine, sizeof machine))) {
        printf("unit_probe: UNCHECKED, there is no GPU\n");
        return 0;
    }
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("%s, %s\n", machine, date);
    json_t *results = json_array();
    int wrong = 0;
    for (int id = 0; id < UNIT_NUM_INSTRUCTIONS; ++id) wrong += !ask_instruction(&options, id, results);
    json_t *all = json_pack("{s:s, s:s, s:o}", "machine", machine, "date", date, "instructions", results);
    if (options.json && json_dump_file(all, options.json, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "%s: cannot be written\n", options.json);
        wrong += 1;
    }
    json_decref(all);
    printf("unit_probe: %d of %d instructions as modelled\n", UNIT_NUM_INSTRUCTIONS - wrong, UNIT_NUM_INSTRUCTIONS);
    return wrong != 0;
}
