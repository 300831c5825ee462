/* options.c - the command line, by glibc's argp. */
#include "reference/audit/options.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reference/audit/case.h"
#include "reference/audit/notes.h"
#include "reference/bounds.h"

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *argp_program_version =
    "attest audit " VERSION_TEXT(ATTEST_VERSION_MAJOR, ATTEST_VERSION_MINOR, ATTEST_VERSION_PATCH);

const char *const setting_names[SETTING_NUM] = {
    "softmax_scale", "causal",   "window", "sliding_window", "diag",         "softcap",        "alibi", "layout",
    "num_heads",     "num_heads_kv", "block",  "dropout_p",      "dropout_seed", "dropout_offset", "family"};

static const char doc[] =
    "Judges what attention implementations returned against a double-precision oracle with proven error bounds."
    "\vINPUTS are safetensors, .npz, .pt or .npy files or folders of .npy files that hold q, k, v and, for gradients, "
    "dout; optionally bias, mask, sink and more. Each RESULTS is what one implementation returned: any of o, lse, dq, "
    "dk, dv, dbias, dsink; several of one NAME= are one implementation. The first path is INPUTS, and so are those "
    "after it that hold inputs and no results; a file of both may stand alone. Tensors may have the names that "
    "frameworks give them. Where no option describes the problem, the inputs' metadata does.\n"
    "\n"
    "With --plugin or --device no file is read: every property that attention must have is asked of a shared library "
    "that exports the functions of lib/attest.h, or of attest itself, over random shapes, masks and input families.\n"
    "\n"
    "Exit status: 0 every tensor or property passes; 1 some number is not proven right (FAIL, OVERFLOW, VACUOUS, "
    "CRASH); 2 wrong "
    "usage, an unreadable file, or something that could not be judged (ERROR, UNSUPPORTED).";

/* Keys of the settings are KEY_SETTING + enum setting. */
enum {
    KEY_SETTING = 256,
    KEY_RECIPE = KEY_SETTING + SETTING_NUM,
    KEY_RECIPES,
    KEY_SAMPLE,
    KEY_STRICT,
    KEY_IGNORE,
    KEY_THREADS,
    KEY_JSON,
    KEY_JUNIT,
    KEY_HTML,
    KEY_PLUGIN,
    KEY_DEVICE,
    KEY_CASES,
    KEY_SEED,
    KEY_REPLAY
};

