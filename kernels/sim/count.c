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

/* Puts a number among n that ascend, unless it is there; returns how many there are. Mostly it is the greatest. */
static int put(uint64_t *numbers, int n, uint64_t number)
{
    int at = n;
    while (at > 0 && numbers[at - 1] > number) at--;
    if (at > 0 && numbers[at - 1] == number) return n;
    memmove(numbers + at + 1, numbers + at, (size_t)(n - at) * sizeof *numbers);
    numbers[at] = number;
    return n + 1;
}

static void count_global(struct sim_counts *counts, const struct entry *group, int n)
{
    uint64_t sectors[2 * SIM_WARP];
    int m = 0;
    for (int i = 0; i < n; i++) {
        m = put(sectors, m, group[i].address / SECTOR);
        m = put(sectors, m, (group[i].address + group[i].bytes - 1) / SECTOR);
    }
    *(group->write ? &counts->global_write_sectors : &counts->global_read_sectors) += (uint64_t)m;
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
            m = put(words, m, w);
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

static void count_group(struct sim_counts *counts, const struct entry *group, int n)
{
    if (group->shared) count_shared(counts, group, n);
    else count_global(counts, group, n);
}

/* All lanes, of those that accessed anything, did the same at the same places: their i-th accesses belong together. */
static bool count_in_step(struct sim_counts *counts, struct sim_access_log *const *logs, int n)
{
    for (int l = 1; l < n; l++) {
        if (logs[l]->n != logs[0]->n) return false;
        for (size_t i = 0; i < logs[0]->n; i++)
            if (compare_place(&logs[l]->entries[i], &logs[0]->entries[i]) != 0) return false;
    }
    for (size_t i = 0; i < logs[0]->n; i++) {
        struct entry group[SIM_WARP];
        for (int l = 0; l < n; l++) group[l] = logs[l]->entries[i];
        count_group(counts, group, n);
    }
    return true;
}

static void count_sorted(struct sim_counts *counts, struct sim_access_log *const *logs, int num_logs)
{
    size_t n = 0, at = 0;
    for (int l = 0; l < num_logs; l++) n += logs[l]->n;
    struct entry *entries = malloc(n * sizeof *entries);
    if (!entries) abort();
    for (int l = 0; l < num_logs; at += logs[l]->n, l++) {
        memcpy(entries + at, logs[l]->entries, logs[l]->n * sizeof *entries);
        number(entries + at, logs[l]->n);
    }
    qsort(entries, n, sizeof *entries, compare_group);
    for (size_t i = 0, end; i < n; i = end) {
        const struct entry *first = &entries[i];
        for (end = i + 1; end < n && compare_place(first, &entries[end]) == 0 && entries[end].nth == first->nth;) end++;
        count_group(counts, first, (int)(end - i));
    }
    free(entries);
}

void sim_log_flush(struct sim_warp *warp)
{
    struct sim_access_log *logs[SIM_WARP];
    int n = 0;
    for (unsigned l = 0; l < warp->num_lanes; l++)
        if (warp->lanes[l].log && warp->lanes[l].log->n > 0) logs[n++] = warp->lanes[l].log;
    if (n == 0) return;
    struct sim_counts *counts = warp->cta->cluster->counts;
    if (!count_in_step(counts, logs, n)) count_sorted(counts, logs, n);
    for (int l = 0; l < n; l++) logs[l]->n = 0;
}
