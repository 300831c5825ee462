/* plugin.h - attention behind attest's run functions: a shared library of anybody's, or attest itself.
 *
 * A plug-in is loaded and called by child processes alone: what it does to its process, a crash included, is
 * a finding and not the end of the audit. The process of the audit never calls it. */
#ifndef ATTEST_PROPTESTS_PLUGIN_PLUGIN_H
#define ATTEST_PROPTESTS_PLUGIN_PLUGIN_H

#include <stdio.h>

#include "proptests/properties/properties.h"
#include "reference/audit/options.h"

/* What it exports, by the names of lib/attest.h. NULL: that function is absent. */
struct plugin_functions {
    uint32_t (*version)(void);
    const char *(*last_error)(void);
    enum attest_status (*plan_create)(const struct attest_problem *problem, struct attest_plan **plan);
    void (*plan_destroy)(struct attest_plan *plan);
    enum attest_status (*plan_workspace)(const struct attest_plan *plan, size_t *forward_bytes, size_t *backward_bytes);
    const struct attest_share *(*plan_share)(const struct attest_plan *plan, enum attest_pass pass, int i);
    enum attest_status (*run_forward)(const struct attest_plan *plan, const struct attest_forward_args *args,
                                      void *workspace, size_t workspace_bytes, void *stream);
    enum attest_status (*run_backward)(const struct attest_plan *plan, const struct attest_backward_args *args,
                                       void *workspace, size_t workspace_bytes, void *stream);
    enum attest_status (*merge_states)(const struct attest_merge_args *args, void *stream);
    enum attest_status (*merge_states_backward)(const struct attest_merge_backward_args *args, void *stream);
};

enum { PLUGIN_SENTENCE = 512, PLUGIN_REFUSAL = 400, PLUGIN_NAME = 64, PLUGIN_MAX_RECIPES = 8 };

/* The different recipes that plans reported, with names of our own: theirs end with the process. */
struct plugin_recipes {
    struct attest_recipe recipe[PLUGIN_MAX_RECIPES];
    char name[PLUGIN_MAX_RECIPES][PLUGIN_NAME];
    int count;
};
void plugin_note_recipe(struct plugin_recipes *recipes, const struct attest_recipe *recipe, const char *name);

/* A plug-in as properties know it, who may not change it. */
struct plugin_self {
    struct implementation implementation; /* first: its functions find the rest by it */
    struct plugin *plugin;
};

struct plugin {
    struct plugin_self self;              /* set by plugin_implementation() */
    const char *path;                     /* NULL: attest itself */
    enum attest_device device;            /* of every problem; CUDA: memory is the GPU's */
    const struct attest_recipe *recipe;   /* the user's; NULL: what each plan says */
    struct plugin_functions functions;
    int64_t plans;                        /* that plugin_takes found */
    enum attest_status status;            /* of the last call that did not return ATTEST_OK */
    char refusal[PLUGIN_REFUSAL];         /* and what it said */
    struct plugin_recipes seen;
    void *question;                       /* of plugin_ask.c */
};

/* plugin_library.c. Loads the functions into this process. NULL, or one sentence. */
const char *plugin_load(struct plugin *plugin);

/* plugin_run.c. Fills in `self`, to be called `name`. */
void plugin_implementation(struct plugin *plugin, const char *name);
/* Whether there is a plan for the problem, with a recipe; else the sentence is in `refusal`. */
enum attest_status plugin_takes(struct plugin *plugin, const struct attest_problem *problem);

/* ---- what became of it ---- */

enum plugin_verdict { PLUGIN_PASS, PLUGIN_FAIL, PLUGIN_CRASH, PLUGIN_VACUOUS, PLUGIN_UNSUPPORTED, PLUGIN_ABSENT,
                      PLUGIN_NUM_VERDICTS };
extern const char *const plugin_verdict_names[PLUGIN_NUM_VERDICTS];

/* Of one tensor in one input family. */
struct plugin_share {
    double use;             /* largest share of the bound; NaN if any is */
    int64_t judged, proven; /* tensors; of them, with a bound that is finite and no larger than the values */
};

/* Of one property. Written by a child into shared memory. */
struct plugin_result {
    enum plugin_verdict verdict;
    int64_t drawn, cases, refused; /* cases: that count; refused: answered UNSUPPORTED */
    int64_t family_cases[NUM_FAMILIES], feature_cases[NUM_FEATURES];
    struct plugin_share shares[NUM_FAMILIES][REF_NUM_TENSORS];
    char message[PLUGIN_SENTENCE]; /* what is wrong, or why nothing was asked; "" */
    char line[CHECK_MAX_LINE];     /* replays the smallest failing case; "" */
    int64_t batch, seqlen_q, seqlen_k, head_dim; /* of that case */
    struct plugin_recipes recipes;
    bool is_done;
};

/* Which features it takes, by what it answers to problems that have one feature each. */
struct plugin_survey {
    char error[PLUGIN_SENTENCE]; /* why it cannot be audited; "" */
    bool has_backward, has_merge, has_merge_backward;
    uint64_t refused[2];         /* features, of forward and of backward */
    char refusals[2][NUM_FEATURES][PLUGIN_SENTENCE];
    bool is_done;
};

/* plugin_ask.c. All of these load the plug-in into this process. */
void plugin_ask_survey(struct plugin *plugin, struct plugin_survey *survey);
/* The property as it is asked of a plug-in that refuses these features. False: nothing would be left of it, and
 * `why` says so. */
bool plugin_property(const struct property *property, const struct plugin *plugin, uint64_t refused,
                     struct property *asked, char why[PLUGIN_SENTENCE]);
void plugin_ask(struct plugin *plugin, const struct property *asked, uint64_t refused, const struct options *options,
                struct plugin_result *result);
/* The case at which plugin_ask ended its process, every trial in a process of its own: shrinks what crashes. */
void plugin_ask_crash(struct plugin *plugin, const struct property *asked, uint64_t refused,
                      const struct options *options, struct plugin_result *result);
/* One case again. Prints it and what is wrong; 0, AUDIT_EXIT_FAIL, or AUDIT_EXIT_UNUSABLE for no line of ours. */
int plugin_replay(struct plugin *plugin, const char *line, FILE *out);

struct plugin_audit {
    const struct options *options;
    const char *name; /* of the plug-in's file, or "attest" */
    const struct plugin_survey *survey;
    const struct plugin_result *results; /* by place in `properties` */
    int exit_status;
};

/* plugin_report.c */
void plugin_report_table(const struct plugin_audit *audit, FILE *out);
bool plugin_report_json(const struct plugin_audit *audit, const char *path);

/* plugin.c: the whole audit of options->plugin, or of attest itself. Exit status. */
int plugin_audit(const struct options *options);
/* What became of a child: "" if it ended well, else "ended by signal 11 (Segmentation fault)". */
void plugin_ending(int wait_status, char text[PLUGIN_SENTENCE]);

#endif
