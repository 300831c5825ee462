/* global.c - global memory: what was mapped, and the shadow that watches it.
 *
 * A page of 4096 bytes has a byte of rights for each of its bytes; where a kernel may write, also cells: who wrote,
 * read or reduced a word last, in which cluster of which launch. Cells are of 4 bytes, refined to 2 or 1 when
 * something smaller is accessed. Pages are found by a hash table that changes between launches only. Clusters on
 * several host threads share the shadow: cells are touched under their page's lock, rights are read without. */
#include "kernels/sim/watch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, WRITTEN = 16, MAX_DIMENSIONS = 8 };

/* Who read, or reduced, since the last write: the epochs of one cluster, and whether there is another one. Clusters are
 * numbered over all launches, from 1, by their first CTA; those of this launch begin at memory->first_cluster. */
struct crowd {
    uint32_t set, cluster, other, site;
};

struct cell {
    sim_epoch write;
    uint32_t writer, site;
    struct crowd readers, reducers;
};

struct page {
    uintptr_t address;
    atomic_flag lock;
    unsigned shift;     /* log2 of the bytes of a cell */
    struct cell *cells; /* NULL until a kernel touches bytes that may be written */
    uint8_t rights[PAGE];
};

struct mapping {
    const char *name;
    uintptr_t low, high;
    size_t element_bytes; /* 0: bytes without a shape */
    int ndim;
    int64_t shape[MAX_DIMENSIONS], stride[MAX_DIMENSIONS];
};

struct sim_memory {
    struct page **table;    /* open addressing by address; a power of two entries */
    size_t table_size, num_pages;
    struct mapping *mappings;
    size_t num_mappings, mappings_capacity;
    uint32_t first_cluster, next_cluster;
};

/* ---- pages ------------------------------------------------------------------------------------------------ */

static size_t slot_of(const struct sim_memory *memory, uintptr_t address)
{
    size_t i = (address / PAGE * 0x9E3779B97F4A7C15u >> 20) & (memory->table_size - 1);
    while (memory->table[i] && memory->table[i]->address != address) i = (i + 1) & (memory->table_size - 1);
    return i;
}

static struct page *find_page(const struct sim_memory *memory, uintptr_t address)
{
    return memory->table_size ? memory->table[slot_of(memory, address & ~(uintptr_t)(PAGE - 1))] : NULL;
}

static bool grow_table(struct sim_memory *memory)
{
    struct page **old = memory->table;
    const size_t n = memory->table_size;
    struct page **table = calloc(n ? 2 * n : 256, sizeof *table);
    if (!table) return false;
    memory->table = table;
    memory->table_size = n ? 2 * n : 256;
    for (size_t i = 0; i < n; i++)
        if (old[i]) table[slot_of(memory, old[i]->address)] = old[i];
    free(old);
    return true;
}

static struct page *make_page(struct sim_memory *memory, uintptr_t address)
{
    struct page *page = find_page(memory, address);
    if (page) return page;
    if (2 * memory->num_pages >= memory->table_size && !grow_table(memory)) return NULL;
    page = calloc(1, sizeof *page);
    if (!page) return NULL;
    page->address = address & ~(uintptr_t)(PAGE - 1);
    atomic_flag_clear(&page->lock);
    memory->table[slot_of(memory, page->address)] = page;
    memory->num_pages++;
    return page;
}

static void drop_cells(struct sim_memory *memory)
{
    for (size_t i = 0; i < memory->table_size; i++) {
        if (!memory->table[i]) continue;
        free(memory->table[i]->cells);
        memory->table[i]->cells = NULL;
    }
}

struct sim_memory *sim_memory_create(void)
{
    struct sim_memory *memory = calloc(1, sizeof *memory);
    if (memory) memory->first_cluster = memory->next_cluster = 1;
    return memory;
}

