/* shared.c - shared memory: where allocations lie, and the shadow that watches them.
 *
 * The shadow has a cell a word of 4 bytes; a page of it is refined to 2 or 1 bytes when something smaller is accessed.
 * A cell knows who wrote it last and who has read it since, so that races are found exactly, whatever the schedule.
 *
 * Allocations are placed as badly as they may be: no more aligned than they ask for, with unallocated bytes between
 * them, at places that depend on the seed; the same in all CTAs of a cluster. */
#include "kernels/sim/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE = 4096,
    NUM_PAGES = SIM_WINDOW / PAGE,
    STATIC_LIMIT = 48 * 1024,
    MAX_ALLOCATIONS = 64,
    RED_ZONE = 16,
    MAX_PARTS = 8
};

static const uint32_t REST = 0xffffffff; /* the size of a last part that is what remains */

/* Values of `write` that are no epoch: bytes outside of allocations, and those of an object that is not ordinary
 * memory. */
static const sim_epoch OUTSIDE = 0xFFFFFFFF, PROTECTED = 0xFFFFFFFE;

struct cell {
    sim_epoch write;  /* 0: nobody wrote */
    uint32_t readers; /* since */
    uint32_t site;    /* of the write; where nobody wrote, of the call that ended what was there, if any */
};

struct page {
    struct cell *cells; /* NULL: all outside */
    unsigned shift;     /* log2 of the bytes of a cell */
};

struct allocation {
    const void *tag; /* NULL: dynamic */
    uint32_t offset, bytes, align;
};

/* Parts of the dynamic allocation: part n begins n red zones later than it would without any. */
struct cut {
    uint32_t bytes[MAX_PARTS];
    unsigned num_parts; /* 0: uncut */
};

/* An access from another CTA of the cluster. */
struct remote {
    struct sim_thread *thread;
    sim_epoch epoch;
    uint32_t site;
    const char *instruction;
};

struct sim_shared {
    struct sim_cta *cta;
    struct remote *remote; /* [SIM_MAX_AGENTS], each agent's last one; NULL: none yet */
    size_t dynamic_bytes;
    struct cut cut;
    struct page pages[NUM_PAGES];
    /* The layout is the cluster's; that of its first CTA counts. */
    struct allocation allocations[MAX_ALLOCATIONS];
    unsigned num_allocations;
    uint32_t end;           /* of the last allocation */
    size_t static_bytes;    /* as a dense layout would take */
    uint64_t random;
    const char *protected_as;
};

/* ---- cells ------------------------------------------------------------------------------------------------ */

static void open_page(struct page *page)
{
    page->shift = 2;
    page->cells = malloc((PAGE >> 2) * sizeof *page->cells);
    if (!page->cells) abort();
    for (int i = 0; i < PAGE >> 2; i++) page->cells[i] = (struct cell){OUTSIDE, 0, 0};
}

/* Cells of at most 1 << shift bytes from now on. */
static void refine(struct page *page, unsigned shift)
{
    if (!page->cells) open_page(page);
    if (page->shift <= shift) return;
    const int copies = 1 << (page->shift - shift);
    struct cell *cells = malloc((PAGE >> shift) * sizeof *cells);
    if (!cells) abort();
    for (int i = 0; i < PAGE >> shift; i++) cells[i] = page->cells[i / copies];
    free(page->cells);
    page->cells = cells;
    page->shift = shift;
}

static unsigned granularity(uint32_t offset, size_t bytes)
{
    const unsigned low = offset | (unsigned)bytes;
    return low & 1 ? 0 : low & 2 ? 1 : 2;
}

static void fill_as(struct sim_shared *shared, uint32_t offset, size_t bytes, struct cell cell)
{
    while (bytes > 0) {
        const uint32_t at = offset % PAGE;
        const size_t here = bytes < PAGE - at ? bytes : PAGE - at;
        struct page *page = &shared->pages[offset / PAGE];
        refine(page, granularity(at, here));
        for (size_t i = at >> page->shift; i < (at + here) >> page->shift; i++)
            page->cells[i] = cell;
        offset += here;
        bytes -= here;
    }
}

static void fill(struct sim_shared *shared, uint32_t offset, size_t bytes, sim_epoch write)
{
    fill_as(shared, offset, bytes, (struct cell){write, 0, 0});
}

/* ---- checks ----------------------------------------------------------------------------------------------- */

