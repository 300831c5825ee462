/* access.c - loads and stores of kernels.
 *
 * Kernels are compiled with g++ -fsanitize=thread, which puts a call in front of every access to memory. The calls are
 * ours, not libtsan's: they find out what the address is (own registers, shared, global, arguments, constants) and ask
 * the shadow of that memory. What is nothing of these is out of bounds. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "kernels/sim/watch.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- registers: a thread's own stack ------------------------------------------------------------------------ */

enum { WORD = 4, STACK_WORDS = SIM_STACK / WORD };

/* Registers of a wgmma: from its issue to the wait, and those that it wrote on to wgmma_fence_operand. */
struct in_flight {
    const char *low, *high;
    bool write, waited;
    const void *site;
};

struct sim_register_watch {
    uint64_t dirty[STACK_WORDS / 64]; /* written since the last wgmma.fence, by word of the stack */
    bool fenced;                      /* there was one */
    struct in_flight *in_flight;
    unsigned num_in_flight, capacity;
};

static struct sim_register_watch *register_watch(struct sim_thread *thread)
{
    if (!thread->register_watch) thread->register_watch = calloc(1, sizeof *thread->register_watch);
    if (!thread->register_watch) abort();
    return thread->register_watch;
}

static void add_in_flight(struct sim_register_watch *w, struct in_flight registers)
{
    if (registers.low >= registers.high) return;
    if (w->num_in_flight == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 8;
        w->in_flight = realloc(w->in_flight, w->capacity * sizeof *w->in_flight);
        if (!w->in_flight) abort();
    }
    w->in_flight[w->num_in_flight++] = registers;
}

void sim_registers_begin(struct sim_thread *thread, const void *registers, size_t bytes, bool write, const void *site)
{
    struct sim_register_watch *w = register_watch(thread);
    if (write) sim_registers_fence_operand(thread, registers, bytes); /* they are this one's from now on */
    const char *low = registers;
    add_in_flight(w, (struct in_flight){low, low + bytes, write, false, site});
}

void sim_registers_end(struct sim_thread *thread, const void *registers)
{
    struct sim_register_watch *w = thread->register_watch;
    for (unsigned i = 0; w && i < w->num_in_flight; i++)
        if (w->in_flight[i].low == registers && !w->in_flight[i].waited) {
            if (w->in_flight[i].write) w->in_flight[i].waited = true;
            else w->in_flight[i] = w->in_flight[--w->num_in_flight];
            return;
        }
}

void sim_registers_fence_operand(struct sim_thread *thread, const void *registers, size_t bytes)
{
    struct sim_register_watch *w = thread->register_watch;
    const char *low = registers, *high = low + bytes;
    for (unsigned i = 0; w && i < w->num_in_flight; i++) {
        const struct in_flight f = w->in_flight[i];
        if (!f.waited || low >= f.high || f.low >= high) continue;
        w->in_flight[i--] = w->in_flight[--w->num_in_flight];
        add_in_flight(w, (struct in_flight){f.low, low, true, true, f.site}); /* what the fence leaves out */
        add_in_flight(w, (struct in_flight){high, f.high, true, true, f.site});
    }
}

static void words_of(const struct sim_thread *thread, const void *address, size_t bytes, size_t *first, size_t *end)
{
    const size_t at = (size_t)((const char *)address - thread->stack_low);
    *first = at / WORD;
    *end = (at + bytes + WORD - 1) / WORD;
    if (*end > STACK_WORDS) *end = STACK_WORDS;
}

bool sim_registers_dirty(const struct sim_thread *thread, const void *registers, size_t bytes)
{
    const struct sim_register_watch *w = thread->register_watch;
    size_t i, end;
    if (!w || !w->fenced) return true;
    words_of(thread, registers, bytes, &i, &end);
    for (size_t here; i < end; i += here) {
        here = 64 - i % 64 < end - i ? 64 - i % 64 : end - i;
        if (w->dirty[i / 64] >> i % 64 << (64 - here)) return true;
    }
    return false;
}

