/* count.c - what the accesses of a warp cost together.
 *
 * Lanes are fibers that run one after the other, so their accesses are logged and grouped when the warp meets: the n-th
 * access of each lane at one place in the program belongs to the n-th execution of one warp instruction. */
#include "kernels/sim/watch.h"

#include <stdlib.h>
#include <string.h>

enum { SECTOR = 32, BANKS = 32, BANK_BYTES = 4, WAVEFRONT = BANKS * BANK_BYTES };

struct entry {
    uint64_t address;
    uint32_t site;
    uint8_t bytes, lane;
    bool shared, write;
    uint32_t nth; /* of this lane at this site; while grouping */
};

struct sim_access_log {
    struct entry *entries;
    size_t n, capacity;
};

struct sim_counts *sim_tally(struct sim_cluster *cluster) { return cluster->counts; }

static void append(struct sim_access_log *log, struct entry entry)
{
    if (log->n == log->capacity) {
        log->capacity = log->capacity ? 2 * log->capacity : 64;
        log->entries = realloc(log->entries, log->capacity * sizeof *log->entries);
        if (!log->entries) abort();
    }
    log->entries[log->n++] = entry;
}

/* A struct of more than 16 bytes takes several instructions. */
void sim_log_access(struct sim_thread *thread, bool write, const void *address, unsigned bytes, const void *site)
{
    enum { WIDEST = 16 };
    unsigned rank;
    uint32_t offset;
    if (!thread->log) thread->log = calloc(1, sizeof *thread->log);
    if (!thread->log) abort();
    struct entry entry = {(uintptr_t)address, sim_pack_site(site), 0, (uint8_t)thread->lane,
                          in_window(thread->cta->cluster, address, &rank, &offset), write, 0};
    for (; bytes > 0; bytes -= entry.bytes, entry.address += WIDEST) {
        entry.bytes = (uint8_t)(bytes < WIDEST ? bytes : WIDEST);
        append(thread->log, entry);
    }
}

void sim_log_free(struct sim_thread *thread)
{
    if (thread->log) free(thread->log->entries);
    free(thread->log);
    thread->log = NULL;
}

/* ---- one warp instruction ----------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts numbers and drops equal ones; returns how many are left. */
static int distinct(uint64_t *numbers, int n)
{
    qsort(numbers, (size_t)n, sizeof *numbers, compare_numbers);
    int m = 0;
    for (int i = 0; i < n; i++)
        if (m == 0 || numbers[m - 1] != numbers[i]) numbers[m++] = numbers[i];
    return m;
}

static void count_global(struct sim_counts *counts, const struct entry *group, int n)
{
    uint64_t sectors[2 * SIM_WARP];
    int m = 0;
    for (int i = 0; i < n; i++) {
        sectors[m++] = group[i].address / SECTOR;
        sectors[m++] = (group[i].address + group[i].bytes - 1) / SECTOR;
    }
    *(group->write ? &counts->global_write_sectors : &counts->global_read_sectors) += (uint64_t)distinct(sectors, m);
    *(group->write ? &counts->global_write_requests : &counts->global_read_requests) += 1;
}

/* Lanes that the chip serves together: banks are 4 bytes wide, and lanes that want the same word share it. */
static void count_phase(struct sim_counts *counts, const struct entry *group, int n)
{
    uint64_t words[SIM_WARP * 5];
    unsigned banks[BANKS] = {0}, most = 0;
    int m = 0;
    for (int i = 0; i < n; i++)
        for (uint64_t w = group[i].address / BANK_BYTES; w <= (group[i].address + group[i].bytes - 1) / BANK_BYTES; w++)
            words[m++] = w;
    m = distinct(words, m);
    for (int i = 0; i < m; i++) {
        const unsigned taken = ++banks[words[i] % BANKS];
        if (taken > most) most = taken;
    }
    counts->shared_wavefronts += most;
    counts->shared_bank_conflicts += most - (unsigned)(m + BANKS - 1) / BANKS;
}

/* 8 bytes a lane: half warps one after the other; 16: quarters. */
static void count_shared(struct sim_counts *counts, const struct entry *group, int n)
{
    const int lanes = group->bytes > 8 ? 8 : group->bytes > 4 ? 16 : 32;
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && group[end].lane / lanes == group[i].lane / lanes; end++) {}
        count_phase(counts, group + i, end - i);
    }
    *(group->write ? &counts->shared_write_requests : &counts->shared_read_requests) += 1;
}

/* ---- grouping ----------------------------------------------------------------------------------------------- */

static int compare_place(const struct entry *a, const struct entry *b)
{
    if (a->site != b->site) return a->site < b->site ? -1 : 1;
    if (a->shared != b->shared) return a->shared - b->shared;
    return a->write - b->write;
}

static int compare_group(const void *first, const void *second)
{
    const struct entry *a = first, *b = second;
    const int place = compare_place(a, b);
    if (place != 0) return place;
    if (a->nth != b->nth) return a->nth < b->nth ? -1 : 1;
    return a->lane - b->lane;
}

/* In `nth` still the order of the lane's accesses: made the count of those at the same place. */
static void number(struct entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++) entries[i].nth = (uint32_t)i;
    qsort(entries, n, sizeof *entries, compare_group);
    for (size_t i = 0; i < n; i++)
        entries[i].nth = i > 0 && compare_place(&entries[i - 1], &entries[i]) == 0 ? entries[i - 1].nth + 1 : 0;
}

void sim_log_flush(struct sim_warp *warp)
{
    size_t n = 0;
    for (unsigned l = 0; l < warp->num_lanes; l++)
        if (warp->lanes[l].log) n += warp->lanes[l].log->n;
    if (n == 0) return;
    struct entry *entries = malloc(n * sizeof *entries);
    if (!entries) abort();
    size_t at = 0;
    for (unsigned l = 0; l < warp->num_lanes; l++) {
        struct sim_access_log *log = warp->lanes[l].log;
        if (!log || log->n == 0) continue;
        memcpy(entries + at, log->entries, log->n * sizeof *entries);
        number(entries + at, log->n);
        at += log->n;
        log->n = 0;
    }
    qsort(entries, n, sizeof *entries, compare_group);
    struct sim_counts *counts = warp->cta->cluster->counts;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && compare_place(&entries[i], &entries[end]) == 0 && entries[end].nth == entries[i].nth;
             end++) {}
        if (entries[i].shared) count_shared(counts, entries + i, (int)(end - i));
        else count_global(counts, entries + i, (int)(end - i));
    }
    free(entries);
}