static _Noreturn void fail_outside(const struct access *a, const struct sim_shared *shared, uint32_t offset,
                                   sim_epoch write)
{
    const char *address = shared->cta->window + offset;
    if (write == PROTECTED)
        sim_fail(a->thread, SIM_RACE, a->instruction, a->pc, address,
                 "An %s object lies there, which only its own instructions may touch.",
                 shared->protected_as);
    sim_fail(a->thread, SIM_OUT_OF_BOUNDS, a->instruction, a->pc, address,
             "This byte of shared memory belongs to no allocation.");
}

static inline void check_write_seen(const struct access *a, const struct sim_shared *shared, uint32_t offset,
                                    const struct cell *cell)
{
    if (cell->write == 0 || has_seen(a->thread, cell->write)) return;
    if (cell->write >= PROTECTED) fail_outside(a, shared, offset, cell->write);
    sim_fail_conflict(a, shared->cta->window + offset, &(struct party){cell->write, cell->site, true});
}

void sim_end_suspicion(struct sim_cluster *cluster)
{
    const struct suspicion s = cluster->watch ? cluster->watch->suspicion : (struct suspicion){NULL};
    if (!s.thread) return;
    cluster->watch->suspicion.thread = NULL;
    if (!s.expired)
        sim_fail(s.thread, SIM_UNINITIALISED, s.instruction, s.pc, s.address,
                 "Nobody has written this byte of shared memory.");
    char file[128];
    int line;
    sim_locate(sim_unpack_site(s.expired), file, sizeof file, &line);
    sim_fail(s.thread, SIM_UNINITIALISED, s.instruction, s.pc, s.address,
             "What lay there ended at %s:%d, and nobody has written this byte of shared memory since.", file, line);
}

static void suspect(const struct access *a, const struct sim_shared *shared, uint32_t offset, const struct cell *cell)
{
    enum { PATIENCE = 100000 };
    struct suspicion *s = &shared->cta->cluster->watch->suspicion;
    if (s->thread) return;
    *s = (struct suspicion){a->thread, a->instruction, shared->cta->window + offset, a->pc, PATIENCE, cell->site};
}

static inline void read_cell(const struct access *a, const struct sim_shared *shared, uint32_t offset,
                             struct cell *cell)
{
    if (cell->write == 0) suspect(a, shared, offset, cell);
    check_write_seen(a, shared, offset, cell);
    if (a->async_proxy && cell->write != 0 && !sim_has_seen_fenced(a->thread, cell->write))
        sim_fail_fence(a, shared->cta->window + offset, &(struct party){cell->write, cell->site, true});
    cell->readers = readers_add(shared->cta->cluster->watch->shared, cell->readers, a);
}

static inline void write_cell(const struct access *a, const struct sim_shared *shared, uint32_t offset,
                              struct cell *cell)
{
    struct party other;
    check_write_seen(a, shared, offset, cell);
    if (a->async_proxy && cell->write != 0 && !sim_has_seen_fenced(a->thread, cell->write))
        sim_fail_fence(a, shared->cta->window + offset, &(struct party){cell->write, cell->site, true});
    if (!readers_seen(shared->cta->cluster->watch->shared, cell->readers, a, &other)) {
        if (cell->write == 0) shared->cta->cluster->watch->suspicion.thread = NULL; /* it is this race */
        sim_fail_conflict(a, shared->cta->window + offset, &other);
    }
    if (cell->write == 0 && cell->readers != 0) sim_end_suspicion(shared->cta->cluster); /* it comes in order, late */
    *cell = (struct cell){a->epoch, 0, a->site};
}

static void sweep(struct sim_cluster *cluster)
{
    struct readers *readers = cluster->watch->shared;
    sim_readers_sweep_begin(readers);
    for (unsigned c = 0; c < cluster->num_ctas; c++)
        for (int p = 0; p < NUM_PAGES; p++) {
            struct page *page = &cluster->ctas[c].shared->pages[p];
            for (int i = 0; page->cells && i < PAGE >> page->shift; i++)
                page->cells[i].readers = sim_readers_keep(readers, page->cells[i].readers);
        }
    sim_readers_sweep_end(readers);
}

static void note_remote(struct sim_shared *shared, const struct access *a)
{
    if (!shared->remote) shared->remote = calloc(SIM_MAX_AGENTS, sizeof *shared->remote);
    if (!shared->remote) abort();
    shared->remote[agent_of(a->epoch)] = (struct remote){a->thread, a->epoch, a->site, a->instruction};
}