void sim_registers_fence(struct sim_thread *thread)
{
    struct sim_register_watch *w = register_watch(thread);
    memset(w->dirty, 0, sizeof w->dirty);
    w->fenced = true;
}

const float *sim_unwritten_register(const float *fragment, int n)
{
    static const uint32_t poison = 0xffffffff; /* fiber.c */
    for (int i = 0; i < n; i++)
        if (memcmp(&fragment[i], &poison, sizeof poison) == 0) return &fragment[i];
    return NULL;
}

static __attribute__((noinline)) void access_registers(struct sim_thread *thread, const char *address, size_t bytes,
                                                       bool write, const char *instruction, const void *site)
{
    struct sim_register_watch *w = thread->register_watch;
    for (unsigned i = 0; i < w->num_in_flight; i++) {
        const struct in_flight *f = &w->in_flight[i];
        if (address >= f->high || address + bytes <= f->low || !(write || f->write)) continue;
        char file[128];
        int line;
        sim_locate(f->site, file, sizeof file, &line);
        if (f->waited)
            sim_fail(thread, SIM_REGISTERS_IN_FLIGHT, instruction, site, address,
                     "The wgmma issued at %s:%d wrote this register and has been waited for, but only behind "
                     "wgmma_fence_operand does the compiler keep its uses behind the wait.", file, line);
        sim_fail(thread, SIM_REGISTERS_IN_FLIGHT, instruction, site, address,
                 "The wgmma issued at %s:%d still %s this register; wgmma.wait_group must come first.", file, line,
                 f->write ? "writes" : "reads");
    }
    size_t i, end;
    words_of(thread, address, bytes, &i, &end);
    for (; write && i < end; i++) w->dirty[i / 64] |= (uint64_t)1 << i % 64;
}

/* ---- constants: the program's read-only data ---------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    struct constants { uintptr_t low, high; } *at;
    size_t n;
} constants = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int add_constants(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (!(h->p_type == PT_LOAD && !(h->p_flags & PF_W)) && h->p_type != PT_GNU_RELRO) continue;
        struct constants *at = realloc(constants.at, (constants.n + 1) * sizeof *at);
        if (!at) return 1;
        constants.at = at;
        const uintptr_t low = info->dlpi_addr + h->p_vaddr;
        at[constants.n++] = (struct constants){low, low + h->p_memsz};
    }
    return 0;
}

/* The range of constants around an address; {0, 0}: none. Each thread keeps the last one. */
static struct constants find_constants(uintptr_t address)
{
    struct constants found = {0, 0};
    pthread_mutex_lock(&constants.mutex);
    for (int pass = 0; pass < 2 && found.high == 0; pass++) {
        if (pass == 1) { /* a library may have been loaded since */
            constants.n = 0;
            dl_iterate_phdr(add_constants, NULL);
        }
        for (size_t i = 0; i < constants.n; i++)
            if (address >= constants.at[i].low && address < constants.at[i].high) found = constants.at[i];
    }
    pthread_mutex_unlock(&constants.mutex);
    return found;
}

static bool is_constant(const void *address, size_t bytes)
{
    static _Thread_local struct constants last;
    const uintptr_t low = (uintptr_t)address;
    if (low < last.low || low >= last.high) last = find_constants(low);
    return low >= last.low && low + bytes <= last.high;
}

/* ---- every access ------------------------------------------------------------------------------------------- */

static inline bool in_stack(const struct sim_thread *thread, const void *address)
{
    return (uintptr_t)address - (uintptr_t)thread->stack_low < (uintptr_t)(thread->stack_high - thread->stack_low);
}

static void check_alignment(const struct access *a, const void *address, size_t align)
{
    if ((uintptr_t)address & (align - 1))
        sim_fail(a->thread, SIM_MISALIGNED, a->instruction, a->pc, address, "The address is no multiple of %zu.",
                 align);
}

