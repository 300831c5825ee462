/* report.c - findings: who, where, what. */
#define _GNU_SOURCE
#include "kernels/sim/watch.h"

#include <ctype.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/sim/fiber.h"

const char *sim_rule_name(enum sim_rule rule)
{
    static const char *const names[] = {
        [SIM_CLEAN] = "clean",
        [SIM_OUT_OF_BOUNDS] = "out of bounds",
        [SIM_OUTSIDE_OUTPUTS] = "outside outputs",
        [SIM_MISALIGNED] = "misaligned",
        [SIM_UNINITIALISED] = "uninitialised",
        [SIM_RACE] = "race",
        [SIM_MISSING_WAIT] = "missing wait",
        [SIM_MISSING_PROXY_FENCE] = "missing proxy fence",
        [SIM_WRONG_PARITY] = "wrong parity",
        [SIM_REGISTERS_IN_FLIGHT] = "registers in flight",
        [SIM_MISSING_WGMMA_FENCE] = "missing wgmma fence",
        [SIM_DIVERGED] = "diverged",
        [SIM_BARRIER_COUNT] = "barrier count",
        [SIM_DEADLOCK] = "deadlock",
        [SIM_LEFT_PENDING] = "left pending",
        [SIM_BAD_OPERAND] = "bad operand",
        [SIM_LIMIT] = "limit",
        [SIM_WRONG_GENERATION] = "wrong generation",
        [SIM_NOT_WRITTEN] = "not written",
        [SIM_TRAP] = "trap",
    };
    return (size_t)rule < sizeof names / sizeof *names ? names[rule] : "unknown rule";
}

/* ---- source lines ------------------------------------------------------------------------------------------- */

/* Debug information of this process, read at the first finding; not safe for threads by itself. */
static pthread_mutex_t dwarf_mutex = PTHREAD_MUTEX_INITIALIZER;

static Dwfl *open_dwarf(void)
{
    static char *no_path = NULL;
    static const Dwfl_Callbacks callbacks = {
        .find_elf = dwfl_linux_proc_find_elf,
        .find_debuginfo = dwfl_standard_find_debuginfo,
        .debuginfo_path = &no_path,
    };
    static Dwfl *dwfl;
    if (!dwfl) {
        dwfl = dwfl_begin(&callbacks);
        if (dwfl && dwfl_linux_proc_report(dwfl, getpid()) != 0) return NULL;
        if (dwfl) dwfl_report_end(dwfl, NULL, NULL);
    }
    return dwfl;
}

/* Its probes, one folder down, are kernels like others. */
static bool in_device_layer(const char *file)
{
    const char *const folder = "kernels/device/", *at = file ? strstr(file, folder) : NULL;
    return !file || (at && !strchr(at + strlen(folder), '/'));
}

/* Where the function that holds this inlined scope calls it. */
static const char *call_of(Dwarf_Die *cu, Dwarf_Die *scope, int *line)
{
    Dwarf_Attribute attribute;
    Dwarf_Word file = 0, at = 0;
    Dwarf_Files *files;
    size_t n;
    if (!dwarf_attr(scope, DW_AT_call_file, &attribute) || dwarf_formudata(&attribute, &file) != 0 ||
        !dwarf_attr(scope, DW_AT_call_line, &attribute) || dwarf_formudata(&attribute, &at) != 0 ||
        dwarf_getsrcfiles(cu, &files, &n) != 0 || file >= n)
        return NULL;
    *line = (int)at;
    return dwarf_filesrc(files, file, NULL, NULL);
}

static uint64_t add_to_chain(uint64_t chain, const char *file, int line)
{
    for (; *file; file++) chain = (chain ^ (unsigned char)*file) * 0x100000001b3u; /* FNV-1a */
    return (chain ^ (unsigned)line) * 0x100000001b3u;
}

/* The innermost line outside of the device layer, and the chain of all lines. */
static const char *locate(Dwarf_Addr pc, int *line, uint64_t *chain)
{
    Dwfl *dwfl = open_dwarf();
    Dwfl_Module *module = dwfl ? dwfl_addrmodule(dwfl, pc) : NULL;
    Dwfl_Line *at = module ? dwfl_module_getsrc(module, pc) : NULL;
    const char *file = at ? dwfl_lineinfo(at, NULL, line, NULL, NULL, NULL) : NULL;
    *chain = 0;
    if (!file) return file;
    *chain = add_to_chain(0xcbf29ce484222325u, file, *line);
    Dwarf_Addr bias;
    Dwarf_Die *cu = dwfl_module_addrdie(module, pc, &bias), *scopes = NULL;
    int n = cu ? dwarf_getscopes(cu, pc - bias, &scopes) : 0;
    /* dwarf_getscopes stops its list of inlined calls at their definition: go up from the innermost by the tree. */
    Dwarf_Die *up = NULL;
    if (n > 0) {
        const int depth = dwarf_getscopes_die(&scopes[0], &up);
        for (int i = 0; i < depth; i++)
            if (dwarf_tag(&up[i]) == DW_TAG_inlined_subroutine) {
                int call_line;
                const char *call = call_of(cu, &up[i], &call_line);
                if (call) *chain = add_to_chain(*chain, call, call_line);
                if (call && in_device_layer(file)) file = call, *line = call_line;
            }
    }
    free(up);
    free(scopes);
    return file;
}

struct place {
    const void *site;
    char *file;
    size_t bytes;
    int *line;
    uint64_t chain;
};