/* A CTA's shared memory is its own once it has begun: a thread knows that from the cluster's barrier, relaxed or not,
 * or from anything that it has seen of that CTA. */
static void check_begun(const struct access *a, const struct sim_cta *cta, uint32_t offset)
{
    bool begun = a->thread->cluster_waits > 0;
    for (unsigned i = 0; !begun && i < cta->num_threads; i++)
        begun = has_seen(a->thread, cta->threads[i].agent << SIM_INTERVAL_BITS | 1);
    if (!begun)
        sim_fail(a->thread, SIM_RACE, a->instruction, a->pc, cta->window + offset,
                 "CTA %u of the cluster may not have begun; a wait for the cluster's barrier must come first.",
                 cta->rank);
}

void sim_shared_note_remote(struct sim_cta *cta, const void *object, const char *instruction, const void *site)
{
    struct sim_thread *self = sim_self;
    const uint32_t offset = (uint32_t)((const char *)object - cta->window);
    const struct access a = {self, self->agent << SIM_INTERVAL_BITS | self->interval, sim_pack_site(site),
                             site, instruction, ACCESS_WRITE, false};
    if (cta == self->cta || !cta->cluster->watched) return;
    check_begun(&a, cta, offset);
    note_remote(cta->shared, &a);
}

static bool anybody_has_seen(const struct sim_cta *cta, sim_epoch epoch)
{
    for (unsigned i = 0; i < cta->num_threads; i++)
        if (has_seen(&cta->threads[i], epoch)) return true;
    return false;
}

void sim_shared_finish(struct sim_cta *cta)
{
    const struct remote *remote = cta->shared->remote;
    for (int agent = 0; remote && agent < SIM_MAX_AGENTS; agent++) {
        const struct remote *r = &remote[agent];
        if (r->thread && !anybody_has_seen(cta, r->epoch))
            sim_fail(r->thread, SIM_RACE, r->instruction, sim_unpack_site(r->site), NULL,
                     "The shared memory is that of CTA %u of the cluster, and no thread of that CTA waits for this "
                     "access before it ends.", cta->rank);
    }
}

void sim_shared_access(const struct access *a, unsigned rank, uint32_t offset, size_t bytes)
{
    struct sim_cluster *cluster = a->thread->cta->cluster;
    struct sim_shared *shared = cluster->ctas[rank].shared;
    if (cluster->watch->shared->count >= cluster->watch->shared->full) sweep(cluster);
    if (cluster->watch->suspicion.thread && --cluster->watch->suspicion.patience == 0) sim_end_suspicion(cluster);
    if (rank != a->thread->cta->rank) {
        check_begun(a, shared->cta, offset);
        note_remote(shared, a);
    }
    while (bytes > 0) {
        const uint32_t at = offset % PAGE;
        const size_t here = bytes < PAGE - at ? bytes : PAGE - at;
        struct page *page = &shared->pages[offset / PAGE % NUM_PAGES];
        if (granularity(at, here) < page->shift || !page->cells) refine(page, granularity(at, here));
        const unsigned shift = page->shift;
        struct cell *cell = &page->cells[at >> shift], *end = &page->cells[(at + here) >> shift];
        struct cell before = {0, UINT32_MAX, 0}, after = before; /* as none is */
        for (uint32_t o = offset; cell < end; cell++, o += 1u << shift) {
            if (cell->write == before.write && cell->readers == before.readers) { /* as its neighbour was */
                cell->write = after.write, cell->readers = after.readers;
                if (a->kind != ACCESS_READ) cell->site = after.site;
                continue;
            }
            before = *cell;
            if (a->kind == ACCESS_READ) read_cell(a, shared, o, cell);
            else write_cell(a, shared, o, cell);
            after = *cell;
        }
        offset += here;
        bytes -= here;
    }
}

/* Who wrote it and who has read it since. */
static inline uint64_t state_of(const struct cell *cell) { return (uint64_t)cell->readers << 32 | cell->write; }