static void unmap_all(struct sim_memory *memory)
{
    drop_cells(memory);
    for (size_t i = 0; i < memory->table_size; i++) free(memory->table[i]);
    free(memory->table);
    memory->table = NULL;
    memory->table_size = memory->num_pages = memory->num_mappings = 0;
}

void sim_memory_destroy(struct sim_memory *memory)
{
    if (!memory) return;
    unmap_all(memory);
    free(memory->mappings);
    free(memory);
}

void sim_memory_launch(struct sim_memory *memory, uint64_t num_ctas)
{
    if (num_ctas >= UINT32_MAX - memory->next_cluster) { /* numbers are used up: as if nothing had run before */
        drop_cells(memory);
        memory->next_cluster = 1;
    }
    memory->first_cluster = memory->next_cluster;
    memory->next_cluster += (uint32_t)num_ctas;
}

/* ---- mapping ---------------------------------------------------------------------------------------------- */

static struct mapping *new_mapping(struct sim_memory *memory)
{
    if (memory->num_mappings == memory->mappings_capacity) {
        const size_t n = memory->mappings_capacity ? 2 * memory->mappings_capacity : 16;
        struct mapping *mappings = realloc(memory->mappings, n * sizeof *mappings);
        if (!mappings) return NULL;
        memory->mappings = mappings;
        memory->mappings_capacity = n;
    }
    struct mapping *m = &memory->mappings[memory->num_mappings++];
    memset(m, 0, sizeof *m);
    return m;
}

static bool give_rights(struct sim_memory *memory, uintptr_t low, size_t bytes, int access)
{
    while (bytes > 0) {
        const size_t at = low % PAGE, here = bytes < PAGE - at ? bytes : PAGE - at;
        struct page *page = make_page(memory, low);
        if (!page) return false;
        for (size_t i = at; i < at + here; i++) page->rights[i] |= (uint8_t)access;
        low += here;
        bytes -= here;
    }
    return true;
}

bool sim_map(struct sim_gpu *gpu, const char *name, const void *data, size_t bytes, int access)
{
    struct mapping *m = new_mapping(gpu->memory);
    if (!m) return false;
    m->name = name;
    m->low = (uintptr_t)data;
    m->high = m->low + bytes;
    return give_rights(gpu->memory, m->low, bytes, access);
}

/* Dimensions 0 .. n - 1 of sizes and strides in bytes; `run` contiguous bytes at each index. */
static bool give_tensor(struct sim_memory *memory, uintptr_t low, int n, const int64_t *shape, const int64_t *stride,
                        size_t run, int access)
{
    if (n == 0) return give_rights(memory, low, run, access);
    for (int64_t i = 0; i < shape[n - 1]; i++)
        if (!give_tensor(memory, low + (uintptr_t)(i * stride[n - 1]), n - 1, shape, stride, run, access)) return false;
    return true;
}

/* Drops dimensions that add no byte, sorts the others by stride, merges those that continue each other. */
static int simplify(const struct mapping *m, int64_t *shape, int64_t *stride, size_t *run)
{
    int n = 0;
    for (int i = 0; i < m->ndim; i++) {
        if (m->shape[i] == 1 || m->stride[i] == 0) continue;
        int at = n++;
        for (; at > 0 && stride[at - 1] > m->stride[i] * (int64_t)m->element_bytes; at--) {
            shape[at] = shape[at - 1];
            stride[at] = stride[at - 1];
        }
        shape[at] = m->shape[i];
        stride[at] = m->stride[i] * (int64_t)m->element_bytes;
    }
    *run = m->element_bytes;
    int merged = 0;
    while (merged < n && stride[merged] == (int64_t)*run) *run *= (size_t)shape[merged++];
    memmove(shape, shape + merged, (size_t)(n - merged) * sizeof *shape);
    memmove(stride, stride + merged, (size_t)(n - merged) * sizeof *stride);
    return n - merged;
}

