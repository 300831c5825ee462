/* options.h - the command line of the audit. */
#ifndef ATTEST_AUDIT_OPTIONS_H
#define ATTEST_AUDIT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"

enum { AUDIT_EXIT_PASS = 0, AUDIT_EXIT_FAIL = 1, AUDIT_EXIT_UNUSABLE = 2 };

/* What can be said about the problem, by an option or else by the inputs' metadata. */
enum setting {
    SETTING_SCALE,
    SETTING_CAUSAL,
    SETTING_WINDOW,
    SETTING_SLIDING,
    SETTING_DIAG,
    SETTING_SOFTCAP,
    SETTING_ALIBI,
    SETTING_LAYOUT,
    SETTING_HEADS,
    SETTING_HEADS_KV,
    SETTING_BLOCK,
    SETTING_DROPOUT,
    SETTING_DROPOUT_SEED,
    SETTING_DROPOUT_OFFSET,
    SETTING_FAMILY,
    SETTING_NUM
};
extern const char *const setting_names[SETTING_NUM]; /* as in the metadata: "softmax_scale", ... */

struct results_path {
    const char *name; /* before `=`; NULL where none was given */
    const char *path;
};

struct options {
    bool asks_properties; /* of a plug-in or of attest itself; no files are read then */
    const char *plugin;   /* a shared library; NULL: attest itself */
    enum attest_device device;
    int64_t cases, seed;
    const char *replay;   /* one case; NULL: all properties */
    const char **inputs; /* one safetensors file or folder, or several .npy files */
    int num_inputs;
    struct results_path *results;
    int num_results;
    const char *settings[SETTING_NUM]; /* NULL: not given */
    const struct attest_recipe *recipe; /* of files never NULL; of plug-ins NULL: what each plan says */
    int64_t sample, sample_seed; /* judges so many rows of every head; 0: all */
    bool all_recipes; /* every recipe is compared, not just those that are asked for and stricter */
    bool strict; /* conventions are not inferred, and guesses refused */
    const char *ignore; /* names of inputs that do not matter, commas between; NULL: none */
    int threads; /* 0: all cores */
    const char *json, *junit, *html; /* NULL: not asked for */
};

/* Prints usage or an error and exits with AUDIT_EXIT_UNUSABLE where the command line is not one. */
void options_parse(int argc, char **argv, struct options *options);

#endif
