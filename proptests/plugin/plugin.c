/* plugin.c - the audit of a plug-in: a child process for each property, and what they found. */
#include "proptests/plugin/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proptests/plugin/plugin_cuda.h"

enum { MAX_JOBS = 256 };

const char *const plugin_verdict_names[PLUGIN_NUM_VERDICTS] = {"PASS",    "FAIL",        "CRASH",
                                                               "VACUOUS", "UNSUPPORTED", "ABSENT"};

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "audit: out of memory\n");
        exit(AUDIT_EXIT_UNUSABLE);
    }
    return memory;
}

static int count_properties(void)
{
    int count = 0;
    while (properties[count].name != NULL) ++count;
    return count;
}

/* ---- children ---- */

/* Returns 0 in the child. What it prints is no part of the report, and a crash leaves no core. */
static pid_t start_child(void)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "audit: no process can be made: %s\n", strerror(errno));
        exit(AUDIT_EXIT_UNUSABLE);
    }
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    return child;
}

void plugin_ending(int status, char text[PLUGIN_SENTENCE])
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(text, PLUGIN_SENTENCE, "a call did not return within a minute");
    else if (WIFSIGNALED(status))
        snprintf(text, PLUGIN_SENTENCE, "it ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else snprintf(text, PLUGIN_SENTENCE, "it ended its process with status %d", WEXITSTATUS(status));
}

struct job {
    pid_t child; /* 0: none */
    int place;   /* in `properties` */
    bool again;  /* asks for the crash */
};

struct work {
    const struct options *options;
    struct plugin *plugin;
    const struct plugin_survey *survey;
    struct plugin_result *results;
    int num_jobs, most_jobs;
    struct job jobs[MAX_JOBS];
};

static void start_job(struct work *w, int place, bool again)
{
    const struct property *property = &properties[place];
    const uint64_t refused = w->survey->refused[property->request.backward];
    struct plugin_result *result = &w->results[place];
    struct property asked;
    char why[PLUGIN_SENTENCE];
    const pid_t child = start_child();
    if (child == 0) {
        plugin_property(property, w->plugin, refused, &asked, why);
        (again ? plugin_ask_crash : plugin_ask)(w->plugin, &asked, refused, w->options, result);
        _exit(0);
    }
    w->jobs[w->num_jobs++] = (struct job){child, place, again};
}

/* Waits for one. A property whose process did not come to its end is asked for the reason. */
static void end_job(struct work *w)
{
    int status, i = 0;
    const pid_t child = wait(&status);
    while (i < w->num_jobs && w->jobs[i].child != child) ++i;
    if (i == w->num_jobs) return;
    const struct job job = w->jobs[i];
    struct plugin_result *result = &w->results[job.place];
    w->jobs[i] = w->jobs[--w->num_jobs];
    if (result->is_done && WIFEXITED(status)) return;
    result->verdict = PLUGIN_CRASH;
    if (*result->message == '\0') plugin_ending(status, result->message);
    if (!job.again && result->drawn > 0) start_job(w, job.place, true);
}

/* Why a property is not asked; false: it is. */
static bool is_left_out(const struct work *w, int place)
{
    const struct property *property = &properties[place];
    struct plugin_result *result = &w->results[place];
    struct property asked;
    const char *absent = NULL;
    if (property->request.backward && !w->survey->has_backward) absent = "attest_run_backward";
    if (strcmp(property->name, "merge_laws") == 0 && !w->survey->has_merge) absent = "attest_merge_states";
    if (strcmp(property->name, "merge_backward") == 0 && !w->survey->has_merge_backward)
        absent = "attest_merge_states_backward";
    if (absent != NULL) {
        result->verdict = PLUGIN_ABSENT;
        snprintf(result->message, sizeof result->message, "it does not export %s", absent);
        return true;
    }
    result->verdict = PLUGIN_UNSUPPORTED;
    return !plugin_property(property, w->plugin, w->survey->refused[property->request.backward], &asked,
                            result->message);
}

static void ask_all(struct work *w)
{
    for (int i = 0; properties[i].name != NULL; ++i) {
        if (is_left_out(w, i)) continue;
        while (w->num_jobs == w->most_jobs) end_job(w);
        start_job(w, i, false);
    }
    while (w->num_jobs > 0) end_job(w);
}

/* ---- the audit ---- */

/* In a process of its own, too: false with a sentence where the plug-in cannot be audited. */
static bool survey(struct plugin *plugin, struct plugin_survey *found)
{
    int status;
    const pid_t child = start_child();
    if (child == 0) {
        const bool no_build = plugin->device == ATTEST_CUDA && plugin_cuda_devices == NULL;
        if (no_build) snprintf(found->error, sizeof found->error, "this build has no CUDA: there was no nvcc");
        else if (plugin->device == ATTEST_CUDA && plugin_cuda_devices() == 0)
            snprintf(found->error, sizeof found->error, "UNCHECKED: there is no GPU");
        else plugin_ask_survey(plugin, found);
        found->is_done = true;
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (!found->is_done || !WIFEXITED(status)) plugin_ending(status, found->error);
    return *found->error == '\0';
}

static int exit_status(const struct plugin_result *results)
{
    bool ran = false, failed = false;
    for (int i = 0; properties[i].name != NULL; ++i) {
        ran |= results[i].verdict < PLUGIN_UNSUPPORTED;
        failed |= results[i].verdict > PLUGIN_PASS && results[i].verdict < PLUGIN_UNSUPPORTED;
    }
    return failed ? AUDIT_EXIT_FAIL : ran ? AUDIT_EXIT_PASS : AUDIT_EXIT_UNUSABLE;
}

static int report(const struct plugin_audit *audit)
{
    plugin_report_table(audit, stdout);
    if (fflush(stdout) != 0) {
        fprintf(stderr, "audit: standard output cannot be written: %s\n", strerror(errno));
        return AUDIT_EXIT_UNUSABLE;
    }
    if (audit->options->json == NULL || plugin_report_json(audit, audit->options->json)) return audit->exit_status;
    fprintf(stderr, "audit: %s cannot be written: %s\n", audit->options->json, strerror(errno));
    return AUDIT_EXIT_UNUSABLE;
}

int plugin_audit(const struct options *options)
{
    struct plugin plugin = {.path = options->plugin, .device = options->device, .recipe = options->recipe};
    const char *const slash = plugin.path != NULL ? strrchr(plugin.path, '/') : NULL;
    const char *const name = plugin.path == NULL ? "attest" : slash != NULL ? slash + 1 : plugin.path;
    struct plugin_survey *found = shared(sizeof *found);
    if (!survey(&plugin, found)) {
        fprintf(stderr, "audit: %s: %s\n", name, found->error);
        return AUDIT_EXIT_UNUSABLE;
    }
    if (options->replay != NULL) return plugin_replay(&plugin, options->replay, stdout);

    const long cores = sysconf(_SC_NPROCESSORS_ONLN), jobs = options->threads > 0 ? options->threads : cores;
    struct work work = {.options = options, .plugin = &plugin, .survey = found,
                        .results = shared((size_t)count_properties() * sizeof *work.results),
                        .most_jobs = (int)(jobs < MAX_JOBS ? jobs : MAX_JOBS)};
    ask_all(&work);
    const struct plugin_audit audit = {.options = options, .name = name, .survey = found, .results = work.results,
                                       .exit_status = exit_status(work.results)};
    return report(&audit);
}