/* What is neither shared nor global: arguments and constants may be read. */
static void access_other(const struct access *a, const void *address, size_t bytes)
{
    const struct sim_launch *launch = a->thread->cta->cluster->launch;
    const uintptr_t at = (uintptr_t)address - (uintptr_t)launch->args;
    if (a->kind == ACCESS_READ && at < launch->args_bytes && at + bytes <= launch->args_bytes) return;
    if (a->kind == ACCESS_READ && is_constant(address, bytes)) return;
    sim_fail(a->thread, SIM_OUT_OF_BOUNDS, a->instruction, a->pc, address,
             "No memory that this thread may %s lies there.", a->kind == ACCESS_READ ? "read" : "write");
}

static inline void count_bytes(struct sim_counts *counts, bool shared, bool write, size_t bytes)
{
    uint64_t *count = shared ? (write ? &counts->shared_write_bytes : &counts->shared_read_bytes)
                             : (write ? &counts->global_write_bytes : &counts->global_read_bytes);
    *count += bytes;
}

/* Of anything but the thread's own stack. */
static __attribute__((noinline)) void watch_memory(struct sim_thread *thread, const void *address, size_t bytes,
                                                   size_t align, bool write, const char *instruction,
                                                   const void *site)
{
    struct sim_cluster *cluster = thread->cta->cluster;
    unsigned rank;
    uint32_t offset;
    const struct access a = {thread, thread->agent << SIM_INTERVAL_BITS | thread->interval, sim_pack_site(site), site,
                             instruction, write ? ACCESS_WRITE : ACCESS_READ, false};
    const bool shared = in_window(cluster, address, &rank, &offset);
    if (cluster->watched) {
        check_alignment(&a, address, align);
        if (shared) sim_shared_access(&a, rank, offset, bytes);
        else if (!sim_global_access(&a, address, bytes)) {
            access_other(&a, address, bytes);
            return;
        }
    } else if (!shared && !sim_is_mapped(cluster->gpu->memory, address)) {
        return; /* arguments and constants do not count */
    }
    count_bytes(cluster->counts, shared, write, bytes);
    if (cluster->counting) sim_log_access(thread, write, address, (unsigned)bytes, site);
}

/* Most accesses are to arrays and structs of the thread's own, where there is nothing to ask: that must not take even a
 * frame on the stack. */
static inline void watch(struct sim_thread *thread, const void *address, size_t bytes, size_t align, bool write,
                         const char *instruction, const void *site)
{
    if (!in_stack(thread, address)) watch_memory(thread, address, bytes, align, write, instruction, site);
    else if (thread->register_watch) access_registers(thread, address, bytes, write, instruction, site);
}

void sim_watch_read(const void *address, size_t bytes, size_t align, const char *instruction, const void *site)
{
    watch(sim_self, address, bytes, align, false, instruction, site);
}

void sim_watch_write(void *address, size_t bytes, size_t align, const char *instruction, const void *site)
{
    watch(sim_self, address, bytes, align, true, instruction, site);
}

/* ---- asynchronous operations -------------------------------------------------------------------------------- */

void sim_name_async(struct sim_cluster *cluster, const struct sim_deed *deed)
{
    struct sim_watch *watch = cluster->watch;
    const uint32_t interval = interval_of(deed->epoch);
    if (interval >= watch->num_async) {
        const uint32_t n = 2 * interval + 64;
        watch->async = realloc(watch->async, n * sizeof *watch->async);
        if (!watch->async) abort();
        memset(watch->async + watch->num_async, 0, (n - watch->num_async) * sizeof *watch->async);
        watch->num_async = n;
    }
    watch->async[interval] = (struct async_name){deed->instruction, deed->issuer};
}