static void locate_place(void *argument)
{
    static struct {
        const void *site;
        const char *file;
        int line;
        uint64_t chain;
    } known[1024], *k; /* libdw takes a millisecond */
    struct place *p = argument;
    pthread_mutex_lock(&dwarf_mutex);
    k = &known[(uintptr_t)p->site % 1021];
    if (k->site != p->site) {
        k->line = 0;
        /* The site is where the call returns to. */
        k->file = locate((Dwarf_Addr)(uintptr_t)p->site - 1, &k->line, &k->chain);
        k->site = p->site;
    }
    *p->line = k->line;
    p->chain = k->chain;
    if (k->file) snprintf(p->file, p->bytes, "%s", strncmp(k->file, "./", 2) == 0 ? k->file + 2 : k->file);
    pthread_mutex_unlock(&dwarf_mutex);
}

/* libdw takes more stack than a fiber has. */
void sim_locate(const void *site, char *file, size_t bytes, int *line)
{
    struct place place = {site, file, bytes, line, 0};
    *line = 0;
    snprintf(file, bytes, "?");
    if (site) sim_on_host_stack(locate_place, &place);
}

uint64_t sim_chain(const void *site)
{
    char file[1];
    int line;
    struct place place = {site, file, sizeof file, &line, 0};
    sim_on_host_stack(locate_place, &place);
    return place.chain;
}

struct module_question {
    const void *site;
    bool answer;
};

static void ask_module(void *argument)
{
    struct module_question *const q = argument;
    Dwarf_Addr bias;
    pthread_mutex_lock(&dwarf_mutex);
    Dwfl *const dwfl = open_dwarf();
    Dwfl_Module *const module = dwfl ? dwfl_addrmodule(dwfl, (Dwarf_Addr)(uintptr_t)q->site) : NULL;
    q->answer = module && dwfl_module_getdwarf(module, &bias) != NULL;
    pthread_mutex_unlock(&dwarf_mutex);
}

bool sim_has_lines(const void *site)
{
    struct module_question q = {site, false};
    sim_on_host_stack(ask_module, &q);
    return q.answer;
}

/* ---- addresses ---------------------------------------------------------------------------------------------- */

static const struct sim_thread *whose_stack(const struct sim_cluster *cluster, const char *address)
{
    for (unsigned i = 0; i < cluster->num_threads; i++)
        if (address >= cluster->threads[i].stack_low && address < cluster->threads[i].stack_high)
            return &cluster->threads[i];
    return NULL;
}

void sim_describe_address(const struct sim_cluster *cluster, const void *address, char *text, size_t bytes)
{
    unsigned rank;
    uint32_t offset;
    const struct sim_thread *thread = whose_stack(cluster, address);
    text[0] = '\0';
    if (!address) return;
    if (sim_in_window(cluster, address, &rank, &offset))
        sim_shared_describe(&cluster->ctas[rank], offset, text, bytes);
    else if (thread)
        snprintf(text, bytes, "a register of thread (%u, %u, %u)", thread->index[0], thread->index[1],
                 thread->index[2]);
    else if (!sim_global_describe(cluster->gpu->memory, address, text, bytes))
        snprintf(text, bytes, "%p, near nothing that is mapped", address);
}

/* ---- the finding -------------------------------------------------------------------------------------------- */

static const char *policy_name(enum sim_async_policy policy)
{
    return policy == SIM_ASYNC_LATE ? "late" : policy == SIM_ASYNC_EARLY ? "early" : "random";
}

/* A capital at its beginning, a full stop at its end. */
static void make_sentence(char *what, size_t bytes)
{
    const size_t n = strlen(what);
    what[0] = (char)toupper((unsigned char)what[0]);
    if (n > 0 && n + 1 < bytes && what[n - 1] != '.') memcpy(what + n, ".", 2);
}

static void write_text(struct sim_report *r, const struct sim_options *options, const char *what)
{
    char where[192] = "", address[160] = "";
    if (r->line > 0) snprintf(where, sizeof where, ", %s:%d", r->file, r->line);
    if (r->address[0]) snprintf(address, sizeof address, " of %s", r->address);
    snprintf(r->text, sizeof r->text,
             "%s: kernel %s, block (%u, %u, %u), thread (%u, %u, %u)%s: %s%s. %s Seed %llu, async %s.",
             sim_rule_name(r->rule), r->kernel, r->block[0], r->block[1], r->block[2], r->thread[0], r->thread[1],
             r->thread[2], where, r->instruction, address, what, (unsigned long long)options->seed,
             policy_name(options->async));
}

void sim_fail(struct sim_thread *thread, enum sim_rule rule, const char *instruction, const void *site,
              const void *address, const char *format, ...)
{
    struct sim_cluster *cluster = thread->cta->cluster;
    struct sim_report *r = &cluster->report;
    char what[768];
    sim_end_suspicion(cluster); /* it came first, and may be why */
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    make_sentence(what, sizeof what);
    *r = (struct sim_report){.rule = rule};
    snprintf(r->kernel, sizeof r->kernel, "%s", cluster->launch->kernel);
    memcpy(r->block, thread->cta->index, sizeof r->block);
    memcpy(r->thread, thread->index, sizeof r->thread);
    snprintf(r->instruction, sizeof r->instruction, "%s", instruction);
    sim_locate(site, r->file, sizeof r->file, &r->line);
    if (r->line == 0) r->file[0] = '\0';
    sim_describe_address(cluster, address, r->address, sizeof r->address);
    write_text(r, &cluster->gpu->options, what);
    sim_abandon(cluster);
}