void sim_shared_read_together(const struct access *accesses, int n, uint32_t offset, size_t bytes,
                              struct read_together *last)
{
    struct sim_shared *shared = accesses->thread->cta->shared;
    struct sim_watch *watch = shared->cta->cluster->watch;
    if (watch->shared->count >= watch->shared->full) {
        sweep(shared->cta->cluster);
        last->before = SIM_NO_CELL;
    }
    if (watch->suspicion.thread && --watch->suspicion.patience == 0) sim_end_suspicion(shared->cta->cluster);
    struct read_together as = *last;
    for (const uint32_t end = offset + (uint32_t)bytes; offset < end;) {
        struct page *page = &shared->pages[offset / PAGE % NUM_PAGES];
        if (!page->cells) open_page(page);
        const uint32_t size = 1u << page->shift, page_end = (offset | (PAGE - 1)) + 1;
        struct cell *cell = &page->cells[offset % PAGE >> page->shift];
        for (; offset < end && offset < page_end; cell++, offset += size) {
            if (state_of(cell) != as.before) {
                as.before = state_of(cell);
                for (int i = 0; i < n; i++) read_cell(&accesses[i], shared, offset, cell);
                as.readers = cell->readers;
            }
            cell->readers = as.readers;
        }
    }
    *last = as;
}

/* ---- allocations ------------------------------------------------------------------------------------------ */

static uint32_t draw(struct sim_shared *layout, uint32_t n)
{
    uint64_t z = layout->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % n;
}

static size_t capacity(const struct sim_cluster *cluster)
{
    return (cluster->gpu->options.generation == SIM_SM_80 ? 163 : 227) * 1024;
}

/* Beyond a red zone, at an odd multiple of `align`; where that would leave too little for what may still come, at the
 * next multiple. */
static uint32_t place(struct sim_shared *layout, size_t bytes, size_t align)
{
    const uint32_t step = (uint32_t)align, next = (layout->end + RED_ZONE + step - 1) & ~(step - 1);
    const uint32_t odd = (next | step) + 2 * step * draw(layout, step < 256 ? 256 / step : 1);
    size_t placed = bytes;
    for (unsigned i = 0; i < layout->num_allocations; i++) placed += layout->allocations[i].bytes;
    const size_t spare = SIM_WINDOW - SIM_WINDOW_RESERVED - capacity(layout->cta->cluster);
    return odd + bytes <= SIM_WINDOW_RESERVED + placed + spare / 2 ? odd : next;
}

static void check_limits(const struct sim_shared *layout, const void *tag, const void *site)
{
    const size_t limit = capacity(layout->cta->cluster);
    if (tag && layout->static_bytes > STATIC_LIMIT)
        sim_fail(sim_self, SIM_LIMIT, "static shared memory", site, NULL,
                 "%zu bytes of static shared memory; at most %d may be static.", layout->static_bytes, STATIC_LIMIT);
    if (layout->static_bytes + layout->dynamic_bytes > limit)
        sim_fail(sim_self, SIM_LIMIT, "shared memory", site, NULL,
                 "%zu bytes of static and %zu of dynamic shared memory; this GPU has %zu for a CTA.",
                 layout->static_bytes, layout->dynamic_bytes, limit);
}

/* The same place in every CTA of the cluster for the same tag. */
static void *allocate(const void *tag, size_t bytes, size_t align, const void *site)
{
    struct sim_cta *cta = sim_self->cta;
    struct sim_cluster *cluster = cta->cluster;
    struct sim_shared *layout = cluster->ctas[0].shared;
    for (unsigned i = 0; i < layout->num_allocations; i++) {
        const struct allocation *a = &layout->allocations[i];
        if (a->tag != tag) continue;
        if (a->offset & (align - 1))
            sim_fail(sim_self, SIM_MISALIGNED, "dynamic shared memory", site, cta->window + a->offset,
                     "It was asked for with two alignments, the greater one (%zu) last.", align);
        return cta->window + a->offset;
    }
    if (tag) layout->static_bytes = ((layout->static_bytes + align - 1) & ~(align - 1)) + bytes;
    check_limits(layout, tag, site);
    const size_t room = tag ? bytes : bytes + MAX_PARTS * align; /* for red zones between parts */
    const uint32_t offset = place(layout, room, align);
    if (layout->num_allocations == MAX_ALLOCATIONS || offset + room > SIM_WINDOW)
        sim_fail(sim_self, SIM_LIMIT, "shared memory", site, NULL,
                 "More shared memory allocations than the simulated GPU can keep apart.");
    layout->allocations[layout->num_allocations++] = (struct allocation){tag, offset, (uint32_t)bytes, (uint32_t)align};
    layout->end = offset + (uint32_t)room;
    for (unsigned c = 0; c < cluster->num_ctas; c++) fill(cluster->ctas[c].shared, offset, bytes, 0);
    return cta->window + offset;
}