/* A bulk copy's sectors are its own; a cp.async is one lane's part of a warp's instruction. */
static void count_deed(const struct sim_deed *deed, bool shared, bool write, const void *address, size_t bytes)
{
    struct sim_cluster *cluster = deed->issuer->cta->cluster;
    struct sim_counts *counts = cluster->counts;
    if (!shared || !deed->async_proxy) count_bytes(counts, shared, write, bytes);
    if (!cluster->counting || bytes == 0) return;
    if (!deed->async_proxy) {
        sim_log_access(deed->issuer, write, address, (unsigned)bytes, deed->site);
    } else if (!shared) {
        const uintptr_t first = (uintptr_t)address / 32, last = ((uintptr_t)address + bytes - 1) / 32;
        *(write ? &counts->global_write_sectors : &counts->global_read_sectors) += last - first + 1;
    }
}

static struct access access_of(const struct sim_deed *deed, int kind)
{
    return (struct access){deed->issuer, deed->epoch, sim_pack_site(deed->site), deed->site, deed->instruction,
                           kind, deed->async_proxy};
}

static void watch_async(const struct sim_deed *deed, const void *address, size_t bytes, size_t align, int kind)
{
    struct sim_cluster *cluster = deed->issuer->cta->cluster;
    unsigned rank;
    uint32_t offset;
    const bool shared = in_window(cluster, address, &rank, &offset);
    if (cluster->watched) {
        const struct access a = access_of(deed, kind);
        sim_name_async(cluster, deed);
        check_alignment(&a, address, align);
        if (shared) sim_shared_access(&a, rank, offset, bytes);
        else if (bytes > 0 && !sim_global_access(&a, address, bytes)) access_other(&a, address, bytes);
    }
    count_deed(deed, shared, kind != ACCESS_READ, address, bytes);
}

void sim_watch_async_read(const struct sim_deed *deed, const void *address, size_t bytes, size_t align)
{
    watch_async(deed, address, bytes, align, ACCESS_READ);
}

void sim_watch_async_reads(const struct sim_deed *deeds, int num_deeds, const struct sim_piece *pieces, int num_pieces)
{
    struct sim_cluster *cluster = deeds->issuer->cta->cluster;
    struct read_together last = {SIM_NO_CELL, 0};
    struct access accesses[SIM_MOST_DEEDS];
    if (!cluster->watched) return;
    for (int i = 0; i < num_deeds; i++) {
        sim_name_async(cluster, &deeds[i]);
        accesses[i] = access_of(&deeds[i], ACCESS_READ);
    }
    for (int i = 0; i < num_pieces; i++)
        sim_shared_read_together(accesses, num_deeds, pieces[i].offset, pieces[i].bytes, &last);
}

void sim_watch_async_write(const struct sim_deed *deed, void *address, size_t bytes, size_t align)
{
    watch_async(deed, address, bytes, align, ACCESS_WRITE);
}

void sim_watch_async_reduce(const struct sim_deed *deed, void *global, size_t bytes, size_t align)
{
    watch_async(deed, global, bytes, align, ACCESS_REDUCE);
}

/* ---- conflicts ---------------------------------------------------------------------------------------------- */

uint32_t sim_pack_site(const void *site)
{
    const intptr_t distance = (intptr_t)site - (intptr_t)&sim_pack_site;
    return site && distance == (int32_t)distance ? (uint32_t)distance : 0;
}

const void *sim_unpack_site(uint32_t site)
{
    return site ? (const void *)((intptr_t)&sim_pack_site + (int32_t)site) : NULL;
}