bool sim_map_tensor(struct sim_gpu *gpu, const char *name, const void *data, size_t element_bytes, int ndim,
                    const int64_t *shape, const int64_t *stride, int access)
{
    if (ndim < 0 || ndim > MAX_DIMENSIONS || element_bytes == 0) return false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || stride[i] < 0) return false;
        if (shape[i] == 0) return true;
    }
    struct mapping *m = new_mapping(gpu->memory);
    if (!m) return false;
    *m = (struct mapping){.name = name, .low = (uintptr_t)data, .element_bytes = element_bytes, .ndim = ndim};
    m->high = m->low + element_bytes;
    for (int i = 0; i < ndim; i++) {
        m->shape[i] = shape[i];
        m->stride[i] = stride[i];
        m->high += (uintptr_t)((shape[i] - 1) * stride[i]) * element_bytes;
    }
    int64_t sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
    size_t run;
    const int n = simplify(m, sizes, strides, &run);
    return give_tensor(gpu->memory, m->low, n, sizes, strides, run, access);
}

void sim_unmap_all(struct sim_gpu *gpu) { unmap_all(gpu->memory); }

/* ---- rights ----------------------------------------------------------------------------------------------- */

typedef uint64_t __attribute__((may_alias)) eight_rights;
typedef uint32_t __attribute__((may_alias)) four_rights;

/* Rights that all, and that any, of these bytes have. */
static inline void summarise(const uint8_t *rights, size_t n, uint8_t *all, uint8_t *any)
{
    uint64_t both = ~(uint64_t)0, either = 0;
    size_t i = 0;
    if (n >= 8 && (uintptr_t)rights % 8 == 0)
        for (; i + 8 <= n; i += 8) {
            const uint64_t r = __atomic_load_n((const eight_rights *)(rights + i), __ATOMIC_RELAXED);
            both &= r;
            either |= r;
        }
    if (n - i >= 4 && (uintptr_t)(rights + i) % 4 == 0) {
        const uint64_t r = __atomic_load_n((const four_rights *)(rights + i), __ATOMIC_RELAXED);
        both &= r | r << 32;
        either |= r;
        i += 4;
    }
    for (; i < n; i++) {
        const uint64_t r = __atomic_load_n(rights + i, __ATOMIC_RELAXED);
        both &= r * 0x0101010101010101u;
        either |= r;
    }
    both &= both >> 32, both &= both >> 16, both &= both >> 8;
    either |= either >> 32, either |= either >> 16, either |= either >> 8;
    *all = (uint8_t)both;
    *any = (uint8_t)either;
}

static bool holds_something(uint8_t rights)
{
    return !(rights & SIM_WRITE) || rights & (SIM_INITIALISED | WRITTEN);
}

/* Why this byte may not be accessed so; SIM_CLEAN: it may. */
static enum sim_rule verdict(const struct access *a, uint8_t rights)
{
    if (!(rights & ~WRITTEN)) return SIM_OUT_OF_BOUNDS;
    if (a->kind == ACCESS_READ && !(rights & SIM_READ)) return SIM_OUT_OF_BOUNDS;
    if (a->kind != ACCESS_READ && !(rights & SIM_WRITE)) return SIM_OUTSIDE_OUTPUTS;
    if (a->kind != ACCESS_WRITE && !holds_something(rights)) return SIM_UNINITIALISED;
    return SIM_CLEAN;
}

static void check_rights(const struct access *a, const struct page *page, uintptr_t address, size_t bytes)
{
    static const char *const why[] = {
        [SIM_OUT_OF_BOUNDS] = "This byte is mapped to be written, not to be read.",
        [SIM_OUTSIDE_OUTPUTS] = "This byte is mapped to be read, not to be written.",
        [SIM_UNINITIALISED] = "Nobody has written this byte of global memory.",
    };
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t rights = page ? __atomic_load_n(&page->rights[(address + i) % PAGE], __ATOMIC_RELAXED) : 0;
        const enum sim_rule rule = verdict(a, rights);
        if (rule == SIM_CLEAN) continue;
        sim_fail(a->thread, rule, a->instruction, a->pc, (const char *)address + i, "%s",
                 rights ? why[rule] : "This byte of global memory is not mapped.");
    }
}