void *sim_shared_static(const void *tag, size_t bytes, size_t align)
{
    return allocate(tag, bytes, align, SIM_SITE);
}

void *sim_shared_dynamic(size_t align)
{
    return allocate(NULL, sim_self->cta->shared->dynamic_bytes, align, SIM_SITE);
}

/* ---- parts of dynamic shared memory -------------------------------------------------------------------------- */

/* Opens or closes bytes; what was written there and stays open is kept. */
static void open_bytes(struct sim_shared *shared, uint32_t offset, size_t bytes, bool open)
{
    for (uint32_t o = offset; o < offset + bytes; o += RED_ZONE) {
        const struct page *page = &shared->pages[o / PAGE];
        const bool is_open = page->cells && page->cells[o % PAGE >> page->shift].write != OUTSIDE;
        if (is_open != open) fill(shared, o, RED_ZONE, open ? 0 : OUTSIDE);
    }
}

static const struct allocation *dynamic_allocation(const struct sim_shared *layout)
{
    for (unsigned i = 0; i < layout->num_allocations; i++)
        if (!layout->allocations[i].tag) return &layout->allocations[i];
    return NULL;
}

/* Without parts all is open: pointers to parts stay what they are. */
static void lay(struct sim_shared *shared, const struct allocation *all, const struct cut *cut)
{
    uint32_t at = all->offset;
    const uint32_t end = all->offset + all->bytes + MAX_PARTS * all->align;
    if (!cut->num_parts) open_bytes(shared, at, end - at, true), at = end;
    for (unsigned i = 0; i < cut->num_parts; i++) {
        open_bytes(shared, at, cut->bytes[i], true);
        at += cut->bytes[i];
        open_bytes(shared, at, all->align, false);
        at += all->align;
    }
    open_bytes(shared, at, end - at, false);
    shared->cut = *cut;
}

static const struct allocation *check_cut(struct cut *cut, const void *base, const void *site)
{
    const struct sim_cta *cta = sim_self->cta;
    const struct allocation *all = dynamic_allocation(cta->cluster->ctas[0].shared);
    size_t sum = 0;
    if (!all || base != cta->window + all->offset)
        sim_fail(sim_self, SIM_BAD_OPERAND, "cut of shared memory", site, base,
                 "Only dynamic shared memory is cut, from its first byte on.");
    for (unsigned i = 0; i < cut->num_parts; sum += cut->bytes[i++]) {
        if (i + 1 == cut->num_parts && cut->bytes[i] == REST && sum <= all->bytes)
            cut->bytes[i] = all->bytes - (uint32_t)sum;
        if (cut->bytes[i] % RED_ZONE)
            sim_fail(sim_self, SIM_BAD_OPERAND, "cut of shared memory", site, base,
                     "Part %u has %u bytes; parts have multiples of %d.", i, cut->bytes[i], RED_ZONE);
    }
    if (sum > all->bytes)
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "cut of shared memory", site, base,
                 "The parts have %zu bytes; the launch asked for %u.", sum, all->bytes);
    return all;
}

void sim_shared_cut(void *base, const unsigned *bytes, int num_parts, unsigned char **parts)
{
    struct sim_shared *shared = sim_self->cta->shared;
    struct cut cut = {{0}, (unsigned)num_parts};
    if (num_parts > MAX_PARTS)
        sim_fail(sim_self, SIM_BAD_OPERAND, "cut of shared memory", SIM_SITE, base,
                 "%d parts; at most %d are told apart.", num_parts, MAX_PARTS);
    for (int i = 0; i < num_parts; i++) cut.bytes[i] = bytes[i];
    const struct allocation *all = check_cut(&cut, base, SIM_SITE);
    if (memcmp(&cut, &shared->cut, sizeof cut) != 0) lay(shared, all, &cut);
    unsigned char *at = base;
    for (int i = 0; i < num_parts; at += cut.bytes[i++] + all->align) parts[i] = at;
}