/* A deed that its issuer has waited for is over; it is a race like any other. */
void sim_fail_conflict(const struct access *a, const void *address, const struct party *other)
{
    const struct sim_cluster *cluster = a->thread->cta->cluster;
    const unsigned agent = agent_of(other->epoch);
    const bool async = agent >= cluster->num_threads;
    char file[128];
    int line;
    sim_locate(sim_unpack_site(other->site), file, sizeof file, &line);
    const struct async_name *name = async ? &cluster->watch->async[interval_of(other->epoch)] : NULL;
    const struct sim_thread *thread = async ? name->issuer : &cluster->threads[agent];
    char who[96];
    int n = snprintf(who, sizeof who, "thread (%u, %u, %u)", thread->index[0], thread->index[1], thread->index[2]);
    if (thread->cta != a->thread->cta)
        snprintf(who + n, sizeof who - n, " of CTA %u of the cluster", thread->cta->rank);
    if (!async)
        sim_fail(a->thread, SIM_RACE, a->instruction, a->pc, address,
                 "%s %s it at %s:%d, and no synchronisation lies between the two.", who,
                 other->wrote ? "wrote" : "read", file, line);
    if (has_seen(thread, other->epoch))
        sim_fail(a->thread, SIM_RACE, a->instruction, a->pc, address,
                 "The %s issued by %s at %s:%d %s it; that thread has waited for it, but nothing orders this access "
                 "after that wait.", name->instruction, who, file, line, other->wrote ? "wrote" : "read");
    sim_fail(a->thread, SIM_MISSING_WAIT, a->instruction, a->pc, address,
             "The %s issued by %s at %s:%d %s it, and its end has not been waited for.", name->instruction, who, file,
             line, other->wrote ? "writes" : "reads");
}

void sim_fail_fence(const struct access *a, const void *address, const struct party *other)
{
    const struct sim_cluster *cluster = a->thread->cta->cluster;
    const unsigned agent = agent_of(other->epoch);
    const bool async = agent >= cluster->num_threads;
    const struct sim_thread *writer =
        async ? cluster->watch->async[interval_of(other->epoch)].issuer : &cluster->threads[agent];
    char file[128];
    int line;
    sim_locate(sim_unpack_site(other->site), file, sizeof file, &line);
    sim_fail(a->thread, SIM_MISSING_PROXY_FENCE, a->instruction, a->pc, address,
             "Thread (%u, %u, %u) wrote these bytes through the generic proxy at %s:%d and did not execute "
             "fence.proxy.async before it handed them over.",
             writer->index[0], writer->index[1], writer->index[2], file, line);
}

/* ---- a cluster's run ---------------------------------------------------------------------------------------- */

void sim_watch_begin(struct sim_cluster *cluster)
{
    struct sim_watch *watch = calloc(1, sizeof *watch);
    if (!watch) abort();
    cluster->watch = watch;
    cluster->watched = !cluster->gpu->options.unwatched;
    cluster->counting = cluster->gpu->options.counting;
    watch->shared = sim_readers_create();
    watch->global = sim_readers_create();
    sim_clocks_begin(cluster);
    for (unsigned i = 0; i < cluster->num_threads; i++) {
        cluster->threads[i].register_watch = NULL;
        cluster->threads[i].log = NULL;
    }
}

void sim_watch_end(struct sim_cluster *cluster)
{
    struct sim_watch *watch = cluster->watch;
    if (!watch) return;
    for (unsigned i = 0; i < cluster->num_threads; i++) {
        struct sim_thread *thread = &cluster->threads[i];
        if (thread->register_watch) free(thread->register_watch->in_flight);
        free(thread->register_watch);
        sim_log_free(thread);
    }
    sim_clocks_end(cluster);
    sim_readers_destroy(watch->shared);
    sim_readers_destroy(watch->global);
    free(watch->async);
    free(watch);
    cluster->watch = NULL;
}

/* ---- named accesses ----------------------------------------------------------------------------------------- */

static void check_global(const void *address, const char *instruction, const void *site)
{
    unsigned rank;
    uint32_t offset;
    if (in_stack(sim_self, address) || in_window(sim_self->cta->cluster, address, &rank, &offset))
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, instruction, site, address, "This is no address of global memory.");
}

static inline void load_16(void *value, const void *address, const char *instruction, const void *site)
{
    watch(sim_self, address, 16, 16, false, instruction, site);
    watch(sim_self, value, 16, 1, true, instruction, site);
    memcpy(value, address, 16);
}

