/* plugin_library.c - the functions of a shared library, or our own. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "proptests/plugin/plugin.h"

static const struct symbol {
    const char *name;
    size_t place;
    bool is_needed;
} symbols[] = {
    {"attest_version", offsetof(struct plugin_functions, version), true},
    {"attest_last_error", offsetof(struct plugin_functions, last_error), true},
    {"attest_plan_create", offsetof(struct plugin_functions, plan_create), true},
    {"attest_plan_destroy", offsetof(struct plugin_functions, plan_destroy), true},
    {"attest_plan_workspace", offsetof(struct plugin_functions, plan_workspace), true},
    {"attest_plan_share", offsetof(struct plugin_functions, plan_share), false},
    {"attest_run_forward", offsetof(struct plugin_functions, run_forward), true},
    {"attest_run_backward", offsetof(struct plugin_functions, run_backward), false},
    {"attest_merge_states", offsetof(struct plugin_functions, merge_states), false},
    {"attest_merge_states_backward", offsetof(struct plugin_functions, merge_states_backward), false},
};

static const struct plugin_functions own = {
    .version = attest_version,
    .last_error = attest_last_error,
    .plan_create = attest_plan_create,
    .plan_destroy = attest_plan_destroy,
    .plan_workspace = attest_plan_workspace,
    .plan_share = attest_plan_share,
    .run_forward = attest_run_forward,
    .run_backward = attest_run_backward,
    .merge_states = attest_merge_states,
    .merge_states_backward = attest_merge_states_backward,
};

static char why[PLUGIN_SENTENCE];

/* As lib/attest.h says beside attest_version. */
static bool is_compatible(uint32_t version)
{
    return version / 10000 == ATTEST_VERSION_MAJOR && version >= ATTEST_VERSION;
}

static const char *load_symbols(void *library, struct plugin_functions *functions)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
        void *const symbol = dlsym(library, symbols[i].name);
        if (symbol == NULL && symbols[i].is_needed) {
            snprintf(why, sizeof why, "it does not export %s", symbols[i].name);
            return why;
        }
        memcpy((char *)functions + symbols[i].place, &symbol, sizeof symbol);
    }
    return NULL;
}

const char *plugin_load(struct plugin *plugin)
{
    char in_folder[4096];
    if (plugin->path == NULL) {
        plugin->functions = own;
        return NULL;
    }
    /* A name without a slash is looked for among the system's libraries; the user means a file. */
    snprintf(in_folder, sizeof in_folder, "%s%s", strchr(plugin->path, '/') != NULL ? "" : "./", plugin->path);
    void *const library = dlopen(in_folder, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, sizeof why, "it is no shared library that can be loaded: %s", dlerror());
        return why;
    }
    if (load_symbols(library, &plugin->functions) != NULL) return why;
    const uint32_t version = plugin->functions.version();
    if (is_compatible(version)) return NULL;
    snprintf(why, sizeof why, "its attest_version is %u.%u.%u, which is not compatible with %u.%u.%u", version / 10000,
             version / 100 % 100, version % 100, ATTEST_VERSION_MAJOR, ATTEST_VERSION_MINOR, ATTEST_VERSION_PATCH);
    return why;
}