void sim_shared_expire(void *pointer, size_t bytes)
{
    struct sim_cluster *cluster = sim_self->cta->cluster;
    unsigned rank;
    uint32_t offset;
    if (!sim_in_window(cluster, pointer, &rank, &offset))
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "end of shared memory's contents", SIM_SITE, pointer,
                 "This is no address of shared memory.");
    if (!cluster->watched) return;
    const struct access own = {sim_self, sim_self->agent << SIM_INTERVAL_BITS | sim_self->interval,
                               sim_pack_site(SIM_SITE), SIM_SITE, "end of shared memory's contents", ACCESS_WRITE,
                               false};
    sim_shared_access(&own, rank, offset, bytes);
    fill_as(cluster->ctas[rank].shared, offset, bytes, (struct cell){0, 0, sim_pack_site(SIM_SITE)});
    memset(pointer, 0xff, bytes);
}

uint32_t sim_shared_address(const void *pointer)
{
    unsigned rank;
    uint32_t offset;
    if (!sim_in_window(sim_self->cta->cluster, pointer, &rank, &offset) || rank != sim_self->cta->rank)
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "cvta.to.shared", SIM_SITE, pointer,
                 "This is no address in the shared memory of this CTA.");
    return offset;
}

bool sim_in_window(const struct sim_cluster *cluster, const void *address, unsigned *rank, uint32_t *offset)
{
    return in_window(cluster, address, rank, offset);
}

void sim_shared_protect(struct sim_cta *cta, void *object, size_t bytes, const char *what, const void *site)
{
    struct sim_shared *shared = cta->shared;
    unsigned rank = cta->rank;
    uint32_t offset = 0;
    bool inside = sim_in_window(cta->cluster, object, &rank, &offset) && rank == cta->rank;
    for (uint32_t o = offset; inside && o < offset + bytes; o++) {
        const struct page *page = &shared->pages[o / PAGE % NUM_PAGES];
        inside = page->cells && page->cells[o % PAGE >> page->shift].write != OUTSIDE;
    }
    if (!inside)
        sim_fail(sim_self, SIM_OUT_OF_BOUNDS, what ? what : "end of an object", site, object,
                 "An object must lie in a shared memory allocation of this CTA.");
    const struct access own = {sim_self, sim_self->agent << SIM_INTERVAL_BITS | sim_self->interval, sim_pack_site(site),
                               site, what, ACCESS_WRITE, false};
    if (what && cta->cluster->watched) sim_shared_access(&own, rank, offset, bytes);
    fill(shared, offset, bytes, what ? PROTECTED : 0);
    if (what) shared->protected_as = what;
}

struct sim_shared *sim_shared_create(struct sim_cta *cta, size_t dynamic_bytes)
{
    struct sim_shared *shared = calloc(1, sizeof *shared);
    if (!shared) abort();
    shared->cta = cta;
    shared->dynamic_bytes = dynamic_bytes;
    shared->end = SIM_WINDOW_RESERVED;
    shared->random = cta->cluster->gpu->options.seed * 0xD1342543DE82EF95u + cta->linear;
    return shared;
}

void sim_shared_destroy(struct sim_shared *shared)
{
    if (!shared) return;
    for (int p = 0; p < NUM_PAGES; p++) free(shared->pages[p].cells);
    free(shared->remote);
    free(shared);
}

void sim_shared_describe(const struct sim_cta *cta, uint32_t offset, char *text, size_t bytes)
{
    const struct sim_shared *layout = cta->cluster->ctas[0].shared;
    const struct allocation *before = NULL;
    for (unsigned i = 0; layout && i < layout->num_allocations; i++)
        if (layout->allocations[i].offset <= offset && (!before || layout->allocations[i].offset > before->offset))
            before = &layout->allocations[i];
    int n = snprintf(text, bytes, "shared + 0x%x", offset);
    if (cta->cluster->num_ctas > 1 && n < (int)bytes)
        n += snprintf(text + n, bytes - n, " of CTA %u", cta->rank);
    if (!before || n >= (int)bytes) return;
    uint32_t at = offset - before->offset, of = before->bytes;
    char what[48];
    snprintf(what, sizeof what, "%s allocation", before->tag ? "a static" : "the dynamic");
    const struct cut *cut = before->tag ? &(struct cut){{0}, 0} : &cta->shared->cut;
    for (unsigned i = 0; i < cut->num_parts; i++) {
        of = cut->bytes[i];
        snprintf(what, sizeof what, "part %u of dynamic shared memory,", i);
        if (at < of + before->align || i + 1 == cut->num_parts) break;
        at -= of + before->align;
    }
    if (at < of) snprintf(text + n, bytes - n, " (byte %u of %s of %u bytes)", at, what, of);
    else snprintf(text + n, bytes - n, " (%u bytes past the end of %s of %u bytes)", at - of, what, of);
}