static const struct argp_option argp_options[] = {
    {0, 0, 0, 0, "The problem:", 1},
    {"scale", KEY_SETTING + SETTING_SCALE, "X", 0, "softmax_scale; default 1/sqrt(head_dim)", 0},
    {"causal", KEY_SETTING + SETTING_CAUSAL, "top-left|bottom-right", OPTION_ARG_OPTIONAL,
     "Keys after the diagonal are hidden", 0},
    {"window", KEY_SETTING + SETTING_WINDOW, "LEFT,RIGHT", 0,
     "Visible: diagonal - LEFT to diagonal + RIGHT; negative: unbounded", 0},
    {"diag", KEY_SETTING + SETTING_DIAG, "KIND", 0, "top-left, bottom-right or a number: query i sits on key i + diag",
     0},
    {"softcap", KEY_SETTING + SETTING_SOFTCAP, "X", 0, "Scores are X tanh(s / X)", 0},
    {"alibi", KEY_SETTING + SETTING_ALIBI, "SLOPES|auto", 0,
     "A slope for each head, commas between; auto: the usual ones", 0},
    {"layout", KEY_SETTING + SETTING_LAYOUT, "LAYOUT", 0,
     "bshd, bhsd, sbhd, bs(hd), sb(hd), shd (or thd), hsd or s(hd), and for single tensors, after commas, "
     "NAME=LAYOUT; "
     "default: by the shapes",
     0},
    {"heads", KEY_SETTING + SETTING_HEADS, "N", 0, "Of q, where an axis holds heads x head_dim", 0},
    {"heads-kv", KEY_SETTING + SETTING_HEADS_KV, "N", 0, "Of k and v; default: as many as q has", 0},
    {"sliding-window", KEY_SETTING + SETTING_SLIDING, "N", 0, "N keys up to the row's own", 0},
    {"block", KEY_SETTING + SETTING_BLOCK, "ROWS,COLUMNS", 0, "Scores of a block of block_mask", 0},
    {"dropout", KEY_SETTING + SETTING_DROPOUT, "P", 0, "By attest's counter", 0},
    {"dropout-seed", KEY_SETTING + SETTING_DROPOUT_SEED, "N", 0, "Of it (0)", 0},
    {"dropout-offset", KEY_SETTING + SETTING_DROPOUT_OFFSET, "N", 0, "Of it (0)", 0},
    {"ignore", KEY_IGNORE, "NAMES", 0, "Tensors and metadata of INPUTS, commas between, that do not matter", 0},
    {0, 0, 0, 0, "The verdict:", 2},
    {"recipe", KEY_RECIPE, "NAME", 0,
     "Whose bound gives the verdict: fp32, mixed, flash (default), ampere, hopper, lazy", 0},
    {"recipes", KEY_RECIPES, "all", 0,
     "Compare with every recipe; default: with the one that gives the verdict and, for their names, stricter ones", 0},
    {"sample", KEY_SAMPLE, "N", 0,
     "Judge o, lse and dq of N rows of every head, drawn from --seed, by bounds alone; default: all rows", 0},
    {"family", KEY_SETTING + SETTING_FAMILY, "NAME", 0,
     "Of the inputs; normal, outlier, mean and recorded (default) are judged by root mean square and mean signed "
     "error too",
     0},
    {"strict", KEY_STRICT, 0, 0, "Judge by what is stated only: infer no convention, refuse to guess", 0},
    {0, 0, 0, 0, "Properties of a library, instead of files:", 3},
    {"plugin", KEY_PLUGIN, "FILE", 0,
     "A shared library; --recipe then is for all of its plans, default what each says", 0},
    {"device", KEY_DEVICE, "NAME", 0,
     "Of the problems: reference (host memory; default), sim or cuda. Without --plugin attest itself is asked", 0},
    {"cases", KEY_CASES, "N", 0, "Of all properties together (2000)", 0},
    {"seed", KEY_SEED, "N", 0, "Of the cases, or of --sample (1)", 0},
    {"replay", KEY_REPLAY, "LINE", 0, "Only this case of a failure", 0},
    {0, 0, 0, 0, "Output:", 4},
    {"json", KEY_JSON, "FILE", 0, "Everything, as JSON", 0},
    {"junit", KEY_JUNIT, "FILE", 0, "A test case for each implementation and tensor, as JUnit XML", 0},
    {"html", KEY_HTML, "FILE", 0, "One self-contained page with pictures", 0},
    {"threads", KEY_THREADS, "N", 0, "Default: all cores", 0},
    {0},
};

static void parse_recipe(struct argp_state *state, const char *text, struct options *o)
{
    o->recipe = ref_recipe(text);
    if (o->recipe != NULL) return;
    char names[256] = "";
    for (const struct attest_recipe *r = ref_recipes; r->name != NULL; ++r)
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", r->name);
    argp_error(state, "--recipe: '%s' is none of%s", text, names);
}

static int64_t parse_number(struct argp_state *state, const char *option, const char *text, int64_t least, int64_t most)
{
    char *end;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || number < least || number > most)
        argp_error(state, "--%s: '%s' is no number in %" PRId64 " .. %" PRId64, option, text, least, most);
    return number;
}

static void parse_device(struct argp_state *state, const char *text, struct options *o)
{
    static const char *const names[] = {"cuda", "sim", "reference"}; /* as enum attest_device */
    for (int i = 0; i < 3; ++i) {
        if (strcmp(text, names[i]) != 0) continue;
        o->device = (enum attest_device)i;
        o->asks_properties = true;
        return;
    }
    argp_error(state, "--device: '%s' is none of cuda sim reference", text);
}

/* What only one of the two kinds of audit takes. */
static void check_kind(struct argp_state *state, struct options *o)
{
    if (!o->asks_properties) {
        if (o->replay != NULL || o->cases != 0 || (o->seed != 0 && o->sample == 0))
            argp_error(state, "--cases, --seed and --replay need --plugin or --device; --seed is for --sample, too");
        o->sample_seed = o->seed != 0 ? o->seed : 1;
        if (o->recipe == NULL) o->recipe = ref_recipe("flash");
        return;
    }
    if (o->num_inputs > 0) argp_error(state, "%s: properties are asked without files", o->inputs[0]);
    for (int i = 0; i < SETTING_NUM; ++i)
        if (o->settings[i] != NULL)
            argp_error(state, "%s is drawn at random with --plugin and --device", setting_names[i]);
    if (o->strict || o->sample > 0 || o->ignore != NULL || o->junit != NULL || o->html != NULL)
        argp_error(state, "--strict, --sample, --ignore, --junit and --html are for files");
    if (o->cases == 0) o->cases = 2000;
    if (o->seed == 0) o->seed = 1;
}