/* ---- races ------------------------------------------------------------------------------------------------ */

/* Whom an access is not ordered after. */
struct rival {
    struct party party;
    uint32_t cluster; /* 0: the same */
};

static bool in_launch(const struct sim_memory *memory, uint32_t cluster) { return cluster >= memory->first_cluster; }

static bool crowd_conflicts(const struct sim_memory *memory, const struct crowd *crowd, const struct access *a,
                            uint32_t cluster, bool wrote, struct rival *rival)
{
    if (!in_launch(memory, crowd->cluster)) return false;
    if (crowd->cluster != cluster || crowd->other) {
        *rival = (struct rival){{0, crowd->site, wrote}, crowd->cluster != cluster ? crowd->cluster : crowd->other};
        return true;
    }
    if (readers_seen(a->thread->cta->cluster->watch->global, crowd->set, a, &rival->party)) return false;
    rival->cluster = 0;
    rival->party.wrote = wrote;
    return true;
}

static bool conflicts(const struct sim_memory *memory, const struct cell *cell, const struct access *a,
                      uint32_t cluster, struct rival *rival)
{
    if (in_launch(memory, cell->writer) && (cell->writer != cluster || !has_seen(a->thread, cell->write))) {
        const bool same = cell->writer == cluster;
        *rival = (struct rival){{same ? cell->write : 0, cell->site, true}, same ? 0 : cell->writer};
        return true;
    }
    return (a->kind != ACCESS_READ && crowd_conflicts(memory, &cell->readers, a, cluster, false, rival)) ||
           (a->kind != ACCESS_REDUCE && crowd_conflicts(memory, &cell->reducers, a, cluster, true, rival));
}

static void join_crowd(const struct sim_memory *memory, struct crowd *crowd, const struct access *a, uint32_t cluster)
{
    struct readers *readers = a->thread->cta->cluster->watch->global;
    if (!in_launch(memory, crowd->cluster)) *crowd = (struct crowd){0, cluster, 0, a->site};
    if (crowd->cluster == cluster) crowd->set = readers_add(readers, crowd->set, a);
    else crowd->other = cluster;
}

static void record(const struct sim_memory *memory, struct cell *cell, const struct access *a, uint32_t cluster)
{
    if (a->kind == ACCESS_READ) join_crowd(memory, &cell->readers, a, cluster);
    else if (a->kind == ACCESS_REDUCE) join_crowd(memory, &cell->reducers, a, cluster);
    else *cell = (struct cell){a->epoch, cluster, a->site, {0}, {0}};
}

static void lock(struct page *page)
{
    while (atomic_flag_test_and_set_explicit(&page->lock, memory_order_acquire)) __builtin_ia32_pause();
}

static void unlock(struct page *page) { atomic_flag_clear_explicit(&page->lock, memory_order_release); }

static void refine(struct page *page, unsigned shift)
{
    if (page->cells && page->shift <= shift) return;
    struct cell *cells = calloc(PAGE >> shift, sizeof *cells);
    if (!cells) abort();
    for (int i = 0; page->cells && i < PAGE >> shift; i++) cells[i] = page->cells[i >> (page->shift - shift)];
    free(page->cells);
    page->cells = cells;
    page->shift = shift;
}

static void block_of(const struct sim_launch *launch, uint32_t linear, unsigned block[3])
{
    block[0] = linear % launch->grid[0];
    block[1] = linear / launch->grid[0] % launch->grid[1];
    block[2] = linear / launch->grid[0] / launch->grid[1];
}

