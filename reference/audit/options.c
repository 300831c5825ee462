/* options.c - the command line, by glibc's argp. */
#include "reference/audit/options.h"

#include <argp.h>
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

const char *const setting_names[SETTING_NUM] = {"softmax_scale", "causal", "window", "diag",
                                                "softcap",       "alibi",  "layout", "family"};

static const char doc[] =
    "Judges what attention implementations returned against a double-precision oracle with proven error bounds."
    "\vINPUTS is a safetensors file, a folder of .npy files or several .npy files that hold q, k, v and, for "
    "gradients, dout (or do); optionally bias, mask, sink, alibi_slopes and dlse. Each RESULTS is what one "
    "implementation returned: any of o, lse, dq, dk, dv, in a safetensors file, a folder or .npy files; several of "
    "one NAME= are one implementation. Where no option describes the problem, the inputs' metadata does.\n"
    "\n"
    "Exit status: 0 every tensor passes; 1 some number is not proven right (FAIL, OVERFLOW, VACUOUS); 2 wrong "
    "usage, an unreadable file, or something that could not be judged (ERROR, UNSUPPORTED).";

/* Keys of the settings are KEY_SETTING + enum setting. */
enum { KEY_SETTING = 256, KEY_RECIPE = KEY_SETTING + SETTING_NUM, KEY_STRICT, KEY_THREADS, KEY_JSON, KEY_JUNIT,
       KEY_HTML };

static const struct argp_option argp_options[] = {
    {0, 0, 0, 0, "The problem:", 1},
    {"scale", KEY_SETTING + SETTING_SCALE, "X", 0, "softmax_scale; default 1/sqrt(head_dim)", 0},
    {"causal", KEY_SETTING + SETTING_CAUSAL, "top-left|bottom-right", OPTION_ARG_OPTIONAL,
     "Keys after the diagonal are hidden", 0},
    {"window", KEY_SETTING + SETTING_WINDOW, "LEFT,RIGHT", 0,
     "Visible: diagonal - LEFT to diagonal + RIGHT; negative: unbounded", 0},
    {"diag", KEY_SETTING + SETTING_DIAG, "KIND", 0,
     "top-left, bottom-right or a number: query i sits on key i + diag", 0},
    {"softcap", KEY_SETTING + SETTING_SOFTCAP, "X", 0, "Scores are X tanh(s / X)", 0},
    {"alibi", KEY_SETTING + SETTING_ALIBI, "SLOPES|auto", 0,
     "A slope for each head, commas between; auto: the usual ones", 0},
    {"layout", KEY_SETTING + SETTING_LAYOUT, "LAYOUT", 0,
     "shd, hsd, bshd or bhsd; default: guessed from the shapes", 0},
    {0, 0, 0, 0, "The verdict:", 2},
    {"recipe", KEY_RECIPE, "NAME", 0, "Whose bound gives the verdict: fp32, mixed, flash (default), ampere, hopper", 0},
    {"family", KEY_SETTING + SETTING_FAMILY, "NAME", 0,
     "Of the inputs; normal, outlier, mean and recorded (default) are judged by root mean square and mean signed "
     "error too", 0},
    {"strict", KEY_STRICT, 0, 0, "Judge by the stated conventions only, infer none", 0},
    {0, 0, 0, 0, "Output:", 3},
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

static void parse_threads(struct argp_state *state, const char *text, struct options *o)
{
    char *end;
    const long threads = strtol(text, &end, 10);
    if (end == text || *end != '\0' || threads < 1 || threads > 4096)
        argp_error(state, "--threads: '%s' is no number in 1 .. 4096", text);
    o->threads = (int)threads;
}

static bool is_input_npy(const char *path)
{
    const char *slash = strrchr(path, '/'), *stem = slash != NULL ? slash + 1 : path;
    const char *dot = strrchr(stem, '.');
    return dot != NULL && strcmp(dot, ".npy") == 0 && case_is_input_name(stem, (size_t)(dot - stem));
}

/* The first path is the inputs; so are those after it, as long as all are .npy files of inputs. */
static void add_path(char *text, struct options *o)
{
    if (o->num_results == 0 && (o->num_inputs == 0 || (is_input_npy(o->inputs[0]) && is_input_npy(text)))) {
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
        bool is_data = has_ending(reports[i], ".safetensors") || has_ending(reports[i], ".npy");
        for (int n = 0; n < o->num_inputs; ++n) is_data |= is_same_file(reports[i], o->inputs[n]);
        for (int n = 0; n < o->num_results; ++n) is_data |= is_same_file(reports[i], o->results[n].path);
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
    case KEY_STRICT: o->strict = true; break;
    case KEY_THREADS: parse_threads(state, arg, o); break;
    case KEY_JSON: o->json = arg; break;
    case KEY_JUNIT: o->junit = arg; break;
    case KEY_HTML: o->html = arg; break;
    case ARGP_KEY_ARG: add_path(arg, o); break;
    case ARGP_KEY_NO_ARGS: argp_usage(state); break;
    case ARGP_KEY_END:
        if (o->num_results == 0) argp_error(state, "no RESULTS to judge");
        refuse_overwriting(state, o);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void options_parse(int argc, char **argv, struct options *options)
{
    static const struct argp argp = {.options = argp_options, .parser = parse, .args_doc = "INPUTS [NAME=]RESULTS...",
                                     .doc = doc};
    argp_err_exit_status = AUDIT_EXIT_UNUSABLE;
    *options = (struct options){.recipe = ref_recipe("flash")};
    options->inputs = allocate((size_t)argc, sizeof *options->inputs);
    options->results = allocate((size_t)argc, sizeof *options->results);
    argp_parse(&argp, argc, argv, 0, NULL, options);
}