static inline void store_16(void *address, const void *value, const char *instruction, const void *site)
{
    watch(sim_self, value, 16, 1, false, instruction, site);
    watch(sim_self, address, 16, 16, true, instruction, site);
    memcpy(address, value, 16);
}

void sim_load_16(void *value, const void *address) { load_16(value, address, "ld.v4", SIM_SITE); }
void sim_store_16(void *address, const void *value) { store_16(address, value, "st.v4", SIM_SITE); }

void sim_load_global_16(void *value, const void *address)
{
    check_global(address, "ld.global.v4", SIM_SITE);
    load_16(value, address, "ld.global.v4", SIM_SITE);
}

void sim_store_global_16(void *address, const void *value)
{
    check_global(address, "st.global.v4", SIM_SITE);
    store_16(address, value, "st.global.v4", SIM_SITE);
}

/* The names that kernels/device/machine.h gives to memcpy, memmove and memset. Host code calls them too. */
static void watch_block(const void *address, size_t bytes, bool write, const char *instruction, const void *site)
{
    if (sim_self && bytes > 0) watch(sim_self, address, bytes, 1, write, instruction, site);
}

void *sim_memcpy(void *to, const void *from, size_t bytes)
{
    watch_block(from, bytes, false, "memcpy", SIM_SITE);
    watch_block(to, bytes, true, "memcpy", SIM_SITE);
    return memcpy(to, from, bytes);
}

void *sim_memmove(void *to, const void *from, size_t bytes)
{
    watch_block(from, bytes, false, "memmove", SIM_SITE);
    watch_block(to, bytes, true, "memmove", SIM_SITE);
    return memmove(to, from, bytes);
}

void *sim_memset(void *to, int value, size_t bytes)
{
    watch_block(to, bytes, true, "memset", SIM_SITE);
    return memset(to, value, bytes);
}

/* ---- what g++ -fsanitize=thread calls ----------------------------------------------------------------------- */

#define ENTRY(name, kind_is_write, bytes, align)                                                                      \
    void name(void *address);                                                                                         \
    void name(void *address)                                                                                          \
    {                                                                                                                 \
        if (sim_self)                                                                                                 \
            watch(sim_self, address, bytes, align, kind_is_write, kind_is_write ? "store" : "load", SIM_SITE);        \
    }
#define ENTRIES(bytes, align)                                                                                         \
    ENTRY(__tsan_read##bytes, false, bytes, align)                                                                    \
    ENTRY(__tsan_write##bytes, true, bytes, align)                                                                    \
    ENTRY(__tsan_volatile_read##bytes, false, bytes, align)                                                           \
    ENTRY(__tsan_volatile_write##bytes, true, bytes, align)                                                           \
    ENTRY(__tsan_unaligned_read##bytes, false, bytes, 1)                                                              \
    ENTRY(__tsan_unaligned_write##bytes, true, bytes, 1)                                                              \
    ENTRY(__tsan_unaligned_volatile_read##bytes, false, bytes, 1)                                                     \
    ENTRY(__tsan_unaligned_volatile_write##bytes, true, bytes, 1)

ENTRIES(1, 1)
ENTRIES(2, 2)
ENTRIES(4, 4)
ENTRIES(8, 8)
ENTRIES(16, 8) /* g++ takes 8 for enough; what needs 16 is an instruction with a name */

#define RANGE(name, kind_is_write)                                                                                    \
    void name(void *address, unsigned long bytes);                                                                    \
    void name(void *address, unsigned long bytes)                                                                     \
    {                                                                                                                 \
        if (sim_self)                                                                                                 \
            watch(sim_self, address, bytes, 1, kind_is_write, kind_is_write ? "store" : "load", SIM_SITE);            \
    }

RANGE(__tsan_read_range, false)
RANGE(__tsan_write_range, true)

void __tsan_vptr_update(void **address, void *value); /* of host code */
void __tsan_vptr_update(void **address, void *value) { (void)address, (void)value; }
void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