static _Noreturn void fail_rival(const struct sim_memory *memory, const struct access *a, const void *address,
                                 const struct rival *rival)
{
    if (rival->cluster == 0) sim_fail_conflict(a, address, &rival->party);
    const struct sim_cluster *cluster = a->thread->cta->cluster;
    unsigned block[3];
    char file[128];
    int line;
    block_of(cluster->launch, rival->cluster - memory->first_cluster, block);
    sim_locate(sim_unpack_site(rival->party.site), file, sizeof file, &line);
    sim_fail(a->thread, SIM_RACE, a->instruction, a->pc, address,
             "%slock (%u, %u, %u) %s it at %s:%d, and %ss of one launch are not ordered.",
             cluster->num_ctas > 1 ? "The cluster of b" : "B", block[0], block[1], block[2],
             rival->party.wrote ? "wrote" : "read", file, line, cluster->num_ctas > 1 ? "cluster" : "block");
}

/* Bytes that kernels may write: within one page, rights checked. */
static void watch_cells(const struct sim_memory *memory, const struct access *a, struct page *page, uintptr_t address,
                        size_t bytes)
{
    const uint32_t cluster = memory->first_cluster + (uint32_t)a->thread->cta->cluster->ctas[0].linear;
    const unsigned low = (unsigned)(address | bytes), at = address % PAGE;
    struct rival rival;
    lock(page);
    refine(page, low & 1 ? 0 : low & 2 ? 1 : 2);
    for (size_t i = at >> page->shift; i < (at + bytes) >> page->shift; i++) {
        struct cell *cell = &page->cells[i];
        if (conflicts(memory, cell, a, cluster, &rival)) {
            const uintptr_t byte = page->address + (i << page->shift);
            unlock(page);
            fail_rival(memory, a, (const void *)(byte > address ? byte : address), &rival);
        }
        if (a->async_proxy && cell->writer == cluster && cell->write &&
            !sim_has_seen_fenced(a->thread, cell->write)) {
            unlock(page);
            sim_fail_fence(a, (const void *)address, &(struct party){cell->write, cell->site, true});
        }
        record(memory, cell, a, cluster);
    }
    for (size_t i = at; a->kind != ACCESS_READ && i < at + bytes; i++)
        __atomic_store_n(&page->rights[i], page->rights[i] | WRITTEN, __ATOMIC_RELAXED);
    unlock(page);
}

static void access_page(const struct sim_memory *memory, const struct access *a, struct page *page,
                        uintptr_t address, size_t bytes)
{
    uint8_t all, any;
    summarise(&page->rights[address % PAGE], bytes, &all, &any);
    if (a->kind == ACCESS_READ && all & SIM_READ && !(any & SIM_WRITE)) return;
    struct access as = *a;
    check_rights(a, page, address, bytes);
    if (a->kind == ACCESS_REDUCE && !(all & SIM_REDUCE)) as.kind = ACCESS_WRITE;
    if (any & SIM_WRITE) watch_cells(memory, &as, page, address, bytes);
}

bool sim_is_mapped(const struct sim_memory *memory, const void *address)
{
    const struct page *page = find_page(memory, (uintptr_t)address);
    return page && page->rights[(uintptr_t)address % PAGE];
}

bool sim_global_access(const struct access *a, const void *address, size_t bytes)
{
    const struct sim_memory *memory = a->thread->cta->cluster->gpu->memory;
    uintptr_t low = (uintptr_t)address;
    struct page *page = find_page(memory, low);
    if (!page || !(page->rights[low % PAGE])) return false;
    if (!a->thread->grid_waited)
        sim_fail(a->thread, SIM_MISSING_WAIT, a->instruction, a->pc, address,
                 "The launches ahead may not have ended: this thread has not come to griddepcontrol.wait.");
    while (bytes > 0) {
        const size_t at = low % PAGE, here = bytes < PAGE - at ? bytes : PAGE - at;
        if (!page) check_rights(a, NULL, low, here);
        access_page(memory, a, page, low, here);
        low += here;
        bytes -= here;
        if (bytes > 0) page = find_page(memory, low);
    }
    return true;
}

/* ---- reports ---------------------------------------------------------------------------------------------- */