/* The first path is the inputs; which of the others are, too, their contents say (case_sort_paths). */
static void add_path(char *text, struct options *o)
{
    if (o->num_inputs == 0) {
        o->inputs[o->num_inputs++] = text;
        return;
    }
    struct results_path *r = &o->results[o->num_results++];
    char *equals = strchr(text, '=');
    r->path = text;
    if (equals == NULL || memchr(text, '/', (size_t)(equals - text)) != NULL) return; /* `=` inside a path */
    *equals = '\0';
    r->name = text;
    r->path = equals + 1;
}

static bool has_ending(const char *path, const char *ending)
{
    const size_t length = strlen(path), n = strlen(ending);
    return length >= n && strcmp(path + length - n, ending) == 0;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* `--json b.safetensors`, its own name forgotten, must not cost anybody his data. */
static void refuse_overwriting(struct argp_state *state, const struct options *o)
{
    const char *const reports[] = {o->json, o->junit, o->html};
    for (size_t i = 0; i < sizeof reports / sizeof *reports; ++i) {
        if (reports[i] == NULL) continue;
        bool is_data = has_ending(reports[i], ".safetensors") || has_ending(reports[i], ".npy") ||
                       has_ending(reports[i], ".npz") || has_ending(reports[i], ".pt");
        for (int n = 0; n < o->num_inputs; ++n) is_data |= is_same_file(reports[i], o->inputs[n]);
        for (int n = 0; n < o->num_results; ++n) is_data |= is_same_file(reports[i], o->results[n].path);
        is_data |= o->plugin != NULL && is_same_file(reports[i], o->plugin);
        if (is_data) argp_error(state, "%s is data, not a place for a report", reports[i]);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    if (key >= KEY_SETTING && key < KEY_SETTING + SETTING_NUM) {
        o->settings[key - KEY_SETTING] = arg != NULL ? arg : "true";
        return 0;
    }
    switch (key) {
    case KEY_RECIPE: parse_recipe(state, arg, o); break;
    case KEY_SAMPLE: o->sample = parse_number(state, "sample", arg, 1, INT32_MAX); break;
    case KEY_RECIPES:
        if (strcmp(arg, "all") != 0) argp_error(state, "--recipes: '%s' is not all", arg);
        o->all_recipes = true;
        break;
    case KEY_STRICT: o->strict = true; break;
    case KEY_IGNORE: o->ignore = arg; break;
    case KEY_THREADS: o->threads = (int)parse_number(state, "threads", arg, 1, 4096); break;
    case KEY_JSON: o->json = arg; break;
    case KEY_JUNIT: o->junit = arg; break;
    case KEY_HTML: o->html = arg; break;
    case KEY_PLUGIN: o->plugin = arg, o->asks_properties = true; break;
    case KEY_DEVICE: parse_device(state, arg, o); break;
    case KEY_CASES: o->cases = parse_number(state, "cases", arg, 1, INT32_MAX); break;
    case KEY_SEED: o->seed = parse_number(state, "seed", arg, 1, INT64_MAX); break;
    case KEY_REPLAY: o->replay = arg; break;
    case ARGP_KEY_ARG: add_path(arg, o); break;
    case ARGP_KEY_NO_ARGS:
        if (!o->asks_properties) argp_usage(state);
        break;
    case ARGP_KEY_END:
        check_kind(state, o);
        refuse_overwriting(state, o);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void options_parse(int argc, char **argv, struct options *options)
{
    static const struct argp argp = {.options = argp_options,
                                     .parser = parse,
                                     .args_doc = "INPUTS [NAME=]RESULTS...\n--plugin FILE\n--device NAME",
                                     .doc = doc};
    argp_err_exit_status = AUDIT_EXIT_UNUSABLE;
    *options = (struct options){.device = ATTEST_REFERENCE};
    options->inputs = allocate((size_t)argc, sizeof *options->inputs);
    options->results = allocate((size_t)argc + 1, sizeof *options->results);
    argp_parse(&argp, argc, argv, 0, NULL, options);
}