/* "q[3][17][0][5]"; dimensions from the greatest stride down. Returns the bytes beyond that element's first. */
static uint64_t write_index(const struct mapping *m, uintptr_t address, char *text, size_t bytes)
{
    uint64_t rest = address - m->low, index[MAX_DIMENSIONS] = {0};
    bool done[MAX_DIMENSIONS] = {false};
    for (int k = 0; k < m->ndim; k++) {
        int best = -1;
        for (int i = 0; i < m->ndim; i++)
            if (!done[i] && (best < 0 || m->stride[i] > m->stride[best])) best = i;
        done[best] = true;
        const uint64_t step = (uint64_t)m->stride[best] * m->element_bytes, last = (uint64_t)m->shape[best] - 1;
        if (step > 0) index[best] = rest / step < last ? rest / step : last;
        rest -= index[best] * step;
    }
    int n = snprintf(text, bytes, "%s", m->name);
    for (int i = 0; i < m->ndim && n < (int)bytes; i++)
        n += snprintf(text + n, bytes - n, "[%llu]", (unsigned long long)index[i]);
    return rest;
}

static void describe_in(const struct mapping *m, uintptr_t address, char *text, size_t bytes)
{
    char element[96];
    if (m->element_bytes == 0) {
        snprintf(text, bytes, "global %s + %llu bytes", m->name, (unsigned long long)(address - m->low));
        return;
    }
    const uint64_t rest = write_index(m, address, element, sizeof element);
    if (rest == 0) snprintf(text, bytes, "global %s", element);
    else if (rest < m->element_bytes) snprintf(text, bytes, "global %s, byte %d", element, (int)rest);
    else snprintf(text, bytes, "global %s, %llu bytes past its end, in a gap", element,
                  (unsigned long long)(rest - m->element_bytes));
}

bool sim_global_describe(struct sim_memory *memory, const void *pointer, char *text, size_t bytes)
{
    const uintptr_t address = (uintptr_t)pointer, NEAR = 1 << 20;
    const struct mapping *nearest = NULL;
    uintptr_t least = NEAR;
    for (size_t i = 0; i < memory->num_mappings; i++) {
        const struct mapping *m = &memory->mappings[i];
        const uintptr_t distance = address < m->low ? m->low - address : address < m->high ? 0 : address - m->high + 1;
        /* Of those that hold it the smallest says most. */
        if (distance > least || (nearest && distance == least && m->high - m->low >= nearest->high - nearest->low))
            continue;
        least = distance;
        nearest = m;
    }
    if (!nearest) return false;
    if (least == 0) describe_in(nearest, address, text, bytes);
    else if (address < nearest->low)
        snprintf(text, bytes, "global, %llu bytes before %s", (unsigned long long)least, nearest->name);
    else
        snprintf(text, bytes, "global, %llu bytes past the end of %s", (unsigned long long)(least - 1), nearest->name);
    return true;
}

enum sim_rule sim_check_written(struct sim_gpu *gpu)
{
    const struct sim_memory *memory = gpu->memory;
    uintptr_t lowest = UINTPTR_MAX;
    for (size_t i = 0; i < memory->table_size; i++) {
        const struct page *page = memory->table[i];
        for (int b = 0; page && page->address < lowest && b < PAGE; b++)
            if ((page->rights[b] & (SIM_WRITE | SIM_READ | SIM_INITIALISED | WRITTEN)) == SIM_WRITE) {
                lowest = page->address + b;
                break;
            }
    }
    if (lowest == UINTPTR_MAX || gpu->options.unwatched) return SIM_CLEAN;
    struct sim_report *report = &gpu->report;
    *report = (struct sim_report){.rule = SIM_NOT_WRITTEN};
    if (!sim_global_describe(gpu->memory, (const void *)lowest, report->address, sizeof report->address))
        report->address[0] = '\0';
    snprintf(report->text, sizeof report->text, "%s: no launch has written %s, which is an output.",
             sim_rule_name(SIM_NOT_WRITTEN), report->address);
    return SIM_NOT_WRITTEN;
}
